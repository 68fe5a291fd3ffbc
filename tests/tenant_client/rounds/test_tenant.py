"""A tenant answers a plan once: whoever asks, however often, and whatever kills the process in between."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crypto.codec import decode, digest, encode
from crypto.errors import BadSignature, BudgetExceeded, DecodeError, PeerFault, PlanRefused, VersionsApart
from crypto.ids import LeaseId
from crypto.masking import MaskKey, Words, add_words, words_from_bytes
from crypto.signing import SigningKey, open_signed
from federation.base.sqlite import Connection
from federation.protocol.bundle import SKETCH_BYTES, Bundle, CatalogueEntry
from federation.protocol.directory import Member, UnknownHead, next_entry
from federation.protocol.noise import Integers, SystemSampler, from_ring
from federation.protocol.plan import Mechanism, Plan
from federation.protocol.privacy_cost import plan_loss
from federation.protocol.queries import Query
from federation.protocol.round_messages import (
    ContributionHeader,
    DirectoryUpdate,
    Ladder,
    Ownership,
    Receipt,
    Registration,
    RegistrationRequest,
    opened_contribution,
)
from federation.protocol.versions import PROTOCOL
from provider_server.rounds.planning import MarginalSpec
from tenant_client.doctor.records.journal import UnknownUnit
from tenant_client.rounds.home import create, open_tenant, pin
from tenant_client.rounds.tenant import StartedLease, Tenant
from tests.support.changing import replace
from tests.support.contribute_and_die import Moment
from tests.support.factories import (
    POLICY,
    Cast,
    InsecureSilence,
    a_descriptor,
    a_failure,
    a_plan,
    a_unit,
    counting,
    header_of,
    keys,
    lease_id,
    plan_digest,
    signed,
    stream_of,
)
from tests.support.waiting import PATIENCE_S

REPOSITORY = Path(__file__).resolve().parents[3]
SIDE = 80
WIDE = replace(POLICY, dimensions=("row", "place"))
MORTAL = [Moment.CHARGING, Moment.CHARGED, Moment.KEEPING, Moment.KEPT]


# ---- one answer ----------------------------------------------------------------------------------------------------


def test_a_contribution_is_signed_and_bound_to_tenant_round_and_plan(cast: Cast) -> None:
    plan = a_plan()
    header, cells = opened(cast.tenant(2).contribute(signed(plan)), 2)
    assert (header.tenant, header.round_id) == (keys().tenant_id(2), plan.round_id)
    assert (header.plan, header.start_hour) == (plan_digest(signed(plan)), plan.start_hour)
    assert len(cells) == plan.cells


def test_under_its_masks_a_contribution_is_the_count_and_nothing_else(cast: Cast) -> None:
    plan = a_plan()
    tenant = cast.tenant(sampler=InsecureSilence())
    unit = a_unit(1)
    tenant.journal.add([unit], [a_failure(unit)])
    counts = unmasked(plan, tenant.contribute(signed(plan)))
    assert sum(int(table.sum()) for table in counts) == counting(plan)
    for table, expected in zip(counts, tenant.counts(plan), strict=True):
        np.testing.assert_array_equal(table, expected)


def test_under_its_masks_a_contribution_carries_noise_of_the_share_it_owes(cast: Cast) -> None:
    """By chance it fails once in 10^10 times; full noise would be 1.41 shares."""
    plan = a_wide_plan(mechanism=Mechanism.DISCRETE_GAUSSIAN)
    (cells,) = unmasked(plan, cast.tenant(policy=WIDE).contribute(signed(plan)))
    share = plan.marginals[0].noise_scale / np.sqrt(plan.noise_shares)
    assert cells.size == SIDE**2
    assert np.std(cells) == pytest.approx(share, rel=0.08)  # 9 standard errors
    assert abs(np.mean(cells)) < 6.5 * share / np.sqrt(cells.size)


def test_asking_again_returns_the_same_bytes_and_draws_nothing(cast: Cast) -> None:
    first = cast.tenant().contribute(signed(a_plan()))
    again = cast.tenant(sampler=NoMoreNoise())
    assert again.contribute(signed(a_plan())) == first
    assert again.outbox.sent(a_plan().round_id) == first
    assert again.plans() == [a_plan()]
    assert len(again.ledger.charges()) == 1


def test_what_fails_after_an_answer_changes_nothing_of_it(cast: Cast) -> None:
    tenant = cast.tenant()
    unit = a_unit(1)
    tenant.journal.add([unit], [])
    first = tenant.contribute(signed(a_plan()))
    tenant.record([a_failure(unit)])
    assert tenant.contribute(signed(a_plan())) == first


def test_every_round_has_masks_of_its_own(cast: Cast) -> None:
    tenant = cast.tenant(sampler=InsecureSilence())
    plans = [a_plan(1), a_plan(2, window=(168, 336))]
    one, other = (opened(tenant.contribute(signed(plan))) for plan in plans)
    assert not np.any(one[1] == other[1])
    assert one[0].nonce != other[0].nonce


def test_another_plan_under_the_same_round_id_is_refused(cast: Cast) -> None:
    tenant = cast.tenant()
    tenant.contribute(signed(a_plan()))
    with pytest.raises(PlanRefused, match="answered for another plan"):
        tenant.contribute(signed(a_plan(epsilon=0.5)))
    assert [charge.loss for charge in tenant.ledger.charges()] == [plan_loss(a_plan())]


def test_another_plan_under_a_round_that_was_charged_and_never_answered_is_refused(cast: Cast) -> None:
    with pytest.raises(PowerCut):
        cast.tenant(sampler=Failing()).contribute(signed(a_plan()))
    with pytest.raises(PlanRefused, match="answered for another plan"):
        cast.tenant().contribute(signed(a_plan(epsilon=0.5)))


def test_a_window_without_budget_is_refused_before_anything_is_drawn(cast: Cast) -> None:
    cast.tenant().contribute(signed(a_plan(1)))
    tenant = cast.tenant(sampler=NoMoreNoise())
    with pytest.raises(BudgetExceeded):
        tenant.contribute(signed(a_plan(2)))
    assert tenant.outbox.sent(a_plan(2).round_id) is None
    assert len(tenant.ledger.charges()) == 1


def test_a_plan_beyond_the_policy_is_not_charged(cast: Cast) -> None:
    tenant = cast.tenant(policy=replace(POLICY, epsilon_per_window=0.5), sampler=NoMoreNoise())
    with pytest.raises(PlanRefused, match=r"epsilon 1 is above the policy's 0\.5"):
        tenant.contribute(signed(a_plan()))
    assert tenant.ledger.charges() == []


def test_a_plan_of_another_version_is_not_charged(cast: Cast) -> None:
    tenant = cast.tenant(sampler=NoMoreNoise())
    with pytest.raises(VersionsApart, match="this tenant speaks protocol"):
        tenant.contribute(signed(replace(a_plan(), protocol=PROTOCOL + 1)))
    assert tenant.ledger.charges() == []


def test_a_plan_that_the_provider_did_not_sign_is_not_charged(cast: Cast) -> None:
    tenant = cast.tenant(sampler=NoMoreNoise())
    stranger = SigningKey.generate(os.urandom)
    with pytest.raises(BadSignature):
        tenant.contribute(stranger.sign(a_plan()))
    with pytest.raises(DecodeError):
        tenant.contribute(b"")
    with pytest.raises(DecodeError):
        tenant.contribute(keys().provider.sign(RegistrationRequest(0, 0, 168)))
    assert tenant.ledger.charges() == []


def test_a_plan_under_a_directory_that_is_not_known_yet_is_refused_until_it_is(cast: Cast) -> None:
    joining = Member.of(SigningKey(bytes(32)), MaskKey(bytes(32)), 0)
    entry = next_entry(keys().directory, joined=[joining])
    plan = replace(a_plan(), directory=digest(encode(entry)))
    tenant = cast.tenant(sampler=InsecureSilence())
    with pytest.raises(UnknownHead):
        tenant.contribute(signed(plan))
    assert tenant.ledger.charges() == []
    update = encode(DirectoryUpdate((keys().provider.sign(entry),)))
    assert decode(Receipt, tenant.answer(Query.DIRECTORY, update)).held == plan.directory
    assert opened(tenant.contribute(signed(plan)))[0].plan == plan_digest(signed(plan))
    assert tenant.contribute(signed(replace(a_plan(2, window=(168, 336)))))  # the older head is known still


# ---- one answer, from several threads and processes ----------------------------------------------------------------


def test_threads_that_share_a_tenant_send_the_same_bytes(cast: Cast) -> None:
    tenant = cast.tenant(sampler=Together(4))
    with ThreadPoolExecutor(4) as threads:
        sent = list(threads.map(tenant.contribute, [signed(a_plan())] * 4))
    assert set(sent) == {tenant.outbox.sent(a_plan().round_id)}
    assert len(tenant.ledger.charges()) == 1


def test_threads_with_a_connection_each_send_the_same_bytes(cast: Cast) -> None:
    meeting = Together(4)
    tenants = [cast.tenant(sampler=meeting) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        sent = list(threads.map(lambda tenant: tenant.contribute(signed(a_plan())), tenants))
    assert set(sent) == {tenants[0].outbox.sent(a_plan().round_id)}
    assert len(tenants[0].ledger.charges()) == 1


def test_a_thread_does_not_send_what_another_one_has_not_committed(cast: Cast) -> None:
    """If it did, and the commit failed, the next answer would be a second one."""
    cast.tenant().close()  # makes the tables
    tenant = cast.tenant(connect=lambda path: PausesBeforeKeeping(str(path)))
    paused = tenant._connection
    assert isinstance(paused, PausesBeforeKeeping)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(tenant.contribute, signed(a_plan()))
        assert paused.reached.wait(PATIENCE_S)
        second = threads.submit(tenant.contribute, signed(a_plan()))
        try:
            with pytest.raises(TimeoutError):
                second.result(timeout=0.3)
        finally:
            paused.go_on.set()
        assert first.result(PATIENCE_S) == second.result(PATIENCE_S)


@pytest.mark.nightly
def test_processes_that_answer_at_once_send_the_same_bytes(home: Path) -> None:
    answering = [contribute_until(home, Moment.TOGETHER) for _ in range(2)]
    one, other = (process.communicate(timeout=PATIENCE_S) for process in answering)
    assert one == other
    assert len(list((home / "meeting").iterdir())) == 2  # each had charged before the other drew
    with living_in(home) as tenant:
        assert tenant.outbox.sent(a_plan().round_id) == one[0]
        assert len(tenant.ledger.charges()) == 1


# ---- a process that is killed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Killed:
    """What was found after a process was killed, and what the next one answered."""

    status: int
    sent_bytes: bytes
    charges: int
    kept: bytes | None
    answer: bytes
    charges_after: int


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[Moment, Killed]:
    """One process per moment, all at the same time, and a restart of each."""
    homes = {moment: a_home(tmp_path_factory.mktemp(moment)) for moment in MORTAL}
    running = {moment: contribute_until(home, moment) for moment, home in homes.items()}
    return {moment: inspected(homes[moment], process) for moment, process in running.items()}


def inspected(home: Path, process: "subprocess.Popen[bytes]") -> Killed:
    sent_bytes, _ = process.communicate(timeout=PATIENCE_S)
    with living_in(home) as tenant:
        charges, kept = len(tenant.ledger.charges()), tenant.outbox.sent(a_plan().round_id)
        answer = tenant.contribute(signed(a_plan()))
        assert answer == tenant.contribute(signed(a_plan()))
        return Killed(process.returncode, sent_bytes, charges, kept, answer, len(tenant.ledger.charges()))


@pytest.mark.nightly
@pytest.mark.parametrize("moment", MORTAL)
def test_a_killed_process_sent_nothing_and_its_successor_answers(killed: dict[Moment, Killed], moment: Moment) -> None:
    found = killed[moment]
    assert found.status == -signal.SIGKILL
    assert found.sent_bytes == b""
    assert header_of(found.answer).round_id == a_plan().round_id


@pytest.mark.parametrize("moment", MORTAL)
def test_a_round_is_charged_once_across_a_crash(killed: dict[Moment, Killed], moment: Moment) -> None:
    assert killed[moment].charges == (0 if moment is Moment.CHARGING else 1)
    assert killed[moment].charges_after == 1


@pytest.mark.parametrize("moment", MORTAL)
def test_what_was_kept_before_a_crash_is_what_is_sent_after_it(killed: dict[Moment, Killed], moment: Moment) -> None:
    if moment is Moment.KEPT:
        assert killed[moment].answer == killed[moment].kept
    else:
        assert killed[moment].kept is None


# ---- leases and bundles --------------------------------------------------------------------------------------------


def test_leases_of_one_workload_are_told_of_together_and_those_of_another_apart(cast: Cast) -> None:
    tenant = cast.tenant(trustees=cast.trustees())
    other = replace(started(2, 0.0), descriptor=a_descriptor("mixtral"))
    tenant.start_leases([started(1, 0.0), other, started(3, 0.0)], epoch=0)
    ladders = registered(tenant, 0, 0, 168)
    assert ladders[lease_id(0, 1)] == ladders[lease_id(0, 3)] != ladders[lease_id(0, 2)]


def test_a_lease_is_journalled_with_all_its_tokens_and_registered_with_those_of_its_workload(cast: Cast) -> None:
    tenant = cast.tenant(trustees=cast.trustees())
    tenant.start_leases([started(1, 10.0), started(2, 170.0)], epoch=0)
    known = tenant.journal.labels(str(lease_id(0, 1)))
    assert set(known) == {"context", "context_level", "family", "archetype", "subarchetype"}
    (ladder,) = registered(tenant, 0, 0, 168).values()
    assert ladder.labels.items() <= known.items()


def test_registration_tells_of_the_window_and_the_epoch_asked_for_and_repeats_itself(cast: Cast) -> None:
    tenant = cast.tenant(trustees=cast.trustees())
    tenant.start_leases([started(1, 0.0), started(2, 167.9), started(3, 168.0)], epoch=0)
    asked = keys().provider.sign(RegistrationRequest(0, 0, 168))
    assert tenant.answer(Query.REGISTRATIONS, asked) == tenant.answer(Query.REGISTRATIONS, asked)
    assert set(registered(tenant, 0, 0, 168)) == {lease_id(0, 1), lease_id(0, 2)}
    assert set(registered(tenant, 0, 168, 336)) == {lease_id(0, 3)}
    assert registered(tenant, 1, 0, 168) == {}


def test_only_what_the_provider_asked_for_counts_as_told(cast: Cast) -> None:
    tenant = cast.tenant(trustees=cast.trustees())
    tenant.start_leases([started(1, 0.0), started(2, 167.9), started(3, 168.0)], epoch=0)
    assert tenant.journal.told() == []
    registered(tenant, 1, 0, 336)  # an epoch in which no lease began
    assert tenant.journal.told() == []
    ladders = registered(tenant, 0, 0, 168)
    assert registered(tenant, 0, 0, 168) == ladders
    assert {lease: ladder for lease, _, _, ladder in tenant.journal.told()} == ladders
    registered(tenant, 0, 0, 336)
    assert [(lease, epoch, start_h) for lease, epoch, start_h, _ in tenant.journal.told()] == [
        (lease_id(0, number), 0, start_h) for number, start_h in ((1, 0.0), (2, 167.9), (3, 168.0))
    ]


def test_what_cannot_be_noted_as_told_is_not_told(cast: Cast) -> None:
    tenant = cast.tenant(trustees=cast.trustees())
    tenant.start_leases([started(1, 0.0)], epoch=0)
    tenant._connection.execute(
        "CREATE TEMP TRIGGER cut BEFORE INSERT ON told BEGIN SELECT RAISE(ABORT, 'power cut'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="power cut"):
        registered(tenant, 0, 0, 168)


@pytest.mark.parametrize("table", ["units", "registrations"])
def test_leases_whose_start_was_cut_short_are_complete_when_it_is_repeated(cast: Cast, table: str) -> None:
    tenant = cast.tenant(trustees=cast.trustees())
    cut = f"CREATE TEMP TRIGGER cut BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'power cut'); END"
    tenant._connection.execute(cut)
    with pytest.raises(sqlite3.IntegrityError, match="power cut"):
        tenant.start_leases([started(1, 0.0)], epoch=0)
    tenant._connection.execute("DROP TRIGGER cut")
    tenant.start_leases([started(1, 0.0)], epoch=0)
    (ladder,) = registered(tenant, 0, 0, 168).values()
    assert ladder.labels.items() <= tenant.journal.labels(str(lease_id(0, 1))).items()


def test_a_registration_carries_the_tenants_own_word_of_what_it_has_told(cast: Cast) -> None:
    tenant = cast.tenant(trustees=cast.trustees())
    tenant.start_leases([started(1, 0.0), replace(started(2, 200.0), descriptor=a_descriptor("mixtral"))], epoch=0)
    assert owned(tenant, 0, (300, 336)) == set()
    contexts = ("c" * 32, "d" * 32)
    first_week, second_week = owned(tenant, 0, (0, 168)), owned(tenant, 0, (168, 336))
    (first,), (second,) = (registered(tenant, 0, *window).values() for window in ((0, 168), (168, 336)))
    assert first_week == {*first.labels.values(), *contexts}
    assert second_week == {*second.labels.values(), *contexts}
    assert owned(tenant, 0, (0, 336)) == first_week | second_week
    assert owned(tenant, 1, (0, 336)) == set()
    told = {str(ladder.exact) for ladder in (first, second)}
    assert not told & (first_week | second_week)  # no row is made of those, so nobody is told who holds them


def test_a_word_is_of_the_hours_that_it_is_asked_about(cast: Cast) -> None:
    """However often it is asked, and of leases that it has told of."""
    tenant = cast.tenant(trustees=cast.trustees())
    tenant.start_leases([started(1, 167.9), replace(started(2, 168.0), descriptor=a_descriptor("mixtral"))], epoch=0)
    ladders = registered(tenant, 0, 0, 336)
    both = [str(ladders[lease_id(0, number)].subarchetype) for number in (1, 2)]
    for window, held in (((0, 168), both[:1]), ((0, 169), both), ((168, 336), both[1:]), ((0, 168), both[:1])):
        assert owned(tenant, 0, window) & set(both) == set(held)


def owned(tenant: Tenant, epoch: int, window: tuple[int, int]) -> set[str]:
    """The tokens that the tenant signs when it is asked about a window, in hexadecimal."""
    answer = tenant.register(keys().provider.sign(RegistrationRequest(epoch, *window)))
    key = keys().directory.members[0].verify_key
    said = open_signed(Ownership, open_signed(Registration, answer, key).ownership, key)
    assert (said.tenant, said.epoch, said.start_hour, said.end_hour) == (tenant.id, epoch, *window)
    return set(map(str, said.tokens))


def test_failures_of_strangers_are_not_journalled(cast: Cast) -> None:
    tenant = cast.tenant()
    known, stranger = a_unit(1), a_unit(2)
    tenant.journal.add([known], [])
    with pytest.raises(sqlite3.IntegrityError):
        tenant.record([a_failure(known), a_failure(stranger)])
    assert tenant.journal.failures(0, 168) == []
    with pytest.raises(UnknownUnit, match=stranger.unit):
        tenant.journal.labels(stranger.unit)


def test_a_bundle_is_kept_and_the_newest_is_used(cast: Cast) -> None:
    tenant = cast.tenant()
    assert tenant.bundle() is None
    assert tenant.catalogue() == ()
    for number in (1, 3, 2):
        message = keys().provider.sign(a_bundle(number))
        assert decode(Receipt, tenant.answer(Query.BUNDLE, message)).held == digest(message)
    assert tenant.bundle() == a_bundle(3)
    assert tenant.catalogue() == a_bundle(3).catalogue


def test_a_bundle_that_the_provider_did_not_sign_is_not_kept(cast: Cast) -> None:
    tenant = cast.tenant()
    with pytest.raises(BadSignature):
        tenant.accept(SigningKey.generate(os.urandom).sign(a_bundle(1)))
    assert tenant.bundle() is None


def test_a_second_bundle_of_one_number_is_the_providers_fault_and_not_acknowledged(cast: Cast) -> None:
    tenant = cast.tenant()
    first = keys().provider.sign(a_bundle(1))
    assert tenant.accept(first) == tenant.accept(first)
    with pytest.raises(PeerFault, match="two different bundles 1"):
        tenant.accept(keys().provider.sign(replace(a_bundle(1), epoch=5)))
    assert tenant.bundle() == a_bundle(1)


# ---- what the tests above are made of ------------------------------------------------------------------------------


class PowerCut(Exception):
    """An injected fault."""


class NoMoreNoise(SystemSampler):
    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        raise AssertionError("noise was drawn")


class Failing(SystemSampler):
    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        raise PowerCut


class Together(SystemSampler):
    """Draws only when `parties` threads have come this far."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self._barrier = threading.Barrier(parties, timeout=PATIENCE_S)

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        self._barrier.wait()
        return super().laplace_share(scale, shares, size)


