"""`pharoah-provider nodes hazard --events`: hazards from a file of outages, instead of telemetry."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl
import typer

from federation.base.screen import progress, say
from federation.base.visible import counted_as
from provider_server.fleet.analysis.fault_classes import classify, exposure
from provider_server.fleet.analysis.probation import fit_probation
from provider_server.fleet.analysis.recurrent import Spells, spells
from provider_server.fleet.outage_files import Outages, read_jobs, read_outages
from provider_server.fleet.telemetry.inventory import load
from provider_server.program.reporting.outage_text import outage_lines, outages_row
from provider_server.program.verbs.console import nothing_yet, print_rows

UNNAMED = "(node without outage"


@dataclass(frozen=True)
class Asked:
    """What of the file is asked for: a window in hours, nodes by inventory or by number, kinds of failure, and jobs."""

    start_h: int | None
    end_h: int | None
    inventory: Path | None
    nodes: int | None
    kinds: Sequence[str]
    jobs: Path | None


def show(file: Path, asked: Asked, home: Path | None, *, as_json: bool) -> None:
    """Prints the hazards of the outages in a file; the home, if there is one, keeps what they say of repairs and nodes.

    Exit code 3 where none of the outages is a failure at risk.
    """
    with progress() as bars:
        steps = bars.add_task(f"outages of {file.name}", total=3)
        jobs = read_jobs(asked.jobs) if asked.jobs else None
        read, found, nodes = spells_of(file, asked)
        bars.advance(steps)
        if not found.spells["failed"].any():
            raise nothing_yet(
                f"no failure in {found.at_risk_h:,.0f} node-hours at risk{_kinds(read.rows, asked.kinds)}"
            )
        model = fit_probation(found)
        bars.advance(steps)
        classes = classify(exposure(found, jobs))
        bars.advance(steps)
    if home:
        source = f"{file.name}: {counted_as(len(nodes), 'node')}"
        _keep(home, source, found, read.rows, nodes, asked.kinds)
    nodes_known = asked.inventory is not None or asked.nodes is not None
    row = outages_row(read, found, model, classes, nodes=len(nodes), nodes_known=nodes_known)
    say(*(f"left out: {text}" for text in row["left_out"]), *(f"doubtful: {text}" for text in read.doubts))
    print_rows([row], outage_lines, as_json=as_json)


def spells_of(file: Path, asked: Asked) -> tuple[Outages, Spells, list[str]]:
    """The outages of a file, the time at risk between them, and all nodes of the fleet, named or not."""
    read = read_outages(file)
    nodes = _nodes(read.rows, asked)
    start_h = read.start_h if asked.start_h is None else float(asked.start_h)
    end_h = read.end_h if asked.end_h is None else float(asked.end_h)
    if not start_h < end_h:
        raise typer.BadParameter(f"the window from hour {start_h:g} to {end_h:g} is empty; see --start and --end")
    return read, spells(read.rows, nodes, start_h, end_h, asked.kinds), nodes


def named_of(nodes: Sequence[str]) -> list[str]:
    """Those of the fleet's nodes that have a name."""
    return [node for node in nodes if not node.startswith(UNNAMED)]


def _keep(
    home: Path, source: str, found: Spells, outages: pl.DataFrame, nodes: Sequence[str], kinds: Sequence[str]
) -> None:
    from provider_server.fleet.learning import node_offsets, on_probation, risk_history  # they load scikit-learn

    learnt = risk_history.learn(found, outages, nodes, kinds)
    named = set(named_of(list(learnt.offsets.nodes)))
    own = {node: history for node, history in learnt.offsets.nodes.items() if node in named}
    on_probation.keep_model(home, msgspec.structs.replace(learnt.model, source=source))
    node_offsets.keep(home, msgspec.structs.replace(learnt.offsets, nodes=own))
    risk_history.keep(home, learnt.history)


def _kinds(outages: pl.DataFrame, asked: Sequence[str]) -> str:
    """What kinds there are, where kinds were asked for."""
    if not asked:
        return ""
    classes = outages["kind"].str.split("/").list.first().unique().sort()
    return f" of kind {', '.join(asked)}; the file has {', '.join(classes)}"


def _nodes(outages: pl.DataFrame, asked: Asked) -> list[str]:
    """All nodes of the fleet: those of the file, of the inventory, and unnamed ones up to the number told."""
    named = set(outages["node"]) | set(load(asked.inventory).names if asked.inventory else ())
    if asked.nodes is None:
        return sorted(named)
    if asked.nodes < len(named):
        raise typer.BadParameter(f"--nodes {asked.nodes}, but {len(named)} are named")
    return sorted(named) + [f"{UNNAMED} {number})" for number in range(asked.nodes - len(named))]
