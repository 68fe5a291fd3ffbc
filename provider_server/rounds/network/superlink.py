"""The provider's SuperLink, inside the provider's process: two listeners over one Flower app.

The tenants' listener speaks TLS 1.3 and passes the Fleet API and nothing else: a POST to one of its exact paths, within
a limit of bytes. Who speaks is checked by Flower: a request is signed with the EC P-384 key of a registered node, and
a time stamp of 5 s ahead or 305 s behind this clock is refused. Flower would let a registered node put a message in
another node's name, or a question of its own, in front of it; here a node can only reply, and only as itself.
All of Flower, and under `/pharoah/` an app of ours, is at a Unix socket of mode 0600: the account that the provider
runs under may use it, and no other account of the machine, nor a browser on it. Flower's own clients are pointed there.

Node authentication needs no TLS that Flower knows of: `create_app` takes a flag, and its command refuses the flag
without TLS only because the signature does not cover the request. That is why the tenants' listener has no plain form.

Registered nodes are kept in the SQLite file `state`: after a restart, or a SIGKILL, nodes come back under their ids.
Runs that were left unfinished are stopped when the SuperLink starts. The process runs none of Flower's commands, and
so none of their telemetry, update checks and installing of dependencies, whatever the environment says; the
environment's proxies are not used for the loopback. One process holds one SuperLink, and `run` runs one app at a time.

Whoever is silent or slow at the tenants' port is cut off, and takes no place of a registered node
(`provider_server.rounds.network.connections`).

Not promised: to withstand a flood of whole handshakes. A node learns the id and bundle of any run whose id it guesses.

    files = map(Path, ("link.sqlite", "link.sock", "server.pem", "server.key"))
    with SuperLink(SuperLinkSettings(*files)) as link:
        link.register(public_openssh)
        link.run(server_app(federated_week, wanted=20))
"""

import hashlib
import logging
import socket
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from zipfile import ZipFile, ZipInfo

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError
from starlette.middleware import Middleware

from crypto.errors import PharoahError, Refusal
from federation.base.meanwhile import meanwhile
from federation.base.web.guard import Asgi
from federation.transport.flower_wire import CONTROL, RUNTIME, TASK_TOKEN_HEADER, call
from provider_server.rounds.network.connections import DEFAULT_LIMITS, ConnectionLimits
from provider_server.rounds.network.flower import (
    COMPLETED,
    FAILED,
    IDLE_LAYERS,
    SERVER_APP,
    UNFINISHED,
    Context,
    NoOpControlAuthnPlugin,
    RecordDict,
    ServerApp,
    control_pb2,
    create_app,
    fab_pb2,
    runtime_pb2,
)
from provider_server.rounds.network.flower_app import task_identity
from provider_server.rounds.network.link_grid import LinkGrid
from provider_server.rounds.network.listeners import Listener, fleet_only, private_socket, with_ours

logger = logging.getLogger(__name__)

At = Path | str  # where a SuperLink is in plain HTTP: its Unix socket, or host:port

OPERATOR = ConnectionLimits(strangers=1024, of_one_address=1024, begin_s=60.0)
ANSWER_S = 30.0
BEAT_S = 10.0  # Flower gives a task up that is not heard of for a minute
BUNDLE = """[project]
name = "pharoah-round"
version = "1.0.0"

[tool.flwr.app]
publisher = "pharoah"

[tool.flwr.app.components]
serverapp = "bundled:app"
clientapp = "bundled:app"

[tool.flwr.app.config]
"""
BUNDLE_DATE = (2024, 10, 1, 0, 0, 0)  # of each file in a bundle, as Flower has it
NO_CODE = "app = None  # only installed code runs"


class UnusableNodeKey(Refusal):
    """A public key that no node can be registered under."""

    default_hint = "ask the tenant for a new card (`pharoah-tenant join --new-node-key`), and enrol it"


class RunFailed(PharoahError):
    """Flower does not do what the provider asked of it."""

    default_hint = "it is tried again; if it lasts, look at the load and the disk of this machine"


@contextmanager
def _asking() -> Iterator[None]:
    """RunFailed where Flower gives no answer, or says that it cannot: as when its database is locked for seconds."""
    try:
        yield
    except httpx.HTTPError as error:
        raise RunFailed(f"the SuperLink does not do what it was asked: {error}") from error


@dataclass(frozen=True, slots=True)
class SuperLinkSettings:
    """Files and addresses; port 0 is any free one. `certificate` may hold a chain, `key` is in PEM too.

    `control` is where the Unix socket will be.
    """

    state: Path
    control: Path
    certificate: Path
    key: Path
    host: str = "0.0.0.0"  # noqa: S104  # tenants come from elsewhere
    port: int = 0
    largest_object_bytes: int = 64 << 20
    limits: ConnectionLimits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """A node that may connect, and whether it does."""

    node_id: int
    public_openssh: str
    online: bool


