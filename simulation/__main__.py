"""`python -m simulation` is `pharoah-sim`."""

from simulation.cli import app

app(prog_name="pharoah-sim")
