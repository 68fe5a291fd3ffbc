"""Watches running leases: reads each hour of telemetry once it is over, and appends hints where hazards rise.

    Prometheus ─ summarise ─▶ hours ─ BuildUp ─▶ levels ─ node_states ─┐
    leases of this moment and their nodes ─────────────────────────────┼─ View.judge ─▶ Episodes.look ─▶ HintStore
    newest bundle, contexts of the nodes ──────────────────────────────┘

Observe-only: it says something, and does nothing. One look for each hour; after an outage all hours are read and the
newest is looked at. Hints and the state of their episodes are committed first, the build-up state (`live.json` in the
home) after that: whoever is killed in between reads the same hour again, and says nothing twice. What a node did before
its hardware was replaced (`repairs.json`) counts no more; till an hour after that is read, it is unheard at level 0.
From then on it is on probation: its level is at least what `learning.on_probation` says of the time since. Rates are
those of its context, times what its own failures say of it, if `nodes hazard --keep` has kept that
(`learning.node_offsets`).

What is missing (Prometheus, a series, a node, contexts, a bundle, the nodes of a lease) is counted in the metrics and
never becomes a hint. The poller shares no lock with rounds, and its failures end nothing but one poll.

Not promised: word of a failure that gives no sign in telemetry, or that comes within the hour.
"""

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Protocol

import msgspec
import polars as pl

from crypto.errors import DecodeError, PharoahError, Refusal
from crypto.ids import LeaseId, TenantId
from crypto.signing import reopened
from federation.base.key_files import replace_file
from federation.base.meanwhile import meanwhile
from federation.protocol.bundle import Bundle
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.service_messages import Hint
from provider_server.fleet.analysis.buildup import LEVELS, BuildUp, Shift, signals, signals_of
from provider_server.fleet.hints import node_reports
from provider_server.fleet.hints.episodes import Draft, Episodes, LeaseHazard
from provider_server.fleet.hints.node_hazard import NodeState, Rates, Standing, View, held_up, node_states
from provider_server.fleet.hints.node_reports import NodeReport, OutputFailed
from provider_server.fleet.learning import hardware, node_offsets, on_probation
from provider_server.fleet.learning.hardware import Kept, label_of
from provider_server.fleet.leases import Lease
from provider_server.fleet.telemetry.catalogue import METRICS
from provider_server.fleet.telemetry.inventory import Inventory, load as load_inventory
from provider_server.fleet.telemetry.prometheus import PrometheusSettings, PrometheusSource
from provider_server.fleet.telemetry.quality import Tally
from provider_server.fleet.telemetry.recipe import load as load_recipe
from provider_server.fleet.telemetry.samples import HOUR_S, SeriesBook, Window
from provider_server.fleet.telemetry.summaries import summarise
from provider_server.program.metrics import Metrics
from provider_server.rounds.home import settings_of
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.settings import ProviderSettings, Telemetry
from provider_server.rounds.store.store import reporting

logger = logging.getLogger(__name__)

STATE = "live.json"
SETTLE_S = 120.0  # an hour's last samples are scraped, and perhaps written elsewhere, a while after its end
STOP_S = 5.0
LONGEST_H = 168  # no older hours are read after an outage: what happened before is forgotten anyway by half
UNPLACED = "unplaced"
Placed = tuple[Lease, tuple[str, ...]]  # a lease and its nodes
RELOADED = ("telemetry", "live")  # sections of the settings that may change while the provider runs


class NotReady(Refusal):
    """Running leases cannot be judged yet."""

    default_hint = "hints begin once there are contexts and telemetry"


class HintLog(Protocol):
    """Where hints are kept; see `store.hint_store.HintStore`."""

    def state(self) -> bytes | None:
        """The state of the newest look."""

    def append(self, drafts: Sequence[tuple[TenantId, Draft]], before: bytes | None, after: bytes) -> list[Hint]:
        """Stores hints and the state after them."""


class Sink(Protocol):
    """Takes the reports on all nodes after an hour; see `outputs`."""

    def take(self, reports: Sequence[NodeReport]) -> None:
        """OutputFailed if they could not be handed on."""


