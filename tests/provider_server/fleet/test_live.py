"""Running leases are watched over a real Prometheus: who is told what, once, whoever is restarted, and who is not told.

Prometheus holds some days of a dozen nodes' telemetry, written into its database before it starts: one GPU overheats
for a day and a half and is then repaired, and one node falls silent. The provider's clock walks over these hours.
"""

import json
import math
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from crypto.errors import DecodeError, Unreachable
from crypto.ids import LeaseId, TenantId, Token
from federation.protocol.bundle import Bundle, HazardEntry
from federation.protocol.service_messages import Action, Hint, HintState, Suspicion
from provider_server.fleet.analysis.buildup import FRESH, SILENT, UNKNOWN, BuildUp, signals
from provider_server.fleet.analysis.contexts import Context, ContextMap
from provider_server.fleet.hints.node_hazard import SUSPICIONS, NodeState, Rates, Standing, View, node_states
from provider_server.fleet.learning import hardware
from provider_server.fleet.learning.hardware import Kept, label_of
from provider_server.fleet.leases import Lease
from provider_server.program.cli import app
from provider_server.program.metrics import Metrics
from provider_server.program.operations.own_recorder import OwnRecorder
from provider_server.program.operations.poller import STATE, Live, NotReady, polling
from provider_server.program.service import _on_hangup
from provider_server.rounds.provider import Provider
from provider_server.rounds.settings import Live as LiveTable, ProviderSettings, Telemetry
from provider_server.rounds.store import tables
from tests.provider_server.fleet.test_buildup import summary
from tests.provider_server.fleet.test_telemetry_prometheus import prometheus
from tests.support.federations import Grounds
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.xdist_group("prometheus"), pytest.mark.nightly]  # one of it, for all tests that look at it

NODES = tuple(f"n{number:02}" for number in range(12))
HOT, SILENCED, NEW = "n03", "n07", "n99"
HOURS = 120
HOT_FROM, HOT_TO = 8, 40
SILENT_FROM = 30
EVERY_S = 300
HOUR_S = 3600
USUAL, RAISED = (0.1, 0.05, 0.2), (2.0, 1.5, 3.0)  # failures per 1,000 node-hours at level 0, and above


# ---- telemetry of some days ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Feed:
    """A Prometheus, and the first of its hours."""

    url: str
    first_hour: int


def open_metrics(first_hour: int) -> str:
    """What DCGM's exporter said on all nodes: temperatures alike but for one GPU's, and a quiet counter."""
    lines = []
    for metric in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"):
        lines.append(f"# TYPE {metric} gauge")
        for node in NODES:
            end = SILENT_FROM if node == SILENCED else HOURS
            for at_s in range(first_hour * HOUR_S, (first_hour + end) * HOUR_S, EVERY_S):
                hour = at_s // HOUR_S - first_hour
                hot = 18 if node == HOT and HOT_FROM <= hour < HOT_TO else 0
                value = 60 + hot if "TEMP" in metric else 3
                labels = f'gpu="0",UUID="GPU-{node}",Hostname="{node}"'
                lines.append(f"{metric}{{{labels}}} {value} {at_s}")
    return "\n".join([*lines, "# EOF\n"])


@pytest.fixture(scope="session")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feed]:
    folder = tmp_path_factory.mktemp("prometheus")
    first_hour = int(time.time()) // HOUR_S - HOURS - 4
    (folder / "history").write_text(open_metrics(first_hour))
    with prometheus(folder, []) as _:
        pass  # it is skipped where there is none
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "history", folder / "tsdb"]
    subprocess.run([*map(str, command)], check=True, capture_output=True)
    with prometheus(folder, []) as url:
        yield Feed(url, first_hour)


# ---- a provider with two tenants -----------------------------------------------------------------------------------


