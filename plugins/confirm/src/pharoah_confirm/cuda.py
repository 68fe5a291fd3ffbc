"""Benchmarks of a GPU: matrix products, memory, the link to the host, and a collective with a second GPU.

- Times are CUDA events on the device. A job on the same device makes it slow: stop it first. `busy` tells of one.
- torch is an optional extra; it is imported only here, when a benchmark starts.

Not promised: machines without a GPU do not test these functions.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from federation.protocol.service_messages import Suspicion
from pharoah_confirm.cpu import rate
from pharoah_confirm.sample import Benchmark, CannotMeasure, Once, WrongResult

SIDE = 8192
COPY_BYTES = 1 << 30
LINK_BYTES = 256 << 20
REDUCE_WORDS = 1 << 24
PREFIX = "cuda:"
LOOKS, BETWEEN_LOOKS_S = 4, 0.7  # the driver's share is that of the last second, in which a test before may have run
IDLE = 0.05


def torch_for(device: str) -> Any:
    """The module torch, if it is there and has this device; CannotMeasure otherwise."""
    try:
        import torch
    except ImportError as error:
        raise CannotMeasure("torch is not installed", hint="install the extra: pharoah[torch]") from error
    if device not in {f"{PREFIX}{number}" for number in range(torch.cuda.device_count())}:
        raise CannotMeasure(f"no device {device}: torch finds {torch.cuda.device_count()} GPUs")
    return torch


def described(device: str) -> str:
    """The product name of a device: only equal ones compare."""
    return str(torch_for(device).cuda.get_device_name(device))


def busy(device: str) -> float:
    """The share of the time that others compute on the device, by nvidia-smi before a test; 0 if it does not tell."""
    share = 1.0
    for look in range(LOOKS):
        time.sleep(BETWEEN_LOOKS_S if look else 0)
        about = torch_for(device).cuda.get_device_properties(device)
        share = min(share, _utilisation(str(getattr(about, "uuid", ""))))
        if share <= IDLE:
            break
    return share


def _utilisation(uuid: str) -> float:
    asked = ["nvidia-smi", f"--id=GPU-{uuid}", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(asked, capture_output=True, timeout=20, check=False).stdout.decode().strip()
    except (OSError, subprocess.TimeoutExpired):
        return 0.0
    return int(said) / 100 if said.isdecimal() else 0.0  # "[N/A]" of a part of a card


@contextmanager
def gemm(device: str) -> Iterator[Once]:
    """Products of square bfloat16 matrices, in TFLOP/s; each is compared with the first, bit by bit."""
    torch = torch_for(device)
    torch.manual_seed(1)
    one, other = (torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device=device) for _ in range(2))
    first, product = one @ other, torch.empty_like(one)

    def once() -> float:
        seconds = _seconds(torch, device, lambda: torch.matmul(one, other, out=product))
        if not torch.equal(product, first):
            raise WrongResult("a matrix product differs from the same product before")
        return rate(2e-12 * SIDE**3, seconds)

    yield once


@contextmanager
def memory(device: str) -> Iterator[Once]:
    """Copies within the device's memory, in GB read and written per second."""
    torch = torch_for(device)
    source = torch.arange(COPY_BYTES // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    yield _copying(torch, device, source, target, 2e-9 * COPY_BYTES)


@contextmanager
def host_link(device: str) -> Iterator[Once]:
    """Copies from page-locked memory of the host to the device, in GB/s."""
    torch = torch_for(device)
    source = torch.arange(LINK_BYTES // 4, dtype=torch.int32).pin_memory()
    target = torch.empty(source.shape, dtype=torch.int32, device=device)
    yield _copying(torch, device, source, target, 1e-9 * LINK_BYTES)


@contextmanager
def collective(device: str) -> Iterator[Once]:
    """All-reduces by NCCL between this device and the next one, in GB of a rank's buffer per second."""
    torch = torch_for(device)
    number = torch.cuda.device_count()
    if number < 2:
        raise CannotMeasure("a collective needs two GPUs, torch finds one")
    other = f"{PREFIX}{(int(device.removeprefix(PREFIX)) + 1) % number}"
    buffers = [torch.ones(REDUCE_WORDS, dtype=torch.float32, device=one) for one in (device, other)]
    sums = [torch.empty_like(one) for one in buffers]

    def once() -> float:
        seconds = _seconds(torch, device, lambda: torch.cuda.nccl.all_reduce(buffers, sums))
        if not all(bool((one == 2).all()) for one in sums):
            raise WrongResult("a sum of two ranks is not the sum of what they sent")
        return rate(4e-9 * REDUCE_WORDS, seconds)

    yield once


def _copying(torch: Any, device: str, source: Any, target: Any, work: float) -> Once:
    def once() -> float:
        target.zero_()
        seconds = _seconds(torch, device, lambda: target.copy_(source, non_blocking=True))
        if not torch.equal(target, source.to(device)):
            raise WrongResult("a copy differs from its source")
        return rate(work, seconds)

    return once


def _seconds(torch: Any, device: str, work: Callable[[], object]) -> float:
    with torch.cuda.device(device):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began.record()
        work()
        ended.record()
        torch.cuda.synchronize()
        return 1e-3 * float(began.elapsed_time(ended))


BENCHMARKS = (
    Benchmark(f"cuda-gemm-bf16-{SIDE}", Suspicion.COMPUTE, "TFLOP/s", gemm, undisturbed=True),
    Benchmark(f"cuda-copy-{COPY_BYTES >> 20}MiB", Suspicion.MEMORY, "GB/s", memory, undisturbed=True),
    Benchmark(f"cuda-host-to-device-{LINK_BYTES >> 20}MiB", Suspicion.HOST_LINK, "GB/s", host_link),
    Benchmark(f"all-reduce-nccl-{4 * REDUCE_WORDS >> 20}MiB", Suspicion.INTERCONNECT, "GB/s", collective),
)
