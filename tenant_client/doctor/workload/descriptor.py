"""The descriptor of a workload: readable for its owner, and never sent.

The ladder's rungs are canonical bytes cut from a descriptor, coarse to fine (DESIGN §5):

    family         collective types, precision, parallelism
    archetype      the structure, or the name of the catalogue entry that has the same
    sub-archetype  archetype, library versions, kernel families
    exact          everything but further software

An archetype depends on the structure alone, with any catalogue: workloads that are one without a catalogue are one with
it. A trace that lacks something is matched on what it has, exactly, and never with one that lacks nothing. The bytes go
nowhere but into the VOPRF, blinded.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from federation.protocol.bundle import CatalogueEntry

# ---- MinHash sketches of sets (Broder 1997) --------------------------------------------------------------------------
#
# A sketch has sixty-four positions and is not private (a dictionary of operators inverts it): only the provider
# publishes sketches, of its own benchmarks, and a tenant's never leave. Nor do parts of them as tokens: each could be
# guessed by itself, at a fraction of the guesses that the whole takes (docs/adr/0018-no-bands.md).


POSITIONS = 64
_WORDS = struct.Struct(f"<{POSITIONS}Q")


@dataclass(frozen=True)
class Sketch:
    """Sixty-four minima, each below 2^64."""

    minima: tuple[int, ...]

    @classmethod
    def from_bytes(cls, data: bytes) -> "Sketch":
        """Inverse of `to_bytes`."""
        return cls(_WORDS.unpack(data))

    def to_bytes(self) -> bytes:
        """Little-endian words."""
        return _WORDS.pack(*self.minima)


def sketch(elements: Iterable[bytes]) -> Sketch:
    """The sketch of a set of byte strings; each element is hashed once into sixty-four words by SHAKE-128."""
    digests = (hashlib.shake_128(b"pharoah/minhash/1\0" + element).digest(_WORDS.size) for element in elements)
    columns = zip(*map(_WORDS.unpack, digests), strict=True)
    return Sketch(tuple(map(min, columns)) or (0,) * POSITIONS)


def similarity(one: Sketch, other: Sketch) -> float:
    """Share of equal positions: an unbiased estimate of the Jaccard similarity, standard error at most .0625."""
    return sum(a == b for a, b in zip(one.minima, other.minima, strict=True)) / POSITIONS


_DIGEST_POSITIONS = 8

Operator = tuple[str, tuple[int, ...]]
Collective = tuple[str, int, int]


@dataclass(frozen=True)
class Descriptor:
    """One workload.

    `operators` holds (name, log2 dimensions without batch); `structure`, in the same form, what the model is made of:
    classes of operators and the shapes of weights that dominate (`tenant_client.doctor.workload.describe`).
    `collectives` is the skeleton of one iteration as (type, log2 of group size, log2 of bytes), run-length encoded;
    `versions` holds pairs of library and version.

    `lacks` names what the traces do not tell (`shapes`, `weights`, `operators`), and `counts` what they have instead:
    names of operators or kernels with how often each ran, divided by what all have in common.

    `replicas` is how many devices one process drives with copies of the model (torch.nn.DataParallel), 1 where each has
    its own process; no rung holds it, as none holds the number of ranks.

    `software` holds further packages, the driver and the kernel, with their versions. It is for the owner's own checks:
    no rung holds it.
    """

    operators: frozenset[Operator]
    structure: frozenset[Operator]
    collectives: tuple[Collective, ...]
    precision: str
    parallelism: str
    versions: tuple[tuple[str, str], ...]
    kernel_families: frozenset[str]
    lacks: tuple[str, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    software: tuple[tuple[str, str], ...] = ()
    replicas: int = 1

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
            lacks=tuple(told.get("lacks", ())),
            counts=tuple((name, count) for name, count in told.get("counts", ())),
            software=tuple((name, version) for name, version in told.get("software", ())),
            replicas=told.get("replicas", 1),
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
    """The catalogue entry nearest to a workload, and how similar their structures are: 1 only for equal ones."""

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
    """What a catalogue entry is compared by: the MinHash sketch of the structure, with a digest of it at the end.

    Sketches of two structures that differ in one of many parts may agree by chance, their digests do not.
    """
    parts = [*map(_bytes, sorted(descriptor.structure)), *([_bytes(_recorded(descriptor))] if descriptor.lacks else [])]
    whole = sketch([_bytes(parts)]).minima[-_DIGEST_POSITIONS:]
    return Sketch((*sketch(parts).minima[:-_DIGEST_POSITIONS], *whole))


def _archetype(descriptor: Descriptor, catalogue: Sequence[CatalogueEntry]) -> list[Any]:
    near = nearest(own_sketch(descriptor), catalogue)
    if near is not None and near.similarity == 1.0:
        return ["archetype", "catalogue", near.name]
    structure = sorted(descriptor.structure)
    if descriptor.lacks:
        return ["archetype", "as recorded", structure, _recorded(descriptor)]
    return ["archetype", "structure", structure]


def _recorded(descriptor: Descriptor) -> list[Any]:
    return [descriptor.lacks, descriptor.counts]


def _bytes(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed
