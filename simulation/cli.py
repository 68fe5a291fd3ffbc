"""`pharoah-sim`: a simulated cloud, replays of real data through the real federation, and studies.

A verb is a function in `simulation/verbs/`, imported when called. Results go to stdout (`--json` with stable keys),
progress and everything else to stderr. Exit codes: 0 ok, 2 failed.
"""

from federation.base.console import JSON, CommandLine, add_later, group
from simulation.studies.verbs import studies

VERBS = "simulation.verbs"

app = CommandLine(
    name="pharoah-sim",
    help="Run the real federation on a simulated cloud with known truth, or on public data sets.",
    shared={"--json": JSON},
)
for place in (
    "run.run",
    "sweep.sweep",
    "federation.federation",
    "federation.bad_link",
    "look.scenarios",
    "look.status",
):
    add_later(app, f"{VERBS}.{place}")
replay = group("replay", "Run the federation on real data and compare with the pooled analysis.")
for name in ("titan", "philly", "lung", "brca"):
    add_later(replay, f"{VERBS}.replay.{name}")
app.add_typer(replay)
app.add_typer(studies)
app.add_typer(studies, name="bench", hidden=True)  # as the verb was called; issues still name it
