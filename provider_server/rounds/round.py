"""One round: contributions are collected and checked, and their sum is unmasked once, for one set, or not at all.

    COLLECTING ──collected──▶ COLLECTED ──close──▶ ENDORSING ──endorse──▶ UNMASKING ──share, release──▶ RELEASED
        │                         │                    │                      │
        └─────────refuse──────────┴────────────────────┴──────────────────────┴─▶ REFUSED

- Every step is stored before the next begins, so a killed provider continues where it was: contributions and trustees'
  answers are stored as received, and the round's only request before it is first sent.
- A trustee that does not answer delays a round; nothing is lost. The rounds after it are collected and wait behind it:
  what they ask trustees follows from how the one before them ended. So rounds are opened in their order.
- Contributions are split at random into groups of at least the cohort minimum, and each group's sum is unmasked
  separately, so that a false contribution spoils only its group (`provider_server.rounds.grouping`).
- In a series each group's masked counts are stored, for the following weeks. Contributions that came too late for their
  round are counted in the next one that is closed (`provider_server.rounds.late`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crypto.codec import decode, digest, encode
from crypto.errors import CohortTooSmall, PeerFault
from crypto.ids import Digest, RoundId, TenantId
from crypto.masking import Words, words_from_bytes, words_to_bytes
from crypto.signing import SigningKey, name_of, open_signed, reopened
from federation.protocol.directory import Directory, open_of_seat
from federation.protocol.life_table import embed
from federation.protocol.noise import open_groups
from federation.protocol.plan import Plan
from federation.protocol.round_messages import (
    Contribution,
    ContributionHeader,
    Endorsement,
    GroupOfRound,
    LateContributions,
    UnmaskCall,
    UnmaskRequest,
    UnmaskShare,
    opened_contribution,
)
from federation.runtime.visible import counted_as
from provider_server.rounds.late import LateRound, late_rounds
from provider_server.store.round_store import TRANSITIONS, Answer, KeptRound, Outcome, RoundState, RoundStore, Step

Grouping = Callable[[Sequence[TenantId]], Sequence[Sequence[TenantId]]]


@dataclass(frozen=True)
class Past:
    """The earlier rounds of a series: plans of the opened ones, oldest first, and the last one's request.

    `late` are contributions to them that came after they were over.
    """

    plans: tuple[Plan, ...] = ()
    after: Digest | None = None
    left_out: tuple[GroupOfRound, ...] = ()
    late: tuple[LateRound, ...] = ()


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
        self._digest = digest(encode(self.plan))

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
    def late(self) -> list[tuple[Plan, tuple[ContributionHeader, ...]]]:
        """Contributions to earlier rounds that it counts, by their plans; RuntimeError before `close`."""
        return [(reopened(Plan, late.plan), late.headers) for late in self._request().late]

    @property
    def smallest_group(self) -> int:
        """How many contributions its smallest group has, by which noise is opened; RuntimeError before `close`."""
        return min(len(group) for group in self._request().groups)

    def receive(self, data: bytes) -> None:
        """Stores a signed contribution. The same bytes twice are harmless; PeerFault for one that does not fit."""
        self._require(RoundState.COLLECTING)
        self._keep(data)

    def receive_late(self, data: bytes) -> None:
        """Stores a signed contribution after the round is over, for a later round of its series; else as `receive`."""
        self._require(RoundState.RELEASED, RoundState.REFUSED)
        self._keep(data)

    def _keep(self, data: bytes) -> None:
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
        latest = self.plan.end_hour if self.plan.is_second else self.plan.end_hour - 1
        if not self.plan.first_hour <= header.start_hour <= latest:
            raise PeerFault(
                f"tenant {tenant.hex()[:12]}… counts from hour {header.start_hour}, outside of the plan",
                hint="it may run another version of Pharoah; tell its operator",
            )
        if self._store.add_contribution(self.plan.round_id, tenant, data) != data:
            raise PeerFault(
                f"tenant {tenant.hex()[:12]}… sent two contributions", hint="the first one counts; tell its operator"
            )

    def collected(self) -> None:
        """Ends collecting: the round waits for the ones before it. CohortTooSmall below the minimum.

        A round with too few contributions stays open: more may arrive, or `refuse` ends it.
        """
        self._require(RoundState.COLLECTING)
        self._require_cohort(len(self.contributors))
        self._move(RoundState.COLLECTED)

    def close(self, group: Grouping, past: Past) -> None:
        """Ends collecting, if it has not ended, and fixes the request to the trustees; CohortTooSmall as there."""
        self._require(RoundState.COLLECTING, RoundState.COLLECTED)
        contributors = self.contributors
        self._require_cohort(len(contributors))
        self._move(RoundState.ENDORSING, self._asked(group(contributors), past))

    def _asked(self, groups: Sequence[Sequence[TenantId]], past: Past) -> bytes:
        headers = tuple(self._headers_of(self.plan.round_id, sorted(members)) for members in groups)
        ownerships = self._store.get(self.plan.round_id).ownerships
        late = tuple(
            LateContributions(late.signed_plan, self._headers_of(late.plan.round_id, late.tenants))
            for late in past.late
            if late.tenants
        )
        asked = UnmaskRequest(self.signed_plan, headers, past.after, past.left_out, ownerships, late)
        return self._signing_key.sign(asked)

    def _headers_of(self, round_id: RoundId, tenants: Iterable[TenantId]) -> tuple[bytes, ...]:
        return tuple(decode(Contribution, self._store.contribution(round_id, tenant)).header for tenant in tenants)

    def drop(self, tenant: TenantId, group: Grouping, past: Past) -> None:
        """Drops the contributions of a tenant that every trustee refused; CohortTooSmall if too few are left.

        A new request replaces the one that named it, which no trustee has endorsed.
        """
        self._require(RoundState.ENDORSING)
        left = [other for other in self.contributors if other != tenant]
        self._require_cohort(len(left))
        kept = [replace(late, tenants=tuple(of for of in late.tenants if of != tenant)) for late in past.late]
        request = self._asked(group(left), replace(past, late=tuple(kept)))
        refused = [late.plan.round_id for late in past.late]
        self._store.drop_contribution(self.plan.round_id, tenant, request, refused)

    def _require_cohort(self, contributions: int) -> None:
        if contributions < self.plan.cohort_minimum:
            raise CohortTooSmall(
                f"round {self.plan.round_id}: {counted_as(contributions, 'contribution')},"
                f" at least {self.plan.cohort_minimum} needed"
            )

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

    def missing(self, kind: Answer) -> set[int]:
        """The mask trustees whose endorsement or share is missing."""
        return {trustee.index for trustee in self.plan.trustees} - self._store.answers(self.plan.round_id, kind).keys()

    def idle(self) -> list[int]:
        """The trustees that do not mask in this round and have not endorsed it: enough of them complete the quorum."""
        return sorted(
            {trustee.index for trustee in self._directory.trustees}
            - {trustee.index for trustee in self.plan.trustees}
            - self._store.answers(self.plan.round_id, Answer.ENDORSEMENT).keys()
        )

    def endorse(self, trustee: int, data: bytes) -> None:
        """Stores a trustee's endorsement; PeerFault for anything else. With a quorum of them unmasking begins."""
        self._require(RoundState.ENDORSING)
        endorsement = open_of_seat(Endorsement, data, trustee, self._directory, self._now)
        self._check_answer(trustee, endorsement)
        wanted = frozenset(trustee.index for trustee in self.plan.trustees)
        step = Step(RoundState.ENDORSING, RoundState.UNMASKING, wanted, self._directory.quorum)
        self._store.add_answer(self.plan.round_id, Answer.ENDORSEMENT, trustee, data, step)

    def call(self) -> bytes:
        """The message that asks each trustee for its share: the request and all endorsements."""
        endorsements = self._store.answers(self.plan.round_id, Answer.ENDORSEMENT)
        return encode(UnmaskCall(self.request, tuple(endorsements[index] for index in sorted(endorsements))))

    def share(self, trustee: int, data: bytes) -> None:
        """Stores a trustee's share; PeerFault for anything else."""
        self._require(RoundState.UNMASKING)
        share = open_of_seat(UnmaskShare, data, trustee, self._directory, self._now)
        if trustee not in {masking.index for masking in self.plan.trustees}:
            raise PeerFault(f"trustee {trustee} holds no masks of this round", hint="the plan names those that do")
        self._check_answer(trustee, share)
        if [len(words) for words in share.mask_sums] != [8 * self.plan.cells] * len(self.groups):
            raise PeerFault(f"trustee {trustee} sent masks of the wrong length", hint="tell its operator")
        self._store.add_answer(self.plan.round_id, Answer.SHARE, trustee, data)

    def open(self, past: Past) -> list[Words]:
        """Each group's noisy sum, shape (cells,) each; RuntimeError while shares are missing."""
        self._require_shares()
        sums = self._sums()
        opened = open_groups(self.plan, self._past_counts(past), sums, self.smallest_group)
        for data in self._store.answers(self.plan.round_id, Answer.SHARE).values():
            share = reopened(UnmaskShare, data)
            for total, words in zip(opened, share.mask_sums, strict=True):
                total -= words_from_bytes(words)
        return opened

    def release(self, data: bytes, left_out: frozenset[int], suspicion: Mapping[str, Any]) -> None:
        """Ends the round: stores its release and, in a series, the masked counts for the following weeks."""
        self._require_shares()
        counts = [words_to_bytes(words[: self.plan.cells]) for words in self._sums()]
        late = [(header.round_id, header.tenant) for _plan, headers in self.late for header in headers]
        outcome = Outcome(data, counts if self.plan.series else [], left_out, suspicion, late)
        self._store.finish(self.plan.round_id, RoundState.UNMASKING, RoundState.RELEASED, outcome)

    def _past_counts(self, past: Past) -> list[Words]:
        return [self._counted(plan) for plan in past.plans]

    def _counted(self, plan: Plan) -> Words:
        """The masked counts of an earlier round, laid out as in this one."""
        total = np.zeros(plan.cells, np.uint64)
        for _group, left_out, words in self._store.masked_counts(plan.round_id):
            if not left_out:
                total += words_from_bytes(words)
        return embed(plan.tables, self.plan.tables, total)

    def _sums(self) -> list[Words]:
        """The sum over each group; the counts of late contributions are in the first."""
        sums = [self._sum(self.plan, members, self.plan.words) for members in self.groups]
        for plan, headers in self.late:
            counts = self._sum(plan, [header.tenant for header in headers], plan.cells)
            sums[0][: self.plan.cells] += embed(plan.tables, self.plan.tables, counts)
        return sums

    def _sum(self, plan: Plan, tenants: Iterable[TenantId], words: int) -> Words:
        total = np.zeros(words, np.uint64)
        for tenant in tenants:
            contribution = decode(Contribution, self._store.contribution(plan.round_id, tenant))
            total += words_from_bytes(contribution.cells)[:words]
        return total

    def _contribution(self, tenant: TenantId) -> Contribution:
        return decode(Contribution, self._store.contribution(self.plan.round_id, tenant))

    def _header(self, tenant: TenantId) -> ContributionHeader:
        return reopened(ContributionHeader, self._contribution(tenant).header)

    def _request(self) -> UnmaskRequest:
        return reopened(UnmaskRequest, self.request)

    def _check_answer(self, trustee: int, answer: Endorsement | UnmaskShare) -> None:
        named = name_of(self.request)
        wanted = trustee, self.plan.round_id, named
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

    LostStep where it is to be `alone`, and another process has opened one meanwhile.

    They are stored now since owners make new ones for later rounds, which may be planned before this one is opened.
    """
    signed_plan = signing_key.sign(plan)
    store.add(plan.round_id, RoundState.COLLECTING, signed_plan, ownerships, alone=alone)
    return Round(store, signing_key, directory, signed_plan)


def past_of(store: RoundStore, plan: Plan) -> Past:
    """The released rounds of the plan's series so far; empty without a series."""
    plans, left_out, after = [], [], None
    for kept in store.rounds():
        earlier = reopened(Plan, kept.signed_plan)
        if not _goes_before(kept, earlier, plan):
            continue
        plans.append(earlier)
        after = name_of(kept.request or b"")
        left_out += [
            GroupOfRound(earlier.position, group)
            for group, is_left_out, _words in store.masked_counts(kept.round_id)
            if is_left_out
        ]
    return Past(tuple(plans), after, tuple(left_out), late_rounds(store, plan))


def past_rounds(store: RoundStore, plan: Plan) -> list[KeptRound]:
    """The released rounds of the plan's series so far, oldest first."""
    return [kept for kept in store.rounds() if _goes_before(kept, reopened(Plan, kept.signed_plan), plan)]


def is_broken(store: RoundStore, plan: Plan) -> bool:
    """Whether a round of the plan's series was refused after trustees were asked: the series cannot continue."""
    return plan.series is not None and any(
        kept.state == RoundState.REFUSED and kept.request and _series(kept) == plan.series.name
        for kept in store.rounds()
    )


def _series(kept: KeptRound) -> RoundId | None:
    series = reopened(Plan, kept.signed_plan).series
    return series.name if series else None


def _goes_before(kept: KeptRound, earlier: Plan, plan: Plan) -> bool:
    if plan.series is None or earlier.series is None or kept.state != RoundState.RELEASED:
        return False
    return earlier.series.name == plan.series.name and earlier.position < plan.position
