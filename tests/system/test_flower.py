"""Provider and tenants over Flower: what arrives, what is left out, what must not cross; in process and over HTTP."""

import ast
import importlib
import inspect
import logging
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.proto import message_pb2
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, strategies as st
from packaging.version import Version

from crypto.errors import BadSignature, BudgetExceeded, DecodeError, PharoahError
from federation.protocol.queries import BLOB, RECORD, Fault, Query, unwrap, wrap
from federation.transport import flower_wire
from provider_server.rounds.network.flower import (
    COMPLETED,
    FAILED,
    MESSAGE_UNAVAILABLE,
    SERVER_APP,
    SUPERLINK_NODE,
    UNFINISHED,
)
from provider_server.rounds.network.flower_app import server_app, task_identity
from provider_server.rounds.network.grid_tenants import (
    FLOWER_ERRORS,
    PULL_AT_ONCE,
    Grid,
    GridTenants,
    NodeId,
    Silence,
    Why,
)
from provider_server.rounds.network.superlink import (
    BUNDLE,
    NO_CODE,
    _flower_app,
    _without_idle_layers,
    bundle,
    run_server_app,
)
from provider_server.rounds.week import Tenants
from simulation.run.local_grid import ClientAppFailed, LocalGrid, local_task
from tenant_client.rounds.network.flower import INVALID_FAB
from tenant_client.rounds.network.flower_app import client_app
from tests.support.superlink import REPOSITORY, SuperLink, pinned_node, run_stock_server_app, superlink
from tests.support.waiting import PATIENCE_S

SECRET = "shape 4096x11008 of tenant seven"
SHORT_S = 1.5  # for a deadline that passes; over HTTP, many times what one answer takes
ALL_BYTES = bytes(range(256))
Run = Callable[[Tenants], None]
Play = Callable[[Sequence[ClientApp | None], Run, float], list[int]]


def echo(verb: Query, payload: bytes) -> bytes:
    return verb.encode() + b":" + payload


def fail(error: Exception) -> Callable[[Query, bytes], bytes]:
    def answer(_verb: Query, _payload: bytes) -> bytes:
        raise error

    return answer


def says(reply: Callable[[], RecordDict | Error]) -> ClientApp:
    """A node that is not ours and replies to a contribution with whatever it likes."""
    app = ClientApp()

    @app.query(Query.CONTRIBUTION.value)
    def answer(message: Message, _context: Context) -> Message:
        return Message(reply(), reply_to=message)

    return app


def blob(payload: Any = b"x") -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({BLOB: wrap(payload) if isinstance(payload, bytes) else payload})})


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    with superlink(tmp_path_factory.mktemp("superlink")) as running:
        yield running


def play_locally(apps: Sequence[ClientApp | None], run: Run, deadline_s: float) -> list[int]:
    """Runs a ServerApp in process; an app that is None is a node that never answers. Returns the node ids in order."""
    nodes = dict(enumerate((app or client_app(echo) for app in apps), start=1001))
    silent = [node_id for node_id, app in zip(nodes, apps, strict=True) if app is None]
    LocalGrid(nodes, silent=silent).start(server_app(run, wanted=len(apps), deadline_s=deadline_s))
    return list(nodes)


def play_over(link: SuperLink) -> Play:
    def play(apps: Sequence[ClientApp | None], run: Run, deadline_s: float) -> list[int]:
        """The same over HTTP, for two nodes."""
        first, second = apps
        with pinned_node(link.address, first) as one, pinned_node(link.address, second) as two:
            run_server_app(link.address, server_app(run, wanted=2, deadline_s=deadline_s))
        return [one, two]

    return play


@pytest.fixture(params=["local", pytest.param("superlink", marks=pytest.mark.xdist_group("superlink"))])
def play(request: pytest.FixtureRequest) -> Play:
    return play_locally if request.param == "local" else play_over(request.getfixturevalue("link"))


def ask_all(payloads: Sequence[bytes], answers: list[list[bytes]]) -> Run:
    def run(tenants: Tenants) -> None:
        answers.extend(sorted(tenants.ask(verb, payload)) for verb in Query for payload in payloads)

    return run


def ask_once(answers: list[bytes], silences: list[Silence], seconds: list[float]) -> Run:
    """Asks for a contribution and notes what came, what was left out and how long that took."""

    def run(tenants: Tenants) -> None:
        assert isinstance(tenants, GridTenants)
        begin_s = time.monotonic()
        answers.extend(tenants.ask(Query.CONTRIBUTION, b"plan"))
        seconds.append(time.monotonic() - begin_s)
        silences.extend(tenants.silences)

    return run


