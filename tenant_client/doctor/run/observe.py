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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from federation.base.screen import guard
from tenant_client.doctor.records.attempts import AttemptState
from tenant_client.doctor.run import restarts
from tenant_client.doctor.run.attempt_recorder import Record
from tenant_client.doctor.run.diagnose_attempt import only_rank
from tenant_client.doctor.run.ended import Asked, within_grace
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.failure_rate import FailureRate
from tenant_client.doctor.run.free_space import JobPaths
from tenant_client.doctor.run.health import Health
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.launcher import Launcher
from tenant_client.doctor.run.lease_hints import Hinted, LeaseWatch
from tenant_client.doctor.run.observer_pipe import jobs_environment
from tenant_client.doctor.run.pace import PaceRecorder
from tenant_client.doctor.run.plugins import watchers
from tenant_client.doctor.run.rank_watch import RankWatch, progresses
from tenant_client.doctor.run.run_directory import hold, node_list, prune
from tenant_client.doctor.run.settings import RunSettings
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.syndromes.reports import HANG_KINDS, Reports
from tenant_client.doctor.run.usage import UsageRecorder
from tenant_client.doctor.run.watchdog import Standing, WatchFinding
from tenant_client.doctor.run.watcher import Watcher, Watchers
from tenant_client.doctor.run.workload import RunWorkload, WorkloadWatch

_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGPIPE")
_NICE = 5


