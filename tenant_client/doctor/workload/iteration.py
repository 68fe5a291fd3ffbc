"""One iteration's collectives out of a trace of several, whole or cut.

The trace's own marks are used where it has them (`ProfilerStep#`, the end of `Optimizer.step`); without marks, the
shortest period that the sequence repeats. Warm-up and evaluation make iterations differ: the commonest one counts.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, pairwise
from math import log2

from tenant_client.doctor.sources.trace import Trace
from tenant_client.doctor.workload.descriptor import Collective as Entry


def skeleton(trace: Trace) -> tuple[Entry, ...]:
    """The collectives of one iteration: (type, log2 of group size, log2 of bytes), equal neighbours once."""
    entries = [
        (one.kind, _log2(one.group_size or trace.world_size or 0), _log2(one.bytes)) for one in trace.collectives
    ]
    times = [one.at for one in trace.collectives]
    whole = [
        tuple(entries[bisect_left(times, begin) : bisect_left(times, end)]) for begin, end in pairwise(trace.steps)
    ]
    counted = Counter(iteration for iteration in whole if iteration)
    chosen = counted.most_common(1)[0][0] if counted else entries[: period(entries)]
    return tuple(entry for entry, _ in groupby(chosen))


def period(sequence: Sequence[object]) -> int:
    """The shortest length after which a sequence repeats, its own length if it does not.

    >>> period("abcabcab"), period("abcd"), period("")
    (3, 4, 0)
    """
    borders = [0]  # for each end, the longest proper prefix that stands there again (Knuth, Morris & Pratt 1977)
    for item in sequence[1:]:
        length = borders[-1]
        while length and item != sequence[length]:
            length = borders[length - 1]
        borders.append(length + (item == sequence[length]))
    shortest = len(sequence) - borders[-1]
    return shortest if 2 * shortest <= len(sequence) else len(sequence)


def _log2(size: int) -> int:
    return round(log2(size)) if size > 0 else 0
