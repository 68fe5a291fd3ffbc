"""The provider's online service, by `federation.protocol.services.ProviderMethod`.

- Directory, bundle and catalogue are public; the first two are signed, and the third is contained in the second. A
  caller that sends the SHA-256 of its copy gets an empty answer if nothing changed.
- Leases go only to the tenant that signed the request. The other calls need a session of the tenant.
- An outcome must name a hint that the tenant was sent, and its lease; any other is refused with the same message,
  whether the lease belongs to another tenant or does not exist.
- A check is answered on the event loop, from memory, by the newest bundle as of `refresh_s` ago. A new bundle replaces
  the old one in one step.
- An anonymous check needs no session: it brings a pass (`passes` beside it), names a context, and gets
  all that the bundle says of it, in an answer of one length. These two methods are served only where passes are issued.
- A watch needs no thread. It ends when its session expires or is revoked (within `refresh_s`), or when its tenant
  leaves the directory; the tenant resumes after the last number that it has.

Not promised: that the provider learns nothing from a check; it learns the tokens in it, and when; from an anonymous one
the context, the time and the address. A tenant can check against its own copy of the bundle instead
(`federation.protocol.check`).
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from crypto.codec import decode, digest, encode
from crypto.errors import DecodeError, NothingPublished, NotSignedIn, NotYours, PassRefused, PharoahError
from crypto.ids import Digest, TenantId, VerifyKey
from crypto.signing import open_signed_by
from federation.protocol.pass_messages import AnonymousCheck, PassRequest
from federation.protocol.round_messages import LADDER_LABELS, LeaseRequest
from federation.protocol.service_messages import CheckRequest, Hint, Notice, Outcome, SignIn, WatchRequest
from federation.protocol.services import PROVIDER, ProviderMethod
from federation.protocol.versions import asked_in
from federation.transport.admission import Awaited, ServerLimits
from federation.transport.introductions import parties
from federation.transport.server import Method, Server, serve
from provider_server.rounds.online.bundle_cache import Published, Shelf
from provider_server.rounds.online.notifier import Bell, Bells
from provider_server.rounds.online.passes import Passes
from provider_server.rounds.online.sessions import Buckets, Now, Rate, Sessions
from provider_server.rounds.provider import Provider
from provider_server.rounds.store.store import StoreFailed, reporting

logger = logging.getLogger(__name__)

T = TypeVar("T", SignIn, LeaseRequest)
TakeOutcome = Callable[[TenantId, Outcome], None]


class HintSource(Protocol):
    """Where hints come from. Threads share it."""

    def after(self, tenant: TenantId, number: int) -> Sequence[Notice]:
        """The hints and ends of `tenant` beyond `number`, in order; it may block for a moment."""

    def subscribe(self, callback: Callable[[TenantId], None]) -> None:
        """Calls `callback`, from any thread, whenever there is a new one for a tenant."""

    def look(self) -> None:
        """Calls it for those that other processes have made since the last look."""


@dataclass(frozen=True)
class OnlineLimits:
    """What the service bears in all, and what each tenant may do: calls, sign-ins, and watches at a time."""

    all: ServerLimits
    calls: Rate
    sign_ins: Rate
    watches: int
    refresh_s: float


DEFAULT_LIMITS = OnlineLimits(
    all=ServerLimits(
        silent=1024, waiting=64, unread=256, connections=16_384, connection_age_s=3600.0, tls_record_bytes=1024
    ),
    calls=Rate(per_s=50.0, burst=200),
    sign_ins=Rate(per_s=0.1, burst=10),
    watches=16,
    refresh_s=2.0,
)


def serve_online(
    provider: Provider,
    address: str,
    certificate_pem: bytes,
    key_pem: bytes,
    *,
    sessions: Sessions,
    hints: HintSource,
    take_outcome: TakeOutcome,
    limits: OnlineLimits = DEFAULT_LIMITS,
    passes: Passes | None = None,
) -> Server:
    """Serves at host:port until the server is stopped; anonymous checks only with `passes`."""
    service = OnlineService(provider, sessions, hints, take_outcome, limits, passes=passes)
    methods: dict[str, Method] = {
        ProviderMethod.DIRECTORY: service.directory,
        ProviderMethod.LEASES: service.leases,
        ProviderMethod.BUNDLE: service.bundle,
        ProviderMethod.CATALOGUE: service.catalogue,
        ProviderMethod.SIGN_IN: service.sign_in,
        ProviderMethod.OUTCOME: service.outcome,
    }
    awaited: dict[str, Awaited] = {}
    if passes is not None:
        methods[ProviderMethod.PASSES] = service.passes
        awaited[ProviderMethod.ANONYMOUS_CHECK] = service.anonymous_check
    return serve(
        PROVIDER,
        {path: _reporting(method) for path, method in methods.items()},
        address,
        certificate_pem,
        key_pem,
        limits.all,
        quick={ProviderMethod.CHECK: service.check},
        awaited=awaited,
        streams={ProviderMethod.WATCH: service.watch},
        beside=service.keep_fresh,
        known=parties(lambda: provider.directory),
    )


class OnlineService:
    """The methods. Those that block are called in threads; both checks, `watch` and `keep_fresh` on the loop."""

    def __init__(
        self,
        provider: Provider,
        sessions: Sessions,
        hints: HintSource,
        take_outcome: TakeOutcome,
        limits: OnlineLimits,
        now_s: Now = time.monotonic,
        *,
        passes: Passes | None = None,
    ) -> None:
        self._provider = provider
        self._passes = passes
        self._sessions = sessions
        self._hints = hints
        self._take_outcome = take_outcome
        self._refresh_s = limits.refresh_s
        self._calls = Buckets(limits.calls, now_s)
        self._sign_ins = Buckets(limits.sign_ins, now_s)
        self._bells = Bells(limits.watches)
        self._shelf = Shelf(provider.newest_bundle, lambda: provider.directory.provider)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="hints")
        hints.subscribe(self._bells.ring)
        self._refresh()

    # ---- for everybody -----------------------------------------------------------------------------------------------

    def directory(self, request: bytes) -> bytes:
        """The entries of the directory, unless the caller has them."""
        self._provider.members.refresh()
        update = self._provider.members.update()
        return _unless_known(request, update, digest(update))

    def bundle(self, request: bytes) -> bytes:
        """The newest bundle, signed, unless the caller has it."""
        published = self._shelf.refresh()
        return _unless_known(request, published.signed, published.etag)

    def catalogue(self, request: bytes) -> bytes:
        """The catalogue of the newest bundle, unless the caller has it."""
        published = self._shelf.refresh()
        return _unless_known(request, published.catalogue, digest(published.catalogue))

    # ---- for the tenant that has signed ------------------------------------------------------------------------------

    def leases(self, request: bytes) -> bytes:
        """Signed LeaseRequest in, signed LeaseGrants out."""
        self._calls.take(self._opened(LeaseRequest, request).tenant)
        return self._provider.grants(request)

    def sign_in(self, request: bytes) -> bytes:
        """Signed SignIn in, Session out."""
        asked = self._opened(SignIn, request)
        self._sign_ins.take(asked.tenant)
        return encode(self._sessions.grant(asked), asked_in.get())

    def _opened(self, kind: type[T], request: bytes) -> T:
        return open_signed_by(kind, request, self._verify_key)

    def _verify_key(self, tenant: TenantId) -> VerifyKey:
        if tenant not in self._provider.directory.by_id:
            self._provider.members.refresh()  # another process may just have enrolled it
        return self._provider.directory.verify_key(tenant)

    # ---- for the tenant of a session ---------------------------------------------------------------------------------

    def check(self, request: bytes) -> bytes:
        """CheckRequest in, CheckAnswer out."""
        asked = decode(CheckRequest, request)
        self._caller(asked.session)
        return self._published().answer(_labels(asked))

    def passes(self, request: bytes) -> bytes:
        """PassRequest in, PassAnswer out: a batch of passes for the week to come."""
        asked = decode(PassRequest, request)
        tenant = self._caller(asked.session)
        return self._issuer().issue(tenant, asked)

    async def watch(self, request: bytes) -> AsyncGenerator[bytes, None]:
        """WatchRequest in; the tenant's own hints and the ends of its leases, one by one, as they come."""
        asked = decode(WatchRequest, request)
        tenant, number = self._caller(asked.session), asked.after
        left_s, until_s = self._sessions.left_s(asked.session), self._sessions.until_s(asked.session)
        bell = self._bells.hang(tenant, left_s, until_s)
        del request, asked
        try:
            while not self._is_over(tenant, bell):
                for notice in await self._notices_after(tenant, number):
                    yield self._provider.signed_notice(notice)
                    number = notice.number
                await bell.rung()
        except StoreFailed as error:
            logger.warning("a watch ended; its tenant will resume it: %s", error.what)
        finally:
            self._bells.take_down(tenant, bell)

    def _is_over(self, tenant: TenantId, bell: Bell) -> bool:
        if self._sessions.is_revoked(tenant, bell.session_until_s) or not self._is_member(tenant):
            return True
        return asyncio.get_running_loop().time() >= bell.end_s

    async def _notices_after(self, tenant: TenantId, number: int) -> Sequence[Notice]:
        def look() -> Sequence[Notice]:
            with reporting():
                return self._hints.after(tenant, number)

        return await asyncio.get_running_loop().run_in_executor(self._threads, look)

    def outcome(self, request: bytes) -> bytes:
        """Outcome in, nothing out; NotYours unless the tenant was sent this hint of this lease."""
        said = decode(Outcome, request)
        tenant = self._caller(said.session)
        sent = self._hints.after(tenant, said.hint - 1)[:1]
        if [(one.number, one.lease) for one in sent if isinstance(one, Hint)] != [(said.hint, said.lease)]:
            raise NotYours(f"hint {said.hint} of this lease was not sent to you")
        self._take_outcome(tenant, msgspec.structs.replace(said, session=b""))
        return b""

    # ---- for whoever has a pass --------------------------------------------------------------------------------------

    async def anonymous_check(self, request: bytes) -> bytes:
        """AnonymousCheck in, a padded ContextPage out. No pass is spent before there is a bundle."""
        asked = decode(AnonymousCheck, request)
        published = self._published()
        await self._issuer().spend(asked)
        return published.page(asked.context, asked.context_level)

    def _published(self) -> Published:
        if self._shelf.current is None:
            raise NothingPublished("no bundle has been published yet")
        return self._shelf.current

    def _issuer(self) -> Passes:
        if self._passes is None:
            raise PassRefused("this provider issues no passes")
        return self._passes

    def _caller(self, session: bytes) -> TenantId:
        tenant = self._sessions.tenant_of(session)
        if not self._is_member(tenant):
            raise NotSignedIn("this tenant is no longer enrolled", hint="ask the provider to enrol it")
        self._calls.take(tenant)
        return tenant

    def _is_member(self, tenant: TenantId) -> bool:
        return tenant in self._provider.directory.by_id

    # ---- beside the calls --------------------------------------------------------------------------------------------

    async def keep_fresh(self) -> None:
        """Takes what other processes of the provider have written, again and again, until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._refresh_s)
                await asyncio.get_running_loop().run_in_executor(self._threads, self._refresh)
                self._bells.ring_where(self._is_over)
        finally:
            self._threads.shutdown(wait=False)
            if self._passes is not None:
                self._passes.close()

    def _refresh(self) -> None:
        try:
            with reporting():
                self._provider.members.refresh()
                self._sessions.revoke(self._provider.members.revoked())
                self._hints.look()
                if self._passes is not None:
                    self._passes.forget()
                self._shelf.refresh()
        except NothingPublished:
            pass  # checks say so
        except PharoahError as error:
            logger.warning("the online service cannot read the store: %s", error.what, extra={"hint": error.hint})
        except Exception:  # what it has it goes on serving
            logger.exception("the online service cannot read the store: a bug")


def _labels(asked: CheckRequest) -> dict[str, str]:
    if len(asked.ladder) > len(LADDER_LABELS):
        raise DecodeError(f"a ladder has at most {len(LADDER_LABELS)} rungs")
    rungs = dict(zip(LADDER_LABELS, map(str, asked.ladder), strict=False))
    return rungs | {"context": str(asked.context), "context_level": str(asked.context_level)}


def _unless_known(request: bytes, content: bytes, etag: Digest) -> bytes:
    if len(request) not in (0, Digest.length):
        raise DecodeError("the request must be empty or the SHA-256 of the caller's copy")
    return b"" if request == etag else content


def _reporting(method: Method) -> Method:
    def answer(request: bytes) -> bytes:
        with reporting():
            return method(request)

    return answer
