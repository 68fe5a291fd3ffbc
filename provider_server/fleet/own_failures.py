"""Failures that the provider sees itself: exactly, by lease and hour, and at no cost in privacy of tenants' counts.

An own failure is one that ended or hit a job and left a trace in the provider's own half: a hardware Xid, an
uncorrectable memory error, a lost link or node, a failed health check. Where it comes from is an adapter's business.
What tenants report contains these failures; they are never added to it.

>>> lease = LeaseId(bytes(16))
>>> EventsOfLeases.of([OwnFailure(lease, 5.0), OwnFailure(lease, 7.5)]).between(lease, 5.0, 7.5)
1
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from crypto.ids import LeaseId


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

    def between(self, lease: LeaseId, start_h: float, end_h: float) -> int:
        """How many there were on a lease in [start_h, end_h)."""
        hours = self.hours.get(lease, ())
        return bisect_left(hours, end_h) - bisect_left(hours, start_h)
