"""May a job use this node? As node health checks ask it, on the node."""
