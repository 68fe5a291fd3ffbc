"""One round: who may contribute what, once, and that a sum is unmasked with every mask or not at all."""

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from crypto.codec import decode, encode
from crypto.errors import BadSignature, CohortTooSmall, DecodeError, PeerFault
from crypto.ids import Digest, RoundId
from crypto.masking import MaskKey, Words, words_from_bytes
from crypto.messages import Contribution, Member, UnmaskRequest, UnmaskShare
from crypto.plan import Plan
from crypto.signing import Signed, SigningKey, open_signed
from provider_server.rounds import TRANSITIONS, Round, State
from tests.factories import COHORT, TENANTS, Cast, a_plan, a_round, keys, plan_digest, signed

PLAN = a_plan()
FULL = bytes(8 * PLAN.cells)


def a_contribution(tenant: int = 0, to: Plan = PLAN, **changes: object) -> bytes:
    """Signed by the tenant that sends it, zero in every cell unless changed."""
    said = Contribution(keys().tenant_id(tenant), to.round_id, plan_digest(signed(to)), bytes(8 * to.cells))
    return keys().tenants[tenant][0].sign(replace(said, **changes))  # type: ignore[arg-type]


def words(value: int) -> bytes:
    return np.full(PLAN.cells, value, "<u8").tobytes()


def a_share(trustee: int, value: int = 0, round_id: RoundId = PLAN.round_id, cells: int = PLAN.cells) -> bytes:
    return encode(UnmaskShare(trustee, round_id, np.full(cells, value, "<u8").tobytes()))


def filled(tenants: int = TENANTS, values: Sequence[int] | None = None) -> Round:
    collecting = a_round(PLAN)
    for tenant in range(tenants):
        collecting.receive(a_contribution(tenant, cells=words(values[tenant] if values else 0)))
    return collecting


def closed() -> Round:
    collected = filled()
    collected.close()
    return collected


SHARES = [a_share(index) for index in (3, 4, 5)]


# ---- collecting ----------------------------------------------------------------------------------------------------


def test_contributors_are_named_once_and_in_the_order_that_trustees_expect() -> None:
    collecting = a_round(PLAN)
    assert collecting.contributors == ()
    for tenant in (4, 0, 2):
        collecting.receive(a_contribution(tenant))
    assert collecting.contributors == tuple(sorted(keys().tenant_id(tenant) for tenant in (0, 2, 4)))


def test_the_plan_goes_out_under_the_providers_key() -> None:
    assert open_signed(Plan, a_round(PLAN).signed_plan, keys().provider.public) == PLAN


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (a_contribution(plan=Digest(bytes(32))), "answered another plan"),
        (a_contribution(round_id=RoundId(bytes(16))), "answered another plan"),
        (a_contribution(0, a_plan(epsilon=0.5)), "answered another plan"),
        (a_contribution(0, a_plan(2)), "answered another plan"),
        (a_contribution(cells=FULL[8:]), f"sent {len(FULL) - 8} bytes, not {len(FULL)}"),
        (a_contribution(cells=FULL + bytes(8)), f"sent {len(FULL) + 8} bytes, not {len(FULL)}"),
        (a_contribution(cells=b""), f"sent 0 bytes, not {len(FULL)}"),
    ],
    ids=["plan", "round", "laxer plan", "another round's plan", "short", "long", "empty"],
)
def test_an_answer_that_does_not_fit_costs_its_sender_the_place_and_nobody_else(answer: bytes, complaint: str) -> None:
    collecting = filled(2)
    with pytest.raises(PeerFault, match=complaint) as fault:
        collecting.receive(answer)
    assert keys().tenant_id(0).hex()[:12] in fault.value.what
    assert fault.value.hint
    assert len(collecting.contributors) == 2
    collecting.receive(a_contribution(2))
    assert len(collecting.contributors) == 3


def test_strangers_and_impostors_are_turned_away() -> None:
    collecting = a_round(PLAN)
    stranger = SigningKey.generate(os.urandom)
    member = Member(stranger.public, MaskKey.generate(os.urandom).public)
    honest = decode(Contribution, decode(Signed, a_contribution()).body)
    for message in (
        stranger.sign(replace(honest, tenant=member.tenant)),
        stranger.sign(honest),
        keys().tenants[1][0].sign(honest),
    ):
        with pytest.raises(BadSignature):
            collecting.receive(message)
    for garbage in (b"", encode(honest), signed(PLAN), a_contribution()[:-1], a_contribution() + b"\0"):
        with pytest.raises(DecodeError):
            collecting.receive(garbage)
    assert collecting.contributors == ()


def test_the_same_bytes_twice_count_once_and_other_bytes_not_at_all() -> None:
    collecting = filled(values=[1, 2, 4, 8, 16])
    collecting.receive(a_contribution(2, cells=words(4)))
    with pytest.raises(PeerFault, match="sent two contributions") as fault:
        collecting.receive(a_contribution(2, cells=words(5)))
    assert "the first one counts" in fault.value.diagnostics()
    collecting.close()
    assert set(collecting.unmask(SHARES).tolist()) == {31}


