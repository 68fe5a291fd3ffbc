"""What size of cloud finds what: the standard cloud, one factor at a time away from where it was tuned.

Each cell (`simulation.studies.field_cells`) is a cloud of its own kind, at epsilon 1 unless it says otherwise and with
the visible share of failures that it names, learnt by the provider's own learner as in `simulation.studies.learning`.
Means over seeds, counts of all seeds together.

`oracle_precision`           the same of an oracle that sees the same releases (`simulation.studies.field_oracle`)
`worse_true`, `worse_false`  planted and other pairs that are called worse
`confounded_true`            planted pairs that are called confounded
`planted`                    how many pairs are planted
`reliability`, `decisions`   whether the probability of being worse can be acted upon (`field_decisions`)
`coverage_planted`           share of the 95% intervals of planted ratios that hold the planted factor
`coverage_others`            the same of all other pairs, whose ratio is 1
`width_planted`, `width_others`  how many times the lower end of these intervals is in the upper, the median
`coverage_hazards`           the same of hazards
`versions`                   which versions of archetypes were split

Where a share of failures is visible to the provider, what its operators see is judged: tenants' sums and its own
failures, exactly. Where nothing is, a bundle is, from sums alone. Bundles of the other cells say that too: whatever is
visible, they are those of the cells `…_visible_0`. Generator and learner share no constant: what a cell plants is in
the scenario and here.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, groupby
from typing import Annotated

import msgspec
import numpy as np
import typer
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from federation.protocol.bundle import PairJudgement
from federation.protocol.noise import NoiseSampler, SystemSampler
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.analysis.mismatch import WORSE_FROM
from provider_server.fleet.analysis.versions import Partition
from provider_server.fleet.learning.findings import Findings, learn
from provider_server.fleet.own_failures import OwnFailure, OwnRecord
from provider_server.fleet.release import Release
from simulation.cloud.profiles import Floats
from simulation.cloud.visibility import visible
from simulation.run.engine_options import EngineKind
from simulation.run.engines import Kind
from simulation.studies import attendance, learning
from simulation.studies.field_cells import CELLS, CORNERS, EVERY, SIZED, Cell
from simulation.studies.field_decisions import Decision, Reliability, decisions, reliability
from simulation.studies.field_oracle import log_likelihood_ratios
from simulation.studies.learning import Year
from simulation.studies.study import Only, Quick, Seed, Seeds, Table, by_seed, chosen

# ---- versions --------------------------------------------------------------------------------------------------------


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


TWICE = 3  # every third workload is seen twice as often
CORNER_SEEDS = 3


class Readers(StrEnum):
    """Who sees the findings that are judged."""

    OPERATORS = "operators"
    TENANTS = "tenants"

    @classmethod
    def of(cls, cell: Cell) -> "Readers":
        """Operators see more than tenants only where something is visible."""
        return cls.OPERATORS if cell.visible > 0.0 else cls.TENANTS


class FieldRow(msgspec.Struct, frozen=True):
    """One cell; AUROC and average precision are absent where nothing is planted, epsilon where there is no noise.

    The oracle is absent where it would have to know more than rates and noise.
    """

    name: str
    epsilon: float | None
    visible: float
    readers: str
    auroc: float | None
    average_precision: float | None
    oracle_precision: float | None
    planted: int
    worse_true: int
    worse_false: int
    confounded_true: int
    coverage_planted: float | None
    coverage_others: float
    width_planted: float | None
    width_others: float
    coverage_hazards: float
    seeds: int
    reliability: tuple[Reliability, ...]
    decisions: tuple[Decision, ...]
    versions: VersionsFound


class FieldRows(msgspec.Struct, frozen=True):
    """Of `study field`."""

    rows: tuple[FieldRow, ...]


@dataclass(frozen=True)
class Seen:
    """One cloud's findings beside its truth; scores are None where nothing is planted, `oracle` where there is none.

    Of all pairs are their probabilities, `said`, whether they are `planted`, or `worse` than `WORSE_FROM`, whether
    their intervals `covered` the truth, and the `widths` of these.
    """

    scores: tuple[float, float] | None
    oracle: float | None
    worse_true: int
    worse_false: int
    confounded_true: int
    covered: NDArray[np.bool_]
    widths: Floats
    planted: NDArray[np.bool_]
    hazards_covered: tuple[bool, ...]
    said: Floats
    worse: NDArray[np.bool_]
    versions: VersionsFound


def years(names: Sequence[str], seeds: Sequence[int]) -> list[tuple[tuple[str, ...], int]]:
    """The years that are simulated: cells that differ only in what is told and seen share one.

    Of corners there are `CORNER_SEEDS` at most.
    """
    cells = [(name, EVERY[name]()) for name in names]
    groups: list[list[str]] = []
    for _, alike in groupby(sorted(cells, key=_year_of), key=_year_of):
        groups.append([name for name, _ in alike])
    each = [(_played(group, place), seed) for place, seed in enumerate(seeds) for group in groups]
    return [year for year in each if year[0]]


def _played(names: Sequence[str], place: int) -> tuple[str, ...]:
    """Those of which there is a cloud of the seed at that place."""
    return tuple(name for name in names if name not in CORNERS or place < CORNER_SEEDS)


def _year_of(named: tuple[str, Cell]) -> str:
    """What tells years apart."""
    _, cell = named
    return f"{cell.scenario} {sorted((name, str(value)) for name, value in cell.changes.items())}"


def summary(names: Sequence[str], seen: Sequence[tuple[str, Seen]]) -> FieldRows:
    """A row for each cell."""
    return FieldRows(tuple(_row(name, [one for of, one in seen if of == name]) for name in names))


def _row(name: str, seen: Sequence[Seen]) -> FieldRow:
    cell = EVERY[name]()
    scores = [one.scores for one in seen if one.scores is not None]
    columns = ("said", "worse", "planted", "covered", "widths")
    said, worse, planted, covered, widths = (np.concatenate([getattr(one, name) for one in seen]) for name in columns)
    return FieldRow(
        name,
        cell.epsilon,
        cell.visible,
        Readers.of(cell),
        float(np.mean([auroc for auroc, _ in scores])) if scores else None,
        float(np.mean([precision for _, precision in scores])) if scores else None,
        float(np.mean(foreseen)) if (foreseen := [one.oracle for one in seen if one.oracle is not None]) else None,
        int(planted.sum()),
        sum(one.worse_true for one in seen),
        sum(one.worse_false for one in seen),
        sum(one.confounded_true for one in seen),
        float(np.mean(covered[planted])) if planted.any() else None,
        float(np.mean(covered[~planted])),
        float(np.median(widths[planted])) if planted.any() else None,
        float(np.median(widths[~planted])),
        float(np.mean([held for one in seen for held in one.hazards_covered])),
        len(seen),
        tuple(reliability(said, worse)),
        tuple(decisions(said, worse)),
        together(one.versions for one in seen),
    )


def _of_year(shared: tuple[NoiseSampler, bool], work: tuple[tuple[str, ...], int]) -> list[tuple[str, Seen]]:
    """A simulated year, and what is told, seen and learnt of it in each of these cells."""
    (sampler, quick), (names, seed) = deepcopy(shared), work
    year = learning.live(EVERY[names[0]]().played(quick=quick), seed)
    found = []
    for name in names:
        cell = EVERY[name]()
        made = _released(year, cell, seed, sampler)
        found.append((name, _judged(year, cell, made, _learnt(year, cell, made, seed))))
    return found


def _released(year: Year, cell: Cell, seed: int, sampler: NoiseSampler) -> list[Release]:
    """What is released of a year where tenants answer and tell as the cell says, as long as it is looked at."""
    telling = cell.telling(seed)
    if cell.answering < 1.0:
        failures = attendance.failures_of(year, telling or learning.as_it_was)
        made = attendance.releases(year, failures, attendance.present(year, cell.answering, seed), sampler)
    else:
        made = learning.releases(learning.retold(year, telling) if telling else year, cell.epsilon, sampler)
    return [one for one in made if cell.weeks is None or one.plan.end_hour <= cell.weeks * HOURS_PER_WEEK]


def _learnt(year: Year, cell: Cell, made: Sequence[Release], seed: int) -> Findings:
    """What is learnt of that, and of what the provider sees as the cell says."""
    own = OwnRecord.of(own_failures(year, cell, seed)) if Readers.of(cell) is Readers.OPERATORS else None
    features = learning.features(year.cloud.scenario) if cell.shared else None
    return learn(made, year.leases, own, features)


def own_failures(year: Year, cell: Cell, seed: int) -> list[OwnFailure]:
    """What the provider saw itself."""
    cloud = year.cloud
    more: Floats | None = None
    if cell.unevenly_visible:
        more = np.where(np.arange(cloud.scenario.workloads) % TWICE == 0, 2.0, 1.0)
    rows = np.flatnonzero(visible(cloud, cell.visible, np.random.default_rng((seed, 2)), more))
    if cell.weeks is not None:
        rows = rows[cloud.failures.at_h[rows] < cell.weeks * HOURS_PER_WEEK]
    of, at_h = cloud.failures.lease[rows].tolist(), cloud.failures.at_h[rows].tolist()
    return [OwnFailure(year.leases[row].lease, hour) for row, hour in zip(of, at_h, strict=True)]


def _judged(year: Year, cell: Cell, made: Sequence[Release], findings: Findings) -> Seen:
    known = list(learning.numbered(year, findings, 0))
    pairs, planted = [pair for pair, _ in known], np.array([one in year.cloud.mismatched for _, one in known])
    said = np.array([pair.probability_worse for pair in pairs])
    worse = np.array([pair.judgement is PairJudgement.WORSE for pair in pairs])
    confounded = np.array([pair.judgement is PairJudgement.CONFOUNDED for pair in pairs])
    factor, truth = year.cloud.scenario.mismatch_factor, learning.true_rates(year)
    low, high = np.array([(pair.low, pair.high) for pair in pairs]).T
    ratio = np.where(planted, factor, 1.0)
    scores = None
    if planted.any():
        scores = float(roc_auc_score(planted, said)), float(average_precision_score(planted, said))
    oracle = None
    if planted.any() and cell.is_foreseen:
        ratios = log_likelihood_ratios(year, made, [one for _, one in known])
        oracle = float(average_precision_score(planted, ratios))
    return Seen(
        scores,
        oracle,
        int(planted[worse].sum()),
        int((~planted[worse]).sum()),
        int(planted[confounded].sum()),
        (low <= ratio) & (ratio <= high),
        high / low,
        planted,
        tuple(rate.low <= truth[rate.context_level, rate.band] <= rate.high for rate in findings.rates),
        said,
        planted & (factor > np.exp(WORSE_FROM)),
        found_versions(findings.versions, year.cloud.hazard.workload),
    )


def run(
    seed: Seed = 0,
    seeds: Seeds = 20,
    only: Only = None,
    engine: EngineKind = Kind.PROCESSES,
    *,
    corners: Annotated[
        bool, typer.Option("--corners", help="Besides, 12 clouds with several factors changed at once; 3 of each.")
    ] = False,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Besides, three sizes of cloud with rare failures at several epsilons.")
    ] = False,
    quick: Quick = False,
) -> Table:
    """Accuracy of findings from other clouds than the standard one: rarer failures, smaller effects, bad reports."""
    names = chosen(only, EVERY) if only else tuple(CELLS)
    names = tuple(dict.fromkeys((*names, *(CORNERS if corners else ()), *(SIZED if sizes else ()))))
    shared = SystemSampler(), quick
    seen = by_seed(engine, _of_year, shared, years(names, range(seed, seed + seeds)))
    return Table(summary(names, seen))
