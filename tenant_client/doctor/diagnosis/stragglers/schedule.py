"""The order in which the operations of a training step wait for each other, read off one step of a trace.

Within a stage of the pipeline: computation runs in the order seen; each kind of transfer is a stream of its own; a
receive comes before the computation that needs it and after the one before that; a send comes after what it sends.
A stage ends with garbage collection, gradient reductions, clipping and the optimiser. Between stages: a send and its
receive meet, and so do the reductions of embeddings and the clipping of all stages. Between data-parallel ranks: the
gathering of parameters, the reduction of gradients and the clipping meet.

After "Understanding Stragglers in Large Model Training Using What-if Analysis" (ByteDance, 2025) and its traces.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from crypto.errors import PharoahError
from tenant_client.doctor.sources.step_trace import Operation, StepTrace

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE = FORWARD, BACKWARD
GATHER, REDUCE, REDUCE_REST = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
COLLECT, CLIP, OPTIMISER = "gc", "optimizer-clip-main-grad", "optimizer"
SENDS = {"forward-send": 1, "backward-send": -1}  # to the next stage, to the one before
RECEIVES = {"forward-recv": -1, "backward-recv": 1}
TRANSFERS = SENDS | RECEIVES
ACROSS = GATHER, REDUCE, REDUCE_REST, CLIP
KINDS = {*COMPUTE, *ACROSS, LAYERNORM, EMBEDDING, COLLECT, OPTIMISER, *TRANSFERS}

CLOCK_S = 5e-5  # two timestamps that differ by less say nothing about order


class NoSchedule(PharoahError):
    """The operations of a trace do not fit together into a step."""

    default_hint = "the trace must have every operation of each step, on every stage and data-parallel rank"


@dataclass(frozen=True)
class Meeting:
    """Operations that end together, or a computation alone.

    `after` are the operations that must end before each of `members` starts; `transfers` is false for computation;
    `across` if all data-parallel ranks take part.
    """

    members: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    transfers: bool
    across: bool


@dataclass(frozen=True)
class _Seen:
    """An operation of the first step on the first data-parallel rank."""

    index: int
    start_s: float
    end_s: float
    of: Operation


def schedule(trace: StepTrace) -> tuple[Meeting, ...]:
    """The meetings of a step in an order in which they can be run; NoSchedule where there is none."""
    unknown = sorted({operation.kind for operation in trace.operations} - KINDS)
    if unknown:
        raise NoSchedule(
            f"unknown kind of operation: {', '.join(unknown)[:200]}", hint=f"known: {', '.join(sorted(KINDS))}"
        )
    rows = zip(trace.operations, trace.start_s[:, 0, 0], trace.end_s[:, 0, 0], strict=True)
    seen = [_Seen(index, float(start_s), float(end_s), of) for index, (of, start_s, end_s) in enumerate(rows)]
    order = sorted(seen, key=lambda one: (one.start_s, one.of.number, one.of.kind))
    stages = [_Stage([one for one in order if one.of.stage == number], number) for number in _stages(order)]
    after: dict[int, list[int]] = defaultdict(list)
    chunks = 1 + max(one.of.global_chunk for one in order)
    for stage in stages:
        stage.connect(after, chunks)
    together = [*_pairs(stages), *_between_stages(stages), *([one.index] for one in seen if one.of.kind in ACROSS[:3])]
    return _in_order(seen, after, together)


def _stages(order: Sequence[_Seen]) -> range:
    stages = {one.of.stage for one in order}
    if stages != set(range(len(stages))):
        raise NoSchedule(f"stages {sorted(stages)[:8]} are not numbered from 0 on")
    return range(len(stages))


class _Stage:
    """One stage of the pipeline: its operations in the order in which they started."""

    def __init__(self, order: Sequence[_Seen], number: int) -> None:
        self.number = number
        self.order = order
        self.computes = self.of_kind(*COMPUTE)
        if not self.of_kind(BACKWARD) or not self.of_kind(FORWARD):
            raise NoSchedule(f"stage {number} has no {FORWARD} or no {BACKWARD}")
        self.moved: dict[str, list[_Seen]] = {kind: [] for kind in TRANSFERS}  # those that reach another stage

    def of_kind(self, *kinds: str) -> list[_Seen]:
        return [one for one in self.order if one.of.kind in kinds]

    def connect(self, after: dict[int, list[int]], chunks: int) -> None:
        """Adds what waits for what within the stage."""
        _chain(after, self.computes)
        _chain(after, self.of_kind(GATHER, REDUCE))
        for kind in TRANSFERS:
            _chain(after, self.of_kind(kind))
            self._connect_transfers(after, kind, chunks)
        self._connect_first_backward(after)
        self._connect_chunks(after)
        self._connect_end(after)

    def _connect_transfers(self, after: dict[int, list[int]], kind: str, chunks: int) -> None:
        """Pairs each transfer with its computation: the first with the first, and so on."""
        computes = self.of_kind(f"{kind.partition('-')[0]}-compute")
        transfers = [one for one in self.of_kind(kind) if _happens(one, computes)]
        skipped = len(computes) - len(transfers)
        if skipped == 1 and kind in RECEIVES:  # the first stage's first receive need not be recorded
            computes = computes[1:]
        elif transfers and skipped not in (0, 1):
            raise NoSchedule(f"stage {self.number} has {len(computes)} computations and {len(transfers)} of {kind}")
        by_number = sorted(computes, key=lambda one: one.of.number)
        for transfer, compute in zip(transfers, by_number, strict=False):
            if kind in SENDS:
                after[transfer.index].append(compute.index)
            else:
                after[compute.index].append(transfer.index)
                after[transfer.index] += [one.index for one in self.computes if _precedes(one.of, compute.of)]
            if 0 <= compute.of.global_chunk + TRANSFERS[kind] < chunks:
                self.moved[kind].append(transfer)

    def _connect_first_backward(self, after: dict[int, list[int]]) -> None:
        """The first backward transfers are launched before the last forward computation of the warm-up."""
        first = next(at for at, one in enumerate(self.computes) if one.of.kind == BACKWARD)
        if first >= 2:
            for kind in ("backward-recv", "backward-send"):
                for transfer in self.of_kind(kind)[:1]:
                    after[transfer.index].append(self.computes[first - 2].index)

    def _connect_chunks(self, after: dict[int, list[int]]) -> None:
        """A chunk's parameters come before its first use, its gradients go after its last, where that overlaps."""
        for gather in {one.of.chunk: one for one in self.of_kind(GATHER)}.values():
            first = [one for one in self.of_kind(FORWARD) if one.of.chunk == gather.of.chunk][:1]
            for compute in first:
                after[compute.index].append(gather.index)
        if self.of_kind(REDUCE_REST):
            for reduce in {one.of.chunk: one for one in reversed(self.of_kind(REDUCE))}.values():
                uses = [one for one in self.of_kind(BACKWARD) if one.of.chunk == reduce.of.chunk]
                if uses:
                    after[reduce.index].append(max(uses, key=lambda one: one.end_s).index)

    def _connect_end(self, after: dict[int, list[int]]) -> None:
        last = max(self.computes, key=lambda one: one.end_s)
        overlapped = bool(self.of_kind(REDUCE_REST))
        middle = self.of_kind(REDUCE_REST) if overlapped else self.of_kind(REDUCE)
        parts = self.of_kind(COLLECT), self.of_kind(LAYERNORM), self.of_kind(EMBEDDING), middle
        chain = [last, *(one for part in (*parts, self.of_kind(CLIP), self.of_kind(OPTIMISER)) for one in part)]
        _chain(after, chain)
        if overlapped and self.of_kind(REDUCE):
            first = chain[1 + len(parts[0])]
            after[first.index].append(self.of_kind(REDUCE)[-1].index)


