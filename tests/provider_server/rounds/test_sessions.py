"""Tokens that nobody else can make, and buckets that let through what they promise and no more."""

import hashlib
import hmac
import threading

import pytest
from hypothesis import given, strategies as st

from crypto.errors import NotSignedIn, TooManyRequests
from crypto.ids import TenantId
from federation.protocol.service_messages import SESSION_BYTES, SignIn
from provider_server.rounds.online.sessions import SIGN_IN_WITHIN_S, Buckets, Rate, Sessions, session_key
from provider_server.rounds.store.revocations import LIFETIME_S, SLACK_S

TENANT, OTHER = TenantId(bytes(15) + b"\1"), TenantId(bytes(15) + b"\2")
KEY = session_key(bytes(range(32)))
NOON_S = 1_800_000_000.0


class Clock:
    """Stands still unless it is told to go on."""

    def __init__(self, now_s: float = NOON_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(KEY, clock)


def a_token(sessions: Sessions, tenant: TenantId = TENANT) -> bytes:
    return sessions.grant(SignIn(tenant, int(NOON_S))).token


# ---- sessions ------------------------------------------------------------------------------------------------------


def test_a_token_is_its_tenants_until_it_ends(sessions: Sessions, clock: Clock) -> None:
    session = sessions.grant(SignIn(TENANT, int(NOON_S)))
    assert (len(session.token), session.until_s) == (SESSION_BYTES, NOON_S + LIFETIME_S)
    clock.now_s = session.until_s - 0.5
    assert sessions.tenant_of(session.token) == TENANT
    assert sessions.left_s(session.token) == 0.5
    clock.now_s = session.until_s
    with pytest.raises(NotSignedIn, match="has expired"):
        sessions.tenant_of(session.token)
    with pytest.raises(NotSignedIn, match="has expired"):
        sessions.left_s(session.token)


def test_the_layout_is_tenant_until_zeros_and_hmac(sessions: Sessions) -> None:
    head = TENANT + int(NOON_S + LIFETIME_S).to_bytes(8, "big") + bytes(8)
    tag = hmac.new(KEY, b"pharoah/session-token/1\0" + head, hashlib.sha256).digest()
    assert a_token(sessions) == head + tag


def test_any_process_with_the_key_knows_a_token_and_no_other_does(sessions: Sessions, clock: Clock) -> None:
    token = a_token(sessions)
    assert Sessions(KEY, clock).tenant_of(token) == TENANT
    stranger = Sessions(session_key(bytes(32)), clock)
    with pytest.raises(NotSignedIn, match="not a session of this provider"):
        stranger.tenant_of(token)
    with pytest.raises(NotSignedIn):
        sessions.tenant_of(a_token(stranger))


def test_sessions_of_one_tenant_are_called_back_and_a_new_one_is_good(sessions: Sessions, clock: Clock) -> None:
    stolen, of_another = a_token(sessions), a_token(sessions, OTHER)
    assert sessions.tenant_of(stolen) == TENANT
    sessions.revoke({TENANT: int(NOON_S) + LIFETIME_S + SLACK_S})
    for question in (sessions.tenant_of, sessions.left_s, sessions.until_s):
        with pytest.raises(NotSignedIn, match="was revoked"):
            question(stolen)
    assert sessions.tenant_of(of_another) == OTHER
    fresh = a_token(sessions)  # in the very same second
    assert sessions.tenant_of(fresh) == TENANT
    clock.now_s += LIFETIME_S
    sessions.revoke({})  # the row is gone with the sessions that it named
    with pytest.raises(NotSignedIn, match="has expired"):
        sessions.tenant_of(stolen)


@given(st.integers(0, 8 * SESSION_BYTES - 1))
def test_a_token_with_one_bit_turned_is_none(bit: int) -> None:
    sessions = Sessions(KEY, Clock())
    token = bytearray(a_token(sessions))
    token[bit // 8] ^= 1 << bit % 8
    with pytest.raises(NotSignedIn):
        sessions.tenant_of(bytes(token))


@given(st.binary(max_size=2 * SESSION_BYTES))
def test_no_other_bytes_are_a_token(forged: bytes) -> None:
    with pytest.raises(NotSignedIn):
        Sessions(KEY, Clock()).tenant_of(forged)


@pytest.mark.parametrize("length", [0, 16, 32, 63])
def test_a_truncated_or_longer_token_is_none(sessions: Sessions, length: int) -> None:
    token = a_token(sessions)
    for wrong in (token[:length], token + token[:1]):
        with pytest.raises(NotSignedIn):
            sessions.tenant_of(wrong)


@pytest.mark.parametrize(
    ("late_s", "taken"),
    [
        (0, True),
        (SIGN_IN_WITHIN_S, True),
        (SIGN_IN_WITHIN_S + 1, False),
        (-SIGN_IN_WITHIN_S, True),
        (-SIGN_IN_WITHIN_S - 1, False),
        (-(2**60), False),
    ],
)
def test_a_sign_in_is_taken_within_five_minutes(sessions: Sessions, late_s: int, taken: bool) -> None:  # noqa: FBT001
    asked = SignIn(TENANT, int(NOON_S) - late_s)
    if taken:
        assert sessions.tenant_of(sessions.grant(asked).token) == TENANT
        return
    with pytest.raises(NotSignedIn, match=r"s old \(limit 300 s\)") as refused:
        sessions.grant(asked)
    assert "clock" in refused.value.hint


def test_nothing_shows_a_secret(sessions: Sessions) -> None:
    session = sessions.grant(SignIn(TENANT, int(NOON_S)))
    shown = repr(sessions) + repr(session) + str(session)
    assert KEY.hex() not in shown
    assert session.token.hex() not in shown
    assert repr(session.token) not in shown


# ---- buckets -------------------------------------------------------------------------------------------------------


def let_through(buckets: Buckets, tenant: TenantId, calls: int) -> int:
    passed = 0
    for _ in range(calls):
        try:
            buckets.take(tenant)
        except TooManyRequests:
            continue
        passed += 1
    return passed


def test_a_burst_passes_and_then_the_rate(clock: Clock) -> None:
    buckets = Buckets(Rate(per_s=2.0, burst=5), clock)
    assert let_through(buckets, TENANT, 20) == 5
    clock.now_s += 1.0
    assert let_through(buckets, TENANT, 20) == 2
    clock.now_s += 1000.0
    assert let_through(buckets, TENANT, 20) == 5


def test_over_a_long_time_no_more_passes_than_burst_and_rate(clock: Clock) -> None:
    buckets, passed = Buckets(Rate(per_s=3.0, burst=4), clock), 0
    for _ in range(1000):
        clock.now_s += 0.01
        passed += let_through(buckets, TENANT, 1)
    assert passed == pytest.approx(4 + 3 * 10, abs=1)


def test_one_tenants_calls_cost_no_other_anything(clock: Clock) -> None:
    buckets = Buckets(Rate(per_s=1.0, burst=3), clock)
    assert let_through(buckets, TENANT, 100) == 3
    assert let_through(buckets, OTHER, 100) == 3


def test_the_refusal_says_when_to_come_back_and_that_is_enough(clock: Clock) -> None:
    buckets = Buckets(Rate(per_s=0.25, burst=1), clock)
    buckets.take(TENANT)
    clock.now_s += 1.0
    with pytest.raises(TooManyRequests) as refused:
        buckets.take(TENANT)
    assert refused.value.hint == "try again in 3.0 s"
    clock.now_s += 2.9
    assert let_through(buckets, TENANT, 1) == 0
    clock.now_s += 0.1
    assert let_through(buckets, TENANT, 1) == 1


def test_a_clock_that_is_set_back_fills_nothing(clock: Clock) -> None:
    buckets = Buckets(Rate(per_s=1.0, burst=2), clock)
    assert let_through(buckets, TENANT, 5) == 2
    clock.now_s -= 3600.0
    assert let_through(buckets, TENANT, 5) == 0


def test_memory_is_bounded_and_who_called_last_is_not_forgotten(clock: Clock) -> None:
    buckets = Buckets(Rate(per_s=0.001, burst=1), clock, tenants=10)
    for number in range(1000):
        buckets.take(TenantId(number.to_bytes(16, "big")))
        assert len(buckets) <= 10
    assert let_through(buckets, TenantId((999).to_bytes(16, "big")), 1) == 0
    assert let_through(buckets, TenantId(bytes(16)), 1) == 1


def test_threads_share_a_bucket(clock: Clock) -> None:
    buckets, passed = Buckets(Rate(per_s=0.001, burst=100), clock), []
    callers = [threading.Thread(target=lambda: passed.append(let_through(buckets, TENANT, 50))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sum(passed) == 100


@pytest.mark.parametrize(("per_s", "burst"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_a_rate_lets_something_through(per_s: float, burst: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        Rate(per_s, burst)
