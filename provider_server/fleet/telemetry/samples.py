"""Samples as columns, series apart from them, and the one interface of everything that yields them.

A `SeriesBook` gives each set of labels a number and says what it stands for: a metric, a node, a device. Labels that
differ (a pod that came, another exporter, an older name) may stand for the same: they share a *slot*, which is what is
summarised. A `Chunk` is bounded; a series may come in any number of chunks, and chunks in any order.

Not promised: to know that GPU "3" of one exporter and a UUID of another are one device, or a host's name and its
address one node, unless an inventory says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from federation.base.clock import SECONDS_PER_HOUR
from provider_server.fleet.telemetry.catalogue import BLANKS, METRICS, NAME, Aliases, Kind, Metric, Of
from provider_server.fleet.telemetry.quality import Reason, Tally

HOUR_S = int(SECONDS_PER_HOUR)
NODE_LABELS = ("Hostname", "hostname", "node", "kubernetes_node", "nodename", "instance")
# of amd_smi_exporter, which has its index in a label that is called as the metric is
AMD_SMI = ("current_temperature", "power", "use_percent", "SCLK", "MCLK")
GPU_LABELS = (
    *("UUID", "uuid", "gpu_uuid", "gpu", "gpu_id", "pci_bus_id", "device", "minor_number"),
    *("hw_id", "neuron_device_index", "accelerator_id", "vdie_id", *(f"gpu_{one}" for one in AMD_SMI), "id"),
)
INSTANCES = ("GPU_I_ID", "sub_dev", "com_intel_subdevice_id")  # parts of a GPU
LABELS_READ = frozenset(
    {
        *(*NODE_LABELS, *GPU_LABELS, *INSTANCES, "port", *Aliases(METRICS).labels()),
        *(label for one in METRICS.values() for label in (one.part, one.code)),
    }
)
UNKNOWN = -1

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Stamps(StrEnum):
    """What a sample's time is: when it was scraped, or when the device gave the value (a dump of DCGM's fields)."""

    SCRAPE = "scrape"
    VALUE = "value"


@dataclass(frozen=True)
class Window:
    """Whole hours since 1970, the end not included. Samples later than `now_s` come from a wrong clock."""

    start_hour: int
    end_hour: int
    now_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.start_hour < self.end_hour:
            raise ValueError(f"no hour lies between {self.start_hour} and {self.end_hour}")

    @property
    def start_s(self) -> float:
        """Its first second."""
        return float(HOUR_S * self.start_hour)

    @property
    def end_s(self) -> float:
        """The second after its last."""
        return float(HOUR_S * self.end_hour)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Samples of many series: equally long columns. No later chunk has samples before `complete_to_s`."""

    series: NDArray[np.uint32]
    time_s: Floats
    value: Floats
    complete_to_s: float = 0.0
    stamps: Stamps = Stamps.SCRAPE


class Source(Protocol):
    """Whatever yields samples of a window, naming series in the book. Times outside of the window may occur."""

    def chunks(self, book: "SeriesBook", window: Window) -> Iterator[Chunk]:
        """Bounded chunks; what cannot be read is counted in the book's tally."""
        ...


@dataclass(frozen=True)
class Slot:
    """What is summarised: a metric of a device ("" where the metric is the node's)."""

    metric: Metric
    node: str
    device: str


@dataclass(frozen=True)
class Series:
    """One set of labels, and the slot that it stands for."""

    labels: tuple[tuple[str, str], ...]
    slot: int
    alias: str


