"""The verb that follows one rank's traffic to another's, as far as a tenant can see: `path`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from federation.runtime.console import AsJson, Force, InputFile, check_new
from federation.runtime.route_options import UNKNOWN, Picture, show_routes
from federation.runtime.screen import say
from tenant_client.verbs.check import Lease, require
from tenant_client.verbs.console import Home, Latest, failing, journalled, say_error, warn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from federation.protocol.service_messages import Hint


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
    lease is needed with --log. What lies between two cards is the provider's to know: `pharoah-provider path`.

    Exit code 0: nothing speaks against a hop. 1: something does. 3: no log or dump names one of the ranks.
    """
    from federation.runtime.sqlite import reporting
    from tenant_client.advice.path_health import marks_of
    from tenant_client.diagnosis.diagnose import files_in, gather
    from tenant_client.diagnosis.rank_graph import graph_of, routes
    from tenant_client.sources.flight_recorder import rank_in_name, read_dumps
    from tenant_client.sources.nccl_topology import read_topology

    if not log:
        require(lease, latest=latest)
    unit, findings, hints = _journalled(home, lease) if lease or latest else ("", (), [])
    with failing(), reporting():
        check_new(out, force=force)
        files = [*_run_files(home, unit), *(file for one in log or () for file, _ in files_in(one))]
        dumps = [file for file in files if rank_in_name(file.name) is not None]
        topology = read_topology(file for file in files if file not in dumps)
        read = (dump for file in dumps for dump in read_dumps(file, refused=lambda error: warn(str(error))))
        graph, gathered = graph_of(topology, read), gather(files)
    for rank in (start_rank, end_rank):
        if not graph.knows(rank):
            known = f"of {graph.size}" if graph.size else "at all"
            say_error(f"no log or dump names rank {rank} {known}", "run the job with NCCL_DEBUG=INFO, or pass --log")
            raise typer.Exit(UNKNOWN)
    if graph.placed < graph.links:
        say(f"pharoah-tenant: of {graph.links:,} connections in the logs, {graph.placed:,} could be placed")
    found = routes(graph, start_rank, end_rank, marks_of(graph, gathered.evidence, findings, hints))
    with failing():
        code = show_routes(found, out, as_json=as_json)
    raise typer.Exit(code)


def _run_files(home: Path, lease: str) -> list[Path]:
    """What the newest attempt of the lease has left, if it has."""
    from tenant_client.run.diagnose_attempt import files_of

    runs = [one for one in (home / "runs").glob("*-*") if one.is_dir() and one.name.rpartition("-")[0] == lease]
    return files_of(max(runs, key=lambda one: one.stat().st_mtime), ()) if runs else []


def _journalled(home: Path, beginning: str) -> "tuple[str, Sequence[Mapping[str, object]], list[Hint]]":
    """The lease, findings of its newest attempt, and its open hints."""
    from contextlib import closing

    from federation.runtime.clock import now_hour
    from tenant_client.advice.hints import HintLog, standing
    from tenant_client.records.attempts import Attempts
    from tenant_client.records.database import open_database
    from tenant_client.records.journal import Journal

    with failing(), closing(open_database(journalled(home))) as connection:
        lease = Journal(connection).find(beginning)
        own = [one for one in Attempts(connection).list() if one.unit == lease]
        return lease, own[-1].findings if own else (), list(standing(HintLog(connection).hints(lease), now_hour()))
