"""Calls over TLS on real sockets: bytes arrive as they were sent, errors as what they are, and strangers not at all."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given, strategies as st

from crypto import errors
from crypto.codec import encode
from crypto.errors import (
    AlreadyAnswered,
    BadSignature,
    DecodeError,
    PeerFault,
    PharoahError,
    QuotaExceeded,
    Refusal,
    Unreachable,
)
from crypto.ids import Digest, Nonce
from federation.protocol.plan import Plan
from federation.protocol.round_messages import ContributionHeader, UnmaskCall, UnmaskRequest
from federation.protocol.services import CLASSES, ProviderMethod, heard, one_line, told
from federation.transport.certificates import Certificate, fingerprint, make_certificate
from federation.transport.client import Peer
from federation.transport.question import in_parts
from federation.transport.server import DEFAULT_LIMITS, Method, Server, ServerLimits, serve
from provider_server.rounds.network import trustee_service as providers_side
from simulation.run.processes import free_ports
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.workload.descriptor import rungs
from tenant_client.rounds.network.connect import RemoteTrustee
from tenant_client.rounds.tokens import TokenSource, TrusteeService
from tests.support import waiting
from tests.support.factories import TENANTS, Cast, a_descriptor, a_plan, keys, ownerships, plan_digest, signed
from tests.support.waiting import PATIENCE_S
from trustee.server import serve_trustee
from trustee.trustee import Trustee, TrusteeLimits

HOST = "127.0.0.1"
PATH = "/pharoah.Test/Ask"
OTHER_PATH = "/pharoah.Test/AskOther"
LONG_S = PATIENCE_S
REPOSITORY = Path(__file__).resolve().parents[2]
NARROW = ServerLimits(workers=1, waiting=1)

Serve = Callable[..., Server]
_Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
_Send: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"
_Stream: TypeAlias = "grpc.StreamUnaryMultiCallable[bytes, bytes]"
Connect = Callable[..., Peer]


@cache
def own() -> Certificate:
    """The server's certificate; keys are made once for the whole file."""
    return make_certificate([HOST, "localhost"], datetime.now(UTC))


@cache
def foreign() -> Certificate:
    """Another server's, for the same host."""
    return make_certificate([HOST, "localhost"], datetime.now(UTC))


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", f"{HOST},localhost")


@pytest.fixture
def serving(opened: ExitStack) -> Serve:
    """Starts a server of the given methods, or of one that returns what it gets."""

    def start(
        methods: Mapping[str, Method] | Method | None = None,
        limits: ServerLimits = DEFAULT_LIMITS,
        certificate: Certificate | None = None,
        port: int = 0,
        **others: Any,
    ) -> Server:
        served = methods if isinstance(methods, Mapping) else {PATH: methods or bytes}
        shown = certificate or own()
        pem = shown.certificate_pem, shown.key_pem
        return opened.enter_context(serve("pharoah.Test", served, f"{HOST}:{port}", *pem, limits, **others))

    return start


@pytest.fixture
def connect(opened: ExitStack) -> Connect:
    """A peer for a server or a port."""

    def connected(
        server: Server | int, certificate: Certificate | None = None, deadline_s: float = LONG_S, **settings: Any
    ) -> Peer:
        port = server if isinstance(server, int) else server.port
        pinned = (certificate or own()).certificate_pem
        return opened.enter_context(Peer(f"{HOST}:{port}", pinned, deadline_s=deadline_s, **settings))

    return connected


