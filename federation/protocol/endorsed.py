"""Who was counted in a round: the set that trustees endorsed, as every tenant gets it after the round.

- A tenant that is not in the set of a round was not opened there, and never will be: no other set of that round can get
  a quorum, and any two quorums share an honest trustee. So its units count again in the next window, at no new price.
- A round that was given up has the empty set.
- Trustees endorse one set for each window of an epoch. So a tenant whose ledger was set back sees where it was counted,
  whatever the provider hides: what no set speaks of is not counted again.

Not promised: that the provider shows a set. A tenant that is shown none counts only the window that it is asked about.
"""

from collections.abc import Iterable
from itertools import pairwise

from crypto.codec import Count, Few, Many, Message, Record, decode, digest, encode, first_field
from crypto.errors import PeerFault
from crypto.ids import Digest, RoundId, TenantId
from crypto.signing import Signed
from federation.protocol.directory import Chain, open_of_seat
from federation.protocol.plan import Plan
from federation.protocol.round_messages import Endorsement, UnmaskRequest


class EndorsedSet(Message, frozen=True, tag="pharoah/endorsed-set/1"):
    """The tenants whose contributions to a round may be opened, sorted; none where the round was given up.

    `directory` is the head under which the round was held; [start_hour, end_hour) is its window.
    """

    round_id: RoundId
    directory: Digest
    epoch: Count
    start_hour: Count
    end_hour: Count
    tenants: Many[TenantId]

    def __post_init__(self) -> None:
        if list(self.tenants) != sorted(set(self.tenants)):
            raise ValueError("the tenants of a set are sorted and each is named once")

    @classmethod
    def of(cls, plan: Plan, asked: UnmaskRequest) -> "EndorsedSet":
        """The set of a request."""
        tenants = tuple(sorted(asked.contributors))
        return cls(plan.round_id, plan.directory, plan.epoch, plan.start_hour, plan.end_hour, tenants)

    @property
    def name(self) -> Digest:
        """What trustees sign of it."""
        return digest(encode(self))


class EndedRound(Record, frozen=True):
    """The set of a round that is over, and the signed endorsements of a quorum of trustees."""

    endorsed: EndorsedSet
    endorsements: Few[bytes]


class EndedRounds(Message, frozen=True, tag="pharoah/ended-rounds/1"):
    """The rounds of an epoch that are over, in the order of their windows."""

    rounds: Many[EndedRound]


def check_ended(ended: EndedRound, chain: Chain) -> EndorsedSet:
    """The set, if a quorum of the trustees of its directory endorsed it; PeerFault, BadSignature or UnknownHead."""
    said, now = ended.endorsed, chain.directory
    then = chain.at(said.directory)
    seats = set()
    for signed in ended.endorsements:
        index = first_field(Endorsement, decode(Signed, signed).body)
        word = open_of_seat(Endorsement, signed, index, then, now)
        if (word.round_id, word.endorsed) == (said.round_id, said.name):
            seats.add(index)
    if len(seats) < then.quorum:
        raise PeerFault(
            f"round {said.round_id}: {len(seats)} trustees endorsed the set that was shown, {then.quorum} are needed",
            hint="no action: what no endorsed set speaks of is not counted again",
        )
    return said


def uncounted_since(plan: Plan, sets: Iterable[EndorsedSet], tenant: TenantId) -> int:
    """The hour from which an answer of `tenant` to `plan` counts: the beginning of the first window that waits.

    These are the windows just before the plan's own of which a set is there and does not name the tenant.
    """
    named = {(one.start_hour, one.end_hour): tenant in one.tenants for one in sets if one.epoch == plan.epoch}
    since = plan.start_hour
    for window in reversed([window for window in pairwise(plan.windows) if window[1] <= plan.start_hour]):
        if named.get(window, True):
            break
        since = window[0]
    return since
