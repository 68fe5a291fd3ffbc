import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tenant_client.doctor.diagnosis.collectives import CollectiveCause, CollectiveVerdict, analyse, evidence
from tenant_client.doctor.diagnosis.collectives.root_cause import components
from tenant_client.doctor.sources.evidence import Role
from tenant_client.doctor.sources.flight_recorder import Group, Operation
from tests.support.clusters import C, R, Rank, S, call, cluster, judged, world

# ---- each verdict --------------------------------------------------------------------------------------------------


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    found = judged(cluster(4, 5))
    assert (found.verdict, found.culprits, found.groups) == (CollectiveVerdict.CLEAN, (), ())
    assert found.sentence == "nothing found"
    assert evidence(found) == []


def test_no_dumps_at_all_are_nothing_found() -> None:
    assert analyse([]).verdict is CollectiveVerdict.CLEAN


@pytest.mark.parametrize("bad", range(4))
def test_a_rank_that_does_not_join_is_named_with_call_source_line_and_age(bad: int) -> None:
    ranks = cluster(4, 5)
    for rank in ranks:
        if rank.rank != bad:
            rank.add(world(4), 6, call("all_gather", 8, 32), R)
    found = judged(ranks)
    assert (found.verdict, found.culprits) == (CollectiveVerdict.MISSING, (bad,))
    assert found.sentence.splitlines()[0] == f"rank {bad}: all_gather, seq 6, group default_pg (0), train.py:9"
    assert found.accused[0].cause is CollectiveCause.HOST
    assert found.accused[0].age_s == 1.0
    assert found.groups[0].waiting == tuple(rank for rank in range(4) if rank != bad)
    (root,) = evidence(found)
    assert (root.reason, root.role, root.rank, root.file) == ("nccl_timeout_error", Role.ROOT, bad, f"dump_{bad}")


@pytest.mark.parametrize("bad", range(5))
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (call("broadcast"), call("all_reduce")),
        (call(into=9), call(into=8)),
        (call(types="Half"), call(types="Float")),
        (call("all_gather", 8, 39), call("all_gather", 8, 40)),
        (call("reduce_scatter", 40, 9), call("reduce_scatter", 40, 8)),
    ],
    ids=["type", "size", "dtype", "all_gather", "reduce_scatter"],
)
def test_the_odd_one_out_is_named_and_not_those_that_the_first_dump_disagrees_with(
    bad: int, wrong: Operation, right: Operation
) -> None:
    ranks = cluster(5, 3)
    for rank in ranks:
        rank.add(world(5), 4, wrong if rank.rank == bad else right, S)
    found = judged(ranks)
    assert (found.verdict, found.culprits) == (CollectiveVerdict.MISMATCH, (bad,))
    assert found.accused[0].cause is CollectiveCause.PROGRAM
    assert f"rank {bad}: {wrong.kind}" in found.accused[0].reason


def test_a_tie_of_two_calls_names_nobody() -> None:
    ranks = [Rank(0).add(world(2), 1, call(), S), Rank(1).add(world(2), 1, call("broadcast"), S)]
    found = judged(ranks)
    assert (found.verdict, found.culprits) == (CollectiveVerdict.MISMATCH, ())
    assert "no majority" in found.sentence
    assert [(one.reason, one.role, one.rank) for one in evidence(found)] == [("mismatched_collective", Role.ROOT, None)]


def test_of_two_calls_the_one_that_cannot_be_right_by_itself_loses() -> None:
    fine, wrong = call("all_gather", 8, 16), call("all_gather", 8, 24)
    found = judged([Rank(0).add(world(2), 1, wrong, S), Rank(1).add(world(2), 1, fine, S)])
    assert found.culprits == (0,)


@pytest.mark.parametrize(("last", "verdict"), [(4, CollectiveVerdict.CLEAN), (5, CollectiveVerdict.MISMATCH)])
def test_all_to_all_may_be_uneven_but_must_add_up(last: int, verdict: CollectiveVerdict) -> None:
    outs = [6, 2, 8, last + 12]
    ranks = [Rank(at).add(world(4), 1, call("all_to_all", 8, out)) for at, out in enumerate(outs)]
    found = judged(ranks)
    assert (found.verdict, found.culprits) == (verdict, ())


def test_roots_may_have_more_than_the_others() -> None:
    ranks = [Rank(at).add(world(3), 1, call("scatter", 24 if at == 1 else 0, 8)) for at in range(3)]
    for rank in ranks:
        rank.add(world(3), 2, call("gather", 8, 24 if rank.rank == 1 else 0))
    assert judged(ranks).verdict is CollectiveVerdict.CLEAN


