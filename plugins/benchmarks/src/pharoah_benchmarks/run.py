"""Runs one job on this machine as a tenant would, and says what became of it.

    guard ─ pharoah-tenant run ─ [torchrun ─] train.py
                    └─ its journal ─ show, workload tokens, workload describe, patterns reasons ─▶ Ran

The outcome is what the tenant's client says of its own job: `ok` or the reason that it diagnosed, by the name that a
round would count it under. The provider knows this job's code, so it says more where a tenant's round does not: a loss
that cannot be, or ranks that differ, is `wrong_result`; a job that stopped making steps is `hang`. A job that had to be
ended and was making steps until then is `ok`.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from crypto.errors import PharoahError
from federation.protocol.causes import CAUSES
from pharoah_benchmarks import guard
from pharoah_benchmarks.catalogue import Precision, SizeName
from pharoah_benchmarks.jobs import task
from provider_server.fleet.learning.benchmark_jobs import HANG, OK, UNKNOWN, WRONG_RESULT

START_S = 120.0  # to load PyTorch and compile, beyond the seconds that a job is to train
MOST_BYTES = 16 << 30  # two checkpoints of the largest size, the newer one half written
ASK_S = 120.0
SCRATCH = "run-"
HANG_FLOOR_S = 20.0  # seconds without a step; steps take fractions of one
_TRAIN = Path(task.__file__).with_name("train.py")
_CLIENT = (sys.executable, "-m", "tenant_client")
_TORCH = "import torch, pharoah; print(torch.cuda.device_count())"


class CannotRun(PharoahError):
    """A job could not be run, which says nothing of the machine."""


@dataclass(frozen=True)
class Asked:
    """What is to run: a job of the catalogue, how large, on how many ranks, for how long, by which Python."""

    job: str
    seconds: float
    size: SizeName
    precision: Precision
    ranks: int
    python: str = sys.executable

    @property
    def command(self) -> list[str]:
        """What a user would type after `pharoah-tenant run --`."""
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        words = [str(_TRAIN), self.job, self.size, self.precision, f"{self.seconds:g}"]
        return [self.python, *(launcher if self.ranks > 1 else []), *words]


class Ran(msgspec.Struct, frozen=True):
    """What became of a job. `reason` is the tenant's finer one; `archetype` is empty if nothing described it."""

    job: str
    run: str
    node: str
    ranks: int
    steps: int
    outcome: str
    reason: str
    said: str
    archetype: str
    seconds: float
    seconds_per_step: float | None
    versions: dict[str, str]
    size: SizeName
    precision: Precision
    python: str = sys.executable
    structure: tuple[tuple[str, tuple[int, ...]], ...] = ()
    spread: float | None = None
    memory_bytes: int | None = None
    operators: dict[str, tuple[float, float]] = {}


def gpus_of(python: str) -> int:
    """How many GPUs PyTorch finds there; CannotRun where that Python has no PyTorch with the tenant's hook."""
    try:
        told = subprocess.run([python, "-c", _TORCH], capture_output=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"{python} cannot be run: {error}", hint="pass a Python with --python") from error
    if told.returncode:
        last = (told.stderr.decode(errors="replace").strip().splitlines() or ["it ended without a word"])[-1]
        hint = "`pip install 'pharoah[torch]'` there, or pass --python with one that has it"
        raise CannotRun(f"{python} has no PyTorch with pharoah: {last}", hint=hint)
    return int(told.stdout.split()[-1])


