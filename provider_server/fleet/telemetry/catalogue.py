"""The alias table: which metrics are read, under which names, in which unit, and what of their values cannot be.

The table is `metrics.toml`, beside this file. Blank values are DCGM's (0x7ffffff0 and 0x7ffffffffffffff0 for integers,
2^47 for floating point, each with up to fifteen successors that tell why) and those of unsigned counters that are all
ones. Prometheus keeps every value as a double, so the families near 2^63 and 2^64 are a single number or two there.

    >>> METRICS["energy"].names["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"]
    0.001
    >>> METRICS["xid"].is_blank(np.array([9223372036854775794.0, 79.0])).tolist()
    [True, False]
    >>> Selector.of('xpum_(cache|non_compute)_errors_total{type="correctable"}').part(
    ...     {"__name__": "xpum_cache_errors_total", "type": "correctable"}
    ... )
    'cache'
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from federation.protocol.toml_tables import BadTable, LazyTable, loads, rows, shipped

Floats = NDArray[np.float64]

# Both ends belong to the family.
BLANKS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "i32": (float(0x7FFFFFF0), float(0x7FFFFFFF)),
        "i64": (2.0**63 - 1024, 2.0**63),
        "f64": (2.0**47, 2.0**47 + 15),
        "u32": (float(0xFFFFFFFF), float(0xFFFFFFFF)),
        "u64": (2.0**64 - 2048, 2.0**64),
        "minus_one": (-1.0, -1.0),
    }
)


class Kind(StrEnum):
    """How values of a metric relate to each other."""

    GAUGE = "gauge"
    COUNTER = "counter"
    STATE = "state"


class Of(StrEnum):
    """What has one series of a metric."""

    GPU = "gpu"
    NIC = "nic"
    NODE = "node"


SUMMARIES: Mapping[Kind, frozenset[str]] = MappingProxyType(
    {
        Kind.GAUGE: frozenset({"mean", "max", "min", "last"}),
        Kind.COUNTER: frozenset({"increase"}),
        Kind.STATE: frozenset({"last", "max", "changes"}),
    }
)


BY_CODE = "by its code"
NAME = "__name__"
_NAME = re.compile(r"([^{]+)(?:\{(.*)\})?")
_MATCHER = re.compile(r'([A-Za-z_]\w*)(=~?)"([^"]*)"')
_PLAIN = re.compile(r"[A-Za-z_:][\w:]*")


@dataclass(frozen=True)
class Selector:
    """A name of the table, as PromQL writes it: which names, and which labels a series of it has."""

    name: str
    matchers: str = ""

    @classmethod
    def of(cls, text: str) -> "Selector":
        """Reads one; ValueError where it is none."""
        found = _NAME.fullmatch(text)
        if found is None or (
            found[2] is not None and ",".join(one[0] for one in _MATCHER.finditer(found[2])) != found[2]
        ):
            raise ValueError(f"{text} is no name of a metric, nor one with labels")
        try:
            for pattern in (found[1], *(one[3] for one in _MATCHER.finditer(found[2] or "") if one[2] == "=~")):
                re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{text} has no regular expression: {error}") from error
        return cls(found[1], found[2] or "")

    def part(self, labels: Mapping[str, str]) -> str | None:
        """What parentheses match of a series, "" where there are none; None where the series is another's."""
        asked = [(NAME, "=~", self.name), *(match.groups() for match in _MATCHER.finditer(self.matchers))]
        parts: list[str] = []
        for label, operator, wanted in asked:
            found = re.fullmatch(wanted if operator == "=~" else re.escape(wanted), labels.get(label, ""))
            if found is None:
                return None
            parts += (group for group in found.groups() if group)
        return "/".join(parts)


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One canonical metric. `names` are in order of preference, each with its factor to `unit`."""

    name: str
    unit: Annotated[str, Meta(min_length=1)]
    kind: Kind
    of: Of
    names: Annotated[dict[str, Annotated[float, Meta(gt=0)]], Meta(min_length=1)]
    blanks: tuple[str, ...]
    low: float
    high: float
    summarise: Annotated[frozenset[str], Meta(min_length=1)]
    above: float | None = None
    event: bool = False
    good: float = 0.0
    part: str = ""
    failure: str = ""
    code: str = ""
    born: bool = False

    def __post_init__(self) -> None:
        if unknown := frozenset(self.blanks) - set(BLANKS):
            raise ValueError(f"unknown families of blank values: {', '.join(sorted(unknown))}")
        if unknown := self.summarise - SUMMARIES[self.kind]:
            raise ValueError(f"a {self.kind} has no summary {', '.join(sorted(unknown))}")
        if not self.low < self.high:
            raise ValueError(f"low ({self.low:g}) must be below high ({self.high:g})")
        if self.kind is not Kind.GAUGE and self.above is not None:
            raise ValueError("only a gauge can have a threshold (above)")
        if self.kind is Kind.GAUGE and self.event:
            raise ValueError("a gauge has no events")
        if not self.event and (self.failure or self.code or self.born):
            raise ValueError("failure, code and born are of events")
        for name in self.names:
            Selector.of(name)
        if "minus_one" in self.blanks and self.low < 0:
            raise ValueError("-1 cannot be both plausible (low) and blank (minus_one)")

    def is_blank(self, raw: Floats) -> NDArray[np.bool_]:
        """Which of some values, as they were exported, mean that there is none."""
        blank = np.zeros(np.shape(raw), np.bool_)
        for low, high in (BLANKS[family] for family in self.blanks):
            blank |= (raw >= low) & (raw <= high)
        return blank

    def rank(self, name: str) -> int:
        """Place of one of its names in the order of preference, 0 first."""
        return list(self.names).index(name)

    def selectors(self) -> Mapping[str, list[str]]:
        """Names that are asked for together, by the labels that they have to have."""
        found: dict[str, list[str]] = {}
        for one in map(Selector.of, self.names):
            found.setdefault(one.matchers, []).append(one.name)
        return found


METRICS: Mapping[str, Metric] = LazyTable(lambda: parse(shipped("provider_server.fleet.telemetry", "metrics.toml")))


def parse(text: str) -> Mapping[str, Metric]:
    """Reads a table; BadTable if it is not valid: unknown columns, an alias of two metrics, a bad range."""
    file = "metrics.toml"
    found = {metric.name: metric for metric in rows(loads(text, file), Metric, file, "name")}
    by_alias(found)
    return MappingProxyType(found)


def failing() -> Mapping[str, str]:
    """The metrics that failures are read from, each with the kind of failure that its events are."""
    return {metric.name: metric.failure for metric in METRICS.values() if metric.failure}


class Aliases:
    """Finds whose a series is. Names without labels are looked up, the others are tried in the order of the table."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._plain = by_alias(metrics)
        self._others = [(Selector.of(alias), alias) for alias in self._plain if not _PLAIN.fullmatch(alias)]

    def find(self, labels: Mapping[str, str]) -> tuple[Metric, str, str] | None:
        """The metric, its name in the table and what tells the series from others of its device; None for no metric."""
        name = labels.get(NAME, "")
        if name in self._plain:
            return self._plain[name], name, ""
        for selector, alias in self._others:
            part = selector.part(labels)
            if part is not None:
                return self._plain[alias], alias, part
        return None

    def labels(self) -> Iterator[str]:
        """The labels that names have to have."""
        for selector, _ in self._others:
            yield from (match[1] for match in _MATCHER.finditer(selector.matchers))


def by_alias(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Every exported name with its metric; BadTable where two metrics claim one name."""
    owners: dict[str, Metric] = {}
    for metric in metrics.values():
        for alias in metric.names:
            if alias in owners:
                raise BadTable(f"{alias} is a name of both {owners[alias].name} and {metric.name}")
            owners[alias] = metric
    return owners
