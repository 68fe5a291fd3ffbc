"""Anonymous checks over gRPC and TLS: metered by name when passes are bought, and spent without a name."""

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from crypto.codec import encode
from crypto.errors import (
    DecodeError,
    NotSignedIn,
    PassRefused,
    PeerFault,
    PharoahError,
    QuotaExceeded,
    TooManyRequests,
    Unreachable,
)
from crypto.ids import EncodedElement, Token
from crypto.ristretto import Element
from crypto.signing import SigningKey
from federation.base.sqlite import Connection
from federation.protocol.directory import Directory
from federation.protocol.pass_messages import BATCH, AnonymousCheck, Pass, PassNonce, PassRequest
from federation.protocol.passes import SECONDS_PER_WEEK, order, passes_of, week_key
from federation.protocol.services import ProviderMethod
from federation.transport.client import Peer
from federation.transport.introductions import Introducing
from federation.transport.server import Server
from provider_server.rounds.online.passes import LIST_AGAIN_WEEKS, LISTED_WEEKS, SLACK_S, Passes, Till, list_keys
from provider_server.rounds.online.service import serve_online
from provider_server.rounds.online.sessions import Sessions
from simulation.run.federation import Federation
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.questions import noted
from tenant_client.program.cli import app
from tenant_client.rounds.network import anonymous, anonymous as kept_passes
from tenant_client.rounds.network.anonymous import SPREAD_S, NoPass, ask, buy, order_moment
from tenant_client.rounds.network.provider_service import Online
from tests.provider_server.rounds.test_online import HOST, KEY, Hints, Served, a_bundle, line, tls
from tests.support.factories import labels
from tests.support.federations import Grounds, begin

SEED = bytes(range(32))
BATCHES = 2
WEEK = 2965
START_S = WEEK * SECONDS_PER_WEEK + 1000.0  # in the week in which passes of WEEK + 1 are bought
LATER_S = START_S + SECONDS_PER_WEEK


@dataclass
class Clock:
    at_s: float = START_S

    def __call__(self) -> float:
        return self.at_s


@dataclass
class Place:
    """A provider that issues passes, served to anybody who has its certificate."""

    federation: Federation
    server: Server
    clock: Clock
    counted: Counter[str]
    stack: ExitStack
    folder: Path
    peers: list[Peer] = field(default_factory=list)

    def peer(self, **settings: Any) -> Peer:
        return self.stack.enter_context(Peer(f"{HOST}:{self.server.port}", tls().certificate_pem, **settings))

    def online(self, number: int = 0) -> Online:
        return self.stack.enter_context(line(self.peer(), self.federation, number))

    def database(self, number: int = 0) -> Connection:
        return self.stack.enter_context(closing(open_database(self.folder / f"tenant {number}.db")))

    def directory(self) -> Directory:
        return self.federation.provider.directory

    def bought(self, number: int = 0, batches: int = 1) -> list[Pass]:
        """Passes of tenant `number` for the next week, in its hand; then that week begins."""
        passes: list[Pass] = []
        for _ in range(batches):
            asked = order(self.directory().provider, WEEK + 1, self.key(), os.urandom)
            passes += passes_of(asked, self.online(number).order_passes(WEEK + 1, asked.elements))
        self.clock.at_s = LATER_S
        return passes

    def key(self) -> Element:
        return self.directory().passes[WEEK + 1].key


