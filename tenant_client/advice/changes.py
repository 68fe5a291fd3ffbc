"""Lists what changed between a run that worked and this one, in a few lines for the owner.

- Changes are relations: a newer version, an operator with doubled sizes, a collective over twice the ranks, another
  context. Operators that changed by the same factor share a line.
- The order is hardware, software, spread over nodes, model: the most frequent explanations of failures first.
- A version that brought a known incompatibility names it. It comes first of all where that explains the failure.

Not promised: a cause. Two runs that differ in one thing may fail because of another.

    >>> [text for text in relations("aten::mm", {(0, 9, 9)}, {(0, 10, 10)})]
    ['aten::mm: 2 sizes × 2']
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from crypto.errors import PharoahError
from federation.runtime.visible import counted_as
from tenant_client.advice.incompatibilities import Fit, Known, against, explains, job_of
from tenant_client.records.attempts import Attempt, AttemptState
from tenant_client.records.journal import Journal
from tenant_client.sources.software import Software, component_of
from tenant_client.workload.descriptor import Descriptor

Sizes = set[tuple[int, ...]]


class NothingToCompare(PharoahError):
    """There is no clean run before this one, or nothing is known of what both ran."""

    default_hint = "pass a run that worked with --from; `pharoah-tenant run` describes workloads automatically"


@dataclass(frozen=True)
class Run:
    """A lease with its labels and, if known, its workload."""

    unit: str
    labels: Mapping[str, str]
    descriptor: Descriptor | None


@dataclass(frozen=True)
class Change:
    """One difference; `kind` is context, version, parallelism, precision, collective or operator.

    `known` is what is known against the new version and was not against the old one.
    """

    kind: str
    text: str
    known: tuple[Known, ...] = ()


@dataclass(frozen=True)
class Changes:
    """What differs between the run that worked and the other, most likely explanations first.

    `unknown` says what could not be compared, and why.
    """

    before: str
    after: str
    changes: tuple[Change, ...]
    unknown: tuple[str, ...] = ()


def last_that_worked(attempts: Sequence[Attempt], runs: Mapping[str, Run], unit: str) -> Run:
    """The newest clean run that ended before the newest attempt of `unit` did, preferably of the same structure.

    Clean is a run that succeeded, and without a hang, slow rank, NaN loss or loss spike that still held at its end.
    NothingToCompare says why there is none.
    """
    until_s = max((one.ended_at_s or math.inf for one in attempts if one.unit == unit), default=math.inf)
    worked = [one for one in attempts if one.state is AttemptState.SUCCEEDED and one.unit != unit and one.unit in runs]
    earlier = [one for one in worked if (one.ended_at_s or 0.0) <= until_s]
    clean = [one.unit for one in sorted(earlier, key=lambda one: one.ended_at_s or 0.0) if _is_clean(one)]
    own = runs[unit].descriptor
    alike = [one for one in clean if own and _structure(runs[one]) == own.structure]
    if not clean:
        raise NothingToCompare(f"no clean run before {unit}: {_why_none(worked, earlier)}")
    return runs[(alike or clean)[-1]]


def reason_of(attempts: Sequence[Attempt], unit: str) -> str:
    """Why the newest attempt of `unit` failed, "" if it did not."""
    own = [one for one in attempts if one.unit == unit]
    newest = max(own, key=lambda one: one.ended_at_s or math.inf, default=None)
    return newest.cause.reason if newest else ""


def _is_clean(attempt: Attempt) -> bool:
    """Whether it ended well; hints of the provider predict, and show nothing of the run."""
    return all(finding.get("cleared_at_s") is not None or finding["kind"] == "hint" for finding in attempt.findings)


def _why_none(worked: Sequence[Attempt], earlier: Sequence[Attempt]) -> str:
    if not worked:
        return "no other run succeeded"
    if not earlier:
        return f"{counted_as(len(worked), 'successful run')} ended later"
    kinds = sorted({finding["kind"] for one in earlier for finding in one.findings})
    return f"{counted_as(len(earlier), 'successful run')} ended with {', '.join(kinds)}"


def _structure(run: Run) -> object:
    return run.descriptor.structure if run.descriptor else None


def runs_of(journal: Journal) -> dict[str, Run]:
    """Every unit of a journal by its name."""
    known = journal.descriptors()
    return {unit.unit: Run(unit.unit, unit.labels, known.get(unit.unit)) for unit in journal.units()}


def changes(before: Run, after: Run, reason: str = "") -> tuple[Change, ...]:
    """The known differences, most likely explanations first; `reason` is the diagnosis of the run after."""
    found = [Change("context", text) for text in _contexts(before.labels, after.labels)]
    one, other = before.descriptor, after.descriptor
    if one is not None and other is not None:
        found += _version_changes(one, other)
        for kind, was, now in (
            ("precision", one.precision, other.precision),
            ("parallelism", one.parallelism, other.parallelism),
        ):
            found += [Change(kind, f"{was or 'unknown'} → {now or 'unknown'}")] if was != now else []
        found += [Change("collective", text) for text in _collectives(one, other)]
        found += [Change("operator", text) for text in _operators(one, other)]
    return tuple(sorted(found, key=lambda change: not any(explains(known.effect, reason) for known in change.known)))


def _version_changes(one: Descriptor, other: Descriptor) -> list[Change]:
    """Changes of versions: first those that brought what applies, then what may apply, then the others."""
    old = {known.id for known in against(job_of(Software(), one))}
    new = [known for known in against(job_of(Software(), other)) if known.id not in old]
    differences = [*_versions(dict(one.versions), dict(other.versions))]
    if one.software and other.software:  # older descriptions have none
        differences += _versions(dict(one.software), dict(other.software))
    found = [
        Change("version", text, tuple(known for known in new if _is_of(known, name))) for name, text in differences
    ]
    order = (Fit.APPLIES, Fit.MAY_APPLY)
    return sorted(found, key=lambda change: min((order.index(known.fit) for known in change.known), default=2))


def _is_of(known: Known, library: str) -> bool:
    return any(version.startswith(f"{component_of(library)} ") for version in known.found)


def unknown(before: Run, after: Run) -> tuple[str, ...]:
    """What cannot be compared; NothingToCompare if that is everything."""
    undescribed = [run.unit for run in (before, after) if run.descriptor is None]
    missing = [f"workload: {unit} was not described" for unit in undescribed]
    unlabelled = [run.unit for run in (before, after) if not run.labels.get("context")]
    if undescribed and unlabelled:
        raise NothingToCompare("nothing to compare: " + "; ".join(missing))
    if len(unlabelled) == 1:  # without a federation there are no contexts
        missing.append(f"context: none was granted for {unlabelled[0]}")
    return tuple(missing)


def _contexts(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    known = [name for name in ("context", "context_level") if was.get(name) and now.get(name)]
    different = [name for name in known if was[name] != now[name]]
    if "context" in different:
        yield f"another hardware context: {was['context'][:8]} → {now['context'][:8]}"
    elif different:
        yield "the same hardware context at another build-up level"


def _versions(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each library that differs, with what to say of it."""
    for library in sorted(was.keys() | now.keys()):
        old, new = was.get(library), now.get(library)
        if old == new:
            continue
        if old is None or new is None:
            yield library, f"{library} {new} is new" if old is None else f"{library} {old} is gone"
            continue
        direction = "newer" if _ordered(new) > _ordered(old) else "older"
        yield library, f"{library} {old} → {new}, {direction}"