def left_out(play: Play, app: ClientApp | None, deadline_s: float = PATIENCE_S) -> tuple[list[Silence], int, float]:
    """Plays `app` beside a tenant that answers; the latter must get through. Returns silences, node id, seconds."""
    answers: list[bytes] = []
    silences: list[Silence] = []
    seconds: list[float] = []
    node_id = play([app, client_app(echo)], ask_once(answers, silences, seconds), deadline_s)[0]
    assert answers == [b"contribution:plan"]
    return silences, node_id, seconds[0]


# ---- both transports


def test_the_same_bytes_come_out_of_every_verb(play: Play) -> None:
    payloads = [b"", ALL_BYTES, ALL_BYTES * 512]
    answers: list[list[bytes]] = []
    play([client_app(echo), client_app(lambda verb, payload: b"2" + payload)], ask_all(payloads, answers), PATIENCE_S)
    assert answers == [[b"2" + payload, echo(verb, payload)] for verb in Query for payload in payloads]


def test_a_node_that_never_answers_is_late_and_holds_nobody_up(play: Play) -> None:
    _, _, answered_s = left_out(play, client_app(fail(BudgetExceeded("no"))), PATIENCE_S)
    deadline_s = max(SHORT_S, 10 * answered_s)  # the other node must answer in time however busy the machine is
    silences, node_id, seconds = left_out(play, None, deadline_s)
    assert silences == [Silence(Query.CONTRIBUTION, NodeId(node_id), Why.LATE)]
    assert deadline_s <= seconds < PATIENCE_S


@pytest.mark.parametrize(
    ("error", "code", "name"),
    [
        (BudgetExceeded(SECRET, hint=SECRET), Fault.REFUSAL, "BudgetExceeded"),
        (BadSignature(SECRET), Fault.PEER, "BadSignature"),
        (KeyError(SECRET), Fault.BUG, "Bug"),
    ],
)
def test_of_an_error_only_the_class_name_crosses(
    play: Play, caplog: pytest.LogCaptureFixture, error: Exception, code: Fault, name: str
) -> None:
    replies: list[Message] = []
    ours = client_app(fail(error))

    def spied(message: Message, context: Context) -> Message:
        replies.append(ours(message, context))
        return replies[-1]

    theirs = ClientApp()
    theirs.query(Query.CONTRIBUTION.value)(spied)
    silences, node_id, seconds = left_out(play, theirs)
    assert silences == [Silence(Query.CONTRIBUTION, NodeId(node_id), Why.FAILED, name)]
    assert seconds < PATIENCE_S
    assert (replies[0].error.code, replies[0].error.reason) == (code, name)
    assert SECRET.encode() not in replies[0].deflate()
    seen = [
        record.getMessage() for record in caplog.records if record.name == "provider_server.rounds.network.grid_tenants"
    ]
    assert seen == [f"node {node_id} has no answer to contribution: failed {name}"]
    assert SECRET in caplog.text  # the tenant's own log does say what happened


def test_a_malformed_reply_is_dropped_and_reported(play: Play) -> None:
    silences, node_id, seconds = left_out(play, says(lambda: RecordDict({"other": ConfigRecord({BLOB: b"x"})})))
    assert silences == [Silence(Query.CONTRIBUTION, NodeId(node_id), Why.MALFORMED, "DecodeError")]
    assert seconds < PATIENCE_S


# ---- a SuperLink alone


@pytest.mark.xdist_group("superlink")
def test_a_pinned_node_refuses_the_run_of_another_bundle(link: SuperLink) -> None:
    answers: list[bytes] = []
    silences: list[Silence] = []
    app = client_app(echo)
    right, wrong = bundle(NO_CODE).hash_str, bundle("app = 1").hash_str
    with (
        pinned_node(link.address, app, fab_hash=right),
        pinned_node(link.address, app, fab_hash=wrong) as refusing,
    ):
        run_server_app(link.address, server_app(ask_once(answers, silences, []), wanted=2, deadline_s=PATIENCE_S))
    assert answers == [b"contribution:plan"]
    assert silences == [Silence(Query.CONTRIBUTION, NodeId(refusing), Why.FAILED, "INVALID_FAB")]


@pytest.mark.nightly
@pytest.mark.xdist_group("superlink")
def test_the_stock_command_runs_the_server_app_of_a_bundle(link: SuperLink, tmp_path: Path) -> None:
    module = f"""
from pathlib import Path
from federation.protocol.queries import Query
from provider_server.rounds.network.flower_app import server_app, task_identity

def run(tenants):
    Path({str(tmp_path / "answers")!r}).write_bytes(b" ".join(tenants.ask(Query.BUNDLE, b"week 7")))

app = server_app(run, wanted=2)
"""
    app, fab_hash = client_app(echo), bundle(module).hash_str
    with pinned_node(link.address, app, fab_hash=fab_hash), pinned_node(link.address, app, fab_hash=fab_hash):
        run_stock_server_app(link.address, module, tmp_path / "serverapp.log")
    assert (tmp_path / "answers").read_bytes() == b"bundle:week 7 bundle:week 7"


