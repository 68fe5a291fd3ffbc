"""Runs as snapshots, to judge what changed between two of them by rules (`federation.protocol.change_rules`).

| kind | of a run |
|---|---|
| `version`, `software` | a library that its description names, by component: `version:nccl`, `software:driver` |
| `precision`, `parallelism` | as described |
| `collective`, `operator` | each type, each class of operators, with its sizes |
| `context` | the hardware context and its build-up level, by token |

What a run does not tell (it was not described, it has no context where the other has one, its description is older and
names no software) is no change, and a rule about it is unknown.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from federation.protocol.snapshots import Snapshot
from tenant_client.doctor.advice.own_runs import Run
from tenant_client.doctor.sources.software import component_of
from tenant_client.doctor.workload.descriptor import Descriptor

DESCRIBED = frozenset({"version", "precision", "parallelism", "collective", "operator"})


def snapshots(before: Run, after: Run) -> tuple[Snapshot, Snapshot]:
    """Both runs; operators are compared only where both descriptions lack the same."""
    lacks = {run.descriptor.lacks for run in (before, after) if run.descriptor}
    apart = frozenset({"operator"} if len(lacks) > 1 else ())
    return _snapshot(before, apart), _snapshot(after, apart)


def _snapshot(run: Run, apart: frozenset[str]) -> Snapshot:
    features = dict(_context(run))
    tells = frozenset({"context"} if features else ())
    if run.descriptor is None:
        return Snapshot(run.unit, {"": features}, tells, DESCRIBED)
    features |= dict(_described(run.descriptor))
    tells |= DESCRIBED | ({"software"} if run.descriptor.software else frozenset())
    return Snapshot(run.unit, {"": features}, tells - apart, apart)


def _context(run: Run) -> Iterator[tuple[str, str]]:
    for kind, label in (("hardware", "context"), ("level", "context_level")):
        if token := run.labels.get(label):
            yield f"context:{kind}", token


def _described(descriptor: Descriptor) -> Iterator[tuple[str, str]]:
    yield from _versions("version", descriptor.versions)
    yield from _versions("software", descriptor.software)
    yield "precision", descriptor.precision or "unknown"
    yield "parallelism", descriptor.parallelism or "unknown"
    yield from _sized("collective", ((kind, (group, size)) for kind, group, size in descriptor.collectives))
    yield from _sized("operator", descriptor.structure)


def _versions(kind: str, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for library, version in pairs:
        found[component_of(library) or library].add(version)
    yield from ((f"{kind}:{name}", ", ".join(sorted(versions))) for name, versions in found.items())


def _sized(kind: str, items: Iterable[tuple[str, tuple[int, ...]]]) -> Iterator[tuple[str, str]]:
    """Each name with all its log2 sizes as text."""
    found: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name, sizes in items:
        found[name].add(sizes)
    for name, each in found.items():
        yield f"{kind}:{name}", "; ".join(" ".join(map(str, sizes)) for sizes in sorted(each))
