"""TLS 1.3 and nothing below: at real servers, with a client that can do no better, and with a server that can not."""

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from crypto.errors import Unreachable
from federation.base.tls import CIPHER_SUITES
from federation.transport.certificates import Certificate, make_certificate
from federation.transport.client import Peer
from federation.transport.server import Server, serve

HOST, PATH = "127.0.0.1", "/pharoah.Test/Ask"
REPOSITORY = Path(__file__).resolve().parents[2]
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@cache
def own() -> Certificate:
    return make_certificate([HOST], datetime.now(UTC))


@pytest.fixture
def server() -> Iterator[Server]:
    with serve("pharoah.Test", {PATH: bytes}, f"{HOST}:0", own().certificate_pem, own().key_pem) as served:
        yield served


def agreed(port: int, highest: ssl.TLSVersion) -> str | None:
    """The version that a client speaks with the server, which can do `highest` and everything below."""
    context = ssl.create_default_context(cadata=own().certificate_pem.decode())
    context.set_alpn_protocols(["h2"])
    context.maximum_version = highest
    with (
        socket.create_connection((HOST, port), timeout=10.0) as line,
        context.wrap_socket(line, server_hostname=HOST, do_handshake_on_connect=False) as secured,
    ):
        secured.do_handshake()
        return secured.version()


def test_a_server_speaks_tls_1_3_alone(server: Server) -> None:
    assert agreed(server.port, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    with pytest.raises(OSError, match=r"EOF|reset|alert"):
        agreed(server.port, ssl.TLSVersion.TLSv1_2)


@pytest.mark.parametrize("highest", VERSIONS)
def test_a_caller_speaks_tls_1_3_alone(tmp_path: Path, highest: ssl.TLSVersion) -> None:
    """Even with a server that has the pinned key and would speak 1.2: the handshake with 1.3 succeeds, and no other."""
    versions: list[str | None] = []
    with socket.create_server((HOST, 0)) as listening:
        taking = threading.Thread(target=take_one, args=(listening, context_of_server(tmp_path, highest), versions))
        taking.start()
        with (
            Peer(f"{HOST}:{listening.getsockname()[1]}", own().certificate_pem, deadline_s=1.0, retries=0) as peer,
            pytest.raises(Unreachable),
        ):
            peer.call(PATH, b"")
        taking.join(10.0)
    assert versions == (["TLSv1.3"] if highest is ssl.TLSVersion.TLSv1_3 else [])


def context_of_server(folder: Path, highest: ssl.TLSVersion) -> ssl.SSLContext:
    (folder / "certificate.pem").write_bytes(own().certificate_pem)
    (folder / "key.pem").write_bytes(own().key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    context.maximum_version = highest
    return context


def take_one(listening: socket.socket, context: ssl.SSLContext, versions: list[str | None]) -> None:
    line, _ = listening.accept()
    with suppress(OSError), context.wrap_socket(line, server_side=True) as secured:
        versions.append(secured.version())


@pytest.mark.parametrize(
    ("first", "complaint"),
    [
        ("", "RuntimeError: TLS 1.2 was not forbidden where this program began"),
        ("from federation.base.tls import forbid_1_2; forbid_1_2()", ""),
        (
            "import grpc; from federation.base.tls import forbid_1_2; forbid_1_2()",
            "RuntimeError: grpc was imported before",
        ),
    ],
)
def test_no_server_begins_where_tls_1_2_is_possible(first: str, complaint: str) -> None:
    program = f"""
{first}
from datetime import UTC, datetime
from federation.transport.certificates import make_certificate
from federation.transport.server import serve
own = make_certificate(["{HOST}"], datetime.now(UTC))
serve("pharoah.Test", {{}}, "{HOST}:0", own.certificate_pem, own.key_pem).stop()
"""
    inherited = {name: value for name, value in os.environ.items() if name != CIPHER_SUITES}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=inherited, cwd=REPOSITORY, check=False
    )
    assert (done.returncode, complaint in done.stderr) == (1 if complaint else 0, True)
