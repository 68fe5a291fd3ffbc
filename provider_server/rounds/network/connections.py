"""Connections to an HTTP port: who has a place, for how long, and who loses it when places are short.

    accepted ─▶ handshake ─▶ header ─▶ body ─▶ answer ─▶ idle ─▶ header …
    └ a stranger, counted by its address ──┴▶ known, counted by its key

Where places are short, a newcomer is let in and an older connection cut: of whoever has the most, the oldest that is
not being answered. So a thousand silent connections from one address push out one another, and honest callers, who say
at once what they want, are answered. A stranger keeps its place for `lasts_s` all the same; where no older one is at
its address, the newcomer is cut, which costs next to nothing. Those who have proved who they are have places of their
own, which strangers cannot take. The handshake and the header have `begin_s`; a body has that and the time that it
takes at `least_bytes_per_s`. An idle connection ends with uvicorn's keep-alive.

Where the other side ends the last connection of a key, `Places.gone` is told the key, on a thread of its own: a program
that was killed has gone at once, although it could not say so.

Not promised: a place for a stranger from whose address `of_one_address` others come every `lasts_s`; anything about a
caller that does not take its answer, beyond the places that it holds.
"""

import asyncio
import ssl
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv6Network
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from federation.base.web.guard import Asgi, Receive, Scope, Send

CONNECTION = "pharoah.connection"  # where a request's scope has it


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a port bears: connections of strangers, of each address among them, of those who are known, of each key."""

    strangers: int = 512
    of_one_address: int = 128
    known: int = 4096
    of_one_key: int = 8
    lasts_s: float = 1.0
    begin_s: float = 10.0
    least_bytes_per_s: int = 16_384


DEFAULT_LIMITS = ConnectionLimits()


class Stage(Enum):
    """What a connection waits for; a header also where it is idle."""

    HANDSHAKE = "handshake"
    HEADER = "header"
    BODY = "body"
    ANSWER = "answer"


class Share:
    """So many places, and so many of them for each owner, who keeps each for `lasts_s`. Used on one event loop."""

    def __init__(self, most: int, of_one: int, lasts_s: float = 0.0) -> None:
        self._most = most
        self._of_one = of_one
        self._lasts_s = lasts_s
        self._held: dict[Hashable, dict[TimedProtocol, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count(self, owner: Hashable) -> int:
        """How many places an owner has."""
        return len(self._held.get(owner, ()))

    def take(self, owner: Hashable, connection: "TimedProtocol") -> None:
        """A place for a newcomer; if there was none left, another connection is cut, or itself."""
        held = self._held.setdefault(owner, {})
        held[connection] = None
        self._count += 1
        if len(held) > self._of_one:
            self._make_room(held, connection)
        elif self._count > self._most:
            self._make_room(max(self._held.values(), key=len), connection)

    def give_back(self, owner: Hashable, connection: "TimedProtocol") -> None:
        """The place is free. Twice is harmless."""
        held = self._held.get(owner, {})
        if connection in held:
            del held[connection]
            self._count -= 1
        if not held:
            self._held.pop(owner, None)

    def _make_room(self, held: "dict[TimedProtocol, None]", newcomer: "TimedProtocol") -> None:
        oldest = _oldest(held, newcomer)
        is_due = newcomer.since_s - oldest.since_s >= self._lasts_s
        (oldest if is_due else newcomer).cut()


def _oldest(held: "dict[TimedProtocol, None]", newcomer: "TimedProtocol") -> "TimedProtocol":
    """Of one owner's connections the oldest that is not being answered, or the oldest."""
    return min((one for one in held if one is not newcomer), key=lambda one: one.stage is Stage.ANSWER)


class Places:
    """The places of one port; `gone` is told whose last connection was ended by its own side."""

    def __init__(self, limits: ConnectionLimits, gone: Callable[[bytes], None] = lambda key: None) -> None:
        self.gone = gone
        self.strangers = Share(limits.strangers, limits.of_one_address, limits.lasts_s)
        self.known = Share(limits.known, limits.of_one_key)


def subscriber(peer: Any) -> str:
    """What one subscriber has of addresses: the address itself, the first 64 bits of one of IPv6; empty without one.

    >>> subscriber(("192.0.2.7", 4711)), subscriber(("2001:db8::7", 4711, 0, 0)), subscriber("")
    ('192.0.2.7', '2001:db8::/64', '')
    """
    host = str(peer[0]).partition("%")[0] if isinstance(peer, tuple) else ""
    return str(IPv6Network((host, 64), strict=False)) if ":" in host else host


