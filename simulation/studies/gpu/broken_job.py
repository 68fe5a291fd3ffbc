"""A small real training job under torchrun with one fault to come: broken_job.py FAULT cuda|cpu BACKEND.

The fault is the last rank's. Without a card each has a twin: the same call on the processor, or torch's words where
only a device can fail so. Kernels are PTX, which the driver compiles. One that spins ends by itself.
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
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FAULT_STEP, WIDTH, SPIN_S, PATIENCE_S = 12, 256, 30, 12
PTX = ".version 7.0\n.target {}\n.address_size 64\n.visible .entry kernel()\n{{\n{}\n}}\n"
KERNELS = {
    "illegal-access": ".reg .u64 %a; mov.u64 %a, 16; st.volatile.global.u64 [%a], %a; ret;",
    "launch-failure": "trap; ret;",
    "hang": f""".reg .u64 %a, %b; .reg .pred %p; mov.u64 %a, %globaltimer; add.u64 %a, %a, {SPIN_S * 10**9};
again: mov.u64 %b, %globaltimer; setp.lt.u64 %p, %b, %a; @%p bra again; ret;""",
}
TWINS = {
    "illegal-access": "an illegal memory access was encountered",
    "launch-failure": "unspecified launch failure",
    "no-kernel-image": "no kernel image is available for execution on the device",
}
WORDS = """CUDA error: {}
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1"""


def main() -> None:
    """Trains; the fault comes after some steps."""
    fault, kind, backend = sys.argv[1:]
    rank, last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
    device = torch.device("cuda", rank % torch.cuda.device_count()) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=dt.timedelta(seconds=PATIENCE_S))
    torch.manual_seed(1)
    model = torch.nn.Linear(WIDTH, WIDTH, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 4000):
        loss = model(torch.randn(64, WIDTH, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step == FAULT_STEP and fault == "mismatch":
            mismatch(device, rank)
        if step == FAULT_STEP and rank == last:
            fail(fault, device, optimizer)
        dist.all_reduce(model.weight.grad)
        optimizer.step()
        if fault == "nan" and rank == last and not torch.isfinite(loss):
            raise FloatingPointError(f"loss is {loss.item()} at step {step}")
        if step % 5 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.05)


def fail(fault: str, device: torch.device, optimizer: Any) -> None:
    """What goes wrong in one rank."""
    if device.type == "cpu" and fault in TWINS:
        raise RuntimeError(WORDS.format(TWINS[fault]))
    if fault == "device-assert":  # a token is none of the vocabulary
        tokens, vectors = torch.tensor([99], device=device), torch.zeros(4, 8, device=device)
        torch.nn.functional.embedding(tokens, vectors).sum().item()
    elif fault == "out-of-memory":
        take_all_memory(device)
    elif fault == "nan":
        optimizer.param_groups[0]["lr"] = 1e30
    elif fault == "hang" and device.type == "cpu":
        time.sleep(SPIN_S)
    elif fault == "no-kernel-image":
        launch(built_for_another_card())
    elif fault in KERNELS:
        launch(ptx(fault))
        if fault == "hang" and dist.get_world_size() == 1:  # no other rank waits: a collective does
            dist.all_reduce(torch.ones(4096, device=device))
        torch.ones(8, device=device).sum().item()


def mismatch(device: torch.device, rank: int) -> None:
    """The ranks call different collectives."""
    values = torch.ones(4096, device=device)
    if rank:
        dist.broadcast(values, 1)
    else:
        dist.all_reduce(values)
    values.sum().item()


def take_all_memory(device: torch.device) -> None:
    """Until there is none."""
    if device.type == "cpu":
        resource.setrlimit(resource.RLIMIT_AS, (64 << 30, resource.RLIM_INFINITY))
    kept = []
    while True:
        kept.append(torch.empty(1 << (30 if device.type == "cuda" else 35), dtype=torch.uint8, device=device))


def launch(image: bytes) -> None:
    """Loads PTX or a binary and launches its `kernel`; RuntimeError in the driver's words."""
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function, words = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_char_p()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    for call, *arguments in (
        (cuda.cuModuleLoadData, ctypes.byref(module), image),
        (cuda.cuModuleGetFunction, ctypes.byref(function), module, b"kernel"),
        (cuda.cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, None, None),
    ):
        if code := call(*arguments):
            cuda.cuGetErrorString(code, ctypes.byref(words))
            raise RuntimeError(WORDS.format((words.value or b"unknown error").decode()))


def ptx(fault: str) -> bytes:
    """The source of a kernel for any card."""
    target = "sm_75" if torch.cuda.get_device_capability() >= (7, 5) else "sm_70"
    return PTX.format(target, KERNELS[fault]).encode() + b"\0"


def built_for_another_card() -> bytes:
    """A binary of a kernel, by the assembler that Triton brings along."""
    target = "sm_80" if torch.cuda.get_device_capability() != (8, 0) else "sm_75"
    triton = importlib.util.find_spec("triton")
    ptxas = Path(triton.origin if triton and triton.origin else "").parent / "backends" / "nvidia" / "bin" / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        source, image = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(PTX.format(target, KERNELS["launch-failure"]), encoding="utf-8")
        subprocess.run([ptxas, f"-arch={target}", source, "-o", image], check=True)
        return image.read_bytes()


if __name__ == "__main__":
    main()
