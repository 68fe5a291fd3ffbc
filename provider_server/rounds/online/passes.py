"""Passes at the provider: issued by name, metered, in the week before; spent without a name, in theirs.

- A member gets the batches that the directory states for a week, and no more, over all processes of the provider.
- A pass is good in its week, and five minutes before and after by this clock, and once. It is written as spent before
  its question is answered. Those that come while others are being written are written together, in one transaction.
- Nothing that is kept, counted or logged tells which pass was whose: an issuer does not know it.

Not promised: that a pass is refused after a copy of the store was put back in which it is not spent, or after a
power cut in the moment when it was.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from crypto.codec import digest, encode
from crypto.errors import PassRefused, TooManyRequests
from crypto.ids import EncodedElement, EncodedProof, TenantId
from crypto.ristretto import Element, RandomBytes
from crypto.voprf import KeyPair
from federation.protocol.pass_messages import AnonymousCheck, PassAnswer, PassNonce, PassRequest
from federation.protocol.passes import check_pass, issue, week_key, week_of
from federation.protocol.versions import asked_in
from provider_server.rounds.provider import Provider
from provider_server.rounds.store.store import reporting

LISTED_WEEKS = 26
LIST_AGAIN_WEEKS = 13  # so that a tenant that was away for long still finds the week to come
SLACK_S = 300.0
MOST_WAITING = 1024

Spend = Callable[[Sequence[tuple[int, PassNonce]]], Sequence[bool]]
Count = Callable[[str, int], None]


def pass_seed(secret: bytes) -> bytes:
    """The seed of all keys of passes, derived from a secret of the provider's home."""
    return hmac.digest(secret, b"pharoah/pass-seed/1\0", hashlib.sha256)


def list_keys(provider: Provider, seed: bytes, batches: int, now_s: float) -> None:
    """Adds the keys of the weeks to come to the directory, unless it has those of enough weeks. For one process."""
    week = week_of(now_s)
    newest = max(provider.directory.passes, default=week)
    if newest < week + LIST_AGAIN_WEEKS:
        weeks = range(newest + 1, max(newest, week) + 1 + LISTED_WEEKS)
        provider.members.list_pass_keys(newest + 1, batches, [week_key(seed, each).public for each in weeks])


class Passes:
    """Issues and redeems. `issue` blocks, `spend` runs on the event loop; `count` is told what happened, how often."""

    def __init__(
        self,
        provider: Provider,
        seed: bytes,
        now_s: Callable[[], float],
        random_bytes: RandomBytes,
        count: Count = lambda _event, _passes: None,
    ) -> None:
        self._provider = provider
        self._now_s = now_s
        self._random_bytes = random_bytes
        self._count = count
        self._key: Callable[[int], KeyPair] = lru_cache(8)(lambda week: week_key(seed, week))
        self._till = Till(provider.store.passes.spend, MOST_WAITING)
        self._forgotten = 0

    def issue(self, tenant: TenantId, asked: PassRequest) -> bytes:
        """An encoded PassAnswer; PassRefused for another week than the next one, QuotaExceeded beyond the quota."""
        week = week_of(self._now_s()) + 1
        if asked.week != week:
            raise PassRefused("passes are issued for the week to come", hint="compare the clock of this machine")
        listed = self._provider.directory.passes.get(week)
        if listed is None:
            raise PassRefused("no key of passes is listed for that week", hint="the provider must list it first")
        blinded = [Element.decode(element) for element in asked.elements]
        named = digest(b"".join(asked.elements))
        self._provider.store.passes.issue(tenant, week, named, listed.batches)
        evaluation = issue(self._key(week).secret, blinded, self._random_bytes)
        self._count("issued", len(blinded))
        elements = tuple(EncodedElement(element.encoded) for element in evaluation.elements)
        return encode(PassAnswer(elements, EncodedProof(evaluation.proof.encode())), asked_in.get())

    async def spend(self, asked: AnonymousCheck) -> None:
        """Spends the pass of a question; PassRefused if it is not good, or not for the first time."""
        try:
            await self._spend(asked)
        except PassRefused:
            self._count("refused", 1)
            raise
        self._count("redeemed", 1)

    async def _spend(self, asked: AnonymousCheck) -> None:
        now_s = self._now_s()
        if asked.week not in (week_of(now_s - SLACK_S), week_of(now_s + SLACK_S)):
            raise PassRefused("the pass is of another week", hint="compare the clock of this machine")
        nonce = check_pass(asked.shown, self._provider.directory.provider, asked.week, self._key(asked.week))
        if not await self._till.spend(asked.week, nonce):
            raise PassRefused("the pass was spent before")

    def forget(self) -> None:
        """Deletes what is of weeks that are over; once a week there is something to do."""
        before = week_of(self._now_s() - SLACK_S)
        if self._forgotten < before:
            self._provider.store.passes.forget(before)
            self._forgotten = before

    def close(self) -> None:
        """Ends the thread that writes."""
        self._till.close()


class Till:
    """Writes down what is spent, many at a time: all that came while the last ones were written. Used on one loop."""

    def __init__(self, spend: Spend, most: int) -> None:
        self._spend = spend
        self._most = most
        self._waiting: list[tuple[tuple[int, PassNonce], asyncio.Future[bool]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="passes")

    async def spend(self, week: int, nonce: PassNonce) -> bool:
        """Whether it was not spent before, once that is written; TooManyRequests where too many wait."""
        if len(self._waiting) >= self._most:
            raise TooManyRequests("too many anonymous checks wait", hint="try again in a second with another pass")
        loop = asyncio.get_running_loop()
        written: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(((week, nonce), written))
        if self._writing is None:
            self._writing = loop.create_task(self._write())
        return await written

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._write_batch([spent for spent, _ in batch], [written for _, written in batch])
        finally:
            self._writing = None

    async def _write_batch(
        self, spent: Sequence[tuple[int, PassNonce]], written: Sequence[asyncio.Future[bool]]
    ) -> None:
        def write() -> Sequence[bool]:
            with reporting():
                return self._spend(spent)

        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, write)
        except Exception as error:  # noqa: BLE001  # each question hears of it, and a bug is logged where it is answered
            for future in written:
                if not future.done():
                    future.set_exception(error)
            return
        for future, is_new in zip(written, results, strict=True):
            if not future.done():  # who asked may have gone
                future.set_result(is_new)

    def close(self) -> None:
        """Ends its thread."""
        self._thread.shutdown(wait=False)
