"""Holds rounds over a SuperLink, one at a time, on schedule or when the operator asks.

- A party that does not answer delays a round and loses nothing: the round stays in the store and is retried until it
  ends.
- While a round is held, no other process holds one on the same store; it is told which one does.
- Logs one line per round, per release and per alarm of the newest window, with all figures.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from crypto.errors import CohortTooSmall, PharoahError, Refusal, Unreachable
from crypto.signing import reopened
from federation.base.clock import dated, dates
from federation.protocol.plan import Plan
from federation.protocol.privacy_cost import plan_loss
from federation.protocol.queries import Query
from federation.protocol.round_messages import UnmaskRequest
from provider_server.fleet.release import Release
from provider_server.program.metrics import Metrics
from provider_server.program.operations.admin import HeldRound
from provider_server.program.operations.named import contexts_named, parts_named
from provider_server.rounds import looking
from provider_server.rounds.grouping import TenantScores
from provider_server.rounds.network.flower_app import server_app
from provider_server.rounds.network.grid_tenants import GridTenants, Silence
from provider_server.rounds.network.superlink import RegisteredNode, SuperLink, UnusableNodeKey
from provider_server.rounds.planning import MaskKeysServed, NothingToCount
from provider_server.rounds.provider import Provider
from provider_server.rounds.publisher import Publisher
from provider_server.rounds.readiness import Known, Lack, What, lacking
from provider_server.rounds.round import Round
from provider_server.rounds.schedule import Window, check_window, due, last_whole_window
from provider_server.rounds.settings import ProviderSettings
from provider_server.rounds.store.claims import RoundsHeld
from provider_server.rounds.store.round_store import RoundState
from provider_server.rounds.store.store import reporting
from provider_server.rounds.week import MaskHolder, Stage, Tenants, federated_week, give_up, publish, tell_directory

logger = logging.getLogger(__name__)
LOOK_EVERY_S = 15.0  # at what the next round lacks


class TooFewTenants(Refusal):
    """Fewer tenants are enrolled than any round needs."""

    default_hint = "nobody was asked; `pharoah-provider status` lists what the next round lacks"


class Rounds:
    """Holds rounds over a SuperLink, one at a time."""

    def __init__(
        self,
        provider: Provider,
        publisher: Publisher,
        link: SuperLink,
        trustees: Sequence[MaskHolder],
        settings: ProviderSettings,
        metrics: Metrics,
        now_hour: Callable[[], float],
        founded_hour: float,
        look: Callable[[Iterable[RegisteredNode], Window | None], Known] | None = None,
    ) -> None:
        self._provider = provider
        self._publisher = publisher
        self._link = link
        self._trustees = trustees
        self._settings = settings
        self._metrics = metrics
        self._now_hour = now_hour
        self._one = threading.Lock()
        self._founded_hour = founded_hour
        self._look = look
        self._lacks: tuple[Lack, ...] = ()
        self._looked_s = -math.inf
        self._skipped_end: int | None = None
        self._held_back_end: int | None = None
        self._sent: bytes | None = None

    @property
    def provider(self) -> Provider:
        """The provider that holds them."""
        return self._provider

    def step(self) -> bool:
        """Does what is due, and returns whether there may be more. Faults of parties are logged, not raised."""
        if not self._one.acquire(blocking=False):
            return False  # another thread holds a round
        try:
            with reporting():
                self._follow()
                self._look_again()
                return self._step()
        except PharoahError as error:
            fields = {"event": "step", "error": type(error).__name__, "hint": error.hint}
            logger.warning("step failed: %s", error.what, extra=fields)
            return False
        finally:
            self._one.release()

    def hold(self, window: Window | None) -> HeldRound:
        """Holds a window, by default the last whole one, or finishes the open round; returns the outcome."""
        with self._one, reporting():
            self._follow()
            if window:
                check_window(window, self._now_hour(), self._provider.window_at)
            window = window or self._last_window()
            self._check_members(window)
            return self._hold(window)

    def lacks(self, window: Window | None = None) -> tuple[Lack, ...]:
        """What the round over a window lacks, by default the next one; nothing where nobody looks."""
        return lacking(self._look(self._link.nodes(), window)) if self._look else ()

    @property
    def lacked(self) -> tuple[Lack, ...]:
        """What the next round lacked when it was looked at last."""
        return self._lacks

    def _look_again(self) -> None:
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self._lacks, self._looked_s = self.lacks(), time.monotonic()
            self._metrics.lacking.set(sum(lack.urgent for lack in self._lacks))

    def _check_members(self, window: Window) -> None:
        """TooFewTenants where too few are enrolled for any round; nobody is asked then."""
        few = [lack for lack in self.lacks(window) if lack.what in (What.COHORT, What.OWNERS)]
        if few and self._provider.unfinished() is None:
            first, *others = few
            raise TooFewTenants(f"no round can succeed without {first}", hint="; ".join(map(str, others)) or None)

    def give_up(self) -> str:
        """Abandons the open round, whose contributions stay masked; its id, or an empty text.

        It ends once a quorum of trustees has endorsed that nobody is in it, and is retried till then.
        """
        with self._one, reporting(), self._provider.store.claim.held():
            round_ = self._provider.unfinished()
            if round_ is None:
                return ""
            self._give_up(round_)
            self._note_given_up(round_)
            return str(round_.plan.round_id)

    def _give_up(self, round_: Round) -> None:
        try:
            give_up(self._provider, self._trustees, round_)
        except PharoahError as error:
            self._note_waiting(error, "give up")
            raise
        self._metrics.waiting.set(0)
        self._metrics.rounds.labels("refused").inc()

    def _note_given_up(self, round_: Round) -> None:
        outcome = {"event": "round", "outcome": "given up"}
        logger.warning("round %s given up", round_.plan.round_id, extra=outcome)

    def _last_window(self) -> Window:
        return last_whole_window(self._now_hour(), self._provider.window_at)

    def _step(self) -> bool:
        self._withdraw_ahead(self._now_hour())
        self._finish_giving_up()
        manual = self._settings.rounds.every == "manual"
        window = None if manual else self._due()
        if window is None and self._provider.unfinished() is None:
            return self._catch_up()
        try:
            self._hold(window or self._last_window())
        except NothingToCount:
            self._skipped_end = window[1] if window else None
            return True
        except RoundsHeld:
            raise
        except PharoahError:
            return False  # logged by `_hold`; the next step tries again
        return True

    def _withdraw_ahead(self, now_hour: float) -> None:
        """Forgets a round over hours that have not ended, to which nobody has contributed.

        A clock that was ahead opened it, and tenants with right clocks refuse it; each window gets its round later.
        """
        round_ = self._provider.unfinished()
        if round_ and round_.plan.end_hour > now_hour and self._provider.store.rounds.withdraw(round_.plan.round_id):
            what = round_.plan.round_id, round_.plan.end_hour, now_hour
            logger.warning("round %s ends at hour %d, and it is hour %.1f: withdrawn", *what)

    def _finish_giving_up(self) -> None:
        round_ = self._provider.unfinished()
        if round_ is not None and round_.state is RoundState.GIVING_UP:
            with self._provider.store.claim.held():
                self._give_up(round_)
            self._note_given_up(round_)

    def _hold(self, window: Window) -> HeldRound:
        with self._provider.store.claim.held():
            return self._hold_alone(window)

    def _hold_alone(self, window: Window) -> HeldRound:
        clock = _Clock(self._metrics)
        try:
            release = self._over_the_link(lambda tenants: self._week(tenants, window, clock))
        except PharoahError as error:
            explained = self._explained(error, window)
            self._note_failure(explained, clock)
            raise explained from error
        finally:
            clock.stop()
        return self._note_release(release, clock)

    def _explained(self, error: PharoahError, window: Window) -> PharoahError:
        """The error of a round with who refused it, and with what is lacking as its hint."""
        if not isinstance(error, CohortTooSmall | NothingToCount | Unreachable):
            return error
        round_ = self._provider.unfinished()
        lacks = [lack for lack in self.lacks(round_.plan.window if round_ else window) if lack.what is not What.WINDOW]
        refused = self._refused_text(round_.plan) if round_ and isinstance(error, CohortTooSmall) else ""
        hint = "; ".join(f"lacking {lack}" for lack in lacks) or error.hint
        return type(error)(": ".join(filter(None, (error.what, refused))), hint=hint)

    def _refused_text(self, plan: Plan) -> str:
        names, members = self._provider.members.names(), len(self._provider.directory.members)
        by_text: dict[str, list[str]] = {}
        for one in looking.refusals(self._provider.store):
            if one.window == plan.window:
                by_text.setdefault(one.refused.about(plan), []).append(names[one.tenant])
        told = (f"{len(who)} of {members} refused: {text} ({', '.join(sorted(who))})" for text, who in by_text.items())
        return "; ".join(told)

    def _follow(self) -> None:
        """Registers nodes of newly enrolled tenants, unregisters retired ones, and updates the trustees' directory."""
        head = self._provider.directory.head
        self._provider.members.refresh()
        registered = {node.public_openssh for node in self._link.nodes()}
        for key in set(self._provider.members.node_keys()) - registered:
            try:
                self._link.register(key)
            except UnusableNodeKey as error:  # excludes this tenant until it sends another key, and no other tenant
                fields = {"event": "node", "error": type(error).__name__, "hint": error.hint}
                logger.warning("node key refused: %s: …%s", error.what, key[-12:], extra=fields)
        for key in self._provider.members.retired_node_keys() & registered:
            self._link.unregister(key)
        if self._provider.directory.head != head:
            tell_directory(self._provider, self._trustees)
        nodes = self._link.nodes()
        self._metrics.nodes.labels("online").set(sum(node.online for node in nodes))
        self._metrics.nodes.labels("offline").set(sum(not node.online for node in nodes))

    def not_ready(self) -> str:
        """Why no round can be held now; empty if one can."""
        return "" if self._provider.directory.members else "no tenant is enrolled"

    def _due(self) -> Window | None:
        now_hour = self._now_hour()
        held, skipped = self._provider.last_end_hour(now_hour), self._skipped_end
        # What a clock that was ahead has skipped comes again.
        last = max((end for end in (held, skipped) if end is not None and end <= now_hour), default=None)
        settle_hours = self._settings.rounds.settle_hours
        next_window = self._provider.window_at(self._founded_hour if last is None else last)
        round_ = self._provider.unfinished()
        self._metrics.release_due_hour.set((round_.plan.end_hour if round_ else next_window[1]) + settle_hours)
        return due(last, self._founded_hour, now_hour, settle_hours, self._provider.window_at)

    def _catch_up(self) -> bool:
        """Publishes a release that a killed provider had not published; one that was held back is not retried."""
        end = self._provider.last_end_hour()
        if self._publisher.unpublished() and end != self._held_back_end:
            published = self._over_the_link(lambda tenants: publish(self._publisher, tenants))
            self._held_back_end = None if published else end
            self._metrics.held_back.set(not published)
        return False

    def _week(self, tenants: Tenants, window: Window, clock: "_Clock") -> Release:
        plan: Plan | None = None
        try:
            self._send_bundle(tenants)
            release = federated_week(self._provider, self._publisher, tenants, self._trustees, window, clock.begin)
            self._sent = self._provider.newest_bundle()
            plan = release.plan
            return release
        finally:  # most of all when too few answered
            silences = tenants.silences if isinstance(tenants, GridTenants) else ()
            for silence in silences:
                self._metrics.silences.labels(silence.why.value).inc()
            round_ = None if plan else self._provider.unfinished()
            plan = plan or (round_.plan if round_ and round_.state is RoundState.COLLECTING else None)
            if plan is not None:
                self._keep_refusals(plan, silences)

    def _keep_refusals(self, plan: Plan, silences: Iterable[Silence]) -> None:
        """Notes which tenants refused a plan, and by which rule."""
        tenants = {key: tenant for tenant, key in self._provider.store.node_keys().items()}
        nodes = {node.node_id: tenants.get(node.public_openssh) for node in self._link.nodes()}
        asked = (one for one in silences if one.verb is Query.CONTRIBUTION and one.refused)
        by = {tenant: one.refused for one in asked if (tenant := nodes.get(one.node_id)) and one.refused}
        looking.keep_refusals(self._provider.store, plan, by)

    def _send_bundle(self, tenants: Tenants) -> None:
        """Sends the bundle in force, unless the week before did: an operator may have published it since."""
        in_force = self._provider.newest_bundle()
        if in_force is not None and in_force != self._sent:
            for _receipt in tenants.ask(Query.BUNDLE, in_force):
                pass
            self._sent = in_force

    def _over_the_link(self, run: Callable[[Tenants], Any]) -> Any:
        """The result of `run`, called in a Flower app with all connected tenants."""
        rounds, results = self._settings.rounds, []
        wanted = len(self._provider.directory.members)
        app = server_app(
            lambda tenants: results.append(run(tenants)),
            wanted=wanted,
            join_s=rounds.join_s,
            deadline_s=rounds.deadline_s,
            poll_s=rounds.poll_s,
            heard=self._provider.heard,
        )
        self._link.run(app)
        return results[0]

    def _note_release(self, release: Release, clock: "_Clock") -> HeldRound:
        plan, metrics = release.plan, self._metrics
        epsilon = plan_loss(plan).at(plan.delta)
        rounds = self._provider.store.rounds
        asked = reopened(UnmaskRequest, rounds.get(plan.round_id).request or b"")
        suspects = len(TenantScores.from_dict(rounds.suspicion()).suspects())
        metrics.rounds.labels("released").inc()
        metrics.contributions.set(release.contributors)
        metrics.release_end_hour.set(plan.end_hour)
        metrics.epsilon.set(epsilon)
        metrics.suspects.set(suspects)
        metrics.left_out.set(len(asked.contributors) - release.contributors)
        metrics.parts_suspected.set(parts_named(self._provider, release))
        metrics.contexts_slow.set(contexts_named(release))
        metrics.waiting.set(0)
        outcome: HeldRound = {
            "round_id": str(plan.round_id),
            "start_hour": plan.start_hour,
            "end_hour": plan.end_hour,
            "contributors": release.contributors,
            "cells": plan.cells,
            "epsilon": epsilon,
            "delta": plan.delta,
            "position": plan.position_at(plan.start_hour),
            "windows": len(plan.windows) - 1,
            "suspects": suspects,
            "seconds": round(clock.total_s, 3),
            "seconds_by_stage": {stage: round(seconds, 3) for stage, seconds in clock.by_stage.items()},
        }
        logger.info("released %s", dates(plan.start_hour, plan.end_hour), extra={"event": "release", **outcome})
        metrics.alarms.set(self._raise_alarms(release))
        return outcome

    def _raise_alarms(self, release: Release) -> int:
        """Logs the drift alarms of the newest window; their number."""
        alarms = self._publisher.outlook(self._publisher.releases()).alarms
        new = [alarm for alarm in alarms if alarm.raised_hour == release.plan.start_hour]
        for alarm in new:
            logger.warning("%s", dated(alarm.text), extra={"event": "alarm", "since_hour": alarm.since_hour})
        return len(new)

    def _note_failure(self, error: PharoahError, clock: "_Clock") -> None:
        """Records why a round stopped: a party is away and it waits, or it ends without a release."""
        round_ = self._provider.unfinished()
        collecting = round_ is not None and round_.state is RoundState.COLLECTING
        is_tried_again = round_ is not None or self._settings.rounds.every != "manual"
        waits = is_tried_again and (not isinstance(error, Refusal) or isinstance(error, MaskKeysServed))
        if waits or (collecting and isinstance(error, CohortTooSmall)):
            self._note_waiting(error, clock.stage)
            return
        self._metrics.waiting.set(0)
        outcome = "skipped" if isinstance(error, NothingToCount) else "refused"
        self._log_outcome(outcome, error, clock.stage)
        if round_ is None:
            self._metrics.rounds.labels(outcome).inc()
        else:
            self._give_up(round_)

    def _note_waiting(self, error: PharoahError, stage: str) -> None:
        self._metrics.waiting.set(1)
        self._metrics.rounds.labels("waiting").inc()
        self._log_outcome("waiting", error, stage)

    def _log_outcome(self, outcome: str, error: PharoahError, stage: str) -> None:
        logger.warning(
            "round %s at %s: %s",
            *(outcome, stage, error.what),
            extra={
                "event": "round",
                "outcome": outcome,
                "stage": stage,
                "error": type(error).__name__,
                "hint": error.hint,
            },
        )


