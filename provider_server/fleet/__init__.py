"""What the machines say, and what is learnt: telemetry, analysis, learning, hints. Knows no tenant's secrets."""
