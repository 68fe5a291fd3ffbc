"""The same training steps again and again from one seed, with a digest of every stage; a process of its own.

    python -m pharoah_confirm.replay cpu 10        # every processor that may be used, 10 seconds
    python -m pharoah_confirm.replay cuda:0 10

- A step has products forward and backward, a sum, an optimiser's update, and integers beside them. The next step uses
  its results, so that what goes wrong in a stage stays wrong: the first stage that differs is where it happened.
- Healthy hardware of one kind computes the same bits. The processes are started with one thread for each product
  (`determinism.FIXED`); sums run down the columns, whose order no width of vectors changes. On a GPU torch is asked for
  deterministic algorithms; cuBLAS promises equal bits for one version, architecture and number of multiprocessors, in
  one stream. So these are what makes a kind.
- A GPU folds each result to a row of integers before it is read: each word, times an odd number of its row, is added
  modulo 2^64. That is exact in any order, and no change of a single word leaves it as it was.

Not promised: a fault that comes more rarely than the runs, or in units that these operations do not use.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from federation.base.screen import show_json
from pharoah_confirm import cuda, machine

SEED, STEPS, LEAST_RUNS = 1, 2, 2
SIDE, CUDA_SIDE = 256, 4096  # a side of 4096 gives work to every multiprocessor, in 2 GB
AT_ONCE = 32  # processors: memory for each, and OpenBLAS has buffers for so many callers
MULTIPLIER, INCREMENT, MIXED = 6364136223846793005, 1442695040888963407, 16  # Knuth's generator, in 64 bits

Stages = Iterator[tuple[str, Any]]
Digests = dict[str, str]


class Replayed(msgspec.Struct, frozen=True):
    """The stages' digests in a device's first run, and the stage where its last run differs from them, or "".

    Devices of one kind must have equal digests. `problem` says why there are none.
    """

    machine: str
    device: str
    kind: str
    runs: int = 0
    stages: Digests = {}
    differs: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Backend:
    """Who computes: `put` brings an array there in a precision, `read` brings back the bytes to be hashed."""

    kind: str
    side: int
    precisions: tuple[str, ...]
    put: Callable[[NDArray[Any], str], Any]
    read: Callable[[Any], NDArray[Any]]

    def inputs(self) -> Mapping[str, list[Any]]:
        """By precision: batch, target, both layers' weights; and the integers."""
        generator, shape = np.random.default_rng(SEED), (self.side, self.side)
        given = [generator.standard_normal(shape, dtype=np.float32) for _ in range(4)]
        given[2:] = [weights / np.float32(self.side**0.5) for weights in given[2:]]
        integers = generator.integers(-(2**63), 2**63, shape, dtype=np.int64)
        floats = {precision: [self.put(one, precision) for one in given] for precision in self.precisions}
        return floats | {"int64": [self.put(integers, "int64")]}


# ---- the work ------------------------------------------------------------------------------------------------------


def work(inputs: Mapping[str, list[Any]]) -> Stages:
    """Each stage's name and a result of it, in the order of the work; arrays of numpy and of torch alike."""
    for precision, given in inputs.items():
        for step, stage, result in _mixing(*given) if precision == "int64" else _training(*given):
            yield f"{precision}, step {step}, {stage}", result


def _training(batch: Any, target: Any, *layers: Any) -> Iterator[tuple[int, str, Any]]:
    """Two layers with a rectifier between them, learnt by Adam. Nothing is changed in place."""
    weights, bias = list(layers), 0 * target[0]
    means, squares = ([0 * one for one in weights] for _ in range(2))
    for step in range(1, STEPS + 1):
        hidden = (batch @ weights[0]).clip(0)
        yield step, "forward", hidden
        error = hidden @ weights[1] + bias - target
        yield step, "forward", error
        summed = error.sum(0)
        yield step, "reduction", summed
        gradients = [batch.T @ ((error @ weights[1].T) * (hidden > 0)), hidden.T @ error]
        for gradient in gradients:
            yield step, "backward", gradient
        bias = bias - 1e-4 * summed
        for layer, gradient in enumerate(gradients):
            means[layer] = 0.9 * means[layer] + 0.1 * gradient
            squares[layer] = 0.999 * squares[layer] + 1e-3 * gradient * gradient
            weights[layer] = weights[layer] - 1e-3 * means[layer] / (squares[layer] ** 0.5 + 1e-6)
            yield step, "optimiser", weights[layer]