class PausesBeforeKeeping(Connection):
    """Does not commit a contribution before it is told to go on."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._written = False

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        self._written |= "INTO outbox " in sql
        if self._written and sql == "COMMIT":
            self.reached.set()
            self.go_on.wait(PATIENCE_S)
        return super().execute(sql, parameters)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return a_home(tmp_path)


def a_home(root: Path) -> Path:
    """A tenant's home, and beside it the signed plan."""
    path = root / "home"
    member = create(path, os.urandom, 0.0)
    pin(path, [keys().founding, keys().provider.sign(next_entry(keys().directory, joined=[member]))])
    (path / "policy.toml").write_text("owners_minimum = 3\ncohort_minimum = 3\ncolluding_share = 0.3\n")
    (root / "plan").write_bytes(signed(a_plan()))
    return path


@contextmanager
def living_in(home: Path) -> Iterator[Tenant]:
    with closing(open_tenant(home, (), os.urandom, SystemSampler())) as tenant:
        yield tenant


def contribute_until(home: Path, moment: Moment) -> "subprocess.Popen[bytes]":
    script = REPOSITORY / "tests" / "support" / "contribute_and_die.py"
    command: list[str | Path] = [sys.executable, script, home, home.parent / "plan", moment]
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})


def opened(message: bytes, tenant: int = 0) -> tuple[ContributionHeader, Words]:
    """What a tenant signed, and its words."""
    header, contribution = opened_contribution(message, lambda _: keys().directory.members[tenant].verify_key)
    return header, words_from_bytes(contribution.cells)


