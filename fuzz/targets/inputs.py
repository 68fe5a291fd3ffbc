"""Bytes as targets take them: read within tight limits, or from a file below one temporary folder in memory."""

import atexit
import io
import shutil
import tempfile
from functools import cache
from pathlib import Path

from federation.base.reading import CappedReader, ReadLimits

LIMITS = ReadLimits(total_bytes=1 << 20, archive_members=64, records=10_000)
REPOSITORY = Path(__file__).resolve().parents[2]


def reader(data: bytes, name: str) -> CappedReader:
    """A file of that name."""
    return CappedReader(io.BytesIO(data), name, LIMITS.total_bytes)


@cache
def folder() -> Path:
    """One temporary folder, in memory where there is such a file system; gone at the end of the process."""
    memory = Path("/dev/shm")  # noqa: S108  # only where it exists, and mkdtemp makes a name of its own there
    made = Path(tempfile.mkdtemp(prefix="pharoah-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def as_file(data: bytes, name: str) -> Path:
    """A file that holds the data."""
    path = folder() / name
    path.write_bytes(data)
    return path
