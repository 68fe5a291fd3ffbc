"""A series of weeks, by real parties: running totals are exact but for the noise that they state, whatever happens.

Tenants, trustees and provider are those of `tests/support/factories.py`, on disk. With `InsecureSilence` for noise a
total must be right to the last count; what it must be is kept by the test itself, lease by lease.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from crypto.continual_counting import decoding

from crypto.codec import digest, encode
from crypto.errors import BadSignature, CohortTooSmall, OutOfOrder, PeerFault, PharoahError, PlanRefused
from crypto.ids import Digest, Nonce, TenantId
from crypto.masking import MaskKey
from crypto.signing import SigningKey, name_of, open_signed, reopened
from federation.protocol.directory import Member
from federation.protocol.life_table import Floats, LifeTable
from federation.protocol.noise import Integers, NoiseSampler
from federation.protocol.plan import HOURS_PER_WEEK, Plan
from federation.protocol.privacy_cost import plan_loss
from federation.protocol.queries import Query
from federation.protocol.round_messages import (
    ContributionHeader,
    LeaseGrants,
    LeaseRequest,
    Ownership,
    Registration,
    UnmaskRequest,
)
from provider_server.fleet.leases import Lease
from provider_server.learning.publisher import Publisher
from provider_server.rounds.members import RetiredNodeKey
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.provider import Provider, RoundUnderWay, WeekHeld
from provider_server.rounds.release import Release
from provider_server.rounds.round import Round
from provider_server.rounds.schedule import BadWindow
from provider_server.store.round_store import Answer, RoundState
from provider_server.store.store import Store
from provider_server.week import federated_round, federated_week
from tenant_client.records.journal import Failure, Unit
from tenant_client.rounds.tenant import Tenant
from tests.support.changing import replace
from tests.support.factories import (
    POLICY,
    SETTINGS,
    TENANTS,
    Cast,
    InsecureSilence,
    keys,
    ladder,
    lease_id,
)
from tests.support.plans import InsecureSeeded

HOURS = 100
Place = tuple[int, int]
USUAL: tuple[Place, ...] = ((0, 0), (1, 1))
EVERYBODY = tuple(range(TENANTS))


def window(week: int) -> tuple[int, int]:
    return week * HOURS_PER_WEEK, (week + 1) * HOURS_PER_WEEK


@dataclass(frozen=True)
class Here:
    """The tenants that are there; one that refuses is silent, as over a network."""

    tenants: Sequence[Tenant]
    refusals: list[PharoahError]

    def ask(self, query: Query, payload: bytes) -> Iterator[bytes]:
        for tenant in self.tenants:
            try:
                yield tenant.answer(query, payload)
            except PharoahError as error:
                self.refusals.append(error)


def in_given_order(size: int) -> bytes:
    """Randomness that leaves an order of up to five as it is: groups are then known beforehand."""
    return (59).to_bytes(8, "little") if size == 8 else os.urandom(size)


class World:
    """A federation to which things happen week by week, and what its totals must be."""

    def __init__(
        self,
        cast: Cast,
        store: Store,
        samplers: Sequence[NoiseSampler] = (InsecureSilence(),) * TENANTS,
        **settings: object,
    ) -> None:
        store.add_entry(0, keys().founding)
        made = PlanSettings(**{**SETTINGS, "horizon": 6, "cohort_minimum": 2, "noise_shares": 1, **settings})
        self.store = store
        self.provider = Provider(keys().provider, b"context secret", made, store, in_given_order)
        policy = replace(POLICY, cohort_minimum=2, epsilon_per_job_week=made.epsilon)
        self.tenants = [cast.tenant(number, policy=policy, sampler=sampler) for number, sampler in enumerate(samplers)]
        self.trustees = {trustee.index: trustee for trustee in cast.trustees()}
        self.refusals: list[PharoahError] = []
        self.happened: dict[tuple[int, int], list[tuple[Place, int]]] = {}
        self.counted: Counter[Place] = Counter()
        self.exposed: Counter[Place] = Counter()
        self._leases = 0

    def happen(self, week: int, tenant: int, failures: int, places: Sequence[Place] = USUAL) -> None:
        """A lease of each place, of which the first ones fail once."""
        start = window(week)[0] + 1.0
        units, journal = [], self.tenants[tenant].journal
        for place in places:
            contexts = self.provider.context_labels(start, f"context {place[1]}", 0)
            self._leases += 1
            lease = lease_id(tenant, self._leases)
            self.provider.record_leases([Lease(lease, self.tenants[tenant].id, 2, start, start + HOURS, contexts)])
            known = ladder(4 * place[0])
            units.append(Unit(str(lease), start, contexts | known.labels))
            journal.queue_registrations(self.provider.epoch(start), [(lease, start, known)])
        journal.label(units)
        failed = units[:failures]
        journal.add([], [Failure(unit.unit, start + 50, 50.0, "nvlink_error") for unit in failed])
        self.happened[week, tenant] = [(place, int(number < failures)) for number, place in enumerate(places)]

    def happen_to_all(self, week: int, places: Sequence[Place] = USUAL) -> None:
        for tenant in EVERYBODY:
            self.happen(week, tenant, (week + tenant) % (len(places) + 1), places)

    def count(self, tenant: int, weeks: Collection[int], rows: Collection[int] = (0, 1, 2)) -> None:
        """From now on these weeks of a tenant are to be in the totals, as far as their workloads have rows."""
        for week in weeks:
            for place, failed in self.happened[week, tenant]:
                if place[0] in rows:
                    self.counted[place] += failed
                    self.exposed[place] += 2 * HOURS

    def here(self, present: Sequence[int]) -> Here:
        return Here([self.tenants[tenant] for tenant in present], self.refusals)

    def play(self, week: int, present: Sequence[int] = EVERYBODY) -> Release:
        """A federated week, from which nothing is learnt."""
        return federated_week(self.provider, None, self.here(present), tuple(self.trustees.values()), window(week))

    def check(self, made: Release) -> None:
        """The release says of every cell what it must, without rounding but for the last bits."""
        pairs = made.table("pairs")
        assert by_place(self, made.plan, pairs, pairs.events) == pytest.approx(positive(self.counted), abs=1e-9)
        assert by_place(self, made.plan, pairs, pairs.exposure_node_hours) == pytest.approx(positive(self.exposed))
        for name in ("hazard", "reasons"):
            assert made.table(name).events.sum() == pytest.approx(self.counted.total(), abs=1e-9)
        assert made.table("hazard").exposure_node_hours.sum() == pytest.approx(3 * self.exposed.total())


def positive(counts: "Counter[Place]") -> dict[Place, float]:
    return {place: float(number) for place, number in counts.items() if number}


def by_place(world: World, plan: Plan, table: LifeTable, values: Floats) -> dict[Place, float]:
    """What is in the cells of a table of pairs, by the numbers that stand behind the tokens."""
    of_workload = {ladder(4 * number).labels["subarchetype"]: number for number in range(3)}
    labels = [world.provider.context_labels(plan.start_hour, f"context {number}", 0)["context"] for number in range(3)]
    of_context = {token: number for number, token in enumerate(labels)}
    return {
        (of_workload[workload], of_context[context]): float(values[row, column])
        for row, workload in enumerate(table.levels("workload"))
        for column, context in enumerate(table.levels("context"))
        if abs(values[row, column]) > 1e-9
    }


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "provider.db")) as opened:
        yield opened


@pytest.fixture
def world(cast: Cast, store: Store) -> World:
    return World(cast, store)


# ---- exact totals --------------------------------------------------------------------------------------------------


def test_every_week_the_total_is_that_of_all_weeks_so_far(world: World) -> None:
    for week in range(6):
        world.happen_to_all(week)
        made = world.play(week)
        for tenant in EVERYBODY:
            world.count(tenant, [week])
        world.check(made)
        assert (made.plan.position, made.plan.series and made.plan.series.start_hour) == (week, 0)
    assert world.counted.total() > 20
    assert world.refusals == []


def test_rows_that_come_later_count_from_then_on_and_the_others_go_on(world: World) -> None:
    """In week 1 too few run workload 2 for a row of its own: those failures are in no total, then or later."""
    for week in range(5):
        for tenant in EVERYBODY:
            rare = week == 1 and tenant < 2
            world.happen(week, tenant, 3 if rare else 2, ((2, 2), *USUAL) if rare or week > 1 else USUAL)
        made = world.play(week)
        for tenant in EVERYBODY:
            world.count(tenant, [week], rows=(0, 1) if week < 2 else (0, 1, 2))
        world.check(made)
        assert len(made.table("pairs").levels("workload")) == (2 if week < 2 else 3)
        born = {round(float(variance), 6) for variance in made.table("pairs").noise_variance.ravel()}
        assert len(born) == (1 if week < 2 else 2)
    assert world.counted[2, 2] == 15


def test_a_tenant_that_was_away_carries_over_and_each_week_counts_and_costs_once(world: World) -> None:
    away, rest = 4, EVERYBODY[:4]
    for week in range(5):
        world.happen_to_all(week)
        missing = week in (1, 2)
        made = world.play(week, rest if missing else EVERYBODY)
        for tenant in rest:
            world.count(tenant, [week])
        if not missing:
            world.count(away, [1, 2, 3] if week == 3 else [week])
        world.check(made)
        begun = {answer.tenant: answer.start_hour for answer in made.answered}
        assert begun.get(world.tenants[away].id) == (None if missing else window(1 if week == 3 else week)[0])
    charges = world.tenants[away].ledger.charges()
    assert [(charge.start_h, charge.end_h) for charge in charges] == [window(0), (168, 672), window(4)]
    price = plan_loss(world.provider.releases()[-1].plan)
    for week in range(5):
        assert world.tenants[away].ledger.spent(*window(week)) == price
    assert world.refusals == []


def test_weeks_between_openings_count_in_the_next_and_cost_a_job_week_once(cast: Cast, store: Store) -> None:
    """Opened after weeks 1, 3 and 6, the last of which is the horizon; one tenant is away at the second opening."""
    world, away = World(cast, store, openings=(1, 3)), 4
    for week in range(6):
        world.happen_to_all(week)
        if week not in (0, 2, 5):
            with pytest.raises(BadWindow, match=f"before hour {504 if week == 1 else 1008}, when the series is opened"):
                world.play(week)
            continue
        made = world.play(week, EVERYBODY[:4] if week == 2 else EVERYBODY)
        weeks = {0: [0], 2: [1, 2], 5: [3, 4, 5]}[week]
        for tenant in EVERYBODY[:4]:
            world.count(tenant, weeks)
        if week != 2:
            world.count(away, [0] if week == 0 else [1, 2, 3, 4, 5])
        world.check(made)
        assert (made.plan.horizon, made.plan.series and made.plan.series.openings) == (3, (1, 3, 6))
    price = plan_loss(world.provider.releases()[0].plan)
    assert price.at(1e-8) == pytest.approx(world.provider.settings.epsilon, rel=1e-3)
    for week in range(6):
        assert all(tenant.ledger.spent(*window(week)) == price for tenant in world.tenants)
    assert world.refusals == []


def test_a_series_that_cannot_go_on_is_followed_by_one_that_leaves_no_week_out(cast: Cast, store: Store) -> None:
    """Settings change before the second opening; the new series begins where the first release ended."""
    world = World(cast, store, openings=(1, 3))
    world.happen_to_all(0)
    world.play(0)
    world.provider.settings = replace(world.provider.settings, failures_per_unit=2, epsilon=2.0)
    for of in world.tenants:
        of.policy = replace(of.policy, failures_per_unit_maximum=2, epsilon_per_job_week=2.0)
    for week in (1, 2):
        world.happen_to_all(week)
    made = world.play(2)
    for tenant in EVERYBODY:
        world.count(tenant, [1, 2])
    world.check(made)
    assert made.plan.series is not None
    assert (made.plan.series.start_hour, made.plan.series.openings, made.plan.position) == (168, (2, 4, 6), 0)
    assert world.provider.opens_hour(made.plan.end_hour) == 5 * 168


def test_a_round_that_was_given_up_while_collecting_is_replaced_and_nothing_counts_twice(world: World) -> None:
    """What was sent to the round counts in the next one, by those who had answered; the others carry the week over."""
    world.happen_to_all(0)
    world.play(0)
    world.happen_to_all(1)
    with pytest.raises(CohortTooSmall, match="1 contribution, at least 2 needed"):
        world.play(1, [0])
    under_way = world.provider.unfinished()
    assert under_way is not None
    with pytest.raises(RoundUnderWay):
        world.provider.plan(window(1))
    under_way.refuse()
    world.happen_to_all(2)
    made = world.play(2)
    for tenant in EVERYBODY:
        world.count(tenant, [0, 1, 2])
    world.check(made)
    assert (made.plan.position, made.contributors) == (1, TENANTS)
    assert [late.tenant for late in made.late] == [world.tenants[0].id]
    world.happen_to_all(3)
    made = world.play(3)
    for tenant in EVERYBODY:
        world.count(tenant, [3])
    world.check(made)


def test_a_round_below_the_minimum_may_also_wait_and_goes_on(world: World) -> None:
    world.happen_to_all(0)
    registered(world, 0)
    with pytest.raises(CohortTooSmall):
        world.play(0, [3])
    made = world.play(0)  # the same round, since it is under way
    for tenant in EVERYBODY:
        world.count(tenant, [0])
    world.check(made)


def test_two_groups_make_the_same_total_as_one(cast: Cast, store: Store) -> None:
    world = World(cast, store, groups=2)
    for week in range(5):
        world.happen_to_all(week)
        made = world.play(week)
        for tenant in EVERYBODY:
            world.count(tenant, [week])
        world.check(made)
    kept = store.rounds.masked_counts(world.provider.releases()[-1].plan.round_id)
    assert [(group, left_out) for group, left_out, _ in kept] == [(0, False), (1, False)]


class InsecureLiar(InsecureSilence):
    """A tenant that counts as it should but for when it lies, in its noise, which nobody sees."""

    lying = False

    def gaussian(self, scale: float, size: int) -> Integers:
        return np.full(size, 10**9 if self.lying else 0, np.int64)


def by_id(position: int) -> int:
    """The number of the tenant whose id is at this position in their order."""
    return sorted(EVERYBODY, key=keys().tenant_id)[position]


@pytest.mark.nightly
@pytest.mark.parametrize("group", [0, 1])
def test_a_group_that_was_left_out_is_out_for_good_and_the_rest_stays_exact(
    cast: Cast, store: Store, group: int
) -> None:
    """The first group carries the weeks before: without it the total goes on from what was released before."""
    liar, members = InsecureLiar(), [by_id(position) for position in range(group, TENANTS, 2)]
    samplers: list[NoiseSampler] = [InsecureSilence() for _ in EVERYBODY]
    samplers[members[0]] = liar
    world = World(cast, store, samplers, groups=2)
    for week in range(5):
        world.happen_to_all(week)
        liar.lying = week == 2
        made = world.play(week)
        left_out = members if week == 2 else []
        for tenant in EVERYBODY:
            if tenant not in left_out:
                world.count(tenant, [week])
        world.check(made)
        assert made.contributors == TENANTS - len(left_out)
        assert made.carries == (week != 2 or group == 1)
        kept = store.rounds.masked_counts(made.plan.round_id)
        assert [number for number, out, _ in kept if out] == ([group] if left_out else [])
    assert world.refusals == []


def test_a_new_series_begins_where_the_horizon_or_the_epoch_ends(cast: Cast, store: Store) -> None:
    world = World(cast, store, horizon=3)
    places = []
    for week in [*range(4), 12, 13]:
        world.happen_to_all(week)
        made = world.play(week)
        places.append((made.plan.series and made.plan.series.start_hour // HOURS_PER_WEEK, made.plan.position))
    assert places == [(0, 0), (0, 1), (0, 2), (3, 0), (3, 1), (13, 0)]
    found = Publisher(store, keys().provider).learn(world.provider.releases())
    assert len(found.pairs) == 4  # tokens of two epochs
    last = world.provider.releases()[-1].table("pairs")
    assert last.events.sum() == sum(failed for of in EVERYBODY for _, failed in world.happened[13, of])


# ---- noise ---------------------------------------------------------------------------------------------------------

BANDS = tuple(map(float, range(255)))  # as many as a plan may have


def off_by(made: Release) -> Floats:
    """The errors of an empty cloud's hazard table in the standard deviations that it states."""
    table = made.table("hazard")
    return (table.events / np.sqrt(table.noise_variance)).ravel()


