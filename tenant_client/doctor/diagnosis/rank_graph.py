"""A tenant's own graph of its job: rank → GPU → network card, channels, rings and trees, groups; and paths in it.

    NCCL INFO logs ─ topology_of ─▶ NcclTopology ─┐
    flight recorder dumps ────────────▶ groups  ──┴─ graph_of ─▶ RankGraph ─ routes ─▶ Route × ways

Ranks are those of the largest communicator, the job's. A smaller one's are translated where it is known which processes
form it: by its id (NCCL 2.18 on), as the only one of its size, or the only one on a host that it does not leave. Pure;
nothing of it leaves the tenant, which knows no switch: between two cards lies a hop without a name.

Not promised: that two ranks without a connection of their own use the route shown; it is the shortest over known ones.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from federation.base.route import Hop, HopHealth, Route, worst
from federation.base.visible import counted_as
from tenant_client.doctor.sources.flight_recorder import Dump
from tenant_client.doctor.sources.nccl_topology import Member, NcclTopology, Place

_MOST_WAYS = 4


@dataclass(frozen=True)
class RankSeat:
    """Where a rank runs."""

    host: str
    device: int
    bus: str


@dataclass(frozen=True)
class Way:
    """One kind of connection between two ranks: how, over which cards ("" unknown, None not any), for what."""

    via: str
    card: str | None
    peer_card: str | None
    role: str
    channels: tuple[int, ...]


@dataclass(frozen=True)
class CollectiveGroup:
    """A process group of the flight recorder, and which of its ranks have a dump."""

    name: str
    ranks: tuple[int, ...]
    dumped: frozenset[int]


@dataclass(frozen=True)
class RankGraph:
    """What is known of the job; `size` is 0 where no communicator is."""

    size: int = 0
    seats: Mapping[int, RankSeat] = field(default_factory=dict)
    ways: Mapping[tuple[int, int], tuple[Way, ...]] = field(default_factory=dict)
    groups: tuple[CollectiveGroup, ...] = ()
    links: int = 0
    placed: int = 0

    def knows(self, rank: int) -> bool:
        """Whether anything tells of a rank."""
        named = rank in self.seats or any(rank in pair for pair in self.ways)
        return named or any(rank in group.ranks for group in self.groups)


@dataclass(frozen=True)
class HealthMark:
    """Something that speaks against a thing, in words; `health` is a fault or a doubt."""

    health: HopHealth
    text: str


@dataclass(frozen=True)
class HealthMarks:
    """What speaks against ranks, hosts and cards (host, name); `everywhere` is of the whole lease, so of no hop."""

    ranks: Mapping[int, Sequence[HealthMark]] = field(default_factory=dict)
    hosts: Mapping[str, Sequence[HealthMark]] = field(default_factory=dict)
    cards: Mapping[tuple[str, str], Sequence[HealthMark]] = field(default_factory=dict)
    everywhere: Sequence[str] = ()


# ---- the graph -------------------------------------------------------------------------------------------------------


def graph_of(topology: NcclTopology, dumps: Iterable[Dump] = ()) -> RankGraph:
    """Everything that logs and dumps say."""
    size = max((member.size for member in topology.members), default=0)
    world = {one.place: one for one in topology.members if one.size == size}
    ways: dict[tuple[int, int], dict[tuple[str, str | None, str], set[int]]] = defaultdict(lambda: defaultdict(set))
    links = topology.unplaced + sum(len(member.links) for member in topology.members)
    placed = 0
    translations = _Translations(topology.members, world, size)
    for member in topology.members:
        ranks = translations.of(member)
        for link in member.links:
            own, peer = ranks.get(link.own), ranks.get(link.peer)
            if own is None or peer is None:
                continue
            placed += 1
            card = None if link.card is None else topology.card(member, link.card) or f"card {link.card}"
            role = _role(member, link.channel, link.source, link.target)
            ways[own, peer][_plain(link.via), card, role].add(link.channel)
    seats = {one.rank: RankSeat(one.host, one.device, one.bus) for one in world.values()}
    return RankGraph(size, seats, _joined(ways), tuple(_groups(dumps)), links, placed)


class _Translations:
    """The job's rank of each rank of a communicator, as far as it is known which processes form it."""

    def __init__(self, members: Sequence[Member], world: Mapping[Place, Member], size: int) -> None:
        self._world, self._size = world, size
        self._identity = {rank: rank for rank in range(size)}
        crowds: dict[tuple[str, str, int], list[Member]] = defaultdict(list)
        for one in members:
            crowds["", one.ident, one.size].append(one)
            if not one.ident and not _needs_card(one):
                crowds[one.host, "", one.size].append(one)
        self._known = {key: self._formed_by(crowd) for key, crowd in crowds.items()}

    def of(self, member: Member) -> Mapping[int, int]:
        """Of a member's communicator; nothing where several of its size exist and nothing tells them apart."""
        if member.size == self._size:
            return self._identity
        local = {} if member.ident or _needs_card(member) else self._known[member.host, "", member.size]
        return self._known["", member.ident, member.size] or local

    def _formed_by(self, crowd: Sequence[Member]) -> Mapping[int, int]:
        """Of one communicator, or nothing if this crowd cannot be one. One with an id may lack processes' logs."""
        seats = {(one.place, one.rank) for one in crowd}
        places, ranks = {place for place, _ in seats}, {rank for _, rank in seats}
        is_one = len(seats) == len(places) == len(ranks)
        if not is_one or (not crowd[0].ident and len(seats) != crowd[0].size):
            return {}
        return {rank: self._world[place].rank for place, rank in seats if place in self._world}


def _needs_card(member: Member) -> bool:
    """Whether it reaches other hosts; one that does not has all its processes on its own."""
    return any(link.card is not None for link in member.links)


def _role(member: Member, channel: int, source: int, target: int) -> str:
    is_ring = (channel, source, target) in member.rings
    is_tree = {(channel, source, target), (channel, target, source)} & member.trees
    return "ring and tree" if is_ring and is_tree else "ring" if is_ring else "tree" if is_tree else ""


def _plain(via: str) -> str:
    """The transport without the number of the card."""
    return "/".join(part for part in via.split("/") if not part.isdigit())


def _joined(
    ways: Mapping[tuple[int, int], Mapping[tuple[str, str | None, str], set[int]]],
) -> dict[tuple[int, int], tuple[Way, ...]]:
    """Both ends of each connection, by (rank, peer) as the rank itself said it."""
    joined: dict[tuple[int, int], tuple[Way, ...]] = {}
    for (own, peer), said in ways.items():
        other = ways.get((peer, own), {})
        found = []
        for (via, card, role), channels in said.items():
            cards = [card_ for (via_, card_, _), theirs in other.items() if via_ == via and channels & theirs]
            theirs_ = cards[0] if cards else None if card is None else ""
            found.append(Way(via, card, theirs_, role, tuple(sorted(channels))))
        joined[own, peer] = tuple(sorted(found, key=lambda way: way.channels))
    return joined


def _groups(dumps: Iterable[Dump]) -> Iterator[CollectiveGroup]:
    """The groups of all dumps, joined by name and ranks."""
    found: dict[tuple[str, tuple[int, ...]], set[int]] = defaultdict(set)
    for dump in dumps:
        for group in dump.groups:
            if group.ranks:
                found[group.description or group.name, group.ranks].add(dump.rank)
    yield from (CollectiveGroup(name, ranks, frozenset(dumped)) for (name, ranks), dumped in found.items())


# ---- paths -----------------------------------------------------------------------------------------------------------


def routes(graph: RankGraph, start: int, end: int, marks: HealthMarks) -> tuple[Route, ...]:
    """Up to four ways from rank to rank: their own connections, or the shortest route over those of others."""
    direct = _between(graph, start, end)
    if direct:
        return tuple(
            _route(graph, [start, end], [way], marks, f"rank {start} to rank {end}: {_use(way)}")
            for way in direct[:_MOST_WAYS]
        )
    ranks = _shortest(graph, start, end)
    if ranks is None:
        return (_route(graph, [start, end], [None], marks, f"rank {start} to rank {end}: no connection known"),)
    steps = [_between(graph, a, b)[0] for a, b in pairwise(ranks)]
    title = f"rank {start} to rank {end}: no connection of their own; shortest route over {len(steps)} others' links"
    return (_route(graph, ranks, steps, marks, title),)


