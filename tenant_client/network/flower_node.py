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
from contextlib import closing, contextmanager, suppress
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
from google.protobuf.message import DecodeError as ProtobufDecodeError

from crypto.errors import PharoahError
from federation.protocol.queries import ROUND_BUNDLE_SHA256, Answer, Fault, Query
from tenant_client.network.flower import (
    ActivateNodeRequest,
    ClientApp,
    Context,
    DeactivateNodeRequest,
    Error,
    ErrorCode,
    FleetHttpClient,
    GetRunRequest,
    Message,
    Node as NodeProto,
    NodeAuthHttpInterceptor,
    ObjectPullError,
    ObjectPushError,
    ObjectTree,
    PullMessagesRequest,
    PushMessagesRequest,
    RecordDict,
    RuntimeVersionHttpInterceptor,
    SendNodeHeartbeatRequest,
    get_all_nested_objects,
    get_object_tree,
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
    message_from_proto,
    message_to_proto,
    no_object_id_recompute,
    pull_and_inflate_object_from_tree,
    push_objects,
    remove_content_from_message,
)
from tenant_client.network.flower_app import client_app

logger = logging.getLogger(__name__)

T = TypeVar("T")
Reply = Callable[[Message], Message]
QUESTIONS = frozenset(f"query.{verb}" for verb in Query)
UNREADABLE = (ProtobufDecodeError, ValueError, TypeError, LookupError, AttributeError, RecursionError)  # by inflating
LOST = (ObjectPullError, ObjectPushError)  # its run is over, or the SuperLink no longer has it
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

    default_hint = "restore node.key from a backup, or make a new one with `pharoah-tenant enrol --new-node-key`"


class _NotWanted(Exception):
    """The SuperLink no longer wants an answer: its run is over."""


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


class FleetNode:
    """The Fleet API of a SuperLink, as one node uses it. Every method raises httpx.HTTPError when it cannot be had."""

    def __init__(self, client: FleetHttpClient, public_pem: bytes, bundle_sha256: str, heartbeat_s: float) -> None:
        self.node_id: int | None = None
        self._client = client
        self._public_pem = public_pem
        self._bundle_sha256 = bundle_sha256
        self._heartbeat_s = heartbeat_s
        self._agreed_run_id: int | None = None

    def join(self) -> int:
        """Becomes connected. A node that the SuperLink believes to be connected already keeps its id."""
        asked = ActivateNodeRequest(public_key=self._public_pem, heartbeat_interval=self._heartbeat_s)
        try:
            self.node_id = self._client.ActivateNode(asked).node_id
        except httpx.HTTPStatusError as error:
            if self.node_id is None or error.response.status_code == httpx.codes.UNAUTHORIZED:
                raise
        return self.node_id

    def beat(self) -> None:
        """Says that this node is still there."""
        self._client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self._proto, heartbeat_interval=self._heartbeat_s))

    def leave(self) -> None:
        """Says goodbye."""
        if self.node_id is not None:
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node_id))

    def receive(self) -> tuple[Message, ObjectTree] | None:
        """The header of the next question, with what there is to fetch for it."""
        got = self._client.PullMessages(PullMessagesRequest(node=self._proto))
        return (message_from_proto(got.messages_list[0]), got.message_object_trees[0]) if got.messages_list else None

    def fetch(self, header: Message, tree: ObjectTree) -> Message:
        """The whole question."""
        run_id = header.metadata.run_id
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(self._client.PullObject, self._proto, run_id),
            make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._proto, run_id),
            return_type=Message,
        )
        vars(message.metadata)["_message_id"] = tree.object_id
        return message

    def is_agreed(self, run_id: int) -> bool:
        """Whether the run brings the one bundle without code, which is settled when it starts."""
        if run_id != self._agreed_run_id:
            run = self._client.GetRun(GetRunRequest(node=self._proto, run_id=run_id)).run
            if run.fab_hash != self._bundle_sha256:
                return False
            self._agreed_run_id = run_id
        return True

    def send(self, reply: Message) -> None:
        """Uploads a reply; repeating it is harmless."""
        run_id = reply.metadata.run_id
        vars(reply.metadata)["_message_id"] = reply.object_id
        with no_object_id_recompute():
            accepted = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._proto,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[0.0],  # how long counting took is not the provider's business
                )
            )
            push = make_push_object_fn_protobuf(self._client.PushObject, self._proto, run_id, accepted.session_id)
            push_objects(get_all_nested_objects(reply), push, object_ids_to_push=set(accepted.objects_to_push))

    def answer(self, question: Message, reply: Reply) -> Message:
        """What `reply` makes of a question, or INVALID_FAB if its run brings another bundle."""
        if self.is_agreed(question.metadata.run_id):
            return reply(question)
        return Message(Error(ErrorCode.INVALID_FAB), reply_to=question)

    @property
    def _proto(self) -> NodeProto:
        if self.node_id is None:
            raise RuntimeError("the node has not joined")
        return NodeProto(node_id=self.node_id)


@contextmanager
def _connected(settings: NodeSettings) -> Iterator[FleetNode]:
    """A node over TLS with its key; it says goodbye at the end if there is anybody to say it to."""
    roots = settings.root_certificates
    pem = roots.read_bytes() if isinstance(roots, Path) else roots
    context = ssl.create_default_context(cadata=pem.decode("ascii"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    key = _private_key(settings.private_pem)
    public = key.public_key()
    client = FleetHttpClient(
        f"https://{settings.address}",
        interceptors=(RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(key, public)),
        verify=context,
    )
    client._client.close()
    client._client = httpx.Client(
        verify=context, timeout=REQUEST_TIMEOUT_S, limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE_S)
    )
    public_pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with closing(client):
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
            self._serve(*received)
        except (*UNREADABLE, *LOST, _NotWanted) as error:
            logger.warning("a question is dropped: %s", type(error).__name__)
        return True

    def _serve(self, header: Message, tree: ObjectTree) -> None:
        begun_s = self.clock()
        until_s = begun_s + header.metadata.ttl  # of little use to anybody later
        question = self._insist(lambda: self.node.fetch(header, tree), until_s)
        reply = self._insist(lambda: self.node.answer(question, self._reply), until_s)
        self._wait(until_tick(self.clock() - begun_s, self.settings.tick_s))
        self._insist(lambda: self.node.send(reply), until_s)

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
            except httpx.HTTPStatusError as error:
                if error.response.is_client_error and error.response.status_code != httpx.codes.UNAUTHORIZED:
                    raise _NotWanted from error
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
