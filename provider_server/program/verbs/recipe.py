"""The verb that says which metrics are worth their samples: `nodes recipe`."""

from pathlib import Path
from typing import Annotated, TypedDict

import typer

from federation.base.clock import now_hour
from federation.base.console import AsJson, Force, check_new
from federation.base.screen import say
from provider_server.fleet.analysis.metric_worth import Beyond, Change, Judged
from provider_server.fleet.learning import hardware
from provider_server.fleet.learning.recipe import (
    BYTES,
    WHY,
    Advice,
    Gathered,
    Worth,
    advise,
    gather,
    recommended,
    total_samples,
)
from provider_server.fleet.learning.signatures import metrics_of
from provider_server.fleet.telemetry.catalogue import METRICS
from provider_server.program.verbs import missing_metrics
from provider_server.program.verbs.console import Home, nothing_yet, print_rows, required
from provider_server.program.verbs.feed import End, Files, Sorted, Start, Stock, hours_asked, open_feed

LACKING_H = 24  # a metric of which nothing came in so many hours is missing
LEAST_FAILURES = 30  # below, nothing could be left out at any tolerance that one would accept


class FollowedRow(TypedDict):
    """Node-hours at risk that were raised, failures in them, and the number to expect had they not been."""

    node_hours: int
    failures: int
    expected: float


class ContextWorthRow(FollowedRow):
    """The same in one context; null: nodes without one."""

    context: int | None


class WorthRow(TypedDict):
    """What a signal raised, and that in words. `alone`: beyond all others; a fit without it loses the rest, later."""

    rises: int
    raised: FollowedRow
    contexts: list[ContextWorthRow]
    alone: FollowedRow
    figure: str
    log_likelihood_lost: float
    concordance_lost: float


class MetricRow(TypedDict):
    """A metric: what is to become of it, what it costs a node, and what it is worth; null: no signal, or never seen."""

    metric: str
    decision: str
    why: str
    series: float
    samples_per_day: float
    bytes_per_day: float
    interval_s: int | None
    recommended_interval_s: int | None
    worth: WorthRow | None


class JudgedRow(TypedDict):
    """Figures of later hours: with all metrics, with those of the recipe, and the difference with its 95% interval."""

    all: float
    recipe: float
    difference: float
    low: float
    high: float


class RecipeRow(TypedDict):
    """The recipe, its cost in samples of a node a day, and what it changes in hours that it was not chosen on."""

    start_hour: int
    end_hour: int
    node_hours: int
    failures: int
    tolerance: float
    metrics: list[MetricRow]
    put_back: list[str]
    samples_per_day: float
    recipe_samples_per_day: float
    same_interval_samples_per_day: float
    log_likelihood: JudgedRow
    concordance: JudgedRow
    caught: JudgedRow


