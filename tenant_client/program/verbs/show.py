"""The verb `show`: all that is known of a job on one screen, and the sections that come from the journal alone."""

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from federation.base.console import AsJson
from federation.base.pinned_directory import is_pinned
from federation.base.screen import say, show, show_json
from federation.base.sqlite import Connection, reporting
from federation.base.visible import counted_as
from tenant_client.doctor.advice.after_failure import after_failure, next_command
from tenant_client.doctor.advice.explanation import FailureSide, explain
from tenant_client.doctor.advice.failure_facts import Known, facts_of, name_by_bundle, newest
from tenant_client.doctor.advice.found import to_do
from tenant_client.doctor.advice.own_codes import JudgedLine, judged_line
from tenant_client.doctor.advice.provider_report import DEVICES, SILENT, Cloud, Fault, report_of
from tenant_client.doctor.diagnosis.precedents import Precedent
from tenant_client.doctor.records.attempts import Attempt, AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.excerpts import Excerpts
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.run.run_directory import newest_runs
from tenant_client.doctor.run.spike_origin import Origin
from tenant_client.doctor.sources.reasons import UNKNOWN
from tenant_client.program.verbs.console import Home, Latest, Lease, failing, journalled, require, say_error
from tenant_client.program.verbs.restart import spike_in
from tenant_client.rounds.disclosure.happened import ExplainedAttempt

FINE, REFUSED, UNEXPLAINED = 0, 2, 3
_MOST_LINES = 5
_OTHERS = (FailureSide.PROVIDER, FailureSide.BOTH)  # whose part the other lines do not tell


@dataclass(frozen=True)
class ShownCause(AttemptCause):
    """Why the attempt ended. `said` is the reason that the program gave where the owner gave another one, else "".

    `sure` is the least share of such diagnoses that are right, `sureness` that in words: None and "" without figures.
    """

    said: str = ""
    sure: float | None = None
    sureness: str = ""


@dataclass(frozen=True)
class ShownEvidence:
    """Lines of the logs that tell the failure, in the order of the log, and what the watch found.

    `at` is the file and line of the job's own code, `log` the file and line of the cause: "" where not known. `near`
    are the few lines up to the cause. Lines of an attempt that an older program journalled have their numbers masked.
    """

    at: str
    log: str
    near: tuple[str, ...]
    lines: tuple[str, ...]
    findings: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class ShownPrecedents:
    """What the owner noted that helped, or "", and earlier failures that resemble this one, the nearest first."""

    helped: str
    precedents: tuple[Precedent, ...]


@dataclass(frozen=True)
class ShownJob:
    """The newest attempt of a job. `name` is the job's own name, `job` that of its lease; times are seconds since 1970.

    `both_sides` is the first cause over both sides, None for an attempt without trouble. `joined`: the
    home is in a federation, and so has another side. `codes` are the lines with an error code of a GPU.
    """

    version: int
    job: str
    name: str
    attempt: int
    state: AttemptState
    started_at_s: float
    ended_at_s: float | None
    steps: int
    cause: ShownCause
    evidence: ShownEvidence
    precedents: ShownPrecedents
    both_sides: ExplainedAttempt | None
    joined: bool
    codes: tuple[JudgedLine, ...] = ()


def summary(
    home: Home,
    job: Lease = "",
    report: Annotated[
        Cloud | None,
        typer.Option("--report", help="Print this provider's own report of a faulty host, as JSON, for you to send."),
    ] = None,
    *,
    latest: Latest = False,
    as_json: AsJson = False,
) -> None:
    """Show the newest attempt of a job on one screen: cause, advice and evidence. Nothing is sent.

    Exit code 0: the cause is known, or nothing failed. 2: with --report: the evidence does not speak of hardware.
    3: the cause is unknown, or no attempt was seen.
    """
    found = _shown(home, job, latest=latest)
    if report is not None:
        with failing(REFUSED):
            show_json(made := report_of(report, _fault(home, found)))
        say(*(f"fill in {{{name}}}: {what}" for name, what in made.fill_in.items()))
        raise typer.Exit(FINE)
    if as_json:
        show_json(found)
    else:
        show(*_lines(found))
    _end(found)


