"""Hardware telemetry in, summaries per node-hour out: the provider's own half of the story. See docs/nodes.md."""
