"""`pharoah-provider nodes risk` and `nodes probes`: what a scheduler may go by, which needs no federation."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from federation.base.clock import now_hour
from federation.base.console import AsJson, InputFile
from federation.base.screen import show, show_json
from provider_server.fleet.analysis.node_risk import Bend, known_at
from provider_server.fleet.analysis.risk_calibration import Calibration, Reliability
from provider_server.fleet.hints import node_probes, node_reports, node_risk
from provider_server.fleet.hints.node_probes import ProbeVisit, read_tests
from provider_server.fleet.hints.node_reports import NodeReport
from provider_server.fleet.hints.node_risk import Facts, NodeRisk, RiskRow
from provider_server.fleet.learning.risk_history import learn
from provider_server.fleet.telemetry.inventory import load as load_inventory
from provider_server.program.outputs.slurm_commands import slurm_commands
from provider_server.program.verbs.console import Database, Home, Reports, print_rows, required
from provider_server.program.verbs.feed import End, Stock
from provider_server.program.verbs.outages import Asked, named_of, spells_of
from provider_server.rounds import home as homes
from provider_server.rounds.store.store import Store

Events = Annotated[
    Path | None,
    typer.Option(
        click_type=InputFile(), help="Outages (node, start, end, kind): learn from these alone.", show_default=False
    ),
]


class RisksObject(TypedDict):
    """All nodes at an hour since 1970 (or of the file), and how such probabilities have fared so far.

    `learnt_from` are the failures behind them; 0: rates are those of other fleets. `bend` is what became of hazards.
    """

    at_hour: float
    learnt_from: int
    bend: Bend
    rows: list[RiskRow]
    calibration: tuple[Calibration, ...]
    reliability: tuple[Reliability, ...]


def risk(
    home: Home = None,
    file: Reports = None,
    events: Events = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes in all; with --events.", show_default=False)] = None,
    inventory: Stock = None,
    end: End = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Kind of outage that is a failure; with --events; default: all.")
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of nodes for trials, evaluations and other short jobs.")
    ] = node_risk.SHARE,
    *,
    names: Annotated[
        bool, typer.Option("--names", help="Print only the names of nodes for short jobs, joined by commas.")
    ] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Print commands for Slurm: weights, a reservation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say how likely each node fails within 1, 24 and 168 hours, the riskiest first. Nothing is changed.

    By own outages, repairs and telemetry; before there are any, by what other fleets have published.
    """
    if events:
        asked = Asked(None, end, inventory, nodes, kind or (), None)
        facts, reports = of_events(events, asked)
    else:
        place = required(home)
        facts = Facts.of_home(place, now_hour())
        reports = _reports(place, file, inventory, facts)
    found = node_risk.risks(reports, facts, share)
    if names:
        show(",".join(one.node for one in found if one.jobs == "short"))
    elif slurm:
        show(*slurm_commands(found))
    elif as_json:
        show_json(risks_object(found, facts))
    else:
        show(*map(_risk_line, found))


def of_events(file: Path, asked: Asked) -> tuple[Facts, list[NodeReport]]:
    """What a list of outages says of the nodes that it, or the inventory, names; as of its end."""
    read, found, fleet = spells_of(file, asked)
    facts = Facts.of_outages(learn(found, known_at(read.rows, found.end_h), fleet, asked.kinds))
    return facts, node_risk.of_names(named_of(fleet), facts.at_h, facts)


def _reports(home: Path, file: Path | None, inventory: Path | None, facts: Facts) -> list[NodeReport]:
    """The newest reports, and nodes that outages or the inventory name beside them; NoNodes where there is none."""
    stock = inventory or homes.settings_of(home).telemetry.inventory
    names = {*facts.histories, *(load_inventory(Path(stock)).names if stock else ())}
    known = node_reports.load(file) if file else node_reports.newest(home)
    others = node_risk.of_names(names - {one.node for one in known}, facts.at_h, facts)
    return [*known, *others] or node_reports.known(home, file)


def risks_object(found: Sequence[NodeRisk], facts: Facts) -> RisksObject:
    """As JSON shows them."""
    return RisksObject(
        at_hour=facts.at_h,
        learnt_from=facts.learnt_from,
        bend=facts.history.bend,
        rows=node_risk.rows(found),
        calibration=facts.history.calibrations,
        reliability=facts.history.reliability,
    )


def probes(
    home: Home = None,
    file: Reports = None,
    database: Database = None,
    budget: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of node-hours that tests may take, as 0.01.")
    ] = 0.01,
    hours: Annotated[int, typer.Option(min=1, max=168, help="Plan this many hours.")] = 6,
    tested: Annotated[
        Path | None,
        typer.Option(click_type=InputFile(), help="CSV file of tests that ran: node, test, at.", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Plan which nodes to test, by what and when, so that few node-hours find most defects. Nothing is run.

    Nodes that are likelier to fail, and those not tested for long, come first. Leases are left alone until they end.
    """
    place = required(home)
    now_h, reports = now_hour(), node_reports.known(place, file)
    nodes = node_risk.risks(reports, Facts.of_home(place, now_h))
    busy_until_h = busy_until(place, database, now_h)
    suspicions = {one.node: one.suspicion for one in reports if one.suspicion}
    ran_h = read_tests(tested) if tested else {}
    rows = node_probes.probes(nodes, suspicions, ran_h, busy_until_h, now_h, hours, budget)
    print_rows(rows, _probe_line, as_json=as_json)


def busy_until(home: Path, database: str | None, now_h: float) -> dict[str, float]:
    """The hour at which the leases of each busy node end; a provider that only watches its nodes has none."""
    found: dict[str, float] = {}
    if database or (home / "provider.db").exists():
        with closing(Store(database or home / "provider.db", create=False)) as store:
            for lease, names in store.placed(now_h):
                found |= {name: max(lease.end_h, found.get(name, 0.0)) for name in names}
    return found


def _probe_line(row: ProbeVisit) -> str:
    when = f"in {row['in_hours']} h" if row["in_hours"] else "now"
    return f"{row['node']}: test {row['test']} {when}, {row['minutes']:g} min, worth {row['worth']:g}: {row['reason']}"


def _risk_line(one: NodeRisk) -> str:
    hour, day, week = one.probabilities
    chances = f"{hour:.2g} within an hour, {day:.2g} a day, {week:.2g} a week, {one.times_usual:.3g} times the usual"
    return f"{one.node}: {one.bucket}, for {one.jobs} jobs: fails with probability {chances}: {one.reason}"