class Blocking:
    """A method that says when it has begun and ends when it may."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.running = threading.Semaphore(0)
        self.may_end = threading.Event()

    def __call__(self, request: bytes) -> bytes:
        self.begun.append(request)
        self.running.release()
        assert self.may_end.wait(LONG_S)
        return request[::-1]

    def wait_until_running(self, calls: int = 1) -> None:
        for _ in range(calls):
            assert self.running.acquire(timeout=LONG_S)


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    method = Blocking()
    yield method
    method.may_end.set()


@pytest.fixture
def threads(blocking: Blocking) -> Iterator[ThreadPoolExecutor]:
    """Calls in the background; they end before the peers are closed, since `blocking` lets go."""
    with ThreadPoolExecutor(16) as pool:
        yield pool
        blocking.may_end.set()


def noting(reached: list[bytes]) -> Method:
    def method(request: bytes) -> bytes:
        reached.append(request)
        return b""

    return method


def failing(error: Exception) -> Method:
    def method(request: bytes) -> bytes:
        raise error

    return method


# ---- how an error travels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_class_comes_back_as_itself(name: str) -> None:
    back = heard(told(CLASSES[name]("a fact – with a dash", hint="a remedy")).message)
    assert (type(back), back.what, back.hint) == (CLASSES[name], "a fact – with a dash", "a remedy")


def test_the_table_holds_the_classes_of_crypto_errors_and_nothing_else() -> None:
    assert {"PharoahError", "DecodeError", "Unreachable", "QuotaExceeded"} <= set(CLASSES)
    assert all(issubclass(kind, PharoahError) and vars(errors)[name] is kind for name, kind in CLASSES.items())


@pytest.mark.parametrize(
    "name", ["SystemExit", "ClassVar", "__doc__", "", "quotaexceeded", "crypto.errors.QuotaExceeded"]
)
def test_a_name_that_nobody_knows_is_a_peers_fault(name: str) -> None:
    back = heard(f"{name}\na fact\na remedy")
    assert type(back) is PeerFault
    assert "a fact" in back.what
    assert repr(name) in back.what


def test_a_class_from_elsewhere_travels_under_its_nearest_known_ancestor() -> None:
    class Elsewhere(AlreadyAnswered):
        pass

    assert type(heard(told(Elsewhere("twice")).message)) is AlreadyAnswered


@given(st.text())
def test_whatever_a_stranger_writes_becomes_a_short_printable_error(message: str) -> None:
    back = heard(message)
    assert isinstance(back, PharoahError)
    assert (back.what + back.hint).isprintable()
    assert len(back.what) + len(back.hint) < 1200


@given(st.text(max_size=100), st.integers(1, 40))
def test_one_line_is_no_longer_than_its_limit(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert line.isprintable()


def test_a_terminal_is_not_commanded_by_an_error() -> None:
    back = heard("Refusal\n\x1b[2J\x07gone\r\nhint \x1b]0;x\x07")
    assert (back.what, back.hint) == ("[2J gone", "hint ]0;x")


# ---- bytes and errors over the wire --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 131_072, 16 * 2**20])
def test_bytes_arrive_as_they_were_sent(serving: Serve, connect: Connect, size: int) -> None:
    sent = os.urandom(size)
    assert connect(serving(lambda request: request[::-1], ceilings={PATH: size})).call(PATH, sent) == sent[::-1]


def test_methods_are_told_apart_by_their_paths(serving: Serve, connect: Connect) -> None:
    peer = connect(serving({PATH: lambda request: b"one", OTHER_PATH: lambda request: b"other"}))
    assert [peer.call(path, b"") for path in (OTHER_PATH, PATH)] == [b"other", b"one"]
    for path in ("/pharoah.Test/Nothing", "/pharoah.Other/Ask", ProviderMethod.BUNDLE):
        with pytest.raises(PeerFault, match="UNIMPLEMENTED") as fault:
            peer.call(path, b"")
        assert not isinstance(fault.value, Unreachable)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DecodeError("no message"), "INVALID_ARGUMENT"),
        (BadSignature("not hers"), "FAILED_PRECONDITION"),
        (QuotaExceeded("6 were asked for", hint="wait until Monday"), "PERMISSION_DENIED"),
        (PharoahError("something else"), "ABORTED"),
        (Unreachable("its own peer is away"), "FAILED_PRECONDITION"),
        (Refusal("– " * 5000), "PERMISSION_DENIED"),
    ],
)
def test_an_error_arrives_as_what_it_is(
    serving: Serve, connect: Connect, opened: ExitStack, error: PharoahError, status: str
) -> None:
    server = serving(failing(error))
    with pytest.raises(PharoahError) as caught:
        connect(server).call(PATH, b"")
    assert (type(caught.value), caught.value.hint) == (type(error), error.hint)
    assert caught.value.what == one_line(error.what, 600)
    assert raw_failure(opened, server).code() is grpc.StatusCode[status]


def raw_failure(opened: ExitStack, server: Server) -> grpc.RpcError:
    """What gRPC sees of a call, without our own client."""
    send: _Send = secure_channel(opened, server).unary_unary(PATH)
    with pytest.raises(grpc.RpcError) as failure:
        send(in_parts(b"")[0], timeout=LONG_S)
    return failure.value


def test_of_a_bug_nothing_leaves(
    serving: Serve, connect: Connect, opened: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    server = serving(failing(KeyError("tenant 17 counted 42")))
    with pytest.raises(PeerFault, match=r"failed at /pharoah\.Test/Ask") as fault:
        connect(server).call(PATH, b"")
    assert "counted" not in fault.value.diagnostics()
    failure = raw_failure(opened, server)
    assert (failure.code(), failure.details()) == (grpc.StatusCode.INTERNAL, "")
    assert "KeyError" not in repr(failure.trailing_metadata())
    assert "tenant 17 counted 42" in caplog.text


def test_a_server_that_tells_nonsense_is_at_fault(opened: ExitStack, connect: Connect) -> None:
    def nonsense(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "KeyboardInterrupt\nstop at once")

    with pytest.raises(PeerFault, match="'KeyboardInterrupt', which is no error of this version: stop at once"):
        connect(foreign_server(opened, nonsense)).call(PATH, b"")


def foreign_server(opened: ExitStack, answer: Callable[[bytes, grpc.ServicerContext], bytes]) -> int:
    """The port of a gRPC server under our certificate that is not ours."""
    server = grpc.server(opened.enter_context(ThreadPoolExecutor(4)))
    handlers: dict[str, _Handler] = {"Ask": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("pharoah.Test", handlers),))
    port = server.add_secure_port(f"{HOST}:0", grpc.ssl_server_credentials([(own().key_pem, own().certificate_pem)]))
    server.start()
    opened.callback(lambda: server.stop(None).wait())
    return port


# ---- who is let in, and whom one trusts ----------------------------------------------------------------------------


def test_only_the_pinned_certificate_is_trusted(serving: Serve, connect: Connect) -> None:
    reached: list[bytes] = []
    server = serving(noting(reached))
    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED") as refusal:
        connect(server, foreign(), retries=0).call(PATH, b"secret")
    assert "check the address and certificate" in refusal.value.hint
    assert reached == []
    connect(server).call(PATH, b"hello")
    assert reached == [b"hello"]


def test_a_certificate_for_another_host_is_refused(serving: Serve, connect: Connect) -> None:
    elsewhere = make_certificate(["trustee.example", "192.0.2.7"], datetime.now(UTC))
    server = serving(certificate=elsewhere)
    with pytest.raises(Unreachable, match=r"(?i)hostname|peer name"):
        connect(server, elsewhere, retries=0).call(PATH, b"")


def test_an_expired_certificate_is_refused(serving: Serve, connect: Connect) -> None:
    old = make_certificate([HOST], datetime.now(UTC) - timedelta(days=10), lifetime_d=9)
    with pytest.raises(Unreachable, match="certificate has expired"):
        connect(serving(certificate=old), old, retries=0).call(PATH, b"")


def test_a_pinned_server_vouches_for_nobody_else(serving: Serve, connect: Connect) -> None:
    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
        connect(serving(certificate=issued_by(own())), own(), retries=0).call(PATH, b"")


def issued_by(issuer: Certificate) -> Certificate:
    """A certificate for this host that the key of `issuer` signed, with the chain that ends in it."""
    fresh = foreign()
    subject = x509.load_pem_x509_certificate(fresh.certificate_pem)
    root = x509.load_pem_x509_certificate(issuer.certificate_pem)
    key = load_pem_private_key(issuer.key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateBuilder(
        root.subject,
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Somebody")]),
        subject.public_key(),
        x509.random_serial_number(),
        subject.not_valid_before_utc,
        subject.not_valid_after_utc,
        list(subject.extensions),
    )
    signed = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    return Certificate(signed + issuer.certificate_pem, fresh.key_pem)


def test_a_question_is_noted_before_it_leaves_and_does_not_leave_unnoted(serving: Serve, connect: Connect) -> None:
    reached: list[bytes] = []
    noted: list[tuple[str, int]] = []
    server = serving(noting(reached))
    connect(server, own(), note=lambda *told: noted.append(told)).call(PATH, b"asked")
    assert (noted, reached) == ([(PATH, 5)], [b"asked"])

    def full(_method: str, _length: int) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        connect(server, own(), note=full).call(PATH, b"unnoted")
    assert reached == [b"asked"]


def test_a_caller_without_tls_is_refused(serving: Serve, connect: Connect, opened: ExitStack) -> None:
    reached: list[bytes] = []
    server = serving(noting(reached))
    plain = opened.enter_context(grpc.insecure_channel(f"{HOST}:{server.port}"))
    send: _Send = plain.unary_unary(PATH)
    with pytest.raises(grpc.RpcError) as failure:
        send(b"secret", timeout=LONG_S)
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    assert reached == []
    connect(server).call(PATH, b"")
    assert reached == [b""]


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_nothing_is_no_pinned_certificate(pem: bytes) -> None:
    """gRPC would take the system's authorities instead."""
    with pytest.raises(DecodeError, match="not a certificate"):
        Peer(f"{HOST}:1", pem)


