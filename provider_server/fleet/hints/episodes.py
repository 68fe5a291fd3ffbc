"""Decides when the hazard of a running lease is worth a hint: from its nodes' hazards at each look to drafts of hints.

    NodeHazard × nodes ─ lease_hazard ─▶ LeaseHazard ─ Episodes.look ─▶ Draft (a Hint without its number)

Pure: time is an argument, and `Episodes.state()` holds everything that a restarted provider needs.

- *Two conditions.* The ratio of a lease is that of its worst node, so it does not depend on how many healthy nodes the
  lease has. The excess of a lease is the number of failures above usual that it expects within the next hours. A hint
  needs both: a large ratio of a tiny hazard is not enough, nor a sum of many small ones.
- *Change.* A hint reports change since the lease was granted, at the level that its `check` was told (`granted`); where
  that is not known, since the first look. Only a rise of
  the nodes' build-up levels above their lowest sum so far counts, with its share of the excess. Another age band or
  another bundle changes rates, not hardware, and raises no hint. The exception is `grave_ratio`.
- *Episodes.* An episode ends once every look within `calm_h` hours was calm: the worst node below `clear_ratio`, or the
  excess back down. So a flickering level is one episode. Within an episode a hint is repeated only where the ratio or
  the surplus has grown by `escalate_factor` since the last hint. After `episodes_before_move` episodes the next one
  begins as an escalation.
- *Gaps.* A lease without a look (no telemetry) does not change. A look no later than the last one is a repetition.
- Hints are advice: nothing here acts. A draft names a lease, and no node, device or tenant.

Not promised: that a failure follows. At a threshold of a few per cent most hints are not followed by one
(`docs/measured.md` says how often).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from crypto.errors import DecodeError
from crypto.ids import LeaseId
from federation.protocol.service_messages import Action, HintState, Suspicion


@dataclass(frozen=True)
class Draft:
    """A `Hint` without its number: the fields are those of `federation.protocol.service_messages.Hint`."""

    at_h: float
    lease: LeaseId
    state: HintState
    suspicion: Suspicion
    ratio: float
    ratio_low: float
    ratio_high: float
    probability: float
    within_hours: float
    action: Action
    times: int


@dataclass(frozen=True)
class NodeHazard:
    """Failures per node-hour of one node at its build-up `level` now, with their 95% interval; `usual` at level 0."""

    rate: float
    rate_low: float
    rate_high: float
    usual: float
    suspicion: Suspicion
    level: int

    def __post_init__(self) -> None:
        if self.level < 0:
            raise ValueError("level must be 0 or more")
        if not (0 <= self.rate_low <= self.rate <= self.rate_high < math.inf and 0 < self.usual < math.inf):
            raise ValueError("rate must be finite, not negative and within its interval; usual must be positive")

    def times(self, factor: float) -> "NodeHazard":
        """Of a node that fails so many times as often at every level."""
        rates = {name: factor * getattr(self, name) for name in ("rate", "rate_low", "rate_high", "usual")}
        return replace(self, **rates)

    @property
    def excess(self) -> float:
        """Failures per hour above usual; 0 for a node that fails less."""
        return max(0.0, self.rate - self.usual)


@dataclass(frozen=True)
class LeaseHazard:
    """A lease's hazard at one look; ratio and suspicion are of its worst node, all else of the whole lease.

    `probability` is that of a failure within the next `within_hours`, `excess` the expected failures above usual, and
    `surplus` the same in usual nodes: the sum of ratios above 1, each less 1. `strain` is the sum of its nodes' levels.
    """

    lease: LeaseId
    ratio: float
    ratio_low: float
    ratio_high: float
    probability: float
    excess: float
    surplus: float
    strain: int
    within_hours: float
    suspicion: Suspicion


def lease_hazard(lease: LeaseId, nodes: Sequence[NodeHazard], within_hours: float) -> LeaseHazard:
    """The hazard of a lease on these nodes, if their rates stay; ValueError without nodes or hours."""
    if not nodes or not 0 < within_hours < math.inf:
        raise ValueError("a lease needs nodes, and within_hours must be positive and finite")
    worst = max(nodes, key=lambda node: (node.excess, node.rate / node.usual))
    return LeaseHazard(
        lease=lease,
        ratio=worst.rate / worst.usual,
        ratio_low=worst.rate_low / worst.usual,
        ratio_high=worst.rate_high / worst.usual,
        probability=-math.expm1(-within_hours * sum(node.rate for node in nodes)),
        excess=within_hours * sum(node.excess for node in nodes),
        surplus=sum(node.excess / node.usual for node in nodes),
        strain=sum(node.level for node in nodes),
        within_hours=within_hours,
        suspicion=worst.suspicion,
    )


@dataclass(frozen=True, kw_only=True)
class HintLimits:
    """When a hint is raised, repeated and cleared. The defaults were chosen in simulation (docs/simulation.md).

    `raise_ratio`, `raise_ratio_low`   least ratio of the worst node, and least lower end of its interval
    `raise_excess`                     least rise of expected failures since the lease was at its best
    `looks`                            looks in a row that must show it
    `clear_ratio`                      the worst node's ratio below which a look is calm (hysteresis)
    `clear_share`                      share of `raise_excess` below which the rise is calm
    `calm_h`                           hours of only calm looks that end an episode
    `escalate_factor`                  growth of ratio or surplus since the last hint that raises another
    `episodes_before_move`             episodes of a lease after which the next one begins as an escalation
    `grave_ratio`                      the worst node's ratio that raises a hint even if the lease began with it
    `checkpoint_probability`           probability of a failure from which a checkpoint is advised before a test
    """

    raise_ratio: float = 1.5
    raise_ratio_low: float = 1.0
    raise_excess: float = 0.02
    looks: int = 2
    clear_ratio: float = 1.3
    clear_share: float = 0.5
    calm_h: float = 6.0
    escalate_factor: float = 2.0
    episodes_before_move: int = 2
    grave_ratio: float = 10.0
    checkpoint_probability: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.clear_ratio <= self.raise_ratio <= self.grave_ratio:
            raise ValueError("ratios must rise from clear_ratio over raise_ratio to grave_ratio")
        if self.looks < 1 or self.calm_h < 0 or self.raise_excess < 0 or self.escalate_factor <= 1:
            raise ValueError("looks must be positive, calm_h and raise_excess not negative, escalate_factor above 1")


class _Course(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The history of a lease: its lowest strain, and the surplus then by the newest rates.

    `looks` counts looks in a row above the threshold; `said_…` are the figures of the last hint of an `open` episode.
    """

    best_strain: int
    best_surplus: float
    looks: int = 0
    times: int = 0
    open: bool = False
    said_ratio: float = 0.0
    said_surplus: float = 0.0
    said_strain: int = 0
    calm_since_h: float | None = None

    def __post_init__(self) -> None:
        if self.open and not (self.times > 0 and self.said_ratio > 0 and self.said_surplus > 0):
            raise ValueError("an open episode needs times, said_ratio and said_surplus above 0")


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    at_h: float | None
    leases: dict[str, _Course]