@pytest.mark.xdist_group("superlink")
def test_the_harness_hides_neither_a_failing_run_nor_a_failing_node(link: SuperLink) -> None:
    def run(_tenants: Tenants) -> None:
        raise BudgetExceeded("no")

    with pytest.raises(BudgetExceeded), pinned_node(link.address, client_app(echo)):
        run_server_app(link.address, server_app(run, wanted=1))
    with pytest.raises(ValueError, match="No query function"), pinned_node(link.address, ClientApp()):
        run_server_app(link.address, server_app(ask_once([], [], []), wanted=1, deadline_s=3.0))


# ---- the provider's side


def ask_grid(grid: Grid, deadline_s: float = 0.0) -> tuple[list[bytes], tuple[Silence, ...]]:
    tenants = GridTenants(grid, deadline_s, poll_s=0.01)
    with local_task():
        return list(tenants.ask(Query.CONTRIBUTION, b"plan")), tenants.silences


def numbered(many: int, first: int = 2) -> dict[int, ClientApp]:
    def app(number: int) -> ClientApp:
        return client_app(lambda _verb, _payload: str(number).encode())

    return {number: app(number) for number in range(first, many + first)}


def test_replies_delivered_twice_and_out_of_order_are_yielded_once() -> None:
    seen: list[Message] = []

    def deliver(replies: list[Message]) -> Iterable[Message]:
        seen.extend(replies)
        return [*reversed(seen), *replies]  # everything again, with every pull

    answers, silences = ask_grid(LocalGrid(numbered(3 * PULL_AT_ONCE), deliver=deliver))
    assert sorted(map(int, answers)) == list(range(2, 3 * PULL_AT_ONCE + 2))
    assert answers[:2] == [str(PULL_AT_ONCE + 1).encode(), str(PULL_AT_ONCE).encode()]
    assert silences == ()


def test_a_reply_to_another_question_is_ignored() -> None:
    kept: list[Message] = []

    def hold_back_one_round(replies: list[Message]) -> Iterable[Message]:
        stale = [*kept]
        kept[:] = replies
        return stale

    grid = LocalGrid(numbered(1), deliver=hold_back_one_round)
    assert ask_grid(grid) == ([], (Silence(Query.CONTRIBUTION, NodeId(2), Why.LATE),))
    assert ask_grid(grid) == ([], (Silence(Query.CONTRIBUTION, NodeId(2), Why.LATE),))
    assert len(kept) == 1


def test_answers_that_are_there_at_the_deadline_are_all_taken() -> None:
    held: list[Message] = []

    def one_by_one(replies: list[Message]) -> Iterable[Message]:
        held.extend(replies)
        return [held.pop()] if held else []

    count = 2 * PULL_AT_ONCE + 1
    answers, silences = ask_grid(LocalGrid(numbered(count), deliver=one_by_one), deadline_s=0.0)
    assert len(answers) == count
    assert silences == ()


def test_an_answer_is_yielded_before_the_others_have_come() -> None:
    tenants = GridTenants(LocalGrid(numbered(2), silent=[3]), deadline_s=PATIENCE_S)
    begin_s = time.monotonic()
    with local_task():
        assert next(tenants.ask(Query.CONTRIBUTION, b"plan")) == b"2"
    assert time.monotonic() - begin_s < PATIENCE_S
    assert tenants.silences == ()


