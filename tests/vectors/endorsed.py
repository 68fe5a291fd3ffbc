"""The vectors of `endorsed.json`: a plan, the sets of rounds that are over, and what is no set of its round."""

from collections.abc import Callable, Sequence

from crypto.codec import encode
from crypto.ids import Digest, Nonce, RoundId
from crypto.signing import SigningKey, name_of, tenant_id
from crypto.threshold import KeyShare, deal
from federation.protocol.directory import Chain
from federation.protocol.endorsed import EndedRound, EndedRounds, EndorsedSet
from federation.protocol.plan import MaskTrustee, Mechanism, Plan
from federation.protocol.round_messages import ContributionHeader, Endorsement, UnmaskRequest
from tests.support.changing import replace
from tests.support.plans import small_plan
from tests.vectors.seats import THRESHOLD, TRUSTEES, Holder, founding_of

Stream = Callable[[int], bytes]

WINDOWS = (8736, 10920, 13104, 15288, 17472)
QUORUM = (1, 3, 4, 5)


def endorsed_sets(stream: Stream) -> dict[str, object]:
    """Three tenants answer, two of them are in the set; and the same round given up."""
    provider, tenants = SigningKey(stream(32)), [SigningKey(stream(32)) for _ in range(3)]
    dealing = deal(THRESHOLD, TRUSTEES, stream)
    holders = [Holder.new(stream, KeyShare(seat, share)) for seat, share in enumerate(dealing.shares, 1)]
    founding = provider.sign(founding_of(provider, dealing, holders))
    plan = _plan(Chain.begin(founding, provider.public).directory.head, holders, stream)
    signed_plan = provider.sign(plan)
    headers = sorted((_header(tenant, signed_plan, plan, stream) for tenant in tenants[:2]), key=lambda one: one.tenant)
    by_id = {_header(tenant, signed_plan, plan, bytes).tenant: tenant for tenant in tenants}
    group = tuple(by_id[header.tenant].sign(header) for header in headers)
    requests = [UnmaskRequest(signed_plan, groups, ()) for groups in ((group,), ())]
    full, empty = ((EndorsedSet.of(plan, asked), provider.sign(asked)) for asked in requests)
    good = {"a round that was released": full, "a round that was given up": empty}
    return {
        "about": "endorsed sets; all keys come from an insecure stream, and a quorum are four of five trustees",
        "provider": provider.public.hex(),
        "founding": founding.hex(),
        "plan": encode(plan).hex(),
        "good": [
            {
                "comment": comment,
                "request": request.hex(),
                "set": encode(told).hex(),
                "name": told.name.hex(),
                "tenants": [tenant.hex() for tenant in told.tenants],
                "ended": _ended(told, _words(told, request, holders, QUORUM)),
            }
            for comment, (told, request) in good.items()
        ],
        "bad": _bad(full, empty, holders, provider),
    }


def _plan(head: Digest, holders: Sequence[Holder], stream: Stream) -> Plan:
    """Of the second window of its epoch."""
    masking = tuple(MaskTrustee(one.share.index, one.mask.public) for one in holders[-3:])
    hours = {"epoch": 1, "windows": WINDOWS, "start_hour": WINDOWS[1], "end_hour": WINDOWS[2]}
    law = {"mechanism": Mechanism.DISCRETE_LAPLACE, "delta": 0.0, "cohort_minimum": 2, "noise_shares": 1}
    return small_plan(round_id=RoundId(stream(16)), directory=head, trustees=masking, **hours, **law)


def _header(tenant: SigningKey, signed_plan: bytes, plan: Plan, stream: Stream) -> ContributionHeader:
    own = plan.start_hour, Nonce(stream(16)), Digest(stream(32))
    return ContributionHeader(tenant_id(tenant.public), plan.round_id, name_of(signed_plan), *own)


def _words(told: EndorsedSet, request: bytes, holders: Sequence[Holder], seats: Sequence[int]) -> list[bytes]:
    said = [Endorsement(seat, told.round_id, name_of(request), told.name) for seat in seats]
    return [holders[one.trustee - 1].signing.sign(one) for one in said]


def _ended(told: EndorsedSet, words: Sequence[bytes]) -> str:
    return encode(EndedRounds((EndedRound(told, tuple(words)),))).hex()


def _bad(
    full: tuple[EndorsedSet, bytes], empty: tuple[EndorsedSet, bytes], holders: Sequence[Holder], provider: SigningKey
) -> list[dict[str, str]]:
    told, request = full
    words = _words(told, request, holders, QUORUM)
    three, other = words[:3], _words(*empty, holders, QUORUM)
    forged = provider.sign(Endorsement(2, told.round_id, name_of(request), told.name))
    elsewhere = replace(told, directory=Digest(bytes(32)))
    cases = [
        ("one trustee too few", "PeerFault", told, three),
        ("one trustee twice", "PeerFault", told, [*three, three[0]]),
        ("the words for another set of the round", "PeerFault", told, other),
        ("one word for another set", "PeerFault", told, [*three, other[3]]),
        ("a tenant that the set does not name", "PeerFault", replace(told, tenants=told.tenants[:1]), words),
        ("another window", "PeerFault", replace(told, end_hour=WINDOWS[3]), words),
        ("a word that the provider signed", "BadSignature", told, [*three, forged]),
        ("under a directory that is not known", "UnknownHead", elsewhere, words),
    ]
    return [{"comment": comment, "error": error, "ended": _ended(one, said)} for comment, error, one, said in cases]
