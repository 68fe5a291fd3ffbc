"""From releases and telemetry to findings, and from findings to a published bundle."""