class TimedProtocol(H11Protocol):
    """uvicorn's connection with a place and deadlines. TLS begins here, so that the handshake has both too."""

    def __init__(
        self, *, places: Places, limits: ConnectionLimits, tls: ssl.SSLContext | None, **uvicorns: Any
    ) -> None:
        super().__init__(**uvicorns)
        self.app = self._naming_itself(self.app)
        self.stage = Stage.HANDSHAKE
        self.key = b""
        self.since_s = 0.0
        self._places = places
        self._limits = limits
        self._tls = tls
        self._address = ""
        self._line: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""
        self._is_gone = False
        self._deadline: asyncio.TimerHandle | None = None
        self._body_since_s = 0.0
        self._body_bytes = 0

    def prove(self, key: bytes) -> None:
        """Whoever is at the other end holds this key: its connection is a stranger's no longer."""
        if not self._is_gone and not self.key:
            self._places.strangers.give_back(self._address, self)
            self.key = key
            self._places.known.take(key, self)

    @property
    def is_only_one(self) -> bool:
        """Whether its key has no other connection."""
        return self._places.known.count(self.key) == 1

    def cut(self) -> None:
        """Ends the connection at once, without a word."""
        self._leave()
        if self._handshake is not None:
            self._handshake.cancel()
        for line in (self.transport, self._line):
            if line is not None:
                line.abort()

    # ---- what the event loop and uvicorn call ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """The connection was accepted, and nothing came yet."""
        self._line = transport
        self.since_s = self.loop.time()
        self._address = subscriber(transport.get_extra_info("peername"))
        self._places.strangers.take(self._address, self)
        if self._is_gone:
            return
        if self._tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._secured(transport, self._tls))

    def data_received(self, data: bytes) -> None:
        """Some of a request came, perhaps before this side knows that the handshake is over."""
        if self.transport is None:
            self._early += data
            return
        self._body_bytes += len(data)
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """An answer was given, and the next request may be there already."""
        super().on_response_complete()
        self._look()
        if self.stage is Stage.HEADER and not self.conn.trailing_data[0]:
            self._set_deadline(None)  # idle, which is uvicorn's business

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has gone, or was cut off."""
        has_left = not self._is_gone
        self._leave()
        if has_left and self.key and not self._places.known.count(self.key):
            self.loop.run_in_executor(None, self._places.gone, self.key)
        if self.transport is not None:
            super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """It was idle for so long that this side ends it."""
        self._leave()
        super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """The server ends."""
        if self.transport is None:
            self.cut()
        else:
            super().shutdown()

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _naming_itself(self, app: Asgi) -> Asgi:
        async def named(scope: Scope, receive: Receive, send: Send) -> None:
            scope[CONNECTION] = self
            await app(scope, receive, send)

        return named

    async def _secured(self, line: asyncio.Transport, tls: ssl.SSLContext) -> None:
        within_s = self._limits.begin_s
        with suppress(OSError):  # it was no TLS, took too long, or the other side has gone
            secure = await self.loop.start_tls(
                line, self, tls, server_side=True, ssl_handshake_timeout=within_s, ssl_shutdown_timeout=within_s
            )
            if secure is not None and not self._is_gone:
                self._begin(secure)
                return
        self.cut()

    def _begin(self, transport: asyncio.Transport) -> None:
        self.stage = Stage.HEADER
        super().connection_made(transport)
        self._set_deadline(self._limits.begin_s)
        if self._early:
            self.data_received(self._early)

    def _look(self) -> None:
        """How far the request is, and what time there is for the next step."""
        theirs = self.conn.their_state
        now = {h11.IDLE: Stage.HEADER, h11.SEND_BODY: Stage.BODY}.get(theirs, Stage.ANSWER)
        if now is self.stage and self._deadline is not None:
            return
        self.stage = now
        if now is Stage.BODY:
            self._body_since_s, self._body_bytes = self.loop.time(), 0
        self._set_deadline(None if now is Stage.ANSWER else self._limits.begin_s)

    def _set_deadline(self, within_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if within_s is None else self.loop.call_later(within_s, self._too_late)

    def _too_late(self) -> None:
        """The time of a step is over; a body has more for what it has brought."""
        end_s = self._body_since_s + self._limits.begin_s + self._body_bytes / self._limits.least_bytes_per_s
        left_s = end_s - self.loop.time()
        if self.stage is Stage.BODY and left_s > 0:
            self._set_deadline(left_s)
        else:
            self.cut()

    def _leave(self) -> None:
        """Gives its place back."""
        self._is_gone = True
        self._set_deadline(None)
        self._places.strangers.give_back(self._address, self)
        self._places.known.give_back(self.key, self)
