"""The journal of the tenant's leases: their failures, workloads and registered tokens.

- A unit is one lease. Its labels are all that a plan may count by: its context tokens and its workload's tokens.
- A failure has an age since the unit began and a reason from the taxonomy (or `unknown`).
- Nothing here leaves by itself.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from crypto.codec import decode, encode
from crypto.errors import PeerFault, PharoahError
from crypto.ids import LeaseId, Token
from federation.base.sqlite import Rows, transaction
from federation.protocol.round_messages import LADDER_LABELS, Ladder, RegisteredWorkload, TokenLink
from federation.protocol.subjects import TOKEN_DIMENSIONS
from tenant_client.doctor.records.starts import Started, Starts
from tenant_client.doctor.workload.descriptor import Descriptor

_MOST_CANDIDATES = 8


class UnknownUnit(PharoahError):
    """The journal has no such lease."""

    default_hint = "pass a job, or the start of its name; list them with `pharoah-tenant jobs`"


class AmbiguousLease(PharoahError):
    """Several leases start with these letters."""

    default_hint = "pass more of its name; list them with `pharoah-tenant jobs`"


class GrantChanged(PeerFault):
    """The provider granted a lease again with other tokens: one owner would count as two."""

    default_hint = (
        "the first grant stays valid; both are kept as proof: ask the provider, and inform other tenants and trustees"
    )


@dataclass(frozen=True)
class Unit:
    """Something that can fail: a lease. `start_h` in hours since the federation's start."""

    unit: str
    start_h: float
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Failure:
    """One failure of a unit, `at_h` since the federation's start, `age_h` since the unit's own start, both in hours."""

    unit: str
    at_h: float
    age_h: float
    reason: str


@dataclass(frozen=True)
class LabelledFailure:
    """A failure together with the labels of its unit."""

    failure: Failure
    labels: Mapping[str, str]


def the_one(leases: Sequence[str], beginning: str) -> str:
    """The lease with this name, or the only one whose name starts with it; the last one for an empty name."""
    found = [lease for lease in leases if lease.startswith(beginning)]
    if not found:
        raise UnknownUnit(f"there is no lease {beginning!r} here" if leases else "there is no lease yet")
    if beginning in leases or not beginning:
        return beginning or leases[-1]
    if len(found) > 1:
        shown = ", ".join(found[:_MOST_CANDIDATES]) + (", …" if len(found) > _MOST_CANDIDATES else "")
        raise AmbiguousLease(f"{len(found)} leases start with {beginning!r}: {shown}")
    return found[0]


