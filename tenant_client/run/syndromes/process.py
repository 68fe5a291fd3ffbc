"""What the kernel says of a process: computing, reading, stopped. For processes of the same user, without privileges.

>>> import os
>>> Activity(os.getpid()).look(0.0).stopped
False
"""

import os
from contextlib import suppress
from pathlib import Path

from tenant_client.run.syndromes.views import Doing

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_STOPPED, _DISK = "Tt", "D"


class Activity:
    """Follows one process and its children; what cannot be read counts as nothing."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: tuple[float, float, int] | None = None

    def look(self, now_s: float) -> Doing:
        """What it has done since the last look."""
        family = [self._pid, *_children(self._pid)]
        states = {pid: _stat(pid) for pid in family}
        cpu_s = sum(seconds for _, seconds in states.values())
        moved = sum(map(_bytes, family))
        before, self._before = self._before, (now_s, cpu_s, moved)
        stopped = any(state in _STOPPED for state, _ in states.values() if state)
        in_disk_wait = states[self._pid][0] == _DISK
        if before is None or now_s <= before[0]:
            return Doing(stopped, in_disk_wait)
        took_s = now_s - before[0]
        cores, rate = max(0.0, cpu_s - before[1]) / took_s, max(0, moved - before[2]) / took_s
        return Doing(stopped, in_disk_wait, cores, rate)


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
