"""Faults of named nodes: lemons, defects that come back after a repair, events that strike several nodes, busy weeks.

    stretches of use, expected faults of each ─ primaries ─ those struck with them ─ those that come back ─▶ Faults

A node is used in stretches (`Use`): by one lease after another, or by one that lasts for ever. Faults are a cluster
process. *Primary* faults are Poisson, with the expected number of each stretch times the node's own gamma factor (a
lemon's is high) and that of the week, which all nodes share. Some strike other nodes of the same group in the same
minute. After a fault its node is down, then back; a repair that did not cure leaves a defect, which shows itself again
after a log-normal time in use; so may that fault's repair. Rates of primaries are lowered by what comes with and after
them, so that the expected number of all faults is that asked for.

Guarantees. Pure; `rng` is all its randomness. A node has no fault while it is down. Every fault lies in a stretch.

Not promised: the exact expected number. Faults that would come while a node is down, or after its last use, are lost:
a tenth to a fifth at 4 to 6 faults per 1,000 node-days; most at the rates of `standard`, where nodes fail every week.

Source: Neyman and Scott, JRSS B 20, 1958 (cluster processes). `node_faults.toml` says what the numbers were fitted to.
They are of another form than those of `provider_server.fleet.analysis.probation`, which is judged on such faults.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
from numpy.random import Generator

from simulation.cloud.profiles import Floats, Ints

TABLE = Path(__file__).with_suffix(".toml")


class NodeFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What faults of a fleet are like; hours, and standard deviations of logarithms.

    `lemon_variance` and `wave_variance` are of gamma factors with mean 1, of a node and of each `wave_h` of the fleet.
    `together` of all primaries strike others, 1 and more, `others` on average, with faults of the same kind. A repair
    leaves `returning` faults on average. `kinds` are the classes of faults by share.
    """

    per_node_hour: float
    lemon_variance: float
    wave_variance: float
    wave_h: float
    together: float
    others: float
    returning: float
    return_median_h: float
    return_log_sd: float
    down_median_h: float
    down_log_sd: float
    down_most_h: float
    kinds: dict[str, float]
    source: str = ""

    def __post_init__(self) -> None:
        positive = (
            self.per_node_hour,
            self.wave_h,
            self.return_median_h,
            self.return_log_sd,
            self.down_median_h,
            self.down_log_sd,
        )
        if min(positive) <= 0 or min(self.lemon_variance, self.wave_variance) < 0 or self.others < 1:
            raise ValueError("rates, times and spreads must be positive, variances 0 or more, others 1 or more")
        if not (0 <= self.together <= 1 and 0 <= self.returning < 1):
            raise ValueError("together must lie in [0, 1], returning in [0, 1)")


@cache
def fitted() -> NodeFaults:
    """The numbers of `node_faults.toml`."""
    return msgspec.convert(tomllib.loads(TABLE.read_text(encoding="utf-8")), NodeFaults)


@dataclass(frozen=True, eq=False)
class Use:
    """Stretches of use as columns (stretches,), in order of node and start; those of a node do not overlap.

    A node belongs to one `group`, within which faults may come together.
    """

    node: Ints
    group: Ints
    start_h: Floats
    end_h: Floats


@dataclass(frozen=True, eq=False)
class Faults:
    """Faults as columns, in order of node and time. `row` is the stretch; the node is down from `at_h` to `back_h`.

    Faults of one `event` came together.
    """

    row: Ints
    event: Ints
    at_h: Floats
    back_h: Floats


