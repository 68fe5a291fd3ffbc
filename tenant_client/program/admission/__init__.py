"""Before a pod starts: an admission webhook that keeps it from nodes where its workload is known to fail."""
