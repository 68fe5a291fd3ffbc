"""How `benchmarks/hostile_calls.py` measures: servers in processes of their own, hostile and honest callers here."""

import os
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.hostile_peer import HostilePeer, grpc_message
from crypto.codec import Message, decode, encode
from crypto.errors import PharoahError
from crypto.ids import Signature, TenantId, Token
from crypto.signing import Signed, SigningKey
from federation.protocol.directory import DirectoryEntry
from federation.protocol.round_messages import (
    DirectoryUpdate,
    EvaluationRequest,
    LeaseRequest,
    UnmaskCall,
    UnmaskRequest,
)
from federation.protocol.service_messages import CheckRequest, Session, SignIn
from federation.protocol.services import CEILINGS, ProviderMethod, TrusteeMethod
from federation.transport.certificates import Certificate, make_certificate
from federation.transport.client import Peer
from federation.transport.introductions import Introducing, parties
from federation.transport.question import PART_BYTES, in_parts
from simulation.run.online_service import HOST, Grounds, OneHint, asked, process, settle

ELSEWHERE = "127.0.0.2"
AT_ONCE = 8
PEERS = 10
PAUSE_S = 0.02
MEMBERS = 40

Call = Callable[[Peer], bytes]


@dataclass(frozen=True)
class Served:
    """A server process, and how an honest caller and a member call it."""

    name: str
    port: int
    pid: int
    certificate_pem: bytes
    member: SigningKey
    honest: Call
    methods: tuple[str, ...]

    def peer(self, *, is_member: bool = False) -> Peer:
        """A caller with a connection of its own."""
        introducing = Introducing(self.member, time.time) if is_member else None
        return Peer(f"{HOST}:{self.port}", self.certificate_pem, introducing=introducing)

    def cpu_s(self) -> float:
        """CPU time of the process so far."""
        return time.clock_gettime((~self.pid << 3) | 2)  # Linux: the CPU-time clock of another process

    def peak_mib(self) -> float:
        """The largest resident size since `forget_peak`."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def forget_peak(self) -> None:
        """From now on `peak_mib` begins with the present size."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


# ---- servers ---------------------------------------------------------------------------------------------------------


def _serve_trustee(certificate: Certificate, root: Path, line: Connection) -> None:
    from tests.support.factories import Cast, keys
    from trustee.server import serve_trustee

    settle(min(os.sched_getaffinity(0)))
    with closing(Cast(root)) as cast:
        trustee = cast.trustee()
        known = parties(lambda: trustee.chain.directory)
        pem = certificate.certificate_pem, certificate.key_pem
        with serve_trustee(trustee, f"{HOST}:0", *pem, known=known) as server:
            line.send((server.port, os.getpid(), keys().founding))
            line.recv()


@contextmanager
def trustee() -> Iterator[Served]:
    """A trustee that has just been enrolled; an honest call brings the directory that it has."""
    from tests.support.factories import keys

    certificate = make_certificate([HOST], datetime.now(UTC))
    with TemporaryDirectory() as folder, process(_serve_trustee, certificate, Path(folder)) as line:
        port, pid, founding = asked(line)
        update = encode(DirectoryUpdate((founding,)))
        yield Served(
            "trustee",
            port,
            pid,
            certificate.certificate_pem,
            keys().tenants[0][0],
            lambda peer: peer.call(TrusteeMethod.FOLLOW, update),
            tuple(TrusteeMethod),
        )


def _serve_provider(grounds: Grounds, line: Connection) -> None:
    from provider_server.online.service import serve_online
    from provider_server.online.sessions import Sessions, session_key

    settle(min(os.sched_getaffinity(0)))
    sessions = Sessions(session_key(grounds.provider_seed), time.time)
    pem = grounds.certificate_pem, grounds.key_pem
    with (
        closing(grounds.provider()) as provider,
        serve_online(
            provider, f"{HOST}:0", *pem, sessions=sessions, hints=OneHint(), take_outcome=lambda _who, _what: None
        ) as server,
    ):
        line.send((server.port, os.getpid()))
        line.recv()


@contextmanager
def provider() -> Iterator[Served]:
    """The online service of a provider that has published a bundle; an honest call is a check."""
    with TemporaryDirectory() as folder:
        grounds = Grounds.founded(Path(folder), MEMBERS)
        with process(_serve_provider, grounds) as line:
            port, pid = asked(line)
            with Peer(f"{HOST}:{port}", grounds.certificate_pem) as peer:
                checks = cycle([_check(peer, *tenant) for tenant in grounds.tenants()])
            yield Served(
                "provider",
                port,
                pid,
                grounds.certificate_pem,
                grounds.tenants()[0][0],
                lambda peer: peer.call(ProviderMethod.CHECK, next(checks)),
                tuple(ProviderMethod),
            )


