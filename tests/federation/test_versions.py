"""What two sides say to each other about their versions, on each link, and what becomes of two that are too far apart.

The version of this program is as it is; the other side's hello is made up. Real programs of three versions are in
`tests.system.test_two_versions`.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeAlias

import grpc
import pytest

from crypto.errors import DecodeError, NotSignedIn, VersionsApart
from crypto.signing import SigningKey
from federation.protocol import versions
from federation.protocol.queries import BLOB, RECORD, Fault, Query, unwrap, wrap
from federation.protocol.refusals import Refused, Rule
from federation.protocol.services import ProviderMethod, heard
from federation.protocol.versions import METADATA_KEY, OLDEST, OWN, PROTOCOL, Heard, Hello, asked_in
from federation.transport.certificates import Certificate, make_certificate
from federation.transport.client import Peer
from federation.transport.introductions import Introducing
from federation.transport.question import in_parts
from federation.transport.server import Method, Server, serve
from provider_server.rounds.network.flower import ConfigRecord, Context, Message, RecordDict
from provider_server.rounds.network.grid_tenants import GridTenants, Why
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.rounds.network.flower_app import client_app
from tests.support.plans import cells_plan

Send: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"
HOST = "127.0.0.1"
NEXT, TOO_NEW = Hello(PROTOCOL + 1, PROTOCOL), Hello(PROTOCOL + 2, PROTOCOL + 1)


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    """This program speaks version 3, and reads 2."""
    monkeypatch.setattr(versions, "PROTOCOL", 3)
    monkeypatch.setattr(versions, "OLDEST", 2)
    monkeypatch.setattr(versions, "RELEASES", {1: "0.1.0", 2: "0.2.0", 3: "0.3.0"})


# ---- the hello -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hello", [OWN, NEXT, Hello(2**16 - 1, 1)])
def test_a_hello_survives_the_wire(hello: Hello) -> None:
    assert Hello.from_bytes(hello.to_bytes()) == hello


@pytest.mark.parametrize("sent", [b"", b"\0\1", bytes(4), b"\0\1\0\2", b"\0\1\0\0", b"\0\1\0\1\0"])
def test_any_other_bytes_are_no_hello(sent: bytes) -> None:
    with pytest.raises(DecodeError, match="hello"):
        Hello.from_bytes(sent)


@pytest.mark.usefixtures("third")
def test_neighbours_speak_the_older_version_and_others_hear_who_must_upgrade() -> None:
    both = "the tenant", "this provider"
    assert [Hello(*them).spoken_with(*both) for them in ((2, 1), (3, 2), (4, 3))] == [2, 3, 3]
    with pytest.raises(VersionsApart) as old:
        Hello(1, 1).spoken_with(*both)
    assert old.value.diagnostics() == (
        "the tenant speaks protocol 1, this provider reads 2 to 3\nhint: upgrade the tenant to pharoah 0.2.0 or later"
    )
    with pytest.raises(VersionsApart) as new:
        Hello(5, 4).spoken_with(*both)
    assert new.value.diagnostics() == (
        "this provider speaks protocol 3, the tenant reads 4 to 5\n"
        "hint: upgrade this provider to a release of pharoah that speaks protocol 4 or later"
    )


@pytest.mark.usefixtures("third")
def test_what_all_read_is_the_least_that_was_last_heard() -> None:
    said = Heard()
    assert said.least == 3
    said.note("lab-1", 2)
    said.note("lab-2", 3)
    assert said.least == 2
    said.note("lab-1", 3)
    assert said.least == 3


@pytest.mark.parametrize(("protocol", "who"), [(0, "the provider's round"), (PROTOCOL + 1, "this tenant")])
def test_a_plan_of_another_version_is_refused_before_anything_is_counted(protocol: int, who: str) -> None:
    cells_plan(3, 5.0, protocol=PROTOCOL).check_protocol("this tenant")
    with pytest.raises(VersionsApart, match=f"{who} speaks protocol"):
        cells_plan(3, 5.0, protocol=protocol).check_protocol("this tenant")


# ---- gRPC ------------------------------------------------------------------------------------------------------------


@cache
def own() -> Certificate:
    return make_certificate([HOST], datetime.now(UTC))


def answer(request: bytes) -> bytes:
    if request == b"refuse":
        raise NotSignedIn("no")
    return asked_in.get().to_bytes(2)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Answers with the version in which it was asked."""
    pem = own().certificate_pem, own().key_pem
    methods: dict[str, Method] = {ProviderMethod.SIGN_IN: answer, ProviderMethod.DIRECTORY: answer}
    with serve("pharoah.Provider", methods, f"{HOST}:0", *pem, quick={ProviderMethod.CHECK: answer}) as running:
        yield running


def call(server: Server, hello: bytes | None, method: str = ProviderMethod.SIGN_IN) -> bytes:
    """The answer to a caller with that hello; what it was told is raised."""
    metadata = () if hello is None else ((METADATA_KEY, hello),)
    credentials = grpc.ssl_channel_credentials(own().certificate_pem)
    with grpc.secure_channel(f"{HOST}:{server.port}", credentials) as channel:
        try:
            send: Send = channel.unary_unary(method)
            said = send(in_parts(b"x")[0], metadata=metadata, timeout=30.0)
        except grpc.RpcError as error:
            raise heard(error.details() or "") from error
    return said


