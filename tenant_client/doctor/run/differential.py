"""Compares the ranks of a job function by function: which rank is slow, in what, and which organ that points to.

- Ranks of one role are compared, by median and MAD, with a floor from the samples' own spread: with two ranks there is
  nothing else to go by.
- In a function in which ranks wait for each other, only the time that the thread ran counts; everywhere else all time.
- Where a job tells how much work its batches held, a rank may be slower by up to the square of how much more it had,
  as attention is in the length of sequences.
- The last `WINDOWS` windows of each rank count together; with fewer there is no finding.

After EROICA/PerfTracker's differential observability.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

from tenant_client.doctor.run.hook.patterns import Function, Pattern

WINDOWS = 3
DEVIATIONS = 4.0
SHARE = 0.1  # of a step: what a rank must lose to be worth a word
_WAITS_MORE = 0.5
_MAD = 1.4826
HOST = "host CPU"
_ORGANS = {
    "input": "data loader or storage",
    "checkpoint": "storage",
    "gc": "garbage collection",
    "collective": HOST,
}
_MEETING = ("collective",)
_MEETING_UNSEEN = ("backward",)  # where a job calls no collective itself, as under DDP
_OWN = ("input", "gc", "checkpoint")  # no rank waits for another in these; in all others one may


@dataclass(frozen=True)
class Oddity:
    """A rank that is slow in one function, by `excess_ms` more per step than its peers, `share` of a step."""

    rank: int
    kind: str
    name: str
    organ: str
    excess_ms: float
    share: float

    @property
    def text(self) -> str:
        """For the owner of the job."""
        where = f" in {self.name}" if self.name else ""
        lost = f"{self.excess_ms:.3g} ms more per step than its peers, {self.share:.0%} of a step"
        return f"rank {self.rank} is slow in {self.kind}{where}: {lost}; suspect: {self.organ}"


class Differential:
    """Takes each rank's newest pattern; tells which ranks are slow by their last `WINDOWS`."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[Pattern]] = {}

    def feed(self, patterns: Iterable[Pattern]) -> list[Oddity]:
        """All that stands now, the largest share first."""
        for pattern in patterns:
            seen = self._seen.setdefault(pattern.rank, deque(maxlen=WINDOWS))
            if seen and seen[-1].pid != pattern.pid:
                seen.clear()
            if not seen or seen[-1].window != pattern.window:
                seen.append(pattern)
        full = {rank: together(seen) for rank, seen in self._seen.items() if len(seen) == WINDOWS}
        return sorted(oddities(full), key=lambda oddity: -oddity.share)


def together(seen: Sequence[Pattern]) -> Pattern:
    """Windows of one rank as one."""
    steps = max(1, sum(pattern.steps for pattern in seen))
    by_name: dict[tuple[str, str], list[tuple[Function, float]]] = defaultdict(list)
    for pattern in seen:
        for function in pattern.functions:
            by_name[function.kind, function.name].append((function, pattern.steps / steps))
    return replace(
        seen[-1],
        steps=steps,
        seconds=sum(pattern.seconds for pattern in seen),
        work=sum(pattern.work for pattern in seen),
        gc_ms=sum(pattern.gc_ms * pattern.steps for pattern in seen) / steps,
        gc_longest_ms=max(pattern.gc_longest_ms for pattern in seen),
        functions=tuple(map(_one_function, by_name.values())),
    )


def _one_function(parts: Sequence[tuple[Function, float]]) -> Function:
    count = sum(function.count for function, _ in parts)
    return Function(
        parts[0][0].kind,
        parts[0][0].name,
        count=count,
        mean_ms=sum(function.mean_ms * share for function, share in parts),
        spread_ms=max(function.spread_ms for function, _ in parts),
        waiting=sum(function.waiting * function.count for function, _ in parts) / max(1, count),
    )


