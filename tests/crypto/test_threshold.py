"""The shared key: any t trustees give the single key's output, and whoever deals or answers wrongly is named."""

import json
import os
import pickle
import runpy
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from crypto.errors import DecodeError, PeerFault, WrongShare
from crypto.ristretto import ZERO, Element, Scalar, mul, mul_base
from crypto.threshold import (
    Dealing,
    GroupKey,
    KeyShare,
    TrusteeFault,
    combine_dealings,
    combine_evaluations,
    deal,
    group_key,
    lagrange_at_zero,
    verify_share,
)
from crypto.voprf import Elements, Evaluation, Proof, blind, blind_evaluate, evaluate, finalize, verify_proof
from tests.support.changing import replace

HERE = Path(__file__).parents[1] / "vectors"
VECTORS = json.loads((HERE / "threshold_voprf.json").read_text())
T, N = 3, 5
EVERYBODY = range(1, N + 1)


def elements(values: list[str]) -> Elements:
    return tuple(Element.decode(bytes.fromhex(value)) for value in values)


def scalar(value: str) -> Scalar:
    return Scalar.decode(bytes.fromhex(value))


def answers(values: list[dict[str, Any]]) -> dict[int, Evaluation]:
    return {
        value["trustee"]: Evaluation(elements(value["elements"]), Proof.decode(bytes.fromhex(value["proof"])))
        for value in values
    }


def generate(threshold: int, trustees: int) -> tuple[GroupKey, list[KeyShare]]:
    """A whole key generation: everybody deals, verifies and adds."""
    dealings = {dealer: deal(threshold, trustees, os.urandom) for dealer in range(1, trustees + 1)}
    return group_key(threshold, trustees, committed(dealings)), [
        combine_dealings(threshold, i, dealt_to(i, dealings), committed(dealings)) for i in dealings
    ]


def committed(dealings: dict[int, Dealing]) -> dict[int, Elements]:
    return {dealer: dealing.commitments for dealer, dealing in dealings.items()}


def dealt_to(receiver: int, dealings: dict[int, Dealing]) -> dict[int, Scalar]:
    return {dealer: dealing.shares[receiver - 1] for dealer, dealing in dealings.items()}


def whole_key(shares: list[KeyShare]) -> Scalar:
    """What nobody may ever compute outside of a test."""
    weights = lagrange_at_zero([share.index for share in shares])
    return sum((weight * share.secret for weight, share in zip(weights, shares, strict=True)), ZERO)


KEY, SHARES = generate(T, N)


# ---- vectors -------------------------------------------------------------------------------------------------------


def test_generating_the_vectors_again_changes_nothing() -> None:
    script = runpy.run_path(str(HERE / "generate.py"))
    for name, make in script["VECTORS"].items():
        assert script["render"](make()) == (HERE / name).read_text(), f"{name}: run tests/vectors/generate.py"


def test_key_generation_follows_the_vectors() -> None:
    commitments = {dealing["dealer"]: elements(dealing["commitments"]) for dealing in VECTORS["dealings"]}
    for index, expected in enumerate(VECTORS["key_shares"], start=1):
        dealt = {dealing["dealer"]: scalar(dealing["shares"][index - 1]) for dealing in VECTORS["dealings"]}
        assert combine_dealings(T, index, dealt, commitments) == KeyShare(index, scalar(expected))
    assert group_key(T, N, commitments) == vector_key()


def vector_key() -> GroupKey:
    return GroupKey(T, elements([VECTORS["public_key"]])[0], elements(VECTORS["share_public_keys"]))


@pytest.mark.parametrize("chosen", list(combinations(EVERYBODY, T)))
def test_every_three_of_five_follow_the_vectors(chosen: tuple[int, ...]) -> None:
    evaluations = {i: evaluation for i, evaluation in answers(VECTORS["evaluations"]).items() if i in chosen}
    blinded = elements(VECTORS["blinded"])
    assert combine_evaluations(vector_key(), blinded, evaluations) == elements(VECTORS["combined"])


def test_outputs_follow_the_vectors() -> None:
    blinds = iter(bytes.fromhex(value) for value in VECTORS["blinds"])
    inputs = [bytes.fromhex(value) for value in VECTORS["inputs"]]
    blinding = blind(inputs, lambda length: next(blinds).ljust(length, b"\0"))
    assert blinding.elements == elements(VECTORS["blinded"])
    assert [output.hex() for output in finalize(blinding, elements(VECTORS["combined"]))] == VECTORS["outputs"]


@pytest.mark.parametrize("bad", VECTORS["bad_elements"], ids=lambda bad: str(bad["comment"]))
def test_bad_elements_do_not_decode(bad: dict[str, str]) -> None:
    with pytest.raises(DecodeError):
        Element.decode(bytes.fromhex(bad["encoded"]))


