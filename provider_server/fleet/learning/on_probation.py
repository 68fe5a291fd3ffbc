"""Nodes on probation: a repair that was told holds a node's level up while the node is likelier to fail than usual.

    repairs.json ─┐
    probation.json, or the table that is shipped ─┴─▶ OnProbation ─▶ least levels: new leases, hints, the fleet map

How much likelier is learnt (`analysis.probation`): by `pharoah-provider nodes hazard --events … --keep` from the
fleet's own outages, which `probation.json` in the home then holds, else from a public trace. The worst level that a
ratio reaches in `LEVEL_RATIOS` is the least that the node counts at; its telemetry may raise it further, and cannot
lower it.

Guarantees. Build-up itself, and what `nodes contexts` and `nodes hazard` learn of levels, knows nothing of probation:
what a level costs is estimated on drift alone, and probation by a covariate of its own. Silence is not taken for calm:
a node that has not been heard since is left as it is.

Not promised: what a repair was. A node that came back with the same fault, and one with a new board, are alike here.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from federation.base import json_files
from provider_server.fleet.analysis.probation import Probation, shipped
from provider_server.fleet.learning.hardware import Kept, Repair, load_repairs

STATE = "probation.json"
LEVEL_RATIOS = (2.0, 4.0, 8.0)  # from which a node counts at least at level 1, 2, 3: doublings


@dataclass(frozen=True)
class OnProbation:
    """When nodes came back, in hours since 1970, ascending; and the model that says what that means."""

    model: Probation
    back_h: Mapping[str, tuple[int, ...]]

    @classmethod
    def since(cls, repairs: Iterable[Repair], model: Probation) -> "OnProbation":
        """Of these repairs."""
        back: defaultdict[str, set[int]] = defaultdict(set)
        for one in repairs:
            back[one.node].add(one.from_hour)
        return cls(model, {node: tuple(sorted(hours)) for node, hours in back.items()})

    def level(self, node: str, at_h: float) -> int:
        """The least level of a node at a time; 0 once the model's last edge is past."""
        since = [at_h - hour for hour in self.back_h.get(node, ()) if hour <= at_h]
        on = bool(since) and since[-1] < self.model.edges_h[-1]
        return bisect_right(LEVEL_RATIOS, self.model.ratio(since[-1])) if on else 0

    def levels(self, at_h: float) -> dict[str, int]:
        """The nodes on probation at a time, and their least levels, all above 0."""
        found = ((node, self.level(node, at_h)) for node in self.back_h)
        return {node: level for node, level in found if level}

    def lasts_h(self) -> int:
        """Hours after a repair from which a node counts at the level of its telemetry alone."""
        bands = zip(self.model.edges_h, self.model.ratios[:-1], strict=True)
        return math.ceil(max((edge for edge, ratio in bands if ratio >= LEVEL_RATIOS[0]), default=0.0))

    def hold(self, kept: Kept, at_h: float) -> Kept:
        """With levels that are not below those of probation."""
        least = self.levels(at_h)
        raised = {node: max(level, kept.levels.get(node, 0)) for node, level in least.items()}
        return replace(kept, levels={**kept.levels, **raised})


def load(home: Path) -> OnProbation:
    """What the home knows; DecodeError for damage."""
    return OnProbation.since(load_repairs(home), load_model(home))


def load_model(home: Path) -> Probation:
    """The model of the fleet's own outages, or else the one that is shipped; DecodeError for damage."""
    return json_files.load(home / STATE, Probation, None) or shipped()


def keep_model(home: Path, model: Probation) -> None:
    """Puts the model into the home, whole or not at all."""
    json_files.keep(home / STATE, model)
