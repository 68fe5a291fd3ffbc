"""A home with settings, and what takes the place of the program on nodes: it does what the name of its job says."""

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from pharoah_benchmarks.catalogue import Precision, SizeName
from pharoah_benchmarks.run import Ran
from provider_server.fleet.learning.benchmark_jobs import OK
from provider_server.rounds import home as homes

RAN = Ran("graph", "graph-1", "n1", 1, 40, OK, "", "", "", 36.0, 0.01, {"torch": "2.9.1"}, SizeName.CPU, Precision.FP32)
# Called as Python is, with `-m MODULE run JOB ...`; a job that waits ends when its standard input does.
PROGRAM = """#!/bin/sh
case $4 in
    graph) echo "loading"; echo '{ran}' ;;
    encoder) cat > /dev/null ;;
    decoder) trap '' TERM; while :; do sleep 1; done ;;
    experts) head -c 300000 /dev/urandom; echo; echo '{{"job": "experts", "run": 3}}' ;;
    diffusion) echo '{strange}' ;;
    convolution) echo "no PyTorch here" >&2; exit 2 ;;
esac
"""


def program(folder: Path) -> Path:
    """The program, in a folder that all nodes see."""
    made, strange = folder / "program", msgspec.structs.replace(RAN, job="diffusion", outcome="melted")
    told = {name: msgspec.json.encode(one).decode() for name, one in (("ran", RAN), ("strange", strange))}
    made.write_text(PROGRAM.format(**told))
    made.chmod(0o755)
    return made


def founded(folder: Path, contexts: str, settings: str) -> Path:
    """A provider's home with contexts of nodes and the section benchmark."""
    home = folder / "provider"
    homes.create(home, ["localhost"], os.urandom, datetime.now(UTC))
    (home / "provider.toml").write_text(f"[leases]\ncontexts = {{ {contexts} }}\n[benchmark]\n{settings}\n")
    return home
