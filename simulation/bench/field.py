"""What size of cloud finds what: the standard cloud, one factor at a time away from where it was tuned.

Each cell is a cloud of its own kind, at epsilon 1 and with the visible share of failures that it names, learnt by the
provider's own learner as in `simulation.bench.learning`. Means over seeds, counts of all seeds together.

`worse_true`, `worse_false`  planted and other pairs that are called worse
`confounded_true`            planted pairs that are called confounded
`coverage_planted`           share of the 95% intervals of planted ratios that hold the planted factor
`coverage_hazards`           the same of hazards

Generator and learner share no constant: what a cell plants is in the scenario and here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from federation.protocol.bundle import PairJudgement
from federation.protocol.causes import CAUSES, Domain
from federation.protocol.noise import NoiseSampler
from provider_server.fleet.own_failures import OwnFailure
from provider_server.learning.findings import Findings, learn
from simulation.bench import learning
from simulation.bench.learning import Telling, Year
from simulation.cloud.profiles import Floats
from simulation.cloud.scenario import load
from simulation.cloud.visibility import visible
from simulation.run.engines import Engine

NODE_DAYS = 12_577  # a week in the standard cloud
RARE = 6.5 / 1000  # failures per node-day, as Meta reports
MISREPORTED = 0.2
CARELESS = 3  # the tenant that runs on one context alone
TWICE = 3  # every third workload is seen twice as often


@dataclass(frozen=True)
class Cell:
    """A kind of cloud: what its scenario changes, who tells what, how much is seen, epsilon, whether pairs borrow."""

    changes: Mapping[str, object]
    scenario: str = "standard"
    epsilon: float | None = 1.0
    visible: float = 0.5
    misreported: float = 0.0
    careless: bool = False
    unevenly_visible: bool = False
    shared: bool = True


BLOCKS: Mapping[str, object] = MappingProxyType({"mismatch_blocks": 6, "mismatch_share": 0.005, "mismatch_factor": 3.0})


def _rare(scenario: str) -> Mapping[str, object]:
    rates = load(scenario).failures_per_week
    return {"failures_per_week": MappingProxyType({**rates, Domain.INFRASTRUCTURE: NODE_DAYS * RARE})}


CELLS: Mapping[str, Callable[[], Cell]] = MappingProxyType(
    {
        "standard": lambda: Cell({}),
        "x3": lambda: Cell({"mismatch_factor": 3.0}),
        "x1_5": lambda: Cell({"mismatch_factor": 1.5}),
        "any_exposure": lambda: Cell({"mismatch_exposure": (0.0, 1e9)}),
        "frailty": lambda: Cell({"lease_frailty": 1 / 0.3}),
        "rate_6_5": lambda: Cell(_rare("standard")),
        "hyperscale": lambda: Cell({}, "hyperscale"),
        "hyperscale_x3": lambda: Cell({"mismatch_factor": 3.0}, "hyperscale"),
        "misreported_20": lambda: Cell({}, epsilon=None, misreported=MISREPORTED),
        "careless_tenant": lambda: Cell({"pinned_tenants": 1}, epsilon=None, careless=True),
        "null": lambda: Cell({"mismatch_share": 0.0, "mismatch_minimum": 0}),
        "visibility_by_workload": lambda: Cell({}, unevenly_visible=True),
        "visible_0": lambda: Cell({}, visible=0.0),
        "visible_30": lambda: Cell({}, visible=0.3),
        "x3_visible_0": lambda: Cell({"mismatch_factor": 3.0}, visible=0.0),
        "regional": lambda: Cell({}, "regional"),
        "blocks": lambda: Cell(BLOCKS, visible=0.0),
        "blocks_alone": lambda: Cell(BLOCKS, visible=0.0, shared=False),
    }
)


class FieldRow(msgspec.Struct, frozen=True):
    """One cell; AUROC and average precision are absent where nothing is planted, epsilon where there is no noise."""

    name: str
    epsilon: float | None
    visible: float
    auroc: float | None
    average_precision: float | None
    worse_true: int
    worse_false: int
    confounded_true: int
    coverage_planted: float | None
    coverage_hazards: float
    seeds: int


class FieldRows(msgspec.Struct, frozen=True):
    """Of `bench field`."""

    rows: tuple[FieldRow, ...]


@dataclass(frozen=True)
class Seen:
    """One cloud's findings beside its truth; scores are None where nothing is planted."""

    scores: tuple[float, float] | None
    worse_true: int
    worse_false: int
    confounded_true: int
    covered: tuple[bool, ...]
    hazards_covered: tuple[bool, ...]


