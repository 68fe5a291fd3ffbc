"""Which failures a plan of tests comes before, per test, against tests at random and a plan that knows true hazards.

    python benchmarks/probes.py [trace] [regret] [developed]

A test *reaches* a failure if it ran on that node at most `LEAD_H` hours before: what a test can find is there by then.
Tests change nothing here: failures come as they would have.

`trace`: the second half (days 174 to 348) of a public trace (InfiniteHBD, 400 GPU servers, hardware failures), by the
model of hazards that was learnt from the first (`provider_server/analysis/probation.toml`) and each node's past.
`ratio` is the share of failures reached over the share of node-hours that lie within `LEAD_H` after a test, which is
what tests at random reach: the ratio per minute of test. `developed` is the first half.

`regret`: fleets of 400 nodes whose hazards differ (gamma frailty, and after each repair, by a curve drawn anew for each
fleet), with jobs on 80% of nodes, where no test can run. The model is learnt from half a year of the fleet, and plans
the next half under 1% of node-hours, by tests of 15 and of 90 minutes (levels 3 and 4 of `dcgmi diag`; NVIDIA says
about 15 for the one, the other is assumed). `regret` is 1 less what it reaches over what the same plan reaches that
knows the true hazards. `in_turn` is the same plan where all hazards are taken for equal.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.figures import Figure, main
from benchmarks.placement import LOOK_H, trace as rates_of
from benchmarks.probation import END_H, FIRST_H, NODES, SPLIT_H
from federation.protocol.life_table import Floats
from provider_server.analysis.probation import EDGES_H, fit_probation, standing
from provider_server.analysis.probe_plan import LEAD_H, Probe, ProbeState, plan
from provider_server.analysis.recurrent import spells

LONG, LONGEST = Probe("level 3", 15.0), Probe("level 4", 90.0)  # of `dcgmi diag`
DAY_H, MINUTES = 24.0, 60.0
BUDGETS = (0.0025, 0.005, 0.01, 0.022, 0.05)  # tests per node and day
SHARE = 0.01  # of node-hours, for `regret`
BUSY, JOB_H = 0.8, 12.0
HALF_YEAR_H, FLEETS = 4368.0, 10


@dataclass(frozen=True, eq=False)
class Ran:
    """When tests ran and where, (tests,) each."""

    node: NDArray[np.int64]
    at_h: Floats

    def reaches(self, node: int, at_h: float) -> bool:
        """Whether a test of a node ran within `LEAD_H` before a time."""
        times = self.at_h[self.node == node]
        return bool(np.any((times < at_h) & (times >= at_h - LEAD_H)))

    def covered(self, node_hours: float) -> float:
        """The share of node-hours within `LEAD_H` after a test, each hour once."""
        order = np.lexsort((self.at_h, self.node))
        node, at_h = self.node[order], self.at_h[order]
        until = np.append(np.where(node[1:] == node[:-1], np.diff(at_h), np.inf), np.inf) if len(node) else at_h
        return float(np.minimum(until[: len(node)], LEAD_H).sum() / node_hours)


def ran(
    rates: Floats, begin_h: float, hours: int, test: Probe, share: float, busy: NDArray[np.bool_] | None = None
) -> Ran:
    """The tests of a plan that is made anew at each look, of whole `hours`, by rates (looks, nodes).

    Where a node is `busy` (hours, nodes) the test waits, until the next look at most.
    """
    tested = np.full(NODES, -np.inf)
    done: list[tuple[int, float]] = []
    saved, a_look = 0.0, share * NODES * hours * MINUTES
    fading = np.exp(-np.arange(1.0, hours + 1.0) / JOB_H)
    for look, rate in enumerate(np.nan_to_num(rates)):
        now_h, idle = begin_h + look * hours, np.ones((NODES, hours))
        now_busy = np.zeros((hours, NODES), np.bool_) if busy is None else busy[look * hours : (look + 1) * hours]
        if busy is not None:
            idle = (1.0 - BUSY) * (1.0 - fading) + np.where(now_busy[0][:, None], 0.0, fading)
        since = np.minimum(now_h - tested, 1e6)[:, None]
        state = ProbeState(np.repeat(rate[:, None], hours, axis=1), np.ones((NODES, 1)), since, np.ones(NODES), idle)
        saved += a_look
        for visit in plan(state, [test], share, saved - a_look):
            free = np.flatnonzero(~now_busy[visit.hour :, visit.node])
            if not len(free):
                continue
            saved -= visit.minutes
            tested[visit.node] = now_h + visit.hour + float(free[0])
            done.append((visit.node, float(tested[visit.node])))
    node, at_h = np.array(done, np.float64).reshape(-1, 2).T
    return Ran(node.astype(np.int64), at_h)


# ---- the trace -------------------------------------------------------------------------------------------------------


def on_trace(begin_h: float, end_h: float) -> Figure:
    """By tests per node and day."""
    of = rates_of(begin_h, end_h, 1.0)
    failures = [(node, at_h) for at_h, node, is_up, failed in of.changes if failed and not is_up]
    node_hours = float(np.isfinite(of.rates).sum())
    found = []
    for budget in BUDGETS:
        tests = ran(of.rates, begin_h, 1, LONG, budget * LONG.minutes / (DAY_H * MINUTES))
        reached, covered = float(np.mean([tests.reaches(*one) for one in failures])), tests.covered(node_hours)
        found.append(
            {
                "tests_per_node_day": budget,
                "tests": len(tests.node),
                "share_of_node_hours": round(len(tests.node) * LONG.minutes / MINUTES / node_hours, 6),
                "covered": round(covered, 4),
                "reached": round(reached, 3),
                "ratio": round(reached / covered, 2),
            }
        )
    return {"failures": len(failures), "by_budget": found}


def trace() -> Figure:
    """The second half."""
    return on_trace(SPLIT_H, END_H)


def developed() -> Figure:
    """The first half."""
    return on_trace(FIRST_H, SPLIT_H)


# ---- against a plan that knows ---------------------------------------------------------------------------------------


def fleet(rng: np.random.Generator) -> tuple[pl.DataFrame, Callable[[float], Floats]]:
    """Outages of a year, and the true hazards (nodes,) at an hour; nan where a node is down."""
    frailty = rng.gamma(0.5, 2.0, NODES)
    edges = np.array(EDGES_H)
    ratio = 1.0 + rng.uniform(5.0, 40.0) * np.exp(-np.arange(len(edges) + 1) * rng.uniform(0.5, 1.2))
    base = 1.5e-4 / np.mean(frailty)
    back, down = np.full(NODES, -np.inf), np.zeros(NODES)
    outages = []
    returns: list[list[tuple[float, float]]] = [[] for _ in range(NODES)]
    for hour in range(int(2 * HALF_YEAR_H)):
        band = np.searchsorted(edges, hour - back, side="right")
        hazard = base * frailty * np.where(np.isfinite(back), ratio[band], 1.0)
        for node in np.flatnonzero((rng.random(NODES) < hazard) & (down <= hour)).tolist():
            down[node] = back[node] = hour + 1.0 + rng.exponential(24.0)
            outages.append((f"n{node:03}", float(hour) + rng.random(), float(back[node]), "hardware"))
            returns[node].append((outages[-1][1], float(back[node])))

    def true(at_h: float) -> Floats:
        found = np.empty(NODES)
        for node, times in enumerate(returns):
            before = [pair for pair in times if pair[0] < at_h]
            since = at_h - before[-1][1] if before else None
            times_usual = 1.0 if since is None else ratio[int(np.searchsorted(edges, since, side="right"))]
            found[node] = np.nan if since is not None and since < 0 else base * frailty[node] * times_usual
        return found

    schema = {"node": pl.String, "start_h": pl.Float64, "end_h": pl.Float64, "kind": pl.String}
    return pl.DataFrame(outages, schema=schema, orient="row"), true


def regret_of(seed: int, test: Probe) -> Figure:
    """One fleet."""
    rng = np.random.default_rng(seed)
    outages, true = fleet(rng)
    names = [f"n{node:03}" for node in range(NODES)]
    first = outages.filter(pl.col("start_h") < HALF_YEAR_H)
    first = first.with_columns(end_h=pl.when(pl.col("end_h") < HALF_YEAR_H).then("end_h"))
    model = fit_probation(spells(first, names, 0.0, HALF_YEAR_H))
    both = spells(outages, names, 0.0, 2 * HALF_YEAR_H)
    looks = int(HALF_YEAR_H / LOOK_H)
    known = np.full((looks, NODES), np.nan)
    for look in range(looks):
        now = standing(model, both, HALF_YEAR_H + look * LOOK_H)
        known[look, [int(name[1:]) for name in now["node"]]] = now["rate"].to_numpy()
    exact = np.array([true(HALF_YEAR_H + look * LOOK_H) for look in range(looks)])
    busy = _busy(rng, int(HALF_YEAR_H))
    later = both.failures.filter(pl.col("start_h") >= HALF_YEAR_H)
    failures = [(int(name[1:]), at_h) for name, at_h in later.select("node", "start_h").iter_rows()]
    even = np.where(np.isfinite(exact), 1e-4, np.nan)
    made = {
        name: ran(rates, HALF_YEAR_H, int(LOOK_H), test, SHARE, busy)
        for name, rates in (("model", known), ("truth", exact), ("in_turn", even))
    }
    reached = {name: float(np.mean([tests.reaches(*one) for one in failures])) for name, tests in made.items()}
    used = {name: len(tests.node) * test.minutes / MINUTES / (NODES * HALF_YEAR_H) for name, tests in made.items()}
    return {"reached": reached, "used": used, "failures": len(failures)}


def _busy(rng: np.random.Generator, hours: int) -> NDArray[np.bool_]:
    """Whether a node has a job, (hours, nodes): a chain with mean `BUSY`, and jobs and gaps that fade with `JOB_H`."""
    stays = np.exp(-1.0 / JOB_H)
    found = np.empty((hours, NODES), np.bool_)
    found[0] = rng.random(NODES) < BUSY
    for hour in range(1, hours):
        anew = rng.random(NODES) >= stays
        found[hour] = np.where(anew, rng.random(NODES) < BUSY, found[hour - 1])
    return found


def regret() -> Figure:
    """Means over fleets, and least and most of the regret."""
    return {test.name.replace(" ", "_"): _regret(test) for test in (LONG, LONGEST)}


def _regret(test: Probe) -> Figure:
    found = [regret_of(1000 + seed, test) for seed in range(FLEETS)]
    names = ("model", "truth", "in_turn")
    each = [1.0 - one["reached"]["model"] / one["reached"]["truth"] for one in found]
    return {
        "fleets": FLEETS,
        "reached": {name: round(float(np.mean([one["reached"][name] for one in found])), 3) for name in names},
        "used": {name: round(float(np.mean([one["used"][name] for one in found])), 5) for name in names},
        "regret": [round(float(value), 3) for value in (np.mean(each), min(each), max(each))],
    }


if __name__ == "__main__":
    main(trace, regret, developed)
