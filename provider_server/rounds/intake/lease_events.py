"""What happens to a lease, as a line of JSON: it begins, its planned end changes, it ends, or its job is requeued.

    {"event":"begin", "at": "2026-11-23T21:00:00Z", "lease": "0a…", "tenant": "3f…", "node_names": ["n1", "n2"]}
    {"event":"change", "until": "2026-11-25T00:00:00Z", "lease": "0a…"}
    {"event":"end", "at": "2026-11-24T03:30:00Z", "lease": "0a…"}

Times are RFC 3339 with a zone. No line tells how a job ended: outcomes are the tenant's.

    >>> decoded(b'{"event":"end", "at": "1970-01-02T00:00:00Z", "lease": "' + b"0a" * 16 + b'"}').at_h
    24.0
"""

from datetime import datetime
from typing import Annotated

import msgspec

from crypto.errors import PharoahError
from crypto.ids import LeaseId, TenantId
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.foreign import LATEST_S, MALFORMED

HexId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$", description="16 bytes in hexadecimal")]
Time = Annotated[datetime, msgspec.Meta(tz=True, description="RFC 3339 with a zone")]
MOST_NODES, MOST_LEVEL = 1 << 20, 1 << 10
# What may be raised of one object that is not as it should be: it is named and left out, and the others are taken.
FAULTS = (PharoahError, ArithmeticError, LookupError, TypeError, ValueError)
NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class BadLeases(PharoahError):
    """Leases, or what happened to them, cannot be recorded."""

    default_hint = "correct or remove the line"


class _OfLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag=str.lower):
    lease: HexId

    @property
    def lease_id(self) -> LeaseId:
        """The lease that it happened to."""
        return LeaseId(bytes.fromhex(self.lease))


class Begin(_OfLease, frozen=True):
    """A lease began. `until` is its planned end, if there is one; nodes are named, or counted with their context."""

    tenant: HexId
    at: Time
    until: Time | None = None
    node_names: tuple[NodeName, ...] = ()
    nodes: Annotated[int, msgspec.Meta(ge=0, le=MOST_NODES)] = 0
    context: str = ""
    level: Annotated[int, msgspec.Meta(ge=0, le=MOST_LEVEL)] = 0

    def __post_init__(self) -> None:
        if bool(self.node_names) == bool(self.nodes or self.context) or bool(self.nodes) != bool(self.context):
            raise ValueError("give either node_names, or context and nodes, at least 1")
        if len(set(self.node_names)) < len(self.node_names):
            raise ValueError("a node is named twice")
        if self.until is not None and self.until <= self.at:
            raise ValueError("until must be after at")

    @property
    def tenant_id(self) -> TenantId:
        """Whose lease it is."""
        return TenantId(bytes.fromhex(self.tenant))

    @property
    def at_h(self) -> float:
        """When, in hours since 1970."""
        return hours(self.at)


class Change(_OfLease, frozen=True):
    """The planned end of a lease is another one."""

    until: Time


class End(_OfLease, frozen=True):
    """A lease ended."""

    at: Time

    @property
    def at_h(self) -> float:
        """When, in hours since 1970."""
        return hours(self.at)


class Requeue(End, frozen=True):
    """A lease ended since its job waits for other nodes; there the job has a lease with another name."""


LeaseEvent = Begin | Change | End | Requeue
_DECODER: msgspec.json.Decoder[LeaseEvent] = msgspec.json.Decoder(LeaseEvent)


def decoded(line: bytes) -> LeaseEvent:
    """The event of a line; BadLeases where it is none."""
    try:
        return _DECODER.decode(line)
    except MALFORMED as error:
        raise BadLeases(str(error)) from error


def hours(time: datetime) -> float:
    """A time in hours since 1970; BadLeases for one that no lease has."""
    if time.timestamp() >= LATEST_S:
        raise BadLeases("a time after the year 2200")
    return time.timestamp() / SECONDS_PER_HOUR


def why(error: Exception) -> str:
    """What is wrong with an object, for a person."""
    return error.what if isinstance(error, PharoahError) else f"{type(error).__name__}: {error}"
