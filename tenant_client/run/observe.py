"""The observer: a process that watches one attempt, journals it and prints findings on stderr.

The supervisor tells it on stdin when the job began and how it ended. If the supervisor is killed, the observer follows
the job until it ends and journals its exit status as unknown.
"""

import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from federation.protocol.service_messages import LeaseChange, LeaseEnd
from federation.runtime.clock import SECONDS_PER_HOUR
from federation.runtime.screen import guard
from tenant_client.advice.hints import end_of
from tenant_client.records.attempts import AttemptState
from tenant_client.run import restarts
from tenant_client.run.attempt_recorder import Record
from tenant_client.run.diagnose_attempt import only_rank
from tenant_client.run.ended import Asked, within_grace
from tenant_client.run.fail_open import FailOpen
from tenant_client.run.failure_rate import FailureRate
from tenant_client.run.free_space import paths_of
from tenant_client.run.health import Health
from tenant_client.run.hook import readings
from tenant_client.run.hook.checkpoints import ask
from tenant_client.run.hook.sampler import WILL_PROFILE
from tenant_client.run.launcher import Launcher
from tenant_client.run.lease_hints import Hinted, asks_to_save
from tenant_client.run.observer_pipe import jobs_environment
from tenant_client.run.pace import PaceRecorder
from tenant_client.run.restart_point import bad_since
from tenant_client.run.run_directory import hold, node_list, prune
from tenant_client.run.settings import RunSettings
from tenant_client.run.supervise import Ending
from tenant_client.run.syndromes.reports import Reports
from tenant_client.run.usage import UsageRecorder
from tenant_client.run.watchdog import Sample, Standing, Watch, WatchFinding
from tenant_client.run.workload import RunWorkload

if TYPE_CHECKING:
    from tenant_client.run.hook.progress import Progress

