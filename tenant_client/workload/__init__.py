"""What a workload is: from traces to a descriptor, its rungs, and comparisons. Nothing here is sent."""
