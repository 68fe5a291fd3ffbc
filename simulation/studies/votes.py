"""Which jobs × weeks let tenants' votes find a faulty part of a fabric, at a total epsilon, and what else would.

Worlds are fabrics of 1,024 nodes (`simulation.cloud.fabric`): one without a fault, one for each kind of fault, one with
a fault of each kind. All ways see the same jobs and faults. `way` is what is counted:

`leaves`   half a vote at the leaf of each end, as tenants contribute it
`pairs`    a vote for the unordered pair of leaves, as in 007's path cut at the spines
`rails`    a vote for the rail alone
`007`      every bad flow with its exact path, each link 1/h, Algorithm 1 of Arzani et al. (NSDI 2018) with its
           threshold of 1% of all votes, no privacy: it names links, and a link of the faulty part is right

Pairs and rails are looked at after the last week alone. `share` is the part of the budget that votes get, 0: no
privacy. Noise is the mechanism's own, drawn from the system, of as many windows as a total has. A
row without enough owners is not counted.
`top_1` is how often the first suspect is faulty, where there is a fault; `found` the share of faults that are named;
`fdr` the mean share of false ones among those named; `votes` those that faults caused.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from federation.protocol.noise import NoiseSampler, SystemSampler
from provider_server.analysis.votes import (
    FALSE_SHARE,
    HALF,
    RAIL_KNOWN,
    PartName,
    Patterns,
    Spread,
    localise,
    patterns,
)
from provider_server.settings import PlanTable
from simulation.cloud.fabric import (
    BadFlow,
    Demand,
    Fabric,
    Fault,
    FaultKind,
    Floats,
    Ints,
    Job,
    Seen,
    Sight,
    Vote,
    place,
    watch,
)
from simulation.run.engine_options import Address, EngineKind
from simulation.run.engines import Engine, Kind
from simulation.studies.study import Quick, Seed, Seeds, Table, side_by_side
from simulation.studies.votes_noise import total_noise, total_sigma

JOBS_PER_WEEK = (125, 250, 500)
SHARES = (0.0, 0.1, 0.2, 0.5, 1.0)
WORLDS: tuple[tuple[FaultKind, ...], ...] = ((), *((kind,) for kind in FaultKind), tuple(FaultKind))
LEAVES, PAIRS, RAILS, DEMOCRATIC = "leaves", "pairs", "rails", "007"
STEPS = {LEAVES: HALF, PAIRS: 1.0, RAILS: 1.0}  # what a count stands for; all of a unit's are one vote
COMPARED = 0.2
THRESHOLD = 0.01
ANY = "any"  # all worlds of a size together
QUICK = Fabric(units=4, nodes_per_unit=8, rails=2, spines=4)


class VotesRow(msgspec.Struct, frozen=True):
    """One way at one size; `sigma` is the standard deviation of the noise of a row's total, in votes."""

    way: str
    share: float
    sigma: float
    faults: str
    jobs_per_week: int
    weeks: int
    job_weeks: float
    votes: float
    top_1: float | None
    found: float | None
    fdr: float
    worlds: int


class VotesRows(msgspec.Struct, frozen=True):
    """Of `study votes`."""

    rows: tuple[VotesRow, ...]


@dataclass(frozen=True)
class Judged:
    """One world by one way: what was counted, whether the first suspect is faulty, faults found, and right names."""

    way: str
    share: float
    faults: str
    jobs_per_week: int
    weeks: int
    job_weeks: int
    votes: int
    top_1: bool
    found: int
    planted: int
    right: int
    wrong: int


def votes(engine: Engine, seeds: Sequence[int], sampler: NoiseSampler, *, quick: bool) -> Iterator[list[Judged]]:
    """All worlds of a seed and size, one after another."""
    sizes = (20,) if quick else JOBS_PER_WEEK
    yield from engine.map(_worlds, (sampler, quick), [(size, seed) for seed in seeds for size in sizes])


def steps(seeds: int, *, quick: bool) -> int:
    """How many lists `votes` yields."""
    return seeds * (1 if quick else len(JOBS_PER_WEEK))


