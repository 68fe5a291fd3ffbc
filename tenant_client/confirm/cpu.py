"""Benchmarks of a CPU: matrix products, memory copies, and data loading.

- Matrix products and copies are measured in CPU time, so that other programs hardly matter. Time stolen by a hypervisor
  is therefore not visible.
- The loader is measured in wall time, since a busy host is what it tests for.
- Data come from a fixed seed, so that every run computes the same.
"""

import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from federation.protocol.service_messages import Suspicion
from tenant_client.confirm.sample import Benchmark, Once, WrongResult

SIDE, PRODUCTS = 512, 4
COPY_BYTES = 64 << 20
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
    Benchmark(f"loader-{RECORDS}x{RECORD_BYTES >> 10}KiB", Suspicion.HOST, "records/s", loader),
)
