"""What a recipe of data saves and loses, in fleets whose informative metrics are known. JSON on stdout.

    python -m benchmarks.recipe [planted] [rare] [interval] [same]

`planted` draws fleets of 160 nodes that report every signal of `buildup.toml` every 15 s, and ten metrics more that no
level is made of. Of the signals, drawn anew for each fleet, three foretell a cause each and nothing else does; two or
three are copies of these on the same nodes; six drift and mean nothing; the rest is still. The recipe is made on five
weeks and judged on three weeks that it never saw, by the same fit. `rare` gives one cause a fiftieth to a fifth of the
usual drifts, and counts how often its only metric is left out. `same` holds the scores that both use against those of
`BuildUp`. `interval` thins samples of counters and temperatures from 15 s to 120 s and compares levels. Roles and
drifts are drawn; learner and generator share `buildup.toml` and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.random import Generator

from benchmarks.figures import Figure, main
from provider_server.analysis.buildup import CAP, FRESH, STATUS as LEVEL_STATUS, BuildUp, signals
from provider_server.analysis.fleet_events import hours_at_risk
from provider_server.analysis.metric_worth import Change, Evidence, Fitted, Scores, changes, thresholds_reached
from provider_server.fleet.telemetry.quality import Tally
from provider_server.fleet.telemetry.recipe import FAILURES
from provider_server.fleet.telemetry.samples import HOUR_S, Chunk, SeriesBook, Source, Window
from provider_server.fleet.telemetry.summaries import EVENT_SCHEMA, REPORTED, STATUS, HourSummary, Summaries
from provider_server.learning.recipe import Advice, Cost, Gathered, advise, at_risk_arrays, recommended, total_samples

FLEETS, NODES, WEEKS, UNSEEN_WEEKS, FIRST = 6, 160, 5, 3, 480_000
WARM_H, SCRAPE_S = 72, 15
NAMES = [f"n{number:04}" for number in range(NODES)]
BASE_PER_HOUR = 1 / 600
TIMES = 12.0  # as often as usual, of a cause that a drift foretells
LEAD_H, STAYS_H = 48.0, 96.0
DRIFTS_PER_NODE_HOUR = 1 / 4000
CAUSES = (79, 74, 119)
EXTRA = ("power", "energy", "sm_clock", "memory_clock", "gpu_utilisation", "dram_active", "memory_used", "load",
         "memory_available", "boot_time")  # fmt: skip
TOLERANCE = 0.02


@dataclass(frozen=True, eq=False)
class Fleet:
    """Roles by metric, drift of each signal (signals, hours, nodes) in doublings or units, and Xid codes by hour."""

    informative: tuple[str, ...]
    copies: tuple[str, ...]
    noise: tuple[str, ...]
    drift: np.ndarray
    code: np.ndarray


def drawn(rng: Generator, hours: int, rare: float = 1.0) -> Fleet:
    """A fleet; `rare` times as often as the other causes comes the first one."""
    names = [one.metric for one in signals()]
    order = [str(name) for name in rng.permutation(names)]
    informative, copies, noise = tuple(order[:3]), tuple(order[3:6]), tuple(order[6:12])
    drift = np.zeros((len(names), hours, NODES))
    code = np.zeros((hours, NODES))
    for place, (name, copy) in enumerate(zip(informative, copies, strict=True)):
        share = rare if place == 0 else 1.0
        sick = _drifts(rng, hours, DRIFTS_PER_NODE_HOUR * share)
        drift[names.index(name)] = sick
        if place:  # the rare cause has one metric alone
            drift[names.index(copy)] = np.roll(sick, 6, axis=0) * 0.9
        risen = sick >= 3.0
        code = np.where(risen & (rng.random(code.shape) < BASE_PER_HOUR * TIMES), CAUSES[place], code)
    for name in noise:
        drift[names.index(name)] = _drifts(rng, hours, DRIFTS_PER_NODE_HOUR)
    usual = rng.random(code.shape) < BASE_PER_HOUR
    code = np.where(usual & (code == 0), rng.choice(CAUSES[1:], code.shape), code)
    return Fleet(informative, copies, noise, drift, code)


def _drifts(rng: Generator, hours: int, per_hour: float) -> np.ndarray:
    """Drift (hours, nodes): it climbs for `LEAD_H`, stays for `STAYS_H`, and is repaired."""
    drift = np.zeros((hours, NODES))
    for hour, node in zip(*np.nonzero(rng.random(drift.shape) < per_hour), strict=True):
        span = int(LEAD_H + STAYS_H)
        course = np.minimum(np.arange(span) / LEAD_H, 1.0) * rng.uniform(4.0, 8.0)
        part = drift[hour : hour + span, node]
        np.maximum(part, course[: len(part)], out=part)
    return drift


def values_of(fleet: Fleet, rng: Generator) -> np.ndarray:
    """What each signal says (signals, hours, nodes): counts that keep a total at its drift, or a mean near 60."""
    found = np.empty(fleet.drift.shape)
    for place, one in enumerate(signals()):
        drift = fleet.drift[place]
        if one.summary == "mean":
            found[place] = 60.0 + one.unit * drift * 1.3 + rng.normal(0.0, 0.3 * one.unit, drift.shape)
            continue
        aim = one.unit * (2.0**drift - 1.0) * 1.3
        before = np.concatenate([aim[:1], aim[:-1]])
        mean = np.maximum(aim - one.kept * before, 0.0) + 0.02 * one.unit
        found[place] = rng.poisson(rng.gamma(4.0, mean / 4.0))
    return found


def scores_of(values: np.ndarray) -> np.ndarray:
    """Scores (signals, hours, nodes) as `BuildUp` makes them of one device a node; `same` compares the two."""
    counts = np.array([one.summary == "increase" for one in signals()])[:, None]
    kept, unit = (np.array([[getattr(one, name)] for one in signals()]) for name in ("kept", "unit"))
    total, found = np.zeros((len(values), values.shape[2])), np.empty(values.shape)
    for hour in range(values.shape[1]):
        value = values[:, hour]
        away = (1.0 - kept) * (value - np.median(value, axis=1, keepdims=True))
        total = kept * total + np.where(counts, value, away)
        x = np.where(counts, np.log2(1.0 + np.maximum(total, 0.0) / unit), total / unit)
        typical = np.median(x, axis=1, keepdims=True)
        spread = np.maximum(1.0, 1.4826 * np.median(np.abs(x - typical), axis=1, keepdims=True))
        most = typical + CAP * spread
        found[:, hour] = (np.minimum(x, most) - typical) / spread
        total = np.minimum(total, unit * np.where(counts, 2.0**most - 1.0, most))
    return found


def same() -> Figure:
    """Scores of 96 hours by `BuildUp` itself that reach another number of thresholds than those of `scores_of`."""
    rng = np.random.default_rng(1)
    fleet = drawn(rng, 96)
    values, build_up, differ = values_of(fleet, rng), BuildUp(), 0
    mine = thresholds_reached(scores_of(values))
    table = list(signals())
    nodes = pl.DataFrame({"node": NAMES, "status": [REPORTED] * NODES}, schema_overrides={"status": STATUS})
    base = {
        "node": NAMES * len(table),
        "device": ["0"] * (NODES * len(table)),
        "metric": np.repeat([one.metric for one in table], NODES),
    }
    for hour in range(96):
        value = values[:, hour].ravel()
        rows = pl.DataFrame(base).with_columns(increase=pl.Series(value), mean=pl.Series(value))
        shown = build_up.add(HourSummary(FIRST + hour, rows, nodes, pl.DataFrame()))
        theirs = thresholds_reached(shown.select([one.metric for one in table]).to_numpy().T.astype(np.float64))
        differ += int((theirs != mine[:, hour]).sum())
    return {"scores": int(mine.size), "raised": int((mine >= 2).sum()), "differ": differ}


def seen(fleet: Fleet, rng: Generator) -> Gathered:
    """All hours of the fleet, as `recipe` gathers them."""
    reached = thresholds_reached(scores_of(values_of(fleet, rng)))
    scores = Scores(tuple(one.metric for one in signals()), reached, np.zeros(reached.shape, np.bool_))
    hours = fleet.code.shape[0]
    levels = pl.DataFrame(
        {
            "node": NAMES * hours,
            "hour": np.repeat(np.arange(FIRST, FIRST + hours), NODES),
            "level": np.zeros(hours * NODES, np.int8),
            "status": pl.Series([FRESH] * (hours * NODES), dtype=LEVEL_STATUS),
        }
    )
    hour, node = np.nonzero(fleet.code)
    events = pl.DataFrame(
        {
            "node": [NAMES[place] for place in node],
            "device": "0",
            "metric": "xid",
            "time_s": HOUR_S * (FIRST + hour) + 1800.0,
            "code": fleet.code[hour, node],
        },
        schema=EVENT_SCHEMA,
    )
    at_risk, cause = at_risk_arrays(hours_at_risk(levels, events), NAMES, FIRST, FIRST + WARM_H, scores)
    return Gathered(
        Evidence(scores, at_risk, cause, np.zeros(NODES, np.intp)),
        {
            name: Cost(1.0, 86_400.0 / SCRAPE_S, float(SCRAPE_S))
            for name in (*scores.metrics, *EXTRA, *sorted(FAILURES))
        },
        (None,),
        frozenset(),
        hours * NODES,
        Tally().quality(),
    )


def made(all_hours: Gathered, weeks: int) -> tuple[Gathered, Advice, Evidence]:
    """What is known after the first weeks, the advice from it, and the evidence of the weeks after."""
    end = WARM_H + 168 * weeks
    known = Gathered(
        all_hours.evidence.between(0, end),
        all_hours.costs,
        all_hours.contexts,
        all_hours.features,
        all_hours.node_hours,
        all_hours.quality,
    )
    unseen = all_hours.evidence.between(end, len(all_hours.evidence.at_risk))
    return known, advise(known, TOLERANCE, frozenset(), None), unseen


def planted() -> Figure:
    """Cost saved, and what it costs in weeks that were never seen."""
    rows = []
    for seed in range(FLEETS):
        rng = np.random.default_rng([seed, 8])
        fleet = drawn(rng, WARM_H + 168 * (WEEKS + UNSEEN_WEEKS))
        known, advice, unseen = made(seen(fleet, rng), WEEKS)
        metrics = known.evidence.scores.metrics
        left = [name for name in metrics if name in advice.recipe.metrics]
        every, chosen = Fitted.of(known.evidence, unseen, metrics), Fitted.of(known.evidence, unseen, left)
        judged = every.judge()
        likelihood, concordance, caught = changes(every, chosen, rng)
        causes = [{name, *([copy] if place else [])} for place, (name, copy) in
                  enumerate(zip(fleet.informative, fleet.copies, strict=True))]  # fmt: skip
        same = sum(known.costs[name].samples_per_day for name in advice.recipe.metrics)
        by_recipe = sum(recommended(known, name, word) for name, word in advice.decisions.items())
        rows.append(
            {
                "failures": known.evidence.failures,
                "unseen_failures": unseen.failures,
                "signals_kept": len(left),
                "noise_left_out": len(set(fleet.noise) - set(left)),
                "causes_without_a_metric": sum(not (cause & set(left)) for cause in causes),
                "saved_same_interval": 1.0 - same / total_samples(known),
                "saved": 1.0 - by_recipe / total_samples(known),
                "concordance": judged.concordance,
                "concordance_change": _row(concordance),
                "caught": judged.caught,
                "caught_change": _row(caught),
                "log_likelihood_change": _row(likelihood),
            }
        )
    return {"fleets": rows} | _means(rows)


def _row(change: Change) -> dict[str, float]:
    return {"value": change.value, "low": change.low, "high": change.high}


def _means(rows: list[Figure]) -> Figure:
    """Means over fleets; of changes with a 95% interval by Student's t over fleets, and the worst fleet."""
    from scipy.stats import t

    found: Figure = {"causes_without_a_metric": sum(row["causes_without_a_metric"] for row in rows)}
    plain = ("failures", "unseen_failures", "signals_kept", "noise_left_out", "saved_same_interval", "saved",
             "concordance", "caught")  # fmt: skip
    found |= {f"mean_{name}": float(np.mean([row[name] for row in rows])) for name in plain}
    for name in ("concordance_change", "caught_change", "log_likelihood_change"):
        values = np.array([row[name]["value"] for row in rows])
        half = float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
        mean = float(values.mean())
        found[name] = {"mean": mean, "low": mean - half, "high": mean + half, "worst": float(values.min())}
    return found