def evaluated(*, quick: bool) -> tuple[int, ...]:
    """The weeks at whose end totals are looked at: the ends of windows."""
    return PlanTable().windows[: 2 if quick else None]


def _window(week: int) -> int:
    """The window that holds a week."""
    return bisect_right(PlanTable().windows, week)


def _worlds(settings: tuple[NoiseSampler, bool], of: tuple[int, int]) -> list[Judged]:
    sampler, quick = settings
    jobs_per_week, seed = of
    fabric, weeks = QUICK if quick else Fabric(), evaluated(quick=quick)
    rng = np.random.default_rng((jobs_per_week, seed))
    demand = Demand(jobs_per_week)
    demand = replace(demand, sizes=(2, 4, 8), size_shares=(0.5, 0.3, 0.2)) if quick else demand
    jobs = list(place(fabric, demand, weeks[-1], rng))
    seen = [watch(fabric, jobs, Sight(), kinds, weeks[-1], rng) for kinds in WORLDS]
    judged = []
    for until in weeks:
        layouts: list[tuple[str, Layout, tuple[float, ...]]] = [(LEAVES, _leaves(fabric, jobs, until), SHARES)]
        if until == weeks[-1]:
            fine = _pairs(fabric, jobs, until)
            layouts += [(PAIRS, fine, (COMPARED,)), (RAILS, _rails(fabric, fine), (COMPARED,))]
        job_weeks = sum(len(job.weeks(until)) for job in jobs)
        for kinds, one in zip(WORLDS, seen, strict=True):
            name = "+".join(kinds) if len(kinds) < len(FaultKind) else "all"
            first = {(vote.job, _window(vote.week)): vote for vote in reversed(one.votes) if vote.week < until}
            own = [*first.values()]  # a unit votes once
            size = jobs_per_week, until, job_weeks, sum(vote.is_of_fault for vote in own)
            for way, layout, shares in layouts:
                exact = layout.counts(own)
                for share in shares:
                    variance, noise = _noise(share, STEPS[way], until, exact.size, sampler)
                    counted = np.where(layout.owned, variance, np.inf), exact + noise
                    judged.append(_judged(layout.expected, counted, fabric, one, (way, share, name, *size)))
            flows = [flow for flow in one.bad_flows if flow.week < until]
            judged.append(_democratic(fabric, flows, one.faults, (DEMOCRATIC, 0.0, name, *size)))
    return judged


# ---- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layout:
    """Rows of a way: the patterns of parts in them, which have owners enough, and where a vote counts how much."""

    expected: Patterns
    owned: Ints
    places: Mapping[tuple[int, int, int], Sequence[int]]

    def counts(self, votes: Iterable[Vote]) -> Floats:
        """The votes by row."""
        found = np.zeros(self.owned.shape)
        for vote in votes:
            one, other = sorted(vote.units)
            for row in self.places[one, other, vote.rail]:
                found[row] += self.expected.step
        return found


