"""The contents of the pages, from a snapshot. Pure. Every field is also a key of /api/….

Numbers are those of bundles and releases. Pages show the first digits of a token; intervals are 95%. Nothing
here shows the outcomes of one tenant's jobs.
"""

from dataclasses import dataclass

from federation.protocol.bundle import Bundle, PairJudgement, RuleEntry
from federation.protocol.privacy_cost import plan_loss, spent_by_window
from provider_server.program.pages.actions import (
    Action,
    RoundNow,
    of_codes,
    of_nodes,
    of_releases,
    of_rounds,
    of_shifts,
)
from provider_server.program.pages.fabric import FabricView, SpeedView, fabric, speed
from provider_server.program.pages.findings import Event, FindingRow, Matrix, events, findings, matrix
from provider_server.program.pages.fleet import ContextView, fleet
from provider_server.program.pages.hazards import Curve, hazard_curves
from provider_server.program.pages.plans import PlansView
from provider_server.program.pages.snapshot import SeenRound, Snapshot
from provider_server.rounds.planning import PlanSettings, window_at
from provider_server.rounds.readiness import Known, Lack, lacking
from provider_server.rounds.store.round_store import ENDED, RoundState


@dataclass(frozen=True)
class RoundView:
    """A round. `contributors` and `cells` are those of its release, None without one.

    Its window is number `position`, from 0, of the `windows` of its epoch.
    """

    round_id: str
    start_hour: int
    end_hour: int
    state: str
    contributors: int | None
    cells: int | None
    epsilon: float
    delta: float
    position: int
    windows: int


@dataclass(frozen=True)
class Spent:
    """The privacy budget that a unit pays: a lease in this window."""

    start_hour: int
    end_hour: int
    epsilon: float
    delta: float


@dataclass(frozen=True)
class BundleView:
    """A bundle in figures."""

    number: int
    until_hour: int
    pairs: int
    worse: int
    confounded: int
    rates: int
    epsilon: float | None


@dataclass(frozen=True)
class Overview:
    """The first page. `overdue_hours`: hours that a release is overdue, 0 if none is; `lacking`: by the next round.

    `unpublished`: no bundle includes the newest release: it was held back, or is not made yet. `actions` are what
    somebody should act on now.
    """

    actions: tuple[Action, ...]
    now: RoundNow | None
    overdue_hours: int
    pilot: bool
    lacking: tuple[Lack, ...]
    next_due_hour: int
    tenants: int
    trustees: int
    suspects: tuple[str, ...]
    unpublished: bool
    alarms: tuple[str, ...]
    rounds: tuple[RoundView, ...]
    spent: tuple[Spent, ...]
    bundles: tuple[BundleView, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True)
class View:
    """All pages together."""

    overview: Overview
    fleet: tuple[ContextView, ...]
    findings: tuple[FindingRow, ...]
    matrix: Matrix
    hazards: tuple[Curve, ...]
    rules: tuple[RuleEntry, ...]
    fabric: FabricView | None
    speed: SpeedView | None
    plans: PlansView | None


def view(
    seen: Snapshot, known: Known, settle_hours: int, *, pilot: bool = False, plans: PlansView | None = None
) -> View:
    """All pages at the hour of `known`; a release is overdue once a window has ended and settled without one."""
    rows, groups = findings(seen), fleet(seen)
    parts, slow = fabric(seen.votes), speed(seen.releases, seen.name)
    now, lacks = _now(seen, known), lacking(known)
    overdue_hours = _overdue(seen, known.now_hour, settle_hours, known.settings)
    suspects, unpublished = known.called(seen.suspects), _unpublished(seen)
    overview = Overview(
        (
            *of_rounds(now, overdue_hours, lacks),
            *of_releases(seen, suspects, rows, unpublished=unpublished),
            *of_codes(seen.codes, known.now_hour),
            *of_shifts(seen),
            *of_nodes(groups, parts, slow, plans),
        ),
        now,
        overdue_hours,
        pilot,
        lacks,
        int(known.due_hour),
        len(seen.directory.members),
        len(seen.directory.trustees),
        suspects,
        unpublished,
        tuple(map(seen.told, seen.alarms)),
        _rounds(seen)[::-1],
        _spent(seen),
        tuple(_bundle(one) for one in seen.bundles)[::-1],
        events(seen),
    )
    rules = seen.learnt[-1].rules if seen.learnt else ()
    return View(overview, groups, rows, matrix(rows), hazard_curves(seen), rules, parts, slow, plans)


# ---- rounds ----------------------------------------------------------------------------------------------------------


def _now(seen: Snapshot, known: Known) -> RoundNow | None:
    for one in seen.rounds:
        if one.state not in ENDED:
            return _open(seen, one, known)
    return None


def _open(seen: Snapshot, one: SeenRound, known: Known) -> RoundNow:
    members = [member.tenant for member in seen.directory.members]
    late = [tenant for tenant in members if tenant not in one.answered]
    asked = [trustee.index for trustee in one.plan.trustees]
    collecting = one.state is RoundState.COLLECTING
    return RoundNow(
        round_id=str(one.plan.round_id),
        state=one.state.value,
        start_hour=one.plan.start_hour,
        end_hour=one.plan.end_hour,
        answered=len(one.answered),
        tenants=len(members),
        cohort_minimum=one.plan.cohort_minimum,
        late_tenants=known.called(late) if collecting else (),
        late_trustees=() if collecting else tuple(sorted(set(asked) - one.trustees_answered)),
    )


def _overdue(seen: Snapshot, now_hour: float, settle_hours: int, settings: PlanSettings) -> int:
    if not seen.releases:
        return 0
    plans = [one.plan for one in seen.rounds]
    held_until = max(one.plan.end_hour for one in seen.rounds if one.state in ENDED)
    due = window_at(settings, plans, held_until)[1] + settle_hours
    return max(0, int(now_hour - due))


def _unpublished(seen: Snapshot) -> bool:
    if not seen.releases:
        return False
    return not seen.bundles or seen.bundles[-1].until_hour < seen.releases[-1].plan.end_hour


def _rounds(seen: Snapshot) -> tuple[RoundView, ...]:
    released = {made.plan.round_id: made for made in seen.releases}
    return tuple(
        RoundView(
            round_id=str(plan.round_id),
            start_hour=plan.start_hour,
            end_hour=plan.end_hour,
            state=one.state.value,
            contributors=made.contributors if (made := released.get(plan.round_id)) else None,
            cells=plan.cells if made else None,
            epsilon=plan_loss(plan).at(plan.delta),
            delta=plan.delta,
            position=plan.position_at(plan.start_hour),
            windows=len(plan.windows) - 1,
        )
        for one in seen.rounds
        for plan in (one.plan,)
    )


def _spent(seen: Snapshot) -> tuple[Spent, ...]:
    delta = max((one.plan.delta for one in seen.rounds), default=0.0)
    return tuple(
        Spent(*window, loss.at(delta) if delta else loss.epsilon, delta)
        for window, loss in spent_by_window(one.plan for one in seen.rounds).items()
    )


# ---- bundles ---------------------------------------------------------------------------------------------------------


def _bundle(one: Bundle) -> BundleView:
    judged = [entry.judgement for entry in one.mismatches]
    return BundleView(
        one.number,
        one.until_hour,
        len(judged),
        judged.count(PairJudgement.WORSE),
        judged.count(PairJudgement.CONFOUNDED),
        len(one.hazards),
        one.statement.epsilon if one.statement else None,
    )
