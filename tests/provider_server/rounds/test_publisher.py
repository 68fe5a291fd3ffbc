"""The publisher learns once for each week, says the same as one that remembers nothing, and numbers its bundles."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from crypto.ids import LeaseId
from crypto.signing import open_signed
from federation.protocol.bundle import SKETCH_BYTES, Bundle, CatalogueEntry, PairJudgement
from federation.protocol.queries import Query
from provider_server.fleet.analysis.hazard import Unsettled
from provider_server.fleet.learning import findings
from provider_server.fleet.learning.findings import Findings
from provider_server.fleet.leases import Lease
from provider_server.fleet.own_failures import OwnRecord
from provider_server.fleet.release import Release
from provider_server.rounds.publisher import Publisher
from provider_server.rounds.week import publish
from simulation.run.federation import Federation
from tests.support.changing import replace
from tests.support.federations import WEEKS, Grounds
from tests.support.pairs import pair

TENANTS = 4


class Counting:
    """The real learner, and how many releases it was asked about each time."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, releases: Sequence[Release], leases: Sequence[Lease], own: OwnRecord | None) -> Findings:
        self.asked.append(len(releases))
        return findings.learn(releases, leases, own)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grounds, Path]:
    """Three weeks were released, and nothing is published that holds findings."""
    root = tmp_path_factory.mktemp("held")
    return Grounds.of_failures(root, TENANTS, released=len(WEEKS)), root


@pytest.fixture
def federation(held: tuple[Grounds, Path], tmp_path: Path) -> Iterator[Federation]:
    grounds, root = held
    with grounds.opened(shutil.copytree(root, tmp_path, dirs_exist_ok=True)) as federation:
        yield federation


def publisher(federation: Federation, learner: Counting) -> Publisher:
    return Publisher(federation.provider.store, federation.provider._signing_key, learner)


@pytest.mark.nightly
def test_each_week_is_learnt_once_and_reviewed_as_by_one_that_learns_anew(federation: Federation) -> None:
    learner = Counting()
    remembering = publisher(federation, learner)
    releases = remembering.releases()
    assert len(releases) == len(WEEKS)
    for weeks in (1, 2, 3):
        review = remembering.review(releases[:weeks])
        assert review == publisher(federation, Counting()).review(releases[:weeks])
        assert (review is None) == (weeks == 1)
        remembering.publish(releases[:weeks], remembering.learn(releases[:weeks]))
    assert learner.asked == [1, 2, 3]


@pytest.mark.nightly
def test_a_lease_that_became_known_later_is_learnt_from(federation: Federation) -> None:
    learner = Counting()
    asked = publisher(federation, learner)
    releases = asked.releases()[:1]
    before = asked.learn(releases)
    known = federation.provider.store.leases(0, WEEKS[0][1])[0]
    federation.provider.record_leases([replace(known, lease=LeaseId(bytes([255]) * 16), nodes=100)])
    after = asked.learn(releases)
    assert learner.asked == [1, 1]
    assert before.rates != after.rates


def test_a_bundle_keeps_the_catalogue_of_the_one_before(federation: Federation) -> None:
    asked = publisher(federation, Counting())
    before = asked.newest()
    assert before is not None
    catalogue = (CatalogueEntry("a benchmark", bytes(SKETCH_BYTES)),)
    asked.issue(replace(before, number=before.number + 1, catalogue=catalogue))
    signed = asked.publish(asked.releases()[:1], Findings((), ()))
    opened = open_signed(Bundle, signed, federation.provider.directory.provider)
    assert (opened.number, opened.catalogue) == (before.number + 2, catalogue)
    assert asked.newest() == opened
    assert asked.unpublished()  # it says nothing of the last two weeks


def test_what_does_not_settle_is_held_back_and_the_bundle_in_force_stays(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    def unsettled(releases: Sequence[Release], leases: Sequence[Lease], own: OwnRecord | None) -> Findings:
        raise Unsettled("the rates still change")

    asked = Publisher(federation.provider.store, federation.provider._signing_key, unsettled)
    before = asked.newest()
    assert not publish(asked, Nobody())
    assert asked.newest() == before
    assert "bundle held back: the rates still change" in caplog.text


def test_what_earlier_bundles_of_the_epoch_accused_leaves_less_room_in_later_ones(federation: Federation) -> None:
    """A pair of .97 is called worse first, and stays so; then there is room for one of .96, and not for one of .9."""
    told = [[0.97, 0.5, 0.5], [0.81, 0.96, 0.9], [0.81, 0.99, 0.99]]

    def learner(releases: Sequence[Release], leases: Sequence[Lease], own: OwnRecord | None) -> Findings:
        found = [
            pair(f"{number:032x}", "f" * 32, one, PairJudgement.WORSE if one > 0.8 else PairJudgement.SUSPECTED)
            for number, one in enumerate(told[len(releases) - 1])
        ]
        return Findings(tuple(found), ())

    asked, judgements = Publisher(federation.provider.store, federation.provider._signing_key, learner), []
    releases = asked.releases()
    for weeks in (1, 2, 3):
        learnt = asked.learn(releases[:weeks])
        judgements.append([one.judgement is PairJudgement.WORSE for one in learnt.pairs])
        asked.publish(releases[:weeks], learnt)
        assert asked.learn(releases[:weeks]).pairs == learnt.pairs  # a bundle does not count against itself
    assert judgements == [[True, False, False], [True, True, False], [True, True, True]]


class Nobody:
    """No tenant is there."""

    def ask(self, query: Query, payload: bytes) -> Iterator[bytes]:
        raise AssertionError("nothing is to be told")
