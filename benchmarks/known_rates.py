"""Counts rows of `known_rates.toml` anew from published raw data, and prints what all rows together foretell.

    python benchmarks/known_rates.py ../shared/data

Run it once a year, after new sources were read. Rows that raw data speak of are printed beside those of the table; the
last lines are the table's [experience]. It changes nothing: a person reviews what differs.
"""

import csv
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from federation.base.screen import show
from federation.protocol.known_rates import GPUS_A_NODE, Class, known_rates
from provider_server.fleet.analysis.public_rates import experience_of

HOURS_A_YEAR = 8766.0
SERVERS, DAYS = 400, 348
GPU, NETWORK = ("GPU",), ("Parameter Plane Cable", "NIC")
Counted = tuple[str, Class, float, float]


def titan(folder: Path) -> Iterator[Counted]:
    """GPUs taken out, in GPU-hours."""
    with gzip.open(folder / "titan" / "gpu_lifetimes.csv.gz", "rt") as file:
        lives = list(csv.DictReader(file))
    gpu_hours = HOURS_A_YEAR * sum(float(life["years"]) for life in lives)
    yield "Titan", "gpu", sum(life["dead"] == "TRUE" for life in lives), gpu_hours
    yield "Titan", "memory", sum(life["dead_dbe"] == "TRUE" for life in lives), gpu_hours


def infinitehbd(folder: Path) -> Iterator[Counted]:
    """Faults of hardware by class; those of software count as infrastructure too."""
    with gzip.open(folder / "infinitehbd" / "fault_trace.json.gz", "rt") as file:
        faults = [event["fault_type"] for event in json.load(file) if event["event_type"] == "fault_start"]
    hardware = [fault for fault in faults if fault["Level"] == "Hardware Failure"]
    software = sum(fault["Level"] == "Software Failure" for fault in faults)
    numbers: dict[Class, int] = {
        "infrastructure": len(hardware) + software,
        "gpu": sum(fault["Class"] in GPU for fault in hardware),
        "memory": sum("Bit ECC" in fault["Desc"] for fault in hardware),
        "network": sum(fault["Class"] in NETWORK for fault in hardware),
        "host": sum(fault["Class"] not in (*GPU, *NETWORK) for fault in hardware),
    }
    for cause, failures in numbers.items():
        yield "InfiniteHBD", cause, failures, SERVERS * GPUS_A_NODE * DAYS * 24.0


def acme(folder: Path) -> Iterator[Counted]:
    """The exposure alone: failures are those of the paper's table."""
    with (folder / "acme" / "cluster_summary.csv").open() as file:
        clusters = [row for row in csv.DictReader(file) if row["id"] in ("Seren", "Kalos")]
    names = ("complete_gpu_time", "cancel_gpu_time", "fail_gpu_time")
    gpu_hours = sum(float(row[name]) for row in clusters for name in names) / 3600.0
    for row in known_rates():
        if row.fleet == "Acme":
            yield "Acme", row.cause, row.failures, gpu_hours


def counted(folder: Path) -> list[Counted]:
    """Fleet, class, failures and GPU-hours, of all that raw data speak of."""
    return [*titan(folder), *infinitehbd(folder), *acme(folder)]


def lines(folder: Path) -> Iterator[str]:
    """Both, for a person."""
    table = {(row.fleet, row.cause): row for row in known_rates()}
    for fleet, cause, failures, gpu_hours in counted(folder):
        row = table[fleet, cause]
        yield f"{fleet} {cause}: {failures:g} in {gpu_hours:.4g}, in the table {row.failures:g} in {row.gpu_hours:.4g}"
    for cause in get_args(Class):
        found = experience_of([row for row in known_rates() if row.cause == cause])
        yield f"[experience.{cause}]\nfailures = {found.failures:.3f}\nnode_hours = {found.node_hours:.0f}"


if __name__ == "__main__":
    show(*lines(Path(sys.argv[1])))
