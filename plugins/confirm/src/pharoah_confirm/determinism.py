"""Finds devices that compute wrong results without an error: by runs that differ, and by devices that differ.

Each GPU, and the processors together, replay the same steps (`replay`) in a process of their own: a device that crashes
or hangs hides no other's result. A device whose own runs differ is wrong. One that always computes the same, but not
what more than half of its kind compute, is wrong too; where no such majority is, all of the kind are only warned of.
"""

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from federation.base.visible import counted_as
from federation.protocol.service_messages import CheckVerdict
from pharoah_confirm import cuda, machine
from pharoah_confirm.kept import UnusableSamples
from pharoah_confirm.replay import Replayed, first_difference

VERSION = 1
START_S = 120.0  # to load torch from a slow disk, and for two runs on a busy device
LIBRARIES = ("BLIS_", "CUBLAS", "MKL_", "NPY_", "NVIDIA_TF32", "OMP_", "OPENBLAS_", "TORCH_ALLOW")  # whose settings go
FIXED = {
    **dict.fromkeys(("BLIS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "MKL_CBWR": "AVX2,STRICT",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVIDIA_TF32_OVERRIDE": "0",
}


class Results(msgspec.Struct, frozen=True):
    """What `confirm determinism --json` wrote, as far as others need it to compare with."""

    version: int
    devices: tuple[Replayed, ...]


@dataclass(frozen=True)
class DeviceFinding:
    """The verdict on a device; `stage` is the first that differs, "" where none does."""

    of: Replayed
    verdict: CheckVerdict
    reason: str
    stage: str = ""


def devices(device: str) -> list[str]:
    """The given one; by default all GPUs where there is a driver, else the processors. CannotMeasure without torch."""
    if (device or machine.default_device()) == machine.CPU:
        return [machine.CPU]
    torch = cuda.torch_for(device or machine.default_device())
    return [device] if device else [f"{cuda.PREFIX}{number}" for number in range(torch.cuda.device_count())]


def replays(names: Sequence[str], seconds: float) -> list[Replayed]:
    """What all of these compute, side by side."""
    with ThreadPoolExecutor(len(names)) as pool:
        return [one for found in pool.map(lambda name: _replay(name, seconds), names) for one in found]


def _replay(device: str, seconds: float) -> Iterable[Replayed]:
    command = [sys.executable, "-P", "-m", "pharoah_confirm.replay", device, str(seconds)]
    env = {name: value for name, value in os.environ.items() if not name.startswith(LIBRARIES)} | FIXED
    env["PYTHONPATH"] = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(command, env=env, stdin=nothing, stdout=pipe, stderr=pipe)
    try:
        said, errors = process.communicate(timeout=seconds + START_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # a process that hangs in a driver is left behind
            process.communicate(timeout=1)
        return [Replayed(machine.name(), device, "", problem=f"no result within {seconds + START_S:.0f} s")]
    try:
        return msgspec.json.decode(said, type=tuple[Replayed, ...])
    except msgspec.DecodeError:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no result"]
        return [Replayed(machine.name(), device, "", problem=f"exit code {process.returncode}: {last[0]}")]


def read(paths: Iterable[Path]) -> list[Replayed]:
    """What other machines computed; UnusableSamples names the first file that does not say."""
    found: list[Replayed] = []
    for path in paths:
        try:
            results = msgspec.json.decode(path.read_bytes(), type=Results)
        except (OSError, msgspec.DecodeError) as error:
            hint = "pass files that `pharoah-tenant confirm determinism --json` wrote"
            raise UnusableSamples(f"{path}: {error}", hint=hint) from error
        if results.version != VERSION:
            raise UnusableSamples(f"file version {results.version} is not supported, only {VERSION}: {path}")
        found += results.devices
    return found


def judge(found: Sequence[Replayed]) -> list[DeviceFinding]:
    """A verdict on each device, by its own runs and by others of its kind. Of a device named twice the last counts."""
    once = {(one.machine, one.device): one for one in found}.values()
    kinds: dict[str, list[Replayed]] = defaultdict(list)
    for one in once:
        if one.stages and not one.differs:
            kinds[one.kind].append(one)
    return [_judge(one, kinds[one.kind]) for one in once]


def _judge(one: Replayed, peers: list[Replayed]) -> DeviceFinding:
    if not one.stages:
        return DeviceFinding(one, CheckVerdict.UNKNOWN, f"could not be tested: {one.problem}")
    if one.differs:
        reason = f"run {one.runs} differs from the first, from this stage on: {one.differs}"
        return DeviceFinding(one, CheckVerdict.MISMATCH, reason, one.differs)
    computed = Counter(tuple(peer.stages.items()) for peer in peers)
    (usual, number), *others = computed.most_common()
    runs, rest = counted_as(one.runs, "equal run"), len(peers) - 1
    if not others:
        compared = f"equal to {counted_as(rest, 'other device')} of its kind" if rest else "no other device of its kind"
        return DeviceFinding(one, CheckVerdict.OK, f"{runs}, {compared}")
    if 2 * number <= len(peers):
        stage = next(filter(None, (first_difference(one.stages, peer.stages) for peer in peers)))
        reason = f"{runs}, but devices of its kind differ, and no majority tells which are wrong; first in: {stage}"
        return DeviceFinding(one, CheckVerdict.WARNING, reason, stage)
    if stage := first_difference(dict(usual), one.stages):
        reason = f"{runs}, but {number} of {len(peers)} of its kind compute something else, from this stage on: {stage}"
        return DeviceFinding(one, CheckVerdict.MISMATCH, reason, stage)
    return DeviceFinding(one, CheckVerdict.OK, f"{runs}, equal to {number - 1} of {rest} other devices of its kind")
