"""Real data through the real federation."""
