"""What the provider knows of its own nodes, for programs that operators run: metrics, NVSentinel."""