def rare() -> Figure:
    """How often the only metric of a rare cause is left out, by the failures of that cause in the five weeks."""
    counts: dict[str, list[int]] = {}
    for seed in range(8):
        rng = np.random.default_rng([seed, 9])
        fleet = drawn(rng, WARM_H + 168 * WEEKS, rare=(0.02, 0.05, 0.1, 0.2)[seed % 4])
        _, advice, _ = made(seen(fleet, rng), WEEKS)
        failures = int((fleet.code[WARM_H:] == CAUSES[0]).sum())
        band = "0" if failures == 0 else "1" if failures == 1 else "2-4" if failures < 5 else "5+"
        cell = counts.setdefault(band, [0, 0])
        cell[0] += 1
        cell[1] += fleet.informative[0] not in advice.recipe.metrics
    return {"by_failures": {band: {"fleets": cell[0], "left_out": cell[1]} for band, cell in sorted(counts.items())}}


class Thinned(Source):
    """Samples of a counter and a temperature of 40 nodes for six days, every `every`th of those at 15 s."""

    def __init__(self, every: int) -> None:
        self._every = every

    def chunks(self, book: SeriesBook, window: Window) -> Iterator[Chunk]:
        """An hour at a time."""
        rng = np.random.default_rng(3)
        names = ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_GPU_TEMP")
        numbers = [
            [book.number({"__name__": name, "Hostname": f"n{node}", "gpu": "0"}, 1) for node in range(40)]
            for name in names
        ]
        total, each = np.zeros(40), HOUR_S // SCRAPE_S
        for hour in range(window.start_hour, window.end_hour):
            age = np.maximum(hour - window.start_hour - 24.0 - 2 * np.arange(40), 0.0)
            mean = np.where(np.arange(40) % 4 == 0, np.minimum(2.0 ** (age / 12.0), 300.0), 0.2) / each
            counts = total + np.cumsum(rng.poisson(mean, (each, 40)), axis=0)
            total = counts[-1]
            heat = 60.0 + np.where(np.arange(40) % 4 == 1, np.minimum(age * 0.15, 12.0), 0.0)
            warmth = np.round(heat + rng.normal(0.0, 4.0, (each, 40)))
            at = HOUR_S * hour + 5.0 + SCRAPE_S * np.arange(each)
            keep = slice(None, None, self._every)
            for values, series in ((counts, numbers[0]), (warmth, numbers[1])):
                kept = values[keep]
                yield Chunk(
                    np.tile(np.array(series, np.uint32), len(kept)),
                    np.repeat(at[keep], 40),
                    kept.ravel().astype(np.float64),
                    float(HOUR_S * hour),
                )


def interval() -> Figure:
    """Node-hours whose level differs when samples come every 120 s."""
    found = {}
    for every in (1, 120 // SCRAPE_S):
        book, window = SeriesBook(Tally()), Window(FIRST, FIRST + 144, HOUR_S * (FIRST + 145.0))
        build_up, summaries = BuildUp(), Summaries(book, window)
        levels = []
        for chunk in Thinned(every).chunks(book, window):
            levels += [build_up.add(hour).select("node", "hour", "level") for hour in summaries.add(chunk)]
        levels += [build_up.add(hour).select("node", "hour", "level") for hour in summaries.finish()]
        found[every] = pl.concat(levels).sort("hour", "node")["level"].to_numpy()
    often, seldom = found[1], found[120 // SCRAPE_S]
    return {
        "node_hours": len(often),
        "raised": int((often > 0).sum()),
        "differ": int((often != seldom).sum()),
        "raised_but_for_the_interval": int(((often > 0) != (seldom > 0)).sum()),
    }


if __name__ == "__main__":
    main(planted, rare, interval, same)
