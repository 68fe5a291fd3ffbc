"""The life table: events, exposure and numbers at risk over named dimensions.

It is the sufficient statistic of piecewise-exponential survival (grouped likelihood: Holford 1980, Laird & Olivier
1981), it has bounded sensitivity, and it can be summed under masks. Tenants fill `events`; the provider fills
`exposure_node_hours` and `at_risk` from its leases; the release joins both and adds the noise variance of each cell.

    >>> table = LifeTable.zeros((Dimension("context", ("a", "b")), Dimension("band", ("young", "old"))))
    >>> table.marginal("context").shape
    (2,)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
PER_NODE_HOURS = 1000.0  # people read rates per so many node-hours


@dataclass(frozen=True)
class Dimension:
    """A named axis and its levels, in order. Levels are opaque strings; tokens appear as hexadecimal."""

    name: str
    levels: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.levels)) != len(self.levels):
            raise ValueError(f"dimension {self.name!r} must have each level once")

    def __len__(self) -> int:
        return len(self.levels)


@dataclass(frozen=True, eq=False)
class LifeTable:
    """Events and exposure per cell; every array has the shape given by the dimensions, dtype float64.

    `events` counts failures (after release: with noise, so perhaps negative or fractional). `exposure_node_hours` is
    time at risk in node-hours. `at_risk` counts units observed (leases, lives). `noise_variance` is the variance of the
    noise in `events`, zero where counts are exact.
    """

    dimensions: tuple[Dimension, ...]
    events: Floats
    exposure_node_hours: Floats
    at_risk: Floats
    noise_variance: Floats

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"a table must have each dimension once, not {self.names}")
        for name in ("events", "exposure_node_hours", "at_risk", "noise_variance"):
            if getattr(self, name).shape != self.shape:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, its dimensions ask for {self.shape}")

    @classmethod
    def zeros(cls, dimensions: Sequence[Dimension]) -> "LifeTable":
        """An empty table over `dimensions`."""
        shape = tuple(len(dimension) for dimension in dimensions)
        return cls(tuple(dimensions), *(np.zeros(shape) for _ in range(4)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of levels along each dimension."""
        return tuple(len(dimension) for dimension in self.dimensions)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the dimensions, in order."""
        return tuple(dimension.name for dimension in self.dimensions)

    def axis(self, name: str) -> int:
        """Position of the dimension called `name`; KeyError where there is none."""
        if name not in self.names:
            raise KeyError(f"no dimension {name!r} in {list(self.names)}")
        return self.names.index(name)

    def levels(self, name: str) -> tuple[str, ...]:
        """Levels of the dimension called `name`."""
        return self.dimensions[self.axis(name)].levels

    def marginal(self, *names: str) -> "LifeTable":
        """Sum over every dimension that is not named; the result's dimensions are in the order of `names`."""
        kept = [self.axis(name) for name in names]
        dropped = tuple(axis for axis in range(len(self.shape)) if axis not in kept)
        order = [sorted(kept).index(axis) for axis in kept]
        return LifeTable(
            tuple(self.dimensions[axis] for axis in kept),
            *(np.transpose(values.sum(axis=dropped), order) for values in self._arrays()),
        )

    def at(self, name: str, level: str) -> "LifeTable":
        """The slice at one level of one dimension, without that dimension; KeyError where there is none."""
        axis = self.axis(name)
        if level not in self.dimensions[axis].levels:
            raise KeyError(f"dimension {name!r} has no level {level!r}")
        position = self.dimensions[axis].levels.index(level)
        rest = self.dimensions[:axis] + self.dimensions[axis + 1 :]
        return LifeTable(rest, *(np.take(values, position, axis=axis) for values in self._arrays()))

    def __add__(self, other: "LifeTable") -> "LifeTable":
        """Cell-wise sum of two tables; levels are aligned by name, and levels that one side lacks are added."""
        if self.names != other.names:
            raise ValueError(f"only tables over the same dimensions add up, not {self.names} and {other.names}")
        dimensions = tuple(
            Dimension(mine.name, tuple(dict.fromkeys(mine.levels + theirs.levels)))
            for mine, theirs in zip(self.dimensions, other.dimensions, strict=True)
        )
        left, right = self.aligned(dimensions), other.aligned(dimensions)
        return LifeTable(dimensions, *(a + b for a, b in zip(left._arrays(), right._arrays(), strict=True)))

    def aligned(self, dimensions: tuple[Dimension, ...]) -> "LifeTable":
        """The same cells placed into the (wider) `dimensions`; new cells are empty. ValueError if one has no place."""
        if dimensions == self.dimensions:
            return self
        if self.names != tuple(dimension.name for dimension in dimensions):
            raise ValueError(f"a table over {self.names} fits only the same dimensions in the same order")
        places = []
        for wide, narrow in zip(dimensions, self.dimensions, strict=True):
            where = {level: position for position, level in enumerate(wide.levels)}
            if not where.keys() >= set(narrow.levels):
                raise ValueError(f"dimension {narrow.name!r} must keep every level to be aligned")
            places.append([where[level] for level in narrow.levels])
        arrays = []
        for values in self._arrays():
            target = np.zeros(tuple(len(dimension) for dimension in dimensions))
            target[np.ix_(*places)] = values
            arrays.append(target)
        return LifeTable(dimensions, *arrays)

    def without_privacy(self, exact_events: Floats) -> "LifeTable":
        """The same table with exact counts and no noise: what only a simulation, which knows the truth, can build."""
        return replace(self, events=exact_events, noise_variance=np.zeros(self.shape))

    def _arrays(self) -> tuple[Floats, Floats, Floats, Floats]:
        return self.events, self.exposure_node_hours, self.at_risk, self.noise_variance
