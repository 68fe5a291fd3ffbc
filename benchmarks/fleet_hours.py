"""How much memory a large fleet needs: 12,500 nodes. JSON on stdout.

    python -m benchmarks.fleet_hours [outages] [telemetry]

`outages` runs `pharoah-provider hazard --events` on a file of a year (109.5 million node-hours): 6.5 failures per 1,000
node-days, a fifth of them followed by another within a day or so, and a million jobs. `telemetry` records levels of
four weeks hour by hour, 5% of nodes above level 0 for days and 0.02% silent for an hour, and estimates all that
`hazard` does; reading samples comes on top (docs/hazard.md has what that needs). Peaks are of the whole process.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from numpy.random import Generator

from benchmarks.figures import Figure, main
from provider_server.analysis.buildup import FRESH, SILENT, STATUS
from provider_server.analysis.fleet_events import at_risk_in_parts, fit_levels, gather
from provider_server.analysis.fleet_hours import Recorder
from provider_server.fleet.telemetry.samples import HOUR_S
from provider_server.fleet.telemetry.summaries import EVENT_SCHEMA

NODES, HOURS, FIRST = 12_500, 365 * 24, 480_000
RECORDED_H = 28 * 24
RATE_PER_HOUR = 6.5 / 1000 / 24
NAMES = [f"node{number:05}" for number in range(NODES)]


def outages() -> Figure:
    """The verb, on files."""
    rng = np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        events, jobs = Path(folder, "events.csv"), Path(folder, "jobs.csv")
        events.write_text("node,start,end,kind\n" + "".join(line for name in NAMES for line in _outages(rng, name)))
        jobs.write_text("node,start,end,workload\n" + "".join(line for name in NAMES for line in _jobs(rng, name)))
        words = ["hazard", "--events", str(events), "--jobs", str(jobs), "--nodes", str(NODES), "--json"]
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "provider_server", *words], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"node_hours": NODES * HOURS, "seconds": seconds, "peak_gb": peak * 1024 / 1e9}


def _outages(rng: Generator, name: str) -> Iterator[str]:
    at = rng.exponential(1 / RATE_PER_HOUR)
    while at < HOURS:
        back = at + rng.exponential(24.0)
        yield f"{name},{FIRST + at:.3f},{FIRST + back:.3f},hardware/{rng.choice(['GPU', 'NIC', 'link', 'fan'])}\n"
        at = back + rng.exponential(20.0 if rng.random() < 0.2 else 1 / RATE_PER_HOUR)


def _jobs(rng: Generator, name: str) -> Iterator[str]:
    at = 0.0
    while at < HOURS:
        end = at + rng.lognormal(4.2, 1.0)
        yield f"{name},{FIRST + at:.3f},{FIRST + end:.3f},w{rng.integers(8)}\n"
        at = end + 0.01


def telemetry() -> Figure:
    """The estimates of levels, recorded hour by hour."""
    rng, recorder = np.random.default_rng(0), Recorder()
    began = time.perf_counter()
    level = (rng.random(NODES) < 0.05).astype(np.int8)
    for hour in range(FIRST, FIRST + RECORDED_H):
        level = np.where(rng.random(NODES) < 0.01, rng.random(NODES) < 0.05, level).astype(np.int8)
        status = pl.Series(rng.random(NODES) < 0.0002).replace_strict({True: SILENT, False: FRESH}, return_dtype=STATUS)
        levels = pl.DataFrame({"node": NAMES, "level": level, "status": status})
        recorder.add(levels.with_columns(hour=pl.lit(hour, pl.Int64)))
    when = FIRST + rng.uniform(0, RECORDED_H, int(RATE_PER_HOUR * NODES * RECORDED_H))
    failing = rng.choice(NAMES, len(when))
    events = pl.DataFrame(
        {"node": failing, "device": "g0", "metric": "xid", "time_s": when * HOUR_S, "code": 79.0}, schema=EVENT_SCHEMA
    )
    recorded = recorder.hours()
    found = gather(at_risk_in_parts(recorded, events), dict.fromkeys(NAMES, 0))
    fit_levels(found.table)
    return {
        "node_hours": recorded.node_hours,
        "runs": recorded.runs.height,
        "failures": found.failures,
        "seconds": time.perf_counter() - began,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


if __name__ == "__main__":
    main(outages, telemetry)
