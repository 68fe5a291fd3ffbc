"""What public experience is worth to a fleet in its first 13 weeks, each published fleet left out in turn.

`rates`: a fleet of `nodes` nodes fails at the published rate of one (fleet, class) row; known beforehand are the rows
of all other fleets. Of each way to begin:

`regret`    how much worse it foretells each of 13 weeks' counts than who knows the true rate does, in nats (log score)
`coverage`  the share of weeks after which the 95% interval holds the true rate
`flat`      a log rate from one failure in a thousand years to one an hour, all alike
`constants` around 6.5 failures per 1,000 node-days, standard deviation 5 on the log scale, as before this prior

`rates` are drawn, by a Poisson law, since only totals are published. Real fleets do not keep to it: `trace` has the
weeks of InfiniteHBD as they were, on its 400 servers. How much failures come together was read from its other half.

`checkpoints`: the first day of a job on so many nodes whose fleet is left out. Waste is the time of checkpoints and the
work that failures lose, by Young's expectation, over that of a job that knows its rate. Rates follow own failures.

Not promised: fleets that fail unlike all that publish.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import gammaln, logsumexp

from federation.protocol.known_rates import Class, Experience, KnownRate, known_rates
from federation.protocol.life_table import Floats
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.analysis.public_rates import experience_of
from simulation.studies.study import DATA, Quick, Seed, Table
from tenant_client.doctor.run.hook.checkpoints import interval_s

WEEKS, DRAWS = 13, 200
SIZES = (8, 64, 512)
LOG_RATES = np.linspace(np.log(1e-7), np.log(1.0), 4001)
BEFORE, BEFORE_SD = 6.5 / 24_000, 5.0
SERVERS, PER_1000_NODE_DAYS = 400, 24_000.0
TRACE = DATA / "infinitehbd" / "fault_trace.json.gz"
CHECKPOINT_S = (20.0, 120.0)


@dataclass(frozen=True)
class Beginning:
    """A prior on a grid of log rates: `log_mass` has the shape of `LOG_RATES`."""

    log_mass: Floats

    def log_score(self, weekly: Floats, node_hours: float) -> float:
        """Mean log probability of weekly counts (weeks, draws), less the terms that all ways share."""
        likelihood = weekly.sum(axis=0)[:, None] * LOG_RATES - len(weekly) * node_hours * np.exp(LOG_RATES)
        return float(logsumexp(self.log_mass + likelihood, axis=1).mean())


@dataclass(frozen=True)
class Public:
    """What is shipped, without the fleet that is judged."""

    known: Experience

    def log_score(self, weekly: Floats, node_hours: float) -> float:
        """As above."""
        return float(np.mean([self._log_score(counts, node_hours) for counts in weekly.T.tolist()]))

    def _log_score(self, counts: Sequence[float], node_hours: float) -> float:
        now, score = self.known, 0.0
        for count in counts:
            after, hours = now.failures + count, now.node_hours
            score += float(gammaln(after) - gammaln(now.failures))
            score += now.failures * np.log(hours) - after * np.log(hours + node_hours)
            now = now.after(count, node_hours)
        return score

    def coverage(self, rate: float, weekly: Floats, node_hours: float) -> float:
        """The share of weeks and draws after which the interval holds the rate."""
        held = []
        for week, totals in enumerate(weekly.cumsum(axis=0).tolist(), start=1):
            bounds = [self.known.after(total, node_hours * week).interval() for total in totals]
            held += [low <= rate <= high for low, high in bounds]
        return float(np.mean(held))


def _normalised(log_mass: Floats) -> Beginning:
    return Beginning(log_mass - logsumexp(log_mass))


FLAT = _normalised(np.zeros(len(LOG_RATES)))
CONSTANTS = _normalised(-0.5 * ((LOG_RATES - np.log(BEFORE)) / BEFORE_SD) ** 2)


@dataclass(frozen=True)
class WeeksRow:
    """One fleet that was left out; `fleets` is how many others have rows of this class."""

    fleet: str
    cause: str
    nodes: int
    fleets: int
    per_1000_node_days: float
    foretold: float
    public_regret: float
    flat_regret: float
    constants_regret: float
    coverage: float


@dataclass(frozen=True)
class CheckpointRow:
    """Waste over that of the true rate, all fleets together and of the worst; `hourly` is a checkpoint every hour.

    `points` is the same difference of all fleets as a share of time, in per cent.
    """

    nodes: int
    checkpoint_s: float
    public: float
    worst: float
    points: float
    hourly: float


@dataclass(frozen=True)
class Saved:
    """The share of regret that public experience saves, and coverage, all rows together."""

    of_flat: float
    of_constants: float
    coverage: float

    @classmethod
    def of(cls, rows: Sequence[WeeksRow]) -> "Saved":
        """Of these rows."""
        names = ("public_regret", "flat_regret", "constants_regret", "coverage")
        public, flat, constants, coverage = (float(np.mean([getattr(row, name) for row in rows])) for name in names)
        return cls(1.0 - public / flat, 1.0 - public / constants, coverage)


@dataclass(frozen=True)
class Found:
    """All of it; `trace` is empty where the trace is not there."""

    saved: Saved
    rates: Sequence[WeeksRow]
    trace: Sequence[WeeksRow]
    checkpoints: Sequence[CheckpointRow]


def run(seed: Seed = 0, *, quick: Quick = False) -> Table:
    """Leave each published fleet out, and begin with what the others say."""
    draws, rng = (20 if quick else DRAWS), np.random.default_rng(seed)
    rows = list(_drawn(draws, rng))
    traced = list(_traced()) if TRACE.exists() else []
    return Table(Found(Saved.of(rows), rows, traced, list(_checkpoints(draws, rng))))


# ---- rates -----------------------------------------------------------------------------------------------------------


def others_say(row: KnownRate) -> tuple[Experience, int]:
    """What a fleet may expect by the rows of all other fleets, and how many these are."""
    others = [one for one in known_rates() if one.cause == row.cause and one.fleet != row.fleet]
    return experience_of(others), len({one.fleet for one in others})


def _drawn(draws: int, rng: np.random.Generator) -> Iterator[WeeksRow]:
    for row in known_rates():
        rate = row.failures / row.node_hours
        for nodes in SIZES:
            weekly = rng.poisson(rate * nodes * HOURS_PER_WEEK, (WEEKS, draws)).astype(np.float64)
            yield _judged(row, row.fleet, nodes, weekly)


def _traced() -> Iterator[WeeksRow]:
    """The first weeks of the trace as they were."""
    for row in known_rates():
        if row.fleet == "InfiniteHBD":
            yield _judged(row, row.fleet, SERVERS, _weekly(row.cause))


def _judged(row: KnownRate, name: str, nodes: int, weekly: Floats) -> WeeksRow:
    rate, (known, fleets) = row.failures / row.node_hours, others_say(row)
    public, node_hours = Public(known), nodes * HOURS_PER_WEEK
    truth = float(np.mean(weekly.sum(axis=0) * np.log(rate) - len(weekly) * node_hours * rate))
    return WeeksRow(
        fleet=name,
        cause=row.cause,
        nodes=nodes,
        fleets=fleets,
        per_1000_node_days=rate * PER_1000_NODE_DAYS,
        foretold=known.rate * PER_1000_NODE_DAYS,
        public_regret=truth - public.log_score(weekly, node_hours),
        flat_regret=truth - FLAT.log_score(weekly, node_hours),
        constants_regret=truth - CONSTANTS.log_score(weekly, node_hours),
        coverage=public.coverage(rate, weekly, node_hours),
    )


_OF_CLASS: dict[Class, Callable[[dict[str, str]], bool]] = {
    "infrastructure": lambda fault: True,
    "gpu": lambda fault: fault["Class"] == "GPU",
    "memory": lambda fault: "Bit ECC" in fault["Desc"],
    "network": lambda fault: fault["Class"] in ("Parameter Plane Cable", "NIC"),
    "host": lambda fault: fault["Class"] not in ("GPU", "Parameter Plane Cable", "NIC"),
}


def _weekly(cause: Class) -> Floats:
    """Faults of a class in each of the first weeks, shape (weeks, 1)."""
    with gzip.open(TRACE, "rt") as file:
        events = [event for event in json.load(file) if event["event_type"] == "fault_start"]
    levels = ("Hardware Failure", "Software Failure") if cause == "infrastructure" else ("Hardware Failure",)
    days = [
        event["event_time"]
        for event in events
        if event["fault_type"]["Level"] in levels and _OF_CLASS[cause](event["fault_type"])
    ]
    counts, _ = np.histogram(days, 7.0 * np.arange(WEEKS + 1))
    return counts[:, None].astype(np.float64)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def _checkpoints(draws: int, rng: np.random.Generator) -> Iterator[CheckpointRow]:
    rows = [row for row in known_rates() if row.cause == "infrastructure"]
    for nodes in SIZES:
        for cost_s in CHECKPOINT_S:
            wastes = np.array([_first_day(row, nodes, cost_s, draws, rng) for row in rows])
            public, best, hourly = wastes.sum(axis=0)
            worst = float((wastes[:, 0] / wastes[:, 1]).max() - 1.0)
            points = 100.0 * float(public - best) / len(rows)
            yield CheckpointRow(nodes, cost_s, float(public / best - 1.0), worst, points, float(hourly / best - 1.0))


def _first_day(row: KnownRate, nodes: int, cost_s: float, draws: int, rng: np.random.Generator) -> tuple[float, ...]:
    """Mean waste by public experience and own failures so far, by the true rate, and of hourly checkpoints."""
    rate, (known, _) = row.failures / row.node_hours, others_say(row)
    waste = partial(_waste, cost_s, rate * nodes)
    so_far = rng.poisson(rate * nodes, (24, draws)).cumsum(axis=0)
    by_hour = [
        waste(interval_s(cost_s, nodes * known.after(float(count), nodes * hour).rate))
        for hour, counts in enumerate(np.vstack([np.zeros((1, draws)), so_far[:-1]]))
        for count in counts.tolist()
    ]
    return float(np.mean(by_hour)), waste(interval_s(cost_s, nodes * rate)), waste(3600.0)


def _waste(cost_s: float, failures_per_hour: float, every_s: float) -> float:
    """The share of time that checkpoints take and failures lose."""
    return cost_s / (every_s + cost_s) + failures_per_hour / 3600.0 * (every_s + cost_s) / 2.0
