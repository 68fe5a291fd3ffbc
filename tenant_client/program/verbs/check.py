"""The verb for use before a job starts: `check`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.errors import PharoahError
from federation.base.clock import now_hour
from federation.base.console import AsJson, InputFile
from federation.base.pinned_directory import NOT_JOINED, NotEnrolled, is_pinned
from federation.base.screen import show, show_json
from federation.base.visible import counted_as
from federation.protocol import check as checking
from federation.protocol.check import Check
from federation.protocol.known_rates import BY_THE_PUBLIC, Experience, experience
from federation.protocol.life_table import PER_NODE_HOURS
from federation.protocol.round_messages import LADDER_LABELS
from federation.protocol.service_messages import CheckVerdict
from tenant_client.doctor.advice.incompatibilities import Fit, Known, against, job_of
from tenant_client.doctor.advice.lease_hazard import first_experience
from tenant_client.doctor.advice.log_scan import software_in
from tenant_client.doctor.advice.own_history import OwnPair
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.own_leases import own_leases
from tenant_client.doctor.sources.installed import installed
from tenant_client.doctor.sources.software import Software
from tenant_client.doctor.workload.descriptor import Descriptor
from tenant_client.program.verbs.console import MOST_THAT_MAY, Home, Latest, Lease, failing, joined, require
from tenant_client.program.verbs.judging import Ways, judged


class NoVersions(PharoahError):
    """Nothing that was read names a version."""

    default_hint = "pass the output of `pip freeze`, `conda list` or `python -m torch.utils.collect_env`"


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


class OwnObject(TypedDict):
    """The tenant's own history of the workload on the context, which the evidence includes.

    `share` is what the tenant had of the pair's expected failures in the contributions behind the bundle.
    """

    leases: int
    failures: float
    expected: float
    share: float


class FirstRateObject(TypedDict):
    """Failures of infrastructure per 1,000 node-hours while the bundle has no rate of the hardware, 95% interval."""

    rate: float
    rate_low: float
    rate_high: float


class CheckObject(TypedDict):
    """A verdict, which is the exit code too, and its evidence, null without any; a name is empty if it is unknown.

    `known` is what is known against the software, first what applies, then what may. `first_rate` is null where
    `hazards` has rates; what share of either rests on other fleets is `public_share`. No verdict does.
    """

    verdict: int
    reason: str
    evidence: MismatchObject | None
    better_context: str | None
    hazards: list[HazardObject]
    weak_evidence: bool
    context_name: str
    better_context_name: str
    known: list[Known]
    own: OwnObject | None
    first_rate: FirstRateObject | None
    public_share: float | None


Versions = Annotated[
    list[Path] | None,
    typer.Option(
        "--versions",
        click_type=InputFile(),
        help="A file that names versions: pip freeze, conda list, torch.utils.collect_env, nvidia-smi, or a log;"
        " repeatable. Without a lease, only these are checked.",
    ),
]
Here = Annotated[
    bool,
    typer.Option("--here", help="Take the packages, the driver and the kernel of this machine, as for --versions."),
]


def fit(
    home: Home,
    lease: Lease = "",
    like: Annotated[
        str, typer.Option(help="A lease that ran the same workload, for a lease whose workload is not described yet.")
    ] = "",
    versions: Versions = None,
    *,
    here: Here = False,
    latest: Latest = False,
    online: Annotated[
        bool, typer.Option("--online", help="Ask the provider instead of the local bundle; it sees the tokens.")
    ] = False,
    anonymous: Annotated[
        bool,
        typer.Option(
            "--anonymous",
            help="With --online: ask with a pass in place of your name, and about the context alone. The provider sees"
            " the context, the time and the address.",
        ),
    ] = False,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate",
            help="For a script that starts, holds or moves jobs by the exit code: leave your own failures out, since"
            " the provider sees what it does. Unless tenant.toml has `own_history = true` under `decisions`.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether a workload fits its lease, before the job starts. Without --online, nothing is sent.

    Your own leases and how they ended count beside the bundle, on this machine; never with --online.

    Versions that are known to fail are named, with the source; that needs no federation, and with --versions or --here
    no lease.

    Exit code 0: fits, with "weak evidence" if the failures so far do not exclude twice the usual rate. 1: warning.
    2: mismatch. 3: unknown, or an error.
    """
    if anonymous and not online:
        raise typer.BadParameter("pass --online too, or neither: without it nobody is asked", param_hint="--anonymous")
    alone = bool(versions or here) and not (lease or latest)
    require(lease, latest=latest)
    software = _software(versions or (), here=here)
    # An error is not a mismatch: a script that starts jobs by this exit code must not refuse one for it.
    with failing(CheckVerdict.UNKNOWN):
        ways = Ways(online=online, anonymous=anonymous, gate=gate)
        result, descriptor, own, first = (
            _by_versions(software) if alone else _by_lease(home, lease, like, software, ways)
        )
    known = against(job_of(software, descriptor))
    result = _with(result, known)
    if as_json:
        rates = {"first_rate": first and _first_rate(first), "public_share": _public_share(result, first)}
        show_json({**vars(result), "known": known, "own": own and _own(own), **rates})
    else:
        _show(result, known, own, first)
    raise typer.Exit(int(result.verdict))


