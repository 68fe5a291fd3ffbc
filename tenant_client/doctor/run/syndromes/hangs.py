"""Does a job hang, and on which rank? From what the ranks do and who waits for whom; pure.

A hang is that nobody of those who wait for each other changes place, for as long as the rank that is waited for may
take where it is:

- a rank that is **stopped** (signal, debugger) while others are not: `stopped_s`;
- a rank that is **outside**, neither computing nor reading nor writing: `outside_s`, or a usual step;
- the same, but the rank does not **answer** when asked for its stack: `silent_s`;
- a rank that is **aside** by its own marks or its stack, in a data loader, a checkpoint or an evaluation: `aside_s`;
- a rank that **works**: `working_s`. What is a livelock and what a compilation looks the same from here;
- nobody is missing, **all are inside** one collective: `outside_s`, or a usual step. On a host that is short of
  processors nobody of them may work: what sends and receives waits for a processor, too.

Until then, a rank that others have waited for longer than `outside_s` is `UNDECIDED`, with its rank and what it does.
All ranks outside, and none waiting, is no hang of this kind: see `tenant_client.doctor.run.watchdog`.

>>> views = {0: RankView(0, "wait", 0.0, 5, 9), 1: RankView(1, "outside", 0.0, 5, 8)}
>>> judge(11.0, views, Waiting(missing=frozenset({1}), waiting=frozenset({0})), HangLimits()).why
'rank 1 is outside, idle, for 11 s; 1 rank waits for it'
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from tenant_client.doctor.run.syndromes.views import Link, RankView, Syndrome, Verdict, Views, Waiting

ASIDE = ("loader", "checkpoint", "eval", "start")
_WORKS_CORES = 0.2
_WORKS_BYTES_PER_S = 64 << 10


@dataclass(frozen=True)
class HangLimits:
    """How long a rank may keep others waiting, by what it does."""

    stopped_s: float = 5.0
    outside_s: float = 8.0
    silent_s: float = 24.0
    aside_s: float = 180.0
    working_s: float = 600.0


def judge(
    now_s: float,
    views: Views,
    waiting: Waiting,
    limits: HangLimits,
    links: Iterable[Link] = (),
    *,
    crowded: bool = False,
) -> Verdict | None:
    """The verdict at `now_s`, or None; all times are of one clock, and every view is of this moment."""
    stopped = [one for one in views.values() if one.doing.stopped and one.place != "end"]
    if stopped and len(stopped) < len(views) and _still_s(now_s, stopped) >= limits.stopped_s:
        return _hang(stopped, now_s, waiting, "stopped")
    if waiting.differing and _still_s(now_s, _of(views, waiting.waiting | waiting.differing)) >= limits.outside_s:
        ranks = tuple(sorted(waiting.differing))
        return Verdict(Syndrome.MISMATCHED_COLLECTIVE, ranks, f"the ranks do not call the same: {waiting.call}")
    if waiting.missing:
        return _missing(now_s, views, waiting, limits)
    if waiting.stuck and _still_s(now_s, _of(views, waiting.stuck)) >= max(limits.outside_s, _usual_step_s(views)):
        found = _stuck(now_s, views, waiting, list(links))
        busy = crowded and any(map(works, _of(views, waiting.stuck)))
        return replace(found, syndrome=Syndrome.UNDECIDED, why=f"{found.why}; the host is crowded") if busy else found
    return None


def works(one: RankView) -> bool:
    """Whether it computes, reads or writes."""
    return one.doing.cores >= _WORKS_CORES or one.doing.bytes_per_s >= _WORKS_BYTES_PER_S


def _missing(now_s: float, views: Views, waiting: Waiting, limits: HangLimits) -> Verdict | None:
    """Judged by the rank that has the least excuse, and only after its peers wait in earnest."""
    missing = _of(views, waiting.missing)
    still_s = min(_still_s(now_s, missing), _still_s(now_s, _of(views, waiting.waiting)))
    if not missing or still_s < max(limits.outside_s, _usual_step_s(views)):
        return None
    late = [one for one in missing if still_s >= _allowed_s(one, limits)]
    if late:
        return _hang(late, now_s, waiting, _doing(late[0]))
    ranks = tuple(one.rank for one in missing)
    why = f"{_who(ranks)} {_doing(missing[0])} for {still_s:.0f} s; {_waiters(waiting)} for it"
    return Verdict(Syndrome.UNDECIDED, ranks, why)


def _hang(late: list[RankView], now_s: float, waiting: Waiting, what: str) -> Verdict:
    ranks = tuple(sorted(one.rank for one in late))
    why = f"{_who(ranks)} {what}, for {_still_s(now_s, late):.0f} s; {_waiters(waiting)} for it"
    why += f" in {waiting.call}" if waiting.call else ""
    return Verdict(Syndrome.NON_COMMUNICATION_HANG, ranks, why)


def _stuck(now_s: float, views: Views, waiting: Waiting, links: list[Link]) -> Verdict:
    still_s = _still_s(now_s, _of(views, waiting.stuck))
    what = waiting.call or "one collective"
    who = "both ranks have" if len(waiting.stuck) == 2 else f"all {len(waiting.stuck)} ranks have"
    why = f"{who} been stuck in {what} for {still_s:.0f} s"
    ranks, link = blamed(links)
    if not ranks:  # between two ranks there is one link
        ranks = tuple(sorted(waiting.stuck if len(waiting.stuck) == 2 else waiting.unfinished))
    if link is not None:
        why += f"; data from rank {link.rank} does not arrive"
    return Verdict(Syndrome.COMMUNICATION_HANG, ranks, why, link)


def blamed(links: list[Link]) -> tuple[tuple[int, ...], Link | None]:
    """The ranks and the link that connections with data under way point to: an end that most of them share.

    >>> blamed([Link(0, 2), Link(1, 2), Link(2, 3)])
    ((2,), None)
    >>> blamed([Link(0, 1)])
    ((0, 1), Link(rank=0, peer=1))
    """
    ends = [end for link in links for end in {link.rank, link.peer} if end is not None]
    if len({frozenset((link.rank, link.peer)) for link in links}) == 1:
        return tuple(sorted(set(ends))), links[0]
    counts = {end: ends.count(end) for end in ends}
    most = [end for end, count in counts.items() if count == max(counts.values())]
    return (tuple(most), None) if len(most) == 1 else ((), None)


def _allowed_s(one: RankView, limits: HangLimits) -> float:
    if works(one):
        return limits.working_s
    if one.place in ASIDE or one.aside or one.doing.in_disk_wait:
        return limits.aside_s
    return limits.outside_s if one.answered else limits.silent_s


def _doing(one: RankView) -> str:
    where = one.aside or one.place
    return f"{where}, {'working' if works(one) else 'idle'}"


def _of(views: Views, ranks: Iterable[int]) -> list[RankView]:
    return [views[rank] for rank in sorted(ranks) if rank in views]


def _still_s(now_s: float, ranks: Iterable[RankView]) -> float:
    return min((now_s - one.since_s for one in ranks), default=0.0)


def _usual_step_s(views: Views) -> float:
    ends = [[(record.step, record.ended_ns / 1e9) for record in one.records] for one in views.values()]
    return max((median(map(_step_s, pairwise(of_rank))) for of_rank in ends if len(of_rank) > 1), default=0.0)


def _step_s(ends: tuple[tuple[int, float], tuple[int, float]]) -> float:
    (before, before_s), (now, now_s) = ends
    return (now_s - before_s) / (now - before)


def _who(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"


def _waiters(waiting: Waiting) -> str:
    count = len(waiting.waiting)
    return f"{count} rank waits" if count == 1 else f"{count} ranks wait"
