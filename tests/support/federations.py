"""A small federation on disk that can be closed, killed and opened again, and what must hold of it whatever happened.

`Grounds` keeps the keys; files lie below the folder that it is opened on, so that a copy of the folder is a copy of the
federation. Every tenant runs the same workload on two leases, and one of its failures falls into each week.

Noise is replaced by `InsecureWhisper`: fresh in every draw, so that a second contribution would not have the bytes of
the first (one of three values in each of a dozen cells, and of each layer), and so small that rounding gives exact
counts.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from crypto.codec import decode
from crypto.ids import LeaseId
from crypto.masking import MaskKey
from crypto.signing import SigningKey, open_signed, reopened
from federation.protocol.bundle import Bundle
from federation.protocol.directory import Member
from federation.protocol.noise import Integers, NoiseSampler
from federation.protocol.plan import Mechanism, Plan
from federation.protocol.queries import Query
from federation.protocol.round_messages import UnmaskCall, UnmaskRequest
from provider_server.fleet.learning.findings import Findings
from provider_server.fleet.leases import Lease
from provider_server.fleet.own_failures import OwnRecord
from provider_server.fleet.release import Release
from provider_server.rounds.network.grid_tenants import GridTenants, Silence
from provider_server.rounds.planning import MARGINALS, PlanSettings
from provider_server.rounds.provider import Provider
from provider_server.rounds.publisher import Publisher
from provider_server.rounds.store.store import Store
from provider_server.rounds.week import MaskHolder, federated_week, publish
from simulation.run.federation import Federation, found
from simulation.run.local_grid import Deliver, LocalGrid, local_task
from tenant_client.doctor.records.journal import Failure
from tenant_client.rounds.home import open_tenant
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.tenant import StartedLease, Tenant
from tests.support.exactness import differences
from tests.support.factories import a_descriptor, header_of
from tests.support.seats import mask_key_of
from tests.support.trustees import Reached
from trustee.trustee import Trustee, TrusteeLimits

Window = tuple[int, int]
Answerer = Callable[[Query, bytes], bytes]

WEEKS: tuple[Window, ...] = ((0, 168), (168, 336), (336, 504))
COHORT = 3
LEASES = 2
CONTEXT = "a100 hall 3"
NEWCOMER = Member.of(SigningKey(bytes(31) + b"\1"), MaskKey(bytes(31) + b"\2"), 0)


class InsecureWhisper:
    """Noise of less than a quarter of a count in any sum here, and hardly ever the same twice."""

    def gaussian(self, scale: float, size: int) -> Integers:
        return np.frombuffer(os.urandom(size), np.uint8).astype(np.int64) % 3 - 1

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        return self.gaussian(scale, size)


def learns_nothing(releases: Sequence[Release], leases: Sequence[Lease], own: OwnRecord | None) -> Findings:
    """Findings depend on releases alone, and fitting them takes a second: for tests of anything else."""
    return Findings((), ())


@dataclass(frozen=True)
class Grounds:
    """The keys of a federation, as those hold them who open it again and again on copies of its folder."""

    federation: Federation
    sampler: NoiseSampler

    @classmethod
    def founded(cls, root: Path, tenants: int, *, cohort: int = COHORT, large: bool = False, **plan: Any) -> "Grounds":
        """A new federation below `root`, closed. Few cells are enough unless messages shall be `large`.

        An epoch has the windows `WEEKS`. `plan` are further settings of its rounds, or other ones.
        """
        usual: dict[str, Any] = {
            "epsilon": 1.0,
            "delta": 1e-8,
            "mechanism": Mechanism.DISCRETE_GAUSSIAN,  # the scaling of which makes room for a whisper
            "cohort_minimum": cohort,
            "noise_shares": 1,
            "owners_minimum": 2,
            "windows": tuple(range(1, len(WEEKS) + 1)),
            "weeks_per_epoch": len(WEEKS),
            "marginals": MARGINALS if large else MARGINALS[:2],
            "band_edges_hours": (*(float(hour) for hour in range(250 if large else 2)), 100_000.0),
        }
        settings = PlanSettings(**{**usual, **plan})
        policy = {"owners_minimum": 2, "cohort_minimum": 2, "colluding_share": 0.0}
        sampler = InsecureWhisper()
        federation = found(root, tenants, settings, policy, sampler)
        federation.close()
        return cls(federation, sampler)

    @classmethod
    def of_failures(cls, root: Path, tenants: int, *, released: int = 0, **plan: Any) -> "Grounds":
        """The same, with leases of all tenants that fail once in each week; the first weeks are `released`."""
        grounds = cls.founded(root, tenants, **plan)
        with grounds.opened(root) as federation:
            for number in range(tenants):
                begin(federation, number)
                fail(federation, number)
            for window in WEEKS[:released]:
                hold(federation, window)
        return grounds

    def provider(self, root: Path) -> Provider:
        """The provider on a copy below `root`."""
        of = self.federation.provider
        store = Store(root / "provider" / "provider.db", create=False)
        return Provider(of._signing_key, of._context_secret, of.settings, store, os.urandom)

    def publisher(self, store: Store) -> Publisher:
        """The publisher on the store of a copy; its bundles hold no findings."""
        return Publisher(store, self.federation.provider._signing_key, learns_nothing)

    def trustee(self, root: Path, index: int, limits: TrusteeLimits | None = None) -> Trustee:
        """Trustee `index`, from 1."""
        of = self.federation.trustees[index - 1]
        memory = root / "trustees" / f"{index}.db"
        return Trustee(of._share, of._signing_key, mask_key_of(of), [], memory, os.urandom, limits or TrusteeLimits())

    def tenant(self, root: Path, number: int, trustees: Sequence[Trustee] = ()) -> Tenant:
        """Tenant `number`, from 0."""
        return open_tenant(root / "tenants" / f"{number:03d}", trustees, os.urandom, self.sampler)

    @contextmanager
    def opened(self, root: Path, limits: Mapping[int, TrusteeLimits] = MappingProxyType({})) -> Iterator[Federation]:
        """Everybody, from what is on disk; `limits` are those of some trustees, by number."""
        indices = [of.index for of in self.federation.trustees]
        trustees = tuple(self.trustee(root, index, limits.get(index)) for index in indices)
        tenants = tuple(self.tenant(root, number, trustees) for number in range(len(self.federation.tenants)))
        provider = self.provider(root)
        publisher = self.publisher(provider.store)
        with closing(Federation(provider, publisher, trustees, tenants)) as federation:
            yield federation


# ---- what happens in a week ------------------------------------------------------------------------------------------


def begin(federation: Federation, number: int, window: Window = WEEKS[0]) -> None:
    """Tenant `number` starts leases in a week; asked again after a crash, it changes nothing."""
    provider, tenant = federation.provider, federation.tenants[number]
    labels = provider.context_labels(window[0], CONTEXT, 0)
    leases = [lease_id(number, window, lease) for lease in range(LEASES)]
    known = {lease.lease for lease in provider.store.leases(*window)}
    start_h, end_h = window[0] + 1.0, WEEKS[-1][1] - 4.0
    provider.record_leases(Lease(one, tenant.id, 4, start_h, end_h, labels) for one in leases if one not in known)
    started = [StartedLease(lease, start_h, labels, a_descriptor()) for lease in leases]
    tenant.start_leases(started, provider.epoch(window[0]))


def fail(federation: Federation, number: int) -> None:
    """One failure of a lease of tenant `number` in each of the weeks, once."""
    tenant = federation.tenants[number]
    if not tenant.journal.failures(0, WEEKS[-1][1]):
        unit, at = str(lease_id(number, WEEKS[0], 0)), [start + 30.0 + number for start, _ in WEEKS]
        tenant.record([Failure(unit, hour, hour - 1.0, "nvlink_error") for hour in at])


def lease_id(number: int, window: Window, lease: int) -> LeaseId:
    """A lease of a tenant."""
    return LeaseId(bytes([number, WEEKS.index(window), lease]) + bytes(13))


def welcome(federation: Federation) -> None:
    """Enrols a member who never answers, once: the directory has something new to tell."""
    if NEWCOMER not in federation.provider.directory.members:
        federation.provider.members.enrol([NEWCOMER])


def hold(
    federation: Federation,
    window: Window,
    answers: dict[int, Answerer] | None = None,
    trustees: Sequence[MaskHolder] | None = None,
    *,
    silent: Sequence[int] = (),
    deliver: Deliver = list,
) -> tuple[Release, tuple[Silence, ...]]:
    """Holds the week, or goes on with it wherever it is; `answers` replaces those of some tenants."""
    own: dict[int, Answerer] = {number: tenant.answer for number, tenant in enumerate(federation.tenants)}
    apps = {number: client_app(answer) for number, answer in (own | (answers or {})).items()}
    provider, publisher = federation.provider, federation.publisher
    with local_task():
        tenants = GridTenants(LocalGrid(apps, silent=silent, deliver=deliver), 0.0, 0.0)
        done = [made for made in provider.store.releases() if made.plan.start_hour == window[0]]
        if not done:
            held = federated_week(provider, publisher, tenants, trustees or federation.trustees, window)
            return held, tenants.silences
        if publisher.unpublished():
            publish(publisher, tenants)
    return done[0], tenants.silences


# ---- who saw what ----------------------------------------------------------------------------------------------------


class Witness:
    """Writes down what passes between the parties before it is handed on; a file outlives who is killed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def answerer(self, number: int, answer: Answerer) -> Answerer:
        """A tenant's answers, its contributions noted."""

        def noted(verb: Query, payload: bytes) -> bytes:
            said = answer(verb, payload)
            if verb is Query.CONTRIBUTION:
                round_id = header_of(said).round_id
                self._note(f"contribution {number} {round_id}", said)
            return said

        return noted

    def answerers(self, federation: Federation) -> dict[int, Answerer]:
        """Those of all tenants."""
        return {number: self.answerer(number, tenant.answer) for number, tenant in enumerate(federation.tenants)}

    def trustees(self, trustees: Sequence[MaskHolder]) -> list[MaskHolder]:
        """The trustees, what they are asked noted."""
        return [_Watched(trustee, self._note) for trustee in trustees]

    def seen(self) -> dict[str, set[str]]:
        """The distinct things that were seen, by who sent or got them and in which round."""
        seen = defaultdict(set)
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            of, _, what = line.rpartition(" ")
            seen[of].add(what)
        return seen

    def _note(self, of: str, data: bytes) -> None:
        with self._path.open("a") as file:
            file.write(f"{of} {hashlib.sha256(data).hexdigest()[:16]}\n")


