"""The verb that says why a job's steps are long: `stragglers`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from federation.runtime.console import AsJson, InputFile
from federation.runtime.screen import show, show_json
from tenant_client.verbs.console import failing, warn

if TYPE_CHECKING:
    from tenant_client.diagnosis.stragglers.what_if import WhatIf

FINE, SLOW = 0, 1


def stragglers(
    trace: Annotated[
        Path,
        typer.Argument(
            click_type=InputFile(),
            help="Operations of all ranks, one a row, as Parquet or CSV (columns: docs/stragglers.md).",
        ),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Show how much a slow worker, the last stage or uneven sequences lengthen a job's steps. Nothing is sent.

    The step is run again with parts of the trace made ideal. Exit code 0: no straggler. 1: the job straggles.
    """
    from tenant_client.diagnosis.stragglers.what_if import StragglerCause, what_if
    from tenant_client.sources.step_trace import read_step_trace

    with failing():
        result = what_if(read_step_trace(trace))
    if result.left_out:
        warn(f"left out {result.left_out} incomplete steps of {result.left_out + result.steps}")
    if as_json:
        show_json(result)
    else:
        show(*_lines(result))
    raise typer.Exit(FINE if result.cause is StragglerCause.NONE else SLOW)


def _lines(result: "WhatIf") -> Iterator[str]:
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
