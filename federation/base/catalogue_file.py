"""Catalogue files: what a provider publishes of its benchmark jobs, and what a tenant names workloads by."""

from pathlib import Path

from crypto.codec import decode, encode
from crypto.errors import DecodeError, PharoahError
from federation.protocol.bundle import Catalogue, CatalogueEntry
from federation.protocol.versions import OLDEST


class CatalogueError(PharoahError):
    """A catalogue file is invalid."""

    default_hint = "write one with `pharoah-tenant workload catalogue`"


def write_catalogue(path: Path, entries: tuple[CatalogueEntry, ...]) -> None:
    """Writes entries, each name once; CatalogueError where `path` cannot be written."""
    try:
        path.write_bytes(encode(Catalogue(tuple(sorted(entries, key=lambda entry: entry.name))), OLDEST))
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