class Episodes:
    """The histories of all leases that were looked at and have not ended."""

    def __init__(self, limits: HintLimits | None = None) -> None:
        self._limits = limits or HintLimits()
        self._at_h: float | None = None
        self._courses: dict[LeaseId, _Course] = {}

    @classmethod
    def resumed(cls, state: bytes, limits: HintLimits | None = None) -> "Episodes":
        """Goes on from `state()`, perhaps with other limits; DecodeError for anything else."""
        try:
            read = msgspec.json.decode(state, type=_State)
            courses = {LeaseId(bytes.fromhex(lease)): course for lease, course in read.leases.items()}
        except (msgspec.MsgspecError, ValueError) as error:
            raise DecodeError(f"not a state of hints: {error}") from error
        resumed = cls(limits)
        resumed._at_h, resumed._courses = read.at_h, courses
        return resumed

    def state(self) -> bytes:
        """Everything that the next look needs, as JSON: equal states are equal bytes."""
        leases = {str(lease): self._courses[lease] for lease in sorted(self._courses)}
        return msgspec.json.encode(_State(1, self._at_h, leases))

    @property
    def open(self) -> frozenset[LeaseId]:
        """The leases with an open episode."""
        return frozenset(lease for lease, course in self._courses.items() if course.open)

    @property
    def known(self) -> frozenset[LeaseId]:
        """The leases that were looked at and not forgotten."""
        return frozenset(self._courses)

    def granted(self, hazards: Iterable[LeaseHazard]) -> None:
        """What leases were granted at, from which change counts; those that were looked at keep what they have."""
        for hazard in hazards:
            self._courses.setdefault(hazard.lease, _Course(hazard.strain, hazard.surplus))

    def ended(self, leases: Iterable[LeaseId]) -> None:
        """Forgets leases that have ended, with their episodes; no hint is needed then."""
        for lease in leases:
            self._courses.pop(lease, None)

    def look(self, at_h: float, hazards: Sequence[LeaseHazard]) -> list[Draft]:
        """The drafts after a look at some leases, in their order; none if it is no later than the last look."""
        if self._at_h is not None and at_h <= self._at_h:
            return []
        self._at_h = float(at_h)
        drafts = []
        for hazard in hazards:
            course = self._courses.get(hazard.lease)
            if course is None or hazard.strain <= course.best_strain:
                best = course or _Course(0, 0.0)
                course = _but(best, best_strain=hazard.strain, best_surplus=hazard.surplus)
            course, state = self._next(course, hazard)
            self._courses[hazard.lease] = course
            if state is not None:
                drafts.append(_draft(self._at_h, hazard, state, self._action(state, hazard), course.times))
        return drafts

    def _next(self, course: _Course, hazard: LeaseHazard) -> tuple[_Course, HintState | None]:
        return self._within(course, hazard) if course.open else self._outside(course, hazard)

    def _outside(self, course: _Course, hazard: LeaseHazard) -> tuple[_Course, HintState | None]:
        """No episode is open: one begins after enough looks in a row above the threshold."""
        looks = course.looks + 1 if self._rose(course, hazard) else 0
        if looks < self._limits.looks:
            return _but(course, looks=looks), None
        again = course.times >= self._limits.episodes_before_move
        return _said(course, hazard, course.times + 1), HintState.ESCALATED if again else HintState.RAISED

    def _rose(self, course: _Course, hazard: LeaseHazard) -> bool:
        limits = self._limits
        clear = hazard.ratio >= limits.raise_ratio and hazard.ratio_low >= limits.raise_ratio_low
        return clear and hazard.excess > 0 and self._risen(course, hazard) >= limits.raise_excess

    def _risen(self, course: _Course, hazard: LeaseHazard) -> float:
        """The excess that counts: all at a grave ratio, else the share that arose since the lease was at its best."""
        if hazard.ratio >= self._limits.grave_ratio:
            return hazard.excess
        if hazard.strain <= course.best_strain or hazard.surplus <= course.best_surplus:
            return 0.0
        return hazard.excess * (1.0 - course.best_surplus / hazard.surplus)

    def _within(self, course: _Course, hazard: LeaseHazard) -> tuple[_Course, HintState | None]:
        """An episode is open: it ends after `calm_h` calm hours, and its hint is repeated when it became worse."""
        limits, at_h = self._limits, self._at_h or 0.0
        sunk = self._risen(course, hazard) < limits.clear_share * limits.raise_excess
        if sunk or hazard.ratio < limits.clear_ratio:
            since = at_h if course.calm_since_h is None else course.calm_since_h
            if at_h - since >= limits.calm_h:
                return _Course(course.best_strain, course.best_surplus, times=course.times), HintState.CLEARED
            return _but(course, calm_since_h=since), None
        if self._grew(course, hazard) and hazard.ratio_low >= limits.raise_ratio_low:
            return _said(course, hazard, course.times), HintState.ESCALATED
        return _but(course, calm_since_h=None), None

    def _grew(self, course: _Course, hazard: LeaseHazard) -> bool:
        """Whether to repeat the hint: levels rose, ratio or surplus by `escalate_factor`, and the rise matters."""
        factor, new = self._limits.escalate_factor, hazard.surplus - course.said_surplus
        enough = hazard.excess * new >= self._limits.raise_excess * hazard.surplus
        doubled = hazard.surplus >= factor * course.said_surplus and enough
        return hazard.strain > course.said_strain and (doubled or hazard.ratio >= factor * course.said_ratio)

    def _action(self, state: HintState, hazard: LeaseHazard) -> Action:
        """A test costs time and needs to know what to test; a checkpoint always helps."""
        if state is HintState.CLEARED:
            return Action.NOTHING
        if state is HintState.ESCALATED:
            return Action.MOVE
        likely = hazard.probability >= self._limits.checkpoint_probability
        return Action.CHECKPOINT if likely or hazard.suspicion is Suspicion.UNCLEAR else Action.CONFIRM


def _but(course: _Course, **changes: float | None) -> _Course:
    return msgspec.structs.replace(course, **changes)


def _said(course: _Course, hazard: LeaseHazard, times: int) -> _Course:
    """The history of a lease after a hint with this hazard."""
    return _but(
        _Course(course.best_strain, course.best_surplus, times=times),
        open=True,
        said_ratio=hazard.ratio,
        said_surplus=hazard.surplus,
        said_strain=hazard.strain,
    )


def _draft(at_h: float, hazard: LeaseHazard, state: HintState, action: Action, times: int) -> Draft:
    return Draft(
        at_h=at_h,
        lease=hazard.lease,
        state=state,
        suspicion=hazard.suspicion,
        ratio=hazard.ratio,
        ratio_low=hazard.ratio_low,
        ratio_high=hazard.ratio_high,
        probability=hazard.probability,
        within_hours=hazard.within_hours,
        action=action,
        times=times,
    )