_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGPIPE")
_NICE = 5


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
        self._health = Health()
        self._hinted = Hinted(settings.home, settings.lease)
        self._told_end: LeaseEnd | None = None
        self._failure_rate = FailureRate(settings.home, settings.lease, self._run_dir)
        self._launcher = Launcher(self._run_dir)
        self._record: Record | None = None
        self._pace: PaceRecorder | None = None
        self._usage: UsageRecorder | None = None
        self._workload = RunWorkload(self._run_dir, sampled=settings.sample)
        self._why_not = ""
        self._asked: list[Asked] = []
        self._own_signals = 0
        self._pids: set[int] = set()
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
            kept = replace(self._settings, command=self._settings.command[:1])  # whose words may hold secrets
            (self._run_dir / "settings.json").write_text(kept.to_json(), encoding="utf-8")
        settings = self._settings
        with self._ours.guard("cannot listen to the ranks"):
            self._syndromes = Reports(self._run_dir) if settings.watch else None
        self._record = Record(
            settings.home, settings.lease, self._run_dir, settings.logs, self._ours, program=settings.program
        )
        self._record.begin(at_s, self._attempt)
        self._pace = PaceRecorder(self._run_dir, self._record.keep_pace)
        self._usage = UsageRecorder(self._record.keep_usage)
        self._record.name(settings.job)
        nodes = node_list(os.environ)
        self._record.place(nodes)
        self._record.keep_start(settings.command, jobs_environment(os.environ), nodes)
        with self._ours.guard("old run directories"):
            prune(settings.home / "runs")

    def tick(self, now_s: float) -> None:
        """Reads progress, hints, traces and restarts."""
        with self._ours.guard("cannot read the provider's hints"):
            for hint in self._hinted.read(now_s):
                if asks_to_save(hint):
                    ask(self._run_dir)
                self._ours.say(self._hinted.word_of(hint, self._watch.findings))
        with self._ours.guard("cannot tell the end of the lease"):
            self._tell_end()
        with self._ours.guard("cannot tell how often the lease fails"):
            self._failure_rate.tell(now_s, self._hinted.standing(now_s))
        if self._settings.watch:
            ranks: list[Progress] = []
            with self._ours.guard("watching"):
                ranks += progresses(self._run_dir)
                self._say(self._watch.feed(now_s, map(self._sample, ranks)), now_s)
                self._keep_paths(ranks)
            with self._ours.guard("cannot keep how the attempt goes"):
                if self._record is not None and self._pace is not None:
                    samples = list(map(sample_of, ranks))
                    self._pace.look(
                        now_s, self._record.number, samples, hangs=self._watch.hangs or self._hang is not None
                    )
            with self._ours.guard("cannot measure what the job uses"):
                if self._record is not None and self._usage is not None:
                    self._usage.look(now_s, self._record.number, ranks)
            with self._ours.guard("watching functions, memory and losses"):
                self._say(self._health.look(now_s, self._run_dir, ranks), now_s)
        with self._ours.guard("cannot compare the ranks"):
            if self._syndromes is not None:
                self._say(self._syndromes.poll(now_s, self._watch.steps), now_s)
        with self._ours.guard("cannot look for traces"):
            self._describe(self._workload.complete_traces(now_s), now_s)
        with self._ours.guard("cannot read what the launcher says"):
            self._say(self._launcher.read(now_s), now_s)
        with self._ours.guard("cannot follow restarts"):
            found, said = self._found(), self._launcher.starts
            if self._record is not None and any(number > self._record.restart for number in (*found, *said)):
                restarts.keep_errors(found, self._run_dir)
                self._record.restarted(found, said, now_s, self._watch.steps, self._findings(now_s))

        if self._record is not None:
            self._record.keep_findings(self._findings(now_s), self._watch.steps)

    def _keep_paths(self, ranks: "Sequence[Progress]") -> None:
        for pid in {rank.pid for rank in ranks} - self._pids:
            self._pids.add(pid)
            if self._record is not None:
                self._record.paths |= paths_of(pid)

    def _sample(self, progress: "Progress") -> Sample:
        """With the step since which the loss is no number, as `restart` has it."""
        sample = sample_of(progress)
        if progress.loss is None or math.isfinite(progress.loss):
            return sample
        return replace(sample, bad_since=bad_since(readings.read(self._run_dir / readings.file_name(progress.rank))))

    def _tell_end(self) -> None:
        """Prints what the provider has newly said of the end of the lease."""
        end = self._hinted.end
        if end is None or end == self._told_end:
            return
        self._told_end = end
        self._ours.say(f"lease {end.lease} {end_of(end)}")
        if self._record is not None and end.change is LeaseChange.MOVED:
            self._record.move_end(end.end_h * SECONDS_PER_HOUR)

    def _settle(self, at_s: float) -> None:
        """Joins the end of the lease to the attempt, which is over."""
        self._hinted.read(at_s, at_once=True)
        self._tell_end()
        if self._record is not None and self._hinted.end is not None:
            self._record.settle(self._hinted.end)

    def _say(self, findings: Sequence[WatchFinding], now_s: float) -> None:
        for finding in findings:
            self._ours.say(f"{finding.kind}: {self._hinted.text_of(finding, now_s)}")

    def _findings(self, now_s: float) -> Sequence[WatchFinding]:
        own = [*self._watch.findings, *(self._syndromes.findings if self._syndromes is not None else ())]
        with self._ours.guard("cannot read the provider's hints"):
            return [*self._hinted.findings(own, now_s), *self._health.findings, *self._launcher.findings]
        return own

    def _describe(self, traces: Sequence[Path], now_s: float, *, ended: bool = False) -> None:
        """Journals the workload, or why it is not known yet; says once when it will be."""
        with self._ours.guard("cannot describe the traces"):
            found = self._workload.take(traces)
            if found is not None:
                self._workload.kept(kept=self._record is not None and self._record.describe(found, now_s))
            why_not = "" if self._workload.described else self._workload.why_not(ended=ended)
            if why_not != self._why_not:
                if why_not.startswith(WILL_PROFILE) and not self._why_not.startswith(WILL_PROFILE):
                    self._ours.say(f"workload not described yet: {why_not}")
                self._why_not = why_not
                if why_not and self._record is not None:
                    self._record.leave_undescribed(why_not)

    def asked(self, number: int, sender: str | None, at_s: float) -> None:
        """Notes how the job stood when a signal asked it to end: it may be killed before it ends by itself."""
        with self._ours.guard("watching"):
            if self._settings.watch:
                before = [rank for rank in progresses(self._run_dir) if rank.updated_at_s <= at_s]
                self._say(self._watch.feed(at_s, map(sample_of, before)), at_s)
        if sender is None:  # the job's own doing: `kill 0` in a script reaches `run`, too
            self._own_signals += 1
            return
        self._asked.append(Asked(at_s, number, sender, self._standing(at_s)))
        with self._ours.guard("cannot record who ended the job"):
            if self._record is not None and len(self._asked) == 1:
                self._record.asked(self._asked[0])

    def _ended_by(self, how: Ending | None, at_s: float) -> tuple[Ending | None, Asked]:
        """How it ended, without signals that do not count, and the one that counts; else how it stood lately."""
        asked = within_grace(self._asked, at_s)
        if how is not None and asked is None and len(how.asked_by) <= self._own_signals + len(self._asked):
            how = replace(how, asked_by=())
        return how, asked or Asked(at_s, how.signal if how else None, "", self._standing(at_s))

    def _standing(self, at_s: float) -> Standing:
        """How the job stands, by the hang that was found with its rank, if one was."""
        at, hang = self._watch.standing(at_s), self._hang
        return at if hang is None else replace(at, hangs=True, stalled=hang.text, rank=only_rank(hang))

    @property
    def _hang(self) -> WatchFinding | None:
        return self._syndromes.hang if self._syndromes is not None else None

    def end(self, how: Ending | None, at_s: float) -> None:
        """Ends the watch; `how` is None if the exit status is unknown."""
        how, asked = self._ended_by(how, at_s)  # as of the last tick: what it did while it ended is no stand
        self.tick(at_s)
        self._say(self._watch.finish(at_s, failed=how is not None and how.code != 0 and not how.asked_by), at_s)
        with self._ours.guard("cannot keep how the attempt went"):
            if self._pace is not None:
                self._pace.keep(at_s)
            if self._usage is not None:
                self._usage.keep(at_s)
        if how is not None and how.code == 0 and self._syndromes is not None:
            self._syndromes.clear(at_s)
        findings = self._findings(at_s)
        found = self._found()
        with self._ours.guard("cannot copy torchrun's error files"):
            restarts.keep_errors(found, self._run_dir)
        state: AttemptState | None = None
        with self._ours.guard("cannot record the attempt"):
            if self._record is not None and how is None:
                self._record.interrupted(at_s, self._watch.steps, findings, asked=bool(self._asked))
            elif self._record is not None and how is not None:
                state = self._record.ended(how, asked, at_s, self._watch.steps, findings, found)
        self._describe(self._workload.traces(), at_s, ended=True)
        self._say_end(state, at_s)
        with self._ours.guard("cannot join the end of the lease to the attempt"):
            self._settle(at_s)
        with self._ours.guard("cannot stop listening to the ranks"):
            if self._syndromes is not None:
                self._syndromes.close()
        with self._ours.guard("cannot remove torchrun's directory"):
            if self._elastic is not None and self._elastic_is_ours:
                restarts.remove_if_empty(self._elastic)

    def _say_end(self, state: AttemptState | None, at_s: float) -> None:
        workload = "workload described" if self._workload.described else f"workload not described: {self._why_not}"
        if state is AttemptState.SUCCEEDED and self._record is not None:
            self._record.say_good_end(at_s, workload)
        else:
            self._ours.say(workload)

    def _found(self) -> dict[int, Path]:
        return restarts.attempt_dirs(self._elastic, since_s=self._started_at_s - 1.0) if self._elastic else {}


def progresses(run_dir: Path) -> Iterator["Progress"]:
    """How far each rank is; unreadable ranks are left out."""
    from tenant_client.run.hook.progress import read

    yield from filter(None, map(read, run_dir.glob("progress-*")))


def sample_of(progress: "Progress") -> Sample:
    """What the watch takes of a rank's progress."""
    return Sample(
        rank=progress.rank,
        step=progress.step,
        phase=progress.phase,
        updated_at_s=progress.updated_at_s,
        loss=progress.loss,
        restart=progress.restart,
        evaluations=progress.evaluations,
    )


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
        elif "asked" in word:
            observer.asked(word["asked"], word["sender"], word["at_s"])
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
