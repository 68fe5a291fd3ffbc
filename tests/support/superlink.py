"""What tests of the transport need: a stock SuperLink, nodes in this process, TLS material, and a product SuperLink.

`superlink` starts the stock `flower-superlink` command on a free port of the loopback, without TLS. `pinned_node`
connects a node that calls a given ClientApp object and never the code that came with the run; `run_server_app` of the
product runs a ServerApp object there, and `run_stock_server_app` leaves that to the stock `flwr-serverapp` command and
a bundle of code. `certificates` and `serving` are for the product's own SuperLink and node. Everything is stopped when
its context ends, and nothing looks for the network.

    with superlink(tmp_path) as link, pinned_node(link.address, client_app(answer)):
        run_server_app(link.address, server_app(run, wanted=1))
"""

import datetime as dt
import ipaddress
import os
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest, RegisterNodeFleetResponse

from federation.protocol.queries import ROUND_BUNDLE_SHA256, Answer
from federation.transport.flower_wire import FLEET, PROTOBUF, SignedTime, call
from provider_server.rounds.network.superlink import SuperLinkSettings, bundle, claim_new_run
from simulation.run.processes import free_ports
from tenant_client.rounds.network.flower_node import (
    Announced,
    FleetNode,
    Link,
    NodeKey,
    NodeSettings,
    NotWanted,
    NotYet,
    serve,
)
from tests.support.changing import replace
from tests.support.waiting import PATIENCE_S, until

HOST = "127.0.0.1"
POLL_S = 0.05
HEARTBEAT_S = 1800.0  # at a busy moment a node may not come to say that it is there
REPOSITORY = Path(__file__).resolve().parents[2]
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_PROXY": HOST, "no_proxy": HOST}


@dataclass(frozen=True)
class SuperLink:
    """A running stock SuperLink: Fleet, Control and Runtime API on one address, host:port."""

    address: str
    log: Path


@contextmanager
def superlink(home: Path) -> Iterator[SuperLink]:
    """A SuperLink with its state in memory and everything it writes below `home`."""
    with patch.dict(os.environ, OFFLINE | {"FLWR_HOME": str(home / "flwr")}), free_ports(HOST, 1) as (port,):
        link = SuperLink(f"{HOST}:{port}", home / "superlink.log")
        options = ["--insecure", "--isolation", "process", "--disable-runtime-dependency-installation"]
        with _command("flower-superlink", *options, "--host", HOST, "--port", str(port), log=link.log) as process:
            until(lambda: _listens(link, process), "the SuperLink runs")
            yield link


@contextmanager
def pinned_node(address: str, app: ClientApp | None, *, fab_hash: str = ROUND_BUNDLE_SHA256) -> Iterator[int]:
    """A connected node of a stock SuperLink; yields its id. Without an app it never answers.

    Whatever the app raises is raised when the context ends.
    """
    stop = threading.Event()
    key = ec.generate_private_key(ec.SECP384R1())
    with (
        httpx.Client(base_url=f"http://{address}", auth=SignedTime(key), timeout=PATIENCE_S) as client,
        ThreadPoolExecutor(1) as worker,
    ):
        pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        register = RegisterNodeFleetRequest(public_key=pem)
        call(client, FLEET + "register-node", register, RegisterNodeFleetResponse)
        node = FleetNode(client, pem, fab_hash, HEARTBEAT_S)
        node_id = node.join()
        answering = worker.submit(_answer, node, app, stop) if app else None
        try:
            yield node_id
        finally:
            stop.set()
            if answering:
                answering.result(PATIENCE_S)
            with suppress(httpx.HTTPStatusError):  # on a busy machine the SuperLink may have given it up before
                node.leave()


def _answer(node: FleetNode, app: ClientApp, stop: threading.Event) -> None:
    contexts: dict[int, Context] = {}

    def reply(question: Message) -> Message:
        run_id = question.metadata.run_id
        context = contexts.setdefault(run_id, Context(run_id, node.node_id or 0, {}, RecordDict(), {}))
        return app(question, context)

    while not stop.is_set():
        if announced := node.receive():
            answer = node.answer(_fetched(node, announced), reply)
            # Two equal answers share their content: the SuperLink may have all of the second from the first's upload,
            # and forget it, before the second is through. `serve` drops that error too.
            with suppress(NotWanted):
                node.send(answer, announced)
        else:
            stop.wait(POLL_S)


def _fetched(node: FleetNode, announced: Announced) -> Message:
    while True:
        with suppress(NotYet):
            return node.fetch(announced)
        time.sleep(POLL_S)


