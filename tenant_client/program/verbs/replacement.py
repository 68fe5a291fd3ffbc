"""The verb that plans which node of a lease to replace: `show --only replacement`."""

from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from federation.base.clock import now_hour
from federation.base.console import AsJson
from federation.base.hostlist import hostlist
from federation.base.screen import show, show_json
from federation.base.sqlite import Connection
from tenant_client.doctor.advice.explanation import explain
from tenant_client.doctor.advice.failure_facts import Known, facts_of
from tenant_client.doctor.advice.hints import HintLog, reason_of, standing
from tenant_client.doctor.advice.replacement import Costs, Decision, HazardFact, Nodes, ReplacementPlan, plan
from tenant_client.doctor.records.attempts import AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.program.verbs.console import Home, Latest, Lease, journalled, require

FINE, REPLACE, ISOLATE = 0, 1, 3


def replacement(
    home: Home,
    lease: Lease = "",
    spare: Annotated[
        list[str] | None, typer.Option("--spare", help="A spare node, in order of preference; repeatable.")
    ] = None,
    nodes: Annotated[
        str, typer.Option(help="Its nodes in the order of their ranks, by commas. Default: Slurm's list.")
    ] = "",
    ranks_per_node: Annotated[int, typer.Option(min=1, help="Ranks on each node.")] = 1,
    hours_left: Annotated[float, typer.Option(min=0.0, help="Hours that the lease still lasts.")] = 24.0,
    timeout_minutes: Annotated[float, typer.Option(min=0.0, help="Minutes after which a hang times out.")] = 30.0,
    failure_minutes: Annotated[float, typer.Option(min=0.0, help="Minutes that a failure loses.")] = 30.0,
    replacement_minutes: Annotated[float, typer.Option(min=0.0, help="Minutes that a replacement takes.")] = 1.0,
    *,
    latest: Latest = False,
    as_json: AsJson = False,
) -> None:
    """Plan which node of a running lease to take out, which to let in, why, how surely, and the minutes saved.

    From what the watch says now, the explanation, and the provider's hints. Nothing is sent, and nothing is executed.
    Where it is undecided, the plan has the steps: isolate the group, test it, return what passes.

    Exit code 0: keep all nodes. 1: replace one. 3: undecided.
    """
    require(lease, latest=latest)
    with closing(open_database(journalled(home))) as connection:
        journal, known = Journal(connection), Known.of(connection)
        unit = journal.find(lease)
        placed, hazard = journal.node_lists().get(unit, ""), _hazard(connection, unit)
    names = tuple(name for name in nodes.split(",") if name) or tuple(hostlist(placed))
    running = [one for one in known.attempts if one.unit == unit and one.state is AttemptState.RUNNING]
    facts = facts_of(known, running[-1]) if running else None
    found = plan(
        facts.findings if facts else (),
        explain(facts) if facts else None,
        hazard,
        Nodes(names, ranks_per_node, tuple(spare or ())),
        Costs(hours_left, timeout_minutes, failure_minutes, replacement_minutes),
    )
    if as_json:
        show_json(found)
    else:
        show(*_lines(unit, found))
    raise typer.Exit({Decision.KEEP: FINE, Decision.REPLACE: REPLACE, Decision.ISOLATE: ISOLATE}[found.decision])


def _hazard(connection: Connection, unit: str) -> HazardFact:
    """Of the hint that stands; the usual hazard is the hinted one over the hint's ratio."""
    log = HintLog(connection)
    hints = list(standing(log.hints(unit), now_hour(), log.over()))
    if not hints:
        return HazardFact()
    from tenant_client.doctor.advice.lease_hazard import hinted_per_hour  # loads numpy; ranks wait for the plan

    hint = hints[-1]
    now = hinted_per_hour(hint.probability, hint.within_hours)
    return HazardFact(now, now / max(1.0, hint.ratio), f"hint: {reason_of(hint)}")


def _lines(unit: str, found: ReplacementPlan) -> Iterator[str]:
    if found.node_out:
        saved = f"confidence {found.confidence:.0%}, {found.minutes_saved:.0f} minutes saved"
        yield f"{unit}: replace {found.node_out} by {found.node_in} ({saved}): {found.why}"
    else:
        yield f"{unit}: {found.decision}: {found.why}"
    yield from (f"  {place}. {step}" for place, step in enumerate(found.steps, 1))
