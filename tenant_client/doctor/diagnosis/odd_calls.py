"""Ranks whose watchdogs timed out in different calls: what a log alone tells of a mismatched collective.

The watchdog names a group, a sequence number, the operation that a rank stood in, and its elements. Ranks that differ
in one number of one group called something else, or called it at another time; where most called the same, the others
are odd. Flight recorder dumps tell it surely (`collectives`). Older versions of PyTorch name no group: of two groups of
about the same size nobody is accused then.

>>> line = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType={}, NumelIn=2)"
>>> told = [line.format(rank, "ALLGATHER" if rank == 0 else "ALLREDUCE") for rank in range(8)]
>>> odd_call(told)
('rank 0 called ALLGATHER of 2 elements where 7 others called ALLREDUCE of 2 elements (sequence 7)', 0)
>>> odd_call(told[:2])
('rank 0 called ALLGATHER of 2 elements, rank 1 ALLREDUCE of 2 elements (sequence 7)', None)
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tenant_client.doctor.diagnosis.collectives.findings import MISMATCHED, listed
from tenant_client.doctor.sources.evidence import Evidence, Role

_TIMED_OUT = re.compile(
    r"\[?[Rr]ank ?(\d{1,7})\].{0,120}?WorkNCCL\(SeqNum=(\d{1,15}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,18}))?", re.ASCII
)
_GROUP = re.compile(r"\[PG (?:ID \d+ PG GUID )?(\S{1,80}) Rank", re.ASCII)
_PAIRS = re.compile(r"SEND|RECV|COALESCED")
_UNEVEN = re.compile(r"ALLTOALL|GATHER$|^_?SCATTER|OOP")  # whose ranks may rightly put in different amounts
_ALL_RANKS = re.compile(r"ALL_?GATHER")
_LEAST_RANKS, _MOST_ODD = 3, 0.25
_Call = tuple[str, str]  # the operation, and the elements where all ranks must have the same


def odd_call(texts: Iterable[str]) -> tuple[str, int | None] | None:
    """Who called what, and the one rank that is odd, if one is; None where all call the same."""
    stood: dict[tuple[str, int], dict[int, _Call]] = defaultdict(dict)
    for text in texts:
        found, group = _TIMED_OUT.search(text), _GROUP.search(text)
        if found and not _PAIRS.search(found[3]):
            uneven = _UNEVEN.search(found[3]) and not _ALL_RANKS.search(found[3])
            call = found[3], "" if uneven else found[4] or ""
            stood[group[1] if group else "", int(found[2])].setdefault(int(found[1]), call)
    told = (_told(group, sequence, by_rank) for (group, sequence), by_rank in sorted(stood.items()))
    return next(filter(None, told), None)


def mismatch(seen: Sequence[Evidence]) -> Evidence | None:
    """The mismatch that the watchdogs' lines tell, as the root of the failure."""
    told = odd_call(one.text for one in seen)
    if told is None:
        return None
    first = next(one for one in seen if _TIMED_OUT.search(one.text))
    return replace(first, reason=MISMATCHED, role=Role.ROOT, text=told[0], rank=told[1])


def _told(group: str, sequence: int, by_rank: dict[int, _Call]) -> tuple[str, int | None] | None:
    (usual, most), *others = Counter(by_rank.values()).most_common()
    odd = sorted(rank for rank, call in by_rank.items() if call != usual)
    where = f"(sequence {sequence}{f', group {group}' if group else ''})"
    few = 2 * len(odd) < len(by_rank) if group else len(odd) <= max(1, _MOST_ODD * len(by_rank))
    if len(others) == 1 and len(by_rank) >= _LEAST_RANKS and few:
        text = f"{listed(odd)} called {_shown(others[0][0])} where {most} others called {_shown(usual)} {where}"
        return text, odd[0] if len(odd) == 1 else None
    if others and (group or len(by_rank) < _LEAST_RANKS):
        (first, call), *rest = sorted(by_rank.items())[:8]
        more = "".join(f", rank {rank} {_shown(call)}" for rank, call in rest)
        return f"rank {first} called {_shown(call)}{more} {where}", None
    return None


def _shown(call: _Call) -> str:
    return f"{call[0]} of {call[1]} elements" if call[1] else call[0]
