"""Catalogue files: names and sketches of a provider's benchmark jobs, for use before there is a bundle."""

from collections.abc import Mapping
from pathlib import Path

from crypto.codec import decode, encode
from crypto.errors import DecodeError, PharoahError
from federation.protocol.bundle import Catalogue, CatalogueEntry
from tenant_client.workload.minhash import Sketch


class CatalogueError(PharoahError):
    """A catalogue file is invalid."""

    default_hint = "write one with `pharoah-tenant catalogue`"


def write_catalogue(path: Path, sketches: Mapping[str, Sketch]) -> None:
    """Writes the sketches of benchmark jobs by name; CatalogueError where `path` cannot be written."""
    entries = tuple(CatalogueEntry(name, sketch.to_bytes()) for name, sketch in sorted(sketches.items()))
    try:
        path.write_bytes(encode(Catalogue(entries)))
    except OSError as error:
        raise CatalogueError(f"{error.strerror}: {path}", hint="pass a writable file") from error


def read_catalogue(path: Path) -> tuple[CatalogueEntry, ...]:
    """The entries of a catalogue file; CatalogueError if it is none."""
    try:
        return decode(Catalogue, path.read_bytes()).entries
    except OSError as error:
        raise CatalogueError(f"{error.strerror}: {path}") from error
    except DecodeError as error:
        raise CatalogueError(f"not a catalogue ({error.what}): {path}") from error