@pytest.mark.parametrize(
    "garbage", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.0\r\n\r\n", bytes(70_000)]
)
def test_garbage_at_the_port_does_no_harm(serving: Serve, connect: Connect, garbage: bytes) -> None:
    server = serving()
    for linger_s in (0.0, 0.2):
        with socket.create_connection((HOST, server.port), timeout=LONG_S) as line:
            with suppress(ConnectionError):
                line.sendall(garbage)
            time.sleep(linger_s)
            assert connect(server).call(PATH, b"hello") == b"hello"


def test_a_certificate_names_its_hosts_and_keeps_its_key_to_itself() -> None:
    now = datetime.now(UTC)
    made = make_certificate(["trustee.example", "192.0.2.7", "2001:db8::1"], now)
    read = x509.load_pem_x509_certificate(made.certificate_pem)
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["trustee.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7", "2001:db8::1"]
    assert timedelta(days=3650) < read.not_valid_after_utc - now < timedelta(days=3654)
    assert len(made.fingerprint) == 64
    assert made.fingerprint == fingerprint(made.certificate_pem) != own().fingerprint
    assert made.key_pem.decode().splitlines()[1] not in repr(made)
    with pytest.raises(ValueError, match="one host at least"):
        make_certificate([], now)


# ---- time, load and failures ---------------------------------------------------------------------------------------