class SuperLink:
    """Runs from its creation until it is closed; `address` is host:port, `control` the path of the Unix socket."""

    def __init__(self, settings: SuperLinkSettings, *, ours: Asgi | None = None) -> None:
        settings.state.touch(mode=0o600)
        app = _flower_app(settings.state)
        links = self._links = app.state.linkstate_factory.state()
        self._one_run = threading.Lock()
        self.control = settings.control
        self._operator = Listener(with_ours(app, ours), private_socket(settings.control), None, OPERATOR)
        try:
            self._stop_what_was_left(links.get_run_info(statuses=UNFINISHED))
            door = fleet_only(
                _without_idle_layers(app),
                lambda pem: links.get_node_id_by_public_key(pem) is not None,
                self._miss,
                settings.largest_object_bytes,
            )
            files = (settings.certificate, settings.key)
            listening = socket.create_server((settings.host, settings.port))
            self._tenants = Listener(door, listening, files, settings.limits, self._miss)
        except BaseException:
            self._operator.close()
            raise
        self.address = self._tenants.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops both listeners; connected nodes start to look for it again."""
        self._tenants.close()
        self._operator.close()

    def register(self, public_openssh: str) -> int:
        """Lets a node in; its id. Repeating it changes nothing. UnusableNodeKey for a key once unregistered."""
        pem = _pem(public_openssh)
        known = {_pem(node.public_openssh): node.node_id for node in self.nodes()}
        if pem in known:
            return known[pem]
        request = control_pb2.RegisterNodeRequest(public_key=pem)
        with client_at(self.control) as control:
            try:
                return call(control, CONTROL + "register-node", request, control_pb2.RegisterNodeResponse).node_id
            except httpx.HTTPStatusError as error:
                raise UnusableNodeKey("this public key was unregistered and cannot be used again") from error

    def unregister(self, public_openssh: str) -> None:
        """Shuts a node out, for good: its key cannot be registered again. Nothing for a key that is not registered."""
        pem = _pem(public_openssh)
        with _asking(), client_at(self.control) as control:
            for node in self.nodes():
                if _pem(node.public_openssh) == pem:
                    request = control_pb2.UnregisterNodeRequest(node_id=node.node_id)
                    call(control, CONTROL + "unregister-node", request, control_pb2.UnregisterNodeResponse)

    def nodes(self) -> tuple[RegisteredNode, ...]:
        """All that are registered."""
        return registered_nodes(self.control)

    def run(self, app: ServerApp) -> None:
        """Runs `app` in this thread, as `run_server_app` does, after any other that is running here."""
        with self._one_run, _asking():
            run_server_app(self.control, app)

    def _miss(self, pem: bytes) -> None:
        """A node has gone without a word, as when it was killed: nobody waits for it, and it may come back at once.

        Flower would take it for connected for two heartbeats, and refuse it as long. A node that is there after all
        says so with its next heartbeat.
        """
        try:
            node_id = self._links.get_node_id_by_public_key(pem)
            if node_id is not None:
                self._links.deactivate_node(node_id)
        except SQLAlchemyError as error:  # a locked database: then it is missed after two heartbeats
            logger.warning("a node that has gone is not taken note of: %s", type(error).__name__)

    def _stop_what_was_left(self, runs: Iterable[Any]) -> None:
        with client_at(self.control) as control:
            for run in runs:
                logger.warning("stopped unfinished run %d", run.run_id)
                request = control_pb2.StopRunRequest(run_id=run.run_id)
                call(control, CONTROL + "stop-run", request, control_pb2.StopRunResponse)


def registered_nodes(at: At) -> tuple[RegisteredNode, ...]:
    """All nodes that are registered at a SuperLink of this machine, which may run in another process."""
    with _asking(), client_at(at) as control:
        request = control_pb2.ListNodesRequest()
        infos = call(control, CONTROL + "list-nodes", request, control_pb2.ListNodesResponse).nodes_info
    return tuple(
        RegisteredNode(info.node_id, _openssh(info.public_key), info.status == "online")
        for info in infos
        if info.status != "unregistered"
    )


# ---- a run


def round_bundle() -> fab_pb2.Fab:
    """The one app bundle that runs are started with: no code, the same bytes everywhere."""
    return bundle(NO_CODE)


@cache
def bundle(module: str) -> fab_pb2.Fab:
    """A Flower app bundle of one module; equal sources have equal hashes."""
    files = {"pyproject.toml": BUNDLE.encode(), "bundled.py": module.encode()}
    listed = (f"{name},{hashlib.sha256(content).hexdigest()},{8 * len(content)}" for name, content in files.items())
    archive = BytesIO()
    with ZipFile(archive, "w") as zipped:
        for name, content in (files | {".info/CONTENT": "\n".join(listed).encode()}).items():
            zipped.writestr(ZipInfo(name, BUNDLE_DATE), content)
    return fab_pb2.Fab(hash_str=hashlib.sha256(archive.getvalue()).hexdigest(), content=archive.getvalue())


def run_server_app(at: At, app: ServerApp, *, fab: fab_pb2.Fab | None = None) -> None:
    """Runs `app` in this thread as the task of a new run; what it raises marks the run as failed and is raised here.

    `fab` is another bundle than the agreed one, which nodes refuse.
    """
    token = claim_new_run(at, fab or round_bundle())
    with client_at(at, token) as client:
        request = runtime_pb2.PullTaskInputRequest()
        task = call(client, RUNTIME + "pull-task-input", request, runtime_pb2.PullTaskInputResponse)
        run_id, node_id = task.run.run_id, task.context.node_id
        grid: Any = LinkGrid(client, run_id)  # a part of Flower's grids, which is all that our apps use
        with _heartbeat(client):
            try:
                with task_identity(run_id, node_id, task.task_id):
                    app(grid, Context(run_id, node_id, {}, RecordDict(), {}))
            except BaseException:
                with suppress(httpx.HTTPError):
                    _finish(client, FAILED)
                raise
            _finish(client, COMPLETED)


def claim_new_run(at: At, fab: fab_pb2.Fab) -> str:
    """Starts a run and takes its task, as `flower-superexec` would; returns the token of the task.

    Tasks of other runs that nobody has taken stand in its way, and are ended as failed.
    """
    start, acquire = control_pb2.StartRunRequest(fab=fab), runtime_pb2.AcquireTaskRequest()
    acquire.supported_task_types.append(SERVER_APP)
    with client_at(at) as client:
        run_id = call(client, CONTROL + "start-run", start, control_pb2.StartRunResponse).run_id
        while True:
            claim = call(client, RUNTIME + "acquire-task", acquire, runtime_pb2.AcquireTaskResponse)
            if not claim.token:
                raise RunFailed(f"run {run_id} has no task", hint=f"another program takes tasks at {at}; stop it")
            if claim.task.run_id == run_id:
                return claim.token
            with client_at(at, claim.token) as other:
                _finish(other, FAILED)


def _finish(client: httpx.Client, status: str) -> None:
    request = runtime_pb2.PushTaskOutputRequest(sub_status=status)
    call(client, RUNTIME + "push-task-output", request, runtime_pb2.PushTaskOutputResponse)


def _heartbeat(client: httpx.Client) -> AbstractContextManager[None]:
    """Says that the task is worked on; a run that was stopped shows in the grid, not here."""
    request, stop = runtime_pb2.SendTaskHeartbeatRequest(), threading.Event()

    def beat() -> None:
        while not stop.wait(BEAT_S):
            with suppress(httpx.HTTPError):
                call(client, RUNTIME + "send-task-heartbeat", request, runtime_pb2.SendTaskHeartbeatResponse)

    return meanwhile(beat, stop.set, "task heartbeat", None)


def client_at(at: At, token: str = "") -> httpx.Client:
    """A client at a Unix socket or host:port, with a task's token, and no proxy between this process and itself."""
    is_socket = isinstance(at, Path)
    return httpx.Client(
        base_url="http://superlink" if is_socket else f"http://{at}",
        headers={TASK_TOKEN_HEADER: token} if token else {},
        transport=httpx.HTTPTransport(uds=str(at) if is_socket else None),
        trust_env=False,
        timeout=ANSWER_S,
    )


