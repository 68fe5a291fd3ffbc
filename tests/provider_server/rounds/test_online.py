"""The provider's online service over gRPC: what anybody gets, and what only the tenant that signed gets."""

import os
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from crypto.codec import decode, digest, encode
from crypto.errors import (
    BadSignature,
    DecodeError,
    NothingPublished,
    NotSignedIn,
    NotYours,
    PeerFault,
    PharoahError,
    Refusal,
    TooManyRequests,
    Unreachable,
)
from crypto.ids import LeaseId, TenantId, Token
from crypto.signing import Signed, SigningKey, open_signed, reopened
from federation.protocol.bundle import (
    SKETCH_BYTES,
    Bundle,
    Catalogue,
    CatalogueEntry,
    HazardEntry,
    MismatchEntry,
    PairJudgement,
)
from federation.protocol.check import Checker, check
from federation.protocol.directory import Chain
from federation.protocol.round_messages import DirectoryUpdate, LeaseGrants, LeaseRequest
from federation.protocol.service_messages import (
    SESSION_BYTES,
    Action,
    CheckAnswer,
    CheckRequest,
    CheckVerdict,
    Hint,
    HintState,
    LeaseChange,
    LeaseEnd,
    Notice,
    Outcome,
    Session,
    SignIn,
    Suspicion,
    WatchRequest,
)
from federation.protocol.services import PROVIDER, ProviderMethod
from federation.transport.certificates import Certificate, make_certificate
from federation.transport.client import Peer
from federation.transport.server import Method, Server, serve
from provider_server.rounds.online.service import DEFAULT_LIMITS, OnlineLimits, serve_online
from provider_server.rounds.online.sessions import Rate, Sessions, session_key
from provider_server.rounds.store.revocations import LIFETIME_S
from simulation.run.federation import Federation
from simulation.run.processes import free_ports
from tenant_client.rounds.network.provider_service import Online
from tests.support.changing import replace
from tests.support.factories import labels, ladder
from tests.support.federations import LEASES, NEWCOMER, WEEKS, Grounds, begin, lease_id
from tests.support.waiting import PATIENCE_S, until

HOST = "127.0.0.1"
KEY = session_key(bytes(32))


@cache
def tls() -> Certificate:
    return make_certificate([HOST], datetime.now(UTC))


def a_hint(number: int, lease: LeaseId) -> Hint:
    raised = HintState.RAISED, Suspicion.MEMORY, 4.0, 2.0, 8.0, 0.3, 72.0, Action.CONFIRM, 1
    return Hint(number, 500_000.0 + number, lease, *raised)


@dataclass
class Hints:
    """Hints in memory; they outlive the server."""

    by_tenant: defaultdict[TenantId, list[Notice]] = field(default_factory=lambda: defaultdict(list))
    callbacks: list[Callable[[TenantId], None]] = field(default_factory=list)

    def after(self, tenant: TenantId, number: int) -> Sequence[Notice]:
        return [hint for hint in self.by_tenant[tenant] if hint.number > number]

    def subscribe(self, callback: Callable[[TenantId], None]) -> None:
        self.callbacks.append(callback)

    def look(self) -> None:
        """Nobody else makes hints."""

    def add(self, tenant: TenantId, lease: LeaseId, count: int = 1) -> None:
        for _ in range(count):
            self.by_tenant[tenant].append(a_hint(len(self.by_tenant[tenant]) + 1, lease))
            for callback in self.callbacks:
                callback(tenant)


@dataclass
class Served:
    """What a server was given and what it hands on."""

    hints: Hints = field(default_factory=Hints)
    outcomes: list[tuple[TenantId, Outcome]] = field(default_factory=list)
    now_s: Callable[[], float] = time.time
    lifetime_s: int = LIFETIME_S
    key: bytes = KEY
    limits: OnlineLimits = DEFAULT_LIMITS

    def take(self, tenant: TenantId, outcome: Outcome) -> None:
        self.outcomes.append((tenant, outcome))


@contextmanager
def serving(federation: Federation, served: Served | None = None, port: int = 0) -> Iterator[tuple[Server, Served]]:
    given = served or Served()
    sessions = Sessions(given.key, given.now_s, given.lifetime_s)
    with serve_online(
        federation.provider,
        f"{HOST}:{port}",
        tls().certificate_pem,
        tls().key_pem,
        sessions=sessions,
        hints=given.hints,
        take_outcome=given.take,
        limits=given.limits,
    ) as server:
        yield server, given


