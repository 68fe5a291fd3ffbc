"""One round at scale: every party's cryptography, in one process, with a clock for each party.

Provider, trustees and the first tenants are real, each with its own database on disk; those tenants answer through a
Flower grid in this process. The contributions of the other tenants are made by the protocol's own functions and signed
with keys of their own, outside of every clock: they cost provider and trustees what any contribution costs.

Without rows of tokens (no owners' words are checked), without exposure, the table of the release, and learning: none
of these grows with cells and tenants together.
"""

import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from crypto.codec import digest, encode
from crypto.ids import Digest, EncodedElement, Nonce, RoundId, TenantId
from crypto.masking import MaskKey, MaskStream, Words, mask_cells, words_to_bytes
from crypto.signing import SigningKey
from crypto.threshold import KeyShare
from federation.base.pinned_directory import pin
from federation.protocol import noise
from federation.protocol.directory import Chain, Member
from federation.protocol.plan import MaskTrustee, Plan
from federation.protocol.queries import Query
from federation.protocol.round_messages import Contribution, ContributionHeader
from federation.protocol.seats import TrusteeRecord
from provider_server.rounds.network.grid_tenants import GridTenants
from provider_server.rounds.planning import MarginalSpec, PlanSettings, make_plan
from provider_server.rounds.round import Round, new_round
from provider_server.rounds.store.round_store import RoundStore
from provider_server.rounds.store.store import Store
from simulation.run.federation import founding_entry, make_group_key
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.doctor.records.database import open_database
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.policy import Policy
from tenant_client.rounds.tenant import Tenant
from trustee.trustee import Trustee, TrusteeLimits

REAL_TENANTS = 4  # the first pays for what its process makes once
MASKING = 3
DEADLINE_S = 3600.0
SETTINGS = PlanSettings(
    epsilon=1.0,
    delta=0.0,
    cohort_minimum=10,
    noise_shares=5,
    marginals=(MarginalSpec("cells", ("row", "column"), (), 1.0),),
)
POLICY = Policy(dimensions=("row", "column"))


class CpuClock:
    """Adds up seconds of this process' CPU."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts what happens inside."""
        began = time.process_time()
        yield
        self.seconds += time.process_time() - began


@dataclass
class Costs:
    """What one round cost. Seconds are of CPU; bytes are those of messages, without their transport."""

    vectors: int
    tenant_cpu_seconds: float = 0.0
    first_answer_cpu_seconds: float = 0.0
    trustee_cpu_seconds: float = 0.0
    provider_cpu_seconds: float = 0.0
    tenant_bytes: int = 0
    trustee_bytes: int = 0
    provider_bytes: int = 0
    peak_memory_bytes: int = 0


@dataclass(frozen=True)
class Keys:
    """Every secret of a federation that lives for one measurement."""

    provider: SigningKey
    tenants: Sequence[tuple[SigningKey, MaskKey]]
    trustees: Sequence[tuple[KeyShare, SigningKey, MaskKey]]
    founding: bytes
    chain: Chain
    ids: Sequence[TenantId]

    @classmethod
    def fresh(cls, tenants: int) -> "Keys":
        """Of so many tenants, and as many trustees as a federation in one process has."""
        provider = SigningKey.generate(os.urandom)
        shares, group = make_group_key()
        trustees = [(share, SigningKey.generate(os.urandom), MaskKey.generate(os.urandom)) for share in shares]
        records = [
            TrusteeRecord.of(s.index, sign, mask, EncodedElement(group.share_public_key(s.index).encoded), made_hour=0)
            for s, sign, mask in trustees
        ]
        owned = [(SigningKey.generate(os.urandom), MaskKey.generate(os.urandom)) for _ in range(tenants)]
        members = [Member.of(sign, mask, 0) for sign, mask in owned]
        entry = founding_entry(provider.public, group, records, SETTINGS.weeks_per_epoch, members)
        founding = provider.sign(entry)
        ids = [member.tenant for member in members]
        return cls(provider, owned, trustees, founding, Chain.begin(founding, provider.public), ids)


