"""Which file system below a job's paths is full? Looked at after a write failed, since errors seldom name the path.

The paths are the ranks' working directories and what their commands name; file systems mounted below them count too.

>>> mounts_of(["/data/run"], ["/", "/data", "/data/run/out", "/home"])
['/data', '/data/run/out']
"""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.host_memory import text_of
from tenant_client.doctor.run.watchdog import WatchFinding
from tenant_client.doctor.run.watcher import Watcher

_MOST_PATHS = 64
_FULL_SHARE, _FULL_BYTES = 0.01, 64 << 20
_MIB = 1 << 20


class JobPaths(Watcher):
    """Gathers in `paths` what the ranks of one attempt work with, while they run."""

    failure = "cannot see which paths the job works with"

    def __init__(self, paths: set[str]) -> None:
        self._paths = paths
        self._pids: set[int] = set()

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        """Looks once at each process."""
        for pid in {rank.pid for rank in ranks} - self._pids:
            self._pids.add(pid)
            self._paths |= paths_of(pid)
        return ()


def paths_of(pid: int, proc: Path = Path("/proc")) -> set[str]:
    """The working directory of a process and the paths that its command names; none once it has ended."""
    try:
        own = str((proc / str(pid) / "cwd").readlink())
    except OSError:
        return set()
    words = [word.rpartition("=")[2] for word in text_of(proc / str(pid) / "cmdline").split("\0")]
    return {own, *(os.path.normpath(PurePath(own, word)) for word in words[:_MOST_PATHS] if "/" in word)}


def mounts_of(paths: Iterable[str], mounts: Sequence[str]) -> list[str]:
    """The file systems that hold the paths, or lie below them."""
    found = set()
    for path in map(PurePath, paths):
        found.add(max((one for one in mounts if path.is_relative_to(one)), key=len, default="/"))
        found |= {one for one in mounts if PurePath(one).is_relative_to(path)}
    return sorted(found)


def full_among(paths: Iterable[str], mounts: Path = Path("/proc/self/mounts")) -> tuple[bool, str]:
    """Whether one of the file systems is full, and what is free on it; else what is free on the fullest."""
    tops = [line.split()[1].encode().decode("unicode_escape") for line in text_of(mounts).splitlines()]
    times, what = min(map(_free, mounts_of(paths, tops)), default=(math.inf, ""))
    return times < 1.0, what


def _free(mount: str) -> tuple[float, str]:
    """How many times what counts as full is free, and that in words; infinity where nothing is stored, as in /proc."""
    try:
        at = os.statvfs(mount)
    except OSError:
        return math.inf, ""
    if at.f_files and not at.f_favail:
        return 0.0, f"no file of {at.f_files} is left on {mount}"
    size, free = at.f_blocks * at.f_frsize, at.f_bavail * at.f_frsize
    times = free / min(_FULL_BYTES, max(_FULL_SHARE * size, at.f_frsize)) if size else math.inf
    return times, f"{free // _MIB} of {size // _MIB} MiB are free on {mount}"