def calling(server: Server | int, deadline_s: float = 30.0) -> Peer:
    port = server if isinstance(server, int) else server.port
    return Peer(f"{HOST}:{port}", tls().certificate_pem, deadline_s=deadline_s)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("online")
    with Grounds.founded(root, 3).opened(root) as parties:
        for number in range(2):
            begin(parties, number)
        yield parties


@pytest.fixture(scope="module")
def peer(federation: Federation) -> Iterator[Peer]:
    with serving(federation) as (server, _), calling(server) as asked:
        yield asked


def granted(federation: Federation, peer: Peer, request: bytes) -> LeaseGrants:
    return open_signed(LeaseGrants, peer.call(ProviderMethod.LEASES, request), federation.provider.directory.provider)


def test_anybody_gets_the_directory_and_what_is_new_in_it(federation: Federation, peer: Peer) -> None:
    first, *later = decode(DirectoryUpdate, peer.call(ProviderMethod.DIRECTORY, b"")).entries
    chain = Chain.begin(first, federation.provider.directory.provider).extended(later)
    assert {member.tenant for member in chain.directory.members} >= {tenant.id for tenant in federation.tenants}
    federation.provider.members.enrol([NEWCOMER])
    newer = decode(DirectoryUpdate, peer.call(ProviderMethod.DIRECTORY, b"")).entries
    assert chain.extended(newer).directory.by_id[NEWCOMER.tenant] == NEWCOMER


def test_a_tenant_gets_its_own_leases_and_no_others(federation: Federation, peer: Peer) -> None:
    for number, leases in ((0, LEASES), (1, LEASES), (2, 0)):
        tenant = federation.tenants[number]
        grants = granted(federation, peer, tenant.lease_request(*WEEKS[0]))
        assert grants.tenant == tenant.id
        assert [lease.lease for lease in grants.leases] == [
            lease_id(number, WEEKS[0], lease) for lease in range(leases)
        ]


def test_leases_are_those_that_began_in_the_hours_asked_about(federation: Federation, peer: Peer) -> None:
    tenant = federation.tenants[0]
    assert not granted(federation, peer, tenant.lease_request(2, 168)).leases
    assert len(granted(federation, peer, tenant.lease_request(1, 2)).leases) == LEASES


def test_another_tenants_signature_gives_no_leases(federation: Federation, peer: Peer) -> None:
    asked = LeaseRequest(federation.tenants[0].id, *WEEKS[0])
    forged = federation.tenants[1]._signing_key.sign(asked)
    with pytest.raises(BadSignature):
        peer.call(ProviderMethod.LEASES, forged)
    assert granted(federation, peer, federation.tenants[0]._signing_key.sign(asked)).leases  # the signature decides


def test_a_stranger_gets_no_leases(federation: Federation, peer: Peer) -> None:
    stranger = SigningKey.generate(os.urandom)
    with pytest.raises((BadSignature, PeerFault, Refusal)):
        peer.call(ProviderMethod.LEASES, stranger.sign(LeaseRequest(federation.tenants[0].id, *WEEKS[0])))
    with pytest.raises(DecodeError):
        peer.call(ProviderMethod.LEASES, b"give me all leases")


def test_a_replayed_request_serves_nobody_else(federation: Federation, peer: Peer) -> None:
    """Whoever has the bytes of a request gets an answer that names its signer, and no other tenant takes it."""
    replayed = federation.tenants[0].lease_request(*WEEKS[0])
    answer = peer.call(ProviderMethod.LEASES, replayed)
    with pytest.raises(PeerFault, match="another tenant"):
        federation.tenants[1].take_leases(answer)
    assert federation.tenants[0].take_leases(answer) == 0  # nothing is described here


def test_the_bundle_comes_after_the_first_and_not_before(federation: Federation, peer: Peer) -> None:
    with pytest.raises(Refusal, match="no bundle") as caught:
        peer.call(ProviderMethod.BUNDLE, b"")
    assert "after the first round" in caught.value.hint
    published = federation.publisher.publish_catalogue(())
    assert peer.call(ProviderMethod.BUNDLE, b"") == published
    assert open_signed(Bundle, published, federation.provider.directory.provider).number == 0
    assert peer.call(ProviderMethod.BUNDLE, digest(published)) == b""


# ---- a federation whose provider has learnt something --------------------------------------------------------------


