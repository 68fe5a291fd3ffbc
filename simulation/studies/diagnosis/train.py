"""A small real training job over Gloo, in which one fault of a campaign happens.

    FAULT_CAMPAIGN=campaign.json FAULT_INCIDENT=sigkill-0 torchrun --standalone --nproc-per-node=2 train.py

Its output does not name the fault, not even in a traceback; a file `injected` beside the campaign says that the job
came to it. The job needs PyTorch and nothing of this repository.
"""

import argparse
import ctypes
import datetime as dt
import gc
import importlib
import json
import math
import mmap
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STEPS = 8
TIMEOUT_S = float(os.environ.get("GLOO_TIMEOUT_S", "5"))
STALL_S = 4 * TIMEOUT_S
BATCH = 8


class Samples(torch.utils.data.Dataset):  # type: ignore[misc, unused-ignore]
    """Vectors of ones, as long as the worker that makes them lives."""

    def __init__(self, *, signal_name: str = "", leaks: bool = False) -> None:
        self.signal_name, self.leaks = signal_name, leaks
        self.cache: list[bytearray] = []

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if self.signal_name and index == 2 * BATCH:
            os.kill(os.getpid(), signal.Signals[self.signal_name])
        if self.leaks and index == 2 * BATCH:
            limit_memory()
        while self.leaks and index >= 2 * BATCH:
            self.cache.append(bytearray(32 << 20))
        return torch.ones(4)


def limit_memory(spare_bytes: int = 256 << 20) -> None:
    """Lets this process map so much more and no more."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * mmap.PAGESIZE + spare_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


# ---- what happens to a rank ----------------------------------------------------------------------------------------


def _sigkill(_: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _sigsegv(parameters: dict[str, Any]) -> None:
    if parameters["how"] == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    ctypes.string_at(0)


def _abort(_: dict[str, Any]) -> None:
    os.abort()


def _cpp_exception(_: dict[str, Any]) -> None:
    library = ctypes.CDLL("libstdc++.so.6")
    library._ZSt21__throw_runtime_errorPKc(b"tokenizer: vocabulary is empty")


def _sigbus(_: dict[str, Any]) -> None:
    with Path("shard.bin").open("w+b") as file:
        file.truncate(1 << 20)
        mapped = mmap.mmap(file.fileno(), 1 << 20)
        file.truncate(0)
        sys.stderr.write(str(mapped[4096]))


def _exit_code(parameters: dict[str, Any]) -> None:
    sys.exit(parameters["status"])


def _exception(parameters: dict[str, Any]) -> None:
    config: dict[str, Any] = {"layers": "four", "shards": [], "warmup": None}
    ways: dict[str, Callable[[], object]] = {
        "KeyError": lambda: config["learning_rate"],
        "ValueError": lambda: int(config["layers"]),
        "FileNotFoundError": lambda: Path("data/train/shard-00001.bin").read_bytes(),
        "TypeError": lambda: config["warmup"] + 1,
        "IndexError": lambda: config["shards"][1],
        "AttributeError": lambda: config["warmup"].steps,
        "ZeroDivisionError": lambda: 64 // len(config["shards"]),
    }
    assert parameters["raises"] != "AssertionError", "hidden size must be divisible by heads"  # noqa: S101 -- the fault
    ways[parameters["raises"]]()


def _import_error(_: dict[str, Any]) -> None:
    importlib.import_module("fused_attention_kernels")


def _argument_error(_: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning-rate", type=float)
    parser.parse_args(["--learning-rat", "3e-4", "--layers", "4"])


def _memory_limit(parameters: dict[str, Any]) -> None:
    limit_memory()
    if parameters["allocates"] == "tensor":
        torch.ones(1 << 30)
    else:
        bytearray(4 << 30)


def _disk_full(parameters: dict[str, Any]) -> None:
    if parameters["writes"] == "checkpoint":
        torch.save({"weights": torch.ones(1 << 16)}, "/dev/full")
    elif parameters["writes"] == "text":
        with Path("/dev/full").open("w", encoding="ascii") as file:
            file.write("step,loss\n" * 4096)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        Path("metrics.bin").write_bytes(bytes(1 << 20))


def _truncated_checkpoint(parameters: dict[str, Any]) -> None:
    file = Path("checkpoint.pt")
    torch.save({"weights": torch.ones(1 << 16)}, file)
    os.truncate(file, int(file.stat().st_size * parameters["keeps"]))
    torch.load(file)


def _sleep(parameters: dict[str, Any]) -> None:
    time.sleep(parameters["delay_ms"] / 1000)


def _sigstop(_: dict[str, Any]) -> None:
    wake = f"sleep {STALL_S}; kill -CONT {os.getpid()}"
    subprocess.Popen(["/bin/sh", "-c", wake], start_new_session=True, stdout=subprocess.DEVNULL)
    os.kill(os.getpid(), signal.SIGSTOP)


def _gc_storm(_: dict[str, Any]) -> None:
    held = [[number] for number in range(200_000)]
    until_s = time.monotonic() + 2 * TIMEOUT_S
    while time.monotonic() < until_s:
        gc.collect()
    held.clear()


def _cpu_hog(_: dict[str, Any]) -> None:
    until_s = time.monotonic() + 2 * TIMEOUT_S
    while time.monotonic() < until_s:
        math.sqrt(2.0)


def _mismatched_collective(parameters: dict[str, Any]) -> None:
    if parameters["how"] == "size":
        dist.all_reduce(torch.ones(1024))
    else:
        dist.all_gather([torch.ones(3) for _ in range(dist.get_world_size())], torch.ones(3))


def _stalled_link(_: dict[str, Any]) -> None:
    _for_a_while("ip link set lo down", "ip link set lo up")


def _throttled_link(_: dict[str, Any]) -> None:
    shape = "tc qdisc add dev lo root tbf rate 8bit burst 1600 latency 60s"
    _for_a_while(shape, "tc qdisc del dev lo root")


def _for_a_while(spoil: str, mend: str) -> None:
    later = f"{spoil}; sleep {STALL_S}; {mend}"
    subprocess.Popen(["/bin/sh", "-c", later], start_new_session=True, stdout=subprocess.DEVNULL)
    time.sleep(1)


FAULTS: dict[str, Any] = {
    one.__name__.removeprefix("_"): one
    for one in (
        *(_sigkill, _sigsegv, _abort, _cpp_exception, _sigbus, _exit_code, _exception, _import_error, _argument_error),
        *(_memory_limit, _disk_full, _truncated_checkpoint, _sleep, _sigstop, _gc_storm, _cpu_hog),
        *(_mismatched_collective, _stalled_link, _throttled_link),
    )
}
for _fault in FAULTS.values():  # a traceback names functions: these would name the fault
    _fault.__code__ = _fault.__code__.replace(co_name="batch")


# ---- the job -------------------------------------------------------------------------------------------------------


class Incident:
    """The fault of this run, from the campaign's file; `due` says when it is this rank's turn."""

    def __init__(self, campaign: Path, incident_id: str) -> None:
        incidents = json.loads(campaign.read_text(encoding="utf-8"))["incidents"]
        incident = next((one for one in incidents if one["incident_id"] == incident_id), None)
        self.action, self.rank, self.step, self.parameters = "", -1, 0, dict[str, Any]()
        self._mark = campaign.with_name("injected")
        if incident is not None:
            (fault,) = incident["faults"]
            self.action, self.rank = fault["target"]["metadata"]["action"], fault["target"]["rank"]
            self.step, self.parameters = incident["trigger"]["at"][0], fault["parameters"]

    def due(self, action: str, rank: int, step: int) -> bool:
        """Whether it is this action's turn; if so, it has come to it."""
        found = (self.action, self.rank, self.step) == (action, rank, step)
        if found:
            self._mark.touch()
        return found

    def strike(self, rank: int, step: int) -> None:
        """What is wrong at this step."""
        if self.action in FAULTS and self.due(self.action, rank, step):
            FAULTS[self.action](self.parameters)

    def start(self, rank: int) -> None:
        """What is wrong before the first step."""
        if self.action == "argument_error" or (self.action == "import_error" and rank == self.rank):
            self._mark.touch()
            FAULTS[self.action](self.parameters)


