"""Hints: when an episode begins, repeats and ends; nothing is said twice; noise is not a hint, and danger is."""

import json
import math
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pytest

from crypto.errors import DecodeError
from crypto.ids import LeaseId
from federation.protocol.service_messages import Action, Hint, HintState, Suspicion
from provider_server.fleet.hints.episodes import Draft, Episodes, HintLimits, LeaseHazard, NodeHazard, lease_hazard
from tests.support.changing import replace

USUAL = 0.001
WITHIN_H = 24.0
LEASE, OTHER = LeaseId(bytes(16)), LeaseId(bytes([1] * 16))
RAISED, ESCALATED, CLEARED = HintState.RAISED, HintState.ESCALATED, HintState.CLEARED


def node(ratio: float, suspicion: Suspicion = Suspicion.MEMORY, spread: float = 1.2) -> NodeHazard:
    rate = ratio * USUAL
    level = max(0, math.floor(2.0 * math.log2(ratio)))
    return NodeHazard(rate, rate / spread, rate * spread, USUAL, suspicion, level)


def hazard(*ratios: float, lease: LeaseId = LEASE, spread: float = 1.2) -> LeaseHazard:
    return lease_hazard(lease, [node(ratio, spread=spread) for ratio in ratios], WITHIN_H)


def told(episodes: Episodes, ratios: Sequence[float]) -> list[tuple[float, HintState]]:
    """What is said of a lease of two nodes, one of which has these ratios hour by hour."""
    drafts = []
    for hour, ratio in enumerate(ratios):
        drafts += episodes.look(hour, [hazard(1.0, ratio)])
    return [(draft.at_h, draft.state) for draft in drafts]


# ---- the hazard of a lease -------------------------------------------------------------------------------------------


def test_probability_is_of_the_whole_lease_and_ratio_of_its_worst_node() -> None:
    found = lease_hazard(LEASE, [node(1.0)] * 31 + [node(5.0, Suspicion.STORAGE)], WITHIN_H)
    assert found.ratio == pytest.approx(5.0)
    assert (found.ratio_low, found.ratio_high) == pytest.approx((5.0 / 1.2, 6.0))
    assert found.probability == pytest.approx(1.0 - math.exp(-36 * USUAL * WITHIN_H))
    assert found.excess == pytest.approx(4 * USUAL * WITHIN_H)
    assert found.suspicion is Suspicion.STORAGE


def test_the_worst_node_adds_most_and_need_not_have_the_largest_ratio() -> None:
    quiet = NodeHazard(1e-5, 1e-5, 1e-5, 1e-6, Suspicion.HOST, 1)
    assert lease_hazard(LEASE, [quiet, node(3.0)], WITHIN_H).suspicion is Suspicion.MEMORY
    assert lease_hazard(LEASE, [quiet, node(1.0)], WITHIN_H).suspicion is Suspicion.HOST


def test_a_node_that_fails_less_than_usual_makes_up_for_no_other() -> None:
    assert hazard(0.1, 3.0).excess == hazard(1.0, 3.0).excess == pytest.approx(2 * USUAL * WITHIN_H)


@pytest.mark.parametrize("hours", [0.0, -1.0, math.inf, math.nan])
def test_hours_must_be_some(hours: float) -> None:
    with pytest.raises(ValueError, match="hours"):
        lease_hazard(LEASE, [node(1.0)], hours)


def test_impossible_rates_and_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="nodes"):
        lease_hazard(LEASE, [], WITHIN_H)
    for rate, low, high, usual in ((1, 2, 3, 1), (1, 0, math.inf, 1), (1, 1, 1, 0), (math.nan, 0, 1, 1)):
        with pytest.raises(ValueError, match="interval"):
            NodeHazard(rate, low, high, usual, Suspicion.HOST, 0)
    with pytest.raises(ValueError, match="level must be"):
        NodeHazard(1.0, 1.0, 1.0, 1.0, Suspicion.HOST, -1)
    for wrong in ({"clear_ratio": 2.0}, {"looks": 0}, {"escalate_factor": 1.0}, {"raise_ratio": 20.0}):
        with pytest.raises(ValueError, match=r"must|ratios"):
            HintLimits(**wrong)