@contextmanager
def serving(federation: Federation, clock: Clock, counted: Counter[str], *, issues: bool = True) -> Iterator[Server]:
    def count(event: str, passes: int) -> None:
        counted[event] += passes

    given = Served()
    passes = Passes(federation.provider, SEED, clock, os.urandom, count) if issues else None
    with serve_online(
        federation.provider,
        f"{HOST}:0",
        tls().certificate_pem,
        tls().key_pem,
        sessions=Sessions(KEY, given.now_s),
        hints=Hints(),
        take_outcome=given.take,
        passes=passes,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("passes")
    with Grounds.founded(root, 3).opened(root) as parties:
        begin(parties, 0)
        parties.publisher.issue(a_bundle(1))
        list_keys(parties.provider, SEED, BATCHES, START_S)
        yield parties


@pytest.fixture
def place(founded: Federation, tmp_path: Path) -> Iterator[Place]:
    clock, counted = Clock(), Counter[str]()
    founded.provider.store.passes.forget(WEEK + 99)
    with ExitStack() as stack:
        server = stack.enter_context(serving(founded, clock, counted))
        yield Place(founded, server, clock, counted, stack, tmp_path)


def question(shown: Pass, week: int = WEEK + 1) -> bytes:
    own = labels(0, 0)
    return encode(
        AnonymousCheck(week, shown, *(Token(bytes.fromhex(own[name])) for name in ("context", "context_level")))
    )


def asking(place: Place, shown: Pass, week: int = WEEK + 1) -> bytes:
    return place.peer(retries=0).call(ProviderMethod.ANONYMOUS_CHECK, question(shown, week))


# ---- what is asked and answered --------------------------------------------------------------------------------------


def test_an_anonymous_check_is_the_check_by_name(place: Place) -> None:
    online, connection = place.online(), place.database()
    assert buy(online, connection, place.directory(), WEEK + 1) == BATCHES * BATCH
    assert buy(online, connection, place.directory(), WEEK + 1) == 0
    place.clock.at_s = LATER_S
    peer = place.peer(retries=0)
    for workload, context in ((0, 0), (0, 1), (0, 2), (5, 0)):
        lease = labels(workload, context)
        assert ask(peer, connection, lease, LATER_S) == online.check(lease)
    assert kept_passes.kept(connection, WEEK + 1) == BATCHES * BATCH - 4
    assert place.counted == {"issued": BATCHES * BATCH, "redeemed": 4}


def test_nothing_that_names_the_tenant_is_in_a_question(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its id, key, session or workload, nor an introduction, also from a caller that could give one."""
    connection, tenant = place.database(), place.federation.tenants[0]
    buy(place.online(), connection, place.directory(), WEEK + 1)
    sent: list[bytes] = []
    peer = place.peer(retries=0, introducing=Introducing(tenant._signing_key, place.clock))
    real = peer._send

    def recording(method: str, parts: Any, left_s: float, metadata: Any) -> bytes:
        sent.extend((*parts, repr(metadata).encode()))
        return real(method, parts, left_s, metadata)

    monkeypatch.setattr(peer, "_send", recording)
    monkeypatch.setattr(SigningKey, "sign", lambda *_: pytest.fail("something was signed"))
    lease = labels(0, 0)
    place.clock.at_s = LATER_S
    ask(peer, connection, lease, LATER_S)
    everything = b"".join(sent)
    own = [tenant.id, tenant._signing_key.public, *(bytes.fromhex(lease[rung]) for rung in ("subarchetype", "family"))]
    assert not [secret for secret in own if bytes(secret) in everything]
    assert sent[-1] == b"()"
    assert bytes.fromhex(lease["context"]) in everything  # which is asked about


def test_what_left_is_of_one_length_and_so_is_what_came(place: Place) -> None:
    connection, notes = place.database(), list[int]()
    buy(place.online(), connection, place.directory(), WEEK + 1)
    place.clock.at_s = LATER_S
    peer = place.peer(retries=0, note=lambda _method, length: notes.append(length))
    for workload, context in ((0, 0), (5, 1), (9, 9)):
        ask(peer, connection, labels(workload, context), LATER_S)
    assert len(set(notes)) == 1


# ---- metering --------------------------------------------------------------------------------------------------------


def test_a_tenant_gets_what_it_may_and_no_more(place: Place) -> None:
    assert len(place.bought(batches=BATCHES)) == BATCHES * BATCH
    place.clock.at_s = START_S
    with pytest.raises(QuotaExceeded, match=f"all {BATCHES} batches"):
        place.bought()
    assert len(place.bought(number=1)) == BATCH
    assert place.counted["issued"] == (BATCHES + 1) * BATCH


def test_a_request_that_comes_twice_is_charged_once(place: Place) -> None:
    online = place.online()
    asked = order(place.directory().provider, WEEK + 1, place.key(), os.urandom)
    twice = [online.order_passes(WEEK + 1, asked.elements) for _ in range(2)]
    assert passes_of(asked, twice[0]) == passes_of(asked, twice[1])
    assert len(place.bought()) == BATCH


def test_who_asks_for_many_batches_at_once_gets_no_more(place: Place) -> None:
    online = place.online()
    orders = [order(place.directory().provider, WEEK + 1, place.key(), os.urandom) for _ in range(6)]

    def send(number: int) -> int:
        try:
            return len(online.order_passes(WEEK + 1, orders[number].elements).elements)
        except QuotaExceeded:
            return 0

    with ThreadPoolExecutor(6) as threads:
        got = list(threads.map(send, range(6)))
    assert sum(got) <= BATCHES * BATCH
    assert sum(got) > 0


def test_passes_are_issued_for_the_week_to_come_alone(place: Place) -> None:
    asked = order(place.directory().provider, WEEK + 1, place.key(), os.urandom)
    elements = tuple(EncodedElement(each.encoded) for each in asked.elements)
    for week in (WEEK - 1, WEEK, WEEK + 2):
        with pytest.raises(PassRefused, match="for the week to come"):
            place.online().order_passes(week, asked.elements)
    with pytest.raises(NotSignedIn):
        place.peer().call(ProviderMethod.PASSES, encode(PassRequest(bytes(64), WEEK + 1, elements)))


def test_a_pass_is_spent_once(place: Place) -> None:
    shown, other, *_ = place.bought()
    asking(place, shown)
    with pytest.raises(PassRefused, match="spent before"):
        asking(place, shown)
    asking(place, other)
    assert place.counted == {"issued": BATCH, "redeemed": 2, "refused": 1}


def test_of_twenty_at_once_one_spends_it_also_at_two_servers(place: Place) -> None:
    shown = place.bought()[0]
    with serving(place.federation, place.clock, place.counted) as second:
        peers = [place.peer(retries=0), place.stack.enter_context(calling(second))]

        def send(number: int) -> bool:
            try:
                return bool(peers[number % 2].call(ProviderMethod.ANONYMOUS_CHECK, question(shown)))
            except PassRefused:
                return False

        with ThreadPoolExecutor(20) as threads:
            assert sum(threads.map(send, range(20))) == 1
    assert place.counted["refused"] == 19


def calling(server: Server) -> Peer:
    return Peer(f"{HOST}:{server.port}", tls().certificate_pem, retries=0)


def test_a_pass_that_was_not_issued_is_refused_and_costs_nobody_anything(place: Place) -> None:
    good = place.bought()[0]
    foreign = order(place.directory().provider, WEEK + 1, place.key(), os.urandom)
    other_key = week_key(b"\1" * 32, WEEK + 1)
    forged = Pass(foreign.blinding.inputs[0] + os.urandom(64))
    renamed = Pass(good[:2] + os.urandom(32) + good[34:])
    elsewhere = order(place.directory().provider, WEEK + 1, other_key.public, os.urandom)
    of_another_key = Pass(elsewhere.blinding.inputs[0] + os.urandom(64))
    for shown in (forged, renamed, of_another_key):
        with pytest.raises(PassRefused):
            asking(place, shown)
    asking(place, good)


def test_a_pass_is_good_in_its_week_and_a_little_around(place: Place) -> None:
    shown, second, third, *_ = place.bought()
    begin_s, end_s = ((WEEK + week) * SECONDS_PER_WEEK for week in (1, 2))
    for at_s in (begin_s - SLACK_S - 1, end_s + SLACK_S + 1):
        place.clock.at_s = at_s
        with pytest.raises(PassRefused, match="another week"):
            asking(place, shown)
    for at_s, each in ((begin_s - SLACK_S + 1, shown), (begin_s + 1, second), (end_s + SLACK_S - 1, third)):
        place.clock.at_s = at_s
        asking(place, each)
    with pytest.raises(PassRefused, match="another week, key or provider"):
        asking(place, shown, WEEK + 2)


def test_spent_passes_are_remembered_for_as_long_as_they_are_good(place: Place) -> None:
    shown = place.bought()[0]
    asking(place, shown)
    store = place.federation.provider.store.passes
    store.forget(WEEK + 1)
    assert store.counts(WEEK + 1) == (1, 1)
    with pytest.raises(PassRefused, match="spent before"):
        asking(place, shown)
    store.forget(WEEK + 2)
    assert store.counts(WEEK + 1) == (0, 0)


# ---- one key for everybody, and nothing by default -------------------------------------------------------------------


def test_a_provider_with_a_key_for_one_tenant_sells_it_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = place.database()
    monkeypatch.setattr("provider_server.rounds.online.passes.week_key", lambda _seed, week: week_key(b"\1" * 32, week))
    with pytest.raises(PeerFault, match="proof does not show"):
        buy(place.online(), connection, place.directory(), WEEK + 1)
    assert kept_passes.kept(connection, WEEK + 1) == 0


def test_keys_are_listed_in_time_and_once(founded: Federation) -> None:
    provider = founded.provider
    listed = dict(provider.directory.passes)
    assert set(listed) == set(range(WEEK + 1, WEEK + 1 + LISTED_WEEKS))
    list_keys(provider, SEED, BATCHES, START_S + (LISTED_WEEKS - LIST_AGAIN_WEEKS) * SECONDS_PER_WEEK - 2000.0)
    assert dict(provider.directory.passes) == listed


def test_a_provider_that_issues_none_has_no_such_methods(founded: Federation, tmp_path: Path) -> None:
    with serving(founded, Clock(), Counter(), issues=False) as server, calling(server) as peer:
        for method in (ProviderMethod.PASSES, ProviderMethod.ANONYMOUS_CHECK):
            with pytest.raises(PeerFault, match="UNIMPLEMENTED"):
                peer.call(method, b"")


def test_a_question_that_is_none_or_too_long_is_refused(place: Place) -> None:
    peer = place.peer(retries=0)
    for wrong in (b"", b"garbage", question(place.bought()[0])[:-1], bytes(1025)):
        with pytest.raises(DecodeError):
            peer.call(ProviderMethod.ANONYMOUS_CHECK, wrong)


def test_without_a_pass_nothing_is_sent(place: Place) -> None:
    sent = list[str]()
    peer = place.peer(retries=0, note=lambda method, _length: sent.append(method))
    with pytest.raises(NoPass, match="no pass"):
        ask(peer, place.database(), labels(0, 0), LATER_S)
    assert not sent


def test_the_tenant_of_a_home_asks_by_its_settings_and_notes_that_it_did(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the key of the home: nothing is signed, so it need not be there."""
    (tmp_path / "tenant.toml").write_text(f'[provider]\nonline = "{HOST}:{place.server.port}"\n')
    (tmp_path / "provider.pem").write_bytes(tls().certificate_pem)
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        buy(place.online(), connection, place.directory(), WEEK + 1)
        place.clock.at_s = LATER_S
        monkeypatch.setattr(anonymous, "time", SimpleNamespace(time=lambda: LATER_S))
        found = anonymous.anonymous_check(tmp_path, labels(0, 0))
        assert found == place.online().check(labels(0, 0))
        assert [(one.kind, one.questions) for one in noted(connection)] == [("anonymous-check", 1)]
        assert kept_passes.kept(connection, WEEK + 1) == BATCHES * BATCH - 1


def test_anonymous_is_a_way_to_ask_online(tmp_path: Path) -> None:
    asked = CliRunner().invoke(app, ["check", "--home", str(tmp_path), "--anonymous", "--latest"])
    assert asked.exit_code == 3  # 2 would be a mismatch
    assert "--online" in asked.output


def test_a_pass_whose_answer_was_lost_is_not_shown_again(place: Place) -> None:
    connection = place.database()
    buy(place.online(), connection, place.directory(), WEEK + 1)
    place.server.stop()
    with pytest.raises(Unreachable):
        ask(place.peer(retries=0, deadline_s=2.0), connection, labels(0, 0), LATER_S)
    assert kept_passes.kept(connection, WEEK + 1) == BATCHES * BATCH - 1


# ---- when passes are bought ------------------------------------------------------------------------------------------


def test_the_moment_of_an_order_is_uniform_and_the_tenants_own() -> None:
    """Kolmogorov–Smirnov at a chance below 1e-9 of failing by chance."""
    count = 4000
    drawn = sorted((order_moment(os.urandom(32), WEEK) - WEEK * SECONDS_PER_WEEK) / SPREAD_S for _ in range(count))
    distance = max(max((n + 1) / count - at, at - n / count) for n, at in enumerate(drawn))
    assert distance < 3.3 / count**0.5
    assert 0.0 <= drawn[0] <= drawn[-1] < 1.0
    assert len({order_moment(bytes(32), week) % SECONDS_PER_WEEK for week in range(8)}) == 8


def test_nothing_is_bought_before_its_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "signing.key").write_bytes(bytes(32))
    (tmp_path / "signing.key").chmod(0o600)
    monkeypatch.setattr(anonymous, "joined", lambda _: pytest.fail("it was too early"))
    assert anonymous.buy_when_due(tmp_path, order_moment(bytes(32), WEEK) - 1.0) == 0


# ---- the till --------------------------------------------------------------------------------------------------------


def test_those_that_wait_are_written_together_and_too_many_are_turned_away() -> None:
    import asyncio

    batches, most = list[int](), 5

    def spend(spent: Any) -> list[bool]:
        batches.append(len(spent))
        return [True] * len(spent)

    async def all_at_once() -> list[Any]:
        till = Till(spend, most)
        nonces = [PassNonce(os.urandom(32)) for _ in range(most + 2)]
        results = await asyncio.gather(*(till.spend(WEEK, nonce) for nonce in nonces), return_exceptions=True)
        till.close()
        return results

    results = asyncio.run(all_at_once())
    assert results[:most] == [True] * most
    assert all(isinstance(result, TooManyRequests) for result in results[most:])
    assert batches == [most]


def test_a_store_that_fails_answers_no_question_and_the_next_one_is_written() -> None:
    import asyncio

    failing = [True]

    def spend(spent: Any) -> list[bool]:
        if failing.pop() if failing else False:
            raise PharoahError("the disk is full")
        return [True] * len(spent)

    async def one_by_one() -> bool:
        till = Till(spend, 5)
        with pytest.raises(PharoahError, match="disk is full"):
            await till.spend(WEEK, PassNonce(bytes(32)))
        result = await till.spend(WEEK, PassNonce(bytes(32)))
        till.close()
        return result

    assert asyncio.run(one_by_one())


def test_a_tenant_takes_each_pass_once(tmp_path: Path) -> None:
    asked = order(SigningKey(bytes(32)).public, WEEK, week_key(SEED, WEEK).public, os.urandom)
    passes = [Pass(head + bytes(64)) for head in asked.blinding.inputs]
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        kept_passes.keep(connection, WEEK, passes)
        taken = [kept_passes.take(connection, WEEK) for _ in range(BATCH)]
        assert {bytes(each or b"") for each in taken} == set(map(bytes, passes))
        assert kept_passes.take(connection, WEEK) is None
        kept_passes.keep(connection, WEEK - 2, passes)
        kept_passes.keep(connection, WEEK, passes)
        assert kept_passes.kept(connection, WEEK - 2) == 0  # what is over is not kept
