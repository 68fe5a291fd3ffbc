"""A small federation for tests: real parties under keys of their own, a plan that they accept, and what they count.

Five tenants and five trustees share one directory (`KEYS`). A `Cast` opens whoever a test needs below its own folder,
as often as it likes, and closes them all. Nothing is stubbed; only samplers whose name says insecure replace noise.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from crypto.codec import decode, digest, encode
from crypto.ids import Digest, EncodedElement, LeaseId, MaskPublicKey, RoundId, Signature, TenantId, Token
from crypto.masking import MaskKey, MaskStream
from crypto.signing import SigningKey, name_of, reopened
from crypto.threshold import KeyShare
from federation.base.clock import now_hour
from federation.base.pinned_directory import pin
from federation.base.sqlite import Connection
from federation.protocol.causes import Domain
from federation.protocol.directory import Chain, Directory, Member
from federation.protocol.noise import Integers, NoiseSampler, SystemSampler
from federation.protocol.plan import MaskTrustee, Plan
from federation.protocol.round_messages import Contribution, ContributionHeader, Ladder, Ownership
from federation.protocol.seats import TrusteeRecord
from provider_server.fleet.leases import Lease
from provider_server.rounds.planning import PlanSettings, make_plan
from provider_server.rounds.round import Grouping, Round, new_round
from provider_server.rounds.store.round_store import Answer, RoundStore
from provider_server.rounds.store.store import Store
from simulation.run.federation import founding_entry, make_group_key
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Failure, LabelledFailure, Unit
from tenant_client.doctor.workload.descriptor import Descriptor
from tenant_client.rounds.policy import Policy
from tenant_client.rounds.tenant import Tenant
from tenant_client.rounds.tokens import TrusteeService
from tests.support.changing import replace
from trustee.trustee import Trustee, TrusteeLimits

TENANTS = 5
COHORT = 3
WEEK = (0, 168)
WEEKS_PER_EPOCH = 13
NO_SIGNATURE = Signature(bytes(64))  # where a test is not about who signed
POLICY = Policy(owners_minimum=3, cohort_minimum=COHORT, colluding_share=0.3)
SETTINGS: Mapping[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-8,
    "owners_minimum": 3,
    "cohort_minimum": COHORT,
    "noise_shares": 2,
    "windows": tuple(range(1, WEEKS_PER_EPOCH + 1)),
    "weeks_per_epoch": WEEKS_PER_EPOCH,
}


@dataclass(frozen=True)
class Keys:
    """Every secret of the federation, which only a test may hold in one hand, and the directory they belong to."""

    provider: SigningKey
    tenants: tuple[tuple[SigningKey, MaskKey], ...]
    trustees: tuple[tuple[KeyShare, SigningKey, MaskKey], ...]
    founding: bytes
    directory: Directory

    def tenant_id(self, number: int) -> TenantId:
        """Id of tenant `number`, from 0."""
        return self.directory.members[number].tenant


@cache
def keys() -> Keys:
    """One set for the whole run; making a group key takes a moment."""
    provider = SigningKey(_seed("provider"))
    tenants = tuple(
        (SigningKey(_seed(f"signing {number}")), MaskKey(_seed(f"mask {number}"))) for number in range(TENANTS)
    )
    shares, group = make_group_key()
    trustees = tuple(
        (share, SigningKey(_seed(f"word of {share.index}")), MaskKey(_seed(f"trustee {share.index}")))
        for share in shares
    )
    records = [
        TrusteeRecord.of(
            share.index, word, mask, EncodedElement(group.share_public_key(share.index).encoded), made_hour=0
        )
        for share, word, mask in trustees
    ]
    members = [Member.of(signing, mask, 0) for signing, mask in tenants]
    founding = provider.sign(founding_entry(provider.public, group, records, WEEKS_PER_EPOCH, members))
    return Keys(provider, tenants, trustees, founding, Chain.begin(founding, provider.public).directory)


class Cast:
    """Opens the parties of one test below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open = ExitStack()

    def tenant(
        self,
        number: int = 0,
        *,
        policy: Policy = POLICY,
        sampler: NoiseSampler | None = None,
        trustees: Sequence[TrusteeService] = (),
        connect: Callable[[Path], Connection] = open_database,
        clock: Callable[[], float] = now_hour,
    ) -> Tenant:
        """Tenant `number`; a second one of the same number has its own connection to the same database."""
        signing, mask = keys().tenants[number]
        database = connect(self.root / f"tenant-{number}.db")
        pin(database, [keys().founding])
        drawn = sampler or SystemSampler()
        tenant = Tenant(signing, mask, policy, database, trustees, os.urandom, drawn, clock)
        self._open.callback(tenant.close)
        return tenant

    def trustee(self, index: int = 3, limits: TrusteeLimits | None = None) -> Trustee:
        """Trustee `index`, from 1, which remembers what an earlier one of this index did."""
        memory = self.root / f"trustee-{index}.db"
        limits = limits or TrusteeLimits()
        trustee = Trustee(*keys().trustees[index - 1], [keys().founding], memory, os.urandom, limits)
        self._open.callback(trustee.close)
        return trustee

    def trustees(self, limits: TrusteeLimits | None = None) -> tuple[Trustee, ...]:
        """All of them."""
        return tuple(self.trustee(index, limits) for index in range(1, len(keys().trustees) + 1))

    def store(self) -> Store:
        """A new, empty store of a provider."""
        made = Store(self.root / f"provider-{len(list(self.root.glob('provider-*.db')))}.db")
        self._open.callback(made.close)
        return made

    def close(self) -> None:
        """Closes everybody."""
        self._open.close()


