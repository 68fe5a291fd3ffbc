"""Ranks whose watchdog timed out in another collective than the others: what a log alone tells of a mismatch.

The watchdog names the sequence number and the operation that a rank stood in. Where most ranks stood in one operation
and a few in another one of the same number, these few called something else, or called it at another time. Flight
recorder dumps tell it surely (`collectives`); a log does not say of which process group a number is, so two groups of
about the same size are not told apart, and accuse nobody.

>>> line = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType={}, NumelIn=2)"
>>> odd_call([line.format(rank, "ALLGATHER" if rank == 0 else "ALLREDUCE") for rank in range(8)])
'rank 0 timed out in ALLGATHER where 7 others were in ALLREDUCE (sequence 7)'
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

_TIMED_OUT = re.compile(r"\[?[Rr]ank ?(\d{1,7})\].{0,120}?WorkNCCL\(SeqNum=(\d{1,15}), OpType=(\w{1,40})", re.ASCII)
_LEAST_RANKS, _MOST_ODD = 4, 0.25


def odd_call(texts: Iterable[str]) -> str:
    """What the few did and what the others, in words; "" where nobody stands apart."""
    stood: dict[int, dict[int, str]] = defaultdict(dict)
    for text in texts:
        if found := _TIMED_OUT.search(text):
            stood[int(found[2])].setdefault(int(found[1]), found[3])
    for sequence, by_rank in sorted(stood.items()):
        (usual, most), *others = Counter(by_rank.values()).most_common()
        odd = sorted(rank for rank, operation in by_rank.items() if operation != usual)
        if len(others) == 1 and len(by_rank) >= _LEAST_RANKS and len(odd) <= _MOST_ODD * len(by_rank):
            who = f"rank {odd[0]}" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))}"
            return f"{who} timed out in {others[0][0]} where {most} others were in {usual} (sequence {sequence})"
    return ""