def _check(peer: Peer, key: SigningKey, tenant: TenantId) -> bytes:
    """A check by a tenant that signs in for it."""
    session = decode(Session, peer.call(ProviderMethod.SIGN_IN, key.sign(SignIn(tenant, int(time.time())))))
    token = Token(bytes(Token.length))
    return encode(CheckRequest(session.token, (), token, token))


# ---- messages --------------------------------------------------------------------------------------------------------


SIGNED: dict[str, tuple[type[Message], bytes]] = {
    TrusteeMethod.EVALUATE: (EvaluationRequest, bytes(TenantId.length)),
    TrusteeMethod.ENDORSE: (UnmaskRequest, b""),
    TrusteeMethod.UNMASK: (UnmaskRequest, b""),
    ProviderMethod.LEASES: (LeaseRequest, bytes(TenantId.length)),
    ProviderMethod.SIGN_IN: (SignIn, bytes(TenantId.length)),
}


def unknown_signer(method: str, size: int) -> bytes:
    """As much as `size` bytes of a message that begins as the method demands, under a signature that is none."""
    if method == TrusteeMethod.FOLLOW:
        return encode(DirectoryUpdate((_signed_by_nobody(DirectoryEntry, b"", size - 64),)))
    if method not in SIGNED:
        return os.urandom(size)
    kind, first = SIGNED[method]
    if method == TrusteeMethod.UNMASK:
        return encode(UnmaskCall(_signed_by_nobody(kind, first, size - 64), ()))
    return _signed_by_nobody(kind, first, size)


def _signed_by_nobody(kind: type[Message], first: bytes, size: int) -> bytes:
    fields = len(msgspec.structs.fields(kind))
    body = bytes([0x91 + fields]) + msgspec.msgpack.encode([kind.LABEL, first])[1:] + bytes(size - 200)
    return encode(Signed(Signature(bytes(Signature.length)), memoryview(body)))


KINDS: dict[str, Callable[[str, int], bytes]] = {
    "random": lambda _, size: os.urandom(size),
    "empty arrays": lambda _, size: b"\xdd" + (size - 5).to_bytes(4) + b"\x90" * (size - 5),
    "nested arrays": lambda _, size: b"\x91" * size,
    "good beginning": lambda method, size: unknown_signer(method, 4096)[:200] + os.urandom(size - 200),
    "unknown signer": unknown_signer,
}


@dataclass(frozen=True)
class MessageRow:
    """What eight messages of a kind cost."""

    row: str
    service: str
    method: str
    kind: str
    size: int
    cpu_s: float
    memory_mib: float
    honest_ms: float
    told: dict[str, int]


def message_row(served: Served, method: str, kind: str) -> MessageRow:
    """Sends them, while an honest call is made every `PAUSE_S`."""
    sent, ended = KINDS[kind](method, CEILINGS[method]), threading.Event()
    with ExitStack() as stack:
        peers = [stack.enter_context(served.peer(is_member=True)) for _ in range(AT_ONCE + 1)]
        for peer in peers:
            served.honest(peer)  # or the handshakes would count
        honest, *hostile = peers
        honest_cpu_s = _cpu_s(served, lambda: [served.honest(honest) for _ in range(PEERS)]) / PEERS
        served.forget_peak()
        memory_mib = served.peak_mib()
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE + 1))
        meanwhile = pool.submit(_honest_ms, served, honest, ended)
        told: Counter[str] = Counter()
        cpu_s = _cpu_s(served, lambda: told.update(pool.map(lambda peer: _told(peer, method, sent), hostile)))
        ended.set()
        honest_ms = meanwhile.result()
        grown = served.peak_mib() - memory_mib
    cost = max(0.0, cpu_s - honest_cpu_s * len(honest_ms)) / AT_ONCE
    return MessageRow("messages", served.name, method, kind, len(sent), cost, grown, max(honest_ms), dict(told))


def _cpu_s(served: Served, work: Callable[[], object]) -> float:
    before_s = served.cpu_s()
    work()
    return served.cpu_s() - before_s


def _honest_ms(served: Served, peer: Peer, ended: threading.Event) -> list[float]:
    """How long each honest call took, the last of which began before the end."""
    taken_ms: list[float] = []
    while not taken_ms or not ended.wait(PAUSE_S):
        began_s = time.perf_counter()
        served.honest(peer)
        taken_ms.append(1e3 * (time.perf_counter() - began_s))
    return taken_ms


