"""The testable hardware of this machine, its names, and the CPU load of other programs."""

import mmap
import os
import platform
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from federation.protocol.service_messages import Suspicion
from pharoah_confirm import cpu, cuda, pair
from pharoah_confirm.assess import Measured
from pharoah_confirm.cpu import rate
from pharoah_confirm.sample import Benchmark, CannotMeasure, Once, WrongResult

CPU = "cpu"
GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


@dataclass(frozen=True)
class Target:
    """What is to be tested: `device` is cpu or cuda:N, `folder` is on the disk, `partner` is host:port or loopback."""

    device: str
    folder: Path
    partner: str = pair.LOOPBACK

    def benchmark(self, suspicion: Suspicion) -> tuple[Benchmark, str, str]:
        """The benchmark that tests a suspicion, what it runs on, and how that is called; CannotMeasure if none does."""
        benchmark = self.benchmarks().get(suspicion)
        if benchmark is None:
            raise CannotMeasure(f"{self.device} has no test for {suspicion}", hint="pass a GPU with --device")
        if benchmark in cuda.BENCHMARKS:
            return benchmark, self.device, cuda.described(self.device)
        if suspicion is Suspicion.STORAGE:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8")
            return benchmark, str(self.folder), file_system(self.folder.resolve(), mounts)
        if suspicion is Suspicion.INTERCONNECT:
            return benchmark, self.partner, pair.LOOPBACK if self.partner == pair.LOOPBACK else "tcp"
        return benchmark, CPU, processor()

    def benchmarks(self) -> Mapping[Suspicion, Benchmark]:
        """All that can be tested. With a partner the link to it is tested, else that between two GPUs."""
        own = cuda.BENCHMARKS if self.device != CPU else ()
        last = pair.BENCHMARKS if self.partner != pair.LOOPBACK else ()
        tests = (*cpu.BENCHMARKS, *BENCHMARKS, *pair.BENCHMARKS, *own, *last)
        return {benchmark.suspicion: benchmark for benchmark in tests}

    def measure(self, suspicion: Suspicion, seconds: float) -> Measured:
        """One run."""
        benchmark, device, described = self.benchmark(suspicion)
        on_device = cuda.busy(device) if benchmark in cuda.BENCHMARKS else 0.0
        with Busy() as busy:
            sample = benchmark.run(seconds, device, described=described, clock=time.monotonic)
        return Measured(sample, busy.share, on_device)


class Busy:
    """The share of all processors that other programs used within a `with` block; 0 where the system does not tell."""

    def __enter__(self) -> "Busy":
        self.share = 0.0
        self._began = _ticks(), time.process_time()
        return self

    def __exit__(self, *_ended: object) -> None:
        (busy_before, every_before), began_s = self._began
        busy, every = _ticks()
        own = (time.process_time() - began_s) * os.sysconf("SC_CLK_TCK")
        if every > every_before:
            self.share = max(0.0, busy - busy_before - own) / (every - every_before)


def default_device() -> str:
    """The first GPU where a driver is loaded, else the processor."""
    return f"{cuda.PREFIX}0" if any(driver.exists() for driver in GPU_DRIVERS) else CPU


def processor() -> str:
    """The processor's product name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def name() -> str:
    """What this machine is called."""
    return socket.gethostname()


def _ticks() -> tuple[int, int]:
    """Busy ticks of all processors since the start, and all ticks."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return 0, 0
    ticks = [int(number) for number in first.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


# ---- disks -----------------------------------------------------------------------------------------------------------
#
# The file is written anew, forced to the disk and dropped from the page cache, and then read with O_DIRECT, which asks
# the device each time. Where the file system refuses O_DIRECT, each block is dropped from the cache right before it is
# read (posix_fadvise), which is advice: pages that are still dirty or mapped stay. A file system in memory cannot be
# asked at all and is refused. What is left in either case: caches of the drive, of its controller, and of a hypervisor
# or a file server behind it. They make a disk look faster, and so may hide a slow one.


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
