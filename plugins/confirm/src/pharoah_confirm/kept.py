"""Files of the hardware tests: runs in the home, and criteria learnt from the runs of many machines (versioned JSON).

- A run has the machine's name and stays in the home unless its owner shares it; criteria name no machine.
- Runs with a finding are never used as a baseline.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from crypto.errors import PharoahError
from federation.base.visible import json_text
from federation.protocol.service_messages import CheckVerdict
from pharoah_confirm.criteria import Criterion, NoCriterion, learn
from pharoah_confirm.sample import Sample

VERSION = 1
FOLDER = "confirm"
MOST_OWN = 64
HEALTHY = {CheckVerdict.OK.name.lower(), CheckVerdict.UNKNOWN.name.lower()}
Kind = tuple[str, str, str]
T = TypeVar("T", "Run", "CriteriaFile")


class UnusableSamples(PharoahError):
    """A file of samples or criteria cannot be read, or is of another version."""

    default_hint = "pass files that `pharoah-tenant confirm` wrote"


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run of one benchmark: when, where, what came out, and the verdict's name at that time."""

    version: int
    at_s: float
    machine: str
    benchmark: str
    device: str
    unit: str
    values: tuple[float, ...]
    verdict: str

    @property
    def kind(self) -> Kind:
        """What makes runs comparable."""
        return self.benchmark, self.device, self.unit

    def sample(self) -> Sample:
        """The rates; ValueError where they are none."""
        return Sample(self.benchmark, self.device, self.unit, np.array(self.values, dtype=np.float64))


class CriteriaFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Criteria, at most one for each benchmark and device."""

    version: int
    criteria: tuple[Criterion, ...]

    def find(self, kind: Kind) -> Criterion | None:
        """The criterion of this benchmark, device and unit."""
        return next((one for one in self.criteria if (one.benchmark, one.device, one.unit) == kind), None)


def keep(home: Path, sample: Sample, machine: str, at_s: float, verdict: CheckVerdict) -> Path:
    """Writes a run into the home, readable by its owner only; UnusableSamples where that cannot be done."""
    kind, values = (sample.benchmark, sample.device, sample.unit), tuple(sample.values.tolist())
    run = Run(VERSION, at_s, machine, *kind, values=values, verdict=verdict.name.lower())
    folder = home / FOLDER
    path = folder / f"{at_s:.6f}-{run.benchmark}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(run))
    except OSError as error:
        raise UnusableSamples(f"{error.strerror}: {path}", hint="pass another --home") from error
    return path


def runs(paths: Iterable[Path]) -> list[Run]:
    """The runs in these files, and in all of a folder; UnusableSamples names the first file that is none."""
    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    return [_read(file, Run) for file in files]


def own(home: Path, machine: str, kind: Kind) -> Criterion | None:
    """What is usual on this machine by its own earlier runs, each a unit; None where they say nothing in common."""
    folder = home / FOLDER
    earlier = [one for one in runs([folder]) if one.machine == machine and one.kind == kind] if folder.is_dir() else []
    healthy = sorted((one for one in earlier if one.verdict in HEALTHY), key=lambda one: one.at_s)[-MOST_OWN:]
    try:
        return learn({str(number): [one.sample()] for number, one in enumerate(healthy)}) if len(healthy) > 1 else None
    except NoCriterion:
        return None


def criteria(found: Sequence[Run]) -> CriteriaFile:
    """A criterion for each benchmark and device that at least two machines ran; a machine counts once.

    Raises NoCriterion where none can be learnt.
    """
    ordered = sorted(found, key=lambda one: one.kind)
    learnt: list[Criterion] = []
    for _, same in groupby(ordered, key=lambda one: one.kind):
        units: dict[str, list[Sample]] = {}
        for one in same:
            units.setdefault(one.machine, []).append(one.sample())
        learnt += [learn(units)] if len(units) > 1 else []
    if not learnt:
        raise NoCriterion(
            f"none of the {len(ordered)} runs can be compared: no benchmark ran on two machines of one kind"
        )
    return CriteriaFile(VERSION, tuple(learnt))


def write_criteria(path: Path, file: CriteriaFile) -> None:
    """Writes criteria; UnusableSamples where that cannot be done."""
    try:
        path.write_text(json_text(msgspec.to_builtins(file), indent=1) + "\n", encoding="ascii")
    except OSError as error:
        raise UnusableSamples(f"{error.strerror}: {path}", hint="pass another file with --out") from error


def read_criteria(path: Path) -> CriteriaFile:
    """The criteria in a file; UnusableSamples where it holds none."""
    return _read(path, CriteriaFile)


def _read(path: Path, kind: type[T]) -> T:
    try:
        read = msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise UnusableSamples(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UnusableSamples(f"{path}: {error}") from error
    if read.version != VERSION:
        raise UnusableSamples(f"file version {read.version} is not supported, only {VERSION}: {path}")
    return read
