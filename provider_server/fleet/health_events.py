"""Health of nodes as other tools tell it, read as outages: when a node stopped being healthy, and when it was again.

| told by | as | a failure is |
|---|---|---|
| NVSentinel | `HealthEvent`s in protobuf's JSON, in CloudEvents, or as stored | what is fatal, until it is healthy |
| Kubernetes, node-problem-detector | a Node, a list, a watch's event | a condition of `health.toml`, until it is over |

One JSON document, a list of them, or one on each line. What is told again while it lasts is one outage, by node and
check. Events that this project itself sent (`agent` "pharoah") are left out, and so is what is not fatal.

Sources: NVIDIA/NVSentinel, data-models/protobufs/health_event.proto (264bfab8); Kubernetes 1.34, core/v1 NodeCondition.
"""

import tomllib
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from crypto.errors import DecodeError
from federation.runtime.clock import SECONDS_PER_HOUR
from federation.runtime.foreign import MALFORMED

OURS = "pharoah"
FORMS = "neither HealthEvents of NVSentinel nor nodes of Kubernetes or Slurm"
_WRAPPED = ("data", "healthevent", "fulldocument")  # of a CloudEvent, as stored, and of a store that tells of changes
Time = Annotated[datetime, msgspec.Meta(tz=True)]
_TABLE = Path(__file__).with_name("health.toml")


class Told(NamedTuple):
    """What was told of one check of a node, at an hour since 1970."""

    node: str
    check: str
    hour: float
    is_healthy: bool
    kind: str


class _Camel(msgspec.Struct, frozen=True, rename="camel"):
    """A part of what is read; further keys are not looked at."""


class _Stamp(msgspec.Struct, frozen=True):
    seconds: int


class _HealthEvent(msgspec.Struct, frozen=True):
    """Names without capitals and underscores: protobuf writes nodeName or node_name, MongoDB keeps nodename."""

    nodename: str
    checkname: str
    generatedtimestamp: Time | _Stamp
    agent: str = ""
    componentclass: str = ""
    isfatal: bool = False  # what is false is left out in protobuf's JSON
    ishealthy: bool = False


class _Condition(_Camel, frozen=True):
    type: str
    status: str
    last_transition_time: Time | None = None


class _Status(_Camel, frozen=True):
    conditions: tuple[_Condition, ...] | None = None


class _Name(_Camel, frozen=True):
    name: str


class _Node(_Camel, frozen=True):
    metadata: _Name
    status: _Status = _Status()


class _Conditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    class Lost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        conditions: tuple[str, ...]
        kind: str

    class Failed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        conditions: dict[str, str]

    lost: Lost
    failed: Failed


def outages_told(content: bytes) -> list[tuple[str, float, float | None, str]]:
    """Outages (node, start and end in hours, kind) in order; None for the end of one that lasts. DecodeError."""
    open_since: dict[tuple[str, str], tuple[float, str]] = {}
    rows: list[tuple[str, float, float | None, str]] = []
    for one in sorted(_told(content), key=lambda one: (one.hour, one.is_healthy)):
        key = one.node, one.check
        if not one.is_healthy:
            open_since.setdefault(key, (one.hour, one.kind))
        elif key in open_since:
            start_h, kind = open_since.pop(key)
            rows.append((one.node, start_h, one.hour, kind))
    lasting: list[tuple[str, float, float | None, str]] = [
        (node, start_h, None, kind) for (node, _check), (start_h, kind) in open_since.items()
    ]
    return sorted(rows + lasting, key=lambda row: (row[1], row[0], row[3]))


def _told(content: bytes) -> Iterator[Told]:
    try:
        for document in documents(content):
            yield from _of_document(document)
    except MALFORMED as error:
        raise DecodeError(str(error)) from error


def documents(content: bytes) -> list[object]:
    """The JSON documents of a text: one, or one on each line."""
    try:
        return [msgspec.json.decode(content)]
    except msgspec.DecodeError:
        return [msgspec.json.decode(line) for line in content.splitlines() if line.strip()]


def _of_document(document: object) -> Iterator[Told]:
    if not isinstance(document, dict):
        for one in document if isinstance(document, list) else ():
            yield from _of_document(one)
        if not isinstance(document, list):
            raise DecodeError(FORMS)
        return
    keys = {str(name).lower().replace("_", ""): value for name, value in document.items()}
    inside = next((keys[name] for name in _WRAPPED if isinstance(keys.get(name), dict)), None)
    if "nodename" in keys:
        yield from _of_event(msgspec.convert(keys, type=_HealthEvent))
    elif isinstance(several := keys.get("events", keys.get("items")), list):
        yield from _of_document(several)
    elif inside is not None:
        yield from _of_document(inside)
    elif "metadata" in keys or "object" in keys:
        yield from _of_node(msgspec.convert(document.get("object", document), type=_Node))
    else:
        raise DecodeError(FORMS)


def _of_event(one: _HealthEvent) -> Iterator[Told]:
    at = one.generatedtimestamp
    if one.agent != OURS and (one.isfatal or one.ishealthy):
        kind = f"{one.componentclass}/{one.checkname}".lstrip("/")
        hour = at.seconds / SECONDS_PER_HOUR if isinstance(at, _Stamp) else _hour(at)
        yield Told(one.nodename, one.checkname, hour, one.ishealthy, kind)


def _of_node(node: _Node) -> Iterator[Told]:
    table = _table()
    for one in node.status.conditions or ():
        if one.last_transition_time is None:
            continue
        hour = _hour(one.last_transition_time)
        if one.type in table.lost.conditions:
            yield Told(node.metadata.name, one.type, hour, one.status == "True", table.lost.kind)
        elif one.type in table.failed.conditions:
            kind = table.failed.conditions[one.type]
            yield Told(node.metadata.name, one.type, hour, one.status != "True", kind)


def _hour(time: datetime) -> float:
    return time.timestamp() / SECONDS_PER_HOUR


@lru_cache(maxsize=1)
def _table() -> _Conditions:
    return msgspec.convert(tomllib.loads(_TABLE.read_text(encoding="utf-8")), type=_Conditions)