class SeriesBook:
    """Numbers for series and slots. Mappings of an inventory say which names are one thing.

    `nodes` maps other names of a node (node_exporter has nothing but an address) to the one that is kept, `devices`
    maps (node, other name of a device) likewise.
    """

    def __init__(
        self,
        tally: Tally,
        metrics: Mapping[str, Metric] = METRICS,
        devices: Mapping[tuple[str, str], str] | None = None,
        nodes: Mapping[str, str] | None = None,
    ) -> None:
        self.tally = tally
        self.metrics = metrics
        self.series: list[Series] = []
        self.slots: list[Slot] = []
        self._devices = devices or {}
        self._nodes = nodes or {}
        self._aliases = Aliases(metrics)
        self._by_labels: dict[tuple[tuple[str, str], ...], int] = {}
        self._by_slot: dict[tuple[str, str, str], int] = {}
        self._columns = Columns.of(self, 0)

    def number(self, labels: Mapping[str, str], samples: int) -> int:
        """The series of these labels, `__name__` among them; UNKNOWN for one that means nothing, `samples` counted."""
        key = tuple(sorted((name, text) for name, text in labels.items() if text))
        known = self._by_labels.get(key)
        if known is not None:
            return known
        slot, alias = self._slot(labels, samples)
        if slot == UNKNOWN:
            return UNKNOWN
        self._by_labels[key] = len(self.series)
        self.series.append(Series(key, slot, alias))
        return len(self.series) - 1

    def columns(self) -> "Columns":
        """What reducing samples needs of every series, as arrays."""
        if len(self._columns.slot) != len(self.series):
            self._columns = self._columns.followed_by(Columns.of(self, len(self._columns.slot)))
        return self._columns

    def _slot(self, labels: Mapping[str, str], samples: int) -> tuple[int, str]:
        found = self._aliases.find(labels)
        if found is None:
            return self._refuse(Reason.UNKNOWN_METRIC, labels.get(NAME, ""), samples)
        metric, alias, part = found
        node = self._nodes.get(_node(labels), _node(labels))
        if not node:
            return self._refuse(Reason.NO_NODE, metric.name, samples)
        device = self._device(metric, node, labels)
        if metric.of is not Of.NODE and not device:
            return self._refuse(Reason.NO_DEVICE, metric.name, samples)
        return self._numbered(metric, node, f"{device}/{part}" if part else device), alias

    def _refuse(self, reason: Reason, metric: str, samples: int) -> tuple[int, str]:
        self.tally.read(samples)
        self.tally.count(reason, metric, samples)
        return UNKNOWN, ""

    def _numbered(self, metric: Metric, node: str, device: str) -> int:
        key = metric.name, node, device
        if key not in self._by_slot:
            self._by_slot[key] = len(self.slots)
            self.slots.append(Slot(metric, node, device))
        return self._by_slot[key]

    def _device(self, metric: Metric, node: str, labels: Mapping[str, str]) -> str:
        device = "" if metric.of is Of.NODE else _gpu(labels) if metric.of is Of.GPU else _nic(labels)
        device = self._devices.get((node, device), device)
        within = INSTANCES if metric.of is Of.GPU else ()
        parts = [device, *(f"{label}={labels[label]}" for label in within if labels.get(label))]
        parts.append(f"{metric.part}={labels.get(metric.part, '')}" if metric.part else "")
        return "/".join(part for part in parts if part)


def _node(labels: Mapping[str, str]) -> str:
    label = next((name for name in NODE_LABELS if labels.get(name)), "")
    text = labels.get(label, "")
    if label == "instance" and text.rpartition(":")[2].isdigit():
        text = text.rpartition(":")[0] or text
    return text


def _gpu(labels: Mapping[str, str]) -> str:
    text = next((labels[name] for name in GPU_LABELS if labels.get(name)), "")
    return text.removeprefix("nvidia") if text.removeprefix("nvidia").isdigit() else text


def _nic(labels: Mapping[str, str]) -> str:
    device, port = labels.get("device", ""), labels.get("port", "")
    return f"{device}:{port}" if device and port else device


@dataclass(frozen=True, eq=False)
class Columns:
    """One entry per series. Bounds and thresholds are in the exported unit, `scale` leads to the metric's own."""

    slot: Ints
    rank: Ints
    scale: Floats
    low: Floats
    high: Floats
    above: Floats
    counter: NDArray[np.bool_]
    state: NDArray[np.bool_]
    event: NDArray[np.bool_]
    good: Floats
    code: Floats  # of events; NaN: their value
    born: NDArray[np.bool_]

    @classmethod
    def of(cls, book: SeriesBook, begin: int) -> "Columns":
        """The columns of all series that a book has by now, from one on."""
        added = book.series[begin:]
        metrics = [book.slots[series.slot].metric for series in added]
        pairs = list(zip(metrics, added, strict=True))
        scale = np.array([metric.names[series.alias] for metric, series in pairs], np.float64)
        above = [np.inf if metric.above is None else metric.above for metric in metrics]
        return cls(
            slot=np.array([series.slot for series in added], np.int64),
            rank=np.array([metric.rank(series.alias) for metric, series in pairs], np.int64),
            scale=scale,
            low=np.array([metric.low for metric in metrics], np.float64) / scale,
            high=np.minimum(np.array([_least_blank(metric) for metric in metrics], np.float64), _high(metrics, scale)),
            above=np.array(above, np.float64) / scale,
            counter=np.array([metric.kind is Kind.COUNTER for metric in metrics], np.bool_),
            state=np.array([metric.kind is Kind.STATE for metric in metrics], np.bool_),
            event=np.array([metric.event for metric in metrics], np.bool_),
            good=np.array([metric.good for metric in metrics], np.float64) / scale,
            code=np.array([_code(metric, series) for metric, series in pairs], np.float64),
            born=np.array([metric.born for metric in metrics], np.bool_),
        )

    def followed_by(self, more: "Columns") -> "Columns":
        """These and more."""
        pairs = ((getattr(self, field.name), getattr(more, field.name)) for field in fields(self))
        return Columns(*(np.concatenate(pair) for pair in pairs))


def _code(metric: Metric, series: Series) -> float:
    text = dict(series.labels).get(metric.code, "")
    return float(text) if text.isdecimal() else float("nan")


def _high(metrics: list[Metric], scale: Floats) -> Floats:
    return np.array([metric.high for metric in metrics], np.float64) / scale


def _least_blank(metric: Metric) -> float:
    """The largest value below every blank one: up to it, a value need not be looked at twice."""
    starts = [BLANKS[family][0] for family in metric.blanks if BLANKS[family][0] > 0]
    return float(np.nextafter(min(starts), 0)) if starts else float("inf")
