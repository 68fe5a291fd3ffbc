"""ByteDance's what-if slowdowns: ours beside the published ones, for each trace in ../shared/data. JSON on stdout.

python -m benchmarks.stragglers [FOLDER]     a folder of trace-NAME.parquet, result-, mw- and ms-NAME.json
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import DATA, Figure, show
from tenant_client.diagnosis.stragglers.what_if import what_if
from tenant_client.sources.step_trace import read_step_trace


def compare(trace: Path) -> Figure:
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
    return {"figure": "what_if", "trace": name, **pairs, "worst": worst, "cause": found.cause, "seconds": seconds}


def main(folder: Path) -> Iterator[Figure]:
    """All traces of a folder; none, with a line on stderr, where there are none."""
    traces = sorted(folder.glob("trace-*.parquet"))
    if not traces:
        sys.stderr.write(f"what_if: left out: no trace-*.parquet in {folder}\n")
    yield from map(compare, traces)


if __name__ == "__main__":
    show(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA / "stragglers"))
