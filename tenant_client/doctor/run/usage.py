"""Measures what the ranks on this host use, from /proc: memory, bytes sent, processor time. The job does nothing.

Peaks of memory are the kernel's own for a rank (`VmHWM`), and the highest seen for its workers, which come and go.
Bytes are those of all interfaces in the network of the ranks' processes, the loopback too: traffic of other programs
there is among them. They count from the first look after a step to the last one, so that loading is not in them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tenant_client.doctor.records.usages import Usage
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.host_memory import descendants, read_memory, text_of
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.watchdog import WatchFinding
from tenant_client.doctor.run.watcher import Watcher

KEEP_EVERY_S = 60.0
_TICKS_S = 100.0  # USER_HZ of every Linux that Python's wheels run on
_NOTHING = Usage(0, 0.0, 0.0, 0, 0.0, 0.0)


@dataclass(frozen=True)
class _Reading:
    step: int
    sent_bytes: float
    cpu_s: float


class UsageMeter:
    """One attempt. `proc` is the folder of the kernel's files."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.usage = _NOTHING
        self._proc = proc
        self._first: _Reading | None = None

    def look(self, ranks: Sequence[Progress]) -> None:
        """Takes where the ranks are, and reads what they use."""
        alive = [one for one in ranks if (self._proc / str(one.pid)).exists()]
        if not alive:
            return
        peaks = [_peak(self._proc, one.pid) for one in alive]
        workers = [read_memory(self._proc, one.pid).children for one in alive]
        self.usage = replace(
            self.usage,
            ranks=max(self.usage.ranks, len(alive)),
            rank_bytes=max(self.usage.rank_bytes, *peaks),
            workers_bytes=max(self.usage.workers_bytes, *workers),
            gpu_bytes=max(self.usage.gpu_bytes, *(one.tally.gpu_bytes for one in ranks)),
            gpu_limit_bytes=max(self.usage.gpu_limit_bytes, *(one.tally.gpu_limit_bytes for one in ranks)),
        )
        self._count(alive)

    def _count(self, alive: Sequence[Progress]) -> None:
        step = min(one.step for one in alive)
        if step < 1 or len(alive) < self.usage.ranks:
            return
        now = _Reading(step, _sent(self._proc, alive[0].pid), sum(_cpu_s(self._proc, one.pid) for one in alive))
        first = self._first
        if first is None or now.step < first.step:
            self._first = now
        elif now.step > first.step:
            sent, cpu_s = now.sent_bytes - first.sent_bytes, now.cpu_s - first.cpu_s
            if min(sent, cpu_s) < 0:  # a rank ended while it was read
                return
            self.usage = replace(self.usage, steps=now.step - first.step, sent_bytes=sent, cpu_s=cpu_s)


class UsageRecorder(Watcher):
    """Measures one attempt after the other; `keep` stores what one used by its number; `attempt` is that of now."""

    failure = "cannot measure what the job uses"

    def __init__(self, attempt: Callable[[], int], keep: Callable[[int, Usage], None]) -> None:
        self._running, self._keep = attempt, keep
        self._attempt, self._kept_s, self._meter = 0, 0.0, UsageMeter()

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        """One look at the ranks of the attempt; what was seen is kept every `KEEP_EVERY_S`."""
        attempt = self._running()
        if attempt != self._attempt:
            self._store(now_s)
            self._attempt, self._meter = attempt, UsageMeter()
        self._meter.look(ranks)
        if now_s - self._kept_s >= KEEP_EVERY_S:
            self._store(now_s)
        return ()

    def finish(self, at_s: float, how: Ending | None) -> Sequence[WatchFinding]:
        """Keeps what was seen since."""
        self._store(at_s)
        return ()

    def _store(self, now_s: float) -> None:
        self._kept_s = now_s
        if self._meter.usage.ranks:
            self._keep(self._attempt, self._meter.usage)


def _peak(proc: Path, pid: int) -> float:
    for line in text_of(proc / str(pid) / "status").splitlines():
        name, _, amount = line.partition(":")
        if name == "VmHWM":
            return 1024.0 * int(amount.split()[0])
    return 0.0


def _sent(proc: Path, pid: int) -> float:
    rows = text_of(proc / str(pid) / "net/dev").splitlines()[2:]
    return float(sum(int(row.partition(":")[2].split()[8]) for row in rows))


def _cpu_s(proc: Path, pid: int) -> float:
    """Of a process, of those that it started, and of those of them that have ended."""
    return sum(_own_cpu_s(proc, one) for one in (pid, *descendants(proc, pid)))


def _own_cpu_s(proc: Path, pid: int) -> float:
    fields = text_of(proc / str(pid) / "stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_S if len(fields) > 14 else 0.0
