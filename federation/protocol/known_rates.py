"""What other fleets have published of how often machines fail: a prior for both sides, until a fleet has seen its own.

    known_rates.toml ─ rows ─▶ analysis.public_rates (a fleet is a level) ─▶ its [experience] ─▶ Experience
    Experience + own failures and node-hours ─ after ─▶ Experience, and what share of it is still the public's

An `Experience` is a gamma law: as if so many failures had been seen in so many node-hours. That of the public is worth
about two failures, since fleets differ; so ten of one's own outweigh it, and no rate rests on it for long. Failures
come together, so one's own count for less than if they came one by one: by the factor `together` of the table.

Not promised: that a fleet is like those which publish. Rows are of training on NVIDIA's GPUs in large fleets; nodes are
taken to have `GPUS_A_NODE` GPUs. What GPU generation a fleet has is in the rows and not in the prior: left out one by
one, fleets are foretold no better with it. Bounds of few failures are approximate (Wilson and Hilferty, PNAS 17, 1931).

    >>> first = experience()
    >>> first.after(0, 0.0) == first
    True
    >>> first.after(30, 1e6).public_share < 0.05
    True
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Literal

import msgspec

from federation.protocol.toml_tables import convert, loads, shipped

FILE = "known_rates.toml"
GPUS_A_NODE = 8
BY_THE_PUBLIC = "by public experience, not yet by yours"
_Z = 1.959964

Class = Literal["infrastructure", "gpu", "memory", "network", "host"]


class KnownRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"cause": "class"}):
    """Failures of a class in the GPU-hours of one published fleet; `generation` is "" where no source says."""

    fleet: str
    generation: str
    cause: Class
    failures: float
    gpu_hours: float
    years: str
    source: str
    note: str

    def __post_init__(self) -> None:
        if not (self.failures > 0 and self.gpu_hours > 0 and self.source):
            raise ValueError("failures and gpu_hours must be positive, and a source named")

    @property
    def node_hours(self) -> float:
        """The exposure in hours of nodes with `GPUS_A_NODE` GPUs."""
        return self.gpu_hours / GPUS_A_NODE


class Experience(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A gamma law of failures per node-hour; `own_node_hours` are what the reader's own count for."""

    failures: float
    node_hours: float
    own_node_hours: float = 0.0

    @property
    def rate(self) -> float:
        """Its mean, in failures per node-hour."""
        return self.failures / self.node_hours

    @property
    def public_share(self) -> float:
        """What share of the rate rests on other fleets."""
        return 1.0 - self.own_node_hours / self.node_hours

    def interval(self) -> tuple[float, float]:
        """The central 95%."""
        low, high = (self._quantile(z) for z in (-_Z, _Z))
        return low, high

    def share_behind(self, low: float, high: float) -> float:
        """What share of a rate with this 95% interval may rest on it: of the precision of its logarithm, at most 1."""
        own_low, own_high = self.interval()
        return min(1.0, (math.log(high / low) / math.log(own_high / own_low)) ** 2) if low > 0 else 1.0

    def after(self, failures: float, node_hours: float) -> "Experience":
        """With one's own failures in so many node-hours."""
        count, hours = failures / _table().together, node_hours / _table().together
        return Experience(self.failures + count, self.node_hours + hours, self.own_node_hours + hours)

    def _quantile(self, z: float) -> float:
        root = 1.0 - 1.0 / (9.0 * self.failures) + z / (3.0 * math.sqrt(self.failures))
        return self.rate * max(root, 0.0) ** 3


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    together: float
    rate: tuple[KnownRate, ...]
    experience: dict[Class, Experience]


@cache
def _table() -> _Table:
    return convert(loads(shipped("federation.protocol", FILE), FILE), _Table, FILE)


def known_rates() -> Sequence[KnownRate]:
    """All rows."""
    return _table().rate


def experience(cause: Class = "infrastructure") -> Experience:
    """What a fleet that has seen nothing yet may expect."""
    return _table().experience[cause]
