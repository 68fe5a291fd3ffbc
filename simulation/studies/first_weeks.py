"""What public experience is worth to a fleet in its first 13 weeks, each published fleet left out in turn.

`rates`: a fleet of `nodes` nodes fails at the published rate of one (fleet, class) row; known beforehand are the rows of
all other fleets. Of each way to begin:

`regret`    how much less likely its counts make them than their true rate does, in nats over 13 weeks (log score)
`coverage`  the share of weeks after which the 95% interval holds the true rate
`flat`      a log rate from one failure in a thousand years to one an hour, all alike
`constants` around 6.5 failures per 1,000 node-days with a standard deviation of 5 on the log scale, as before this prior

Of one fleet, InfiniteHBD, weekly counts are real (`trace`, with its 400 servers); those of others are drawn, since only
totals are published: a Poisson law of a constant rate, which real fleets do not keep to.

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
from simulation.studies.study import DATA, Seed, Table
from tenant_client.doctor.run.hook.checkpoints import interval_s

WEEKS, DRAWS = 13, 200
SIZES = (8, 64, 512)
LOG_RATES = np.linspace(np.log(1e-7), np.log(1.0), 4001)
BEFORE, BEFORE_SD = 6.5 / 24_000, 5.0
SERVERS = 400
TRACE = DATA / "infinitehbd" / "fault_trace.json.gz"
CHECKPOINT_S = (20.0, 120.0)


@dataclass(frozen=True)
class Beginning:
    """A prior on a grid of log rates: `log_mass` has the shape of `LOG_RATES`."""

    log_mass: Floats

    def log_evidence(self, failures: Floats, node_hours: float) -> Floats:
        """Log probability of each total (draws,), less the terms that all ways share."""
        likelihood = failures[:, None] * LOG_RATES - node_hours * np.exp(LOG_RATES)
        return np.asarray(logsumexp(self.log_mass + likelihood, axis=1), np.float64)

    def covers(self, rate: float, failures: Floats, node_hours: float) -> Floats:
        """Whether each 95% interval holds the rate (draws,)."""
        log_mass = self.log_mass + failures[:, None] * LOG_RATES - node_hours * np.exp(LOG_RATES)
        mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
        below = mass[:, np.log(rate) >= LOG_RATES].sum(axis=1) / mass.sum(axis=1)
        return np.asarray(np.abs(below - 0.5) <= 0.475, np.float64)


@dataclass(frozen=True)
class Public:
    """The same in closed form, as it is shipped."""

    known: Experience

    def log_evidence(self, failures: Floats, node_hours: float) -> Floats:
        """As above."""
        shape, hours = self.known.failures, self.known.node_hours
        after = shape + failures
        ratio = gammaln(after) - gammaln(shape) + shape * np.log(hours) - after * np.log(hours + node_hours)
        return np.asarray(ratio, np.float64)

    def covers(self, rate: float, failures: Floats, node_hours: float) -> Floats:
        """As above."""
        bounds = [self.known.after(count, node_hours).interval() for count in failures.tolist()]
        return np.array([low <= rate <= high for low, high in bounds], np.float64)


def _normalised(log_mass: Floats) -> Beginning:
    return Beginning(log_mass - logsumexp(log_mass))


OTHERS = {
    "flat": _normalised(np.zeros(len(LOG_RATES))),
    "constants": _normalised(-0.5 * ((LOG_RATES - np.log(BEFORE)) / BEFORE_SD) ** 2),
}


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
class Found:
    """All of it; `saved` is the share of regret that public experience saves."""

    saved_of_flat: float
    saved_of_constants: float
    coverage: float
    rates: Sequence[WeeksRow]
    checkpoints: Sequence[CheckpointRow]


def run(seed: Seed = 0, *, quick: bool = False) -> Table:
    """Leave each published fleet out, and begin with what the others say."""
    draws, rng = (20 if quick else DRAWS), np.random.default_rng(seed)
    rows = [*_drawn(draws, rng), *(_traced() if TRACE.exists() else ())]
    public, flat, constants, covered = (
        np.mean([getattr(row, name) for row in rows])
        for name in ("public_regret", "flat_regret", "constants_regret", "coverage")
    )
    checkpoints = list(_checkpoints(draws, rng))
    return Table(Found(float(1 - public / flat), float(1 - public / constants), float(covered), rows, checkpoints))


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
            yield _judged(row, "InfiniteHBD trace", SERVERS, _weekly(row.cause))


def _judged(row: KnownRate, name: str, nodes: int, weekly: Floats) -> WeeksRow:
    rate, (known, fleets) = row.failures / row.node_hours, others_say(row)
    totals, weeks = weekly.cumsum(axis=0), range(1, WEEKS + 1)
    node_hours = nodes * HOURS_PER_WEEK * WEEKS
    truth = totals[-1] * np.log(rate) - node_hours * rate

    def regret(way: Beginning | Public) -> float:
        return float(np.mean(truth - way.log_evidence(totals[-1], node_hours)))

    covered = [
        Public(known).covers(rate, count, nodes * HOURS_PER_WEEK * week)
        for week, count in zip(weeks, totals, strict=True)
    ]
    return WeeksRow(
        name,
        row.cause,
        nodes,
        fleets,
        rate * 24_000,
        known.rate * 24_000,
        regret(Public(known)),
        regret(OTHERS["flat"]),
        regret(OTHERS["constants"]),
        float(np.mean(covered)),
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
