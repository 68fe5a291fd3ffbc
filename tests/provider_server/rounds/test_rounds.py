"""One round: who may contribute what, once, and that a sum is unmasked with every mask or not at all.

A round is what the store holds of it, so most tests go on in a new `Round` over the same store, as after a restart.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from crypto.codec import decode, encode
from crypto.errors import BadSignature, CohortTooSmall, DecodeError, PeerFault
from crypto.ids import Digest, Nonce, RoundId, TenantId
from crypto.masking import Words, words_from_bytes
from crypto.signing import Signed, SigningKey, name_of, open_signed, open_signed_by, reopened, tenant_id
from federation.protocol.endorsed import EndorsedSet
from federation.protocol.plan import Plan
from federation.protocol.round_messages import (
    ContributionHeader,
    Endorsement,
    UnmaskCall,
    UnmaskRequest,
    UnmaskShare,
)
from provider_server.rounds.round import Grouping, Round, new_round
from provider_server.rounds.store.round_store import TRANSITIONS, Answer, LostStep, RoundState, RoundStore
from provider_server.rounds.store.store import Store
from tests.support.changing import replace
from tests.support.endorsing import endorsed_set
from tests.support.factories import (
    COHORT,
    TENANTS,
    Cast,
    a_plan,
    a_round,
    close,
    endorse_all,
    forged_contribution,
    header_of,
    keys,
    ownerships,
    plan_digest,
    share_all,
    signed,
)

PLAN = a_plan()
FULL = bytes(8 * PLAN.words)
MASKING = (3, 4, 5)
QUORUM = (1, *MASKING)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RoundStore]:
    with closing(Store(tmp_path / "provider.db")) as opened:
        yield opened.rounds


def a_contribution(tenant: int = 0, to: Plan = PLAN, **changes: object) -> bytes:
    """Signed by the tenant that sends it, zero in every cell unless changed."""
    named = to.round_id, plan_digest(signed(to)), to.start_hour
    cells: Any = changes.pop("cells", bytes(8 * to.words))
    said = ContributionHeader(keys().tenant_id(tenant), *named, Nonce(bytes(16)), Digest(bytes(32)))
    return forged_contribution(keys().tenants[tenant][0], replace(said, **changes), cells)


def words(value: int, plan: Plan = PLAN) -> bytes:
    return np.full(plan.words, value, "<u8").tobytes()


def asked(round_: Round) -> bytes:
    """What trustees are asked to endorse."""
    return round_.empty_request if round_.state is RoundState.GIVING_UP else round_.request


def an_endorsement(round_: Round, trustee: int, signer: int | None = None, **changes: object) -> bytes:
    request = asked(round_)
    named = EndorsedSet.of(round_.plan, reopened(UnmaskRequest, request)).name
    word = Endorsement(trustee, round_.plan.round_id, name_of(request), named)
    return keys().trustees[(signer or trustee) - 1][1].sign(replace(word, **changes))


def a_share(round_: Round, trustee: int, value: int = 0, signer: int | None = None, **changes: object) -> bytes:
    sums = tuple(np.full(round_.plan.cells, value, "<u8").tobytes() for _ in round_.groups)
    share = UnmaskShare(trustee, round_.plan.round_id, name_of(round_.request), sums)
    return keys().trustees[(signer or trustee) - 1][1].sign(replace(share, **changes))


Make = Callable[..., bytes]


def again(round_: Round) -> Round:
    """The same round after a restart."""
    return Round(round_._store, keys().provider, keys().directory, round_.signed_plan)


def filled(store: RoundStore, tenants: int = TENANTS, values: Sequence[int] | None = None, plan: Plan = PLAN) -> Round:
    collecting = a_round(plan, store)
    for tenant in range(tenants):
        cells = words(values[tenant] if values else 0, plan)
        collecting.receive(a_contribution(tenant, plan, cells=cells))
    return collecting


def closed(store: RoundStore, group: Grouping | None = None) -> Round:
    collected = filled(store)
    close(collected, group=group or (lambda plan, contributors: [contributors]))
    return collected


def unmasking(store: RoundStore, values: Sequence[int] | None = None) -> Round:
    collected = filled(store, values=values)
    close(collected)
    for trustee in QUORUM:
        collected.endorse(trustee, an_endorsement(collected, trustee))
    return collected


def in_halves(_plan: Plan, contributors: Sequence[TenantId]) -> list[Sequence[TenantId]]:
    return [contributors[:2], contributors[2:]]


# ---- states --------------------------------------------------------------------------------------------------------


def at(store: RoundStore, state: RoundState) -> Round:
    """A round in `state`, as far as the store goes; shares are all in where it may be released."""
    return again(taken_to(filled(store), state))


def taken_to(round_: Round, state: RoundState) -> Round:
    if state is RoundState.GIVING_UP:
        round_.give_up()
    elif state is not RoundState.COLLECTING:
        close(round_)
    if state in (RoundState.UNMASKING, RoundState.RELEASED, RoundState.REFUSED):
        for trustee in QUORUM:
            round_.endorse(trustee, an_endorsement(round_, trustee))
        for trustee in MASKING:
            round_.share(trustee, a_share(round_, trustee))
    if state is RoundState.RELEASED:
        round_.release(b"release", {})
    if state is RoundState.REFUSED:
        round_.refuse()
    assert round_.state is state
    return round_


ASKED = set(RoundState) - {RoundState.COLLECTING, RoundState.GIVING_UP}
OPEN = set(RoundState) - {RoundState.RELEASED, RoundState.REFUSED}
METHODS: dict[str, tuple[set[RoundState], Callable[[Round], object]]] = {
    "receive": ({RoundState.COLLECTING}, lambda round_: round_.receive(a_contribution(0))),
    "close": ({RoundState.COLLECTING}, close),
    "endorse": ({RoundState.ENDORSING}, lambda round_: round_.endorse(3, an_endorsement(round_, 3))),
    "share": ({RoundState.UNMASKING}, lambda round_: round_.share(3, a_share(round_, 3))),
    "open": ({RoundState.UNMASKING}, Round.open),
    "release": ({RoundState.UNMASKING}, lambda round_: round_.release(b"again", {})),
    "give_up": (OPEN, Round.give_up),
    "endorse_empty": ({RoundState.GIVING_UP}, lambda round_: round_.endorse_empty(3, an_endorsement(round_, 3))),
    "refuse": ({RoundState.UNMASKING, RoundState.GIVING_UP}, Round.refuse),
    "request": (ASKED, lambda round_: round_.request),
    "groups": (ASKED, lambda round_: round_.groups),
    "call": (ASKED, Round.call),
}


@pytest.mark.parametrize("state", list(RoundState))
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_works_in_its_states_and_changes_nothing_in_any_other(
    store: RoundStore, method: str, state: RoundState
) -> None:
    works_in, use = METHODS[method]
    round_ = at(store, state)
    kept = store.get(PLAN.round_id)
    if state in works_in:
        use(round_)
        return
    with pytest.raises(RuntimeError, match=r"is|cannot go"):
        use(round_)
    assert store.get(PLAN.round_id) == kept


def test_the_table_of_transitions_is_what_the_methods_do(store: RoundStore) -> None:
    """Every method from every state: the states that it leads to, and no other, are in the table."""
    seen: dict[RoundState, set[RoundState]] = {state: set() for state in RoundState}
    names = (RoundId(number.to_bytes(16)) for number in range(1000, 2000))
    for state in RoundState:
        for name, (works_in, use) in METHODS.items():
            if state not in works_in:
                continue
            round_ = renamed(store, next(names), state)
            if name in ("endorse", "endorse_empty"):
                for trustee in (1, *MASKING[1:]):
                    getattr(round_, name)(trustee, an_endorsement(round_, trustee))
            if name != "receive":
                use(round_)
            if round_.state is not state:
                seen[state].add(round_.state)
    assert seen == TRANSITIONS


def renamed(store: RoundStore, name: RoundId, state: RoundState) -> Round:
    """A round of another name that was taken to `state` by its own methods."""
    return taken_to(filled(store, plan=replace(PLAN, round_id=name)), state)


def test_states_only_lead_forward() -> None:
    """Whoever follows the table never sees a state again, and every state is on a way from the first one."""
    reachable = {RoundState.COLLECTING}

    def follow(state: RoundState, passed: tuple[RoundState, ...]) -> None:
        assert state not in passed
        reachable.add(state)
        for further in TRANSITIONS[state]:
            follow(further, (*passed, state))

    follow(RoundState.COLLECTING, ())
    assert reachable == set(RoundState) == set(TRANSITIONS)


def test_a_round_goes_on_after_a_restart_at_any_moment(store: RoundStore, cast: Cast) -> None:
    """A new object for every single step, and trustees that are reopened too."""
    values = [1, 2, 4, 8, 16]
    signed_plan = a_round(PLAN, store).signed_plan

    def restarted() -> Round:
        return Round(store, keys().provider, keys().directory, signed_plan)

    for tenant, value in enumerate(values):
        restarted().receive(a_contribution(tenant, cells=words(value)))
    close(restarted())
    request = restarted().request
    for index in QUORUM:
        assert restarted().state is RoundState.ENDORSING
        restarted().endorse(index, cast.trustee(index).endorse(restarted().request))
    for index in MASKING:
        assert restarted().missing(Answer.SHARE) == {one for one in MASKING if one >= index}
        restarted().share(index, a_share(restarted(), index))
    assert restarted().request == request
    (opened,) = restarted().open()
    assert set(opened.tolist()) == {31}
    restarted().release(b"release", {})
    assert restarted().state is RoundState.RELEASED


def test_the_last_endorsement_and_the_step_that_it_allows_are_kept_together(
    store: RoundStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a crash could part them, nothing would be missing and nothing would ever move the round."""
    round_ = closed(store)
    for trustee in QUORUM[:3]:
        round_.endorse(trustee, an_endorsement(round_, trustee))
    with monkeypatch.context() as patched:
        patched.setattr(
            "provider_server.rounds.store.round_store._move", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            round_.endorse(5, an_endorsement(round_, 5))
    resumed = again(round_)
    assert (resumed.state, resumed.missing(Answer.ENDORSEMENT)) == (RoundState.ENDORSING, {5})
    resumed.endorse(5, an_endorsement(round_, 5))
    assert resumed.state is RoundState.UNMASKING


def test_of_two_processes_on_one_store_the_second_loses_the_step(tmp_path: Path) -> None:
    """Both saw the same state before either moved, which the states that they saw are held to."""
    with closing(Store(tmp_path / "provider.db")) as one, closing(Store(tmp_path / "provider.db")) as two:
        first = filled(one.rounds)
        second = Round(Stale(two.rounds), keys().provider, keys().directory, first.signed_plan)
        close(first)
        with pytest.raises(LostStep) as lost:
            close(second, group=in_halves)
        assert "stop the other" in lost.value.diagnostics()
        assert second.groups == first.groups == (first.contributors,)
        with pytest.raises(LostStep):
            second.give_up()
        for trustee in QUORUM:
            first.endorse(trustee, an_endorsement(first, trustee))
        assert first.state is RoundState.UNMASKING


class Stale(RoundStore):
    """The store as a process sees it that looked a moment too early: every round is still collecting."""

    def __init__(self, real: RoundStore) -> None:
        super().__init__(real._engine)

    def get(self, round_id: RoundId):  # type: ignore[no-untyped-def]
        return replace(super().get(round_id), state=RoundState.COLLECTING)


# ---- collecting ----------------------------------------------------------------------------------------------------


def test_contributors_are_named_once_and_in_the_order_that_trustees_expect(store: RoundStore) -> None:
    collecting = a_round(PLAN, store)
    assert collecting.contributors == ()
    for tenant in (4, 0, 2):
        collecting.receive(a_contribution(tenant))
    assert collecting.contributors == tuple(sorted(keys().tenant_id(tenant) for tenant in (0, 2, 4)))


def test_the_plan_goes_out_under_the_providers_key(store: RoundStore) -> None:
    assert open_signed(Plan, a_round(PLAN, store).signed_plan, keys().provider.public) == PLAN


def test_a_round_is_opened_once(store: RoundStore) -> None:
    a_round(PLAN, store)
    with pytest.raises(sa.exc.IntegrityError):
        new_round(store, keys().provider, keys().directory, PLAN)


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
def test_an_answer_that_does_not_fit_costs_its_sender_the_place_and_nobody_else(
    store: RoundStore, answer: bytes, complaint: str
) -> None:
    collecting = filled(store, 2)
    with pytest.raises(PeerFault, match=complaint) as fault:
        collecting.receive(answer)
    assert keys().tenant_id(0).hex()[:12] in fault.value.what
    assert fault.value.hint
    assert len(collecting.contributors) == 2
    collecting.receive(a_contribution(2))
    assert len(collecting.contributors) == 3


def test_who_waits_counts_from_a_window_that_a_set_left_it_out_of_and_nobody_from_another(store: RoundStore) -> None:
    """Tenant 0 is in the set of the first window, the others are not; the second was given up, the fourth is asked."""
    plans = [a_plan(number, window=(168 * (number - 1), 168 * number)) for number in (1, 2, 3, 4)]
    sets = [endorsed_set(plans[0], [0]), endorsed_set(plans[1], []), endorsed_set(plans[2], [4])]
    collecting = a_round(plans[3], store)
    wrong = [(0, 0), (1, 100), (2, 168 * 3 + 1), (3, 168 * 4), (4, 168 * 2)]
    for tenant, start_hour in wrong:
        with pytest.raises(PeerFault, match=f"counts from hour {start_hour}, and may from hour"):
            collecting.receive(a_contribution(tenant, plans[3], start_hour=start_hour), sets)
    right = {0: 168, 1: 0, 2: 168 * 2, 3: 168 * 3, 4: 168 * 3}
    for tenant, start_hour in right.items():
        collecting.receive(a_contribution(tenant, plans[3], start_hour=start_hour), sets)
    assert collecting.start_hours == {keys().tenant_id(tenant): hour for tenant, hour in right.items()}
    unheard = a_round(replace(plans[3], round_id=RoundId(b"u" * 16)), store)
    with pytest.raises(PeerFault, match=f"and may from hour {168 * 3}"):  # no set speaks of the windows before
        unheard.receive(a_contribution(1, unheard.plan, start_hour=168 * 2))


def test_strangers_and_impostors_are_turned_away(store: RoundStore) -> None:
    collecting = a_round(PLAN, store)
    stranger = SigningKey.generate(os.urandom)
    honest = header_of(a_contribution())
    for signer, said in (
        (stranger, replace(honest, tenant=tenant_id(stranger.public))),
        (stranger, honest),
        (keys().tenants[1][0], honest),
    ):
        with pytest.raises(BadSignature):
            collecting.receive(forged_contribution(signer, said, FULL))
    for garbage in (b"", encode(honest), signed(PLAN), a_contribution()[:-1], a_contribution() + b"\0"):
        with pytest.raises(DecodeError):
            collecting.receive(garbage)
    assert collecting.contributors == ()


def test_the_same_bytes_twice_count_once_and_other_bytes_not_at_all(store: RoundStore) -> None:
    collecting = filled(store, values=[1, 2, 4, 8, 16])
    collecting.receive(a_contribution(2, cells=words(4)))
    with pytest.raises(PeerFault, match="sent two contributions") as fault:
        again(collecting).receive(a_contribution(2, cells=words(5)))
    assert "the first one counts" in fault.value.diagnostics()
    close(collecting)
    for trustee in QUORUM:
        collecting.endorse(trustee, an_endorsement(collecting, trustee))
    for trustee in MASKING:
        collecting.share(trustee, a_share(collecting, trustee))
    assert set(collecting.open()[0].tolist()) == {31}


def test_a_faulty_answer_does_not_bar_its_sender_from_a_good_one(store: RoundStore) -> None:
    collecting = a_round(PLAN, store)
    with pytest.raises(PeerFault):
        collecting.receive(a_contribution(0, cells=b""))
    collecting.receive(a_contribution(0))
    assert collecting.contributors == (keys().tenant_id(0),)


# ---- closing -------------------------------------------------------------------------------------------------------


def test_the_request_names_plan_groups_and_owners_under_the_providers_key(store: RoundStore) -> None:
    collected = filled(store, 4)
    collected.close(lambda plan, contributors: [contributors[:1], contributors[:0:-1]])
    request = open_signed(UnmaskRequest, collected.request, keys().provider.public)
    everybody = tuple(sorted(keys().tenant_id(tenant) for tenant in range(4)))
    assert open_signed(Plan, request.plan, keys().provider.public) == PLAN
    assert request.contributors == everybody
    assert collected.groups == (everybody[:1], everybody[1:])
    for signed_header in chain.from_iterable(request.groups):  # as the tenants signed them
        said = open_signed_by(ContributionHeader, signed_header, keys().directory.verify_key)
        assert said.plan == plan_digest(signed(PLAN))
    assert request.ownerships == ownerships(epoch=PLAN.epoch, window=(PLAN.first_hour, PLAN.end_hour))


def test_a_minimal_cohort_is_enough(store: RoundStore) -> None:
    enough = filled(store, COHORT)
    close(enough)
    assert enough.state is RoundState.ENDORSING


def test_below_the_minimum_a_round_waits_for_more(store: RoundStore) -> None:
    few = filled(store, COHORT - 1)
    with pytest.raises(CohortTooSmall, match=f"{COHORT - 1} contributions, at least {COHORT} needed"):
        close(few)
    few.receive(a_contribution(4))
    close(few)
    assert few.state is RoundState.ENDORSING


# ---- endorsing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Answer.ENDORSEMENT, Answer.SHARE])
@pytest.mark.parametrize(
    ("index", "changes"),
    [(4, {}), (3, {"round_id": RoundId(bytes(16))}), (3, {"request": Digest(bytes(32))})],
    ids=["trustee", "round", "request"],
)
def test_an_answer_to_something_else_is_not_taken_and_the_right_one_still_is(
    store: RoundStore, kind: Answer, index: int, changes: dict[str, object]
) -> None:
    round_ = closed(store) if kind is Answer.ENDORSEMENT else unmasking(store)
    answer: Make = an_endorsement if kind is Answer.ENDORSEMENT else a_share
    take = round_.endorse if kind is Answer.ENDORSEMENT else round_.share
    with pytest.raises(PeerFault, match="answered another request") as fault:
        take(3, answer(round_, index, signer=3, **changes))
    assert fault.value.hint
    assert round_.missing(kind) == set(MASKING)
    take(3, answer(round_, 3))
    assert round_.missing(kind) == {4, 5}


def test_an_endorsement_of_another_set_under_the_name_of_the_request_is_not_taken(store: RoundStore) -> None:
    round_ = closed(store)
    other = endorsed_set(PLAN, range(TENANTS - 1)).name
    with pytest.raises(PeerFault, match="trustee 3 endorsed another set"):
        round_.endorse(3, an_endorsement(round_, 3, endorsed=other))
    assert round_.missing(Answer.ENDORSEMENT) == set(MASKING)


@pytest.mark.parametrize("kind", [Answer.ENDORSEMENT, Answer.SHARE])
def test_an_answer_under_another_key_or_of_another_kind_is_not_taken(store: RoundStore, kind: Answer) -> None:
    round_ = closed(store) if kind is Answer.ENDORSEMENT else unmasking(store)
    take = round_.endorse if kind is Answer.ENDORSEMENT else round_.share
    kinds: tuple[Make, Make] = (an_endorsement, a_share)
    make, other = kinds if kind is Answer.ENDORSEMENT else kinds[::-1]
    for trustee, data in [(3, make(round_, 3, signer=4)), (6, make(round_, 3)), (0, make(round_, 3))]:
        with pytest.raises(BadSignature):
            take(trustee, data)
    for data in (b"", other(round_, 3), make(round_, 3)[:-1], encode(decode(Signed, make(round_, 3)))[1:]):
        with pytest.raises(DecodeError):
            take(3, data)
    assert round_.missing(kind) == set(MASKING)


def test_the_call_holds_the_request_and_all_endorsements(store: RoundStore) -> None:
    round_ = closed(store)
    sent = [an_endorsement(round_, trustee) for trustee in MASKING]
    for trustee in (5, 3, 4):
        round_.endorse(trustee, sent[trustee - 3])
    assert decode(UnmaskCall, round_.call()) == UnmaskCall(round_.request, tuple(sent))


def test_masks_are_asked_for_once_a_quorum_has_endorsed_and_every_mask_trustee(store: RoundStore) -> None:
    round_ = closed(store)
    for trustee in (1, 2, 3, 4):
        round_.endorse(trustee, an_endorsement(round_, trustee))
    assert (round_.state, round_.missing(Answer.ENDORSEMENT)) == (RoundState.ENDORSING, {5})
    other = filled(store, plan=a_plan(2))
    close(other)
    for trustee in MASKING:
        other.endorse(trustee, an_endorsement(other, trustee))
    assert (other.state, other.idle()) == (RoundState.ENDORSING, [1, 2])
    for late in (round_, other):
        late.endorse(5 if late is round_ else 2, an_endorsement(late, 5 if late is round_ else 2))
        assert late.state is RoundState.UNMASKING


def test_nothing_is_shared_before_all_have_endorsed(store: RoundStore) -> None:
    round_ = closed(store)
    for trustee in QUORUM[:3]:
        round_.endorse(trustee, an_endorsement(round_, trustee))
        round_.endorse(trustee, an_endorsement(round_, trustee))  # twice is once
    with pytest.raises(RuntimeError, match="is endorsing, not unmasking"):
        round_.share(3, a_share(round_, 3))
    round_.endorse(5, an_endorsement(round_, 5))
    round_.share(3, a_share(round_, 3))


# ---- unmasking -----------------------------------------------------------------------------------------------------


def test_masks_are_taken_off_the_sum_modulo_two_to_the_64(store: RoundStore) -> None:
    round_ = unmasking(store, values=[2**63, 2**63, 7, 0, 2**64 - 1])
    for trustee, value in [(3, 5), (5, 2**64 - 2), (4, 1)]:
        round_.share(trustee, a_share(round_, trustee, value))
    (total,) = round_.open()
    assert set(total.tolist()) == {2}
    assert total.shape == (PLAN.cells,)
    assert total.dtype == np.uint64
    assert round_.open()[0].tolist() == total.tolist()  # opening changes nothing


def test_every_group_is_opened_by_itself(store: RoundStore) -> None:
    round_ = filled(store, values=[1, 2, 4, 8, 16])
    ids = [keys().tenant_id(tenant) for tenant in range(TENANTS)]
    round_.close(
        lambda _plan, _: [[ids[3], ids[0]], [ids[1], ids[2], ids[4]]],
    )
    for trustee in QUORUM:
        round_.endorse(trustee, an_endorsement(round_, trustee))
    for trustee in MASKING:
        sums = tuple(np.full(PLAN.cells, value, "<u8").tobytes() for value in (trustee, 2**64 - 1))
        round_.share(trustee, a_share(round_, trustee, mask_sums=sums))
    first, second = round_.open()
    assert set(first.tolist()) == {9 - 12 + 2**64}
    assert set(second.tolist()) == {22 + 3}


@pytest.mark.parametrize(
    "sums",
    [(), (FULL, FULL), (FULL[8:],), (FULL + bytes(8),), (b"",)],
    ids=["none", "two groups", "short", "long", "empty"],
)
def test_masks_that_do_not_fit_are_not_taken_and_the_right_ones_still_are(
    store: RoundStore, sums: tuple[bytes, ...]
) -> None:
    round_ = unmasking(store)
    with pytest.raises(PeerFault, match="masks of the wrong length"):
        round_.share(3, a_share(round_, 3, mask_sums=sums))
    assert round_.missing(Answer.SHARE) == set(MASKING)
    round_.share(3, a_share(round_, 3))


def test_nothing_opens_while_a_share_is_missing(store: RoundStore) -> None:
    round_ = unmasking(store)
    for trustee, left in [(5, "[3, 4]"), (4, "[3]")]:
        round_.share(trustee, a_share(round_, trustee))
        with pytest.raises(RuntimeError, match="lacks the shares") as error:
            round_.open()
        assert left in str(error.value)
        with pytest.raises(RuntimeError, match="lacks the shares"):
            round_.release(b"release", {})
    assert round_.state is RoundState.UNMASKING


def test_one_missing_mask_hides_everything(store: RoundStore, cast: Cast) -> None:
    """With the masks of two of three trustees the sum is as good as random: no small word, no word twice."""
    round_ = a_round(PLAN, store)
    for tenant in range(TENANTS):
        round_.receive(cast.tenant(tenant).contribute(round_.signed_plan))
    close(round_)
    trustees = {index: cast.trustee(index) for index in QUORUM}
    endorse_all(round_, trustees)
    share_all(round_, trustees)
    (opened,) = round_.open()
    last = reopened(UnmaskShare, store.answers(PLAN.round_id, Answer.SHARE)[5])
    hidden = signed_words(opened + words_from_bytes(last.mask_sums[0]))
    assert len(set(hidden.tolist())) == PLAN.cells
    assert np.abs(hidden).min() > 2**34  # noise is about 2^12; a random word is below 2^34 once in 2^29
    assert np.abs(signed_words(opened)).max() < 2**20


def signed_words(total: Words) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    return words_from_bytes(total.tobytes()).astype(np.int64).astype(np.float64)


def test_a_stranger_to_masks_may_not_stand_for_one(store: RoundStore) -> None:
    """Trustee 1 is in the directory and does not mask in this round: its share would be taken off all the same."""
    round_ = closed(store)
    for trustee in QUORUM:
        round_.endorse(trustee, an_endorsement(round_, trustee))
    with pytest.raises(PeerFault, match="trustee 1 holds no masks of this round"):
        round_.share(1, a_share(round_, 1, 1))
    for trustee in MASKING:
        round_.share(trustee, a_share(round_, trustee, 1))
        round_.share(trustee, a_share(round_, trustee, 9))  # the first one counts
    assert set(round_.open()[0].tolist()) == {2**64 - 3}
