"""Rounds by real parties, on disk, as an audit's parties would hold them; with noise that can be drawn once more."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from crypto.ids import LeaseId
from federation.base.pinned_directory import pin
from federation.protocol.noise import Integers, NoiseSampler
from federation.protocol.queries import Query
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.provider import Provider
from provider_server.rounds.store.store import Store
from provider_server.rounds.week import MaskHolder, federated_round
from simulation.studies.audit.parties import Parties, Party
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Failure, Unit
from tenant_client.rounds.policy import Policy
from tenant_client.rounds.tenant import Tenant
from tests.support.factories import ladder
from trustee.trustee import Trustee

BY_HARDWARE, BY_SCRIPT = "nvlink_error", "type_error"


class InsecureSeeded:
    """Noise of a seeded generator: about as wide as it should be, and the same whenever it is drawn again."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def gaussian(self, scale: float, size: int) -> Integers:
        return np.rint(self._rng.normal(0, scale, size)).astype(np.int64)

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        return np.rint(self._rng.laplace(0, scale / shares**0.5, size)).astype(np.int64)


@dataclass(frozen=True)
class Played:
    """A round: what was signed, counted by each tenant, sent by it, answered by each trustee, and released."""

    signed_plan: bytes
    counts: Sequence[Sequence[Integers]]
    contributions: Sequence[bytes]
    shares: Mapping[int, bytes]
    released: Release


@dataclass(frozen=True)
class RealFederation:
    """The parties themselves."""

    provider: Provider
    trustees: Sequence[Trustee]
    tenants: Sequence[Tenant]

    def played(self, number: int) -> Played:
        """A window in which everybody runs one workload, and the first tenant's lease fails twice."""
        edges = self.provider.settings.edges(0)
        window = edges[number], edges[number + 1]
        for number, tenant in enumerate(self.tenants):
            self._happen(tenant, window[0] + 1.0, (BY_HARDWARE, BY_SCRIPT) if number == 0 else ())
            self.provider.register(tenant.answer(Query.REGISTRATIONS, self.provider.registration_request(window)))
        round_ = self.provider.open_round(self.provider.plan(window))
        counts = [tenant.counts(round_.plan) for tenant in self.tenants]
        shares: dict[int, bytes] = {}
        holders: list[MaskHolder] = [Noted(trustee, shares) for trustee in self.trustees]
        released = federated_round(self.provider, Here(self.tenants), holders, round_)
        sent = [tenant.outbox.sent(round_.plan.round_id) or b"" for tenant in self.tenants]
        return Played(round_.signed_plan, counts, sent, shares, released)

    def _happen(self, tenant: Tenant, start_h: float, failures: Sequence[str]) -> None:
        lease = LeaseId(hashlib.sha256(f"{start_h}".encode() + tenant.id).digest()[: LeaseId.length])
        labels = self.provider.context_labels(start_h, "the context", 0)
        self.provider.record_leases([Lease(lease, tenant.id, 2, start_h, start_h + 100, labels)])
        tenant.journal.queue_registrations(self.provider.epoch(start_h), [(lease, start_h, ladder(0))])
        tenant.journal.label([Unit(str(lease), start_h, labels | ladder(0).labels)])
        tenant.record(Failure(str(lease), start_h + 50, 50.0, reason) for reason in failures)


@dataclass(frozen=True)
class Here:
    """All tenants, without a network."""

    tenants: Sequence[Tenant]

    def ask(self, verb: Query, payload: bytes) -> Iterator[bytes]:
        return (tenant.answer(verb, payload) for tenant in self.tenants)


class Noted:
    """A trustee whose shares are noted."""

    def __init__(self, trustee: Trustee, shares: dict[int, bytes]) -> None:
        self.index, self.follow, self.endorse = trustee.index, trustee.follow, trustee.endorse
        self._trustee, self._shares = trustee, shares

    def unmask(self, call: bytes) -> bytes:
        return self._shares.setdefault(self.index, self._trustee.unmask(call))


@contextmanager
def real_federation(parties: Parties, settings: PlanSettings, root: Path) -> Iterator[RealFederation]:
    """Provider, tenants and trustees with files below `root`; tenant number n draws its noise from seed n."""
    with ExitStack() as stack:
        store = stack.enter_context(closing(Store(root / "provider.db")))
        store.add_entry(0, parties.founding)
        trustees = [
            stack.enter_context(closing(Trustee(*keys, [parties.founding], root / f"trustee-{number}.db", os.urandom)))
            for number, keys in enumerate(parties.trustees)
        ]
        tenants = [
            stack.enter_context(closing(a_tenant(party, parties, root / f"tenant-{number}.db", InsecureSeeded(number))))
            for number, party in enumerate(parties.tenants)
        ]
        yield RealFederation(Provider(parties.provider, os.urandom(32), settings, store, os.urandom), trustees, tenants)


def a_tenant(party: Party, parties: Parties, path: Path, sampler: NoiseSampler) -> Tenant:
    """Under the policy of a tenant that sets nothing."""
    database = open_database(path)
    pin(database, [parties.founding])
    return Tenant(party.signing, party.mask, Policy(), database, (), os.urandom, sampler)