def _ordered(version: str) -> tuple[tuple[int, int | str], ...]:
    """A key by which 2.9 comes before 2.10, and text of a version after its numbers."""
    parts = re.findall(r"\d+|[A-Za-z]+", version)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts)


def _collectives(one: Descriptor, other: Descriptor) -> Iterator[str]:
    was, now = _by_kind(one), _by_kind(other)
    for kind in sorted(was.keys() | now.keys()):
        yield from relations(kind, was.get(kind, set()), now.get(kind, set()), ("ranks", "bytes"))


def _by_kind(descriptor: Descriptor) -> dict[str, Sizes]:
    found: dict[str, Sizes] = defaultdict(set)
    for kind, group, size in descriptor.collectives:
        found[kind].add((group, size))
    return found


def _operators(one: Descriptor, other: Descriptor) -> Iterator[str]:
    was, now = _by_name(one), _by_name(other)
    texts = [text for name in sorted(was.keys() | now.keys()) for text in _scaled(name, was, now)]
    said: dict[str, list[str]] = defaultdict(list)
    for name, text in texts:
        said[text].append(name)
    for text, names in said.items():
        yield f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: {text}"


def _by_name(descriptor: Descriptor) -> dict[str, Sizes]:
    found: dict[str, Sizes] = defaultdict(set)
    for name, sizes in descriptor.structure:
        found[name].add(sizes)
    return found


def _scaled(name: str, was: Mapping[str, Sizes], now: Mapping[str, Sizes]) -> Iterator[tuple[str, str]]:
    for text in relations(name, was.get(name, set()), now.get(name, set())):
        yield name, text.removeprefix(f"{name}: ")


def relations(name: str, was: Sizes, now: Sizes, axes: Sequence[str] = ()) -> Iterator[str]:
    """How the log2 sizes of one operator have changed, if they have."""
    if was == now:
        return
    if not was or not now:
        yield f"{name}: {'is new' if not was else 'is gone'}"
        return
    gone, come = sorted(was - now), sorted(now - was)
    steps = {_step(a, b) for a, b in zip(gone, come, strict=False)}
    if len(gone) == len(come) and len(steps) == 1 and None not in steps:
        (step,) = steps
        yield f"{name}: {_factors(step or (), axes)}"
        return
    yield f"{name}: {len(gone)} of {len(was)} sizes are gone, {len(come)} are new"


def _step(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """By how much each log2 size has grown; None where the two are not of one form."""
    if len(a) != len(b) or any((x < 0) != (y < 0) for x, y in zip(a, b, strict=True)):
        return None
    return tuple(y - x for x, y in zip(a, b, strict=True))


def _factors(step: Sequence[int], axes: Sequence[str]) -> str:
    """What a step in log2 means: per axis where axes have names, else how many sizes grew by what."""
    if axes:
        return ", ".join(f"{axis} {_times(by)}" for axis, by in zip(axes, step, strict=True) if by)
    groups: dict[int, int] = defaultdict(int)
    for by in step:
        groups[by] += 1
    return ", ".join(f"{many} sizes {_times(by)}" for by, many in sorted(groups.items()) if by)


def _times(by: int) -> str:
    return f"× {2**by}" if by > 0 else f"÷ {2**-by}"
