"""Do steps take longer than they did, or than they need to, and by whose doing? From the ranks' step records; pure.

A step's time on a rank is its own (computing, loading) or spent waiting for others, as samples of its stack tell. Of
ranks that wait for each other, the slow one waits least (C4D). Ranks record the end of every step that takes long
and of every second, fourth, eighth … of short ones; a stretch is what lies between two ends that all have recorded. So
over the recent stretches:

- **non-communication slow**: one rank's own time exceeds that of the median of its peers by `own` of a step, and the
  others wait that long for it;
- **communication slow**: the least wait of all ranks, which is what the transfer itself takes, exceeds that of the
  steps before by `transfer` of a usual step, and steps take that much longer;
- both in most stretches, and by more standard errors of what so many samples tell than chance reaches;
- on a host that is short of processors, where chance makes ranks slow, `crowded_own` and `crowded_again_s` hold for
  ranks;
- neither while the job is aside: stretches with a checkpoint or an evaluation in them are left out.

A verdict needs one of `windows_s` and `stretches` of them, or two steps that lost `lost_s` together, and holds for
`again_s`.

>>> judge([], [], SlowLimits()) is None
True
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import hypot, sqrt
from statistics import median

from tenant_client.doctor.run.hook.cell import StepRecord
from tenant_client.doctor.run.syndromes.views import Syndrome, Verdict

_MOST = 0.7
_LONG = 1.5


@dataclass(frozen=True)
class SlowLimits:
    """Shares of a usual step by which a rank, or the transfer, must be slower; and for how long."""

    own: float = 0.3
    crowded_own: float = 0.6
    crowded_again_s: float = 4.0
    transfer: float = 0.35
    least_s: float = 0.02
    windows_s: tuple[float, ...] = (6.0, 10.0, 15.0)
    errors: float = 4.0
    transfer_errors: float = 2.5  # few, since how long steps take is known exactly
    stretches: int = 3
    lost_s: float = 3.0
    again_s: float = 1.0
    before: int = 5

    def crowded(self) -> "SlowLimits":
        """The same for a host on which processes wait for processors."""
        return replace(self, own=self.crowded_own, again_s=self.crowded_again_s)


@dataclass(frozen=True)
class Stretch:
    """Some steps on all ranks, by their last; all times but the end are of one step on average.

    How long it took, each rank's own part, and from how many samples that is known.
    """

    step: int
    steps: int
    ended_s: float
    took_s: float
    own_s: Mapping[int, float]
    looks: Mapping[int, int]
    aside: bool


class Slowness:
    """Keeps the stretches of a job and judges the newest ones; `judge` reads no clock."""

    def __init__(self, limits: SlowLimits) -> None:
        self._limits = self._given = limits
        self._stretches: deque[Stretch] = deque(maxlen=512)
        self._first: tuple[float, Verdict] | None = None

    def feed(
        self, now_s: float, records: Mapping[int, Sequence[StepRecord]], *, crowded: bool = False
    ) -> Verdict | None:
        """Takes the ranks' records; a verdict that holds for a while, on a `crowded` host one that stands out more."""
        self._limits = self._given if not crowded else self._given.crowded()
        if self._stretches and self._stretches[-1].own_s.keys() != records.keys():
            self._stretches.clear()  # a rank has come or gone
        newest = self._stretches[-1].step if self._stretches else 0
        self._stretches.extend(step for step in aligned(records) if step.step > newest)
        ages_s = [now_s - one.ended_s for one in self._stretches]
        counts = [sum(age_s <= window_s for age_s in ages_s) for window_s in self._limits.windows_s]
        by_window = (self._judge(max(count, self._limits.stretches)) for count in counts)
        found = next(filter(None, by_window), None) or self._judge(2, self._limits.lost_s)
        if found is None or self._first is None or not _alike(found, self._first[1]):
            self._first = None if found is None else (now_s, found)
            return None
        is_rank = found.syndrome is Syndrome.NON_COMMUNICATION_SLOW
        again_s = self._limits.again_s if is_rank else self._given.again_s
        return found if now_s - self._first[0] >= again_s else None

    @property
    def suspected(self) -> Verdict | None:
        """What the newest steps look like, be it for the first time."""
        return self._first[1] if self._first is not None else None

    def _judge(self, count: int, least_s: float = 0.0) -> Verdict | None:
        """The verdict on the last `count` stretches."""
        all_known = list(self._stretches)
        return judge(all_known[-count:], all_known[:-count], self._limits, least_s / count)


def aligned(records: Mapping[int, Sequence[StepRecord]]) -> list[Stretch]:
    """The stretches between steps that all ranks have recorded, in order."""
    by_step = {rank: {record.step: record for record in of_rank} for rank, of_rank in records.items()}
    if len(by_step) < 2:
        return []
    ends = [
        {rank: one[step] for rank, one in by_step.items()}
        for step in sorted(set.intersection(*map(set, by_step.values())))
    ]
    return [_stretch(before, now) for before, now in pairwise(ends)]


