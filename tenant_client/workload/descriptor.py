"""The descriptor of a workload: readable for its owner, and never sent.

The ladder's rungs are canonical bytes cut from a descriptor, coarse to fine (DESIGN §5):

    family         collective types, precision, parallelism
    archetype      the catalogue entry whose sketch is near enough, else the structure
    sub-archetype  archetype, library versions, kernel families
    exact          everything

Sets of operators with log2 shapes separate models across vendors (measured: same model .91–.99 Jaccard, others
.02–.10); counts of operators do not, and kernel names tell the vendor. So operators make the archetype, kernels only
the sub-archetype. The bytes go nowhere but into the VOPRF, blinded.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from federation.protocol.bundle import CatalogueEntry
from tenant_client.workload.minhash import Sketch, similarity, sketch

NEAR_ENOUGH = 0.5

Operator = tuple[str, tuple[int, ...]]
Collective = tuple[str, int, int]


@dataclass(frozen=True)
class Descriptor:
    """One workload.

    `operators` holds (name, log2 dimensions without batch); `structure`, in the same form, what the model is made of:
    classes of operators and the shapes of weights that dominate (`tenant_client.workload.describe`). `collectives` is
    the skeleton of one iteration as (type, log2 of group size, log2 of bytes), run-length encoded; `versions` holds
    pairs of library and version.
    """

    operators: frozenset[Operator]
    structure: frozenset[Operator]
    collectives: tuple[Collective, ...]
    precision: str
    parallelism: str
    versions: tuple[tuple[str, str], ...]
    kernel_families: frozenset[str]

    def to_json(self) -> str:
        """Text for the owner's own journal; sets are sorted, so that equal descriptors have equal texts."""
        return json.dumps({name: sorted(v) if isinstance(v, frozenset) else v for name, v in vars(self).items()})

    @classmethod
    def from_json(cls, text: str) -> "Descriptor":
        """Inverse of `to_json`."""
        told = json.loads(text)
        return cls(
            operators=frozenset((name, tuple(dims)) for name, dims in told["operators"]),
            structure=frozenset((name, tuple(dims)) for name, dims in told["structure"]),
            collectives=tuple((kind, group, size) for kind, group, size in told["collectives"]),
            precision=told["precision"],
            parallelism=told["parallelism"],
            versions=tuple((library, version) for library, version in told["versions"]),
            kernel_families=frozenset(told["kernel_families"]),
        )


@dataclass(frozen=True)
class Rungs:
    """Canonical bytes of each rung: the inputs of the VOPRF. They reveal the workload; never log or send them."""

    family: bytes
    archetype: bytes
    subarchetype: bytes
    exact: bytes

    def __repr__(self) -> str:
        return "Rungs(…)"

    @property
    def inputs(self) -> tuple[bytes, ...]:
        """All of them, in ladder order."""
        return (self.family, self.archetype, self.subarchetype, self.exact)


@dataclass(frozen=True)
class Nearest:
    """The catalogue entry nearest to a workload, and the estimated Jaccard similarity of the sets of operators."""

    name: str
    similarity: float


def nearest(own: Sketch, catalogue: Sequence[CatalogueEntry]) -> Nearest | None:
    """The nearest entry, the first of equals by name; None if the catalogue is empty."""
    known = [Nearest(entry.name, similarity(own, Sketch.from_bytes(entry.sketch))) for entry in catalogue]
    return min(known, key=lambda entry: (-entry.similarity, entry.name), default=None)


def rungs(descriptor: Descriptor, catalogue: Sequence[CatalogueEntry]) -> Rungs:
    """The rungs of `descriptor`, given the provider's published catalogue (perhaps empty)."""
    operators = sorted(descriptor.operators)
    collectives = sorted({kind for kind, _, _ in descriptor.collectives})
    family = ["family", collectives, descriptor.precision, descriptor.parallelism]
    archetype = _archetype(descriptor, catalogue)
    subarchetype = ["subarchetype", archetype, sorted(descriptor.versions), sorted(descriptor.kernel_families)]
    exact = ["exact", subarchetype, operators, descriptor.collectives, family]
    return Rungs(_bytes(family), _bytes(archetype), _bytes(subarchetype), _bytes(exact))


def own_sketch(descriptor: Descriptor) -> Sketch:
    """The MinHash sketch of the operators with shapes: what a catalogue entry is compared by."""
    return sketch(_bytes(operator) for operator in sorted(descriptor.operators))


def _archetype(descriptor: Descriptor, catalogue: Sequence[CatalogueEntry]) -> list[Any]:
    near = nearest(own_sketch(descriptor), catalogue)
    if near is not None and near.similarity >= NEAR_ENOUGH:
        return ["archetype", "catalogue", near.name]
    return ["archetype", "structure", sorted(descriptor.structure)]


def _bytes(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed
