"""NCCL's debug output (`NCCL_DEBUG=INFO`): which rank is on which GPU, and over which cards it talks to which rank.

A thread of a process initialises one communicator at a time, so lines of a thread up to its "Init COMPLETE" belong to
the communicator that this names. NCCL from 2.22 on connects at the first use, later and from another thread: such a
line goes to the only communicator of the process in which its own rank has that number. What fits none, or two sizes,
is counted in `unplaced`.

Guarantees: only lines that NCCL writes are read, in any order of processes; caps bound memory. Formats of 2.8 to 2.30
(`init.cc`, `transport/{net,p2p,shm}.cc`, `graph/rings.cc`, `transport/net_ib*`): in brackets behind a rank is a PCI bus
id until 2.17, an NVML index since; ring orders are cut after 128 letters.

Not promised: that links are used as listed; NVLS and CollNet, which have no pairs of ranks.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from federation.base.reading import DEFAULT_LIMITS, ReadLimits, is_text, open_inputs
from tenant_client.doctor.sources.prefixes import NCCL_LINE
from tenant_client.doctor.sources.scanning import Scanner, gate_of

_GATE = gate_of(("NCCL INFO",))
_MOST_LINES = 4_000_000
_CUT_AT = 90  # letters; NCCL cuts at 128, or at 20 ranks
_MOST_RANKS = 1 << 20
_RANK = r"\d{1,7}"
_COMM = re.compile(
    rf"comm 0x[0-9a-f]+ rank ({_RANK}) n[Rr]anks ({_RANK}) cudaDev (\d{{1,4}})(?: nvmlDev \d{{1,4}})? busId ([0-9a-f]+)"
    r"(?: commId 0x([0-9a-f]+))?.*- Init COMPLETE",
    re.ASCII,
)
_LINK = re.compile(
    rf"Channel (\d{{2,4}})(?:/\d+)? : ({_RANK})\[[0-9a-f]+\] -> ({_RANK})\[[0-9a-f]+\] (?:\[(send|receive)\] )?"
    r"via (.{1,80})",
    re.ASCII,
)
_NET = re.compile(r"NET/(.+?)/(\d{1,4})(?:\(\d+\))?(?=/|$)", re.ASCII)
_ORDER = re.compile(r"Channel (\d{2,4})/\d{2,4} :((?: +\d{1,7})+)(?: *\.\.\.)?\s*$", re.ASCII)
_RING = re.compile(rf"\bRing (\d{{2,4}}) : ({_RANK}) -> ({_RANK}) -> ({_RANK})\s*$", re.ASCII)
_TREE = re.compile(rf"\[(\d{{1,4}})\] (-1|{_RANK})/(-1|{_RANK})/(-1|{_RANK})->({_RANK})->(-1|{_RANK})", re.ASCII)
_CARDS = re.compile(r"NET/[\w.-]+ : Using((?: \[\d{1,4}\][^\s\]]+)+)", re.ASCII)
_CARD = re.compile(r"\[(\d{1,4})\]([^\s\]]+)", re.ASCII)
_MERGED = re.compile(r"Made virtual device \[(\d{1,4})\] name=(\S{1,200})", re.ASCII)


@dataclass(frozen=True)
class RankLink:
    """A connection of one channel; `card` is the index of the network card, None where no card is in the way."""

    channel: int
    source: int
    target: int
    via: str
    is_receiving: bool
    card: int | None

    @property
    def own(self) -> int:
        """The rank that wrote the line."""
        return self.target if self.is_receiving else self.source

    @property
    def peer(self) -> int:
        """The other one."""
        return self.source if self.is_receiving else self.target


Place = tuple[str, str, str]  # host, process and PCI bus of a GPU: a process may drive several


@dataclass(frozen=True)
class Member:
    """One GPU of a process in one communicator, whose ranks all numbers are. `ident` is "" before NCCL 2.18.

    `rings` and `trees` are pairs (channel, rank, rank) that are neighbours there.
    """

    host: str
    pid: str
    ident: str
    rank: int
    size: int
    device: int
    bus: str
    links: tuple[RankLink, ...] = ()
    rings: frozenset[tuple[int, int, int]] = frozenset()
    trees: frozenset[tuple[int, int, int]] = frozenset()

    @property
    def place(self) -> Place:
        """Where it is in all communicators."""
        return self.host, self.pid, self.bus


@dataclass(frozen=True)
class NcclTopology:
    """All processes in all communicators, names of network cards by process, and how many links fitted nowhere."""

    members: tuple[Member, ...]
    cards: Mapping[tuple[str, str], Mapping[int, str]]
    unplaced: int

    def card(self, member: Member, index: int) -> str:
        """The name of a card, by its process or else by another one of the host; "" where no log tells."""
        own = self.cards.get((member.host, member.pid), {}).get(index, "")
        others = (named for (host, _), named in self.cards.items() if host == member.host)
        return own or next((named[index] for named in others if index in named), "")


@dataclass
class _Thread:
    """What a thread has said since its last communicator."""

    links: list[RankLink] = field(default_factory=list)
    rings: set[tuple[int, int, int]] = field(default_factory=set)
    trees: set[tuple[int, int, int]] = field(default_factory=set)


def read_topology(paths: Iterable[Path], limits: ReadLimits = DEFAULT_LIMITS) -> NcclTopology:
    """What all these logs say; SourceError where one cannot be read."""
    return topology_of(_texts(paths, limits))


def _texts(paths: Iterable[Path], limits: ReadLimits) -> Iterator[str]:
    for path in paths:
        with open_inputs(path, limits) as readers:
            for reader in (reader for reader in readers if is_text(reader.peek())):
                scanner = Scanner(reader, _GATE, limits)
                while (line := scanner.hit()) is not None:
                    yield line.text


def topology_of(texts: Iterable[str]) -> NcclTopology:
    """What these lines say."""
    threads: dict[tuple[str, str, str], _Thread] = defaultdict(_Thread)
    cards: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    members: list[Member] = []
    for _, text in zip(range(_MOST_LINES), texts, strict=False):
        found = NCCL_LINE.search(text[:512])
        if found is None:
            continue
        thread = found["host"], found["pid"], text[found.end("pid") + 1 :].partition(" ")[0]
        said = text[found.end() :]
        if comm := _COMM.search(said):
            members.append(_member(found["host"], found["pid"], comm, threads.pop(thread, _Thread())))
        elif "NET/" in said and (named := _named(said)):
            cards[thread[:2]] |= named
        else:
            _note(said, threads[thread])
    return _late(members, threads, cards)


def _member(host: str, pid: str, comm: re.Match[str], said: _Thread) -> Member:
    rank, size, device, bus, ident = comm.groups()
    rings, trees = frozenset(said.rings), frozenset(said.trees)
    return Member(host, pid, ident or "", int(rank), int(size), int(device), bus, tuple(said.links), rings, trees)


def _named(said: str) -> dict[int, str]:
    """The cards that a line names, by index."""
    if merged := _MERGED.search(said):
        return {int(merged[1]): merged[2]}
    found = _CARDS.search(said)
    cards = _CARD.findall(found[1]) if found else []
    return {int(index): _device(name) for index, name in cards}


def _device(name: str) -> str:
    """Device and port of "mlx5_2:1/RoCE", of "mlx5_2:1:RAIL:PLANE/IB", or the name of "eth0:10.0.0.1<0>"."""
    device, *rest = name.partition("/")[0].split(":")
    return f"{device}:{rest[0]}" if rest and rest[0].isdigit() else device


def _note(said: str, thread: _Thread) -> None:
    """Links, ring orders and trees of a line."""
    if link := _LINK.search(said):
        channel, source, target, direction, via = link.groups()
        net = _NET.search(via)
        card = int(net[2]) if net else None
        thread.links.append(RankLink(int(channel), int(source), int(target), via.strip(), direction == "receive", card))
    elif order := _ORDER.search(said):
        ranks = [int(rank) for rank in order[2].split()]
        ranks = ranks[:-1] if len(order[0].rstrip()) >= _CUT_AT else ranks  # the last number may lack digits
        thread.rings |= {(int(order[1]), a, b) for a, b in pairwise(ranks)}
    elif ring := _RING.search(said):
        channel_, before, own, after = map(int, ring.groups())
        thread.rings |= {(channel_, before, own), (channel_, own, after)}
    elif "Trees" in said:
        for channel, *down, own_, up in _TREE.findall(said):
            ends = {(int(up), int(own_))} | {(int(own_), int(child)) for child in down}
            thread.trees |= {(int(channel), a, b) for a, b in ends if a >= 0 and b >= 0}


def _late(
    members: Sequence[Member],
    threads: Mapping[tuple[str, str, str], _Thread],
    cards: Mapping[tuple[str, str], Mapping[int, str]],
) -> NcclTopology:
    """Adds the links that came after their communicator was complete."""
    by_process: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, member in enumerate(members):
        by_process[member.host, member.pid].append(place)
    added: dict[int, list[RankLink]] = defaultdict(list)
    unplaced = 0
    for (host, pid, _), said in threads.items():
        for link in said.links:
            fitting = [at for at in by_process[host, pid] if _fits(members[at], link)]
            sizes = {members[at].size for at in fitting}
            if len(sizes) == 1:
                added[fitting[-1]].append(link)
            else:
                unplaced += 1
    found = (_with(member, added[place]) for place, member in enumerate(members))
    return NcclTopology(tuple(found), {key: dict(named) for key, named in cards.items()}, unplaced)


def _fits(member: Member, link: RankLink) -> bool:
    return member.rank == link.own and link.peer < member.size <= _MOST_RANKS


def _with(member: Member, links: Sequence[RankLink]) -> Member:
    return replace(member, links=(*member.links, *links)) if links else member