def run_stock_server_app(address: str, module: str, log: Path) -> None:
    """Runs the ServerApp `app` of this Python source as Flower does: as a bundle, in a process of its own."""
    token = claim_new_run(address, bundle(module))
    options = ["--insecure", "--runtime-api-address", address, "--token", token]
    here = {"PYTHONPATH": str(REPOSITORY)}
    with patch.dict(os.environ, here), _command("flwr-serverapp", *options, log=log) as stock:
        assert stock.wait(PATIENCE_S) == 0, log.read_text()


# ---- the product's SuperLink and node


@dataclass(frozen=True)
class Certificates:
    """An authority and a server certificate for the loopback, as PEM files."""

    authority: Path
    certificate: Path
    key: Path

    def settings(self, state: Path, *, port: int = 0) -> SuperLinkSettings:
        """A SuperLink on the loopback with this certificate."""
        return SuperLinkSettings(state, state.with_name("control.sock"), self.certificate, self.key, HOST, port)


def certificates(home: Path) -> Certificates:
    """A new authority with one certificate for 127.0.0.1, below `home`."""
    home.mkdir(parents=True, exist_ok=True)
    files = Certificates(home / "roots.pem", home / "server.pem", home / "server.key")
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer, subject = _name("authority"), _name(HOST)
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    usage = x509.KeyUsage(*(letter == "s" for letter in "-----ss--"))  # signs certificates and revocation lists
    identity = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = _certificate(issuer, issuer, authority).add_extension(constraints, critical=True)
    root = root.add_extension(usage, critical=True).add_extension(identity, critical=False)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    server = _certificate(subject, issuer, key).add_extension(address, critical=False)
    server = server.add_extension(issued_by, critical=False)
    files.authority.write_bytes(root.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM))
    files.certificate.write_bytes(server.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM))
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    hour = dt.timedelta(hours=1)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - hour).not_valid_after(now + hour)


# ---- requests, header and all


def headers(key: NodeKey, *, claimed: NodeKey | None = None, ahead_s: float = 0.0) -> dict[str, str]:
    """The signed headers of a node, whose clock may be wrong and who may claim another's public key."""
    private, public = (load_pem_private_key(one.private_pem, None) for one in (key, claimed or key))
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    stamp = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=ahead_s)).isoformat()
    signature = private.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    named = public.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    names = ("flwr-public-key", "flwr-timestamp", "flwr-signature")
    return PROTOBUF | dict(zip(names, (b64encode(named).decode(), stamp, b64encode(signature).decode()), strict=True))


def public_pem(key: NodeKey) -> bytes:
    """A node's public key, as Flower keeps it."""
    private = load_pem_private_key(key.private_pem, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def activation(key: NodeKey) -> bytes:
    """What a node says first."""
    request = ActivateNodeRequest(public_key=public_pem(key), heartbeat_interval=30.0)
    return bytes(request.SerializeToString())


def post(address: str, pem: Certificates, path: str, content: bytes, with_headers: dict[str, str]) -> int:
    """The status of the answer, over a connection of its own."""
    context = ssl.create_default_context(cafile=pem.authority)
    with httpx.Client(verify=context, trust_env=False, timeout=PATIENCE_S) as client:
        return client.post(f"https://{address}{path}", content=content, headers=with_headers).status_code


# ---- the node of the product


@dataclass
class Served:
    """What became of a node's link to the SuperLink."""

    heard: list[tuple[Link, int | None]] = field(default_factory=list)

    def wait_for(self, link: Link, *, count: int = 1) -> int | None:
        """Waits until the link was in this state so many times; the node id at the last."""

        def found() -> list[int | None]:
            return [node_id for state, node_id in self.heard if state is link]

        until(lambda: len(found()) >= count, f"{link} {count} times")
        return found()[count - 1]


@contextmanager
def serving(answer: Answer, settings: NodeSettings, **clocks: Callable[..., Any]) -> Iterator[Served]:
    """The product's node in a thread, polling fast; `clocks` may be its `clock` and `sleep`."""
    stop, served = threading.Event(), Served()
    quick = replace(settings, busy_poll_s=POLL_S, idle_poll_s=2 * POLL_S, longest_pause_s=4 * POLL_S)

    def heard(link: Link, node_id: int | None) -> None:
        served.heard.append((link, node_id))

    with patch.dict(os.environ, OFFLINE), ThreadPoolExecutor(1) as worker:
        running = worker.submit(serve, answer, quick, stop=stop, heard=heard, **clocks)
        try:
            yield served
        finally:
            stop.set()
            running.result(PATIENCE_S)


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
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _listens(link: SuperLink, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, link.log.read_text()
    return f"running on http://{link.address}" in link.log.read_text()
