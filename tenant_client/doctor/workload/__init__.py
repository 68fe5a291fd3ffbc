"""Describes workloads: from traces to a descriptor, its rungs, and comparisons. Nothing here is sent."""
