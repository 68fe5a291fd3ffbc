"""What a marginal counts: failures, or one of the optional subjects, each with its dimensions and its sensitivity.

A unit (a lease in a window) adds at most `failures_per_unit` to the cells of a marginal of failures. To an optional one
it adds at most one to each of at most `cells` cells, its own and those of others that are held against it.

To count something else, add a row to `OPTIONAL`, a source of observations to `tenant_client.rounds.observed`, and a
share to the settings of the provider; policies refuse plans with dimensions that they do not list.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

TOKEN_DIMENSIONS = frozenset({"workload", "context", "context_level", "part"})


class Subject(StrEnum):
    """What a marginal counts."""

    FAILURES = "failures"
    VOTES = "votes"  # ends of a pair of nodes between which a collective was slow or hung; half a vote each
    SPEED = "speed"  # leases in windows whose steps were watched, by whether they were slow
    GOODPUT = "goodput"  # leases in windows with steps, by the share of their time that training kept
    WARNINGS = "warnings"  # leases in windows that failed or were warned of, by the warning and whether they failed


SLOW_PACE, USUAL_PACE = "slow", "usual"
GOODPUT_EDGES = (0.0, 0.5, 0.8, 0.9, 0.95)  # each band begins with its edge, and has it as its name
GOODPUT_BANDS = tuple(f"{edge:g}" for edge in GOODPUT_EDGES)
NO_WARNING, HINT, CHECK = "none", "hint", "check"
FAILED, FINE = "failed", "fine"
CLAIM = "claim"  # of no table: its levels say what the provider claims of its warnings (`federation.protocol.warnings`)


@dataclass(frozen=True)
class OptionalSubject:
    """The dimensions of its table, in how many cells a unit changes the count by one, and levels that are public.

    Dimensions without public levels are tokens.
    """

    dimensions: tuple[str, ...]
    cells: int
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


OPTIONAL: Mapping[Subject, OptionalSubject] = MappingProxyType(
    {
        Subject.VOTES: OptionalSubject(("part",), 2),
        Subject.SPEED: OptionalSubject(("context", "pace"), 3, {"pace": (SLOW_PACE, USUAL_PACE)}),
        Subject.GOODPUT: OptionalSubject(("context", "goodput"), 1, {"goodput": GOODPUT_BANDS}),
        Subject.WARNINGS: OptionalSubject(
            ("warning", "outcome"), 1, {"warning": (NO_WARNING, HINT, CHECK), "outcome": (FAILED, FINE)}
        ),
    }
)
# Dimensions that describe what was observed, and not the lease: nobody but the tenant knows the level.
OBSERVED_LEVELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: levels for one in OPTIONAL.values() for name, levels in one.levels.items()}
)


def most_added(counts: Subject, failures_per_unit: int) -> tuple[int, int]:
    """What a unit adds at most: to one cell of a marginal that counts this, and to all of its cells together."""
    return (failures_per_unit, failures_per_unit) if counts is Subject.FAILURES else (1, OPTIONAL[counts].cells)


def norms(counts: Subject, failures_per_unit: int) -> tuple[float, float]:
    """By how much a unit moves a marginal that counts this, at most: in the L1 and in the L2 norm, in counts.

    >>> norms(Subject.FAILURES, 1), norms(Subject.VOTES, 1)
    ((1.0, 1.0), (2.0, 1.4142135623730951))
    """
    cell, together = most_added(counts, failures_per_unit)
    return float(together), math.sqrt(cell * together)
