"""What the platform engineer sees and does: log lines, metrics, rounds by hand, and rounds of a running provider."""

import base64
import json
import logging
import os
import socket
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import sqlalchemy as sa
from flwr.serverapp import ServerApp
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from crypto.errors import AlreadyAnswered, CohortTooSmall, PharoahError, PlanRefused, Refusal, Unreachable
from crypto.roots import root_of
from crypto.signing import SigningKey
from federation.base.catalogue_file import write_catalogue
from federation.base.key_files import read_key
from federation.base.logs import Format, JsonLines, configure
from federation.base.web.guard import Asgi
from federation.protocol.bundle import CatalogueEntry
from federation.protocol.queries import Query
from provider_server.program.cli import app
from provider_server.program.metrics import Metrics
from provider_server.program.operations import round_runner
from provider_server.program.operations.admin import operator_app, watching_app
from provider_server.program.operations.round_runner import Rounds, TooFewTenants, Watched
from provider_server.program.service import watched as watched_at
from provider_server.rounds import home as homes
from provider_server.rounds.looking import refusals
from provider_server.rounds.network.connections import DEFAULT_LIMITS
from provider_server.rounds.network.listeners import Listener, private_socket
from provider_server.rounds.network.superlink import RegisteredNode, RunFailed, SuperLink, UnusableNodeKey
from provider_server.rounds.planning import MaskKeysServed, NothingToCount
from provider_server.rounds.provider import WeekHeld
from provider_server.rounds.readiness import Known
from provider_server.rounds.schedule import BadWindow, Window
from provider_server.rounds.settings import Listen, PlanTable, ProviderSettings, Rounds as RoundsTable
from provider_server.rounds.store.claims import RoundsHeld
from provider_server.rounds.store.round_store import LostStep
from provider_server.rounds.week import MaskHolder, Stage
from simulation.run.federation import Federation
from simulation.run.local_grid import LocalGrid
from tenant_client.doctor.records.database import selection_key
from tenant_client.doctor.workload.descriptor import own_sketch, rungs
from tenant_client.rounds.network.flower_app import client_app
from tests.support import schemas
from tests.support.changing import replace
from tests.support.factories import a_descriptor
from tests.support.federations import WEEKS, Answerer, Grounds, begin, fail, lease_id
from tests.support.seats import mask_key_of
from tests.support.trustees import Reached
from tests.support.waiting import PATIENCE_S
from trustee.trustee import Trustee

HOST = "127.0.0.1"
TENANTS = 4
SETTLED = 200.0  # hours: the first week is over, and one day more
CANARY = "canary-9d1f, a path of the tenant's"
QUICK = RoundsTable(join_s=0.01, deadline_s=0.05, poll_s=0.01)


# ---- a federation whose SuperLink is in this process -----------------------------------------------------------------


@dataclass
class LocalLink:
    """Runs an app over nodes in this process, as `SuperLink.run` does over a network."""

    federation: Federation
    silent: set[int] = field(default_factory=set)
    answers: dict[int, Answerer] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    runs: int = 0
    is_broken: bool = False
    named: bool = False
    error: PharoahError | None = None  # of a run, before it asks anybody

    def register(self, key: str) -> int:
        if not key.startswith("ecdsa-sha2-nistp384 "):
            raise UnusableNodeKey("not a public key in OpenSSH format")
        self.keys.append(key)
        return len(self.keys)

    def nodes(self) -> tuple[RegisteredNode, ...]:
        if self.is_broken:
            raise RunFailed("Flower does not answer")
        return tuple(
            RegisteredNode(n, f"key {n}" if self.named else "", n not in self.silent)
            for n in range(len(self.federation.tenants))
        )

    def run(self, app: ServerApp) -> None:
        self.runs += 1
        if self.error:
            raise self.error
        own: dict[int, Answerer] = {number: one.answer for number, one in enumerate(self.federation.tenants)}
        apps = {number: client_app(answer) for number, answer in (own | self.answers).items()}
        LocalGrid(apps, silent=self.silent).start(app)


@dataclass
class Failing(Reached):
    """A trustee that answers no request to unmask while `error` is set, and well otherwise."""

    error: Exception | None = None

    def unmask(self, call: bytes) -> bytes:
        if self.error:
            raise self.error
        return self.inner.unmask(call)


