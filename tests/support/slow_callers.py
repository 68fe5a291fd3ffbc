"""Callers that connect to a port and then say nothing, half of something, or a byte at a time.

`holding` opens many such connections from one address and keeps them; it counts those that the server ends. They live
on an event loop in a thread of their own, so that whoever is honest meanwhile calls from another thread or process.

    with holding(address, "half a header", 1000, "127.0.0.2") as attack:
        ...  # honest calls
        assert attack.cut == 1000
"""

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType

PATH = "/v1/fleet/pull-messages"
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: provider.example\r\nContent-Type: application/protobuf\r\n"
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01"
PAUSE_S = 0.3  # between bytes that drip
OPEN_S = 60.0


@dataclass(frozen=True)
class Way:
    """How a caller is slow: what it says at once, and what it then says a byte at a time."""

    over_tls: bool
    says: bytes = b""
    drips: bytes = b""


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "silent": Way(over_tls=False),
        "half a handshake": Way(over_tls=False, says=CLIENT_HELLO),
        "a handshake and no more": Way(over_tls=True),
        "half a header": Way(over_tls=True, says=HEAD.encode()),
        "a dripping header": Way(over_tls=True, says=HEAD.encode(), drips=b"X-A: " + b"a" * 1000),
        "half a body": Way(over_tls=True, says=f"{HEAD}Content-Length: 1000\r\n\r\n".encode() + b"x"),
        "a dripping body": Way(over_tls=True, says=f"{HEAD}Content-Length: 1000\r\n\r\n".encode(), drips=b"x" * 1000),
    }
)


@dataclass
class Attack:
    """Connections that are held; `cut` counts those that the server has ended, `held_s` how long each lasted."""

    address: str
    way: Way
    source: str
    again: bool
    opened: int = 0
    held_s: list[float] = field(default_factory=list)

    @property
    def cut(self) -> int:
        """How many the server has ended."""
        return len(self.held_s)

    def wait_until(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Whether something came to be so in time."""
        end_s = time.monotonic() + within_s
        while not holds() and time.monotonic() < end_s:
            time.sleep(0.05)
        return holds()

    async def hold(self) -> None:
        """One connection, until the server ends it; then another one, if the attacker goes on."""
        while True:
            began_s = time.monotonic()
            with suppress(OSError, EOFError):
                await self._hold_one()
            self.held_s.append(time.monotonic() - began_s)
            if not self.again:
                return

    async def _hold_one(self) -> None:
        host, _, port = self.address.rpartition(":")
        tls = _trusting() if self.way.over_tls else None
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, local_addr=(self.source, 0))
        self.opened += 1
        try:
            writer.write(self.way.says)
            dripping = asyncio.create_task(self._drip(writer))
            try:
                await reader.read()
            finally:
                dripping.cancel()
        finally:
            writer.transport.abort()

    async def _drip(self, writer: asyncio.StreamWriter) -> None:
        for at in range(len(self.way.drips)):
            await asyncio.sleep(PAUSE_S)
            writer.write(self.way.drips[at : at + 1])


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@contextmanager
def holding(address: str, way: str, many: int, source: str, *, again: bool = False) -> Iterator[Attack]:
    """So many connections from `source`, once each has been opened; whoever is cut off comes again if it is `again`."""
    attack = Attack(address, WAYS[way], source, again)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    held = [asyncio.run_coroutine_threadsafe(attack.hold(), loop) for _ in range(many)]
    try:
        assert attack.wait_until(lambda: attack.opened + attack.cut >= many, OPEN_S), attack.opened
        yield attack
    finally:
        for one in held:
            one.cancel()
        asyncio.run_coroutine_threadsafe(_all_ended(), loop).result(OPEN_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _all_ended() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(PAUSE_S)  # in which the sockets of what was given up are closed