def oddities(patterns: Mapping[int, Pattern]) -> list[Oddity]:
    """The ranks that are slow in their newest window."""
    by_role: dict[str, list[Pattern]] = defaultdict(list)
    for pattern in patterns.values():
        by_role[pattern.role].append(pattern)
    found = [oddity for peers in by_role.values() if len(peers) > 1 for oddity in _among(peers)]
    known = {(oddity.rank, oddity.kind) for oddity in found}
    found += [one for one in map(_collects, patterns.values()) if one is not None and (one.rank, "gc") not in known]
    roots = {oddity.rank for oddity in found if oddity.kind in _OWN}
    collected_ms = {oddity.rank: oddity.excess_ms for oddity in found if oddity.kind == "gc"}
    return [
        oddity
        for oddity in found
        if oddity.kind == "gc"
        or (
            (oddity.excess_ms > collected_ms.get(oddity.rank, 0.0))  # a collection happens within another function
            and (not roots or oddity.kind in _OWN or oddity.rank in roots)
        )
    ]


def _collects(pattern: Pattern) -> Oddity | None:
    """Garbage collection is too much by itself, whatever the peers do."""
    share = min(1.0, pattern.gc_ms / _step_ms(pattern))
    return Oddity(pattern.rank, "gc", "", _ORGANS["gc"], pattern.gc_ms, share) if share > SHARE else None


def _among(peers: Sequence[Pattern]) -> Iterable[Oddity]:
    values = {pattern.rank: _values(pattern, peers) for pattern in peers}
    step_ms = median(map(_step_ms, peers))
    for kind in sorted({kind for of_rank in values.values() for kind in of_rank}):
        for pattern in peers:
            own = values[pattern.rank].get(kind, _NOTHING)
            others = [values[peer.rank].get(kind, _NOTHING) for peer in peers if peer is not pattern]
            excess_ms = _excess_ms(own, others, _allowance(pattern, peers))
            if excess_ms > SHARE * step_ms:
                name = max((f for f in pattern.functions if f.kind == kind), key=lambda f: f.mean_ms, default=None)
                organ = _ORGANS.get(kind) or (HOST if _waits(pattern, peers, kind) else "compute device")
                yield Oddity(
                    pattern.rank, kind, name.name if name else "", organ, excess_ms, min(1.0, excess_ms / step_ms)
                )


@dataclass(frozen=True)
class _Value:
    """Milliseconds per step, and how sure that is."""

    ms: float
    error_ms: float


_NOTHING = _Value(0.0, 0.0)


def _excess_ms(own: _Value, others: Sequence[_Value], allowance: float) -> float:
    """How much more than the peers' median, beyond what chance and work explain; 0 if that explains it."""
    reference = median_low(other.ms for other in others)
    spread = _MAD * median(abs(other.ms - reference) for other in others)
    error = math.hypot(own.error_ms, median(other.error_ms for other in others))
    excess = own.ms - reference * allowance
    return excess if excess > DEVIATIONS * max(spread, error) else 0.0


def _values(pattern: Pattern, peers: Sequence[Pattern]) -> dict[str, _Value]:
    explicit = any(function.kind in _MEETING for peer in peers for function in peer.functions)
    meeting = _MEETING if explicit else _MEETING + _MEETING_UNSEEN
    found: dict[str, _Value] = {"gc": _Value(pattern.gc_ms, 0.0)}
    samples = sum(function.count for function in pattern.functions)
    for kind in {function.kind for function in pattern.functions}:
        ms = sum(f.mean_ms * (1 - f.waiting if kind in meeting else 1) for f in pattern.functions if f.kind == kind)
        share = ms / _step_ms(pattern)
        error_ms = _step_ms(pattern) * math.sqrt(max(share * (1 - share), 1 / samples) / samples)
        found[kind] = _Value(max(0.0, ms - pattern.gc_ms * share), error_ms)
    return found


def _allowance(pattern: Pattern, peers: Sequence[Pattern]) -> float:
    """How many times as long it may take for its work; 1 where work is not told or not more."""
    usual = median(peer.work / max(1, peer.steps) for peer in peers)
    more = pattern.work / max(1, pattern.steps) / usual if usual > 0 else 1.0
    return max(1.0, more) ** 2


def _waits(pattern: Pattern, peers: Sequence[Pattern], kind: str) -> bool:
    """Whether the thread mostly waits in it: then neither it nor its device computes for longer."""
    functions = [function for function in pattern.functions if function.kind == kind]
    total_ms = sum(function.mean_ms for function in functions)
    waited_ms = sum(function.mean_ms * function.waiting for function in functions)
    return total_ms > 0 and waited_ms / total_ms > _WAITS_MORE


def _step_ms(pattern: Pattern) -> float:
    return max(1e3 * pattern.seconds / max(1, pattern.steps), 1e-6)
