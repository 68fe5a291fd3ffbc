"""Worlds of nodes and links, some bad, and what rounds of pairs find in them.

A world has faulty nodes (their pairs fail), slow nodes and bad links; every pair's time has 3% noise.
"""

from dataclasses import dataclass, field
from random import Random

from pharoah_confirm.pairwise import Pair, PairResult, PairwiseTest

NOISE = 0.03


@dataclass(frozen=True)
class World:
    """Nodes 0 to n - 1, some of them bad, and links between good ones, some bad; `slow` are times over usual.

    `told` is how often counters show the errors of a bad link that is used.
    """

    nodes: int
    faulty: frozenset[int]
    slow: dict[int, float]
    links: dict[Pair, float | None]
    told: float = 0.0

    @property
    def bad(self) -> set[int]:
        """Faulty and slow nodes."""
        return set(self.faulty) | set(self.slow)

    def test(self, one: int, other: int, random: Random) -> PairResult:
        """What a pair's collective takes: as long as its slower node and its link let it."""
        link = self.links.get((min(one, other), max(one, other)), 1.0)
        errors = self.told > 0.0 and link != 1.0 and random.random() < self.told
        if link is None or not self.faulty.isdisjoint((one, other)):
            return PairResult(one, other, None, errors)
        factor = max(self.slow.get(one, 1.0), self.slow.get(other, 1.0), link)
        return PairResult(one, other, factor * random.lognormvariate(0.0, NOISE), errors)


@dataclass
class Tally:
    """What trials came to."""

    exact: list[bool] = field(default_factory=list)
    accused: int = 0
    links: list[bool] = field(default_factory=list)
    wrong_links: int = 0
    rounds: list[int] = field(default_factory=list)
    suspected: list[int] = field(default_factory=list)
    named: list[int] = field(default_factory=list)


def draw(
    nodes: int, share: float, bad_links: int, slow_factor: float | None, random: Random, told: float = 0.0
) -> World:
    """A world with a share of bad nodes: faulty ones, or slow ones by this factor. Bad links lie on the ring."""
    bad = random.sample(range(nodes), round(share * nodes))
    ring = [pair for pair in neighbours(nodes) if not set(pair) & set(bad)]
    links = {pair: random.choice([None, 1.5]) for pair in random.sample(ring, min(bad_links, len(ring)))}
    if slow_factor is None:
        return World(nodes, frozenset(bad), {}, links, told)
    return World(nodes, frozenset(), dict.fromkeys(bad, slow_factor), links, told)


def neighbours(nodes: int) -> list[Pair]:
    """The links of a ring: even ones first, then odd ones, so that two rounds test them all."""
    ring = [(node, (node + 1) % nodes) for node in (*range(0, nodes, 2), *range(1, nodes, 2))]
    return [(min(pair), max(pair)) for pair in ring]


def adaptive(world: World, random: Random, tally: Tally) -> None:
    """Pharoah's rounds along the ring that a job would use."""
    test = PairwiseTest(range(world.nodes), random, first=neighbours(world.nodes))
    tested: set[Pair] = set()
    suspected = named = 0
    while pairs := test.next_round():
        test.report([world.test(*pair, random) for pair in pairs])
        tested.update(pairs)
        verdict = test.verdict()
        nodes = {one.node for one in verdict.nodes}
        suspected = suspected or verdict.rounds * (nodes | set(verdict.suspected) == world.bad and not verdict.unknown)
        named = named or verdict.rounds * (nodes == world.bad and not verdict.suspected and not verdict.unknown)
    verdict = test.verdict()
    nodes, links = {one.node for one in verdict.nodes}, {one.nodes for one in verdict.links}
    tally.exact.append(nodes == world.bad)
    tally.accused += len(nodes - world.bad)
    tally.links += [pair in links for pair in world.links if pair in tested]
    tally.wrong_links += len(links - set(world.links))
    tally.rounds.append(verdict.rounds)
    tally.suspected += [suspected] if suspected else []
    tally.named += [named] if named else []
