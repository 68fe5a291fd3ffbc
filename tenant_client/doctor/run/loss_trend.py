"""Tells when a rank's loss has not improved since the attempt began.

The losses of the last third of the attempt are compared with the first: an improvement is a median that is lower by
more than twice the usual deviation of those losses. How many losses that takes depends on where the job began: few if
its optimiser was new, many if it came from a checkpoint and improves slowly.

>>> trend = LossTrend(first=2.5, fresh=True)
>>> [trend.feed(10 * n, 2.5 + 0.1 * (n % 2)) for n in range(60)][-1]
True
"""

import math
from statistics import median

EVERY_STEPS = 10  # a loss is read that often and repeated in between
NEEDED = {True: 60, None: 120, False: 600}  # by whether the optimiser was new
_KEPT = 2048
_MAD = 1.4826
_LEAST = 0.001


class LossTrend:
    """One rank's losses. `first` is the very first; `fresh` is whether its optimiser was new then, None if unknown."""

    def __init__(self, first: float, *, fresh: bool | None) -> None:
        self.first = first
        self.fresh = fresh
        self.recent = first
        self._losses: list[float] = []
        self._step = -EVERY_STEPS
        self._taken = 0
        self._stride = 1

    def feed(self, step: int, loss: float) -> bool:
        """Takes the loss seen last at `step`; whether there is no improvement."""
        if step - self._step >= EVERY_STEPS and math.isfinite(loss):
            self._step = step
            self._taken += 1
            if self._taken % self._stride == 0:
                self._losses.append(loss)
            if len(self._losses) > _KEPT:
                self._losses, self._stride = self._losses[1::2], 2 * self._stride
        return self._taken >= NEEDED[self.fresh] and self._is_flat()

    def _is_flat(self) -> bool:
        last = self._losses[-(len(self._losses) // 3) :]
        self.recent = median(last)
        deviation = _MAD * median(abs(loss - self.recent) for loss in last)
        return self.first - self.recent <= max(2 * deviation, _LEAST * abs(self.first))
