"""Lists what changed between a run that worked and this one, in a few lines for the owner.

- Changes are relations: a newer version, an operator with doubled sizes, a collective over twice the ranks, another
  context. Operators that changed by the same factor share a line.
- A version that brought a known incompatibility names it.
- Without a failure the order is hardware, software, spread over nodes, model. Of a failed run it is that of
  `tenant_client.doctor.advice.culprits`: what is known of a version, what the provider's bundle says, and how own
  runs went.

Not promised: a cause. Two runs that differ in one thing may fail because of another.

    >>> [text for text in relations("aten::mm", {(0, 9, 9)}, {(0, 10, 10)})]
    ['aten::mm: 2 sizes × 2']
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from federation.protocol.version_ranges import order
from tenant_client.doctor.advice.incompatibilities import Fit, Known, against, job_of
from tenant_client.doctor.advice.moved import Moved
from tenant_client.doctor.advice.own_runs import NothingToCompare, Run, Went
from tenant_client.doctor.records.starts import Started
from tenant_client.doctor.sources.software import Software, component_of
from tenant_client.doctor.workload.descriptor import Descriptor

Sizes = set[tuple[int, ...]]


@dataclass(frozen=True)
class Change:
    """One difference; `kind` is context, version, parallelism, precision, collective, operator, or one of `STARTED`.

    `name` is of the library, or of the label that tells the context; `known` is what is known against the new version
    and was not against the old one; `told` is what the provider's bundle says against it, and `went` how own runs went.
    """

    kind: str
    text: str
    known: tuple[Known, ...] = ()
    name: str = ""
    told: str = ""
    went: Went | None = None


@dataclass(frozen=True)
class Changes:
    """What differs between the run that worked and the other, most likely explanations first.

    `moved` says which operators came or went with which versions; `unknown` what could not be compared, and why.
    """

    before: str
    after: str
    changes: tuple[Change, ...]
    moved: tuple[Moved, ...] = ()
    unknown: tuple[str, ...] = ()


def changes(before: Run, after: Run) -> tuple[Change, ...]:
    """The known differences: hardware, software, spread over nodes, model, and how both were started."""
    found = [Change("context", text, name=name) for name, text in _contexts(before.labels, after.labels)]
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
    if before.started is not None and after.started is not None:
        described = {change.name for change in found if change.kind == "version"}
        found += [change for change in _started(before.started, after.started) if change.name not in described]
    return tuple(found)


def _started(was: Started, now: Started) -> Iterator[Change]:
    """What differs in how both were started: code, command, packages, environment, hosts."""
    if was.commit != now.commit:
        yield Change("code", f"commit {was.commit[:8] or 'unknown'} → {now.commit[:8] or 'unknown'}")
    edited = sorted(name for name in was.dirty.keys() | now.dirty.keys() if was.dirty.get(name) != now.dirty.get(name))
    if edited and (was.commit or now.commit):
        yield Change(
            "code", f"uncommitted: {', '.join(edited[:5])}{f' and {len(edited) - 5} more' * (len(edited) > 5)}"
        )
    elif both := [name for name in edited if name in was.dirty and name in now.dirty]:  # outside git, the scripts alone
        yield Change("code", f"{', '.join(both)} changed")
    if was.command != now.command:
        gone, come = _apart(was.command, now.command), _apart(now.command, was.command)
        yield Change("command", f"{' '.join(gone) or 'nothing'} → {' '.join(come) or 'nothing'}")
    if was.packages and now.packages:
        for name, text in _versions(was.packages, now.packages):
            yield Change("package", text, name=name)
    for name in sorted(was.environment.keys() | now.environment.keys()):
        old, new = was.environment.get(name, "unset"), now.environment.get(name, "unset")
        if old != new:
            yield Change("environment", f"{name}: {old[:60]} → {new[:60]}", name=name)
    if was.hosts != now.hosts:
        yield Change("host", f"{was.hosts} → {now.hosts}")


def _apart(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """The words of a command that the other has not so often."""
    spare = Counter(others)
    spare.subtract(words)
    return [word for word in words if spare[word] < 0]


def _version_changes(one: Descriptor, other: Descriptor) -> list[Change]:
    """Changes of versions: first those that brought what applies, then what may apply, then the others."""
    old = {known.id for known in against(job_of(Software(), one))}
    new = [known for known in against(job_of(Software(), other)) if known.id not in old]
    differences = [*_versions(dict(one.versions), dict(other.versions))]
    if one.software and other.software:  # older descriptions have none
        differences += _versions(dict(one.software), dict(other.software))
    found = [
        Change("version", text, tuple(known for known in new if _is_of(known, name)), name)
        for name, text in differences
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
    unstarted = [run.unit for run in (before, after) if run.started is None]
    if undescribed and unlabelled and unstarted:
        raise NothingToCompare("nothing to compare: " + "; ".join(missing))
    if not unstarted and (outside := [run for run in (before, after) if run.started and not run.started.commit]):
        compared = set.intersection(*({*run.started.dirty} for run in outside if run.started))
        but = f" but {', '.join(sorted(compared))}" if compared and len(outside) == 2 else ""
        missing.append(f"code{but} (not in git)")
    if len(unlabelled) == 1:  # without a federation there are no contexts
        missing.append(f"context: none was granted for {unlabelled[0]}")
    return tuple(missing)


def _contexts(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    known = [name for name in ("context", "context_level") if was.get(name) and now.get(name)]
    different = [name for name in known if was[name] != now[name]]
    if "context" in different:
        yield "context", f"another hardware context: {was['context'][:8]} → {now['context'][:8]}"
    elif different:
        yield "context_level", "the same hardware context at another build-up level"


def _versions(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each library that differs, with what to say of it."""
    for library in sorted(was.keys() | now.keys()):
        old, new = was.get(library), now.get(library)
        if old == new:
            continue
        if old is None or new is None:
            yield library, f"{library} {new} is new" if old is None else f"{library} {old} is gone"
            continue
        direction = "newer" if order(new) > order(old) else "older"
        yield library, f"{library} {old} → {new}, {direction}"


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