# ---- thresholds ------------------------------------------------------------------------------------------------------


def test_an_episode_begins_after_two_looks_in_a_row_and_not_after_one() -> None:
    assert told(Episodes(), [1, 5, 1, 5, 1]) == []
    assert told(Episodes(), [1, 5, 5, 5]) == [(2.0, RAISED)]


def test_ratio_interval_and_excess_are_all_needed() -> None:
    limits = HintLimits(raise_excess=0.024, raise_ratio=2.0, raise_ratio_low=1.5)

    def raises(found: LeaseHazard) -> bool:
        episodes = Episodes(limits)
        episodes.look(0.0, [hazard(1.0, 1.0)])
        return bool([*episodes.look(1.0, [found]), *episodes.look(2.0, [found])])

    enough = replace(hazard(1.0, 2.5, spread=1.6), ratio=2.0, ratio_low=1.5, excess=0.024)
    assert raises(enough)
    assert not raises(replace(enough, ratio=1.99))
    assert not raises(replace(enough, ratio_low=1.49))
    assert not raises(replace(enough, excess=0.0239))


def test_what_was_so_at_the_beginning_is_no_news_but_another_node_is() -> None:
    episodes = Episodes()
    for hour in range(5):
        assert episodes.look(hour, [hazard(5.0, 1.0)]) == []
    drafts = [draft for hour in (5, 6) for draft in episodes.look(hour, [hazard(5.0, 5.0)])]
    assert [draft.state for draft in drafts] == [RAISED]


def test_rates_that_change_while_levels_do_not_are_no_news() -> None:
    """Another age band, another bundle: every ratio of a lease that began at level 1 is soon twice what it was."""
    episodes, known = Episodes(), hazard(2.0, 2.0)
    for hour in range(10):
        factor = 1.0 + hour / 3.0
        changed = replace(known, ratio=2 * factor, excess=known.excess * factor, surplus=known.surplus * factor)
        assert episodes.look(hour, [changed]) == []
    drafts = [draft for hour in (10, 11) for draft in episodes.look(hour, [hazard(2.0, 9.0)])]
    assert [draft.state for draft in drafts] == [RAISED]


def test_only_the_excess_that_has_come_counts() -> None:
    """A lease of 32 bad nodes of which one becomes a little worse: hardly anything has come, though all is bad."""
    episodes, many = Episodes(), [2.0] * 32
    looks = [many] * 2 + [[2.83, *many[1:]]] * 3
    assert [draft for hour, ratios in enumerate(looks) for draft in episodes.look(hour, [hazard(*ratios)])] == []
    assert hazard(*looks[-1]).excess > 30 * HintLimits().raise_excess
    drafts = [draft for hour in (5, 6) for draft in episodes.look(hour, [hazard(5.0, 5.0, *many[2:])])]
    assert [draft.state for draft in drafts] == [RAISED]


def test_a_node_repaired_and_bad_again_is_news() -> None:
    assert told(Episodes(), [5, 5, 1, 1, 5, 5]) == [(5.0, RAISED)]


def test_what_is_grave_is_told_even_from_the_beginning() -> None:
    assert told(Episodes(), [11, 11]) == [(1.0, RAISED)]


# ---- episodes --------------------------------------------------------------------------------------------------------


def test_flicker_is_one_episode_and_clears_only_after_hours_of_calm() -> None:
    flicker = [1, 5, 5] + [1, 1, 1, 5] * 6 + [1] * 20
    assert told(Episodes(), flicker) == [(2.0, RAISED), (33.0, CLEARED)]


def test_between_the_thresholds_nothing_clears() -> None:
    assert told(Episodes(), [1, 5, 5] + [2.2] * 100) == [(2.0, RAISED)]


def test_it_clears_when_the_second_node_is_well_again_though_the_first_never_was() -> None:
    episodes = Episodes()
    looks = [(5.0, 1.0)] * 2 + [(5.0, 5.0)] * 3 + [(5.0, 1.0)] * 10
    drafts = [draft for hour, ratios in enumerate(looks) for draft in episodes.look(hour, [hazard(*ratios)])]
    assert [draft.state for draft in drafts] == [RAISED, CLEARED]