@dataclass
class Scene:
    """A provider's home, and a clock that the test sets, in hours after the first one of the feed."""

    root: Path
    grounds: Grounds
    feed: Feed
    leases: dict[str, LeaseId] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)
    hour: float = 0.0

    @property
    def home(self) -> Path:
        return self.root / "provider"

    def tenant(self, number: int) -> TenantId:
        return self.grounds.federation.tenants[number].id

    def live(self, provider: Provider, **settings: str) -> Live:
        table = Telemetry(prometheus_url=settings.get("url", self.feed.url))
        now_s = lambda: (self.feed.first_hour + self.hour) * HOUR_S + 180.0  # noqa: E731
        return Live(self.home, provider, ProviderSettings(telemetry=table), self.metrics, now_s)

    def step(self, hours: Sequence[int]) -> None:
        """Polls after each of these hours, by a poller that is new each time."""
        for hour in hours:
            self.hour = hour + 1.0
            with closing(self.grounds.provider(self.root)) as provider:
                assert self.live(provider).poll()
                assert not self.live(provider).poll()  # nothing new within the hour

    def hints(self, number: int) -> Sequence[Hint]:
        with closing(self.grounds.provider(self.root)) as provider:
            return [hint for hint in provider.store.hints.after(self.tenant(number), 0) if isinstance(hint, Hint)]

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def contexts(nodes: Sequence[str] = NODES) -> ContextMap:
    return ContextMap((), (Context(4, "all alike", tuple(nodes), 0.1, 0.05, 0.2),), 5, ((),), (), ())


def bundle(provider: Provider, first_hour: int) -> Bundle:
    """What the provider has learnt of the one context: levels 1 and 2 are twenty times as dangerous."""
    tokens = [
        Token.fromhex(provider.context_labels(first_hour, label_of(4), level)["context_level"]) for level in range(3)
    ]
    entries = tuple(
        HazardEntry(token, str(band), *(USUAL if level == 0 else RAISED))
        for level, token in enumerate(tokens)
        for band in range(2)
    )
    return Bundle(0, provider.epoch(first_hour), first_hour, (), (), entries, None, (0.0, 24.0, 168.0))


@pytest.fixture
def scene(tmp_path: Path, feed: Feed) -> Scene:
    grounds = Grounds.founded(tmp_path, 2)
    found = Scene(tmp_path, grounds, feed)
    placed = {"hot": (0, (HOT, "n04")), "quiet": (1, ("n05", "n06")), "silent": (1, (SILENCED, "n08"))}
    build_up = BuildUp()
    build_up.add(summary(feed.first_hour - 1, {}, silent=NODES))
    hardware.keep(found.home, Kept(feed.first_hour, contexts(), {}, build_up.state()))
    with closing(grounds.provider(tmp_path)) as provider:
        grounds.publisher(provider.store).issue(bundle(provider, feed.first_hour))
        for number, (name, (tenant, nodes)) in enumerate(placed.items()):
            found.leases[name] = LeaseId(bytes([number]) * 16)
            hours = float(feed.first_hour), float(feed.first_hour + HOURS)
            lease = Lease(found.leases[name], found.tenant(tenant), len(nodes), *hours, {})
            provider.record_leases([lease], {lease.lease: nodes})
    return found


# ---- what is said, and to whom -------------------------------------------------------------------------------------

QUIET, HEATING, HELD, COOLING = range(2, 8, 3), range(30, 40), range(44, 96, 8), range(96, 118)


