"""Scores a tool that finds causes: on jobs made to fail, and on logs that a person has labelled.

    python -m benchmarks.diagnosis [--quick] [--json] [--tool COMMAND] [--seed N]

Progress goes to stderr. README.md in this folder says what is scored and how.
"""

import argparse
import functools
import importlib.util
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.diagnosis import campaign, logs, peers, two_sided
from benchmarks.diagnosis.answers import OURS, Asked, ask, here
from benchmarks.diagnosis.campaign import Case, Ended

QUICK, FULL = 2, 12


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    asked = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["PHAROAH_HOME"] = temporary  # nobody's lessons help
        out = asked.out or Path(temporary) / "out"
        out.mkdir(parents=True, exist_ok=True)
        report = measure(asked, out)
        (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(report) + "\n" if asked.json else table(report))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.diagnosis", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} cases of each kind instead of {FULL}")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--tool", metavar="COMMAND", help="what is called with a log, instead of pharoah-tenant diagnose"
    )
    parser.add_argument("--seed", type=int, default=1, help="draws the places of the faults (1)")
    parser.add_argument("--ranks", type=int, choices=(2, 4), default=2, help="ranks of a job (2)")
    parser.add_argument("--kinds", nargs="*", metavar="KIND", help="only these faults; without a name none")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the campaign, its logs and the report here")
    return parser


def measure(asked: argparse.Namespace, out: Path) -> dict[str, Any]:
    """All figures."""
    tool: Asked = functools.partial(ask, shlex.split(asked.tool) if asked.tool else OURS)
    ended, left_out = run_campaign(_cases(asked), asked.ranks, asked.seed, out)
    graded = [(one.case, tool(one.log)) for one in ended]
    by_regex = [(one.case, peers.regex(one.log)) for one in ended]
    labelled = list(logs.labelled())
    _say(f"{len(labelled)} labelled logs")
    ours: Asked = tool if asked.tool else here
    of_regex = logs.score(labelled, peers.regex)
    regex = {name: of_regex[name] for name in ("n", "right", "unknown", "wrong")}
    return {
        "campaign": {**campaign.score(graded), "left_out": left_out, "kinds": campaign.by_kind(graded)},
        "logs": logs.score(labelled, ours),
        "two_sided": two_sided.score(list(two_sided.cases()), ours),
        "peers": {"regex": {**regex, "campaign": campaign.score(by_regex)}},
    }


def _cases(asked: argparse.Namespace) -> list[Case]:
    made = campaign.cases(QUICK if asked.quick else FULL, asked.ranks, asked.seed)
    return [case for case in made if asked.kinds is None or case.kind in asked.kinds]


def run_campaign(todo: Sequence[Case], ranks: int, seed: int, out: Path) -> tuple[list[Ended], list[str]]:
    """Runs the jobs one after another; those that have failed, and the ids of those that could not be made to."""
    (out / "campaign.json").write_text(json.dumps(campaign.manifest(todo, seed), indent=1) + "\n", encoding="utf-8")
    if todo and importlib.util.find_spec("torch") is None:
        _say("there is no PyTorch here: the campaign is left out")
        return [], [case.id for case in todo]
    done: dict[str, Ended | None] = {}
    for number, case in enumerate(todo, 1):
        began_s = time.monotonic()
        done[case.id] = campaign.run(case, ranks, out / "jobs" / f"{number:04d}")
        how = "" if done[case.id] else " did not come about"
        _say(f"{number}/{len(todo)} {case.id}{how} ({time.monotonic() - began_s:.0f} s)")
    return [one for one in done.values() if one], [name for name, one in done.items() if one is None]


def table(report: dict[str, Any]) -> str:
    """For a person: the logs, each kind of fault, and the campaign's figures last."""
    jobs, texts, regex = report["campaign"], report["logs"], report["peers"]["regex"]
    corpora = {**texts["corpora"], "all logs": texts, "all logs, regex": regex}
    rows = [f"{'':24}{'n':>6}{'right':>9}{'unknown':>9}{'wrong':>9}"]
    rows += [
        f"{name:24}{row['n']:6}{row['right']:9}{row['unknown']:9}{row['wrong']:9}" for name, row in corpora.items()
    ]
    rows += ["", f"{'':24}{'n':>6}{'reason':>9}{'rank':>9}  said"]
    rows += [
        f"{kind:24}{row['n']:6}{_shown(row['reason'])}{_shown(row['rank'])}  {', '.join(dict.fromkeys(row['said']))}"
        for kind, row in jobs["kinds"].items()
    ]
    rows += [f"left out: {', '.join(jobs['left_out'])}"] if jobs["left_out"] else []
    rows += ["", *two_sided.rows(report["two_sided"])]
    return "\n".join([*rows, _campaign_row("campaign, regex", regex["campaign"]), _campaign_row("campaign", jobs), ""])


def _campaign_row(name: str, row: dict[str, Any]) -> str:
    blamed = f"{row['own_called_infrastructure']} own faults called infrastructure"
    return f"{name:24}{row['n']:6}{_shown(row['reason'])}{_shown(row['rank'])}  {blamed}, p99 {row['seconds_p99']} s"


def _shown(share: float | None) -> str:
    return f"{'–' if share is None else f'{share:.0%}':>9}"


def _say(text: str) -> None:
    sys.stderr.write(f"diagnosis: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
