"""Verbs about what a home has learnt from its attempts: `patterns helped` and `patterns rules`."""

import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from federation.base.console import AsJson, InputFile
from federation.base.screen import say, show, show_json
from federation.base.sqlite import reporting
from federation.base.visible import counted_as
from tenant_client.doctor.diagnosis.filter_rules import FILE, Rules, keeps, load_rules, pattern_of, read_lines
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.first_causes import FirstCauses, NamedBy
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.doctor.records.journal import Journal
from tenant_client.program.verbs.console import Home, journalled, say_error


class WorkloadRules(TypedDict):
    """The filter rules of one workload: how many are on, and how many their owner turned off."""

    workload: str
    enabled: int
    disabled: int


class RulesObject(TypedDict):
    """All workloads with filter rules."""

    workloads: list[WorkloadRules]


class Unusual(TypedDict):
    """What the rules of a workload leave of a log; `workload` is "" where none fits. Blank lines do not count."""

    workload: str
    lines: int
    dropped: int
    left: list[str]


def helped(
    lease: Annotated[str, typer.Argument(metavar="JOB", help="The job that failed; the start of its name is enough.")],
    text: Annotated[str, typer.Argument(help="What helped, in your words.")],
    home: Home,
) -> None:
    """Note what helped after a failure. It is shown with later failures that resemble it. Nothing is sent."""
    with reporting(), closing(open_database(journalled(home))) as connection:
        unit = Journal(connection).find(lease)
        attempt = Incidents(connection).helped(unit, text)
        FirstCauses(connection).name(unit, attempt, time.time(), NamedBy.OWNER)
    say(f"pharoah-tenant: noted for {unit} attempt {attempt}")


def rules(
    home: Home,
    log: Annotated[
        Path | None, typer.Argument(click_type=InputFile(), help="Show the lines of this log that no rule drops.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List filter rules, or show what they leave of a log: the lines that healthy attempts do not print.

    The rules are those of the workload whose rules drop most of the log. They lie in rules.toml in the home, which you
    may edit. Exit code 3: there are no rules yet.
    """
    known = load_rules(home / FILE)
    if not known.rules:
        say_error("there are no rules yet", "rules come from healthy attempts of `pharoah-tenant run`, three of a kind")
        raise typer.Exit(3)
    if log is not None:
        _show_unusual(known, log, as_json=as_json)
        return
    count = Counter((rule.workload, rule.enabled) for rule in known.rules)
    rows: list[WorkloadRules] = [
        {"workload": workload, "enabled": count[workload, True], "disabled": count[workload, False]}
        for workload in dict.fromkeys(rule.workload for rule in known.rules)
    ]
    if as_json:
        show_json(RulesObject(workloads=rows))
        return
    for row in rows:
        off = f", {row['disabled']} turned off" if row["disabled"] else ""
        show(f"{row['workload']}: {counted_as(row['enabled'], 'rule')}{off}")


def _show_unusual(known: Rules, log: Path, *, as_json: bool) -> None:
    workload = known.fitting(map(pattern_of, read_lines(log)))
    dropped, lines, left = known.of(workload), 0, []
    for line in read_lines(log):
        lines += bool(line.strip())
        if line.strip() and keeps(line, dropped):
            left.append(line)
    if as_json:
        show_json(Unusual(workload=workload, lines=lines, dropped=lines - len(left), left=left))
        return
    show(*left)
    ours = f"by the rules of {workload}" if workload else "no rule fits"
    say(f"pharoah-tenant: dropped {lines - len(left):,} of {counted_as(lines, 'line')}: {ours}")