def test_the_tenant_whose_node_degrades_hears_of_it_once_and_when_it_is_over(scene: Scene) -> None:
    """Pollers are new at every hour, and one is killed between what it keeps in the store and in its home."""
    scene.step(QUIET)
    assert scene.hints(0) == []
    scene.step(HEATING[:-2])
    (raised,) = scene.hints(0)
    assert (raised.state, raised.suspicion, raised.action) == (HintState.RAISED, Suspicion.COMPUTE, Action.CONFIRM)
    assert (raised.lease, raised.times, raised.within_hours) == (scene.leases["hot"], 1, 24.0)
    # Neither rate is known exactly: the logarithm of their ratio has the variances of both.
    wide = math.exp(math.hypot(*(math.log(high / low) / 2 for _, low, high in (USUAL, RAISED))))
    assert (raised.ratio, raised.ratio_low, raised.ratio_high) == pytest.approx((20.0, 20.0 / wide, 20.0 * wide))
    assert raised.probability == pytest.approx(24 * 2.1e-3, rel=0.05)
    assert scene.feed.first_hour + HOT_FROM + 24 < raised.at_h <= scene.feed.first_hour + HEATING[-2]
    assert (scene.value("pharoah_hints_total", state="raised"), scene.value("pharoah_episodes_open")) == (1, 1)

    before = (scene.home / STATE).read_bytes()
    scene.step(HEATING[-2:-1])
    (scene.home / STATE).write_bytes(before)
    scene.step(HEATING[-2:-1])  # the hour that was looked at is read again
    scene.step(HEATING[-1:])
    assert scene.hints(0) == [raised]

    scene.step([*HELD, *COOLING])
    assert [hint.state for hint in scene.hints(0)] == [HintState.RAISED, HintState.CLEARED]
    assert scene.hints(0)[1].action is Action.NOTHING
    assert scene.hints(1) == []  # neither the quiet lease nor the one on the silent node
    assert scene.value("pharoah_episodes_open") == 0


def test_what_is_missing_is_counted_and_raises_nothing(scene: Scene) -> None:
    """A lease on nodes that nobody knows, one whose nodes nobody named, and a node that fell silent."""
    start, end = float(scene.feed.first_hour), float(scene.feed.first_hour + HOURS)
    with closing(scene.grounds.provider(scene.root)) as provider:
        lost, unplaced = LeaseId(b"l" * 16), LeaseId(b"u" * 16)
        provider.record_leases([Lease(lost, scene.tenant(1), 1, start, end, {})], {lost: (NEW,)})
        provider.record_leases([Lease(unplaced, scene.tenant(1), 1, start, end, {})])
    scene.step([SILENT_FROM - 2])
    assert scene.value("pharoah_live_nodes_unheard") == 1  # the unknown one
    scene.step([SILENT_FROM + 1])
    assert scene.value("pharoah_live_nodes_unheard") == 2
    standing = {state: scene.value("pharoah_live_leases", state=state) for state in (*Standing, "unplaced")}
    assert standing == {"watched": 3, "unknown": 1, "silent": 0, "unplaced": 1}
    assert scene.value("pharoah_telemetry_age_seconds") == pytest.approx(180.0)
    assert scene.hints(1) == []


def test_the_verb_that_records_leases_keeps_where_they_are(scene: Scene) -> None:
    named, unnamed = (
        {"lease": text * 32, "tenant": str(scene.tenant(0)), "start_h": 9.0, "end_h": 99.0} for text in "ab"
    )
    lines = [named | {"node_names": [HOT, "n04"]}, unnamed | {"nodes": 2, "context": "hall 3"}]
    file = scene.root / "leases.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(app, ["leases", "record", str(file), "--home", str(scene.home)])
    assert (done.exit_code, done.stdout) == (0, f"{file}: 2 leases\n")
    with closing(scene.grounds.provider(scene.root)) as provider:
        assert [(str(lease.lease), lease.nodes, names) for lease, names in provider.store.placed(10.0)] == [
            ("a" * 32, 2, (HOT, "n04"))
        ]
        assert len(provider.store.leases(10.0, 11.0)) == 2