def _leaves(fabric: Fabric, jobs: Sequence[Job], until: int) -> Layout:
    expected = patterns(_spreads(fabric, jobs, until), fabric.units, fabric.rails)
    rows = fabric.rails + 1
    holders: dict[int, set[int]] = defaultdict(set)
    for job in jobs:
        for unit in np.unique(job.nodes // fabric.nodes_per_unit).tolist() if job.weeks(until) else ():
            holders[unit].add(job.tenant)
    owned = np.repeat([len(holders[unit]) >= PlanTable().owners_minimum for unit in range(fabric.units)], rows)
    places = {
        (one, other, rail): [unit * rows + rail % rows for unit in {one, other}]
        for one, other, rail in _all_pairs(fabric)
    }
    return Layout(expected, owned, places)


def _all_pairs(fabric: Fabric) -> Iterator[tuple[int, int, int]]:
    for one in range(fabric.units):
        for other in range(one, fabric.units):
            for rail in range(-1, fabric.rails):
                yield one, other, rail


def _spreads(fabric: Fabric, jobs: Sequence[Job], until: int) -> list[Spread]:
    ring = (tuple((job.nodes // fabric.nodes_per_unit).tolist()) for job in jobs)
    windows = [len({_window(week) for week in job.weeks(until)}) for job in jobs]
    return [Spread(units, many) for units, many in zip(ring, windows, strict=True) if many]


def _pairs(fabric: Fabric, jobs: Sequence[Job], until: int) -> Layout:
    """The same with a row for each unordered pair of leaves."""
    pairs = list(dict.fromkeys((one, other) for one, other, _ in _all_pairs(fabric)))
    number = {pair: place for place, pair in enumerate(pairs)}
    any_pair, at_leaf, over_spine = (np.zeros((many, len(pairs))) for many in (1, fabric.units, 1))
    for spread in _spreads(fabric, jobs, until):
        shares = Counter({number[pair]: many for pair, many in spread.pairs().items()})
        climbing = {row: many for row, many in shares.items() if pairs[row][0] != pairs[row][1]}
        own = {unit: {row: many for row, many in shares.items() if unit in pairs[row]} for unit in set(spread.units)}
        for matrix, line, part in (
            (any_pair, 0, shares),
            (over_spine, 0, climbing),
            *((at_leaf, u, own[u]) for u in own),
        ):
            for row, many in part.items():
                matrix[line, row] += spread.weeks * many / sum(part.values())
    holders: dict[int, set[int]] = defaultdict(set)
    for job in jobs:
        if job.weeks(until):
            for one, other in {tuple(sorted(pair)) for pair in (job.edges // fabric.nodes_per_unit).tolist()}:
                holders[number[one, other]].add(job.tenant)
    owned = np.repeat([len(holders[row]) >= PlanTable().owners_minimum for row in range(len(pairs))], fabric.rails + 1)
    rows = fabric.rails + 1
    places = {(o, t, rail): [number[o, t] * rows + rail % rows] for o, t, rail in _all_pairs(fabric)}
    return Layout(_over_rails(fabric, any_pair[0], at_leaf, over_spine[0]), owned, places)


def _over_rails(fabric: Fabric, any_pair: Floats, at_leaf: Floats, over_spine: Floats) -> Patterns:
    rails, known = fabric.rails, np.eye(fabric.rails + 1)
    share = [RAIL_KNOWN * known[rail] + (1 - RAIL_KNOWN) * known[rails] for rail in range(rails)]
    parts = [np.outer(at_leaf[unit], share[rail]).ravel() for unit in range(fabric.units) for rail in range(rails)]
    parts += [np.outer(over_spine, share[rail]).ravel() for rail in range(rails)]
    names = [PartName(rail, unit) for unit in range(fabric.units) for rail in range(rails)]
    baselines = [
        np.outer(any_pair, known[:rails].sum(axis=0) / rails).ravel(),
        np.outer(any_pair, known[rails]).ravel(),
    ]
    return Patterns((*names, *map(PartName, range(rails))), np.stack(parts), np.stack(baselines), step=1.0)


def _rails(fabric: Fabric, fine: Layout) -> Layout:
    """The same with a row for each rail."""
    rails = fabric.rails
    of_rail = {key: [key[2] % (rails + 1)] for key in _all_pairs(fabric)}
    parts, baselines = (
        values.reshape(len(values), -1, rails + 1).sum(axis=1)
        for values in (fine.expected.parts[-rails:], fine.expected.baselines)
    )
    return Layout(Patterns(fine.expected.names[-rails:], parts, baselines, 1.0), np.ones(rails + 1, bool), of_rail)


# ---- noise and verdicts ----------------------------------------------------------------------------------------------


def _noise(share: float, step: float, until: int, rows: int, sampler: NoiseSampler) -> tuple[Floats, Floats]:
    """The variance of the noise of totals after so many weeks, at epsilon 1, and a draw of it."""
    if share == 0:
        return np.zeros(rows), np.zeros(rows)
    scale = 1 / (step * share)
    return np.full(rows, (step * total_sigma(scale, until)) ** 2), step * total_noise(scale, until, rows, sampler)


def sigma(share: float, way: str, until: int) -> float:
    """Standard deviation of the noise of a row's total after so many weeks, in votes."""
    return STEPS[way] * total_sigma(1 / (STEPS[way] * share), until) if share else 0.0


Heading = tuple[str, float, str, int, int, int, int]


def _judged(expected: Patterns, counted: tuple[Floats, Floats], fabric: Fabric, seen: Seen, heading: Heading) -> Judged:
    variance, counts = counted
    suspects = localise(expected, counts, variance, FALSE_SHARE)
    truth = {PartName(fault.rail, None if fault.kind is FaultKind.SPINE else fault.unit) for fault in seen.faults}
    named = {suspect.part for suspect in suspects if suspect.is_named}
    right = len(named & truth)
    return Judged(*heading, suspects[0].part in truth, right, len(truth), right, len(named) - right)


def _democratic(fabric: Fabric, flows: Sequence[BadFlow], faults: Sequence[Fault], heading: Heading) -> Judged:
    """Algorithm 1 of 007: the link with most votes is faulty, its flows are explained; on while one has 1% of all."""
    paths = [fabric.path(flow) for flow in flows]
    crossing: dict[tuple[int, ...], set[int]] = defaultdict(set)
    tally: dict[tuple[int, ...], float] = defaultdict(float)
    for number, path in enumerate(paths):
        for link in path:
            crossing[link].add(number)
            tally[link] += 1 / len(path)
    order = max(tally, key=lambda link: tally[link], default=None)
    first, named, left = order, [], set(range(len(paths)))
    while tally and (link := max(tally, key=lambda one: tally[one])) and tally[link] >= max(THRESHOLD * len(paths), 1):
        named.append(link)
        for number in crossing[link] & left:
            for other in paths[number]:
                tally[other] -= 1 / len(paths[number])
        left -= crossing[link]
        del tally[link]
    is_faulty = [[fabric.holds(fault, link) for fault in faults] for link in named]
    right = sum(any(row) for row in is_faulty)
    found = sum(any(row[number] for row in is_faulty) for number in range(len(faults)))
    top_1 = first is not None and any(fabric.holds(fault, first) for fault in faults)
    return Judged(*heading, top_1, found, len(faults), right, len(named) - right)


# ---- summary ---------------------------------------------------------------------------------------------------------


def summary(judged: Sequence[Judged]) -> VotesRows:
    """A row for each way, share, size and kind of fault; means over worlds."""
    groups: dict[tuple[str, float, str, int, int], list[Judged]] = defaultdict(list)
    for one in judged:
        for faults in (one.faults, ANY):
            groups[one.way, one.share, faults, one.jobs_per_week, one.weeks].append(one)
    return VotesRows(tuple(_row(key[2], own) for key, own in groups.items()))


def _row(faults: str, own: Sequence[Judged]) -> VotesRow:
    first, faulty = own[0], [one for one in own if one.planted]
    return VotesRow(
        first.way,
        first.share,
        0.0 if first.way == DEMOCRATIC else sigma(first.share, first.way, first.weeks),
        faults or "none",
        first.jobs_per_week,
        first.weeks,
        float(np.mean([one.job_weeks for one in own])),
        float(np.mean([one.votes for one in own])),
        float(np.mean([one.top_1 for one in faulty])) if faulty else None,
        sum(one.found for one in faulty) / sum(one.planted for one in faulty) if faulty else None,
        float(np.mean([one.wrong / max(1, one.right + one.wrong) for one in own])),
        len(own),
    )


def run(
    seed: Seed = 0,
    seeds: Seeds = 10,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    quick: Quick = False,
) -> Table:
    """Faulty links and switches of a fabric that tenants' votes find at epsilon 1, beside 007 and no privacy."""

    def worlds(on: Engine) -> Iterator[list[Judged]]:
        return votes(on, range(seed, seed + seeds), SystemSampler(), quick=quick)

    found = side_by_side(engine, address, worlds, steps(seeds, quick=quick), "worlds")
    return Table(summary([one for judged in found for one in judged]))
