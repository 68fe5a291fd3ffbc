"""Whether tenants found the provider's warnings true, and the record that proves it to them."""

from collections.abc import Iterable

from crypto.codec import encode
from crypto.ids import RoundId
from crypto.signing import reopened
from federation.protocol.plan import Plan
from federation.protocol.round_messages import UnmaskCall, UnmaskRequest
from federation.protocol.round_record import RoundRecord, warned_sum
from federation.protocol.warnings import Verdict, judged
from provider_server.fleet.release import Release
from provider_server.rounds.store.round_store import Answer, RoundState, RoundStore


def record_of(store: RoundStore, round_id: RoundId) -> bytes | None:
    """What proves the sum of a round; None unless it is the newest released one that counts warnings."""
    kept = store.get(round_id)
    if kept.state != RoundState.RELEASED or kept.request is None or not store.contributors(round_id):
        return None
    endorsements, shares = (store.answers(round_id, kind) for kind in (Answer.ENDORSEMENT, Answer.SHARE))
    call = UnmaskCall(kept.request, tuple(endorsements[index] for index in sorted(endorsements)))
    protocol = reopened(Plan, kept.signed_plan).protocol
    contributors = reopened(UnmaskRequest, kept.request).contributors
    contributions = tuple(store.contribution(round_id, tenant) for tenant in contributors)
    told = RoundRecord(encode(call, protocol), contributions, tuple(shares[index] for index in sorted(shares)))
    return encode(told, protocol)


def verdict(releases: Iterable[Release]) -> Verdict | None:
    """What releases say of the provider's warnings, as tenants see it but for groups that were left out."""
    sums = (
        warned_sum(one.plan, [table.events for table in one.tables], one.contributors, one.smallest_group)
        for one in releases
    )
    return judged(one for one in sums if one is not None)
