"""The users' loop against planted truth: what is known is avoided and foreseen, what is not known gains nothing."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache

import numpy as np
import polars as pl
import pytest

from crypto.ids import LeaseId, Token
from federation.protocol.bundle import Bundle, HazardEntry, MismatchEntry, PairJudgement, Statement
from federation.protocol.check import Check
from federation.protocol.service_messages import Action, HintState, Suspicion
from provider_server.fleet.analysis.buildup import BuildUp
from provider_server.fleet.hints.episodes import Draft
from provider_server.fleet.release import Release
from provider_server.fleet.telemetry.summaries import REPORTED, HourSummary
from simulation.cloud import degradation
from simulation.cloud.arrivals import Leases
from simulation.cloud.cloud import Cloud, build_cloud
from simulation.cloud.degradation import (
    METRIC,
    Courses,
    Latches,
    draw_courses,
    failure_hours,
    observe,
    replaced,
    severity,
)
from simulation.cloud.scenario import load
from simulation.judge.hint_evaluation import is_warned, saved_h, watch
from simulation.judge.histories import Histories
from simulation.judge.impact import Impact, OwnHistory, check_all, gained_by_checks, impact, on_mismatch, on_warning
from simulation.judge.user_loop import Costs, World, learning_weeks, world_of
from simulation.studies import impact as bench_impact
from simulation.studies.attendance import InsecureRepeatable
from simulation.studies.impact import token, trial_of
from simulation.studies.learning import Year
from tenant_client.doctor.advice.own_history import Joined
from tenant_client.doctor.records.own_leases import OwnLease
from tests.support.changing import replace

COSTS = Costs()
PERIODS = len(learning_weeks(load("quickstart")))


@cache
def cloud() -> Cloud:
    """A quarter of a year of a small cloud, of which the second half is judged."""
    return build_cloud(load("quickstart"), np.random.default_rng(0))


@cache
def world() -> World:
    return world_of(trial_of(cloud(), 0))


def bundle_that_says(planted: frozenset[tuple[int, int]], probability: float = 1.0) -> Bundle:
    """A bundle that knows the hazards exactly, and calls these pairs worse."""
    places = [(context, level) for context in range(8) for level in range(3)]
    hazards = [
        HazardEntry(token(f"context {context} level {level}"), str(band), rate, 0.8 * rate, 1.2 * rate)
        for context, level in places
        for band in range(4)
        if (rate := 1000.0 * _mean_rate(context, level) * float(cloud().hazard.band[band]))
    ]
    pairs = [
        MismatchEntry(
            token(f"workload {workload}"),
            token(f"context {context}"),
            probability if (workload, context) in planted else 0.01,
            8.0,
            4.0,
            16.0,
            10.0,
            (PairJudgement.WORSE if probability > 0.9 else PairJudgement.SUSPECTED)
            if (workload, context) in planted
            else PairJudgement.NOT_WORSE,
            (),
        )
        for workload in range(24)
        for context in range(8)
    ]
    statement = Statement(1.0, 1e-8, "discrete_laplace", 4, 40)
    return Bundle(1, 0, 672, (), tuple(pairs), tuple(hazards), statement)


def _mean_rate(context: int, level: int) -> float:
    hazard = cloud().hazard
    return float(hazard.base_per_node_hour * hazard.context[context] * hazard.level[level])


def bundles(planted: frozenset[tuple[int, int]], probability: float = 1.0) -> list[Bundle]:
    return [bundle_that_says(planted, probability)] * PERIODS


@cache
def with_truth() -> Impact:
    return impact(world(), bundles(cloud().mismatched))


# ---- checks ----------------------------------------------------------------------------------------------------------


def test_who_knows_the_truth_avoids_all_and_refuses_nobody_else() -> None:
    assert with_truth().mismatch_gpu_hours_avoided_share == 1.0
    assert with_truth().false_refusal_share == 0.0
    assert (with_truth().first_bundle_avoided_share, with_truth().right_refusal_share) == (1.0, 1.0)
    assert with_truth().gpu_hours_saved_by_checks > 100.0
    assert with_truth().dollars_saved == pytest.approx(2.5 * with_truth().gpu_hours_saved)


def test_without_pharoah_nothing_is_saved_and_nobody_is_bothered() -> None:
    nothing = asdict(impact(world(), [None] * PERIODS))
    assert nothing.pop("right_refusal_share") is None
    assert {value for key, value in nothing.items()} == {0.0}


def test_shuffled_findings_avoid_nothing_and_refuse_wrongly() -> None:
    rng = np.random.default_rng(0)
    healthy = sorted({(w, c) for w in range(24) for c in range(8)} - cloud().mismatched)
    wrong = frozenset(healthy[n] for n in rng.choice(len(healthy), 6, replace=False).tolist())
    placed = check_all(world(), bundles(wrong), on_mismatch)
    avoided, refused, _ = gained_by_checks(world(), placed, COSTS)
    assert avoided is not None
    assert avoided <= 0.0
    assert refused == pytest.approx(6 / len(healthy), rel=0.5)


def test_a_share_of_the_truth_avoids_about_that_share() -> None:
    some = frozenset(sorted(cloud().mismatched)[:3])
    avoided, _, _ = gained_by_checks(world(), check_all(world(), bundles(some), on_mismatch), COSTS)
    assert avoided is not None
    assert 0.1 < avoided < 0.9


def test_only_who_heeds_warnings_leaves_what_is_but_suspected() -> None:
    doubtful = bundles(cloud().mismatched, probability=0.06)
    placed = [check_all(world(), doubtful, heeds) for heeds in (on_mismatch, on_warning)]
    shares = [gained_by_checks(world(), one, COSTS)[:2] for one in placed]
    assert shares == [(0.0, 0.0), (1.0, 0.0)]
    assert not on_warning(Check.of(1, None, ()))


def test_a_job_goes_to_the_proposal_and_else_where_its_tenant_runs_most() -> None:
    workload, context = min(cloud().mismatched)
    healthy = [place for place in range(8) if (workload, place) not in cloud().mismatched]
    proposed = (token(f"context {healthy[-1]}"),)
    base = bundle_that_says(cloud().mismatched)
    entries = tuple(
        replace(one, alternatives=proposed)
        if (one.workload, one.context) == (token(f"workload {workload}"), token(f"context {context}"))
        else one
        for one in base.mismatches
    )
    leases, rows = cloud().leases, world().rows
    of_pair = (leases.workload[rows] == workload) & (leases.context[rows] == context)
    told = check_all(world(), [replace(base, mismatches=entries)] * PERIODS, on_mismatch)
    assert set(told.context[of_pair].tolist()) == {healthy[-1]}
    untold = check_all(world(), [base] * PERIODS, on_mismatch)
    assert set(untold.context[of_pair].tolist()) <= set(healthy)
    assert np.array_equal(told.context[~told.refused], leases.context[rows][~told.refused])


def test_a_refusal_costs_the_gpus_of_the_job_until_it_runs_elsewhere() -> None:
    placed = check_all(world(), bundles(cloud().mismatched), on_warning)
    nodes = cloud().leases.nodes[world().rows][placed.refused].sum()
    slow = impact(world(), bundles(cloud().mismatched), costs=Costs(queue_h=2.0, data_h=1.0, restart_h=0.5))
    assert slow.refusal_gpu_hours == pytest.approx(8 * nodes * 3.5)
    assert with_truth().refusal_gpu_hours == pytest.approx(8 * nodes * 1.0)


def test_nobody_goes_where_there_is_no_room() -> None:
    moved = []
    for room in (0.0, 0.02, 1.0):
        placed = check_all(world(), bundles(cloud().mismatched), on_mismatch, Costs(room_share=room))
        node_hours = cloud().leases.nodes[world().rows] * world().hours
        moved.append(float(node_hours[placed.refused].sum()))
        assert moved[-1] <= room * float(node_hours.sum())
    assert moved[0] == 0.0 < moved[1] < moved[2]


def test_a_tenant_that_remembers_avoids_what_the_bundle_does_not_know() -> None:
    """Who has run a job before knows the truth; the first jobs of a tenant do not."""
    ignorant, knowing = bundle_that_says(frozenset()), bundle_that_says(cloud().mismatched)

    def joiner(bundle: Bundle) -> Callable[[Sequence[OwnLease]], Joined]:
        return lambda leases: Joined(knowing if leases else bundle, {})

    own = OwnHistory(Histories(world().trial), joiner)
    remembering = impact(world(), [ignorant] * PERIODS, own=own)
    assert impact(world(), [ignorant] * PERIODS).mismatch_gpu_hours_avoided_share == 0.0
    assert remembering.mismatch_gpu_hours_avoided_share is not None
    assert remembering.mismatch_gpu_hours_avoided_share > 0.9
    assert remembering.right_refusal_share == 1.0


# ---- degradation -----------------------------------------------------------------------------------------------------


def test_nodes_rise_as_the_shares_of_levels_do() -> None:
    """Steps taken per week and free step, over all contexts and weeks: within sampling error of what was stated."""
    courses = draw_courses(cloud(), np.arange(len(cloud().leases.start_h)), np.random.default_rng(1))
    risen = float(np.sum(courses.rise_h <= courses.hours[:, None]))
    free = 2 - courses.level
    taken = np.array([np.mean(cloud().leases.level[cloud().leases.context == c]) / 2 for c in range(8)])
    per_week = degradation.STEPS_PER_WEEK / (1.0 - taken[cloud().leases.context[courses.lease]])
    assert risen == pytest.approx(float(np.sum(free * per_week * courses.hours / 168.0)), rel=0.15)
    assert np.all(np.isinf(courses.rise_h[free == 0]))


def _courses(levels: Sequence[int], rise_h: float, hours: float) -> Courses:
    size = len(levels)
    rests = np.array([[1.0, 4.0, 6.0], [4.0, 6.0, 6.0], [6.0, 6.0, 6.0]])[list(levels)]
    rises = np.array([[rise_h, np.inf] if level < 2 else [np.inf, np.inf] for level in levels])
    return Courses(np.arange(size), np.array(levels), rises, rests, np.full(size, hours))


def test_severity_crosses_the_threshold_ahead_of_the_hazard_and_rests_where_it_should() -> None:
    courses = _courses([0, 1], rise_h=100.0, hours=300.0)
    at = {hour: severity(courses, slice(None), hour).tolist() for hour in (0.0, 97.9, 98.0, 250.0)}
    assert at[0.0] == [1.0, 4.0]
    assert at[97.9][0] < 3.0 < 3.0001 > at[98.0][0]
    assert at[98.0] == pytest.approx([3.0, 5.0])
    assert at[250.0] == [4.0, 6.0]


def test_steady_nodes_show_their_level_and_risen_ones_the_next_within_hours() -> None:
    steady = observe(_courses([0, 1, 2] * 200, np.inf, 100.0), 3, np.random.default_rng(0))
    assert np.mean(steady.start == np.array([0, 1, 2] * 200)) > 0.98
    assert len(steady.node) < 0.02 * 600  # of 60,000 node-hours
    seen = observe(_courses([0, 1] * 200, 50.0, 100.0), 3, np.random.default_rng(0))
    rose = (seen.level > seen.start[seen.node]) & (seen.hour > 30)
    first = dict(zip(seen.node[rose][::-1].tolist(), seen.hour[rose][::-1].tolist(), strict=True))
    assert len(first) > 0.95 * 400
    assert 40 < np.median(list(first.values())) < 56


@pytest.mark.nightly
def test_levels_are_those_of_the_real_build_up_on_a_small_fleet() -> None:
    """Counts of 40 drifting nodes among 80 that show nothing: the approximation and `BuildUp` agree in every hour."""
    rng, size, hours = np.random.default_rng(3), 40, 96
    courses = _courses([0, 1, 2, 0] * 10, rise_h=60.0, hours=float(hours))
    latches, real = Latches(np.zeros(size)), BuildUp()
    names = [f"n{node:03}" for node in range(3 * size)]
    before, seen = np.zeros(size), set()
    for hour in range(hours):
        after = latches.unit * (2.0 ** severity(courses, slice(None), hour) - 1.0)
        counts = np.where(hour == 0, np.round(after), rng.poisson(np.maximum(after - latches.kept * before, 0.0)))
        before, ours = after, latches.add(counts.astype(np.float64))
        values = [*counts.astype(float).tolist(), *[0.0] * (2 * size)]
        columns = {"node": names, "device": "g0", "metric": METRIC, "increase": values}
        rows = pl.DataFrame(columns).with_columns(mean=pl.lit(None, pl.Float64))
        shown = real.add(HourSummary(hour, rows, pl.DataFrame({"node": names, "status": REPORTED}), pl.DataFrame()))
        assert shown["level"].to_list() == [*ours.tolist(), *[0] * (2 * size)]
        seen |= set(ours.tolist())
    assert seen == {0, 1, 2}


def test_failures_after_a_rise_follow_the_hazard_of_the_level() -> None:
    """Without a rise none; with one, as many and as late as an exponential of the risen rate says."""
    size, rate = 20_000, 0.002
    hazard = replace(cloud().hazard, band=np.ones(4))
    rises = np.tile([10.0, np.inf], (size, 1))
    courses = Courses(np.arange(size), np.zeros(size, np.int64), rises, np.zeros((size, 3)), np.full(size, 60.0))
    at = failure_hours(courses, np.full(size, rate), hazard, np.random.default_rng(0).exponential(1.0, size))
    failed = np.isfinite(at)
    assert failed.mean() == pytest.approx(1.0 - np.exp(-rate * 2.0 * 50.0), abs=0.01)
    assert at[failed].min() > 10.0
    assert at[failed].max() < 60.0
    never = replace(courses, rise_h=np.full((size, 2), np.inf))
    assert not np.isfinite(failure_hours(never, np.full(size, rate), hazard, np.zeros(size))).any()


def test_a_failed_node_is_replaced_by_one_that_shows_nothing() -> None:
    seen = observe(_courses([0] * 50, 30.0, 100.0), 3, np.random.default_rng(0))
    fixed = replaced(seen, np.full(50, 60.5))
    assert np.all(fixed.level[fixed.hour == 61] == 0)
    assert fixed.hour.max() == 61
    assert np.array_equal(fixed.hour[fixed.hour < 60], seen.hour[seen.hour < 60])


# ---- hints -----------------------------------------------------------------------------------------------------------


def test_who_knows_the_hazards_foresees_most_degradations() -> None:
    warned, false = with_truth().warned_30min_share, with_truth().false_hints_per_1000_lease_hours
    assert warned is not None
    assert false is not None
    assert warned > 0.6
    assert 0.0 < false < 1.0


def test_hints_come_only_where_a_level_is_above_that_of_the_check() -> None:
    told = watch(world(), bundles(frozenset()), cloud().leases.context[world().rows])
    courses, seen = world().courses, world().seen
    changed = {*courses.lease[seen.node].tolist(), *courses.lease[seen.start > courses.level].tolist()}
    assert len(told.hints) > 20
    assert set(told.hints) <= changed


def test_who_thinks_that_levels_do_not_matter_is_never_warned() -> None:
    base = bundle_that_says(frozenset())
    flat = replace(base, hazards=tuple(replace(one, rate=1.0, rate_low=0.5, rate_high=2.0) for one in base.hazards))
    found = impact(world(), [flat] * PERIODS)
    assert found.warned_30min_share == found.false_hints_per_1000_lease_hours == 0.0


def _draft(at_h: float, state: HintState, action: Action) -> Draft:
    return Draft(at_h, LeaseId(bytes(16)), state, Suspicion.MEMORY, 2.0, 1.0, 3.0, 0.1, 24.0, action, 1)


def test_a_warning_is_in_time_and_not_withdrawn() -> None:
    raised = _draft(10.0, HintState.RAISED, Action.CHECKPOINT)
    cleared = _draft(15.0, HintState.CLEARED, Action.NOTHING)
    assert is_warned([raised], 10.5)
    assert not is_warned([raised], 10.4)
    assert not is_warned([raised, cleared], 20.0)
    assert is_warned([raised, cleared], 15.2)
    assert not is_warned([], 10.0)


def test_what_a_hint_saves_at_a_failure() -> None:
    """The work since the last checkpoint, and recovery; after a move only what would have failed anyway is lost."""
    costs = Costs(checkpoint_every_h=4.0, notice_h=0.2, restart_h=0.3)
    raised = _draft(10.0, HintState.RAISED, Action.CHECKPOINT)
    moved = _draft(10.5, HintState.ESCALATED, Action.MOVE)
    assert saved_h([], 11.0, 0.5, costs) == 0.0
    assert saved_h([raised], 11.0, 0.5, costs) == pytest.approx(2.0)
    assert saved_h([raised], 13.0, 0.5, costs) == 0.0  # a regular checkpoint came later
    assert saved_h([raised, moved], 11.0, 0.5, costs) == pytest.approx(3.5 - 0.5 * 1.0)


# ---- the study ---------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_in_a_closed_loop_what_is_heeded_is_no_longer_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles know the truth: what began under the first is on no planted pair when the second is learnt."""
    home = build_cloud(replace(load("quickstart"), owners_minimum=1), np.random.default_rng(0))
    weeks, planted, on_planted = learning_weeks(home.scenario), home.hazard.mismatch > 1, []

    def between(leases: Leases, end: int) -> int:
        begun = (leases.start_h >= 168 * weeks[0]) & (leases.start_h < 168 * end)
        return int(planted[leases.workload, leases.context][begun].sum())

    def knowing(year: Year, made: Sequence[Release], week: Sequence[int]) -> list[Bundle]:
        assert [made[-1].plan.end_hour // 168] == [*week]
        on_planted.append(between(year.cloud.leases, *week))
        return [bundle_that_says(home.mismatched)]

    monkeypatch.setattr(bench_impact, "bundles_of", knowing)
    for with_history in (False, True):
        sampler = InsecureRepeatable(bytes(16))
        found = bench_impact.heeded(world_of(trial_of(home, 0)), weeks, sampler, with_history=with_history)
        assert found.mismatch_gpu_hours_avoided_share == 1.0
    assert between(home.leases, weeks[1]) > 0
    assert on_planted == [0] * 2 * PERIODS


def test_tokens_of_names_differ() -> None:
    assert isinstance(token("context 1"), Token)
    assert token("context 1") != token("context 11")
