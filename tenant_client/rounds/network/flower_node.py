"""The tenant's Flower node: connects to the provider's SuperLink and runs only code that is installed here.

- `serve` keeps one node connected until `stop` is set. The SuperLink is authenticated by the pinned root certificates
  over TLS 1.3, the node by an EC P-384 key that the provider has registered.
- It never fetches or executes a Flower app bundle; a run with any but the agreed, empty one gets INVALID_FAB.
- It reconnects for ever, with jittered back-off: if the SuperLink is away, was restarted (the node keeps its id), or
  refuses the node, since registration may come later. Unlike Flower's SuperNode it never ends the process, follows no
  redirect, and survives malformed queries.
- Pacing: with `tick_s` a reply leaves a whole number of ticks, at least one, after its query arrived, so its timing
  reveals the counting time in ticks only. Ticks start with the query: on a fixed grid the provider could query at
  varying offsets and average. Choose a tick longer than counting takes.
- Clocks: each request has a signed time stamp. The SuperLink refuses one (401) that is 5 s or more ahead of its clock,
  or 305 s or more behind; the node then reports REFUSED, logs the difference, and retries. The signature covers the
  time stamp only; TLS protects the rest of the request.

Not promised: that the size of a reply reveals nothing (`answer` pads it), nor that an answer survives this process. A
node whose machine was cut off may wait for twice `heartbeat_s` until the SuperLink drops its old connection. The
provider can make this process fetch and hold a large query.

    keys = make_node_key()            # keys.public_openssh goes to the provider, who registers it
    settings = NodeSettings("provider.example:8443", Path("roots.pem"), keys.private_pem, tick_s=60.0)
    serve(tenant.answer, settings, stop=threading.Event())
"""

import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum
from math import floor
from pathlib import Path
from random import SystemRandom
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from crypto.errors import PharoahError
from federation.protocol.queries import ROUND_BUNDLE_SHA256, Answer, Fault, Query
from federation.transport.flower_wire import FLEET, UNREADABLE, SignedTime, call, object_ids, pack, seal, unpack
from tenant_client.rounds.network.flower import (
    INVALID_FAB,
    ClientApp,
    ConfigRecord,
    Context,
    Error,
    Message,
    RecordDict,
    fleet_pb2,
    heartbeat_pb2,
    message_pb2,
    node_pb2,
    run_pb2,
)
from tenant_client.rounds.network.flower_app import client_app

logger = logging.getLogger(__name__)

T = TypeVar("T")
Reply = Callable[[Message], Message]
QUESTIONS = frozenset(f"query.{verb}" for verb in Query)
FIRST_PAUSE_S = 0.5
SLOWER = 1.25  # from one poll without a question to the next
REQUEST_TIMEOUT_S = 30.0
KEEP_ALIVE_S = 20.0  # less than the SuperLink's: it takes a node that ends its last connection for gone
_random = SystemRandom()


class Link(StrEnum):
    """The state of the connection to the SuperLink."""

    AWAY = "away"
    REFUSED = "refused"
    CONNECTED = "connected"


class BadNodeKey(PharoahError):
    """The file of the node's key has no valid key."""

    default_hint = "restore node.key from a backup, or make a new one with `pharoah-tenant join --new-node-key`"


class NotWanted(Exception):
    """The SuperLink no longer wants an answer, or no longer has the question: its run is over."""


class NotYet(Exception):
    """Some of a question is not at the SuperLink yet."""


class _Stopped(Exception):
    """`stop` was set while something had to be waited for."""


