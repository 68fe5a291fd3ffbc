"""The caller's side: one peer, at one address, under the one root that is trusted for it.

A call returns the answer's bytes, raises the error that the peer told (`federation.protocol.services`), or raises
Unreachable: no answer came in time, nobody listens, the certificate is another one, or the peer has too much to do.
Then nothing is known of what the peer did, and the question may be put again. Any other misbehaviour is a PeerFault.

A connection that fails is made anew, within the deadline of the call and with jittered pauses; threads share a peer.
Only what gRPC calls UNAVAILABLE is tried again, so a method may be reached twice by one call. A stream is begun once
and has no deadline: whoever reads it begins another where it ended. A server that vanished is noticed within a minute.
With `introducing` a caller says who it is, except in questions whose answer is public, so that a server under attack
has a place for it; there it also says which version it speaks, and `protocol` is the one to write to the peer. With
`note` it is told the method and the length of each question before that leaves; with `hear`, what the peer speaks.

    peer = Peer("trustee-1.example:7100", root_of(verify_key))
    answer = peer.call(TrusteeMethod.UNMASK, request)
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import SystemRandom
from types import TracebackType
from typing import Any, Self, TypeAlias

import grpc

from crypto.codec import MAX_MESSAGE_BYTES
from crypto.errors import DecodeError, PeerFault, PharoahError, Unreachable
from federation.protocol.services import PUBLIC, STATUS, Status, heard, one_line
from federation.protocol.versions import METADATA_KEY as HELLO_KEY, OLDEST, OWN, PROTOCOL, Hello
from federation.transport.certificates import fingerprint
from federation.transport.introductions import METADATA_KEY, Introducing, server_digest
from federation.transport.question import in_parts

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0

_Send: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"
_SendParts: TypeAlias = "grpc.StreamUnaryMultiCallable[bytes, bytes]"
_SendForMany: TypeAlias = "grpc.UnaryStreamMultiCallable[bytes, bytes]"
_Metadata: TypeAlias = tuple[tuple[str, bytes], ...]
_TOLD = frozenset(STATUS.values()) - {Status.INTERNAL}
_NO_ANSWER = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,  # a server that stops cancels what it cannot finish
    }
)
_TOO_LARGE = "larger than max"  # gRPC's words; it has the same status for this as for a busy server
_LONGEST_REASON_CHARACTERS = 300


class Peer:
    """A server that is asked. Threads may share it; nothing is sent before the first call."""

    def __init__(
        self,
        address: str,
        root_pem: bytes,
        *,
        deadline_s: float = 30.0,
        retries: int = 8,
        message_bytes: int = MAX_MESSAGE_BYTES,
        introducing: Introducing | None = None,
        note: Callable[[str, int], None] = lambda _method, _length: None,
        hear: Callable[[int], None] = lambda _protocol: None,
    ) -> None:
        self.address = address
        self._note = note
        self._hear_of = hear
        self._deadline_s = deadline_s
        self._retries = retries
        self._jitter = SystemRandom()
        fingerprint(root_pem)  # gRPC would trust the system's authorities in place of no certificate
        self._server, self._introducing = server_digest(root_pem), introducing
        self.protocol = OLDEST  # until the peer is heard
        credentials = grpc.ssl_channel_credentials(root_pem)
        self._channel = grpc.secure_channel(address, credentials, _options(message_bytes))

    def call(self, method: str, request: bytes) -> bytes:
        """The answer of `method`, a path of `federation.protocol.services`, within the deadline, all tries included."""
        self._note(method, len(request))
        end_s = time.monotonic() + self._deadline_s
        parts, metadata = in_parts(request), self._metadata(method)
        for retry in range(self._retries + 1):
            try:
                return self._send(method, parts, max(0.0, end_s - time.monotonic()), metadata)
            except grpc.RpcError as error:
                self._hear(error)
                pause_s = self._jitter.uniform(0.0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**retry))
                again = error.code() is grpc.StatusCode.UNAVAILABLE and retry < self._retries
                if not again or time.monotonic() + pause_s >= end_s:
                    raise self._meant(method, error) from error
            except ValueError as error:  # how gRPC says that the channel was closed meanwhile
                raise Unreachable(f"the connection to {self.address} was closed") from error
            time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def stream(self, method: str, request: bytes) -> "Answers":
        """The answers of `method`, one by one as they come."""
        self._note(method, len(request))
        send: _SendForMany = self._channel.unary_stream(method)
        try:
            call = send(in_parts(request)[0], metadata=self._metadata(method))  # a server takes no more for a stream
        except ValueError as error:
            raise Unreachable(f"the connection to {self.address} was closed") from error
        return Answers(call, lambda error: self._meant(method, error))

    def close(self) -> None:
        """Ends calls and streams that are under way and lets go of the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, method: str, parts: Sequence[bytes], left_s: float, metadata: _Metadata) -> bytes:
        if len(parts) == 1:  # as nearly always; for more gRPC starts a thread
            short: _Send = self._channel.unary_unary(method)
            answer, call = short.with_call(parts[0], timeout=left_s, metadata=metadata)
        else:
            long: _SendParts = self._channel.stream_unary(method)
            answer, call = long.with_call(iter(parts), timeout=left_s, metadata=metadata)
        self._hear(call)
        return answer

    def _metadata(self, method: str) -> _Metadata:
        if method in PUBLIC:  # nothing by which a stranger could be told from another
            return ()
        hello = ((HELLO_KEY, OWN.to_bytes()),)
        return hello if self._introducing is None else (*hello, (METADATA_KEY, self._introducing.to(self._server)))

    def _hear(self, call: grpc.Call | grpc.RpcError) -> None:
        """Notes what the peer speaks; one that does not say it, or cannot be spoken with, tells so by its answer."""
        metadata: Any = call.trailing_metadata() or ()
        said = dict(metadata).get(HELLO_KEY)
        with suppress(DecodeError):
            if isinstance(said, bytes):
                self.protocol = min(PROTOCOL, Hello.from_bytes(said).speaks)
                self._hear_of(self.protocol)

    def _meant(self, method: str, error: grpc.RpcError) -> PharoahError:
        """The error of this project for one of gRPC."""
        code, details = error.code(), error.details() or ""
        if code.name in _TOLD:
            return heard(details)
        reason = one_line(details, _LONGEST_REASON_CHARACTERS)
        if code in _NO_ANSWER and _TOO_LARGE not in details:
            return Unreachable(f"{self.address} gave no answer to {method} ({code.name}: {reason})")
        if code is grpc.StatusCode.INTERNAL and not details:
            return PeerFault(f"{self.address} failed at {method}", hint="its own log tells why; tell its owner")
        return PeerFault(
            f"{self.address} cannot answer {method} ({code.name}: {reason})",
            hint="it has other limits or speaks another version; compare the two",
        )


class Answers:
    """A stream of answers; one thread reads it, any may cancel it. Raises what `Peer.call` would."""

    def __init__(self, call: "grpc._CallIterator[bytes]", meant: Callable[[grpc.RpcError], PharoahError]) -> None:
        self._call = call
        self._meant = meant

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            raise self._meant(error) from error

    def cancel(self) -> None:
        """Ends the stream; whoever waits for the next answer gets Unreachable. Twice is harmless."""
        self._call.cancel()


def _options(message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", -1),  # the server knows what it takes
        ("grpc.per_message_decompression", 0),  # nobody of ours compresses, and a bomb would
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5_000),  # how long an attempt to connect may last
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.use_local_subchannel_pool", 1),  # two peers at one address have connections of their own
    ]
