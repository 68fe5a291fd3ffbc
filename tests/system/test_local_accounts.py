"""What another account of the provider's machine can do to a provider that runs: read metrics, and nothing else."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from flwr.proto.control_pb2 import ListNodesRequest, StartRunRequest, StopRunRequest, UnregisterNodeRequest

from federation.protocol.queries import Query
from provider_server.program.metrics import Metrics
from provider_server.program.operations.admin import operator_app, watching_app
from provider_server.rounds.network.connections import DEFAULT_LIMITS
from provider_server.rounds.network.listeners import Listener
from provider_server.rounds.network.superlink import SuperLink
from provider_server.rounds.schedule import Window
from tenant_client.rounds.network.flower_node import Link, NodeSettings, make_node_key
from tests.support.intruder import NOBODY, Answer, Request, can_be_others, doors, say
from tests.support.superlink import HOST, Certificates, certificates, serving

pytestmark = [
    pytest.mark.xdist_group("superlink"),
    pytest.mark.skipif(not can_be_others(), reason="only root can act as another account"),
]

READABLE = {f"/pharoah/{name}" for name in ("healthz", "readyz", "metrics")}
HOSTS = ("127.0.0.1", "localhost", "rebound.example")


class Holder:
    """Whoever holds rounds; it notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def hold(self, window: Window | None) -> Any:
        self.asked.append("round")
        return {}

    def give_up(self) -> str:
        self.asked.append("give-up")
        return ""


@contextmanager
def running(pem: Certificates, at: Path) -> Iterator[tuple[SuperLink, Holder]]:
    """A SuperLink and what may be watched of it, as `pharoah-provider serve` puts them up."""
    holder = Holder()
    watched = watching_app(Metrics(), lambda: "")
    with (
        closing(Listener(watched, socket.create_server((HOST, 0)), None, DEFAULT_LIMITS)),
        SuperLink(pem.settings(at / "link.sqlite"), ours=operator_app(lambda: holder)) as link,
    ):
        yield link, holder


def words(node_id: int) -> list[Request]:
    """What does harm if it is obeyed, by Flower's APIs and ours, and what may be read."""
    control = {
        "unregister-node": UnregisterNodeRequest(node_id=node_id),
        "list-nodes": ListNodesRequest(),
        "start-run": StartRunRequest(),
        "stop-run": StopRunRequest(run_id=1),
    }
    asked = [("POST", f"/v1/control/{name}", bytes(message.SerializeToString())) for name, message in control.items()]
    asked += [("POST", "/v1/runtime/acquire-task", b""), ("GET", "/docs", b""), ("GET", "/openapi.json", b"")]
    asked += [("POST", f"/pharoah/{name}", b"") for name in ("round", "give-up")]
    return asked + [("GET", path, b"") for path in sorted(READABLE)]


def obeyed(answers: list[Answer]) -> set[tuple[str, str]]:
    """Which words were obeyed anywhere, by which name of the host."""
    return {(answer.path, answer.host) for answer in answers if answer.was_obeyed}


def echo(verb: Query, payload: bytes) -> bytes:
    return payload


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account may enter, so that it is the socket's own mode that shuts the door."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_another_account_reads_metrics_and_changes_nothing(open_folder: Path) -> None:
    pem, key = certificates(open_folder / "tls"), make_node_key()
    with running(pem, open_folder) as (link, holder):
        node_id = link.register(key.public_openssh)
        at = doors(os.getpid())
        assert ("unix", str(link.control)) in at
        assert len([door for door in at if door[0] == "tcp"]) >= 2
        with serving(echo, NodeSettings(link.address, pem.authority, key.private_pem)) as served:
            served.wait_for(Link.CONNECTED)
            answers = say(at, words(node_id), NOBODY, *HOSTS)
            assert [(node.node_id, node.online) for node in link.nodes()] == [(node_id, True)]
        assert obeyed(answers) == {(path, host) for path in READABLE for host in HOSTS[:2]}
        assert {answer.error for answer in answers if answer.door[0] == "unix"} == {"PermissionError"}
        assert holder.asked == []


def test_the_same_words_of_the_operators_account_are_obeyed(tmp_path: Path) -> None:
    """The honest run: what the test above says does reach its aim where it may."""
    pem, key = certificates(tmp_path / "tls"), make_node_key()
    with running(pem, tmp_path) as (link, holder):
        node_id = link.register(key.public_openssh)
        at = [("unix", str(link.control))]
        done = obeyed(say(at, words(node_id), os.getuid()))
        assert {path for path, _ in done} >= {"/v1/control/unregister-node", "/v1/control/list-nodes", "/docs"}
        assert {"/pharoah/round", "/pharoah/give-up"} <= {path for path, _ in done}
        assert link.nodes() == ()
        assert set(holder.asked) == {"round", "give-up"}
        assert stat.S_IMODE(link.control.stat().st_mode) == 0o600