def is_standard(errors: Floats) -> bool:
    """Mean and variance of so many independent errors are those of a standard normal, within five standard errors."""
    least = np.sqrt(errors.size)
    return bool(abs(errors.mean()) < 5 / least and abs(np.mean(errors**2) - 1) < 5 * np.sqrt(2) / least)


@pytest.mark.parametrize("out", [None, 0, 1])
def test_the_noise_of_every_total_is_what_it_says(cast: Cast, store: Store, out: int | None) -> None:
    """Weeks with drop-outs, a row that comes later, and a group that is left out; a factor of 1.3 shows."""
    lies = InsecureLies(by_id(out or 0))
    world = World(cast, store, lies.samplers(), groups=2, epsilon=1.0, band_edges_hours=BANDS, failures_per_unit=1)
    for week in range(4):
        for tenant in EVERYBODY:
            world.happen(week, tenant, 0, ((2, 2), *USUAL) if week else USUAL)
        lies.on = out is not None and week == 2
        made = world.play(week, EVERYBODY if week != 1 else EVERYBODY[:4])
        assert made.carries == (not lies.on or out == 1)
        errors = off_by(made)
        assert errors.size == (2 if week == 0 else 3) * 254 * 3
        assert is_standard(errors)
        for factor in (1.3, 1 / 1.3):
            assert not is_standard(errors * np.sqrt(factor))
    variances = np.unique(world.provider.releases()[-1].table("hazard").noise_variance.round(6))
    assert len(variances) == 2
    assert variances[0] > 0