def test_an_answer_that_comes_too_late_is_none(
    serving: Serve, connect: Connect, blocking: Blocking, threads: ThreadPoolExecutor
) -> None:
    peer = connect(serving(blocking), deadline_s=0.4)
    start_s = time.monotonic()
    with pytest.raises(Unreachable, match="DEADLINE_EXCEEDED") as late:
        peer.call(PATH, b"")
    assert 0.3 < time.monotonic() - start_s < LONG_S
    assert "try again later" in late.value.hint


def test_a_connection_that_was_closed_gives_no_answer(serving: Serve, connect: Connect) -> None:
    peer = connect(serving(noting([])))
    peer.close()
    for ask in (peer.call, peer.stream):
        with pytest.raises(Unreachable, match="was closed"):
            ask(PATH, b"")


def test_nobody_at_the_address_is_asked_again_until_the_deadline(connect: Connect) -> None:
    with closing(socket.create_server((HOST, 0))) as taken:
        port = taken.getsockname()[1]
    start_s = time.monotonic()
    with pytest.raises(Unreachable, match=r"UNAVAILABLE|DEADLINE_EXCEEDED"):
        connect(port, deadline_s=1.0, retries=1000).call(PATH, b"")
    assert time.monotonic() - start_s < LONG_S


def test_a_busy_server_turns_away_and_lives(
    serving: Serve, connect: Connect, blocking: Blocking, threads: ThreadPoolExecutor
) -> None:
    peer = connect(serving(blocking, NARROW))
    calls = [threads.submit(peer.call, PATH, bytes([number])) for number in range(5)]
    blocking.wait_until_running()
    turned_away = list(islice(as_completed(calls, timeout=LONG_S), 3))
    for call in turned_away:
        with pytest.raises(Unreachable, match="RESOURCE_EXHAUSTED: all workers are busy"):
            call.result()
    blocking.may_end.set()
    assert sorted(call.result() for call in calls if call not in turned_away) == sorted(blocking.begun)
    assert peer.call(PATH, b"ab") == b"ba"