class Journal(Rows):
    """Reads and writes the journal tables of the tenant's database."""

    def add(self, units: Iterable[Unit], failures: Iterable[Failure]) -> None:
        """Appends in one transaction; IntegrityError and no change if a unit exists or a failure names none."""
        with transaction(self._connection):
            self._connection.executemany(
                "INSERT INTO units VALUES (?, ?, ?)",
                [(unit.unit, unit.start_h, json.dumps(dict(unit.labels), sort_keys=True)) for unit in units],
            )
            self._connection.executemany(
                "INSERT INTO failures VALUES (?, ?, ?, ?)",
                [(failure.unit, failure.at_h, failure.age_h, failure.reason) for failure in failures],
            )

    def failures(self, start_h: float, end_h: float) -> list[LabelledFailure]:
        """Failures in [start_h, end_h), in order of time."""
        rows = self._connection.execute(
            "SELECT unit, at_h, age_h, reason, labels FROM failures JOIN units USING (unit)"
            " WHERE at_h >= ? AND at_h < ? ORDER BY at_h, unit, reason",
            (start_h, end_h),
        )
        return [LabelledFailure(Failure(*row[:4]), json.loads(row[4])) for row in rows]

    def units(self) -> list[Unit]:
        """Every unit, in order of its beginning."""
        rows = self._connection.execute("SELECT unit, start_h, labels FROM units ORDER BY start_h, unit")
        return [Unit(unit, start_h, json.loads(labels)) for unit, start_h, labels in rows]

    def starts(self) -> dict[str, Started]:
        """What the last attempt of each unit was started with."""
        return Starts(self._connection).newest()

    def find(self, beginning: str) -> str:
        """The unit of this name, or the one whose name begins so; UnknownUnit and AmbiguousLease say why there is none.

        Without a beginning it is the newest one.
        """
        return the_one([unit.unit for unit in self.units()], beginning)

    def labels(self, unit: str) -> dict[str, str]:
        """The labels of a unit; UnknownUnit where the journal has none of that name."""
        row = self._connection.execute("SELECT labels FROM units WHERE unit = ?", (unit,)).fetchone()
        if row is None:
            raise UnknownUnit(f"the journal has no lease {unit!r}")
        found: dict[str, str] = json.loads(row[0])
        return found

    def label(self, units: Iterable[Unit]) -> None:
        """Appends units, and gives those that are known already (from a job that ran before) their labels.

        Labels that a unit has stay: a lease's tokens are told once (GrantChanged).
        """
        units = list(units)
        with transaction(self._connection):
            for unit in units:
                self._refuse_other_tokens(unit)
            self._connection.executemany(
                "INSERT INTO units VALUES (?, ?, ?) ON CONFLICT (unit) DO UPDATE SET labels = excluded.labels",
                [(unit.unit, unit.start_h, json.dumps(dict(unit.labels), sort_keys=True)) for unit in units],
            )

    def _refuse_other_tokens(self, unit: Unit) -> None:
        row = self._connection.execute("SELECT labels FROM units WHERE unit = ?", (unit.unit,)).fetchone()
        told = json.loads(row[0]) if row else {}
        if any(told[name] != unit.labels.get(name) for name in TOKEN_DIMENSIONS & told.keys()):
            raise GrantChanged(f"lease {unit.unit} was granted before with other tokens")

    def size(self, nodes: Iterable[tuple[str, int]]) -> None:
        """Keeps how many nodes units have; the first number of a unit stays."""
        with transaction(self._connection):
            self._connection.executemany("INSERT OR IGNORE INTO sizes VALUES (?, ?)", nodes)

    def nodes(self) -> dict[str, int]:
        """How many nodes units have, as far as it is known."""
        return dict(self._connection.execute("SELECT unit, nodes FROM sizes"))

    def place(self, unit: str, node_list: str) -> None:
        """Keeps the nodes of a unit in Slurm's notation, replacing earlier ones; IntegrityError for an unknown unit."""
        self._connection.execute("INSERT OR REPLACE INTO node_lists VALUES (?, ?)", (unit, node_list))

    def node_lists(self) -> dict[str, str]:
        """The nodes of units in Slurm's notation, as far as they are known. They leave in no message."""
        return dict(self._connection.execute("SELECT unit, nodes FROM node_lists"))

    def describe(self, unit: str, described_at_s: float, descriptor: Descriptor) -> None:
        """Keeps what a unit's workload is, in place of what was known before; IntegrityError for an unknown unit."""
        with transaction(self._connection):
            self._connection.execute(
                "INSERT INTO descriptors VALUES (?, ?, ?) ON CONFLICT (unit) DO UPDATE"
                " SET described_at_s = excluded.described_at_s, descriptor = excluded.descriptor",
                (unit, described_at_s, descriptor.to_json()),
            )
            self._connection.execute("DELETE FROM undescribed WHERE unit = ?", (unit,))

    def leave_undescribed(self, unit: str, why: str) -> None:
        """Keeps why a unit's workload is not known, unless it is; IntegrityError for an unknown unit."""
        self._connection.execute(
            "INSERT OR REPLACE INTO undescribed SELECT ?, ?"
            " WHERE NOT EXISTS (SELECT 1 FROM descriptors WHERE unit = ?)",
            (unit, why, unit),
        )

    def undescribed(self) -> dict[str, str]:
        """Why the workloads of units are not known, by unit."""
        return dict(self._connection.execute("SELECT unit, why FROM undescribed ORDER BY unit").fetchall())

    def descriptors(self) -> dict[str, Descriptor]:
        """What is known of the workloads of units, by unit."""
        rows = self._connection.execute("SELECT unit, descriptor FROM descriptors ORDER BY unit")
        return {unit: Descriptor.from_json(text) for unit, text in rows}

    def queue_registrations(self, epoch: int, leases: Sequence[tuple[LeaseId, float, Ladder]]) -> dict[LeaseId, Ladder]:
        """Keeps what the provider is told if it asks: each lease, the hour at which it began, its workload's tokens.

        The first tokens of a lease stay, whatever comes later; the answer names them.
        """
        kept = "SELECT ladder FROM registrations WHERE lease = ?"
        with transaction(self._connection):
            self._connection.executemany(
                "INSERT OR IGNORE INTO registrations VALUES (?, ?, ?, ?)",
                [(bytes(lease), epoch, start_h, encode(ladder)) for lease, start_h, ladder in leases],
            )
            rows = {lease: self._connection.execute(kept, (bytes(lease),)).fetchone() for lease, _, _ in leases}
        return {lease: decode(Ladder, ladder) for lease, (ladder,) in rows.items()}

    def tell(self, epoch: int, start_h: float, end_h: float) -> tuple[RegisteredWorkload, ...]:
        """Workloads of the epoch whose leases began in [start_h, end_h), in a fixed order, noted as told before."""
        window = " FROM registrations WHERE epoch = ? AND start_h >= ? AND start_h < ?"
        asked = epoch, start_h, end_h
        with transaction(self._connection):
            self._connection.execute(f"INSERT OR IGNORE INTO told SELECT lease{window}", asked)
            order = " ORDER BY ladder, lease"
            rows = self._connection.execute(f"SELECT ladder, lease{window}{order}", asked).fetchall()
        return tuple(
            RegisteredWorkload(decode(Ladder, ladder), tuple(LeaseId(lease) for _, lease in group))
            for ladder, group in groupby(rows, key=itemgetter(0))
        )

    def link(self, epoch: int, ladders: Iterable[tuple[Ladder, Ladder]]) -> None:
        """Keeps which tokens of the epoch before are which of `epoch`: pairs of a workload's ladders, old and new."""
        rows = [
            (epoch, bytes(getattr(before, rung)), bytes(getattr(now, rung)))
            for before, now in ladders
            for rung in LADDER_LABELS
        ]
        with transaction(self._connection):
            self._connection.executemany("INSERT OR IGNORE INTO links VALUES (?, ?, ?)", rows)

    def links(self, epoch: int) -> tuple[TokenLink, ...]:
        """What the provider is told of them with the registrations of the epoch, in order."""
        rows = self._connection.execute(
            "SELECT token_before, token_now FROM links WHERE epoch = ? ORDER BY token_before", (epoch,)
        )
        return tuple(TokenLink(Token(before), Token(now)) for before, now in rows)

    def told(self) -> list[tuple[LeaseId, int, float, Ladder]]:
        """Everything that the provider was told because it asked: lease, epoch, hour of its beginning, tokens."""
        rows = self._connection.execute(
            "SELECT lease, epoch, start_h, ladder FROM registrations JOIN told USING (lease) ORDER BY start_h, lease"
        )
        return [(LeaseId(lease), epoch, start_h, decode(Ladder, ladder)) for lease, epoch, start_h, ladder in rows]

    def held(self, epoch: int, start_h: float = 0.0, end_h: float = math.inf) -> tuple[Token, ...]:
        """Tokens, of workload and context, of the leases of the epoch that began in [start_h, end_h) and were told of.

        In order, each once.
        """
        rows = self._connection.execute(
            "SELECT DISTINCT ladder, labels FROM registrations JOIN told USING (lease)"
            " LEFT JOIN units ON unit = lower(hex(lease))"
            " WHERE epoch = ? AND registrations.start_h >= ? AND registrations.start_h < ?",
            (epoch, start_h, end_h),
        )
        tokens: set[str] = set()
        for ladder, labels in rows:
            granted = json.loads(labels or "{}")
            tokens |= {*decode(Ladder, ladder).labels.values(), *(granted.get(name, "") for name in TOKEN_DIMENSIONS)}
        return tuple(sorted(Token(bytes.fromhex(token)) for token in tokens - {""}))