def cause(home: Home, job: Lease = "", *, latest: Latest = False, as_json: AsJson = False) -> None:
    """Show why a job's newest attempt ended, how sure that is, and what to do."""
    found = _shown(home, job, latest=latest)
    if as_json:
        show_json(found.cause)
    else:
        show(*_cause_lines(found))
    _end(found)


def evidence(home: Home, job: Lease = "", *, latest: Latest = False, as_json: AsJson = False) -> None:
    """Show the log lines that tell why a job's newest attempt failed, and what the watch found.

    With the line of your own code that failed and the log to open. Exit code 3: there are none.
    """
    found = _shown(home, job, latest=latest).evidence
    if as_json:
        show_json(found)
    else:
        show(*_place_lines(found), *found.lines, *_finding_lines(found))
    _end_known("nothing in the logs tells of a failure", found.lines or found.findings)


def precedents(home: Home, job: Lease = "", *, latest: Latest = False, as_json: AsJson = False) -> None:
    """Show earlier failures that a job's failure resembles, what helped then, and what was noted for this one.

    Exit code 3: none is known.
    """
    found = _shown(home, job, latest=latest).precedents
    if as_json:
        show_json(found)
    else:
        show(*_precedent_lines(found))
    _end_known("no earlier failure resembles it", found.helped or found.precedents)


def _shown(home: Path, beginning: str, *, latest: bool) -> ShownJob:
    """The newest attempt of a job; ends with exit code 3 without one."""
    require(beginning, latest=latest)
    with reporting(), closing(open_database(journalled(home))) as connection:
        unit = Journal(connection).find(beginning)
        attempts = Attempts(connection).list(unit)
        if attempts:
            return _of(connection, attempts[-1])
    say_error(f"no attempt of {unit} was seen", "run it with `pharoah-tenant run`")
    raise typer.Exit(UNEXPLAINED)


def _of(connection: Connection, attempt: Attempt) -> ShownJob:
    known, incidents = Known.of(connection), Incidents(connection).kept()
    with suppress(sqlite3.OperationalError):  # a disk that is full may be the very cause to be shown
        name_by_bundle(connection, known, time.time())
    incident = next((one for one in incidents if (one.lease, one.attempt) == (attempt.unit, attempt.attempt)), None)
    advice = after_failure(attempt.unit, attempt.state, attempt.cause)[1:2]
    succeeded = attempt.state is AttemptState.SUCCEEDED
    to_be_done = to_do(attempt.findings) if succeeded else "".join(advice).removeprefix("do: ")
    cause = replace(attempt.cause, advice=to_be_done)
    return ShownJob(
        version=1,
        job=attempt.unit,
        name=Attempts(connection).jobs().get(attempt.unit, ""),
        attempt=attempt.attempt,
        state=attempt.state,
        started_at_s=attempt.started_at_s,
        ended_at_s=attempt.ended_at_s,
        steps=attempt.steps,
        cause=ShownCause(
            **vars(cause),
            said=attempt.said,
            sure=incident.sure if incident else None,
            sureness=incident.sureness if incident else "",
        ),
        evidence=_evidence(connection, attempt, incident.lines if incident else ()),
        precedents=ShownPrecedents(incident.helped if incident else "", incident.precedents if incident else ()),
        both_sides=_both_sides(known, attempt),
        joined=is_pinned(connection),
        codes=tuple(judged_line(one, verdict) for verdict, one in known.codes[attempt.unit, attempt.attempt].items()),
    )