class Observer:
    """Watches one attempt, of process `pid`, from `at_s` on."""

    def __init__(self, settings: RunSettings, told: Mapping[str, str], ours: FailOpen, pid: int, at_s: float) -> None:
        self._settings, self._ours, self._started_at_s = settings, ours, at_s
        self._run_dir = Path(told["run_dir"])
        self._elastic = Path(told["elastic_dir"]) if told["elastic_dir"] else None
        self._elastic_is_ours = told["elastic_is_ours"] == "True"
        self._asked: list[Asked] = []
        self._own_signals = 0
        self.pidfd: int | None = None
        with ours.guard("cannot follow the job's process"), suppress(ProcessLookupError):  # already ended
            self.pidfd = os.pidfd_open(pid)
        with ours.guard("cannot use the run directory"):
            hold(self._run_dir)
            kept = replace(settings, command=settings.command[:1])  # whose words may hold secrets
            (self._run_dir / "settings.json").write_text(kept.to_json(), encoding="utf-8")
        self._record = self._begun(int(told["attempt"]))
        self._hinted = Hinted(settings.home, settings.lease)
        self._ranks = RankWatch(self._run_dir, settings.limits, at_s)
        self._launcher = Launcher(self._run_dir)
        workload = RunWorkload(self._run_dir, sampled=settings.sample)
        self._workload = WorkloadWatch(workload, self._record, ours.say)
        self._watchers = Watchers(ours, self._say, [*self._all()])
        with ours.guard("old run directories"):
            prune(settings.home / "runs")

    def _begun(self, attempt: int) -> Record:
        settings, nodes = self._settings, node_list(os.environ)
        record = Record(
            settings.home, settings.lease, self._run_dir, settings.logs, self._ours, program=settings.program
        )
        record.begin(self._started_at_s, attempt)
        record.name(settings.job)
        record.keep_start(settings.command, jobs_environment(os.environ), nodes)
        return record

    def _all(self) -> Iterator[Watcher]:
        """Who watches, in the order in which they look."""
        settings, run_dir, record = self._settings, self._run_dir, self._record
        yield LeaseWatch(self._hinted, run_dir, self._ranks, record, self._ours.say)
        yield FailureRate(settings.home, settings.lease, run_dir, self._hinted.standing)
        if settings.watch:
            yield self._ranks
            yield JobPaths(record.paths)
            yield PaceRecorder(run_dir, lambda: (record.number, record.started_s), self._hangs, record.keep_pace)
            yield UsageRecorder(lambda: record.number, record.keep_usage)
            with self._ours.guard("cannot listen to the ranks"):
                yield Reports(run_dir, lambda: self._ranks.steps)
            yield Health(run_dir)
        yield self._workload
        yield self._launcher
        if settings.watch:
            with self._ours.guard("cannot load plug-ins"):
                yield from watchers(settings.home, run_dir, lambda fault: self._ours.warn(fault.what))

    def tick(self, now_s: float) -> None:
        """Everybody looks once; then restarts and findings are journalled."""
        ranks: list[Progress] = []
        with self._ours.guard("watching"):
            ranks += progresses(self._run_dir) if self._settings.watch else ()
        self._watchers.look(now_s, ranks)
        with self._ours.guard("cannot follow restarts"):
            found, said = self._found(), self._launcher.starts
            if any(number > self._record.restart for number in (*found, *said)):
                restarts.keep_errors(found, self._run_dir)
                self._record.restarted(found, said, now_s, self._ranks.steps, self._findings(now_s))
        self._record.keep_findings(self._findings(now_s), self._ranks.steps)

    def _say(self, finding: WatchFinding, now_s: float) -> None:
        self._ours.say(f"{finding.kind}: {self._hinted.text_of(finding, now_s)}")

    def _findings(self, now_s: float) -> Sequence[WatchFinding]:
        """Those of all watchers, joined with the provider's hints."""
        own = list(self._watchers.findings)
        with self._ours.guard("cannot read the provider's hints"):
            return self._hinted.findings(own, now_s)
        return own

    def asked(self, number: int, sender: str | None, at_s: float) -> None:
        """Notes how the job stood when a signal asked it to end: it may be killed before it ends by itself."""
        with self._ours.guard("watching"):
            for finding in self._ranks.look_back(at_s, progresses(self._run_dir) if self._settings.watch else ()):
                self._say(finding, at_s)
        if sender is None:  # the job's own doing: `kill 0` in a script reaches `run`, too
            self._own_signals += 1
            return
        self._asked.append(Asked(at_s, number, sender, self._standing(at_s)))
        with self._ours.guard("cannot record who ended the job"):
            if len(self._asked) == 1:
                self._record.asked(self._asked[0])

    def _ended_by(self, how: Ending | None, at_s: float) -> tuple[Ending | None, Asked]:
        """How it ended, without signals that do not count, and the one that counts; else how it stood lately."""
        asked = within_grace(self._asked, at_s)
        if how is not None and asked is None and len(how.asked_by) <= self._own_signals + len(self._asked):
            how = replace(how, asked_by=())
        return how, asked or Asked(at_s, how.signal if how else None, "", self._standing(at_s))

    def _standing(self, at_s: float) -> Standing:
        """How the job stands, by the hang that was found with its rank, if one was."""
        at = self._ranks.standing(at_s)
        hang = next(self._syndromes_of_a_hang(), None)
        return at if hang is None else replace(at, hangs=True, stalled=hang.text, rank=only_rank(hang))

    def _hangs(self) -> bool:
        return self._ranks.hangs or any(self._syndromes_of_a_hang())

    def _syndromes_of_a_hang(self) -> Iterator[WatchFinding]:
        return (one for one in self._watchers.findings if one.kind in HANG_KINDS and one.cleared_at_s is None)

    def end(self, how: Ending | None, at_s: float) -> None:
        """Ends the watch; `how` is None if the exit status is unknown."""
        how, asked = self._ended_by(how, at_s)  # as of the last tick: what it did while it ended is no stand
        self.tick(at_s)
        self._watchers.finish(at_s, how)
        state: AttemptState | None = None
        found = self._found()
        with self._ours.guard("cannot copy torchrun's error files"):
            restarts.keep_errors(found, self._run_dir)
        with self._ours.guard("cannot record the attempt"):
            steps, findings = self._ranks.steps, self._findings(at_s)
            if how is None:
                self._record.interrupted(at_s, steps, findings, asked=bool(self._asked))
            else:
                state = self._record.ended(how, asked, at_s, steps, findings, found)
        with self._ours.guard(self._workload.failure):
            self._workload.take_last(at_s)
        if state is AttemptState.SUCCEEDED:
            self._record.say_good_end(at_s, self._workload.words)
        else:
            self._ours.say(self._workload.words)
            self._record.say_next()
        self._watchers.close(at_s)
        with self._ours.guard("cannot remove torchrun's directory"):
            if self._elastic is not None and self._elastic_is_ours:
                restarts.remove_if_empty(self._elastic)

    def _found(self) -> dict[int, Path]:
        return restarts.attempt_dirs(self._elastic, since_s=self._started_at_s - 1.0) if self._elastic else {}


def main(settings: RunSettings, told: dict[str, str]) -> None:
    """Observes until the job is over."""
    words = _words(settings.poll_s)
    first = next((word for word in words if word), {})
    if "pid" not in first:  # the job could not start
        return
    observer = Observer(settings, told, FailOpen(quiet=settings.quiet), first["pid"], first["at_s"])
    for word in words:
        if "asked" in word:
            observer.asked(word["asked"], word["sender"], word["at_s"])
        elif "exit_code" in word:
            observer.end(Ending(word["exit_code"], word["signal"], tuple(word["asked_by"])), word["at_s"])
            return
        else:
            observer.tick(time.time())
    _outlive(observer, settings.poll_s)
    observer.end(None, time.time())


def _words(poll_s: float) -> Iterator[dict[str, Any]]:
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
