"""Benchmarks of a CPU: matrix products, memory copies, the host's end of the link to its devices, and data loading.

- Matrix products and copies are measured in CPU time, so that other programs hardly matter. Time stolen by a hypervisor
  is therefore not visible.
- The host's end of the link is what every processor together copies between memory of different NUMA nodes, in wall
  time: the rate that a device's transfers share. Lanes, switches and a device's end of the link are not in it.
- The loader is measured in wall time, since a busy host is what it tests for.
- Data come from a fixed seed, so that every run computes the same.
"""

import os
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from federation.protocol.service_messages import Suspicion
from pharoah_confirm.sample import Benchmark, Once, WrongResult

Bytes = NDArray[np.uint8]

SIDE, PRODUCTS = 512, 4
COPY_BYTES = 64 << 20
LINK_BYTES, MOST_SEATS = 32 << 20, 32
NUMA_NODES = Path("/sys/devices/system/node")
RECORDS, RECORD_BYTES = 64, 64 << 10


@contextmanager
def gemm(_device: str) -> Iterator[Once]:
    """Products of square float32 matrices, in GFLOP per second of processor time; each is compared with the first."""
    generator = np.random.default_rng(1)
    one, other = generator.random((2, SIDE, SIDE), dtype=np.float32)
    first, product = one @ other, np.empty((SIDE, SIDE), dtype=np.float32)

    def once() -> float:
        began = time.process_time()
        for _ in range(PRODUCTS):
            np.matmul(one, other, out=product)
        took = time.process_time() - began
        if not np.array_equal(product, first):
            raise WrongResult("a matrix product differs from the same product before")
        return rate(2e-9 * PRODUCTS * SIDE**3, took)

    yield once


@contextmanager
def memory(_device: str) -> Iterator[Once]:
    """Copies of blocks far larger than any cache, in GB read and written per second of processor time."""
    source = np.random.default_rng(1).integers(0, 256, COPY_BYTES, dtype=np.uint8)
    target = np.zeros_like(source)

    def once() -> float:
        began = time.thread_time()
        np.copyto(target, source)
        took = time.thread_time() - began
        if not np.array_equal(target, source):
            raise WrongResult("a copy in memory differs from its source")
        return rate(2e-9 * COPY_BYTES, took)

    yield once


@contextmanager
def host_memory(_device: str) -> Iterator[Once]:
    """Copies by all processors at once, each from memory of another NUMA node where there is one, in GB on the wall."""
    seats = _seats(NUMA_NODES, os.sched_getaffinity(0))
    with ThreadPoolExecutor(len(seats)) as pool:
        pairs = [pool.submit(_filled, far, near, number).result() for number, (near, far) in enumerate(seats)]

        def once() -> float:
            began = time.perf_counter()
            for copied in [pool.submit(_copied, near, *pair) for (near, _), pair in zip(seats, pairs, strict=True)]:
                copied.result()
            took = time.perf_counter() - began
            if not all(np.array_equal(target, source) for source, target in pairs):
                raise WrongResult("a copy between parts of memory differs from its source")
            return rate(2e-9 * LINK_BYTES * len(pairs), took)

        yield once


def _seats(folder: Path, allowed: set[int]) -> list[tuple[int, int]]:
    """For each processor that may be used, at most `MOST_SEATS`, itself and one of the next NUMA node."""
    texts = [file.read_text(encoding="ascii") for file in sorted(folder.glob("node[0-9]*/cpulist"))]
    nodes = [sorted(set(_numbers(text)) & allowed) for text in texts]
    nodes = [node for node in nodes if node] or [sorted(allowed)]
    pairs = [
        (cpu, nodes[(place + 1) % len(nodes)][at % len(nodes[(place + 1) % len(nodes)])])
        for place, node in enumerate(nodes)
        for at, cpu in enumerate(node)
    ]
    return pairs[:: -(-len(pairs) // MOST_SEATS)]


def _numbers(cpulist: str) -> Iterator[int]:
    """Of `0-3,8`, as Linux writes it."""
    for part in filter(None, cpulist.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _filled(far: int, near: int, seed: int) -> tuple[Bytes, Bytes]:
    """A source whose pages lie at one processor's memory, and a target at the other's: who writes first has them."""
    os.sched_setaffinity(0, {far})
    source = np.random.default_rng(seed).integers(0, 256, LINK_BYTES, dtype=np.uint8)
    os.sched_setaffinity(0, {near})
    return source, np.zeros_like(source) + 1


def _copied(near: int, source: Bytes, target: Bytes) -> None:
    os.sched_setaffinity(0, {near})  # of this thread alone
    np.copyto(target, source)


@contextmanager
def loader(_device: str) -> Iterator[Once]:
    """Records unpacked, scaled and gathered to batches in one process, in records per second on the wall."""
    generator = np.random.default_rng(1)
    records = [generator.integers(0, 16, RECORD_BYTES, dtype=np.uint8).tobytes() for _ in range(RECORDS)]
    packed = [zlib.compress(record, 1) for record in records]
    expected = sum(sum(record[:64]) for record in records)

    def once() -> float:
        began = time.perf_counter()
        batch = np.stack([np.frombuffer(zlib.decompress(one), dtype=np.uint8) for one in packed])
        scaled = batch.astype(np.float32) / 255.0
        took = time.perf_counter() - began
        if int(batch[:, :64].sum()) != expected or scaled.shape != (RECORDS, RECORD_BYTES):
            raise WrongResult("an unpacked record differs from the packed one")
        return rate(RECORDS, took)

    yield once


def rate(work: float, seconds: float) -> float:
    """Work per second; 0, which is no measurement, where the clock did not move."""
    return work / seconds if seconds > 0 else 0.0


BENCHMARKS = (
    Benchmark(f"gemm-f32-{SIDE}", Suspicion.COMPUTE, "GFLOP/s of one core", gemm, undisturbed=True),
    Benchmark(f"copy-{COPY_BYTES >> 20}MiB", Suspicion.MEMORY, "GB/s", memory, undisturbed=True),
    Benchmark(f"host-memory-{LINK_BYTES >> 20}MiB-each", Suspicion.HOST_LINK, "GB/s of all processors", host_memory),
    Benchmark(f"loader-{RECORDS}x{RECORD_BYTES >> 10}KiB", Suspicion.HOST, "records/s", loader),
)