def test_a_question_is_sent_even_if_nobody_reads_the_answers() -> None:
    class Recording(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            sent.extend(message.metadata.message_type for message in messages)
            return []

    sent: list[str] = []
    with local_task():
        GridTenants(Recording(numbered(2)), 0.0).ask(Query.BUNDLE, b"bundle")
    assert sent == ["query.bundle", "query.bundle"]


def test_whoever_was_gone_is_asked_again_and_answers_in_the_same_round() -> None:
    replies: Iterator[RecordDict | Error] = iter((Error(ErrorCode.NODE_UNAVAILABLE, ""), blob(b"back")))
    answers, silences = ask_grid(LocalGrid({2: says(lambda: next(replies)), **numbered(2, first=3)}), PATIENCE_S)
    assert answers == [b"3", b"4", b"back"]
    assert silences == ()


def test_a_node_that_comes_while_answers_are_awaited_is_asked_too() -> None:
    class Growing(LocalGrid):
        looks = count(2)

        def get_node_ids(self) -> Iterable[int]:
            return [2, 3][: next(self.looks) - 1]

    replies: Iterator[RecordDict | Error] = iter((Error(ErrorCode.NODE_UNAVAILABLE, ""), blob(b"back")))
    grid = Growing({2: says(lambda: next(replies)), **numbered(1, first=3)})
    assert ask_grid(grid, PATIENCE_S) == ([b"back", b"3"], ())


def test_silences_add_up_over_the_questions_of_a_week() -> None:
    tenants = GridTenants(LocalGrid(numbered(2), silent=[3]), 0.0)
    with local_task():
        for verb in Query:
            list(tenants.ask(verb, b""))
    assert tenants.silences == tuple(Silence(verb, NodeId(3), Why.LATE) for verb in Query)


def test_a_node_that_left_before_the_question_is_unsent() -> None:
    class Stale(LocalGrid):
        def get_node_ids(self) -> Iterable[int]:
            return [2, 999]

    assert ask_grid(Stale(numbered(1))) == ([b"2"], (Silence(Query.CONTRIBUTION, NodeId(999), Why.UNSENT),))


def test_all_nodes_are_unsent_when_the_grid_takes_none() -> None:
    class Full(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            return []  # what Flower's grid does with a request that is too large

    answers, silences = ask_grid(Full(numbered(2)))
    assert answers == []
    assert [silence.why for silence in silences] == [Why.UNSENT, Why.UNSENT]


def test_replies_that_cannot_be_inflated_cost_one_pull_and_not_the_round(caplog: pytest.LogCaptureFixture) -> None:
    class Poisoned(LocalGrid):
        pulls = 0

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            self.pulls += 1
            replies = super().pull_messages(message_ids)
            if self.pulls == 1:
                raise ValueError(SECRET)
            return replies

    answers, silences = ask_grid(Poisoned(numbered(PULL_AT_ONCE + 1)))
    assert answers == [str(PULL_AT_ONCE + 2).encode()]
    assert [silence.why for silence in silences] == [Why.LATE] * PULL_AT_ONCE
    assert SECRET not in caplog.text


def test_a_superlink_that_cannot_answer_for_a_moment_is_asked_again() -> None:
    class Locked(LocalGrid):
        failures = 1
        status = 500

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            if self.failures:
                self.failures -= 1
                httpx.Response(self.status, request=httpx.Request("POST", "http://superlink")).raise_for_status()
            return super().pull_messages(message_ids)

    grid = Locked(numbered(2))
    with local_task():
        assert list(GridTenants(grid, PATIENCE_S, 0.01).ask(Query.CONTRIBUTION, b"")) == [b"2", b"3"]
    refused = Locked(numbered(2))
    refused.status = 401
    with local_task(), pytest.raises(httpx.HTTPStatusError):
        list(GridTenants(refused, PATIENCE_S, 0.01).ask(Query.CONTRIBUTION, b""))


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (Error(Fault.REFUSAL, "fine\nERROR forged log line"), "unnamed"),
        (Error(Fault.REFUSAL, SECRET), "unnamed"),
        (Error(Fault.REFUSAL, "A" * 65), "unnamed"),
        (Error(Fault.REFUSAL, "Bürger"), "unnamed"),
        (Error(Fault.REFUSAL), "unnamed"),
        (Error(Fault.REFUSAL, "PlanRefused owners_minimum 5"), "PlanRefused owners_minimum 5"),
        (Error(Fault.REFUSAL, "PlanRefused forged 5"), "unnamed"),
        (Error(Fault.REFUSAL, "PlanRefused owners_minimum inf"), "unnamed"),
        (
            Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"<class 'KeyError'>:<'{SECRET}'>"),
            "CLIENT_APP_RAISED_EXCEPTION",
        ),
        (Error(ErrorCode.NODE_UNAVAILABLE, "gone"), "NODE_UNAVAILABLE"),
        (Error(-3, SECRET), "code -3"),
    ],
)
def test_the_text_of_a_hostile_error_is_not_taken_over(
    caplog: pytest.LogCaptureFixture, error: Error, detail: str
) -> None:
    _, silences = ask_grid(LocalGrid({2: says(lambda: error)}))
    assert silences == (Silence(Query.CONTRIBUTION, NodeId(2), Why.FAILED, detail),)
    assert SECRET not in caplog.text
    assert "forged" not in caplog.text


def joining(grid: LocalGrid, counts: Sequence[int]) -> LocalGrid:
    """Nodes that come one by one: each look sees the next count, the last for good."""
    left = list(counts)

    class Joining(LocalGrid):
        def get_node_ids(self) -> Iterable[int]:
            return list(grid.get_node_ids())[: left.pop(0) if len(left) > 1 else left[0]]

    return Joining(numbered(len(list(grid.get_node_ids()))))


