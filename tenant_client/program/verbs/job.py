"""Verbs around a job: `run` and `attach`."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tenant_client.doctor.run.attempt import run as narrated
from tenant_client.doctor.run.run_directory import job_name, lease_name
from tenant_client.doctor.run.settings import RunSettings
from tenant_client.doctor.run.watchdog import WatchLimits
from tenant_client.program.verbs.console import Home

Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command that starts the job.")]
Lease = Annotated[
    str,
    typer.Option(
        envvar="PHAROAH_LEASE",
        help="The lease that the job runs on; by default that of Slurm's job or Kubernetes' pods if the home has a"
        " lease key, else the scheduler's job id, else a random name.",
        show_default=False,
    ),
]
Watch = Annotated[
    bool, typer.Option("--watch/--no-watch", envvar="PHAROAH_WATCH", help="Watch the job for hangs and slow steps.")
]
Sample = Annotated[
    bool,
    typer.Option("--sample/--no-sample", envvar="PHAROAH_SAMPLE", help="Count steps inside the job's processes."),
]


class Describe(StrEnum):
    """When the workload is sampled."""

    AUTO = "auto"
    NOW = "now"


When = Annotated[
    Describe,
    typer.Option(
        "--describe",
        envvar="PHAROAH_DESCRIBE",
        help="When to sample the steps that describe the workload: early on a quiet host and within ten minutes on a"
        " busy one (auto), or in the first steps (now).",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", envvar="PHAROAH_QUIET", help="Print nothing on stderr.")]
Logs = Annotated[
    list[Path] | None,
    typer.Option("--log", envvar="PHAROAH_LOG", help="Another log to read after a failure (kernel, NCCL); repeatable."),
]
HangFactor = Annotated[
    float,
    typer.Option(
        envvar="PHAROAH_HANG_FACTOR", min=1.0, help="A job hangs after this many usual step times without a step."
    ),
]
HangFloor = Annotated[
    float,
    typer.Option(envvar="PHAROAH_HANG_FLOOR_S", min=0.0, help="Seconds without a step before a job can hang."),
]
StartTimeout = Annotated[
    float, typer.Option(envvar="PHAROAH_START_TIMEOUT_S", min=0.0, help="Seconds allowed until the first steps.")
]
AsideTimeout = Annotated[
    float,
    typer.Option(envvar="PHAROAH_ASIDE_TIMEOUT_S", min=0.0, help="Seconds allowed for a checkpoint or an evaluation."),
]
SpoolMib = Annotated[
    int, typer.Option(envvar="PHAROAH_SPOOL_MIB", min=1, help="Last MiB of each output to keep, at least.")
]
Poll = Annotated[float, typer.Option(envvar="PHAROAH_POLL_S", min=0.05, help="Seconds between two polls of the job.")]
Grace = Annotated[
    float, typer.Option(envvar="PHAROAH_GRACE_S", min=0.0, help="Seconds allowed for the diagnosis after the job.")
]


def run(
    command: Command,
    home: Home,
    lease: Lease = "",
    logs: Logs = None,
    hang_factor: HangFactor = 10.0,
    hang_floor_s: HangFloor = 120.0,
    start_timeout_s: StartTimeout = 1800.0,
    aside_timeout_s: AsideTimeout = 3600.0,
    spool_mib: SpoolMib = 4,
    poll_s: Poll = 1.0,
    grace_s: Grace = 30.0,
    describe: When = Describe.AUTO,
    *,
    watch: Watch = True,
    sample: Sample = True,
    quiet: Quiet = False,
) -> None:
    """Run a job (torchrun, python, srun) and record why it fails.

    The job's output, signals and exit code stay as they are, even if Pharoah fails. After a failure, the cause is
    diagnosed and written to the journal. Nothing is sent. `pharoah-tenant attach PID` watches a job that runs already.
    """
    narrated(
        command,
        RunSettings(
            home=home.absolute(),
            lease=lease or lease_name(os.environ, home),
            job=job_name(command, os.environ),
            command=tuple(command),
            watch=watch,
            sample=sample,
            describe_now=describe is Describe.NOW,
            quiet=quiet,
            logs=tuple(path.absolute() for path in logs or ()),
            limits=WatchLimits(start_timeout_s, hang_floor_s, hang_factor, aside_timeout_s),
            spool_bytes=spool_mib << 20,
            poll_s=poll_s,
            grace_s=grace_s,
        ),
    )


def attach(
    target: Annotated[str, typer.Argument(help="The process id of a running job, or a log directory of torchrun.")],
    home: Home,
    lease: Lease = "",
    logs: Logs = None,
    poll_s: Poll = 1.0,
    *,
    watch: Watch = True,
    quiet: Quiet = False,
) -> None:
    """Watch a running job, or diagnose a log directory of torchrun into the journal. Nothing is sent.

    The exit status of a process that Pharoah did not start is often unavailable; it is then recorded as unknown.
    """
    from tenant_client.doctor.run.attach import attach as attached  # loads numpy; `run` must not wait for it

    name = lease or lease_name(os.environ, home)
    settings = RunSettings(home.absolute(), name, watch=watch, quiet=quiet, logs=tuple(logs or ()), poll_s=poll_s)
    attached(target, settings)
