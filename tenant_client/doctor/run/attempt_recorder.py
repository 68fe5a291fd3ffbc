"""Writes attempts to the journal, and their outcome to stderr even if the journal cannot be written.

A restart by torchrun ends an attempt and begins the next one of the same lease.
"""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from signal import SIGPIPE

from federation.base.clock import SECONDS_PER_HOUR
from federation.base.sqlite import Connection
from federation.base.visible import counted_as, short
from federation.protocol.service_messages import LeaseEnd
from tenant_client.doctor.advice.after_failure import after_failure
from tenant_client.doctor.advice.own_codes import judged_attempt, own_codes
from tenant_client.doctor.diagnosis.filter_rules import FILE, load_rules
from tenant_client.doctor.diagnosis.precedents import Precedent, like
from tenant_client.doctor.records.attempts import INTERRUPTED, UNSEEN, Attempt, AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import digest_key, open_database
from tenant_client.doctor.records.excerpts import Excerpts
from tenant_client.doctor.records.first_causes import FirstCauses, NamedBy, is_named
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.paces import Lost, Paces, Slice
from tenant_client.doctor.records.starts import Starts
from tenant_client.doctor.records.usages import Usage, Usages
from tenant_client.doctor.records.votes import Vote, Votes
from tenant_client.doctor.run import diagnose_attempt, lease_ends, restarts
from tenant_client.doctor.run.diagnose_attempt import Explained
from tenant_client.doctor.run.ended import (
    MAY_BE_SUPERSEDED,
    SUPERSEDED_S,
    TIME_LIMIT,
    Asked,
    by_somebody,
    names_hardware,
    ran_out,
    same_job,
    superseded,
    while_what,
)
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.learn_healthy import learn, workload_name
from tenant_client.doctor.run.run_directory import held
from tenant_client.doctor.run.started import started
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.watchdog import Kind, WatchFinding
from tenant_client.doctor.sources.reasons import UNKNOWN
from tenant_client.doctor.sources.scheduler import placement
from tenant_client.doctor.workload.descriptor import Descriptor

_BUSY_MS = 5000
_MOST_KNOWN = 3
_UNWRITTEN = "cannot write the journal"
_WATCH = "watch"
_OWN = (_WATCH, "exit_status")  # what a stall says already


class _NoJournal(Exception):
    """The journal could not be opened, which was said."""


