"""Hazards of running leases: telemetry is read hour by hour, and hints are appended where a hazard rises."""