def cells_plan(keys: Keys, cells: int) -> Plan:
    """A plan with one square table; ValueError for cells that are no square."""
    side = round(cells**0.5)
    if side**2 != cells:
        raise ValueError(f"a square table has no {cells} cells")
    levels = {name: tuple(f"{name} {number}" for number in range(side)) for name in ("row", "column")}
    masking = [MaskTrustee(one.index, one.mask_key) for one in keys.chain.directory.trustees[-MASKING:]]
    head = keys.chain.directory.head
    start, end, *_ = SETTINGS.edges(0)
    members = len(keys.tenants)
    return make_plan(SETTINGS, _round_id(), (start, end), [], masking, levels, directory=head, members=members)


def _round_id() -> RoundId:
    return RoundId(os.urandom(RoundId.length))


# ---- the round -------------------------------------------------------------------------------------------------------


@dataclass
class Stage:
    """The parties of one round, opened below `root`, and the clocks of those that are measured.

    The `trustees` mask. The `witnesses` complete their quorum and do less work, which is not measured.
    """

    keys: Keys
    root: Path
    store: RoundStore
    tenants: list[Tenant]
    trustees: list[Trustee]
    witnesses: list[Trustee]
    provider: CpuClock = field(default_factory=CpuClock)
    committee: CpuClock = field(default_factory=CpuClock)
    answers: list[float] = field(default_factory=list)


@contextmanager
def stage(keys: Keys, root: Path, end_hour: int) -> Iterator[Stage]:
    """Opens the parties, whose clocks stand at the end of the round's window."""
    with ExitStack() as open_:
        store = open_.enter_context(closing(Store(root / "provider.db")))
        sampler = noise.SystemSampler()
        tenants = []
        for number, own in enumerate(keys.tenants[:REAL_TENANTS]):
            database = open_database(root / f"tenant-{number}.db")
            pin(database, [keys.founding])
            tenant = Tenant(*own, POLICY, database, [], os.urandom, sampler, lambda: float(end_hour))
            tenants.append(open_.enter_context(closing(tenant)))
        trustees = [
            open_.enter_context(
                closing(Trustee(*own, [keys.founding], _database(root, own), os.urandom, TrusteeLimits()))
            )
            for own in keys.trustees
        ]
        witnesses = keys.chain.directory.quorum - MASKING
        yield Stage(keys, root, store.rounds, tenants, trustees[-MASKING:], trustees[:-MASKING][:witnesses])


def _database(root: Path, trustee: tuple[KeyShare, SigningKey, MaskKey]) -> Path:
    return root / f"trustee-{trustee[0].index}.db"


def measure(keys: Keys, root: Path, cells: int, contributors: int) -> Costs:
    """One round with so many contributors; ArithmeticError if what is opened is no noise.

    ValueError for fewer contributors than are real, or more than there are keys.
    """
    if not REAL_TENANTS < contributors <= len(keys.tenants):
        raise ValueError(f"a round is measured with more than {REAL_TENANTS} contributors, and as many as have keys")
    plan = cells_plan(keys, cells)
    costs = Costs(plan.vectors)
    with stage(keys, root, plan.end_hour) as on:
        round_ = _collected(on, plan, contributors, costs)
        opened = _opened(on, round_, costs)
        _check(plan, opened, contributors)
        costs.provider_cpu_seconds = on.provider.seconds
        costs.trustee_cpu_seconds = on.committee.seconds / MASKING
        costs.first_answer_cpu_seconds, *others = on.answers
        costs.tenant_cpu_seconds = sum(others) / len(others)
    costs.peak_memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return costs


