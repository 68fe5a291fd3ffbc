"""Orders changes by how probably each explains a failure: what is known of it, and how own runs went with it.

    weight = prior × evidence of own runs

- *Prior.* A change of context weighs one, and so do all versions together: each by its component's share of those
  entries of the shipped table whose effect explains the failure. An entry against the version itself adds to that
  (`KNOWN`), whatever the component: where entries are many, innocent upgrades bring some. What the bundle speaks
  against weighs more by a factor (`TOLD`). Both are assumed.
- *Own runs.* If this change is the culprit, a share p₁ of runs with it fails so and a smaller share p₀ of the others,
  both unknown. The evidence is the likelihood of what runs showed, averaged over both. So a version with which runs
  succeeded goes back, and one without which none failed comes forward.

Read are runs of the same structure; one that failed for another reason did not fail so. Nothing of this leaves the
machine. Not promised: a cause. What always came together cannot be told apart by runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

from federation.protocol.bundle import Bundle, RuleEntry
from federation.protocol.check import check
from federation.protocol.service_messages import CheckVerdict
from federation.protocol.version_ranges import VersionRange, parse
from tenant_client.doctor.advice.changes import Change, Changes, changes, unknown
from tenant_client.doctor.advice.incompatibilities import TABLE, Fit, explains, job_of
from tenant_client.doctor.advice.moved import moved
from tenant_client.doctor.advice.own_runs import Run, Went, own_runs, reason_of, that_worked
from tenant_client.doctor.records.attempts import Attempt
from tenant_client.doctor.sources.software import Software, component_of

# Assumed, not learnt: how much a change weighs by its kind, and how much more with an entry or a bundle against it.
KINDS: Mapping[str, float] = {
    "context": 1,
    "code": 0.5,
    "command": 0.5,
    "precision": 0.1,
    "parallelism": 0.1,
    "host": 0.1,
    "collective": 0.05,
    "package": 0.05,
    "operator": 0.02,
    "environment": 0.02,
}
KNOWN: Mapping[Fit, float] = {Fit.APPLIES: 3.0, Fit.MAY_APPLY: 1.5}
TOLD = 30.0
RECENT = 10  # runs that worked, before the newest of them


@dataclass(frozen=True)
class Evidence:
    """What is known of a failure: its reason, own runs and whether each failed so, and the newest bundle."""

    reason: str
    runs: Sequence[tuple[Run, bool]] = ()
    bundle: Bundle | None = None


def explained(
    attempts: Sequence[Attempt], runs: Mapping[str, Run], unit: str, baseline: str, bundle: Bundle | None
) -> Changes:
    """What changed before the newest attempt of `unit`; compared with `baseline`, or with the newest that worked.

    NothingToCompare where no run worked, or nothing is known of two.
    """
    after, reason = runs[unit], reason_of(attempts, unit)
    worked = [runs[baseline]] if baseline else that_worked(attempts, runs, unit)
    before, missing = worked[-1], unknown(worked[-1], after)
    own = own_runs(attempts, runs, after, reason)
    found: Sequence[Change] = changes(before, after)
    if reason:
        found = (*found, *came_shortly_before(found, worked, after))
        found = ordered(found, before, after, Evidence(reason, own, bundle))
    one, other = before.descriptor, after.descriptor
    others = [run.descriptor for run, _ in own if run.descriptor]
    return Changes(before.unit, unit, tuple(found), moved(one, other, others) if one and other else (), missing)


def ordered(found: Sequence[Change], before: Run, after: Run, evidence: Evidence) -> tuple[Change, ...]:
    """The changes with what runs and the bundle say of each, most probable culprits first."""
    weighed = [_with_evidence(change, before, after, evidence) for change in found]
    return tuple(sorted(weighed, key=lambda change: -_log_weight(change, evidence.reason)))


def came_shortly_before(found: Sequence[Change], worked: Sequence[Run], after: Run) -> tuple[Change, ...]:
    """Versions and contexts of `after` that the newest run that worked had too, and one of the `RECENT` before had not.

    What fails now and then may have worked once. `worked`: newest last, as `show --only changes` was told the newest.
    """
    named = {(change.kind, change.name) for change in found}
    added: list[Change] = []
    for older in reversed(worked[-1 - RECENT : -1]):
        fresh = [change for change in changes(older, after) if change.kind in ("context", "version")]
        fresh = [change for change in fresh if (change.kind, change.name) not in named]
        named |= {(change.kind, change.name) for change in fresh}
        added += [replace(change, text=f"{change.text}, in {worked[-1].unit} too") for change in fresh]
    return tuple(added)


def _with_evidence(change: Change, before: Run, after: Run, evidence: Evidence) -> Change:
    """A change with the words of the bundle, and with how own runs went."""
    told = _told_of(change, before, after, evidence.bundle) if evidence.bundle else ""
    state = after.state(change.kind, change.name)
    runs = [(run.state(change.kind, change.name) == state, failed) for run, failed in evidence.runs]
    return replace(change, told=told, went=Went.of(runs) if runs else None)


def _log_weight(change: Change, reason: str) -> float:
    known = max((KNOWN[one.fit] for one in change.known if explains(one.effect, reason)), default=0.0)
    base = known + (_share(change.name, reason) if change.kind == "version" else KINDS[change.kind])
    return log(base * (TOLD if change.told else 1.0)) + (change.went.log_likelihood if change.went else 0.0)


def _share(library: str, reason: str) -> float:
    """The share of a component in the entries whose effect explains this reason; in all of them, if none does."""
    entries = [entry.versions for entry in TABLE.values() if explains(entry.effect, reason)]
    named = [name for versions in entries or [entry.versions for entry in TABLE.values()] for name in versions]
    return (1 + named.count(component_of(library) or "")) / (len(set(named)) + len(named))


# ---- what the bundle says --------------------------------------------------------------------------------------------


def _told_of(change: Change, before: Run, after: Run, bundle: Bundle) -> str:
    """What the bundle says against the new state and not against the old one, "" if nothing."""
    if change.kind == "context":
        was, now = (check(bundle, run.labels) for run in (before, after))
        grave = (CheckVerdict.WARNING, CheckVerdict.MISMATCH)
        return now.reason if now.verdict in grave and was.verdict not in grave else ""
    if change.kind == "version":
        return next((_words(rule) for rule in bundle.rules if _is_new(rule, change.name, before, after)), "")
    return ""


def _is_new(rule: RuleEntry, library: str, before: Run, after: Run) -> bool:
    """Whether all ranges of a rule hold after and not before, and one of them is of this library."""
    ranges = [one for one in map(parse, rule.conditions) if one is not None]
    named = {component_of(one.name) or one.name for one in ranges}
    held = [all(_holds(one, run) for one in ranges) for run in (before, after)]
    return (component_of(library) or library) in named and held == [False, True]


def _holds(one: VersionRange, run: Run) -> bool:
    """Whether a version of this component is in the range; an unknown one is not."""
    versions = job_of(Software(), run.descriptor).software.versions
    return any(map(one.holds, versions.get(component_of(one.name) or one.name, ())))


def _words(rule: RuleEntry) -> str:
    others = [text for text in rule.conditions if parse(text) is None]
    text = " and ".join(text for text in rule.conditions if text not in others)
    unless = f", if {' and '.join(others)}" if others else ""
    return f"{text} fails {rule.ratio:.1f} times as often ({rule.ratio_low:.1f}–{rule.ratio_high:.1f}){unless}"
