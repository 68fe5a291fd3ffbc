"""The verb that stands between a scheduler and a job: `check gate`."""

import os
from collections.abc import Mapping
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.errors import PharoahError
from crypto.ids import LeaseId
from federation.base.console import AsJson
from federation.base.screen import show, show_json
from federation.base.sqlite import Connection
from federation.protocol.check import Check
from federation.protocol.service_messages import CheckVerdict
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.known_workloads import known_workload
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.run_directory import lease_of_start
from tenant_client.program.verbs.console import Home
from tenant_client.program.verbs.judging import Ways, judged

REFUSED = 4  # a code that no error has, so that a script refuses for nothing else


class Mode(StrEnum):
    """What the gate does with a mismatch."""

    OFF = "off"
    WARN = "warn"
    REFUSE = "refuse"


class GateObject(TypedDict):
    """The lease, the lease whose workload it was taken to run, and the verdict as of `check`."""

    lease: str
    like: str
    verdict: int
    reason: str
    better_context: str | None
    context_name: str
    better_context_name: str


class NoLease(PharoahError):
    """The gate does not know which lease, or which workload, it stands before."""

    default_hint = "pass --lease and --like, or take a lease key: docs/clusters.md"


def gate(
    home: Home,
    lease: Annotated[
        str, typer.Option(envvar="PHAROAH_LEASE", help="The lease; by default that of Slurm's job.", show_default=False)
    ] = "",
    like: Annotated[
        str,
        typer.Option(
            envvar="PHAROAH_LIKE",
            help="A lease that ran the same workload; by default the newest one of the same job name.",
            show_default=False,
        ),
    ] = "",
    wait_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for the provider to have recorded the lease.")
    ] = 15.0,
    mode: Annotated[
        Mode, typer.Option(envvar="PHAROAH_GATE", help="What to do about a mismatch; off does nothing at all.")
    ] = Mode.WARN,
    *,
    as_json: AsJson = False,
) -> None:
    """Check a job that is about to start on the lease that it was given, by the published bundle alone.

    Asks the provider only which leases are yours. Fails open: where anything is missing, it says so and lets the job
    start. Exit code 4, with --mode refuse: a mismatch, do not start. 0: start.
    """
    if mode is Mode.OFF:
        return
    verdict = CheckVerdict.UNKNOWN
    with FailOpen(quiet=False).guard("not checked"):
        told, result = _judged(home, lease, like, wait_s)
        verdict = result.verdict
        if as_json:
            show_json(told)
        else:
            show(*_lines(result))
    if mode is Mode.REFUSE and verdict is CheckVerdict.MISMATCH:
        raise typer.Exit(REFUSED)


def _judged(home: Path, lease: str, like: str, wait_s: float) -> tuple[GateObject, Check]:
    name = LeaseId(bytes.fromhex(lease)) if lease else lease_of_start(os.environ, home)
    if name is None:
        raise NoLease("this is no job of Slurm, or the home has no lease key")
    from tenant_client.program.service import granted_labels  # of an extra: without it, the gate lets the job start

    with closing(open_database(home / "tenant.db")) as connection:
        told_like, ladder = workload_of(connection, os.environ.get("SLURM_JOB_NAME", ""), like, str(name))
        labels = granted_labels(home, name, wait_s) | dict(ladder)
        result, _own = judged(home, connection, labels, Ways(online=False, gate=True))
    return {
        "lease": str(name),
        "like": told_like,
        "verdict": int(result.verdict),
        "reason": result.reason,
        "better_context": result.better_context,
        "context_name": result.context_name,
        "better_context_name": result.better_context_name,
    }, result


def workload_of(connection: Connection, job: str, like: str, lease: str = "") -> tuple[str, Mapping[str, str]]:
    """A lease with tokens, and the tokens of its workload, as by `known_workload`; NoLease where none is known."""
    known = known_workload(connection, job, like=like, lease=lease)
    if known is None:
        raise NoLease(
            "no lease with this job's workload has its tokens yet", hint="they come with the first round after it"
        )
    return known


def _lines(result: Check) -> list[str]:
    lines = [f"pharoah-tenant: {result.word}: {result.reason}"]
    if result.context_name:
        lines.append(f"pharoah-tenant: this hardware group: {result.context_name}")
    if result.better_context:
        better = f"{result.better_context} {result.better_context_name}".rstrip()
        lines.append(f"pharoah-tenant: better hardware group for this workload: {better}")
    return lines
