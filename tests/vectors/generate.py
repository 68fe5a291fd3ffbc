"""Writes Pharoah's own test vectors, good and bad, beside this script; the RFC's are an input, not an output.

    python tests/vectors/generate.py

Each file is what one function of `VECTORS` returns. The randomness is a fixed stream that anybody can compute, so
running this again leaves every file as it is, byte for byte; a difference means that the protocol has changed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import shake_256
from pathlib import Path

from crypto.ristretto import ORDER, Element, Scalar
from crypto.threshold import combine_dealings, combine_evaluations, deal, group_key
from crypto.voprf import Evaluation, Proof, blind, blind_evaluate, finalize

Document = dict[str, object]

THRESHOLD, TRUSTEES = 3, 5
ONE = Scalar.from_int(1)


class InsecureStream:
    """Reproducible bytes from a public label, in place of randomness. Never for keys that protect anything."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._calls = 0

    def __call__(self, length: int) -> bytes:
        self._calls += 1
        return shake_256(f"insecure/{self._label}/{self._calls}".encode()).digest(length)


def threshold_voprf() -> Document:
    """Key generation by five trustees, evaluation of two inputs by all of them, and what must be refused."""
    stream = InsecureStream("threshold-voprf")
    trustees = range(1, TRUSTEES + 1)
    dealings = {dealer: deal(THRESHOLD, TRUSTEES, stream) for dealer in trustees}
    commitments = {dealer: dealing.commitments for dealer, dealing in dealings.items()}
    dealt = {i: {dealer: dealing.shares[i - 1] for dealer, dealing in dealings.items()} for i in trustees}
    shares = [combine_dealings(THRESHOLD, i, dealt[i], commitments) for i in trustees]
    key = group_key(THRESHOLD, TRUSTEES, commitments)
    blinding = blind([b"", b"epoch 7, subarchetype: a descriptor"], stream)
    evaluations = {share.index: blind_evaluate(share.secret, blinding.elements, stream) for share in shares}
    combined = combine_evaluations(key, blinding.elements, evaluations)
    return {
        "about": "threshold VOPRF, RFC 9497 suite ristretto255-SHA512; all secrets come from an insecure stream",
        "threshold": THRESHOLD,
        "trustees": TRUSTEES,
        "dealings": [
            {"dealer": dealer, "shares": _hexes(dealing.shares), "commitments": _hexes(dealing.commitments)}
            for dealer, dealing in dealings.items()
        ],
        "key_shares": _hexes([share.secret for share in shares]),
        "public_key": key.public_key.encoded.hex(),
        "share_public_keys": _hexes(key.share_public_keys),
        "inputs": [item.hex() for item in blinding.inputs],
        "blinds": _hexes(blinding.blinds),
        "blinded": _hexes(blinding.elements),
        "evaluations": _evaluations(evaluations),
        "combined": _hexes(combined),
        "outputs": [output.hex() for output in finalize(blinding, combined)],
        "bad_elements": _bad_elements(combined[0]),
        "bad_scalars": _bad_scalars(),
        "bad_dealings": _bad_dealings(dealt[2][4], commitments[4]),
        "bad_evaluations": _bad_evaluations(evaluations),
    }


def _bad_elements(good: Element) -> list[Document]:
    """Each must raise DecodeError; the comments name the rule of RFC 9496 §4.3.1 that is broken."""
    prime = 2**255 - 19
    return [
        {"comment": "the identity", "encoded": bytes(32).hex()},
        {"comment": "the identity, not reduced", "encoded": prime.to_bytes(32, "little").hex()},
        {"comment": "not reduced", "encoded": (prime + 1).to_bytes(32, "little").hex()},
        {"comment": "negative", "encoded": (1).to_bytes(32, "little").hex()},
        {"comment": "y is zero", "encoded": (prime - 1).to_bytes(32, "little").hex()},
        {"comment": "not a square", "encoded": "26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371"},
        {"comment": "top bit set", "encoded": (good.encoded[:-1] + bytes([good.encoded[-1] | 0x80])).hex()},
        {"comment": "all bits set", "encoded": "ff" * 32},
        {"comment": "one byte short", "encoded": good.encoded[:-1].hex()},
        {"comment": "one byte long", "encoded": (good.encoded + b"\0").hex()},
        {"comment": "empty", "encoded": ""},
    ]


