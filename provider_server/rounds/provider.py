"""The provider's side of the federation: members, leases, and the steps of a round.

`provider_server.week` calls these steps in order. A tenant's bad answer costs only that tenant its place in the round.
Learning from releases is the `Publisher`'s task.
"""

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager

from crypto.codec import decode, digest
from crypto.errors import MemberRefused, PeerFault, PharoahError, PlanRefused, Refusal
from crypto.ids import Digest, RoundId, TenantId
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey, open_signed_by, reopened
from federation.protocol.directory import Directory
from federation.protocol.plan import (
    HOURS_PER_WEEK,
    MaskTrustee,
    Plan,
    PublishedBundle,
    Series,
    check_continues,
)
from federation.protocol.round_messages import (
    Contribution,
    ContributionHeader,
    GrantedLease,
    LeaseGrants,
    LeaseRequest,
    Ownership,
    Registration,
    RegistrationRequest,
    Unheard,
    UnheardRequest,
    UnmaskRequest,
)
from federation.protocol.seats import MASK_SEATS
from federation.protocol.service_messages import Notice
from provider_server.fleet.leases import Lease
from provider_server.fleet.parts import FabricParts
from provider_server.rounds import release as gate
from provider_server.rounds.grouping import TenantScores, assign
from provider_server.rounds.late import (
    is_opened_again,
    is_over,
    unheard,
)
from provider_server.rounds.lease_book import LeaseBook
from provider_server.rounds.opening import open_release
from provider_server.rounds.owners import as_owned, evidence, with_held_links
from provider_server.rounds.planning import (
    MOST_EXCESS,
    PlanSettings,
    check_mask_keys,
    make_plan,
    most_excess,
    next_opening,
    next_series,
)
from provider_server.rounds.round import Grouping, Round, is_broken, new_round, past_of, past_rounds
from provider_server.rounds.schedule import BadWindow, Window
from provider_server.store.hint_store import HintStore
from provider_server.store.round_store import KeptRound, RoundState
from provider_server.store.store import Store

logger = logging.getLogger(__name__)


class WeekHeld(Refusal):
    """A round over hours that a release or a waiting round covers already."""

    default_hint = "a job-week is counted only once: see its release with `pharoah-provider release`"


