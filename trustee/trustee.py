"""A trustee: evaluates tokens with its share of the token key, and removes masks from sums of contributions.

Requests and answers are bytes, so that the same object serves in process and over a network.

- *Evaluate*: blinded elements, signed by a tenant for this trustee, metered per tenant and epoch, for epochs around
  now. A repeated request gets the same answer and is not charged again.
- *Endorse*: the provider signs one set of contributions for a round, in groups, with the headers that the tenants
  signed and the plan. The trustee, whether it masks or not, checks it and binds itself to this set, for the round and
  for its window of the epoch; another set is refused for ever. An empty set gives the round up.
- *Unmask*: needs the endorsements of all mask trustees and of a quorum of all trustees for the same set
  (`Directory.quorum`). So no two sets of a window are unmasked, also where the memory of a mask trustee is lost, and if
  the provider signed two, both signatures are kept as proof.
- A mask key serves one epoch (`trustee.places`). It is erased when the directory shows another one, and soon after the
  epoch in any case.
- *Anchor*: signs and dates the head of a tenant's journal, one line of anchors for each tenant (`trustee.anchors`).
- If its disk fails it answers nothing and raises StorageFailed.

Not promised: a trustee cannot detect that a tenant guesses descriptors within its quota. It learns which tenants own
which opaque tokens, since it counts the owners of rows.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from crypto import masking, voprf
from crypto.codec import decode, encode, first_field
from crypto.errors import (
    AlreadyAnswered,
    CohortTooSmall,
    Equivocation,
    MemberRefused,
    OutOfOrder,
    PeerFault,
    PharoahError,
    PlanRefused,
    Refusal,
    TooFewOwners,
)
from crypto.ids import Digest, EncodedElement, EncodedProof, MaskPublicKey, RoundId, TenantId
from crypto.masking import MaskStream, Words
from crypto.ristretto import Element, RandomBytes, mul_base
from crypto.signing import Signed, SigningKey, name_of, open_signed, open_signed_by
from crypto.threshold import KeyShare
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.pinned_directory import pin
from federation.base.sqlite import open_database, reporting, transaction
from federation.protocol.directory import Directory, SeatsChanged, open_of_seat
from federation.protocol.endorsed import EndorsedSet
from federation.protocol.noise import open_groups
from federation.protocol.plan import Plan
from federation.protocol.round_messages import (
    ContributionHeader,
    DirectoryUpdate,
    Endorsement,
    EvaluationRequest,
    EvaluationResponse,
    Ownership,
    Receipt,
    UnmaskCall,
    UnmaskRequest,
    UnmaskShare,
)
from federation.protocol.subjects import TOKEN_DIMENSIONS
from federation.protocol.versions import asked_in
from trustee import anchors, meter, places

_SCHEMA = """
CREATE TABLE IF NOT EXISTS directory (number INTEGER PRIMARY KEY, entry BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS endorsed (round_id BLOB PRIMARY KEY, request BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS opened (round_id BLOB PRIMARY KEY REFERENCES endorsed);
CREATE TABLE IF NOT EXISTS conflicts (round_id BLOB NOT NULL, proof BLOB NOT NULL, PRIMARY KEY (round_id, proof));
"""


class ShareOutdated(Refusal):
    """The directory shows another key for this trustee's share of the token key: seats or shares have changed since."""

    default_hint = "use the new share: `pharoah-trustee handover take`, then restart `pharoah-trustee serve`"


@dataclass(frozen=True)
class TrusteeLimits:
    """The limits of a trustee. `trustee.meter` has the meaning of those of evaluations; it needs a clock."""

    evaluations_per_epoch: int = 10_000
    evaluations_floor: int = 1_000
    cohort_minimum: int = 2
    now_hour: Callable[[], float] | None = None


class Trustee:
    """The trustee. Its database is a SQLite file; `founding` are directory entries to pin if it lacks them.

    `renewed` and `next_mask_key` are the share and the mask key that the directory shows next. One that has erased its
    mask key passes None: until then it masks in no round.
    """

    def __init__(
        self,
        share: KeyShare,
        signing_key: SigningKey,
        mask_key: masking.MaskKey | None,
        founding: Sequence[bytes],
        memory: Path,
        random_bytes: RandomBytes,
        limits: TrusteeLimits = TrusteeLimits(),
        renewed: KeyShare | None = None,
        next_mask_key: masking.MaskKey | None = None,
    ) -> None:
        self.index = share.index
        self._share = share
        self._renewed = renewed
        self._signing_key = signing_key
        self._mask_keys = {key.public: key for key in (mask_key, next_mask_key) if key}
        self._random_bytes = random_bytes
        self._limits = limits
        self._connection = open_database(memory, _SCHEMA + meter.SCHEMA + places.SCHEMA + anchors.SCHEMA)
        self._meter = meter.Meter(
            self._connection, limits.evaluations_per_epoch, limits.evaluations_floor, limits.now_hour
        )
        self._anchors = anchors.Anchors(self._connection, signing_key, share.index)
        try:
            self.chain = pin(self._connection, founding)
            self._founders = {member.tenant for member in self.chain.founding.members}
            self._meter.note_members(self.chain.directory.by_id.keys() - self._founders)
            self._renew()
        except PharoahError:
            self._connection.close()
            raise

    def close(self) -> None:
        """Releases the file."""
        self._connection.close()

    @reporting()
    def follow(self, update: bytes) -> bytes:
        """Takes newer entries of the directory; Fork, TrustChanged or BadSignature, and no change, if they are bad."""
        entries = decode(DirectoryUpdate, update).entries
        if not set(entries) <= set(self.chain.entries):
            self.chain = pin(self._connection, entries)
            self._meter.note_members(self.chain.directory.by_id.keys() - self._founders)
            self._renew()
        return encode(Receipt(self.chain.directory.head), asked_in.get())

    @reporting()
    def evaluate(self, request: bytes) -> bytes:
        """Evaluates blinded elements under this trustee's share, after charging the tenant's quota.

        Raises QuotaExceeded, EpochNotCurrent, ShareOutdated, BadSignature, PeerFault for a request to another trustee,
        or DecodeError for an element that is none.
        """
        asked = open_signed_by(EvaluationRequest, request, self.chain.directory.verify_key)
        if asked.trustee != self.index:
            raise PeerFault(
                f"this request is for trustee {asked.trustee}, not {self.index}", hint="send it to that trustee"
            )
        named = name_of(request)
        answered = self._meter.answered(named)
        if answered is not None:
            return answered
        elements = [Element.decode(element) for element in asked.elements]
        self._meter.check_epoch(asked.epoch, self.chain.directory)
        if not self._is_current(self._share):
            raise ShareOutdated(f"the directory has another share key of trustee {self.index} than this one's")
        evaluation = voprf.blind_evaluate(self._share.secret, elements, self._random_bytes)
        answers = tuple(EncodedElement(element.encoded) for element in evaluation.elements)
        answer = encode(
            EvaluationResponse(self.index, answers, EncodedProof(evaluation.proof.encode())), asked_in.get()
        )
        return self._meter.charge(asked, named, answer, self.chain.directory)

    @reporting()
    def endorse(self, request: bytes) -> bytes:
        """Binds this trustee to one set for a round; a repeated request gets the same answer.

        Raises CohortTooSmall below the plan's or this trustee's own minimum, TooFewOwners for a row that too few
        tenants own, MemberRefused for a contribution that cannot be unmasked, SeatsChanged for mask keys that the
        directory no longer shows, PlanRefused for those of another epoch or for other windows, and AlreadyAnswered for
        a second set of the round or of its window. A round is given up by an empty set, which needs no cohort.
        """
        asked, plan = self._open(request)
        if self._requested(plan.round_id) is None:
            self._check_request(asked, plan)
        self._bind(asked, plan, request)
        endorsed = EndorsedSet.of(plan, asked).name
        return self._signing_key.sign(Endorsement(self.index, plan.round_id, name_of(request), endorsed), plan.protocol)

    @reporting()
    def unmask(self, call: bytes) -> bytes:
        """Sums this trustee's masks over each group of the set that a quorum endorsed; the same when repeated.

        Raises Equivocation if a trustee endorsed another set, AlreadyAnswered if this one did, OutOfOrder without the
        endorsements of all mask trustees and of a quorum of all, PlanRefused where there is nothing to unmask or the
        mask key is erased.
        """
        told = decode(UnmaskCall, call)
        asked, plan = self._open(told.request)
        if not self._masks_in(plan):
            raise PlanRefused(f"trustee {self.index} does not mask in round {plan.round_id}")
        if not asked.groups:
            raise PlanRefused(f"round {plan.round_id} was given up: nothing of it is ever unmasked")
        named = name_of(told.request)
        if self._requested(plan.round_id) != told.request:
            raise AlreadyAnswered(f"trustee {self.index} did not endorse this set for round {plan.round_id}")
        self._check_endorsements(told, plan, named)
        key = self._key_of(plan)
        self._connection.execute("INSERT OR IGNORE INTO opened VALUES (?)", (bytes(plan.round_id),))
        sums = tuple(masking.words_to_bytes(words) for words in self._mask_sums(key, asked, plan))
        return self._signing_key.sign(UnmaskShare(self.index, plan.round_id, named, sums), plan.protocol)

    @reporting()
    def anchor(self, request: bytes) -> bytes:
        """Signs the head of a tenant's journal, dated by this trustee's clock; see `trustee.anchors`."""
        if self._limits.now_hour is None:
            raise Refusal("this trustee has no clock, so it dates nothing", hint="ask another trustee")
        at_s = int(self._limits.now_hour() * SECONDS_PER_HOUR)
        return self._anchors.sign(request, self.chain.directory, at_s)

    def evaluations(self) -> dict[tuple[TenantId, int], int]:
        """The log: how many elements each tenant had evaluated in each epoch."""
        return self._meter.evaluations()

    def rounds(self) -> list[tuple[RoundId, Digest, bool]]:
        """The log: each round that was endorsed, the digest of its one request, and whether it was unmasked."""
        rows = self._connection.execute(
            "SELECT round_id, request, opened.round_id IS NOT NULL FROM endorsed LEFT JOIN opened USING (round_id)"
            " ORDER BY endorsed.rowid"
        )
        return [(RoundId(name), name_of(request), bool(done)) for name, request, done in rows]

    def conflicts(self) -> list[tuple[RoundId, bytes]]:
        """The log: what proves that the provider told two sets for one round."""
        rows = self._connection.execute("SELECT round_id, proof FROM conflicts ORDER BY round_id, proof")
        return [(RoundId(name), bytes(proof)) for name, proof in rows]

    # ---- keys --------------------------------------------------------------------------------------------------------

    @property
    def has_mask_key(self) -> bool:
        """Whether it holds the mask key that the directory shows for it."""
        return self.chain.directory.trustee(self.index).mask_key in self._mask_keys

    def is_spent(self, mask_key: MaskPublicKey) -> bool:
        """Whether the directory replaced a mask key, or its epoch is over and the last round of that had its time."""
        end = places.spent_at(self._connection, mask_key)
        has_ended = end is not None and self._limits.now_hour is not None and self._limits.now_hour() >= end
        return has_ended or mask_key in self.chain.directory.retired

    def forget_spent(self) -> None:
        """Forgets the mask keys that have nothing left to open."""
        self._mask_keys = {public: key for public, key in self._mask_keys.items() if not self.is_spent(public)}

    def _renew(self) -> None:
        """Takes the renewed share once the directory shows its key, and forgets the one before, and spent mask keys."""
        if self._renewed is not None and self._is_current(self._renewed):
            self._share, self._renewed = self._renewed, None
        self.forget_spent()

    def _is_current(self, share: KeyShare) -> bool:
        return mul_base(share.secret).encoded == self.chain.directory.trustee(self.index).share_key

    # ---- endorsing ---------------------------------------------------------------------------------------------------

    def _open(self, request: bytes) -> tuple[UnmaskRequest, Plan]:
        provider = self.chain.directory.provider
        asked = open_signed(UnmaskRequest, request, provider)
        return asked, open_signed(Plan, asked.plan, provider)

    def _check_request(self, asked: UnmaskRequest, plan: Plan) -> None:
        plan.check_protocol("this trustee")
        directory, named = self.chain.at(plan.directory), name_of(asked.plan)
        _check_windows(plan, directory)
        if not asked.groups:
            return
        self._check_mask_keys(plan)
        needed = max(plan.cohort_minimum, self._limits.cohort_minimum)
        smallest = min(len(group) for group in asked.groups)
        if smallest < needed:
            raise CohortTooSmall(f"a group of round {plan.round_id} has {smallest} contributions, {needed} are needed")
        for signed in chain.from_iterable(asked.groups):
            self._check_contribution(signed, plan, named, directory)
        _check_owners(asked, plan, directory)

    def _check_mask_keys(self, plan: Plan) -> None:
        """Whoever holds a mask key that was replaced could take off what is under it: nothing more is put there."""
        directory = self.chain.directory
        gone = [one.index for one in plan.trustees if not directory.masks(one.index, one.mask_key)]
        if gone:
            raise SeatsChanged(
                f"round {plan.round_id} has other mask keys than the directory, of trustees {gone}",
                hint="the provider gives this round up, and its units count in the next",
            )
        if self._masks_in(plan):
            self._key_of(plan)

    def _check_contribution(self, signed: bytes, plan: Plan, named: Digest, directory: Directory) -> None:
        """MemberRefused unless a member signed this for this plan, and its mask can be made."""
        tenant = first_field(ContributionHeader, decode(Signed, signed).body)
        try:
            header = open_signed_by(ContributionHeader, signed, directory.verify_key)
            if (header.round_id, header.plan) != (plan.round_id, named):
                raise PeerFault("the contribution answers another plan")
            if self._masks_in(plan):
                key = self._key_of(plan)
                key.stream_key(self._stream(key, header, directory))
        except PharoahError as error:
            raise MemberRefused(f"{tenant}: {error.what}") from error

    def _masks_in(self, plan: Plan) -> bool:
        return self.index in {trustee.index for trustee in plan.trustees}

    def _key_of(self, plan: Plan) -> masking.MaskKey:
        """The key of its masks in a plan; PlanRefused where it is erased."""
        named = next(one.mask_key for one in plan.trustees if one.index == self.index)
        if named not in self._mask_keys:
            raise PlanRefused(
                f"trustee {self.index} has no mask key for round {plan.round_id}: it is erased after its epoch",
                hint="restart `pharoah-trustee serve` after `pharoah-trustee handover take`; without a new key, run"
                " `pharoah-trustee keys renew-mask-key` first",
            )
        return self._mask_keys[named]

    def _stream(self, key: masking.MaskKey, header: ContributionHeader, directory: Directory) -> MaskStream:
        theirs = directory.member(header.tenant).mask_key
        named = header.round_id, header.plan, header.tenant, theirs, header.nonce
        return MaskStream(*named, self.index, key.public)

    def _bind(self, asked: UnmaskRequest, plan: Plan, request: bytes) -> None:
        name = bytes(plan.round_id)
        with transaction(self._connection):
            if asked.groups:
                places.check_mask_keys(self._connection, plan)
            first = places.take(self._connection, plan)
            if first == plan.round_id:
                self._connection.execute("INSERT OR IGNORE INTO endorsed VALUES (?, ?)", (name, request))
            bound = self._requested(first)
            if bound != request and asked.groups:  # to give up a round that another trustee endorsed is no fault
                self._connection.execute("INSERT OR IGNORE INTO conflicts VALUES (?, ?)", (name, request))
        if bound != request:
            raise AlreadyAnswered(
                f"trustee {self.index} endorsed another set for round {plan.round_id}, or for its window"
            )

    def _requested(self, round_id: RoundId) -> bytes | None:
        row = self._connection.execute("SELECT request FROM endorsed WHERE round_id = ?", (bytes(round_id),)).fetchone()
        return None if row is None else bytes(row[0])

    # ---- unmasking ---------------------------------------------------------------------------------------------------

    def _check_endorsements(self, told: UnmaskCall, plan: Plan, named: Digest) -> None:
        directory = self.chain.at(plan.directory)  # later ones may have other trustees
        endorsers = set()
        for signed in told.endorsements:
            index = first_field(Endorsement, decode(Signed, signed).body)
            word = open_of_seat(Endorsement, signed, index, directory, self.chain.directory)
            if word.round_id == plan.round_id and word.request != named:
                self._note_conflict(plan, signed)
                raise Equivocation(
                    f"trustee {index} endorsed another set for round {plan.round_id}, signed by the provider"
                )
            if word.round_id == plan.round_id:
                endorsers.add(index)
        missing = sorted({trustee.index for trustee in plan.trustees} - endorsers)
        if missing:
            raise OutOfOrder(
                f"round {plan.round_id} lacks the endorsements of trustees {missing}", hint="get them first"
            )
        if len(endorsers) < directory.quorum:
            raise OutOfOrder(
                f"round {plan.round_id} has endorsements of {len(endorsers)} trustees, {directory.quorum} are needed",
                hint="get more first",
            )

    def _note_conflict(self, plan: Plan, proof: bytes) -> None:
        with transaction(self._connection):
            row = bytes(plan.round_id), proof
            self._connection.execute("INSERT OR IGNORE INTO conflicts VALUES (?, ?)", row)

    def _mask_sums(self, key: masking.MaskKey, asked: UnmaskRequest, plan: Plan) -> list[Words]:
        sums = [self._sum(key, group, plan) for group in asked.headers]
        return open_groups(plan, sums, min(len(group) for group in asked.groups))

    def _sum(self, key: masking.MaskKey, headers: Sequence[ContributionHeader], plan: Plan) -> Words:
        directory = self.chain.at(plan.directory)
        streams = (self._stream(key, header, directory) for header in headers)
        return masking.sum_of_masks(key, streams, plan.words)


def _check_windows(plan: Plan, directory: Directory) -> None:
    """PlanRefused unless the windows of the plan lie in its epoch: else an hour might be in windows of two epochs."""
    if {directory.epoch(plan.windows[0]), directory.epoch(plan.windows[-1] - 1)} != {plan.epoch}:
        raise PlanRefused(
            f"round {plan.round_id} has windows outside of epoch {plan.epoch}",
            hint="weeks_per_epoch is that of the directory, whatever the provider's settings say",
        )


def _check_owners(asked: UnmaskRequest, plan: Plan, directory: Directory) -> None:
    """Every token row is held, by the signed word of its owners, by as many tenants as the plan promises.

    A word counts that speaks of leases in the hours that the round may count: of its epoch, up to its window.
    """
    owners: Counter[str] = Counter()
    seen = set()
    for signed in asked.ownerships:
        said = open_signed_by(Ownership, signed, directory.verify_key)
        is_of_round = said.epoch == plan.epoch and plan.first_hour < said.end_hour <= plan.end_hour
        if is_of_round and said.tenant not in seen:
            seen.add(said.tenant)
            owners.update(str(token) for token in said.tokens)
    for dimension in plan.dimensions:
        for level in dimension.levels if dimension.name in TOKEN_DIMENSIONS else ():
            if owners[level] < plan.owners_minimum:
                raise TooFewOwners(
                    f"round {plan.round_id}: {owners[level]} tenants own row {dimension.name}: {level},"
                    f" {plan.owners_minimum} are needed"
                )