def recipe(
    home: Home = None,
    file: Files = None,
    inventory: Stock = None,
    start: Start = None,
    end: End = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the recipe into this file, for `telemetry.recipe` of provider.toml.", show_default=False
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Share of failures that metrics which are left out may have foretold."),
    ] = 0.02,
    keep: Annotated[list[str] | None, typer.Option(help="A metric to keep in any case.", show_default=False)] = None,
    runs: Annotated[
        list[str] | None,
        typer.Option(
            help="A job of `benchmark list` like those that run here: what tells of its trouble is kept.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0.0, help="Samples of a node a day, at most.", show_default=False)
    ] = None,
    *,
    missing: Annotated[
        bool, typer.Option("--missing", help="Say which known metrics Prometheus lacks, and what that costs.")
    ] = False,
    in_order: Sorted = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say which metrics foretold failures, what each costs, and which to scrape how often.

    All metrics that can be read are judged, whatever the recipe in the settings asks for.
    """
    place = required(home)
    if unknown := sorted(set(keep or ()) - METRICS.keys()):
        raise typer.BadParameter(f"--keep {unknown[0]}: no metric of metrics.toml")
    asked = frozenset(keep or ()) | metrics_of(runs or ())
    if missing and (file or out):
        raise typer.BadParameter("--missing asks Prometheus for names of metrics, and takes neither --file nor --out")
    if missing:
        last = int(now_hour()) + 1 if end is None else end
        missing_metrics.show(place, hours_asked(last - LACKING_H if start is None else start, last), as_json=as_json)
        return
    if out:
        check_new(out, force=force)
    feed = open_feed(place, file or (), inventory, start, end, in_order=in_order, whole=True)
    gathered = gather(feed.source, feed.window, feed.inventory, hardware.load(place), hardware.load_repairs(place))
    say(*gathered.quality.lines())
    failures = gathered.evidence.failures
    if failures < LEAST_FAILURES:
        raise nothing_yet(f"{failures} failures at risk; at least {LEAST_FAILURES} are needed: take a longer window")
    advice = advise(gathered, tolerance, asked, budget)
    if out:
        out.write_text(advice.recipe.toml(), encoding="utf-8")
    row = _row(gathered, advice, tolerance, (feed.window.start_hour, feed.window.end_hour))
    if budget is not None and row["recipe_samples_per_day"] > budget:
        say("pharoah-provider: what is left foretells failures, or is needed, and is more than the budget")
    print_rows([row], _lines, as_json=as_json)


def _row(gathered: Gathered, advice: Advice, tolerance: float, window: tuple[int, int]) -> RecipeRow:
    costs, words = gathered.costs, advice.decisions
    every, chosen, (likelihood, concordance, caught) = advice.judged, advice.recipe_judged, advice.change
    return {
        "start_hour": window[0],
        "end_hour": window[1],
        "node_hours": gathered.node_hours,
        "failures": gathered.evidence.failures,
        "tolerance": tolerance,
        "metrics": [_metric_row(gathered, advice, name) for name in words],
        "put_back": sorted(advice.put_back),
        "samples_per_day": total_samples(gathered),
        "recipe_samples_per_day": sum(recommended(gathered, name, word) for name, word in words.items()),
        "same_interval_samples_per_day": sum(
            costs[name].samples_per_day for name, word in words.items() if word in WHY and name in costs
        ),
        "log_likelihood": _judged_row(every, chosen, "log_likelihood", likelihood),
        "concordance": _judged_row(every, chosen, "concordance", concordance),
        "caught": _judged_row(every, chosen, "caught", caught),
    }


def _metric_row(gathered: Gathered, advice: Advice, name: str) -> MetricRow:
    cost, worth = gathered.costs.get(name), advice.worth.get(name)
    kept = advice.recipe.metrics.get(name)
    return {
        "metric": name,
        "decision": advice.decisions[name],
        "why": kept.why if kept else "",
        "series": cost.series if cost else 0.0,
        "samples_per_day": cost.samples_per_day if cost else 0.0,
        "bytes_per_day": BYTES * cost.samples_per_day if cost else 0.0,
        "interval_s": max(1, round(cost.interval_s)) if cost else None,
        "recommended_interval_s": kept.interval_s if kept else None,
        "worth": _worth_row(worth, gathered.contexts) if worth else None,
    }


def _worth_row(worth: Worth, contexts: tuple[int | None, ...]) -> WorthRow:
    return {
        "rises": worth.raised,
        "raised": _followed(worth.after),
        "contexts": [
            {"context": number, **_followed(one)} for number, one in zip(contexts, worth.by_context, strict=True)
        ],
        "alone": _followed(worth.alone),
        "figure": worth.figure,
        "log_likelihood_lost": worth.likelihood_lost,
        "concordance_lost": worth.concordance_lost,
    }


def _followed(one: Beyond) -> FollowedRow:
    return {"node_hours": one.node_hours, "failures": one.failures, "expected": one.expected}


def _judged_row(every: Judged, chosen: Judged, figure: str, change: Change) -> JudgedRow:
    return {
        "all": getattr(every, figure),
        "recipe": getattr(chosen, figure),
        "difference": change.value,
        "low": change.low,
        "high": change.high,
    }


def _lines(row: RecipeRow) -> list[str]:
    before, after, same = (
        row[key] for key in ("samples_per_day", "recipe_samples_per_day", "same_interval_samples_per_day")
    )
    metrics = sorted(row["metrics"], key=lambda one: (one["recommended_interval_s"] is None, -one["samples_per_day"]))
    kept = sum(one["recommended_interval_s"] is not None for one in metrics)
    caught = row["caught"]
    return [
        f"{row['failures']} failures in {row['node_hours']:,} node-hours; {kept} of {len(metrics)} metrics are kept",
        f"samples of a node a day: {before:,.0f} now, {after:,.0f} by the recipe, {same:,.0f} at the intervals of now",
        f"failures in the 5% of node-hours with the highest hazard, later: {caught['all']:.1%} with all metrics,"
        f" {caught['difference']:+.1%} ({caught['low']:+.1%} to {caught['high']:+.1%}) by the recipe",
        *(_metric_line(one) for one in metrics),
    ]


def _metric_line(row: MetricRow) -> str:
    every = row["recommended_interval_s"]
    decision = f"every {every} s: {row['why']}" if every else row["decision"]
    text = f"{row['metric']}: {decision}; {row['series']:.3g} series, {row['samples_per_day']:,.0f} samples a day"
    return f"{text}; {row['worth']['figure']}" if row["worth"] else text
