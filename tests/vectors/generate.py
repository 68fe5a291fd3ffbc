"""Writes Pharoah's own test vectors, good and bad, beside this script; the RFC's are an input, not an output.

    python tests/vectors/generate.py

Each file is what one function of `VECTORS` returns. The randomness is a fixed stream that anybody can compute, so
running this again leaves every file as it is, byte for byte; a difference means that the protocol has changed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import shake_256
from pathlib import Path

import numpy as np

from crypto.codec import digest, encode
from crypto.ids import Digest, EncodedElement, Nonce, RoundId, TenantId
from crypto.masking import MaskKey, MaskStream, Words, mask_cells, sum_of_masks, words_to_bytes
from crypto.possession import MaskKeyClaim
from crypto.ristretto import ORDER, Element, Scalar, mul_base
from crypto.signing import SigningKey
from crypto.threshold import combine_dealings, combine_evaluations, deal, group_key
from crypto.voprf import Evaluation, Proof, blind, blind_evaluate, finalize
from federation.protocol.attendance import Shares
from federation.protocol.directory import NOTHING_BEFORE, Chain, DirectoryEntry, Member, next_entry
from federation.protocol.noise import open_groups
from federation.protocol.plan import NoiseLayers
from federation.protocol.seats import TrusteeRecord
from tests.support.changing import replace
from tests.support.plans import cells_plan
from tests.vectors.endorsed import endorsed_sets
from tests.vectors.hostile_entries import bad_entries, bad_founding, bad_returns
from tests.vectors.hostile_keys import bad_exchange_keys, bad_possession, bad_verify_keys
from tests.vectors.messages import FILE, messages
from tests.vectors.seats import reseatings

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


def masking() -> Document:
    """Three tenants' contributions under the masks of three trustees, and what each trustee answers."""
    stream = InsecureStream("masking")
    tenants, trustees = [stream(32) for _ in range(3)], [stream(32) for _ in range(3)]
    tenant_keys, trustee_keys = [MaskKey(secret) for secret in tenants], [MaskKey(secret) for secret in trustees]
    round_id, plan = RoundId(stream(16)), Digest(stream(32))
    names = [(TenantId(stream(16)), key.public, Nonce(stream(16))) for key in tenant_keys]
    streams = [
        [MaskStream(round_id, plan, *name, index, trustee.public) for index, trustee in enumerate(trustee_keys, 1)]
        for name in names
    ]
    cells = [
        np.array(counts, np.int64).astype(np.uint64)
        for counts in ([0, 1, -1, 2**63 - 1, -(2**63)], [0, 2, -3, 1, -1], [5, 0, 0, 2**62, 0])
    ]
    sent = [mask_cells(own, key, chosen) for own, key, chosen in zip(cells, tenant_keys, streams, strict=True)]
    return {
        "about": "committee masking; all keys come from an insecure stream, words are little-endian",
        "insecure_tenant_keys": [secret.hex() for secret in tenants],
        "insecure_trustee_keys": [secret.hex() for secret in trustees],
        "tenant_public_keys": [key.public.hex() for key in tenant_keys],
        "trustee_public_keys": [key.public.hex() for key in trustee_keys],
        "round_id": round_id.hex(),
        "plan": plan.hex(),
        "tenants": [tenant.hex() for tenant, _, _ in names],
        "nonces": [nonce.hex() for _, _, nonce in names],
        "cells": [_words(own) for own in cells],
        "streams": [[encode(each).hex() for each in chosen] for chosen in streams],
        "stream_keys": [
            [key.stream_key(each).hex() for each in chosen] for key, chosen in zip(tenant_keys, streams, strict=True)
        ],
        "masks": [
            [_words(key.mask(each, 5)) for each in chosen] for key, chosen in zip(tenant_keys, streams, strict=True)
        ],
        "masked": [_words(masked) for masked in sent],
        "sums": [
            {"contributors": contributors, "mask_sums": mask_sums, "cells": _words(total)}
            for contributors in ([0, 1, 2], [0, 2], [1])
            for mask_sums in [
                [
                    _words(sum_of_masks(key, (streams[i][trustee] for i in contributors), 5))
                    for trustee, key in enumerate(trustee_keys)
                ]
            ]
            for total in [sum((cells[i] for i in contributors), np.zeros(5, np.uint64))]
        ],
    }


def _words(words: Words) -> str:
    return words_to_bytes(words).hex()


def keys() -> Document:
    """What is no public key, whose key a mask key is, and what does not prove it."""
    stream = InsecureStream("keys")
    owners, secrets = [SigningKey(stream(32)) for _ in range(3)], [stream(32) for _ in range(3)]
    held = [MaskKey(secret) for secret in secrets]
    hours = (0, 400_000, 2**63 - 1)
    claims = [MaskKeyClaim(owner.public, key.public, at) for owner, key, at in zip(owners, held, hours, strict=True)]
    proofs = [key.prove(claim) for key, claim in zip(held, claims, strict=True)]
    return {
        "about": "public keys and proofs of possession; all keys come from an insecure stream",
        "insecure_mask_keys": [secret.hex() for secret in secrets],
        "mask_keys": [key.public.hex() for key in held],
        "claims": [encode(claim).hex() for claim in claims],
        "proofs": [proof.hex() for proof in proofs],
        "bad_verify_keys": bad_verify_keys(),
        "bad_exchange_keys": bad_exchange_keys(claims[1].mask_key),
        "bad_possession": bad_possession(claims[1], proofs[1], owners[2], held[2]),
    }


