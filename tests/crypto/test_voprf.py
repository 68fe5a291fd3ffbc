"""The oblivious function against the RFC's vectors, another implementation, integers, and whatever bytes may come."""

import json
import os
from collections.abc import Callable, Sequence
from math import log2
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from voprf import ristretto as other

from crypto.errors import DecodeError, PeerFault
from crypto.ids import MAX_BATCH
from crypto.ristretto import (
    IDENTITY,
    ORDER,
    ZERO,
    Element,
    Scalar,
    dot,
    expand_message_xmd,
    hash_to_group,
    mul,
    mul_base,
)
from crypto.voprf import (
    MAX_INPUT_BYTES,
    Evaluation,
    KeyPair,
    Mode,
    Proof,
    blind,
    blind_evaluate,
    derive_key_pair,
    evaluate,
    finalize,
    verify_proof,
)

RFC = json.loads((Path(__file__).parents[1] / "vectors" / "rfc9497_ristretto255_sha512.json").read_text())
CASES = [(mode, vector) for mode in RFC["modes"] for vector in mode["vectors"]]
KEYS = derive_key_pair(bytes(range(32)), b"test")
WIDE = st.integers(0, 2**256 - 1).map(lambda value: value.to_bytes(32, "little"))
REDUCED = st.integers(0, ORDER - 1).map(lambda value: value.to_bytes(32, "little"))
PAIRS = st.tuples(WIDE | REDUCED, REDUCED).map(b"".join)
ANY_BYTES = st.binary(max_size=70) | WIDE | REDUCED | PAIRS


def unhex(values: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(value) for value in values)


def fixed(values: Sequence[str]) -> Callable[[int], bytes]:
    """A source of randomness whose scalars are exactly `values`: little-endian, so zeros above change nothing."""
    remaining = iter(unhex(values))
    return lambda length: next(remaining).ljust(length, b"\0")


def encoded(values: Sequence[Element]) -> tuple[bytes, ...]:
    return tuple(value.encoded for value in values)


# ---- RFC 9497, appendix A.1 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", RFC["modes"], ids=lambda mode: str(mode["mode"]))
def test_keys_are_those_of_the_rfc(mode: dict[str, Any]) -> None:
    keys = derive_key_pair(bytes.fromhex(RFC["seed"]), bytes.fromhex(RFC["key_info"]), Mode[mode["mode"]])
    assert keys.secret.encoded.hex() == mode["secret_key"]
    assert keys.public == mul_base(keys.secret)
    assert keys.public.encoded.hex() == mode.get("public_key", keys.public.encoded.hex())


@pytest.mark.parametrize(("mode", "vector"), CASES)
def test_runs_are_those_of_the_rfc(mode: dict[str, Any], vector: dict[str, Any]) -> None:
    secret = Scalar.decode(bytes.fromhex(mode["secret_key"]))
    blinding = blind(unhex(vector["inputs"]), fixed(vector["blinds"]), Mode[mode["mode"]])
    assert encoded(blinding.elements) == unhex(vector["blinded"])
    evaluated = evaluate(secret, blinding.elements)
    assert encoded(evaluated) == unhex(vector["evaluated"])
    assert finalize(blinding, evaluated) == unhex(vector["outputs"])


@pytest.mark.parametrize("vector", RFC["modes"][1]["vectors"])
def test_proofs_are_those_of_the_rfc(vector: dict[str, Any]) -> None:
    secret = Scalar.decode(bytes.fromhex(RFC["modes"][1]["secret_key"]))
    public = Element.decode(bytes.fromhex(RFC["modes"][1]["public_key"]))
    blinded = tuple(Element.decode(data) for data in unhex(vector["blinded"]))
    evaluation = blind_evaluate(secret, blinded, fixed([vector["proof_random_scalar"]]))
    assert evaluation.proof.encode().hex() == vector["proof"]
    assert Proof.decode(bytes.fromhex(vector["proof"])) == evaluation.proof
    verify_proof(public, blinded, evaluation)