def test_own_failures_are_recorded_by_the_running_provider_once_and_only_of_hours_that_are_over(scene: Scene) -> None:
    """A node of a lease falls silent: its lease has a failure in that hour, on which the provider looked every day."""

    def recorder(provider: Provider, **settings: str) -> OwnRecorder:
        table = Telemetry(prometheus_url=settings.get("url", scene.feed.url))
        now_s = lambda: (scene.feed.first_hour + scene.hour) * HOUR_S + 180.0  # noqa: E731
        return OwnRecorder(provider, scene.home, table, now_s)

    with closing(scene.grounds.provider(scene.root)) as provider:
        scene.hour = 25.0
        with pytest.raises(Unreachable):
            recorder(provider, url="http://127.0.0.1:9").step()
        assert provider.store.own.looked_until() == 0
        first = recorder(provider).step()
        assert first is not None
        assert (first["end_hour"], first["on_leases"]) == (scene.feed.first_hour + 25, 0)
        assert recorder(provider).step() is None
        scene.hour = 49.0
        second = recorder(provider).step()
        assert second is not None
        assert (second["start_hour"], second["on_leases"]) == (first["end_hour"], 1)
        record = provider.store.own.record()
        assert record is not None
        assert record.events.hours == {scene.leases["silent"]: (scene.feed.first_hour + SILENT_FROM,)}


def test_a_lease_that_is_over_is_no_longer_looked_at(scene: Scene) -> None:
    scene.step([5])
    assert str(scene.leases["hot"]).encode() in state_of(scene)
    tell_end(scene, HOT_FROM + 4)
    scene.step(range(6, HOT_TO, 3))
    assert scene.hints(0) == []
    assert str(scene.leases["hot"]).encode() not in state_of(scene)
    assert scene.value("pharoah_live_leases", state="watched") == 0


def test_a_lease_whose_end_is_told_long_after_it_is_forgotten_at_once(scene: Scene) -> None:
    scene.step([*QUIET, *HEATING])
    assert scene.value("pharoah_episodes_open") == 1
    tell_end(scene, QUIET[0])
    scene.step([HEATING[-1] + 1])
    assert scene.value("pharoah_episodes_open") == 0
    assert [hint.state for hint in scene.hints(0)] == [HintState.RAISED]  # nobody waits for its end
    assert str(scene.leases["hot"]).encode() not in state_of(scene)


def tell_end(scene: Scene, hour: int) -> None:
    """All leases end at this hour of the feed."""
    with closing(scene.grounds.provider(scene.root)) as provider, provider.store._engine.begin() as connection:
        connection.execute(sa.update(tables.leases).values(end_h=scene.feed.first_hour + hour))


def state_of(scene: Scene) -> bytes:
    with closing(scene.grounds.provider(scene.root)) as provider:
        return provider.store.hints.state() or b""


def test_after_an_outage_all_hours_are_read_and_the_newest_is_looked_at(scene: Scene) -> None:
    scene.step([4])
    scene.step([HOT_TO - 2])
    assert scene.hints(0) == []  # one look is not enough
    scene.step([HOT_TO - 1])
    assert [hint.state for hint in scene.hints(0)] == [HintState.RAISED]


def test_without_contexts_or_telemetry_nothing_is_looked_at(scene: Scene) -> None:
    with closing(scene.grounds.provider(scene.root)) as provider:
        scene.hour = 5.0
        with pytest.raises(NotReady, match="no telemetry"):
            scene.live(provider, url="").poll()
        away = scene.live(provider, url="http://127.0.0.1:1")
        with pytest.raises(Unreachable):
            away.poll()
        assert provider.store.hints.state() is None
        (scene.home / hardware.STATE).unlink()
        with pytest.raises(NotReady, match="contexts"):
            scene.live(provider).poll()


def test_a_damaged_state_is_left_for_that_of_the_contexts(scene: Scene) -> None:
    scene.step([2])
    (scene.home / STATE).write_bytes(b"{")
    scene.step([3])
    BuildUp.resumed((scene.home / STATE).read_bytes())
    (scene.home / hardware.STATE).write_bytes(b"{")
    with closing(scene.grounds.provider(scene.root)) as provider, pytest.raises(DecodeError):
        scene.live(provider).poll()


