"""Who is woken when a tenant has a new hint: small things on one event loop, for ten thousand may wait."""

import asyncio
from collections.abc import Callable

from crypto.errors import TooManyRequests
from crypto.ids import TenantId


class Bell:
    """Wakes one watch: at every ring, and when its session expires. Sized for 10,000 idle streams."""

    __slots__ = ("_is_rung", "_waiting", "end_s", "session_until_s")

    def __init__(self, end_s: float, session_until_s: int) -> None:
        self.end_s = end_s  # by the clock of the loop
        self.session_until_s = session_until_s  # as the session says it
        self._is_rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Lets `rung` return, now or at its next call."""
        self._is_rung = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def rung(self) -> None:
        """Returns when it was rung since the last time."""
        if not self._is_rung:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        self._is_rung = False


class Bells:
    """The bells of all watches, by tenant. Everything but `ring` runs on the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bells: dict[TenantId, set[Bell]] = {}

    def hang(self, tenant: TenantId, left_s: float, session_until_s: int) -> Bell:
        """A bell for a new watch; TooManyRequests if the tenant has too many."""
        self._loop = asyncio.get_running_loop()
        bells = self._bells.setdefault(tenant, set())
        if len(bells) >= self._most:
            raise TooManyRequests(f"this tenant already has {self._most} watches", hint="end one first")
        bell = Bell(self._loop.time() + left_s, session_until_s)
        bells.add(bell)
        return bell

    def take_down(self, tenant: TenantId, bell: Bell) -> None:
        """Its watch is over."""
        self._bells[tenant].discard(bell)
        if not self._bells[tenant]:
            del self._bells[tenant]

    def ring(self, tenant: TenantId) -> None:
        """From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ring, tenant)

    def ring_where(self, is_over: Callable[[TenantId, Bell], bool]) -> None:
        """Lets those look around to whom it applies."""
        for tenant, bells in self._bells.items():
            for bell in bells:
                if is_over(tenant, bell):
                    bell.ring()

    def _ring(self, tenant: TenantId) -> None:
        for bell in self._bells.get(tenant, ()):
            bell.ring()
