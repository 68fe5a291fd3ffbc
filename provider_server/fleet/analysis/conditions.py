"""Conditions on versions, settings and numbers, and the records that meet them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats
from federation.protocol.version_ranges import VersionRange
from provider_server.fleet.analysis.matching import Places

Value = str | float | None


@dataclass(frozen=True)
class NumberRange:
    """above < number <= most; infinite where there is no bound."""

    name: str
    above: float
    most: float

    def holds(self, value: Value) -> bool:
        """Whether a number is inside; an absent one never is."""
        return value is not None and self.above < float(value) <= self.most

    def joined(self, other: "NumberRange") -> "NumberRange | None":
        """Both together where they touch, else None."""
        first, second = sorted((self, other), key=lambda part: part.above)
        return NumberRange(self.name, first.above, second.most) if first.most == second.above else None

    def __str__(self) -> str:
        if np.isinf(self.above):
            return f"{self.name} <= {self.most:g}"
        return f"{self.name} > {self.above:g}" + ("" if np.isinf(self.most) else f" and <= {self.most:g}")


@dataclass(frozen=True)
class OneOf:
    """A setting has one of `values`, in order."""

    name: str
    values: tuple[str, ...]

    def holds(self, value: Value) -> bool:
        """Whether the setting is among them."""
        return value in self.values

    def joined(self, other: "OneOf") -> "OneOf":
        """Both together."""
        return OneOf(self.name, tuple(sorted({*self.values, *other.values})))

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{self.name} = {self.values[0]}"
        return f"{self.name} in {{{', '.join(self.values)}}}"


Condition = VersionRange | NumberRange | OneOf
Conditions = tuple[Condition, ...]


@dataclass(frozen=True, eq=False)
class Records:
    """What ran (n records): versions as text, settings, numbers, each by name; stratum, failures, exposure, noise (n,).

    ValueError where lengths differ or exposure is not positive.
    """

    strata: Places
    events: Floats
    exposure_node_hours: Floats
    noise_variance: Floats
    versions: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(self.strata), len(self.exposure_node_hours), len(self.noise_variance)}
        for columns in (self.versions, self.settings, self.numbers):
            lengths |= {len(values) for values in columns.values()}
        if lengths != {len(self.events)}:
            raise ValueError("every column must have one entry per record")
        if not np.all(self.exposure_node_hours > 0.0):
            raise ValueError("every record needs positive exposure; leave the others out")

    def at(self, places: Places) -> "Records":
        """Some of the records."""
        return Records(
            strata=self.strata[places],
            events=self.events[places],
            exposure_node_hours=self.exposure_node_hours[places],
            noise_variance=self.noise_variance[places],
            versions={name: [values[place] for place in places] for name, values in self.versions.items()},
            settings={name: [values[place] for place in places] for name, values in self.settings.items()},
            numbers={name: [values[place] for place in places] for name, values in self.numbers.items()},
        )

    def inside(self, conditions: Sequence[Condition]) -> NDArray[np.bool_]:
        """Which records (n,) meet all conditions."""
        columns: dict[str, Sequence[Value]] = {**self.versions, **self.settings, **self.numbers}
        inside = np.ones(len(self.events), np.bool_)
        for condition in conditions:
            inside &= np.array([condition.holds(value) for value in columns[condition.name]], np.bool_)
        return inside