def judge(
    recent: Sequence[Stretch], before: Sequence[Stretch], limits: SlowLimits, least_s: float = 0.0
) -> Verdict | None:
    """The verdict on stretches without pauses, compared with each other and those `before`; a step lost `least_s`."""
    recent, before = ([step for step in steps if not step.aside] for steps in (recent, before))
    if len(recent) < (2 if least_s else limits.stretches):
        return None
    usual_s = median(step.took_s for step in (before if len(before) >= limits.before else recent))
    limits = replace(limits, least_s=max(limits.least_s, least_s))
    return _slow_rank(recent, usual_s, limits) or _slow_transfer(recent, before, limits)


def _slow_rank(recent: Sequence[Stretch], usual_s: float, limits: SlowLimits) -> Verdict | None:
    whole, ranks = _whole(recent), sorted(recent[0].own_s)
    least_s = max(limits.least_s, limits.own * usual_s)
    slow = [
        rank
        for rank in ranks
        if _excess(whole, rank) > max(least_s, limits.errors * _excess_error(whole, rank))
        and _mostly([_excess(one, rank) > least_s for one in recent])
    ]
    if not slow or len(slow) > len(ranks) / 2:
        return None
    who = f"rank {slow[0]} is" if len(slow) == 1 else f"ranks {', '.join(map(str, slow))} are"
    by = f"{_excess(whole, slow[0]):.2f} s a step slower than the others"
    why = f"{who} {by}, which wait (usual step {usual_s:.2f} s)"
    return Verdict(Syndrome.NON_COMMUNICATION_SLOW, tuple(slow), why)


def _slow_transfer(recent: Sequence[Stretch], before: Sequence[Stretch], limits: SlowLimits) -> Verdict | None:
    if len(before) < limits.before:
        return None
    usual_s = median(one.took_s for one in before)
    least_s = max(limits.least_s, limits.transfer * usual_s)
    if not _mostly([one.took_s - usual_s > least_s for one in recent]):
        return None
    now = _whole(_ordinary(recent))
    now_s, before_s = _transfer_s(now), _transfer_s(_whole(_ordinary(before)))
    error_s = max(map(partial(_error, now), now.own_s))
    if now_s - before_s <= max(least_s, limits.transfer_errors * error_s):
        return None
    if not _mostly([_transfer_s(one) - before_s > least_s / 2 for one in recent]):
        return None  # now this rank is late, now that one
    why = f"collectives take {now_s:.2f} s a step on every rank (before {before_s:.2f} s)"
    return Verdict(Syndrome.COMMUNICATION_SLOW, (), why)


def _whole(stretches: Sequence[Stretch]) -> Stretch:
    """Stretches of the same ranks as one."""
    last, steps = stretches[-1], sum(one.steps for one in stretches)
    return replace(
        last,
        steps=steps,
        took_s=sum(one.took_s * one.steps for one in stretches) / steps,
        own_s={rank: sum(one.own_s[rank] * one.steps for one in stretches) / steps for rank in last.own_s},
        looks={rank: sum(one.looks[rank] for one in stretches) for rank in last.own_s},
    )


def _stretch(before: Mapping[int, StepRecord], now: Mapping[int, StepRecord]) -> Stretch:
    rank = next(iter(now))
    steps = now[rank].step - before[rank].step
    took_s = {rank: (now[rank].ended_ns - before[rank].ended_ns) / 1e9 / steps for rank in now}
    waited_s = {rank: (now[rank].waited_ns - before[rank].waited_ns) / 1e9 / steps for rank in now}
    own_s = {rank: max(0.0, took_s[rank] - waited_s[rank]) for rank in now}
    looks = {rank: now[rank].looks - before[rank].looks for rank in now}
    ended_s = max(one.ended_ns for one in now.values()) / 1e9
    aside = any(now[rank].aside_ns > before[rank].aside_ns for rank in now)
    return Stretch(now[rank].step, steps, ended_s, max(took_s.values()), own_s, looks, aside)


def _ordinary(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Without those that took long: there, ranks wait for one that did something else."""
    usual_s = median(one.took_s for one in stretches)
    return [one for one in stretches if one.took_s <= _LONG * usual_s]


def _transfer_s(stretch: Stretch) -> float:
    """What the last rank to arrive still waits."""
    return max(0.0, stretch.took_s - max(stretch.own_s.values()))


def _excess(stretch: Stretch, rank: int) -> float:
    return stretch.own_s[rank] - median(own for other, own in stretch.own_s.items() if other != rank)


def _excess_error(stretch: Stretch, rank: int) -> float:
    return hypot(_error(stretch, rank), median(_error(stretch, other) for other in stretch.own_s if other != rank))


def _error(stretch: Stretch, rank: int) -> float:
    """The standard error of the rank's own time: each sample tells waiting from not."""
    looks = max(1, stretch.looks[rank])
    share = min(1.0, stretch.own_s[rank] / stretch.took_s) if stretch.took_s else 0.0
    return stretch.took_s * sqrt(max(share * (1 - share), 1 / looks) / looks)


def _mostly(signs: Sequence[bool]) -> bool:
    return sum(signs) >= _MOST * len(signs)


def _alike(one: Verdict, other: Verdict) -> bool:
    return (one.syndrome, one.ranks) == (other.syndrome, other.ranks)
