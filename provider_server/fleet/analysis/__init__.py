"""Statistics on released tables and the provider's own telemetry. It cannot reach rounds, masks or stores."""
