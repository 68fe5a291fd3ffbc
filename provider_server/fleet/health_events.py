"""Health of nodes as other tools tell it, read as outages: when a node stopped being healthy, and when it was again.

| told by | as | a failure is |
|---|---|---|
| NVSentinel | `HealthEvent`, or `HealthEvents`, in protobuf's JSON | what is fatal, until its check is healthy |
| Kubernetes, node-problem-detector | a Node, a list, a watch's event | a condition of `health.toml`, until it is over |

One JSON document, or one on each line. What is told again while it lasts is one outage, by node and check. Events that
this project itself sent (`agent` "pharoah") are left out, and so is what is not fatal.

Sources: NVIDIA/NVSentinel, data-models/protobufs/health_event.proto (264bfab8); Kubernetes 1.34, core/v1 NodeCondition.
"""

import tomllib
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from federation.runtime.clock import SECONDS_PER_HOUR

OURS = "pharoah"
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


class _HealthEvent(_Camel, frozen=True):
    node_name: str
    check_name: str
    generated_timestamp: datetime
    agent: str = ""
    component_class: str = ""
    is_fatal: bool = False  # what is false is left out in protobuf's JSON
    is_healthy: bool = False


class _HealthEvents(_Camel, frozen=True):
    events: tuple[_HealthEvent, ...]


class _Condition(_Camel, frozen=True):
    type: str
    status: str
    last_transition_time: datetime | None = None


class _Status(_Camel, frozen=True):
    conditions: tuple[_Condition, ...] | None = None


class _Name(_Camel, frozen=True):
    name: str


class _Node(_Camel, frozen=True):
    metadata: _Name
    status: _Status = _Status()


class _Nodes(_Camel, frozen=True):
    items: tuple[_Node, ...]


class _Watched(_Camel, frozen=True):
    object: _Node


class _Any(_Camel, frozen=True):
    """Which of these a document is, by the keys that it has."""

    node_name: msgspec.Raw = msgspec.Raw()
    events: msgspec.Raw = msgspec.Raw()
    items: msgspec.Raw = msgspec.Raw()
    object: msgspec.Raw = msgspec.Raw()


class _Conditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    class Lost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        conditions: tuple[str, ...]
        kind: str

    class Failed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        conditions: dict[str, str]

    lost: Lost
    failed: Failed


def outages_told(content: bytes) -> list[tuple[str, float, float | None, str]]:
    """Outages (node, start and end in hours, kind) in order; None for the end of one that lasts. MsgspecError."""
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
        msgspec.json.decode(content, type=msgspec.Raw)
        documents = [content]
    except msgspec.DecodeError:
        documents = [line for line in content.splitlines() if line.strip()]
    for document in documents:
        yield from _of_document(document)


def _of_document(document: bytes) -> Iterator[Told]:
    keys = msgspec.json.decode(document, type=_Any)
    if bytes(keys.events):
        yield from _of_events(msgspec.json.decode(document, type=_HealthEvents).events)
    elif bytes(keys.node_name):
        yield from _of_events((msgspec.json.decode(document, type=_HealthEvent),))
    elif bytes(keys.items):
        for node in msgspec.json.decode(document, type=_Nodes).items:
            yield from _of_node(node)
    elif bytes(keys.object):
        yield from _of_node(msgspec.json.decode(document, type=_Watched).object)
    else:
        yield from _of_node(msgspec.json.decode(document, type=_Node))


def _of_events(events: tuple[_HealthEvent, ...]) -> Iterator[Told]:
    for one in events:
        if one.agent != OURS and (one.is_fatal or one.is_healthy):
            kind = f"{one.component_class}/{one.check_name}".lstrip("/")
            yield Told(one.node_name, one.check_name, _hour(one.generated_timestamp), one.is_healthy, kind)


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
