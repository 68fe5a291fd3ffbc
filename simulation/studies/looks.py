"""How many false accusations a year of bundles makes, counted once each, whichever bundle made them.

Each cloud is a year of the `standard` scenario under the settings as shipped, and in clouds whose contexts differ by
week or whose workloads begin late; with planted pairs and without. A bundle is learnt after each window. `way` is how
accusations are made:

`within_budget`   as the provider publishes them: a new one only as far as those of earlier bundles leave room
`each_alone`      each bundle by itself, as if there had been none before it

`called`, `false`   distinct pairs that any bundle of the year called worse, and those of them that are not planted
`found`             planted pairs that the last bundle calls worse

Counts are sums over clouds. As in `study learning`, masks and messages are left out; noise is fresh.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from federation.protocol.bundle import PairJudgement
from provider_server.fleet.learning.findings import learn
from provider_server.fleet.learning.verdicts import Pair, PairFinding, within_budget
from simulation.run.engine_options import EngineKind
from simulation.run.engines import Kind
from simulation.studies import learning
from simulation.studies.attendance import InsecureRepeatable
from simulation.studies.study import Only, Quick, Seed, Seeds, Table, by_seed, chosen

NOTHING_PLANTED: Mapping[str, object] = MappingProxyType({"mismatch_share": 0.0, "mismatch_minimum": 0})
UNSTEADY: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "bursts": {"context_bursts": (0.02, 10.0)},
        "drift": {"context_drift": 0.7},
        "late_workloads": {"late_versions": 1},
    }
)
CELLS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "standard": {},
        **UNSTEADY,
        "null": NOTHING_PLANTED,
        **{f"null_{name}": {**changes, **NOTHING_PLANTED} for name, changes in UNSTEADY.items()},
    }
)


class LooksRow(msgspec.Struct, frozen=True):
    """Accusations in years of one kind of cloud; `false_share` is absent where nobody was accused."""

    name: str
    way: str
    called: int
    false: int
    false_share: float | None
    found: int
    planted: int
    seeds: int


class LooksRows(msgspec.Struct, frozen=True):
    """Of `study looks`."""

    rows: tuple[LooksRow, ...]


@dataclass(frozen=True)
class Accused:
    """The distinct pairs called worse in a year and by its last bundle, in one way, by numbers; the planted ones."""

    name: str
    way: str
    ever: frozenset[tuple[int, int]]
    at_last: frozenset[tuple[int, int]]
    planted: frozenset[tuple[int, int]]


def _year(quick: bool, cloud: tuple[str, int]) -> list[Accused]:  # noqa: FBT001 - what all years share
    """A year in both ways."""
    name, seed = cloud
    year = learning.live(msgspec.structs.replace(learning.shipped(quick=quick), **CELLS[name]), seed)
    made = learning.releases(year, year.cloud.scenario.epsilon, InsecureRepeatable(os.urandom(16)))
    alone, within = Accusations(), Accusations()
    numbers: dict[Pair, tuple[int, int]] = {}
    for number, newest in enumerate(made, 1):
        known = [lease for lease in year.leases if lease.start_h < newest.plan.end_hour]
        known_as = list(learning.numbered(year, learn(made[:number], known), 0))
        pairs = [pair for pair, _ in known_as]
        alone.add(pairs)
        within.add(within_budget(pairs, within.charges))
        numbers |= {pair.key: of for pair, of in known_as}

    def told(way: str, own: "Accusations") -> Accused:
        ever, last = (frozenset(numbers[key] for key in keys) for keys in (own.charges, own.at_last))
        return Accused(name, way, ever, last, year.cloud.mismatched)

    return [told("each_alone", alone), told("within_budget", within)]


class Accusations:
    """Those of one bundle after another, with what each cost when it was first made."""

    def __init__(self) -> None:
        self.charges: dict[Pair, float] = {}
        self.at_last: frozenset[Pair] = frozenset()

    def add(self, pairs: Sequence[PairFinding]) -> None:
        """Those of the next bundle."""
        worse = [pair for pair in pairs if pair.judgement is PairJudgement.WORSE]
        self.charges = {pair.key: 1.0 - pair.probability_worse for pair in worse} | self.charges
        self.at_last = frozenset(pair.key for pair in worse)


def summary(accused: Sequence[Accused]) -> LooksRows:
    """A row for each kind of cloud and way."""
    kinds = dict.fromkeys((one.name, one.way) for one in accused)
    return LooksRows(tuple(_row([one for one in accused if (one.name, one.way) == kind]) for kind in kinds))


def _row(own: Sequence[Accused]) -> LooksRow:
    called, false = sum(len(one.ever) for one in own), sum(len(one.ever - one.planted) for one in own)
    return LooksRow(
        own[0].name,
        own[0].way,
        called,
        false,
        false / called if called else None,
        sum(len(one.at_last & one.planted) for one in own),
        sum(len(one.planted) for one in own),
        len(own),
    )


def run(
    seed: Seed = 0,
    seeds: Seeds = 3,
    only: Only = None,
    engine: EngineKind = Kind.PROCESSES,
    *,
    quick: Quick = False,
) -> Table:
    """False accusations that a year of bundles makes, each counted once, with a budget over all bundles and without."""
    years = [(name, at) for name in chosen(only, CELLS) for at in range(seed, seed + seeds)]
    return Table(summary(by_seed(engine, _year, quick, years)))
