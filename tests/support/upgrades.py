"""Histories of runs with upgrades, of which one is to blame for failures.

A tenant runs one model 80 times over two images and four contexts. Images are upgraded now and then, one to six of
eleven components at once, and each context has a driver of its own. One such upgrade also brings the culprit, of the
driver, NCCL, torch or CUDA: of runs with that version 50, 75 or 100% fail; of others 5% of another reason and 2% of the
same one. Reasons are drawn alike, so that none points to a component, but in `catalogued`, where the culprit's version
is in a range of the shipped table and the reason is one that the entry's effect explains.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import Generator
from packaging.specifiers import SpecifierSet

from tenant_client.doctor.advice.culprits import explained
from tenant_client.doctor.advice.incompatibilities import TABLE, Effect
from tenant_client.doctor.advice.own_runs import NothingToCompare, Run
from tenant_client.doctor.records.attempts import Attempt, AttemptCause, AttemptState
from tenant_client.doctor.workload.descriptor import Descriptor

RELEASES = {  # as published, older first
    "cuda": "11.7 11.8 12.0 12.1 12.2 12.3 12.4 12.5 12.6 12.8 12.9",
    "cudnn": "8.5.0 8.6.0 8.7.0 8.8.1 8.9.2 8.9.7 9.0.0 9.1.0 9.3.0 9.5.1 9.8.0 9.10.1",
    "deepspeed": "0.9.5 0.10.3 0.11.1 0.12.6 0.13.5 0.14.0 0.14.2 0.15.1 0.16.2 0.17.0",
    "driver": "515.105.01 525.60.13 525.147.05 530.30.02 535.54.03 535.129.03 550.54.14 550.90.07 560.35.03 570.86.15",
    "flash-attn": "2.0.4 2.1.1 2.2.5 2.3.6 2.4.2 2.5.8 2.6.3 2.7.4",
    "nccl": "2.14.3 2.15.5 2.16.5 2.17.1 2.18.1 2.18.5 2.19.3 2.20.5 2.21.5 2.22.3 2.23.4 2.25.1 2.26.2 2.27.3",
    "numpy": "1.23.5 1.24.4 1.25.2 1.26.4 2.0.0 2.0.2 2.1.3 2.2.6",
    "python": "3.8.18 3.9.18 3.10.13 3.11.9 3.12.3 3.12.11",
    "torch": "1.13.1 2.0.0 2.0.1 2.1.0 2.1.2 2.2.0 2.2.2 2.3.1 2.4.0 2.4.1 2.5.0 2.5.1 2.6.0 2.7.0 2.7.1",
    "transformers": "4.30.2 4.33.3 4.36.2 4.38.2 4.40.0 4.42.4 4.44.2 4.46.3 4.48.0 4.51.3",
    "triton": "2.0.0 2.1.0 2.2.0 2.3.1 3.0.0 3.1.0 3.2.0 3.3.1",
}
VERSIONS = {name: text.split() for name, text in RELEASES.items()}
CULPRITS = ("cuda", "driver", "nccl", "torch")
IMAGE = tuple(name for name in VERSIONS if name != "driver")
REASONS = {
    Effect.HANG: "nccl_timeout_error",
    Effect.CRASH: "segmentation_fault",
    Effect.WRONG_RESULTS: "nan_loss",
    Effect.INIT_FAILURE: "cuda_error",
    Effect.IMPORT_ERROR: "import_error",
    Effect.OUT_OF_MEMORY: "gpu_out_of_memory",
    Effect.CHECKPOINT: "model_loading_error",
}
RUNS, CONTEXTS, SPACING_S = 80, 4, 4 * 3600.0
UPGRADE = 0.12  # of runs that come with an upgrade of one image, or of one context's driver
FAIL, FAIL_SO = 0.05, 0.02  # shares of runs that fail without the culprit, and of its very reason


@dataclass
class History:
    """What a tenant's journal holds, and the truth: the culprit, and which operators each version has."""

    culprit: str
    version: str
    reason: str
    runs: dict[str, Run] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)

    def failed_so(self) -> list[str]:
        """The runs that the culprit ended."""
        own = {name for name, run in self.runs.items() if run.state("version", self.culprit) == self.version}
        return [one.unit for one in self.attempts if one.unit in own and one.cause.reason == self.reason]

    def until(self, unit: str) -> "History":
        """The same when that run had just ended."""
        count = [one.unit for one in self.attempts].index(unit) + 1
        kept = {one.unit for one in self.attempts[:count]}
        runs = {name: run for name, run in self.runs.items() if name in kept}
        return replace(self, runs=runs, attempts=self.attempts[:count])


