"""What somebody should act on now, the most urgent first, each with the page that tells more. Pure.

First what keeps a round from its end, then what the releases show, then nodes. What got better is no action.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from urllib.parse import quote

from federation.base.clock import date, dates
from federation.base.visible import counted_as
from federation.protocol.bundle import PairJudgement
from federation.protocol.warnings import line_of
from federation.protocol.xid_judge import DECIDED
from provider_server.fleet.analysis.buildup import signals
from provider_server.fleet.node_codes import NodeCodeRow
from provider_server.program.pages.fabric import SUSPECTED, FabricView, SpeedView
from provider_server.program.pages.findings import FindingRow
from provider_server.program.pages.fleet import ContextView
from provider_server.program.pages.plans import PlansView
from provider_server.program.pages.snapshot import SHORT, Snapshot
from provider_server.rounds.readiness import Lack
from provider_server.rounds.warned import verdict

MOST_NAMED = 3  # of a kind; the others are counted
RECENT_H = 7 * 24


@dataclass(frozen=True)
class Action:
    """What is to be acted on, what to do, and the address of the page that tells more."""

    what: str
    do: str
    link: str


@dataclass(frozen=True)
class RoundNow:
    """The open round, and the parties it waits for: tenants while it collects, then trustees."""

    round_id: str
    state: str
    start_hour: int
    end_hour: int
    answered: int
    tenants: int
    cohort_minimum: int
    late_tenants: tuple[str, ...]
    late_trustees: tuple[int, ...]


def of_rounds(now: RoundNow | None, overdue_hours: int, lacks: Sequence[Lack]) -> Iterator[Action]:
    """The round that waits, an overdue release, and what the next round lacks: `lacks` has refused plans, too."""
    if now is not None:
        late = now.late_tenants or tuple(f"trustee {index}" for index in now.late_trustees)
        kind = counted_as(len(late), "tenant" if now.late_tenants else "trustee")
        what = f"The round of {dates(now.start_hour, now.end_hour)} waits for {kind}" if late else "A round is open"
        yield Action(what, _some(late) or f"It is {now.state}.", "#rounds")
    if overdue_hours:
        late_for = counted_as(overdue_hours // 24, "day") if overdue_hours >= 48 else counted_as(overdue_hours, "hour")
        yield Action(
            f"A release is overdue by {late_for}", "`pharoah-provider status` names what it waits for.", "#rounds"
        )
    for lack in lacks:
        if lack.urgent:
            many = f": {lack.have} of {lack.need}" if lack.need > 1 else ""
            who = f" ({', '.join(lack.who)})" if lack.who else ""
            yield Action(
                f"The next round lacks {lack.what}{many}", f"{lack.do[:1].upper()}{lack.do[1:]}{who}", "#rounds"
            )


def of_releases(
    seen: Snapshot, suspects: Sequence[str], findings: Sequence[FindingRow], *, unpublished: bool
) -> Iterator[Action]:
    """A release without a report, tenants that may have lied, pairs that fail too often, and sudden rises."""
    if unpublished:
        yield Action(
            "The newest release is in no report yet",
            "`pharoah-provider findings learn` shows whether one was held back, and why.",
            "#reports",
        )
    if suspects:
        who = counted_as(len(suspects), "tenant")
        yield Action(f"{who} may have sent false counts", f"Ask them: {', '.join(suspects)}.", "#rounds")
    if (found := verdict(seen.releases)) and found.alarm:
        yield Action(
            f"Warnings: {line_of(found)}", "Tenants and trustees see the same: mend them, or claim less.", "#rounds"
        )
    yield from _pairs(findings)
    newest = seen.releases[-1].plan.start_hour if seen.releases else 0
    for alarm in seen.alarms:
        if alarm.ratio > 1.0 and alarm.raised_hour >= newest:
            _, _, token = alarm.what.partition(" ")
            text = seen.names.get(token, token[:SHORT])
            thing, since = seen.thing(alarm), date(alarm.since_hour)
            what = (
                f"{thing[:1].upper()}{thing[1:]}: {alarm.ratio:.1f} times as many failures as predicted since {since}"
            )
            yield Action(what, "Ask what changed there at that time.", f"/findings?text={quote(text)}")


def _pairs(findings: Sequence[FindingRow]) -> Iterator[Action]:
    for judgement, verb in ((PairJudgement.WORSE, "fails"), (PairJudgement.CONFOUNDED, "may fail")):
        rows = [one for one in findings if one.judgement == judgement]
        for one in rows[:MOST_NAMED]:
            what = f"Workload {one.workload[:SHORT]} {verb} {one.risk_ratio:.1f} times as often on {one.context_name}"
            yield Action(what, _for_pair(one), f"/findings/{one.key}")
        if len(rows) > MOST_NAMED:
            more = counted_as(len(rows) - MOST_NAMED, "more pair")
            yield Action(f"{more} called {judgement.value}", "", f"/findings?judgement={judgement.value}")


def _for_pair(one: FindingRow) -> str:
    if one.judgement == PairJudgement.CONFOUNDED:
        return "Its script errors differ there, too: look for another cause first."
    return f"Place it on {one.better_on[0]}." if one.better_on else "It is not known to fail less anywhere."


def of_nodes(
    fleet: Sequence[ContextView], fabric: FabricView | None, speed: SpeedView | None, plans: PlansView | None
) -> Iterator[Action]:
    """Hardware groups and parts of the fabric that stand out, and nodes that are worn or due for a test."""
    for one in islice((one for one in fleet if one.stands_out), MOST_NAMED):
        what = f"{one.name} fails {one.ratio:.1f} times as often as the usual node"
        yield Action(what, "Look for what its nodes share; leave long jobs to others.", f"/fleet#group-{one.number}")
    stalling = [one for one in fabric.suspects if one.standing == SUSPECTED] if fabric else []
    for part in sorted(stalling, key=lambda one: -one.jobs)[:MOST_NAMED]:  # those first that take most jobs down
        over = f"; {counted_as(part.jobs, 'job')} ran over it" if part.jobs else ""
        what = f"Jobs stall at {part.switch or 'a spine'}, rail {part.rail}{over}"
        yield Action(what, "`pharoah-provider nodes path` tells which link or port.", "/fabric")
    for pace in [one for one in speed.contexts if one.named][:MOST_NAMED] if speed else ():
        yield Action(
            f"Jobs are slow on {pace.name}", "Compare its clocks, temperatures and links with the others'.", "/fabric"
        )
    worn = [node.name for one in fleet for node in one.nodes if node.raised]
    if count := sum(one.raised for one in fleet):
        what = "1 node is worn" if count == 1 else f"{count:,} nodes are worn"
        yield Action(f"{what} and more likely to fail", _some(worn), "/fleet?raised=yes")
    if plans and (now := [one for one in plans.tests if not one.in_hours]):
        yield Action(
            f"{counted_as(len(now), 'test')} of nodes due now",
            _some([f"{one.node}: {one.test}" for one in now]),
            "/plans",
        )


def of_codes(codes: Sequence[NodeCodeRow], hour: float) -> Iterator[Action]:
    """Nodes whose error codes are their hardware's, the surest first; each once."""
    sure = {one["node"]: one for one in reversed(codes) if one["hardware_probability"] >= DECIDED}
    late = [one for one in reversed(sure.values()) if hour - one["last_hour"] <= RECENT_H]
    for one in late[:MOST_NAMED]:
        what = f"{one['node']}: {one['judgement']}"
        yield Action(what, "Drain and test it; `nodes repaired` tells that it was mended.", _node(one["node"]))
    if len(late) > MOST_NAMED:
        more = counted_as(len(late) - MOST_NAMED, "more node")
        yield Action(f"{more} with errors of their hardware", "`pharoah-provider nodes codes` lists them.", "/fleet")


def of_shifts(seen: Snapshot) -> Iterator[Action]:
    """Groups of which most nodes are above their own past in something that comes before failures."""
    words = {signal.metric: signal.words for signal in signals()}
    for one in seen.shifts[:MOST_NAMED]:
        who = seen.group_name(int(one.group)) if one.group else "the fleet"
        yield Action(
            f"More {words[one.metric]} than in the weeks before on all of {who}",
            "Look for what the nodes share: cooling, power, a driver. No single node stands out.",
            "/fleet",
        )


def _node(name: str) -> str:
    return f"/fleet?text={quote(name)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"