def a_bundle(number: int, ratio: float = 4.0) -> Bundle:
    """Workload 0 is a mismatch on context 0 and well on 1; nothing is known of workload 1."""
    places = [Token(bytes.fromhex(labels(0, place)["context"])) for place in range(2)]
    level = Token(bytes.fromhex(labels(0, 0)["context_level"]))
    own = ladder(0).subarchetype
    worse = MismatchEntry(own, places[0], 0.99, ratio, ratio / 2, 2 * ratio, 12.0, PairJudgement.WORSE, (places[1],))
    well = MismatchEntry(own, places[1], 0.01, 1.0, 0.9, 1.1, 12.0, PairJudgement.NOT_WORSE, ())
    catalogue = tuple(CatalogueEntry(name, bytes(SKETCH_BYTES)) for name in ("resnet", "bert"))
    return Bundle(number, 0, 168, catalogue, (worse, well), (HazardEntry(level, "0", 1.0, 0.5, 2.0),), None)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("learnt")
    with Grounds.founded(root, 3).opened(root) as parties:
        begin(parties, 0)
        parties.publisher.issue(a_bundle(1))
        yield parties


def line(
    peer: Peer, federation: Federation, number: int = 0, *, now_s: Callable[[], float] = time.time, **pauses: float
) -> Online:
    """Tenant `number`, as it asks the provider."""
    tenant, provider = federation.tenants[number], federation.provider.directory.provider
    return Online(peer, tenant._signing_key, tenant.id, provider, now_s, **pauses)


@dataclass
class Place:
    """A served federation and the line to it."""

    federation: Federation
    server: Server
    served: Served
    peer: Peer
    stack: ExitStack

    def online(self, number: int = 0) -> Online:
        return self.stack.enter_context(line(self.peer, self.federation, number, first_pause_s=0.05))

    def sign_in(self, number: int = 0, late_s: int = 0) -> bytes:
        tenant = self.federation.tenants[number]
        request = tenant._signing_key.sign(SignIn(tenant.id, int(time.time()) - late_s))
        return decode(Session, self.peer.call(ProviderMethod.SIGN_IN, request)).token

    def check(self, session: bytes) -> CheckAnswer:
        return decode(CheckAnswer, self.peer.call(ProviderMethod.CHECK, a_question(session)))

    def tenant(self, number: int) -> TenantId:
        return self.federation.tenants[number].id


Start = Callable[..., Place]


@pytest.fixture
def start(learnt: Federation, opened: ExitStack) -> Start:
    def started(federation: Federation | None = None, **served: Any) -> Place:
        server, given = opened.enter_context(serving(federation or learnt, Served(**served)))
        return Place(federation or learnt, server, given, opened.enter_context(calling(server)), opened)

    return started


def a_question(session: bytes, rungs: int = 1) -> bytes:
    own = labels(0, 0)
    context, level = (Token(bytes.fromhex(own[name])) for name in ("context", "context_level"))
    return encode(CheckRequest(session, (ladder(0).subarchetype,) * rungs, context, level))


# ---- what is public ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [ProviderMethod.DIRECTORY, ProviderMethod.BUNDLE, ProviderMethod.CATALOGUE])
def test_who_has_it_is_sent_nothing_and_who_has_another_is(start: Start, method: ProviderMethod) -> None:
    peer = start().peer
    content = peer.call(method, b"")
    assert len(content) > 32
    assert peer.call(method, digest(content)) == b""
    assert peer.call(method, bytes(32)) == content
    for wrong in (bytes(31), bytes(33), content):
        with pytest.raises(DecodeError, match="empty or the SHA-256"):
            peer.call(method, wrong)


def test_the_catalogue_is_that_of_the_bundle_in_order(start: Start) -> None:
    place = start()
    entries = decode(Catalogue, place.peer.call(ProviderMethod.CATALOGUE, b"")).entries
    assert [entry.name for entry in entries] == ["bert", "resnet"]
    etag = digest(place.federation.provider.newest_bundle() or b"")
    assert place.online().bundle() == place.federation.provider.newest_bundle()
    assert place.online().bundle(etag) is None


# ---- checks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "context", "verdict"),
    [
        (0, 0, CheckVerdict.MISMATCH),
        (0, 1, CheckVerdict.OK),
        (0, 2, CheckVerdict.UNKNOWN),
        (5, 0, CheckVerdict.UNKNOWN),
    ],
)
def test_a_check_online_is_the_check_at_home(start: Start, workload: int, context: int, verdict: CheckVerdict) -> None:
    lease = labels(workload, context)
    found = start().online().check(lease)
    assert found.verdict is verdict
    assert found == check(a_bundle(1), lease)
    assert bool(found.hazards) is (context == 0)


