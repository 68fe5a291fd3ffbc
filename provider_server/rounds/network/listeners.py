"""What listens for a provider's SuperLink: a server in a thread, the tenants' door, and the operator's.

`fleet_only` passes a POST of a registered node to one of the exact paths of Flower's Fleet API, with a body within
limits, and nothing else: no other spelling of a path, no Control or Runtime API. The signature in the header is checked
before the body is read, and gives its connection a place that strangers cannot take
(`connections` beside it). Flower would let a registered node put a message in another node's name,
or a question of its own, in front of it; here a node can only reply, and only as itself. `with_ours` puts an app of
ours beside Flower's. A `Listener` with a certificate speaks TLS 1.3, one without plain HTTP. `private_socket` is a
door for one account: the file of a Unix socket that its owner alone may open (mode 0600). Who may not write to it
cannot connect, whatever it says; there is no host name to be deceived about, and no token.

Not promised: to withstand a flood. A stranger costs a handshake, and a signature if it names a registered key.
"""

import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvicorn
from google.protobuf.message import DecodeError as ProtobufDecodeError
from starlette.concurrency import run_in_threadpool

from crypto.errors import PharoahError
from federation.base.web.guard import Asgi, Event, Receive, Scope, Send
from federation.transport.flower_wire import FLEET, claimed_key, is_signed
from provider_server.rounds.network.connections import CONNECTION, ConnectionLimits, Places, TimedProtocol
from provider_server.rounds.network.flower import fleet_pb2

OURS = "/pharoah/"
ACTIVATE, PUSH_OBJECT, PUSH_MESSAGES = (FLEET + name for name in ("activate-node", "push-object", "push-messages"))
PASSED = frozenset(
    {ACTIVATE, PUSH_OBJECT, PUSH_MESSAGES}
    | {
        FLEET + name
        for name in (
            "deactivate-node",
            "send-node-heartbeat",
            "pull-messages",
            "pull-object",
            "confirm-message-received",
            "get-run",
            "get-fab",
        )
    }
)
SMALL_BODY = 1 << 20
STRANGERS_BODY = 1 << 12
LONGEST_PATH = 107  # bytes, of a Unix socket
START_S = 30.0
KEEP_ALIVE_S = 30  # longer than an idle node's poll: one TLS handshake per node, not per poll


class CannotListen(PharoahError):
    """A server did not come up."""


def with_ours(flower: Asgi, ours: Asgi | None) -> Asgi:
    """Flower's app, and ours under `/pharoah/`."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        chosen = ours if ours and scope["path"].startswith(OURS) else flower
        await chosen(scope, receive, send)

    return app


def fleet_only(
    flower: Asgi, is_registered: Callable[[bytes], bool], gone: Callable[[bytes], None], largest_object_bytes: int
) -> Asgi:
    """Passes what tenants may say. A body is read here, up to the limit, since Flower reads without one.

    `is_registered` tells whether a public key (PEM) is that of a node. `gone` is told one whose node joins by its only
    connection: what Flower may think to be connected with that key was a program that has ended.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path not in PASSED or scope["raw_path"] != path.encode() or scope["method"] != "POST":
            await _refuse(send, 404)
            return
        if not await _is_known(scope, is_registered):
            await _body(receive, STRANGERS_BODY)  # unread, it would reset the connection before its sender sees why
            await _refuse(send, 401)
            return
        body = await _body(receive, largest_object_bytes if path == PUSH_OBJECT else SMALL_BODY)
        if body is None or (path == PUSH_MESSAGES and not _is_own_reply(body)):
            await _refuse(send, 413 if body is None else 403)
            return
        if path == ACTIVATE and scope[CONNECTION].is_only_one:
            await run_in_threadpool(gone, scope[CONNECTION].key)
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Event:
            return waiting.pop() if waiting else await receive()

        await flower(scope, replay, send)

    return app


async def _is_known(scope: Scope, is_registered: Callable[[bytes], bool]) -> bool:
    """Whether a registered node signed the header of this request, or of one before it on this connection."""
    connection: TimedProtocol = scope[CONNECTION]
    headers = dict(scope["headers"])
    if connection.key and claimed_key(headers) == connection.key:
        return True
    key = await run_in_threadpool(_signer, headers, is_registered)
    if key:
        connection.prove(key)
    return bool(key)