def _between(graph: RankGraph, start: int, end: int) -> tuple[Way, ...]:
    """Ways that either end told of, seen from the start."""
    own = graph.ways.get((start, end))
    if own:
        return own
    turned = graph.ways.get((end, start), ())
    return tuple(Way(way.via, way.peer_card, way.card, way.role, way.channels) for way in turned)


def _shortest(graph: RankGraph, start: int, end: int) -> list[int] | None:
    near: dict[int, set[int]] = defaultdict(set)
    for a, b in graph.ways:
        near[a].add(b)
        near[b].add(a)
    before, todo = {start: start}, deque([start])
    while todo and end not in before:
        rank = todo.popleft()
        for other in sorted(near[rank] - before.keys()):
            before[other] = rank
            todo.append(other)
    if end not in before:
        return None
    ranks = [end]
    while ranks[-1] != start:
        ranks.append(before[ranks[-1]])
    return ranks[::-1]


def _use(way: Way) -> str:
    many = counted_as(len(way.channels), "channel")
    named = ", ".join(map(str, way.channels[:8])) + ("…" if len(way.channels) > 8 else "")
    return f"{many} ({named}){f' of {way.role}' if way.role else ''} via {way.via}"


def _route(
    graph: RankGraph, ranks: Sequence[int], steps: Sequence[Way | None], marks: HealthMarks, title: str
) -> Route:
    hops = list(_seat(graph, ranks[0], marks))
    for way, rank, before in zip(steps, ranks[1:], ranks, strict=False):
        hops += _link(graph, way, before, rank, marks)
        hops += _seat(graph, rank, marks)
    limits = [*_limits(graph, ranks), *marks.everywhere]
    return Route(title, tuple(hops), tuple(limits))


def _seat(graph: RankGraph, rank: int, marks: HealthMarks) -> Iterator[Hop]:
    """A rank, and its GPU where a log names it."""
    seat = graph.seats.get(rank)
    against = [*marks.ranks.get(rank, ()), *(marks.hosts.get(seat.host, ()) if seat else ())]
    notes = (f"on {seat.host}",) if seat else ("its host is not known",)
    is_seen = bool(seat) or any(rank in group.dumped for group in graph.groups)
    yield _hop("rank", f"rank {rank}", against, notes, is_seen=is_seen)
    if seat:
        known = marks.cards.get((seat.host, f"GPU {seat.device}"), ())
        yield _hop("gpu", f"GPU {seat.device} of {seat.host}", known, (f"PCI bus {seat.bus}",))


def _link(graph: RankGraph, way: Way | None, start: int, end: int, marks: HealthMarks) -> Iterator[Hop]:
    if way is None:
        yield Hop("link", "", HopHealth.UNKNOWN, ("no log names a connection between them",))
        return
    if way.card is None and way.peer_card is None:
        yield Hop("link", way.via, HopHealth.CLEAR, ("within a node or its NVLink domain",))
        return
    yield _card(graph, start, way.card, marks)
    yield Hop("fabric", "", HopHealth.UNKNOWN, ("switches and cables are the provider's to know",))
    yield _card(graph, end, way.peer_card, marks)


def _card(graph: RankGraph, rank: int, card: str | None, marks: HealthMarks) -> Hop:
    seat = graph.seats.get(rank)
    if not card:
        return Hop("nic", "", HopHealth.UNKNOWN, (f"no log of rank {rank} names its card",))
    host = seat.host if seat else ""
    return _hop("nic", card, marks.cards.get((host, card), ()), (f"of {host}",) if host else ())


def _hop(kind: str, name: str, against: Sequence[HealthMark], notes: Sequence[str], *, is_seen: bool = True) -> Hop:
    health = worst([mark.health for mark in against]) if against else HopHealth.CLEAR if is_seen else HopHealth.UNKNOWN
    return Hop(kind, name, health, (*notes, *dict.fromkeys(mark.text for mark in against)))


def _limits(graph: RankGraph, ranks: Sequence[int]) -> Iterator[str]:
    """What would have told more."""
    silent = [rank for rank in ranks if rank not in graph.seats]
    if silent:
        yield f"no NCCL INFO log of {', '.join(f'rank {rank}' for rank in silent)}"
    shared = [group for group in graph.groups if ranks[0] in group.ranks and ranks[-1] in group.ranks]
    if graph.groups and not shared:
        yield f"a group of both rank {ranks[0]} and rank {ranks[-1]}: no dump tells of one"