def test_before_the_first_bundle_nothing_is_known(tmp_path: Path, start: Start) -> None:
    with Grounds.founded(tmp_path, 3).opened(tmp_path) as parties:
        place = start(parties, limits=replace(DEFAULT_LIMITS, refresh_s=0.05))
        assert place.online().check(labels()) == check(None, labels())
        with pytest.raises(NothingPublished):
            place.peer.call(ProviderMethod.CATALOGUE, b"")
        parties.publisher.issue(a_bundle(1))
        until(lambda: place.online().check(labels()).verdict is CheckVerdict.MISMATCH)


def test_a_ladder_that_is_too_long_is_refused(start: Start) -> None:
    place = start()
    session = place.sign_in()
    place.peer.call(ProviderMethod.CHECK, a_question(session, rungs=3))
    with pytest.raises(DecodeError, match="at most 3 rungs"):
        place.peer.call(ProviderMethod.CHECK, a_question(session, rungs=4))


def test_labels_that_are_no_tokens_are_refused_before_they_are_sent(start: Start) -> None:
    with pytest.raises(PharoahError, match="'hall 3' is not a token"):
        start().online().check(labels() | {"context": "hall 3"})


def test_a_new_bundle_takes_over_while_checks_run(tmp_path: Path, start: Start) -> None:
    """Every answer is by one bundle from beginning to end, and never by an older one than the answer before."""
    with Grounds.founded(tmp_path, 3).opened(tmp_path) as parties:
        parties.publisher.issue(a_bundle(1, ratio=1.0))
        rates = replace(DEFAULT_LIMITS, refresh_s=0.05, calls=Rate(1e6, 1_000_000))
        place = start(parties, limits=rates)
        stop, seen = threading.Event(), list[list[tuple[int, float]]]([[], [], []])

        def ask(number: int) -> None:
            session = place.sign_in(number)
            while not stop.is_set():
                answer = place.check(session)
                assert answer.evidence is not None
                seen[number].append((answer.bundle, answer.evidence.risk_ratio))

        def told(number: int) -> bool:
            return all(number in dict(own) for own in seen)

        with ThreadPoolExecutor(3) as askers:
            asking = [askers.submit(ask, number) for number in range(3)]
            try:
                until(lambda: told(1) or any(one.done() for one in asking))
                for number in range(2, 6):
                    time.sleep(0.2)
                    parties.publisher.issue(a_bundle(number, ratio=float(number)))
                until(lambda: told(5) or any(one.done() for one in asking))
            finally:
                stop.set()
            for one in asking:
                one.result(PATIENCE_S)
        for own in seen:
            assert all(bundle == ratio for bundle, ratio in own)
            assert own == sorted(own)
            assert {bundle for bundle, _ in own} >= {1, 5}


# ---- who is let in -------------------------------------------------------------------------------------------------


def the_calls(session: bytes) -> dict[ProviderMethod, bytes]:
    lease = lease_id(0, WEEKS[0], 0)
    said = Outcome(session, 1, lease, Suspicion.MEMORY, True, 10.0)  # noqa: FBT003
    return {
        ProviderMethod.CHECK: a_question(session),
        ProviderMethod.WATCH: encode(WatchRequest(session, 0)),
        ProviderMethod.OUTCOME: encode(said),
    }


def answer(peer: Peer, method: ProviderMethod, request: bytes) -> bytes:
    return next(peer.stream(method, request)) if method is ProviderMethod.WATCH else peer.call(method, request)


@pytest.mark.parametrize("method", the_calls(b""))
def test_without_a_session_there_is_no_answer(start: Start, method: ProviderMethod) -> None:
    place = start()
    place.served.hints.add(place.tenant(0), lease_id(0, WEEKS[0], 0))
    good = place.sign_in()
    forged = bytes([good[0] ^ 1]) + good[1:]
    others = place.tenant(1) + good[16:]
    elsewhere = Sessions(bytes(32), time.time).grant(SignIn(place.tenant(0), int(time.time()))).token
    for wrong in (b"", bytes(SESSION_BYTES), good[:-1], good + b"\0", forged, others, elsewhere):
        with pytest.raises(NotSignedIn, match="not a session of this provider"):
            answer(place.peer, method, the_calls(wrong)[method])
    for malformed in (b"", b"garbage", the_calls(good)[method][:-1], the_calls(good)[method] + b"\0"):
        with pytest.raises(DecodeError):
            answer(place.peer, method, malformed)
    answer(place.peer, method, the_calls(good)[method])