def _fault(home: Path, found: ShownJob) -> Fault:
    """What the attempt shows of hardware: the most telling error code, else its reason, else how replicas differed."""
    code = max(found.codes, key=lambda one: one.hardware_probability or 0.0, default=None)
    at_s, node, gpu = found.ended_at_s or found.started_at_s, found.cause.host, found.cause.gpu
    if code is not None and code.code:
        told = code.code, code.text, code.hardware_probability
        return Fault(found.cause.reason, at_s, code.host or node, code.gpu or gpu, *told)
    run_dir = newest_runs(home).get(found.job)
    spike = spike_in(run_dir) if run_dir and found.cause.reason not in DEVICES else None
    differs = spike is not None and spike.origin is Origin.HARDWARE
    return Fault(SILENT if differs else found.cause.reason, at_s, node, gpu)


def _evidence(connection: Connection, attempt: Attempt, masked: tuple[str, ...]) -> ShownEvidence:
    excerpt, place = Excerpts(connection).of(attempt.unit, attempt.attempt), attempt.cause.place
    file, line, number = place.rpartition(", line ")
    lines = tuple(one.text for one in excerpt.lines) or masked
    near = excerpt.near(place, _MOST_LINES) or lines[:_MOST_LINES]
    return ShownEvidence(excerpt.at, f"{file}:{number}" if line else "", near, lines, attempt.findings)


def _both_sides(known: Known, attempt: Attempt) -> ExplainedAttempt | None:
    if newest(known, attempt.unit) != attempt:
        return None
    return ExplainedAttempt.of(known, attempt, explain(facts_of(known, attempt)))


def _lines(found: ShownJob) -> Iterator[str]:
    began = datetime.fromtimestamp(found.started_at_s, UTC).astimezone()
    ran = f" after {timedelta(seconds=round(found.ended_at_s - found.started_at_s))}" if found.ended_at_s else ""
    steps = f", {counted_as(found.steps, 'step')}" if found.steps else ""
    what = f"{found.job} ({found.name})" if found.name else found.job
    yield f"{what} attempt {found.attempt}: {found.state}{ran}{steps}, began {began:%Y-%m-%d %H:%M:%S}"
    yield from (f"  {line}" for line in _cause_lines(found))
    yield from (f"  {one.judgement}" for one in found.codes)
    yield from (f"  {line}" for line in _finding_lines(found.evidence))
    yield from (f"  {line}" for line in _place_lines(found.evidence))
    yield from (f"  line: {line}" for line in found.evidence.near)
    yield from (f"  {line}" for line in _precedent_lines(found.precedents))
    if found.both_sides is not None:
        if found.joined and found.both_sides.side in _OTHERS and found.state is not AttemptState.SUCCEEDED:
            yield f"  over both sides: {found.both_sides.sentence}"
        yield f"{next_command(found.job)} --only explain"


def _cause_lines(found: ShownJob) -> Iterator[str]:
    if found.cause.said:
        yield f"{found.cause.reason}, as you fixed it; Pharoah had said:"
    yield from after_failure(found.job, found.state, found.cause)[:2]
    if found.state is AttemptState.SUCCEEDED and found.cause.advice:
        yield f"do: {found.cause.advice}"
    yield from filter(None, (found.cause.sureness,))


def _precedent_lines(found: ShownPrecedents) -> Iterator[str]:
    yield from ([f"helped: {found.helped}"] if found.helped else [])
    yield from (one.words for one in found.precedents)


def _finding_lines(found: ShownEvidence) -> Iterator[str]:
    return (f"{one['kind']}: {one['text']}" for one in found.findings)


def _place_lines(found: ShownEvidence) -> Iterator[str]:
    yield from ([f"at: {found.at}"] if found.at else [])
    yield from ([f"log: {found.log}"] if found.log else [])


def _end_known(lacking: str, known: object) -> None:
    if not known:
        say_error(lacking, "see `pharoah-tenant jobs --failed`")
    raise typer.Exit(FINE if known else UNEXPLAINED)


def _end(found: ShownJob) -> None:
    failed = found.state in (AttemptState.FAILED, AttemptState.STOPPED, AttemptState.INTERRUPTED)
    raise typer.Exit(UNEXPLAINED if failed and found.cause.reason == UNKNOWN else FINE)