@dataclass
class _Watched(Reached):
    note: Callable[[str, bytes], None]

    def endorse(self, request: bytes) -> bytes:
        asked = "request" if reopened(UnmaskRequest, request).groups else "giving up"
        self.note(f"{asked} {self.index} {_round_of(request)}", request)
        return self.inner.endorse(request)

    def unmask(self, call: bytes) -> bytes:
        request = decode(UnmaskCall, call).request
        self.note(f"request {self.index} {_round_of(request)}", request)
        return self.inner.unmask(call)


def _round_of(request: bytes) -> str:
    plan = reopened(UnmaskRequest, request).plan
    return str(reopened(Plan, plan).round_id)


# ---- what must hold --------------------------------------------------------------------------------------------------


def complaints(
    federation: Federation, window: Window, seen: dict[str, set[str]], missing: frozenset[int] = frozenset()
) -> list[str]:
    """What is wrong after the week of `window`: nothing. The tenants of `missing` need not be part of it."""
    return [
        *_about_releases(federation, window, missing),
        *_about_ledgers(federation, window, missing),
        *(f"{of}: {len(what)} different ones" for of, what in seen.items() if len(what) != 1),
        *_about_directories(federation, missing),
        *_about_bundles(federation),
    ]


def _about_releases(federation: Federation, window: Window, missing: frozenset[int]) -> Iterator[str]:
    provider = federation.provider
    made = [one for one in provider.store.releases() if (one.plan.start_hour, one.plan.end_hour) == window]
    if len(made) != 1:
        yield f"{len(made)} releases of the week"
    if provider.unfinished() is not None:
        yield "a round is left open"
    for release in made:
        if not is_exact(federation, release):
            yield "the release is not the sum of the exact counts"
        answered = {answer.tenant for answer in release.answered}
        if lost := [n for n, one in enumerate(federation.tenants) if one.id not in answered and n not in missing]:
            yield f"the tenants {lost} are missing"