@pytest.mark.parametrize("method", the_calls(b""))
def test_a_session_that_is_over_is_refused(start: Start, method: ProviderMethod) -> None:
    began_s = time.time()
    place = start(now_s=lambda: began_s, lifetime_s=0)
    with pytest.raises(NotSignedIn, match="has expired"):
        answer(place.peer, method, the_calls(place.sign_in())[method])


def test_a_sign_in_is_the_tenants_own_and_fresh(start: Start) -> None:
    place = start()
    sign_in, now_s = ProviderMethod.SIGN_IN, int(time.time())
    stranger = SigningKey.generate(os.urandom)
    own_key = place.federation.tenants[1]._signing_key
    with pytest.raises(BadSignature, match="not in the directory"):
        place.peer.call(sign_in, stranger.sign(SignIn(TenantId(bytes(16)), now_s)))
    for key in (stranger, own_key):
        with pytest.raises(BadSignature, match="is not signed"):
            place.peer.call(sign_in, key.sign(SignIn(place.tenant(0), now_s)))
    with pytest.raises(DecodeError):
        place.peer.call(sign_in, own_key.sign(LeaseRequest(place.tenant(1), 0, 168)))
    with pytest.raises(DecodeError):
        place.peer.call(sign_in, b"let me in")
    for late_s in (400, -400):
        with pytest.raises(NotSignedIn, match="limit 300 s"):
            place.sign_in(late_s=late_s)
    assert len(place.sign_in(late_s=200)) == SESSION_BYTES


def test_who_asks_too_often_waits_and_nobody_else_does(start: Start) -> None:
    place = start(limits=replace(DEFAULT_LIMITS, calls=Rate(0.001, 5), sign_ins=Rate(0.001, 3)))
    hasty, other = place.sign_in(0), place.sign_in(1)
    for _ in range(5):
        place.check(hasty)
    with pytest.raises(TooManyRequests, match=r"limit 0\.001 a second, 5 at once") as refused:
        place.check(hasty)
    assert "try again in" in refused.value.hint
    with pytest.raises(TooManyRequests):
        place.peer.call(ProviderMethod.LEASES, place.federation.tenants[0].lease_request(*WEEKS[0]))
    assert place.check(other).bundle == 1
    for _ in range(2):
        place.sign_in(0)
    with pytest.raises(TooManyRequests, match=r"limit 0\.001 a second, 3 at once"):
        place.sign_in(0)
    place.sign_in(2)


def test_nobody_uses_up_a_tenants_sign_ins_for_it(start: Start) -> None:
    place = start(limits=replace(DEFAULT_LIMITS, sign_ins=Rate(0.001, 2)))
    forged = SigningKey.generate(os.urandom).sign(SignIn(place.tenant(0), int(time.time())))
    for _ in range(5):
        with pytest.raises(BadSignature):
            place.peer.call(ProviderMethod.SIGN_IN, forged)
    place.sign_in(0)


def test_too_large_and_unknown_questions_harm_nobody(start: Start) -> None:
    place = start()
    for method in (ProviderMethod.CHECK, ProviderMethod.LEASES, ProviderMethod.SIGN_IN):
        with pytest.raises(DecodeError, match="65537 bytes was announced, 65536 are taken"):
            place.peer.call(method, bytes(65_537))
    with pytest.raises(PeerFault, match="UNIMPLEMENTED"):
        place.peer.call(f"/{PROVIDER}/Everything", b"")
    assert place.check(place.sign_in()).bundle == 1


def test_a_tenant_that_has_left_is_out_at_once(tmp_path: Path, start: Start) -> None:
    with Grounds.founded(tmp_path, 3).opened(tmp_path) as parties:
        parties.publisher.issue(a_bundle(1))
        place = start(parties, limits=replace(DEFAULT_LIMITS, refresh_s=0.05))
        session = place.sign_in(0)
        hints = place.peer.stream(ProviderMethod.WATCH, the_calls(session)[ProviderMethod.WATCH])
        place.served.hints.add(place.tenant(0), lease_id(0, WEEKS[0], 0))
        assert reopened(Hint, next(hints)).number == 1
        with ThreadPoolExecutor(1) as listener:
            ended = listener.submit(next, hints, None)
            parties.provider.members.enrol([], left=[place.tenant(0)])
            assert ended.result(PATIENCE_S) is None
        with pytest.raises(NotSignedIn, match=r"no longer enrolled|was revoked"):
            place.check(session)
        with pytest.raises(BadSignature, match="not in the directory"):
            place.sign_in(0)


