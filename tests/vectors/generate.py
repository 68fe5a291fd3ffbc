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
from crypto.directory import NOTHING_BEFORE, Chain, DirectoryEntry, Member, TrusteeRecord, next_entry
from crypto.ids import Digest, EncodedElement, MaskPublicKey, RoundId, TenantId
from crypto.masking import MaskKey, Words, mask_cells, sum_of_masks, words_to_bytes
from crypto.ristretto import ORDER, Element, Scalar, mul_base
from crypto.signing import SigningKey
from crypto.threshold import combine_dealings, combine_evaluations, deal, group_key
from crypto.voprf import Evaluation, Proof, blind, blind_evaluate, finalize
from tests.changing import replace

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
    """Three tenants' contributions under the masks of three trustees, what each trustee answers, and hostile keys."""
    stream = InsecureStream("masking")
    tenants, trustees = [stream(32) for _ in range(3)], [stream(32) for _ in range(3)]
    tenant_keys, trustee_keys = [MaskKey(secret) for secret in tenants], [MaskKey(secret) for secret in trustees]
    publics = [key.public for key in trustee_keys]
    round_id, plan = RoundId(stream(16)), Digest(stream(32))
    cells = [
        np.array(counts, np.int64).astype(np.uint64)
        for counts in ([0, 1, -1, 2**63 - 1, -(2**63)], [0, 2, -3, 1, -1], [5, 0, 0, 2**62, 0])
    ]
    sent = [mask_cells(own, key, publics, round_id, plan) for own, key in zip(cells, tenant_keys, strict=True)]
    return {
        "about": "committee masking; all keys come from an insecure stream, words are little-endian",
        "insecure_tenant_keys": [secret.hex() for secret in tenants],
        "insecure_trustee_keys": [secret.hex() for secret in trustees],
        "tenant_public_keys": [key.public.hex() for key in tenant_keys],
        "trustee_public_keys": [public.hex() for public in publics],
        "round_id": round_id.hex(),
        "plan": plan.hex(),
        "cells": [_words(own) for own in cells],
        "masks": [[_words(key.mask(public, round_id, plan, 5)) for public in publics] for key in tenant_keys],
        "masked": [_words(masked) for masked in sent],
        "sums": [
            {"contributors": contributors, "mask_sums": mask_sums, "cells": _words(total)}
            for contributors in ([0, 1, 2], [0, 2], [1])
            for mask_sums in [
                [
                    _words(sum_of_masks(key, (tenant_keys[i].public for i in contributors), round_id, plan, 5))
                    for key in trustee_keys
                ]
            ]
            for total in [sum((cells[i] for i in contributors), np.zeros(5, np.uint64))]
        ],
        "bad_public_keys": _bad_mask_keys(),
    }


def _bad_mask_keys() -> list[Document]:
    """Points of small order, RFC 7748 §6.1: every private key shares zero with them. Each must raise PeerFault."""
    prime = 2**255 - 19
    eighth = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"
    other_eighth = "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"
    return [
        {"comment": "zero", "encoded": bytes(32).hex()},
        {"comment": "one", "encoded": (1).to_bytes(32, "little").hex()},
        {"comment": "order 8", "encoded": eighth},
        {"comment": "order 8, the other", "encoded": other_eighth},
        {"comment": "minus one", "encoded": (prime - 1).to_bytes(32, "little").hex()},
        {"comment": "zero, not reduced", "encoded": prime.to_bytes(32, "little").hex()},
        {"comment": "one, not reduced", "encoded": (prime + 1).to_bytes(32, "little").hex()},
        {"comment": "zero, top bit set", "encoded": (2**255).to_bytes(32, "little").hex()},
    ]


def _words(words: Words) -> str:
    return words_to_bytes(words).hex()


def directory() -> Document:
    """A chain of four entries in which members join, leave and come back, and entries that must not be appended."""
    stream = InsecureStream("directory")
    provider, stranger = SigningKey(stream(32)), SigningKey(stream(32))
    secrets = [(stream(32), stream(32)) for _ in range(4)]
    one, two, three, four = (Member.of(SigningKey(a), MaskKey(b), 0) for a, b in secrets)
    entries = [_founding(provider, stream, [one, two])]
    for joined, left in (([three], []), ([], [one.tenant]), ([one, four], [two.tenant])):
        entries.append(next_entry(_chain(provider, entries).directory, joined=joined, left=left))
    chain = _chain(provider, entries)
    return {
        "about": "the chain of directory entries; all keys come from an insecure stream",
        "provider": provider.public.hex(),
        "entries": [entry.hex() for entry in chain.entries],
        "heads": [digest(encode(entry)).hex() for entry in entries],
        "members": [[tenant.hex() for tenant in _chain(provider, entries[:n]).directory.by_id] for n in (1, 2, 3, 4)],
        "bad_founding": _bad_founding(provider, stranger, entries[0], one.tenant),
        "bad_entries": _bad_entries(provider, stranger, chain, MaskKey(stream(32)).public),
    }


