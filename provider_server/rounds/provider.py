"""The provider's side of the federation: members, leases, and the steps of a round.

`provider_server.rounds.week` calls these steps in order. A tenant's bad answer costs only that tenant its place.
Learning from releases is the `Publisher`'s task.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from crypto.codec import digest, encode
from crypto.errors import PeerFault, PharoahError, Refusal
from crypto.ids import RoundId, TenantId
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey, open_signed_by, reopened
from federation.base.clock import dates
from federation.protocol.directory import Directory
from federation.protocol.endorsed import EndedRound, EndedRounds, EndorsedSet
from federation.protocol.plan import MaskTrustee, Plan, PublishedBundle
from federation.protocol.round_messages import (
    GrantedLease,
    LeaseGrants,
    LeaseRequest,
    Ownership,
    Registration,
    RegistrationRequest,
)
from federation.protocol.seats import MASK_SEATS, TrusteeRecord
from federation.protocol.service_messages import Notice
from federation.protocol.subjects import TOKEN_DIMENSIONS
from federation.protocol.versions import Heard, asked_in
from provider_server.fleet.leases import Lease
from provider_server.fleet.parts import FabricParts
from provider_server.rounds.grouping import TenantScores, assign
from provider_server.rounds.lease_book import LeaseBook
from provider_server.rounds.planning import (
    MOST_EXCESS,
    PlanSettings,
    check_mask_keys,
    make_plan,
    most_excess,
    windows_at,
)
from provider_server.rounds.round import Round, new_round
from provider_server.rounds.schedule import Window, window_of
from provider_server.rounds.store.round_store import ENDED, KeptRound
from provider_server.rounds.store.store import Store

logger = logging.getLogger(__name__)


class WeekHeld(Refusal):
    """A round over hours of which one was held already, whether it was released or given up."""

    default_hint = (
        "no window is counted twice: see `pharoah-provider rounds releases`; the next round counts what waits"
    )


class RoundUnderWay(Refusal):
    """A new round would begin before the one before it has ended."""

    default_hint = (
        "continue it with `pharoah-provider rounds hold`, or give it up with `--give-up`: the next counts its units"
    )


class Provider(LeaseBook):
    """Holds the provider's signing key and the secret of its context tokens, and shows neither."""

    def __init__(
        self,
        signing_key: SigningKey,
        context_secret: bytes,
        settings: PlanSettings,
        store: Store,
        random_bytes: RandomBytes,
        now_s: Callable[[], float] = time.time,
        parts: FabricParts | None = None,
    ) -> None:
        super().__init__(signing_key, context_secret, settings.weeks_per_epoch, store, now_s, parts)
        self.settings = settings
        self._signing_key = signing_key
        self._random_bytes = random_bytes
        self.heard = Heard()
        self._sets_before: tuple[RoundId, list[EndedRound]] | None = None

    # ---- leases ------------------------------------------------------------------------------------------------------

    def part_tokens(self, epoch: int) -> list[list[str]]:
        """The tokens of the rows of votes in an epoch: units × (rails, none known); none without a fabric."""
        return [] if self.parts is None else self.parts.tokens(self._context_secret, epoch)

    def grants(self, request: bytes) -> bytes:
        """A tenant's own leases, with their context tokens; BadSignature for anybody else."""
        asked = open_signed_by(LeaseRequest, request, self.directory.verify_key)
        own = self.store.leases_of(asked.tenant, asked.start_hour, asked.end_hour)
        granted = (
            GrantedLease.of(
                lease.lease, self.epoch(lease.start_h), lease.start_h, lease.labels, lease.nodes, lease.units
            )
            for lease in own
        )
        return self._signing_key.sign(LeaseGrants(asked.tenant, tuple(granted)), asked_in.get())

    def signed_notice(self, notice: Notice) -> bytes:
        """A hint, or the end of a lease, as its tenant gets it, and may show to others."""
        return self._signing_key.sign(notice, asked_in.get())

    def registration_request(self, window: Window) -> bytes:
        """The signed request for the tokens of leases from the start of the epoch to the end of the window.

        It starts at the epoch's start, since a tenant that was away may contribute the windows that it missed.
        """
        asked = RegistrationRequest(self.epoch(window[0]), self.windows(window[0])[0], window[1])
        return self._signing_key.sign(asked, self.heard.least)

    def register(self, answer: bytes) -> None:
        """Stores a tenant's tokens for its own leases; a bad answer is logged and dropped."""
        with _dropping_bad_answers():
            registration = open_signed_by(Registration, answer, self.directory.verify_key)
            owned = open_signed_by(Ownership, registration.ownership, self.directory.verify_key)
            if (owned.tenant, owned.epoch) != (registration.tenant, registration.epoch):
                raise PeerFault(f"tenant {registration.tenant.hex()[:12]}… sent the ownership statement of another")
            before = self.store.ownership(owned.tenant, owned.epoch - 1)
            self.store.register(with_held_links(registration, owned, before))

    # ---- a round -----------------------------------------------------------------------------------------------------

    def windows(self, hour: float) -> tuple[int, ...]:
        """The edges of the windows of an hour's epoch."""
        return windows_at(self.settings, self.plans(), hour)

    def window_at(self, hour: float) -> Window:
        """The window that holds an hour."""
        return window_of(self.windows(hour), hour)

    def plans(self) -> list[Plan]:
        """The plans of all rounds, oldest first."""
        return [reopened(Plan, kept.signed_plan) for kept in self.store.rounds.rounds()]

    def plan(self, window: Window) -> Plan:
        """The plan for a window, with the rows that the epoch's leases support.

        RoundUnderWay while another round is open, WeekHeld where one was held over hours of the window, MaskKeysServed
        under mask keys of another epoch.
        """
        if open_ := self.unfinished():
            raise RoundUnderWay(f"round {open_.plan.round_id} is still {open_.state}")
        plans = self.plans()
        if any(plan.start_hour < window[1] and window[0] < plan.end_hour for plan in plans):
            raise WeekHeld(f"a round already covers {dates(*window)}")
        plan = self._plan(window)
        check_mask_keys(plan, plans)
        self._warn_of_noise(plan)
        return plan

    def _plan(self, window: Window) -> Plan:
        windows = self.windows(window[0])
        owned = self._owned(self.epoch(window[0]), windows[0], window[1])
        known = self.store.leases(windows[0], window[1])
        members, seen = self._last_attendance()
        return make_plan(
            self.settings,
            self.new_round_id(),
            window,
            [as_owned(lease, owned) for lease in known],
            self.mask_trustees(),
            windows=windows,
            directory=self.directory.head,
            members=members,
            seen=seen,
            bundle=self._published(),
            protocol=self.heard.least,
        )

    def _warn_of_noise(self, plan: Plan) -> None:
        """Warns where the noise of a round would have more than twice the variance that its epsilon asks for."""
        groups = max(1, min(self.settings.groups, len(self.directory.members) // plan.cohort_minimum))
        worst = groups * most_excess(plan, len(self.directory.members) // groups)
        if worst > MOST_EXCESS:
            logger.warning(
                "round %s: noise of up to %.1f times the variance that epsilon asks for: lower groups, count fewer"
                " cells, or raise honest_minimum or noise_shares",
                plan.round_id,
                worst,
                extra={"event": "noise_beyond_ideal"},
            )

    def _published(self) -> PublishedBundle | None:
        newest = self.store.newest_bundle()
        return None if newest is None else PublishedBundle(newest[0], digest(newest[1]))

    def new_round_id(self) -> RoundId:
        """A fresh random id for a round."""
        return RoundId(self._random_bytes(RoundId.length))

    def mask_trustees(self) -> tuple[MaskTrustee, ...]:
        """The trustees that mask: the last three of the directory, so that of five, three sign and three mask."""
        return tuple(MaskTrustee(trustee.index, trustee.mask_key) for trustee in self.directory.trustees[-MASK_SEATS:])

    def open_round(self, plan: Plan) -> Round:
        """Signs the plan and opens its round for contributions; LostStep where another process was faster."""
        directory = self.members.chain.at(plan.directory)
        return new_round(self.store.rounds, self._signing_key, directory, plan, self._evidence(plan), alone=True)

    def _round(self, kept: KeptRound) -> Round:
        directory = self.members.chain.at(reopened(Plan, kept.signed_plan).directory)
        return Round(self.store.rounds, self._signing_key, directory, kept.signed_plan, self.directory)

    def reseat(self, trustees: Sequence[TrusteeRecord], handovers: Sequence[bytes]) -> None:
        """Puts a handover of the trustees in force; errors as of `Members.reseat`.

        RoundUnderWay where all holders stay and a round is open: nobody answers it, or opens it, under seats of before.
        """
        open_ = self.unfinished()
        holders = {trustee.verify_key for trustee in self.directory.trustees}
        if open_ and holders == {trustee.verify_key for trustee in trustees}:
            raise RoundUnderWay(f"round {open_.plan.round_id} is still {open_.state}: renewed keys would end it")
        self.members.reseat(trustees, handovers)

    def unfinished(self) -> Round | None:
        """The open round, which is neither released nor refused, if there is one."""
        kept = next((kept for kept in self.store.rounds.rounds() if kept.state not in ENDED), None)
        return None if kept is None else self._round(kept)

    def ended(self, window: Window) -> bytes:
        """EndedRounds: who was counted in the rounds before a window, in its epoch; empty bytes where none has ended.

        A round of which trustees endorsed no set is not among them.
        """
        found = self._ended(self.epoch(window[0]))
        return encode(EndedRounds(tuple(found)), self.heard.least) if found else b""

    def _ended(self, epoch: int) -> list[EndedRound]:
        rounds = (self._round(kept) for kept in self.store.rounds.rounds() if kept.state in ENDED)
        found = [ended for round_ in rounds if round_.plan.epoch == epoch and (ended := round_.ended())]
        return sorted(found, key=lambda ended: ended.endorsed.start_hour)

    def _endorsed_sets(self, plan: Plan) -> list[EndorsedSet]:
        """Those before the open round, which stay as they are while it is open: read once, not for every answer."""
        if self._sets_before is None or self._sets_before[0] != plan.round_id:
            self._sets_before = plan.round_id, self._ended(plan.epoch)
        return [one.endorsed for one in self._sets_before[1]]

    def receive(self, round_: Round, answer: bytes) -> None:
        """Stores a contribution; a bad one is logged and dropped."""
        with _dropping_bad_answers():
            round_.receive(answer, self._endorsed_sets(round_.plan))

    def group(self, plan: Plan, contributors: Sequence[TenantId]) -> Sequence[Sequence[TenantId]]:
        """Random groups of the contributors of a round, none below its cohort minimum."""
        scores = TenantScores.from_dict(self.store.rounds.suspicion())
        return assign(contributors, self.settings.groups, plan.cohort_minimum, scores, self._random_bytes)

    def _evidence(self, plan: Plan) -> list[bytes]:
        directory = self.members.chain.at(plan.directory)
        return evidence(plan, self._ownerships(plan.epoch, directory, plan.first_hour, plan.end_hour))

    def newest_bundle(self) -> bytes | None:
        """The signed bytes of the newest bundle."""
        newest = self.store.newest_bundle()
        return None if newest is None else newest[1]

    def _owned(self, epoch: int, first_hour: int, end_hour: int) -> dict[TenantId, set[str]]:
        ownerships = self._ownerships(epoch, self.directory, first_hour, end_hour)
        return {owned.tenant: {str(token) for token in owned.tokens} for owned, _signed in ownerships}

    def _ownerships(
        self, epoch: int, directory: Directory, first_hour: int, end_hour: int
    ) -> list[tuple[Ownership, bytes]]:
        """The ownership statements of members of `directory` for leases in these hours; none of former members."""
        stored = [(reopened(Ownership, signed), signed) for signed in self.store.ownerships(epoch)]
        return [
            (owned, signed)
            for owned, signed in stored
            if owned.tenant in directory.by_id and first_hour < owned.end_hour <= end_hour
        ]

    def _last_attendance(self) -> tuple[int, int]:
        """How many were members when the last round was released, and answered in its smallest group.

        The founding members, and 0, before the first. Tenants rely on no more than they have seen enrolled.
        """
        last = self.store.newest_release()
        if last is None:
            return len(self.members.chain.founding.members), 0
        return len(self.members.chain.at(last.plan.directory).members), last.smallest_group


@contextmanager
def _dropping_bad_answers() -> Iterator[None]:
    """Logs and drops one tenant's refusal or fault, which must not stop the round of the others."""
    try:
        yield
    except PharoahError as error:
        logger.warning("an answer was dropped: %s: %s", type(error).__name__, error.what)


# ---- owners ----------------------------------------------------------------------------------------------------------


def as_owned(lease: Lease, owned: dict[TenantId, set[str]]) -> Lease:
    """The lease with only those of its tokens that its tenant's ownership statement names."""
    held = owned.get(lease.tenant, set())
    labels = {name: token for name, token in lease.labels.items() if token in held}
    return replace(lease, labels=labels, parts=tuple(part for part in lease.parts if part in held))


def evidence(plan: Plan, ownerships: Sequence[tuple[Ownership, bytes]]) -> list[bytes]:
    """Signed ownership statements, as few as prove `owners_minimum` owners for every token row of the plan."""
    rows = {level for dimension in plan.dimensions if dimension.name in TOKEN_DIMENSIONS for level in dimension.levels}
    shown: Counter[str] = Counter()
    chosen = []
    for owned, signed in ownerships:
        held = {str(token) for token in owned.tokens} & rows
        if any(shown[token] < plan.owners_minimum for token in held):
            shown.update(held)
            chosen.append(signed)
    return chosen


def with_held_links(registration: Registration, owned: Ownership, before: bytes | None) -> Registration:
    """The registration with those links whose tokens the tenant owns now, and owned when it last said so `before`."""
    now, then = set(owned.tokens), set(reopened(Ownership, before).tokens) if before else set()
    held = tuple(link for link in registration.links if link.now in now and link.before in then)
    return msgspec.structs.replace(registration, links=held)
