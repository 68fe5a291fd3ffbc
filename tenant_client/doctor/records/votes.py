"""The journal's votes: pairs of nodes between which a collective of a lease was slow or hung, and who said so.

A vote names nodes; what may leave of it are tokens of parts that the provider gave with the lease (docs/fabric.md), in
a noisy sum, and only under a plan that counts votes and a policy that lists `part`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from crypto.errors import PharoahError
from federation.base.sqlite import Rows


class NoPair(PharoahError):
    """A vote that names no two nodes of its lease."""

    default_hint = "name two nodes of the lease, as the provider or Slurm calls them: `pharoah-tenant jobs`"


@dataclass(frozen=True)
class Vote:
    """A vote of a lease at an hour, for a pair of nodes on a rail, None if that is not known; `basis` says why."""

    unit: str
    at_h: float
    nodes: tuple[str, str]
    rail: int | None
    basis: str


class Votes(Rows):
    """Reads and writes the votes of the tenant's database."""

    def cast(self, vote: Vote) -> None:
        """Keeps a vote; the same one twice is one. NoPair for one node, IntegrityError for an unknown lease."""
        one, other = sorted(vote.nodes)
        if one == other or not one:
            raise NoPair(f"a vote of lease {vote.unit} names one node, not two")
        row = vote.unit, vote.at_h, one, other, vote.rail, vote.basis
        self._connection.execute("INSERT OR IGNORE INTO votes VALUES (?, ?, ?, ?, ?, ?)", row)

    def within(self, start_h: float, end_h: float) -> list[Vote]:
        """Votes in [start_h, end_h), in order of time."""
        rows = self._connection.execute(
            "SELECT * FROM votes WHERE at_h >= ? AND at_h < ? ORDER BY at_h, unit, node_a, node_b", (start_h, end_h)
        )
        return [Vote(unit, at_h, (one, other), rail, basis) for unit, at_h, one, other, rail, basis in rows]


def parts_of(vote: Vote, tokens: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The parts at both ends, each once: leaves of its rail, or units where the rail is not known; none if one lacks.

    `tokens` are those of each node: of its leaf on each rail, in order, and of its unit.
    """
    found: list[str] = []
    for node in vote.nodes:
        own = tokens.get(node, ())
        place = -1 if vote.rail is None else vote.rail
        if not own or place >= len(own) - 1:
            return ()
        found.append(own[place])
    return tuple(dict.fromkeys(found))
