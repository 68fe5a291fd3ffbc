"""The observer: a process that watches one attempt, journals it and prints findings on stderr.

The supervisor tells it on stdin when the job began and how it ended. If the supervisor is killed, the observer follows
the job until it ends and journals its exit status as unknown.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from federation.runtime.screen import guard
from tenant_client.run import restarts
from tenant_client.run.attempt_recorder import Record
from tenant_client.run.fail_open import FailOpen
from tenant_client.run.lease_hints import Hinted
from tenant_client.run.run_directory import hold, prune
from tenant_client.run.settings import RunSettings
from tenant_client.run.supervise import Ending
from tenant_client.run.syndromes.reports import Reports
from tenant_client.run.watchdog import Sample, Watch, WatchFinding

_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGPIPE")
_NICE = 5
_LAST_TRACE_S = 5.0


class Observer:
    """Watches one attempt."""

    def __init__(self, settings: RunSettings, told: dict[str, str], ours: FailOpen) -> None:
        self._settings = settings
        self._run_dir = Path(told["run_dir"])
        self._attempt = int(told["attempt"])
        self._elastic = Path(told["elastic_dir"]) if told["elastic_dir"] else None
        self._elastic_is_ours = told["elastic_is_ours"] == "True"
        self._ours = ours
        self._started_at_s = 0.0
        self._watch = Watch(settings.limits, 0.0)
        self._hinted = Hinted(settings.home, settings.lease)
        self._record: Record | None = None
        self._described = False
        self._syndromes: Reports | None = None
        self.pidfd: int | None = None

    def begin(self, pid: int, at_s: float) -> None:
        """Starts the watch of process `pid`."""
        self._started_at_s = at_s
        self._watch = Watch(self._settings.limits, at_s)
        with self._ours.guard("cannot follow the job's process"), suppress(ProcessLookupError):  # already ended
            self.pidfd = os.pidfd_open(pid)
        with self._ours.guard("cannot use the run directory"):
            hold(self._run_dir)
            (self._run_dir / "settings.json").write_text(self._settings.to_json(), encoding="utf-8")
        settings = self._settings
        with self._ours.guard("cannot listen to the ranks"):
            self._syndromes = Reports(self._run_dir) if settings.watch else None
        self._record = Record(settings.home, settings.lease, self._run_dir, settings.logs, self._ours)
        self._record.begin(at_s, self._attempt)
        self._record.name(settings.job)
        with self._ours.guard("old run directories"):
            prune(settings.home / "runs")

    def tick(self, now_s: float) -> None:
        """Reads progress, hints, traces and restarts."""
        with self._ours.guard("cannot read the provider's hints"):
            for hint in self._hinted.read(now_s):
                self._ours.say(self._hinted.word_of(hint, self._watch.findings))
        with self._ours.guard("watching"):
            if self._settings.watch:
                self._say(self._watch.feed(now_s, samples(self._run_dir)), now_s)
        with self._ours.guard("cannot compare the ranks"):
            if self._syndromes is not None:
                self._say(self._syndromes.poll(now_s, self._watch.steps), now_s)
        with self._ours.guard("cannot look for traces"):
            self._describe(complete_traces(self._run_dir, now_s), now_s)
        with self._ours.guard("cannot follow restarts"):
            found = self._found()
            if self._record is not None and any(number > self._record.restart for number in found):
                restarts.keep_errors(found, self._run_dir)
                self._record.restarted(found, now_s, self._watch.steps, self._findings(now_s))

    def _say(self, findings: Sequence[WatchFinding], now_s: float) -> None:
        for finding in findings:
            self._ours.say(f"{finding.kind}: {self._hinted.text_of(finding, now_s)}")

    def _findings(self, now_s: float) -> Sequence[WatchFinding]:
        own = [*self._watch.findings, *(self._syndromes.findings if self._syndromes is not None else ())]
        with self._ours.guard("cannot read the provider's hints"):
            return self._hinted.findings(own, now_s)
        return own

    def _describe(self, traces: Sequence[Path], now_s: float) -> None:
        """Describes the workload from the first traces, and removes them: they hold more than is stored."""
        with self._ours.guard("cannot describe the traces"):
            try:
                if traces and not self._described and self._record is not None:
                    from tenant_client.workload.describe import describe_files

                    self._described = True
                    self._record.describe(describe_files(traces), now_s)
            finally:
                for trace in traces:
                    trace.unlink(missing_ok=True)

    def end(self, how: Ending | None, at_s: float) -> None:
        """Ends the watch; `how` is None if the exit status is unknown."""
        self.tick(at_s)
        self._say(self._watch.finish(at_s), at_s)
        findings = self._findings(at_s)
        found = self._found()
        with self._ours.guard("cannot copy torchrun's error files"):
            restarts.keep_errors(found, self._run_dir)
        with self._ours.guard("cannot record the attempt"):
            if self._record is not None and how is None:
                self._record.interrupted(at_s, self._watch.steps, findings)
            elif self._record is not None and how is not None:
                self._record.ended(how, at_s, self._watch.steps, findings, found)
        self._describe(sorted(self._run_dir.glob("trace-*.json*")), at_s)
        with self._ours.guard("cannot stop listening to the ranks"):
            if self._syndromes is not None:
                self._syndromes.close()
        with self._ours.guard("cannot remove torchrun's directory"):
            if self._elastic is not None and self._elastic_is_ours:
                restarts.remove_if_empty(self._elastic)

    def _found(self) -> dict[int, Path]:
        return restarts.attempt_dirs(self._elastic, since_s=self._started_at_s - 1.0) if self._elastic else {}


def samples(run_dir: Path) -> Iterator[Sample]:
    """The current sample of each rank; unreadable ranks are left out."""
    from tenant_client.run.hook.progress import read

    for path in run_dir.glob("progress-*"):
        progress = read(path)
        if progress is not None:
            yield Sample(
                progress.rank, progress.step, progress.phase, progress.updated_at_s, progress.loss, progress.restart
            )


def complete_traces(run_dir: Path, now_s: float) -> list[Path]:
    """The first traces of the ranks, once no new one has appeared for a while, since ranks may lag."""
    traces = sorted(run_dir.glob("trace-*.json*"))
    newest_s = max((trace.stat().st_mtime for trace in traces), default=now_s)
    return traces if now_s - newest_s >= _LAST_TRACE_S else []


def main(settings: RunSettings, told: dict[str, str]) -> None:
    """Observes until the job is over."""
    ours = FailOpen(quiet=settings.quiet)
    observer = Observer(settings, told, ours)
    begun = False
    for word in _words(observer, settings.poll_s):
        now_s = time.time()
        if "pid" in word:
            begun = True
            observer.begin(word["pid"], word["at_s"])
        elif "exit_code" in word:
            observer.end(Ending(word["exit_code"], word["signal"], tuple(word["asked_by"])), word["at_s"])
            return
        elif begun:
            observer.tick(now_s)
    if begun:
        _outlive(observer, settings.poll_s)
        observer.end(None, time.time())


def _words(observer: Observer, poll_s: float) -> Iterator[dict[str, Any]]:
    """The supervisor's messages, and an empty one every `poll_s`; ends when the supervisor ends."""
    kept = b""
    while True:
        ready, _, _ = select.select([0], [], [], poll_s)
        if not ready:
            yield {}
            continue
        data = os.read(0, 65536)
        if not data:
            return
        *complete, kept = (kept + data).split(b"\n")
        yield from map(json.loads, complete)


def _outlive(observer: Observer, poll_s: float) -> None:
    while observer.pidfd is not None and not select.select([observer.pidfd], [], [], poll_s)[0]:
        observer.tick(time.time())


if __name__ == "__main__":
    guard()
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    os.nice(_NICE)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what the job was given is not ours to hold open
    main(RunSettings.from_json(sys.argv[1]), json.loads(sys.argv[2]))
