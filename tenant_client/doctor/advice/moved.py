"""Which change of version moved which operators: those that came and went together in every own run.

An operator, a family of kernels or a type of collective that only one of two runs has was moved by a version that
changed between them, if by any. Other runs of the same structure narrow this down: where one has the new version and
not the new operator, that version did not bring it.

    >>> from tenant_client.doctor.workload.descriptor import Descriptor
    >>> def job(kernel, **versions):
    ...     return Descriptor(frozenset(), frozenset(), (), "", "", tuple(versions.items()), frozenset({kernel}))
    >>> old, new = job("v1", cudnn="8.9", torch="2.1"), job("v2", cudnn="9.1", torch="2.3")
    >>> [str(one) for one in moved(old, new, [])]
    ['v1, v2: came or went with one of cudnn, torch']
    >>> [str(one) for one in moved(old, new, [job("v1", cudnn="8.9", torch="2.3")])]
    ['v1, v2: came or went with cudnn']
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tenant_client.doctor.workload.descriptor import Descriptor

_MOST_NAMED = 3


@dataclass(frozen=True)
class Moved:
    """Operators, families of kernels and types of collectives, and the libraries that may have moved them."""

    parts: tuple[str, ...]
    by: tuple[str, ...]

    def __str__(self) -> str:
        rest = f" and {len(self.parts) - _MOST_NAMED} more" if len(self.parts) > _MOST_NAMED else ""
        one_of = "one of " if len(self.by) > 1 else ""
        return f"{', '.join(self.parts[:_MOST_NAMED])}{rest}: came or went with {one_of}{', '.join(self.by)}"


def moved(before: Descriptor, after: Descriptor, runs: Iterable[Descriptor]) -> tuple[Moved, ...]:
    """What differs between two runs, by the versions that may have moved it; `runs` are others of their structure."""
    was, now, others = versions_of(before), versions_of(after), [(versions_of(run), _parts(run)) for run in runs]
    changed = [name for name in sorted(was.keys() | now.keys()) if was.get(name) != now.get(name)]
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for part in sorted(_parts(before) ^ _parts(after)):
        with_new = part in _parts(after)
        right = {name: {now.get(name): with_new, was.get(name): not with_new} for name in changed}
        runs_agree = (
            name
            for name in changed
            if all((part in parts) == right[name].get(own.get(name), part in parts) for own, parts in others)
        )
        found[tuple(runs_agree)].append(part)
    return tuple(Moved(tuple(parts), by) for by, parts in found.items() if by)


def versions_of(descriptor: Descriptor) -> Mapping[str, str]:
    """Every version that a description holds, by the name that it has there."""
    return dict((*descriptor.versions, *descriptor.software))


def _parts(descriptor: Descriptor) -> set[str]:
    names = {name for name, _ in descriptor.operators} | {kind for kind, _, _ in descriptor.collectives}
    return names | descriptor.kernel_families
