"""What the journal knows of every lease, as facts: each a canonical JSON text that stands by itself.

    lease     when the lease began
    grant     the provider's signed grant of it
    hint      the provider's signed hint about it
    end       the provider's signed word of when it ended, or ends now
    attempt   how an attempt of its job ended: state, reason, rank, host, GPU
    job       the name of the job
    sentence  the diagnosis in words, and its place
    line      one line of the log that tells the cause

A fact that changes later (a corrected reason) is a new fact of the same subject.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from crypto.codec import encode
from crypto.signing import Signed
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.sqlite import Connection
from tenant_client.doctor.records.attempts import Attempts, AttemptState
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.doctor.records.journal import Journal


@dataclass(frozen=True)
class Fact:
    """A fact about a lease. `subject` names what it is about, the same for all its versions."""

    subject: str
    lease: str
    body: bytes

    @classmethod
    def of(cls, kind: str, lease: str, name: str = "", **values: Any) -> "Fact":
        """The fact with these values, which are JSON's."""
        said = {"kind": kind, "lease": lease, **values}
        body = json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return cls(f"{kind} {lease} {name}", lease, body.encode())


def facts(connection: Connection) -> Iterator[Fact]:
    """All facts that are final by now: attempts that have ended, and what was received."""
    for unit in Journal(connection).units():
        yield Fact.of("lease", unit.unit, began_at_s=unit.start_h * SECONDS_PER_HOUR)
    yield from _granted(connection)
    yield from _hinted(connection)
    yield from _attempted(connection)


def _granted(connection: Connection) -> Iterator[Fact]:
    rows = connection.execute(
        "SELECT lease, message FROM granted JOIN grants ON digest = grants ORDER BY granted.rowid"
    )
    for lease, message in rows:
        yield Fact.of("grant", bytes(lease).hex(), message=_text(message))


def _hinted(connection: Connection) -> Iterator[Fact]:
    rows = connection.execute("SELECT number, lease, hint, signature FROM hints JOIN hint_signatures USING (number)")
    for number, lease, hint, signature in rows:
        yield Fact.of("hint", lease, str(number), number=number, message=_signed(signature, hint))
    rows = connection.execute("SELECT number, lease, end, signature FROM lease_ends ORDER BY number")
    for number, lease, end, signature in rows:
        yield Fact.of("end", lease, str(number), number=number, message=_signed(signature, end))


def _attempted(connection: Connection) -> Iterator[Fact]:
    attempts = Attempts(connection)
    jobs = attempts.jobs()
    lines = {(one.lease, one.attempt): one.lines for one in Incidents(connection).kept()}
    for one in attempts.list():
        if one.state is AttemptState.RUNNING:
            continue
        of, cause = {"attempt": one.attempt}, one.cause
        if one.unit in jobs:
            yield Fact.of("job", one.unit, job=jobs[one.unit])
        yield Fact.of(
            "attempt",
            one.unit,
            str(one.attempt),
            **of,
            state=one.state,
            started_at_s=one.started_at_s,
            at_s=one.ended_at_s,
            exit_code=one.exit_code,
            signal=one.signal,
            reason=cause.reason,
            rank=cause.rank,
            host=cause.host,
            gpu=cause.gpu,
            steps=one.steps,
        )
        if cause.sentence:
            name = str(one.attempt)
            yield Fact.of("sentence", one.unit, name, **of, place=cause.place, text=cause.sentence, at_s=one.ended_at_s)
        for number, line in enumerate(lines.get((one.unit, one.attempt), ())):
            name = f"{one.attempt} {number}"
            yield Fact.of("line", one.unit, name, **of, number=number, text=line, at_s=one.ended_at_s)


def _signed(signature: bytes, body: bytes) -> str:
    return _text(encode(Signed(bytes(signature), memoryview(body))))


def _text(message: bytes) -> str:
    return base64.b64encode(message).decode()