def _chain(after: dict[int, list[int]], order: Iterable[_Seen]) -> None:
    for before, then in pairwise(order):
        after[then.index].append(before.index)


def _happens(transfer: _Seen, computes: Sequence[_Seen]) -> bool:
    """False for a receive after the last computation and a send before the first: recorded, but never launched."""
    if transfer.of.kind in RECEIVES:
        return transfer.start_s <= max(one.start_s for one in computes) + CLOCK_S
    return transfer.end_s >= min(one.end_s for one in computes) - CLOCK_S


def _precedes(one: Operation, other: Operation) -> bool:
    return one.kind == other.kind and one.number == other.number - 1


def _pairs(stages: Sequence[_Stage]) -> list[list[int]]:
    """Each send with its receive on the neighbouring stage, and the transfers that reach nobody alone."""
    together: list[list[int]] = []
    for stage in stages:
        for kind, step in SENDS.items():
            peer = stages[(stage.number + step) % len(stages)].moved[kind.replace("send", "recv")]
            if len(peer) != len(stage.moved[kind]):
                raise NoSchedule(
                    f"stage {stage.number} sends {len(stage.moved[kind])} of {kind}, {len(peer)} are received"
                )
            together += [[one.index, other.index] for one, other in zip(stage.moved[kind], peer, strict=True)]
    paired = {index for pair in together for index in pair}
    transfers = (one.index for stage in stages for one in stage.of_kind(*TRANSFERS))
    return together + [[index] for index in transfers if index not in paired]


def _between_stages(stages: Sequence[_Stage]) -> list[list[int]]:
    groups = [[one.index for stage in stages for one in stage.of_kind(kind)] for kind in (EMBEDDING, CLIP)]
    return [group for group in groups if group]


def _in_order(seen: Sequence[_Seen], after: dict[int, list[int]], together: list[list[int]]) -> tuple[Meeting, ...]:
    """The meetings, each after all that it waits for."""
    transfers = {index for group in together for index in group}
    groups = [*together, *([one.index] for one in seen if one.index not in transfers)]
    group_of = {index: number for number, group in enumerate(groups) for index in group}
    waiting = [{group_of[index] for member in group for index in after[member]} for group in groups]
    leads_to: dict[int, list[int]] = defaultdict(list)
    for number, needs in enumerate(waiting):
        for need in needs:
            leads_to[need].append(number)
    ready = [number for number, needs in enumerate(waiting) if not needs]
    for number in ready:  # grows while it is walked
        for follower in leads_to[number]:
            waiting[follower].discard(number)
            if not waiting[follower]:
                ready.append(follower)
    if len(ready) < len(groups):
        raise NoSchedule("operations wait for each other in a circle")
    return tuple(
        Meeting(
            members=tuple(groups[number]),
            after=tuple(tuple(after[index]) for index in groups[number]),
            transfers=groups[number][0] in transfers,
            across=seen[groups[number][0]].of.kind in ACROSS,
        )
        for number in ready
    )
