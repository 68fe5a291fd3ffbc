"""Do steps take longer than they did, or than they need to, and by whose doing? From the ranks' step records; pure.

A step's time on a rank is its own (computing, loading) or spent waiting: in `Work.wait`, and in backward as far as the
thread did not compute. Of ranks that wait for each other, the slow one waits least (C4D). So over a window of recent
steps:

- **non-communication slow**: one rank's own time exceeds that of the median of its peers by `own` of a step, in most
  steps, and the others wait that long for it;
- **communication slow**: the least wait of all ranks, which is what the transfer itself takes, exceeds that of the
  steps before by `transfer` of a usual step, in most steps, and steps take that much longer;
- on a host that is short of processors, where chance makes ranks slow, `crowded_own` and `crowded_again_s` hold;
- neither while the job is aside: steps with a checkpoint or an evaluation in them are left out.

A verdict needs `window_s` seconds and `steps` steps, or two that lost `lost_s` together, and holds for `again_s`.

>>> judge([], [], SlowLimits()) is None
True
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tenant_client.run.hook.cell import PLACES, StepRecord
from tenant_client.run.syndromes.views import Syndrome, Verdict

_WAIT, _BACKWARD = PLACES.index("wait"), PLACES.index("backward")
_ASIDE = tuple(PLACES.index(place) for place in ("checkpoint", "eval", "start"))
_MOST = 0.7


@dataclass(frozen=True)
class SlowLimits:
    """Shares of a usual step by which a rank, or the transfer, must be slower; and for how long."""

    own: float = 0.3
    crowded_own: float = 0.6
    crowded_again_s: float = 4.0
    transfer: float = 0.5
    least_s: float = 0.02
    window_s: float = 6.0
    steps: int = 3
    lost_s: float = 4.0
    again_s: float = 1.0
    before_steps: int = 10

    def crowded(self) -> "SlowLimits":
        """The same for a host on which processes wait for processors."""
        return replace(self, own=self.crowded_own, again_s=self.crowded_again_s)


@dataclass(frozen=True)
class Step:
    """One step on all ranks: how long it took, each rank's own part, and what the last one to arrive still waited."""

    number: int
    ended_s: float
    took_s: float
    own_s: Mapping[int, float]
    transfer_s: float
    aside: bool


class Slowness:
    """Keeps the steps of a job and judges the newest ones; `judge` reads no clock."""

    def __init__(self, limits: SlowLimits) -> None:
        self._limits = self._given = limits
        self._steps: deque[Step] = deque(maxlen=512)
        self._first: tuple[float, Verdict] | None = None

    def feed(
        self, now_s: float, records: Mapping[int, Sequence[StepRecord]], *, crowded: bool = False
    ) -> Verdict | None:
        """Takes the ranks' records; a verdict that holds for a while, on a `crowded` host one that stands out more."""
        self._limits = self._given if not crowded else self._given.crowded()
        newest = self._steps[-1].number if self._steps else 0
        self._steps.extend(step for step in aligned(records) if step.number > newest)
        count = sum(now_s - step.ended_s <= self._limits.window_s for step in self._steps)
        found = self._judge(max(count, self._limits.steps)) or self._judge(2, self._limits.lost_s)
        if found is None or self._first is None or not _alike(found, self._first[1]):
            self._first = None if found is None else (now_s, found)
            return None
        return found if now_s - self._first[0] >= self._limits.again_s else None

    @property
    def suspected(self) -> Verdict | None:
        """What the newest steps look like, be it for the first time."""
        return self._first[1] if self._first is not None else None

    def _judge(self, count: int, least_s: float = 0.0) -> Verdict | None:
        """The verdict on the last `count` steps."""
        steps = list(self._steps)
        return judge(steps[-count:], steps[:-count], self._limits, least_s / count)


