"""What was learnt against the truth that only the simulation knows."""
