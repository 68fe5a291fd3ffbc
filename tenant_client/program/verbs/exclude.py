"""The verb that tells a scheduler which nodes to leave out: `check exclude`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from federation.base.clock import now_hour
from federation.base.console import AsJson
from federation.base.screen import say, show, show_json
from federation.base.sqlite import Connection
from federation.protocol.bundle import Bundle
from tenant_client.doctor.advice.exclude import Excluded, at_most, by_bundle, by_failures, by_hints, placed_leases
from tenant_client.doctor.advice.hints import HintLog
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.program.verbs.console import Home
from tenant_client.program.verbs.gate import Mode, NoLease, workload_of
from tenant_client.program.verbs.judging import Ways, bundle_of


class ExcludeObject(TypedDict):
    """The lease whose workload the next job was taken to run, and the nodes to leave out, the surest first."""

    like: str
    nodes: list[Excluded]


def exclude(
    home: Home,
    job: Annotated[
        str,
        typer.Option(
            envvar=["SBATCH_JOB_NAME", "SLURM_JOB_NAME"],
            help="The job's name: its workload is that of the newest lease of this name.",
            show_default=False,
        ),
    ] = "",
    like: Annotated[
        str, typer.Option(envvar="PHAROAH_LIKE", help="A lease that ran the same workload.", show_default=False)
    ] = "",
    most: Annotated[
        int, typer.Option(min=0, help="Name at most this many nodes: Slurm refuses a job that too few are left for.")
    ] = 64,
    mode: Annotated[
        Mode, typer.Option(envvar="PHAROAH_GATE", help="Off names no nodes; the other two are alike here.")
    ] = Mode.WARN,
    *,
    as_json: AsJson = False,
) -> None:
    """Name nodes of your earlier leases that a job had better leave out, for `sbatch --exclude=$(…)`.

    They are in contexts that the published bundle calls worse for the workload, or suspects, or belong to a lease with
    an open hint. Your own failures count only if tenant.toml has `own_history = true` under `decisions`, since the
    provider's scheduler sees the list. Nothing is sent.

    Fails open: where anything is missing, it says so on stderr and names no nodes. Exit code 0 always.
    """
    if mode is Mode.OFF:
        return
    with FailOpen(quiet=False).guard("no nodes are left out"):
        told, found = _found(home, job, like, most)
        if as_json:
            show_json(ExcludeObject(like=told, nodes=found))
        elif found:
            show(",".join(one.node for one in found))
            say(*_reasons(found))


def _found(home: Path, job: str, like: str, most: int) -> tuple[str, list[Excluded]]:
    if not (home / "tenant.db").exists():
        raise NoLease("the journal is empty", hint="run a job with `pharoah-tenant run`, or pass --home")
    ways = Ways(online=False, gate=True)
    with closing(open_database(home / "tenant.db")) as connection:
        told, ladder = workload_of(connection, job, like)
        bundle, _ = bundle_of(home, connection, ways)
        return told, at_most(_nodes(connection, bundle, ladder, own=ways.own_history(home)), most)


def _nodes(
    connection: Connection, bundle: Bundle | None, ladder: Mapping[str, str], *, own: bool
) -> Iterator[Excluded]:
    placed, now_h = placed_leases(Journal(connection)), now_hour()
    if own:
        yield from by_failures(placed, Attempts(connection).list(), now_h)
    if bundle:
        yield from by_bundle(placed, bundle, ladder)
    yield from by_hints(placed, HintLog(connection).hints(), now_h)


def _reasons(found: Sequence[Excluded]) -> Iterator[str]:
    """A line for each reason, with its nodes."""
    nodes: dict[str, list[str]] = {}
    for one in found:
        nodes.setdefault(one.why, []).append(one.node)
    return (f"pharoah-tenant: leaves out {','.join(names)}: {why}" for why, names in nodes.items())