# ---- keys


def _pem(public_openssh: str) -> bytes:
    try:
        key = load_ssh_public_key(public_openssh.encode())
    except ValueError as error:
        raise UnusableNodeKey("not a public key in OpenSSH format") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UnusableNodeKey("this public key is not on the curve P-384")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _openssh(pem: bytes) -> str:
    return load_pem_public_key(pem).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


# ---- Flower's app


def _without_idle_layers(app: FastAPI) -> FastAPI:
    """The same app without the layers that do nothing for nodes: they take a quarter of each request's time."""
    for_nodes = copy(app)
    for_nodes.user_middleware = [layer for layer in app.user_middleware if _name(layer) not in IDLE_LAYERS]
    for_nodes.middleware_stack = None
    return for_nodes


def _name(layer: Middleware) -> str:
    return str(getattr(layer.cls, "__name__", ""))


def _flower_app(state: Path) -> FastAPI:
    """Flower's app with node authentication; nothing of its configuration is taken from the environment."""
    settings: Any = SimpleNamespace(
        database=str(state.resolve()),
        enable_supernode_auth=True,
        authn_plugin=NoOpControlAuthnPlugin(),
        fleet_api_type="grpc-rere",
        simulation=False,
        superexec_auth_secret=None,
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        artifact_provider=None,
    )
    lifespan: Any = lambda _settings, _states: None  # noqa: E731  # its servers are not started here
    logging.getLogger("flwr").setLevel(logging.WARNING)  # it has a line for each message and each poll
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No path_separator found", DeprecationWarning)  # Flower with a newer alembic
        return create_app(settings, lifespan)
