"""What one of the two nodes shows: node_exporter's counters, by canonical metric, of its own network and groups alone.

node_exporter reads the whole machine from /proc; here both nodes are on one, so pressure is that of a node's control
group, page faults are those of its memory group, and TCP's counters those of its network. The clock is played.
"""

import struct
from pathlib import Path

from pharoah_benchmarks.inject.kinds import Victim

GAUGES = frozenset({"clock_offset"})
PROGRESS = struct.Struct("Qd")  # what a rank leaves in `progress`: steps, and the newest loss


def sample(node: Victim) -> dict[str, float]:
    """Counters since the node began, and gauges now."""
    tcp = _tcp(Path(f"/proc/{node.process}/net/snmp"))
    return {
        "pressure_cpu": node.group.waited_s("cpu"),
        "pressure_memory": node.group.waited_s("memory"),
        "pressure_io": node.group.waited_s("io"),
        "disk_reads": float(_io(Path(f"/proc/{node.process}/io"))["read_bytes"]),
        "major_faults": float(node.group.memory()["pgmajfault"]),
        "tcp_retransmits": tcp["RetransSegs"],
        "tcp_errors": tcp["InErrs"],
        "clock_offset": node.clock_off_s,
    }


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Of a window: what counters grew by, and gauges as they are."""
    return {name: value if name in GAUGES else value - before[name] for name, value in after.items()}


def steps(node: Victim) -> int:
    """How many steps its rank has made."""
    text = (node.folder / "progress").read_bytes() if (node.folder / "progress").exists() else b""
    return int(PROGRESS.unpack(text)[0]) if len(text) == PROGRESS.size else 0


def _io(file: Path) -> dict[str, int]:
    lines = file.read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def _tcp(file: Path) -> dict[str, float]:
    names, values = (line.split()[1:] for line in file.read_text(encoding="ascii").splitlines() if line[:4] == "Tcp:")
    return dict(zip(names, map(float, values), strict=True))
