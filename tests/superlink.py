"""A real SuperLink on loopback, with nodes and a ServerApp that run in this process: what an integration test needs.

`superlink` starts the stock `flower-superlink` command on a free port. `pinned_node` connects a node that calls a given
ClientApp object and never the code that came with the run. `run_server_app` starts a run through the Control API,
claims its task as Flower's executor does, and calls a given ServerApp object with Flower's HTTP grid;
`run_stock_server_app` leaves that to the stock `flwr-serverapp` command and a Flower app bundle. Everything is stopped
when its context ends, and nothing looks for the network. Nodes answer in a thread of their own.

    with superlink(tmp_path) as link, pinned_node(link.address, client_app(answer)):
        run_server_app(link.address, server_app(run, wanted=1))
"""

import hashlib
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from typing import TypeVar
from unittest.mock import patch

from flwr.app import Context, Error, Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.serverapp import ServerApp
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufClientInterceptor
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import HttpGrid
from flwr.supernode.fleet_http_connection import http_request_response

from simulation.local_grid import task_identity

HOST = "127.0.0.1"
POLL_S = 0.05
START_S = 30.0
STOP_S = 10.0
C = TypeVar("C", bound=ProtobufClient)
REPOSITORY = Path(__file__).resolve().parents[1]
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_PROXY": HOST, "no_proxy": HOST}
BUNDLE = """
[project]
name = "pharoah-round"
version = "1.0.0"
[tool.flwr.app]
publisher = "pharoah"
[tool.flwr.app.components]
serverapp = "bundled:app"
clientapp = "bundled:app"
[tool.flwr.app.config]
"""
NO_CODE = "app = None  # only installed code runs"


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink: Fleet, Control and Runtime API on one address, host:port."""

    address: str
    log: Path


@contextmanager
def superlink(home: Path) -> Iterator[SuperLink]:
    """A SuperLink with its state in memory and everything it writes below `home`."""
    with patch.dict(os.environ, OFFLINE | {"FLWR_HOME": str(home / "flwr")}), _reserved_port() as port:
        link = SuperLink(f"{HOST}:{port}", home / "superlink.log")
        options = ["--insecure", "--isolation", "process", "--disable-runtime-dependency-installation"]
        with _command("flower-superlink", *options, "--host", HOST, "--port", str(port), log=link.log) as process:
            _wait_until(lambda: f"running on http://{link.address}" in link.log.read_text(), process, link.log)
            yield link


@contextmanager
def pinned_node(address: str, app: ClientApp | None, *, fab_hash: str | None = None) -> Iterator[int]:
    """A connected node; yields its id. Without an app it never answers; with a hash it refuses runs of another bundle.

    Whatever the app raises is raised when the context ends.
    """
    stop = threading.Event()
    with _connection(address) as fleet, ThreadPoolExecutor(1) as worker:
        serving = worker.submit(_serve, fleet, app, fab_hash, stop) if app else None
        try:
            yield fleet.node_id
        finally:
            stop.set()
            if serving:
                serving.result(STOP_S)


@contextmanager
def _connection(address: str) -> Iterator["Fleet"]:
    """Flower's connection of a node, without its habit of swallowing what is raised inside, failing assertions too."""
    connection = http_request_response(address, insecure=True, max_retries=3)
    fleet = Fleet(*connection.__enter__())
    try:
        yield fleet
    finally:
        connection.__exit__(None, None, None)


@dataclass(frozen=True)
class Fleet:
    """What Flower gives a node to work with."""

    node_id: int
    receive: Callable[[], tuple[Message, ObjectTree] | None]
    send: Callable[[Message, ObjectTree, float], tuple[set[str], str]]
    get_run: Callable[[int], Run]
    get_fab: Callable[[str, int], Fab]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


