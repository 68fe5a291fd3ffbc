"""How much longer the steps of a job took than they had to, and whose fault that is.

The schedule is run with the times of a trace, and again with some of them made ideal: the mean of all operations of a
kind for computation, the median for transfers. Times between operations (launch delays) are left out of both.

- `slowdown` (S): seconds per step as traced over seconds per step with all times ideal.
- `workers` (M_W): the share of the excess that ends if the slowest 3 % of the workers are made ideal.
- `last_stage` (M_S): the same for the last stage of the pipeline. Above 1 if the others wait in other ways without it.
- `lengths`: the same if every micro-batch costs equally much, which an imbalance of sequence lengths prevents.

A micro-batch that is long is so on all stages of its pipeline, a slow worker on one: the load of a micro-batch is the
median over stages, and a worker is called slow by what is left once the load is divided out.

Definitions of S, M_W and M_S as in ByteDance's paper (equations 1 to 5); `lengths` is ours.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tenant_client.doctor.diagnosis.stragglers.schedule import (
    CLIP,
    COMPUTE,
    EMBEDDING,
    GATHER,
    LAYERNORM,
    REDUCE,
    REDUCE_REST,
    TRANSFERS,
    schedule,
)
from tenant_client.doctor.diagnosis.stragglers.simulation import own_times, step_times
from tenant_client.doctor.sources.step_trace import Bools, Floats, StepTrace

SLOW = 1.1  # S from which a job is said to straggle, as in the paper
MOST = 0.5  # of the excess: what explains that much is the cause
_WORST = 0.03
_STAGES_NEEDED = 3  # fewer say nothing about which of two stages is the odd one
_TINY = 1e-12
_COMMUNICATION = {*TRANSFERS, GATHER, REDUCE, REDUCE_REST, CLIP, LAYERNORM, EMBEDDING}
_MERGED = {kind: f"{kind.partition('-')[0]}-pp-comm" for kind in TRANSFERS}


class StragglerCause(StrEnum):
    """What makes the steps long."""

    NONE = "none"
    WORKER = "worker"
    LAST_STAGE = "last_stage"
    SEQUENCE_LENGTH = "sequence_length"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Worker:
    """One worker: its rank, its place, and S if it alone kept its own times."""

    rank: int
    dp_rank: int
    stage: int
    slowdown: float


@dataclass(frozen=True)
class WhatIf:
    """The slowdown of a job and its parts; the shares are None where there is no excess to share."""

    cause: StragglerCause
    slowdown: float
    step_s: float
    ideal_s: float
    workers: float | None
    last_stage: float | None
    lengths: float | None
    workers_at_even_lengths: float | None
    slowest: tuple[Worker, ...]
    by_kind: dict[str, float]
    by_dp_rank: tuple[float, ...]
    by_stage: tuple[float, ...]
    steps: int
    left_out: int

    @property
    def sentence(self) -> str:
        """For the owner of the job."""
        if self.cause is StragglerCause.NONE:
            return f"no straggler: steps take {self.slowdown:.2f} times as long as they had to"
        one = self.slowest[0]
        why = {
            StragglerCause.WORKER: f"rank {one.rank} (data-parallel {one.dp_rank}, stage {one.stage}) is slow",
            StragglerCause.LAST_STAGE: "the last stage of the pipeline has too much to do",
            StragglerCause.SEQUENCE_LENGTH: "micro-batches differ in length",
        }
        return f"steps take {self.slowdown:.2f} times as long as they had to: {why.get(self.cause, 'cause undecided')}"


def what_if(trace: StepTrace) -> WhatIf:
    """Runs the schedule of `trace` in all ways. NoSchedule if its operations do not fit together."""
    return _Runs(trace).result()


class _Runs:
    """The schedule of a trace, run with times as traced, ideal, and with some of them exchanged."""

    def __init__(self, trace: StepTrace) -> None:
        self.trace = trace
        self.meetings = schedule(trace)
        self.own = own_times(trace, self.meetings)
        self.ideal = _ideal(trace, self.own)
        self.own_s, self.ideal_s = self.seconds(self.own), self.seconds(self.ideal)
        self.stage = np.array([operation.stage for operation in trace.operations])

    def seconds(self, times_s: Floats) -> float:
        """The mean time of a step."""
        return float(step_times(self.meetings, times_s).mean())

    def result(self) -> WhatIf:
        even = _without_lengths(self.trace, self.own)
        shares = {
            "workers": self.share(self.own, self.improved(self.own, self.worst(self.own))),
            "last_stage": self.last_stage(),
            "lengths": self.share(self.own, even),
            "workers_at_even_lengths": self.share(even, self.improved(even, self.worst(even))),
        }
        kinds = np.array([_MERGED.get(operation.kind, operation.kind) for operation in self.trace.operations])
        slowdown = self.own_s / self.ideal_s
        return WhatIf(
            cause=_cause(slowdown, **shares),
            slowdown=slowdown,
            step_s=self.own_s,
            ideal_s=self.ideal_s,
            **shares,
            slowest=self.worst(even),
            by_kind={
                str(kind): self.alone(self.own, np.equal(kinds, kind)[:, None, None]) for kind in np.unique(kinds)
            },
            by_dp_rank=self.by_dp_rank(self.own),
            by_stage=self.by_stage(self.own),
            steps=len(self.trace.steps),
            left_out=self.trace.left_out,
        )

    def share(self, times_s: Floats, better_s: Floats) -> float | None:
        """The share of the excess by which steps with `better_s` are shorter than with `times_s`."""
        excess_s = self.own_s - self.ideal_s
        return (self.seconds(times_s) - self.seconds(better_s)) / excess_s if excess_s > 0 else None

    def last_stage(self) -> float | None:
        """M_S; a job of one stage has none."""
        last = int(self.stage.max())
        return self.share(self.own, np.where(self.of_stage(last), self.ideal, self.own)) if last else None

    def alone(self, times_s: Floats, chosen: Bools) -> float:
        """S if only the chosen operations keep `times_s`."""
        return self.seconds(np.where(chosen, times_s, self.ideal)) / self.ideal_s

    def by_dp_rank(self, times_s: Floats) -> tuple[float, ...]:
        """S if only one data-parallel rank keeps its times, for each."""
        return tuple(self.alone(times_s, self.of_dp_rank(dp)) for dp in range(self.trace.rank.shape[0]))

    def by_stage(self, times_s: Floats) -> tuple[float, ...]:
        """S if only one stage keeps its times, for each."""
        return tuple(self.alone(times_s, self.of_stage(stage)) for stage in range(self.trace.rank.shape[1]))

    def of_dp_rank(self, number: int) -> Bools:
        """The operations of one data-parallel rank."""
        return np.equal(np.arange(self.trace.rank.shape[0]), number)[None, :, None]

    def of_stage(self, number: int) -> Bools:
        """The operations of one stage."""
        chosen: Bools = np.equal(self.stage, number)[:, None, None]
        return chosen

    def worst(self, times_s: Floats) -> tuple[Worker, ...]:
        """The slowest 3 %, at least one. A worker is as slow as its data-parallel rank and its stage both are."""
        by_dp_rank, by_stage = self.by_dp_rank(times_s), self.by_stage(times_s)
        workers = [
            Worker(int(rank), dp, stage, min(by_dp_rank[dp], by_stage[stage]))
            for (dp, stage), rank in np.ndenumerate(self.trace.rank)
        ]
        workers.sort(key=lambda worker: (-worker.slowdown, worker.rank))
        return tuple(workers[: math.ceil(len(workers) * _WORST)])

    def improved(self, times_s: Floats, workers: Iterable[Worker]) -> Floats:
        """`times_s`, ideal for `workers`."""
        improved = times_s.copy()
        for worker in workers:
            chosen = self.of_dp_rank(worker.dp_rank) & self.of_stage(worker.stage)
            improved = np.where(chosen, self.ideal, improved)
        return improved


def _ideal(trace: StepTrace, own_s: Floats) -> Floats:
    kinds = np.array([operation.kind for operation in trace.operations])
    ideal = np.empty_like(own_s)
    for kind in np.unique(kinds):
        of_kind = own_s[kinds == kind]
        ideal[kinds == kind] = np.median(of_kind) if kind in _COMMUNICATION else np.mean(of_kind)
    return ideal


def _without_lengths(trace: StepTrace, own_s: Floats) -> Floats:
    """The times if every micro-batch had the mean length."""
    relative = _relative(trace, own_s)
    of_batch: dict[int, list[Floats]] = defaultdict(list)
    for index, times in relative.items():
        of_batch[trace.operations[index].micro_batch].append(times)
    load = {batch: np.median(np.stack(times), axis=0) for batch, times in of_batch.items()}
    if trace.rank.shape[1] < _STAGES_NEEDED:  # a slow worker is in the median: what a rank always shows is its own
        always = np.median(np.concatenate(list(load.values()), axis=1), axis=1)[:, None]
        load = {batch: times / np.maximum(always, _TINY) for batch, times in load.items()}
    even = own_s.copy()
    for index in relative:
        even[index] /= np.maximum(load[trace.operations[index].micro_batch], _TINY)
    return even


def _relative(trace: StepTrace, own_s: Floats) -> dict[int, Floats]:
    """The time of each computation over the mean of those that do the same work, by data-parallel rank and step."""
    alike: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for index, operation in enumerate(trace.operations):
        if operation.kind in COMPUTE:
            alike[operation.kind, operation.stage, operation.chunk].append(index)
    return {index: own_s[index] / max(own_s[same].mean(), _TINY) for same in alike.values() for index in same}


def _cause(
    slowdown: float,
    workers: float | None,
    last_stage: float | None,
    lengths: float | None,
    workers_at_even_lengths: float | None,
) -> StragglerCause:
    shares = {
        StragglerCause.SEQUENCE_LENGTH: lengths,
        StragglerCause.WORKER: min(workers or 0.0, workers_at_even_lengths or 0.0),
        StragglerCause.LAST_STAGE: last_stage,
    }
    if slowdown < SLOW:
        return StragglerCause.NONE
    likely = max(shares, key=lambda cause: shares[cause] or 0.0)
    return likely if (shares[likely] or 0.0) >= MOST else StragglerCause.UNDECIDED