def _signer(headers: dict[bytes, bytes], is_registered: Callable[[bytes], bool]) -> bytes:
    """The public key of the registered node that signed the time in these headers; empty for anybody else.

    Flower, which looks at each request again, has the same window.
    """
    key = claimed_key(headers)
    return key if is_registered(key) and is_signed(headers) else b""


async def _body(receive: Receive, most_bytes: int) -> bytes | None:
    """The whole body; None if it is longer, or its sender is gone."""
    body = bytearray()
    while len(body) <= most_bytes:
        event = await receive()
        if event["type"] != "http.request":
            return None
        body += event.get("body", b"")
        if not event.get("more_body", False):
            return bytes(body) if len(body) <= most_bytes else None
    return None


def _is_own_reply(body: bytes) -> bool:
    """Whether a push is one reply of the node that signs it; Flower checks neither."""
    try:
        asked = fleet_pb2.PushMessagesRequest.FromString(body)
    except ProtobufDecodeError:
        return False
    said = [message.metadata for message in asked.messages_list]
    return len(said) == 1 and said[0].src_node_id == asked.node.node_id and bool(said[0].reply_to_message_id)


async def _refuse(send: Send, status: int) -> None:
    whole = [(b"connection", b"close"), (b"content-length", b"0")]  # whole, though what is unread resets the connection
    await send({"type": "http.response.start", "status": status, "headers": whole})
    await send({"type": "http.response.body", "body": b""})


def private_socket(path: Path) -> socket.socket:
    """A listening Unix socket that no other account can connect to; CannotListen while another process listens there.

    What a killed process left behind is replaced. CannotListen, too, where its path is longer than Unix allows.
    """
    if len(os.fsencode(path)) > LONGEST_PATH:
        what = f"no Unix socket has a path of more than {LONGEST_PATH} bytes: {path}"
        raise CannotListen(what, hint="choose a home with a shorter path")
    _remove_left_socket(path)
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)  # the file is never wider than 0600, not even between bind and a chmod
    try:
        listening.bind(str(path))
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(before)
    listening.listen()
    return listening


def _remove_left_socket(path: Path) -> None:
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX) as attempt:
        try:
            attempt.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise CannotListen(f"another process listens on {path}", hint="stop the other `pharoah-provider serve`")


class Listener:
    """A uvicorn server in a thread of its own, with an event loop and worker threads of its own.

    It closes `listening`, also where it cannot be served. `address` is host:port, or the path of a Unix socket, whose
    file is removed at the end. `gone` is told the key of a node whose last connection that node has ended.
    """

    def __init__(
        self,
        app: Asgi,
        listening: socket.socket,
        pem: tuple[Path, Path] | None,
        limits: ConnectionLimits,
        gone: Callable[[bytes], None] = lambda key: None,
    ) -> None:
        try:
            tls = _tls(*pem) if pem else None
        except (OSError, ssl.SSLError):  # a certificate or key that is none, or that does not fit
            listening.close()
            raise
        config = uvicorn.Config(
            app,
            http=partial(TimedProtocol, places=Places(limits, gone), limits=limits, tls=tls),  # type: ignore[arg-type]
            ws="none",
            loop="asyncio",  # uvloop's reads from a new connection before its protocol can ask for TLS
            lifespan="off",  # Flower's would start servers that the environment may ask for
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=5,
        )
        name = listening.getsockname()
        self._file = Path(name) if listening.family is socket.AF_UNIX else None
        if self._file is None:  # asyncio does it for sockets that say IPPROTO_TCP, which those of create_server do not
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = name if self._file else f"{name[0]}:{name[1]}"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True)
        self._thread.start()
        end_s = time.monotonic() + START_S
        while not self._server.started:
            if time.monotonic() > end_s or not self._thread.is_alive():
                raise CannotListen(f"cannot listen on {self.address}", hint="see the log of uvicorn")
            time.sleep(0.01)

    def close(self) -> None:
        """Ends what is being answered, and the thread."""
        self._server.should_exit = True
        self._thread.join()
        if self._file:
            self._file.unlink(missing_ok=True)


def _tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    return context
