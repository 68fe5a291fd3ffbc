"""Failures that the provider sees itself: exactly, by lease and hour, and at no cost in privacy of tenants' counts.

An own failure is one that ended or hit a job and left a trace in the provider's own half: a hardware Xid, an
uncorrectable memory error, a lost link or node, a failed health check. Where it comes from is an adapter's business.
Several nodes of a lease that fail in one hour are one failure of its job. What tenants report contains these failures;
they are never added to it.

>>> lease = LeaseId(bytes(16))
>>> EventsOfLeases.of([OwnFailure(lease, 5.0), OwnFailure(lease, 7.5)]).between(lease, 5.0, 7.5)
1
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from crypto.ids import LeaseId

if TYPE_CHECKING:  # who records failures counts none: the store does without numpy
    from federation.protocol.life_table import Floats
    from provider_server.fleet.exposure import Slices

Hours = tuple[float, float]
ALWAYS: Sequence[Hours] = ((float("-inf"), float("inf")),)


class OwnFailure(NamedTuple):
    """A failure on a lease, in hours since the federation's start."""

    lease: LeaseId
    at_h: float


@dataclass(frozen=True)
class EventsOfLeases:
    """The hours of own failures by lease, in order."""

    hours: Mapping[LeaseId, tuple[float, ...]]

    @classmethod
    def of(cls, failures: Iterable[OwnFailure]) -> "EventsOfLeases":
        """From failures in any order."""
        found = defaultdict(list)
        for failure in failures:
            found[failure.lease].append(failure.at_h)
        return cls({lease: tuple(sorted(hours)) for lease, hours in found.items()})

    def by_band(self, slices: "Slices", edges: Sequence[float]) -> "Floats":
        """How many there were in each slice by age band (slices, bands); `edges` are those of the bands, in hours."""
        import numpy as np

        found = np.zeros(slices.node_hours.shape)
        for row, lease in enumerate(slices.leases):
            if lease.lease in self.hours:
                hours = np.clip(lease.start_h + np.array(edges), *slices.spans[row]).tolist()
                found[row] = [self.between(lease.lease, *band) for band in pairwise(hours)]
        return found

    def between(self, lease: LeaseId, start_h: float, end_h: float) -> int:
        """How many there were on a lease in [start_h, end_h)."""
        hours = self.hours.get(lease, ())
        return bisect_left(hours, end_h) - bisect_left(hours, start_h)


@dataclass(frozen=True)
class OwnRecord:
    """Own failures, and where the provider looked: in the hours `looked`, on the leases `placed` (None: on all)."""

    events: EventsOfLeases
    looked: tuple[Hours, ...]
    placed: frozenset[LeaseId] | None = None

    @classmethod
    def of(
        cls,
        failures: Iterable[OwnFailure],
        looked: Iterable[Hours] = ALWAYS,
        placed: frozenset[LeaseId] | None = None,
    ) -> "OwnRecord":
        """From failures and hours in any order; hours that touch or overlap are joined."""
        joined: list[Hours] = []
        for start, end in sorted(looked):
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((start, end))
        return cls(EventsOfLeases.of(failures), tuple(joined), placed)

    def looks_at(self, lease: LeaseId, start_h: float, end_h: float) -> bool:
        """Whether the provider looked at a lease in all of [start_h, end_h)."""
        if self.placed is not None and lease not in self.placed:
            return False
        return any(start <= start_h and end_h <= end for start, end in self.looked)
