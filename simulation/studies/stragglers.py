"""ByteDance's what-if slowdowns: ours beside the published ones, for each trace of a folder.

The folder has trace-NAME.parquet, and result-, mw- and ms-NAME.json with what was published.
"""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from simulation.studies.study import DATA, Figures, Table
from tenant_client.doctor.diagnosis.stragglers.what_if import what_if
from tenant_client.doctor.sources.step_trace import read_step_trace


def compare(trace: Path) -> Figures:
    """S, M_W and M_S of one trace, the largest difference from what was published, and the time that took."""
    name = trace.stem.removeprefix("trace-")
    read = {kind: json.loads(trace.with_name(f"{kind}-{name}.json").read_text()) for kind in ("result", "mw", "ms")}
    began_s = time.perf_counter()
    found = what_if(read_step_trace(trace))
    seconds = time.perf_counter() - began_s
    pairs = {
        "S": (found.slowdown, read["result"]["blocking_slowdown"]),
        "M_W": (found.workers, read["mw"]["Mw"]),
        "M_S": (found.last_stage, read["ms"]["Ms"]),
    }
    worst = max(abs((ours or 0.0) - theirs) for ours, theirs in pairs.values())
    return {"trace": name, **pairs, "worst": worst, "cause": found.cause, "seconds": seconds}


def run(
    folder: Annotated[
        Path,
        typer.Argument(exists=True, file_okay=False, help="The traces.", show_default="../shared/data/stragglers"),
    ] = DATA / "stragglers",
) -> Table:
    """What-if slowdowns of jobs with stragglers, ours and the published ones."""
    return Table([compare(trace) for trace in sorted(folder.glob("trace-*.parquet"))])
