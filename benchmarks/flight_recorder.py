"""Measures the flight recorder analysis against PyTorch's own on the same dumps; one JSON object per figure on stdout.

    python benchmarks/flight_recorder.py [RANKS [RECORDS]]     512 ranks x 2,000 records each unless told otherwise

The dumps are pickles in PyTorch's manner (strings memoised, containers not) and the same as JSON; one rank stops ten
records before the end. Each analysis runs in a process of its own, PyTorch's for at most 180 s and only where torch is
installed. The recorded runs are left out, with a line on stderr, where ../shared/data is absent.
"""

import importlib.util
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import DATA, Figure, show

RUNS = DATA / "flight_recorder"
ROOT = Path(__file__).resolve().parents[1]
PEER_SECONDS = 180
STOPS_BEFORE_END = 10
OURS = """
import sys
from pathlib import Path
from tenant_client.diagnosis.collectives import analyse
from tenant_client.sources.flight_recorder import read_dumps
print(*analyse(read_dumps(Path(sys.argv[1]))).culprits)
"""
PEER = """
import sys
from torch.distributed.flight_recorder.fr_trace import main
main([sys.argv[1], "--prefix", "dump_"])
"""


# ---- dumps ---------------------------------------------------------------------------------------------------------


def groups_of(rank: int, ranks: int) -> list[tuple[str, str, range]]:
    """Tensor-parallel groups of 8, data-parallel groups across them, and everybody."""
    tensor = rank // 8
    return [
        (f"tp{tensor}", "TENSOR_MODEL_PARALLEL_GROUP", range(8 * tensor, min(8 * tensor + 8, ranks))),
        (f"dp{rank % 8}", "DATA_PARALLEL_GROUP", range(rank % 8, ranks, 8)),
        ("0", "default_pg", range(ranks)),
    ]


def records_of(rank: int, ranks: int, count: int, broken: int) -> Iterator[tuple[int, int, int, str]]:
    """Record number, position of the group, sequence number, state."""
    seen = [0, 0, 0]
    for number in range(count - STOPS_BEFORE_END if rank == broken else count):
        group = {8: 1, 9: 2}.get(number % 10, 0)
        seen[group] += 1
        yield number, group, seen[group], "completed" if number < count - STOPS_BEFORE_END else "scheduled"


SIZES = [[[4096, 1, 5120]], [[1 << 20]], [[16]]]
KEYS = (
    "record_id", "pg_id", "process_group", "thread_name", "thread_id", "collective_seq_id", "p2p_seq_id", "op_id",
    "profiling_name", "time_created_ns", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "state",
    "time_discovered_started_ns", "time_discovered_completed_ns", "retired", "timeout_ms", "is_p2p",
)  # fmt: skip


def entry_of(number: int, group: tuple[str, str, range], at: int, seq: int, state: str) -> dict[str, Any]:
    """One record as PyTorch writes it."""
    created = 1_758_610_505_000_000_000 + number * 1_000_000
    values = (
        number, at, (group[0], group[1]), "pt_autograd_0", "23456244340032", seq, 0, seq, "nccl:all_reduce", created,
        SIZES[at], ["BFloat16"], SIZES[at], ["BFloat16"], state, None, None, state == "completed", 600_000, False,
    )  # fmt: skip
    return dict(zip(KEYS, values, strict=True))


class Pickle:
    """Protocol 2 as `torch::jit::Pickler` writes it."""

    def __init__(self) -> None:
        self.memo: dict[str, int] = {}

    def of(self, value: object) -> bytes:
        """The opcodes for one value."""
        match value:
            case None | bool():
                return {None: b"N", True: b"\x88", False: b"\x89"}[value]
            case int():
                return self._number(value)
            case str():
                return self._string(value)
            case tuple():
                return b"".join(map(self.of, value)) + b"\x86"
            case list():
                return b"](" + b"".join(map(self.of, value)) + b"e"
            case dict():
                return b"}(" + b"".join(self.of(item) for pair in value.items() for item in pair) + b"u"
        raise TypeError(value)

    def _string(self, value: str) -> bytes:
        if value in self.memo:
            at = self.memo[value]
            return b"h" + bytes([at]) if at < 256 else b"j" + struct.pack("<I", at)
        at = self.memo[value] = len(self.memo)
        put = b"q" + bytes([at]) if at < 256 else b"r" + struct.pack("<I", at)
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode() + put

    @staticmethod
    def _number(value: int) -> bytes:
        if 0 <= value < 256:
            return b"K" + bytes([value])
        if 0 <= value < 1 << 16:
            return b"M" + struct.pack("<H", value)
        return (
            b"J" + struct.pack("<i", value) if -(1 << 31) <= value < 1 << 31 else b"\x8a\x08" + struct.pack("<q", value)
        )


