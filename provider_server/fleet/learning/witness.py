"""What pairs are learnt from, in one step with two implementations: `tenants`, for bundles, and `operators`.

    sums, units, what hazards explain ─┬─ tenants ───▶ Tables: tenants' sums alone
                                           └─ operators ─▶ Tables: those, less what the provider saw itself; and that

- *Tenants* are told of nothing that the provider saw of their jobs: their tables are the same whatever that was
  (`tests/provider_server/fleet/test_operators.py`).
- *Operators* are told of all of it exactly. A failure that was seen is taken off the sums, so none is used twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from federation.protocol.life_table import Floats, LifeTable
from provider_server.fleet.analysis.cap_correction import ALIKE, Shape, capped_mean
from provider_server.fleet.analysis.misfiled import misfiled
from provider_server.fleet.analysis.mismatch import Mismatches, find_mismatches
from provider_server.fleet.analysis.noisy_counts import LOG_FACTOR
from provider_server.fleet.analysis.own_failures import Leases
from provider_server.fleet.analysis.own_hazard import seen_share
from provider_server.fleet.analysis.version_sight import OwnPairs
from provider_server.fleet.learning.seen import Places, Seen

UNREPORTED = 0.1  # of what the provider saw, tenants may not have counted about so much
LEAST_HIDDEN = 0.05  # of any failures that are expected: what the provider sees is never all of a kind
UNHEARD = 10.0  # standard deviation over the count: nothing is left of what it says


@dataclass(frozen=True, eq=False)
class Known:
    """What is known by now of J units, beside what was counted.

    Hazards explain `by_band` (J, bands) failures, which the pair multiplies by `risk` (J,). The provider sees
    `seen_rate` (J,) times as many of the pair as of an average one, and `seen_over_told` (J,) is that over the same of
    what tenants count beyond it, of the pair that the totals have. Leases differ by `shape`.
    """

    by_band: Floats
    risk: Floats
    seen_rate: Floats
    seen_over_told: Floats
    shape: float

    @classmethod
    def first(cls, by_band: Floats) -> "Known":
        """Before anything is known of pairs."""
        ones = np.ones(len(by_band))
        return cls(by_band, ones, ones, ones, ALIKE)

    @property
    def explained(self) -> Floats:
        """What hazards explain of each unit (J,)."""
        return np.asarray(self.by_band.sum(axis=1), np.float64)


@dataclass(frozen=True, eq=False)
class Own:
    """What the provider saw itself: lease by lease, and by (workload, context).

    How many failures were `seen` and taken off sums, what hazards explain where the provider `looked`, of which `part`
    is seen, and how much is `hidden`.
    """

    leases: Leases
    seen: Floats
    looked: Floats
    part: float
    hidden: Floats

    def pairs(self, rate: Floats) -> OwnPairs:
        """What was seen of each pair, where pairs are seen at that rate (flat)."""
        witness = self.leases.witness(np.arange(self.seen.size), self.seen.size).given(rate, np.ones(len(rate)), None)
        taken = self.part * self.looked
        return OwnPairs.of(witness, self.seen, self.looked, self.part, self.hidden + taken, taken)

    def as_failures(self, found: Mismatches) -> Mismatches:
        """With what is expected in failures: hidden ones and those where the provider looked."""
        cells = found.workload, found.context
        expected = (found.told_rate * self.hidden[cells] + found.seen_rate * self.looked[cells]) / found.ratio
        others = found.expected_by_others * expected / found.expected
        return replace(found, expected=expected, expected_by_others=others)


@dataclass(frozen=True, eq=False)
class Tables:
    """What mismatches are found in.

    `told` are all failures that tenants counted, its exposure those that hazards explain; so many are expected to count
    in all (`counted`), and at each rate (`by_factor`). `alone`, with `alone_by_factor`, is what tenants alone counted,
    beyond the `own` ones of the provider; without these it is `told`.
    """

    told: LifeTable
    counted: Floats
    by_factor: Floats
    alone: LifeTable
    alone_by_factor: Floats
    own: Own | None = None

    def mismatches(self, kin: Sequence[Places], trials: LifeTable | None = None) -> Mismatches:
        """The pairs that fail more often than they should; `kin` are groups of pairs that may share a defect.

        `trials` are those of stand-ins, over the same workloads and contexts.
        """
        leases = self.own.leases if self.own else None
        found = find_mismatches(self.alone, self.alone_by_factor, leases, kin, trials)
        return self.own.as_failures(found) if self.own else found


Witness = Callable[[Seen, Known], Tables]


def tenants(seen: Seen, known: Known) -> Tables:
    """The sums of what tenants counted, and nothing else."""
    explained = known.explained
    table = without_misfiled(replace(seen.pairs, exposure_node_hours=seen.by_pair(explained)), seen.control)
    by_factor = _by_factor(seen, explained, seen.most, known.shape)
    counted = seen.by_pair(capped_mean(explained, seen.most, known.shape))
    return Tables(table, counted, by_factor, table, by_factor)


def operators(seen: Seen, known: Known) -> Tables:
    """The sums, less what the provider saw itself, and that, exactly; the sums alone where it saw nothing."""
    made = tenants(seen, known)
    if not seen.visible.any():
        return made
    sight = _Sight.of(seen, known)
    alone, by_factor = _unseen(seen, made.told, sight, known)
    hidden = seen.by_pair(_not_seen(seen, sight, known))
    taken, looked = seen.by_pair(np.minimum(sight.visible, seen.most)), seen.by_pair(sight.in_sight * seen.watched)
    own = Own(seen.leases(sight.in_sight), taken, looked, sight.part, hidden)
    return replace(made, alone=alone, alone_by_factor=by_factor, own=own)


def without_misfiled(table: LifeTable, control: LifeTable) -> LifeTable:
    """With so much noise that nothing is heard of pairs whose hardware failures are other errors in part."""
    deaf = misfiled(table, control) * (UNHEARD * table.events) ** 2
    return replace(table, noise_variance=table.noise_variance + deaf)


def _by_factor(seen: Seen, explained: Floats, most: Places, shape: Shape) -> Floats:
    """How many failures of each pair count (workloads, contexts, factors) at the rates `LOG_FACTOR`."""
    counted = (capped_mean(explained * factor, most, shape) for factor in np.exp(LOG_FACTOR))
    return np.stack([seen.by_pair(weight) for weight in counted], axis=-1)


# ---- what the provider saw itself ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Sight:
    """The `visible` failures of units, and what hazards explain: `in_sight` (one to one overall) and `hidden`.

    All (J,). How much is seen differs by size, age and level (`analysis.own_hazard`); `part` of all is.
    """

    visible: Floats
    in_sight: Floats
    hidden: Floats
    part: float

    @classmethod
    def of(cls, seen: Seen, known: Known) -> "_Sight":
        watched = seen.watched[:, None]
        rated = known.by_band * known.seen_rate[:, None] * watched
        in_sight = known.by_band * seen_share(rated, seen.visible, seen.level, seen.size)
        at_risk = float((known.by_band * known.risk[:, None] * watched).sum())
        part = float(seen.visible.sum()) / max(at_risk, np.finfo(float).tiny)
        hidden = np.maximum(known.by_band - part * in_sight, LEAST_HIDDEN * known.by_band)
        return cls(seen.visible.sum(axis=1), in_sight.sum(axis=1), hidden.sum(axis=1), part)


def _unseen(seen: Seen, table: LifeTable, sight: _Sight, known: Known) -> tuple[LifeTable, Floats]:
    """What tenants counted beyond what the provider saw itself, and how much of it is expected to count at each rate.

    In a unit with V own failures, F - V others count at most. A lease on which the provider saw more failures than
    expected is a bad one, and has more of the others, too: its gamma law has the shape k + V and the mean
    (k + V) / (k + what was expected to be seen).
    """
    hidden = _not_seen(seen, sight, known)
    taken = seen.by_pair(np.minimum(sight.visible, seen.most))
    exposure = np.maximum(table.exposure_node_hours, seen.by_pair(hidden))
    noise = table.noise_variance + UNREPORTED * taken
    told = replace(table, events=table.events - taken, exposure_node_hours=exposure, noise_variance=noise)
    left = np.maximum(seen.most - sight.visible, 0).astype(np.intp)
    if np.isinf(known.shape):
        return told, _by_factor(seen, hidden, left, known.shape)
    expected = np.where(seen.watched, sight.in_sight * known.seen_rate, 0.0)
    failures, expected = (_by_lease(seen, weight) for weight in (sight.visible, expected))
    shape = known.shape + failures
    return told, _by_factor(seen, hidden * shape / (known.shape + expected), left, shape)


def _not_seen(seen: Seen, sight: _Sight, known: Known) -> Floats:
    """What hazards explain of units (J,) beyond what was seen; of those not looked at, of all failures."""
    return np.where(seen.watched, sight.hidden, sight.hidden + sight.in_sight * known.seen_over_told)


def _by_lease(seen: Seen, weight: Floats) -> Floats:
    """The sum of `weight` (J,) over all units of each one's lease (J,)."""
    return np.asarray(np.bincount(seen.lease, weight)[seen.lease], np.float64)