@pytest.mark.parametrize(("counts", "present"), [([0, 1, 1, 3], 3), ([0, 1, 2], 2)])
def test_the_server_waits_for_the_nodes_it_wants_and_then_goes_on(counts: list[int], present: int) -> None:
    answers: list[bytes] = []
    app = server_app(ask_once(answers, [], []), wanted=3, join_s=0.2, deadline_s=0.0, poll_s=0.01)
    joining(LocalGrid(numbered(3)), counts).start(app)
    assert len(answers) == present


# ---- the tenant's side


def asked(app: ClientApp, content: RecordDict) -> Message:
    with local_task():
        question = Message(content, 2, f"query.{Query.CONTRIBUTION}")
    return app(question, Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={}))


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"other": ConfigRecord({BLOB: b"x"})}),
        RecordDict({RECORD: ConfigRecord({BLOB: b"x"}), "more": ConfigRecord()}),
        RecordDict({RECORD: ConfigRecord({BLOB: b"x", "more": 1})}),
        RecordDict({RECORD: ConfigRecord({"other": b"x"})}),
        RecordDict({RECORD: ConfigRecord()}),
        blob("text"),
        blob([b"x"]),
        RecordDict({RECORD: MetricRecord({BLOB: 1})}),
        RecordDict({RECORD: ArrayRecord()}),
    ],
)
def test_a_question_in_any_other_layout_is_refused_unread(content: RecordDict) -> None:
    reply = asked(client_app(fail(AssertionError("was asked"))), content)
    assert (reply.error.code, reply.error.reason) == (Fault.DECODE, "DecodeError")


def test_an_error_in_place_of_a_question_is_refused() -> None:
    with local_task():
        question = Message(Error(1, "x"), reply_to=Message(blob(), 2, f"query.{Query.CONTRIBUTION}"))
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
    assert client_app(echo)(question, context).error.code == Fault.DECODE


def test_an_answer_that_is_not_bytes_is_a_bug_of_the_tenant(caplog: pytest.LogCaptureFixture) -> None:
    answer: Any = lambda _verb, _payload: object()  # noqa: E731
    with caplog.at_level(logging.ERROR, logger="tenant_client"):
        assert asked(client_app(answer), blob()).error.code == Fault.BUG
    assert "a bug of the tenant client" in caplog.text


def test_an_answer_gets_the_verb_and_the_payload() -> None:
    assert unwrap(asked(client_app(echo), blob(ALL_BYTES)).content)[1] == b"contribution:" + ALL_BYTES


# ---- the shared contract


def test_every_error_has_the_code_of_its_family() -> None:
    families = [PharoahError("x"), DecodeError("x"), BadSignature("x"), BudgetExceeded("x")]
    assert [Fault.of(error) for error in families] == [1000, 1001, 1002, 1003]
    assert min(Fault) > max(FLOWER_ERRORS)


anything = st.recursive(
    st.none() | st.binary() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([RECORD, BLOB, "x"]) | st.integers(), inner),
)


@given(anything)
def test_any_object_is_a_blob_or_a_decode_error(content: object) -> None:
    try:
        hello, value = unwrap(content)
    except DecodeError:
        return
    assert content == {RECORD: {BLOB: wrap(value, hello)}}


# ---- the local grid


def test_apps_cannot_reach_into_what_others_hold() -> None:
    held: list[RecordDict] = []

    def greedy(message: Message, _context: Context) -> Message:
        held.append(message.content)
        assert unwrap(message.content)[1] == b"plan"
        message.content.pop(RECORD)
        reply = blob(b"mine")
        held.append(reply)
        return Message(reply, reply_to=message)

    def meddle(replies: list[Message]) -> Iterable[Message]:
        for content in held:
            content.clear()
        return replies

    app = ClientApp()
    app.query(Query.CONTRIBUTION.value)(greedy)
    assert ask_grid(LocalGrid({2: app, 3: app}, deliver=meddle)) == ([b"mine", b"mine"], ())


def test_a_node_keeps_its_own_context_from_message_to_message() -> None:
    def count(message: Message, context: Context) -> Message:
        seen = context.state.setdefault("seen", MetricRecord({"n": 0}))
        assert isinstance(seen, MetricRecord)
        seen["n"] = int(str(seen["n"])) + 1
        return Message(blob(f"{context.node_id}:{seen['n']}".encode()), reply_to=message)

    app = ClientApp()
    app.query(Query.CONTRIBUTION.value)(count)
    grid = LocalGrid({2: app, 3: app})
    ask_grid(grid)
    assert ask_grid(grid)[0] == [b"2:2", b"3:2"]


def test_what_a_client_app_raises_stops_the_simulation() -> None:
    with pytest.raises(ClientAppFailed, match="No query function"):
        LocalGrid({2: ClientApp()}).start(server_app(ask_once([], [], []), wanted=1))