@pytest.mark.parametrize(
    ("message", "expanded"),
    [
        (b"", "6b9a7312411d92f921c6f68ca0b6380730a1a4d982c507211a90964c394179ba"),
        (b"abc", "0da749f12fbe5483eb066a5f595055679b976e93abe9be6f0f6318bce7aca8dc"),
        (
            b"abc",
            "7f1dddd13c08b543f2e2037b14cefb255b44c83cc397c1786d975653e36a6b11bdd7732d8b38adb4a0edc26a0cef4bb4"
            "5217135456e58fbca1703cd6032cb1347ee720b87972d63fbf232587043ed2901bce7f22610c0419751c065922b48843"
            "1851041310ad659e4b23520e1772ab29dcdeb2002222a363f0c2b1c972b3efe1",
        ),
    ],
)
def test_expansion_is_that_of_rfc_9380_appendix_k3(message: bytes, expanded: str) -> None:
    label = b"QUUX-V01-CS02-with-expander-SHA512-256"
    assert expand_message_xmd(message, label, len(expanded) // 2).hex() == expanded


@pytest.mark.parametrize(("label", "length"), [(b"", 32), (b"x" * 256, 32), (b"x", 0), (b"x", 255 * 64 + 1)])
def test_expansion_out_of_range_is_refused(label: bytes, length: int) -> None:
    with pytest.raises(ValueError, match="cannot expand"):
        expand_message_xmd(b"", label, length)


# ---- another implementation: the package voprf, in Rust ------------------------------------------------------------


def test_its_evaluator_serves_our_client() -> None:
    evaluator = other.Evaluator.from_seed(bytes(range(32)), b"test")
    assert evaluator.public_key.serialize() == KEYS.public.encoded
    inputs = [b"one", b"two", b"three"]
    blinding = blind(inputs, os.urandom)
    sent = [other.BlindedInput.deserialize(element.encoded) for element in blinding.elements]
    answer = evaluator.evaluate_batch(sent).serialize()
    elements = tuple(Element.decode(answer[at : at + 32]) for at in range(64, len(answer), 32))
    verify_proof(KEYS.public, blinding.elements, Evaluation(elements, Proof.decode(answer[:64])))
    assert finalize(blinding, elements) == tuple(evaluator.evaluate_known_input(item) for item in inputs)


def test_our_evaluator_serves_its_client() -> None:
    client, blinded = other.Client.blind(b"one")
    evaluation = blind_evaluate(KEYS.secret, [Element.decode(blinded.serialize())], os.urandom)
    wire = evaluation.proof.encode() + evaluation.elements[0].encoded
    public_key = other.PublicKey.deserialize(KEYS.public.encoded)
    output = client.finalize(other.VerifiableOutput.deserialize(wire), public_key)
    assert output == other.Evaluator.from_seed(bytes(range(32)), b"test").evaluate_known_input(b"one")


# ---- properties ----------------------------------------------------------------------------------------------------


def apply_key(inputs: Sequence[bytes], keys: KeyPair, mode: Mode = Mode.VOPRF) -> tuple[bytes, ...]:
    blinding = blind(inputs, os.urandom, mode)
    evaluation = blind_evaluate(keys.secret, blinding.elements, os.urandom)
    verify_proof(keys.public, blinding.elements, evaluation)
    return finalize(blinding, evaluation.elements)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.binary(max_size=100), min_size=1, max_size=4))
def test_outputs_depend_on_input_and_key_alone(inputs: list[bytes]) -> None:
    outputs = apply_key(inputs, KEYS)
    assert outputs == apply_key(inputs, KEYS) == sum((apply_key([item], KEYS) for item in inputs), ())
    assert len(set(outputs)) == len(set(inputs))
    assert not set(outputs) & set(apply_key(inputs, derive_key_pair(bytes(32), b"another")))
    assert not set(outputs) & set(apply_key(inputs, KEYS, Mode.OPRF))


@given(st.integers(0, ORDER - 1), st.integers(1, ORDER - 1))
def test_scalars_are_integers_modulo_the_order(left: int, right: int) -> None:
    a, b = Scalar.from_int(left), Scalar.from_int(right)
    assert a + b == Scalar.from_int(left + right)
    assert a - b == Scalar.from_int(left - right)
    assert a * b == Scalar.from_int(left * right)
    assert b.inverse() == Scalar.from_int(pow(right, -1, ORDER))
    assert Scalar.decode(a.encoded) == a
    assert (a == b) == (left == right)
    assert mul_base(a) + mul_base(b) == mul_base(a + b)
    assert mul(a, mul_base(b)) == mul_base(a * b)


def test_arithmetic_is_total() -> None:
    point = hash_to_group(b"anything", b"test")
    assert mul(ZERO, point) == mul(Scalar.from_int(7), IDENTITY) == mul_base(ZERO) == IDENTITY
    assert point + mul(Scalar.from_int(-1), point) == IDENTITY
    assert point + IDENTITY == point
    assert dot([Scalar.from_int(2), ZERO], [point, point]) == point + point


@given(ANY_BYTES)
@example(ORDER.to_bytes(32, "little"))
@example((ORDER - 1).to_bytes(32, "little"))
def test_any_bytes_are_a_scalar_or_a_decode_error(data: bytes) -> None:
    if is_scalar(data):
        assert Scalar.decode(data).encoded == data
    else:
        with pytest.raises(DecodeError):
            Scalar.decode(data)


