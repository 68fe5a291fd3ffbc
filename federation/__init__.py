"""What all parties of a federation share: its protocol, what every program needs, and the way between machines."""
