"""Whether a model is fit to be published: the newest week is held out, and bundles are judged by what they foretold."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from federation.protocol.bundle import Bundle
from provider_server.fleet.analysis.prediction import Comparison, PredictionVerdict
from provider_server.fleet.learning import publication_gate
from provider_server.fleet.learning.bundle import compose
from provider_server.fleet.learning.findings import Findings, learn
from provider_server.fleet.learning.publication_gate import HeldBack, Model, check
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release
from simulation.judge.side_by_side import learn_all
from simulation.run.engines import Processes
from tests.support.changing import replace
from tests.support.federations import WEEKS, Grounds

History = tuple[list[Release], list[Lease]]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """Two weeks' releases, and the provider's leases."""
    root = tmp_path_factory.mktemp("gate")
    with Grounds.of_failures(root, 4, released=2).opened(root) as federation:
        yield federation.provider.store.releases(), federation.provider.store.leases(0, WEEKS[1][1])


def learner(leases: list[Lease]) -> Callable[[Sequence[Release]], Findings]:
    """The learner of today."""
    return lambda releases: learn(releases, leases)


def bundle(releases: list[Release], leases: list[Lease], factor: float = 1.0) -> Bundle:
    """What is learnt from some releases, with every rate off by a factor."""
    made = compose(1, (), releases, learn(releases, leases))
    numbers = ("rate", "rate_low", "rate_high")
    hazards = (replace(one, **{name: factor * getattr(one, name) for name in numbers}) for one in made.hazards)
    return replace(made, hazards=tuple(hazards))


@pytest.mark.nightly
def test_learning_side_by_side_gives_what_learning_one_after_the_other_gives(history: History) -> None:
    releases, leases = history
    made = list(learn_all(Processes(), [releases, releases[:1]], leases))
    assert made == [replace(bundle(releases, leases), number=2), bundle(releases[:1], leases)]
    assert made[0].until_hour > made[1].until_hour


def test_the_same_learner_is_no_worse_than_its_own_bundle(history: History) -> None:
    releases, leases = history
    found = publication_gate.review(releases, leases, bundle(releases[:1], leases), learner(leases))
    assert found is not None
    assert found.difference == pytest.approx(0.0, abs=1e-9)
    assert found.verdict is PredictionVerdict.NO_WORSE
    check(found)


@pytest.mark.nightly
def test_a_bundle_that_is_far_off_is_beaten_and_a_good_one_is_not(history: History) -> None:
    releases, leases = history
    far, near = (
        publication_gate.review(releases, leases, bundle(releases[:1], leases, factor), learner(leases))
        for factor in (1e4, 1.0)
    )
    assert far is not None
    assert near is not None
    assert far.difference > near.difference


def test_a_bundle_that_has_seen_the_week_is_no_judge_of_it(history: History) -> None:
    releases, leases = history
    assert publication_gate.review(releases, leases, bundle(releases, leases), learner(leases)) is None
    assert publication_gate.review(releases[:1], leases, bundle(releases[:1], leases), learner(leases)) is None
    assert (
        publication_gate.review(
            releases, leases, replace(bundle(releases[:1], leases), hazards=(), evidence=None), learner(leases)
        )
        is None
    )


def test_what_is_worse_is_held_back() -> None:
    check(None)
    check(Comparison(-0.019, 0.01, 100))
    with pytest.raises(HeldBack, match=r"-0\.0210 of log score per cell"):
        check(Comparison(-0.021, 0.01, 100))


def test_a_model_is_the_same_in_findings_and_in_their_bundle(history: History) -> None:
    releases, leases = history
    findings = learn(releases, leases)
    direct, published = Model.of_findings(findings), Model.of_bundle(compose(1, (), releases, findings))
    assert published.risks == direct.risks
    assert published.rates == pytest.approx(direct.rates)
    assert direct.rates


@pytest.mark.nightly
def test_bundles_are_judged_by_weeks_that_came_after_them(history: History) -> None:
    releases, leases = history
    assert publication_gate.outlook(releases, leases, []).calibration is None
    assert publication_gate.outlook(releases, leases, [bundle(releases, leases)]).calibration is None
    seen = publication_gate.outlook(releases, leases, [bundle(releases[:1], leases)])
    assert seen.alarms == ()
    assert seen.calibration is not None
    low = publication_gate.outlook(releases, leases, [bundle(releases[:1], leases, 0.01)]).calibration
    assert low is not None
    assert low.predicted.sum() < seen.calibration.predicted.sum() / 2  # units count one failure at most


@pytest.mark.nightly
def test_a_bundle_that_predicts_no_failure_is_not_calibrated(history: History) -> None:
    """As one of few and noisy counts may; a provider goes on all the same."""
    releases, leases = history
    assert publication_gate.outlook(releases, leases, [bundle(releases[:1], leases, 0.0)]).calibration is None