def draw_faults(
    process: NodeFaults,
    use: Use,
    expected: Floats,
    at_h: Callable[[Ints, Floats], Floats],
    rng: Generator,
) -> Faults:
    """Faults of the nodes in use, `expected` (stretches,) in each. `at_h` spreads uniform numbers over stretches."""
    own = _gamma(process.lemon_variance, int(use.node.max(initial=-1)) + 1, rng)[use.node]
    waves = _gamma(process.wave_variance, int(use.end_h.max(initial=0.0) // process.wave_h) + 1, rng)
    scale = (1.0 - process.returning) / (1.0 + process.together * process.others)
    row = np.repeat(np.arange(len(expected)), rng.poisson(waves.max() * expected * own * scale))
    at = at_h(row, rng.random(len(row)))
    kept = rng.random(len(row)) * waves.max() < waves[(at // process.wave_h).astype(np.int64)]
    row, at, event = _with_others(process, use, row[kept], at[kept], rng)
    clock = np.concatenate([[0.0], np.cumsum(use.end_h - use.start_h)])  # hours of use, one node after another
    generations, events = [Faults(row[:0], event[:0], at[:0], at[:0])], len(at)
    while len(row):
        down = rng.lognormal(np.log(process.down_median_h), process.down_log_sd, len(row))
        back = at + np.minimum(down, process.down_most_h)
        generations.append(Faults(row, event, at, back))
        parent = np.repeat(np.arange(len(row)), rng.poisson(process.returning, len(row)))
        row, at = _returned(process, use, clock, row[parent], back[parent], rng)
        event, events = events + np.arange(len(row)), events + len(row)
    names = ("row", "event", "at_h", "back_h")
    return _while_up(use, Faults(*(np.concatenate([getattr(one, name) for one in generations]) for name in names)))


def _gamma(variance: float, count: int, rng: Generator) -> Floats:
    return rng.gamma(1.0 / variance, variance, count) if variance else np.ones(count)


def _with_others(process: NodeFaults, use: Use, row: Ints, at: Floats, rng: Generator) -> tuple[Ints, Floats, Ints]:
    """The same faults, and those of other nodes of the group that are in use then; the number of the event of each."""
    rows, times, events = [row], [at], [np.arange(len(row))]
    for first in np.flatnonzero(rng.random(len(row)) < process.together):
        now = (use.group == use.group[row[first]]) & (use.start_h <= at[first]) & (use.end_h > at[first])
        others = np.flatnonzero(now & (use.node != use.node[row[first]]))
        count = min(int(rng.geometric(1.0 / process.others)), len(others))
        rows.append(rng.choice(others, count, replace=False))
        times.append(np.full(count, at[first]))
        events.append(np.full(count, first))
    return np.concatenate(rows), np.concatenate(times), np.concatenate(events)


def _returned(
    process: NodeFaults, use: Use, clock: Floats, row: Ints, back_h: Floats, rng: Generator
) -> tuple[Ints, Floats]:
    """When defects show themselves again, counted in hours of use since the node was back; none after its last use."""
    span = use.end_h.max(initial=0.0) + 1.0
    place = use.node[row] * span + np.minimum(back_h, span)
    last = np.searchsorted(use.node * span + use.start_h, place, side="right") - 1
    used = clock[last] + np.clip(back_h - use.start_h[last], 0.0, use.end_h[last] - use.start_h[last])
    due = used + rng.lognormal(np.log(process.return_median_h), process.return_log_sd, len(row))
    then = np.minimum(np.searchsorted(clock, due, side="right") - 1, len(use.node) - 1)
    shown = (use.node[then] == use.node[row]) & (due < clock[-1])
    return then[shown], (use.start_h[then] + due - clock[then])[shown]


def _while_up(use: Use, found: Faults) -> Faults:
    """The faults in order of node and time, without those of a node that was down."""
    order = np.lexsort((found.at_h, use.node[found.row]))
    columns = zip(
        order.tolist(), *(each[order].tolist() for each in (use.node[found.row], found.at_h, found.back_h)), strict=True
    )
    kept: list[int] = []
    last, down_until_h = -1, -np.inf
    for place, node, at, back in columns:
        if node != last or at >= down_until_h:
            kept.append(place)
            last, down_until_h = node, back
    return Faults(found.row[kept], found.event[kept], found.at_h[kept], found.back_h[kept])


def fleet_outages(process: NodeFaults, nodes: int, hours: float, rng: Generator) -> pl.DataFrame:
    """Outages of nodes that are always in use: node, start_h, end_h, kind, as `fleet.outage_files` reads them."""
    number = np.arange(nodes)
    use = Use(number, np.zeros(nodes, np.int64), np.zeros(nodes), np.full(nodes, hours))
    expected = np.full(nodes, process.per_node_hour * hours)
    found = draw_faults(process, use, expected, lambda row, uniform: uniform * hours, rng)
    shares = np.array([*process.kinds.values()])
    kinds = rng.choice([*process.kinds], int(found.event.max(initial=-1)) + 1, p=shares / shares.sum())
    return pl.DataFrame(
        {
            "node": [f"node-{row}" for row in found.row.tolist()],
            "start_h": found.at_h,
            "end_h": found.back_h,
            "kind": kinds[found.event].tolist(),
        },
        schema={"node": pl.String, "start_h": pl.Float64, "end_h": pl.Float64, "kind": pl.String},
    ).sort("start_h", "node")