@dataclass
class Running:
    """Rounds of a provider at an hour that the test sets."""

    federation: Federation
    link: LocalLink
    metrics: Metrics
    last: Failing
    now_hour: float = SETTLED

    def rounds(self, every: Any = "week", founded_hour: float = 0.0, look: Any = None) -> Rounds:
        trustees: list[MaskHolder] = [*self.federation.trustees[:-1], self.last]
        return Rounds(
            self.federation.provider,
            self.federation.publisher,
            cast("SuperLink", self.link),
            [Watched(trustee, self.metrics) for trustee in trustees],
            settings_of(every),
            self.metrics,
            lambda: self.now_hour,
            founded_hour,
            look,
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def settings_of(every: Any) -> ProviderSettings:
    table = RoundsTable(every=every, join_s=QUICK.join_s, deadline_s=QUICK.deadline_s, poll_s=QUICK.poll_s)
    return ProviderSettings(rounds=table)


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Running]:
    """Nobody runs anything yet."""
    with Grounds.founded(tmp_path, TENANTS).opened(tmp_path) as federation:
        yield Running(federation, LocalLink(federation), Metrics(), Failing(federation.trustees[-1]))


@pytest.fixture
def running(idle: Running) -> Running:
    for number in range(TENANTS):
        begin(idle.federation, number)
        fail(idle.federation, number)
    return idle


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