@pytest.mark.parametrize("bad", VECTORS["bad_scalars"], ids=lambda bad: str(bad["comment"]))
def test_bad_scalars_do_not_decode(bad: dict[str, str]) -> None:
    with pytest.raises(DecodeError):
        Scalar.decode(bytes.fromhex(bad["encoded"]))


@pytest.mark.parametrize("bad", VECTORS["bad_dealings"], ids=lambda bad: str(bad["comment"]))
def test_a_bad_dealing_names_its_dealer(bad: dict[str, Any]) -> None:
    with pytest.raises(TrusteeFault, match="trustee 4 ") as caught:
        verify_share(T, bad["dealer"], bad["receiver"], scalar(bad["share"]), elements(bad["commitments"]))
    assert caught.value.trustee == 4
    assert bad["share"] not in caught.value.diagnostics()


@pytest.mark.parametrize("bad", VECTORS["bad_evaluations"], ids=lambda bad: str(bad["comment"]))
def test_a_bad_evaluation_names_its_trustee(bad: dict[str, Any]) -> None:
    with pytest.raises(PeerFault) as caught:
        combine_evaluations(vector_key(), elements(VECTORS["blinded"]), answers(bad["evaluations"]))
    assert getattr(caught.value, "trustee", None) == bad["trustee"]
    assert isinstance(caught.value, WrongShare) == (bad["trustee"] is not None)


# ---- key generation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("threshold", "trustees"), [(1, 1), (1, 4), (2, 3), (3, 5), (4, 7)])
def test_shares_fit_their_public_keys_and_any_t_give_the_key(threshold: int, trustees: int) -> None:
    key, shares = generate(threshold, trustees)
    assert [mul_base(share.secret) for share in shares] == list(key.share_public_keys)
    for chosen in combinations(shares, threshold):
        assert mul_base(whole_key(list(chosen))) == key.public_key
    if threshold > 1:
        assert mul_base(whole_key(shares[: threshold - 1])) != key.public_key


@pytest.mark.parametrize(("threshold", "trustees"), [(0, 5), (-1, 5), (2, 2), (4, 5), (1, 0)])
def test_thresholds_without_an_honest_majority_are_refused(threshold: int, trustees: int) -> None:
    with pytest.raises(ValueError, match="at least 2t - 1"):
        deal(threshold, trustees, os.urandom)


@pytest.mark.parametrize("liar", EVERYBODY)
def test_a_wrong_share_names_its_dealer(liar: int) -> None:
    dealings = {dealer: deal(T, N, os.urandom) for dealer in EVERYBODY}
    dealt = dealt_to(1, dealings) | {liar: Scalar.random(os.urandom)}
    with pytest.raises(TrusteeFault, match=f"trustee {liar} dealt") as caught:
        combine_dealings(T, 1, dealt, committed(dealings))
    assert caught.value.trustee == liar
    assert "leaves this dealer out" in caught.value.diagnostics()


def test_a_missing_share_names_its_dealer() -> None:
    dealings = {dealer: deal(T, N, os.urandom) for dealer in EVERYBODY}
    dealt = dealt_to(2, dealings)
    del dealt[5]
    with pytest.raises(TrusteeFault, match="trustee 5 dealt no share to trustee 2"):
        combine_dealings(T, 2, dealt, committed(dealings))


def test_another_degree_names_its_dealer() -> None:
    commitments = committed({dealer: deal(T, N, os.urandom) for dealer in EVERYBODY})
    for wrong in (commitments[3][:2], commitments[3] * 2, ()):
        with pytest.raises(TrusteeFault, match=f"trustee 3 committed to {len(wrong)} coefficients"):
            group_key(T, N, commitments | {3: wrong})


def test_a_dealer_can_be_left_out_but_not_too_many() -> None:
    dealings = {dealer: deal(T, N, os.urandom) for dealer in (1, 2, 4)}
    key = group_key(T, N, committed(dealings))
    share = combine_dealings(T, 3, dealt_to(3, dealings), committed(dealings))
    assert mul_base(share.secret) == key.share_public_key(3)
    del dealings[4]
    with pytest.raises(PeerFault, match="2 trustees dealt, 3 are needed"):
        group_key(T, N, committed(dealings))
    with pytest.raises(PeerFault, match="2 trustees dealt, 3 are needed"):
        combine_dealings(T, 3, dealt_to(3, dealings), committed(dealings))


def test_dealings_that_cancel_out_give_no_key() -> None:
    commitments = committed({dealer: deal(2, 3, os.urandom) for dealer in (1, 2)})
    total = [left + right for left, right in zip(commitments[1], commitments[2], strict=True)]
    negated = tuple(mul(Scalar.from_int(-1), element) for element in total)
    with pytest.raises(PeerFault, match="cancel out"):
        group_key(2, 3, commitments | {3: negated})