def unmasked(plan: Plan, message: bytes) -> tuple[Any, ...]:
    """The cells without their masks, which takes the keys of all three trustees."""
    header, words = opened(message)
    return from_ring(plan, words - masks_over(plan, header))


def masks_over(plan: Plan, header: ContributionHeader) -> Words:
    """What the trustees together take off a contribution."""
    own = keys().directory.members[0].mask_key
    return add_words(
        keys().trustees[trustee.index - 1][2].mask(stream_of(header, own, trustee), plan.words)
        for trustee in plan.trustees
    )


def a_wide_plan(number: int = 1, **settings: Any) -> Plan:
    """A plan of many cells, none of which counts anything."""
    sides = {name: tuple(f"{name} {place}" for place in range(SIDE)) for name in WIDE.dimensions}
    marginals = (MarginalSpec("grid", WIDE.dimensions, (), 1.0),)
    return a_plan(number, marginals=marginals, public_levels=sides, **settings)


def started(number: int, start_h: float) -> StartedLease:
    contexts = {"context": "c" * 32, "context_level": "d" * 32}
    return StartedLease(lease_id(0, number), start_h, contexts, a_descriptor())


def registered(tenant: Tenant, epoch: int, start_hour: int, end_hour: int) -> dict[LeaseId, Ladder]:
    answer = tenant.register(keys().provider.sign(RegistrationRequest(epoch, start_hour, end_hour)))
    said = open_signed(Registration, answer, keys().directory.members[0].verify_key)
    return {lease: workload.ladder for workload in said.workloads for lease in workload.leases}


def a_bundle(number: int) -> Bundle:
    catalogue = (CatalogueEntry(f"benchmark {number}", bytes(SKETCH_BYTES)),)
    return Bundle(number, 0, 168 * number, catalogue, (), (), None)
