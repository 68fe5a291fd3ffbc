"""A small real training job under torchrun with one fault to come: broken_job.py FAULT cuda|cpu BACKEND.

The fault is rank 1's, where there are two. Without a card each fault has a twin: the same call on the processor, or
where only a device can fail so, the words of torch. Kernels are written in PTX, which the driver compiles, so that no
compiler is needed. A kernel that spins ends by itself.
"""

import ctypes
import datetime as dt
import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FAULT_STEP, WIDTH, SPIN_S, PATIENCE_S = 12, 256, 30, 12
PTX = ".version {version}\n.target {target}\n.address_size 64\n.visible .entry kernel()\n{{\n{body}\n}}\n"
STORES_NOWHERE = ".reg .u64 %a; .reg .u32 %v; mov.u64 %a, 16; mov.u32 %v, 1; st.volatile.global.u32 [%a], %v; ret;"
TRAPS = "trap; ret;"
SPINS = f""".reg .u64 %a, %b; .reg .pred %p; mov.u64 %a, %globaltimer; add.u64 %a, %a, {SPIN_S * 10**9};
again: mov.u64 %b, %globaltimer; setp.lt.u64 %p, %b, %a; @%p bra again; ret;"""
WORDS = """CUDA error: {}
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Device-side assertion tracking was not enabled by user."""


@dataclass(frozen=True)
class Place:
    """Where the fault comes; `odd` is whether this rank does otherwise than the other."""

    device: torch.device
    odd: bool
    optimizer: Any


def main() -> None:
    """Trains; the fault comes after some steps."""
    fault, kind, backend = sys.argv[1:]
    rank = int(os.environ["RANK"])
    on_card = kind == "cuda"
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_card else torch.device("cpu")
    if on_card:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=dt.timedelta(seconds=PATIENCE_S))
    torch.manual_seed(1)
    model = torch.nn.Linear(WIDTH, WIDTH, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    odd = rank == int(os.environ["WORLD_SIZE"]) - 1
    for step in range(1, 4000):
        loss = model(torch.randn(64, WIDTH, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step == FAULT_STEP and (odd or fault == "mismatch"):
            FAULTS[fault](Place(device, odd, optimizer))
        dist.all_reduce(model.weight.grad)
        optimizer.step()
        if fault == "nan" and odd and not torch.isfinite(loss):
            raise FloatingPointError(f"loss is {loss.item()} at step {step}")
        if step % 5 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.05)


# ---- faults --------------------------------------------------------------------------------------------------------


def illegal_access(at: Place) -> None:
    """A kernel writes to an address that nobody has."""
    _fail_in_kernel(at.device, STORES_NOWHERE, "an illegal memory access was encountered")


def launch_failure(at: Place) -> None:
    """A kernel traps."""
    _fail_in_kernel(at.device, TRAPS, "unspecified launch failure")


def no_kernel_image(at: Place) -> None:
    """A kernel was built for another card."""
    if at.device.type == "cpu":
        raise RuntimeError(WORDS.format("no kernel image is available for execution on the device"))
    target = "sm_80" if torch.cuda.get_device_capability() != (8, 0) else "sm_75"
    with tempfile.TemporaryDirectory() as folder:
        source, image = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(PTX.format(version="7.0", target=target, body=TRAPS), encoding="utf-8")
        subprocess.run([_ptxas(), f"-arch={target}", source, "-o", image], check=True)
        launch(image.read_bytes())


def device_assert(at: Place) -> None:
    """A token is none of the vocabulary."""
    torch.nn.functional.embedding(
        torch.tensor([99], device=at.device), torch.zeros(4, 8, device=at.device)
    ).sum().item()


def out_of_memory(at: Place) -> None:
    """The job takes memory until there is none."""
    if at.device.type == "cpu":
        resource.setrlimit(resource.RLIMIT_AS, (64 << 30, resource.RLIM_INFINITY))
    kept = []
    while True:
        kept.append(torch.empty(1 << (30 if at.device.type == "cuda" else 35), dtype=torch.uint8, device=at.device))


def nan(at: Place) -> None:
    """The learning rate is too high; `main` notices."""
    at.optimizer.param_groups[0]["lr"] = 1e30


def hang(at: Place) -> None:
    """A kernel takes for ever, and the rank waits for it."""
    if at.device.type == "cuda":
        launch(PTX.format(version="7.0", target=_target(), body=SPINS).encode() + b"\0")
        torch.cuda.synchronize()
    else:
        time.sleep(SPIN_S)


def mismatch(at: Place) -> None:
    """The ranks call different collectives."""
    values = torch.ones(4096, device=at.device)
    if at.odd:
        dist.broadcast(values, 1)
    else:
        dist.all_reduce(values)
    if at.device.type == "cuda":
        torch.cuda.synchronize()


def timeout(at: Place) -> None:
    """A collective waits for a kernel that takes for ever, on one rank alone."""
    launch(PTX.format(version="7.0", target=_target(), body=SPINS).encode() + b"\0")
    dist.all_reduce(torch.ones(4096, device=at.device)).item()


FAULTS: dict[str, Callable[[Place], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        illegal_access, launch_failure, no_kernel_image, device_assert, out_of_memory, nan, hang, mismatch, timeout,
    )
}  # fmt: skip


# ---- kernels -------------------------------------------------------------------------------------------------------


def launch(image: bytes) -> None:
    """Loads PTX or a binary and launches its `kernel`; RuntimeError in the driver's words."""
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _check(cuda, cuda.cuModuleLoadData(ctypes.byref(module), image))
    _check(cuda, cuda.cuModuleGetFunction(ctypes.byref(function), module, b"kernel"))
    _check(cuda, cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, None, None))


def _check(cuda: Any, code: int) -> None:
    if code:
        words = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(words))
        raise RuntimeError(WORDS.format((words.value or b"unknown error").decode()))


def _fail_in_kernel(device: torch.device, body: str, words: str) -> None:
    if device.type == "cpu":
        raise RuntimeError(WORDS.format(words))
    launch(PTX.format(version="7.0", target=_target(), body=body).encode() + b"\0")
    torch.ones(8, device=device).sum().item()


def _target() -> str:
    return "sm_75" if torch.cuda.get_device_capability() >= (7, 5) else "sm_70"


def _ptxas() -> str:
    """The assembler, which Triton brings along."""
    found = importlib.util.find_spec("triton")
    ours = Path(found.origin if found and found.origin else "").parent / "backends" / "nvidia" / "bin" / "ptxas"
    return str(ours) if ours.exists() else "ptxas"


if __name__ == "__main__":
    main()
