"""How often a lease fails, as its tenant knows it, and how that reaches `should_checkpoint`."""

from contextlib import closing
from pathlib import Path

import pytest

from crypto.ids import Token
from federation.protocol.bundle import Bundle, HazardEntry, MismatchEntry, PairJudgement
from federation.protocol.known_rates import experience
from federation.protocol.service_messages import HintState
from tenant_client.doctor.advice.hints import Episode
from tenant_client.doctor.advice.lease_hazard import first_experience, first_hazard, hinted_per_hour, lease_hazard
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal, Unit
from tenant_client.doctor.records.own_leases import OwnLease
from tenant_client.doctor.run.failure_rate import EVERY_S, FailureRate
from tenant_client.doctor.run.hook.checkpoints import RATE, Checkpoints, interval_s, tell_rate
from tests.support.changing import replace
from tests.support.factories import keys, labels
from tests.tenant_client.doctor.test_hinted import raised
from tests.tenant_client.program.test_watch_verb import LEASE, hint

START_H = 500_000.0
EDGES = (0.0, 6.0, 24.0, 1e5)
OWN = labels(0)


def a_bundle(
    number: int = 1, judgement: PairJudgement | None = None, bands: tuple[str, ...] = ("0", "1", "2")
) -> Bundle:
    """Rates of 6, 4 and 2 failures per 1,000 node-hours by age, and a pair that fails three times as often."""
    level, context, workload = (Token.fromhex(OWN[name]) for name in ("context_level", "context", "archetype"))
    rates = {"0": 6.0, "1": 4.0, "2": 2.0}
    hazards = tuple(HazardEntry(level, band, rates[band], rates[band] / 2, rates[band] * 2) for band in bands)
    pair = MismatchEntry(workload, context, 0.9, 3.0, 2.0, 5.0, 9.0, judgement or PairJudgement.NOT_WORSE, ())
    return Bundle(number, 0, 168 * number, (), (pair,) if judgement else (), hazards, None, EDGES)


def test_the_rate_is_that_of_the_hardware_at_this_age_on_all_nodes() -> None:
    found = lease_hazard(a_bundle(), OWN, 8)
    assert found is not None
    assert [found.at(age) for age in (0.0, 5.9, 6.0, 23.9, 24.0, 9999.0)] == pytest.approx(
        [0.048, 0.048, 0.032, 0.032, 0.016, 0.016]
    )
    assert found.upper_per_hour[1] == pytest.approx(0.064)


@pytest.mark.parametrize(
    ("judgement", "factor"),
    [(PairJudgement.WORSE, 3.0), (PairJudgement.SUSPECTED, 3.0), (PairJudgement.NOT_WORSE, 1.0), (None, 1.0)],
)
def test_a_workload_that_fails_more_on_this_hardware_counts_where_it_is_called_so(
    judgement: PairJudgement | None, factor: float
) -> None:
    found = lease_hazard(a_bundle(judgement=judgement), OWN, 1)
    assert found is not None
    assert [found.factor, found.at(0.0)] == pytest.approx([factor, factor * 0.006])


def test_hardware_without_a_rate_has_none_and_a_band_without_one_the_one_before() -> None:
    assert lease_hazard(a_bundle(), labels(0, 1), 8) is None
    found = lease_hazard(a_bundle(bands=("0", "2")), OWN, 1)
    assert found is not None
    assert found.at(10.0) == pytest.approx(0.006)


def test_a_hint_says_the_rate_by_its_probability() -> None:
    assert hinted_per_hour(0.5, 24.0) == pytest.approx(0.6931 / 24, rel=1e-3)
    assert hinted_per_hour(1.0, 24.0) < 1.0
    assert hinted_per_hour(0.5, 0.0) == 0.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a grant of eight nodes and a bundle."""
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        Journal(connection).add([Unit(str(LEASE), START_H, OWN)], [])
        Journal(connection).size([(str(LEASE), 8)])
        BundleLog(connection).keep(1, keys().provider.sign(a_bundle()))
    return tmp_path


def told(run_dir: Path) -> float | None:
    return float((run_dir / RATE).read_text()) if (run_dir / RATE).exists() else None


def test_the_hook_is_told_what_the_home_knows_and_each_change_of_it(home: Path, tmp_path: Path) -> None:
    standing: list[Episode] = []
    rate, now_s = FailureRate(home, str(LEASE), tmp_path, lambda _: standing), 3600.0 * START_H
    rate.look(now_s, ())
    assert told(tmp_path) == pytest.approx(0.048)
    rate.look(now_s + 7 * 3600, ())
    assert told(tmp_path) == pytest.approx(0.032)
    first = replace(raised(at_h=START_H + 7), probability=0.9)
    standing.append(Episode(first, first))
    rate.look(now_s + 7 * 3600, ())
    assert told(tmp_path) == pytest.approx(hinted_per_hour(0.9, 24.0))
    standing.clear()
    rate.look(now_s + 8 * 3600, ())
    assert told(tmp_path) == pytest.approx(0.032)
    with closing(open_database(home / "tenant.db")) as connection:
        BundleLog(connection).keep(2, keys().provider.sign(a_bundle(2, PairJudgement.WORSE)))
    rate.look(now_s + 8 * 3600 + EVERY_S, ())
    assert told(tmp_path) == pytest.approx(0.096)


@pytest.fixture
def new_home(tmp_path: Path) -> Path:
    """A home with a lease on four of Slurm's nodes, and neither grant nor bundle."""
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        Journal(connection).add([Unit(str(LEASE), START_H, {})], [])
        Journal(connection).place(str(LEASE), "gpu[01-04]")
        connection.commit()
    return tmp_path


