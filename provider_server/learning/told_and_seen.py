"""What tenants counted beyond what the provider saw itself, and what it saw: the two witnesses of versions' rates."""

from dataclasses import dataclass

import numpy as np

from federation.protocol.life_table import Floats, LifeTable
from provider_server.analysis.mismatch import OwnSight
from provider_server.analysis.noisy_counts import NoisySight
from provider_server.analysis.version_sight import OwnPairs


@dataclass(frozen=True, eq=False)
class ToldAndSeen:
    """The table of what tenants counted beyond it, `by_factor` how much of that counts at each rate, and what was seen.

    All else (workloads, contexts): how many failures were `seen` and taken off counts, what hazards explain where the
    provider `looked`, of which `part` is seen, what tenants would count if none were taken off, `countable`, and how
    much of it is `taken`.
    """

    table: LifeTable
    by_factor: Floats
    sight: OwnSight
    seen: Floats
    looked: Floats
    part: float
    countable: Floats
    taken: Floats

    @classmethod
    def exact(
        cls, left: LifeTable, by_factor: Floats, sight: OwnSight, seen: Floats, looked: Floats, part: float
    ) -> "ToldAndSeen | None":
        """Where what was seen is taken off job-weeks; `left` exposes what was not. None where nothing was seen."""
        taken = part * looked
        if part == 0.0:
            return None
        return cls(left, by_factor, sight, seen, looked, part, left.exposure_node_hours + taken, taken)

    @classmethod
    def under_noise(
        cls, sight: NoisySight, left: LifeTable, table: LifeTable, by_factor: Floats
    ) -> "ToldAndSeen | None":
        """Where a share of what was seen is taken off the counts of `table`. None where too little was seen or told."""
        seen, looked = (column.reshape(table.shape) for column in (sight.counts, sight.exposure))
        if min(float(seen.sum()), float(looked.sum()), float(table.events.sum())) <= 0.0:
            return None
        off = table.events - left.events
        part = float(seen.sum() / table.events.sum() * table.exposure_node_hours.sum() / looked.sum())
        taken = float(off.sum() / seen.sum()) * part * looked
        return cls(left, by_factor, sight, off, looked, part, table.exposure_node_hours, taken)

    def own_pairs(self, rate: Floats) -> OwnPairs:
        """What was seen of each pair, where pairs are seen at that rate (flat)."""
        witness = self.sight.witness(np.arange(self.seen.size), self.seen.size).given(rate)
        return OwnPairs.of(witness, self.seen, self.looked, self.part, self.countable, self.taken)