def test_the_rest_of_the_grid_interface_works() -> None:
    grid = LocalGrid(numbered(2), silent=[3])
    with local_task():
        questions = [grid.create_message(blob(), "query.bundle", node_id, "week") for node_id in grid.get_node_ids()]
        replies = list(grid.send_and_receive(questions, timeout=1.0))
    assert [unwrap(reply.content)[1] for reply in replies] == [b"2"]
    assert replies[0].metadata.group_id == "week"
    assert [node.node_id for node in grid.get_nodes()] == [2, 3]
    run = grid.run
    grid.set_run(run)
    assert grid.run is run


def test_the_identity_of_a_task_does_not_outlive_it() -> None:
    with task_identity(5, 1, 1):
        with pytest.raises(KeyError), task_identity(6, 1, 1):
            raise KeyError(TaskIdentity.run_id)
        assert TaskIdentity.run_id == 5
    with pytest.raises(RuntimeError):
        _ = TaskIdentity.run_id


def test_a_message_costs_less_than_a_millisecond() -> None:
    grid = LocalGrid(numbered(200))

    def once() -> float:
        begin_s = time.thread_time()
        ask_grid(grid)
        return (time.thread_time() - begin_s) / 200

    assert min(once() for _ in range(3)) < 1e-3


# ---- what is assumed of Flower: provider_server/rounds/network/flower.py, tenant_client/rounds/network/flower.py