def test_before_any_bundle_the_rate_is_that_of_other_fleets_and_a_job_saves_from_its_first_day_on(
    new_home: Path, tmp_path: Path
) -> None:
    rate = FailureRate(new_home, str(LEASE), tmp_path, lambda _: [])
    rate.look(3600.0 * START_H, ())
    assert told(tmp_path) == pytest.approx(4 * experience().rate)
    assert 600 < interval_s(60.0, told(tmp_path) or 0.0) < 24 * 3600
    with closing(open_database(new_home / "tenant.db")) as connection:
        Journal(connection).label([Unit(str(LEASE), START_H, OWN)])
        BundleLog(connection).keep(1, keys().provider.sign(a_bundle()))
    rate.look(3600.0 * START_H + EVERY_S, ())
    assert told(tmp_path) == pytest.approx(4 * 0.006)


def test_own_leases_outweigh_other_fleets() -> None:
    assert first_experience([]) == experience()
    lived = [OwnLease({}, 100, 0.0, 1000.0, 200), OwnLease({}, 100, 0.0, 1000.0, 190)]
    known = first_experience(lived)
    assert known.public_share < 0.07
    assert known.rate == pytest.approx(390 / 200_000, rel=0.07)
    assert first_hazard(known, 8).at(1e6) == pytest.approx(8 * known.rate)
    assert first_hazard(known, 8).upper_per_hour[0] > 8 * known.rate


def test_a_hint_of_less_than_is_known_lowers_nothing(home: Path, tmp_path: Path) -> None:
    first = hint(1, HintState.RAISED, at_h=START_H)
    rate = FailureRate(home, str(LEASE), tmp_path, lambda _: [Episode(first, first)])
    rate.look(3600.0 * START_H, ())
    assert told(tmp_path) == pytest.approx(0.048)


def test_a_hint_that_is_over_leaves_nothing_behind_where_nothing_else_is_known(tmp_path: Path) -> None:
    first = replace(raised(at_h=START_H), probability=0.9)
    standing, now_s = [Episode(first, first)], 3600.0 * START_H
    rate = FailureRate(tmp_path / "elsewhere", str(LEASE), tmp_path, lambda _: standing)
    rate.look(now_s, ())
    assert Checkpoints(tmp_path, began_s=0.0).due(1e9, None)
    standing.clear()
    rate.look(now_s, ())
    assert not Checkpoints(tmp_path, began_s=0.0).due(1e9, None)


def test_where_nothing_is_known_nothing_is_told(home: Path, tmp_path: Path) -> None:
    for place, lease in ((home / "elsewhere", str(LEASE)), (home, "no lease")):
        FailureRate(place, lease, tmp_path, lambda _: []).look(3600.0 * START_H, ())
        assert told(tmp_path) is None


def test_a_checkpoint_is_due_by_the_rate_that_was_told_and_by_ones_own_if_one_is_given(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, began_s=0.0)
    assert not checkpoints.due(1e9, None)
    tell_rate(tmp_path, 0.1)
    due_s = interval_s(60.0, 0.1)
    assert (checkpoints.due(due_s - 1, None), checkpoints.due(due_s + 1, None)) == (False, True)
    assert not checkpoints.due(due_s + 1, 0.001)
    tell_rate(tmp_path, 0.001)
    assert not checkpoints.due(due_s + 1, None)
    (tmp_path / RATE).write_text("no number")
    assert checkpoints.due(interval_s(60.0, 0.001) + 1, None)  # the last that could be read
