"""What each rank's loss and gradient norm were, and when it saved: `readings-<rank>`, for the choice of a restart.

Records of fixed size are appended, at most one in `EVERY_S`; when the file is full, the older half goes.
"""

import os
import struct
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path

EVERY_S = 1.0
MOST = 65536
_RECORD = struct.Struct("<QdddB")  # step, time, loss, gradient norm, bits: a checkpoint was complete; `is_own`


@dataclass(frozen=True)
class Reading:
    """One rank at one step; `loss` and `norm` are None where they were not told, and may be NaN.

    `is_own`: `backward` began from the loss, so it is of the rank's own batch and no average.
    """

    step: int
    at_s: float
    loss: float | None
    norm: float | None
    saved: bool
    is_own: bool = False


def file_name(rank: int | str) -> str:
    """The name of `rank`'s readings in the run directory."""
    return f"readings-{rank}"


def encode(reading: Reading) -> bytes:
    """One record; a value that is not known is a NaN with a sign."""
    values = (
        -nan if value is None else abs(value) if isnan(value) else value for value in (reading.loss, reading.norm)
    )
    return _RECORD.pack(reading.step, reading.at_s, *values, reading.saved + 2 * reading.is_own)


def read(path: Path) -> list[Reading]:
    """All complete records; none where there is no such file."""
    try:
        data = path.read_bytes()[-MOST * _RECORD.size :] if path.stat().st_size <= 2 * MOST * _RECORD.size else b""
    except OSError:
        return []
    return _records(data)


def read_from(path: Path, offset: int) -> tuple[list[Reading], int]:
    """Complete records from an offset on, and where to go on; from the start where the older half is gone."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == offset:
                return [], offset
            file.seek(offset if offset < size else 0)
            data = file.read(2 * MOST * _RECORD.size)
    except OSError:
        return [], offset
    return _records(data), (offset if offset < size else 0) + len(data) // _RECORD.size * _RECORD.size


def _records(data: bytes) -> list[Reading]:
    whole = data[: len(data) // _RECORD.size * _RECORD.size]
    return [
        Reading(step, at_s, _known(loss), _known(norm), bool(bits & 1), bool(bits & 2))
        for step, at_s, loss, norm, bits in _RECORD.iter_unpack(whole)
    ]


def _known(value: float) -> float | None:
    negative = struct.pack("<d", value)[-1] & 0x80
    return None if isnan(value) and negative else value


class Log:
    """Appends this rank's readings; every method may raise OSError."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        self._path = run_dir / file_name(rank)
        self._next_s = 0.0

    def add(self, reading: Reading) -> None:
        """Appends it, unless the last one was a moment ago; a checkpoint is always appended."""
        if reading.at_s < self._next_s and not reading.saved:
            return
        self._next_s = reading.at_s + EVERY_S
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size >= MOST * _RECORD.size:
                kept = os.pread(descriptor, MOST // 2 * _RECORD.size, size - MOST // 2 * _RECORD.size)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, kept)
            os.write(descriptor, encode(reading))
        finally:
            os.close(descriptor)