def _about_ledgers(federation: Federation, window: Window, missing: frozenset[int]) -> Iterator[str]:
    for number, tenant in enumerate(federation.tenants):
        charges = tenant.ledger.charges()
        times = sum(charge.pays(*window) for charge in charges)
        if times > 1 or (times == 0 and number not in missing):
            yield f"tenant {number} was charged {times} times"
        charged = {charge.round_id for charge in charges}
        if any(plan.round_id not in charged for plan in tenant.plans()):
            yield f"tenant {number} sent what it was not charged for"


def _about_directories(federation: Federation, missing: frozenset[int]) -> Iterator[str]:
    head = federation.provider.directory.head
    here = [tenant.chain.directory.head for n, tenant in enumerate(federation.tenants) if n not in missing]
    if {*here, *(trustee.chain.directory.head for trustee in federation.trustees)} != {head}:
        yield "not all see the same directory"


def _about_bundles(federation: Federation) -> Iterator[str]:
    key = federation.provider.directory.provider
    newest = federation.provider.newest_bundle()
    if newest is None or federation.publisher.unpublished():
        yield "the week has no bundle"
        return
    last = open_signed(Bundle, newest, key)
    for number, tenant in enumerate(federation.tenants):
        held = tenant.bundle()  # its signature is checked; it may be older, if the provider died while it told
        if held is not None and held.number >= last.number and held != last:
            yield f"tenant {number} holds another bundle than the provider"


def is_exact(federation: Federation, release: Release) -> bool:
    """Whether a release shows the exact counts of those who answered, up to the whisper."""
    ((_, tables),) = differences(federation.tenants, [release])
    return all(bool(np.all(np.abs(table) < 0.25)) for table in tables)
