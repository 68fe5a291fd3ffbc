"""Which pairs may have a defect in common: by their parents in the ladder, and by features of their contexts.

A group is the rows of a workload, or of all versions of its archetype, on one context or on all that share a feature
(a driver, a firmware, a hall), as the provider's own inventory has it. Tenants are asked nothing for it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import LifeTable
from provider_server.fleet.analysis.contexts import ContextMap, Look

Places = NDArray[np.intp]
Features = Mapping[str, Sequence[str]]  # of contexts, by token
NO_FEATURES: Features = MappingProxyType({})


def groups(pairs: LifeTable, archetypes: Mapping[str, str], features: Features) -> list[Places]:
    """Groups of flat cells of a table over (workload, context); `archetypes` has that of each sub-archetype."""
    workloads, contexts = pairs.levels("workload"), pairs.levels("context")
    rows = _sets([row, archetypes.get(row, row)] for row in workloads)
    columns = _sets([column, *features.get(column, ())] for column in contexts)
    return [
        np.add.outer(np.array(own) * len(contexts), np.array(places)).ravel()
        for own, places in product(rows, columns)
        if len(own) * len(places) > 1
    ]


def features_of(known: ContextMap) -> dict[int, tuple[str, ...]]:
    """The features in which all nodes of a context agree, by its number."""
    return {
        context.number: tuple(f"{look.feature} {look.levels[0]}" for look in looks if _agree(look))
        for context, looks in zip(known.contexts, known.looks, strict=True)
    }


def _agree(look: Look) -> bool:
    return look.low is None and len(look.levels) == 1 and look.levels[0] != ""


def _sets(members: Iterable[Iterable[str]]) -> list[tuple[int, ...]]:
    """The places of the members of each set, each set of places once; members come as the names of their sets."""
    found = defaultdict[str, dict[int, None]](dict)
    for place, names in enumerate(members):
        for name in names:
            found[name][place] = None
    return list(dict.fromkeys(tuple(places) for places in found.values()))
