"""The chain over a tenant's facts: each entry commits to a fact, each head to all entries so far.

A fact is what the journal knows of a lease: a canonical JSON text that stands by itself. One that changes later (a
corrected reason) is a new fact of the same subject.

    lease     when the lease began
    grant     the provider's signed grant of it
    hint      the provider's signed hint about it
    end       the provider's signed word of when it ended, or ends now
    attempt   how an attempt of its job ended: state, reason, rank, host, GPU
    job       the name of the job
    sentence  the diagnosis in words, and its place
    line      one line of the log that tells the cause

    commitment = SHA-256("pharoah/claim-entry/1" 0 ‖ salt ‖ body)          salt: 32 random bytes, body: a fact
    head 0     = SHA-256("pharoah/claim-head/1" 0 ‖ tenant id)
    head n     = SHA-256("pharoah/claim-head/1" 0 ‖ head n − 1 ‖ commitment n)

- A commitment without its salt tells nothing of the fact, however few values that could have (a random oracle).
- Whoever knows head n accepts one list of n commitments, and of each one fact (SHA-256 has no collisions).
- Entries are appended when something asks for them (`seal`), in the order of the journal; none is changed.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from crypto.codec import encode
from crypto.ids import Digest, TenantId
from crypto.ristretto import RandomBytes
from crypto.signing import Signed
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.sqlite import Connection, transaction
from tenant_client.doctor.records.attempts import Attempts, AttemptState
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.doctor.records.journal import Journal

ENTRY_LABEL, HEAD_LABEL = b"pharoah/claim-entry/1\0", b"pharoah/claim-head/1\0"
SALT_BYTES = 32


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


# ---- the chain -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChainEntry:
    """Entry `number`, from 1 on, with its fact."""

    number: int
    lease: str
    salt: bytes
    body: bytes

    @property
    def commitment(self) -> bytes:
        """What the chain holds of it."""
        return hashlib.sha256(ENTRY_LABEL + self.salt + self.body).digest()


class FactChain:
    """The chain in a tenant's database."""

    def __init__(self, connection: Connection, tenant: TenantId) -> None:
        self._connection = connection
        self._tenant = tenant

    def seal(self, random_bytes: RandomBytes) -> int:
        """Appends all facts that are new, or have changed; the number of entries then."""
        newest = "SELECT body FROM claim_entries WHERE subject = ? ORDER BY number DESC LIMIT 1"
        with transaction(self._connection):
            for fact in list(facts(self._connection)):
                if self._connection.execute(newest, (fact.subject,)).fetchone() != (fact.body,):
                    self._connection.execute(
                        "INSERT INTO claim_entries (subject, lease, salt, body) VALUES (?, ?, ?, ?)",
                        (fact.subject, fact.lease, random_bytes(SALT_BYTES), fact.body),
                    )
            (length,) = self._connection.execute("SELECT COALESCE(MAX(number), 0) FROM claim_entries").fetchone()
        return int(length)

    def entries(self) -> Iterator[ChainEntry]:
        """All entries, in order."""
        rows = self._connection.execute("SELECT number, lease, salt, body FROM claim_entries ORDER BY number")
        return (ChainEntry(number, lease, bytes(salt), bytes(body)) for number, lease, salt, body in rows)

    def head(self) -> Digest:
        """The head over all entries."""
        head = hashlib.sha256(HEAD_LABEL + self._tenant).digest()
        for entry in self.entries():
            head = hashlib.sha256(HEAD_LABEL + head + entry.commitment).digest()
        return Digest(head)