# ---- for as long as the provider runs ------------------------------------------------------------------------------


def test_the_poller_counts_what_fails_goes_on_and_takes_new_settings(scene: Scene) -> None:
    scene.hour = 5.0
    scene.home.joinpath("provider.toml").write_text("[live]\npoll_s = 0.01\n")
    with closing(scene.grounds.provider(scene.root)) as provider:
        live = scene.live(provider)
        (scene.home / hardware.STATE).rename(scene.home / "later")
        live.settings = replace_live(live.settings, LiveTable(poll_s=3600.0))
        with polling(live):
            until(lambda: scene.value("pharoah_live_polls_total", outcome="failed") == 1)
            (scene.home / "later").rename(scene.home / hardware.STATE)
            scene.home.joinpath("provider.toml").write_text(
                f'[live]\npoll_s = 0.01\nwithin_hours = 12.0\n[telemetry]\nprometheus_url = "{scene.feed.url}"\n'
                '[rounds]\nevery = "manual"\n'
            )
            live.reload()
            until(lambda: (scene.value("pharoah_live_polls_total", outcome="ok") or 0) > 2)
            scene.home.joinpath("provider.toml").write_text("[live]\npoll_s = 'often'\n")
            live.reload()
            before = scene.value("pharoah_live_polls_total", outcome="ok") or 0
            until(lambda: (scene.value("pharoah_live_polls_total", outcome="ok") or 0) > before)
        assert (live.settings.live.within_hours, live.settings.rounds.every) == (12.0, "window")
        assert not any(thread.name == "pharoah-live" for thread in threading.enumerate())


def test_sighup_has_the_settings_read_again_and_is_given_back() -> None:
    before, calls = signal.getsignal(signal.SIGHUP), list[int]()
    with _on_hangup(lambda: calls.append(1)):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
    assert (calls, signal.getsignal(signal.SIGHUP)) == ([1, 1], before)
    with ThreadPoolExecutor(1) as pool:  # elsewhere signals cannot be taken, and nothing is done
        assert pool.submit(_entered).result(PATIENCE_S) is before


def _entered() -> object:
    with _on_hangup(lambda: None):
        return signal.getsignal(signal.SIGHUP)


def replace_live(settings: ProviderSettings, live: LiveTable) -> ProviderSettings:
    return ProviderSettings(settings.listen, settings.rounds, settings.plan, settings.telemetry, live)


# ---- hazards of nodes, by hand -------------------------------------------------------------------------------------


def test_every_signal_of_the_table_suspects_something() -> None:
    assert set(SUSPICIONS) == {signal.metric for signal in signals()}
    assert Suspicion.UNCLEAR not in SUSPICIONS.values()


def levels(**scores: float | None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "node": ["n"],
            "level": [2],
            "status": [FRESH],
            "score": [5.0],
            "why": [""],
            **{name: [score] for name, score in scores.items()},
        }
    )


@pytest.mark.parametrize(
    ("scores", "suspicion"),
    [
        ({"ecc_corrected": 5.0, "gpu_temperature": 4.9}, Suspicion.MEMORY),
        ({"ecc_corrected": 9.0, "gpu_temperature": 9.0}, Suspicion.UNCLEAR),
        ({"ib_link_downed": 9.0, "nvlink_replays": 9.0}, Suspicion.INTERCONNECT),
        ({"disk_media_errors": 3.0, "gpu_temperature": 2.9}, Suspicion.STORAGE),
        ({"edac_corrected": 3.0, "cpu_throttles": 3.0, "ecc_corrected": 1.0}, Suspicion.HOST),
        ({"pcie_replays": None, "gpu_temperature": 0.5}, Suspicion.COMPUTE),
        ({"ecc_corrected": 0.0, "gpu_temperature": -1.0}, Suspicion.UNCLEAR),
        ({}, Suspicion.UNCLEAR),
    ],
)
def test_the_highest_signal_is_suspected(scores: dict[str, float | None], suspicion: Suspicion) -> None:
    assert node_states(levels(**scores)) == {"n": NodeState(2, suspicion, is_heard=True)}


