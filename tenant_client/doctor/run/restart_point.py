"""From which checkpoint to restart after a NaN or a spike, and which batches to skip.

- A reading is out of band if its loss or gradient norm is not finite, or more than `DEVIATIONS` above the median of the
  readings before it. The trouble begins at the first reading of the last stretch of such readings, on any rank.
- A checkpoint is safe if the readings before it and the next one after it are in band on all ranks: what is saved
  between the last good reading and the first bad one may hold the fault already.
- To skip: the steps after the last reading that was good on all ranks, up to the end of a spike, or to the first NaN,
  after which all is lost anyway. Steps and batches count from the start of the attempt.
- Whether data or hardware brought it: `spike_origin`.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from tenant_client.doctor.run.hook.readings import Reading
from tenant_client.doctor.run.spike_origin import UNTOLD, Attempt, Origin, Replay, origin

DEVIATIONS = 8.0
WINDOW = 8
_RECENT, _NEEDED = 64, 16
_MAD = 1.4826
_MOST_REPLAYS = 3


@dataclass(frozen=True)
class RestartPoint:
    """`checkpoint` is the step of the safe one, None if there is none; the steps of `skip` are to be left out.

    `origin` is where the trouble came from, `why` in words.
    """

    checkpoint: int | None
    skip: tuple[int, int]
    ranks: tuple[int, ...]
    trouble: str
    origin: Origin = Origin.UNTOLD
    why: str = UNTOLD

    @property
    def sentence(self) -> str:
        """For the owner of the job."""
        who = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {', '.join(map(str, self.ranks))}"
        where = "from the start: no checkpoint is safe"
        if self.checkpoint is not None:
            where = f"from the checkpoint of step {self.checkpoint}"
        return (
            f"{self.trouble} on {who}: restart {where}, and skip the batches of steps {self.skip[0]} to {self.skip[1]}"
            if self.origin is not Origin.HARDWARE
            else f"{self.trouble} on {who}: restart {where} without this hardware; no batch is to be skipped"
        )


def bad_since(readings: Sequence[Reading]) -> int | None:
    """The step of the first of the last readings whose loss is no number; None if the last one is finite."""
    losses = [(reading.step, reading.loss) for reading in readings if reading.loss is not None]
    good = max((at for at, (_, loss) in enumerate(losses) if math.isfinite(loss)), default=-1)
    return losses[good + 1][0] if losses[good + 1 :] else None


def attempts_in(readings: Attempt) -> list[Attempt]:
    """The attempts that left readings in one run directory, oldest first: a restart by the launcher begins anew.

    A loss may be read after the checkpoint of a later step, so steps of checkpoints do not tell.
    """
    found: list[dict[int, list[Reading]]] = []
    for rank, of_rank in readings.items():
        number, step = 0, 0
        for one in of_rank:
            if not one.saved:
                number, step = number + (one.step < step), one.step
            found += [{} for _ in range(number + 1 - len(found))]
            found[number].setdefault(rank, []).append(one)
    return list(found)


def restart_after(attempts: Sequence[Attempt], checkpoints: Iterable[int] = ()) -> RestartPoint | None:
    """The advice for the newest of a job's attempts, oldest first, or what it shows of trouble of the one before."""
    newest = restart_point(attempts[-1], checkpoints, [(one, False) for one in attempts[:-1][-_MOST_REPLAYS:]])
    if newest is not None or len(attempts) < 2:
        return newest
    before = restart_point(attempts[-2], (), [(attempts[-1], True)])
    return before if before is not None and before.origin is not Origin.UNTOLD else None


def restart_point(
    readings: Attempt, checkpoints: Iterable[int] = (), others: Iterable[tuple[Attempt, bool]] = ()
) -> RestartPoint | None:
    """The advice, by the readings of each rank; None if nothing is out of band. `checkpoints` are further steps.

    `others` are other attempts of the job, each with whether it is later: one of the two may have begun at a checkpoint
    of the other.
    """
    bad = {rank: out_of_band(of_rank) for rank, of_rank in readings.items()}
    last = {rank: _last_stretch(of_rank, bad[rank]) for rank, of_rank in readings.items()}
    begun = {rank: stretch[0] for rank, stretch in last.items() if stretch}
    if not begun:
        return None
    onset = min(reading.step for reading in begun.values())
    ranks = tuple(sorted(rank for rank, reading in begun.items() if reading.step == onset))
    is_nan = any(not _finite(reading) for reading in begun.values())
    ends = onset if is_nan else max(stretch[-1].step for stretch in last.values() if stretch)
    good = max((r.step for of_rank in readings.values() for r in of_rank if r.step < onset), default=0)
    saved = {reading.step for of_rank in readings.values() for reading in of_rank if reading.saved} | set(checkpoints)
    safe = [step for step in saved if all(_is_safe(step, readings[rank], bad[rank], onset) for rank in readings)]
    whence = origin(readings, bad, onset, [_replay(readings, other, is_later=later) for other, later in others])
    trouble = "NaN or infinity" if is_nan else "a spike"
    return RestartPoint(max(safe, default=None), (good + 1, ends), ranks, trouble, *whence)


def _replay(readings: Attempt, other: Attempt, *, is_later: bool) -> Replay:
    first, sign = (readings, 1) if is_later else (other, -1)
    saved = {reading.step for of_rank in first.values() for reading in of_rank if reading.saved}
    bad = {rank: out_of_band(of_rank) for rank, of_rank in other.items()}
    return Replay(other, bad, tuple(sign * step for step in sorted({0, *saved}, reverse=True)))


def out_of_band(readings: Sequence[Reading]) -> set[int]:
    """The steps whose loss or gradient norm is out of band."""
    bad: set[int] = set()
    for values in ([(r.step, r.loss) for r in readings], [(r.step, r.norm) for r in readings]):
        recent: deque[float] = deque(maxlen=_RECENT)
        for step, value in values:
            if value is None:
                continue
            if not math.isfinite(value) or _is_high(value, recent):
                bad.add(step)
            else:
                recent.append(value)
    return bad


def _is_high(value: float, recent: Sequence[float]) -> bool:
    if len(recent) < _NEEDED:
        return False
    middle = median(recent)
    spread = max(_MAD * median(abs(other - middle) for other in recent), 0.01 * abs(middle))
    return value - middle > DEVIATIONS * spread


def _last_stretch(readings: Sequence[Reading], bad: set[int]) -> list[Reading]:
    """The last readings in a row that are out of band, up to `WINDOW` good ones between them."""
    stretch: list[Reading] = []
    good = 0
    for reading in reversed(readings):
        if reading.step in bad:
            stretch.append(reading)
            good = 0
        elif stretch:
            good += 1
            if good > WINDOW:
                break
    return stretch[::-1]


def _is_safe(step: int, readings: Sequence[Reading], bad: set[int], onset: int) -> bool:
    before = [reading.step for reading in readings if reading.step <= step][-WINDOW:]
    after = [reading.step for reading in readings if reading.step > step][:1]
    return bool(before) and bool(after) and after[0] < onset and not bad.intersection(before + after)


def _finite(reading: Reading) -> bool:
    return all(value is None or math.isfinite(value) for value in (reading.loss, reading.norm))
