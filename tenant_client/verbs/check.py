"""Verbs for use before a job starts: `check` and `changes`."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from federation.runtime.console import AsJson
from federation.runtime.screen import show, show_json
from tenant_client.verbs.console import Home, Latest, failing, joined, journalled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from federation.protocol.bundle import HazardEntry, MismatchEntry
    from federation.protocol.check import Check

Lease = Annotated[
    str,
    typer.Argument(
        envvar="PHAROAH_LEASE", help="The lease, or the start of its name (see `leases`).", show_default=False
    ),
]


class MismatchObject(TypedDict):
    """What the bundle says of the workload on the context, both by tokens."""

    workload: str
    context: str
    probability_worse: float
    risk_ratio: float
    risk_ratio_low: float
    risk_ratio_high: float
    expected_failures: float
    judgement: str
    alternatives: list[str]


class HazardObject(TypedDict):
    """Failures per 1,000 node-hours of the context at an age of jobs, with a 95% interval."""

    context_level: str
    band: str
    rate: float
    rate_low: float
    rate_high: float


class CheckObject(TypedDict):
    """A verdict, which is the exit code too, and its evidence, null without any; a name is empty if it is unknown."""

    verdict: int
    reason: str
    evidence: MismatchObject | None
    better_context: str | None
    hazards: list[HazardObject]
    weak_evidence: bool
    context_name: str
    better_context_name: str


def check(
    home: Home,
    lease: Lease = "",
    like: Annotated[
        str, typer.Option(help="A lease that ran the same workload, for a lease whose workload is not described yet.")
    ] = "",
    *,
    latest: Latest = False,
    online: Annotated[
        bool, typer.Option("--online", help="Ask the provider instead of the local bundle; it sees the tokens.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether a workload fits its lease, before the job starts. Without --online, nothing is sent.

    Exit code 0: fits, with "weak evidence" if the failures so far do not exclude twice the usual rate. 1: warning.
    2: mismatch. 3: unknown, or an error.
    """
    from federation.protocol import check as checking
    from federation.protocol.round_messages import LADDER_LABELS
    from federation.protocol.service_messages import CheckVerdict
    from tenant_client.records.bundle_log import BundleLog
    from tenant_client.records.journal import Journal

    _require(lease, latest=latest)
    # An error is not a mismatch: a script that starts jobs by this exit code must not refuse one for it.
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
        show_json(_object_of(result))
    else:
        show(f"{result.word}: {result.reason}")
        if result.context_name:
            show(f"this context: {result.context_name}")
        if result.better_context:
            better = f"{result.better_context} {result.better_context_name}".rstrip()
            show(f"better context for this workload: {better}")
    raise typer.Exit(int(result.verdict))


def _object_of(result: "Check") -> CheckObject:
    return {
        "verdict": int(result.verdict),
        "reason": result.reason,
        "evidence": None if result.evidence is None else _mismatch(result.evidence),
        "better_context": result.better_context,
        "hazards": [_hazard(entry) for entry in result.hazards],
        "weak_evidence": result.weak_evidence,
        "context_name": result.context_name,
        "better_context_name": result.better_context_name,
    }


def _mismatch(entry: "MismatchEntry") -> MismatchObject:
    return {
        "workload": str(entry.workload),
        "context": str(entry.context),
        "probability_worse": entry.probability_worse,
        "risk_ratio": entry.risk_ratio,
        "risk_ratio_low": entry.risk_ratio_low,
        "risk_ratio_high": entry.risk_ratio_high,
        "expected_failures": entry.expected_failures,
        "judgement": entry.judgement.value,
        "alternatives": [str(token) for token in entry.alternatives],
    }


def _hazard(entry: "HazardEntry") -> HazardObject:
    return {
        "context_level": str(entry.context_level),
        "band": entry.band,
        "rate": entry.rate,
        "rate_low": entry.rate_low,
        "rate_high": entry.rate_high,
    }


def _require(lease: str, *, latest: bool) -> None:
    if bool(lease) == latest:
        raise typer.BadParameter("pass either a lease (or the start of its name) or --latest", param_hint="LEASE")


def _asked(home: Path, labels: "Mapping[str, str]") -> "Check":
    """The answer of the provider's online service."""
    from tenant_client.network.connect import connected

    with connected(home) as provider:
        return provider.check(labels)


def changes(
    home: Home,
    lease: Lease = "",
    before: Annotated[
        str,
        typer.Option("--from", help="The lease that worked; by default the newest clean one of the same structure."),
    ] = "",
    *,
    latest: Latest = False,
    as_json: AsJson = False,
) -> None:
    """Show what changed since the last clean run before this one: context, versions, spread over nodes, operators.

    Local. Exit code 0: no change found. 1: changes found. 2: nothing to compare.
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
        baseline = runs[before] if before else changing.last_that_worked(Attempts(connection).list(), runs, lease)
        missing = changing.unknown(baseline, runs[lease])
        differences = changing.changes(baseline, runs[lease])
    if as_json:
        show_json(changing.Changes(baseline.unit, lease, differences, missing))
    else:
        show(f"{baseline.unit} → {lease}{'' if differences else ': no change found'}")
        show(*(f"  {change.kind}: {change.text}" for change in differences))
        show(*(f"  not compared: {text}" for text in missing))
    raise typer.Exit(1 if differences else 0)