class InsecureLies:
    """Noise of the right law from seeds for everybody, and one tenant that may add a lie to its own."""

    def __init__(self, liar: int) -> None:
        self._liar = liar
        self.on = False

    def samplers(self) -> list[NoiseSampler]:
        return [_Lying(self) if tenant == self._liar else InsecureSeeded(tenant) for tenant in EVERYBODY]


class _Lying(InsecureSeeded):
    def __init__(self, lies: InsecureLies) -> None:
        super().__init__(TENANTS)
        self._lies = lies

    def gaussian(self, scale: float, size: int) -> Integers:
        return super().gaussian(scale, size) + (10**9 if self._lies.on else 0)


def test_the_variance_of_a_total_grows_as_the_decoding_says(world: World) -> None:
    """By hand for the third week: each opening's variance under the square of its share, drop-outs included."""
    present = [5, 3, 4]
    for week, many in enumerate(present):
        world.happen_to_all(week)
        made = world.play(week, EVERYBODY[:many])
    made, shares = world.provider.releases()[-1], 256 * decoding((True,) * 3)
    for marginal, table in zip(made.plan.marginals, made.tables, strict=True):
        opened = [many * float(made.plan.shares.of(many // 2)) for many in present]  # half of them count as honest
        expected = sum(share**2 * some * marginal.noise_scale**2 for share, some in zip(shares, opened, strict=True))
        assert table.noise_variance == pytest.approx(np.full(table.shape, expected))


# ---- what a provider may not do ------------------------------------------------------------------------------------


def changed(world: World, round_: Round, **changes: object) -> bytes:
    """The round's request as a dishonest provider would change it, under its own signature."""
    asked = reopened(UnmaskRequest, round_.request)
    return keys().provider.sign(replace(asked, **changes))


def collected(world: World, plan: Plan, present: Sequence[int] = EVERYBODY) -> Round:
    """A round for which everybody was asked."""
    round_ = world.provider.open_round(plan)
    for answer in world.here(present).ask(Query.CONTRIBUTION, round_.signed_plan):
        world.provider.receive(round_, answer)
    return round_


def registered(world: World, week: int, present: Sequence[int] = EVERYBODY) -> None:
    for answer in world.here(present).ask(Query.REGISTRATIONS, world.provider.registration_request(window(week))):
        world.provider.register(answer)


@pytest.mark.parametrize("position", [0, 2])
def test_a_position_is_neither_skipped_nor_repeated(world: World, position: int) -> None:
    world.happen_to_all(0)
    world.play(0)
    for week in (1, 2):
        world.happen_to_all(week)
    registered(world, 2)
    plan = world.provider.plan(window(2))
    assert plan.series is not None
    wrong = replace(plan, series=replace(plan.series, position=position))
    round_ = collected(world, wrong)
    assert len(round_.contributors) == TENANTS  # tenants may have missed rounds: it is the trustees who know
    world.provider.close_round(round_)
    with pytest.raises(OutOfOrder):
        world.trustees[3].endorse(round_.request)
    assert world.trustees[3].rounds()[0][2]
    assert len(world.trustees[3].rounds()) == 1


def a_header(plan: Plan, tenant: int) -> bytes:
    named, zeros = digest(encode(plan)), Digest(bytes(32))
    said = ContributionHeader(keys().tenant_id(tenant), plan.round_id, named, plan.first_hour, Nonce(bytes(16)), zeros)
    return keys().tenants[tenant][0].sign(said)


def test_the_marginals_of_a_series_stay(world: World) -> None:
    world.happen_to_all(0)
    world.play(0)
    world.happen_to_all(1)
    registered(world, 1)
    plan = world.provider.plan(window(1))
    louder = replace(plan.marginals[0], noise_scale=2 * plan.marginals[0].noise_scale)
    for marginals in (plan.marginals[:2], (louder, *plan.marginals[1:])):
        wrong = replace(plan, marginals=marginals)
        with pytest.raises(PlanRefused, match="within its series it changes marginals"):
            world.tenants[0].contribute(keys().provider.sign(wrong))
        asked = UnmaskRequest(
            keys().provider.sign(wrong),
            (tuple(a_header(wrong, number) for number in sorted(range(TENANTS), key=keys().tenant_id)),),
            world.trustees[3].rounds()[0][1],
            (),
            tuple(world.store.ownerships(0)),
        )
        with pytest.raises(PlanRefused, match="within its series it changes marginals"):
            world.trustees[3].endorse(keys().provider.sign(asked))
    assert len(world.tenants[0].ledger.charges()) == 1
    world.play(1)


def test_a_tenant_answers_for_a_week_of_a_series_once(world: World) -> None:
    world.happen_to_all(0)
    made = world.play(0)
    again = replace(made.plan, round_id=world.provider.new_round_id())
    with pytest.raises(PlanRefused, match="its weeks were already answered"):
        world.tenants[0].contribute(keys().provider.sign(again))
    assert made.plan.series is not None
    with pytest.raises(ValueError, match="due at hour 336, not earlier"):
        replace(again, series=replace(made.plan.series, position=1))
    assert len(world.tenants[0].ledger.charges()) == 1


def test_after_a_round_that_was_given_up_while_endorsing_a_new_series_begins(world: World) -> None:
    """Trustees may have bound themselves to it; the old series can not go on, and says so to whoever tries."""
    for week in (0, 1):
        world.happen_to_all(week)
        world.play(week)
    world.happen_to_all(2)
    registered(world, 2)
    round_ = collected(world, world.provider.plan(window(2)))
    world.provider.close_round(round_)
    round_.endorse(3, world.trustees[3].endorse(round_.request))
    assert round_.state is RoundState.ENDORSING
    round_.refuse()
    world.happen_to_all(3)
    made = world.play(3)
    assert made.plan.series is not None
    assert (made.plan.series.start_hour, made.plan.position) == (window(3)[0], 0)
    for tenant in EVERYBODY:
        world.count(tenant, [3])
    world.check(made)
    world.happen_to_all(4)
    assert world.play(4).plan.position == 1
    assert world.refusals == []


def test_a_change_of_settings_begins_a_new_series(world: World) -> None:
    world.happen_to_all(0)
    world.play(0)
    world.provider.settings = replace(world.provider.settings, epsilon=0.5)
    for week in (1, 2):
        world.happen_to_all(week)
        made = world.play(week)
        assert made.plan.series is not None
        assert (made.plan.series.start_hour, made.plan.position) == (168, week - 1)
    assert world.refusals == []


# ---- the provider --------------------------------------------------------------------------------------------------


def test_while_a_round_collects_no_other_is_planned_and_none_over_its_hours(world: World) -> None:
    world.happen_to_all(0)
    registered(world, 0)
    round_ = collected(world, world.provider.plan(window(0)))
    with pytest.raises(RoundUnderWay, match="is still collecting") as refusal:
        world.provider.plan(window(1))
    assert "abandon it" in refusal.value.diagnostics()
    world.provider.close_round(round_)
    with pytest.raises(WeekHeld, match="a round already covers"):
        world.provider.plan((window(0)[1] - 1, window(1)[1]))
    federated_round(world.provider, world.here(EVERYBODY), tuple(world.trustees.values()), round_)
    assert world.provider.unfinished() is None
    with pytest.raises(WeekHeld, match="a round already covers"):
        world.provider.plan((window(0)[1] - 1, window(1)[1]))
    world.provider.plan(window(1))


def test_a_provider_that_was_killed_goes_on_with_its_round(world: World, tmp_path: Path) -> None:
    world.happen_to_all(0)
    world.play(0)
    world.happen_to_all(1)
    registered(world, 1)
    round_ = collected(world, world.provider.plan(window(1)))
    world.provider.close_round(round_)
    with closing(Store(tmp_path / "provider.db")) as reopened:
        settings = world.provider.settings
        successor = Provider(keys().provider, b"context secret", settings, reopened, in_given_order)
        found = successor.unfinished()
        assert found is not None
        assert (found.state, found.request) == (RoundState.ENDORSING, round_.request)
        made = federated_round(successor, world.here([]), tuple(world.trustees.values()), found)
    for tenant in EVERYBODY:
        world.count(tenant, [0, 1])
    world.check(made)


def test_leases_whose_tokens_their_tenant_does_not_claim_have_no_owner(world: World) -> None:
    """The provider gave the tokens of the context itself; that somebody holds them, only he can say."""
    world.happen_to_all(0)
    for number, tenant in enumerate(world.tenants):
        request = world.provider.registration_request(window(0))
        if number < 3:
            world.provider.register(tenant.register(request))
            continue
        told = reopened(Registration, tenant.register(request))
        owned = open_signed(Ownership, told.ownership, keys().tenants[number][0].public)
        nothing = keys().tenants[number][0].sign(replace(owned, tokens=()))
        world.provider.register(keys().tenants[number][0].sign(replace(told, ownership=nothing)))
    plan = world.provider.plan(window(0))
    owners = {dimension.name: set(dimension.owners) for dimension in plan.dimensions if dimension.owners}
    assert owners == {"workload": {3}, "context": {3}, "context_level": {3}}


def test_a_node_key_is_one_tenants_who_may_show_its_card_again(world: World) -> None:
    first, second = world.provider.directory.members[:2]
    for _ in range(2):
        assert not world.provider.members.welcome(first, "a node key")
    with pytest.raises(PeerFault, match="has the node key of another"):
        world.provider.members.welcome(second, "a node key")
    assert not world.provider.members.welcome(second, "its own")
    assert not world.provider.members.welcome(first, "a newer one")
    for member in (first, second):
        with pytest.raises(RetiredNodeKey, match="was retired before"):
            world.provider.members.welcome(member, "a node key")


Forge = Callable[[Registration, Ownership], Registration]


@pytest.mark.parametrize(
    "forge",
    [
        lambda told, owned: replace(told, ownership=keys().tenants[1][0].sign(owned)),
        lambda told, owned: replace(
            told, ownership=keys().tenants[1][0].sign(replace(owned, tenant=keys().tenant_id(1)))
        ),
        lambda told, owned: replace(told, ownership=keys().tenants[0][0].sign(replace(owned, epoch=1))),
        lambda told, owned: replace(told, ownership=b""),
    ],
    ids=["forged", "another's", "another epoch", "nothing"],
)
def test_a_registration_with_another_word_than_its_senders_own_is_dropped(world: World, forge: Forge) -> None:
    world.happen_to_all(0)
    answer = world.tenants[0].register(world.provider.registration_request(window(0)))
    told = reopened(Registration, answer)
    owned = reopened(Ownership, told.ownership)
    world.provider.register(keys().tenants[0][0].sign(forge(told, owned)))
    assert world.store.ownerships(0) == world.store.ownerships(1) == []
    assert all("family" not in lease.labels for lease in world.provider.leases(*window(0)))
    world.provider.register(answer)
    assert world.store.ownerships(0) == [told.ownership]


def test_the_word_of_a_tenant_that_has_left_counts_no_longer_and_stops_no_round(world: World) -> None:
    world.happen_to_all(0)
    world.play(0)
    world.provider.members.enrol([], left=[keys().tenant_id(1)])
    world.happen_to_all(1)
    present = [tenant for tenant in EVERYBODY if tenant != 1]
    made = world.play(1, present)
    assert {owners for dimension in made.plan.dimensions for owners in dimension.owners} == {4}
    for tenant in EVERYBODY:
        world.count(tenant, [0, 1] if tenant != 1 else [0])
    world.check(made)


def test_where_owners_leave_a_row_a_new_series_begins_without_it(world: World) -> None:
    for tenant in EVERYBODY:
        world.happen(0, tenant, 1, ((2, 2), *USUAL) if tenant < 3 else USUAL)
    first = world.play(0)
    assert len(first.table("pairs").levels("workload")) == 3
    world.provider.members.enrol([], left=[keys().tenant_id(1)])
    world.happen_to_all(1)
    made = world.play(1, [tenant for tenant in EVERYBODY if tenant != 1])
    assert (made.plan.position, len(made.table("pairs").levels("workload"))) == (0, 2)
    assert world.refusals == []


def test_a_newcomer_counts_from_the_series_beginning_and_a_trustee_learns_of_it_first(world: World, cast: Cast) -> None:
    world.happen_to_all(0)
    world.play(0)
    signing, mask = SigningKey.generate(os.urandom), MaskKey.generate(os.urandom)
    world.provider.members.enrol([Member.of(signing, mask, 0)])
    world.happen_to_all(1)
    made = world.play(1)
    assert made.plan.directory == world.provider.directory.head != keys().directory.head
    assert {trustee.chain.directory.head for trustee in world.trustees.values()} == {made.plan.directory}
    for tenant in EVERYBODY:
        world.count(tenant, [0, 1])
    world.check(made)


def test_a_tenant_is_granted_its_own_leases_and_nobody_elses(world: World) -> None:
    world.happen_to_all(0)
    world.happen_to_all(1)
    key, tenant = keys().tenants[2][0], keys().tenant_id(2)
    answer = world.provider.grants(key.sign(LeaseRequest(tenant, *window(1))))
    granted = open_signed(LeaseGrants, answer, keys().provider.public)
    own = [lease for lease in world.provider.leases(*window(1)) if lease.tenant == tenant]
    assert granted.tenant == tenant
    assert [(one.lease, one.start_h, one.epoch) for one in granted.leases] == [
        (lease.lease, lease.start_h, 0) for lease in own
    ]
    assert [one.labels for one in granted.leases] == [dict(lease.labels) for lease in own]
    stranger = SigningKey.generate(os.urandom)
    for request in (
        key.sign(LeaseRequest(keys().tenant_id(1), *window(1))),
        stranger.sign(LeaseRequest(tenant, *window(1))),
        stranger.sign(LeaseRequest(TenantId(bytes(16)), *window(1))),
    ):
        with pytest.raises(BadSignature):
            world.provider.grants(request)


def test_a_trustee_that_was_away_delays_a_round_and_loses_nothing(world: World) -> None:
    world.happen_to_all(0)
    registered(world, 0)
    round_ = collected(world, world.provider.plan(window(0)))
    world.provider.close_round(round_)
    for index in (3, 5):
        round_.endorse(index, world.trustees[index].endorse(round_.request))
    assert (round_.state, round_.missing(Answer.ENDORSEMENT)) == (RoundState.ENDORSING, {4})
    made = world.play(0)  # goes on with the round that is under way
    for tenant in EVERYBODY:
        world.count(tenant, [0])
    world.check(made)
    assert [kept.round_id for kept in world.store.rounds.rounds()] == [round_.plan.round_id]
    assert named(round_) == world.trustees[4].rounds()[0][1]


def named(round_: Round) -> Digest:
    return name_of(round_.request)
