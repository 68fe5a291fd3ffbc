"""A trustee: holds a share of the signature key and one mask stream per contribution, and learns nothing from either.

It answers two kinds of request, as bytes, so that the same object serves in process and behind a network. An evaluation
sees blinded elements only, is signed by a tenant and metered per tenant and epoch. An unmasking is signed by the
provider, names one set of contributors, carries the plan that the tenants saw, and happens once per round.

Not promised: a trustee cannot tell whether a tenant guesses descriptors within its quota; it can only count.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from crypto import masking, voprf
from crypto.codec import decode, digest, encode
from crypto.errors import AlreadyAnswered, CohortTooSmall, QuotaExceeded
from crypto.ids import EncodedElement, EncodedProof, RoundId, TenantId
from crypto.messages import Directory, EvaluationRequest, EvaluationResponse, UnmaskRequest, UnmaskShare
from crypto.plan import Plan
from crypto.ristretto import Element, RandomBytes
from crypto.signing import Signed, open_signed, open_signed_by
from crypto.threshold import KeyShare
from tenant_client.database import Connection
from tenant_client.journal import transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS evaluations (
    tenant BLOB NOT NULL, epoch INTEGER NOT NULL, elements INTEGER NOT NULL, PRIMARY KEY (tenant, epoch));
CREATE TABLE IF NOT EXISTS answers (round_id BLOB PRIMARY KEY, request BLOB NOT NULL);
"""


class TrusteeService(Protocol):
    """What tenants and the provider need of a trustee, in process or over a network."""

    @property
    def index(self) -> int:
        """Its number in the directory, from 1."""

    def evaluate(self, request: bytes) -> bytes:
        """Signed EvaluationRequest in, EvaluationResponse out."""

    def unmask(self, request: bytes) -> bytes:
        """Signed UnmaskRequest in, UnmaskShare out."""


@dataclass(frozen=True)
class TrusteeLimits:
    """What a trustee grants, whatever tenants and provider ask for."""

    evaluations_per_epoch: int = 10_000
    cohort_minimum: int = 2


class Trustee:
    """The trustee itself. Its memory is a SQLite file."""

    def __init__(
        self,
        share: KeyShare,
        mask_key: masking.MaskKey,
        directory: Directory,
        memory: Path,
        random_bytes: RandomBytes,
        limits: TrusteeLimits = TrusteeLimits(),
    ) -> None:
        self.index = share.index
        self._share = share
        self._mask_key = mask_key
        self._directory = directory
        self._random_bytes = random_bytes
        self._limits = limits
        self._connection = Connection(str(memory))
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        """Releases the file."""
        self._connection.close()

    def evaluate(self, request: bytes) -> bytes:
        """Evaluates blinded elements under this trustee's share, after charging the tenant's quota.

        Raises QuotaExceeded, BadSignature, or DecodeError for an element that is none.
        """
        asked = open_signed_by(EvaluationRequest, request, self._directory.verify_key)
        elements = [Element.decode(element) for element in asked.elements]
        self._meter(asked.tenant, asked.epoch, len(elements))
        evaluation = voprf.blind_evaluate(self._share.secret, elements, self._random_bytes)
        answers = tuple(EncodedElement(element.encoded) for element in evaluation.elements)
        return encode(EvaluationResponse(self.index, answers, EncodedProof(evaluation.proof.encode())))

    def unmask(self, request: bytes) -> bytes:
        """Sums this trustee's masks over the requested set, once per round; a repeated request gets the same answer.

        Raises CohortTooSmall below the plan's or this trustee's own minimum, AlreadyAnswered for a second set.
        """
        asked = open_signed(UnmaskRequest, request, self._directory.provider)
        plan_bytes = decode(Signed, asked.plan).body
        plan = open_signed(Plan, asked.plan, self._directory.provider)
        needed = max(plan.cohort_minimum, self._limits.cohort_minimum)
        if len(asked.contributors) < needed:
            raise CohortTooSmall(
                f"round {plan.round_id} has {len(asked.contributors)} contributions, {needed} are needed"
            )
        keys = [self._directory.member(tenant).mask_key for tenant in asked.contributors]
        self._answer_once(plan.round_id, request)
        total = masking.sum_of_masks(self._mask_key, keys, plan.round_id, digest(plan_bytes), plan.cells)
        return encode(UnmaskShare(self.index, plan.round_id, masking.words_to_bytes(total)))

    def evaluations(self) -> dict[tuple[TenantId, int], int]:
        """The log: how many elements each tenant had evaluated in each epoch."""
        rows = self._connection.execute("SELECT tenant, epoch, elements FROM evaluations")
        return {(TenantId(tenant), epoch): elements for tenant, epoch, elements in rows}

    def _meter(self, tenant: TenantId, epoch: int, elements: int) -> None:
        with transaction(self._connection):
            used = self.evaluations().get((tenant, epoch), 0)
            if used + elements > self._limits.evaluations_per_epoch:
                raise QuotaExceeded(
                    f"tenant {tenant.hex()[:12]}… asked for {used + elements} evaluations in epoch {epoch},"
                    f" {self._limits.evaluations_per_epoch} are granted"
                )
            self._connection.execute(
                "INSERT INTO evaluations VALUES (?, ?, ?)"
                " ON CONFLICT (tenant, epoch) DO UPDATE SET elements = elements + excluded.elements",
                (bytes(tenant), epoch, elements),
            )

    def _answer_once(self, round_id: RoundId, request: bytes) -> None:
        named = digest(decode(Signed, request).body)
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (bytes(round_id), bytes(named)))
            answered = "SELECT request FROM answers WHERE round_id = ?"
            (first,) = self._connection.execute(answered, (bytes(round_id),)).fetchone()
        if first != named:
            raise AlreadyAnswered(f"trustee {self.index} unmasked another set for round {round_id}")
