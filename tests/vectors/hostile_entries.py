"""The bad vectors of `directory.json`: entries with which no chain begins, and that lead on from none.

Each case says by which error it is refused. Aliases of keys are computed in integers (`tests/support/curve25519.py`).
"""

from collections.abc import Sequence

from crypto.codec import decode
from crypto.ids import Digest, MaskPublicKey, TenantId
from crypto.masking import MaskKey
from crypto.possession import MaskKeyClaim
from crypto.signing import Signed, SigningKey
from federation.protocol.directory import NOTHING_BEFORE, Chain, DirectoryEntry, Member, next_entry
from tests.support import curve25519 as curve
from tests.support.changing import replace

Cases = list[dict[str, object]]


def bad_founding(provider: SigningKey, stranger: SigningKey, good: DirectoryEntry, tenant: TenantId) -> Cases:
    """With none of these may a directory begin: each must raise the error named."""
    first, second, third = good.trustees
    alias = MaskPublicKey(next(alias for alias in curve.aliases(first.mask_key) if alias[31] < 0x80))
    copied = {"mask_key": first.mask_key, "made_hour": first.made_hour, "possession": first.possession}
    cases = [
        ("it is not the first", "Fork", provider, replace(good, number=1)),
        ("something comes before it", "Fork", provider, replace(good, previous=Digest(bytes(31) + b"1"))),
        ("somebody leaves before anybody is there", "Fork", provider, replace(good, left=(tenant,))),
        ("a stranger signed it", "BadSignature", stranger, good),
        (
            "a trustee with an alias of another one's mask key",
            "BadSignature",
            provider,
            replace(good, trustees=(first, replace(second, **copied | {"mask_key": alias}), third)),
        ),
        (
            "a trustee with the mask key of one who is not there",
            "BadSignature",
            provider,
            replace(good, threshold=1, trustees=(replace(second, **copied, index=1),)),
        ),
    ]
    return [{"comment": comment, "error": error, "entry": key.sign(bad).hex()} for comment, error, key, bad in cases]


def bad_entries(provider: SigningKey, stranger: SigningKey, chain: Chain, held: MaskKey, other: MaskKey) -> Cases:
    """Each must raise the error named when the good chain is extended by it, and leave the chain as it is.

    `held` is the private mask key of the first member, `other` is nobody's.
    """
    newest = chain.directory
    good, present = next_entry(newest), newest.members[0]
    joining = Member.of(stranger, other, 10)
    copied = replace(joining, mask_key=present.mask_key, possession=present.possession)
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
            replace(good, trustees=(replace(first, mask_key=other.public), *others)),
        ),
        ("another length of an epoch", "TrustChanged", provider, replace(good, weeks_per_epoch=12)),
        (
            "a mask key that its tenant did not sign",
            "BadSignature",
            provider,
            replace(good, left=(present.tenant,), joined=(replace(present, mask_key=other.public),)),
        ),
        ("a member joins again", "Fork", provider, replace(good, joined=(present,))),
        ("a mask key under two names", "Fork", provider, replace(good, joined=(Member.of(stranger, held, 10),))),
        ("a claim copied from another member", "BadSignature", provider, replace(good, joined=(copied,))),
        ("a stranger leaves", "Fork", provider, replace(good, left=(joining.tenant,))),
        ("a member leaves twice", "Fork", provider, replace(good, left=(present.tenant, present.tenant))),
    ]
    cases += [
        (f"{what} of another member's mask key", "BadSignature", provider, replace(good, joined=(posing,)))
        for what, posing in _posing_members(stranger, present, other)
    ]
    return [{"comment": comment, "error": error, "entry": key.sign(bad).hex()} for comment, error, key, bad in cases]


def _posing_members(stranger: SigningKey, victim: Member, other: MaskKey) -> Sequence[tuple[str, Member]]:
    """Records that a stranger signs itself, over a key that it does not hold; the proofs are those it can have."""
    keys = {
        "a copy": victim.mask_key,
        "an alias": MaskPublicKey(next(alias for alias in curve.aliases(victim.mask_key) if alias[31] < 0x80)),
    }
    posing = []
    for what, key in keys.items():
        claim = MaskKeyClaim(stranger.public, key, 10)
        signed = decode(Signed, stranger.sign(claim)).signature
        for proof, shown in (("the victim's proof", victim.possession), ("a proof by another key", other.prove(claim))):
            posing.append((f"{what}, with {proof},", Member(stranger.public, key, 10, signed, shown)))
    return posing


def bad_returns(
    provider: SigningKey, chain: Chain, older: Member, gone: tuple[SigningKey, MaskKey], other: MaskKey
) -> Cases:
    """Whoever comes back with an older mask key, or another of the same hour, is refused by Fork.

    `older` is how a present member was enrolled before it came back; `gone` are the keys of one who left.
    """
    good = next_entry(chain.directory)
    cases = [
        ("an older mask key, as it was enrolled before", replace(good, left=(older.tenant,), joined=(older,))),
        ("another mask key that is older", replace(good, joined=(Member.of(gone[0], other, 9),))),
        ("another mask key of the same hour", replace(good, joined=(Member.of(gone[0], other, 10),))),
    ]
    return [
        {"comment": f"back with {comment}", "error": "Fork", "entry": provider.sign(bad).hex()}
        for comment, bad in cases
    ]
