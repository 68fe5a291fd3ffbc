"""`pharoah-sim federation` and `bad-link`: federations of real programs on this machine."""

import time
from pathlib import Path
from typing import Annotated

import typer

from federation.base.clock import now_hour
from federation.base.console import AsJson, Force, check_new
from federation.base.screen import say, show, show_json
from simulation.run.bad_link import settle
from simulation.run.processes import (
    HeldHere,
    Places,
    founded,
    hold,
    homes,
    kept_homes,
    last_week,
    left_running,
)


def federation(
    out: Annotated[Path | None, typer.Option(help="Folder for all homes and logs.", show_default=False)] = None,
    tenants: Annotated[int, typer.Option(min=4, help="Number of tenants.")] = 4,
    trustees: Annotated[int, typer.Option(min=3, help="Number of trustees.")] = 3,
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the programs running, below --out, to play with.")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Found a pilot of real programs on this machine, hold one round, and stop them all, unless they are to go on."""
    began = time.monotonic()
    if keep and out is None:
        raise typer.BadParameter("--keep needs a folder: pass --out", param_hint="--keep")
    check_new(out, force=force)

    def tell(text: str) -> None:
        say(f"[{time.monotonic() - began:5.1f} s] {text}")

    if keep and out is not None:
        result = hold(places := Places(kept_homes(out), tenants, trustees), tell, keep=True)
        for line in left_running(places):
            say(line)
    else:
        with homes(out) as root:
            result = hold(Places(root, tenants, trustees), tell)
    held: HeldHere = {**result, "total_seconds": round(time.monotonic() - began, 3)}
    if as_json:
        show_json(held)
    else:
        show(_round_line(held))


def bad_link(
    out: Annotated[Path, typer.Option(help="Folder for all homes and files.", show_default=False)],
    *,
    force: Force = False,
) -> None:
    """Found a federation of three tenants on a small fabric with a bad link, with a week of jobs that stall there.

    Nothing runs when it ends: docs/tutorials/bad-link.md goes on from here.
    """
    check_new(out, force=force)
    with homes(out) as root, founded(places := Places(root, tenants=3, trustees=3)):
        settle(places, (out / "homes").absolute(), last_week(), now_hour())
    show(str(out / "homes"))


def _round_line(result: HeldHere) -> str:
    return (
        f"round {result['round_id'][:12]}: {result['contributors']} contributions, {result['cells']} cells,"
        f" epsilon {result['epsilon']:.3f} per lease and window; the round took {result['seconds']:.1f} s,"
        f" everything {result['total_seconds']:.1f} s"
    )
