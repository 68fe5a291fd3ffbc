"""Follows what launchers say in a job's output while it runs: starts of its workers, failures, changes of their number.

The output is read from the bounded files that the relay keeps; lines that were dropped before they were read are lost.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.watchdog import Kind, WatchFinding
from tenant_client.doctor.run.watcher import Watcher
from tenant_client.doctor.sources.launcher_events import EventKind, LauncherEvent, read_event, tells

_MOST_EVENTS, _MOST_FINDINGS = 10_000, 100  # a job whose every step fails fills no journal


class Launcher(Watcher):
    """What the launcher of one job has said. `starts` has when each start of all workers after the first one began."""

    failure = "cannot read what the launcher says"

    def __init__(self, run_dir: Path) -> None:
        self.starts: dict[int, float] = {}
        self.findings: list[WatchFinding] = []
        self._output = Output(run_dir)
        self._said: set[LauncherEvent] = set()
        self._first: int | None = None
        self._world_size: int | None = None

    def look(self, now_s: float, ranks: Sequence[Progress]) -> list[WatchFinding]:
        """Reads on; the new findings."""
        before = len(self.findings)
        for line in self._output.lines():
            event = read_event(line)
            if event is not None and event not in self._said and len(self._said) < _MOST_EVENTS:
                self._said.add(event)
                self._take(event, event.at_s or now_s)
        return self.findings[before:]

    def _take(self, event: LauncherEvent, at_s: float) -> None:
        if event.kind is not EventKind.STARTED:
            self._find(event.text, at_s)
            return
        if event.start is not None:
            self._first = event.start if self._first is None else self._first
            if event.start > self._first:
                self.starts.setdefault(event.start - self._first, at_s)
        if event.world_size is not None:
            if self._world_size not in (None, event.world_size):
                self._find(f"world size changed from {self._world_size} to {event.world_size}", at_s)
            self._world_size = event.world_size

    def _find(self, text: str, at_s: float) -> None:
        """A finding that is over at once."""
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(WatchFinding(Kind.LAUNCHER, at_s, 0, (), text, at_s))


class Output:
    """The job's output, as it comes."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._read: dict[int, int] = {}  # up to where, by the number of the file, which it keeps when it is renamed

    def lines(self) -> Iterator[bytes]:
        """Complete lines since the last call, of output in which there may be an event."""
        files = sorted(self._run_dir.glob("*.log.1")) + sorted(self._run_dir.glob("*.log"))
        read: dict[int, int] = {}
        for path in files:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                start = self._read.get(status.st_ino, 0)
                start = start if start <= status.st_size else 0
                file.seek(start)
                block = file.read()
            complete = block[: block.rfind(b"\n") + 1]
            read[status.st_ino] = start + len(complete)
            if tells(complete):
                yield from complete.splitlines()
        self._read = read