def _software(files: Sequence[Path], *, here: bool) -> Software:
    return software_in(files) | (installed() if here else Software())


Answer = tuple[Check, Descriptor | None, OwnPair | None, Experience | None]


def _by_versions(software: Software) -> Answer:
    """The answer about versions alone: fits, until something known applies."""
    if not software.versions:
        raise NoVersions("no version of a known component is named there")
    named = ", ".join(f"{name} {version}" for name in sorted(software.versions) for version in software.versions[name])
    return Check(CheckVerdict.OK, f"nothing that applies is known of {named}", None, None, ()), None, None, None


def _by_lease(home: Path, lease: str, like: str, software: Software, ways: Ways) -> Answer:
    """The answer about a lease, the description of its workload, own history, and a first rate if there is no other.

    Without a federation, the second and the last.
    """
    with joined(home, failed=CheckVerdict.UNKNOWN, needed=False) as connection:
        journal = Journal(connection)
        pinned, unit = is_pinned(connection), journal.find(lease)
        first = first_experience(own_leases(connection, now_hour()) if ways.own_history(home) else ())
        descriptors = journal.descriptors()
        descriptor = descriptors.get(unit) or descriptors.get(journal.find(like) if like else "")
        if not pinned and (ways.online or not (descriptor or software.versions)):
            raise NotEnrolled(NOT_JOINED)
        if not pinned:
            reason = "this home has not joined a federation: only the versions were checked"
            return checking.Check(CheckVerdict.UNKNOWN, reason, None, None, ()), descriptor, None, first
        labels = journal.labels(unit)
        if like:
            ladder = journal.labels(journal.find(like))
            labels |= {rung: ladder[rung] for rung in LADDER_LABELS if rung in ladder}
        result, own = judged(home, connection, labels, ways)
        return result, descriptor, own, None if result.hazards else first


def _with(result: Check, known: Sequence[Known]) -> Check:
    """The same, as a warning where something known applies and nothing graver was found."""
    applies = [one for one in known if one.fit is Fit.APPLIES]
    if not applies or result.verdict in (CheckVerdict.WARNING, CheckVerdict.MISMATCH):
        return result
    reason = f"{counted_as(len(applies), 'known failure')} of these versions"
    return replace(result, verdict=CheckVerdict.WARNING, reason=reason, weak_evidence=False)


def _show(result: Check, known: Sequence[Known], own: OwnPair | None, first: Experience | None) -> None:
    show(f"{result.word}: {result.reason}")
    if first is not None:
        show(_first_words(first))
    if own is not None:
        show(f"of these, yours: {own.words}")
    if result.context_name:
        show(f"this hardware group: {result.context_name}")
    if result.better_context:
        better = f"{result.better_context} {result.better_context_name}".rstrip()
        show(f"better hardware group for this workload: {better}")
    applies = [one for one in known if one.fit is Fit.APPLIES]
    may = [one for one in known if one.fit is Fit.MAY_APPLY]
    show(*(f"{one.label} {one.words}" for one in (*applies, *may[:MOST_THAT_MAY])))
    if len(may) > MOST_THAT_MAY:
        show(f"{len(may) - MOST_THAT_MAY} more may apply, see --json")


def _first_rate(first: Experience) -> FirstRateObject:
    low, high = first.interval()
    rate, low, high = (PER_NODE_HOURS * value for value in (first.rate, low, high))
    return {"rate": rate, "rate_low": low, "rate_high": high}


def _first_words(first: Experience) -> str:
    found = _first_rate(first)
    bounds = f"{found['rate_low']:.2g}–{found['rate_high']:.2g} at 95%"
    share = f"{first.public_share:.0%} " if first.own_node_hours else ""
    return f"expect {found['rate']:.2g} failures in 1,000 node-hours ({bounds}): {share}{BY_THE_PUBLIC}"


def _public_share(result: Check, first: Experience | None) -> float | None:
    """Of the rates of the bundle that of the best known."""
    if result.hazards:
        return min(experience().share_behind(one.rate_low, one.rate_high) for one in result.hazards)
    return first.public_share if first else None


def _own(own: OwnPair) -> OwnObject:
    return {
        "leases": len(own.failures),
        "failures": float(own.failures.sum()),
        "expected": float(own.expected.sum()),
        "share": own.share,
    }
