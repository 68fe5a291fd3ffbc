"""The bad vectors of `keys.json`: what is no public key, and what does not prove that a mask key is held.

Small order, second encodings and aliases are computed on the curve in integers (`tests/support/curve25519.py`).
"""

from collections.abc import Sequence

from crypto.codec import encode
from crypto.ids import MaskPublicKey
from crypto.masking import MaskKey
from crypto.possession import MaskKeyClaim
from crypto.signing import SigningKey
from tests.support import curve25519 as curve
from tests.support.changing import replace

Cases = list[dict[str, object]]

SIGNS = (0, curve.TOP_BIT)


def bad_verify_keys() -> Cases:
    """Each must raise ValueError: points of small order, second encodings of any point, and other lengths."""
    small = sorted({y for _, y in curve.torsion()})
    return _encoded([("small order", y + sign) for y in small for sign in SIGNS]) + _other_lengths()


def bad_exchange_keys(good: MaskPublicKey) -> Cases:
    """Each must raise ValueError: every private key shares zero with it, or it is a second encoding, or no length."""
    small = sorted({curve.montgomery(point) for point in curve.torsion()} | {curve.P - 1})
    set_bit = ("a good key, top bit set", int.from_bytes(good, "little") + curve.TOP_BIT)
    return _encoded([*(("small order", u + sign) for u in small for sign in SIGNS), set_bit]) + _other_lengths()


def _encoded(cases: Sequence[tuple[str, int]]) -> Cases:
    unreduced = [("not reduced", value + sign) for value in range(curve.P, curve.TOP_BIT) for sign in SIGNS]
    return [
        {"comment": comment, "encoded": value.to_bytes(32, "little").hex()} for comment, value in (*cases, *unreduced)
    ]


def _other_lengths() -> Cases:
    nine = (9).to_bytes(32, "little")
    cases = [("one byte short", nine[:-1]), ("one byte long", nine + b"\0"), ("31 ones", b"\xff" * 31), ("empty", b"")]
    return [{"comment": comment, "encoded": key.hex()} for comment, key in cases]


def bad_possession(claim: MaskKeyClaim, proof: bytes, thief: SigningKey, thiefs_key: MaskKey) -> Cases:
    """`error` is raised by decoding the claim (DecodeError) or by checking the proof (BadSignature).

    `proof` is the honest one of `claim`, which the thief has seen.
    """
    taken, later = replace(claim, owner=thief.public), replace(claim, made_hour=claim.made_hour + 1)
    thiefs_own = replace(claim, mask_key=thiefs_key.public)
    unreduced = (int.from_bytes(proof[32:], "little") + curve.L).to_bytes(32, "little")
    cases = [
        ("another owner, the proof as it was", taken, proof),
        ("another owner, proved by its own mask key", taken, thiefs_key.prove(taken)),
        ("a later hour, the proof as it was", later, proof),
        ("a later hour, proved by another mask key", later, thiefs_key.prove(later)),
        ("another mask key, the proof as it was", thiefs_own, proof),
        ("the proof of another claim", claim, thiefs_key.prove(thiefs_own)),
        ("a response that is not reduced", claim, proof[:32] + unreduced),
        ("zeros", claim, bytes(64)),
        ("R is neutral and s is zero", claim, curve.compress(curve.NEUTRAL) + bytes(32)),
        ("a key of the twist, which has no twin", replace(claim, mask_key=_of_the_twist()), proof),
    ]
    return _aliased(claim, proof, thiefs_key) + [
        _case(comment, "BadSignature", encode(bad), shown) for comment, bad, shown in cases
    ]


def _of_the_twist() -> MaskPublicKey:
    return MaskPublicKey(next(u for u in range(2, 99) if curve.edwards(u) is None).to_bytes(32, "little"))


def _aliased(claim: MaskKeyClaim, proof: bytes, thiefs_key: MaskKey) -> Cases:
    """Other encodings of the key itself, and of the key plus each point of small order."""
    found: Cases = []
    for alias in curve.aliases(claim.mask_key):
        spoilt = encode(claim).replace(claim.mask_key, alias)
        if alias[31] & 0x80:
            found.append(_case("an alias, top bit set", "DecodeError", spoilt, proof))
            continue
        bad = replace(claim, mask_key=MaskPublicKey(alias))
        found.append(_case("an alias, the proof as it was", "BadSignature", spoilt, proof))
        found.append(_case("an alias, proved by another mask key", "BadSignature", spoilt, thiefs_key.prove(bad)))
    return found


def _case(comment: str, error: str, claim: bytes, proof: bytes) -> dict[str, object]:
    return {"comment": comment, "error": error, "claim": claim.hex(), "proof": proof.hex()}