@pytest.mark.parametrize("bad", range(4))
def test_a_rank_whose_work_is_unfinished_though_its_peers_saw_it_complete_is_stopped(bad: int) -> None:
    ranks = cluster(4, 3)
    for rank in ranks:
        rank.add(world(4), 4, call(), S if rank.rank == bad else C)
        rank.add(world(4), 5, call(), S)
    found = judged(ranks)
    assert (found.verdict, found.culprits) == (CollectiveVerdict.STOPPED, (bad,))
    assert found.accused[0].cause is CollectiveCause.DEVICE


def test_a_rank_that_is_behind_but_keeps_nobody_waiting_is_not_accused() -> None:
    ranks = cluster(3, 2)
    for rank in ranks:
        rank.add(world(3), 3, call(), S if rank.rank == 1 else C)
    assert judged(ranks).verdict is CollectiveVerdict.CLEAN


def test_a_broadcast_may_complete_at_its_root_first() -> None:
    ranks = [Rank(at).add(world(4), 1, call("broadcast"), C if at == 0 else R) for at in range(4)]
    assert judged(ranks).culprits == ()


def test_work_that_did_not_start_where_the_others_did_is_stopped() -> None:
    ranks = cluster(4, 3)
    for rank in ranks:
        rank.add(world(4), 4, call(), S if rank.rank == 2 else R)
    found = judged(ranks)
    assert (found.verdict, found.culprits) == (CollectiveVerdict.STOPPED, (2,))


def test_all_started_and_none_complete_is_the_network() -> None:
    found = judged(cluster(4, 1, R))
    assert (found.verdict, found.culprits) == (CollectiveVerdict.NETWORK, ())
    assert found.sentence.startswith("no rank can be named: all_reduce, seq 1")
    assert [one.role for one in evidence(found)] == [Role.SYMPTOM]


def test_a_rank_without_a_dump_is_suspected_and_not_accused() -> None:
    found = judged([rank.add(world(4), 3, call(), S) for rank in cluster(4, 2)[:3]])
    assert (found.verdict, found.culprits, found.no_dump) == (CollectiveVerdict.UNDECIDED, (), (3,))
    assert "without a dump, cannot decide: rank 3" in found.sentence


def test_who_waits_for_a_rank_without_a_dump_is_not_accused_elsewhere() -> None:
    pair, other = Group("p", "PIPELINE", (2, 3)), Group("t", "TENSOR", (0, 1, 2))
    ranks = [Rank(at).add(other, 1, call(), S) for at in (0, 1)] + [Rank(2, knows=(other,)).add(pair, 1, call(), S)]
    found = judged(ranks)
    assert (found.verdict, found.culprits, found.no_dump) == (CollectiveVerdict.UNDECIDED, (), (3,))


# ---- several groups ------------------------------------------------------------------------------------------------


def test_the_rank_that_everybody_waits_for_is_named_and_not_those_that_wait_in_between() -> None:
    """3 stops; 2 waits for it; 1 waits for 2 and 0 for 1."""
    links = [Group(f"g{at}", f"LINK_{at}", (at, at + 1)) for at in range(3)]
    ranks = [Rank(at, knows=tuple(link for link in links if at in (link.ranks or ()))) for at in range(4)]
    for at in range(3):
        ranks[at].add(links[at], 1, call(), S)
    found = judged(ranks)
    assert (found.verdict, found.culprits) == (CollectiveVerdict.MISSING, (3,))
    assert found.groups[0].call.group == links[2]
    assert [one.role for one in evidence(found)] == [Role.ROOT, Role.SYMPTOM, Role.SYMPTOM]


def test_ranks_that_wait_for_each_other_are_named_and_not_those_that_wait_for_them() -> None:
    a, b, c = Group("a", "A", (0, 1)), Group("b", "B", (0, 1)), Group("c", "C", (1, 2))
    ranks = [
        Rank(0, knows=(a, b)).add(a, 1, call(), S),
        Rank(1, knows=(a, b, c)).add(b, 1, call(), S),
        Rank(2, knows=(c,)).add(c, 1, call(), S),
    ]
    assert judged(ranks).culprits == (0, 1)


def test_of_two_groups_of_one_name_each_is_judged_by_its_own_ranks() -> None:
    left, right = Group("5", "TENSOR", (0, 1)), Group("5", "TENSOR", (2, 3))
    ranks = [Rank(at).add(left if at < 2 else right, 1, call(into=8 if at < 2 else 9)) for at in range(4)]
    assert judged(ranks).verdict is CollectiveVerdict.CLEAN


# ---- what a dump does not hold -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("late_s", "culprits"), [(100.0, ()), (0.0, (2,))])
def test_what_a_ring_buffer_dropped_is_not_missing(late_s: float, culprits: tuple[int, ...]) -> None:
    group, other = world(3), Group("9", "OTHER", (2,))
    ranks = [Rank(at, late_s=50).add(group, 1, call("broadcast"), S) for at in (0, 1)]
    last = Rank(2, first_id=500, late_s=late_s, knows=(group, other)).add(other, 77, call())
    assert judged([*ranks, last]).culprits == culprits