def aligned(records: Mapping[int, Sequence[StepRecord]]) -> list[Step]:
    """The steps that all ranks have recorded, in order; a step's length is the time since the one before."""
    by_step = [{record.step: record for record in of_rank} for of_rank in records.values()]
    if len(by_step) < 2:
        return []
    steps = []
    for number in sorted(set.intersection(*(set(one) for one in by_step))):
        if all(number - 1 in one for one in by_step):
            now = {rank: one[number] for rank, one in zip(records, by_step, strict=True)}
            before = {rank: one[number - 1] for rank, one in zip(records, by_step, strict=True)}
            steps.append(_step(number, now, before))
    return steps


def judge(recent: Sequence[Step], before: Sequence[Step], limits: SlowLimits, least_s: float = 0.0) -> Verdict | None:
    """The verdict on steps without pauses, compared with each other and with those `before`; `least_s` of each lost."""
    recent, before = ([step for step in steps if not step.aside] for steps in (recent, before))
    if len(recent) < (2 if least_s else limits.steps):
        return None
    usual_s = median(step.took_s for step in (before if len(before) >= limits.before_steps else recent))
    limits = replace(limits, least_s=max(limits.least_s, least_s))
    return _slow_rank(recent, usual_s, limits) or _slow_transfer(recent, before, limits)


def _slow_rank(recent: Sequence[Step], usual_s: float, limits: SlowLimits) -> Verdict | None:
    ranks = sorted(recent[0].own_s)
    excess = {rank: [_excess(step, rank) for step in recent if rank in step.own_s] for rank in ranks}
    least_s = max(limits.least_s, limits.own * usual_s)
    slow = [rank for rank in ranks if _mostly([one > least_s for one in excess[rank]])]
    if not slow or len(slow) > len(ranks) / 2:
        return None
    by = median(excess[slow[0]])
    who = f"rank {slow[0]} is" if len(slow) == 1 else f"ranks {', '.join(map(str, slow))} are"
    why = f"{who} {by:.2f} s a step slower than the others, which wait (usual step {usual_s:.2f} s)"
    return Verdict(Syndrome.NON_COMMUNICATION_SLOW, tuple(slow), why)


def _slow_transfer(recent: Sequence[Step], before: Sequence[Step], limits: SlowLimits) -> Verdict | None:
    if len(before) < limits.before_steps:
        return None
    usual_s, transfer_s = median(step.took_s for step in before), median(step.transfer_s for step in before)
    least_s = max(limits.least_s, limits.transfer * usual_s)
    longer = [step.transfer_s - transfer_s > least_s and step.took_s - usual_s > least_s for step in recent]
    if not _mostly(longer):
        return None
    now_s = median(step.transfer_s for step in recent)
    why = f"collectives take {now_s:.2f} s a step on every rank (before {transfer_s:.2f} s)"
    return Verdict(Syndrome.COMMUNICATION_SLOW, (), why)


def _step(number: int, now: Mapping[int, StepRecord], before: Mapping[int, StepRecord]) -> Step:
    took_s = {rank: (now[rank].ended_ns - before[rank].ended_ns) / 1e9 for rank in now}
    waited_s = {rank: _waited_s(one) for rank, one in now.items()}
    own_s = {rank: max(0.0, took_s[rank] - waited_s[rank]) for rank in now}
    ended_s = max(one.ended_ns for one in now.values()) / 1e9
    aside = any(one.spent_ns[place] for one in now.values() for place in _ASIDE)
    return Step(number, ended_s, max(took_s.values()), own_s, min(waited_s.values()), aside)


def _waited_s(one: StepRecord) -> float:
    return (one.spent_ns[_WAIT] + max(0, one.spent_ns[_BACKWARD] - one.backward_cpu_ns)) / 1e9


def _excess(step: Step, rank: int) -> float:
    return step.own_s[rank] - median(own for other, own in step.own_s.items() if other != rank)


def _mostly(signs: Sequence[bool]) -> bool:
    return sum(signs) >= _MOST * len(signs)


def _alike(one: Verdict, other: Verdict) -> bool:
    return (one.syndrome, one.ranks) == (other.syndrome, other.ranks)
