"""Detects hangs, slow ranks, NaN losses and loss spikes from samples of each rank's progress.

- Pure: samples and the time come in, findings come out. A finding warns the owner; it stops nothing.
- The time limit depends on the phase: one for the start, one for checkpoints and evaluations, and for training a
  multiple of the median step time.
- A finding is reported once for as long as its condition lasts; `cleared_at_s` is when the condition ended.

Not promised: a slow rank is not visible here if all ranks synchronise in every step; traces and flight recorder dumps
show it.

>>> watch = Watch(WatchLimits(start_s=10.0), started_at_s=0.0)
>>> watch.feed(5.0, [Sample(0, 0, "start", 0.0)])
[]
>>> watch.feed(11.0, [Sample(0, 0, "start", 0.0)])[0].text
'rank 0 stuck at step 0 (start) for 11 s (limit 10 s)'
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median

from tenant_client.doctor.run.divergence import diverges
from tenant_client.doctor.run.hook.progress import NO_TALLY, Tally


class Kind(StrEnum):
    """Kinds of findings."""

    HANG = "hang"
    SLOW_RANK = "slow_rank"
    NAN_LOSS = "nan_loss"
    LOSS_SPIKE = "loss_spike"
    SLOW_FUNCTION = "slow_function"  # this one and the next three: see `tenant_client.doctor.run.health`
    GC_PAUSES = "gc_pauses"
    MEMORY_GROWTH = "memory_growth"
    LOSS_PLATEAU = "loss_plateau"
    HINT = "hint"  # not judged here: see `lease_hints`, and `syndromes` for these:
    NON_COMMUNICATION_HANG = "non_communication_hang"
    COMMUNICATION_HANG = "communication_hang"
    NON_COMMUNICATION_SLOW = "non_communication_slow"
    COMMUNICATION_SLOW = "communication_slow"
    MISMATCHED_COLLECTIVE = "mismatched_collective"
    UNDECIDED = "undecided"
    LEASE_END = "lease_end"  # what the provider said of the lease's end: see `lease_ends`
    OUT_OF_MEMORY = "out_of_memory"  # the kernel ended a rank for want of memory: see `host_memory`
    UNEVEN_END = "uneven_end"
    LAUNCHER = "launcher"  # what the launcher said: see `launcher`
    PLUG_IN = "plug_in"  # what a plug-in found that is none of the above: see `tenant_client.doctor.run.plugins`


@dataclass(frozen=True)
class Sample:
    """Where one rank is. `phase` is one of `hook.progress.PHASES`; times in seconds on one clock.

    `bad_since` is the step at which a loss that is no number was read first, None where that is not known.
    """

    rank: int
    step: int
    phase: str
    updated_at_s: float
    loss: float | None = None
    restart: int = 0
    evaluations: int = 0
    bad_since: int | None = None
    tally: Tally = NO_TALLY


@dataclass(frozen=True)
class WatchLimits:
    """Thresholds of the watchdog.

    - Hang: no step for `start_s` during the first steps, for `aside_s` in a checkpoint or an evaluation, else for
      `factor` median step times, at least `floor_s`.
    - Slow rank: `lag_steps` behind the first rank in most of `lag_feeds` feeds.
    - Loss spike: `spike` deviations above the median of the last losses.
    """

    start_s: float = 1800.0
    floor_s: float = 120.0
    factor: float = 10.0
    aside_s: float = 3600.0
    lag_steps: float = 1.0
    lag_feeds: int = 10
    spike: float = 8.0


@dataclass(frozen=True)
class WatchFinding:
    """A finding, with a text for the owner. `cleared_at_s` is None while its condition lasts."""

    kind: Kind
    since_s: float
    step: int
    ranks: tuple[int, ...]
    text: str
    cleared_at_s: float | None = None


@dataclass(frozen=True)
class Standing:
    """What the watch makes of the job at one moment, for the case that somebody ends it then.

    `stalled` and `diverging` say in what way, "" where it is not so; `hangs` that a hang was reported, of `rank` if it
    is one rank's. A person sees a stall before it is an alarm: `stalled` needs less than a finding.
    """

    steps: int = 0
    hangs: bool = False
    stalled: str = ""
    diverging: str = ""
    evaluations: int = 0
    rank: int | None = None


_ENDS = ("end", "failed")
_STEADY_AFTER = 3
_SEEN_S = 10.0  # who looks at a job that has stood still for less does not see it
_GAPS = 2.0
_RECENT = 32
_LOSSES = 64
_LOSSES_NEEDED = 16
_IN_A_ROW = 2
_LOSS_EVERY_STEPS = 10  # a loss is read that often and repeated in between: see `tenant_client.doctor.run.hook.hook`
_MOST, _FEW = 0.6, 0.2


@dataclass
class _Rank:
    last: Sample
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    behind: deque[bool] = field(default_factory=deque)
    bad_since: int | None = None
    longest_s: float = 0.0
    seen_loss: float | None = None
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=_LOSSES))
    spikes: int = 0

    def move(self, new: Sample) -> bool:
        """Takes a newer sample; true if it has the loss of a new step."""
        before, self.last = self.last, new
        steps = new.step - before.step
        if steps > 0 and before.phase == new.phase == "train" and before.step > 0:
            self.step_s.append((new.updated_at_s - before.updated_at_s) / steps)
            self.longest_s = max(self.longest_s, new.updated_at_s - before.updated_at_s)
        return steps > 0 and new.loss is not None

    def allowed_s(self, limits: WatchLimits) -> float:
        if self.last.phase in _ENDS:
            return math.inf
        if self.last.phase in ("eval", "checkpoint"):
            return limits.aside_s
        if self.last.phase == "start" or len(self.step_s) < _STEADY_AFTER:
            return limits.start_s
        return max(limits.floor_s, limits.factor * median(self.step_s))

    def unremarkable_s(self, limits: WatchLimits) -> float:
        """For so long without a step nobody takes it for stalled: it has paused for as long before."""
        if self.last.phase != "train" or len(self.step_s) < _STEADY_AFTER:
            return self.allowed_s(limits)
        usual_s = max(limits.factor * median(self.step_s), _GAPS * self.longest_s)
        return min(self.allowed_s(limits), max(_SEEN_S, usual_s))


class Watch:
    """Watches one attempt. `findings` are in the order in which they began."""

    def __init__(self, limits: WatchLimits, started_at_s: float) -> None:
        self.findings: list[WatchFinding] = []
        self._limits = limits
        self._started_at_s = started_at_s
        self._ranks: dict[int, _Rank] = {}

    @property
    def steps(self) -> int:
        """Steps that every rank has done."""
        return min((rank.last.step for rank in self._ranks.values()), default=0)

    @property
    def hangs(self) -> bool:
        """Whether a hang was reported that has not ended."""
        return self._holds(Kind.HANG) is not None

    def feed(self, now_s: float, samples: Iterable[Sample]) -> list[WatchFinding]:
        """Takes the samples of time `now_s`; returns the new findings."""
        known = len(self.findings)
        for sample in samples:
            self._take(now_s, sample)
        if self._ranks:
            self._judge_movement(now_s)
            self._judge_lag(now_s)
        return self.findings[known:]

    def standing(self, now_s: float) -> Standing:
        """How the job stands at `now_s`."""
        running = [rank for rank in self._ranks.values() if rank.last.phase not in _ENDS]
        still = [rank for rank in running if self._still_s(rank, now_s) > rank.unremarkable_s(self._limits)]
        evaluations = max((rank.last.evaluations for rank in self._ranks.values()), default=0)
        stalled = self._where(still, now_s) if still and len(still) == len(running) else ""
        return Standing(self.steps, self.hangs, stalled, self._diverging(), evaluations)

    def _diverging(self) -> str:
        bad = [rank.last for rank in self._ranks.values() if rank.bad_since is not None]
        if bad or not self._ranks:
            return f"loss of rank {bad[0].rank} is {bad[0].loss}" if bad else ""
        return diverges(self._ranks[min(self._ranks)].losses)

    def _holds(self, kind: Kind) -> WatchFinding | None:
        return next((one for one in self.findings if one.kind is kind and one.cleared_at_s is None), None)

    def finish(self, now_s: float, *, failed: bool = False) -> list[WatchFinding]:
        """Ends the watch. One NaN loss is enough here, since no second sample can follow."""
        known = len(self.findings)
        for number, rank in self._ranks.items():
            if rank.bad_since is not None:
                self._set(Kind.NAN_LOSS, now_s, (number,), _no_number(rank))
        if failed:
            self._judge_ends(now_s)
        return self.findings[known:]

    def _judge_ends(self, now_s: float) -> None:
        """Ranks that ended without an exception, where most of a job that failed did not."""
        ended = [rank for rank in self._ranks.values() if rank.last.phase == "end"]
        if ended and 2 * len(ended) <= len(self._ranks):
            who = f"{_who(ended, len(self._ranks))} ended by itself (exit) at {_spread(ended)}, before the others"
            self._set(Kind.UNEVEN_END, now_s, _numbers(ended), who)

    def _take(self, now_s: float, sample: Sample) -> None:
        rank = self._ranks.get(sample.rank)
        if rank is None or sample.restart != rank.last.restart:
            rank = self._ranks[sample.rank] = _Rank(replace(sample, step=0, phase="start"))
        if rank.move(sample) and sample.loss is not None:
            self._judge_loss(now_s, rank, sample.loss)

    # ---- movement ------------------------------------------------------------------------------------------------

    def _judge_movement(self, now_s: float) -> None:
        running = [rank for rank in self._ranks.values() if rank.last.phase not in _ENDS]
        still = [rank for rank in running if self._still_s(rank, now_s) > rank.allowed_s(self._limits)]
        if still and len(still) == len(running):
            self._set(Kind.HANG, now_s, _numbers(still), self._stuck(still, now_s))
        else:
            self._clear(Kind.HANG, now_s)
        if still and len(still) < len(running):
            text = self._stuck(still, now_s) + "; other ranks continue"
            self._set(Kind.SLOW_RANK, now_s, _numbers(still), text)

    def _still_s(self, rank: _Rank, now_s: float) -> float:
        return now_s - max(rank.last.updated_at_s, self._started_at_s)

    def _stuck(self, ranks: Sequence[_Rank], now_s: float) -> str:
        last = max(ranks, key=lambda rank: rank.last.updated_at_s)
        return f"{self._where(ranks, now_s)} (limit {last.allowed_s(self._limits):.0f} s)"

    def _where(self, ranks: Sequence[_Rank], now_s: float) -> str:
        last = max(ranks, key=lambda rank: rank.last.updated_at_s)
        first = min(ranks, key=lambda rank: rank.last.step).last
        where = f"step {first.step} ({first.phase})" if len(ranks) == 1 else _spread(ranks)
        return f"{_who(ranks, len(self._ranks))} stuck at {where} for {self._still_s(last, now_s):.0f} s"

    # ---- keeping together ----------------------------------------------------------------------------------------

    def _judge_lag(self, now_s: float) -> None:
        steady = [r for r in self._ranks.values() if r.last.phase == "train" and len(r.step_s) >= _STEADY_AFTER]
        step_s = median(median(rank.step_s) for rank in steady) if len(steady) > 1 else 0.0
        if step_s <= 0:
            return
        begun = [rank.last.updated_at_s - rank.last.step * step_s for rank in steady]
        for rank, begin in zip(steady, begun, strict=True):
            rank.behind.append((begin - min(begun)) / step_s > self._limits.lag_steps)
            if len(rank.behind) > self._limits.lag_feeds:
                rank.behind.popleft()
        self._judge_slow(now_s, steady)

    def _judge_slow(self, now_s: float, steady: Sequence[_Rank]) -> None:
        full = [rank for rank in steady if len(rank.behind) == self._limits.lag_feeds]
        shares = {rank.last.rank: sum(rank.behind) / len(rank.behind) for rank in full}
        slow = tuple(sorted(number for number, share in shares.items() if share >= _MOST))
        if slow and len(slow) <= len(steady) / 2:
            who = "rank" if len(slow) == 1 else "ranks"
            text = f"{who} {', '.join(map(str, slow))} slow{'s' * (len(slow) == 1)} down the other ranks"
            self._set(Kind.SLOW_RANK, now_s, slow, text)
        elif shares and max(shares.values()) <= _FEW:
            self._clear(Kind.SLOW_RANK, now_s)

    # ---- losses --------------------------------------------------------------------------------------------------

    def _judge_loss(self, now_s: float, rank: _Rank, loss: float) -> None:
        last, finite = rank.last, math.isfinite(loss)
        if finite:
            rank.bad_since = None
        elif rank.bad_since is None:
            rank.bad_since = last.step if last.bad_since is None else last.bad_since
        if rank.bad_since is not None and last.step - rank.bad_since >= _LOSS_EVERY_STEPS:
            self._set(Kind.NAN_LOSS, now_s, (last.rank,), _no_number(rank))
        elif all(other.bad_since is None for other in self._ranks.values()):
            self._clear(Kind.NAN_LOSS, now_s)
        repeated, rank.seen_loss = loss == rank.seen_loss, loss
        if finite and not repeated:
            self._judge_spike(now_s, rank, loss)

    def _judge_spike(self, now_s: float, rank: _Rank, loss: float) -> None:
        last = rank.last
        if len(rank.losses) >= _LOSSES_NEEDED:
            middle = median(rank.losses)
            spread = max(1.4826 * median(abs(x - middle) for x in rank.losses), 0.01 * abs(middle))
            above = (loss - middle) / spread if spread else 0.0
            rank.spikes = rank.spikes + 1 if above > self._limits.spike else 0
            if rank.spikes >= _IN_A_ROW:
                text = f"loss of rank {last.rank} rose to {loss:.4g} at step {last.step} (usual {middle:.4g})"
                self._set(Kind.LOSS_SPIKE, now_s, (last.rank,), text)
            elif not any(other.spikes for other in self._ranks.values()) and above < self._limits.spike / 2:
                self._clear(Kind.LOSS_SPIKE, now_s)
        rank.losses.append(loss)

    # ---- findings ------------------------------------------------------------------------------------------------

    def _set(self, kind: Kind, now_s: float, ranks: tuple[int, ...], text: str) -> None:
        if self._holds(kind) is None:
            self.findings.append(WatchFinding(kind, now_s, self.steps, ranks, text))

    def _clear(self, kind: Kind, now_s: float) -> None:
        self.findings = [
            replace(finding, cleared_at_s=now_s) if finding.kind is kind and finding.cleared_at_s is None else finding
            for finding in self.findings
        ]


def _numbers(ranks: Iterable[_Rank]) -> tuple[int, ...]:
    return tuple(sorted(rank.last.rank for rank in ranks))


def _no_number(rank: _Rank) -> str:
    return f"loss of rank {rank.last.rank} is {rank.last.loss} since step {rank.bad_since}"


def _who(ranks: Sequence[_Rank], total: int) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0].last.rank}"
    if len(ranks) < total:
        return f"{len(ranks)} of {total} ranks"
    return "both ranks" if total == 2 else f"all {total} ranks"


def _spread(ranks: Iterable[_Rank]) -> str:
    steps = sorted({rank.last.step for rank in ranks})
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
