"""Which versions of archetypes were split, beside which truly differ."""

from collections.abc import Iterable, Mapping
from itertools import combinations

import msgspec
import numpy as np

from provider_server.fleet.analysis.versions import Partition
from simulation.cloud.profiles import Floats

FAR = 1.5


class VersionsFound(msgspec.Struct, frozen=True):
    """Pairs of versions of one archetype whose rates are `alike`, `differ`, or differ by `FAR` times or more (`far`).

    Beside each how many were split; and of archetypes without any difference, `same`.
    """

    alike: int
    alike_split: int
    differ: int
    differ_split: int
    far: int
    far_split: int
    same: int
    same_split: int


def found_versions(partitions: Mapping[str, Partition], rates: Floats) -> VersionsFound:
    """Of groups of the workloads whose true `rates` (workloads,) these are."""
    counts = dict.fromkeys(VersionsFound.__struct_fields__, 0)
    for found in partitions.values():
        log_rate = {version: float(np.log(rates[_number(version)])) for version in found.versions}
        group = {version: place for place, one in enumerate(found.groups) for version in one.versions}
        if len(log_rate) > 1 and np.ptp([*log_rate.values()]) < 1e-9:
            _count(counts, "same", split=len(found.groups) > 1)
        for one, other in combinations(found.versions, 2):
            apart, split = abs(log_rate[one] - log_rate[other]), group[one] != group[other]
            _count(counts, "alike" if apart < 1e-9 else "differ", split=split)
            if apart > np.log(FAR):
                _count(counts, "far", split=split)
    return VersionsFound(**counts)


def together(found: Iterable[VersionsFound]) -> VersionsFound:
    """Of all clouds."""
    every = list(found)
    return VersionsFound(*(sum(getattr(one, name) for one in every) for name in VersionsFound.__struct_fields__))


def _count(counts: dict[str, int], kind: str, *, split: bool) -> None:
    counts[kind] += 1
    counts[f"{kind}_split"] += split


def _number(token: str) -> int:
    return int(token.rpartition(" ")[2])