def run_server_app(address: str, app: ServerApp, *, bundled: str = NO_CODE) -> None:
    """Runs `app` in this thread as the task of a new run; what it raises marks the run as failed and is raised here."""
    token = _claim_new_run(address, bundled)
    with closing(HttpGrid(address, insecure=True, token=token)) as grid, closing(_runtime(address, token)) as client:
        task = client.PullTaskInput(PullTaskInputRequest())
        grid.set_run(run_from_proto(task.run))
        beat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        beat.start()
        status = SubStatus.FAILED
        try:
            with task_identity(task.run.run_id, task.context.node_id, task.task_id):
                app(grid, context_from_proto(task.context))
            status = SubStatus.COMPLETED
        finally:
            beat.stop()
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status))


def run_stock_server_app(address: str, module: str, log: Path) -> None:
    """Runs the ServerApp `app` of this Python source as Flower does: as a bundle, in a process of its own."""
    token = _claim_new_run(address, module)
    options = ["--insecure", "--runtime-api-address", address, "--token", token]
    here = {"PYTHONPATH": str(REPOSITORY)}
    with patch.dict(os.environ, here), _command("flwr-serverapp", *options, log=log) as stock:
        assert stock.wait(START_S) == 0, log.read_text()


def bundle(module: str) -> Fab:
    """A Flower app bundle of this one module; equal sources have equal hashes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "GitWildMatchPattern", DeprecationWarning)  # flwr 1.41 with a newer pathspec
        content, _ = build_fab_from_files({"pyproject.toml": BUNDLE.encode(), "bundled.py": module.encode()})
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


def _claim_new_run(address: str, module: str) -> str:
    """Starts a run and takes its task, as `flower-superexec` would; returns the token of the task."""
    with closing(_client(ControlHttpClient, address, [])) as control:
        control.StartRun(StartRunRequest(fab=fab_to_proto(bundle(module))))
    with closing(_runtime(address)) as client:
        return client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])).token


def _runtime(address: str, token: str | None = None) -> RuntimeHttpClient:
    interceptors: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")]
    if token:
        interceptors.append(RuntimeTokenHttpInterceptor(token=token))
    return _client(RuntimeHttpClient, address, interceptors)


def _client(kind: type[C], address: str, interceptors: Sequence[ProtobufClientInterceptor]) -> C:
    return kind.from_server_address(address, insecure=True, root_certificates=None, interceptors=interceptors)


def _serve(fleet: Fleet, app: ClientApp, fab_hash: str | None, stop: threading.Event) -> None:
    contexts: dict[int, Context] = {}
    while not stop.is_set():
        if (received := fleet.receive()) is None:
            stop.wait(POLL_S)
            continue
        question = _pull(fleet, *received)
        run = fleet.get_run(question.metadata.run_id)
        context = contexts.setdefault(run.run_id, Context(run.run_id, fleet.node_id, {}, RecordDict(), {}))
        trusted = fab_hash in {None, run.fab_hash}
        _push(fleet, app(question, context) if trusted else Message(Error(ErrorCode.INVALID_FAB), reply_to=question))


def _pull(fleet: Fleet, header: Message, tree: ObjectTree) -> Message:
    run_id = header.metadata.run_id
    message = pull_and_inflate_object_from_tree(
        tree,
        lambda object_id: fleet.pull_object(run_id, object_id),
        lambda object_id: fleet.confirm(run_id, object_id),
        return_type=Message,
    )
    vars(message.metadata)["_message_id"] = tree.object_id
    return message


def _push(fleet: Fleet, reply: Message) -> None:
    run_id = reply.metadata.run_id
    vars(reply.metadata)["_message_id"] = reply.object_id
    with no_object_id_recompute():
        missing, session = fleet.send(reply, get_object_tree(reply), 0.0)
        push_objects(
            get_all_nested_objects(reply),
            lambda object_id, content: fleet.push_object(run_id, session, object_id, content),
            object_ids_to_push=missing,
        )


@contextmanager
def _command(name: str, *options: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command of the installed Flower; its output goes to `log`, and it is gone when the context ends."""
    with log.open("wb") as output:
        command = [str(Path(sys.executable).with_name(name)), *options]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    with process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + START_S
    while not ready():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end_s, log.read_text()
        time.sleep(POLL_S)


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A free port for a command that takes no port 0: bound here without listening, so that nobody else is given it."""
    with socket() as held:
        held.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        held.bind((HOST, 0))
        yield held.getsockname()[1]