def test_an_excess_that_doubles_escalates_once() -> None:
    rises = [1, 3, 3, 4.9, 5.1, 5.1, 9, 9.3, 9.3]
    assert told(Episodes(), rises) == [(2.0, RAISED), (4.0, ESCALATED), (7.0, ESCALATED)]


def test_a_ratio_that_doubles_escalates_though_the_lease_hardly_notices() -> None:
    episodes, others = Episodes(), [3.0] * 20
    looks = [[1.0] * 21, [*others, 1.0], [*others, 1.0], [*others, 1.0, 5.9], [*others, 1.0, 6.1]]
    drafts = [draft for hour, ratios in enumerate(looks) for draft in episodes.look(hour, [hazard(*ratios)])]
    assert [(draft.at_h, draft.state) for draft in drafts] == [(2.0, RAISED), (4.0, ESCALATED)]


def test_the_third_episode_of_a_lease_begins_as_an_escalation() -> None:
    episodes = Episodes()
    again = [5.0] * 3 + [1.0] * 8
    drafts = [draft for hour, ratio in enumerate([1.0, *again * 4]) for draft in episodes.look(hour, [hazard(ratio)])]
    states = [(draft.state, draft.times, draft.action) for draft in drafts if draft.state is not CLEARED]
    assert [state for state, _, _ in states] == [RAISED, RAISED, ESCALATED, ESCALATED]
    assert [times for _, times, _ in states] == [1, 2, 3, 4]
    assert [action for _, _, action in states][2:] == [Action.MOVE, Action.MOVE]


def test_leases_do_not_mix_and_an_ended_one_is_forgotten() -> None:
    episodes = Episodes()
    looks = [[hazard(ratio), hazard(1.0, lease=OTHER)] for ratio in (1.0, 5.0, 5.0)]
    said = [draft for hour, look in enumerate(looks) for draft in episodes.look(hour, look)]
    assert [draft.lease for draft in said] == [LEASE]
    assert episodes.open == {LEASE}
    episodes.ended([LEASE])
    assert episodes.open == frozenset()
    assert LEASE.hex() not in episodes.state().decode()


def test_a_lease_that_is_not_looked_at_keeps_its_state() -> None:
    episodes = Episodes()
    assert told(episodes, [1, 5, 5]) == [(2.0, RAISED)]
    assert episodes.look(500.0, []) == []
    assert episodes.open == {LEASE}


# ---- actions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suspicion", "ratio", "action"),
    [
        (Suspicion.MEMORY, 3.0, Action.CONFIRM),
        (Suspicion.UNCLEAR, 3.0, Action.CHECKPOINT),
        (Suspicion.MEMORY, 9.0, Action.CHECKPOINT),
    ],
)
def test_there_is_one_thing_to_do(suspicion: Suspicion, ratio: float, action: Action) -> None:
    episodes = Episodes()
    episodes.look(0.0, [hazard(1.0)])
    bad = lease_hazard(LEASE, [node(ratio, suspicion)], WITHIN_H)
    (draft,) = [*episodes.look(1.0, [bad]), *episodes.look(2.0, [bad])]
    assert (draft.state, draft.action, draft.suspicion) == (RAISED, action, suspicion)


def test_what_is_cleared_asks_for_nothing() -> None:
    episodes, ratios = Episodes(), [1.0, 4.0, 4.0] + [1.0] * 8
    drafts = [draft for hour, ratio in enumerate(ratios) for draft in episodes.look(hour, [hazard(ratio)])]
    assert [draft.action for draft in drafts] == [Action.CONFIRM, Action.NOTHING]


def test_a_draft_is_a_hint_without_its_number_and_names_no_device() -> None:
    assert list(Hint.__struct_fields__) == ["number", *(field.name for field in fields(Draft))]
    episodes = Episodes()
    (draft,) = [draft for hour, ratio in enumerate([1.0, 5.0, 5.0]) for draft in episodes.look(hour, [hazard(ratio)])]
    hint = Hint(number=1, **{field.name: getattr(draft, field.name) for field in fields(Draft)})
    assert (hint.lease, hint.times) == (LEASE, 1)
    names = {field.name for kind in (NodeHazard, LeaseHazard, Draft) for field in fields(kind)}
    assert names.isdisjoint({"node", "nodes", "device", "uuid", "serial", "tenant"})
    assert set(json.loads(episodes.state())["leases"]) == {LEASE.hex()}


