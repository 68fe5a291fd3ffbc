"""Traces of faults that were injected while a job trained: a label, written before anything ran, then window by window.

    {"label": {"job": "decoder", "kind": "net_loss", "dose": 0.5, "window_s": 0.5, "healthy": 12, "faulty": 24}}
    {"window": 0, "node": 0, "steps": 11, "values": {"tcp_retransmits": 0, …}}

A window stands for an hour of telemetry. Node 1 has the fault, which grows from nothing to its dose within the faulty
windows and ends with them, as one that ends in a failure; node 0 is its peer. Values are by canonical metric
(telemetry/metrics.toml), as an hour's summary has them: what a counter grew by, the mean of a gauge.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

import msgspec
import numpy as np

from crypto.errors import PharoahError
from federation.protocol.life_table import Floats

INJURED, PEER = 1, 0


class UnusableTrace(PharoahError):
    """A trace of injected faults cannot be read."""

    default_hint = "let `pharoah-provider benchmark inject` write it"


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is injected, decided before it is: `healthy` windows without it, then `faulty` ones, of `window_s`."""

    job: str
    kind: str
    dose: float
    window_s: float
    healthy: int
    faulty: int

    @property
    def is_held_out(self) -> bool:
        """Whether it judges, and takes no part in a fit: by kind and dose alone, before anything is known."""
        return sha256(f"{self.kind} {self.dose:g}".encode()).digest()[0] % 2 == 1


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node showed in a window, and how many steps its job had made by its end."""

    window: int
    node: int
    steps: int
    values: dict[str, float]


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    label: Label | None = None
    window: int = 0
    node: int = 0
    steps: int = 0
    values: dict[str, float] = {}


@dataclass(frozen=True, eq=False)
class Trace:
    """`values` by metric, shape (windows, 2): of the peer and of the injured node; `steps` likewise.

    A job that failed ends its trace early.
    """

    label: Label
    values: dict[str, Floats]
    steps: Floats

    @property
    def windows(self) -> int:
        """How many there are."""
        return len(self.steps)


def read(lines: Iterable[str]) -> Iterator[Trace]:
    """Traces of a file, in its order; those without a whole window of both nodes are left out."""
    label, found = None, list[_Line]()
    for number, text in enumerate(lines, start=1):
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.MsgspecError as error:
            raise UnusableTrace(f"line {number} is no part of a trace: {error}") from error
        if line.label is None:
            found.append(line)
            continue
        yield from _trace(label, found)
        label, found = line.label, []
    yield from _trace(label, found)


def _trace(label: Label | None, lines: list[_Line]) -> Iterator[Trace]:
    if label is None and lines:
        raise UnusableTrace("windows come before any label")
    whole = min((sum(line.node == node for line in lines) for node in (PEER, INJURED)), default=0)
    if label is None or not whole:
        return
    names = sorted(set.intersection(*(set(line.values) for line in lines)))
    by_node = [[line for line in lines if line.node == node][:whole] for node in (PEER, INJURED)]
    values = {name: np.array([[line.values[name] for line in node] for node in by_node]).T for name in names}
    yield Trace(label, values, np.array([[line.steps for line in node] for node in by_node], np.float64).T)
