"""Telemetry while the provider serves: hints where hazards of running leases rise, and own failures as they come."""