@given(ANY_BYTES | st.binary().map(lambda message: hash_to_group(message, b"test").encoded))
@example(bytes(32))
@example(KEYS.public.encoded[:-1] + bytes([KEYS.public.encoded[-1] | 0x80]))
def test_any_bytes_are_an_element_or_a_decode_error(data: bytes) -> None:
    if is_element(data):
        assert Element.decode(data).encoded == data
    else:
        with pytest.raises(DecodeError):
            Element.decode(data)


@given(ANY_BYTES)
def test_any_bytes_are_a_proof_or_a_decode_error(data: bytes) -> None:
    if len(data) == 64 and is_scalar(data[:32]) and is_scalar(data[32:]):
        assert Proof.decode(data).encode() == data
    else:
        with pytest.raises(DecodeError):
            Proof.decode(data)


def is_scalar(data: bytes) -> bool:
    return len(data) == 32 and int.from_bytes(data, "little") < ORDER


def is_element(data: bytes) -> bool:
    """RFC 9496 §4.3.1 in integers, without the identity: an oracle that shares nothing with libsodium."""
    p = 2**255 - 19
    s = int.from_bytes(data, "little")
    if len(data) != 32 or not 0 < s < p or s % 2:
        return False
    u1, u2 = (1 - s * s) % p, (1 + s * s) % p
    d = -121665 * pow(121666, -1, p)
    v = (-d * u1 * u1 - u2 * u2) % p
    square = v * u2 * u2 % p
    root = pow(square, (p + 3) // 8, p)
    root = root if root * root % p == square else root * pow(2, (p - 1) // 4, p) % p
    if root * root % p != square or not square:
        return False
    inverse = pow(root, -1, p)
    x = 2 * s * inverse * u2 % p
    x = p - x if x % 2 else x
    y = u1 * inverse * inverse * u2 * v % p
    return y != 0 and x * y % p % 2 == 0


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_a_proof_is_for_one_key_and_one_batch() -> None:
    blinding = blind([b"one", b"two"], os.urandom)
    good = blind_evaluate(KEYS.secret, blinding.elements, os.urandom)
    foreign = blind_evaluate(derive_key_pair(bytes(32), b"").secret, blinding.elements, os.urandom)
    zeros = Proof.decode(bytes(64))
    wrong = [
        foreign,
        Evaluation(good.elements, foreign.proof),
        Evaluation(good.elements[::-1], good.proof),
        Evaluation((good.elements[0], good.elements[0]), good.proof),
        Evaluation(good.elements, Proof(good.proof.response, good.proof.challenge)),
        Evaluation(good.elements, zeros),
        Evaluation((IDENTITY, IDENTITY), zeros),
    ]
    for evaluation in wrong:
        with pytest.raises(PeerFault, match="does not show"):
            verify_proof(KEYS.public, blinding.elements, evaluation)
    with pytest.raises(PeerFault, match="2 elements were sent and 1 came back"):
        verify_proof(KEYS.public, blinding.elements, Evaluation(good.elements[:1], good.proof))
    with pytest.raises(PeerFault, match="does not show"):
        verify_proof(KEYS.public, blinding.elements[::-1], good)


@pytest.mark.parametrize("size", [0, MAX_BATCH + 1])
def test_a_batch_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="a batch has"):
        blind([b""] * size, os.urandom)
    with pytest.raises(ValueError, match="a batch has"):
        blind_evaluate(KEYS.secret, [KEYS.public] * size, os.urandom)


def test_the_longest_input_and_the_largest_batch_pass() -> None:
    assert len(apply_key([bytes(MAX_INPUT_BYTES)], KEYS)) == 1
    assert len(apply_key([b"same"] * MAX_BATCH, KEYS)) == MAX_BATCH
    with pytest.raises(ValueError, match="longer than"):
        blind([bytes(MAX_INPUT_BYTES + 1)], os.urandom)


def test_a_batch_is_too_short_for_generalised_birthdays() -> None:
    assert 252 / (1 + log2(MAX_BATCH)) >= 42, "entries in each of the lists that a forged proof takes, log2"


def test_broken_randomness_and_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="broken"):
        blind([b""], bytes)
    with pytest.raises(ValueError, match="32 bytes"):
        derive_key_pair(b"short", b"")


def test_secrets_do_not_show() -> None:
    blinding = blind([b"a descriptor"], os.urandom)
    shown = "".join(show(value) for value in (KEYS, KEYS.secret, blinding, blinding.blinds[0]) for show in (repr, str))
    for secret in (KEYS.secret, blinding.blinds[0]):
        assert secret.encoded.hex() not in shown
        assert repr(secret.encoded)[2:-1] not in shown
        assert str(int.from_bytes(secret.encoded, "little")) not in shown
    assert "descriptor" not in shown
    assert KEYS.public.encoded.hex() in shown
    with pytest.raises(TypeError, match="unhashable"):
        hash(KEYS.secret)
