"""Operators see exactly what the provider saw itself, and nothing of it reaches a bundle or any tenant."""

import ast
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import provider_server
from crypto.codec import decode
from crypto.errors import DecodeError
from crypto.ids import LeaseId, TenantId
from crypto.signing import open_signed
from federation.protocol.bundle import SKETCH_BYTES, Bundle, CatalogueEntry
from federation.protocol.queries import Query
from provider_server.fleet.analysis.hazard import Unsettled
from provider_server.fleet.learning import findings
from provider_server.fleet.learning.findings import Findings
from provider_server.fleet.learning.operators_set import MARK, OperatorsSet, as_operators_see, opened
from provider_server.fleet.leases import Lease
from provider_server.fleet.own_failures import OwnFailure, OwnRecord
from provider_server.fleet.release import Release
from provider_server.rounds.online.bundle_cache import Shelf
from provider_server.rounds.own_events import on_leases
from provider_server.rounds.publisher import Learner, Publisher
from provider_server.rounds.store.own_store import HoursClosed
from provider_server.rounds.week import publish
from simulation.run.federation import Federation
from tests.support.changing import replace
from tests.support.federations import CONTEXT, LEASES, WEEKS, Grounds, begin, fail, hold, lease_id

TENANTS = 6
TENANT = TenantId(bytes(TenantId.length))
READ_OPERATORS = {"rounds/publisher.py", "program/pages/snapshot.py"}


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grounds, Path]:
    """Three windows were released; on all leases the provider knows the nodes, and it recorded nothing."""
    root = tmp_path_factory.mktemp("held")
    grounds = Grounds.founded(root, TENANTS)
    with grounds.opened(root) as federation:
        for number in range(TENANTS):
            let(federation, number)
            fail(federation, number)
        for window in WEEKS:
            hold(federation, window)
    return grounds, root


@pytest.fixture
def federation(held: tuple[Grounds, Path], tmp_path: Path) -> Iterator[Federation]:
    grounds, root = held
    with grounds.opened(shutil.copytree(root, tmp_path, dirs_exist_ok=True)) as federation:
        yield federation


def let(federation: Federation, number: int) -> None:
    """A tenant's leases, on nodes with names."""
    provider, (start, _) = federation.provider, WEEKS[0]
    labels, ids = provider.context_labels(start, CONTEXT, 0), [lease_id(number, WEEKS[0], one) for one in range(LEASES)]
    end_h, tenant = WEEKS[-1][1] - 4.0, federation.tenants[number].id
    leases = [Lease(one, tenant, 4, start + 1.0, end_h, labels) for one in ids]
    provider.record_leases(leases, {one: [f"node {one.hex()}"] for one in ids})
    begin(federation, number)


def failed(*numbers: int, week: int = 1) -> list[OwnFailure]:
    return [OwnFailure(lease_id(number, WEEKS[0], 0), WEEKS[week][0] + 30.0) for number in numbers]


def publisher(federation: Federation, learner: Learner = findings.learn) -> Publisher:
    return Publisher(federation.provider.store, federation.provider._signing_key, learner)


def see(federation: Federation, seen: Sequence[OwnFailure]) -> None:
    """The provider looked at all weeks, and saw these."""
    federation.provider.store.own.add(WEEKS[0][0], WEEKS[-1][1], seen)


# ---- the boundary ----------------------------------------------------------------------------------------------------

WORLDS: dict[str, list[OwnFailure] | None] = {
    "nobody looked": None,
    "nothing was seen": [],
    "one failure": failed(0, week=0),
    "failures of all": failed(*range(TENANTS), week=0) + failed(*range(TENANTS)) + failed(0, 0, 1, week=2),
}


def test_no_number_of_what_the_provider_saw_reaches_a_bundle(held: tuple[Grounds, Path], tmp_path: Path) -> None:
    """Bundles of worlds that differ in nothing else are the same, byte for byte; what operators see is not."""
    signed, reviewed, for_operators = [], [], []
    grounds, root = held
    for number, seen in enumerate(WORLDS.values()):
        with grounds.opened(shutil.copytree(root, tmp_path / str(number))) as federation:
            if seen is not None:
                see(federation, seen)
            asked = publisher(federation)
            releases = asked.releases()
            first = asked.publish(releases[:2], asked.learn(releases[:2]))
            reviewed.append(asked.review(releases))
            signed.append((first, asked.publish(releases, asked.learn(releases))))
            learnt = asked.learn_for_operators(releases).pairs
            for_operators.append([(one.expected_failures, one.low, one.high, one.rate) for one in learnt])
    assert len(set(signed)) == 1
    assert reviewed == [reviewed[0]] * len(WORLDS)
    assert for_operators[1] != for_operators[3]


