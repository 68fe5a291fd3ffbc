"""One round: contributions come in, each is checked, and their sum is unmasked once, for one set, or not at all.

    COLLECTING ──close──▶ UNMASKING ──unmask──▶ SUMMED
        └──────close──▶ REFUSED  (fewer than the cohort minimum)

The masked contributions are added as they arrive; nothing is kept of a single one but its digest.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import numpy as np

from crypto.codec import decode, digest, encode
from crypto.errors import CohortTooSmall, PeerFault
from crypto.ids import Digest, TenantId
from crypto.masking import Words, words_from_bytes
from crypto.messages import Contribution, Directory, UnmaskRequest, UnmaskShare
from crypto.plan import Plan
from crypto.signing import SigningKey, open_signed_by


class State(StrEnum):
    """Where a round is."""

    COLLECTING = "collecting"
    UNMASKING = "unmasking"
    SUMMED = "summed"
    REFUSED = "refused"


TRANSITIONS = {
    State.COLLECTING: {State.UNMASKING, State.REFUSED},
    State.UNMASKING: {State.SUMMED},
    State.SUMMED: set[State](),
    State.REFUSED: set[State](),
}


class Round:
    """Collects the contributions to one plan."""

    def __init__(self, plan: Plan, signing_key: SigningKey, directory: Directory) -> None:
        self.plan = plan
        self.signed_plan = signing_key.sign(plan)
        self.state = State.COLLECTING
        self._signing_key = signing_key
        self._directory = directory
        self._digest = digest(encode(plan))
        self._sum = np.zeros(plan.cells, np.uint64)
        self._from: dict[TenantId, Digest] = {}

    @property
    def contributors(self) -> tuple[TenantId, ...]:
        """Who has contributed, in the order that trustees expect."""
        return tuple(sorted(self._from))

    def receive(self, data: bytes) -> None:
        """Adds a signed contribution. The same bytes twice are harmless; PeerFault for anything that does not fit."""
        self._require(State.COLLECTING)
        contribution = open_signed_by(Contribution, data, self._directory.verify_key)
        tenant = contribution.tenant
        if contribution.plan != self._digest or contribution.round_id != self.plan.round_id:
            raise PeerFault(f"tenant {tenant.hex()[:12]}… answered another plan", hint="ask it again in a new round")
        if len(contribution.cells) != 8 * self.plan.cells:
            raise PeerFault(
                f"tenant {tenant.hex()[:12]}… sent {len(contribution.cells)} bytes, not {8 * self.plan.cells}",
                hint="it counts by another plan or speaks another version; tell its owner",
            )
        known = self._from.get(tenant)
        if known is not None and known != digest(data):
            raise PeerFault(
                f"tenant {tenant.hex()[:12]}… sent two contributions", hint="the first one counts; tell its owner"
            )
        if known is None:
            self._from[tenant] = digest(data)
            self._sum += words_from_bytes(contribution.cells)

    def close(self) -> bytes:
        """Ends collecting. The signed request for the trustees; CohortTooSmall, for good, below the minimum."""
        self._require(State.COLLECTING)
        if len(self._from) < self.plan.cohort_minimum:
            self._move(State.REFUSED)
            raise CohortTooSmall(
                f"round {self.plan.round_id}: {len(self._from)} contributions, {self.plan.cohort_minimum} are needed"
            )
        self._move(State.UNMASKING)
        return self._signing_key.sign(UnmaskRequest(self.signed_plan, self.contributors))

    def unmask(self, shares: Iterable[bytes]) -> Words:
        """The sum of the contributions, noise included, shape (cells,); PeerFault unless all mask trustees answered."""
        self._require(State.UNMASKING)
        answers = [decode(UnmaskShare, share) for share in shares]
        self._check_shares(answers)
        total = self._sum.copy()
        for answer in answers:
            total -= words_from_bytes(answer.mask_sum)
        self._move(State.SUMMED)
        return total

    def _check_shares(self, answers: Sequence[UnmaskShare]) -> None:
        wanted = sorted(trustee.index for trustee in self.plan.trustees)
        got = sorted(answer.trustee for answer in answers)
        if got != wanted:
            raise PeerFault(
                f"one share of each of the trustees {wanted} is needed, here are those of {got}",
                hint="ask the missing ones; a late share loses nothing",
            )
        for answer in answers:
            if answer.round_id != self.plan.round_id or len(answer.mask_sum) != 8 * self.plan.cells:
                raise PeerFault(f"trustee {answer.trustee} sent masks for something else", hint="ask it again")

    def _require(self, state: State) -> None:
        if self.state is not state:
            raise RuntimeError(f"round {self.plan.round_id} is {self.state}, not {state}")

    def _move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"round {self.plan.round_id} cannot go from {self.state} to {state}")
        self.state = state