class InsecureSilence:
    """No noise at all, so that a release shows exact counts."""

    def gaussian(self, scale: float, size: int) -> Integers:
        return np.zeros(size, np.int64)

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        return np.zeros(size, np.int64)


def token(name: str) -> Token:
    """A token that stands for `name`."""
    return Token(_seed(name)[: Token.length])


def ladder(workload: int) -> Ladder:
    """Two workloads make an archetype, two archetypes a family."""
    return Ladder(
        token(f"family {workload // 4}"),
        token(f"archetype {workload // 2}"),
        token(f"subarchetype {workload}"),
        token(f"exact {workload}"),
    )


def labels(workload: int = 0, context: int = 0) -> dict[str, str]:
    """All that a lease is known by."""
    contexts = {"context": f"context {context}", "context_level": f"context {context} level 0"}
    return ladder(workload).labels | {label: str(token(name)) for label, name in contexts.items()}


def a_lease(tenant: int, number: int, workload: int = 0, context: int = 0, hours: tuple[float, float] = WEEK) -> Lease:
    """The provider's record of a lease of one node."""
    return Lease(lease_id(tenant, number), keys().tenant_id(tenant), 1, *hours, labels(workload, context))


def lease_id(tenant: int, number: int) -> LeaseId:
    """Lease `number` of a tenant."""
    return LeaseId(_seed(f"lease {tenant} {number}")[: LeaseId.length])


def all_leases() -> list[Lease]:
    """Each tenant runs two workloads on two contexts, so that every row has as many owners as there are tenants."""
    places = [(workload, context) for workload in range(2) for context in range(2)]
    return [
        a_lease(tenant, number, workload, context)
        for tenant in range(TENANTS)
        for number, (workload, context) in enumerate(places)
    ]


def a_plan(
    number: int = 1,
    *,
    window: tuple[int, int] = WEEK,
    leases: Sequence[Lease] | None = None,
    public_levels: Mapping[str, tuple[str, ...]] | None = None,
    members: int = 0,
    seen: int = 0,
    **settings: Any,
) -> Plan:
    """A plan that `POLICY` accepts, made as the provider makes it; `settings` are fields of PlanSettings."""
    made = PlanSettings(**{**SETTINGS, **settings})
    round_id = RoundId(number.to_bytes(RoundId.length))
    held = leases or all_leases()
    return make_plan(
        made,
        round_id,
        window,
        held,
        mask_trustees(),
        public_levels,
        directory=keys().directory.head,
        members=members,
        seen=seen,
    )


def mask_trustees() -> tuple[MaskTrustee, ...]:
    """The last three trustees."""
    return tuple(MaskTrustee(record.index, record.mask_key) for record in keys().directory.trustees[-3:])


def signed(plan: Plan) -> bytes:
    """The plan as the provider sends it."""
    return keys().provider.sign(plan)


def plan_digest(signed_plan: bytes) -> Digest:
    """What masks and contributions are bound to."""
    return name_of(signed_plan)


def a_round(plan: Plan, store: RoundStore) -> Round:
    """The provider's side of a plan."""
    owners = ownerships(epoch=plan.epoch, window=(plan.first_hour, plan.end_hour))
    return new_round(store, keys().provider, keys().directory, plan, owners)