def test_stolen_sessions_are_called_back_while_the_server_runs(tmp_path: Path, start: Start) -> None:
    with Grounds.founded(tmp_path, 3).opened(tmp_path) as parties:
        parties.publisher.issue(a_bundle(1))
        place = start(parties, limits=replace(DEFAULT_LIMITS, refresh_s=0.05))
        stolen, of_another = place.sign_in(0), place.sign_in(1)
        assert place.check(stolen).bundle == 1
        hints = place.peer.stream(ProviderMethod.WATCH, the_calls(stolen)[ProviderMethod.WATCH])
        place.served.hints.add(place.tenant(0), lease_id(0, WEEKS[0], 0))
        assert reopened(Hint, next(hints)).number == 1
        parties.provider.members.revoke([place.tenant(0)])
        with ThreadPoolExecutor(1) as listener:
            assert listener.submit(next, hints, None).result(PATIENCE_S) is None
        with pytest.raises(NotSignedIn, match="was revoked"):
            place.check(stolen)
        assert place.check(of_another).bundle == 1
        assert place.check(place.sign_in(0)).bundle == 1
        with pytest.raises(PeerFault, match="is not enrolled"):
            parties.provider.members.revoke([TenantId(bytes(16))])


def test_a_session_from_before_a_tenant_left_does_not_come_back_with_it(tmp_path: Path, start: Start) -> None:
    with Grounds.founded(tmp_path, 3).opened(tmp_path) as parties:
        parties.publisher.issue(a_bundle(1))
        place = start(parties, limits=replace(DEFAULT_LIMITS, refresh_s=0.05))
        session, member = place.sign_in(0), parties.provider.directory.by_id[place.tenant(0)]
        parties.provider.members.enrol([], left=[member.tenant])
        parties.provider.members.enrol([member])

        def is_refused() -> bool:
            try:
                place.check(session)
            except NotSignedIn:
                return True
            return False

        until(is_refused)
        with pytest.raises(NotSignedIn, match="was revoked"):
            place.check(session)
        assert place.check(place.sign_in(0)).bundle == 1


# ---- watching ------------------------------------------------------------------------------------------------------


def test_a_tenant_sees_its_own_hints_and_no_others(start: Start) -> None:
    place = start()
    hints = place.served.hints
    for number in range(2):
        hints.add(place.tenant(number), lease_id(number, WEEKS[0], 0), count=3)
    for number in range(2):
        watched = [hint for hint, _ in islice(place.online(number).watch(after=0), 3)]
        assert watched == hints.by_tenant[place.tenant(number)]
        assert {hint.lease for hint in watched} == {lease_id(number, WEEKS[0], 0)}
    assert [hint.number for hint, _ in islice(place.online(1).watch(after=2), 1)] == [3]


def test_ends_of_leases_come_with_the_hints_and_no_outcome_is_about_them(start: Start) -> None:
    place, lease = start(), lease_id(0, WEEKS[0], 0)
    hints, tenant = place.served.hints, place.tenant(0)
    hints.add(tenant, lease)
    end = LeaseEnd(2, 3.0, lease, LeaseChange.REQUEUED, 2.5, None)
    hints.by_tenant[tenant].append(end)
    hints.add(tenant, lease)
    online = place.online()
    notices = list(islice(online.watch(after=0), 3))
    assert [type(told.notice) for told in notices] == [Hint, LeaseEnd, Hint]
    signed = Signed(notices[1].signature, memoryview(encode(end)))
    assert open_signed(LeaseEnd, encode(signed), place.federation.provider.directory.provider) == end
    with pytest.raises(NotYours, match="hint 2 of this lease"):
        online.outcome(a_hint(2, lease), Suspicion.COMPUTE, confirmed=True, shortfall_percent=1.0)


