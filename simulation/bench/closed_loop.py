"""What remains known of mismatches in a year in which tenants heed the bundles, and what that costs.

A job that goes elsewhere is no longer observed where it fails. Each cloud is a year of the `standard` scenario under
the settings as shipped. After each window a bundle is learnt; until the next one, jobs that start on a pair that is
called worse or suspected go to the first alternative, or where their tenant runs most; a share of them stays. Failures
of those that moved are drawn anew, and the next round counts what happened then.

`nobody`      no job goes elsewhere: what would be known
`all`         all go
`all_forget`  all go, and the learner knows the newest window alone
`stay_N`      N in a hundred stay, at random

`called_end`, `called_false`   planted and other pairs that the last bundle calls worse
`called_ever`                  planted pairs that any bundle called worse
`doubted_end`                  planted pairs that the last bundle calls worse or suspects
`lost_gpu_hours`               what planted factors cost in the year, as in `simulation.judge.impact`
`moved`                        share of all jobs that went elsewhere

Sums over clouds, but for `moved`. Clouds are the same for all ways, noise is fresh.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import numpy as np

from federation.protocol.bundle import PairJudgement
from provider_server.learning.findings import learn
from provider_server.learning.verdicts import PairFinding, within_budget
from provider_server.rounds.release import Release
from simulation.bench import learning
from simulation.bench.attendance import InsecureRepeatable
from simulation.bench.learning import Year
from simulation.bench.looks import Accusations
from simulation.cloud.cloud import Cloud, build_cloud, moved
from simulation.cloud.profiles import Floats, Ints
from simulation.judge.user_loop import Costs, Flags
from simulation.run.engines import Engine

DOUBTED = frozenset({PairJudgement.WORSE, PairJudgement.SUSPECTED})


@dataclass(frozen=True)
class Way:
    """How many of the jobs stay that are told to go elsewhere, and whether the learner keeps earlier windows."""

    stay: float
    remember: bool = True


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "nobody": Way(1.0),
        "all": Way(0.0),
        "all_forget": Way(0.0, remember=False),
        "stay_5": Way(0.05),
        "stay_10": Way(0.1),
        "stay_20": Way(0.2),
    }
)
Numbers = tuple[int, int]


class LoopRow(msgspec.Struct, frozen=True):
    """Years in which tenants heed bundles in one way."""

    way: str
    planted: int
    called_end: int
    called_false: int
    called_ever: int
    doubted_end: int
    lost_gpu_hours: float
    moved: float
    seeds: int


class LoopRows(msgspec.Struct, frozen=True):
    """Of `bench closed-loop`."""

    rows: tuple[LoopRow, ...]


def loops(engine: Engine, names: Sequence[str], seeds: int, *, quick: bool) -> Iterator[LoopRow]:
    """One year after another, each in one way."""
    yield from engine.map(_year, quick, [(name, seed) for seed in range(seeds) for name in names])


def _year(quick: bool, what: tuple[str, int]) -> LoopRow:  # noqa: FBT001 - what all years share
    name, seed = what
    way, told = WAYS[name], Accusations()
    home = build_cloud(learning.shipped(quick=quick), np.random.default_rng(seed))
    rng = np.random.default_rng((seed, 3))
    goes = rng.random(len(home.leases.start_h)) >= way.stay
    sampler, tenants = InsecureRepeatable(os.urandom(16)), home.scenario.tenants
    year, made, pairs = learning.begun(home), list[Release](), dict[Numbers, PairFinding]()
    while (later := learning.with_next_round(year)) is not None:
        year = later
        plan = year.plans[-1]
        made.append(learning.opened(year, len(made), learning.noise_of(plan, tenants, sampler)))
        pairs = _judged(year, made, told, remember=way.remember)
        context = np.where(home.leases.start_h >= plan.end_hour, home.leases.context, year.cloud.leases.context)
        if goes.any():
            _go(home, pairs, context, goes & (home.leases.start_h >= plan.end_hour))
            year = learning.relocated(year, moved(year.cloud, context, rng))
    planted = home.mismatched
    called = {numbers for numbers, pair in pairs.items() if pair.judgement is PairJudgement.WORSE}
    doubted = {numbers for numbers, pair in pairs.items() if pair.judgement in DOUBTED}
    ever = {numbers for numbers, pair in pairs.items() if pair.key in told.charges}
    return LoopRow(
        name,
        len(planted),
        len(called & planted),
        len(called - planted),
        len(ever & planted),
        len(doubted & planted),
        _lost(year.cloud),
        float(np.mean(year.cloud.leases.context != home.leases.context)),
        1,
    )


def _judged(year: Year, made: Sequence[Release], told: Accusations, *, remember: bool) -> dict[Numbers, PairFinding]:
    """What the bundle after these releases says of each pair, by the numbers of workload and context."""
    known = [lease for lease in year.leases if lease.start_h < made[-1].plan.end_hour]
    newest = made if remember else made[-1:]
    named = list(learning.numbered(year, learn(newest, known), 0))
    pairs = within_budget([pair for pair, _ in named], told.charges)
    told.add(pairs)
    return {numbers: pair for pair, (_, numbers) in zip(pairs, named, strict=True)}


def _go(home: Cloud, pairs: Mapping[Numbers, PairFinding], context: Ints, who: Flags) -> None:
    """Sets the context of those leases, of `who`, whose pair is doubted."""
    leases, doubted = home.leases, {numbers for numbers, pair in pairs.items() if pair.judgement in DOUBTED}
    code = leases.workload * home.scenario.contexts + leases.context
    for workload, own in doubted:
        rows = np.flatnonzero(who & (code == workload * home.scenario.contexts + own))
        proposed = [int(token.rpartition(" ")[2]) for token in pairs[workload, own].alternatives]
        for row in rows.tolist():
            often = np.argsort(-np.asarray(home.clients[leases.tenant[row]].context_shares), kind="stable").tolist()
            open_to = (place for place in [*proposed, *often] if (workload, place) not in doubted)
            context[row] = next(open_to, own)


def _lost(cloud: Cloud) -> float:
    """GPU-hours that planted factors cost in the whole time, expected under the true hazard."""
    leases, hazard, costs = cloud.leases, cloud.hazard, Costs()
    hours = np.minimum(leases.end_h, 168.0 * cloud.scenario.weeks) - leases.start_h
    rate: Floats = hazard.per_node_hour(leases.workload, leases.context, leases.level) * leases.nodes
    caused = rate * hazard.effective_hours(hours) * (1.0 - 1.0 / hazard.mismatch[leases.workload, leases.context])
    per_failure = costs.gpus_per_node * leases.nodes * (costs.checkpoint_every_h / 2.0 + costs.recovery_h)
    return float(per_failure @ caused)


def summary(rows: Sequence[LoopRow]) -> LoopRows:
    """A row for each way."""
    return LoopRows(tuple(_row([row for row in rows if row.way == way]) for way in dict.fromkeys(r.way for r in rows)))


def _row(own: Sequence[LoopRow]) -> LoopRow:
    counts = ("planted", "called_end", "called_false", "called_ever", "doubted_end", "lost_gpu_hours", "seeds")
    sums = {name: sum(getattr(row, name) for row in own) for name in counts}
    return LoopRow(way=own[0].way, moved=float(np.mean([row.moved for row in own])), **sums)


def lines(rows: LoopRows) -> Iterator[str]:
    """For people."""
    for row in rows.rows:
        yield (
            f"{row.way}: {row.called_end} of {row.planted} planted pairs called worse at the end"
            f" ({row.called_ever} ever, {row.doubted_end} worse or suspected), {row.called_false} others;"
            f" {row.moved:.1%} of jobs moved, {row.lost_gpu_hours:,.0f} GPU-hours lost to mismatches; {row.seeds} seeds"
        )
