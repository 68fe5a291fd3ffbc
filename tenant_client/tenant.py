"""One tenant, as the provider's questions meet it. The order of the steps is the promise.

    check the plan against the policy → charge the ledger, durably → count → draw noise → mask → sign → keep → send

In a series a tenant answers for every week that it has not answered for, so weeks that it missed are carried over.

What is kept is what is sent: a plan is answered once, and asking again returns the same bytes, from any thread or
process. Killed before the charge, a process has done nothing; killed after it, it answers on restart without a second
charge; noise that was drawn and not kept has never left.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from crypto import noise
from crypto.accountant import plan_loss
from crypto.bundle import Bundle, CatalogueEntry
from crypto.codec import decode, digest, encode
from crypto.errors import PeerFault, PlanRefused
from crypto.ids import Digest, LeaseId, Nonce, RoundId, VerifyKey
from crypto.masking import MaskKey, MaskStream, mask_cells, words_to_bytes
from crypto.messages import (
    Contribution,
    ContributionHeader,
    DirectoryUpdate,
    GrantedLease,
    LeaseGrants,
    LeaseRequest,
    Ownership,
    Receipt,
    Registration,
    RegistrationRequest,
)
from crypto.plan import MaskTrustee, Plan, check_continues
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey, name_of, open_signed, reopened, tenant_id
from crypto.verbs import Verb
from tenant_client.database import Connection, reporting
from tenant_client.descriptor import Descriptor, rungs
from tenant_client.journal import Failure, GrantChanged, Journal, Unit, transaction
from tenant_client.ledger import Charge, Ledger
from tenant_client.outcomes import SentOutcome, noted
from tenant_client.pinned import pin, pinned
from tenant_client.policy import Policy, check_plan
from tenant_client.questions import SentQuestions, noted as noted_questions
from tenant_client.table import build_tables
from tenant_client.tokens import TokenSource
from tenant_client.trustee import TrusteeService
from transport.clock import now_hour


@dataclass(frozen=True)
class StartedLease:
    """A lease that began: its context tokens (`context`, `context_level`) and what runs on it."""

    lease: LeaseId
    start_h: float
    contexts: Mapping[str, str]
    descriptor: Descriptor


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
        self._signing_key = signing_key
        self._mask_key = mask_key
        self._connection = connection
        self.chain = pinned(connection)
        self._tokens = TokenSource(self.chain.directory, trustees, signing_key, connection, random_bytes)
        self._random_bytes = random_bytes
        self._sampler = sampler
        self._clock = clock
        self._opened: tuple[bytes, Bundle] | None = None

    def close(self) -> None:
        """Releases the database."""
        self._connection.close()

    @reporting()
    def answer(self, verb: Verb, payload: bytes) -> bytes:
        """The reply to one of the provider's questions. PharoahError when it is refused, malformed, or not kept."""
        if verb is Verb.DIRECTORY:
            return self.follow(payload)
        if verb is Verb.REGISTRATIONS:
            return self.register(payload)
        if verb is Verb.CONTRIBUTION:
            return self.contribute(payload)
        return self.accept(payload)

    def start_leases(self, leases: Sequence[StartedLease], epoch: int) -> None:
        """Journals leases that began, with the context tokens that came with them and the tokens of their workloads.

        Safe to repeat after a crash: what the provider is told is queued first, and queueing it twice changes nothing.
        Nor does a newer catalogue or descriptor: a lease is counted under the tokens that the provider is told.
        """
        catalogue = self.catalogue()
        workloads = {lease.descriptor for lease in leases}
        ladders = {workload: self._tokens.ladder(rungs(workload, catalogue), epoch) for workload in workloads}
        registered = [(lease.lease, lease.start_h, ladders[lease.descriptor]) for lease in leases]
        kept = self.journal.queue_registrations(epoch, registered)
        self.journal.label(
            Unit(str(lease.lease), lease.start_h, dict(lease.contexts) | kept[lease.lease].labels) for lease in leases
        )

    def lease_request(self, start_hour: int, end_hour: int) -> bytes:
        """The signed question for the own leases that began in [start_hour, end_hour)."""
        return self._signing_key.sign(LeaseRequest(self.id, start_hour, end_hour))

    def take_leases(self, grants: bytes) -> int:
        """Starts the granted leases whose workload is known by now; how many. PeerFault for another tenant's leases.

        A lease whose workload is not described yet is left for the next time.
        """
        granted = open_signed(LeaseGrants, grants, self._provider)
        if granted.tenant != self.id:
            raise PeerFault("the provider sent the leases of another tenant", hint="tell its operator")
        changed = self._keep_grants(grants, granted)
        known = self.journal.descriptors()
        fixed = [lease for lease in granted.leases if lease.lease not in changed]
        started = [lease for lease in fixed if str(lease.lease) in known]
        for epoch in sorted({lease.epoch for lease in started}):
            leases = [
                StartedLease(lease.lease, lease.start_h, lease.labels, known[str(lease.lease)])
                for lease in started
                if lease.epoch == epoch
            ]
            self.start_leases(leases, epoch)
        if changed:
            raise GrantChanged(f"lease {min(changed)} was granted with other tokens before")
        return len(started)

    def refused_grants(self) -> list[tuple[LeaseId, bytes, bytes]]:
        """Leases that the provider granted twice, differently: the name, and both of its signed words."""
        rows = self._connection.execute(
            "SELECT lease, first.message, other.message FROM grants_refused JOIN granted USING (lease)"
            " JOIN grants AS first ON first.digest = granted.grants"
            " JOIN grants AS other ON other.digest = grants_refused.grants ORDER BY lease"
        )
        return [(LeaseId(lease), bytes(first), bytes(other)) for lease, first, other in rows]

    def record(self, failures: Iterable[Failure]) -> None:
        """Journals failures of known leases."""
        self.journal.add([], failures)

    def follow(self, payload: bytes) -> bytes:
        """Pins newer entries of the directory; Fork, TrustChanged or BadSignature if they do not lead on from it."""
        entries = decode(DirectoryUpdate, payload).entries
        if not set(entries) <= set(self.chain.entries):
            self.chain = pin(self._connection, entries)
        return encode(Receipt(self.chain.directory.head))

    def register(self, payload: bytes) -> bytes:
        """Tells the provider which tokens run on the leases it asks about."""
        asked = open_signed(RegistrationRequest, payload, self._provider)
        workloads = self.journal.tell(asked.epoch, asked.start_hour, asked.end_hour)
        window = asked.start_hour, asked.end_hour
        owned = Ownership(self.id, asked.epoch, *window, self.journal.held(asked.epoch, *window))
        return self._signing_key.sign(Registration(self.id, asked.epoch, workloads, self._signing_key.sign(owned)))

    def contribute(self, signed_plan: bytes) -> bytes:
        """The signed contribution to a plan: the kept one if there is one, else a new one, charged and kept."""
        plan = self.open_plan(signed_plan)
        named = name_of(signed_plan)
        kept = self._kept(plan.round_id, signed_plan)
        if kept is not None:
            return kept
        check_plan(plan, self.policy, self.chain.at(plan.directory), self._clock())
        self._check_series(plan)
        self._check_bundle(plan, signed_plan)
        series = plan.series.name if plan.series else None
        start_hour, nonce = self.begins(plan), Nonce(self._random_bytes(Nonce.length))
        masks = [self._stream(plan, named, nonce, trustee) for trustee in plan.trustees]
        for mask in masks:  # a trustee whose key agrees on nothing is found out before anything is paid
            self._mask_key.stream_key(mask)
        charge = Charge(plan.round_id, named, start_hour, plan.end_hour, plan_loss(plan), series)
        self.ledger.charge(charge, limit_epsilon=self.policy.epsilon_per_job_week, delta=self.policy.delta)
        own = noise.contribution(plan, self.counts(plan), self._sampler)
        cells = words_to_bytes(mask_cells(own, self._mask_key, masks))
        header = ContributionHeader(self.id, plan.round_id, named, start_hour, nonce, digest(cells))
        said = Contribution(self._signing_key.sign(header), memoryview(cells))
        return self._keep(signed_plan, plan, encode(said))

    def open_plan(self, signed_plan: bytes) -> Plan:
        """The plan, if the pinned provider signed it."""
        return open_signed(Plan, signed_plan, self._provider)

    def begins(self, plan: Plan) -> int:
        """The hour from which an answer to `plan` counts."""
        return self.ledger.begins(plan, self.policy.carry_over_weeks_maximum)

    def counts(self, plan: Plan) -> tuple[noise.Integers, ...]:
        """The exact tables behind a contribution. They stay here; only a simulation compares them with the release."""
        failures = self.journal.failures(self.begins(plan), plan.end_hour)
        return build_tables(plan, failures, self._selection_key())

    def accept(self, signed_bundle: bytes) -> bytes:
        """Keeps a bundle whose signature holds, and older ones too; PeerFault for a second one of the same number."""
        bundle = open_signed(Bundle, signed_bundle, self._provider)
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO bundles VALUES (?, ?)", (bundle.number, signed_bundle))
            held = "SELECT message FROM bundles WHERE number = ?"
            (first,) = self._connection.execute(held, (bundle.number,)).fetchone()
        if first != signed_bundle:
            raise PeerFault(
                f"the provider signed two different bundles {bundle.number}",
                hint="the first one is used; ask the provider, and other tenants what they hold",
            )
        self._check_published(bundle.number)
        self._opened = signed_bundle, bundle
        return encode(Receipt(digest(signed_bundle)))

    def bundle(self) -> Bundle | None:
        """The newest bundle, its signature checked; None before the first."""
        row = self._connection.execute("SELECT message FROM bundles ORDER BY number DESC LIMIT 1").fetchone()
        if row is None:
            return None
        if self._opened is None or self._opened[0] != row[0]:
            self._opened = row[0], open_signed(Bundle, row[0], self._provider)
        return self._opened[1]

    def catalogue(self) -> tuple[CatalogueEntry, ...]:
        """The provider's catalogue as last published, empty before the first bundle."""
        bundle = self.bundle()
        return () if bundle is None else bundle.catalogue

    def plans(self) -> list[Plan]:
        """Every plan that was answered, oldest first."""
        rows = self._connection.execute("SELECT signed_plan FROM outbox JOIN charges USING (round_id) ORDER BY end_h")
        return [self.open_plan(signed) for (signed,) in rows]

    def sent(self, round_id: RoundId) -> bytes | None:
        """The very bytes that were sent for a round."""
        row = self._connection.execute("SELECT message FROM outbox WHERE round_id = ?", (bytes(round_id),)).fetchone()
        return None if row is None else bytes(row[0])

    def evaluations(self) -> dict[tuple[int, int], int]:
        """How many blinded elements left, answered or not, by epoch and trustee."""
        rows = self._connection.execute("SELECT epoch, trustee, elements FROM asked ORDER BY epoch, trustee")
        return {(epoch, trustee): elements for epoch, trustee, elements in rows}

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

    def _check_series(self, plan: Plan) -> None:
        """What a job-week pays for was settled by the first round of a series; a later one may not change it."""
        if plan.series is None:
            return
        if self.begins(plan) >= plan.end_hour:
            raise PlanRefused(
                f"plan {plan.round_id} refused: its weeks were answered for in another round of its series",
                hint="the answer was sent; a job-week is counted once",
            )
        for earlier in self.plans():
            if earlier.series and earlier.series.name == plan.series.name and earlier.round_id != plan.round_id:
                check_continues(earlier, plan)

    def _stream(self, plan: Plan, named: Digest, nonce: Nonce, trustee: MaskTrustee) -> MaskStream:
        own = self._mask_key.public
        return MaskStream(plan.round_id, named, self.id, own, nonce, trustee.index, trustee.mask_key)

    def _keep_grants(self, grants: bytes, granted: LeaseGrants) -> set[LeaseId]:
        """Keeps the first grant of each lease, as it was signed, and one that differs as proof; the leases of those."""
        named, changed = bytes(digest(grants)), set()
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO grants VALUES (?, ?)", (named, grants))
            for lease in granted.leases:
                first = self._first_grant(lease.lease)
                if first is None:
                    self._connection.execute("INSERT INTO granted VALUES (?, ?)", (bytes(lease.lease), named))
                elif (first.epoch, first.labels) != (lease.epoch, lease.labels):
                    self._connection.execute(
                        "INSERT OR IGNORE INTO grants_refused VALUES (?, ?)", (bytes(lease.lease), named)
                    )
                    changed.add(lease.lease)
            self._connection.execute(
                "DELETE FROM grants WHERE digest NOT IN"
                " (SELECT grants FROM granted UNION SELECT grants FROM grants_refused)"
            )
        return changed

    def _first_grant(self, lease: LeaseId) -> GrantedLease | None:
        row = self._connection.execute(
            "SELECT message FROM granted JOIN grants ON digest = grants WHERE lease = ?", (bytes(lease),)
        ).fetchone()
        if row is None:
            return None
        return next(one for one in reopened(LeaseGrants, row[0]).leases if one.lease == lease)

    def _check_bundle(self, plan: Plan, signed_plan: bytes) -> None:
        """All tenants answer one plan: one that names another bundle than is held here shows that somebody was told it.

        Whichever comes first, the plan or the bundle, is kept until the other is there.
        """
        if plan.bundle is None:
            return
        row = plan.bundle.number, bytes(plan.bundle.signed), signed_plan
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO published VALUES (?, ?, ?)", row)
            first = self._connection.execute("SELECT bundle FROM published WHERE number = ?", row[:1]).fetchone()
        if first[0] != row[1]:
            raise PeerFault(
                f"an earlier plan names another bundle {plan.bundle.number} than this one",
                hint="tenants were told different things: compare bundles with them",
            )
        self._check_published(plan.bundle.number)

    def _check_published(self, number: int) -> None:
        row = self._connection.execute(
            "SELECT bundle, message FROM published JOIN bundles USING (number) WHERE number = ?", (number,)
        ).fetchone()
        if row is not None and digest(row[1]) != row[0]:
            raise PeerFault(
                f"the plan names another bundle {number} than the provider signed for this tenant",
                hint="tenants were told different things: compare bundles with them",
            )

    def _kept(self, round_id: RoundId, signed_plan: bytes) -> bytes | None:
        query = "SELECT signed_plan, message FROM outbox WHERE round_id = ?"
        with transaction(self._connection):  # or another thread's message might be read and sent before it is kept
            row = self._connection.execute(query, (bytes(round_id),)).fetchone()
        if row is None:
            return None
        if row[0] != signed_plan:
            raise PlanRefused(f"round {round_id} was answered for another plan", hint="a new plan needs a new round id")
        return bytes(row[1])

    def _keep(self, signed_plan: bytes, plan: Plan, message: bytes) -> bytes:
        """Stores the message unless a concurrent call was first; returns what is stored: nothing else is ever sent."""
        row = bytes(plan.round_id), signed_plan, message
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO outbox VALUES (?, ?, ?)", row)
            stored = self._connection.execute("SELECT message FROM outbox WHERE round_id = ?", row[:1]).fetchone()
        return bytes(stored[0])

    def _selection_key(self) -> bytes:
        """The secret that decides which failures count; drawn once per database."""
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO secrets VALUES ('selection', ?)", (self._random_bytes(32),))
        row = self._connection.execute("SELECT value FROM secrets WHERE name = 'selection'").fetchone()
        return bytes(row[0])
