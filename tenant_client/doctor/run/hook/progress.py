"""How far each rank of a running job is: one record of fixed size per rank, in `$PHAROAH_RUN_DIR/progress-<rank>`.

A record is overwritten in place, by one write of 114 bytes into a file whose blocks exist already: it outlives a killed
process, needs no sync, and an error of the file system is an `OSError` to the writer (through a mapping, a full or
truncated file would be SIGBUS, which kills the job). The file is opened for each record: the number of a descriptor
that is kept may be the job's own file by the next one. A checksum tells a reader that it saw half of a write, or
something else altogether; it then has None and looks again.

>>> told = Progress(3, 4711, 120, 1.7e9, "train", 2.25, 0, 2)
>>> decode(encode(told)) == told
True
>>> decode(b"something else") is None
True
"""

import errno
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

Phase = Literal["start", "train", "eval", "checkpoint", "end", "failed"]
PHASES: tuple[Phase, ...] = get_args(Phase)

_MAGIC = b"pharoah\x03"
# magic, rank, pid, restart, step, time, phase, whether there is a loss, loss, evaluations, tally
_BODY = struct.Struct("<8sIQIQdBBdI7d")
_CHECKSUM = struct.Struct("<I")
NONE_LEFT = (errno.EMFILE, errno.ENFILE)  # the job has all the descriptors that there are: another time
SIZE = _BODY.size + _CHECKSUM.size


class Tally(NamedTuple):
    """What one rank spent beside its steps, as `hook.tally` adds it up.

    `first_s` and `last_s` are when its first and its last step were done (since 1970), 0 before. Seconds are sums over
    what is over. `gpu_bytes` is the peak of what torch had allocated on its GPU, `gpu_limit_bytes` what that GPU has; 0
    without one.
    """

    first_s: float = 0.0
    last_s: float = 0.0
    checkpoint_s: float = 0.0
    eval_s: float = 0.0
    metrics_s: float = 0.0
    gpu_bytes: float = 0.0
    gpu_limit_bytes: float = 0.0


NO_TALLY = Tally()


@dataclass(frozen=True)
class Progress:
    """One rank's last word.

    `step` counts finished optimiser steps of this attempt; `updated_at_s` in seconds since the epoch; `loss` is the
    last one seen, None before the first (NaN is a loss); `restart` counts the launcher's restarts, 0 at first;
    `evaluations` counts those that have begun.
    """

    rank: int
    pid: int
    step: int
    updated_at_s: float
    phase: Phase
    loss: float | None
    restart: int
    evaluations: int = 0
    tally: Tally = NO_TALLY


def file_name(rank: int) -> str:
    """The name of `rank`'s record in the run directory."""
    return f"progress-{rank}"


def encode(progress: Progress) -> bytes:
    """The `SIZE` bytes of one record."""
    who = (progress.rank, progress.pid, progress.restart)
    now = progress.step, progress.updated_at_s, progress.phase, progress.loss, progress.evaluations
    return _pack(who, *now, progress.tally)


def _pack(
    who: tuple[int, int, int],
    step: int,
    updated_at_s: float,
    phase: Phase,
    loss: float | None,
    evaluations: int,
    tally: Tally,
) -> bytes:
    known, value = loss is not None, loss or 0.0
    body = _BODY.pack(_MAGIC, *who, step, updated_at_s, PHASES.index(phase), known, value, evaluations, *tally)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def decode(data: bytes) -> Progress | None:
    """The record that `data` holds, or None where it is torn, foreign or of another version."""
    if len(data) != SIZE or _CHECKSUM.unpack(data[_BODY.size :])[0] != zlib.crc32(data[: _BODY.size]):
        return None
    magic, rank, pid, restart, step, updated_at_s, phase, has_loss, loss, evaluations, *tally = _BODY.unpack(
        data[: _BODY.size]
    )
    if magic != _MAGIC or phase >= len(PHASES):
        return None
    known = loss if has_loss else None
    return Progress(rank, pid, step, updated_at_s, PHASES[phase], known, restart, evaluations, Tally(*tally))


def read(path: Path) -> Progress | None:
    """What the record at `path` says now; None where it is absent, torn or foreign."""
    try:
        with path.open("rb") as file:
            return decode(file.read(SIZE + 1))
    except OSError:
        return None


class Writer:
    """Keeps one rank's record, beginning with `progress`; every method may raise OSError."""

    def __init__(self, run_dir: Path, progress: Progress) -> None:
        self.rank = progress.rank
        self._who = (progress.rank, progress.pid, progress.restart)
        self._path = str(run_dir / file_name(progress.rank))
        self._write(encode(progress))
        os.truncate(self._path, SIZE)

    def update(
        self,
        step: int,
        phase: Phase,
        loss: float | None,
        updated_at_s: float,
        evaluations: int,
        tally: Tally = NO_TALLY,
    ) -> None:
        """Overwrites what changes; the rest stays."""
        self._write(_pack(self._who, step, updated_at_s, phase, loss, evaluations, tally))

    def _write(self, record: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(descriptor, record, 0)
        finally:
            os.close(descriptor)