def write(rank: int, ranks: int, count: int, broken: int, pickles: Path, texts: Path) -> int:
    """One rank's dump in both forms; returns how many records it has."""
    groups = groups_of(rank, ranks)
    config = {name: {"name": name, "desc": text, "ranks": json.dumps(list(members))} for name, text, members in groups}
    entries = [
        entry_of(number, groups[at], at, seq, state)
        for number, at, seq, state in records_of(rank, ranks, count, broken)
    ]
    dump = {"version": "2.10", "pg_config": config, "nccl_version": "2.27.3", "pg_status": {}, "entries": entries}
    (pickles / f"dump_{rank}").write_bytes(b"\x80\x02" + Pickle().of(dump) + b".")
    (texts / f"dump_{rank}").write_text(json.dumps(dump))
    return len(entries)


# ---- measures ------------------------------------------------------------------------------------------------------


def measured(program: str, folder: Path, cap_s: float) -> Figure:
    """Seconds, peak resident MB and the telling line of the output of a program in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, str(folder)]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        figure = waited(child, cap_s)
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    said = [line for line in lines if "missing ranks" in line] or lines[-1:] or [""]
    return {**figure, "said": said[0].strip()[:200]}


def waited(child: subprocess.Popen[bytes], cap_s: float) -> Figure:
    """What the program took, until it ended or was killed after `cap_s`."""
    began = time.perf_counter()
    ended, status, usage = os.wait4(child.pid, os.WNOHANG)
    while not ended and time.perf_counter() - began < cap_s:
        time.sleep(0.02)
        ended, status, usage = os.wait4(child.pid, os.WNOHANG)
    seconds = time.perf_counter() - began
    if not ended:
        child.kill()
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": round(usage.ru_maxrss / 1024),
        "finished": bool(ended),
        "exit_code": child.returncode,
    }


def scale(ranks: int, count: int) -> Iterator[Figure]:
    """Ours on pickles and on JSON, then PyTorch's on the pickles."""
    broken = 300 % ranks
    with tempfile.TemporaryDirectory() as folder:
        pickles, texts = Path(folder, "pickle"), Path(folder, "json")
        pickles.mkdir()
        texts.mkdir()
        records = sum(write(rank, ranks, count, broken, pickles, texts) for rank in range(ranks))
        about = {"ranks": ranks, "records": records, "broken_rank": broken}
        for name, place in (("pickle", pickles), ("json", texts)):
            sys.stderr.write(f"ours, {name} …\n")
            yield {"figure": f"flight_recorder_{name}", **about, **measured(OURS, place, 600)}
        if importlib.util.find_spec("torch") is None:
            sys.stderr.write("torch: left out: pip install torch==2.13.0 tabulate\n")
            return
        sys.stderr.write("torch …\n")
        yield {"figure": "torch_flight_recorder", **about, **measured(PEER, pickles, PEER_SECONDS)}


def recorded() -> Iterator[Figure]:
    """The culprits of the two recorded runs beside the injected ones."""
    for run in sorted(RUNS.iterdir()):
        first = (run / "fault_injection.log").read_text().splitlines()[0]
        found = measured(OURS, run, 60)
        yield {
            "figure": f"recorded_{run.name}",
            "injected": json.loads(first.partition(":")[2]),
            "named": [int(rank) for rank in found["said"].split()],
            "seconds": found["seconds"],
        }


if __name__ == "__main__":
    size = [int(argument) for argument in sys.argv[1:3]]
    show(scale(*(size + [512, 2000][len(size) :])))
    if RUNS.exists():
        show(recorded())
    else:
        sys.stderr.write("recorded runs: left out: ../shared/data/flight_recorder is missing\n")
