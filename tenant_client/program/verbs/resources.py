"""The verb that says what a job needs of its host, and what it used: `show --only resources`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from federation.base.console import AsJson, InputFile
from federation.base.screen import show, show_json
from federation.base.visible import counted_as
from tenant_client.doctor.advice.resources import UNITS, Demand, Resources
from tenant_client.doctor.run.host_memory import available
from tenant_client.program.verbs.console import Home, journalled
from tenant_client.rounds.disclosure.needed import of_lease, of_traces

_GB = 1e9


def resources(
    home: Home,
    lease: Annotated[str, typer.Argument(metavar="[JOB]", help="A job: its name, or the start of it.")] = "",
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            click_type=InputFile(folders=True), help="Instead: traces of a workload that is to run.", show_default=False
        ),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="With --trace: ranks on a host; default: as in the newest run.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show memory, network and processor time that a job needs, by own earlier runs, and what it used.

    After an error for want of GPU memory: how much more it wanted, or which batch would do. Computed from the journal;
    nothing is sent. Exit code 0: as expected. 1: it wants more host or GPU memory. 3: nothing alike ran before.
    """
    if bool(lease) == bool(trace):
        raise typer.BadParameter("pass a job, or traces with --trace")
    database = journalled(home)
    left = available()
    found = of_traces(database, trace, ranks, left) if trace else of_lease(database, lease, left)
    if as_json:
        show_json(found)
    else:
        show(*_lines(found))
    known = found.gpu is not None or any(one.expected for one in found.demands)
    raise typer.Exit(int(found.wants_memory or found.gpu is not None) if known else 3)


def _lines(found: Resources) -> Iterator[str]:
    same = {"exact": "the same workload", "structure": "the same structure"}.get(found.alike or "", "")
    basis = f"by earlier runs of {same}" if same else "nothing alike ran before"
    yield f"{counted_as(found.ranks, 'rank')} on a host; {basis}"
    for one in found.demands:
        yield f"{UNITS[one.quantity]}: {_text(one)}"
    if found.host_bytes is not None:
        yield f"host memory: up to {found.host_bytes / _GB:.3g} GB, {found.available_bytes / _GB:.3g} GB left here"
    if found.wants_memory:
        yield "this worker wants more host memory"
    if found.gpu is not None:
        yield found.gpu.sentence


def _text(one: Demand) -> str:
    parts = []
    if one.expected:
        before = one.expected
        low, value, high = (_amount(one, number) for number in (before.low, before.value, before.high))
        parts.append(f"{value} expected ({low}–{high}; {counted_as(before.runs, 'run')})")
    if one.measured is not None:
        parts.append(
            f"{_amount(one, one.measured)} measured" + ("" if one.verdict == "unknown" else f", {one.verdict}")
        )
    return ", ".join(parts) or "unknown"


def _amount(one: Demand, number: float) -> str:
    return f"{number:.3g} s" if one.quantity == "cpu_s" else f"{number / 1e6:.3g} MB"
