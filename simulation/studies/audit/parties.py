"""A federation for audits: ten tenants, five trustees, one provider, and plans with as many canaries as are wanted.

Settings are the provider's defaults and every plan is one that a tenant's default policy accepts: ten contributions, of
which five carry the full noise, masked by three trustees. Ten tenants are the smallest cohort that is admitted, so the
half that may collude is all that the noise is over-provisioned for. Larger federations have noise in layers, of which
an audit of few or many of them looks at others.
"""

import dataclasses
import hashlib
import os
from dataclasses import dataclass
from itertools import pairwise

from crypto.ids import EncodedElement, LeaseId, RoundId, TenantId, Token
from crypto.masking import MaskKey
from crypto.signing import SigningKey, tenant_id
from crypto.threshold import KeyShare
from federation.protocol.causes import Domain
from federation.protocol.directory import Chain, Directory, Member
from federation.protocol.plan import MaskTrustee, Mechanism, Plan
from federation.protocol.round_messages import Ladder
from federation.protocol.seats import TrusteeRecord
from provider_server.fleet.leases import Lease
from provider_server.rounds.planning import PlanSettings, make_plan
from provider_server.rounds.settings import PlanTable
from simulation.run.federation import founding_entry, make_group_key
from tenant_client.rounds.policy import Policy, check_plan

DEFAULTS = PlanTable()
TENANTS = DEFAULTS.cohort_minimum
CONTEXTS, DELTA = 40, 1e-8
_MASKING = 3  # the last three trustees, as the provider chooses them


@dataclass(frozen=True)
class Party:
    """A tenant's keys."""

    signing: SigningKey
    mask: MaskKey

    @property
    def id(self) -> TenantId:
        """Its name."""
        return tenant_id(self.signing.public)


@dataclass(frozen=True)
class Parties:
    """Every secret of the federation, which only an audit may hold in one hand."""

    provider: SigningKey
    tenants: tuple[Party, ...]
    trustees: tuple[tuple[KeyShare, SigningKey, MaskKey], ...]
    founding: bytes
    directory: Directory

    def answering(self, some: int) -> "Parties":
        """The same federation when only the first so many tenants answer."""
        return dataclasses.replace(self, tenants=self.tenants[:some])

    @property
    def mask_keys(self) -> dict[int, MaskKey]:
        """The private keys of the trustees that mask, by index."""
        return {share.index: mask for share, _, mask in self.trustees[-_MASKING:]}

    @property
    def mask_trustees(self) -> tuple[MaskTrustee, ...]:
        """Their public halves, as plans name them."""
        return tuple(MaskTrustee(index, key.public) for index, key in self.mask_keys.items())


def make_parties(size: int = TENANTS) -> Parties:
    """New keys for all, with so many tenants."""
    provider = SigningKey.generate(os.urandom)
    tenants = tuple(Party(SigningKey.generate(os.urandom), MaskKey.generate(os.urandom)) for _ in range(size))
    shares, group = make_group_key()
    trustees = tuple((share, SigningKey.generate(os.urandom), MaskKey.generate(os.urandom)) for share in shares)
    records = [
        TrusteeRecord.of(
            share.index, word, mask, EncodedElement(group.share_public_key(share.index).encoded), made_hour=0
        )
        for share, word, mask in trustees
    ]
    members = [Member.of(party.signing, party.mask, 0) for party in tenants]
    entry = founding_entry(provider.public, group, records, DEFAULTS.weeks_per_epoch, members)
    founding = provider.sign(entry)
    return Parties(provider, tenants, trustees, founding, Chain.begin(founding, provider.public).directory)


def default_settings(mechanism: Mechanism) -> PlanSettings:
    """What provider.toml says where it says nothing, but for this."""
    return PlanTable(mechanism=mechanism, delta=DELTA if mechanism is Mechanism.DISCRETE_GAUSSIAN else 0.0).settings


def make_plans(parties: Parties, settings: PlanSettings, cells: int) -> list[Plan]:
    """The rounds of an epoch, with `cells` cells or more in every marginal.

    PlanRefused if a tenant under the default policy would not answer one of them.
    """
    leases, trustees, head = _leases(parties, settings, cells), parties.mask_trustees, parties.directory.head
    members = len(parties.directory.members)
    plans = [
        make_plan(settings, _round_id(), window, leases, trustees, directory=head, members=members)
        for window in pairwise(settings.edges(0))
    ]
    for plan in plans:
        check_plan(plan, Policy(), parties.directory, now_hour=plan.end_hour, members_seen=members)
    return plans


def _round_id() -> RoundId:
    return RoundId(os.urandom(RoundId.length))


def _leases(parties: Parties, settings: PlanSettings, cells: int) -> list[Lease]:
    """As many workloads, contexts and levels as give every table of the default marginals that many cells."""
    contexts, per_level = CONTEXTS, (len(settings.band_edges_hours) - 1) * len(Domain)
    workloads, levels = -(-cells // contexts), -(-cells // per_level)
    ladders = [_ladder(number).labels for number in range(workloads)]
    ran = [
        ladders[number % workloads]
        | {
            "context": _named("context", number % contexts).hex(),
            "context_level": _named("level", number % levels).hex(),
        }
        for number in range(max(workloads, contexts, levels))
    ]
    owners = [party.id for party in parties.tenants[: settings.owners_minimum]]
    name = LeaseId(bytes(LeaseId.length))  # a plan is made of labels and owners
    return [Lease(name, owner, 1, 0.0, 1.0, labels) for owner in owners for labels in ran]


def _ladder(workload: int) -> Ladder:
    rungs = (Token(_named(rung, workload)) for rung in ("family", "archetype", "subarchetype", "exact"))
    return Ladder(*rungs)


def _named(*names: object) -> bytes:
    return hashlib.sha256(repr(names).encode()).digest()[: Token.length]