class RoundUnderWay(Refusal):
    """A new round would begin before the one before it has its contributions."""

    default_hint = (
        "continue it with `pharoah-provider round`, or abandon it with `--give-up`; then no job-week is recounted"
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

    @property
    def hints(self) -> HintStore:
        """The hints to tenants about their own leases."""
        return self.store.hints

    # ---- leases ------------------------------------------------------------------------------------------------------

    def part_tokens(self, epoch: int) -> list[list[str]]:
        """The tokens of the rows of votes in an epoch: units × (rails, none known); none without a fabric."""
        return [] if self._parts is None else self._parts.tokens(self._context_secret, epoch)

    @property
    def parts(self) -> FabricParts | None:
        """The parts of the fabric that tenants vote for, where files name them."""
        return self._parts

    def placed(self, hour: float) -> list[tuple[Lease, tuple[str, ...]]]:
        """The leases running at `hour` whose nodes are known, with the nodes' names."""
        return self.store.placed(hour)

    def leases(self, start_hour: float, end_hour: float) -> list[Lease]:
        """Leases that overlap [start_hour, end_hour)."""
        return self.store.leases(start_hour, end_hour)

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
        return self._signing_key.sign(LeaseGrants(asked.tenant, tuple(granted)))

    def signed_notice(self, notice: Notice) -> bytes:
        """A hint, or the end of a lease, as its tenant gets it, and may show to others."""
        return self._signing_key.sign(notice)

    def registration_request(self, window: Window) -> bytes:
        """The signed request for the tokens of leases from the start of the epoch to the end of the window.

        It starts at the epoch's start, since a tenant that was away may contribute the weeks that it missed.
        """
        return self._signing_key.sign(
            RegistrationRequest(self.epoch(window[0]), self._epoch_start(window[0]), window[1])
        )

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

    def plan(self, window: Window) -> Plan:
        """The plan for a window, with the rows that the epoch's leases support; RoundUnderWay while one collects.

        BadWindow for one that ends before the series is opened next. Rounds that wait for a trustee do not stand in its
        way: the next one is collected behind them. Over the window of `unheard_weeks` it is the second opening.
        """
        waiting = self.waiting()
        for open_ in waiting:
            if open_.state is RoundState.COLLECTING:
                raise RoundUnderWay(f"round {open_.plan.round_id} is still {open_.state}")
        covered = [*(release.plan for release in self.releases()), *(open_.plan for open_ in waiting)]
        held = any(plan.start_hour < window[1] and window[0] < plan.end_hour for plan in covered)
        if held and window != self.unheard_weeks():
            raise WeekHeld(f"a round already covers hours {window[0]}–{window[1]}")
        earlier = self._goes_on_from()
        plan = self._plan(window, earlier)
        return plan if earlier is None or _may_follow(earlier, plan) else self._plan(window, None)

    def unheard_weeks(self) -> Window | None:
        """The window of the last round, where its series is opened a second time and members missed the first.

        None once that was held or given up.
        """
        last = self._goes_on_from()
        if last is None:
            return None
        members = self.members.chain.at(last.directory).by_id.keys() & self.directory.by_id.keys()
        return last.window if is_opened_again(self.store.rounds, last, members) else None

    def _plan(self, window: Window, earlier: Plan | None) -> Plan:
        round_id = self.new_round_id()
        since = self.last_end_hour()
        series = next_series(self.settings, round_id, window, earlier, since)
        if series is not None and window[1] < series.opens_hour:
            raise BadWindow(
                f"hours {window[0]}–{window[1]} end before hour {series.opens_hour}, when the series is opened next",
                hint="no action: tenants count these weeks in that round; `openings` in provider.toml says which weeks",
            )
        owned = self._owned(self.epoch(window[0]), series.start_hour if series else window[0], window[1])
        known = self.store.leases(self._epoch_start(window[0]), window[1])
        leases = [as_owned(lease, owned) for lease in known]
        trustees, head = self._mask_trustees_of(series, earlier), self.directory.head
        plan = make_plan(
            self.settings,
            round_id,
            window,
            leases,
            trustees,
            directory=head,
            members=len(self.directory.members),
            seen=self._seen(),
            earlier=earlier,
            uncounted_since=since,
            bundle=self._published(),
        )
        if self.settings.new_mask_keys:
            check_mask_keys(plan, (reopened(Plan, kept.signed_plan) for kept in self.store.rounds.rounds()))
        self._warn_of_noise(plan)
        return plan

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

    def _epoch_start(self, hour: float) -> int:
        return self.epoch(hour) * self.settings.weeks_per_epoch * HOURS_PER_WEEK

    def new_round_id(self) -> RoundId:
        """A fresh random id for a round."""
        return RoundId(self._random_bytes(RoundId.length))

    def mask_trustees(self) -> tuple[MaskTrustee, ...]:
        """The trustees that mask: the last three of the directory, so that of five, three sign and three mask."""
        return tuple(MaskTrustee(trustee.index, trustee.mask_key) for trustee in self.directory.trustees[-MASK_SEATS:])

    def _mask_trustees_of(self, series: Series | None, earlier: Plan | None) -> tuple[MaskTrustee, ...]:
        """Those of the series that goes on, while its mask keys are held, also by successors; else those of now."""
        if series is None or not series.position or earlier is None:
            return self.mask_trustees()
        held = all(self.directory.masks(one.index, one.mask_key, goes_on=True) for one in earlier.trustees)
        return earlier.trustees if held else self.mask_trustees()

    def open_round(self, plan: Plan) -> Round:
        """Signs the plan and opens its round for contributions; LostStep where another process was faster."""
        directory = self.members.chain.at(plan.directory)
        return new_round(self.store.rounds, self._signing_key, directory, plan, self._evidence(plan), alone=True)

    def waiting(self) -> list[Round]:
        """The rounds that are neither released nor refused, oldest first: they are opened in this order."""
        ended = RoundState.RELEASED, RoundState.REFUSED
        return [self._round(kept) for kept in self.store.rounds.rounds() if kept.state not in ended]

    def _round(self, kept: KeptRound) -> Round:
        directory = self.members.chain.at(reopened(Plan, kept.signed_plan).directory)
        return Round(self.store.rounds, self._signing_key, directory, kept.signed_plan, self.directory)

    def history(self, round_: Round, trustee: int) -> list[Round]:
        """The earlier rounds of a series, oldest first, for a trustee that took its seat since the series began.

        None for one that was there: it remembers them.
        """
        rounds = [self._round(kept) for kept in past_rounds(self.store.rounds, round_.plan)]
        began = (rounds or [round_])[0].plan.directory
        then, now = self.members.chain.at(began).trustee(trustee), self.directory.trustee(trustee)
        return [] if then.verify_key == now.verify_key else [*rounds, round_]

    def unfinished(self) -> Round | None:
        """The oldest round that is neither released nor refused, if there is one."""
        return next(iter(self.waiting()), None)

    def refuse(self, round_: Round) -> list[RoundId]:
        """Ends a round without a release, and those that wait behind it in its series, which went on from it."""
        behind = [
            other
            for other in self.waiting()
            if _same_series(round_.plan, other.plan) and other.plan.position > round_.plan.position
        ]
        for ended in (*reversed(behind), round_):
            ended.refuse()
        return [round_.plan.round_id, *(other.plan.round_id for other in behind)]

    def receive(self, round_: Round, answer: bytes) -> None:
        """Stores a contribution; a bad one is logged and dropped."""
        with _dropping_bad_answers():
            round_.receive(answer)

    def unheard(self, round_: Round) -> frozenset[Digest]:
        """Contributions to earlier rounds of the series that those who answered have sent and that did not arrive."""
        return unheard(self.store.rounds, round_.plan)

    def unheard_request(self, wanted: Iterable[Digest]) -> bytes:
        """The signed question for these contributions."""
        return self._signing_key.sign(UnheardRequest(tuple(sorted(wanted))))

    def receive_late(self, wanted: Container[Digest], answer: bytes) -> None:
        """Stores contributions to earlier rounds, by the digests of their headers; a bad one is logged and dropped."""
        with _dropping_bad_answers():
            for contribution in decode(Unheard, answer).contributions:
                self._receive_late(wanted, contribution)

    def _receive_late(self, wanted: Container[Digest], contribution: bytes) -> None:
        header = decode(Contribution, contribution).header
        named = reopened(ContributionHeader, header)
        try:
            kept = self.store.rounds.get(named.round_id)
        except KeyError as error:
            raise PeerFault(f"tenant {named.tenant} sent a contribution to no round") from error
        if digest(header) in wanted and is_over(kept):
            self._round(kept).receive_late(contribution)

    def close_round(self, round_: Round) -> None:
        """Fixes the set of contributions, in random groups; CohortTooSmall while there are too few."""
        group = self._grouping(round_.plan)
        round_.close(group, past_of(self.store.rounds, round_.plan))

    def drop_refused(self, round_: Round, refusals: Sequence[MemberRefused]) -> None:
        """Drops the contribution that all trustees refuse; raises a refusal if they do not agree on one."""
        named = {refusal.what.partition(":")[0] for refusal in refusals}
        late = (header.tenant for _plan, headers in round_.late for header in headers)
        blamed = [tenant for tenant in {*round_.contributors, *late} if str(tenant) in named]
        if len(blamed) != 1 or len(named) != 1 or len(refusals) < len(round_.plan.trustees):
            raise refusals[0]
        logger.warning(
            "round %s goes on without %s", round_.plan.round_id, refusals[0].what, extra={"event": "dropped"}
        )
        round_.drop(blamed[0], self._grouping(round_.plan), past_of(self.store.rounds, round_.plan))

    def _grouping(self, plan: Plan) -> Grouping:
        def group(contributors: Sequence[TenantId]) -> Sequence[Sequence[TenantId]]:
            least = plan.cohort_minimum
            return assign(contributors, self.settings.groups, least, self.suspicion(), self._random_bytes)

        return group

    def _evidence(self, plan: Plan) -> list[bytes]:
        directory = self.members.chain.at(plan.directory)
        return evidence(plan, self._ownerships(plan.epoch, directory, plan.first_hour, plan.end_hour))

    def release(self, round_: Round) -> gate.Release:
        """Releases the sum of the groups whose counts are possible, and stores it; PoisonedRound if most are not."""
        return open_release(round_, self.store, self.suspicion())

    def left_out(self, release: gate.Release) -> int:
        """The number of contributions to a released round that do not count: their groups had impossible counts."""
        request = self.store.rounds.get(release.plan.round_id).request or b""
        return len(reopened(UnmaskRequest, request).contributors) - release.contributors

    def suspicion(self) -> TenantScores:
        """The tenants' scores after the rounds so far."""
        scores = self.store.rounds.suspicion()
        return TenantScores.from_dict(scores) if scores else TenantScores()

    def releases(self) -> list[gate.Release]:
        """All releases, oldest first."""
        return [gate.from_bytes(data) for data in self.store.releases()]

    def withdraw_ahead(self, now_hour: float) -> None:
        """Forgets rounds over weeks that have not ended, to which nobody has contributed.

        A clock that was ahead opened them, and tenants with right clocks refuse them; each week gets its round later.
        """
        for round_ in self.waiting():
            if round_.plan.end_hour > now_hour and self.store.rounds.withdraw(round_.plan.round_id):
                what = round_.plan.round_id, round_.plan.end_hour, now_hour
                logger.warning("round %s ends at hour %d, and it is hour %.1f: withdrawn", *what)

    def opens_hour(self, uncounted_since: int) -> int:
        """The end of the week after which the next round is due, if since that hour no round has counted."""
        return next_opening(self.settings, self._goes_on_from(), uncounted_since)

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

    def _goes_on_from(self) -> Plan | None:
        """The plan of the last round that waits or was released, if the next round may continue its series."""
        waiting, releases = self.waiting(), self.store.releases()
        last = gate.from_bytes(releases[-1]).plan if releases else None
        last = waiting[-1].plan if waiting else last
        return None if last is None or is_broken(self.store.rounds, last) else last

    def _seen(self) -> int:
        """How many answered in the smallest group of the last round; 0 before the first."""
        releases = self.store.releases()
        return gate.from_bytes(releases[-1]).smallest_group if releases else 0


def _may_follow(earlier: Plan, plan: Plan) -> bool:
    """Whether trustees and tenants would accept `plan` as a continuation of the series of `earlier`.

    They do not after a change of settings, nor where a row that must stay has lost owners: then a new series begins.
    """
    if plan.series is None or plan.position == 0:
        return True
    rarest = plan.rarest_row
    try:
        check_continues(earlier, plan)
    except PlanRefused:
        return False
    return rarest is None or rarest[1] >= plan.owners_minimum


def _same_series(one: Plan, other: Plan) -> bool:
    return one.series is not None and other.series is not None and one.series.name == other.series.name


@contextmanager
def _dropping_bad_answers() -> Iterator[None]:
    """Logs and drops one tenant's refusal or fault, which must not stop the round of the others."""
    try:
        yield
    except PharoahError as error:
        logger.warning("an answer was dropped: %s: %s", type(error).__name__, error.what)