def flower(place: str) -> Any:
    """What Flower has at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def pinned() -> str:
    """The version in pyproject.toml."""
    (found,) = re.findall(r'"flwr==([^"]+)"', (REPOSITORY / "pyproject.toml").read_text())
    return str(found)


def test_flower_is_the_version_that_is_pinned() -> None:
    assert version("flwr") == pinned()


@pytest.mark.nightly
def test_the_newest_flower_still_has_what_is_assumed(tmp_path: Path) -> None:
    """The tests of this file under the registry's newest version, without those of its requirements that are new."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    fetch = [*pip, "download", "--quiet", "--retries=0", "--timeout=20", "--no-deps", "--dest", str(tmp_path), "flwr"]
    if subprocess.run(fetch, check=False, capture_output=True).returncode:
        pytest.skip("pip reaches no package registry here, so whether a newer Flower is out is not known")
    (wheel,) = tmp_path.glob("flwr-*.whl")
    newest = wheel.name.split("-")[1]
    if Version(newest) <= Version(pinned()):
        return
    newer = tmp_path / "newer"
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--target", str(newer), str(wheel)], check=True)
    paths = os.pathsep.join([str(newer), str(REPOSITORY)])
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not is_the_version", __file__]
    done = subprocess.run(
        [sys.executable, *tests],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"Flower {newest} is out, and does not do: {done.stdout[-4000:]}"


@pytest.mark.parametrize("side", ["provider_server", "tenant_client"])
def test_every_name_of_flowers_that_is_taken_is_in_the_table(side: str) -> None:
    source = (REPOSITORY / side / "rounds/network/flower.py").read_text()
    tree = ast.parse(source)
    taken = {(node.module, name.name) for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}
    rows = [line.split(" | ") for line in (ast.get_docstring(tree) or "").splitlines() if line.startswith("| `flwr")]
    assert {(row[0].strip("| `"), name) for row in rows for name in row[1].split(", ")} == taken


def test_flower_error_codes_are_as_written_down() -> None:
    codes = {code: name for name, code in vars(ErrorCode).items() if isinstance(code, int)}
    assert codes == FLOWER_ERRORS
    assert (codes[MESSAGE_UNAVAILABLE], codes[INVALID_FAB]) == ("MESSAGE_UNAVAILABLE", "INVALID_FAB")


@pytest.mark.parametrize(
    ("place", "copied"),
    [
        ("flwr.common.constant:SUPERLINK_NODE_ID", SUPERLINK_NODE),
        ("flwr.common.constant:TIMESTAMP_HEADER", flower_wire.TIME_HEADER),
        ("flwr.common.constant:SYSTEM_TIME_TOLERANCE", flower_wire.AHEAD_S),
        ("flwr.supercore.constant:MAX_TIMESTAMP_DIFF_SECONDS", flower_wire.BEHIND_S),
        ("flwr.supercore.constant:FLEET_HTTP_PUBLIC_KEY_HEADER", flower_wire.PUBLIC_KEY_HEADER),
        ("flwr.supercore.constant:FLEET_HTTP_SIGNATURE_HEADER", flower_wire.SIGNATURE_HEADER),
        ("flwr.supercore.constant:TASK_TOKEN_HEADER", flower_wire.TASK_TOKEN_HEADER),
        ("flwr.supercore.protobuf.constants:PROTOBUF_MEDIA_TYPE", flower_wire.PROTOBUF["content-type"]),
    ],
)
def test_what_is_copied_of_flower_by_value_is_as_flower_has_it(place: str, copied: object) -> None:
    assert flower(place) == copied


def test_words_of_flowers_that_are_copied_mean_what_they_say() -> None:
    task, status = flower("flwr.supercore.constant:TaskType"), flower("flwr.common.constant:Status")
    ended = flower("flwr.common.constant:SubStatus")
    assert (task.SERVER_APP, ended.COMPLETED, ended.FAILED) == (SERVER_APP, COMPLETED, FAILED)
    assert (status.PENDING, status.STARTING, status.RUNNING) == UNFINISHED
    every = {value for name, value in vars(status).items() if name.isupper()}
    assert every - {*UNFINISHED} == {"finished"}


def test_nodes_meet_only_layers_that_do_something_for_them(tmp_path: Path) -> None:
    app = _without_idle_layers(_flower_app(tmp_path / "link.sqlite"))
    layers = [getattr(layer.cls, "__name__", "") for layer in app.user_middleware]
    assert layers == ["BaseHTTPMiddleware", "ProtobufTranslationMiddleware", "NodeAuthMiddleware"]


@pytest.mark.parametrize("reply", [blob(ALL_BYTES), Error(Fault.REFUSAL, "BudgetExceeded"), Error(7)])
def test_objects_are_packed_and_unpacked_as_flower_does(reply: RecordDict | Error) -> None:
    with local_task():
        message = Message(reply, reply_to=Message(blob(), 2, "query.bundle"))
    header, tree = message_pb2.Message(), message_pb2.ObjectTree()
    packed = {} if message.has_error() else flower_wire.pack(message.content, tree.children.add())
    sealed = flower_wire.seal(message, header, tree)
    assert sealed == message.deflate()
    theirs = flower("flwr.supercore.inflatable.inflatable_object:get_object_tree")(message)
    assert tree == theirs
    assert list(packed) == [name for name in flower_wire.object_ids(tree) if name != tree.object_id]
    vars(message.metadata)["_message_id"] = tree.object_id
    bare = flower("flwr.app.message:remove_content_from_message")(message)
    assert header == flower("flwr.common.serde:message_to_proto")(bare)
    objects = packed | {tree.object_id: sealed}
    again = flower_wire.unpack(tree.object_id, objects, (Message, RecordDict, ConfigRecord))
    assert again.deflate() == sealed
    assert again.has_error() or unwrap(again.content)[1] == ALL_BYTES


@pytest.mark.parametrize(
    "reply",
    [
        RecordDict({RECORD: ConfigRecord({BLOB: b"x"}), "more": ConfigRecord()}),
        RecordDict({RECORD: MetricRecord({BLOB: 1})}),
        RecordDict({RECORD: ArrayRecord()}),
    ],
)
def test_an_object_of_another_shape_is_not_unpacked(reply: RecordDict) -> None:
    tree = message_pb2.ObjectTree()
    objects = flower_wire.pack(reply, tree)
    with pytest.raises(flower_wire.UNREADABLE):
        flower_wire.unpack(tree.object_id, objects, (RecordDict, ConfigRecord))


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "data",
    [
        *(b"\0", b"Message  0\0", b"RecordDict  0 0\0", "Récord  0\0".encode(), b"RecordDict x 0\0"),
        b"RecordDict  %d\0%b" % (len(DEEP), DEEP),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_bytes_that_are_no_object_are_not_unpacked(data: bytes) -> None:
    with pytest.raises(flower_wire.UNREADABLE):
        flower_wire.unpack("id", {"id": data}, (RecordDict, ConfigRecord))


def test_a_bundle_is_the_one_that_flower_builds() -> None:
    files = {"pyproject.toml": BUNDLE.encode(), "bundled.py": b"app = 1"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "GitWildMatchPattern", DeprecationWarning)  # Flower with a newer pathspec
        theirs, _ = flower("flwr.cli.build:build_fab_from_files")(files)
    assert bundle("app = 1").content == theirs


def test_flower_keeps_the_task_identity_where_the_local_grid_looks() -> None:
    assert [name for name in vars(TaskIdentity) if name.endswith("_id")] == ["_task_id", "_run_id", "_node_id"]


def test_flower_names_a_message_where_the_local_grid_writes_it() -> None:
    with local_task():
        message = Message(blob(), 2, "query.bundle")
    vars(message.metadata)["_message_id"] = "named"
    assert message.metadata.message_id == "named"


def test_flower_has_an_empty_run() -> None:
    assert flower("flwr.supercore.run:Run").create_empty(7).run_id == 7


@pytest.mark.parametrize(
    ("place", "fields"),
    [
        ("control_pb2:ListNodesRequest", ""),
        ("control_pb2:ListNodesResponse", "nodes_info"),
        ("control_pb2:RegisterNodeRequest", "public_key"),
        ("control_pb2:RegisterNodeResponse", "node_id"),
        ("control_pb2:StartRunRequest", "fab"),
        ("control_pb2:StartRunResponse", "run_id"),
        ("control_pb2:StopRunRequest", "run_id"),
        ("control_pb2:StopRunResponse", ""),
        ("control_pb2:UnregisterNodeRequest", "node_id"),
        ("control_pb2:UnregisterNodeResponse", ""),
        ("error_pb2:Error", "code reason"),
        ("fab_pb2:Fab", "hash_str content"),
        ("fleet_pb2:ActivateNodeRequest", "public_key heartbeat_interval"),
        ("fleet_pb2:ActivateNodeResponse", "node_id"),
        ("fleet_pb2:DeactivateNodeRequest", "node_id"),
        ("fleet_pb2:DeactivateNodeResponse", ""),
        ("fleet_pb2:PullMessagesRequest", "node"),
        ("fleet_pb2:PullMessagesResponse", "messages_list message_object_trees"),
        ("fleet_pb2:PushMessagesRequest", "node messages_list message_object_trees clientapp_runtime_list"),
        ("fleet_pb2:PushMessagesResponse", "objects_to_push session_id"),
        ("heartbeat_pb2:SendNodeHeartbeatRequest", "node heartbeat_interval"),
        ("heartbeat_pb2:SendNodeHeartbeatResponse", ""),
        ("message_pb2:ConfirmMessageReceivedRequest", "node run_id message_object_id"),
        ("message_pb2:ConfirmMessageReceivedResponse", ""),
        ("message_pb2:Context", "node_id"),
        ("message_pb2:Message", "metadata content error"),
        ("message_pb2:Metadata", " ".join(flower_wire.METADATA)),
        ("message_pb2:ObjectTree", "object_id children"),
        ("message_pb2:PullObjectRequest", "node run_id object_id"),
        ("message_pb2:PullObjectResponse", "object_found object_available object_content"),
        ("message_pb2:PushObjectRequest", "node run_id object_id object_content session_id"),
        ("message_pb2:PushObjectResponse", "stored"),
        ("node_pb2:Node", "node_id"),
        ("node_pb2:NodeInfo", "node_id status public_key"),
        ("run_pb2:GetRunRequest", "node run_id"),
        ("run_pb2:GetRunResponse", "run"),
        ("run_pb2:Run", "run_id fab_hash"),
        ("runtime_pb2:AcquireTaskRequest", "supported_task_types"),
        ("runtime_pb2:AcquireTaskResponse", "task token"),
        ("runtime_pb2:GetNodesRequest", ""),
        ("runtime_pb2:GetNodesResponse", "nodes"),
        ("runtime_pb2:PullAppMessagesRequest", "message_ids"),
        ("runtime_pb2:PullAppMessagesResponse", "messages_list message_object_trees"),
        ("runtime_pb2:PullTaskInputRequest", ""),
        ("runtime_pb2:PullTaskInputResponse", "run context task_id"),
        ("runtime_pb2:PushAppMessagesRequest", "messages_list message_object_trees"),
        ("runtime_pb2:PushAppMessagesResponse", "message_ids objects_to_push session_id"),
        ("runtime_pb2:PushTaskOutputRequest", "sub_status"),
        ("runtime_pb2:PushTaskOutputResponse", ""),
        ("runtime_pb2:SendTaskHeartbeatRequest", ""),
        ("runtime_pb2:SendTaskHeartbeatResponse", ""),
        ("task_pb2:Task", "run_id"),
    ],
)
def test_messages_of_the_wire_have_the_fields_that_are_used(place: str, fields: str) -> None:
    message = flower("flwr.proto." + place)
    assert set(fields.split()) <= set(message.DESCRIPTOR.fields_by_name)


def test_no_message_of_the_wire_is_used_that_the_list_above_lacks() -> None:
    listed = {
        mark.args[1][row][0].partition(":")[2]
        for mark in test_messages_of_the_wire_have_the_fields_that_are_used.pytestmark  # type: ignore[attr-defined]
        for row in range(len(mark.args[1]))
    }
    rooms = [REPOSITORY / side / "rounds/network" for side in ("provider_server", "tenant_client")]
    used = {
        name for room in rooms for file in room.glob("*.py") for name in re.findall(r"_pb2\.(\w+)", file.read_text())
    }
    assert used
    assert used <= listed


def test_flowers_app_is_made_of_settings_and_a_lifespan() -> None:
    taken = inspect.signature(flower("flwr.superlink.main:create_app")).parameters
    assert list(taken) == ["config", "superlink_lifespan_class"]