@dataclass(frozen=True, slots=True)
class NodeKey:
    """An EC P-384 key pair that authenticates a node."""

    private_pem: bytes = field(repr=False)
    public_openssh: str

    @classmethod
    def of(cls, private_pem: bytes) -> "NodeKey":
        """The pair that a private key belongs to; BadNodeKey if it is none."""
        public = _private_key(private_pem).public_key()
        return cls(private_pem, public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise BadNodeKey("the node's key is not a private key in PEM form") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise BadNodeKey("the node's key is not an EC P-384 private key")
    return key


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Where a node connects, as whom, and how often it asks; `address` is host:port, `root_certificates` PEM."""

    address: str
    root_certificates: Path | bytes
    private_pem: bytes = field(repr=False)
    busy_poll_s: float = 0.2
    idle_poll_s: float = 3.0
    tick_s: float = 0.0
    heartbeat_s: float = 10.0  # Flower takes 10 s to 1800 s, and misses a node after twice as long
    longest_pause_s: float = 60.0


def make_node_key() -> NodeKey:
    """A new key pair; the public half in the form that `flwr supernode register` and `SuperLink.register` take."""
    key = ec.generate_private_key(ec.SECP384R1())
    return NodeKey.of(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def until_tick(elapsed_s: float, tick_s: float) -> float:
    """Seconds to the next tick of a grid that started `elapsed_s` ago; 0 where there is no grid.

    >>> until_tick(0.0, 60.0), until_tick(59.5, 60.0), until_tick(60.0, 60.0), until_tick(7.0, 0.0)
    (60.0, 0.5, 60.0, 0.0)
    """
    return (floor(elapsed_s / tick_s) + 1) * tick_s - elapsed_s if tick_s else 0.0


def serve(
    answer: Answer,
    settings: NodeSettings,
    *,
    stop: threading.Event,
    heard: Callable[[Link, int | None], None] = lambda _link, _node_id: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] | None = None,
) -> None:
    """Answers questions until `stop` is set; `heard` is told each change of the link, with the node id if it has one.

    `sleep` defaults to waiting for `stop`. Raises BadNodeKey, or ValueError for certificates that are none.
    """
    with _connected(settings) as node:
        _Service(node, client_app(answer), settings, stop, heard, clock, sleep or stop.wait).run()


@dataclass(frozen=True, slots=True)
class Announced:
    """A question that waits for this node, and the tree of its objects."""

    run_id: int
    ttl_s: float
    tree: message_pb2.ObjectTree

    @property
    def question_id(self) -> str:
        """The id of the question's message."""
        return self.tree.object_id


class FleetNode:
    """The Fleet API of a SuperLink, as one node uses it. Every method raises httpx.HTTPError when it cannot be had."""

    def __init__(self, client: httpx.Client, public_pem: bytes, bundle_sha256: str, heartbeat_s: float) -> None:
        self.node_id: int | None = None
        self._client = client
        self._public_pem = public_pem
        self._bundle_sha256 = bundle_sha256
        self._heartbeat_s = heartbeat_s
        self._agreed_run_id: int | None = None

    def join(self) -> int:
        """Becomes connected. A node that the SuperLink believes to be connected already keeps its id."""
        request = fleet_pb2.ActivateNodeRequest(public_key=self._public_pem, heartbeat_interval=self._heartbeat_s)
        try:
            self.node_id = call(self._client, FLEET + "activate-node", request, fleet_pb2.ActivateNodeResponse).node_id
        except httpx.HTTPStatusError as error:
            if self.node_id is None or error.response.status_code == httpx.codes.UNAUTHORIZED:
                raise
        return self.node_id

    def beat(self) -> None:
        """Says that this node is still there."""
        request = heartbeat_pb2.SendNodeHeartbeatRequest(node=self._proto, heartbeat_interval=self._heartbeat_s)
        call(self._client, FLEET + "send-node-heartbeat", request, heartbeat_pb2.SendNodeHeartbeatResponse)

    def leave(self) -> None:
        """Says goodbye."""
        if self.node_id is not None:
            request = fleet_pb2.DeactivateNodeRequest(node_id=self.node_id)
            call(self._client, FLEET + "deactivate-node", request, fleet_pb2.DeactivateNodeResponse)

    def receive(self) -> Announced | None:
        """The next question, which is to be fetched."""
        request = fleet_pb2.PullMessagesRequest(node=self._proto)
        told = call(self._client, FLEET + "pull-messages", request, fleet_pb2.PullMessagesResponse)
        if not told.messages_list:
            return None
        metadata = told.messages_list[0].metadata
        return Announced(metadata.run_id, metadata.ttl, told.message_object_trees[0])

    def fetch(self, announced: Announced) -> Message:
        """The whole question; `NotYet` while some of it is missing."""
        objects = {object_id: self._download(announced.run_id, object_id) for object_id in object_ids(announced.tree)}
        request = message_pb2.ConfirmMessageReceivedRequest(
            node=self._proto, run_id=announced.run_id, message_object_id=announced.question_id
        )
        answer = message_pb2.ConfirmMessageReceivedResponse
        call(self._client, FLEET + "confirm-message-received", request, answer)
        question: Message = unpack(announced.question_id, objects, (Message, RecordDict, ConfigRecord))
        return question

    def is_agreed(self, run_id: int) -> bool:
        """Whether the run brings the one bundle without code, which is settled when it starts."""
        if run_id != self._agreed_run_id:
            request = run_pb2.GetRunRequest(node=self._proto, run_id=run_id)
            run = call(self._client, FLEET + "get-run", request, run_pb2.GetRunResponse).run
            if run.fab_hash != self._bundle_sha256:
                return False
            self._agreed_run_id = run_id
        return True

    def send(self, reply: Message, announced: Announced) -> None:
        """Uploads the reply to a question; repeating it is harmless."""
        request = fleet_pb2.PushMessagesRequest(node=self._proto)
        request.clientapp_runtime_list.append(0.0)  # how long counting took is not the provider's business
        tree = request.message_object_trees.add()
        objects = {} if reply.has_error() else pack(reply.content, tree.children.add())
        sealed = seal(reply, request.messages_list.add(), tree, reply_to=announced.question_id)
        objects[tree.object_id] = sealed
        accepted = call(self._client, FLEET + "push-messages", request, fleet_pb2.PushMessagesResponse)
        for object_id in accepted.objects_to_push:
            self._upload(announced.run_id, object_id, objects[object_id], accepted.session_id)

    def answer(self, question: Message, reply: Reply) -> Message:
        """What `reply` makes of a question, or INVALID_FAB if its run brings another bundle."""
        if self.is_agreed(question.metadata.run_id):
            return reply(question)
        return Message(Error(INVALID_FAB), reply_to=question)

    def _download(self, run_id: int, object_id: str) -> bytes:
        request = message_pb2.PullObjectRequest(node=self._proto, run_id=run_id, object_id=object_id)
        told = call(self._client, FLEET + "pull-object", request, message_pb2.PullObjectResponse)
        if not told.object_found:
            raise NotWanted
        if not told.object_available:
            raise NotYet
        return told.object_content

    def _upload(self, run_id: int, object_id: str, content: bytes, session_id: str) -> None:
        request = message_pb2.PushObjectRequest(
            node=self._proto, run_id=run_id, object_id=object_id, object_content=content, session_id=session_id
        )
        if not call(self._client, FLEET + "push-object", request, message_pb2.PushObjectResponse).stored:
            raise NotWanted

    @property
    def _proto(self) -> node_pb2.Node:
        if self.node_id is None:
            raise RuntimeError("the node has not joined")
        return node_pb2.Node(node_id=self.node_id)


@contextmanager
def _connected(settings: NodeSettings) -> Iterator[FleetNode]:
    """A node over TLS with its key; it says goodbye at the end if there is anybody to say it to."""
    roots = settings.root_certificates
    pem = roots.read_bytes() if isinstance(roots, Path) else roots
    context = ssl.create_default_context(cadata=pem.decode("ascii"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    key = _private_key(settings.private_pem)
    public_pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with httpx.Client(
        base_url=f"https://{settings.address}",
        auth=SignedTime(key),
        verify=context,
        timeout=REQUEST_TIMEOUT_S,
        limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE_S),
    ) as client:
        node = FleetNode(client, public_pem, ROUND_BUNDLE_SHA256, settings.heartbeat_s)
        try:
            yield node
        finally:
            with suppress(httpx.HTTPError):
                node.leave()


@dataclass
class _Service:
    """The loop around a node: joins, polls, answers, and waits out whatever goes wrong."""

    node: FleetNode
    app: ClientApp
    settings: NodeSettings
    stop: threading.Event
    heard: Callable[[Link, int | None], None]
    clock: Callable[[], float]
    sleep: Callable[[float], object]
    link: Link | None = None
    pause_s: float = FIRST_PAUSE_S

    def run(self) -> None:
        beating = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        beating.start()
        poll_s = self.settings.busy_poll_s
        with suppress(_Stopped):
            while not self.stop.is_set():
                try:
                    asked = self._once()
                except httpx.HTTPError as error:
                    self._hindered(error)
                    continue
                poll_s = self.settings.busy_poll_s if asked else min(poll_s * SLOWER, self.settings.idle_poll_s)
                if not asked:
                    self._wait(poll_s * _random.uniform(0.8, 1.0))
        beating.join()

    def _beat(self) -> None:
        while not self.stop.wait(self.settings.heartbeat_s / 2):  # so three beats may be lost
            if self.node.node_id is not None:
                with suppress(httpx.HTTPError):  # the loop meets the same trouble, and reports it
                    self.node.beat()

    def _once(self) -> bool:
        """One poll, and the reply to what came; whether anything came."""
        try:
            if self.link is not Link.CONNECTED:
                self.node.join()
            received = self.node.receive()
        except UNREADABLE as error:
            raise httpx.DecodingError("not an answer of a SuperLink") from error
        self.pause_s = FIRST_PAUSE_S
        self._tell(Link.CONNECTED)
        if received is None:
            return False
        try:
            self._serve(received)
        except (*UNREADABLE, NotWanted, NotYet) as error:
            logger.warning("a question is dropped: %s", type(error).__name__)
        return True

    def _serve(self, announced: Announced) -> None:
        begun_s = self.clock()
        until_s = begun_s + announced.ttl_s  # of little use to anybody later
        question = self._insist(lambda: self.node.fetch(announced), until_s)
        reply = self._insist(lambda: self.node.answer(question, self._reply), until_s)
        self._wait(until_tick(self.clock() - begun_s, self.settings.tick_s))
        self._insist(lambda: self.node.send(reply, announced), until_s)

    def _reply(self, question: Message) -> Message:
        if question.metadata.message_type not in QUESTIONS:
            return Message(Error(Fault.DECODE, "DecodeError"), reply_to=question)
        metadata = question.metadata
        return self.app(question, Context(metadata.run_id, metadata.dst_node_id, {}, RecordDict(), {}))

    def _insist(self, work: Callable[[], T], until_s: float) -> T:
        """Repeats what the network hinders: a question that was handed out is handed out once."""
        while True:
            try:
                return work()
            except NotYet:
                if self.clock() >= until_s:
                    raise
                self._wait(self.settings.busy_poll_s)
            except httpx.HTTPStatusError as error:
                if error.response.is_client_error and error.response.status_code != httpx.codes.UNAUTHORIZED:
                    raise NotWanted from error
                self._hindered_until(error, until_s)
            except httpx.HTTPError as error:
                self._hindered_until(error, until_s)

    def _hindered_until(self, error: httpx.HTTPError, until_s: float) -> None:
        if self.clock() >= until_s:
            raise error
        self._hindered(error)

    def _hindered(self, error: httpx.HTTPError) -> None:
        refused = isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error
        self._tell(Link.REFUSED if refused else Link.AWAY, _explained(error))
        self._wait(self.pause_s * _random.uniform(0.5, 1.0))
        self.pause_s = min(2 * self.pause_s, self.settings.longest_pause_s)

    def _tell(self, link: Link, why: str = "") -> None:
        if link is not self.link:
            self.link = link
            logger.log(logging.INFO if link is Link.CONNECTED else logging.WARNING, "SuperLink %s %s", link, why)
            self.heard(link, self.node.node_id)

    def _wait(self, wait_s: float) -> None:
        if wait_s > 0:
            self.sleep(wait_s)
        if self.stop.is_set():
            raise _Stopped


def _explained(error: httpx.HTTPError) -> str:
    if not isinstance(error, httpx.HTTPStatusError):
        return f"({type(error).__name__})"
    status, ahead = error.response.status_code, f"{_ahead_s(error.response):+.0f} s ahead"
    if status == httpx.codes.UNAUTHORIZED:
        return f"(401: the key is not registered, or the clocks differ too much; this one is {ahead})"
    return f"({status}: a node connected with this key less than two heartbeats ago)"


def _ahead_s(response: httpx.Response) -> float:
    """How far the own clock is ahead of the SuperLink's, by its Date header; nan without one."""
    try:
        return time.time() - parsedate_to_datetime(response.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return float("nan")
