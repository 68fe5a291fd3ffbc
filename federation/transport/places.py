"""Places for callers whom a server must wait for, and who loses one when they are short. On one event loop, no gRPC.

A caller that is silent, slow to send or slow to read holds a place in a `Room` and nothing else. A room that is full is
no reason to refuse a newcomer: whoever is worst gives up its place to it. Strangers go before callers that are known,
then those go of the address that holds the most places, and of these the slowest: who has sent the least per second, or
has been there longest. So honest callers, who send at once, are let in however many are silent, and a thousand
connections from one address push out one another. A place lasts as long as its room says and no longer.

Known are those who have introduced themselves (`federation.transport.introductions`); among themselves they are counted
by key. The first 64 bits of an address of IPv6 are counted as one, since one subscriber commonly has them all.

Not promised: places for strangers against somebody who sends faster than they do, for as long as they send.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Network
from types import TracebackType
from typing import Self
from urllib.parse import unquote

from crypto.ids import VerifyKey

TICK_S = 0.25


class NoPlace(Exception):
    """Every place of a kind is taken, or was needed for somebody else."""


class NoTime(Exception):
    """It took too long."""


class Caller:
    """Whoever makes a call. `introduced` tells the key if the server knows it: asked once, and only if need be.

    `is_being_told` from when something is said to it until it has taken that.
    """

    __slots__ = ("_introduced", "_key", "is_being_told", "peer")

    def __init__(self, peer: str, introduced: Callable[[], VerifyKey | None]) -> None:
        self.peer = peer
        self.is_being_told = False
        self._introduced: Callable[[], VerifyKey | None] | None = introduced
        self._key: VerifyKey | None = None

    @property
    def key(self) -> VerifyKey | None:
        """The key of a caller that is known, None for a stranger."""
        if self._introduced is not None:
            self._key, self._introduced = self._introduced(), None
        return self._key


@lru_cache(maxsize=16_384)
def address(peer: str) -> str:
    """What the places of a peer are counted by."""
    return subscriber(host_and_port(peer)[0])


def subscriber(host: str) -> str:
    """What one subscriber has of addresses: the address itself, the first 64 bits of one of IPv6."""
    return str(IPv6Network((host, 64), strict=False)) if ":" in host else host


def host_and_port(peer: str) -> tuple[str, int]:
    """Of gRPC's name for a peer: `ipv4:192.0.2.7:4711` or `ipv6:%5B2001:db8::7%5D:4711`."""
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return host.strip("[]").partition("%")[0], int(port or 0)


@dataclass(eq=False, slots=True)
class Place:
    """One place, taken by the current task from `with` to its end. NoPlace or NoTime is raised in it if it is lost."""

    room: "Room"
    caller: Caller
    address: str
    task: "asyncio.Task[object] | None"
    since_s: float
    sent_bytes: int = 0
    is_kept: bool = False  # from when something has begun that cannot be cut short
    lost: NoPlace | NoTime | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.room.give_back(self)
        if self.lost is not None and self.task is not None and isinstance(error, asyncio.CancelledError):
            self.task.uncancel()
            raise self.lost from error


class Room:
    """So many places, each for `lasts_s` at most, and no more than `for_strangers` of them for strangers."""

    def __init__(self, name: str, places: int, lasts_s: float, for_strangers: int | None = None) -> None:
        self._name = name
        self._most = places
        self._lasts_s = lasts_s
        self._for_strangers = places if for_strangers is None else for_strangers
        self._places: dict[Place, None] = {}
        self._by_address: defaultdict[str, dict[Place, None]] = defaultdict(dict)
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._places)

    def place(self, caller: Caller) -> Place:
        """A place for the current task, somebody else's if need be; NoPlace where nobody can give up one for it."""
        if len(self._places) >= self._most or self._is_full_for(caller):
            self._make_room(caller)
        loop = asyncio.get_running_loop()
        taken = Place(self, caller, address(caller.peer), asyncio.current_task(), loop.time())
        self._places[taken] = self._by_address[taken.address][taken] = None
        if self._timer is None:
            self._timer = loop.call_later(TICK_S, self._tick)
        return taken

    def give_back(self, place: Place) -> None:
        """The place is free. Twice is harmless."""
        if place in self._places:
            del self._places[place], self._by_address[place.address][place]
            if not self._by_address[place.address]:
                del self._by_address[place.address]

    def _is_full_for(self, caller: Caller) -> bool:
        if len(self._places) < self._for_strangers or caller.key is not None:
            return False
        return sum(place.caller.key is None for place in self._places) >= self._for_strangers

    def _make_room(self, newcomer: Caller) -> None:
        slowest = self._slowest_stranger() or (self._slowest_known() if newcomer.key is not None else None)
        if slowest is None:
            raise NoPlace(f"too many {self._name}")
        self._end(slowest, NoPlace(f"too many {self._name}, of which this is the slowest"))

    def _slowest_stranger(self) -> Place | None:
        for places in sorted(self._by_address.values(), key=len, reverse=True):
            strangers = [place for place in places if not place.is_kept and place.caller.key is None]
            if strangers:
                return _slowest(strangers)
        return None

    def _slowest_known(self) -> Place | None:
        known = [place for place in self._places if not place.is_kept]
        if not known:
            return None
        fullest, _ = Counter(place.caller.key for place in known).most_common(1)[0]
        return _slowest([place for place in known if place.caller.key == fullest])

    def _tick(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for place in [place for place in self._places if loop.time() - place.since_s >= self._lasts_s]:
            if not place.is_kept:
                self._end(place, NoTime(f"cut off after {self._lasts_s:g} s among the {self._name}"))
        if self._places:
            self._timer = loop.call_later(TICK_S, self._tick)

    def _end(self, place: Place, lost: NoPlace | NoTime) -> None:
        self.give_back(place)
        place.lost = lost
        if place.task is not None:
            place.task.cancel()


def _slowest(places: Sequence[Place]) -> Place:
    now_s = asyncio.get_running_loop().time()
    return min(places, key=lambda place: place.sent_bytes / max(1.0, now_s - place.since_s))