def directory() -> Document:
    """A chain of four entries in which members join, leave and come back, and entries that must not be appended."""
    stream = InsecureStream("directory")
    provider, stranger = SigningKey(stream(32)), SigningKey(stream(32))
    held = [(SigningKey(stream(32)), MaskKey(stream(32))) for _ in range(4)]
    one, two, three, four = (Member.of(*keys, 10) for keys in held)
    newer = Member.of(held[0][0], MaskKey(stream(32)), 11)
    entries = [_founding(provider, stream, [one, two])]
    for joined, left in (([three], []), ([], [one.tenant]), ([newer, four], [two.tenant])):
        entries.append(next_entry(_chain(provider, entries).directory, joined=joined, left=left))
    chain = _chain(provider, entries)
    return {
        "about": "the chain of directory entries; all keys come from an insecure stream",
        "provider": provider.public.hex(),
        "entries": [entry.hex() for entry in chain.entries],
        "heads": [digest(encode(entry)).hex() for entry in entries],
        "members": [[tenant.hex() for tenant in _chain(provider, entries[:n]).directory.by_id] for n in (1, 2, 3, 4)],
        "bad_founding": bad_founding(provider, stranger, entries[0], one.tenant),
        "bad_entries": [
            *bad_entries(provider, stranger, chain, held[2][1], MaskKey(stream(32))),
            *bad_returns(provider, chain, one, held[1], MaskKey(stream(32))),
        ],
    }


def _founding(provider: SigningKey, stream: InsecureStream, members: Sequence[Member]) -> DirectoryEntry:
    """The public side of three trustees, two of whom sign together."""
    records = tuple(
        TrusteeRecord.of(
            index,
            SigningKey(stream(32)),
            MaskKey(stream(32)),
            EncodedElement(mul_base(Scalar.from_int(index + 1)).encoded),
            made_hour=10,
            address=f"trustee-{index}.example:7100",
        )
        for index in (1, 2, 3)
    )
    group_key = EncodedElement(mul_base(ONE).encoded)
    settled = provider.public, 2, group_key, records, 13
    return DirectoryEntry(0, NOTHING_BEFORE, *settled, tuple(members), ())


def _chain(provider: SigningKey, entries: Sequence[DirectoryEntry]) -> Chain:
    founding, *later = (provider.sign(entry) for entry in entries)
    return Chain.begin(founding, provider.public).extended(later)


DIVISIONS = [(4, 4, 0), (4, 16, 5), (9, 180, 8), (162, 360, 4), (1, 2**40, 16)]
BAD_DIVISIONS = [(4, 16, 0), (4, 4, 1), (5, 4, 1), (0, 4, 1), (4, 16, 17)]


def attendance() -> Document:
    """Which layers of noise are opened for how many, and what that leaves of a contribution's words."""
    stream = InsecureStream("attendance")
    plan = cells_plan(3, 5.0, noise_shares=4, cohort_minimum=5, noise_layers=NoiseLayers(16, 5))
    words = np.frombuffer(stream(8 * plan.words), "<u8").astype(np.uint64)
    return {
        "about": "noise for those who answered; layers to open are bits, the smallest layer first",
        "divisions": [
            {"least": least, "full": full, "layers": layers, "parts": [str(part) for part in shares.parts]}
            | {"honest": honest, "kept": [shares.kept(many) for many in honest]}
            for least, full, layers in DIVISIONS
            for shares in [Shares(least, full, layers)]
            for honest in [sorted({least, least + 1, 2 * least, 40 * least, full // 2 + 1, max(least, full - 1), full})]
            for honest in [[many for many in honest if many >= least]]
        ],
        "bad_divisions": [dict(zip(("least", "full", "layers"), bad, strict=True)) for bad in BAD_DIVISIONS],
        "words": _words(words),
        "opened": [
            {
                "smallest_group": size,
                "honest": plan.honest(size),
                "words": _words(open_groups(plan, [words], size)[0]),
            }
            for size in (5, 6, 10, 19, 20, 30)
        ],
    }


VECTORS: dict[str, Callable[[], Document]] = {
    "attendance.json": attendance,
    "directory.json": directory,
    "endorsed.json": lambda: endorsed_sets(InsecureStream("endorsed")),
    "keys.json": keys,
    "masking.json": masking,
    "reseating.json": lambda: reseatings(InsecureStream("reseating")),
    "threshold_voprf.json": threshold_voprf,
}


def render(document: Document) -> str:
    """The text of a vector file."""
    return json.dumps(document, indent=1) + "\n"


def main() -> None:
    """Write every file of `VECTORS`, and the messages of the newest release if there are none of it."""
    if not (path := Path(__file__).parent / FILE).exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(messages())
        print(FILE)
    for name, make in VECTORS.items():
        path = Path(__file__).with_name(name)
        path.write_text(render(make()))
        print(path.name)


if __name__ == "__main__":
    main()
