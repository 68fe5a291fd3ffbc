"""What telemetry says of nodes now: their hazard, and what to do with each."""