def test_commitments_that_cancel_out_at_a_place_name_the_dealer() -> None:
    constant, highest = mul_base(Scalar.from_int(5)), mul_base(Scalar.from_int(7))
    commitments = (constant, mul(Scalar.from_int(-2), highest), highest)
    with pytest.raises(TrusteeFault, match="trustee 1 dealt"):
        verify_share(3, 1, 2, Scalar.random(os.urandom), commitments)
    verify_share(3, 1, 2, Scalar.from_int(5), commitments)


# ---- evaluation ----------------------------------------------------------------------------------------------------


def ask(blinded: Elements, trustees: tuple[int, ...]) -> dict[int, Evaluation]:
    return {i: blind_evaluate(SHARES[i - 1].secret, blinded, os.urandom) for i in trustees}


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3), st.sampled_from(list(combinations(EVERYBODY, T))))
def test_the_output_is_that_of_the_single_key(inputs: list[bytes], trustees: tuple[int, ...]) -> None:
    blinding = blind(inputs, os.urandom)
    combined = combine_evaluations(KEY, blinding.elements, ask(blinding.elements, trustees))
    again = blind(inputs, os.urandom)
    assert finalize(blinding, combined) == finalize(again, evaluate(whole_key(SHARES), again.elements))


def test_every_three_of_five_and_all_five_agree() -> None:
    blinding = blind([b"descriptor"], os.urandom)
    groups = [*combinations(EVERYBODY, 3), *combinations(EVERYBODY, 4), (5, 4, 3, 2, 1)]
    found = {combine_evaluations(KEY, blinding.elements, ask(blinding.elements, group)) for group in groups}
    assert found == {evaluate(whole_key(SHARES), blinding.elements)}


@pytest.mark.parametrize("liar", EVERYBODY)
def test_a_wrong_evaluation_names_its_trustee(liar: int) -> None:
    blinding = blind([b"one", b"two"], os.urandom)
    good = ask(blinding.elements, tuple(EVERYBODY))
    neighbour = good[liar % N + 1]
    wrong = [
        blind_evaluate(Scalar.random(os.urandom), blinding.elements, os.urandom),
        replace(good[liar], proof=neighbour.proof),
        replace(good[liar], elements=neighbour.elements),
        replace(good[liar], elements=good[liar].elements[::-1]),
        neighbour,
    ]
    for evaluation in wrong:
        with pytest.raises(TrusteeFault, match=f"trustee {liar} sent a wrong evaluation") as caught:
            combine_evaluations(KEY, blinding.elements, good | {liar: evaluation})
        assert caught.value.trustee == liar
        assert "use another trustee" in caught.value.diagnostics()
    del good[liar]
    combine_evaluations(KEY, blinding.elements, good)


@pytest.mark.parametrize("few", [(), (2,), (2, 5)])
def test_too_few_answers_are_refused(few: tuple[int, ...]) -> None:
    blinding = blind([b"one"], os.urandom)
    with pytest.raises(PeerFault, match=f"{len(few)} trustees answered, 3 are needed") as caught:
        combine_evaluations(KEY, blinding.elements, ask(blinding.elements, few))
    assert "ask more trustees" in caught.value.diagnostics()


def test_a_trustee_outside_the_key_is_named() -> None:
    for stranger in (0, -1, N + 1):
        with pytest.raises(TrusteeFault, match=f"trustee {stranger} is not one of the 5"):
            KEY.share_public_key(stranger)


def test_answers_of_another_key_do_not_mix() -> None:
    _, foreign = generate(T, N)
    blinding = blind([b"one"], os.urandom)
    mixed = ask(blinding.elements, (1, 2)) | {3: blind_evaluate(foreign[2].secret, blinding.elements, os.urandom)}
    with pytest.raises(TrusteeFault, match="trustee 3 "):
        combine_evaluations(KEY, blinding.elements, mixed)
    with pytest.raises(PeerFault, match="does not show"):
        verify_proof(KEY.public_key, blinding.elements, mixed[1])


# ---- manners -------------------------------------------------------------------------------------------------------


def test_secrets_do_not_show() -> None:
    dealing = deal(T, N, os.urandom)
    secrets = [*dealing.shares, SHARES[0].secret]
    shown = "".join(show(value) for value in (dealing, SHARES[0], KEY, *secrets) for show in (repr, str))
    for secret in secrets:
        assert secret.encoded.hex() not in shown
        assert repr(secret.encoded)[2:-1] not in shown
    assert KEY.public_key.encoded.hex() in shown


def test_a_fault_survives_a_process_boundary() -> None:
    fault = TrusteeFault("dealt wrongly", trustee=3, hint="ask another")
    copy = pickle.loads(pickle.dumps(fault))  # noqa: S301  # our own bytes
    assert (str(copy), copy.trustee, copy.hint) == ("trustee 3 dealt wrongly", 3, "ask another")
