"""Pairs from round to round: bad nodes, slow nodes and bad links are told apart, and nobody else is named."""

from itertools import combinations
from random import Random

import pytest

from pharoah_confirm.pairwise import Kind, NodeVerdict, Pair, PairResult, PairwiseTest, usual
from plugins.confirm.tests.pair_worlds import Tally, World, adaptive, draw, neighbours


def run(test: PairwiseTest, world: World, random: Random) -> NodeVerdict[int]:
    while pairs := test.next_round():
        nodes = [node for pair in pairs for node in pair]
        assert len(nodes) == len(set(nodes)), "a node takes part in one pair of a round"
        test.report([world.test(*pair, random) for pair in pairs])
    return test.verdict()


def tallied(nodes: int, share: float, links: int, slow: float | None, trials: int = 60) -> Tally:
    random, tally = Random(nodes), Tally()
    for _ in range(trials):
        adaptive(draw(nodes, share, links, slow, random), random, tally)
    return tally


def named(verdict: NodeVerdict[int]) -> set[int]:
    return {one.node for one in verdict.nodes}


@pytest.mark.parametrize("bad", range(5))
def test_every_set_of_faulty_nodes_among_eight_is_found(bad: int) -> None:
    for faulty in combinations(range(8), bad):
        random = Random(1)
        verdict = run(PairwiseTest(range(8), random), World(8, frozenset(faulty), {}, {}), random)
        assert named(verdict) == set(faulty)
        assert (verdict.links, verdict.suspected, verdict.unknown) == ((), (), ())
        assert all(one.kind is Kind.FAILS and len(one.partners) >= 2 for one in verdict.nodes)


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [16, 64, 256])
@pytest.mark.parametrize(
    ("share", "suspected", "everything"), [(1 / 16, 2.0, 3.0), (1 / 4, 2.2, 3.1), (3 / 8, 3.1, 4.1), (1 / 2, 3.5, 4.5)]
)
def test_up_to_half_of_the_nodes_are_found(nodes: int, share: float, suspected: float, everything: float) -> None:
    tally = tallied(nodes, share, 0, None)
    assert all(tally.exact)
    assert (tally.accused, tally.wrong_links) == (0, 0)
    assert sum(tally.suspected) <= suspected * len(tally.exact)
    assert sum(tally.named) <= everything * len(tally.exact)


@pytest.mark.parametrize("nodes", [16, 64, 256])
def test_a_third_slower_is_slow_enough(nodes: int) -> None:
    tally = tallied(nodes, 1 / 8, 0, 1.3)
    assert sum(tally.exact) >= 0.98 * len(tally.exact)
    assert tally.accused == 0


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [16, 64, 256])
def test_bad_links_are_named_beside_bad_nodes(nodes: int) -> None:
    tally = tallied(nodes, 1 / 8, 1, None)
    assert all(tally.exact)
    assert (tally.accused, tally.wrong_links) == (0, 0)
    assert len(tally.links) >= 55
    assert all(tally.links)


def test_two_bad_links_of_one_node_cost_it_its_name_unless_more_witnesses_are_asked() -> None:
    links: dict[Pair, float | None] = {(0, 1): None, (1, 2): None}
    accused = {}
    for witnesses in (2, 3):
        wrong = 0
        for seed in range(300):
            random = Random(seed)
            test = PairwiseTest(range(6), random, witnesses=witnesses)
            wrong += bool(named(run(test, World(6, frozenset(), {}, links), random)))
        accused[witnesses] = wrong
    assert accused[3] == 0 < accused[2] < 50


def test_a_slow_link_and_a_slow_node_tell_by_how_much() -> None:
    random = Random(2)
    world = World(16, frozenset(), {3: 1.5}, {(8, 9): 1.4})
    verdict = run(PairwiseTest(range(16), random, first=neighbours(16)), world, random)
    (node,), (link,) = verdict.nodes, verdict.links
    assert (node.node, node.kind, link.nodes, link.kind) == (3, Kind.SLOW, (8, 9), Kind.SLOW)
    assert node.factor == pytest.approx(1.5, rel=0.1)
    assert link.factor == pytest.approx(1.4, rel=0.1)


def test_the_links_of_a_ring_are_tested_in_two_rounds() -> None:
    random = Random(3)
    test = PairwiseTest(range(16), random, first=neighbours(16))
    tested: set[Pair] = set()
    for _ in range(2):
        tested.update(pairs := test.next_round())
        test.report([World(16, frozenset(), {}, {}).test(*pair, random) for pair in pairs])
    assert tested == set(neighbours(16))
    assert test.next_round() == []


def test_where_nobody_is_cleared_nobody_is_named() -> None:
    random = Random(4)
    for nodes in (1, 2, 3, 10):
        test = PairwiseTest(range(nodes), random)
        verdict = run(test, World(nodes, frozenset(range(nodes)), {}, {}), random)
        assert named(verdict) == set()
        assert verdict.unknown == tuple(range(nodes))
        assert verdict.rounds <= 8


def test_an_odd_node_has_its_turn() -> None:
    for odd_one in range(9):
        random = Random(odd_one)
        verdict = run(PairwiseTest(range(9), random), World(9, frozenset({odd_one}), {}, {}), random)
        assert named(verdict) == {odd_one}
        assert verdict.unknown == ()


def test_a_transient_failure_names_no_link() -> None:
    test = PairwiseTest(range(4), Random(5), first=[(0, 1), (2, 3)])
    while pairs := test.next_round():
        first = test.verdict().rounds == 0
        test.report([PairResult(*pair, None if first and pair == (0, 1) else 1.0) for pair in pairs])
    assert test.verdict().links == ()
    assert test.verdict().nodes == ()


def test_if_all_are_slow_alike_only_a_criterion_tells() -> None:
    for usual_s, expected in ((None, 0), (1.0, 0)):
        random = Random(6)
        world = World(8, frozenset(), dict.fromkeys(range(8), 2.0), {})
        test = PairwiseTest(range(8), random, usual_s=usual_s)
        verdict = run(test, world, random)
        assert len(verdict.nodes) == expected
        assert len(verdict.unknown) == (8 if usual_s else 0)


def test_usual_is_the_fastest_cluster_and_not_the_fastest() -> None:
    assert usual([0.2, *[1.0] * 20, *[2.0] * 60], 1.14) == 1.0
    assert usual([], 1.14) == 0.0
    assert usual([3.0], 1.14) == 3.0
