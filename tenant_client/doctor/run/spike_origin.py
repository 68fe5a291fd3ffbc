"""Tells a spike that came from data from one that came from hardware, by replicas that saw the same batch. Pure.

Replicas are ranks of one attempt, or a rank and its replay in another attempt. They saw the same batches if their own
losses, as `backward` began from, were equal at all steps before the trouble at which both were read. Then:

- One is odd and the other is not: the same batch and the same parameters gave two results. That is hardware.
- A replay has the same trouble at the same step: that is data.
- Ranks of one attempt agree: that is data, most likely. A gradient that a device corrupts before it is reduced reaches
  all ranks and looks the same; a replay tells.
- Gradient norms that were equal on two ranks, as they are after an all-reduce, and are no more: hardware.

Without two such replicas it cannot be told. Losses that the job itself passes to the hook may be averages over ranks,
which agree whatever happens: they make no replicas.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from tenant_client.doctor.run.hook.readings import Reading

_NEEDED = 4  # equal losses, by chance: two batches differ by a percent or so each time
_SAME, _ALIKE = 1e-4, 0.05
Attempt = Mapping[int, Sequence[Reading]]  # the readings of an attempt by rank
Bad = Mapping[int, set[int]]  # steps out of band


class Origin(StrEnum):
    """Where a spike came from."""

    DATA = "data"
    HARDWARE = "hardware"
    UNTOLD = ""


UNTOLD = (
    "data or hardware cannot be told, since no two replicas are known to have seen the same batch: restart with the "
    "same batches, and see whether it comes again"
)


@dataclass(frozen=True)
class Replay:
    """Another attempt, whose step `s` may be step `s + shift` of the one that is judged, for one of `shifts`."""

    readings: Attempt
    bad: Bad
    shifts: tuple[int, ...]


def origin(readings: Attempt, bad: Bad, onset: int, replays: Iterable[Replay] = ()) -> tuple[Origin, str]:
    """Where trouble that began at step `onset` came from, and why, in words."""
    for replay in replays:
        for rank, shift in ((rank, shift) for rank in readings for shift in replay.shifts):
            again = {step + shift: loss for step, loss in _losses(replay.readings.get(rank, ())).items()}
            bad_again = {step + shift for step in replay.bad.get(rank, ())}
            agree = _agree(_losses(readings[rank]), bad[rank], again, bad_again, onset)
            if agree is not None:
                return _of_replay(rank, comes_again=agree)
    found = dict(_pairs(readings, bad, onset, _losses))
    odd = [ranks for ranks, agree in found.items() if not agree]
    odd += [ranks for ranks, agree in _pairs(readings, bad, onset, _norms) if not agree]
    if odd:
        return Origin.HARDWARE, f"hardware of {_odd(odd[0], bad, onset)}: {_SAW_THE_SAME.format(*odd[0])}, and differ"
    for ranks in found:
        why = f"data, most likely: {_SAW_THE_SAME.format(*ranks)}, and agree; a corrupted gradient would look the same"
        return Origin.DATA, f"{why}, and a restart with the same batches tells"
    return Origin.UNTOLD, UNTOLD


_SAW_THE_SAME = "ranks {} and {} did the same before"


def _of_replay(rank: int, *, comes_again: bool) -> tuple[Origin, str]:
    if comes_again:
        return Origin.DATA, f"data: it came again on rank {rank} with the same batches"
    return Origin.HARDWARE, f"hardware: it did not come again on rank {rank} with the same batches"


def _odd(ranks: tuple[int, int], bad: Bad, onset: int) -> str:
    first = {rank: min((step for step in bad[rank] if step >= onset), default=math.inf) for rank in ranks}
    odd = [rank for rank in ranks if first[rank] == min(first.values())]
    return f"rank {odd[0]}" if len(odd) == 1 else f"rank {ranks[0]} or {ranks[1]}"


def _losses(readings: Sequence[Reading]) -> dict[int, float]:
    return {one.step: one.loss for one in readings if one.loss is not None and one.is_own}


def _norms(readings: Sequence[Reading]) -> dict[int, float]:
    return {one.step: one.norm for one in readings if one.norm is not None}


def _pairs(
    readings: Attempt, bad: Bad, onset: int, values: Callable[[Sequence[Reading]], Mapping[int, float]]
) -> Iterator[tuple[tuple[int, int], bool]]:
    """Pairs of ranks that did the same before, and whether they agree about the trouble."""
    of = {rank: values(own) for rank, own in readings.items()}
    for one, other in combinations(sorted(of), 2):
        agree = _agree(of[one], bad[one], of[other], bad[other], onset)
        if agree is not None:
            yield (one, other), agree


def _agree(
    one: Mapping[int, float], bad: set[int], other: Mapping[int, float], bad_other: set[int], onset: int
) -> bool | None:
    """Whether two replicas agree about the trouble; None if they are none, or were not both read when it began.

    Later on they agree anyway: an infinite loss of one is a NaN of all after the next all-reduce.
    """
    common, trouble = sorted(one.keys() & other.keys()), [step for step in bad | bad_other if step >= onset]
    before = [step for step in common if step < onset and step not in bad | bad_other]
    after = [step for step in common if step in trouble]
    if len(before) < _NEEDED or not after or not all(_alike(one[step], other[step], _SAME) for step in before):
        return None
    if not all(_alike(one[step], other[step], _ALIKE) for step in after):
        return False
    return True if after[0] == min(trouble) else None


def _alike(one: float, other: float, within: float) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.isfinite(one) == math.isfinite(other)
    return abs(one - other) <= within * max(abs(one), abs(other))