def test_a_hint_arrives_when_it_is_made(start: Start) -> None:
    place = start()
    arrived: list[tuple[int, float]] = []
    online = place.online()

    def listen() -> None:
        arrived.extend((hint.number, time.monotonic()) for hint, _ in online.watch(after=0))

    with ThreadPoolExecutor(1) as listener:
        ended = listener.submit(listen)
        time.sleep(0.5)
        took_s = []
        for number in range(1, 11):
            place.served.hints.add(place.tenant(1), lease_id(1, WEEKS[0], 0))  # somebody else's wakes nobody
            made_s = time.monotonic()
            place.served.hints.add(place.tenant(0), lease_id(0, WEEKS[0], 0))
            until(lambda number=number: len(arrived) == number)  # type: ignore[misc]
            took_s.append(arrived[-1][1] - made_s)
        online.close()
        ended.result(PATIENCE_S)
    assert [number for number, _ in arrived] == [*range(1, 11)]
    assert min(took_s) < 1.0  # on a busy machine some wait for the processor


def test_a_watch_goes_on_over_restarts_without_loss_or_repeat(learnt: Federation, opened: ExitStack) -> None:
    served, lease, tenant = Served(), lease_id(0, WEEKS[0], 0), learnt.tenants[0]
    (port,) = opened.enter_context(free_ports(HOST, 1))
    peer = opened.enter_context(calling(port))
    online = line(peer, learnt, first_pause_s=0.01, longest_pause_s=0.1)
    arrived: list[Notice] = []

    def listen() -> None:
        arrived.extend(hint for hint, _ in online.watch(after=0))

    with ThreadPoolExecutor(1) as listener, online:
        ended = listener.submit(listen)
        for restart in range(1, 4):
            served.hints.add(tenant.id, lease, count=5)  # while nobody listens
            with serving(learnt, served, port):
                until(lambda restart=restart: len(arrived) >= 10 * restart - 5)  # type: ignore[misc]
                served.hints.add(tenant.id, lease, count=5)
        until(lambda: len(arrived) >= 25)  # of the last five some may be on their way when the server stops
        with serving(learnt, served, port):
            until(lambda: len(arrived) == 30)
            online.close()
            ended.result(PATIENCE_S)
    assert arrived == served.hints.by_tenant[tenant.id]


def test_a_watch_goes_on_after_its_session(start: Start) -> None:
    place = start(lifetime_s=1)
    online = place.online()
    with ThreadPoolExecutor(1) as listener:
        watched = listener.submit(lambda: list(islice(online.watch(after=0), 3)))
        for _ in range(3):
            time.sleep(1.1)
            place.served.hints.add(place.tenant(0), lease_id(0, WEEKS[0], 0))
        assert [hint.number for hint, _ in watched.result(PATIENCE_S)] == [1, 2, 3]


def test_another_key_of_the_provider_only_costs_a_sign_in(learnt: Federation, opened: ExitStack) -> None:
    (port,) = opened.enter_context(free_ports(HOST, 1))
    with serving(learnt, Served(), port):
        peer = opened.enter_context(calling(port))
        online = opened.enter_context(line(peer, learnt))
        assert online.check(labels()).verdict is CheckVerdict.MISMATCH
    with serving(learnt, Served(key=bytes(32)), port):
        assert online.check(labels()).verdict is CheckVerdict.MISMATCH


def test_whose_clock_is_wrong_is_told_so(start: Start) -> None:
    place = start()
    online = line(place.peer, place.federation, now_s=lambda: time.time() - 3600)
    with pytest.raises(NotSignedIn, match=r"360\d s old"):
        online.check(labels())
    with pytest.raises(NotSignedIn, match=r"360\d s old"):
        next(online.watch(after=0))


def test_a_tenant_has_so_many_watches(start: Start) -> None:
    place = start(limits=replace(DEFAULT_LIMITS, watches=2))
    place.served.hints.add(place.tenant(0), lease_id(0, WEEKS[0], 0))
    place.served.hints.add(place.tenant(1), lease_id(1, WEEKS[0], 0))
    watch = encode(WatchRequest(place.sign_in(0), 0))
    streams = [place.peer.stream(ProviderMethod.WATCH, watch) for _ in range(2)]
    for stream in streams:
        next(stream)
    with pytest.raises(TooManyRequests, match="already has 2 watches"):
        next(place.peer.stream(ProviderMethod.WATCH, watch))
    assert next(place.online(1).watch(after=0)).notice.number == 1
    streams[0].cancel()

    def again() -> bool:
        try:
            return bool(next(place.peer.stream(ProviderMethod.WATCH, watch)))
        except TooManyRequests:
            return False

    until(again)


