"""`pharoah-provider nodes contexts` and `nodes repaired`: groups of nodes, their levels, and what is new in them."""

from collections.abc import Mapping
from typing import Annotated, TypedDict

import typer

from federation.base.clock import date, now_hour
from federation.base.console import AsJson
from federation.base.screen import say
from provider_server.fleet.analysis.cold_start import Newcomer
from provider_server.fleet.learning import hardware, on_probation
from provider_server.fleet.learning.benchmark_jobs import FILE, read
from provider_server.fleet.learning.hardware import Observed
from provider_server.fleet.learning.new_contexts import step_times
from provider_server.program.reporting.findings_text import StepTimeRow, step_row, step_words
from provider_server.program.verbs.console import Home, nothing_yet, print_rows, required
from provider_server.program.verbs.feed import End, Files, Sorted, Start, Stock, open_feed, say_quality


class ContextRow(TypedDict):
    """A context and its failure rate with a 95% interval; `nodes_by_level` from level 0 on.

    `step_time` is null before any benchmark job ran.
    """

    context: int
    description: str
    nodes: int
    failures_per_1000_node_hours: float
    low: float
    high: float
    nodes_by_level: list[int]
    step_time: StepTimeRow | None


def contexts(
    home: Home = None,
    file: Files = None,
    inventory: Stock = None,
    start: Start = None,
    end: End = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="Split contexts by this feature, whatever the evidence.")
    ] = None,
    *,
    in_order: Sorted = False,
    as_json: AsJson = False,
) -> None:
    """Group nodes into contexts by the features that predict failures, and find build-up levels, from telemetry.

    Where benchmark jobs of this home ran, contexts also differ in how fast these were.
    """
    place = required(home)
    feed = open_feed(place, file or (), inventory, start, end, in_order=in_order)
    repairs = hardware.load_repairs(place)
    before = hardware.load(place)
    jobs = read(place / FILE) if (place / FILE).exists() else ()
    window, stock, asked = feed.window, feed.inventory, feature or ()
    found = hardware.observe(feed.source, window, stock, before, asked, repairs, feed.metrics, jobs)
    steps = step_times(jobs, found.kept.contexts)
    hardware.keep(place, found.kept)
    say_quality(found.quality, found.doubts)
    say(_selection_line(found))
    print_rows(
        [_context_row(found, number, steps) for number in range(len(found.kept.contexts.contexts))],
        _context_line,
        as_json=as_json,
    )


def _selection_line(found: Observed) -> str:
    features = found.kept.contexts.features
    if not features:
        return f"no feature predicts the {found.failures:.0f} failures: all nodes form one context; see --feature"
    return f"{found.failures:.0f} failures; contexts differ in {', '.join(features)}"


def _context_row(found: Observed, place: int, steps: Mapping[str, Newcomer]) -> ContextRow:
    one = found.kept.contexts.contexts[place]
    levels = [found.kept.levels.get(node, 0) for node in one.nodes]
    step = steps.get(hardware.label_of(one.number))
    return {
        "context": one.number,
        "description": one.description,
        "nodes": len(one.nodes),
        "failures_per_1000_node_hours": one.failures_per_1000_node_hours,
        "low": one.low,
        "high": one.high,
        "nodes_by_level": [levels.count(level) for level in range(4)],
        "step_time": step_row(step),
    }


def _context_line(row: ContextRow) -> str:
    levels = "/".join(map(str, row["nodes_by_level"]))
    return (
        f"context {row['context']}: {row['description']}; {row['failures_per_1000_node_hours']:.2f} failures per 1,000"
        f" node-hours ({row['low']:.2f}–{row['high']:.2f}); nodes at build-up level 0/1/2/3: {levels}"
        f"{step_words(row['step_time'])}"
    )


class RepairedRow(TypedDict):
    """A node, from when its build-up level counts anew, and its level before; null if it is not known.

    It is on probation at `level` from then on, and at level 0 by `probation_until_hour`.
    """

    node: str
    from_hour: int
    level_before: int | None
    level: int
    probation_until_hour: int


def repaired(
    node: Annotated[list[str], typer.Argument(help="Names of the nodes, as in telemetry.")],
    home: Home = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Record that hardware of nodes was replaced: their build-up begins anew, and they are on probation for a while."""
    place = required(home)
    kept = hardware.load(place)
    if kept is None:
        raise nothing_yet("no nodes known yet: run `pharoah-provider nodes contexts`")
    from_hour = int(now_hour()) + 1
    new = hardware.record_repairs(place, node, from_hour, kept)
    probation = on_probation.load(place)
    rows: list[RepairedRow] = [
        {
            "node": one.node,
            "from_hour": one.from_hour,
            "level_before": kept.levels.get(one.node),
            "level": probation.level(one.node, one.from_hour),
            "probation_until_hour": one.from_hour + probation.lasts_h(),
        }
        for one in new
    ]
    print_rows(rows, _repaired_line, as_json=as_json)


def _repaired_line(row: RepairedRow) -> str:
    before = "" if row["level_before"] is None else f", after level {row['level_before']}"
    return (
        f"{row['node']}: on probation at level {row['level']}{before}, until {date(row['probation_until_hour'])};"
        f" its history before {date(row['from_hour'])} no longer counts"
    )
