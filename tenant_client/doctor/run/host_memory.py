"""Tells when a rank, or the workers of its data loader, take ever more memory of the host.

The observer reads /proc: the job does nothing for it. Growth counts if each quarter of what was seen is above the one
before, the last by about as much as the others, and if it would fill the host within a day. So neither a cache that
fills up nor workers that start anew with each epoch are growth.

>>> growth = Growth()
>>> [growth.feed(2.0 * n, 1e9 + 8e6 * n, available=3e9) is not None for n in range(24)][-2:]
[False, True]
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

EVERY_S = 2.0
_NEEDED, _KEPT = 24, 128
_LEAST_BYTES = 64 << 20
_SOON_S = 86400.0
_STEADY = 0.8
_MIB = 1 << 20
_PAGE = 4096
_MOST_PROCESSES = 512


@dataclass(frozen=True)
class Memory:
    """Bytes of its own that a rank's process has, and those of all its child processes."""

    own: float
    children: float


@dataclass(frozen=True)
class Growing:
    """Memory that grows by so much a second; it fills the host in `full_in_s`."""

    bytes_s: float
    now: float
    full_in_s: float


class Growth:
    """The history of one number. It is thinned out, so that it spans the whole time."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()
        self._every_s = EVERY_S

    def feed(self, now_s: float, amount: float, available: float) -> Growing | None:
        """Takes the bytes used and those that the host has left; the growth, if there is one."""
        if self._seen and now_s - self._seen[-1][0] < self._every_s:
            return None
        self._seen.append((now_s, amount))
        if len(self._seen) > _KEPT:
            self._seen = deque(list(self._seen)[::2])
            self._every_s *= 2
        return self._judge(available) if len(self._seen) >= _NEEDED else None

    def _judge(self, available: float) -> Growing | None:
        size = len(self._seen) // 4
        recent = list(self._seen)[-4 * size :]
        levels = [median(amount for _, amount in recent[start : start + size]) for start in range(0, 4 * size, size)]
        steps = [after - before for before, after in pairwise(levels)]
        if min(steps) <= 0 or sum(steps) < _LEAST_BYTES or steps[-1] < _STEADY * sum(steps) / len(steps):
            return None
        rate = sum(steps) / (0.75 * (recent[-1][0] - recent[0][0]))
        full_in_s = available / rate
        return Growing(rate, recent[-1][1], full_in_s) if full_in_s < _SOON_S else None


class HostMemory:
    """Watches the processes of the ranks on this host. `proc` is the folder of the kernel's files."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._growth: dict[tuple[int, int, str], Growth] = {}
        self._read_at_s = 0.0

    def feed(self, now_s: float, pids: dict[int, int]) -> dict[int, str]:
        """What grows, by rank; `pids` are the processes of the ranks that train."""
        if now_s - self._read_at_s < EVERY_S:
            return {}
        self._read_at_s = now_s
        left = available(self._proc)
        found = {}
        for rank, pid in pids.items():
            memory = read_memory(self._proc, pid)
            for who, amount in (("process", memory.own), ("data loader's workers", memory.children)):
                growth = self._growth.setdefault((rank, pid, who), Growth())
                growing = growth.feed(now_s, amount, left)
                if growing is not None:
                    found[rank] = _text(rank, who, growing)
        return found


def _text(rank: int, who: str, growing: Growing) -> str:
    grows = f"by {growing.bytes_s / _MIB:.3g} MiB a second, {growing.now / _MIB:.0f} MiB now"
    return f"memory of rank {rank}'s {who} grows {grows}; the host is full in {_period(growing.full_in_s)}"


def _period(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def read_memory(proc: Path, pid: int) -> Memory:
    """The memory that the process and its descendants share with nobody; 0 for those that are gone."""
    return Memory(_private(proc, pid), sum(_private(proc, child) for child in descendants(proc, pid)))


def descendants(proc: Path, pid: int) -> Iterator[int]:
    """The processes that a process started, and those that they did."""
    waiting, seen = [pid], 0
    while waiting and seen < _MOST_PROCESSES:
        for children in (proc / str(waiting.pop()) / "task").glob("*/children"):
            for child in map(int, text_of(children).split()):
                seen += 1
                waiting.append(child)
                yield child


def _private(proc: Path, pid: int) -> float:
    fields = text_of(proc / str(pid) / "statm").split()
    return float(_PAGE * (int(fields[1]) - int(fields[2]))) if len(fields) > 2 else 0.0


def available(proc: Path = Path("/proc")) -> float:
    """Bytes that the host has left; infinity where it does not say."""
    for line in text_of(proc / "meminfo").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return 1024.0 * int(amount.split()[0])
    return float("inf")


def text_of(path: Path) -> str:
    """A file of the kernel's; empty if its process has ended."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
