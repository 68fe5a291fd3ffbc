"""What `nodes hazard` shows from telemetry: how often nodes fail at each level and in each context."""

from pathlib import Path

from federation.base.screen import say
from federation.base.visible import counted_as
from federation.protocol.life_table import PER_NODE_HOURS
from provider_server.fleet.analysis.fleet_events import fit_levels, gather, hardware_failures
from provider_server.fleet.learning import hardware
from provider_server.fleet.learning.hardware import Followed
from provider_server.fleet.telemetry.catalogue import failing
from provider_server.fleet.telemetry.quality import Reason
from provider_server.program.reporting.hazard_text import HazardRow, TelemetryRow, hazard_lines, hazard_row, numbers
from provider_server.program.verbs.console import nothing_yet, print_rows
from provider_server.program.verbs.feed import Feed, say_quality

NONE_SEEN = 3.69  # a Poisson count of this mean is 0 in one of forty draws


def show(home: Path, feed: Feed, *, as_json: bool) -> None:
    """Prints the hazards, and what of the telemetry could not be used; exit 3 where no failure was seen."""
    kept = hardware.load(home)
    seen = hardware.follow_warm(feed.source, feed.window, feed.inventory, kept, hardware.load_repairs(home))
    say_quality(seen.quality, seen.doubts)
    known, first = kept.contexts if kept else None, feed.window.start_hour
    gathered = gather(seen.at_risk(first), numbers(seen.hours.nodes, known))
    if not gathered.failures:
        raise nothing_yet(_without_failure(gathered.node_hours, seen))
    quality: TelemetryRow = {"quality": seen.quality.row(), "doubts": dict(seen.doubts)}
    row: HazardRow = {**hazard_row(gathered, fit_levels(gathered.table), seen.hours.since(first), known), **quality}
    row["left_out"] += [told] if (told := _unseen(seen)) else []
    if not as_json:
        say(*(f"left out: {text}" for text in row["left_out"]))
    print_rows([row], hazard_lines, as_json=as_json)


def _without_failure(node_hours: int, seen: Followed) -> str:
    failures = hardware_failures(seen.events).unique(maintain_order=True)
    if seen.quality.of(Reason.UNKNOWN_METRIC) == seen.quality.read > 0:
        return "no failure could be seen: no metric of this telemetry is known (docs/nodes.md)"
    if not node_hours and not failures.is_empty():
        told = ", ".join(f"{kind} on {node}" for node, _hour, kind in failures.iter_rows())
        count = counted_as(failures.height, "failure")
        return f"no rate, since no node is seen in two consecutive hours, but {count}: {told}"
    if not node_hours:
        return "no node-hours at risk: telemetry shows no node in two consecutive hours"
    if told := _unseen(seen):
        return told
    most = PER_NODE_HOURS * NONE_SEEN / node_hours
    return f"no failure in {node_hours:,} node-hours at risk: at most {most:.2g} per 1,000 (95% bound)"


def _unseen(seen: Followed) -> str:
    """What is said where telemetry has no metric of failures, so that only nodes that fall silent are seen."""
    if failing().keys() & set(seen.totals["metric"]):
        return ""
    return (
        "no failure could be seen but a lost node: nothing here shows Xid codes, failed row remappings or the health"
        f" of GPUs (telemetry has none of {', '.join(failing())}; `nodes recipe --missing` says what lacks)"
    )
