"""A catalogue in a file: what a provider publishes of its benchmark jobs, names and sketches, before the first bundle.

It is public. Entries are those of a bundle (`crypto.bundle.CatalogueEntry`), in the same strict encoding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from crypto.bundle import CatalogueEntry
from crypto.codec import decode, encode
from crypto.errors import DecodeError, PharoahError
from tenant_client.sketch import POSITIONS, Sketch

_SKETCH_BYTES = 8 * POSITIONS


class CatalogueError(PharoahError):
    """A catalogue file that cannot be used."""

    default_hint = "write one with pharoah-tenant catalogue"


@dataclass(frozen=True)
class Catalogue:
    """Entries in order of their names."""

    LABEL: ClassVar[str] = "pharoah/catalogue/1"
    entries: tuple[CatalogueEntry, ...]

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if names != sorted(set(names)):
            raise ValueError("entries are sorted and each name is there once")
        if any(len(entry.sketch) != _SKETCH_BYTES for entry in self.entries):
            raise ValueError(f"a sketch has {_SKETCH_BYTES} bytes")


def write_catalogue(path: Path, sketches: Mapping[str, Sketch]) -> None:
    """Writes the sketches of benchmark jobs by name; CatalogueError where `path` cannot be written."""
    entries = tuple(CatalogueEntry(name, sketch.to_bytes()) for name, sketch in sorted(sketches.items()))
    try:
        path.write_bytes(encode(Catalogue(entries)))
    except OSError as error:
        raise CatalogueError(f"{path}: {error.strerror}", hint="name a file that can be written") from error


def read_catalogue(path: Path) -> tuple[CatalogueEntry, ...]:
    """The entries of a catalogue file; CatalogueError if it is none."""
    try:
        return decode(Catalogue, path.read_bytes()).entries
    except (OSError, DecodeError) as error:
        raise CatalogueError(f"{path}: {error}") from error