def _mixing(integers: Any) -> Iterator[tuple[int, str, Any]]:
    for step in range(1, STEPS + 1):
        for _ in range(MIXED):
            integers = integers * MULTIPLIER + INCREMENT
            integers = integers ^ (integers >> 29)
        yield step, "integers", integers


def digests(stages: Stages, read: Callable[[Any], NDArray[Any]]) -> Digests:
    """The digest of all results of each stage, in the order of the work."""
    hashes: dict[str, blake2b] = {}
    for name, result in stages:
        hashes.setdefault(name, blake2b(digest_size=16)).update(read(result).data)
    return {name: one.hexdigest() for name, one in hashes.items()}


def replayed(device: str, kind: str, run: Callable[[], Digests], seconds: float) -> Replayed:
    """Runs for so many seconds, at least twice, until a run differs from the first."""
    until, first, runs, stage = time.monotonic() + seconds, run(), 1, ""
    while not stage and (runs < LEAST_RUNS or time.monotonic() < until):
        stage, runs = first_difference(first, run()), runs + 1
    return Replayed(socket.gethostname(), device, kind, runs, first, stage)


def first_difference(one: Digests, other: Digests) -> str:
    """The first stage in the order of the work whose digests differ; "" if none does."""
    return next((name for name, digest in one.items() if other.get(name) != digest), "")


# ---- devices -------------------------------------------------------------------------------------------------------


def host() -> Backend:
    """The processors, by numpy. Which instructions a library chooses hangs on the flags that the kernel shows."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    blas: Any = np.show_config(mode="dicts")
    blas = blas["Build Dependencies"]["blas"]
    kind = f"{machine.processor()}, flags {blake2b(flags.encode(), digest_size=4).hexdigest()}, numpy {np.__version__}"
    kind += f", {blas.get('name')} {blas.get('version')}"
    return Backend(kind, SIDE, ("float32", "float64"), lambda array, dtype: array.astype(dtype), np.ascontiguousarray)


def processors(backend: Backend, seconds: float, numbers: list[int]) -> list[Replayed]:
    """Each processor by a thread that stays on it."""
    inputs, turns = backend.inputs(), -(-len(numbers) // AT_ONCE)

    def on(number: int) -> Replayed:
        try:
            os.sched_setaffinity(0, {number})  # of this thread alone
        except OSError as error:
            return Replayed(socket.gethostname(), f"cpu:{number}", backend.kind, problem=f"{error.strerror}")
        return replayed(f"cpu:{number}", backend.kind, lambda: digests(work(inputs), backend.read), seconds / turns)

    with ThreadPoolExecutor(min(AT_ONCE, len(numbers))) as pool:
        return list(pool.map(on, numbers))


def card(torch: Any, device: str, name: str, side: int = CUDA_SIDE) -> Backend:
    """A GPU, by torch."""
    torch.use_deterministic_algorithms(mode=True)
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}

    def put(array: NDArray[Any], dtype: str) -> Any:
        return torch.from_numpy(array).to(device, getattr(torch, dtype))

    def read(result: Any) -> NDArray[Any]:
        rows = result.contiguous().view(words[result.element_size()]).reshape(-1, result.shape[-1])
        odd = 2 * torch.arange(len(rows), device=device) + 1
        folded: NDArray[Any] = (rows.to(torch.int64) * odd[:, None]).sum(0).cpu().numpy()
        return folded

    return Backend(name, side, ("float32", "bfloat16"), put, read)


def _kind(torch: Any, device: str) -> str:
    about = torch.cuda.get_device_properties(device)
    runtime = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"HIP {torch.version.hip}"
    return f"{about.name}, {about.multi_processor_count} multiprocessors, torch {torch.__version__}, {runtime}"


def main() -> None:
    """Replays on one device, or on all processors, and writes what came out as one line of JSON."""
    device, seconds = sys.argv[1], float(sys.argv[2])
    if device == machine.CPU:
        found = processors(host(), seconds, sorted(os.sched_getaffinity(0)))
    else:
        torch = cuda.torch_for(device)
        with torch.cuda.device(device):
            backend = card(torch, device, _kind(torch, device))
            inputs = backend.inputs()
            found = [replayed(device, backend.kind, lambda: digests(work(inputs), backend.read), seconds)]
    show_json(msgspec.to_builtins(found))


if __name__ == "__main__":
    main()
