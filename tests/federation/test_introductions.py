"""Who is known: the right key, for this server, now; and nobody says who it is where everybody gets the same answer."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache

import grpc
import pytest
from hypothesis import given, strategies as st

from crypto.ids import Digest, VerifyKey
from crypto.signing import SigningKey
from federation.protocol.round_messages import LeaseRequest
from federation.protocol.service_messages import Introduction
from federation.protocol.services import PUBLIC, ProviderMethod, TrusteeMethod
from federation.transport.certificates import Certificate, make_certificate
from federation.transport.client import Peer
from federation.transport.introductions import (
    FRESH_S,
    METADATA_KEY,
    RENEW_S,
    Introducing,
    Introductions,
    parties,
    server_digest,
)
from tests.support.factories import keys

HOST = "127.0.0.1"
HERE, ELSEWHERE = Digest(bytes([1] * 32)), Digest(bytes([2] * 32))
NOW_S = 1_800_000_000
MINE, STRANGERS = SigningKey(bytes([3] * 32)), SigningKey(bytes([4] * 32))


@dataclass
class Clock:
    now_s: float = NOW_S

    def __call__(self) -> float:
        return self.now_s


def of_server(clock: Clock, known: Callable[[VerifyKey], bool] | None = None) -> Introductions:
    return Introductions(known or (lambda key: key == MINE.public), HERE, clock)


def test_who_introduces_itself_is_known() -> None:
    clock = Clock()
    assert of_server(clock).known(Introducing(MINE, clock).to(HERE)) == MINE.public


@pytest.mark.parametrize(
    "signed",
    [
        STRANGERS.sign(Introduction(STRANGERS.public, HERE, NOW_S)),
        STRANGERS.sign(Introduction(MINE.public, HERE, NOW_S)),
        MINE.sign(Introduction(MINE.public, ELSEWHERE, NOW_S)),
        MINE.sign(Introduction(MINE.public, HERE, NOW_S - int(FRESH_S))),
        MINE.sign(Introduction(MINE.public, HERE, NOW_S + int(FRESH_S))),
        MINE.sign(LeaseRequest(keys().tenant_id(0), 0, 1)),
        b"",
    ],
    ids=["unknown key", "stolen key", "meant for another server", "old", "early", "another message", "nothing"],
)
def test_nobody_else_is(signed: bytes) -> None:
    server = of_server(Clock())
    assert [server.known(signed), server.known(signed)] == [None, None]


@given(st.binary(max_size=300))
def test_whatever_is_sent_is_somebody_known_or_a_stranger(signed: bytes) -> None:
    assert of_server(Clock()).known(signed) is None


@given(st.integers(0), st.integers(1, 255))
def test_a_bit_is_enough_to_be_a_stranger(position: int, flip: int) -> None:
    signed = bytearray(Introducing(MINE, Clock()).to(HERE))
    signed[position % len(signed)] ^= flip
    assert of_server(Clock()).known(bytes(signed)) is None


def test_an_introduction_ends_with_time_and_with_membership() -> None:
    clock, members = Clock(), {MINE.public}
    server, signed = of_server(clock, lambda key: key in members), Introducing(MINE, clock).to(HERE)
    assert server.known(signed) == MINE.public
    members.clear()
    assert server.known(signed) is None
    members.add(MINE.public)
    clock.now_s += FRESH_S + 1
    assert server.known(signed) is None


def test_an_introduction_is_signed_anew_when_it_is_old_and_for_each_server() -> None:
    clock = Clock()
    caller, server = Introducing(MINE, clock), of_server(clock)
    first = caller.to(HERE)
    assert caller.to(HERE) == first != caller.to(ELSEWHERE)
    for wait_s in (RENEW_S, -2 * FRESH_S):  # also where a clock was put back
        clock.now_s += wait_s
        assert caller.to(HERE) != first
        assert server.known(caller.to(HERE)) == MINE.public


def test_provider_and_members_are_the_parties_of_a_directory() -> None:
    directory = keys().directory
    known = parties(lambda: directory)
    assert known(directory.provider)
    assert all(known(member.verify_key) for member in directory.members)
    assert not known(STRANGERS.public)
    everybody, nobody = directory, replace(directory, by_id={})
    current = [everybody, nobody]
    now = parties(lambda: current.pop(0))
    assert [now(directory.members[0].verify_key), now(directory.members[0].verify_key)] == [True, False]


@cache
def own() -> Certificate:
    return make_certificate([HOST], datetime.now(UTC))


def test_callers_say_who_they_are_except_where_everybody_gets_the_same_answer() -> None:
    seen: dict[str, bytes | str | None] = {}

    def note(method: str) -> "grpc.RpcMethodHandler[bytes, bytes]":
        def answer(_question: bytes, context: grpc.ServicerContext) -> bytes:
            seen[method] = dict(context.invocation_metadata()).get(METADATA_KEY)
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)

    class All(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
            return note(details.method)

    methods = [*ProviderMethod, *TrusteeMethod]
    with ExitStack() as stack:
        server = grpc.server(stack.enter_context(ThreadPoolExecutor(2)))
        server.add_generic_rpc_handlers((All(),))
        pem = [(own().key_pem, own().certificate_pem)]
        port = server.add_secure_port(f"{HOST}:0", grpc.ssl_server_credentials(pem))
        server.start()
        stack.callback(lambda: server.stop(None).wait())
        introducing = Introducing(MINE, Clock())
        peer = stack.enter_context(Peer(f"{HOST}:{port}", own().certificate_pem, introducing=introducing))
        for method in methods:
            peer.call(method, b"")
    assert {method for method in methods if seen[method] is None} == PUBLIC
    server_side = Introductions(lambda key: key == MINE.public, server_digest(own().certificate_pem), Clock())
    told = {method: shown for method, shown in seen.items() if isinstance(shown, bytes)}
    assert {server_side.known(shown) for shown in told.values()} == {MINE.public}