class Record:
    """The attempts of one `run`; the last one is open. What cannot be journalled is said all the same."""

    def __init__(
        self,
        home: Path,
        unit: str,
        run_dir: Path,
        logs: Sequence[Path],
        ours: FailOpen,
        *,
        program: str = "",
        notes: bool = True,
    ) -> None:
        self.number = 1
        self.started_s = 0.0
        self.restart = 0
        self.paths: set[str] = set()  # that the ranks work with
        self._unit = unit
        self._run_dir = run_dir
        self._logs = logs
        self._ours = ours
        self._home = home
        self._job = ""
        self._began_s = 0.0
        self._program = program
        self._was_asked = False
        self._next: tuple[str, ...] = ()
        self._kept: list[WatchFinding] = []
        self._notes = notes
        where = placement(os.environ)
        self._ends_at_s: float | None = where.ends_at_s
        self._requeued = where.restarts > 0
        # A log directory that is only read, and so gets no notes, may come from any other machine.
        self._only_node = where.only_node if notes else ""
        self._descriptor: Descriptor | None = None
        self._connection: Connection | None = None
        with ours.guard(_UNWRITTEN):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._connection = _opened(home)

    @contextmanager
    def _writing(self, failure: str = _UNWRITTEN) -> Iterator[None]:
        """Runs a block that uses `_db`; an error in it becomes a warning that begins with `failure`."""
        with self._ours.guard(failure), suppress(_NoJournal):
            yield

    @property
    def _db(self) -> Connection:
        if self._connection is None:
            raise _NoJournal
        return self._connection

    def begin(self, started_at_s: float, number: int) -> None:
        """Journals a start."""
        self.number, self.started_s = number, started_at_s
        self._began_s = self._began_s or started_at_s
        with self._writing():
            attempts = Attempts(self._db)
            self.number = attempts.begin(self._unit, started_at_s, number=number, lives=self._lives)

    def keep_start(self, command: Sequence[str], environment: Mapping[str, str], node_list: str) -> None:
        """Journals what the attempt was started with, and the nodes of the lease, for `check exclude`."""
        with self._writing():
            if node_list:
                Journal(self._db).place(self._unit, node_list)
        with self._writing("cannot journal what the job was started with"):
            if command:
                key = digest_key(self._db, secrets.token_bytes)
                start = started(command, environment, Path.cwd(), key, node_list)
                Starts(self._db).keep(self._unit, self.number, start)

    def name(self, job: str) -> None:
        """Journals the name of the job."""
        self._job = job
        with self._writing():
            if job:
                jobs = Attempts(self._db).jobs()
                Attempts(self._db).name(self._unit, job)
                self._supersede(lambda before: same_job(jobs.get(before.unit, ""), job))

    def restarted(
        self,
        found: dict[int, Path],
        said: Mapping[int, float],
        at_s: float,
        steps: int,
        findings: Sequence[WatchFinding],
    ) -> None:
        """Ends the current attempt and begins one for each restart of the workers.

        `found` has torchrun's directories, `said` when restarts began by what the launcher said.
        """
        for restart in sorted(number for number in found.keys() | said.keys() if number > self.restart):
            before = found.get(restart - 1)
            began_s = found[restart].stat().st_mtime if restart in found else said[restart]
            self._end(AttemptState.FAILED, min(began_s, at_s), None, steps, findings)
            own = _of_restart(self._run_dir, restart - 1, before)
            if not own and self.restart == 0:  # all output so far is of the first start
                own = diagnose_attempt.files_of(self._run_dir, self._logs)
            self._explain(self._cause(own, findings, None) if own else Explained(), counted=True)
            self.restart = restart
            self.begin(min(began_s, at_s), self.number + 1)

    def describe(self, descriptor: Descriptor, at_s: float) -> bool:
        """Journals the workload; whether that was possible."""
        self._descriptor = descriptor
        with self._writing():
            known = Journal(self._db).descriptors()
            Journal(self._db).describe(self._unit, at_s, descriptor)
            self._supersede(lambda before: _structure(known.get(before.unit)) == descriptor.structure)
            return True
        return False

    def leave_undescribed(self, why: str) -> None:
        """Journals why the workload is not known."""
        with self._writing():
            Journal(self._db).leave_undescribed(self._unit, why)

    def _supersede(self, alike: Callable[[Attempt], bool]) -> None:
        """Notes of attempts that somebody ended within the hour that their workload began again with this one."""
        attempts = Attempts(self._db)
        for before in attempts.stopped_before(self._unit, self.number, SUPERSEDED_S):
            if before.cause.reason in MAY_BE_SUPERSEDED and not before.said and alike(before):
                after_s = max(0.0, self._began_s - (before.ended_at_s or 0.0))
                requeued = self._requeued and before.unit == self._unit
                cause = superseded(before.cause, self._unit, after_s, requeued=requeued)
                attempts.explain(before.unit, before.attempt, cause)

    def keep_pace(self, attempt: int, slices: Sequence[Slice], lost: Lost) -> None:
        """Journals how an attempt went so far, and what time it lost since the last call."""
        with self._writing():
            Paces(self._db).keep(self._unit, attempt, slices)
            Paces(self._db).lose(self._unit, attempt, lost)

    def keep_usage(self, attempt: int, usage: Usage) -> None:
        """Journals what an attempt used of this host so far."""
        with self._writing():
            Usages(self._db).keep(self._unit, attempt, usage)

    def keep_findings(self, findings: Sequence[WatchFinding], steps: int) -> None:
        """Journals what was found so far, where it has changed."""
        with self._writing():
            if list(findings) != self._kept:
                Attempts(self._db).keep_findings(self._unit, self.number, steps, [asdict(one) for one in findings])
                self._kept = list(findings)

    def move_end(self, ends_at_s: float) -> None:
        """Takes another limit of the job than the one that its scheduler set at the start."""
        self._ends_at_s = ends_at_s

    def settle(self, end: LeaseEnd) -> None:
        """Joins what the provider said of the end of the lease to the last attempt, which is over."""
        with self._writing():
            if became := lease_ends.settle(self._db, end):
                self._ours.say(became)

    def asked(self, asked: Asked) -> None:
        """Journals at once while what somebody ended the job: little time may be left."""
        self._was_asked = True
        self._explain(Explained(while_what(asked, UNKNOWN, self._ends_at_s)), counted=False)

    def ended(
        self,
        how: Ending,
        asked: Asked,
        at_s: float,
        steps: int,
        findings: Sequence[WatchFinding],
        found: dict[int, Path],
    ) -> AttemptState:
        """Journals how the job ended at once, and then, after the diagnosis, why; the state of the attempt.

        `asked` is the signal that asked it to end; where there was none, it tells how the job stood at its end.
        """
        state = _state(how)
        self._end(state, at_s, how, steps, findings)
        if state is AttemptState.SUCCEEDED:
            if self._was_asked:  # and did not end because of that
                self._explain(Explained(), counted=False)
            self._learn(at_s, findings, found)
            return state
        if state is AttemptState.STOPPED:
            self.asked(asked)
        said = self._cause(self._paths(found), findings, _status(how))
        logged = AttemptCause() if said.source == _WATCH else said.cause
        ended = by_somebody(how, logged, asked=state is AttemptState.STOPPED) or ran_out(how, self._program)
        if ended is not (state is AttemptState.STOPPED):
            state = AttemptState.STOPPED if ended else AttemptState.FAILED
            self._end(state, at_s, how, steps, findings)
        if ended:
            self._explain_ended(how, asked, said)
        else:
            precedents = self._explain(said, counted=True)
            self._tell(state, said.cause)
            self._say_codes()
            for line in like(precedents):
                self._ours.say(line)
            self._say_known(self._paths(found), said.cause)
            self._vote(self._paths(found), at_s)
        return state

    def _vote(self, paths: Sequence[Path], at_s: float) -> None:
        """Keeps a vote where the attempt stalled between two nodes."""
        pair = diagnose_attempt.stalled_between(paths, self._ours)
        with self._writing():
            if pair is not None:
                source = f"flight recorder of attempt {self.number}"
                Votes(self._db).cast(Vote(self._unit, at_s / SECONDS_PER_HOUR, pair, None, source))
                self._ours.say(f"noted a vote for the way between {' and '.join(pair)}")

    def _tell(self, state: AttemptState, cause: AttemptCause) -> None:
        """Prints cause and advice, unless somebody ended it and nothing is to be done."""
        first, *further = after_failure(self._unit, state, cause)
        if further:
            self._ours.say(f"attempt {self.number} of {self._unit} {state}: {first}")
            self._ours.say(further[0])
        self._next = tuple(further[1:])

    def _say_codes(self) -> None:
        """Prints whether error codes of GPUs are the hardware's or the job's, by all own runs."""
        with self._writing("cannot judge its error codes"):
            attempt = Attempts(self._db).list(self._unit)[-1]
            for verdict in judged_attempt(self._db, attempt, own_codes(self._db)):
                self._ours.say(verdict.sentence())

    def say_next(self) -> None:
        """Prints the next command, after all else that is said of the attempt's end."""
        for line in self._next:
            self._ours.say(line)

    def _say_known(self, paths: Sequence[Path], cause: AttemptCause) -> None:
        """Prints what is known to fail like this; the journal has the cause already, if somebody kills us here."""
        for known in diagnose_attempt.known_of(paths, cause, self._descriptor, self._ours)[:_MOST_KNOWN]:
            self._ours.say(f"{known.label} {known.words}")

    def _explain_ended(self, how: Ending, asked: Asked, said: Explained) -> None:
        reason = TIME_LIMIT if ran_out(how, self._program) else said.cause.reason
        cause = while_what(asked, reason, self._ends_at_s)
        if asked.standing.stalled and names_hardware(said.cause, said.source):
            cause = replace(said.cause, sentence=f"{said.cause.sentence}; {cause.sentence}")
            self._explain(replace(said, cause=cause), counted=True)
            self._tell(AttemptState.STOPPED, cause)
            return
        if asked.standing.stalled and said.cause.place and said.source not in _OWN:
            cause = replace(cause, sentence=f"{cause.sentence}; in the logs: {said.cause.sentence}")
        self._explain(Explained(cause), counted=False)
        self._tell(AttemptState.STOPPED, cause)

    def say_good_end(self, at_s: float, workload: str) -> None:
        """Prints what succeeded, for how long it ran, and where the journal is."""
        ran = timedelta(seconds=round(max(0.0, at_s - self._began_s)))
        what = f"{self._job} on {self._unit}" if self._job else self._unit
        journal = short(self._home / "tenant.db")
        self._ours.say(
            f"{what} succeeded after {ran}, {counted_as(self.number, 'attempt')}; journal: {journal}; {workload}"
        )

    def interrupted(self, at_s: float, steps: int, findings: Sequence[WatchFinding], *, asked: bool = False) -> None:
        """Journals that the job ended and that its exit status is unknown; `asked` if somebody asked it to end."""
        if asked:
            self._end(AttemptState.STOPPED, at_s, None, steps, findings)
            return
        self._end(AttemptState.INTERRUPTED, at_s, None, steps, findings)
        sentence = INTERRUPTED if self._program else UNSEEN
        self._explain(Explained(AttemptCause(sentence=sentence)), counted=False)

    def _end(
        self, state: AttemptState, at_s: float, how: Ending | None, steps: int, findings: Sequence[WatchFinding]
    ) -> None:
        with self._writing():
            Attempts(self._db).end(
                self._unit,
                self.number,
                state,
                at_s,
                exit_code=how.exit_code if how else None,
                signal=how.signal if how else None,
                steps=steps,
                findings=[asdict(finding) for finding in findings],
            )

    def _cause(self, paths: Sequence[Path], findings: Sequence[WatchFinding], status: int | None) -> Explained:
        dropped: AbstractSet[str] = frozenset()
        with self._writing("cannot read the filter rules"):
            dropped = load_rules(self._home / FILE).of(workload_name(self._db, self._home, self._unit))
        found = diagnose_attempt.cause_of(paths, findings, status, self._home, self._ours, dropped)
        return diagnose_attempt.with_space(found, self.paths, self._ours)

    def _learn(self, at_s: float, findings: Sequence[WatchFinding], found: dict[int, Path]) -> None:
        """Takes what a healthy attempt printed; one with a finding that still held is none."""
        with self._writing("cannot learn from the job's output"):
            if all(finding.cleared_at_s is not None or finding.kind is Kind.HINT for finding in findings):
                dumps = set(diagnose_attempt.dumps_of(self._run_dir))
                logs = [path for path in self._paths(found) if path not in dumps]
                learn(self._db, self._home, self._unit, self.number, at_s, logs)

    def _explain(self, explained: Explained, *, counted: bool) -> Sequence[Precedent]:
        """Journals why; the nearest incidents before this one."""
        cause = explained.cause
        if counted:
            cause = replace(cause, host=cause.host or self._only_node)
        with self._ours.guard("cannot write a note beside the logs"):
            note = json.dumps({"attempt": self.number, "counted": counted} | asdict(cause))
            if self._notes:
                (self._run_dir / f"cause-{self.number}.json").write_text(note, encoding="utf-8")
        with self._writing():
            Attempts(self._db).explain(self._unit, self.number, cause)
            if counted:
                Attempts(self._db).count(self._unit, self.number)
                if is_named(cause.reason, explained.sure.reason if explained.sure else None):
                    FirstCauses(self._db).name(self._unit, self.number, time.time(), NamedBy.DIAGNOSIS)
        with self._writing("cannot keep the lines that tell it"):
            if explained.excerpt is not None:
                Excerpts(self._db).keep(self._unit, self.number, explained.excerpt)
        with self._writing("cannot keep the incident"):
            if explained.lines:
                return Incidents(self._db).keep(self._unit, self.number, explained.lines, explained.sure)
        return ()

    def _paths(self, found: dict[int, Path]) -> list[Path]:
        """Files of the last attempt only: output of earlier attempts would be taken for its own."""
        own = _of_restart(self._run_dir, self.restart, found.get(self.restart))
        if self.restart and own:
            further = [path for path in self._logs if path.is_file()]
            return [*own, *further, *diagnose_attempt.dumps_of(self._run_dir)]
        return [
            *diagnose_attempt.files_of(self._run_dir, self._logs),
            *(path for path in own if path.name != "error.json"),
        ]

    def _lives(self, number: int) -> bool:
        stem = self._run_dir.name.rpartition("-")[0]
        return number != self.number and held(self._run_dir.parent / f"{stem}-{number}")


def _opened(home: Path) -> Connection:
    connection = open_database(home / "tenant.db")
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    return connection


def _state(how: Ending) -> AttemptState:
    if how.exit_code == 0 and not how.asked_by:
        return AttemptState.SUCCEEDED
    return AttemptState.STOPPED if how.asked_by or how.signal == SIGPIPE else AttemptState.FAILED  # as in `job | head`


def _structure(descriptor: Descriptor | None) -> object:
    return descriptor.structure if descriptor else None


def _status(how: Ending) -> int | None:
    return None if how.exit_code is None and how.signal is None else how.code


def _of_restart(run_dir: Path, restart: int, folder: Path | None) -> list[Path]:
    errors = sorted((run_dir / f"attempt_{restart}").glob("*/error.json"))
    return errors + (restarts.logs_of(folder) if folder is not None and folder.is_dir() else [])
