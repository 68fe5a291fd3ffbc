"""Stores the provider's hints and ends of leases in the tenant's database, and derives one action per episode.

    provider ─ watch ─▶ HintLog.take ─▶ rows 1, 2, 3, … ─ episodes ─▶ Episode, and a line for a person

- A hint or an end is stored before it is shown. `watch` continues after the last stored one, so none is lost; several
  may write to one log.
- An episode is the hints of one lease from `raised` to `cleared`, or to the end of the lease. A hint is open for at
  most `STANDS_H` hours: the end of a lease may never be told.

Not promised: that no hint means no risk. The provider hints only at what its telemetry shows.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

import msgspec

from crypto.codec import decode, encode
from crypto.ids import LeaseId, SignatureBytes
from crypto.signing import reopened
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.sqlite import Connection, transaction
from federation.protocol.bundle import Bundle
from federation.protocol.service_messages import (
    Action,
    Hint,
    HintState,
    LeaseChange,
    LeaseEnd,
    Notice,
    Suspicion,
)
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.journal import Journal, the_one

STANDS_H = 168.0

_ORGAN = {
    Suspicion.COMPUTE: "a GPU's speed",
    Suspicion.MEMORY: "memory",
    Suspicion.HOST_LINK: "the link between host and GPU",
    Suspicion.INTERCONNECT: "the interconnect",
    Suspicion.STORAGE: "storage",
    Suspicion.HOST: "the host",
    Suspicion.UNCLEAR: "no specific hardware",
}


class HintLog:
    """Reads and writes the hints of the tenant's database."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def cursor(self) -> int:
        """The number of the last hint or end that is here, 0 before the first."""
        (number,) = self.connection.execute(
            "SELECT coalesce(max(number), 0) FROM (SELECT number FROM hints UNION ALL SELECT number FROM lease_ends)"
        ).fetchone()
        return int(number)

    def take(self, notice: Notice, received_at_s: float, signature: SignatureBytes) -> bool:
        """Stores a hint or an end with the provider's signature; false if its number is stored already."""
        row = notice.number, str(notice.lease), received_at_s, encode(notice)
        with transaction(self.connection):
            if isinstance(notice, LeaseEnd):
                end = "INSERT OR IGNORE INTO lease_ends VALUES (?, ?, ?, ?, ?)"
                return self.connection.execute(end, (*row, bytes(signature))).rowcount == 1
            is_new = self.connection.execute("INSERT OR IGNORE INTO hints VALUES (?, ?, ?, ?)", row).rowcount == 1
            if is_new:
                signed = notice.number, bytes(signature)
                self.connection.execute("INSERT OR REPLACE INTO hint_signatures VALUES (?, ?)", signed)
        return is_new

    def find(self, beginning: str) -> str:
        """The lease with this name, or the only one whose name starts with it, in the journal or in hints.

        For an empty name it is the newest lease of the journal. Raises UnknownUnit or AmbiguousLease.
        """
        units = [unit.unit for unit in Journal(self.connection).units()]
        hinted = [str(hint.lease) for hint in self.hints()]
        return the_one([*dict.fromkeys(lease for lease in hinted if lease not in units), *units], beginning)

    def context_name(self, lease: LeaseId) -> str:
        """The public name of a lease's context in the newest bundle, or empty."""
        newest = BundleLog(self.connection).newest()
        labels = [unit.labels for unit in Journal(self.connection).units() if unit.unit == str(lease)]
        if newest is None or not labels:
            return ""
        return reopened(Bundle, newest).names.get(labels[0].get("context", ""), "")

    def hints(self, lease: str = "", after: int = 0) -> list[Hint]:
        """Hints after a number, of leases whose name starts with `lease`, in order."""
        rows = self.connection.execute(
            "SELECT hint FROM hints WHERE number > ? AND substr(lease, 1, ?) = ? ORDER BY number",
            (after, len(lease), lease),
        )
        return [decode(Hint, hint) for (hint,) in rows]

    def received(self) -> list[tuple[Hint, float]]:
        """All hints in order, each with the hour at which it came."""
        rows = self.connection.execute("SELECT hint, received_at_s FROM hints ORDER BY number")
        return [(decode(Hint, hint), at_s / SECONDS_PER_HOUR) for hint, at_s in rows]

    def ends(self) -> dict[LeaseId, LeaseEnd]:
        """What was told last of the end of each lease; some ends are only planned."""
        rows = self.connection.execute("SELECT end FROM lease_ends ORDER BY number")
        ends = (decode(LeaseEnd, end) for (end,) in rows)
        return {end.lease: end for end in ends}

    def over(self) -> frozenset[LeaseId]:
        """Leases that ended by the provider's word."""
        return frozenset(lease for lease, end in self.ends().items() if end.change is not LeaseChange.MOVED)


