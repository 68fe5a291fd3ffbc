"""The verb that follows one rank's traffic to another's, as far as a tenant can see: `show --only path`."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from federation.base.clock import now_hour
from federation.base.console import AsJson, Force, InputFile, check_new
from federation.base.reading import form_of, open_inputs
from federation.base.route_options import UNKNOWN, Picture, show_routes
from federation.base.screen import say
from federation.base.sqlite import reporting
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.run.lease_paths import lease_paths
from tenant_client.program.verbs.console import Home, Latest, Lease, journalled, require, say_error, warn


def path(
    home: Home,
    start_rank: Annotated[int, typer.Option("--from", min=0, help="The rank where the path begins.")],
    end_rank: Annotated[int, typer.Option("--to", min=0, help="The rank where it ends.")],
    lease: Lease = "",
    log: Annotated[
        list[Path] | None,
        typer.Option(
            "--log",
            click_type=InputFile(folders=True),
            help="A log with NCCL's INFO lines, a dump, or a folder of these, beside those of the run; repeatable.",
        ),
    ] = None,
    out: Picture = None,
    *,
    latest: Latest = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show the way between two ranks: GPU, network card, channel, and what speaks against each. Nothing is sent.

    Read are the lease's run directory and --log: output of a job with NCCL_DEBUG=INFO, and flight recorder dumps. No
    lease is needed with --log. What lies between two cards is the provider's to know: `pharoah-provider nodes path`.

    Exit code 0: nothing speaks against a hop. 1: something does. 3: no log or dump names one of the ranks.
    """
    if not log:
        require(lease, latest=latest)
    unit = _found(home, lease) if lease or latest or not log else ""
    with reporting():
        check_new(out, force=force)
        paths = lease_paths(home, unit, now_hour(), log or (), lambda error: warn(str(error)))
    graph = paths.graph
    for rank in (start_rank, end_rank):
        if not graph.knows(rank):
            known = f"of {graph.size}" if graph.size else "at all"
            read = "" if graph.size else _read_as(log or ())
            say_error(
                f"no log or dump names rank {rank} {known}{read}",
                "pass by --log what a job printed with NCCL_DEBUG=INFO",
            )
            raise typer.Exit(UNKNOWN)
    if graph.placed < graph.links:
        say(f"pharoah-tenant: of {graph.links:,} connections in the logs, {graph.placed:,} could be placed")
    found = paths.between(start_rank, end_rank)
    code = show_routes(found, out, as_json=as_json)
    raise typer.Exit(code)


def _read_as(logs: Sequence[Path]) -> str:
    """What the first of these files is, where it may be no log at all."""
    for file in logs:
        with open_inputs(file) as inputs:
            for reader in inputs:
                return f": {reader.file} is {form_of(reader.peek())}"
    return ""


def _found(home: Path, beginning: str) -> str:
    """The lease whose name begins like this, by the journal; the newest one without a beginning."""
    with closing(open_database(journalled(home))) as connection:
        return Journal(connection).find(beginning)
