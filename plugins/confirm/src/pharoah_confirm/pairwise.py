"""Which of many nodes, and which links between them, fail or are slow: tests in pairs, adapted from round to round.

A round is a set of disjoint pairs, each of which runs one collective (`pair`, or a job's own check). The first round
pairs nodes by chance, or along the links that a job will use. A pair that passes clears both nodes and their link.
Then nodes that are not cleared meet nodes that are, first one of each pair that failed: if it is cleared, the other
one is suspected already. Whoever is left over meets another of its kind. So it goes on until each suspect is cleared
or has failed with two cleared partners (`witnesses`); a link between two cleared nodes that failed is tested once more
before it is named.

Guarantees, as long as outcomes repeat: no node is named that passed a test, none on the word of one partner, no link
unless it failed twice between cleared nodes. So a bad link alone never costs a node its name; two bad links of one
node, to both of its witnesses, would, until a further round clears it, unless counters tell of their errors
(`PairResult.link_errors`). A node that fails now and then may be cleared.
Slow means slower than `slow_factor` times what is usual; without `usual_s` that is the fastest cluster of an eighth of
all pairs, so if nearly all nodes are slow alike, none is. Links are seen only if tested: name those that matter in
`first`.

DLRover's node check stops after two rounds and takes whoever never passed for broken: exact up to a quarter of faulty
nodes, and blind to links (docs/measured.md has both side by side).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from statistics import median
from typing import Generic, TypeVar

Pair = tuple[int, int]
Node = TypeVar("Node", int, str)  # by number in the test, by name to a person
WITNESSES = 2
SLOW_FACTOR = 1.14  # the middle between 1 and 1.3, in logarithms
MOST_ROUNDS = 8
CLUSTER = 1 / 8


class Kind(StrEnum):
    """What is wrong: no result at all, or a late one."""

    FAILS = "fails"
    SLOW = "slow"


@dataclass(frozen=True)
class PairResult:
    """How long a pair took in the median of its repeats; None where it failed or did not end in time.

    `link_errors`: counters of the link between the two rose meanwhile, so what it did badly speaks against no node.
    """

    one: int
    other: int
    elapsed_s: float | None
    link_errors: bool = False

    @property
    def pair(self) -> Pair:
        """Both nodes, the lower one first."""
        return min(self.one, self.other), max(self.one, self.other)


@dataclass(frozen=True)
class BadNode(Generic[Node]):
    """A node that did badly with `partners`, who all did well with others; `factor` is its best time over usual."""

    node: Node
    kind: Kind
    factor: float | None
    partners: tuple[Node, ...]


@dataclass(frozen=True)
class BadLink(Generic[Node]):
    """A link that did badly while both of its nodes did well with others."""

    nodes: tuple[Node, Node]
    kind: Kind
    factor: float | None


@dataclass(frozen=True)
class NodeVerdict(Generic[Node]):
    """Nodes and links that are named, and what is still open: suspected nodes, and nodes of which nothing is known."""

    nodes: tuple[BadNode[Node], ...]
    links: tuple[BadLink[Node], ...]
    suspected: tuple[Node, ...]
    unknown: tuple[Node, ...]
    rounds: int


class PairwiseTest:
    """Rounds of pairs until everything is named: `next_round`, run them, `report`, again until it returns nothing."""

    def __init__(
        self,
        nodes: Sequence[int],
        random: Random,
        *,
        usual_s: float | None = None,
        slow_factor: float = SLOW_FACTOR,
        witnesses: int = WITNESSES,
        first: Iterable[Pair] = (),
        most_rounds: int = MOST_ROUNDS,
    ) -> None:
        self._nodes = list(dict.fromkeys(nodes))
        self._random = random
        self._usual_s = usual_s
        self._slow_factor = slow_factor
        self._witnesses = witnesses
        self._first = [(min(pair), max(pair)) for pair in first]
        self._most_rounds = most_rounds
        self._results: list[PairResult] = []
        self._rounds = 0

    def next_round(self) -> list[Pair]:
        """Disjoint pairs to be tested at once; none where nothing is open, or no round is left."""
        if self._rounds >= self._most_rounds:
            return []
        found = _Found(self._nodes, self._results, self._usual(), self._slow_factor)
        matching = _Matching(found, self._random)
        if not self._results:
            matching.take(self._first)
            matching.among(self._nodes)
            return matching.pairs
        matching.with_cleared(_in_order(found, self._witnesses))
        matching.among([node for node in found.open_nodes if not found.witnesses[node]])
        matching.take(found.open_links())
        matching.take(pair for pair in self._first if pair not in found.tested)
        if matching.pairs:
            matching.with_cleared(found.open_nodes)  # a round that is run anyway: a further witness costs nothing
        return matching.pairs

    def report(self, results: Iterable[PairResult]) -> None:
        """Notes one round's results."""
        self._results += results
        self._rounds += 1

    def verdict(self) -> NodeVerdict[int]:
        """What is known by now."""
        usual = self._usual()
        found = _Found(self._nodes, self._results, usual, self._slow_factor)
        named = [node for node in found.open_nodes if len(found.witnesses[node]) >= self._witnesses]
        suspected = [node for node in found.open_nodes if 0 < len(found.witnesses[node]) < self._witnesses]
        nodes = [
            BadNode(
                node, *_badness([found.times[_pair(node, one)] for one in partners], usual), tuple(sorted(partners))
            )
            for node, partners in ((node, found.witnesses[node]) for node in named)
        ]
        links = [BadLink(pair, *_badness([found.times[pair]], usual)) for pair in found.bad_links()]
        unknown = set(found.open_nodes) - set(named) - set(suspected)
        return NodeVerdict(tuple(nodes), tuple(links), tuple(suspected), tuple(sorted(unknown)), self._rounds)

    def _usual(self) -> float:
        if self._usual_s is not None:
            return self._usual_s
        return usual([one.elapsed_s for one in self._results if one.elapsed_s is not None], self._slow_factor)