@dataclass(frozen=True)
class Episode:
    """A raised failure risk of a lease: its first and its latest hint."""

    first: Hint
    last: Hint

    @property
    def lease(self) -> LeaseId:
        """The lease at risk."""
        return self.last.lease

    def stands(self, now_h: float) -> bool:
        """Whether it is open: neither cleared nor older than `STANDS_H`."""
        return self.last.state is not HintState.CLEARED and now_h - self.last.at_h < STANDS_H


def episodes(hints: Iterable[Hint]) -> list[Episode]:
    """The episodes of all leases, in the order of their beginning."""
    found: dict[tuple[LeaseId, int], Episode] = {}
    for hint in hints:
        key = hint.lease, hint.times
        before = found.get(key)
        found[key] = Episode(before.first if before else hint, hint)
    return list(found.values())


def standing(hints: Iterable[Hint], now_h: float, over: Container[LeaseId] = ()) -> Iterator[Hint]:
    """The latest hint of each open episode of leases that are not `over`."""
    return (one.last for one in episodes(hints) if one.stands(now_h) and one.lease not in over)


# ---- for a person, and for programs ----------------------------------------------------------------------------------


def action_of(hint: Hint) -> str:
    """The action that a hint recommends."""
    return {
        Action.NOTHING: "no action",
        Action.CHECKPOINT: "take a checkpoint",
        Action.CONFIRM: f"test with `pharoah-tenant confirm {hint.suspicion}`",
        Action.MOVE: "take a checkpoint, and request other nodes",
    }[hint.action]


def reason_of(hint: Hint) -> str:
    """The reason for a hint."""
    if hint.state is HintState.CLEARED:
        return "its nodes are back to normal"
    likely = f"{100 * hint.probability:.2g}% within {hint.within_hours:g} h"
    much = f"{hint.ratio:.2g} times the usual hazard ({hint.ratio_low:.2g}–{hint.ratio_high:.2g})"
    again = f", for the {_ordinal(hint.times)} time" if hint.times > 1 else ""
    suspected = _ORGAN[hint.suspicion]
    return f"its worst node has {much}; failure probability of the lease {likely}{again}; suspected: {suspected}"


def line_of(hint: Hint, context_name: str = "") -> str:
    """A hint as one line."""
    return f"hint {hint.number}: {said_of(hint, context_name)}"


def said_of(hint: Hint, context_name: str = "") -> str:
    """The lease, its state, the action and the reason; also the context if its name is known."""
    where = f" on {context_name}" if context_name else ""
    return f"lease {hint.lease}{where} {hint.state}: {action_of(hint)}; {reason_of(hint)}"


def end_of(end: LeaseEnd) -> str:
    """What became of a lease's end, without the lease: `ended early at 2026-11-24 14:03 UTC (requeued)`."""
    at = _minute(end.end_h)
    if end.change is LeaseChange.MOVED:
        return f"now ends at {at}" + (f" instead of {_minute(end.planned_h)}" if end.planned_h is not None else "")
    is_early = end.planned_h is not None and end.end_h < end.planned_h
    early = f" early at {at}, planned for {_minute(end.planned_h or 0.0)}" if is_early else f" at {at}"
    return f"ended{early}" + (" (requeued)" if end.change is LeaseChange.REQUEUED else "")


def _minute(hour: float) -> str:
    return f"{datetime.fromtimestamp(hour * SECONDS_PER_HOUR, UTC):%Y-%m-%d %H:%M} UTC"


class HintObject(TypedDict):
    """A hint, with its action and reason as text; `context_name` is empty if it is unknown."""

    version: int
    number: int
    at_h: float
    lease: str
    state: HintState
    suspicion: Suspicion
    ratio: float
    ratio_low: float
    ratio_high: float
    probability: float
    within_hours: float
    action: Action
    times: int
    do: str
    reason: str
    context_name: str


def object_of(hint: Hint, context_name: str = "") -> dict[str, object]:
    """A `HintObject`: the hint's fields, with the action and the reason as text."""
    words = {"do": action_of(hint), "reason": reason_of(hint), "context_name": context_name}
    return {"version": 1, **msgspec.structs.asdict(hint), **words}


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")