def run(
    asked: Asked, home: Path | None, node: str = "", command: Sequence[str] = (), most_bytes: int = MOST_BYTES
) -> Ran:
    """Runs it, with the tenant's journal in `home`, which is kept, or in none. CannotRun where that is no result.

    `command` runs in place of the job's.
    """
    name = f"{asked.job}-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(dir=home, prefix=SCRATCH, ignore_cleanup_errors=True) as scratch:
        folder, kept = Path(scratch) / "job", home or Path(scratch) / "home"
        folder.mkdir()
        options = ["--home", str(kept.absolute()), "--lease", name, "--describe", "now", "--quiet"]
        options += ["--poll-s", "0.5", "--hang-floor-s", f"{HANG_FLOOR_S:g}"]
        began = time.monotonic()
        how = _guarded(
            [*_CLIENT, "run", *options, "--", *(command or asked.command)], asked.seconds, folder, most_bytes
        )
        took_s = time.monotonic() - began
        if how == guard.OUTPUT:
            raise CannotRun(
                f"the job wrote more than {most_bytes >> 20} MiB, and was stopped",
                hint="nothing is recorded: no job of the catalogue writes so much",
            )
        told = _Journal(kept, name)
        show = told.ask("show", name) or _nothing_said(folder)
        tokens, described = (told.ask("workload", verb, name) or {} for verb in ("tokens", "describe"))
        reason, pace = show["cause"]["reason"], _pace(folder / "pace.json")
        near = tokens.get("nearest")
        return Ran(
            job=asked.job,
            run=name,
            node=node or socket.gethostname(),
            ranks=asked.ranks,
            steps=show["steps"],
            outcome=_outcome(show, parents(), how),
            reason=reason if show["state"] == "failed" else "",
            said=show["cause"]["said"],
            archetype=near["name"] if near and near["similarity"] == 1.0 else tokens.get("archetype", ""),
            seconds=took_s,
            versions=described.get("versions", {}),
            size=asked.size,
            precision=asked.precision,
            python=asked.python,
            structure=tuple((name, tuple(sizes)) for name, sizes in described.get("structure", ())),
            **msgspec.structs.asdict(pace),
        )


def _guarded(command: Sequence[str], seconds: float, folder: Path, most_bytes: int) -> str:
    """How the guard says that it ended."""
    words = [sys.executable, "-I", guard.__file__, f"{seconds + START_S:g}", str(most_bytes), *command]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PHAROAH_")}
    env |= {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}
    with _ending(words, folder, env) as process:
        told = process.stdout.read() if process.stdout else b""
    if told.split() == [] or process.returncode:
        raise CannotRun("the process that guards the job was killed", hint="nothing is recorded; run it again")
    return told.split()[-1].decode()


@contextlib.contextmanager
def _ending(words: Sequence[str], folder: Path, env: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A guard, whose job ends with this block: it reads to the end of the pipe that only this process holds open."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=folder, env=env, start_new_session=True)
    try:
        yield process
    finally:
        process.communicate()


def _nothing_said(folder: Path) -> NoReturn:
    output = (folder / "output").read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
    said = f": {output[-1][:200]}" if output else ""
    raise CannotRun(f"pharoah-tenant run left no record of the job{said}", hint="nothing is recorded")


@dataclass(frozen=True)
class _Journal:
    """What the tenant's client says of a run, by its own verbs."""

    home: Path
    name: str

    def ask(self, *words: str) -> Any:
        """An answer; None where there is none."""
        return _answer(*words, "--home", str(self.home))


def parents() -> dict[str, str]:
    """What a round counts each reason as; CannotRun where the tenant's client does not say."""
    found = _answer("patterns", "reasons")
    if found is None:
        raise CannotRun("pharoah-tenant does not say which reasons there are", hint="install pharoah anew")
    return {one["slug"]: one["parent"] for one in found["reasons"] if one["counted"]}


def _answer(*words: str) -> Any:
    try:
        told = subprocess.run([*_CLIENT, *words, "--json"], capture_output=True, timeout=ASK_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    return json.loads(told.stdout) if told.stdout.strip() and not told.returncode else None


def _outcome(show: Any, counted_as: dict[str, str], how: str) -> str:
    """The outcome of a run that ended by itself, or had to be."""
    reason = show["cause"]["reason"]
    hung = any(one["kind"].endswith("hang") for one in show["evidence"]["findings"])
    if how == guard.TIME:
        return OK if show["steps"] and not hung else HANG
    if show["state"] == "succeeded":
        return OK if show["steps"] else UNKNOWN
    if reason == "silent_data_corruption":
        return WRONG_RESULT
    counted = counted_as.get(reason, UNKNOWN)
    return counted if counted in CAUSES else HANG if hung else UNKNOWN


class _Pace(msgspec.Struct, frozen=True):
    seconds_per_step: float | None = None
    spread: float | None = None
    memory_bytes: int | None = None
    operators: dict[str, tuple[float, float]] = {}


def _pace(file: Path) -> _Pace:
    """What the job says of itself; nothing where that has not this form."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(file.read_bytes(), type=_Pace)
    return _Pace()