@pytest.mark.parametrize("method", [ProviderMethod.SIGN_IN, ProviderMethod.CHECK])
@pytest.mark.parametrize(("hello", "spoken"), [(OWN, PROTOCOL), (NEXT, PROTOCOL), (None, OLDEST)])
def test_a_server_answers_in_what_its_caller_reads(
    server: Server, hello: Hello | None, spoken: int, method: ProviderMethod
) -> None:
    assert int.from_bytes(call(server, hello and hello.to_bytes(), method)) == spoken


def test_a_caller_that_is_too_far_is_told_so_and_the_servers_log_too(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(VersionsApart) as told:
        call(server, TOO_NEW.to_bytes())
    said = f"the provider speaks protocol {PROTOCOL}, the caller reads {TOO_NEW.oldest} to {TOO_NEW.speaks}"
    assert told.value.what == said
    assert "upgrade the provider" in told.value.hint
    assert said in caplog.text
    with pytest.raises(DecodeError, match="hello"):
        call(server, b"?")
    assert call(server, OWN.to_bytes())


def test_a_peer_says_what_it_speaks_and_hears_the_server_also_by_a_refusal(server: Server) -> None:
    said: list[int] = []
    introducing = Introducing(SigningKey(bytes(32)), lambda: 0.0)
    with ExitStack() as stack:
        settings: dict[str, Any] = {"introducing": introducing, "hear": said.append}
        peer = stack.enter_context(Peer(f"{HOST}:{server.port}", own().certificate_pem, **settings))
        assert peer.protocol == OLDEST
        assert int.from_bytes(peer.call(ProviderMethod.SIGN_IN, b"x")) == PROTOCOL
        assert (peer.protocol, said) == (PROTOCOL, [PROTOCOL])
        with pytest.raises(NotSignedIn):
            peer.call(ProviderMethod.SIGN_IN, b"refuse")
        assert said == [PROTOCOL] * 2
        assert peer._metadata(ProviderMethod.DIRECTORY) == ()  # nothing by which strangers differ
        assert len(peer._metadata(ProviderMethod.SIGN_IN)) == 2


# ---- Flower ----------------------------------------------------------------------------------------------------------


def put(hello: Hello) -> Message:
    """A tenant's reply to a question with that hello; it answers in what it was asked in."""
    app = client_app(lambda _query, _payload: asked_in.get().to_bytes(2))
    with local_task():
        question = RecordDict({RECORD: ConfigRecord({BLOB: wrap(b"plan", hello)})})
        message = Message(question, 2, f"query.{Query.CONTRIBUTION}")
    return app(message, Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={}))


@pytest.mark.parametrize("hello", [OWN, NEXT])
def test_a_tenant_answers_a_neighbour_and_says_what_it_speaks(hello: Hello) -> None:
    assert unwrap(put(hello).content) == (OWN, PROTOCOL.to_bytes(2))


def test_a_tenant_refuses_a_provider_that_is_too_far_and_tells_its_own_version() -> None:
    reply = put(TOO_NEW)
    assert (reply.error.code, reply.error.reason) == (Fault.REFUSAL, f"VersionsApart protocol {PROTOCOL}")
    assert Refused.read(reply.error.reason or "") == Refused("VersionsApart", Rule.PROTOCOL, PROTOCOL)


@pytest.mark.usefixtures("third")
def test_a_provider_says_of_tenants_that_refuse_who_must_upgrade() -> None:
    needed = "they speak protocol 1, this provider reads 2 to 3: upgrade them to pharoah 0.2.0 or later"
    assert Refused("VersionsApart", Rule.PROTOCOL, 1).about(cells_plan(3, 5.0)) == needed
    newer = "they speak protocol 5, this provider 3, which they do not read: upgrade this provider"
    assert Refused("VersionsApart", Rule.PROTOCOL, 5).about(object()) == newer


def test_a_node_that_claims_to_be_too_far_is_left_out_of_the_round_of_the_others() -> None:
    apps = {2: client_app(lambda _query, _payload: b"here"), 3: client_app(lambda _query, _payload: b"too new")}
    said = Heard()

    def meddle(replies: list[Message]) -> list[Message]:
        for reply in replies:
            if unwrap(reply.content)[1] == b"too new":
                reply.content[RECORD] = ConfigRecord({BLOB: wrap(b"too new", TOO_NEW)})
        return replies

    with local_task():
        tenants = GridTenants(LocalGrid(apps, deliver=meddle), 0.0, 0.0, said)
        assert list(tenants.ask(Query.CONTRIBUTION, b"plan")) == [b"here"]
    (silence,) = tenants.silences
    assert (silence.node_id, silence.why, silence.detail) == (3, Why.MALFORMED, "VersionsApart")
    assert said.least == PROTOCOL