class Listening:
    """Tenants that write down what they are sent."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def ask(self, query: Query, payload: bytes) -> Iterator[bytes]:
        self.heard.append(payload)
        yield b""


def test_tenants_are_sent_and_answered_by_the_bundle_and_not_by_what_stands_beside_it(federation: Federation) -> None:
    provider, tenants = federation.provider, Listening()
    see(federation, failed(*range(TENANTS), week=0) + failed(*range(TENANTS)))
    asked = publisher(federation)
    assert publish(asked, tenants)
    (sent,) = tenants.heard
    told = open_signed(Bundle, sent, provider.directory.provider)
    (stored,) = provider.store.own.findings().values()
    beside = OperatorsSet.from_bytes(stored).findings
    assert (beside.number, beside.until_hour) == (told.number, told.until_hour)
    assert beside.mismatches != told.mismatches
    assert MARK not in sent
    shelf = Shelf(provider.newest_bundle, lambda: provider.directory.provider)
    assert shelf.refresh().signed == sent


def test_what_operators_see_is_no_message_that_could_be_signed_or_taken_for_a_bundle(federation: Federation) -> None:
    newest = publisher(federation).newest()
    assert newest is not None
    data = OperatorsSet.beside(newest, newest).to_bytes()
    assert data.startswith(b"not for tenants")
    with pytest.raises(DecodeError):
        decode(Bundle, data)
    with pytest.raises(DecodeError):
        open_signed(Bundle, data, federation.provider.directory.provider)
    with pytest.raises(DecodeError, match="lack their mark"):
        OperatorsSet.from_bytes(data[1:])


def test_who_answers_tenants_never_reads_what_operators_see() -> None:
    """Neither the set nor the store of it: only what learns, and the provider's own page."""
    root = Path(provider_server.__file__).parent
    readers = {str(path.relative_to(root)) for path in root.rglob("*.py") if _reads_operators(path)}
    assert readers == READ_OPERATORS


def _reads_operators(path: Path) -> bool:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imports = any(isinstance(one, ast.ImportFrom) and one.module == OperatorsSet.__module__ for one in nodes)
    attributes = [one for one in nodes if isinstance(one, ast.Attribute) and one.attr in ("findings", "operators")]
    stored = any(isinstance(one.value, ast.Attribute) and one.value.attr == "own" for one in attributes)
    return imports or stored


# ---- the set ---------------------------------------------------------------------------------------------------------


def test_a_fit_that_fails_with_what_was_seen_falls_back_to_sums_and_the_log_says_so(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    def settles_without(releases: Sequence[Release], leases: Sequence[Lease], own: OwnRecord | None) -> Findings:
        if own is not None:
            raise Unsettled("the rates still change")
        return findings.learn(releases, leases)

    see(federation, failed(0))
    asked = publisher(federation, settles_without)
    releases = asked.releases()
    assert asked.learn_for_operators(releases) == asked.learn(releases)
    assert "findings for operators are those of tenants' sums alone: the rates still change" in caplog.text


def test_a_new_catalogue_leaves_operators_what_they_saw(federation: Federation) -> None:
    asked, store = publisher(federation), federation.provider.store
    see(federation, failed(*range(TENANTS), week=0))
    releases = asked.releases()
    asked.publish(releases, asked.learn(releases))
    asked.publish_catalogue((CatalogueEntry("a benchmark", bytes(SKETCH_BYTES)),))
    *_, before, now = as_operators_see(asked._bundles(), opened(store.own.findings()))
    assert now == replace(before, number=before.number + 1)
    assert now.mismatches != asked._bundles()[-1].mismatches


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_hours_are_recorded_once_and_in_order(federation: Federation) -> None:
    own = federation.provider.store.own
    assert own.record() is None
    own.add(10, 20, failed(0, week=0))
    with pytest.raises(HoursClosed):
        own.add(19, 30, [])
    own.add(20, 30, [])
    own.add(40, 50, [])
    record = own.record()
    assert record is not None
    one = lease_id(0, WEEKS[0], 0)
    asked = (10, 30), (12, 41), (40, 50), (9, 11)
    assert [record.looks_at(one, *hours) for hours in asked] == [True, False, True, False]
    assert not record.looks_at(LeaseId(b"?" * LeaseId.length), 10, 30)  # nobody knows its nodes


def test_a_failure_is_that_of_the_lease_that_ran_or_had_just_ended() -> None:
    def on(number: int, start_h: float, end_h: float) -> Lease:
        return Lease(LeaseId(bytes([number]) + bytes(15)), TENANT, 2, start_h, end_h, {})

    first, second, third = on(1, 0.0, 10.2), on(2, 10.4, 20.5), on(3, 24.0, 30.0)
    placed = [(first, ["a", "b"]), (second, ["a", "b"]), (third, ["a"])]
    found, idle = on_leases([("a", 5), ("b", 5), ("a", 10), ("a", 21), ("a", 22), ("c", 5), ("a", 24)], placed)
    hours = {1: [5.0, 10.0], 2: [20.5], 3: [24.0]}
    assert [(one.lease[0], one.at_h) for one in found] == [(n, hour) for n, of in hours.items() for hour in of]
    assert idle == 2
