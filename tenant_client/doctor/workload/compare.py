"""Compares two workloads: what their tokens reveal to the provider (equality only), and what the owner sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from federation.protocol.round_messages import Ladder
from tenant_client.doctor.workload.descriptor import Descriptor, Operator

LACKING: Mapping[str, str] = {
    "shapes": "sizes of tensors were not recorded: pass record_shapes=True to the profiler",
    "weights": "no operator that takes a weight was recorded, as in compiled models",
    "operators": "graphs were replayed, whose operators are not in a trace: trace their capture too, or a run without",
}


@dataclass(frozen=True)
class Conclusion:
    """What the provider learns from the equality of tokens."""

    same_family: bool
    same_archetype: bool
    same_subarchetype: bool


@dataclass(frozen=True)
class Difference:
    """Items of one workload that the other lacks, shown to the owner only."""

    property: str
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """The conclusion, and what only the owner sees.

    Archetypes are null, unknown, where tokens differ and a trace lacks something: they may be one all the same.
    """

    same_family: bool
    same_archetype: bool | None
    same_subarchetype: bool | None
    jaccard: float
    differences: tuple[Difference, ...]
    first_lacks: tuple[str, ...]
    second_lacks: tuple[str, ...]


def conclude(one: Ladder, other: Ladder) -> Conclusion:
    """What the provider learns from two ladders of the same epoch."""
    return Conclusion(
        one.family == other.family, one.archetype == other.archetype, one.subarchetype == other.subarchetype
    )


def compared(one: Descriptor, other: Descriptor, equal: Conclusion) -> Comparison:
    """Two workloads whose tokens are `equal`, for their owner."""
    unknown = bool(one.lacks or other.lacks) and not equal.same_archetype
    return Comparison(
        equal.same_family,
        None if unknown else equal.same_archetype,
        None if unknown else equal.same_subarchetype,
        jaccard(one, other),
        differences(one, other),
        one.lacks,
        other.lacks,
    )


def jaccard(one: Descriptor, other: Descriptor) -> float:
    """Similarity of the sets of operators with shapes: shared over all, 1 for two empty sets."""
    union = len(one.operators | other.operators)
    return len(one.operators & other.operators) / union if union else 1.0


def differences(one: Descriptor, other: Descriptor) -> tuple[Difference, ...]:
    """Every property in which two workloads differ, coarse to fine."""
    pairs: tuple[tuple[str, Sequence[str], Sequence[str]], ...] = (
        ("precision", [one.precision], [other.precision]),
        ("parallelism", [one.parallelism], [other.parallelism]),
        ("structure", _named(one.structure), _named(other.structure)),
        ("versions", [" ".join(pair) for pair in one.versions], [" ".join(pair) for pair in other.versions]),
        ("kernel_families", sorted(one.kernel_families), sorted(other.kernel_families)),
        ("collectives", _collectives(one), _collectives(other)),
        ("operators", _named(one.operators), _named(other.operators)),
    )
    found = (
        Difference(name, tuple(x for x in mine if x not in set(theirs)), tuple(x for x in theirs if x not in set(mine)))
        for name, mine, theirs in pairs
    )
    return tuple(difference for difference in found if difference.only_first or difference.only_second)


def operator_text(operator: Operator) -> str:
    """An operator as text: `aten::linear [0 9 | 9 9]`, sizes in log2, 0 for any; of a class without shapes, its share.

    >>> operator_text(("aten::linear", (0, 9, -1, 9, 9)))
    'aten::linear [0 9 | 9 9]'
    """
    name, dims = operator
    if dims and dims[0] < 0:  # a share, where no shapes were recorded
        return f"{name} 2^{dims[0]} of the calls"
    return f"{name} [{' '.join('|' if size < 0 else str(size) for size in dims)}]" if dims else name


def _named(operators: frozenset[Operator]) -> list[str]:
    return [operator_text(operator) for operator in sorted(operators)]


def _collectives(descriptor: Descriptor) -> list[str]:
    return [f"{kind} over 2^{group} of 2^{size} bytes" for kind, group, size in dict.fromkeys(descriptor.collectives)]
