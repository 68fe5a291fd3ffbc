"""Which ranks did the kernel end for want of memory? From its log, and from the counters of their memory cgroups.

The log names the process; where it may not be read, or a container has other numbers, a cgroup's count of kills rises
while a rank ends. So a helper's end, which the job survives, is none of a rank.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tenant_client.doctor.run.host_memory import text_of

_KILLED = re.compile(r"(?:Memory cgroup out|Out) of memory: Killed process (\d{1,10}) .*", re.ASCII)
_COUNTED = re.compile(r"^oom_kill (\d{1,18})$", re.ASCII | re.MULTILINE)
_COUNTERS = {"": ("", "memory.events"), "memory": ("memory", "memory.oom_control")}  # by controllers: version 2, 1
_TOGETHER_S = 5.0  # between a rise of the counter and the end of a rank
_MOST_RECORDS, _RECORD = 4096, 8192


class OomKills:
    """Follows the ranks of this host. `proc`, `groups` and `log` are files of the kernel's."""

    def __init__(
        self, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup"), log: Path = Path("/dev/kmsg")
    ) -> None:
        self._proc, self._groups = proc, groups
        self._log: int | None = None
        with suppress(OSError):
            self._log = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)
        self._ranks: dict[int, int] = {}
        self._named: dict[int, str] = {}  # what the log says, by process
        self._counts: dict[Path, int] = {}
        self._risen: tuple[float, str] = -math.inf, ""  # until when a rank may end of it

    def feed(self, now_s: float, pids: Mapping[int, int]) -> tuple[tuple[int, ...], str] | None:
        """The ranks that were ended, none if it is not known which, and by what that is known; `pids` are by rank."""
        for rank, pid in pids.items():
            if pid not in self._ranks:
                self._ranks[pid] = rank
                self._count(pid)
        gone = [pid for pid in pids.values() if self._ended(pid)]
        self._named |= dict(self._records())
        for pid in gone:
            if pid in self._named:
                return (self._ranks[pid],), self._named[pid]
        for counter, before in self._counts.items():
            count = _count_of(counter)
            if count is not None and count != before:
                self._counts[counter] = count
                self._risen = now_s + _TOGETHER_S, f"oom_kill of {counter} rose from {before} to {count}"
        until_s, what = self._risen
        if not gone or now_s > until_s:
            return None
        ranks = tuple(sorted(self._ranks[pid] for pid in gone))
        return (ranks if len(ranks) == 1 else ()), what

    def _count(self, pid: int) -> None:
        """Begins to follow the counter of a process's memory cgroup, of either version."""
        for line in text_of(self._proc / str(pid) / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            folder, name = _COUNTERS.get(controllers, ("", ""))
            for inner in (path.lstrip("/"), ""):  # a container may see its own as the topmost
                counter = self._groups / folder / inner / name
                if name and (count := _count_of(counter)) is not None:
                    self._counts.setdefault(counter, count)
                    break

    def _ended(self, pid: int) -> bool:
        return text_of(self._proc / str(pid) / "stat").rpartition(")")[2].split()[:1] in ([], ["Z"], ["X"])

    def _records(self) -> Iterator[tuple[int, str]]:
        """The processes that the log newly says were ended, and in what words."""
        with suppress(BlockingIOError):
            for _ in range(_MOST_RECORDS if self._log is not None else 0):
                try:
                    record = os.read(self._log or 0, _RECORD).decode("utf-8", "replace")
                except BrokenPipeError:  # older records were overwritten
                    continue
                if not record:
                    return
                yield from ((int(found[1]), found[0]) for found in _KILLED.finditer(record))


def _count_of(counter: Path) -> int | None:
    found = _COUNTED.search(text_of(counter))
    return int(found[1]) if found else None
