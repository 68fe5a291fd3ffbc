"""The verb `show --only changes`: what changed between two runs, and whether it may have."""

from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from federation.base.console import AsJson
from federation.base.rule_options import EXIT_CODES, Only, Rules, rules_of
from federation.base.screen import show, show_json
from federation.protocol.change_rules import judge
from tenant_client.doctor.advice.changes import Changes
from tenant_client.doctor.advice.culprits import explained
from tenant_client.doctor.advice.own_runs import runs_of
from tenant_client.doctor.advice.run_snapshots import snapshots
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.program.verbs.console import MOST_THAT_MAY, Home, Latest, Lease, journalled, require


def changes(
    home: Home,
    lease: Lease = "",
    before: Annotated[
        str,
        typer.Option("--from", help="The lease that worked; by default the newest clean one of the same structure."),
    ] = "",
    *,
    only: Only = "",
    rules: Rules = None,
    latest: Latest = False,
    as_json: AsJson = False,
) -> None:
    """Show what changed since the last clean run: code, command, packages, environment, hosts, context, workload.

    A version that brought a known incompatibility names it. Of a failed run the likeliest culprits come first: by what
    is known of versions, what the newest bundle says, and how own runs went with each change and without it. Operators
    that came or went are named with the version that may have moved them.

    With --may-change or --rules, changes are judged: which may be, must be, and may not.

    Local. Exit code 0: no change found, or all rules hold. 1: changes found, or a rule is broken. 2: nothing to
    compare, or a rule that cannot be judged.
    """
    require(lease, latest=latest)
    with closing(open_database(journalled(home))) as connection:
        journal, attempts = Journal(connection), Attempts(connection).list()
        lease, before = journal.find(lease), journal.find(before) if before else ""
        asked, runs = rules_of(only, rules), runs_of(journal)
        found = explained(attempts, runs, lease, before, BundleLog(connection).newest_bundle())
    if asked:
        judged = judge(asked, *snapshots(runs[found.before], runs[lease]))
        show_json(judged) if as_json else show(*judged.lines())
        raise typer.Exit(EXIT_CODES[judged.verdict])
    if as_json:
        show_json(found)
    else:
        show(*_lines_of(found))
    raise typer.Exit(1 if found.changes else 0)


def _lines_of(found: Changes) -> Iterator[str]:
    yield f"{found.before} → {found.after}{'' if found.changes else ': no change found'}"
    for change in found.changes:
        yield f"  {change.kind}: {change.text}"
        yield from (f"    {one.label} {one.words}" for one in change.known[:MOST_THAT_MAY])
        yield from [f"    bundle: {change.told}"] if change.told else []
        yield from [f"    {change.went}"] if change.went and change.went.ran > 2 else []  # more than these two runs
    yield from (f"  {one}" for one in found.moved)
    yield from (f"  not compared: {text}" for text in found.unknown)
