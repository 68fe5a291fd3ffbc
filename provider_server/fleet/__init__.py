"""What the provider knows of its own: leases and hardware telemetry."""