def _founding(provider: SigningKey, stream: InsecureStream, members: Sequence[Member]) -> DirectoryEntry:
    """The public side of three trustees, two of whom sign together."""
    records = tuple(
        TrusteeRecord(
            index,
            SigningKey(stream(32)).public,
            EncodedElement(mul_base(Scalar.from_int(index + 1)).encoded),
            MaskKey(stream(32)).public,
            address=f"trustee-{index}.example:7100",
            certificate="",
        )
        for index in (1, 2, 3)
    )
    group_key = EncodedElement(mul_base(ONE).encoded)
    settled = provider.public, 2, group_key, records, 13
    return DirectoryEntry(0, NOTHING_BEFORE, *settled, tuple(members), ())


def _chain(provider: SigningKey, entries: Sequence[DirectoryEntry]) -> Chain:
    founding, *later = (provider.sign(entry) for entry in entries)
    return Chain.begin(founding, provider.public).extended(later)


def _bad_founding(provider: SigningKey, stranger: SigningKey, good: DirectoryEntry, tenant: TenantId) -> list[Document]:
    """With none of these may a directory begin: each must raise the error named."""
    cases = [
        ("it is not the first", "Fork", provider, replace(good, number=1)),
        ("something comes before it", "Fork", provider, replace(good, previous=Digest(bytes(31) + b"1"))),
        ("somebody leaves before anybody is there", "Fork", provider, replace(good, left=(tenant,))),
        ("a stranger signed it", "BadSignature", stranger, good),
    ]
    return [{"comment": comment, "error": error, "entry": key.sign(bad).hex()} for comment, error, key, bad in cases]


def _bad_entries(provider: SigningKey, stranger: SigningKey, chain: Chain, other_mask: MaskPublicKey) -> list[Document]:
    """Each must raise the error named when the good chain is extended by it, and leave the chain as it is."""
    newest = chain.directory
    good, present = next_entry(newest), newest.members[0]
    joining = Member.of(stranger, other_mask)
    first, *others = good.trustees
    cases: list[tuple[str, str, SigningKey, DirectoryEntry]] = [
        ("it leads on from another entry", "Fork", provider, replace(good, previous=NOTHING_BEFORE)),
        ("an entry is missing before it", "Fork", provider, replace(good, number=good.number + 1)),
        ("it repeats a number", "Fork", provider, replace(good, number=newest.number)),
        ("a stranger signed it", "BadSignature", stranger, good),
        ("another provider", "TrustChanged", provider, replace(good, provider=stranger.public)),
        ("another threshold", "TrustChanged", provider, replace(good, threshold=3)),
        ("a trustee less", "TrustChanged", provider, replace(good, trustees=good.trustees[:2])),
        (
            "a trustee with another mask key",
            "TrustChanged",
            provider,
            replace(good, trustees=(replace(first, mask_key=other_mask), *others)),
        ),
        ("another length of an epoch", "TrustChanged", provider, replace(good, weeks_per_epoch=12)),
        (
            "a mask key that its tenant did not sign",
            "BadSignature",
            provider,
            replace(good, left=(present.tenant,), joined=(replace(present, mask_key=other_mask),)),
        ),
        ("a member joins again", "Fork", provider, replace(good, joined=(present,))),
        (
            "a mask key under two names",
            "Fork",
            provider,
            replace(good, joined=(Member.of(stranger, present.mask_key),)),
        ),
        ("a stranger leaves", "Fork", provider, replace(good, left=(joining.tenant,))),
        ("a member leaves twice", "Fork", provider, replace(good, left=(present.tenant, present.tenant))),
    ]
    return [{"comment": comment, "error": error, "entry": key.sign(bad).hex()} for comment, error, key, bad in cases]


VECTORS: dict[str, Callable[[], Document]] = {
    "directory.json": directory,
    "masking.json": masking,
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