def until_refused(peer: Peer, path: str = PATH, within_s: float = LONG_S) -> Unreachable:
    """Asks until there is no answer any more; one that comes too late on a busy machine is none of that kind."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        try:
            peer.call(path, b"")
        except Unreachable as refused:
            if "DEADLINE_EXCEEDED" not in str(refused):
                return refused
    raise AssertionError("it answers still")


def until(attempt: Callable[[], bytes], within_s: float = LONG_S) -> bytes:
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        with suppress(Unreachable):
            return attempt()
        time.sleep(0.05)
    return attempt()


def test_a_caller_who_waits_too_long_for_a_worker_is_sent_home(
    serving: Serve, connect: Connect, blocking: Blocking, threads: ThreadPoolExecutor
) -> None:
    peer = connect(serving(blocking, ServerLimits(workers=1, waiting=4, deadline_s=0.3)))
    threads.submit(peer.call, PATH, b"first")
    blocking.wait_until_running()
    with pytest.raises(Unreachable, match="no worker was free in time"):
        peer.call(PATH, b"second")
    assert blocking.begun == [b"first"]


def test_a_call_that_was_given_up_is_not_begun(
    serving: Serve, connect: Connect, blocking: Blocking, threads: ThreadPoolExecutor, opened: ExitStack
) -> None:
    server = serving(blocking, NARROW)
    peer = connect(server)
    first = threads.submit(peer.call, PATH, b"first")
    blocking.wait_until_running()
    channel = secure_channel(opened, server)
    send: _Send = channel.unary_unary(PATH)
    health = health_pb2_grpc.HealthStub(channel)
    given_up = send.future(in_parts(b"given up")[0])
    health.Check(health_pb2.HealthCheckRequest(), timeout=LONG_S)  # went the same way after it: so it waits there
    time.sleep(0.2)
    given_up.cancel()
    health.Check(health_pb2.HealthCheckRequest(), timeout=LONG_S)  # and so it is known there
    time.sleep(0.2)
    blocking.may_end.set()
    assert first.result() == b"tsrif"
    assert until(lambda: peer.call(PATH, b"next")) == b"txen"
    assert blocking.begun == [b"first", b"next"]


def secure_channel(opened: ExitStack, server: Server) -> grpc.Channel:
    """A connection without our own client."""
    credentials = grpc.ssl_channel_credentials(own().certificate_pem)
    return opened.enter_context(grpc.secure_channel(f"{HOST}:{server.port}", credentials))


def test_a_slow_peer_blocks_no_other_call(
    serving: Serve, connect: Connect, blocking: Blocking, threads: ThreadPoolExecutor
) -> None:
    peer = connect(serving({PATH: blocking, OTHER_PATH: bytes}))
    slow = threads.submit(peer.call, PATH, b"ab")
    blocking.wait_until_running()
    assert [peer.call(OTHER_PATH, b"quick") for _ in range(20)] == [b"quick"] * 20
    assert connect(serving()).call(PATH, b"elsewhere") == b"elsewhere"
    assert not slow.done()
    blocking.may_end.set()
    assert slow.result() == b"ba"


def test_threads_share_a_peer(serving: Serve, connect: Connect, threads: ThreadPoolExecutor) -> None:
    peer = connect(serving(lambda request: request * 2))
    asked = [os.urandom(1000) for _ in range(200)]
    assert list(threads.map(lambda sent: peer.call(PATH, sent), asked)) == [sent * 2 for sent in asked]


def test_an_answer_beyond_the_limit_of_server_or_caller_is_refused(serving: Serve, connect: Connect) -> None:
    most, doubled = 4096, serving(lambda request: request * 2)
    limited = serving(lambda request: request * 2, ServerLimits(message_bytes=most))
    for peer in (connect(limited), connect(doubled, message_bytes=most)):
        assert peer.call(PATH, bytes(most // 2)) == bytes(most)
        with pytest.raises(PeerFault, match="larger than max") as fault:
            peer.call(PATH, bytes(most // 2 + 1))
        assert not isinstance(fault.value, Unreachable)
        assert peer.call(PATH, bytes(most // 2)) == bytes(most)


def test_stopping_lets_a_call_end_and_takes_no_new_one(
    serving: Serve, connect: Connect, blocking: Blocking, threads: ThreadPoolExecutor
) -> None:
    server = serving({PATH: blocking, OTHER_PATH: bytes})
    under_way = threads.submit(connect(server).call, PATH, b"ab")
    blocking.wait_until_running()
    stopped = threads.submit(server.stop)
    assert "UNAVAILABLE" in str(until_refused(connect(server, deadline_s=1.0), OTHER_PATH))
    assert not stopped.done()
    blocking.may_end.set()
    assert under_way.result() == b"ba"
    stopped.result(timeout=LONG_S)
    server.stop()


def test_connections_are_renewed_and_no_call_is_lost(serving: Serve, connect: Connect) -> None:
    peer = connect(serving(limits=ServerLimits(connection_age_s=0.2)))
    end_s = time.monotonic() + 1.5
    while time.monotonic() < end_s:
        assert peer.call(PATH, b"hello") == b"hello"


def test_two_servers_do_not_share_a_port(serving: Serve) -> None:
    with pytest.raises(OSError, match="cannot listen"):
        serving(port=serving().port)


def test_a_key_that_is_not_the_certificates_is_found_at_the_start() -> None:
    with pytest.raises(OSError, match="with this certificate and key"):
        serve("pharoah.Test", {}, f"{HOST}:0", own().certificate_pem, foreign().key_pem)


def test_the_health_check_answers_even_when_all_workers_are_busy(
    serving: Serve, connect: Connect, blocking: Blocking, threads: ThreadPoolExecutor, opened: ExitStack
) -> None:
    server = serving(blocking, NARROW)
    for _ in range(2):
        threads.submit(connect(server).call, PATH, b"")
    blocking.wait_until_running()
    health = health_pb2_grpc.HealthStub(secure_channel(opened, server))
    for service in ("", "pharoah.Test"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=LONG_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as unknown:
        health.Check(health_pb2.HealthCheckRequest(service="pharoah.Nothing"), timeout=LONG_S)
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_watch_of_the_health_hears_of_the_end(serving: Serve, opened: ExitStack, threads: ThreadPoolExecutor) -> None:
    server = serving(limits=ServerLimits(stop_s=1.0))
    health = health_pb2_grpc.HealthStub(secure_channel(opened, server))
    heard_of = health.Watch(health_pb2.HealthCheckRequest(service="pharoah.Test"), timeout=LONG_S)
    assert next(heard_of).status == health_pb2.HealthCheckResponse.SERVING
    stopped = threads.submit(server.stop)
    assert next(heard_of).status == health_pb2.HealthCheckResponse.NOT_SERVING
    stopped.result(LONG_S)


def test_reflection_lists_the_services_and_describes_no_method(serving: Serve, opened: ExitStack) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(secure_channel(opened, serving()))
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="pharoah.Test"),
    ]
    listed, described = stub.ServerReflectionInfo(iter(asked), timeout=LONG_S)
    names = {service.name for service in listed.list_services_response.service}
    assert names == {"pharoah.Test", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert described.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


# ---- quick methods and streams -------------------------------------------------------------------------------------


def test_a_quick_method_answers_while_all_workers_are_busy(
    serving: Serve, connect: Connect, blocking: Blocking, threads: ThreadPoolExecutor
) -> None:
    on: set[str] = set()

    def quick(request: bytes) -> bytes:
        on.add(threading.current_thread().name)
        return request * 2

    peer = connect(serving(blocking, NARROW, quick={OTHER_PATH: quick}))
    for _ in range(2):
        threads.submit(peer.call, PATH, b"")
    blocking.wait_until_running()
    assert [peer.call(OTHER_PATH, b"ab") for _ in range(50)] == [b"abab"] * 50
    assert on == {"servers"}


@pytest.mark.parametrize("error", [QuotaExceeded("too many", hint="later"), KeyError("tenant 17 counted 42")])
def test_errors_of_quick_methods_and_streams_travel_alike(serving: Serve, connect: Connect, error: Exception) -> None:
    async def fails_late(request: bytes) -> AsyncGenerator[bytes, None]:
        yield request
        raise error

    peer = connect(serving(quick={PATH: failing(error)}, streams={OTHER_PATH: fails_late}))
    expected = QuotaExceeded if isinstance(error, QuotaExceeded) else PeerFault
    with pytest.raises(expected) as from_call:
        peer.call(PATH, b"")
    answers = peer.stream(OTHER_PATH, b"first")
    assert next(answers) == b"first"
    with pytest.raises(expected) as from_stream:
        next(answers)
    for fault in (from_call.value, from_stream.value):
        assert "tenant 17" not in str(fault)
        assert ("too many" in str(fault)) is isinstance(error, QuotaExceeded)


class Listeners:
    """A stream that repeats the question and then waits for ever, and says how many listen."""

    def __init__(self) -> None:
        self.now = 0

    async def __call__(self, request: bytes) -> AsyncGenerator[bytes, None]:
        self.now += 1
        try:
            yield request
            await asyncio.get_running_loop().create_future()
        finally:
            self.now -= 1

    def wait_until(self, count: int) -> None:
        end_s = time.monotonic() + LONG_S
        while self.now != count:
            assert time.monotonic() < end_s, self.now
            time.sleep(0.01)


@pytest.fixture
def listeners() -> Listeners:
    return Listeners()


def test_watchers_have_places_of_their_own_and_cost_no_thread(
    serving: Serve, connect: Connect, listeners: Listeners
) -> None:
    limits = ServerLimits(workers=1, waiting=1, silent=4, watchers=200, streams=256)
    peer = connect(serving(limits=limits, streams={OTHER_PATH: listeners}))
    streams = [peer.stream(OTHER_PATH, b"") for _ in range(2)]
    for number in range(2, 200):
        if number % 2 == 0:
            listeners.wait_until(number)  # no more at a time than there are places until a question is here
        streams.append(peer.stream(OTHER_PATH, b""))
    assert [next(stream) for stream in streams] == [b""] * 200
    assert sum(thread.name.startswith(("servers", "pharoah.Test")) for thread in threading.enumerate()) == 1
    with pytest.raises(Unreachable, match="RESOURCE_EXHAUSTED: the limit of open streams"):
        next(peer.stream(OTHER_PATH, b""))
    assert peer.call(PATH, b"hello") == b"hello"
    streams[0].cancel()
    listeners.wait_until(199)
    assert next(peer.stream(OTHER_PATH, b"again")) == b"again"
    peer.close()
    listeners.wait_until(0)


def test_a_stop_ends_streams_at_once_and_says_so(serving: Serve, connect: Connect, listeners: Listeners) -> None:
    server = serving(streams={OTHER_PATH: listeners})
    answers = connect(server).stream(OTHER_PATH, b"hello")
    assert next(answers) == b"hello"
    start_s = time.monotonic()
    server.stop()
    with pytest.raises(Unreachable, match="UNAVAILABLE: the server stops"):
        next(answers)
    assert time.monotonic() - start_s < LONG_S
    assert listeners.now == 0


def test_a_stop_says_so_also_to_a_stream_that_is_in_the_middle_of_its_first_message(
    serving: Serve, connect: Connect
) -> None:
    reached = threading.Event()

    async def large(request: bytes) -> AsyncGenerator[bytes, None]:
        reached.set()
        while True:
            yield request * (1 << 21)  # more than is on its way before the caller reads

    server = serving(streams={OTHER_PATH: large})
    answers = connect(server).stream(OTHER_PATH, b"hello")
    assert reached.wait(LONG_S)
    time.sleep(0.3)  # the message is on its way, and waits for its caller
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    time.sleep(0.3)
    with pytest.raises(Unreachable, match="UNAVAILABLE: the server stops"):
        for _ in answers:
            pass
    stopping.join()


def test_who_listens_slowly_holds_up_nobody(serving: Serve, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    made, ended = [0], threading.Event()

    async def flood(_request: bytes) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                made[0] += 1
                yield bytes(100_000)
        finally:
            ended.set()

    peer = connect(serving(streams={OTHER_PATH: flood}))
    answers = peer.stream(OTHER_PATH, b"")
    next(answers)
    assert connect(serving()).call(PATH, b"hello") == b"hello"
    assert peer.call(PATH, b"hello") == b"hello"
    until_s, before = time.monotonic() + LONG_S, 0
    while made[0] > before and time.monotonic() < until_s:  # flow control stops it, and memory stays small
        before = made[0]
        time.sleep(1.0)
    assert made[0] == before < 2000
    peer.close()  # in the middle of a message
    assert ended.wait(LONG_S)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", ["methods", "quick", "streams"])
def test_a_call_without_a_question_is_refused(
    serving: Serve,
    opened: ExitStack,
    connect: Connect,
    listeners: Listeners,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    kinds: dict[str, Any] = {"methods": {}, kind: {OTHER_PATH: listeners if kind == "streams" else bytes}}
    server = serving(**kinds)
    send: Any = secure_channel(opened, server).stream_stream(OTHER_PATH)
    with pytest.raises(grpc.RpcError) as failure:
        next(send(iter(()), timeout=LONG_S))
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(heard(failure.value.details() or ""), DecodeError)
    assert next(connect(server).stream(OTHER_PATH, b"hello")) == b"hello"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_runs_beside_ends_with_the_server(serving: Serve) -> None:
    turns = [0]

    async def beside() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0.01)

    server = serving(beside=beside)
    waiting.until(lambda: turns[0] > 1)
    server.stop()
    ended = turns[0]
    time.sleep(0.1)
    assert turns[0] == ended


SERVER = """
import sys, time
from pathlib import Path
from federation.transport.server import serve
folder, port = Path(sys.argv[1]), sys.argv[2]
certificate, key = (folder / "certificate.pem").read_bytes(), (folder / "key.pem").read_bytes()
methods = {"/pharoah.Test/Ask": lambda request: request[::-1]}
with serve("pharoah.Test", methods, f"127.0.0.1:{port}", certificate, key) as server:
    print(server.port, flush=True)
    time.sleep(600)