def _bad_scalars() -> list[Document]:
    """Each must raise DecodeError."""
    return [
        {"comment": "the order", "encoded": ORDER.to_bytes(32, "little").hex()},
        {"comment": "one, not reduced", "encoded": (ORDER + 1).to_bytes(32, "little").hex()},
        {"comment": "top bit set", "encoded": (1 + 2**255).to_bytes(32, "little").hex()},
        {"comment": "all bits set", "encoded": "ff" * 32},
        {"comment": "one byte short", "encoded": ONE.encoded[:-1].hex()},
        {"comment": "one byte long", "encoded": (ONE.encoded + b"\0").hex()},
        {"comment": "empty", "encoded": ""},
    ]


def _bad_dealings(share: Scalar, commitments: Sequence[Element]) -> list[Document]:
    """What trustee 4 dealt to trustee 2, spoilt: each must raise TrusteeFault that names trustee 4."""
    cases = [
        ("the share is one too large", 2, share + ONE, commitments),
        ("the share was meant for trustee 2", 3, share, commitments),
        ("two commitments are swapped", 2, share, [commitments[1], commitments[0], *commitments[2:]]),
        ("a higher degree than agreed", 2, share, [*commitments, commitments[0]]),
        ("a lower degree than agreed", 2, share, commitments[:-1]),
    ]
    return [
        {
            "comment": comment,
            "dealer": 4,
            "receiver": receiver,
            "share": spoilt.encoded.hex(),
            "commitments": _hexes(committed),
        }
        for comment, receiver, spoilt, committed in cases
    ]


def _bad_evaluations(good: Mapping[int, Evaluation]) -> list[Document]:
    """Answers to the good request, spoilt: each must raise TrusteeFault that names `trustee`, or PeerFault for null."""
    one, two, three, four = (good[i] for i in (1, 2, 3, 4))
    late = Proof(two.proof.challenge, two.proof.response + ONE)
    cases: list[tuple[str, int | None, Mapping[int, Evaluation]]] = [
        ("a proof's response is one too large", 2, {1: one, 2: replace(two, proof=late), 3: three}),
        ("a proof of zeros", 1, {1: replace(one, proof=Proof.decode(bytes(64))), 2: two, 3: three}),
        (
            "two trustees' proofs are swapped",
            2,
            {1: one, 2: replace(two, proof=three.proof), 3: replace(three, proof=two.proof)},
        ),
        ("the evaluation of trustee 4", 3, {1: one, 2: two, 3: four}),
        (
            "an element is doubled",
            1,
            {1: replace(one, elements=(one.elements[0], one.elements[1] + one.elements[1])), 2: two, 3: three},
        ),
        ("elements in another order", 3, {1: one, 2: two, 3: replace(three, elements=three.elements[::-1])}),
        ("an element is missing", 3, {1: one, 2: two, 3: replace(three, elements=three.elements[:1])}),
        ("a fourth answer is wrong", 5, {1: one, 2: two, 3: three, 5: one}),
        ("no such trustee", 6, {1: one, 2: two, 6: three}),
        ("too few", None, {1: one, 5: good[5]}),
    ]
    return [
        {"comment": comment, "trustee": trustee, "evaluations": _evaluations(evaluations)}
        for comment, trustee, evaluations in cases
    ]


def _evaluations(evaluations: Mapping[int, Evaluation]) -> list[Document]:
    return [
        {"trustee": trustee, "elements": _hexes(answer.elements), "proof": answer.proof.encode().hex()}
        for trustee, answer in evaluations.items()
    ]


def _hexes(values: Sequence[Element | Scalar]) -> list[str]:
    return [value.encoded.hex() for value in values]


VECTORS: dict[str, Callable[[], Document]] = {
    "threshold_voprf.json": threshold_voprf,
}


def render(document: Document) -> str:
    """The text of a vector file."""
    return json.dumps(document, indent=1) + "\n"


def main() -> None:
    """Write every file of `VECTORS`."""
    for name, make in VECTORS.items():
        path = Path(__file__).with_name(name)
        path.write_text(render(make()))
        print(path.name)


if __name__ == "__main__":
    main()
