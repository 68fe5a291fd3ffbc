"""A lease's votes in a window sum to one at most, and change a table by no more than the norm that is priced."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from federation.protocol.plan import Marginal, Mechanism, Plan, PlanDimension
from federation.protocol.subjects import Subject, norms
from tenant_client.doctor.diagnosis.network_pair import stalled_pair
from tenant_client.doctor.diagnosis.rank_graph import RankSeat
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal, Unit
from tenant_client.doctor.records.votes import NoPair, Vote, Votes, parts_of
from tenant_client.doctor.sources.flight_recorder import CollectiveState
from tenant_client.rounds.counts import Observation, build_tables
from tests.support.changing import replace
from tests.support.clusters import C, R, S, call, cluster, judged, world
from tests.support.plans import small_plan

KEY = bytes(32)
PARTS = tuple(letter * 32 for letter in "abcd")
TOKENS = {"n1": ("a0", "a1", "a"), "n2": ("b0", "b1", "b"), "n3": ("a0", "a1", "a")}


def votes_plan(*parts: str) -> Plan:
    dimension = PlanDimension("part", parts, (5,) * len(parts))
    marginals = (Marginal("votes", ("part",), (), 9.0, Subject.VOTES),)
    plan = small_plan(mechanism=Mechanism.DISCRETE_GAUSSIAN)
    return replace(plan, dimensions=(*plan.dimensions, dimension), marginals=marginals)


def observed(unit: str, at_h: float, *parts: str) -> Observation:
    return Observation(Subject.VOTES, unit, at_h, tuple((part,) for part in parts))


one_vote = st.builds(
    observed, st.sampled_from(["u", "v"]), st.sampled_from([1.0, 100.0, 170.0]), st.sampled_from(PARTS),
    st.sampled_from(PARTS),
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(one_vote, max_size=12))
def test_a_unit_with_many_votes_moves_the_table_by_no_more_than_its_norms(votes: list[Observation]) -> None:
    plan = votes_plan(*PARTS)
    l1, l2 = norms(Subject.VOTES, plan.failures_per_unit)
    (with_all,) = build_tables(plan, (), KEY, votes)
    (without,) = build_tables(plan, (), KEY, [vote for vote in votes if (vote.unit, vote.at_h > 168) != ("u", False)])
    moved = with_all - without
    assert np.abs(moved).sum() <= l1 == 2
    assert math.sqrt((moved**2).sum()) <= l2 + 1e-12


def test_the_bound_is_reached_by_one_vote_between_two_leaves() -> None:
    (counts,) = build_tables(votes_plan(*PARTS), (), KEY, [observed("u", 1.0, PARTS[0], PARTS[1])])
    assert counts.tolist() == [1, 1, 0, 0]


def test_a_hundred_votes_of_one_unit_count_as_one_and_those_of_the_next_week_as_another() -> None:
    votes = [
        observed("u", at_h, PARTS[at % 4], PARTS[(at + 1) % 4]) for at, at_h in enumerate(np.linspace(0, 300, 100))
    ]
    (counts,) = build_tables(votes_plan(*PARTS), (), KEY, votes)
    assert counts.sum() == 4  # two ends in each of two weeks


def test_a_vote_within_one_leaf_is_half_a_vote_and_one_without_rows_none() -> None:
    (counts,) = build_tables(votes_plan(*PARTS[:2]), (), KEY, [observed("u", 1.0, PARTS[0], PARTS[0])])
    assert counts.tolist() == [1, 0]
    (counts,) = build_tables(votes_plan(*PARTS[:2]), (), KEY, [observed("u", 1.0, PARTS[2], PARTS[3])])
    assert counts.sum() == 0


def test_a_vote_without_a_row_takes_no_place_from_one_that_has() -> None:
    votes = [observed("u", float(at), PARTS[2], PARTS[3]) for at in range(20)] + [observed("u", 50.0, *PARTS[:2])]
    (counts,) = build_tables(votes_plan(*PARTS[:2]), (), KEY, votes)
    assert counts.tolist() == [1, 1]


def test_a_marginal_of_failures_counts_no_votes() -> None:
    (pairs, bands) = build_tables(small_plan(), (), KEY, [observed("u", 1.0, "a", "b")])
    assert not pairs.any()
    assert not bands.any()


@pytest.mark.parametrize(
    ("nodes", "rail", "parts"),
    [
        (("n1", "n2"), 1, ("a1", "b1")),
        (("n1", "n2"), None, ("a", "b")),
        (("n1", "n3"), 0, ("a0",)),
        (("n1", "n2"), 2, ()),  # there is no such rail
        (("n1", "n9"), 0, ()),  # nor such a node
    ],
)
def test_a_vote_names_the_parts_at_both_ends(nodes: tuple[str, str], rail: int | None, parts: tuple[str, ...]) -> None:
    assert parts_of(Vote("u", 1.0, nodes, rail, "test"), TOKENS) == parts


@pytest.mark.parametrize(
    ("hosts", "state", "pair"),
    [
        ("aabb", R, ("a", "b")),  # all joined, none completes, on two nodes
        ("aabc", R, None),  # which link of three nodes it is, nobody says
        ("aaaa", R, None),
        ("aab", R, None),  # where rank 3 runs is not known
        ("aabb", C, None),  # nothing stalled
    ],
)
def test_a_stall_between_two_nodes_that_accuses_no_rank_is_a_vote(
    hosts: str, state: CollectiveState, pair: tuple[str, str] | None
) -> None:
    seats = {rank: RankSeat(host, 0, "") for rank, host in enumerate(hosts)}
    assert stalled_pair(judged(cluster(4, 1, state)), seats) == pair


def test_a_rank_that_did_not_join_is_no_vote() -> None:
    ranks = cluster(4, 3)
    for rank in ranks[:3]:
        rank.add(world(4), 4, call(), S)
    assert stalled_pair(judged(ranks), {rank: RankSeat("ab"[rank % 2], 0, "") for rank in range(4)}) is None


def test_votes_are_kept_once_and_name_two_nodes(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "tenant.db")
    Journal(connection).add([Unit("u", 0.0, {})], [])
    votes = Votes(connection)
    votes.cast(Vote("u", 1.0, ("n2", "n1"), None, "flight recorder"))
    votes.cast(Vote("u", 1.0, ("n1", "n2"), None, "flight recorder"))
    assert votes.within(0, 2) == [Vote("u", 1.0, ("n1", "n2"), None, "flight recorder")]
    assert votes.within(1.5, 2) == []
    with pytest.raises(NoPair):
        votes.cast(Vote("u", 1.0, ("n1", "n1"), 0, "by hand"))
    connection.close()