def _told(peer: Peer, method: str, sent: bytes) -> str:
    """What a hostile call hears."""
    try:
        if method == ProviderMethod.WATCH:
            next(peer.stream(method, sent))
        else:
            peer.call(method, sent)
    except PharoahError as error:
        return type(error).__name__
    return "answered"


# ---- silence ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Silence:
    """Connections that were begun, and where from."""

    port: int
    source: str
    path: str

    def greeted(self, window: int | None = None) -> HostilePeer:
        """One that has done all up to its first call."""
        return HostilePeer(self.port, source=self.source).greet(window)

    def tcp(self, said: bytes = b"") -> socket.socket:
        """A connection without TLS."""
        line = socket.create_connection((HOST, self.port), source_address=(self.source, 0))
        line.sendall(said)
        return line

    def called(self, said: bytes = b"", window: int | None = None) -> HostilePeer:
        """A call with the first bytes of its body."""
        peer = self.greeted(window)
        peer.begin(self.path, said)
        return peer


HALF = grpc_message(bytes(10), announced=PART_BYTES)
SILENCES: dict[str, Callable[[Silence], socket.socket | HostilePeer]] = {
    "no TLS": Silence.tcp,
    "half of TLS": lambda silence: silence.tcp(b"\x16\x03\x01"),
    "TLS and no HTTP/2": lambda silence: HostilePeer(silence.port, source=silence.source),
    "no call": Silence.greeted,
    "no question": Silence.called,
    "half of a message": lambda silence: silence.called(HALF),
    "a byte a second": lambda silence: silence.called(HALF),
    "no answer taken": lambda silence: silence.called(grpc_message(in_parts(b"")[0]), 0),
}


@dataclass(frozen=True)
class SilenceRow:
    """What becomes of honest calls beside so many connections."""

    row: str
    service: str
    kind: str
    source: str
    connections: int
    calls: int
    answered: int
    honest_ms: float
    median_ms: float
    memory_mib: float


def silence_row(served: Served, kind: str, source: str, connections: int, calls: int) -> SilenceRow:
    """Begins the connections, and then makes the calls."""
    memory_mib, silence = served.peak_mib(), Silence(served.port, source, served.methods[0])
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(PEERS))
        begun = list(pool.map(lambda _: SILENCES[kind](silence), range(connections)))
        for line in begun:
            stack.callback(line.close)
        ended = threading.Event()
        stack.callback(ended.set)
        if kind == "a byte a second":
            threading.Thread(target=_drip, args=(begun, ended), daemon=True).start()
        peers = [stack.enter_context(served.peer()) for _ in range(PEERS)]
        taken = list(pool.map(lambda number: _taken_ms(served, peers[number % PEERS]), range(calls)))
    answered = [ms for ms in taken if ms is not None]
    slowest, usual = (max(answered), statistics.median(answered)) if answered else (float("inf"), float("inf"))
    grown = served.peak_mib() - memory_mib
    return SilenceRow("silence", served.name, kind, source, connections, calls, len(answered), slowest, usual, grown)


def _taken_ms(served: Served, peer: Peer) -> float | None:
    """Of an honest call; None if it was not answered."""
    began_s = time.perf_counter()
    with suppress(PharoahError):
        served.honest(peer)
        return 1e3 * (time.perf_counter() - began_s)
    return None


def _drip(begun: list[socket.socket | HostilePeer], ended: threading.Event) -> None:
    while not ended.wait(1.0):
        for peer in begun:
            with suppress(OSError, EOFError):
                if isinstance(peer, HostilePeer):
                    peer.send(1, b"\0", within_s=0.001)


# ---- all of it -------------------------------------------------------------------------------------------------------


def rows(*, quick: bool) -> Iterator[MessageRow | SilenceRow]:
    """Every row, as it is measured; each service keeps one process for its messages, and has one for each silence."""
    kinds = ("random", "unknown signer") if quick else tuple(KINDS)
    for service in (trustee, provider):
        with service() as served:
            for method in served.methods[: 1 if quick else None]:
                for kind in kinds:
                    yield message_row(served, method, kind)
    for service in (trustee, provider):
        for kind in ("no question",) if quick else tuple(SILENCES):
            for source in (HOST,) if quick else (HOST, ELSEWHERE):
                with service() as served:
                    yield silence_row(served, kind, source, 50 if quick else 1000, 20 if quick else 100)
