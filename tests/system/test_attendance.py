"""Rounds in which not everybody answers, over the in-process grid: whole tenants, trustees and provider.

Twenty tenants, of which four are enough for a round. What is released has the noise that the release states, which is
close to what epsilon asks for, whoever comes; a member, a trustee or a provider that plays with layers gains nothing.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from crypto.codec import decode
from crypto.errors import AlreadyAnswered
from crypto.ids import LeaseId, TenantId
from crypto.masking import MaskKey, Words, words_from_bytes, words_to_bytes
from crypto.signing import reopened
from federation.protocol.causes import CAUSES
from federation.protocol.life_table import Floats
from federation.protocol.noise import open_groups
from federation.protocol.plan import Mechanism, Plan
from federation.protocol.queries import Query
from federation.protocol.round_messages import Contribution, UnmaskRequest
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release
from provider_server.rounds.grouping import PoisonedRound
from provider_server.rounds.network.grid_tenants import GridTenants
from provider_server.rounds.planning import MarginalSpec, PlanSettings
from provider_server.rounds.week import MaskHolder, federated_week
from simulation.run.federation import Federation, found
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.doctor.records.journal import Failure
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.tenant import StartedLease
from tests.support.chances import RARE, has_variance, missed_variance
from tests.support.changing import replace
from tests.support.factories import a_descriptor, forged_contribution, header_of

MEMBERS, COHORT, SHARES = 20, 5, 4
BANDS = 60
DIMENSIONS = ("context_level", "band", "reason")
CELLS = BANDS * len(CAUSES)
WINDOWS = tuple((168 * week, 168 * (week + 1)) for week in range(3))


def a_federation(root: Path, groups: int = 1) -> Federation:
    """One table of very many cells, each of which is a measurement of the noise."""
    settings = PlanSettings(
        epsilon=1.0,
        delta=1e-8,
        cohort_minimum=COHORT,
        noise_shares=SHARES,
        owners_minimum=2,
        mechanism=Mechanism.DISCRETE_GAUSSIAN,  # whose sums are Gaussian enough for a test of their variance
        windows=(1, 2, 3),
        weeks_per_epoch=3,
        groups=groups,
        marginals=(MarginalSpec("hazard", DIMENSIONS, (), 1.0),),
        band_edges_hours=tuple(float(hour) for hour in range(BANDS + 1)),
    )
    policy = {"owners_minimum": 2, "cohort_minimum": COHORT, "colluding_share": 0.2, "dimensions": DIMENSIONS}
    federation = found(root, MEMBERS, settings, policy)
    for number, tenant in enumerate(federation.tenants):
        labels = federation.provider.context_labels(0, "a100 hall 3", 0)
        lease = LeaseId(bytes([number]) + bytes(15))
        federation.provider.record_leases([Lease(lease, tenant.id, 4, 1.0, 500.0, labels)])
        tenant.start_leases([StartedLease(lease, 1.0, labels, a_descriptor())], federation.provider.epoch(0))
        tenant.record([Failure(str(lease), 30.0, 29.0, "nvlink_error")])
    return federation


@pytest.fixture
def twenty(tmp_path: Path) -> Iterator[Federation]:
    with closing(a_federation(tmp_path)) as federation:
        yield federation


class Answerer:
    """A member that changes some words of its contribution."""

    def __init__(self, federation: Federation, member: int, vector: int, value: int) -> None:
        self._tenant, self._vector, self._value = federation.tenants[member], vector, value

    def __call__(self, verb: Query, payload: bytes) -> bytes:
        said = self._tenant.answer(verb, payload)
        if verb is not Query.CONTRIBUTION:
            return said
        plan = reopened(Plan, payload)
        sent = words_from_bytes(decode(Contribution, said).cells).reshape(plan.vectors, plan.cells).copy()
        sent[self._vector, 0] += np.uint64(self._value)
        return forged_contribution(self._tenant._signing_key, header_of(said), words_to_bytes(sent.reshape(-1)))


def a_week(
    federation: Federation,
    present: Sequence[int],
    week: int = 0,
    trustees: Sequence[MaskHolder] = (),
    attackers: dict[int, Answerer] | None = None,
) -> Release:
    answers = {number: federation.tenants[number].answer for number in present} | (attackers or {})
    apps = {number: client_app(answer) for number, answer in answers.items()}
    with local_task():
        tenants = GridTenants(LocalGrid(apps), 0.0, 0.0)
        return federated_week(federation.provider, None, tenants, trustees or federation.trustees, WINDOWS[week])


def noise_in(federation: Federation, release: Release, present: Sequence[int]) -> Floats:
    counts = [federation.tenants[number].counts(release.plan)[0] for number in present]
    found: Floats = (release.tables[0].events - np.sum(counts, axis=0)).reshape(-1)
    return found


def variance_of(release: Release) -> float:
    """The variance of noise that a release states of every cell."""
    stated: Floats = np.unique(release.tables[0].noise_variance)
    assert stated.size == 1
    return float(stated[0])


# ---- honest rounds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("present", [range(MEMBERS), range(2, 17), range(5), range(9, 19)], ids=len)
def test_a_round_has_the_noise_of_those_who_answered(twenty: Federation, present: range) -> None:
    release = a_week(twenty, present)
    assert release.contributors == release.smallest_group == len(present)
    stated = variance_of(release)
    ideal = release.plan.marginals[0].noise_scale ** 2
    honest = len(present) * SHARES // COHORT
    assert 1.0 <= stated / ideal * honest / len(present) <= 1.125
    noise = noise_in(twenty, release, present)
    assert missed_variance(CELLS, 2.0) < RARE
    assert has_variance(noise, stated)
    assert not has_variance(noise, 2.0 * stated)
    assert not has_variance(noise, 0.5 * stated)


@pytest.mark.nightly
def test_every_window_has_the_noise_of_those_who_answered_in_it(twenty: Federation) -> None:
    for week, present in enumerate((range(MEMBERS), range(6), range(4, 16))):
        release = a_week(twenty, present, week)
        noise, stated = noise_in(twenty, release, present), variance_of(release)
        assert has_variance(noise, stated)
        assert not has_variance(noise, 2.0 * stated)
    assert [made.contributors for made in twenty.provider.store.releases()] == [20, 6, 12]
    assert len({made.plan.noise_layers for made in twenty.provider.store.releases()}) == 1


@pytest.mark.nightly
def test_groups_are_opened_by_the_smallest_of_them(tmp_path: Path) -> None:
    with closing(a_federation(tmp_path, groups=3)) as federation:
        release = a_week(federation, range(17))
        assert (release.contributors, release.smallest_group) == (17, 5)
        stated = variance_of(release)
        assert stated == pytest.approx(17 / 4 * release.plan.marginals[0].noise_scale ** 2, rel=1e-9)
        assert has_variance(noise_in(federation, release, range(17)), stated)


def test_a_plan_is_made_for_the_directory_and_not_for_more_than_are_known(twenty: Federation) -> None:
    assert planned(twenty).shares.full == MEMBERS * SHARES // COHORT
    assert planned(twenty, honest_minimum=7).shares.full == 7
    assert planned(twenty, honest_minimum=SHARES).noise_layers is None
    assert planned(twenty, honest_minimum=0, groups=2).shares.full == MEMBERS // 2 * SHARES // COHORT


def planned(federation: Federation, **changes: int) -> Plan:
    """The plan of the first week, once everybody has registered, by a provider whose settings are changed."""
    federation.provider.settings = replace(federation.provider.settings, **changes)
    asked = federation.provider.registration_request(WINDOWS[0])
    for tenant in federation.tenants:
        federation.provider.register(tenant.register(asked))
    return federation.provider.plan(WINDOWS[0])


# ---- attacks ---------------------------------------------------------------------------------------------------------


def test_a_lie_in_a_layer_that_is_not_opened_changes_nothing(twenty: Federation) -> None:
    """With ten of twenty some layers stay masked: what a member wrote there, nobody ever sees."""
    release = a_week(twenty, range(10), attackers={3: Answerer(twenty, 3, unopened(twenty, 10), 2**40)})
    assert release.contributors == 10
    assert has_variance(noise_in(twenty, release, range(10)), variance_of(release))


def test_a_lie_in_a_layer_that_is_opened_is_a_lie_in_a_count(twenty: Federation) -> None:
    """Beyond the ceilings it is found; there is one group here, so the round is lost and nothing is released."""
    with pytest.raises(PoisonedRound):
        a_week(twenty, range(10), attackers={3: Answerer(twenty, 3, opened_vector(twenty, 10), 2**40)})
    assert twenty.provider.store.releases() == []


@pytest.mark.nightly
def test_a_lie_in_a_layer_costs_its_group_where_there_are_others(tmp_path: Path) -> None:
    with closing(a_federation(tmp_path, groups=2)) as federation:
        liar = Answerer(federation, 3, opened_vector(federation, 7), 2**40)
        release = a_week(federation, range(14), attackers={3: liar})
        assert (release.contributors, release.smallest_group) == (7, 7)
        assert federation.tenants[3].id not in _who(release)
        honest = [number for number, tenant in enumerate(federation.tenants) if tenant.id in _who(release)]
        assert has_variance(noise_in(federation, release, honest), variance_of(release))


def _who(release: Release) -> set[TenantId]:
    return {answered.tenant for answered in release.answered}


def layers_of(federation: Federation, answered: int) -> list[bool]:
    plan = planned(federation)
    kept = plan.shares.kept(plan.honest(answered))
    return [bool(kept >> layer & 1) for layer in range(plan.shares.layers)]


def unopened(federation: Federation, answered: int) -> int:
    return 1 + layers_of(federation, answered).index(False)


def opened_vector(federation: Federation, answered: int) -> int:
    return 1 + layers_of(federation, answered).index(True)


class Meddler:
    """A mask trustee that takes off the masks of other layers than the set asks for."""

    def __init__(self, federation: Federation, index: int, pretended: int) -> None:
        self._trustee = federation.trustees[index - 1]
        self.index, self._pretended = index, pretended
        self.follow, self.endorse = self._trustee.follow, self._trustee.endorse

    def unmask(self, call: bytes) -> bytes:
        original = self._trustee._mask_sums

        def meddled(key: MaskKey, asked: UnmaskRequest, plan: Plan) -> list[Words]:
            sums = [self._trustee._sum(key, group, plan) for group in asked.headers]
            return open_groups(plan, sums, self._pretended)

        self._trustee._mask_sums = meddled  # type: ignore[method-assign]
        try:
            return self._trustee.unmask(call)
        finally:
            self._trustee._mask_sums = original  # type: ignore[method-assign]


@pytest.mark.parametrize("pretended", [COHORT, MEMBERS], ids=["too little", "too much"])
def test_a_trustee_that_takes_off_other_layers_spoils_the_round_and_thins_no_noise(
    twenty: Federation, pretended: int
) -> None:
    trustees = [Meddler(twenty, 4, pretended) if one.index == 4 else one for one in twenty.trustees]
    with pytest.raises(PoisonedRound):
        a_week(twenty, range(10), trustees=trustees)
    assert twenty.provider.store.releases() == []


def test_the_same_round_is_not_opened_for_a_second_set_with_fewer_layers(twenty: Federation) -> None:
    """What ten are opened for, a smaller or larger set of the same round is not: one set, once."""
    release = a_week(twenty, range(10))
    stored = twenty.provider.store.rounds.get(release.plan.round_id).request
    asked = reopened(UnmaskRequest, stored or b"")
    fewer = UnmaskRequest(asked.plan, (asked.groups[0][:COHORT],), asked.ownerships)
    for trustee in twenty.trustees[-3:]:
        with pytest.raises(AlreadyAnswered):
            trustee.endorse(twenty.provider._signing_key.sign(fewer))


# ---- warnings --------------------------------------------------------------------------------------------------------


def test_settings_that_make_noise_twice_the_ideal_are_warned_of(
    twenty: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(**changes: int) -> bool:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            planned(twenty, **changes)
        return any("times the variance" in record.getMessage() for record in caplog.records)

    assert not warned()
    assert not warned(honest_minimum=8)
    assert warned(honest_minimum=7)
    assert warned(honest_minimum=0, groups=3)