def test_a_faulty_answer_does_not_bar_its_sender_from_a_good_one() -> None:
    collecting = a_round(PLAN)
    with pytest.raises(PeerFault):
        collecting.receive(a_contribution(0, cells=b""))
    collecting.receive(a_contribution(0))
    assert collecting.contributors == (keys().tenant_id(0),)


# ---- closing -------------------------------------------------------------------------------------------------------


def test_the_request_for_masks_names_plan_and_set_under_the_providers_key() -> None:
    request = open_signed(UnmaskRequest, filled(4).close(), keys().provider.public)
    assert open_signed(Plan, request.plan, keys().provider.public) == PLAN
    assert request.contributors == tuple(sorted(keys().tenant_id(tenant) for tenant in range(4)))


def test_a_minimal_cohort_is_enough() -> None:
    enough = filled(COHORT)
    enough.close()
    assert enough.state is State.UNMASKING


def test_below_the_minimum_a_round_is_refused_for_good() -> None:
    few = filled(COHORT - 1)
    with pytest.raises(CohortTooSmall, match=f"{COHORT - 1} contributions, {COHORT} are needed"):
        few.close()
    assert few.state is State.REFUSED
    for attempt in (lambda: few.receive(a_contribution(4)), few.close, lambda: few.unmask(SHARES)):
        with pytest.raises(RuntimeError, match="is refused, not"):
            attempt()


def test_nothing_is_received_or_closed_twice_after_the_set_is_fixed() -> None:
    fixed = closed()
    with pytest.raises(RuntimeError, match="is unmasking, not collecting"):
        fixed.receive(a_contribution(0))
    with pytest.raises(RuntimeError, match="is unmasking, not collecting"):
        fixed.close()


def test_states_only_lead_forward() -> None:
    reachable, todo = set(), [State.COLLECTING]
    while todo:
        state = todo.pop()
        assert state not in reachable
        reachable.add(state)
        todo.extend(TRANSITIONS[state])
    assert reachable == set(State) == set(TRANSITIONS)


# ---- unmasking -----------------------------------------------------------------------------------------------------


def test_masks_are_taken_off_the_sum_modulo_two_to_the_64() -> None:
    collected = filled(values=[2**63, 2**63, 7, 0, 2**64 - 1])
    collected.close()
    total = collected.unmask([a_share(3, 5), a_share(5, 2**64 - 2), a_share(4, 1)])
    assert set(total.tolist()) == {2}
    assert total.shape == (PLAN.cells,)
    assert total.dtype == np.uint64
    assert collected.state is State.SUMMED


@pytest.mark.parametrize(
    "shares",
    [
        [],
        SHARES[:2],
        [SHARES[0], SHARES[1], SHARES[1]],
        [*SHARES, SHARES[0]],
        [*SHARES, a_share(1)],
        [a_share(1), *SHARES[1:]],
        [a_share(3, round_id=RoundId(bytes(16))), *SHARES[1:]],
        [a_share(3, cells=PLAN.cells - 1), *SHARES[1:]],
        [a_share(3, cells=PLAN.cells + 1), *SHARES[1:]],
    ],
    ids=["none", "missing", "twice", "twice and all", "stranger", "other", "round", "short", "long"],
)
def test_masks_that_do_not_fit_open_nothing_and_the_right_ones_still_do(shares: list[bytes]) -> None:
    fixed = closed()
    with pytest.raises(PeerFault) as fault:
        fixed.unmask(shares)
    assert fault.value.hint
    assert fixed.state is State.UNMASKING
    fixed.unmask(SHARES)


def test_a_share_that_cannot_be_read_opens_nothing() -> None:
    fixed = closed()
    with pytest.raises(DecodeError):
        fixed.unmask([*SHARES[:2], b""])
    assert fixed.state is State.UNMASKING


def test_a_round_is_summed_once() -> None:
    fixed = closed()
    fixed.unmask(SHARES)
    with pytest.raises(RuntimeError, match="is summed, not unmasking"):
        fixed.unmask(SHARES)


def test_one_missing_mask_hides_everything(cast: Cast) -> None:
    """With the masks of two of three trustees the sum is as good as random: no small word, no word twice."""
    collecting = a_round(PLAN)
    for tenant in range(TENANTS):
        collecting.receive(cast.tenant(tenant).contribute(collecting.signed_plan))
    request = collecting.close()
    shares = [cast.trustee(index).unmask(request) for index in (3, 4, 5)]
    without = [share if number else a_share(3) for number, share in enumerate(shares)]
    hidden = signed_words(collecting.unmask(without))
    assert len(set(hidden.tolist())) == PLAN.cells
    assert np.abs(hidden).min() > 2**34  # noise is about 2^12; a random word is below 2^34 once in 2^29
    opened = signed_words(reopened(collecting, cast).unmask(shares))
    assert np.abs(opened).max() < 2**20


def reopened(collected: Round, cast: Cast) -> Round:
    """The same round once more, from the contributions that tenants kept."""
    again = a_round(collected.plan)
    for tenant in range(TENANTS):
        again.receive(cast.tenant(tenant).contribute(again.signed_plan))
    again.close()
    return again


def signed_words(total: Words) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    return words_from_bytes(total.tobytes()).astype(np.int64).astype(np.float64)
