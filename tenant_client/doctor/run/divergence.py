"""Says whether losses diverge: the newest leapt above those before, or all of them have been rising.

Scores are robust to single losses and to noise, and need no scale. A loss that doubles once does not count: a gradient
scaler doubles it now and then.

>>> diverges([2.5, 2.1, 2.0, 1.9, 2.0, 1.8, 1.9, 1.7])
''
>>> diverges([2.5, 2.1, 2.0, 1.9, 2.0, 8.1, 9.4, 10.6])
'loss rose to 9.4 (usual 2)'
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

_LAST = 3
_BEFORE = 16
_LEAP = 2.2  # times the usual loss
_BLOCKS = 4
_LONG = 16


def diverges(losses: Sequence[float]) -> str:
    """In what way finite losses, oldest first, diverge; "" if they do not."""
    values = list(losses)
    before, last = values[:-_LAST][-_BEFORE:], values[-_LAST:]
    if len(before) < _LAST:
        return ""
    usual, least, noise = median(before), min(last), _noise(before)
    if least > usual + _LAST * noise and least > (_LEAP * usual if usual > 0 else usual + _BLOCKS * _LAST * noise):
        return f"loss rose to {median(last):.4g} (usual {usual:.4g})"
    if len(values) >= _LONG and _rises(values):
        return f"loss has been rising, to {median(last):.4g}"
    return ""


def _rises(values: Sequence[float]) -> bool:
    """Whether each quarter is above the one before it, and the last one above the first, beyond the noise."""
    size = len(values) // _BLOCKS
    blocks = [median(values[len(values) - size * (at + 1) :][:size]) for at in reversed(range(_BLOCKS))]
    noise = _noise(values)
    steps = [later - earlier for earlier, later in pairwise(blocks)]
    return min(steps) > noise / size**0.5 and blocks[-1] - blocks[0] > _LAST * noise


def _noise(values: Sequence[float]) -> float:
    """A typical deviation, from differences of neighbours, which a slow trend does not change."""
    return 1.4826 * median(abs(later - earlier) for earlier, later in pairwise(values)) / 2**0.5
