"""`pharoah-sim study diagnosis`, as issues still call it."""

import sys

from simulation.cli import app

app(["study", "diagnosis", *sys.argv[1:]], prog_name="pharoah-sim")
