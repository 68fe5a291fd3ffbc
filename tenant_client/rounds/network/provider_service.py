"""A tenant's client of the provider's online service: sign-in, checks, outcomes and hints.

- An online check reveals the tokens to the provider; `federation.protocol.check` with a local bundle does not.
- A verdict that does not follow from its evidence is a PeerFault.
- `watch` yields every hint and end of a lease once, with the provider's signature. It reconnects after the last one,
  with jittered pauses, and raises only errors that a retry cannot fix. A caller that stores the last number can
  continue later.

    with Online(peer, signing_key, tenant, provider_key, time.time) as online:
        found = online.check(labels)
        for notice, signature in online.watch(after=last):
            ...
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import SystemRandom
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from crypto.codec import decode, encode
from crypto.errors import NothingPublished, NotSignedIn, PeerFault, PharoahError, TooManyRequests, Unreachable
from crypto.ids import EncodedElement, SignatureBytes, TenantId, Token, VerifyKey
from crypto.ristretto import Element
from crypto.signing import Signed, SigningKey, open_signed
from crypto.voprf import Evaluation, Proof
from federation.protocol.check import Check, check
from federation.protocol.pass_messages import PassAnswer, PassRequest
from federation.protocol.round_messages import LADDER_LABELS
from federation.protocol.service_messages import (
    CheckAnswer,
    CheckRequest,
    Hint,
    Notice,
    Outcome,
    Session,
    SignIn,
    Suspicion,
    WatchRequest,
    kind_of_notice,
)
from federation.protocol.services import ProviderMethod
from federation.transport.client import Answers, Peer

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
RENEW_S = 120.0  # before a session ends

T = TypeVar("T")


class SignedNotice(NamedTuple):
    """A hint or the end of a lease, and the provider's signature of it, which was verified."""

    notice: Notice
    signature: SignatureBytes


class Online:
    """One tenant at its provider's service. Threads may share it; `close` ends every watch and leaves the peer open.

    `answered` is set once the provider has let the tenant in.
    """

    def __init__(
        self,
        peer: Peer,
        signing_key: SigningKey,
        tenant: TenantId,
        provider: VerifyKey,
        now_s: Callable[[], float],
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        self._peer = peer
        self._signing_key = signing_key
        self._tenant = tenant
        self._provider = provider
        self._now_s = now_s
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._jitter = SystemRandom()
        self._session: Session | None = None
        self.answered = threading.Event()
        self._signing_in = threading.Lock()
        self._closed = threading.Event()
        self._listening = threading.Lock()
        self._streams: set[Answers] = set()

    def check(self, labels: Mapping[str, str]) -> Check:
        """Does this workload belong here? `labels` are those of a lease, by name."""
        context, level = context_tokens(labels)
        known = all(rung in labels for rung in LADDER_LABELS)
        ladder = tuple(_token(labels[rung]) for rung in LADDER_LABELS) if known else ()

        def ask(session: bytes) -> bytes:
            asked = CheckRequest(session, ladder, context, level)
            return self._peer.call(ProviderMethod.CHECK, encode(asked, self._peer.protocol))

        try:
            answer = decode(CheckAnswer, self._signed_in(ask))
        except NothingPublished:
            return check(None, labels)
        found = Check.of(answer.bundle, answer.evidence, answer.hazards)
        if found.verdict != answer.verdict:
            raise PeerFault(
                "the provider's verdict does not follow from its evidence",
                hint="compare the versions of tenant and provider",
            )
        return found

    def order_passes(self, week: int, elements: Sequence[Element]) -> Evaluation:
        """A batch of blinded elements, evaluated under the key of a week; the caller verifies the proof."""
        blinded = tuple(EncodedElement(element.encoded) for element in elements)

        def send(session: bytes) -> bytes:
            asked = PassRequest(session, week, blinded)
            return self._peer.call(ProviderMethod.PASSES, encode(asked, self._peer.protocol))

        answer = decode(PassAnswer, self._signed_in(send))
        return Evaluation(tuple(map(Element.decode, answer.elements)), Proof.decode(answer.proof))

    def bundle(self, etag: bytes = b"") -> bytes | None:
        """The newest bundle, signed; None if its SHA-256 is `etag`."""
        return self._peer.call(ProviderMethod.BUNDLE, etag) or None

    def outcome(self, hint: Hint, suspicion: Suspicion, *, confirmed: bool, shortfall_percent: float) -> None:
        """Tells the provider what a test after `hint` showed. Only for a tenant that has opted in."""

        def tell(session: bytes) -> bytes:
            said = Outcome(session, hint.number, hint.lease, suspicion, confirmed, shortfall_percent)
            return self._peer.call(ProviderMethod.OUTCOME, encode(said, self._peer.protocol))

        self._signed_in(tell)

    def watch(self, after: int) -> Iterator[SignedNotice]:
        """Hints and ends beyond number `after`, as they come, until `close`. Blocks its thread between them."""
        failures, refused = 0, False
        while not self._closed.is_set():
            began_s = time.monotonic()
            try:
                for told in self._notices(after):
                    failures, refused = 0, False
                    if told.notice.number > after:
                        after = told.notice.number
                        yield told
            except (Unreachable, TooManyRequests) as error:
                logger.info("reconnecting to the provider for hints: %s", error.what)
            except NotSignedIn:
                if refused:
                    raise  # a fresh session was refused too
                refused = True
                self._forget()
            failures = 0 if time.monotonic() - began_s > self._longest_pause_s else failures
            longest_s = min(self._longest_pause_s, self._first_pause_s * 2.0 ** min(failures, 20))
            self._closed.wait(self._jitter.uniform(0.0, longest_s))
            failures += 1

    def close(self) -> None:
        """Ends every watch. Twice is harmless."""
        with self._listening:
            self._closed.set()
            for stream in self._streams:
                stream.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _notices(self, after: int) -> Iterator[SignedNotice]:
        request = encode(WatchRequest(self._token(), after), self._peer.protocol)
        with self._listening:
            if self._closed.is_set():
                return
            stream = self._peer.stream(ProviderMethod.WATCH, request)
            self._streams.add(stream)
        try:
            for message in stream:
                signed = decode(Signed, message)
                notice: Notice = open_signed(kind_of_notice(signed.body), message, self._provider)
                yield SignedNotice(notice, signed.signature)
        finally:
            stream.cancel()
            with self._listening:
                self._streams.discard(stream)

    def _signed_in(self, call: Callable[[bytes], T]) -> T:
        try:
            return call(self._token())
        except NotSignedIn:
            self._forget()  # the provider has another key, or another clock
        return call(self._token())

    def _token(self) -> bytes:
        with self._signing_in:
            if self._session is None or self._session.until_s - self._now_s() < RENEW_S:
                request = self._signing_key.sign(SignIn(self._tenant, int(self._now_s())), self._peer.protocol)
                self._session = decode(Session, self._peer.call(ProviderMethod.SIGN_IN, request))
                self.answered.set()
            return self._session.token

    def _forget(self) -> None:
        with self._signing_in:
            self._session = None


def context_tokens(labels: Mapping[str, str]) -> tuple[Token, Token]:
    """The tokens of a lease's context and of its level; PharoahError where there are none yet."""
    if not {"context", "context_level"} <= labels.keys():
        raise PharoahError("the lease has no context tokens yet", hint="try again after the provider has granted it")
    return _token(labels["context"]), _token(labels["context_level"])


def _token(label: str) -> Token:
    try:
        return Token(bytes.fromhex(label))
    except ValueError as error:
        raise PharoahError(f"{label[:40]!r} is not a token", hint="pass the labels of a lease unchanged") from error
