"""Links of a network, and file servers, that went away and came back soon: a job survives that, as at a boot.

>>> list(lasting([b"[ 5.0] ice 0000:31:00.0 eth2: NIC Link is Down", b"[ 9.1] ice 0000:31:00.0 eth2: NIC Link is up"]))
[b'', b'[ 9.1] ice 0000:31:00.0 eth2: NIC Link is up']

A link is known by its driver, bus address, name and port, and by its host; a server of NFS or Lustre, for which a
process waits longer, by its name. Lines stay as they are, in their order and
under their numbers; only one that tells of such a link's going down becomes an empty one. It stays where something
else failed between that and a while after the link came up.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, joined, lines
from tenant_client.doctor.sources.cues import match_line
from tenant_client.doctor.sources.prefixes import place, stamp

SURVIVED_S = 60.0  # RDMA tries again for half a minute, and TCP for longer
_SERVER_S = 600.0
_MOST_HELD = 1000
_LINK = re.compile(
    r"(?P<link>(?:\b[A-Za-z][\w.-]* )?(?:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d )?(?:\(slave )?[\w.@-]+\)?:?"
    r"(?: [Pp]ort:? ?\d+)?):? (?:\w+: \w+ )?(?:NIC )?[Ll]ink (?:is |status (?:definitely )?)?"
    r"(?P<state>[Dd]own|DOWN|[Uu]p|UP|ACTIVE)\b",
    re.ASCII,
)
_SERVER = re.compile(
    r"(?:LustreError: \S+: |Lustre: )?(?P<link>nfs: server \S+|(?<=: )\w[\w-]+-(?:osc|mdc|mgc)[\w-]*):?"
    r" (?P<state>not responding, still|OK\b|operation \w+ to node \S+ failed: rc = -107|Connection restored)",
    re.ASCII,
)
_OF_SERVERS = re.compile(r" nfs: |-(?:osc|mdc|mgc)")
_OF_A_SERVER = (b"nfs: ", b"Lustre")
_DOWN = re.compile(r"down|Down|DOWN|not responding|operation")
_UPTIME = re.compile(r"\[ *(\d{1,12}\.\d+)\]", re.ASCII)
_KMSG = re.compile(r"\d+,\d+,(\d{1,18}),", re.ASCII)
_CLOCK = re.compile(r"\b(\d\d):(\d\d):(\d\d)\b", re.ASCII)
_CAUSES = ("kernel", "nccl", "job")


class _Held(NamedTuple):
    """A line that waits, when it was written, and of a link's line its name and whether the link went down."""

    line: bytes
    at_s: float | None
    link: str
    is_down: bool
    is_failure: bool


def without_survived(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> CappedReader:
    """The same log without links that came up again."""
    return joined(lasting(line for _, line in lines(reader, limits)), reader, limits)


def lasting(log: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a log, empty those of links that went down and came up again."""
    held: deque[_Held] = deque()
    for line in log:
        if not held and b"ink " not in line and not any(word in line for word in _OF_A_SERVER):
            yield line
            continue
        held.append(_held(line))
        while held and (not held[0].is_down or _is_decided(held)):
            yield _decided(held)
    while held:
        yield _decided(held)


def _held(line: bytes) -> _Held:
    text = line.decode("utf-8", "replace")
    found = _LINK.search(text) if b"ink " in line else None
    found = found or (_SERVER.search(text) if any(word in line for word in _OF_A_SERVER) else None)
    if found is None:
        return _Held(line, _seconds(text), "", is_down=False, is_failure=match_line(text, _CAUSES) is not None)
    link = f"{place(text).host} {found['link']}"
    return _Held(line, _seconds(text), link, is_down=_DOWN.match(found["state"]) is not None, is_failure=False)


def _is_decided(held: deque[_Held]) -> bool:
    return len(held) > _MOST_HELD or _apart(held[0], held[-1]) > 2 * _survived_s(held[0])


def _decided(held: deque[_Held]) -> bytes:
    first = held.popleft()
    return b"" if first.is_down and _is_survived(first, held) else first.line


def _is_survived(down: _Held, later: Iterable[_Held]) -> bool:
    """Whether the link came up soon, and nothing failed until a while after."""
    up = next((one for one in later if one.link == down.link and not one.is_down), None)
    if up is None or _apart(down, up) > _survived_s(down):
        return False
    return not any(one.is_failure and _apart(up, one) <= SURVIVED_S for one in later)


def _survived_s(down: _Held) -> float:
    return _SERVER_S if _OF_SERVERS.search(down.link) else SURVIVED_S


def _apart(one: _Held, other: _Held) -> float:
    """Seconds from one to the other, none where a line tells no time."""
    return 0.0 if one.at_s is None or other.at_s is None else other.at_s - one.at_s


def _seconds(text: str) -> float | None:
    """A time by whichever clock a line has; only those of one log are compared."""
    if (at_s := stamp(text)) is not None:
        return at_s
    if uptime := _UPTIME.search(text):
        return float(uptime[1])
    if kmsg := _KMSG.match(text):
        return int(kmsg[1]) / 1e6
    clock = _CLOCK.search(text)
    return 3600.0 * int(clock[1]) + 60.0 * int(clock[2]) + int(clock[3]) if clock else None
