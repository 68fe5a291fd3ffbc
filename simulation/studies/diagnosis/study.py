"""Scores a tool that finds causes: on jobs made to fail, and on logs that a person has labelled.

README.md in this folder says what is scored and how.
"""

import importlib.util
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from federation.base.screen import say
from simulation.studies.diagnosis import campaign as campaigns, logs, two_sided
from simulation.studies.diagnosis.answers import Asked, Tool, asked_of, here
from simulation.studies.diagnosis.campaign import Case, Ended, cases
from simulation.studies.study import Quick, Seed, Table, chosen

QUICK, FULL = 2, 12


def run(
    seed: Seed = 1,
    tool: Tool = None,
    ranks: Annotated[Literal["2", "4"], typer.Option(help="Ranks of a job.")] = "2",
    only: Annotated[
        list[str] | None, typer.Option("--only", "--kinds", help="Only this fault; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Keep the campaign, its logs and the report here.", show_default=False)
    ] = None,
    *,
    campaign: Annotated[bool, typer.Option(help="Make jobs fail; or score logs alone.")] = True,
    quick: Quick = False,
) -> Table:
    """Causes that are found: in jobs made to fail, in logs that people labelled, and in cases with two halves."""
    known = cases(QUICK if quick else FULL, int(ranks), seed)
    kinds = chosen(only, tuple(dict.fromkeys(case.kind for case in known))) if campaign else ()
    with tempfile.TemporaryDirectory() as temporary:
        kept = out or Path(temporary) / "out"
        kept.mkdir(parents=True, exist_ok=True)
        ended, left_out = run_campaign([case for case in known if case.kind in kinds], int(ranks), seed, kept)
        report = _scored(asked_of(tool, temporary), ended, left_out, here if tool is None else None)
        (kept / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return Table(report)


def _scored(tool: Asked, ended: Sequence[Ended], left_out: Sequence[str], of_logs: Asked | None) -> dict[str, Any]:
    """All figures; many logs are read in this process where the tool is our own."""
    graded = [(one.case, tool(one.log)) for one in ended]
    labelled, ours = list(logs.labelled()), of_logs or tool
    say(f"{len(labelled)} labelled logs")
    return {
        "campaign": {**campaigns.score(graded), "left_out": left_out, "kinds": campaigns.by_kind(graded)},
        "logs": logs.score(labelled, ours),
        "two_sided": two_sided.score(list(two_sided.cases()), ours),
    }


def run_campaign(todo: Sequence[Case], ranks: int, seed: int, out: Path) -> tuple[list[Ended], list[str]]:
    """Runs the jobs one after another; those that have failed, and the ids of those that could not be made to."""
    (out / "campaign.json").write_text(json.dumps(campaigns.manifest(todo, seed), indent=1) + "\n", encoding="utf-8")
    if todo and importlib.util.find_spec("torch") is None:
        say("there is no PyTorch here: the campaign is left out")
        return [], [case.id for case in todo]
    done: dict[str, Ended | None] = {}
    for number, case in enumerate(todo, 1):
        began_s = time.monotonic()
        done[case.id] = campaigns.run(case, ranks, out / "jobs" / f"{number:04d}")
        how = "" if done[case.id] else " did not come about"
        say(f"{number}/{len(todo)} {case.id}{how} ({time.monotonic() - began_s:.0f} s)")
    return [one for one in done.values() if one], [name for name, one in done.items() if one is None]
