"""A micro-benchmark and its sample: repeated measurements of one rate, higher is better.

A benchmark allocates its resources once, warms up, and then measures repeats until its time is over. Each repeat has a
known result, so that hardware with wrong results is found too: WrongResult is a finding, not a failure of the test.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.errors import PharoahError
from federation.protocol.service_messages import Suspicion

Rates = NDArray[np.float64]
Once = Callable[[], float]
MOST_REPEATS = 4000
WARM_UP = 3


class CannotMeasure(PharoahError):
    """The machine lacks a resource of the benchmark: a GPU, a second GPU, a partner, or disk space."""

    default_hint = "test another suspicion, or provide the missing resource"


class WrongResult(PharoahError):
    """The hardware computed, copied or sent data with a wrong result."""

    default_hint = (
        "do not use this machine's results: restart elsewhere from an earlier checkpoint, and inform the provider"
    )


@dataclass(frozen=True, eq=False)
class Sample:
    """Rates of one run, in the order in which they were measured, each finite and positive; ValueError otherwise."""

    benchmark: str
    device: str
    unit: str
    values: Rates

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or not len(self.values):
            raise ValueError("a sample has one dimension and at least one repeat")
        if not (np.isfinite(self.values).all() and (self.values > 0).all()):
            raise ValueError("rates are finite and positive")


@dataclass(frozen=True)
class Benchmark:
    """One micro-benchmark: `prepare(device)` opens what it needs and yields a function that measures one repeat.

    `name` holds everything that changes the rate, such as sizes: samples of equal name, device and unit compare.
    `undisturbed` says that it takes processor time and not time on the wall, so that neighbours hardly matter.
    """

    name: str
    suspicion: Suspicion
    unit: str
    prepare: Callable[[str], AbstractContextManager[Once]]
    undisturbed: bool = False

    def run(self, seconds: float, device: str, *, described: str, clock: Callable[[], float]) -> Sample:
        """Repeats for about `seconds` on `device`; CannotMeasure or WrongResult where no rate comes out."""
        with self.prepare(device) as once:
            values = np.fromiter(_repeats(once, seconds, clock), dtype=np.float64)
        return Sample(self.name, described, self.unit, values)


def _repeats(once: Once, seconds: float, clock: Callable[[], float]) -> Iterator[float]:
    for _ in range(WARM_UP):
        once()
    until = clock() + seconds
    for _ in range(MOST_REPEATS):
        rate = once()
        if math.isfinite(rate) and rate > 0:
            yield rate
        if clock() >= until:
            return