@dataclass
class Watched:
    """A trustee whose availability is a metric: whether it answered its last request."""

    inner: MaskHolder
    metrics: Metrics

    @property
    def index(self) -> int:
        """Its index in the directory."""
        return self.inner.index

    def follow(self, update: bytes) -> bytes:
        """As the trustee within."""
        return self._seen(self.inner.follow, update)

    def endorse(self, request: bytes) -> bytes:
        """As the trustee within."""
        return self._seen(self.inner.endorse, request)

    def unmask(self, call: bytes) -> bytes:
        """As the trustee within."""
        return self._seen(self.inner.unmask, call)

    def _seen(self, method: Callable[[bytes], bytes], request: bytes) -> bytes:
        up = self.metrics.trustees.labels(str(self.index))
        try:
            answer = method(request)
        except PharoahError as error:
            up.set(not isinstance(error, Unreachable))
            raise
        up.set(1)
        return answer


class _Clock:
    """Seconds by stage of one round."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start_s = self._since_s = time.monotonic()
        self.stage = ""
        self.by_stage: dict[str, float] = {}

    @property
    def total_s(self) -> float:
        """Seconds since the round began."""
        return time.monotonic() - self._start_s

    def begin(self, stage: Stage) -> None:
        """Ends the stage before and begins this one."""
        self.stop()
        self.stage, self._since_s = stage.value, time.monotonic()
        logger.debug("stage %s", stage.value)

    def stop(self) -> None:
        """Ends the stage."""
        if self.stage and self.stage not in self.by_stage:
            self.by_stage[self.stage] = time.monotonic() - self._since_s
            self._metrics.stage_seconds.labels(self.stage).observe(self.by_stage[self.stage])
