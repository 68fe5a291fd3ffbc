"""One round: contributions are collected and checked, and their sum is unmasked once, for one set, or not at all.

    COLLECTING ──close──▶ ENDORSING ──endorse──▶ UNMASKING ──share, release──▶ RELEASED
        │                     │                      │
     give_up               give_up                 refuse ───────────────────▶ REFUSED
        └─────────────────────┴──▶ GIVING_UP ──endorse_empty──────────────────────▲

- Every step is stored before the next begins, so a killed provider continues where it was: contributions and trustees'
  answers are stored as received, and the round's only request before it is first sent.
- A trustee that does not answer delays a round; nothing is lost.
- A round ends with a set that a quorum of trustees endorsed, which every tenant is shown (`ended`): that of its
  request, or the empty one where it was given up. Who is not in it counts again in the next round.
- Contributions are split at random into groups of at least the cohort minimum, and each group's sum is unmasked
  separately, so that a false contribution spoils only its group (`provider_server.rounds.grouping`).
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from crypto.codec import decode, encode
from crypto.errors import CohortTooSmall, MemberRefused, PeerFault
from crypto.ids import TenantId
from crypto.masking import Words, words_from_bytes
from crypto.signing import SigningKey, name_of, open_signed, reopened
from federation.base.visible import counted_as
from federation.protocol.directory import Directory, open_of_seat
from federation.protocol.endorsed import EndedRound, EndorsedSet, uncounted_since
from federation.protocol.noise import open_groups
from federation.protocol.plan import Plan
from federation.protocol.round_messages import (
    Contribution,
    ContributionHeader,
    Endorsement,
    UnmaskCall,
    UnmaskRequest,
    UnmaskShare,
    opened_contribution,
)
from federation.protocol.subjects import Subject
from provider_server.rounds.store.round_store import TRANSITIONS, Answer, Outcome, RoundState, RoundStore, Step

Grouping = Callable[[Plan, Sequence[TenantId]], Sequence[Sequence[TenantId]]]
logger = logging.getLogger(__name__)


class Round:
    """A round in the store."""

    def __init__(
        self,
        store: RoundStore,
        signing_key: SigningKey,
        directory: Directory,
        signed_plan: bytes,
        now: Directory | None = None,
    ) -> None:
        self.signed_plan = signed_plan
        self.plan = open_signed(Plan, signed_plan, signing_key.public)
        self._store = store
        self._signing_key = signing_key
        self._directory = directory
        self._now = now or directory
        self._digest = name_of(signed_plan)

    @property
    def state(self) -> RoundState:
        """Its state in the store."""
        return RoundState(self._store.get(self.plan.round_id).state)

    @property
    def contributors(self) -> tuple[TenantId, ...]:
        """The tenants that have contributed, sorted."""
        return tuple(sorted(self._store.contributors(self.plan.round_id)))

    @property
    def start_hours(self) -> dict[TenantId, int]:
        """The first hour that each contribution covers."""
        return {header.tenant: header.start_hour for header in map(self._header, self.contributors)}

    @property
    def groups(self) -> tuple[tuple[TenantId, ...], ...]:
        """The groups of the round's request; RuntimeError before `close`."""
        return tuple(tuple(header.tenant for header in group) for group in self._request().headers)

    @property
    def smallest_group(self) -> int:
        """How many contributions its smallest group has, by which noise is opened; RuntimeError before `close`."""
        return min(len(group) for group in self._request().groups)

    def receive(self, data: bytes, sets: Iterable[EndorsedSet] = ()) -> None:
        """Stores a signed contribution. The same bytes twice are harmless; PeerFault for one that does not fit.

        `sets` are those of the epoch's rounds that are over: they say which windows wait for the tenant.
        """
        self._require(RoundState.COLLECTING)
        header, contribution = opened_contribution(data, self._directory.verify_key)
        tenant = header.tenant
        if header.plan != self._digest or header.round_id != self.plan.round_id:
            raise PeerFault(
                f"tenant {tenant.hex()[:12]}… answered another plan", hint="it can take part in the next round"
            )
        if len(contribution.cells) != 8 * self.plan.words:
            raise PeerFault(
                f"tenant {tenant.hex()[:12]}… sent {len(contribution.cells)} bytes, not {8 * self.plan.words}",
                hint="it may run another version of Pharoah; tell its operator",
            )
        self._check_start(header, sets)
        if self._store.add_contribution(self.plan.round_id, tenant, data) != data:
            raise PeerFault(
                f"tenant {tenant.hex()[:12]}… sent two contributions", hint="the first one counts; tell its operator"
            )

    def _check_start(self, header: ContributionHeader, sets: Iterable[EndorsedSet]) -> None:
        """PeerFault for a contribution that counts from within a window, or windows in which it was counted already."""
        since = uncounted_since(self.plan, sets, header.tenant)
        if not (since <= header.start_hour <= self.plan.start_hour and header.start_hour in self.plan.windows):
            raise PeerFault(
                f"tenant {header.tenant.hex()[:12]}… counts from hour {header.start_hour}, and may from hour {since}",
                hint="it may run another version of Pharoah; tell its operator",
            )

    def close(self, group: Grouping) -> None:
        """Ends collecting and fixes the request to the trustees; CohortTooSmall below the minimum.

        A round with too few contributions stays open: more may arrive, or it is given up.
        """
        self._require(RoundState.COLLECTING)
        contributors = self.contributors
        self._require_cohort(len(contributors))
        self._move(RoundState.ENDORSING, self._asked(group(self.plan, contributors)))

    def _asked(self, groups: Sequence[Sequence[TenantId]]) -> bytes:
        headers = tuple(tuple(self._contribution(tenant).header for tenant in sorted(members)) for members in groups)
        ownerships = self._store.get(self.plan.round_id).ownerships
        return self._signing_key.sign(UnmaskRequest(self.signed_plan, headers, ownerships), self.plan.protocol)

    def drop_refused(self, refusals: Sequence[MemberRefused], group: Grouping) -> None:
        """Drops the contribution that every trustee refused; CohortTooSmall if too few are left.

        Raises a refusal if they do not agree on one. A new request replaces the one that named it, which no trustee
        has endorsed.
        """
        self._require(RoundState.ENDORSING)
        named = {refusal.what.partition(":")[0] for refusal in refusals}
        blamed = [tenant for tenant in self.contributors if str(tenant) in named]
        if len(blamed) != 1 or len(named) != 1 or len(refusals) < len(self.plan.trustees):
            raise refusals[0]
        logger.warning("round %s goes on without %s", self.plan.round_id, refusals[0].what, extra={"event": "dropped"})
        left = [other for other in self.contributors if other != blamed[0]]
        self._require_cohort(len(left))
        self._store.drop_contribution(self.plan.round_id, blamed[0], self._asked(group(self.plan, left)))

    def _require_cohort(self, contributions: int) -> None:
        if contributions < self.plan.cohort_minimum:
            raise CohortTooSmall(
                f"round {self.plan.round_id}: {counted_as(contributions, 'contribution')},"
                f" at least {self.plan.cohort_minimum} needed"
            )

    def give_up(self) -> None:
        """Decides that nothing of the round is ever unmasked; `endorse_empty` ends it.

        One whose set is endorsed already ends at once: those in it are not counted again.
        """
        if self.state is RoundState.UNMASKING:
            self.refuse()
        elif self.state is not RoundState.GIVING_UP:
            self._move(RoundState.GIVING_UP)

    def refuse(self) -> None:
        """Ends the round without a release: its contributions stay masked for good."""
        self._move(RoundState.REFUSED)

    @property
    def request(self) -> bytes:
        """The signed request, the same for every trustee."""
        request = self._store.get(self.plan.round_id).request
        if request is None:
            raise RuntimeError(f"round {self.plan.round_id} is still {self.state}")
        return request

    @property
    def empty_request(self) -> bytes:
        """The signed request of a round that is given up, the same whenever it is asked for."""
        return self._signing_key.sign(UnmaskRequest(self.signed_plan, (), ()), self.plan.protocol)

    def ended(self) -> EndedRound | None:
        """The set of a round that is over, with the endorsements of a quorum; None where trustees endorsed none."""
        for kind in (Answer.EMPTY, Answer.ENDORSEMENT):
            words = self._store.answers(self.plan.round_id, kind)
            if len(words) >= self._directory.quorum:
                return EndedRound(EndorsedSet.of(self.plan, self._asked_by(kind)), tuple(words.values()))
        return None

    def missing(self, kind: Answer) -> set[int]:
        """The mask trustees whose endorsement or share is missing."""
        return {trustee.index for trustee in self.plan.trustees} - self._answered(kind)

    def idle(self) -> list[int]:
        """The trustees that do not mask in this round and have not endorsed it: enough of them complete the quorum."""
        masking = {trustee.index for trustee in self.plan.trustees}
        return sorted(set(self.silent(Answer.ENDORSEMENT)) - masking)

    def silent(self, kind: Answer) -> list[int]:
        """All trustees that have not answered so, by index."""
        return sorted({trustee.index for trustee in self._directory.trustees} - self._answered(kind))

    def can_end_empty(self, bound: int) -> bool:
        """Whether a quorum may still endorse the empty set, if so many trustees are bound to another."""
        return len(self._directory.trustees) - bound >= self._directory.quorum

    def endorse(self, trustee: int, data: bytes) -> None:
        """Stores a trustee's endorsement; PeerFault for anything else. With a quorum of them unmasking begins."""
        self._require(RoundState.ENDORSING)
        wanted = frozenset(trustee.index for trustee in self.plan.trustees)
        step = Step(RoundState.ENDORSING, RoundState.UNMASKING, wanted, self._directory.quorum)
        self._keep_word(Answer.ENDORSEMENT, trustee, data, step)

    def endorse_empty(self, trustee: int, data: bytes) -> None:
        """Stores a trustee's endorsement of the empty set; PeerFault for anything else. A quorum ends the round."""
        self._require(RoundState.GIVING_UP)
        step = Step(RoundState.GIVING_UP, RoundState.REFUSED, frozenset(), self._directory.quorum)
        self._keep_word(Answer.EMPTY, trustee, data, step)

    def _keep_word(self, kind: Answer, trustee: int, data: bytes, step: Step) -> None:
        word = open_of_seat(Endorsement, data, trustee, self._directory, self._now)
        self._check_answer(trustee, word, self._request_of(kind))
        if word.endorsed != EndorsedSet.of(self.plan, self._asked_by(kind)).name:
            raise PeerFault(f"trustee {trustee} endorsed another set than it was asked to", hint="tell its operator")
        self._store.add_answer(self.plan.round_id, kind, trustee, data, step)

    def call(self) -> bytes:
        """The message that asks each trustee for its share: the request and all endorsements."""
        endorsements = self._store.answers(self.plan.round_id, Answer.ENDORSEMENT)
        told = UnmaskCall(self.request, tuple(endorsements[index] for index in sorted(endorsements)))
        return encode(told, self.plan.protocol)

    def share(self, trustee: int, data: bytes) -> None:
        """Stores a trustee's share; PeerFault for anything else."""
        self._require(RoundState.UNMASKING)
        share = open_of_seat(UnmaskShare, data, trustee, self._directory, self._now)
        if trustee not in {masking.index for masking in self.plan.trustees}:
            raise PeerFault(f"trustee {trustee} holds no masks of this round", hint="the plan names those that do")
        self._check_answer(trustee, share, self.request)
        if [len(words) for words in share.mask_sums] != [8 * self.plan.cells] * len(self.groups):
            raise PeerFault(f"trustee {trustee} sent masks of the wrong length", hint="tell its operator")
        self._store.add_answer(self.plan.round_id, Answer.SHARE, trustee, data)

    def open(self) -> list[Words]:
        """Each group's noisy sum, shape (cells,) each; RuntimeError while shares are missing."""
        self._require_shares()
        sums = [self._sum(members) for members in self.groups]
        opened = open_groups(self.plan, sums, self.smallest_group)
        for data in self._store.answers(self.plan.round_id, Answer.SHARE).values():
            share = reopened(UnmaskShare, data)
            for total, words in zip(opened, share.mask_sums, strict=True):
                total -= words_from_bytes(words)
        return opened

    def release(self, data: bytes, suspicion: Mapping[str, Any]) -> None:
        """Ends the round and stores its release."""
        self._require_shares()
        left = Outcome(data, suspicion, self.plan.counts(Subject.WARNINGS))
        self._store.finish(self.plan.round_id, RoundState.UNMASKING, RoundState.RELEASED, left)

    def _sum(self, tenants: Iterable[TenantId]) -> Words:
        total = np.zeros(self.plan.words, np.uint64)
        for tenant in tenants:
            total += words_from_bytes(self._contribution(tenant).cells)
        return total

    def _contribution(self, tenant: TenantId) -> Contribution:
        return decode(Contribution, self._store.contribution(self.plan.round_id, tenant))

    def _header(self, tenant: TenantId) -> ContributionHeader:
        return reopened(ContributionHeader, self._contribution(tenant).header)

    def _request(self) -> UnmaskRequest:
        return reopened(UnmaskRequest, self.request)

    def _request_of(self, kind: Answer) -> bytes:
        return self.empty_request if kind is Answer.EMPTY else self.request

    def _asked_by(self, kind: Answer) -> UnmaskRequest:
        return reopened(UnmaskRequest, self._request_of(kind))

    def _answered(self, kind: Answer) -> set[int]:
        return set(self._store.answers(self.plan.round_id, kind))

    def _check_answer(self, trustee: int, answer: Endorsement | UnmaskShare, asked: bytes) -> None:
        wanted = trustee, self.plan.round_id, name_of(asked)
        if (answer.trustee, answer.round_id, answer.request) != wanted:
            raise PeerFault(f"trustee {trustee} answered another request", hint="tell its operator")

    def _require(self, *states: RoundState) -> None:
        if self.state not in states:
            raise RuntimeError(f"round {self.plan.round_id} is {self.state}, not {' or '.join(states)}")

    def _require_shares(self) -> None:
        self._require(RoundState.UNMASKING)
        if missing := self.missing(Answer.SHARE):
            raise RuntimeError(f"round {self.plan.round_id} lacks the shares of the trustees {sorted(missing)}")

    def _move(self, state: RoundState, request: bytes | None = None) -> None:
        before = self.state
        if state not in TRANSITIONS[before]:
            raise RuntimeError(f"round {self.plan.round_id} cannot go from {before} to {state}")
        self._store.move(self.plan.round_id, before, state, request)


def new_round(
    store: RoundStore,
    signing_key: SigningKey,
    directory: Directory,
    plan: Plan,
    ownerships: Sequence[bytes] = (),
    *,
    alone: bool = False,
) -> Round:
    """Signs a plan and stores the round that it opens, with the signed statements of owners that its rows rest on.

    LostStep where it is to be `alone`, and another process has opened one meanwhile. The statements are stored now, as
    owners make new ones for later rounds.
    """
    signed_plan = signing_key.sign(plan, plan.protocol)
    store.add(plan.round_id, RoundState.COLLECTING, signed_plan, ownerships, alone=alone)
    return Round(store, signing_key, directory, signed_plan)
