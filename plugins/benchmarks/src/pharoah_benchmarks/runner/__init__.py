"""Runs jobs of the catalogue on idle nodes of Slurm or Kubernetes, or on this machine, until it is stopped."""
