"""A trustee: evaluates tokens with its share of the token key, and removes masks from sums of contributions.

Requests and answers are bytes, so that the same object serves in process and over a network.

- *Evaluate*: blinded elements, signed by a tenant for this trustee, metered per tenant and epoch, for epochs around
  now. A repeated request gets the same answer and is not charged again.
- *Endorse*: the provider signs one set of contributions for a round, in groups, with the headers that the tenants
  signed and the plan. The trustee, whether it masks or not, checks it and binds itself to this set, for the round and
  for its place in its series; another set is refused for ever.
- *Unmask*: needs the endorsements of all mask trustees and of a quorum of all trustees for the same set
  (`Directory.quorum`). So no two sets of a round or of a place are unmasked, also where the memory of a mask trustee
  is lost, and if the provider signed two, both signatures are kept as proof.
- In a series (`crypto.continual_counting`) a trustee removes the mask of this week's noise and of the weighted sum of
  the weeks so far, never of a single week. It knows the earlier weeks and sets from its own database.
- A contribution that came too late for its round counts in a later one of its series, once: its counts, not its noise.
- *Anchor*: signs and dates the head of a tenant's journal, one line of anchors for each tenant (`trustee.anchors`).
- If its disk fails it answers nothing and raises StorageFailed.

Not promised: a trustee cannot detect that a tenant guesses descriptors within its quota. It learns which tenants own
which opaque tokens, since it counts the owners of rows.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from crypto import masking, voprf
from crypto.codec import decode, digest, encode, first_field
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
from crypto.signing import Signed, SigningKey, name_of, open_signed, open_signed_by, reopened
from crypto.threshold import KeyShare
from federation.protocol.directory import Directory, open_of_seat
from federation.protocol.life_table import embed
from federation.protocol.noise import open_groups
from federation.protocol.plan import Plan, check_continues
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
from federation.runtime.clock import SECONDS_PER_HOUR
from federation.runtime.pinned_directory import pin
from federation.runtime.sqlite import Connection, reporting, transaction
from trustee import anchors, kept_sums, meter, places
from trustee.new_epochs import check_new_epoch

_SCHEMA = """
CREATE TABLE IF NOT EXISTS directory (number INTEGER PRIMARY KEY, entry BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS endorsed (round_id BLOB PRIMARY KEY, series BLOB, request BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS opened (round_id BLOB PRIMARY KEY REFERENCES endorsed, number INTEGER NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS conflicts (round_id BLOB NOT NULL, proof BLOB NOT NULL, PRIMARY KEY (round_id, proof));
"""


class ShareOutdated(Refusal):
    """The directory shows another key for this trustee's share of the token key: seats or shares have changed since."""

    default_hint = "use the new share: `pharoah-trustee take-over`, then restart `serve`"


@dataclass(frozen=True)
class TrusteeLimits:
    """The limits of a trustee. `trustee.meter` has the meaning of those of evaluations; it needs a clock.

    With `deposits`, which tells what mask trustees left here, a new epoch needs new mask keys that are left here.
    """

    evaluations_per_epoch: int = 10_000
    evaluations_floor: int = 1_000
    cohort_minimum: int = 2
    now_hour: Callable[[], float] | None = None
    deposits: Callable[[], Sequence[bytes]] | None = None


class _OpenedRound(NamedTuple):
    """A round that was unmasked here: the name of its request, and its plan."""

    request: Digest
    plan: Plan

    @classmethod
    def of(cls, request: bytes) -> Self:
        """The round of a request that was verified when it was endorsed; all but the plan in it is not decoded."""
        plan = first_field(UnmaskRequest, decode(Signed, request).body)
        return cls(name_of(request), reopened(Plan, plan))


class Trustee:
    """The trustee. Its database is a SQLite file; `founding` are directory entries to pin if it lacks them."""

    def __init__(
        self,
        share: KeyShare,
        signing_key: SigningKey,
        mask_key: masking.MaskKey,
        founding: Sequence[bytes],
        memory: Path,
        random_bytes: RandomBytes,
        limits: TrusteeLimits = TrusteeLimits(),
        renewed: KeyShare | None = None,
        other_mask_keys: Sequence[masking.MaskKey] = (),
    ) -> None:
        self.index = share.index
        self._share = share
        self._renewed = renewed
        self._signing_key = signing_key
        self._mask_key = mask_key
        self._mask_keys = {key.public: key for key in (mask_key, *other_mask_keys)}
        self._random_bytes = random_bytes
        self._limits = limits
        self._connection = Connection(str(memory))
        self._connection.executescript(_SCHEMA + meter.SCHEMA + kept_sums.SCHEMA + places.SCHEMA + anchors.SCHEMA)
        self._meter = meter.Meter(
            self._connection, limits.evaluations_per_epoch, limits.evaluations_floor, limits.now_hour
        )
        self._anchors = anchors.Anchors(self._connection, signing_key, share.index)
        self._kept_sums = kept_sums.KeptSums(self._connection, mask_key, random_bytes)
        try:
            self.chain = pin(self._connection, founding)
            self._founders = {member.tenant for member in self.chain.founding.members}
            self._meter.note_members(self.chain.directory.by_id.keys() - self._founders)
            self._renew_share()
            self._forget_spent()
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
            self._renew_share()
        return encode(Receipt(self.chain.directory.head))

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
        answer = encode(EvaluationResponse(self.index, answers, EncodedProof(evaluation.proof.encode())))
        return self._meter.charge(asked, named, answer, self.chain.directory)

    @reporting()
    def endorse(self, request: bytes) -> bytes:
        """Binds this trustee to one set for a round; a repeated request gets the same answer.

        Raises CohortTooSmall below the plan's or this trustee's own minimum, TooFewOwners for a row that too few
        tenants own, MemberRefused for a contribution that cannot be unmasked, OutOfOrder within a series, PlanRefused,
        NotInCustody where a new epoch lacks deposits, and AlreadyAnswered for a second set of the round or of its place
        in its series.
        """
        asked, plan = self._open(request)
        if self._requested(plan.round_id) is None:
            self._check_request(asked, plan)
        self._bind(plan, request)
        named = name_of(request)
        return self._signing_key.sign(Endorsement(self.index, plan.round_id, named))

    @reporting()
    def unmask(self, call: bytes) -> bytes:
        """Sums this trustee's masks over each group of the set that a quorum endorsed; the same when repeated.

        Raises Equivocation if a trustee endorsed another set, AlreadyAnswered if this one did, OutOfOrder without the
        endorsements of all mask trustees and of a quorum of all.
        """
        told = decode(UnmaskCall, call)
        asked, plan = self._open(told.request)
        if not self._masks_in(plan):
            raise PlanRefused(f"trustee {self.index} does not mask in round {plan.round_id}")
        named = name_of(told.request)
        if self._requested(plan.round_id) != told.request:
            raise AlreadyAnswered(f"trustee {self.index} did not endorse this set for round {plan.round_id}")
        self._check_endorsements(told, plan, named)
        with transaction(self._connection):  # or two rounds might take one place in their series
            self._check_order(asked, plan)
            self._note_opened(plan)
        sums = tuple(masking.words_to_bytes(words) for words in self._mask_sums(asked, plan))
        self._forget_spent()
        return self._signing_key.sign(UnmaskShare(self.index, plan.round_id, named, sums))

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
            "SELECT round_id, request, number IS NOT NULL FROM endorsed LEFT JOIN opened USING (round_id)"
            " ORDER BY endorsed.rowid"
        )
        return [(RoundId(name), name_of(request), bool(done)) for name, request, done in rows]

    def conflicts(self) -> list[tuple[RoundId, bytes]]:
        """The log: what proves that the provider told two sets for one round."""
        rows = self._connection.execute("SELECT round_id, proof FROM conflicts ORDER BY round_id, proof")
        return [(RoundId(name), bytes(proof)) for name, proof in rows]

    # ---- shares ------------------------------------------------------------------------------------------------------

    def _renew_share(self) -> None:
        """Takes the renewed share once the directory shows its key, and forgets the one before."""
        if self._renewed is not None and self._is_current(self._renewed):
            self._share, self._renewed = self._renewed, None

    def _is_current(self, share: KeyShare) -> bool:
        return mul_base(share.secret).encoded == self.chain.directory.trustee(self.index).share_key

    # ---- endorsing ---------------------------------------------------------------------------------------------------

    def _open(self, request: bytes) -> tuple[UnmaskRequest, Plan]:
        provider = self.chain.directory.provider
        asked = open_signed(UnmaskRequest, request, provider)
        return asked, open_signed(Plan, asked.plan, provider)

    def _check_request(self, asked: UnmaskRequest, plan: Plan) -> None:
        directory = self.chain.at(plan.directory)
        self._key_of(plan)
        needed = max(plan.cohort_minimum, self._limits.cohort_minimum)
        smallest = min(len(group) for group in asked.groups)
        if smallest < needed:
            raise CohortTooSmall(f"a group of round {plan.round_id} has {smallest} contributions, {needed} are needed")
        for signed in chain.from_iterable(asked.groups):
            self._check_contribution(signed, plan, directory)
        _check_owners(asked, plan, directory)
        if self._limits.deposits is not None:
            check_new_epoch(plan, self._endorsed_plans(), directory, self.index, self._limits.deposits())
        if self._masks_in(plan):  # who does not opens nothing, and knows no order
            self._check_order(asked, plan)
            self._check_late(asked, plan)

    def _check_contribution(self, signed: bytes, plan: Plan, directory: Directory) -> None:
        """MemberRefused unless a member signed this for this plan, and its mask can be made."""
        tenant = first_field(ContributionHeader, decode(Signed, signed).body)
        try:
            header = open_signed_by(ContributionHeader, signed, directory.verify_key)
            if (header.round_id, header.plan) != (plan.round_id, digest(encode(plan))):
                raise PeerFault("the contribution answers another plan")
            self._key_of(plan).stream_key(self._stream(header, plan, directory))
        except PharoahError as error:
            raise MemberRefused(f"{tenant}: {error.what}") from error

    def _check_late(self, asked: UnmaskRequest, plan: Plan) -> None:
        """Each late contribution answers an earlier plan of the series, and was opened in no round of it.

        A tenant's answer to a plan is opened once, whatever it says: so each job-week counts once.
        """
        if not asked.late:
            return
        opened = self._contributions_opened_before(plan)
        for late in asked.late:
            before = open_signed(Plan, late.plan, self.chain.directory.provider)
            check_continues(before, plan)
            directory = self.chain.at(before.directory)
            for signed, header in zip(late.contributions, late.headers, strict=True):
                self._check_contribution(signed, before, directory)
                if (header.round_id, header.tenant) in opened:
                    raise MemberRefused(f"{header.tenant}: its answer to round {header.round_id} was opened before")

    def _contributions_opened_before(self, plan: Plan) -> set[tuple[RoundId, TenantId]]:
        requests = [self._open(self._requested(before.plan.round_id) or b"")[0] for before in self._opened_before(plan)]
        groups = chain.from_iterable((*asked.headers, *(late.headers for late in asked.late)) for asked in requests)
        return {(header.round_id, header.tenant) for header in chain.from_iterable(groups)}

    @property
    def holds_former(self) -> bool:
        """Whether it holds a mask key of before the last change of seats: not after the series of that key."""
        return any(self._is_former(key) for key in self._mask_keys)

    def _is_former(self, key: MaskPublicKey) -> bool:
        """Whether a key is of before, its predecessor's or its own, as the directory tells; one to come is not."""
        directory = self.chain.directory
        return key != directory.trustee(self.index).mask_key and (self.index, key) in directory.kept_mask_keys

    def _forget_spent(self) -> None:
        """Forgets a key of before once a round was opened under the directory's: the series before is over."""
        last = self._connection.execute(
            "SELECT request FROM endorsed JOIN opened USING (round_id) ORDER BY number DESC LIMIT 1"
        ).fetchone()
        current = self.chain.directory.trustee(self.index).mask_key
        if last is not None and self._masks_under(_OpenedRound.of(bytes(last[0])).plan) == current:
            self._mask_keys = {public: key for public, key in self._mask_keys.items() if not self._is_former(public)}

    def _key_of(self, plan: Plan) -> masking.MaskKey:
        """The key of the plan's masks: a series goes on under the key that it began with."""
        own = self._masks_under(plan)
        if own not in self._mask_keys:
            raise PlanRefused(f"round {plan.round_id} has another mask key of trustee {self.index}")
        return self._mask_keys[own]

    def _masks_in(self, plan: Plan) -> bool:
        return self.index in {trustee.index for trustee in plan.trustees}

    def _masks_under(self, plan: Plan) -> MaskPublicKey:
        """The mask key that the plan names for this trustee; its own where it does not mask."""
        return next((one.mask_key for one in plan.trustees if one.index == self.index), self._mask_key.public)

    def _stream(self, header: ContributionHeader, plan: Plan, directory: Directory) -> MaskStream:
        theirs, own = directory.member(header.tenant).mask_key, self._key_of(plan).public
        named = header.round_id, header.plan, header.tenant, theirs, header.nonce
        return MaskStream(*named, self.index, own)

    def _check_order(self, asked: UnmaskRequest, plan: Plan) -> None:
        """The rounds of a series are opened one after the other, and every trustee has opened the same ones."""
        before = self._opened_before(plan)
        last = before[-1] if before else None
        if asked.after != (last and last.request) or plan.position != len(before):
            raise OutOfOrder(f"round {plan.round_id} does not follow the {len(before)} opened rounds of its series")
        if last is not None:
            check_continues(last.plan, plan)

    def _bind(self, plan: Plan, request: bytes) -> None:
        name = bytes(plan.round_id)
        series = bytes(plan.series.name) if plan.series else None
        with transaction(self._connection):
            first = places.take(self._connection, plan)
            if first == plan.round_id:
                self._connection.execute("INSERT OR IGNORE INTO endorsed VALUES (?, ?, ?)", (name, series, request))
            bound = self._requested(first)
            if bound != request:
                self._connection.execute("INSERT OR IGNORE INTO conflicts VALUES (?, ?)", (name, request))
        if bound != request:
            raise AlreadyAnswered(
                f"trustee {self.index} endorsed another set for round {plan.round_id}, or at its place in its series"
            )

    def _endorsed_plans(self) -> Iterator[Plan]:
        for (request,) in self._connection.execute("SELECT request FROM endorsed"):
            yield _OpenedRound.of(bytes(request)).plan

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

    def _note_opened(self, plan: Plan) -> None:
        self._connection.execute(
            "INSERT OR IGNORE INTO opened SELECT ?, coalesce(max(number), 0) + 1 FROM opened",
            (bytes(plan.round_id),),
        )

    def _opened_before(self, plan: Plan) -> list[_OpenedRound]:
        """The rounds of the plan's series that were unmasked here before it, in order; none without a series."""
        if plan.series is None:
            return []
        rows = self._connection.execute(
            "SELECT request FROM endorsed JOIN opened USING (round_id) WHERE series = ? ORDER BY number",
            (bytes(plan.series.name),),
        )
        opened = (_OpenedRound.of(request) for (request,) in rows)
        return list(takewhile(lambda one: one.plan.round_id != plan.round_id, opened))

    def _mask_sums(self, asked: UnmaskRequest, plan: Plan) -> list[Words]:
        sums = [self._sum(group, plan, plan.words) for group in asked.headers]
        sums[0][: plan.cells] += self._late_counts(asked, plan)
        left_out = {(one.position, one.group) for one in asked.left_out}
        past = [
            embed(before.plan.tables, plan.tables, self._counted(before.plan, left_out))
            for before in self._opened_before(plan)
        ]
        if plan.series is not None:
            if plan.position == 0:
                self._kept_sums.erase_other_series(plan.series.name)
            self._kept_sums.keep(plan.round_id, [total[: plan.cells] for total in sums])
        return open_groups(plan, past, sums, min(len(group) for group in asked.groups))

    def _counted(self, plan: Plan, left_out: set[tuple[int, int]]) -> Words:
        """The masks of the counts of an earlier round, without the groups that were left out since."""
        groups = {group for position, group in left_out if position == plan.position}
        return self._kept_sums.total(plan.round_id, groups, lambda: self._counts(plan))

    def _counts(self, plan: Plan) -> list[Words]:
        asked, _ = self._open(self._requested(plan.round_id) or b"")
        sums = [self._sum(group, plan, plan.cells) for group in asked.headers]
        sums[0] += self._late_counts(asked, plan)
        return sums

    def _late_counts(self, asked: UnmaskRequest, plan: Plan) -> Words:
        """The masks of the counts of late contributions, laid out as in this round."""
        total = np.zeros(plan.cells, np.uint64)
        for late in asked.late:
            before = reopened(Plan, late.plan)
            total += embed(before.tables, plan.tables, self._sum(late.headers, before, before.cells))
        return total

    def _sum(self, headers: Sequence[ContributionHeader], plan: Plan, words: int) -> Words:
        directory = self.chain.at(plan.directory)
        streams = (self._stream(header, plan, directory) for header in headers)
        return masking.sum_of_masks(self._key_of(plan), streams, words)


def _check_owners(asked: UnmaskRequest, plan: Plan, directory: Directory) -> None:
    """Every token row is held, by the signed word of its owners, by as many tenants as the plan promises.

    A word counts that speaks of leases in the hours that the round counts: of no other epoch, and none before its
    series.
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
