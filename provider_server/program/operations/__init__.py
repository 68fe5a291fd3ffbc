"""What the running provider does by itself, and what its operator may ask of it."""
