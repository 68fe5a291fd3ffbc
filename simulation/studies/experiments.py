"""How soon experiments on idle nodes find mismatches that nobody can see, and what choosing them well is worth.

Each day, every idle node runs a stand-in for a workload. The provider sees how often each fails, exactly, and no
failure of any tenant; the federation's rounds go on as shipped. Each fortnight it learns from both
(`provider_server.fleet.learning.findings`), and calls pairs worse as it does elsewhere. Clouds are those of `study
field`, with a twentieth of their nodes idle.

`weeks_to_find`      median over planted pairs; of those not found within the weeks that are looked at, infinite (null)
`found`, `false`     planted and other pairs that were called worse at any time
`average_precision`  after `weeks` weeks, and at each look in `precisions`
`node_hours`         what was spent on runs, of idle nodes alone

Idle nodes are worn as all others are; in the settings `…_worn` the scheduler leaves the most worn ones idle.
A faithful stand-in fails as the workload does. A *doubtful* one multiplies by half or twice the ratio, whichever; a
*useless* one never fails for a mismatch; an *odd* one is useless and has mismatches of its own, of other pairs.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

import msgspec
import numpy as np
import typer
from sklearn.metrics import average_precision_score

from federation.protocol.judgement import surest
from federation.protocol.life_table import Dimension, Floats, LifeTable
from federation.protocol.noise import NoiseSampler, SystemSampler
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.learning.findings import tried_pairs
from provider_server.fleet.release import Release
from simulation.run.engine_options import EngineKind
from simulation.run.engines import Kind
from simulation.studies import learning
from simulation.studies.choosing import Beliefs, Places, choose
from simulation.studies.field_cells import EVERY
from simulation.studies.learning import Year
from simulation.studies.study import Only, Quick, Seed, Seeds, Table, by_seed, chosen

IDLE = 0.05  # of the nodes
LOOK_WEEKS, WEEKS, EARLY_WEEKS = 2, 26, 13
DAY_H = 24.0
WEAR = (1.0, 2.0, 4.0)  # what a provider takes a level of wear to multiply before it knows; the clouds have 1, 2, 5
STAND_IN_SD = 0.25  # of the log of how often stand-ins fail by themselves


class StandIns(StrEnum):
    """How stand-ins fail where the workload has a mismatch."""

    NONE = "none"
    FAITHFUL = "faithful"
    DOUBTFUL = "doubtful"
    USELESS = "useless"
    ODD = "odd"


class Choice(StrEnum):
    """Which pair a node runs next."""

    INFORMATION = "information"
    RANDOM = "random"
    ROUND_ROBIN = "round_robin"
    LIKELIEST = "likeliest"  # to fail


@dataclass(frozen=True)
class Setting:
    """A kind of cloud, its stand-ins, and how they are chosen."""

    cell: str
    stand_ins: StandIns = StandIns.FAITHFUL
    choice: Choice = Choice.INFORMATION
    worn: bool = False


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        **{cell: Setting(f"{cell}_visible_0") for cell in ("regional", "rate_6_5")},
        **{f"{cell}_observed": Setting(f"{cell}_visible_0", StandIns.NONE) for cell in ("regional", "rate_6_5")},
        **{
            f"regional_{kind}": Setting("regional_visible_0", kind)
            for kind in (StandIns.DOUBTFUL, StandIns.USELESS, StandIns.ODD)
        },
        **{f"{cell}_worn": Setting(f"{cell}_visible_0", worn=True) for cell in ("regional", "rate_6_5")},
        **{
            f"regional_{how}": Setting("regional_visible_0", choice=how)
            for how in Choice
            if how is not Choice.INFORMATION
        },
    }
)


class ExperimentRow(msgspec.Struct, frozen=True):
    """One setting, over all clouds."""

    scenario: str
    weeks_to_find: float | None
    found: int
    planted: int
    false: int
    average_precision: float
    weeks: int
    precisions: tuple[float, ...]
    node_hours: float


class ExperimentRows(msgspec.Struct, frozen=True):
    """Of `study experiments`."""

    rows: tuple[ExperimentRow, ...]


@dataclass(frozen=True)
class Played:
    """One cloud: the week in which each planted pair was found, how many others, precision by look, node-hours."""

    found_in: tuple[float, ...]
    false: int
    precisions: tuple[float, ...]
    node_hours: float


@dataclass(frozen=True, eq=False)
class Laboratory:
    """The idle nodes of a cloud: what a run of each pair really fails at, and where nodes are."""

    year: Year
    ratio: Floats
    rate: Floats
    context: Places
    levels: Floats
    usual_wear: float

    @classmethod
    def of(cls, year: Year, setting: Setting, rng: np.random.Generator) -> "Laboratory":
        """Of a cloud, as the setting has it."""
        hazard, scenario = year.cloud.hazard, year.cloud.scenario
        worse = hazard.mismatch
        off = 2.0 ** rng.choice([-1.0, 1.0], worse.shape)
        ratio = {
            StandIns.NONE: np.ones_like(worse),
            StandIns.FAITHFUL: worse,
            StandIns.DOUBTFUL: np.where(worse > 1.0, worse * off, 1.0),
            StandIns.USELESS: np.ones_like(worse),
            StandIns.ODD: rng.permutation(worse.ravel()).reshape(worse.shape),
        }[setting.stand_ins]
        alone = hazard.base_per_node_hour * hazard.workload[:, None] * hazard.context[None, :]
        alone = alone * rng.lognormal(0.0, STAND_IN_SD, (len(hazard.workload), 1))
        alone = alone * float(hazard.effective_hours(np.array(DAY_H))) / DAY_H
        leases = year.cloud.leases
        node_hours = leases.nodes * (leases.end_h - leases.start_h)
        levels = np.bincount(leases.level, node_hours, scenario.buildup_levels)
        levels = levels / levels.sum()
        usual_wear = float(np.array(WEAR) @ levels)
        if setting.worn:
            above = np.append(np.cumsum(levels[::-1])[::-1][1:], 0.0)
            levels = np.clip((IDLE - above) / IDLE, 0.0, levels / IDLE)
        busy = node_hours.sum() / (scenario.weeks * HOURS_PER_WEEK)
        idle = round(IDLE / (1.0 - IDLE) * busy)
        return cls(year, ratio, alone, np.arange(idle) % scenario.contexts, levels / levels.sum(), usual_wear)

    def run(self, workload: Places, level: Places, rng: np.random.Generator) -> Places:
        """Failures of a day on each node (N,)."""
        cells = workload, self.context
        rate = self.rate[cells] * self.ratio[cells] * self.year.cloud.hazard.level[level]
        return np.asarray(rng.poisson(rate * DAY_H), np.intp)


def _of_seed(shared: tuple[NoiseSampler, int], work: tuple[str, int]) -> list[tuple[str, Played]]:
    (sampler, weeks), (name, seed) = deepcopy(shared), work
    setting = SETTINGS[name]
    cell = EVERY[setting.cell]()
    scenario = msgspec.structs.replace(cell.played(quick=False), weeks=weeks)
    year = learning.live(
        msgspec.structs.replace(scenario, windows=tuple(one for one in scenario.windows if one <= weeks) or (weeks,)),
        seed,
    )
    return [(name, _play(year, learning.releases(year, cell.epsilon, sampler), setting, seed))]


def _play(year: Year, made: Sequence[Release], setting: Setting, seed: int) -> Played:
    rng, scenario = np.random.default_rng((seed, 29)), year.cloud.scenario
    laboratory = Laboratory.of(year, setting, rng)
    shape = scenario.workloads, scenario.contexts
    names = [
        Dimension(kind, tuple(f"{kind} {place}" for place in range(size)))
        for kind, size in zip(("workload", "context"), shape, strict=True)
    ]
    failures, hours, spent = np.zeros(shape), np.zeros(shape), 0.0
    planted = year.cloud.hazard.mismatch > 1.0
    found_in, said, precisions = np.full(shape, np.inf), np.zeros(shape), []
    for week in range(0, scenario.weeks, LOOK_WEEKS):
        table = LifeTable(tuple(names), failures, hours, hours, np.zeros(shape))
        released = [one for one in made if one.plan.end_hour <= week * HOURS_PER_WEEK]
        pairs, found, rate = tried_pairs(released, year.leases, learning.features(scenario), table)
        known, cells = _of_workloads(pairs, Beliefs.of(found, rate))
        said[cells] = known.probability_worse
        now = np.zeros(shape, np.bool_)
        now[tuple(part[surest(known.probability_worse)] for part in cells)] = True
        found_in = np.where(now & np.isinf(found_in), week, found_in)
        precisions.append(float(average_precision_score(planted.ravel(), said.ravel())) if planted.any() else 0.0)
        if setting.stand_ins is StandIns.NONE:
            continue
        for _ in range(7 * LOOK_WEEKS):
            level = rng.choice(len(laboratory.levels), len(laboratory.context), p=laboratory.levels)
            weight = np.array(WEAR)[level] / laboratory.usual_wear
            allowed = [np.flatnonzero(cells[1] == context) for context in laboratory.context]
            taken = _chosen(setting.choice, known, hours[cells], allowed, weight, rng)
            failed, workload = np.zeros(len(known.rate)), cells[0][taken]
            counted = laboratory.run(workload, level, rng)
            np.add.at(failed, taken, counted)
            ran = np.bincount(taken, weight * DAY_H, len(known.rate)).astype(np.float64)
            np.add.at(failures, cells, failed)
            np.add.at(hours, cells, ran)
            spent += DAY_H * len(level)
            known = known.after(failed, ran)
    return Played(
        tuple(found_in[planted].tolist()), int(np.isfinite(found_in[~planted]).sum()), tuple(precisions), spent
    )


def _of_workloads(pairs: Sequence[tuple[str, str]], known: Beliefs) -> tuple[Beliefs, tuple[Places, Places]]:
    """The pairs of single workloads, and where they stand in tables of all."""
    kept = [place for place, (workload, _) in enumerate(pairs) if workload.startswith("workload ")]
    numbers = np.array([[int(name.rpartition(" ")[2]) for name in pairs[place]] for place in kept], np.intp)
    return known.only(np.array(kept, np.intp)), (numbers[:, 0], numbers[:, 1])


def _chosen(
    choice: Choice, known: Beliefs, hours: Floats, allowed: Sequence[Places], weight: Floats, rng: np.random.Generator
) -> Places:
    if choice is Choice.INFORMATION:
        return choose(known, allowed, weight, DAY_H)
    if choice is Choice.RANDOM:
        return np.array([rng.choice(pairs) for pairs in allowed], np.intp)
    hours, taken = hours.copy(), []
    for pairs in allowed:
        score = (
            -hours[pairs]
            if choice is Choice.ROUND_ROBIN
            else (known.mean_ratio * known.rate)[pairs] / (1.0 + hours[pairs] / DAY_H)
        )
        taken.append(int(pairs[np.argmax(score)]))
        hours[taken[-1]] += DAY_H
    return np.array(taken, np.intp)


def _row(name: str, played: Sequence[Played], look: int) -> ExperimentRow:
    weeks = np.array([week for one in played for week in one.found_in])
    median = float(np.median(weeks))
    by_look = np.mean([one.precisions for one in played], axis=0)
    look = min(look, len(by_look) - 1)
    return ExperimentRow(
        name,
        median if np.isfinite(median) else None,
        int(np.isfinite(weeks).sum()),
        len(weeks),
        sum(one.false for one in played),
        float(by_look[look]),
        LOOK_WEEKS * look,
        tuple(by_look.tolist()),
        float(np.mean([one.node_hours for one in played])),
    )


def run(
    seed: Seed = 0,
    seeds: Seeds = 10,
    only: Only = None,
    engine: EngineKind = Kind.PROCESSES,
    weeks: Annotated[int, typer.Option(min=LOOK_WEEKS, help="How long to go on.")] = WEEKS,
    *,
    quick: Quick = False,
) -> Table:
    """How soon experiments on idle nodes find mismatches that nobody sees."""
    names = chosen(only, SETTINGS)
    weeks, seeds = (2 * LOOK_WEEKS, 1) if quick else (weeks, seeds)
    work = [(name, one) for one in range(seed, seed + seeds) for name in names]
    played = by_seed(engine, _of_seed, (SystemSampler(), weeks), work)
    of_name = {name: [one for own, one in played if own == name] for name in names}
    look = (EARLY_WEEKS + LOOK_WEEKS) // LOOK_WEEKS
    return Table(ExperimentRows(tuple(_row(name, own, look) for name, own in of_name.items())))
