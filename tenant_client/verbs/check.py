"""The verbs to ask before a job starts: check, and changes since the run that worked."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from federation.runtime.console import AsJson
from federation.runtime.screen import show, show_json
from tenant_client.verbs.console import Home, Latest, failing, joined, journalled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from federation.protocol.check import Check

Lease = Annotated[
    str,
    typer.Argument(envvar="PHAROAH_LEASE", help="The lease, or how its name begins: see `leases`.", show_default=False),
]


def check(
    home: Home,
    lease: Lease = "",
    like: Annotated[
        str, typer.Option(help="A lease that ran the same workload, where this one was not described yet.")
    ] = "",
    *,
    latest: Latest = False,
    online: Annotated[
        bool, typer.Option("--online", help="Ask the provider, who then learns the tokens, and no bundle here.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask whether a workload fits its lease, before it starts. By default this is answered here and tells nobody.

    Exit code 0: fits; "weak evidence" where its own failures do not exclude twice the usual rate yet. 1: warning.
    2: mismatch. 3: unknown, which includes that nothing could be asked.
    """
    from federation.protocol import check as checking
    from federation.protocol.round_messages import LADDER_LABELS
    from federation.protocol.service_messages import CheckVerdict
    from tenant_client.records.bundle_log import BundleLog
    from tenant_client.records.journal import Journal

    _require(lease, latest=latest)
    # An error is not a mismatch: who starts jobs by this exit code must not refuse one for it.
    with joined(home, failed=CheckVerdict.UNKNOWN) as connection:
        journal = Journal(connection)
        labels = journal.labels(journal.find(lease))
        if like:
            known = journal.labels(journal.find(like))
            labels |= {rung: known[rung] for rung in LADDER_LABELS if rung in known}
        bundle = BundleLog(connection).newest_bundle()
        result = _asked(home, labels) if online else checking.check(bundle, labels)
        if bundle:
            result = result.named(bundle.names, labels.get("context", ""))
    if as_json:
        show_json(result)
    else:
        show(f"{result.word}: {result.reason}")
        if result.context_name:
            show(f"this context: {result.context_name}")
        if result.better_context:
            better = f"{result.better_context} {result.better_context_name}".rstrip()
            show(f"a context where this workload does well: {better}")
    raise typer.Exit(int(result.verdict))


def _require(lease: str, *, latest: bool) -> None:
    if bool(lease) == latest:
        raise typer.BadParameter("name either a lease, by its first digits, or --latest", param_hint="LEASE")


def _asked(home: Path, labels: "Mapping[str, str]") -> "Check":
    """What the provider's online service says."""
    from tenant_client.network.connect import connected

    with connected(home) as provider:
        return provider.check(labels)


def changes(
    home: Home,
    lease: Lease = "",
    before: Annotated[
        str, typer.Option("--from", help="The run that worked; by default the newest of the same structure.")
    ] = "",
    *,
    latest: Latest = False,
    as_json: AsJson = False,
) -> None:
    """Say what changed between the run that worked and this one: context, versions, spread, operators. All local.

    Exit code 0: nothing that is known. 1: something.
    """
    from tenant_client.advice import changes as changing
    from tenant_client.records.attempts import Attempts
    from tenant_client.records.database import open_database
    from tenant_client.records.journal import Journal

    _require(lease, latest=latest)
    with failing(), closing(open_database(journalled(home))) as connection:
        journal = Journal(connection)
        lease, before = journal.find(lease), journal.find(before) if before else ""
        runs = changing.runs_of(journal)
        one = runs[before] if before else changing.last_that_worked(Attempts(connection).list(), runs, lease)
        found = changing.changes(one, runs[lease])
    if as_json:
        show_json({"before": one.unit, "after": lease, "changes": [vars(change) for change in found]})
    else:
        show(f"{one.unit} → {lease}{'' if found else ': nothing that is known has changed'}")
        show(*(f"  {change.kind}: {change.text}" for change in found))
    raise typer.Exit(1 if found else 0)