"""


def test_a_process_that_has_served_ends_in_good_order(tmp_path: Path) -> None:
    """Also while somebody listens, and without a word: the loop of its servers goes on to the very end."""
    (tmp_path / "certificate.pem").write_bytes(own().certificate_pem)
    (tmp_path / "key.pem").write_bytes(own().key_pem)
    brief = SERVER.replace("time.sleep(600)", "sys.stdin.readline()")
    command = [sys.executable, "-c", brief, str(tmp_path), "0"]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, cwd=REPOSITORY, **pipes) as process:
        assert process.stdout is not None
        with Peer(f"{HOST}:{int(process.stdout.readline())}", own().certificate_pem) as peer:
            assert peer.call(PATH, b"ab") == b"ba"
            said, complaints = process.communicate("\n", timeout=LONG_S)
    assert (process.returncode, said, complaints) == (0, "", "")


@contextmanager
def a_process_that_serves(folder: Path, port: int = 0) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    (folder / "certificate.pem").write_bytes(own().certificate_pem)
    (folder / "key.pem").write_bytes(own().key_pem)
    command = [sys.executable, "-c", SERVER, str(folder), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def test_a_server_that_was_killed_and_came_back_is_the_same_peer(
    tmp_path: Path, connect: Connect, threads: ThreadPoolExecutor, opened: ExitStack
) -> None:
    (held,) = opened.enter_context(free_ports(HOST, 1))
    with a_process_that_serves(tmp_path, held) as (process, port):
        peer, hasty = connect(port, deadline_s=LONG_S, retries=10_000), connect(port, deadline_s=1.0)
        assert (peer.call(PATH, b"ab"), until(lambda: hasty.call(PATH, b"ab"))) == (b"ba", b"ba")
        process.kill()
        process.wait()
    assert "UNAVAILABLE" in str(until_refused(hasty))
    patient = threads.submit(peer.call, PATH, b"ef")  # begins while nobody listens
    with a_process_that_serves(tmp_path, port) as (_, again):
        assert again == port
        assert patient.result(timeout=LONG_S) == b"fe"
        assert until(lambda: hasty.call(PATH, b"gh")) == b"hg"


# ---- trustees ------------------------------------------------------------------------------------------------------


class Echoing:
    """Answers each question with its own name for it."""

    def follow(self, update: bytes) -> bytes:
        return b"followed " + update

    def evaluate(self, request: bytes) -> bytes:
        return b"evaluated " + request

    def endorse(self, request: bytes) -> bytes:
        return b"endorsed " + request

    def unmask(self, request: bytes) -> bytes:
        raise AlreadyAnswered(f"trustee 3 heard {len(request)} bytes before")

    def anchor(self, request: bytes) -> bytes:
        return b"anchored " + request


def test_a_trustees_methods_are_reached_from_either_side(
    opened: ExitStack, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trustee.server")
    server = opened.enter_context(serve_trustee(Echoing(), f"{HOST}:0", own().certificate_pem, own().key_pem))
    tenants, providers = RemoteTrustee(3, connect(server)), providers_side.RemoteTrustee(3, connect(server))
    assert tenants.evaluate(b"secret") == b"evaluated secret"
    assert tenants.anchor(b"secret") == b"anchored secret"
    assert providers.follow(b"secret") == b"followed secret"
    assert providers.endorse(b"secret") == b"endorsed secret"
    with pytest.raises(AlreadyAnswered, match="trustee 3 heard 6 bytes before"):
        providers.unmask(b"secret")
    assert tenants.index == providers.index == 3
    lines = [vars(record) for record in caplog.records if record.name == "trustee.server"]
    named = [(line["method"], line["outcome"], line["bytes_in"], line["bytes_out"]) for line in lines]
    assert named == [
        ("evaluate", "answered", 6, 16),
        ("anchor", "answered", 6, 15),
        ("follow", "answered", 6, 15),
        ("endorse", "answered", 6, 15),
        ("unmask", "AlreadyAnswered", 6, 0),
    ]
    assert all(0.0 <= line["took_ms"] < 1000.0 * LONG_S for line in lines)
    assert "secret" not in caplog.text


def served(opened: ExitStack, trustee: Trustee) -> Server:
    """A real trustee at a port; it stops before the trustee is closed."""
    return opened.enter_context(serve_trustee(trustee, f"{HOST}:0", own().certificate_pem, own().key_pem))


def test_tokens_are_the_same_over_the_wire(cast: Cast, opened: ExitStack, connect: Connect) -> None:
    here, there = cast.trustees(), cast.trustees()
    remote = [RemoteTrustee(trustee.index, connect(served(opened, trustee))) for trustee in there]
    described = rungs(a_descriptor(), ())
    ladders = []
    both: tuple[Sequence[TrusteeService], ...] = (here, remote)
    for tenant, trustees in enumerate(both):
        connection = opened.enter_context(closing(open_database(cast.root / f"tokens-{tenant}.db")))
        source = TokenSource(keys().directory, trustees, keys().tenants[tenant][0], connection, os.urandom)
        ladders.append(source.ladder(described, 0))
    assert ladders[0] == ladders[1]


def test_a_trustee_that_is_away_is_replaced_by_another(cast: Cast, opened: ExitStack, connect: Connect) -> None:
    trustees = cast.trustees()
    remote = [
        RemoteTrustee(trustee.index, connect(served(opened, trustee), deadline_s=LONG_S)) for trustee in trustees[1:]
    ]
    with closing(socket.create_server((HOST, 0))) as taken:
        nobody = taken.getsockname()[1]
    away = RemoteTrustee(1, connect(nobody, deadline_s=0.5))
    connection = opened.enter_context(closing(open_database(cast.root / "tokens.db")))
    source = TokenSource(keys().directory, [away, *remote], keys().tenants[0][0], connection, os.urandom)
    assert source.ladder(rungs(a_descriptor(), ()), 0).exact is not None


def test_a_real_trustees_refusals_arrive(cast: Cast, opened: ExitStack, connect: Connect) -> None:
    trustee = cast.trustee(3, TrusteeLimits(evaluations_per_epoch=1))
    server = served(opened, trustee)
    connection = opened.enter_context(closing(open_database(cast.root / "tokens.db")))
    remote = [RemoteTrustee(3, connect(server))]
    source = TokenSource(keys().directory, remote, keys().tenants[0][0], connection, os.urandom)
    with pytest.raises(PeerFault, match=r"trustee 3: QuotaExceeded: tenant .* asked for"):
        source.ladder(rungs(a_descriptor(), ()), 0)
    with pytest.raises(DecodeError):
        providers_side.RemoteTrustee(3, connect(server)).unmask(b"garbage")
    with pytest.raises(DecodeError):
        providers_side.RemoteTrustee(3, connect(server)).endorse(b"garbage")


def test_a_round_is_endorsed_and_unmasked_over_the_wire(cast: Cast, opened: ExitStack, connect: Connect) -> None:
    plan = a_plan()
    trustees = [cast.trustee(trustee.index) for trustee in plan.trustees]
    remote = [providers_side.RemoteTrustee(trustee.index, connect(served(opened, trustee))) for trustee in trustees]
    request = an_unmask_request(plan)
    endorsements = tuple(trustee.endorse(request) for trustee in remote)
    assert [trustee.endorse(request) for trustee in trustees] == list(endorsements)
    call = encode(UnmaskCall(request, (cast.trustee(1).endorse(request), *endorsements)))
    assert [trustee.unmask(call) for trustee in remote] == [trustee.unmask(call) for trustee in trustees]
    with pytest.raises(AlreadyAnswered, match="endorsed another set"):
        remote[0].endorse(an_unmask_request(plan, tenants=TENANTS - 1))


def an_unmask_request(plan: Plan, tenants: int = TENANTS) -> bytes:
    """For the first `tenants`, in one group, each of whom owns a lease of every row."""
    order = sorted(range(tenants), key=lambda number: keys().tenant_id(number))
    group = tuple(keys().tenants[number][0].sign(a_header(plan, number)) for number in order)
    return keys().provider.sign(UnmaskRequest(signed(plan), (group,), ownerships()))


def a_header(plan: Plan, tenant: int) -> ContributionHeader:
    named, zeros = plan_digest(signed(plan)), Digest(bytes(32))
    return ContributionHeader(keys().tenant_id(tenant), plan.round_id, named, plan.start_hour, Nonce(bytes(16)), zeros)