def _collected(on: Stage, plan: Plan, contributors: int, costs: Costs) -> Round:
    """The round with everybody's contribution, closed."""
    with on.provider.running():
        round_ = new_round(on.store, on.keys.provider, on.keys.chain.directory, plan)
    apps = {number + 1: client_app(_clocked(tenant, on.answers)) for number, tenant in enumerate(on.tenants)}
    others = range(len(on.tenants), contributors)
    sampler = noise.SystemSampler()
    with local_task():
        for answer in GridTenants(LocalGrid(apps), DEADLINE_S).ask(Query.CONTRIBUTION, round_.signed_plan):
            costs.tenant_bytes = len(answer)
            _received(on, round_, answer, costs)
    for number in others:
        _received(on, round_, _contribution(on.keys, plan, number, sampler), costs)
    with on.provider.running():
        round_.close(lambda plan, tenants: [tenants])
    return round_


def _received(on: Stage, round_: Round, answer: bytes, costs: Costs) -> None:
    costs.provider_bytes += len(answer)
    with on.provider.running():
        round_.receive(answer)


def _clocked(tenant: Tenant, seconds: list[float]) -> Callable[[Query, bytes], bytes]:
    def answer(query: Query, payload: bytes) -> bytes:
        clock = CpuClock()
        with clock.running():
            said = tenant.answer(query, payload)
        seconds.append(clock.seconds)
        return said

    return answer


def _opened(on: Stage, round_: Round, costs: Costs) -> Words:
    """Endorsed, unmasked and opened; the one group's sum."""
    request, exchanged = round_.request, 0
    for witness in on.witnesses:
        word = witness.endorse(request)
        with on.provider.running():
            round_.endorse(witness.index, word)
    for trustee in on.trustees:
        with on.committee.running():
            word = trustee.endorse(request)
        with on.provider.running():
            round_.endorse(trustee.index, word)
        exchanged += len(request) + len(word)
    call = round_.call()
    for trustee in on.trustees:
        with on.committee.running():
            share = trustee.unmask(call)
        with on.provider.running():
            round_.share(trustee.index, share)
        exchanged += len(call) + len(share)
    costs.trustee_bytes = exchanged // MASKING
    costs.provider_bytes += exchanged
    with on.provider.running():
        (opened,) = round_.open()
        round_.release(b"", {})
    return opened


def _check(plan: Plan, opened: Words, contributors: int) -> None:
    """What is opened must have the variance of the noise of all contributors: a mask that stayed on has 2^126 or so."""
    (values,) = noise.from_ring(plan, opened)
    (variance,) = noise.noise_variances(plan, contributors)
    ratio = float(np.mean(values**2)) / variance
    if abs(ratio - 1) > 8 * (2 / plan.cells) ** 0.5:
        raise ArithmeticError(f"the variance of what was opened is {ratio:.3g} times that of the noise")


# ---- those who are not measured --------------------------------------------------------------------------------------


def _contribution(keys: Keys, plan: Plan, number: int, sampler: noise.NoiseSampler) -> bytes:
    """The answer of a tenant that counted nothing."""
    signing_key, mask_key = keys.tenants[number]
    header = _header(keys, plan, number)
    masks = [
        MaskStream(plan.round_id, header.plan, header.tenant, mask_key.public, header.nonce, one.index, one.mask_key)
        for one in plan.trustees
    ]
    nothing = [np.zeros(table.shape, np.int64) for table in plan.tables]
    cells = words_to_bytes(mask_cells(noise.contribution(plan, nothing, sampler), mask_key, masks))
    signed = signing_key.sign(msgspec.structs.replace(header, cells=digest(cells)))
    return encode(Contribution(signed, memoryview(cells)))


def _header(keys: Keys, plan: Plan, number: int) -> ContributionHeader:
    nonce = Nonce(os.urandom(Nonce.length))
    return ContributionHeader(
        keys.ids[number], plan.round_id, digest(encode(plan)), plan.start_hour, nonce, Digest(bytes(32))
    )
