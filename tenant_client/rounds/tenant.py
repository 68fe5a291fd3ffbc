"""A tenant's answers to the provider's queries. The order of the steps protects the budget.

    check the plan against the policy → charge the ledger, durably → count → draw noise → mask → sign → keep → send

- An answer counts the plan's window, and windows just before it of which an endorsed set shows that they were not
  counted (`federation.protocol.endorsed`). Those pay again and were given back: each unit pays for one opened round.
- A plan is answered once; repeated queries return the same stored bytes, from any thread or process.
- A process that is killed before the charge has done nothing; killed after it, it answers on restart without a second
  charge. Noise that was drawn and not stored has never left.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from crypto.codec import decode, digest, encode
from crypto.errors import PeerFault, PlanRefused, Refusal
from crypto.ids import Digest, LeaseId, Nonce, Token, VerifyKey
from crypto.masking import MaskKey, MaskStream, mask_cells, words_to_bytes
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey, name_of, open_signed, tenant_id
from federation.base.clock import now_hour
from federation.base.pinned_directory import pin, pinned
from federation.base.sqlite import Connection, reporting, transaction
from federation.protocol import noise
from federation.protocol.bundle import Bundle, CatalogueEntry
from federation.protocol.directory import SeatsChanged
from federation.protocol.endorsed import EndedRounds, EndorsedSet, check_ended, uncounted_since
from federation.protocol.plan import MaskTrustee, Plan, served_before
from federation.protocol.queries import Query
from federation.protocol.round_messages import (
    Contribution,
    ContributionHeader,
    DirectoryUpdate,
    LeaseGrants,
    LeaseRequest,
    Ownership,
    Receipt,
    Registration,
    RegistrationRequest,
)
from federation.protocol.round_record import opened_record
from federation.protocol.subjects import Subject
from federation.protocol.versions import OLDEST, asked_in
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.database import selection_key
from tenant_client.doctor.records.endorsed_sets import EndorsedSets, waited_since
from tenant_client.doctor.records.grant_log import GrantLog
from tenant_client.doctor.records.journal import Failure, GrantChanged, Journal, Unit
from tenant_client.doctor.records.ledger import Charge, Ledger
from tenant_client.doctor.records.outbox import Outbox
from tenant_client.doctor.records.outcomes import SentOutcome, noted
from tenant_client.doctor.records.questions import SentQuestions, noted as noted_questions
from tenant_client.doctor.records.votes import Votes
from tenant_client.doctor.records.warned_sums import WarnedSums
from tenant_client.doctor.workload.descriptor import Descriptor, rungs
from tenant_client.rounds.counts import build_tables
from tenant_client.rounds.observed import observed
from tenant_client.rounds.policy import Policy, check_plan
from tenant_client.rounds.tokens import TokenSource, TrusteeService


@dataclass(frozen=True)
class StartedLease:
    """A lease that began: its context tokens (`context`, `context_level`) and what runs on it; 0 nodes: unknown."""

    lease: LeaseId
    start_h: float
    contexts: Mapping[str, str]
    descriptor: Descriptor
    nodes: int = 0


class Tenant:
    """A tenant's keys, policy and database, in which the directory of the federation is pinned."""

    def __init__(
        self,
        signing_key: SigningKey,
        mask_key: MaskKey,
        policy: Policy,
        connection: Connection,
        trustees: Sequence[TrusteeService],
        random_bytes: RandomBytes,
        sampler: noise.NoiseSampler,
        clock: Callable[[], float] = now_hour,
    ) -> None:
        self.id = tenant_id(signing_key.public)
        self.policy = policy
        self.journal = Journal(connection)
        self.ledger = Ledger(connection)
        self.outbox = Outbox(connection)
        self.endorsed = EndorsedSets(connection)
        self.grants = GrantLog(connection)
        self.votes = Votes(connection)
        self.warned = WarnedSums(connection)
        self._bundles = BundleLog(connection)
        self._signing_key = signing_key
        self._mask_key = mask_key
        self._connection = connection
        self.chain = pinned(connection)
        self.tokens = TokenSource(self.chain.directory, trustees, signing_key, connection, random_bytes)
        self._random_bytes = random_bytes
        self._sampler = sampler
        self._clock = clock
        self._opened: tuple[bytes, Bundle] | None = None

    def close(self) -> None:
        """Releases the database."""
        self._connection.close()

    @reporting()
    def answer(self, verb: Query, payload: bytes) -> bytes:
        """The reply to one of the provider's questions. PharoahError when it is refused, malformed, or not kept."""
        if verb is Query.DIRECTORY:
            return self.follow(payload)
        if verb is Query.ENDED:
            return self.end(payload)
        if verb is Query.REGISTRATIONS:
            return self.register(payload)
        if verb is Query.CONTRIBUTION:
            return self.contribute(payload)
        if verb is Query.RECORD:
            return self.take_record(payload)
        return self.accept(payload)

    def start_leases(self, leases: Sequence[StartedLease], epoch: int) -> None:
        """Journals leases that began, with the context tokens that came with them and the tokens of their workloads.

        Safe to repeat after a crash: what the provider is told is queued first, and queueing it twice changes nothing.
        Nor does a newer catalogue or descriptor: a lease is counted under the tokens that the provider is told.
        """
        catalogue = self.catalogue()
        workloads = {lease.descriptor for lease in leases}
        ladders = {workload: self.tokens.ladder(rungs(workload, catalogue), epoch) for workload in workloads}
        registered = [(lease.lease, lease.start_h, ladders[lease.descriptor]) for lease in leases]
        kept = self.journal.queue_registrations(epoch, registered)
        if self.policy.link_epochs:
            before = {one: self.tokens.known_ladder(rungs(one, catalogue), epoch - 1) for one in workloads}
            self.journal.link(epoch, [(old, ladders[one]) for one, old in before.items() if old is not None])
        self.journal.label(
            Unit(str(lease.lease), lease.start_h, dict(lease.contexts) | kept[lease.lease].labels) for lease in leases
        )
        self.journal.size((str(lease.lease), lease.nodes) for lease in leases if lease.nodes)

    def lease_request(self, start_hour: int, end_hour: int, protocol: int = OLDEST) -> bytes:
        """The signed question for the own leases that began in [start_hour, end_hour)."""
        return self._signing_key.sign(LeaseRequest(self.id, start_hour, end_hour), protocol)

    def waiting_since(self, end_hour: int) -> float | None:
        """The hour at which the first described lease began that still lacks its tokens, if before `end_hour`."""
        known = self.journal.descriptors()
        waiting = (unit.start_h for unit in self.journal.units() if not unit.labels and unit.unit in known)
        return min((start_h for start_h in waiting if start_h < end_hour), default=None)

    def take_leases(self, grants: bytes) -> int:
        """Starts the granted leases whose workload is known by now; how many. PeerFault for another tenant's leases.

        A lease whose workload is not described yet is left for the next time.
        """
        granted = open_signed(LeaseGrants, grants, self._provider)
        if granted.tenant != self.id:
            raise PeerFault("the provider sent the leases of another tenant", hint="inform the provider's operator")
        changed = self.grants.keep(grants, granted)
        known = self.journal.descriptors()
        fixed = [lease for lease in granted.leases if lease.lease not in changed]
        started = [lease for lease in fixed if str(lease.lease) in known]
        for epoch in sorted({lease.epoch for lease in started}):
            leases = [
                StartedLease(lease.lease, lease.start_h, lease.labels, known[str(lease.lease)], lease.nodes)
                for lease in started
                if lease.epoch == epoch
            ]
            self.start_leases(leases, epoch)
        if changed:
            raise GrantChanged(f"lease {min(changed)} was granted before with other tokens")
        return len(started)

    def record(self, failures: Iterable[Failure]) -> None:
        """Journals failures of known leases."""
        self.journal.add([], failures)

    def follow(self, payload: bytes) -> bytes:
        """Pins newer entries of the directory; Fork, TrustChanged or BadSignature if they do not lead on from it."""
        entries = decode(DirectoryUpdate, payload).entries
        if not set(entries) <= set(self.chain.entries):
            self.chain = pin(self._connection, entries)
            self.tokens.follow(self.chain.directory)
        return encode(Receipt(self.chain.directory.head), asked_in.get())

    def register(self, payload: bytes) -> bytes:
        """Tells the provider which tokens run on the leases it asks about."""
        asked = open_signed(RegistrationRequest, payload, self._provider)
        workloads = self.journal.tell(asked.epoch, asked.start_hour, asked.end_hour)
        window = asked.start_hour, asked.end_hour
        owned = Ownership(self.id, asked.epoch, *window, self._held(asked.epoch, *window))
        links = self.journal.links(asked.epoch) if self.policy.link_epochs else ()
        ownership = self._signing_key.sign(owned, asked_in.get())
        said = Registration(self.id, asked.epoch, workloads, ownership, links)
        return self._signing_key.sign(said, asked_in.get())

    def _held(self, epoch: int, start_h: float, end_h: float) -> tuple[Token, ...]:
        """The tokens of what the provider was told of; of parts too, if votes may be counted."""
        held = set(self.journal.held(epoch, start_h, end_h))
        if "part" in self.policy.dimensions:
            told = [lease for lease, of, start, _ in self.journal.told() if of == epoch and start_h <= start < end_h]
            parts = {token for lease in told for tokens in self.grants.parts(str(lease)).values() for token in tokens}
            held |= {Token(bytes.fromhex(token)) for token in parts}
        return tuple(sorted(held))

    def end(self, payload: bytes) -> bytes:
        """Keeps who was counted in rounds that are over, and settles the ledger by it.

        PeerFault, and nothing is kept, for a set that too few trustees endorsed. Equivocation, and both are kept, for a
        second one of a window.
        """
        rounds = decode(EndedRounds, payload).rounds
        for one in rounds:
            check_ended(one, self.chain)
        with transaction(self._connection):
            self.endorsed.keep(rounds)
            self._settle(self.endorsed.sets())
        self.endorsed.refuse_two({one.endorsed.epoch for one in rounds})
        return encode(Receipt(digest(payload)), asked_in.get())

    def _settle(self, sets: Sequence[EndorsedSet]) -> None:
        for one in sets:
            if self.id not in one.tenants:
                self.ledger.give_back(one.round_id, one)
            else:
                self.ledger.remember(one, waited_since(one, sets, self.id), self.policy.epsilon_per_window)

    def contribute(self, signed_plan: bytes) -> bytes:
        """The signed contribution to a plan: the kept one if there is one, else a new one, charged and kept.

        Why a plan is refused is kept too, for `status`.
        """
        plan = self.open_plan(signed_plan)
        try:
            return self._contribute(plan, signed_plan)
        except Refusal as refusal:
            self.outbox.refuse(plan, refusal)
            raise

    def _contribute(self, plan: Plan, signed_plan: bytes) -> bytes:
        named = name_of(signed_plan)
        kept = self.outbox.answer(plan.round_id, signed_plan)
        if kept is not None:
            return kept
        self._check(plan)
        if plan.bundle is not None:  # one that names another than is held here shows that somebody was told it
            self._bundles.keep_name(plan.bundle, signed_plan)
        start_hour, nonce = self.begins(plan), Nonce(self._random_bytes(Nonce.length))
        masks = [self._stream(plan, named, nonce, trustee) for trustee in plan.trustees]
        for mask in masks:  # one whose key agrees on nothing is found out before anything is paid
            self._mask_key.stream_key(mask)
        charge = Charge.of(plan, named, start_hour)
        self.ledger.charge(charge, plan, limit_epsilon=self.policy.epsilon_per_window, delta=self.policy.delta)
        if plan.counts(Subject.WARNINGS):
            self.warned.expect(plan.start_hour)
        own = noise.contribution(plan, self.counts(plan), self._sampler)
        cells = words_to_bytes(mask_cells(own, self._mask_key, masks))
        header = ContributionHeader(self.id, plan.round_id, named, self.begins(plan), nonce, digest(cells))
        said = Contribution(self._signing_key.sign(header, plan.protocol), memoryview(cells))
        return self.outbox.keep(plan.round_id, signed_plan, encode(said, plan.protocol))

    def _check(self, plan: Plan) -> None:
        """Refuses what the policy does not allow, and what endorsed sets or a change of seats have overtaken."""
        plan.check_protocol("this tenant")
        check_plan(plan, self.policy, self.chain.at(plan.directory), self._clock(), self.members_seen())
        if not self.chain.has_same_seats(plan.directory):
            raise SeatsChanged(f"plan {plan.round_id} refused: seats of trustees changed after its directory entry")
        if old := served_before(plan, map(self.open_plan, self.outbox.signed_plans())):
            raise PlanRefused(
                f"plan {plan.round_id} refused: mask keys of trustees {old} served another epoch",
                hint="the trustees make new ones (`pharoah-trustee keys renew-mask-key`), and the provider reseats",
            )
        self.endorsed.refuse_two({plan.epoch})
        self.endorsed.refuse_over(plan)

    def members_seen(self) -> int:
        """How many members the directory of the last answered round had; before the first, that of the enrolment."""
        answered = self.outbox.signed_plans()
        if answered:
            return len(self.chain.at(self.open_plan(answered[-1]).directory).members)
        own = (directory for directory in self.chain.directories if self.id in directory.by_id)
        return len(next(own, self.chain.directory).members)

    def open_plan(self, signed_plan: bytes) -> Plan:
        """The plan, if the pinned provider signed it."""
        return open_signed(Plan, signed_plan, self._provider)

    def begins(self, plan: Plan) -> int:
        """The hour from which an answer to `plan` counts; once it is charged, it stays the same."""
        charged = self.ledger.charged_from(plan.round_id)
        return uncounted_since(plan, self.endorsed.sets(), self.id) if charged is None else charged

    def counts(self, plan: Plan) -> tuple[noise.Integers, ...]:
        """The exact tables behind a contribution. They stay here; only a simulation compares them with the release."""
        window, most_h = (self.begins(plan), plan.end_hour), self.policy.lease_hours_maximum or math.inf
        key = selection_key(self._connection, self._random_bytes)
        failures = [one for one in self.journal.failures(*window) if one.failure.age_h <= most_h]
        return build_tables(plan, failures, key, observed(self._connection, plan, *window, most_h))

    def take_record(self, record: bytes) -> bytes:
        """Keeps what the sum of a round says of warnings; PeerFault and the like for a record that proves none."""
        proven = opened_record(record, self.chain).warned
        if proven is not None:
            self.warned.keep(proven)
        return encode(Receipt(digest(record)), asked_in.get())

    def accept(self, signed_bundle: bytes) -> bytes:
        """Keeps a bundle whose signature holds, and older ones too; PeerFault for a second one of the same number."""
        bundle = open_signed(Bundle, signed_bundle, self._provider)
        self._bundles.keep(bundle.number, signed_bundle)
        self._opened = signed_bundle, bundle
        return encode(Receipt(digest(signed_bundle)), asked_in.get())

    def bundle(self) -> Bundle | None:
        """The newest bundle, its signature checked; None before the first."""
        signed = self._bundles.newest()
        if signed is None:
            return None
        if self._opened is None or self._opened[0] != signed:
            self._opened = signed, open_signed(Bundle, signed, self._provider)
        return self._opened[1]

    def catalogue(self) -> tuple[CatalogueEntry, ...]:
        """The provider's catalogue as last published, empty before the first bundle."""
        bundle = self.bundle()
        return () if bundle is None else bundle.catalogue

    def plans(self) -> list[Plan]:
        """Every plan that was answered, oldest first."""
        return [self.open_plan(signed) for signed in self.outbox.signed_plans()]

    def outcomes(self) -> list[SentOutcome]:
        """What the provider was told of tests, or may have been, oldest first."""
        return noted(self._connection)

    def questions(self) -> list[SentQuestions]:
        """What the provider's online service was asked, or may have been, by hour."""
        return noted_questions(self._connection)

    @property
    def _provider(self) -> VerifyKey:
        provider: VerifyKey = self.chain.directory.provider
        return provider

    def _stream(self, plan: Plan, named: Digest, nonce: Nonce, trustee: MaskTrustee) -> MaskStream:
        own = self._mask_key.public
        return MaskStream(plan.round_id, named, self.id, own, nonce, trustee.index, trustee.mask_key)