def flip_a_bit(weight: Any) -> None:
    """The highest bit of the exponent of the first value."""
    (bits,) = struct.unpack("<I", struct.pack("<f", float(weight.view(-1)[0])))
    weight.view(-1)[0] = struct.unpack("<f", struct.pack("<I", bits ^ 1 << 30))[0]


def check_finite(rank: int, step: int, loss: Any, model: Any) -> None:
    """As trainers do it."""
    if not torch.isfinite(loss):
        raise FloatingPointError(f"loss is {float(loss)} at step {step}, stopping training")
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter.grad).all():
            raise RuntimeError(f"NaN or Inf found in the gradient of {name} on rank {rank} at step {step}")


def _loader_of(incident: Incident, rank: int) -> Any:
    faulty = incident.rank == rank
    dying, leaking = (faulty and incident.action == name for name in ("dying_loader", "leaking_loader"))
    samples = Samples(signal_name=incident.parameters["signal"] if dying else "", leaks=leaking)
    if dying or leaking:
        incident.due(incident.action, rank, incident.step)
    return torch.utils.data.DataLoader(samples, batch_size=BATCH, num_workers=int(dying or leaking))


def main() -> None:
    """Trains."""
    incident = Incident(Path(os.environ["FAULT_CAMPAIGN"]), os.environ.get("FAULT_INCIDENT", ""))
    incident.start(int(os.environ["RANK"]))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=TIMEOUT_S))
    rank = dist.get_rank()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in zip(range(1, STEPS + 1), _loader_of(incident, rank), strict=False):
        if incident.due("bit_flip", rank, step):
            with torch.no_grad():
                flip_a_bit(model.weight)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if incident.due("nan_gradient", rank, step):
            model.weight.grad.view(-1)[0] = float("nan")
        check_finite(rank, step, loss.detach(), model)
        incident.strike(rank, step)
        if not incident.due("skipped_collective", rank, step):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        if rank == 0:
            print(f"step {step}/{STEPS} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
