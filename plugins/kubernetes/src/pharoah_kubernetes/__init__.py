"""Leases of a Kubernetes cluster: its API is watched, and pods that work together become one lease."""
