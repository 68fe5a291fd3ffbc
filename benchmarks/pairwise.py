"""Finding bad nodes and links among many: Pharoah's adaptive rounds beside DLRover's two-round node check.

    python benchmarks/pairwise.py [--trials 400] [--json]

A world has faulty nodes (their pairs fail), slow nodes and bad links, drawn anew in each trial; every pair's time has
3% noise. DLRover's check is written after its master's node manager (`peer`): pairs in order, then the fastest with
the slowest; whoever never passed is faulty, whoever takes more than twice the median is a straggler.

Columns: `exact` is the share of trials in which just the bad nodes (and no others) were named; `accused` healthy nodes
named in all trials; `links` the share of the bad links among those that were tested which were named. Mean numbers of
rounds: `suspected`, until each bad node failed with one cleared partner at least, and nobody else is suspected;
`named`, with two; `rounds`, until every link of the ring between good nodes was tested, too.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from statistics import mean, median

from tenant_client.confirm.pairwise import Pair, PairResult, PairwiseTest

NOISE, FAILED_S = 0.03, 180.0
STRAGGLER = 2.0


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

    def row(self) -> dict[str, object]:
        """One line of the table."""
        return {
            "exact": round(mean(self.exact), 3),
            "accused": self.accused,
            "links": round(mean(self.links), 3) if self.links else None,
            "wrong_links": self.wrong_links,
            "suspected": _mean(self.suspected),
            "named": _mean(self.named),
            "rounds": _mean(self.rounds),
        }


def _mean(numbers: list[int]) -> float | None:
    return round(mean(numbers), 2) if numbers else None


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


def peer(world: World, random: Random, tally: Tally) -> None:
    """DLRover's two rounds."""
    passed, elapsed = dict.fromkeys(range(world.nodes), False), dict.fromkeys(range(world.nodes), FAILED_S)
    groups = [list(range(at, min(at + 2, world.nodes))) for at in range(0, world.nodes, 2)]
    for number in (1, 2):
        if len(groups[-1]) == 1:
            groups[-2] += groups.pop()
        for group in groups:
            results = [world.test(one, other, random) for at, one in enumerate(group) for other in group[at + 1 :]]
            times = [FAILED_S if result.elapsed_s is None else result.elapsed_s for result in results]
            for node in group:
                passed[node] |= max(times) < FAILED_S
                elapsed[node] = min(elapsed[node], max(times))
        tally.rounds += [number] if number == 2 else []
        ranked = sorted(elapsed, key=elapsed.__getitem__)
        half = (len(ranked) + 1) // 2
        groups = [[ranked[at], ranked[-1 - at]] if at != len(ranked) - 1 - at else [ranked[at]] for at in range(half)]
    late = STRAGGLER * median(elapsed.values())
    named = {node for node in elapsed if not passed[node] or elapsed[node] > late}
    tally.exact.append(named == world.bad)
    tally.accused += len(named - world.bad)
    tally.links += [False for _ in world.links]


SCHEMES: dict[str, Callable[[World, Random, Tally], None]] = {"adaptive": adaptive, "two rounds": peer}
# Name, share of bad nodes, bad links, by how much nodes are slow, how often counters tell of a link's errors.
CASES: tuple[tuple[str, float, int, float | None, float], ...] = (
    ("nothing wrong", 0.0, 0, None, 0.0),
    ("1/16 faulty", 1 / 16, 0, None, 0.0),
    ("1/4 faulty", 1 / 4, 0, None, 0.0),
    ("3/8 faulty", 3 / 8, 0, None, 0.0),
    ("1/2 faulty", 1 / 2, 0, None, 0.0),
    ("1/8 slow 1.3x", 1 / 8, 0, 1.3, 0.0),
    ("1/8 slow 2.2x", 1 / 8, 0, 2.2, 0.0),
    ("2 links", 0.0, 2, None, 0.0),
    ("1/8 faulty, 2 links", 1 / 8, 2, None, 0.0),
    ("1/4 faulty, 2 links", 1 / 4, 2, None, 0.0),
    ("2 links, told", 0.0, 2, None, 0.9),
    ("1/8 and 2 links, told", 1 / 8, 2, None, 0.9),
    ("1/4 and 2 links, told", 1 / 4, 2, None, 0.9),
)


def table(sizes: tuple[int, ...], trials: int) -> Iterator[dict[str, object]]:
    """A row for each size, case and scheme."""
    for nodes in sizes:
        for name, share, bad_links, slow_factor, told in CASES:
            for scheme, run in SCHEMES.items():
                random, tally = Random(nodes), Tally()  # noqa: S311 - a simulation, to be repeated
                for _ in range(trials):
                    run(draw(nodes, share, bad_links, slow_factor, random, told), random, tally)
                yield {"nodes": nodes, "case": name, "scheme": scheme, "trials": trials, **tally.row()}


def main() -> None:
    """Prints the table, or one JSON object for each row."""
    parser = argparse.ArgumentParser(description="Adaptive rounds beside a two-round check.")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    columns = ("exact", "accused", "links", "wrong_links", "suspected", "named", "rounds")
    if not options.json:
        print(f"{'nodes':>5}  {'case':<21} {'scheme':<10}", *(f"{name:>11}" for name in columns))
    for row in table((16, 64, 256), options.trials):
        if options.json:
            sys.stdout.write(json.dumps(row) + "\n")
            continue
        cells = ("–" if row[name] is None else row[name] for name in columns)
        print(f"{row['nodes']:>5}  {row['case']:<21} {row['scheme']:<10}", *(f"{cell:>11}" for cell in cells))


if __name__ == "__main__":
    main()
