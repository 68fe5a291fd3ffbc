"""What the provider hinted at, kept in the tenant's own database, and what follows from it: one episode, one action.

    provider ─ watch ─▶ HintLog.take ─▶ rows 1, 2, 3, … ─ episodes ─▶ Episode, and a line for a person

A hint is kept before it is shown, so that whoever watches goes on after the last one that is here and none is lost;
several may watch into one log. An episode is what hints of one lease say between `raised` and `cleared`. The provider
sends no word when a lease ends in the middle of one: a hint counts as standing for `STANDS_H` hours at most.

Not promised: that no hint means no danger. The provider says nothing of what its telemetry does not show.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from crypto.codec import decode, encode
from crypto.ids import LeaseId
from crypto.signing import reopened
from federation.protocol.bundle import Bundle
from federation.protocol.service_messages import Action, Hint, HintState, Suspicion
from federation.runtime.sqlite import Connection
from tenant_client.records.bundle_log import BundleLog
from tenant_client.records.journal import Journal, the_one

STANDS_H = 168.0

_ORGAN = {
    Suspicion.COMPUTE: "a GPU's speed",
    Suspicion.MEMORY: "memory",
    Suspicion.HOST_LINK: "the link between host and GPU",
    Suspicion.INTERCONNECT: "the interconnect",
    Suspicion.STORAGE: "storage",
    Suspicion.HOST: "the host",
    Suspicion.UNCLEAR: "nothing in particular",
}


class HintLog:
    """Reads and writes the hints of the tenant's database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def cursor(self) -> int:
        """The number of the last hint that is here, 0 before the first."""
        (number,) = self._connection.execute("SELECT coalesce(max(number), 0) FROM hints").fetchone()
        return int(number)

    def take(self, hint: Hint, received_at_s: float) -> bool:
        """Keeps a hint; false if one of its number is here already."""
        row = hint.number, str(hint.lease), received_at_s, encode(hint)
        return self._connection.execute("INSERT OR IGNORE INTO hints VALUES (?, ?, ?, ?)", row).rowcount == 1

    def find(self, beginning: str) -> str:
        """The lease of this name, or the only one that begins so, of those in the journal and those of hints.

        Without a beginning it is the newest one of the journal. UnknownUnit and AmbiguousLease say why there is none.
        """
        units = [unit.unit for unit in Journal(self._connection).units()]
        hinted = [str(hint.lease) for hint in self.hints()]
        return the_one([*dict.fromkeys(lease for lease in hinted if lease not in units), *units], beginning)

    def context_name(self, lease: LeaseId) -> str:
        """What the newest bundle calls the context of a lease; empty where it gives no name."""
        newest = BundleLog(self._connection).newest()
        labels = [unit.labels for unit in Journal(self._connection).units() if unit.unit == str(lease)]
        if newest is None or not labels:
            return ""
        return reopened(Bundle, newest).names.get(labels[0].get("context", ""), "")

    def hints(self, lease: str = "", after: int = 0) -> list[Hint]:
        """Hints after a number, of leases that begin so, in order."""
        rows = self._connection.execute(
            "SELECT hint FROM hints WHERE number > ? AND substr(lease, 1, ?) = ? ORDER BY number",
            (after, len(lease), lease),
        )
        return [decode(Hint, hint) for (hint,) in rows]


@dataclass(frozen=True)
class Episode:
    """A lease in danger: its first hint and its last one so far."""

    first: Hint
    last: Hint

    @property
    def lease(self) -> LeaseId:
        """Whose danger it is."""
        return self.last.lease

    def stands(self, now_h: float) -> bool:
        """Whether something is to be done about it: not cleared, nor so old that nobody clears it any more."""
        return self.last.state is not HintState.CLEARED and now_h - self.last.at_h < STANDS_H


def episodes(hints: Iterable[Hint]) -> list[Episode]:
    """One for each episode of each lease, in the order in which they began."""
    found: dict[tuple[LeaseId, int], Episode] = {}
    for hint in hints:
        key = hint.lease, hint.times
        before = found.get(key)
        found[key] = Episode(before.first if before else hint, hint)
    return list(found.values())


def standing(hints: Iterable[Hint], now_h: float) -> Iterator[Hint]:
    """The last hint of each episode that stands."""
    return (episode.last for episode in episodes(hints) if episode.stands(now_h))


# ---- for a person, and for programs ----------------------------------------------------------------------------------


def action_of(hint: Hint) -> str:
    """The one thing to do."""
    return {
        Action.NOTHING: "nothing to do",
        Action.CHECKPOINT: "take a checkpoint",
        Action.CONFIRM: f"confirm with `pharoah-tenant confirm {hint.suspicion}`",
        Action.MOVE: "take a checkpoint, and ask for other nodes",
    }[hint.action]


def reason_of(hint: Hint) -> str:
    """Why."""
    if hint.state is HintState.CLEARED:
        return "its nodes are as usual again"
    likely = f"{100 * hint.probability:.2g}% within {hint.within_hours:g} h"
    much = f"{hint.ratio:.2g} times the usual hazard ({hint.ratio_low:.2g}–{hint.ratio_high:.2g})"
    again = f", for the {_ordinal(hint.times)} time" if hint.times > 1 else ""
    return f"its worst node has {much}, a failure of the lease: {likely}{again}; suspected: {_ORGAN[hint.suspicion]}"


def line_of(hint: Hint, context_name: str = "") -> str:
    """One line: which hint, and what it says."""
    return f"hint {hint.number}: {said_of(hint, context_name)}"


def said_of(hint: Hint, context_name: str = "") -> str:
    """What, the action, the reason; the context too where the provider tells its name."""
    where = f" on {context_name}" if context_name else ""
    return f"lease {hint.lease}{where} {hint.state}: {action_of(hint)}; {reason_of(hint)}"


def object_of(hint: Hint, context_name: str = "") -> dict[str, Any]:
    """As `--json` prints it: the fields of the hint, and what to do and why in words."""
    fields = msgspec.structs.asdict(hint)
    words = {"do": action_of(hint), "reason": reason_of(hint), "context_name": context_name}
    return {"version": 1, **fields, "lease": str(hint.lease)} | words


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")
