"""The alias table: which metrics are read, under which names, in which unit, and what of their values cannot be.

The table is `metrics.toml`, beside this file. Blank values are DCGM's (0x7ffffff0 and 0x7ffffffffffffff0 for integers,
2^47 for floating point, each with up to fifteen successors that tell why) and those of unsigned counters that are all
ones. Prometheus keeps every value as a double, so the families near 2^63 and 2^64 are a single number or two there.

    >>> METRICS["energy"].names["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"]
    0.001
    >>> METRICS["xid"].is_blank(np.array([9223372036854775794.0, 79.0])).tolist()
    [True, False]
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

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


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    unit: Annotated[str, msgspec.Meta(min_length=1)]
    kind: Kind
    of: Of
    names: Annotated[dict[str, Annotated[float, msgspec.Meta(gt=0)]], msgspec.Meta(min_length=1)]
    blanks: tuple[str, ...]
    low: float
    high: float
    summarise: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    above: float | None = None
    event: bool = False
    part: str = ""


@dataclass(frozen=True)
class Metric:
    """One canonical metric. `names` are in order of preference, each with its factor to `unit`."""

    name: str
    unit: str
    kind: Kind
    of: Of
    names: Mapping[str, float]
    blanks: tuple[str, ...]
    low: float
    high: float
    summarise: frozenset[str]
    above: float | None
    event: bool
    part: str

    def is_blank(self, raw: Floats) -> NDArray[np.bool_]:
        """Which of some values, as they were exported, mean that there is none."""
        blank = np.zeros(np.shape(raw), np.bool_)
        for low, high in (BLANKS[family] for family in self.blanks):
            blank |= (raw >= low) & (raw <= high)
        return blank

    def rank(self, name: str) -> int:
        """Place of one of its names in the order of preference, 0 first."""
        return list(self.names).index(name)


class _Metrics(Mapping[str, Metric]):
    """The table by canonical name, read when it is first asked, so that importing this module does no I/O."""

    def __getitem__(self, name: str) -> Metric:
        return _table()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_table())

    def __len__(self) -> int:
        return len(_table())


METRICS: Mapping[str, Metric] = _Metrics()


def parse(text: str) -> Mapping[str, Metric]:
    """Reads a table; ValueError for what it cannot mean: unknown columns, an alias of two metrics, a bad range."""
    found = {name: _metric(name, row) for name, row in tomllib.loads(text).items()}
    by_alias(found)
    return MappingProxyType(found)


def by_alias(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Every exported name with its metric; ValueError where two metrics claim one name."""
    owners: dict[str, Metric] = {}
    for metric in metrics.values():
        for alias in metric.names:
            if alias in owners:
                raise ValueError(f"{alias} is a name of both {owners[alias].name} and {metric.name}")
            owners[alias] = metric
    return owners


@cache
def _table() -> Mapping[str, Metric]:
    return parse(resources.files(__package__).joinpath("metrics.toml").read_text(encoding="utf-8"))


def _metric(name: str, row: Mapping[str, Any]) -> Metric:
    try:
        read = msgspec.convert(row, _Row)
    except msgspec.ValidationError as error:
        raise ValueError(f"metric {name}: {error}") from error
    if unknown := set(read.blanks) - set(BLANKS):
        raise ValueError(f"metric {name}: no blank values are called {sorted(unknown)}")
    if unknown := set(read.summarise) - SUMMARIES[read.kind]:
        raise ValueError(f"metric {name}: a {read.kind} has no {sorted(unknown)}")
    if not read.low < read.high:
        raise ValueError(f"metric {name}: nothing is plausible between {read.low} and {read.high}")
    if read.kind is not Kind.GAUGE and read.above is not None:
        raise ValueError(f"metric {name}: only a gauge has a threshold")
    if read.kind is not Kind.STATE and read.event:
        raise ValueError(f"metric {name}: only a state has events")
    if "minus_one" in read.blanks and read.low < 0:
        raise ValueError(f"metric {name}: -1 cannot be plausible and blank")
    columns = msgspec.structs.asdict(read)
    return Metric(**(columns | {"name": name, "summarise": frozenset(read.summarise)}))
