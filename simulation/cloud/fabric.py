"""A fabric of rails with seeded faults, jobs placed on it as schedulers do, and what their tenants vote for.

The fabric is a rail-optimised fat-tree: a unit has a leaf switch for each rail, every node a port on each of them, and
the leaves of a rail meet in spines of its own; flows are spread over spines by hash and stay on their rail. Faults are
gray: some flows meet them. What tenants see is imperfect: pairs are misnamed, rails unknown, and votes cast where the
fabric is whole, by some tenants often.

Not modelled: congestion between jobs, and faults that begin or end within the year.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
HOURS_PER_WEEK = 168


@dataclass(frozen=True)
class Fabric:
    """Sizes. `flows` is how many connections two neighbours have on a rail, each hashed to a spine by itself."""

    units: int = 32
    nodes_per_unit: int = 32
    rails: int = 8
    spines: int = 16
    flows: int = 4

    @property
    def nodes(self) -> int:
        """How many nodes hang on it."""
        return self.units * self.nodes_per_unit

    def path(self, flow: "BadFlow") -> list[tuple[int, ...]]:
        """The links of a flow: a port is (rail, node), an uplink (rail, unit, spine)."""
        one, other = (node // self.nodes_per_unit for node in flow.pair)
        ports: list[tuple[int, ...]] = [(flow.rail, node) for node in flow.pair]
        return ports if one == other else [*ports, (flow.rail, one, flow.spine), (flow.rail, other, flow.spine)]

    def holds(self, fault: "Fault", link: tuple[int, ...]) -> bool:
        """Whether a link belongs to the faulty part."""
        rail, place, *spine = link
        unit = place if spine else place // self.nodes_per_unit
        at = {
            FaultKind.LEAF: unit == fault.unit,
            FaultKind.PORT: not spine and place == fault.node,
            FaultKind.UPLINK: unit == fault.unit and spine == [fault.spine],
            FaultKind.SPINE: spine == [fault.spine],
        }
        return rail == fault.rail and at[fault.kind]


@dataclass(frozen=True)
class Demand:
    """Jobs of several nodes: how many begin in a week, whose they are, how large, how busy they keep the fabric."""

    jobs_per_week: float = 250.0
    tenants: int = 40
    sizes: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128)
    size_shares: tuple[float, ...] = (0.28, 0.22, 0.18, 0.14, 0.1, 0.05, 0.03)
    load: float = 0.8
    duration_sigma: float = 1.0
    everybody_talks: float = 0.3  # share of jobs where each node talks to any other, not only to its neighbours


@dataclass(frozen=True)
class Sight:
    """What tenants see: shares of hits noticed, of pairs and rails named, of job-weeks that vote for nothing."""

    noticed: float = 0.7
    pair_right: float = 0.75
    rail_known: float = 0.7
    idle_votes: float = 0.04
    careless_tenants: float = 0.1
    careless_votes: float = 0.3


class FaultKind(StrEnum):
    """What is faulty."""

    LEAF = "leaf"
    UPLINK = "uplink"
    PORT = "port"
    SPINE = "spine"


@dataclass(frozen=True)
class Fault:
    """A faulty leaf (unit, rail), uplink (and spine), port (rail, and node) or spine (rail, spine).

    `per_flow` is the chance that a flow over it is bad for a job-week.
    """

    kind: FaultKind
    rail: int
    unit: int
    spine: int
    node: int
    per_flow: float


# Chance that a flow meets the fault: a link that drops hits all that cross it, a switch few of the many that do.
PER_FLOW = {FaultKind.LEAF: 0.02, FaultKind.UPLINK: 0.8, FaultKind.PORT: 0.5, FaultKind.SPINE: 0.15}


@dataclass(frozen=True, eq=False)
class Job:
    """A lease: its nodes in the order of their ring, and which of them talk: pairs (edges, 2) of nodes."""

    tenant: int
    start_h: float
    end_h: float
    nodes: Ints
    edges: Ints

    def weeks(self, until: int) -> range:
        """The weeks before `until` in which it ran."""
        return range(int(self.start_h // HOURS_PER_WEEK), min(until, int(self.end_h // HOURS_PER_WEEK) + 1))

    def climbs(self, fabric: Fabric) -> NDArray[np.bool_]:
        """Which of its pairs are of two units, so that their flows cross a spine."""
        one, other = (self.edges // fabric.nodes_per_unit).T
        climbing: NDArray[np.bool_] = one != other
        return climbing


@dataclass(frozen=True, eq=False)
class Vote:
    """A job-week's vote: its week, job and pair of nodes, their units, and the rail, -1 where it is not known.

    `is_of_fault` is the truth that nobody knows.
    """

    week: int
    job: int
    pair: tuple[int, int]
    units: tuple[int, int]
    rail: int
    is_of_fault: bool


@dataclass(frozen=True, eq=False)
class BadFlow:
    """A flow that was bad in a week, or seemed so, with the path that a traceroute would tell."""

    week: int
    pair: tuple[int, int]
    rail: int
    spine: int


@dataclass(frozen=True, eq=False)
class Seen:
    """What happened to jobs under some faults: votes, one a job-week at most, and bad flows, as many as there were."""

    faults: tuple[Fault, ...]
    votes: tuple[Vote, ...]
    bad_flows: tuple[BadFlow, ...]


def watch(
    fabric: Fabric, jobs: Sequence[Job], sight: Sight, kinds: Sequence[FaultKind], weeks: int, rng: Generator
) -> Seen:
    """So many weeks of `jobs` with a fault of each of `kinds`, at places drawn without regard to jobs."""
    faults = tuple(_fault(fabric, kind, rng) for kind in kinds)
    votes: list[Vote] = []
    bad: list[BadFlow] = []
    careless = rng.random(1 + max(job.tenant for job in jobs)) < sight.careless_tenants
    for number, job in enumerate(jobs):
        idle = sight.careless_votes if careless[job.tenant] else sight.idle_votes
        met = [(fault, flows) for fault in faults if len(flows := _crossing(fabric, fault, job, rng))]
        for week in job.weeks(weeks):
            hits = [
                (int(edge), fault.rail, int(spine))
                for fault, flows in met
                for edge, spine in flows[rng.random(len(flows)) < fault.per_flow]
            ]
            seen = [*hits, _nothing(fabric, job, rng)] if rng.random() < idle else hits
            if not seen:
                continue
            bad += [BadFlow(week, _pair(job, edge), rail, spine) for edge, rail, spine in seen]
            if len(seen) > len(hits) or rng.random() < sight.noticed:
                chosen = int(rng.integers(len(seen)))
                vote = _vote(fabric, week, number, job, seen[chosen], sight, rng)
                votes.append(replace(vote, is_of_fault=chosen < len(hits)))
    return Seen(faults, tuple(votes), tuple(bad))


def _fault(fabric: Fabric, kind: FaultKind, rng: Generator) -> Fault:
    node = int(rng.integers(fabric.nodes))
    rail, spine = int(rng.integers(fabric.rails)), int(rng.integers(fabric.spines))
    return Fault(kind, rail, node // fabric.nodes_per_unit, spine, node, PER_FLOW[kind])


def _crossing(fabric: Fabric, fault: Fault, job: Job, rng: Generator) -> Ints:
    """The job's flows on the fault's rail that cross it, (flows, 2): edge and spine, hashed once for the job."""
    at_node, at_unit = job.edges == fault.node, job.edges // fabric.nodes_per_unit == fault.unit
    climbs = job.climbs(fabric)
    over = {
        FaultKind.LEAF: at_unit.any(axis=1),
        FaultKind.PORT: at_node.any(axis=1),
        FaultKind.UPLINK: at_unit.any(axis=1) & climbs,
        FaultKind.SPINE: climbs,
    }[fault.kind]
    edge = np.repeat(np.flatnonzero(over), fabric.flows)
    spine = rng.integers(fabric.spines, size=len(edge)) if len(edge) else edge
    flows = np.stack([edge, spine], axis=1)
    return flows[spine == fault.spine] if fault.kind in (FaultKind.UPLINK, FaultKind.SPINE) else flows


def _nothing(fabric: Fabric, job: Job, rng: Generator) -> tuple[int, int, int]:
    """Any flow of the job: what is named when something else is slow."""
    return int(rng.integers(len(job.edges))), int(rng.integers(fabric.rails)), int(rng.integers(fabric.spines))


def _pair(job: Job, edge: int) -> tuple[int, int]:
    one, other = job.edges[edge].tolist()
    return one, other


def _vote(
    fabric: Fabric, week: int, number: int, job: Job, hit: tuple[int, int, int], sight: Sight, rng: Generator
) -> Vote:
    edge = hit[0] if rng.random() < sight.pair_right else int(rng.integers(len(job.edges)))
    one, other = _pair(job, edge)
    units = one // fabric.nodes_per_unit, other // fabric.nodes_per_unit
    return Vote(week, number, (one, other), units, hit[1] if rng.random() < sight.rail_known else -1, is_of_fault=True)


# ---- jobs ------------------------------------------------------------------------------------------------------------


def place(fabric: Fabric, demand: Demand, weeks: int, rng: Generator) -> Iterator[Job]:
    """Jobs in order of arrival; one that finds no room waits until there is. Durations keep the load as asked."""
    mean_nodes = float(np.dot(demand.sizes, demand.size_shares))
    hours = fabric.nodes * HOURS_PER_WEEK * demand.load / (demand.jobs_per_week * mean_nodes)
    count = rng.poisson(demand.jobs_per_week * weeks)
    arrivals = np.sort(rng.random(count)) * weeks * HOURS_PER_WEEK
    sizes = rng.choice(demand.sizes, count, p=demand.size_shares)
    spread = demand.duration_sigma
    durations = rng.lognormal(np.log(hours) - spread**2 / 2, spread, count)
    share = rng.dirichlet(np.full(demand.tenants, 1.0))
    tenants = rng.choice(demand.tenants, count, p=share)
    free = np.ones((fabric.units, fabric.nodes_per_unit), bool)
    running: list[tuple[float, int, Ints]] = []
    now, room = 0.0, fabric.nodes
    for number in range(count):
        now = max(now, float(arrivals[number]))
        while running and (running[0][0] <= now or room < sizes[number]):
            now = max(now, running[0][0])
            _, _, ended = heapq.heappop(running)
            free.reshape(-1)[ended] = True
            room += len(ended)
        if now >= weeks * HOURS_PER_WEEK:
            return
        nodes = _placed(free, int(sizes[number]))
        free.reshape(-1)[nodes] = False
        room -= len(nodes)
        end = now + float(durations[number])
        heapq.heappush(running, (end, number, nodes))
        yield Job(int(tenants[number]), now, end, nodes, _edges(nodes, demand, rng))


def _placed(free: NDArray[np.bool_], size: int) -> Ints:
    """The unit that fits best, else the emptiest ones: as few leaves as there is room for."""
    room = free.sum(axis=1)
    fits = np.flatnonzero(room >= size)
    order = fits[np.argsort(room[fits], kind="stable")] if len(fits) else np.argsort(-room, kind="stable")
    flat = [unit * free.shape[1] + np.flatnonzero(free[unit]) for unit in order]
    return np.sort(np.concatenate(flat)[:size])


def _edges(nodes: Ints, demand: Demand, rng: Generator) -> Ints:
    """Neighbours in a ring; where everybody talks, as many pairs again as three rings have."""
    ring = np.stack([nodes, np.roll(nodes, -1)], axis=1)
    ring = ring[:1] if len(nodes) == 2 else ring
    if rng.random() >= demand.everybody_talks:
        return ring
    any_pairs = nodes[rng.integers(len(nodes), size=(3 * len(nodes), 2))]
    return np.concatenate([ring, any_pairs[any_pairs[:, 0] != any_pairs[:, 1]]])