def test_unfinished_records_only_and_the_status_tells_that_the_others_are_done() -> None:
    group = world(3)
    others = [Rank(at, status={group: (10, 9)}, first_id=41).add(group, 10, call(), S) for at in (0, 1)]
    late = Rank(2, status={group: (9, 8)}, first_id=40).add(group, 9, call(), S)
    found = judged([*others, late])
    assert (found.verdict, found.culprits) == (CollectiveVerdict.STOPPED, (2,))


def test_a_status_that_disagrees_with_the_records_is_not_believed() -> None:
    ranks = cluster(3, 2)
    for rank in ranks:
        rank.status = {world(3): (90 + rank.rank, 90)}
    assert judged(ranks).verdict is CollectiveVerdict.CLEAN


def test_a_rank_whose_own_status_is_ahead_of_its_record_is_not_stopped() -> None:
    group = world(3)
    ranks = [Rank(at, status={group: (10, 9)}).add(group, 9, call(), S).add(group, 10, call(), S) for at in range(3)]
    assert judged(ranks).culprits == ()


def test_a_status_that_counts_sends_too_is_not_believed() -> None:
    group = world(2)
    ranks = [Rank(at, status={group: (3, 3)}) for at in range(2)]
    for rank, kind in zip(ranks, ("send", "recv"), strict=True):
        rank.add(group, 2, call(kind, ends=(0, 1)))
    ranks[0].add(group, 3, call(), S)
    assert judged(ranks).culprits == (1,)


def test_where_most_show_no_record_nobody_is_accused() -> None:
    group = world(4)
    ranks = [Rank(at, knows=(group,)) for at in range(3)] + [Rank(3, first_id=40).add(group, 9, call(), S)]
    found = judged(ranks)
    assert (found.verdict, found.culprits) == (CollectiveVerdict.UNDECIDED, ())


# ---- sends, receives and coalesced calls ---------------------------------------------------------------------------


def test_a_send_that_was_never_posted_is_named() -> None:
    stages = Group("43", "PIPELINE", (4, 8))
    ranks = [Rank(4, knows=(stages,)), Rank(8).add(stages, 1, call("recv", ends=(0, 1)), S)]
    found = judged(ranks)
    assert (found.verdict, found.culprits) == (CollectiveVerdict.MISSING, (4,))
    assert found.accused[0].call.operation == "recv 4 -> 8"


@pytest.mark.parametrize(("received", "verdict"), [(8, CollectiveVerdict.CLEAN), (9, CollectiveVerdict.MISMATCH)])
def test_sends_and_receives_match_on_their_size(received: int, verdict: CollectiveVerdict) -> None:
    stages = Group("43", "PIPELINE", (4, 8))
    state = C if verdict is CollectiveVerdict.CLEAN else S
    ranks = [
        Rank(4).add(stages, 1, call("send", ends=(0, 1)), state),
        Rank(8).add(stages, 1, call("recv", received, ends=(0, 1)), state),
    ]
    found = judged(ranks)
    assert (found.verdict, found.culprits) == (verdict, ())


@pytest.mark.parametrize("bad", [None, 0, 2])
def test_coalesced_calls_are_compared_as_one(bad: int | None) -> None:
    group = world(3)
    ranks = []
    for at in range(3):
        rank = Rank(at).add(group, 1, call("all_reduce", 8), S)
        rank.add(group, 1, call("all_reduce", 5 if at == bad else 4), S).add(group, 1, call("coalesced", 0), S)
        ranks.append(rank)
    found = judged(ranks)
    assert found.culprits == (() if bad is None else (bad,))


def test_a_coalesced_call_is_complete_when_all_of_it_is() -> None:
    group = world(3)
    ranks = [Rank(at).add(group, 1, call()).add(group, 1, call(), S if at == 1 else C) for at in range(3)]
    assert judged([rank.add(group, 2, call(), S) for rank in ranks]).culprits == (1,)


def test_a_group_recorded_only_by_ranks_that_are_not_in_it_accuses_nobody() -> None:
    assert judged([Rank(0).add(Group("g", "OTHERS", (5, 6)), 1, call(), S)]).culprits == ()


@pytest.mark.parametrize("seed", range(200))
def test_components_of_a_graph_are_those_that_scipy_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(1, 13))
    edges = rng.integers(nodes, size=(int(rng.integers(2 * nodes + 1)), 2))
    after: dict[int, list[int]] = {node: edges[edges[:, 0] == node, 1].tolist() for node in range(nodes)}
    graph = coo_array((np.ones(len(edges)), edges.T), shape=(nodes, nodes))
    _, oracle = connected_components(graph, directed=True, connection="strong")
    found = components(after)
    assert all((oracle[one] == oracle[other]) == (found[one] == found[other]) for one in after for other in after)