def ownership(
    tenant: int, epoch: int = 0, leases: Sequence[Lease] | None = None, window: tuple[int, int] = WEEK
) -> bytes:
    """What tenant `number` signs that it owns: every token of its leases."""
    own = [lease for lease in leases or all_leases() if lease.tenant == keys().tenant_id(tenant)]
    carried = {Token(bytes.fromhex(token)) for lease in own for token in lease.labels.values()}
    return keys().tenants[tenant][0].sign(Ownership(keys().tenant_id(tenant), epoch, *window, tuple(sorted(carried))))


def ownerships(
    leases: Sequence[Lease] | None = None, epoch: int = 0, window: tuple[int, int] = WEEK
) -> tuple[bytes, ...]:
    """What all of them sign."""
    return tuple(ownership(tenant, epoch, leases, window) for tenant in range(TENANTS))


def header_of(contribution: bytes) -> ContributionHeader:
    """What a tenant signed of its contribution, unverified."""
    return reopened(ContributionHeader, decode(Contribution, contribution).header)


def stream_of(header: ContributionHeader, tenant_key: MaskPublicKey, trustee: MaskTrustee) -> MaskStream:
    """The mask that tenant and trustee share for a contribution."""
    named = header.round_id, header.plan, header.tenant, tenant_key, header.nonce
    return MaskStream(*named, trustee.index, trustee.mask_key)


def forged_contribution(signing: SigningKey, header: ContributionHeader, cells: bytes) -> bytes:
    """A contribution that says what `header` says, of these cells, signed by whoever holds `signing`."""
    said = replace(header, cells=digest(cells))
    return encode(Contribution(signing.sign(said), memoryview(cells)))


def one_group(_plan: Plan, contributors: Sequence[TenantId]) -> list[Sequence[TenantId]]:
    """Everybody together."""
    return [contributors]


def close(round_: Round, group: Grouping = one_group) -> None:
    """Closes a round, by default with everybody in one group."""
    round_.close(group)


def endorse_all(round_: Round, trustees: Mapping[int, Trustee]) -> None:
    """Has the mask trustees endorse who have not, and as many others as the quorum lacks."""
    for index in (*sorted(round_.missing(Answer.ENDORSEMENT)), *round_.idle()[:1]):
        round_.endorse(index, trustees[index].endorse(round_.request))


def share_all(round_: Round, trustees: Mapping[int, Trustee]) -> None:
    """Has everybody take the masks off who has not."""
    for index in sorted(round_.missing(Answer.SHARE)):
        round_.share(index, trustees[index].unmask(round_.call()))


def a_unit(number: int, workload: int = 0, context: int = 0, tenant: int = 0) -> Unit:
    """A lease in the journal of a tenant."""
    return Unit(str(lease_id(tenant, number)), 0.0, labels(workload, context))


def a_failure(unit: Unit, at_h: float = 10.0, reason: str = "nvlink_error") -> Failure:
    """A failure of a unit that began with the federation."""
    return Failure(unit.unit, at_h, at_h - unit.start_h, reason)


def counting(plan: Plan) -> int:
    """How many marginals of a plan count `a_failure`."""
    return sum(not marginal.domains or Domain.INFRASTRUCTURE in marginal.domains for marginal in plan.marginals)


def labelled(unit: Unit, at_h: float = 10.0, reason: str = "nvlink_error") -> LabelledFailure:
    """The same, as the journal hands it to a plan."""
    return LabelledFailure(a_failure(unit, at_h, reason), unit.labels)


def a_descriptor(model: str = "llama", **changes: Any) -> Descriptor:
    """A workload whose operators are its own."""
    fields: dict[str, Any] = {
        "operators": frozenset((f"aten::{model}_{number}", (12, number % 5)) for number in range(40)),
        "structure": frozenset({(f"{model}_block", (12, 12)), (model, ())}),
        "collectives": (("all_reduce", 3, 20), ("all_gather", 3, 18)),
        "precision": "bf16",
        "parallelism": "tp8",
        "versions": (("nccl", "2.21"), ("torch", "2.4")),
        "kernel_families": frozenset({"sm90_gemm", "flash_fwd"}),
    }
    return Descriptor(**{**fields, **changes})


def _seed(name: str) -> bytes:
    return hashlib.sha256(b"pharoah/tests\0" + name.encode()).digest()