def events(records: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    found = [vars(record) for record in records.records]
    return [one for one in found if one.get("event") == event]


# ---- log lines -------------------------------------------------------------------------------------------------------


def line(message: str, *arguments: object, **extra: Any) -> str:
    record = logging.LogRecord("a.logger", logging.WARNING, __file__, 1, message, arguments, None)
    vars(record).update(extra)
    return JsonLines().format(record)


@pytest.mark.parametrize(
    "text", ["two\nlines", "carriage\rreturn", "Zürich — 東京 🗼", "\u2028", 'quote " and \\', "\x00\x1b[2J"]
)
def test_an_event_is_one_line_of_ascii_whatever_is_in_it(text: str) -> None:
    told = line("said %s", text, event="x", what=text, at=Path("a\nb"))
    assert told.isascii()
    assert len(told.splitlines()) == 1
    assert all(character.isprintable() for character in told)
    read = json.loads(told)
    assert (read["message"], read["what"], read["event"]) == (f"said {text}", text, "x")


def test_a_line_has_time_level_logger_and_message_and_what_was_added() -> None:
    read = json.loads(line("m", event="e", count=3))
    assert list(read) == ["time", "level", "logger", "message", "event", "count"]
    assert (read["level"], read["logger"], read["count"]) == ("warning", "a.logger", 3)
    assert read["time"].endswith("+00:00")


def test_an_exception_is_in_its_line() -> None:
    try:
        raise KeyError("lost\nkey")
    except KeyError:
        record = logging.LogRecord("a", logging.ERROR, __file__, 1, "m", (), sys.exc_info())
    (told,) = JsonLines().format(record).splitlines()
    assert "Traceback" in json.loads(told)["exception"]
    assert "exception" not in json.loads(line("m"))


def test_every_library_logs_through_one_handler(capsys: pytest.CaptureFixture[str]) -> None:
    root, flower = logging.getLogger(), logging.getLogger("flwr")
    before = root.handlers[:], root.level, flower.handlers[:], flower.level
    flower.addHandler(logging.StreamHandler(sys.stderr))
    try:
        configure(Format.JSON)
        flower.error("a node\nis unknown")
        logging.getLogger("httpx").info("not of interest")
        (told,) = capsys.readouterr().err.splitlines()
        assert json.loads(told)["message"] == "a node\nis unknown"
        configure(Format.TEXT)
        flower.error("for a person")
        assert capsys.readouterr().err.endswith("ERROR for a person\n")
    finally:
        root.handlers[:], flower.handlers[:] = before[0], before[2]
        root.setLevel(before[1])
        flower.setLevel(before[3])


# ---- nothing secret is logged ----------------------------------------------------------------------------------------


def secrets(federation: Federation, root: Path) -> dict[str, bytes]:
    """Everything that only its owner may have."""
    provider = federation.provider
    found = {"provider": provider._signing_key._private.private_bytes_raw(), "contexts": provider._context_secret}
    for trustee in federation.trustees:
        found[f"share {trustee.index}"] = trustee._share.secret.encoded
        found[f"word {trustee.index}"] = trustee._signing_key._private.private_bytes_raw()
        found[f"mask {trustee.index}"] = mask_key_of(trustee)._private.private_bytes_raw()
    for number, tenant in enumerate(federation.tenants):
        found |= {f"{number} {key.name}": key.read_bytes() for key in (root / f"tenants/{number:03d}").glob("*.key")}
        found[f"{number} selection"] = selection_key(tenant._connection, os.urandom)
    return found


def forms(secret: bytes) -> set[str]:
    return {secret.hex(), repr(secret)[2:-1], base64.b64encode(secret).decode().rstrip("="), secret.decode("latin-1")}


def test_no_secret_is_in_the_log_of_a_week(running: Running, tmp_path: Path, records: pytest.LogCaptureFixture) -> None:
    def refuse(verb: Query, payload: bytes) -> bytes:
        raise PlanRefused(f"{CANARY}: {verb}")

    def crash(verb: Query, payload: bytes) -> bytes:
        raise ValueError(CANARY)

    running.link.answers = {0: refuse}
    told = running.rounds().hold(None)
    running.link.answers = {1: crash}
    running.now_hour += 168
    running.rounds().hold(None)
    assert schemas.held("pharoah-provider rounds hold", json.dumps([told]))[0]["contributors"] == TENANTS - 1
    lines = [JsonLines().format(record) for record in records.records]
    found = secrets(running.federation, tmp_path)
    assert len(found) == 2 + 3 * 5 + 3 * TENANTS
    leaks = [name for name, secret in found.items() for form in forms(secret) if any(form in one for one in lines)]
    assert leaks == []
    of_provider = [one for one in lines if '"logger": "provider_server' in one]
    assert any("PlanRefused" in one for one in of_provider)  # the class of a refusal is told, and its text is not
    assert not any(CANARY in one for one in of_provider)
    assert any(CANARY in one for one in lines)  # the tenant's own log has it


def test_a_secret_in_a_log_would_be_found(running: Running, tmp_path: Path) -> None:
    found = secrets(running.federation, tmp_path)
    for shown in (found["provider"].hex(), repr(found["provider"]), base64.b64encode(found["provider"]).decode()):
        assert any(form in line("key %s", shown) for form in forms(found["provider"])) or "\\" in shown
    assert found["provider"] == running.federation.provider._signing_key._private.private_bytes_raw()
    assert found["provider"].hex() not in repr(SigningKey(found["provider"]))


# ---- rounds ----------------------------------------------------------------------------------------------------------


def test_a_released_round_shows_in_metrics_and_in_one_line(running: Running, records: pytest.LogCaptureFixture) -> None:
    assert running.rounds().step()
    assert running.value("pharoah_rounds_total", outcome="released") == 1
    assert running.value("pharoah_contributions") == TENANTS
    assert running.value("pharoah_contributions_left_out") == 0
    assert running.value("pharoah_release_end_hour") == 168
    assert running.value("pharoah_release_due_hour") == 168 + 24
    running.rounds().step()
    assert running.value("pharoah_release_due_hour") == 336 + 24
    assert running.value("pharoah_round_waiting") == 0
    assert running.value("pharoah_suspects") == 0
    assert running.value("pharoah_epsilon") == pytest.approx(1.0, abs=0.01)
    assert running.value("pharoah_nodes", state="online") == TENANTS
    assert running.value("pharoah_trustee_up", trustee="5") == 1
    assert running.value("pharoah_stage_seconds_count", stage="contribute") == 1
    (event,) = events(records, "release")
    assert (event["start_hour"], event["end_hour"], event["contributors"]) == (*WEEKS[0], TENANTS)
    assert not running.rounds().step()  # the next week has not ended


def test_a_catalogue_reaches_every_tenant_before_the_next_round_registers_workloads(
    idle: Running, tmp_path: Path
) -> None:
    heard: list[Query] = []
    first = idle.federation.tenants[0]

    def answer(verb: Query, payload: bytes) -> bytes:
        heard.append(verb)
        return first.answer(verb, payload)

    idle.link.answers[0] = answer
    (tmp_path / "provider" / "provider.toml").touch()
    known = CatalogueEntry("benchmark-llama", own_sketch(a_descriptor()).to_bytes())
    write_catalogue(tmp_path / "known.catalogue", (known,))
    done = CliRunner().invoke(
        app, ["findings", "catalogue", str(tmp_path / "known.catalogue"), "--home", str(tmp_path / "provider")]
    )
    assert done.stdout == "bundle 0 published, with a catalogue of 1 benchmark job\n"
    rounds = idle.rounds()
    for _ in range(2):
        with pytest.raises(NothingToCount):  # and so no bundle is published after it
            rounds.hold(None)
    assert [tenant.catalogue() for tenant in idle.federation.tenants] == [(known,)] * TENANTS
    assert heard == [Query.BUNDLE, Query.DIRECTORY, Query.REGISTRATIONS, Query.DIRECTORY, Query.REGISTRATIONS]
    assert b"benchmark-llama" in rungs(a_descriptor(), first.catalogue()).archetype


def test_a_round_with_too_few_contributions_waits_and_is_finished_by_the_next_step(
    running: Running, records: pytest.LogCaptureFixture
) -> None:
    rounds = running.rounds()
    running.link.silent = {0, 1}
    assert not rounds.step()
    assert running.value("pharoah_round_waiting") == 1
    assert running.value("pharoah_rounds_total", outcome="waiting") == 1
    assert (running.value("pharoah_silences_total", why="late") or 0) >= 2
    assert running.value("pharoah_nodes", state="offline") == 2
    (event,) = events(records, "round")
    assert (event["outcome"], event["stage"], event["error"]) == ("waiting", "contribute", "CohortTooSmall")
    waiting = running.federation.provider.unfinished()
    running.link.silent = set()
    assert running.rounds("manual").step()  # a round that was begun is finished, whoever began it
    assert running.value("pharoah_round_waiting") == 0
    assert [made.plan.round_id for made in running.federation.provider.store.releases()] == [
        waiting and waiting.plan.round_id
    ]


def test_a_trustee_that_is_away_delays_a_round_and_shows_in_its_metric(running: Running) -> None:
    rounds = running.rounds()
    running.last.error = Unreachable("trustee 5 does not answer")
    assert not rounds.step()
    assert running.value("pharoah_trustee_up", trustee="5") == 0
    assert running.value("pharoah_trustee_up", trustee="4") == 1
    assert running.value("pharoah_round_waiting") == 1
    assert not rounds.step()
    assert running.value("pharoah_release_due_hour") == 168 + 24  # the open round's, until it is released
    running.last.error = None
    assert rounds.step()
    assert running.value("pharoah_trustee_up", trustee="5") == 1
    assert running.value("pharoah_rounds_total", outcome="released") == 1
    rounds.step()
    assert running.value("pharoah_release_due_hour") == 336 + 24


@pytest.mark.parametrize("error", [RunFailed("Flower does not answer"), MaskKeysServed("keys of another epoch")])
def test_a_round_that_nothing_opened_waits_and_is_not_refused(running: Running, error: PharoahError) -> None:
    running.link.error = error
    rounds = running.rounds()
    assert not rounds.step()
    assert running.value("pharoah_round_waiting") == 1
    assert running.value("pharoah_rounds_total", outcome="refused") is None
    running.link.error = None
    assert rounds.step()
    assert running.value("pharoah_round_waiting") == 0
    assert running.value("pharoah_rounds_total", outcome="released") == 1


def test_what_fails_by_hand_before_a_round_is_open_does_not_wait_where_nobody_tries_it_again(running: Running) -> None:
    running.link.error = RunFailed("Flower does not answer")
    with pytest.raises(RunFailed):
        running.rounds("manual").hold(None)
    assert running.value("pharoah_round_waiting") == 0
    assert running.value("pharoah_rounds_total", outcome="refused") == 1


def test_a_refusal_ends_the_round(running: Running, records: pytest.LogCaptureFixture) -> None:
    running.last.error = AlreadyAnswered("another set")
    assert not running.rounds().step()
    assert running.value("pharoah_rounds_total", outcome="refused") == 1
    assert running.value("pharoah_round_waiting") == 0
    (event,) = events(records, "round")
    assert (event["outcome"], event["error"], event["stage"]) == ("refused", "AlreadyAnswered", "unmask")
    assert event["hint"]
    assert running.federation.provider.unfinished() is None
    assert not running.rounds().step()  # its units were answered for, so the window is not held again


def test_a_round_is_given_up_by_the_operator(running: Running, records: pytest.LogCaptureFixture) -> None:
    rounds = running.rounds()
    running.link.silent = {0, 1}
    rounds.step()
    waiting = running.federation.provider.unfinished()
    assert waiting is not None
    assert rounds.give_up() == str(waiting.plan.round_id)
    assert running.value("pharoah_round_waiting") == 0
    assert running.value("pharoah_rounds_total", outcome="refused") == 1
    assert [event["outcome"] for event in events(records, "round")] == ["waiting", "given up"]
    assert rounds.give_up() == ""
    assert running.value("pharoah_rounds_total", outcome="refused") == 1
    assert running.federation.provider.unfinished() is None


def test_a_refused_round_whose_end_waits_for_trustees_is_ended_by_the_next_step_and_counted_once(
    running: Running, records: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([PlanRefused("no"), *[Unreachable("away")] * len(running.federation.trustees)])

    def refuse(*_: object) -> bytes:
        raise next(answers)

    rounds = running.rounds()
    with monkeypatch.context() as patched:
        patched.setattr(Trustee, "endorse", refuse)
        assert not rounds.step()
    assert next(answers, None) is None
    told = [(event["outcome"], event["stage"], event["error"]) for event in events(records, "round")]
    assert told == [("refused", "endorse", "PlanRefused"), ("waiting", "give up", "Unreachable")]
    assert [running.value("pharoah_rounds_total", outcome=of) for of in ("refused", "waiting")] == [None, 1]
    assert running.value("pharoah_round_waiting") == 1
    assert not rounds.step()
    assert [running.value("pharoah_rounds_total", outcome=of) for of in ("refused", "waiting")] == [1, 1]
    assert running.value("pharoah_round_waiting") == 0
    assert running.federation.provider.unfinished() is None


def test_by_hand_means_that_nothing_happens_by_itself(running: Running) -> None:
    rounds = running.rounds("manual")
    running.now_hour = 5000.0
    assert not rounds.step()
    assert running.link.runs == 0
    assert rounds.hold((0, 168))["contributors"] == TENANTS


def test_a_week_is_held_once(running: Running) -> None:
    rounds = running.rounds("manual")
    assert rounds.hold(None)["end_hour"] == 168
    for window in (None, (0, 168)):
        with pytest.raises(WeekHeld, match="1970-01-01 to 1970-01-08"):
            rounds.hold(window)
    assert len(running.federation.provider.store.releases()) == 1


@pytest.mark.parametrize("window", [(1, 169), (0, 0), (168, 336), (-168, 0)])
def test_a_window_that_cannot_be_is_refused_before_anybody_is_asked(window: Window, running: Running) -> None:
    with pytest.raises(BadWindow):
        running.rounds().hold(window)
    assert running.link.runs == 0
    assert running.federation.provider.unfinished() is None


def test_weeks_in_which_there_is_nothing_to_count_are_skipped_once(
    idle: Running, records: pytest.LogCaptureFixture
) -> None:
    rounds = idle.rounds()
    idle.now_hour = 3 * 168 + 30.0
    assert [rounds.step() for _ in range(5)] == [True, True, True, False, False]
    assert idle.link.runs == 3
    assert {event["error"] for event in events(records, "round")} == {"NothingToCount"}
    with pytest.raises(NothingToCount):
        rounds.hold(None)  # by hand it may be tried again


def test_the_first_window_is_that_of_the_founding_and_not_of_a_restart(running: Running) -> None:
    assert not running.rounds(founded_hour=170.0).step()
    assert running.rounds(founded_hour=10.0).step()
    assert [made.plan.window for made in running.federation.provider.store.releases()] == [WEEKS[0]]


def test_missed_weeks_are_held_oldest_first(running: Running) -> None:
    running.now_hour = 3 * 168 + 30.0
    rounds = running.rounds()
    assert [rounds.step() for _ in range(4)] == [True, True, True, False]
    held = [(made.plan.start_hour, made.plan.end_hour) for made in running.federation.provider.store.releases()]
    assert held == list(WEEKS)


def test_a_clock_that_was_ahead_for_one_look_blocks_no_week(running: Running) -> None:
    rounds = running.rounds()
    assert rounds.step()

    def with_a_right_clock(number: int) -> Answerer:
        def answer(query: Query, payload: bytes) -> bytes:
            if query is Query.CONTRIBUTION:
                raise PlanRefused("its window has not ended")
            return running.federation.tenants[number].answer(query, payload)

        return answer

    running.now_hour = 5 * 168.0
    running.link.answers = {number: with_a_right_clock(number) for number in range(TENANTS)}
    assert not rounds.step()
    ahead = running.federation.provider.unfinished()
    assert ahead is not None
    running.now_hour, running.link.answers = SETTLED, {}
    assert not rounds.step()
    assert running.federation.provider.unfinished() is None
    running.now_hour = SETTLED + 168.0
    assert rounds.step()
    held = [made.plan for made in running.federation.provider.store.releases()]
    assert [(plan.start_hour, plan.end_hour) for plan in held] == list(WEEKS[:2])
    assert held[-1].round_id != ahead.plan.round_id


def test_a_round_that_somebody_answered_is_not_withdrawn(running: Running) -> None:
    rounds = running.rounds()
    running.link.silent = {0, 1}
    assert not rounds.step()
    running.now_hour = 100.0
    assert not rounds.step()
    waiting = running.federation.provider.unfinished()
    assert waiting is not None
    assert len(waiting.contributors) == 2


def test_what_a_clock_that_was_ahead_has_skipped_comes_again(idle: Running) -> None:
    rounds = idle.rounds()
    idle.now_hour = 3 * 168 + 30.0
    while rounds.step():
        pass
    for number in range(TENANTS):
        begin(idle.federation, number)
        fail(idle.federation, number)
    idle.now_hour = 100.0
    assert not rounds.step()
    idle.now_hour = SETTLED
    assert rounds.step()
    assert [made.plan.start_hour for made in idle.federation.provider.store.releases()] == [0]


# ---- two providers on one store --------------------------------------------------------------------------------------

HOLDING = """
import sys, time
from pathlib import Path
from provider_server.rounds.store.store import Store
with Store(Path(sys.argv[1]), create=False).claim.held():
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def another_process(store: Path) -> Iterator[subprocess.Popen[str]]:
    """One that holds a round on the store."""
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(store)], stdout=subprocess.PIPE, text=True) as holding:
        try:
            assert holding.stdout is not None
            assert holding.stdout.readline() == "held\n"
            yield holding
        finally:
            holding.kill()


def test_while_one_process_holds_a_round_another_is_told_which_one_does(
    running: Running, tmp_path: Path, records: pytest.LogCaptureFixture
) -> None:
    rounds = running.rounds()
    with another_process(tmp_path / "provider/provider.db") as holding:
        named = rf"another process holds a round on this store: process {holding.pid} on \S+, since 2"
        with pytest.raises(RoundsHeld, match=named):
            rounds.hold(None)
        with pytest.raises(RoundsHeld):
            rounds.give_up()
        assert not rounds.step()
        (event,) = events(records, "step")
        assert (event["error"], running.link.runs) == ("RoundsHeld", 0)
        assert "stop one of the two" in event["hint"]
        assert running.value("pharoah_rounds_total", outcome="refused") is None
    assert rounds.step()  # the other one was killed, and could not give its claim back


def test_two_that_plan_at_once_open_one_round(tmp_path: Path) -> None:
    grounds = Grounds.founded(tmp_path, TENANTS)
    with grounds.opened(tmp_path) as federation, closing(grounds.provider(tmp_path)) as second:
        for number in range(TENANTS):
            begin(federation, number)
        first = federation.provider
        for tenant in federation.tenants:
            first.register(tenant.answer(Query.REGISTRATIONS, first.registration_request(WEEKS[0])))
        plans = [one.plan(WEEKS[0]) for one in (first, second)]
        opened = first.open_round(plans[0])
        with pytest.raises(LostStep, match=f"another process has opened round {opened.plan.round_id}"):
            second.open_round(plans[1])
        assert len(first.store.rounds.rounds()) == 1


def test_a_release_that_was_not_published_is_published(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """What a process that is killed does not survive."""

    def die(_releases: object) -> None:
        raise Killed

    provider, publisher = running.federation.provider, running.federation.publisher
    with monkeypatch.context() as patch:
        patch.setattr(publisher, "learn", die)
        with pytest.raises(Killed):
            running.rounds().step()
    assert publisher.unpublished()
    assert provider.newest_bundle() is None
    assert not running.rounds("manual").step()
    assert running.link.runs == 2
    assert provider.newest_bundle() is not None
    assert not running.rounds("manual").step()
    assert running.link.runs == 2


def test_one_unusable_node_key_stops_nobody(running: Running, records: pytest.LogCaptureFixture) -> None:
    provider = running.federation.provider
    good = "ecdsa-sha2-nistp384 AAAA"
    provider.store.add_node_key(running.federation.tenants[0].id, "ssh-rsa AAAA")
    provider.store.add_node_key(running.federation.tenants[1].id, good)
    assert running.rounds().step()
    assert running.link.keys == [good]
    assert [event["error"] for event in events(records, "node")] == ["UnusableNodeKey"]


def test_a_superlink_that_fails_stops_no_loop(running: Running, records: pytest.LogCaptureFixture) -> None:
    running.link.is_broken = True
    assert not running.rounds().step()
    assert [event["error"] for event in events(records, "step")] == ["RunFailed"]
    running.link.is_broken = False
    assert running.rounds().step()


# ---- at the operator's machine ---------------------------------------------------------------------------------------


@contextmanager
def served(app: Asgi) -> Iterator[httpx.Client]:
    """The app at a port of the loopback."""
    with (
        closing(Listener(app, socket.create_server((HOST, 0)), None, DEFAULT_LIMITS)) as listener,
        httpx.Client(base_url=f"http://{listener.address}", trust_env=False, timeout=PATIENCE_S) as client,
    ):
        yield client


@pytest.fixture
def asked(running: Running, tmp_path: Path) -> Iterator[httpx.Client]:
    """The operator of a running provider."""
    rounds = running.rounds("manual")
    with (
        closing(
            Listener(operator_app(lambda: rounds), private_socket(tmp_path / "sock"), None, DEFAULT_LIMITS)
        ) as listener,
        httpx.Client(base_url="http://provider", transport=httpx.HTTPTransport(uds=listener.address)) as client,
    ):
        yield client


@pytest.fixture
def watched(running: Running) -> Iterator[httpx.Client]:
    """Whoever is on the machine."""
    with served(watching_app(running.metrics, running.rounds("manual").not_ready)) as client:
        yield client


def test_health_and_readiness(watched: httpx.Client) -> None:
    assert (watched.get("/pharoah/healthz").status_code, watched.get("/pharoah/healthz").text) == (200, "ok\n")
    assert (watched.get("/pharoah/readyz").status_code, watched.get("/pharoah/readyz").text) == (200, "ready\n")

    def starting() -> Rounds:
        raise Refusal("the provider is starting", hint="try again in a few seconds")

    with served(watching_app(Metrics(), lambda: "starting")) as early:
        assert (early.get("/pharoah/readyz").status_code, early.get("/pharoah/readyz").text) == (503, "starting\n")
        assert early.get("/pharoah/healthz").status_code == 200
    with served(operator_app(starting)) as early:
        answer = early.post("/pharoah/round")
        assert (answer.status_code, answer.json()["what"]) == (409, "the provider is starting")


def test_other_machines_read_metrics_over_tls_alone_and_only_where_the_settings_say_so(tmp_path: Path) -> None:
    homes.create(tmp_path, [HOST], os.urandom, datetime.now(UTC))
    for host, scheme, status in (("0.0.0.0", "https", 200), (HOST, "http", 421)):  # noqa: S104
        listen, named = Listen(metrics_host=host, metrics_port=0), {"host": "10.0.0.7:8445"}
        with closing(watched_at(tmp_path, listen, Metrics(), lambda: "")) as listener:
            at = f"{HOST}:{listener.address.rpartition(':')[2]}/pharoah/readyz"
            trusted = ssl.create_default_context(
                cadata=root_of(SigningKey(read_key(tmp_path / "signing.key")).public).decode()
            )
            assert httpx.get(f"{scheme}://{at}", headers=named, verify=trusted).status_code == status
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{'http' if scheme == 'https' else 'https'}://{at}", verify=trusted)


def test_without_tenants_it_is_not_ready(idle: Running) -> None:
    provider = idle.federation.provider
    provider.members.enrol([], [tenant.id for tenant in idle.federation.tenants])
    assert idle.rounds().not_ready() == "no tenant is enrolled"


def test_what_the_next_round_lacks_is_told_beside_readiness_and_before_anybody_is_asked(running: Running) -> None:
    rounds = running.rounds("manual", look=lacking_tenants(running))
    with pytest.raises(TooFewTenants, match="tenants enrolled for cohort_minimum: 4 of 10") as refusal:
        rounds.hold(None)
    assert "owners_minimum: 4 of 5" in refusal.value.hint
    assert running.link.runs == 0
    assert not rounds.step()
    assert running.value("pharoah_round_lacking") == 3  # and leases
    with served(watching_app(running.metrics, rounds.not_ready, lambda: rounds.lacked)) as client:
        answer = client.get("/pharoah/readyz")
    assert answer.status_code == 200
    first, second, *_ = answer.text.splitlines()
    assert (first, second[:45]) == ("ready", "lacking tenants enrolled for cohort_minimum: ")


def lacking_tenants(running: Running) -> Callable[[Iterable[RegisteredNode], Window | None], Known]:
    directory = running.federation.provider.directory
    plan = PlanTable().settings
    return lambda _nodes, window: Known(plan, directory, {}, window or (0, 168), running.now_hour, running.now_hour)


def test_a_plan_that_all_refuse_is_told_with_the_rule_and_the_tenants_names(
    running: Running, records: pytest.LogCaptureFixture
) -> None:
    provider, tenants = running.federation.provider, running.federation.tenants
    for number, tenant in enumerate(tenants):
        provider.store.add_node_key(tenant.id, f"key {number}")
        provider.members.name(tenant.id, f"lab-{number}")
        tenant.policy = replace(tenant.policy, owners_minimum=5)
    running.link.named = True
    settings = Known(
        provider.settings,
        provider.directory,
        provider.members.names(),
        (0, 168),
        SETTLED,
        SETTLED,
        leases=provider.store.leases(0, 168),
    )
    rounds = running.rounds("manual", look=lambda _nodes, _window: replace(settings, refusals=refusals(provider.store)))
    with pytest.raises(CohortTooSmall) as refusal:
        rounds.hold(None)
    who = "lab-0, lab-1, lab-2, lab-3"
    least = provider.settings.owners_minimum
    assert f"4 of 4 refused: owners_minimum {least} is below their policy's 5 ({who})" in refusal.value.what
    assert (
        f"lacking tenants that accept the plan: 0 of {provider.settings.cohort_minimum} ({who})" in refusal.value.hint
    )
    assert f"({who})" in events(records, "round")[-1]["message"]
    for tenant in tenants:  # their owners agree
        tenant.policy = replace(tenant.policy, owners_minimum=least)
    assert rounds.hold(None)["contributors"] == TENANTS
    assert refusals(provider.store) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "host", ["provider.example", "localhost.example", "127.0.0.2", "", "localhost\r\nHost: localhost"]
)
def test_another_name_of_the_loopback_is_not_served(host: str, watched: httpx.Client) -> None:
    """A web page whose name its owner's DNS server points to 127.0.0.1 reads no metrics in the operator's browser."""
    request = f"GET /pharoah/metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((watched.base_url.host, watched.base_url.port or 0)) as line:
        line.sendall(request.encode())
        assert line.recv(12) in (b"HTTP/1.1 421", b"HTTP/1.1 400")
    assert watched.get("/pharoah/metrics", headers={"host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize("path", ["/pharoah/round", "/pharoah/give-up", "/v1/control/list-nodes"])
def test_whoever_watches_changes_nothing(path: str, watched: httpx.Client, running: Running) -> None:
    assert {watched.request(method, path).status_code for method in ("GET", "POST", "PUT", "DELETE")} == {404}
    assert {watched.post(f"/pharoah/{name}").status_code for name in ("healthz", "readyz", "metrics")} == {405}
    assert running.link.runs == 0


def test_a_round_by_hand_and_its_refusals(asked: httpx.Client, running: Running) -> None:
    held = asked.post("/pharoah/round")
    assert held.status_code == 200
    assert held.json()["contributors"] == TENANTS
    for query, error in (
        ({}, "WeekHeld"),
        ({"start": 0, "end": 168}, "WeekHeld"),
        ({"start": 3, "end": 9}, "BadWindow"),
        ({"start": 0}, "BadWindow"),
    ):
        refused = asked.post("/pharoah/round", params=query)
        assert refused.status_code == 409
        assert list(refused.json()) == ["error", "what", "hint"]
        assert refused.json()["error"] == error
        assert refused.json()["hint"]
    assert asked.post("/pharoah/give-up").json() == {"given_up": ""}
    assert asked.get("/pharoah/round").status_code == 405
    assert asked.get("/pharoah/openapi.json").status_code == 404


def test_a_database_that_fails_is_told_and_stops_no_loop(
    asked: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch, records: pytest.LogCaptureFixture
) -> None:
    def full() -> None:
        raise sa.exc.OperationalError("INSERT", {"what": CANARY}, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr(running.federation.provider.members, "refresh", full)
    refused = asked.post("/pharoah/round")
    assert (refused.status_code, refused.json()["error"]) == (409, "StoreFailed")
    assert refused.json()["what"] == "the store failed: database or disk is full"
    assert not running.rounds().step()
    assert [event["error"] for event in events(records, "step")] == ["StoreFailed"]


def test_metrics_are_prometheus_text_and_name_nobody(
    asked: httpx.Client, watched: httpx.Client, running: Running
) -> None:
    running.link.silent = {3}
    asked.post("/pharoah/round")
    answer = watched.get("/pharoah/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert families["pharoah_rounds"].type == "counter"
    assert families["pharoah_stage_seconds"].type == "histogram"
    assert all(family.documentation for family in families.values())
    provider = running.federation.provider
    hidden = {str(tenant.id) for tenant in running.federation.tenants}
    hidden |= {str(lease_id(number, WEEKS[0], lease)) for number in range(TENANTS) for lease in range(2)}
    hidden |= {token for lease in provider.store.leases(*WEEKS[0]) for token in lease.labels.values()}
    assert len(hidden) > 2 * TENANTS
    assert not [name for name in hidden if name in answer.text or name[:12] in answer.text]
    labels = {key for family in families.values() for sample in family.samples for key in sample.labels}
    assert labels == {"outcome", "stage", "why", "state", "trustee", "le"}


def test_the_clock_of_stages_counts_each_once() -> None:
    metrics = Metrics()
    clock = round_runner._Clock(metrics)
    for stage in Stage:
        clock.begin(stage)
    clock.stop()
    clock.stop()
    assert list(clock.by_stage) == [stage.value for stage in Stage]
    assert metrics.registry.get_sample_value("pharoah_stage_seconds_count", {"stage": "done"}) == 1