def usual(times_s: Sequence[float], slow_factor: float) -> float:
    """The median of the fastest cluster: times within a factor of each other, an eighth of all and at least two.

    >>> usual([1.0, 1.02, 0.98, 1.9, 2.0, 2.1], 1.14)
    1.0
    """
    ordered = sorted(times_s)
    enough = max(2.0, CLUSTER * len(ordered))
    for fastest in ordered:
        cluster = [time for time in ordered if fastest <= time <= fastest * slow_factor]
        if len(cluster) >= enough:
            return median(cluster)
    return ordered[0] if ordered else 0.0


class _Found:
    """What results say: who is cleared, which cleared partners speak against whom, and which links are in doubt."""

    def __init__(self, nodes: Sequence[int], results: Sequence[PairResult], usual_s: float, slow_factor: float) -> None:
        late_s = usual_s * slow_factor
        bad = [one for one in results if one.elapsed_s is None or one.elapsed_s > late_s]
        well = [one for one in results if one.elapsed_s is not None and one.elapsed_s <= late_s]
        self.times = {one.pair: one.elapsed_s for one in (*well, *bad)}
        self.tested = {one.pair for one in results}
        self.cleared = {node for one in well for node in one.pair}
        self.open_nodes = [node for node in nodes if node not in self.cleared]
        self.bad_partners: dict[int, set[int]] = defaultdict(set)
        for one in (one for one in bad if not one.link_errors):
            self.bad_partners[one.one].add(one.other)
            self.bad_partners[one.other].add(one.one)
        self.witnesses = {node: self.bad_partners[node] & self.cleared for node in nodes}
        self._bad = Counter(one.pair for one in bad)
        self._well = Counter(one.pair for one in well)

    def bad_links(self) -> list[Pair]:
        """Between cleared nodes, bad twice and more often than not."""
        return [pair for pair in self._between_cleared() if self._bad[pair] >= max(2, 1 + self._well[pair])]

    def open_links(self) -> list[Pair]:
        """Between cleared nodes, and bad once without a second test."""
        return [pair for pair in self._between_cleared() if self._bad[pair] + self._well[pair] == 1]

    def _between_cleared(self) -> list[Pair]:
        return [pair for pair in self._bad if self.cleared.issuperset(pair)]


class _Matching:
    """Disjoint pairs, gathered one after the other."""

    def __init__(self, found: _Found, random: Random) -> None:
        self.pairs: list[Pair] = []
        self._taken: set[int] = set()
        self._found = found
        self._random = random

    def take(self, pairs: Iterable[Pair]) -> None:
        """Those of these pairs whose nodes are both free."""
        for pair in pairs:
            if self._taken.isdisjoint(pair):
                self.pairs.append(pair)
                self._taken.update(pair)

    def with_cleared(self, nodes: Iterable[int]) -> None:
        """Each of these nodes with a free cleared one that it has not met."""
        free = [node for node in sorted(self._found.cleared) if node not in self._taken]
        self._random.shuffle(free)
        for node in nodes:
            partner = next((one for one in free if _pair(one, node) not in self._found.tested), None)
            if partner is not None:
                free.remove(partner)
                self.take([_pair(node, partner)])

    def among(self, nodes: Iterable[int]) -> None:
        """These nodes with each other, where they have not met."""
        free = [node for node in nodes if node not in self._taken]
        self._random.shuffle(free)
        while free:
            node = free.pop()
            partner = next((one for one in free if _pair(one, node) not in self._found.tested), None)
            if partner is not None:
                free.remove(partner)
                self.take([_pair(node, partner)])


def _in_order(found: _Found, enough: int) -> list[int]:
    """Open nodes that lack witnesses: one of each failed pair first, then by tests still needed."""
    heads: set[int] = set()
    for node in found.open_nodes:
        if not found.witnesses[node] and heads.isdisjoint(found.bad_partners[node]):
            heads.add(node)
    lacking = [node for node in found.open_nodes if len(found.witnesses[node]) < enough]
    return sorted(lacking, key=lambda node: (len(found.witnesses[node]), node not in heads))


def _badness(times_s: Sequence[float | None], usual_s: float) -> tuple[Kind, float | None]:
    late = [time for time in times_s if time is not None]
    if 2 * len(late) <= len(times_s):
        return Kind.FAILS, None
    return Kind.SLOW, min(late) / usual_s


def _pair(one: int, other: int) -> Pair:
    return min(one, other), max(one, other)
