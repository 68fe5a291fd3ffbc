"""Which exporter a metric comes from, what an exporter is known to tell, and what of it is missing in a Prometheus.

    names in Prometheus ─ missing ─▶ metrics of the exporters that are there, of which there is no name

A metric whose series come with their first event only (`born`, as counts of Xid codes do) is never missing: that
nothing was seen is no fault. Names that no exporter of `exporters.toml` has (rdma_exporter's, NVML's own) are nobody's.

    >>> [name for name in TABLE if TABLE[name].has("npu_chip_info_power")]
    ['npu-exporter']
"""

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from federation.protocol.toml_tables import LazyTable, loads, rows, shipped
from provider_server.fleet.telemetry.catalogue import METRICS, Metric, Selector

Text = Annotated[str, Meta(min_length=1)]


class Exporter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exporter, the version whose names were read, and a regular expression for its names."""

    name: str
    repository: Text
    version: Text
    names: Text

    def has(self, name: str) -> bool:
        """Whether a name is one of its own."""
        return re.fullmatch(self.names, name) is not None


def _table() -> Mapping[str, Exporter]:
    file = "exporters.toml"
    return {
        one.name: one
        for one in rows(loads(shipped("provider_server.fleet.telemetry", file), file), Exporter, file, "name")
    }


TABLE: Mapping[str, Exporter] = LazyTable(_table)


def known() -> dict[str, dict[str, list[str]]]:
    """By exporter the metrics that it is known to tell, each with its names in the table of metrics."""
    found: dict[str, dict[str, list[str]]] = {name: {} for name in TABLE}
    for metric in METRICS.values():
        for alias in metric.names:
            if (owner := _owner(Selector.of(alias).name)) is not None:
                found[owner].setdefault(metric.name, []).append(alias)
    return found


def _owner(name: str) -> str | None:
    return next((one.name for one in TABLE.values() if one.has(name)), None)


@dataclass(frozen=True)
class Missing:
    """A metric that an exporter could tell and does not; `told_by` are other exporters that tell it."""

    exporter: Exporter
    metric: Metric
    names: tuple[str, ...]
    told_by: tuple[str, ...]


def found(present: Set[str]) -> list[str]:
    """Exporters of which there is a known metric among the names of all metrics."""
    return [exporter for exporter, metrics in _told(present).items() if any(metrics.values())]


def missing(present: Set[str]) -> Iterator[Missing]:
    """What exporters that are found could tell and do not, where these are the names of all metrics."""
    told, names = _told(present), known()
    for exporter in found(present):
        for name, seen in told[exporter].items():
            if not seen and not METRICS[name].born:
                others = tuple(other for other, theirs in told.items() if theirs.get(name))
                yield Missing(TABLE[exporter], METRICS[name], tuple(names[exporter][name]), others)


def _told(present: Set[str]) -> dict[str, dict[str, bool]]:
    """By exporter, whether there is a name of each metric that it is known to tell."""
    return {
        exporter: {metric: any(_is_there(alias, present) for alias in names) for metric, names in metrics.items()}
        for exporter, metrics in known().items()
    }


def _is_there(alias: str, present: Set[str]) -> bool:
    name = Selector.of(alias).name
    return name in present or any(re.fullmatch(name, one) for one in present)
