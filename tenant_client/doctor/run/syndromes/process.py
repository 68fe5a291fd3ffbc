"""What the kernel says of a process: computing, reading, stopped. For processes of the same user, without privileges.

Who waits for a processor works too: on a host with ten runnable processes to a core, a rank that compiles gets a tenth.

>>> import os
>>> Activity(os.getpid()).look(0.0).stopped
False
"""

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

from tenant_client.doctor.run.syndromes.views import Doing

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_STOPPED, _DISK = "Tt", "D"
_LOOKS = 6
_PRESSURE = Path("/proc/pressure/cpu")


class Activity:
    """Follows one process and its children; what cannot be read counts as nothing."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: deque[tuple[float, float, int]] = deque(maxlen=_LOOKS)

    def look(self, now_s: float) -> Doing:
        """What it does now, and has done over the last looks."""
        family = [self._pid, *_children(self._pid)]
        states = {pid: _stat(pid) for pid in family}
        cpu_s = sum(seconds for _, seconds in states.values())
        queued_s = sum(map(_queued_s, family))
        moved = sum(map(_bytes, family))
        stopped = any(state in _STOPPED for state, _ in states.values() if state)
        in_disk_wait = states[self._pid][0] == _DISK
        now = (now_s, cpu_s + queued_s, moved)
        self._before.append(now)
        before_s, before_cpu_s, before_moved = self._before[0]
        if now_s <= before_s:
            return Doing(stopped, in_disk_wait)
        took_s = now_s - before_s
        cores, rate = max(0.0, now[1] - before_cpu_s) / took_s, max(0, moved - before_moved) / took_s
        return Doing(stopped, in_disk_wait, cores, rate)


def pressure_percent(pressure: Path = _PRESSURE) -> float:
    """The share of the last 10 s in which somebody on this host waited for a processor; 0 where that is not known."""
    try:
        text = pressure.read_text(encoding="ascii")
    except OSError:
        return 0.0
    return float(text.split("avg10=")[1].split()[0])


def _queued_s(pid: int) -> float:
    """How long its threads have waited for a processor, ever: those that send and receive count, too."""
    queued_ns = 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # it has ended
                queued_ns += int((task / "schedstat").read_text(encoding="ascii").split()[1])
    return queued_ns / 1e9


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                found += [int(child), *_children(int(child))]
    return found


def _stat(pid: int) -> tuple[str, float]:
    """The state and the CPU seconds of a process; "" for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", 0.0
    fields = text.rpartition(")")[2].split()
    return fields[0], (int(fields[11]) + int(fields[12])) * _TICK_S


def _bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/io").read_text(encoding="ascii")
    except OSError:
        return 0
    counts = dict(line.split(": ") for line in text.splitlines())
    return int(counts["rchar"]) + int(counts["wchar"])
