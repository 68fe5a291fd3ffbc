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
from typing import Annotated, Any, NamedTuple

import msgspec

from crypto.errors import DecodeError
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.foreign import MALFORMED

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


def outages_told(content: bytes, left_out: list[str]) -> list[tuple[str, float, float | None, str]]:
    """Outages (node, start and end in hours, kind) in order; None for the end of one that lasts.

    What cannot be read is told in `left_out`; DecodeError where nothing can.
    """
    open_since: dict[tuple[str, str], tuple[float, str]] = {}
    rows: list[tuple[str, float, float | None, str]] = []
    for one in sorted(_told(content, left_out), key=lambda one: (one.hour, one.is_healthy)):
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


def _told(content: bytes, left_out: list[str]) -> list[Told]:
    told: list[Told] = []
    try:
        parts = [part for document in documents(content, left_out) for part in _parts(document)]
    except MALFORMED as error:
        raise DecodeError(str(error)) from error
    for place, part in enumerate(parts, start=1):
        try:
            told += _of_part(part)
        except (msgspec.ValidationError, DecodeError) as error:
            left_out.append(f"event {place}: {error.what if isinstance(error, DecodeError) else error}")
    if len(left_out) == len(parts) > 0:
        raise DecodeError(left_out[0].split(": ", 1)[1])
    return told


def documents(content: bytes, left_out: list[str]) -> list[object]:
    """The JSON documents of a text: one, or one on each line. A line that is none is told in `left_out`."""
    try:
        return [msgspec.json.decode(content)]
    except msgspec.DecodeError:
        found: list[object] = []
        bad: list[str] = []
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                found += [msgspec.json.decode(line)] if line.strip() else []
            except msgspec.DecodeError as error:
                bad.append(f"line {number}: {error}")
        if not found:
            raise
        left_out += bad
        return found


def _parts(document: object) -> Iterator[object]:
    """Events and nodes out of lists and what they are wrapped in, with the time of that where they have none."""
    if isinstance(document, list):
        for one in document:
            yield from _parts(one)
        return
    keys = _keys(document)
    inside = next((keys[name] for name in _WRAPPED if isinstance(keys.get(name), dict | list)), None)
    if "nodename" in keys:
        yield keys
    elif isinstance(several := keys.get("events", keys.get("items")), list):
        yield from _parts(several)
    elif inside is not None:
        when = keys.get("createdat", keys.get("time"))
        when = when.get("$date") if isinstance(when, dict) else when
        for part in _parts(inside):
            yield {"generatedtimestamp": when, **_keys(part)} if when else part
    else:
        yield document


def _keys(document: object) -> dict[str, Any]:
    told = document.items() if isinstance(document, dict) else ()
    return {str(name).lower().replace("_", ""): one for name, one in told}


def _of_part(part: object) -> Iterator[Told]:
    keys = _keys(part)
    if "nodename" in keys:
        yield from _of_event(msgspec.convert(keys, type=_HealthEvent))
    elif isinstance(part, dict) and ("metadata" in keys or "object" in keys):
        one = part.get("object", part)
        if isinstance(one, dict) and one.get("kind", "Node") != "Node":
            raise DecodeError(f"{FORMS}, but an object of the kind {one['kind']}")
        yield from _of_node(msgspec.convert(one, type=_Node))
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