class LeaseStore(Protocol):
    """What the poller needs of a provider's store."""

    @property
    def hints(self) -> HintLog:
        """Where hints are kept."""

    def placed(self, hour: float) -> list[tuple[Lease, tuple[str, ...]]]:
        """Leases of this moment with their nodes."""

    def leases(self, start_hour: float, end_hour: float) -> list[Lease]:
        """Leases that overlap these hours."""


class Landlord(Protocol):
    """What the poller needs of a provider."""

    settings: PlanSettings

    @property
    def store(self) -> LeaseStore:
        """Its leases and hints."""

    def newest_bundle(self) -> bytes | None:
        """The signed bytes of the newest bundle."""

    def context_labels(self, hour: float, context: str, level: int) -> dict[str, str]:
        """The tokens of a context at a level in the epoch of that hour."""


class Live:
    """The poller of one provider. `poll` is one step of it; `run` repeats that until told to stop."""

    def __init__(
        self,
        home: Path,
        provider: Landlord,
        settings: ProviderSettings,
        metrics: Metrics,
        now_s: Callable[[], float],
        sinks: Sequence[Sink] = (),
    ) -> None:
        self.settings = settings
        self._home = home
        self._provider = provider
        self._metrics = metrics
        self._now_s = now_s
        self._sinks = sinks
        self._wake = threading.Event()
        self._stopping = False
        self._must_reload = False
        self._said = ""
        self._read_to = 0  # the hour after the last one that was read

    # ---- one poll ----------------------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Reads the hours that are over since the last poll; whether there were any. PharoahError: try again later."""
        now_s = self._now_s()
        end_hour = int((now_s - SETTLE_S) // HOUR_S)
        self._metrics.telemetry_age_s.set(now_s - HOUR_S * self._read_to if self._read_to else 0)
        if end_hour <= self._read_to:
            return False
        kept = hardware.load(self._home)
        if kept is None:
            raise NotReady("nodes have no contexts yet", hint="run `pharoah-provider nodes contexts`")
        state = self._build_up_state(kept)
        self._read_to = max(_hour_of(state) + 1, end_hour - LONGEST_H)
        if is_new := self._read_to < end_hour:
            window = Window(max(0, self._read_to - 1), end_hour, now_s)
            build_up, states = self._read(kept, state, window)
            states = held_up(states, on_probation.load(self._home).levels(end_hour))
            with reporting():
                self._look(kept, states, end_hour)
            replace_file(self._home / STATE, build_up.state())
            self._tell_shifts(build_up.shifts())
            self._report(node_reports.reports(kept, states, end_hour))
            self._read_to = end_hour
        self._metrics.telemetry_age_s.set(now_s - HOUR_S * self._read_to)
        return is_new

    def _build_up_state(self, kept: Kept) -> bytes:
        """The newer of the states stored by the last poll and by `nodes contexts`."""
        try:
            own = (self._home / STATE).read_bytes()
            return own if _hour_of(own) >= _hour_of(kept.build_up) else kept.build_up
        except FileNotFoundError:
            return kept.build_up
        except DecodeError as error:
            self._say_once(f"{STATE} is ignored: {error.what}", error)
            return kept.build_up

    def _read(self, kept: Kept, state: bytes, window: Window) -> tuple[BuildUp, dict[str, NodeState]]:
        """Levels after the window, whose first hour was read before, so that counters continue from its samples."""
        only = asked_for(self.settings.telemetry)
        build_up, read_hour = BuildUp.resumed(state, kept.peers(), signals_of(only)), _hour_of(state)
        repairs = hardware.load_repairs(self._home)
        hardware.forget(build_up, repairs, read_hour, math.inf)
        inventory = inventory_of(self.settings.telemetry)
        wanted = {name: METRICS[name] for name in only or [signal.metric for signal in signals()]}
        book = SeriesBook(Tally(), wanted, devices=inventory.devices(), nodes=inventory.addresses())
        states: dict[str, NodeState] = {}
        for hour in summarise(source_of(self.settings.telemetry), book, window, inventory.names):
            if hour.hour > read_hour:
                gone = [one.node for one in repairs if one.from_hour > hour.hour]
                rows = hour.rows.filter(~pl.col("node").is_in(gone))
                states = node_states(build_up.add(replace(hour, rows=rows)))
        return build_up, states

    def _look(self, kept: Kept, states: dict[str, NodeState], end_hour: int) -> None:
        """Judges all leases at the end of an hour and stores new hints."""
        before = self._provider.store.hints.state()
        episodes = Episodes.resumed(before) if before is not None else Episodes()
        at_h = float(end_hour)
        running = {lease.lease for lease in self._provider.store.leases(at_h, at_h + 1e-6)}
        episodes.ended(episodes.known - running)  # a lease may have ended long before its end was told
        placed = self._provider.store.placed(at_h)
        view = self._view(kept, states, at_h)
        episodes.granted(self._granted(view, kept, [one for one in placed if one[0].lease not in episodes.known]))
        drafts = episodes.look(at_h, self._hazards(view, placed, running, at_h))
        if (after := episodes.state()) != before:
            tenant_of = {lease.lease: lease.tenant for lease, _ in placed}
            self._provider.store.hints.append([(tenant_of[draft.lease], draft) for draft in drafts], before, after)
        self._note(episodes, [draft.state.value for draft in drafts])

    def _view(self, kept: Kept, states: dict[str, NodeState], at_h: float) -> View:
        offsets = node_offsets.load(self._home).by_node(kept.contexts.of, hardware.load_repairs(self._home), at_h)
        return View(states, kept.contexts.of, self._rates(kept), self.settings.live.within_hours, offsets)

    def _granted(self, view: View, kept: Kept, placed: Sequence[Placed]) -> Iterator[LeaseHazard]:
        """New leases at the level that their labels have; without those whose labels name no context of today."""
        for lease, nodes in placed:
            contexts = {context for node in nodes if (context := kept.contexts.of(node)) is not None}
            for context, level in product(sorted(contexts), range(LEVELS)):
                labels = self._provider.context_labels(lease.start_h, label_of(context), level)
                told = labels["context_level"] in lease.tokens("context_level")
                if told and (hazard := view.granted(lease.lease, nodes, level)) is not None:
                    yield hazard

    def _hazards(self, view: View, placed: Sequence[Placed], running: Set[LeaseId], at_h: float) -> list[LeaseHazard]:
        counts: Counter[str] = Counter()
        counts[UNPLACED] = len(running - {lease.lease for lease, _ in placed})
        found: list[LeaseHazard] = []
        for lease, nodes in placed:
            standing, hazard = view.judge(lease.lease, nodes, at_h - lease.start_h)
            counts[standing] += 1
            found += [] if hazard is None else [hazard]
        for state in (*Standing, UNPLACED):
            self._metrics.live_leases.labels(state).set(counts[state])
        self._metrics.live_nodes_unheard.set(view.unheard(sorted({node for _, nodes in placed for node in nodes})))
        return found

    def _rates(self, kept: Kept) -> Rates:
        signed = self._provider.newest_bundle()
        bundle = _NOTHING if signed is None else reopened(Bundle, signed)
        epoch_hour = float(bundle.epoch * self._provider.settings.weeks_per_epoch * HOURS_PER_WEEK)

        def token(context: int, level: int) -> str:
            return self._provider.context_labels(epoch_hour, label_of(context), level)["context_level"]

        return Rates(bundle, token, [one.number for one in kept.contexts.contexts])

    def _note(self, episodes: Episodes, states: Sequence[str]) -> None:
        self._metrics.episodes_open.set(len(episodes.open))
        for state in states:
            self._metrics.hints.labels(state).inc()
        if states:
            counted = dict(Counter(states))
            logger.info("hints to tenants: %d", len(states), extra={"event": "hints", "hints": counted})

    def _tell_shifts(self, shifts: Sequence[Shift]) -> None:
        """What whole groups have gained, for the page and as metrics."""
        node_reports.keep_shifts(self._home, shifts)
        self._metrics.fleet_shift.clear()
        for one in shifts:
            self._metrics.fleet_shift.labels(one.group, one.metric).set(one.units)

    def _report(self, reports: Sequence[NodeReport]) -> None:
        """Keeps the reports and hands them on; a sink that fails is logged, and gets the next ones."""
        node_reports.keep(self._home, reports)
        for sink in self._sinks:
            try:
                sink.take(reports)
            except OutputFailed as error:
                fields = {"event": "output", "error": type(sink).__name__}
                logger.warning("reports on nodes not handed on: %s", error, extra=fields)

    # ---- for as long as the provider runs ----------------------------------------------------------------------------

    def run(self) -> None:
        """Polls until `stop`. Failures are counted, logged once per text, and retried."""
        while not self._stopping:
            if self._must_reload:
                self._must_reload = False
                self._reload()
            if self.settings.live.poll_s > 0 and self.settings.telemetry.prometheus_url:
                self._metrics.live_polls.labels("ok" if self._polled() else "failed").inc()
            self._wake.wait(self.settings.live.poll_s or None)
            self._wake.clear()

    def _polled(self) -> bool:
        try:
            self.poll()
        except PharoahError as error:
            self._say_once(error.what, error)
            return False
        except Exception:  # after a bug the poller must keep polling
            logger.exception("poll of running leases failed: a bug")
            return False
        self._said = ""
        return True

    def reload(self) -> None:
        """Requests new settings and a poll now. Safe in signal handlers: it only sets flags."""
        self._must_reload = True
        self._wake.set()

    def stop(self) -> None:
        """Ends `run` after the current poll."""
        self._stopping = True
        self._wake.set()

    def _reload(self) -> None:
        """Applies [live] and [telemetry]; logs other changed sections, which need a restart."""
        try:
            new = settings_of(self._home)
        except PharoahError as error:
            self._say_once(f"settings not reloaded: {error.what}", error)
            return
        names = (name for name in type(new).__struct_fields__ if name not in RELOADED)
        changed = [f"[{name}]" for name in names if getattr(new, name) != getattr(self.settings, name)]
        self.settings = msgspec.structs.replace(self.settings, live=new.live, telemetry=new.telemetry)
        restart = f"; restart for {', '.join(changed)}" if changed else ""
        logger.info("settings reloaded%s", restart, extra={"event": "reload", "restart_for": changed})

    def _say_once(self, text: str, error: PharoahError) -> None:
        if text != self._said:
            fields = {"event": "live", "error": type(error).__name__, "hint": error.hint}
            logger.warning("no hints for running leases: %s", text, extra=fields)
            self._said = text


def polling(live: Live) -> AbstractContextManager[None]:
    """Within it the poller runs in its own thread, which ends after the current poll.

    Does not wait for a poll that waits for Prometheus: it has stored nothing yet, or everything.
    """
    return meanwhile(live.run, live.stop, "pharoah-live", STOP_S)


class _Hour(msgspec.Struct):
    hour: int | None


def _hour_of(state: bytes) -> int:
    """The last hour of a state of build-up levels; before all hours for one that has seen none."""
    try:
        hour = msgspec.json.decode(state, type=_Hour).hour
    except msgspec.MsgspecError as error:
        raise DecodeError(f"not a state of build-up levels: {error}") from error
    return -1 if hour is None else hour


def source_of(settings: Telemetry) -> PrometheusSource:
    """The Prometheus of the settings; NotReady without one."""
    if not settings.prometheus_url:
        raise NotReady("no telemetry source", hint="set [telemetry] prometheus_url in provider.toml")
    token = Path(settings.token_file) if settings.token_file else None
    only = asked_for(settings)
    return PrometheusSource(PrometheusSettings(settings.prometheus_url, bearer_token_file=token, only=only))


def asked_for(settings: Telemetry) -> frozenset[str] | None:
    """The metrics of the recipe in the settings; None without one, for all."""
    return load_recipe(Path(settings.recipe)).names if settings.recipe else None


def inventory_of(settings: Telemetry) -> Inventory:
    """The inventory of the settings, empty without one."""
    return load_inventory(Path(settings.inventory)) if settings.inventory else Inventory()


_NOTHING = Bundle(0, 0, 0, (), (), (), None)
