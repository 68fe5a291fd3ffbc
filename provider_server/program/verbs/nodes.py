"""`pharoah-provider nodes placement` and `nodes probes`: plans for a scheduler, which need no federation."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from federation.base.clock import now_hour
from federation.base.console import AsJson, InputFile
from federation.base.screen import show
from provider_server.fleet.hints import node_placement, node_probes, node_reports
from provider_server.fleet.hints.node_placement import PlacedNode
from provider_server.fleet.hints.node_probes import ProbeVisit, read_tests
from provider_server.fleet.learning import on_probation
from provider_server.program.verbs.console import Database, Home, Reports, print_rows, required
from provider_server.rounds.store.store import Store


def placement(
    home: Home = None,
    file: Reports = None,
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of nodes for trials, evaluations and other short jobs.")
    ] = 0.2,
    *,
    names: Annotated[
        bool, typer.Option("--names", help="Print only the names of nodes for short jobs, joined by commas.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Advise a scheduler: the riskiest nodes are for short jobs, the others for long ones. Nothing is changed.

    By build-up levels, repairs, and failure rates of contexts. See docs/nodes.md for Slurm and Kubernetes.
    """
    place = required(home)
    reports = node_reports.known(place, file)
    rows = node_placement.placed(reports, on_probation.load(place), now_hour(), share)
    if names:
        show(",".join(row["node"] for row in rows if row["jobs"] == "short"))
    else:
        print_rows(rows, _placed_line, as_json=as_json)


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
    nodes = node_placement.placed(reports, on_probation.load(place), now_h, 0.0)
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


def _placed_line(row: PlacedNode) -> str:
    rate, times = row["failures_per_1000_node_hours"], row["times_usual"]
    known = "" if rate is None else f", {rate:.3g} failures per 1,000 node-hours, {times:.3g} times the usual"
    return f"{row['node']}: for {row['jobs']} jobs{known}: {row['reason']}"