@pytest.mark.parametrize(("status", "heard"), [(FRESH, True), ("stale", True), (SILENT, False), (UNKNOWN, False)])
def test_who_says_nothing_is_not_heard(status: str, *, heard: bool) -> None:
    frame = levels().with_columns(status=pl.lit(status))
    assert node_states(frame)["n"].is_heard is heard


def token(context: int, level: int) -> str:
    return str(Token(bytes([context, level]) * 8))


def rates(*known: tuple[int, str, float]) -> Rates:
    entries = tuple(HazardEntry(Token.fromhex(token(1, level)), band, r, r / 2, 2 * r) for level, band, r in known)
    return Rates(Bundle(1, 0, 168, (), (), entries, None, (0.0, 24.0, 168.0)), token, [1])


def state(level: int, *, heard: bool = True) -> NodeState:
    return NodeState(level, Suspicion.MEMORY, is_heard=heard)


@pytest.mark.parametrize(
    ("age_h", "usual"), [(0.0, 1.0), (23.9, 1.0), (24.0, 4.0), (167.0, 4.0), (168.0, 4.0), (9999.0, 4.0)]
)
def test_the_rate_is_that_of_the_leases_age_and_of_the_oldest_beyond(age_h: float, usual: float) -> None:
    known = rates((0, "0", 1.0), (0, "1", 4.0), (1, "0", 2.0), (1, "1", 8.0))
    hazard = known.of(1, state(1), age_h)
    assert hazard is not None
    assert (hazard.usual, hazard.rate) == pytest.approx((usual / 1000, 2 * usual / 1000))


def test_a_level_without_a_rate_has_that_of_the_nearest_below_and_without_a_usual_rate_none() -> None:
    known = rates((0, "0", 1.0), (1, "0", 3.0))
    found = [known.of(1, state(level), 1.0) for level in (1, 3)]
    assert [(round(one.rate, 9), one.level) for one in found if one] == [(0.003, 1), (0.003, 3)]
    assert known.of(2, state(1), 1.0) is None
    assert rates((1, "0", 3.0)).of(1, state(1), 1.0) is None
    assert rates((0, "0", 0.0), (1, "0", 3.0)).of(1, state(1), 1.0) is None


def judged(states: dict[str, NodeState], nodes: Sequence[str]) -> tuple[Standing, float]:
    view = View(states, {"a": 1, "b": 1, "elsewhere": 2}.get, rates((0, "0", 1.0), (1, "0", 3.0)), 24.0)
    standing, hazard = view.judge(LeaseId(bytes(16)), nodes, 1.0)
    return standing, round(hazard.ratio, 9) if hazard else 0.0


def test_a_node_that_fell_silent_in_danger_keeps_its_lease_from_being_judged() -> None:
    assert judged({"a": state(1), "b": state(0)}, "ab") == (Standing.WATCHED, 3.0)
    assert judged({"a": state(1), "b": state(0, heard=False)}, "ab") == (Standing.WATCHED, 3.0)
    assert judged({"a": state(1, heard=False), "b": state(0)}, "ab") == (Standing.SILENT, 0.0)
    assert judged({"a": state(1)}, "ab") == (Standing.WATCHED, 3.0)
    assert judged({"elsewhere": state(1)}, ["elsewhere"]) == (Standing.UNKNOWN, 0.0)
    assert judged({}, "ab") == (Standing.UNKNOWN, 0.0)


def test_metrics_of_the_poller_name_nobody() -> None:
    registry: CollectorRegistry = Metrics().registry
    labels = {label for family in registry.collect() for sample in family.samples for label in sample.labels}
    assert not labels & {"lease", "tenant", "node"}
