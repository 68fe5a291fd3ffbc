"""The verb that says why a job's steps are long: `show --only stragglers`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from crypto.errors import PharoahError
from federation.base.console import AsJson, InputFile
from federation.base.screen import show, show_json
from federation.base.visible import short
from tenant_client.doctor.diagnosis.stragglers.waits import WaitCause, waits
from tenant_client.doctor.diagnosis.stragglers.what_if import StragglerCause, WhatIf, what_if
from tenant_client.doctor.run.run_directory import newest_runs
from tenant_client.doctor.sources.nccl_inspector import holds_logs, read_logs
from tenant_client.doctor.sources.step_trace import read_step_trace
from tenant_client.program.verbs.console import Home, job_of, warn

FINE, SLOW, UNDECIDED = 0, 1, 3


class NoTrace(PharoahError):
    """A job has left nothing that tells of its stragglers."""

    default_hint = "set NCCL_INSPECTOR_DUMP_DIR to this folder, or pass a trace in place of the job"


def stragglers(
    trace: Annotated[
        Path,
        typer.Argument(
            click_type=InputFile(folders=True),
            metavar="TRACE|JOB",
            help="Operations of all ranks, one a row, as Parquet or CSV (columns: docs/causes.md); or the logs of"
            " NCCL's Inspector, a folder or archive of one for each process; or a job whose run directory has these.",
        ),
    ],
    home: Home,
    *,
    as_json: AsJson = False,
) -> None:
    """Show how much a slow worker, the last stage or uneven sequences lengthen a job's steps. Nothing is sent.

    The step is run again with parts of the trace made ideal; of Inspector's logs, the ranks' times in each collective
    are compared. Exit code 0: no straggler. 1: the job straggles. 3: too few collectives to tell.
    """
    if job := job_of(home, trace):
        trace = newest_runs(home)[job]
    of_inspector = holds_logs(trace)
    if job and not of_inspector:
        raise NoTrace(f"no logs of NCCL's Inspector are in {short(trace)}")
    if of_inspector or (trace.is_dir() and not any(trace.iterdir())):
        raise typer.Exit(_collectives(trace, as_json=as_json))
    result = what_if(read_step_trace(trace))
    if result.left_out:
        warn(f"left out {result.left_out} incomplete steps of {result.left_out + result.steps}")
    if as_json:
        show_json(result)
    else:
        show(*_lines(result))
    raise typer.Exit(FINE if result.cause is StragglerCause.NONE else SLOW)


def _collectives(logs: Path, *, as_json: bool) -> int:
    """What the collectives' times say, and the exit code."""
    found = waits(read_logs(logs))
    if as_json:
        show_json(found)
    else:
        show(found.sentence, f"  {found.collectives} collectives compared, communicators: {found.communicators}")
        for rank in found.slow_ranks:
            what = f"of the others' time in {rank.communicator}: waiting for rank {rank.rank}"
            show(f"  {rank.share:>9.0%}  {what} (process {rank.pid} on {rank.host})")
        for one in found.slow_transfers:
            took = f"{one.now_us / 1e3:.1f} ms, before {one.before_us / 1e3:.1f} ms"
            show(f"  {one.now_us / max(one.before_us, 1.0):>9.2f}  times as long in {one.communicator}: {took}")
    return {WaitCause.NONE: FINE, WaitCause.UNDECIDED: UNDECIDED}.get(found.cause, SLOW)


def _lines(result: WhatIf) -> Iterator[str]:
    yield result.sentence
    yield f"  step       {result.step_s:.3f} s, ideally {result.ideal_s:.3f} s ({result.steps} steps)"
    for share, what in (
        (result.workers, "of the excess: the slowest workers (M_W)"),
        (result.last_stage, "of the excess: the last stage (M_S)"),
        (result.lengths, "of the excess: lengths of micro-batches"),
    ):
        yield f"  {'–' if share is None else f'{share:.0%}':>9}  {what}"
    for worker in result.slowest:
        place = f"data-parallel {worker.dp_rank}, stage {worker.stage}"
        yield f"  {worker.slowdown:>9.2f}  S of rank {worker.rank} alone ({place})"
    kind, slowdown = max(result.by_kind.items(), key=lambda item: item[1])
    yield f"  {slowdown:>9.2f}  S of {kind} alone"
