"""How fast a disk reads: a fresh file, past the page cache.

The file is written anew, forced to the disk and dropped from the page cache, and then read with O_DIRECT, which asks
the device each time. Where the file system refuses O_DIRECT, each block is dropped from the cache right before it is
read (posix_fadvise), which is advice: pages that are still dirty or mapped stay. A file system in memory cannot be
asked at all and is refused. What is left in either case: caches of the drive, of its controller, and of a hypervisor
or a file server behind it. They make a disk look faster, and so may hide a slow one.
"""

import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from federation.protocol.service_messages import Suspicion
from pharoah_confirm.cpu import rate
from pharoah_confirm.sample import Benchmark, CannotMeasure, Once, WrongResult

FILE_BYTES, BLOCK_BYTES = 256 << 20, 8 << 20
IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
Read = Callable[[mmap.mmap, int], int]


@contextmanager
def reading(device: str) -> Iterator[Once]:
    """Blocks of a fresh file in the folder `device`, one after the other and over again, in MB per second."""
    _refuse_memory(Path(device))
    block = mmap.mmap(-1, BLOCK_BYTES)  # page-aligned, as O_DIRECT wants it
    with tempfile.NamedTemporaryFile(dir=device, prefix="pharoah-confirm-") as file:
        pattern = os.urandom(BLOCK_BYTES)
        fill(file.fileno(), pattern)
        with opened(Path(file.name)) as read:
            yield blocks(read, block, pattern)


def blocks(read: Read, block: mmap.mmap, pattern: bytes) -> Once:
    """A function that reads the next block and compares it with what was written."""
    at = 0

    def once() -> float:
        nonlocal at
        began = time.perf_counter()
        number = read(block, at)
        took = time.perf_counter() - began
        if number != BLOCK_BYTES or block[:] != pattern:
            raise WrongResult(f"data read from the disk differ from the data written, at byte {at}")
        at = (at + BLOCK_BYTES) % FILE_BYTES
        return rate(1e-6 * BLOCK_BYTES, took)

    return once


def fill(descriptor: int, pattern: bytes) -> None:
    """Writes the file and forces it to the disk; CannotMeasure where there is no room for it."""
    try:
        for _ in range(FILE_BYTES // BLOCK_BYTES):
            os.write(descriptor, pattern)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise CannotMeasure(f"cannot write a test file of {FILE_BYTES >> 20} MiB: {error.strerror}") from error


@contextmanager
def opened(path: Path) -> Iterator[Read]:
    """Reads past the page cache, by O_DIRECT or else by dropping what is to be read."""
    direct = True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        direct, descriptor = False, os.open(path, os.O_RDONLY)

    def read(block: mmap.mmap, at: int) -> int:
        if not direct:
            os.posix_fadvise(descriptor, at, len(block), os.POSIX_FADV_DONTNEED)
        return os.preadv(descriptor, [block], at)

    try:
        yield read
    finally:
        os.close(descriptor)


def _refuse_memory(folder: Path) -> None:
    if not folder.is_dir():
        raise CannotMeasure(f"not a folder: {folder}", hint="pass a folder on the disk with --folder")
    if file_system(folder.resolve(), Path("/proc/mounts").read_text(encoding="utf-8")) in IN_MEMORY:
        raise CannotMeasure(f"not on a disk but in memory: {folder}", hint="pass a folder on the disk with --folder")


def file_system(folder: Path, mounts: str) -> str:
    r"""The type of the file system that holds `folder`, by /proc/mounts; the longest mount point that leads to it.

    >>> file_system(Path("/dev/shm/x"), "/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n")
    'tmpfs'
    """
    entries = [line.split(" ")[1:3] for line in mounts.splitlines()]
    holding = [(len(point), kind) for point, kind in entries if folder.is_relative_to(point)]
    return max(holding)[1] if holding else ""


BENCHMARKS = (Benchmark(f"read-{BLOCK_BYTES >> 20}MiB", Suspicion.STORAGE, "MB/s", reading),)