def history(rng: Generator, *, catalogued: bool) -> History:
    """One tenant's runs."""
    culprit, version, reason = _catalogued(rng) if catalogued else _unheard_of(rng)
    at = VERSIONS[culprit].index(version)
    stacks = [{name: int(rng.integers(0, len(VERSIONS[name]) // 2)) for name in IMAGE} for _ in range(2)]
    drivers = [int(rng.integers(0, len(VERSIONS["driver"]) // 2)) for _ in range(CONTEXTS)]
    if culprit == "driver":
        drivers = [min(driver, at - 1) for driver in drivers]
    else:
        stacks = [stack | {culprit: min(stack[culprit], at - 1)} for stack in stacks]
    told, fails, comes = History(culprit, version, reason), rng.choice([0.5, 0.75, 1.0]), int(rng.integers(20, 40))
    for number in range(RUNS):
        image, place = int(rng.integers(0, 2)), int(rng.integers(0, CONTEXTS))
        if number == comes or rng.random() < UPGRADE:
            _upgrade(rng, stacks[image], culprit if number < comes else "")
        if rng.random() < UPGRADE and (culprit != "driver" or number > comes):
            drivers[place] = _later(rng, "driver", drivers[place])
        if number == comes and culprit == "driver":
            drivers[place] = at
        elif number == comes:
            stacks[image][culprit] = at
        versions = {name: VERSIONS[name][index] for name, index in (stacks[image] | {"driver": drivers[place]}).items()}
        _ran(rng, told, number, place, versions, fails)
    return told


def _catalogued(rng: Generator) -> tuple[str, str, str]:
    """A version in the range of an entry that needs nothing else of a version, and the one before it is not."""
    found = []
    for entry in TABLE.values():
        for name in entry.versions.keys() & set(CULPRITS):
            inside = [text in SpecifierSet(entry.versions[name]) for text in VERSIONS[name]]
            if len(entry.versions) == 1 and entry.effect in REASONS and not entry.log_only:
                found += [
                    (name, VERSIONS[name][at], REASONS[entry.effect])
                    for at in range(1, len(inside))
                    if inside[at] and not inside[at - 1]
                ]
    return sorted(found)[int(rng.integers(0, len(found)))]


def _unheard_of(rng: Generator) -> tuple[str, str, str]:
    name = str(rng.choice(CULPRITS))
    version = VERSIONS[name][int(rng.integers(len(VERSIONS[name]) // 2, len(VERSIONS[name])))]
    return name, version, str(rng.choice(list(REASONS.values())))


def _upgrade(rng: Generator, stack: dict[str, int], spared: str) -> None:
    for name in rng.choice(IMAGE, rng.integers(1, 7), replace=False):
        if name != spared:
            stack[name] = _later(rng, name, stack[name])


def _later(rng: Generator, name: str, at: int) -> int:
    return min(at + int(rng.integers(1, 4)), len(VERSIONS[name]) - 1)


def _ran(rng: Generator, told: History, number: int, place: int, versions: dict[str, str], fails: float) -> None:
    unit, hit = f"run {number}", versions[told.culprit] == told.version and rng.random() < fails
    other = str(rng.choice([reason for reason in REASONS.values() if reason != told.reason]))
    luck = rng.random()
    reason = told.reason if hit or luck < FAIL_SO else other if luck < FAIL_SO + FAIL else ""
    state = AttemptState.FAILED if reason else AttemptState.SUCCEEDED
    began, cause = number * SPACING_S, AttemptCause(reason) if reason else AttemptCause()
    told.attempts.append(Attempt(unit, 1, state, began, began + SPACING_S / 2, None, None, cause, 1, ()))
    told.runs[unit] = Run(unit, {"context": f"{place:064x}", "context_level": f"{place:064x}"}, _described(versions))


def _described(versions: dict[str, str]) -> Descriptor:
    brought = {(f"{name}::of_{version}", (9,)) for name, version in versions.items() if name in ("torch", "flash-attn")}
    kernels = frozenset(f"{name}_{versions[name]}" for name in ("cudnn", "triton"))
    return Descriptor(
        frozenset({("aten::mm", (9, 9)), *brought}),
        frozenset({("layer", (9, 9))}),
        (("all_reduce", 3, 20),),
        "bf16",
        "dp8",
        tuple(sorted(versions.items())),
        kernels,
    )


def places_of(told: History, failure: int) -> tuple[int, float, float] | None:
    """How many changes stand before the culprit's, asked at that failure, and the shares moved; None: too few failures.

    RUNS, if it is not among the changes.
    """
    failed = told.failed_so()
    if len(failed) < failure:
        return None
    now = told.until(failed[failure - 1])
    try:
        found = explained(now.attempts, now.runs, failed[failure - 1], "", None)
    except NothingToCompare:
        return RUNS, math.nan, math.nan
    place = next((at for at, one in enumerate(found.changes) if one.name == told.culprit), RUNS)
    truth = {part: part.replace("::of", "").rpartition("_")[0] for one in found.moved for part in one.parts}
    by = [(truth[part], one.by) for one in found.moved for part in one.parts]
    if not by:
        return place, math.nan, math.nan
    return place, float(np.mean([own in by for own, by in by])), float(np.mean([(own,) == by for own, by in by]))