# ---- restart ---------------------------------------------------------------------------------------------------------


def test_a_restart_after_every_look_says_the_same_and_nothing_twice() -> None:
    rng = np.random.default_rng(0)
    paths = np.repeat(rng.choice([1.0, 2.0, 5.0], (40, 30)), 6, axis=0)
    unbroken, restarted, all_said = Episodes(), Episodes(), []
    for hour, ratios in enumerate(paths):
        looks = [hazard(ratio, lease=LeaseId(bytes([n] * 16))) for n, ratio in enumerate(ratios.tolist())]
        said = unbroken.look(hour, looks)
        assert restarted.look(hour, looks) == said
        restarted = Episodes.resumed(restarted.state())
        assert restarted.look(hour, looks) == []  # the same look again
        assert restarted.state() == unbroken.state()
        all_said += said
    assert {draft.state for draft in all_said} == set(HintState)


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"{}",
        b'{"version":2,"at_h":null,"leases":{}}',
        b'{"version":1,"at_h":null,"leases":{"00":{"best_strain":0,"best_surplus":0.0}}}',
        b'{"version":1,"at_h":null,"leases":{"' + b"00" * 16 + b'":{"best_strain":0,"best_surplus":0.0,"open":true}}}',
        b'{"version":1,"at_h":null,"leases":{"' + b"00" * 16 + b'":{"best_strain":"much","best_surplus":0.0}}}',
    ],
)
def test_anything_else_is_no_state(state: bytes) -> None:
    with pytest.raises(DecodeError):
        Episodes.resumed(state)


# ---- noise and power -------------------------------------------------------------------------------------------------


def hints_per_1000_lease_hours(sigma: float, drifting_to: float, rng: np.random.Generator) -> tuple[float, float]:
    """Hints among steady leases, per 1,000 lease-hours, and the share of drifting leases that get one in a day."""
    leases, hours = 200, 72
    ids = [LeaseId(n.to_bytes(16, "big")) for n in range(2 * leases)]
    steady, drifting, raised = Episodes(), Episodes(), [0, 0]
    for hour in range(hours):
        noise = rng.lognormal(0.0, sigma, 2 * leases)
        drift = drifting_to if hour >= hours - 24 else 1.0
        raised[0] += len(steady.look(hour, [hazard(x, lease=n) for n, x in zip(ids, noise[:leases], strict=False)]))
        looks = [hazard(drift * x, lease=n) for n, x in zip(ids[leases:], noise[leases:], strict=True)]
        raised[1] += sum(draft.state is RAISED for draft in drifting.look(hour, looks))
    return 1000.0 * raised[0] / (leases * hours), raised[1] / leases


def test_steady_noise_gives_hardly_a_hint_and_danger_does() -> None:
    false, found = hints_per_1000_lease_hours(0.15, 5.0, np.random.default_rng(0))
    assert false <= 0.2  # two of 14,400 lease-hours: a higher rate would show
    assert found >= 0.99
    loud, _ = hints_per_1000_lease_hours(0.6, 5.0, np.random.default_rng(0))
    assert loud > 1.0  # the measurement can fail: with this much noise there are false hints


# ---- from the grant on -----------------------------------------------------------------------------------------------


def test_what_came_between_check_and_first_look_is_news_and_what_the_check_knew_is_none() -> None:
    for granted, said in (([1.0, 1.0], [RAISED]), ([1.0, 5.0], [])):
        episodes = Episodes()
        episodes.granted([hazard(*granted)])
        drafts = [draft for hour in range(3) for draft in episodes.look(hour, [hazard(1.0, 5.0)])]
        assert [draft.state for draft in drafts] == said
        assert Episodes.resumed(episodes.state()).state() == episodes.state()


def test_a_grant_told_again_changes_nothing() -> None:
    episodes = Episodes()
    episodes.look(0.0, [hazard(5.0)])
    before = episodes.state()
    episodes.granted([hazard(1.0)])
    assert episodes.state() == before