def field(
    engine: Engine, names: Sequence[str], seeds: int, sampler: NoiseSampler, *, quick: bool
) -> Iterator[tuple[str, Seen]]:
    """One cloud after another, cell by cell."""
    clouds = [(name, seed) for name in names for seed in range(seeds)]
    for (name, _), seen in zip(clouds, engine.map(_one, (sampler, quick), clouds), strict=True):
        yield name, seen


def summary(names: Sequence[str], seen: Sequence[tuple[str, Seen]]) -> FieldRows:
    """A row for each cell."""
    return FieldRows(tuple(_row(name, [one for of, one in seen if of == name]) for name in names))


def lines(rows: FieldRows) -> Iterator[str]:
    """The rows for a person."""
    for row in rows.rows:
        scores = "" if row.auroc is None else f"AUROC {row.auroc:.3f}, AP {row.average_precision:.3f}, "
        found = f"worse {row.worse_true} true and {row.worse_false} false, confounded {row.confounded_true}"
        yield f"{row.name} (visible {row.visible:g}): {scores}{found}; {row.seeds} seeds"


def _row(name: str, seen: Sequence[Seen]) -> FieldRow:
    cell = CELLS[name]()
    scores = [one.scores for one in seen if one.scores is not None]
    covered = [held for one in seen for held in one.covered]
    return FieldRow(
        name,
        cell.epsilon,
        cell.visible,
        float(np.mean([auroc for auroc, _ in scores])) if scores else None,
        float(np.mean([precision for _, precision in scores])) if scores else None,
        sum(one.worse_true for one in seen),
        sum(one.worse_false for one in seen),
        sum(one.confounded_true for one in seen),
        float(np.mean(covered)) if covered else None,
        float(np.mean([held for one in seen for held in one.hazards_covered])),
        len(seen),
    )


def _one(shared: tuple[NoiseSampler, bool], cloud: tuple[str, int]) -> Seen:
    """A cloud, what is told and seen of it, and what is learnt."""
    (sampler, quick), (name, seed) = deepcopy(shared), cloud
    cell = CELLS[name]()
    scenario = msgspec.structs.replace(load(cell.scenario), **cell.changes)
    if quick:
        scenario = learning.small(scenario)
    year = learning.live(scenario, seed, _telling(cell, seed))
    features = learning.features(scenario) if cell.shared else None
    made = learning.releases(year, cell.epsilon, sampler)
    found = learn(made, year.leases, own_failures(year, cell, seed), features)
    return _judged(year, found)


def _telling(cell: Cell, seed: int) -> Telling:
    """What a tenant writes down as the reason of a failure."""
    rng = np.random.default_rng((seed, 1))
    script = next(slug for slug, cause in CAUSES.items() if cause.domain is Domain.SCRIPT)

    def told(tenant: int, reason: str) -> str:
        domain = CAUSES[reason].domain
        if cell.misreported and domain is Domain.INFRASTRUCTURE and rng.random() < cell.misreported:
            return script
        if cell.careless and tenant == CARELESS and domain is not Domain.INFRASTRUCTURE:
            return "connection_error"
        return reason

    return told


def own_failures(year: Year, cell: Cell, seed: int) -> list[OwnFailure]:
    """What the provider saw itself."""
    cloud = year.cloud
    more: Floats | None = None
    if cell.unevenly_visible:
        more = np.where(np.arange(cloud.scenario.workloads) % TWICE == 0, 2.0, 1.0)
    rows = np.flatnonzero(visible(cloud, cell.visible, np.random.default_rng((seed, 2)), more))
    of, at_h = cloud.failures.lease[rows].tolist(), cloud.failures.at_h[rows].tolist()
    return [OwnFailure(year.leases[row].lease, hour) for row, hour in zip(of, at_h, strict=True)]


def _judged(year: Year, findings: Findings) -> Seen:
    known = list(learning.numbered(year, findings, 0))
    pairs, planted = [pair for pair, _ in known], np.array([one in year.cloud.mismatched for _, one in known])
    said = np.array([pair.probability_worse for pair in pairs])
    worse = np.array([pair.judgement is PairJudgement.WORSE for pair in pairs])
    confounded = np.array([pair.judgement is PairJudgement.CONFOUNDED for pair in pairs])
    factor, truth = year.cloud.scenario.mismatch_factor, learning.true_rates(year)
    scores = None
    if planted.any():
        scores = float(roc_auc_score(planted, said)), float(average_precision_score(planted, said))
    return Seen(
        scores,
        int(planted[worse].sum()),
        int((~planted[worse]).sum()),
        int(planted[confounded].sum()),
        tuple(pair.low <= factor <= pair.high for pair, own in zip(pairs, planted, strict=True) if own),
        tuple(rate.low <= truth[rate.context_level, rate.band] <= rate.high for rate in findings.rates),
    )