# ---- outcomes ------------------------------------------------------------------------------------------------------


def test_an_outcome_arrives_with_its_tenant_and_without_its_session(start: Start) -> None:
    place = start()
    place.served.hints.add(place.tenant(0), lease_id(0, WEEKS[0], 0))
    ((hint, _),) = islice(place.online().watch(after=0), 1)
    assert isinstance(hint, Hint)
    place.online().outcome(hint, Suspicion.COMPUTE, confirmed=True, shortfall_percent=12.5)
    told = Outcome(b"", 1, hint.lease, Suspicion.COMPUTE, True, 12.5)  # noqa: FBT003
    assert place.served.outcomes == [(place.tenant(0), told)]


def test_of_what_is_not_its_own_a_tenant_learns_nothing(start: Start) -> None:
    """Another tenant's lease, its own without this hint, and nobody's: the same words, and nothing is handed on."""
    place = start()
    own, others = lease_id(0, WEEKS[0], 0), lease_id(1, WEEKS[0], 0)
    place.served.hints.add(place.tenant(0), own)
    place.served.hints.add(place.tenant(1), others, count=2)
    refusals = set()
    for number, lease in ((1, others), (2, own), (1, LeaseId(b"\7" * 16)), (2, others)):
        wrong = a_hint(number, lease)
        with pytest.raises(NotYours) as refused:
            place.online().outcome(wrong, Suspicion.MEMORY, confirmed=True, shortfall_percent=1.0)
        refusals.add((refused.value.what.replace(str(number), "N"), refused.value.hint))
    assert len(refusals) == 1
    assert not place.served.outcomes


# ---- a provider that cannot be believed ----------------------------------------------------------------------------


def test_a_verdict_that_does_not_follow_from_its_evidence_is_a_fault(learnt: Federation, opened: ExitStack) -> None:
    found = Checker(a_bundle(1)).check(labels())
    told = [CheckVerdict.MISMATCH]
    quick: dict[str, Method] = {
        ProviderMethod.SIGN_IN: lambda _: encode(Session(bytes(SESSION_BYTES), 2**40)),
        ProviderMethod.CHECK: lambda _: encode(CheckAnswer(1, told[0], found.evidence, found.hazards)),
    }
    pem = tls().certificate_pem, tls().key_pem
    server = opened.enter_context(serve(PROVIDER, {}, f"{HOST}:0", *pem, quick=quick))
    online = line(opened.enter_context(calling(server)), learnt)
    assert online.check(labels()) == found
    told[0] = CheckVerdict.OK
    with pytest.raises(PeerFault, match="does not follow"):
        online.check(labels())


def test_hints_that_come_twice_are_given_once(learnt: Federation, opened: ExitStack) -> None:
    lease = lease_id(0, WEEKS[0], 0)

    async def twice(request: bytes) -> AsyncGenerator[bytes, None]:
        for number in (1, 2, 2, 1, 3):
            yield learnt.provider.signed_notice(a_hint(number, lease))

    quick: dict[str, Method] = {ProviderMethod.SIGN_IN: lambda _: encode(Session(bytes(SESSION_BYTES), 2**40))}
    pem = tls().certificate_pem, tls().key_pem
    server = opened.enter_context(
        serve(PROVIDER, {}, f"{HOST}:0", *pem, quick=quick, streams={ProviderMethod.WATCH: twice})
    )
    online = line(opened.enter_context(calling(server)), learnt)
    assert [hint.number for hint, _ in islice(online.watch(after=0), 3)] == [1, 2, 3]
    nobody = opened.enter_context(calling(server))
    with pytest.raises(PeerFault, match="UNIMPLEMENTED"):
        nobody.call(ProviderMethod.CHECK, b"")


def test_a_provider_that_is_away_is_waited_for_and_close_ends_the_wait(learnt: Federation, opened: ExitStack) -> None:
    (port,) = opened.enter_context(free_ports(HOST, 1))
    online = line(opened.enter_context(calling(port, 0.3)), learnt)
    with ThreadPoolExecutor(1) as listener:
        ended = listener.submit(list, online.watch(after=0))
        time.sleep(1.0)
        assert not ended.done()
        online.close()
        assert ended.result(PATIENCE_S) == []
    with pytest.raises(Unreachable):
        online.check(labels())
