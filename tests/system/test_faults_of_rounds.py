"""A round beside everything that goes wrong short of death: parties away, disks full, messages damaged, clocks off.

Whatever happens, a release holds the exact counts of those whose contributions came whole, or there is a typed refusal
and the round goes on later; see `tests/support/federations.py` for what is looked at.
"""

import logging
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import sqlalchemy as sa
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import Phase, given, settings, strategies as st

from crypto.errors import CohortTooSmall, PeerFault, PharoahError, Unreachable
from federation.base.sqlite import StorageFailed, reporting
from federation.protocol.queries import BLOB, RECORD, Query
from federation.protocol.versions import HELLO_BYTES
from provider_server.fleet.release import Release
from provider_server.rounds.network.grid_tenants import Why
from provider_server.rounds.store.round_store import RoundState
from provider_server.rounds.week import MaskHolder
from simulation.run.federation import Federation
from tenant_client.doctor.records.database import open_database
from tests.support.changing import replace
from tests.support.federations import (
    COHORT,
    LEASES,
    WEEKS,
    Answerer,
    Grounds,
    Window,
    Witness,
    begin,
    complaints,
    fail,
    hold,
    is_exact,
)
from tests.support.trustees import Reached
from trustee.trustee import TrusteeLimits

MASKING = (3, 4, 5)
HOURS = 167.0  # of a lease in the first week: all begin with its second hour
NODES = 4


def unheard(answer: Answerer) -> Answerer:
    """Contributes, and nobody gets it."""

    def lost(verb: Query, payload: bytes) -> bytes:
        said = answer(verb, payload)
        if verb is Query.CONTRIBUTION:
            raise Unreachable("the answer is lost")
        return said

    return lost


def gone(answer: Answerer) -> Answerer:
    """Registers, and is not there any more when contributions are collected."""

    def away(verb: Query, payload: bytes) -> bytes:
        if verb is Query.CONTRIBUTION:
            raise Unreachable("nobody is there")
        return answer(verb, payload)

    return away


def failures(release: Release) -> int:
    return round(float(release.table("pairs").events.sum()))


def node_hours(release: Release) -> float:
    return float(release.table("pairs").exposure_node_hours.sum())


# ---- tenants and trustees that are away ------------------------------------------------------------------------------


def vanishing(federation: Federation) -> dict[int, Answerer]:
    """Three of ten: one contributes and is not heard, two are gone."""
    answers = [tenant.answer for tenant in federation.tenants]
    return {0: unheard(answers[0]), 1: gone(answers[1]), 2: gone(answers[2])}


def test_three_of_ten_vanish_in_the_round_and_neither_their_failures_nor_their_hours_count(tmp_path: Path) -> None:
    grounds = Grounds.of_failures(tmp_path, 10)
    with grounds.opened(tmp_path) as federation:
        release, _ = hold(federation, WEEKS[0], vanishing(federation))
        assert {answer.tenant for answer in release.answered} == {tenant.id for tenant in federation.tenants[3:]}
        assert is_exact(federation, release)
        assert failures(release) == 7
        assert node_hours(release) == 7 * LEASES * NODES * HOURS
        assert [len(tenant.ledger.charges()) for tenant in federation.tenants] == [1, 0, 0, *[1] * 7]


def test_the_week_of_who_was_gone_counts_in_the_next_one_at_no_further_price(tmp_path: Path) -> None:
    """Whoever answered and was not heard has its charge back, and pays once for both, as does who was not there."""
    grounds = Grounds.of_failures(tmp_path, 10)
    with grounds.opened(tmp_path) as federation:
        first, _ = hold(federation, WEEKS[0], vanishing(federation))
        second, _ = hold(federation, WEEKS[1])
        assert failures(first) == 7
        assert second.contributors == 10
        assert failures(second) == 10 + 3
        assert node_hours(second) == (10 * 168 + 3 * HOURS) * LEASES * NODES
        assert is_exact(federation, second)
        ledgers = [tenant.ledger for tenant in federation.tenants]
        paid = [[(one.start_h, one.end_h, one.is_given_back) for one in ledger.charges()] for ledger in ledgers]
        assert paid[0] == [(0, 168, True), (0, 336, False)]
        assert paid[1] == paid[2] == [(0, 336, False)]
        assert paid[3] == [(0, 168, False), (168, 336, False)]
        assert len({ledger.spent(0, 336) for ledger in ledgers}) == 1


@dataclass
class Away(Reached):
    """A trustee that cannot be reached at one method while `away`; what it was asked for is counted."""

    at: str
    away: bool = True
    asked: int = 0

    def endorse(self, request: bytes) -> bytes:
        return self._answer("endorse", request)

    def unmask(self, call: bytes) -> bytes:
        return self._answer("unmask", call)

    def _answer(self, method: str, question: bytes) -> bytes:
        self.asked += method == self.at
        if self.away and method == self.at:
            raise Unreachable(f"trustee {self.index} does not answer")
        answer: bytes = getattr(self.inner, method)(question)
        return answer


@pytest.mark.parametrize(("at", "state"), [("endorse", RoundState.ENDORSING), ("unmask", RoundState.UNMASKING)])
def test_a_trustee_is_away_for_an_hour_and_the_round_waits_for_it(tmp_path: Path, at: str, state: RoundState) -> None:
    hour = [500.0]
    limits = dict.fromkeys(range(1, 6), TrusteeLimits(now_hour=lambda: hour[0]))
    grounds = Grounds.of_failures(tmp_path, COHORT)
    for _ in range(3):  # each time everybody is started anew
        with grounds.opened(tmp_path, limits) as federation:
            trustees = [Away(one, at, away=one.index == 4) for one in federation.trustees]
            with pytest.raises(Unreachable, match="trustee 4"):
                hold(federation, WEEKS[0], trustees=trustees)
            waiting = federation.provider.unfinished()
            assert waiting is not None
            assert waiting.state is state
        hour[0] += 0.5
    with grounds.opened(tmp_path, limits) as federation:
        trustees = [Away(one, at, away=False) for one in federation.trustees]
        hold(federation, WEEKS[0], trustees=trustees)
        assert complaints(federation, WEEKS[0], {}) == []
        # The third had answered before. Where sets are endorsed, one more completes the quorum.
        assert [one.asked for one in trustees] == [int(at == "endorse"), 0, 0, 1, 1]


def test_one_of_the_trustees_that_do_not_mask_may_be_away_and_two_may_not(tmp_path: Path) -> None:
    grounds = Grounds.of_failures(tmp_path, COHORT)
    with grounds.opened(tmp_path) as federation:
        trustees = [Away(one, "endorse", away=one.index <= 2) for one in federation.trustees]
        with pytest.raises(Unreachable, match=r"trustee [12]"):
            hold(federation, WEEKS[0], trustees=trustees)
        trustees = [Away(one, "endorse", away=one.index == 1) for one in federation.trustees]
        hold(federation, WEEKS[0], trustees=trustees)
        assert complaints(federation, WEEKS[0], {}) == []
        assert [one.asked for one in trustees] == [1, 1, 0, 0, 0]


# ---- disks that are full ---------------------------------------------------------------------------------------------


class Disk:
    """What a victim's database has left to grow into, little by little."""

    def grow(self) -> None:
        """A little more."""
        raise NotImplementedError


class FewPages(Disk):
    """SQLite's own limit."""

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self._pages = ask("PRAGMA page_count")
        self.grow()

    def grow(self) -> None:
        self._ask(f"PRAGMA max_page_count = {self._pages}")
        self._pages += 1


class SmallDisk(Disk):
    """A file system that a ballast fills."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"
        with suppress(OSError), self._ballast.open("wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass

    def grow(self) -> None:
        os.truncate(self._ballast, max(0, self._ballast.stat().st_size - 8 * 4096))


@contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """The folder on a file system of 2 MiB, with what is in it; the test is skipped where that is not permitted."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("mount and umount make it run")
    before = folder.with_name("before-mount")
    shutil.copytree(folder, before)
    command = [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a user who may mount runs it")
    try:
        shutil.copytree(before, folder, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run([umount, "-l", str(folder)], check=True)


def pages_of(federation: Federation, role: str) -> FewPages:
    """The limit in the one connection that the victim holds."""
    if role == "provider":
        engine = federation.provider.store._engine

        def of_store(pragma: str) -> int:
            with engine.connect() as connection:
                return int(connection.exec_driver_sql(pragma).scalar_one())

        return FewPages(of_store)
    victim = federation.tenants[0] if role == "tenant" else federation.trustees[3]
    return FewPages(lambda pragma: int(victim._connection.execute(pragma).fetchone()[0]))


FOLDERS = {"provider": "provider", "tenant": "tenants/000", "trustee": "trustees"}
FAILS: Mapping[str, type[Exception]] = {
    "provider": sa.exc.OperationalError,
    "tenant": CohortTooSmall,
    "trustee": StorageFailed,
}


def lives_on_a_full_disk(federation: Federation, role: str, witness: Witness, disk: Disk) -> int:
    """Holds the week, gives the victim a page more when it fails, and so on; how often it failed."""
    victim = federation.tenants[0]
    for failed in range(100):
        try:
            hold(federation, WEEKS[0], witness.answerers(federation), witness.trustees(federation.trustees))
        except FAILS[role]:
            left = [of for of in witness.seen() if of.startswith("contribution 0")]
            assert len(left) <= len(victim.outbox.signed_plans()), "a contribution left that is not kept"
            disk.grow()
        else:
            return failed
    raise AssertionError("the week never ends")


@pytest.mark.nightly
@pytest.mark.parametrize("role", FOLDERS)
def test_a_database_that_is_full_stops_the_week_and_page_by_page_it_goes_on(
    tmp_path: Path, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    grounds = Grounds.of_failures(tmp_path, COHORT, large=True)
    witness = Witness(tmp_path / "witness")
    with grounds.opened(tmp_path) as federation:
        assert lives_on_a_full_disk(federation, role, witness, pages_of(federation, role)) > 0
    with grounds.opened(tmp_path) as federation:  # nothing of it is in memory only
        hold(federation, WEEKS[0])
        assert complaints(federation, WEEKS[0], witness.seen()) == []


@pytest.mark.nightly
@pytest.mark.parametrize("role", FOLDERS)
def test_a_disk_that_is_full_stops_the_week_and_page_by_page_it_goes_on(
    tmp_path: Path, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    grounds = Grounds.of_failures(tmp_path, COHORT, large=True)
    witness = Witness(tmp_path / "witness")
    folder = tmp_path / FOLDERS[role]
    with mounted(folder):
        with grounds.opened(tmp_path) as federation:
            assert lives_on_a_full_disk(federation, role, witness, SmallDisk(folder)) > 0
        with grounds.opened(tmp_path) as federation:
            hold(federation, WEEKS[0])
            assert complaints(federation, WEEKS[0], witness.seen()) == []


def test_of_a_full_disk_the_provider_hears_the_name_and_the_tenant_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grounds = Grounds.of_failures(tmp_path, COHORT + 1, large=True)
    with grounds.opened(tmp_path) as federation:
        pages_of(federation, "tenant")
        with caplog.at_level(logging.WARNING):
            release, silences = hold(federation, WEEKS[0])
    assert release.contributors == COHORT
    assert {(silence.node_id, silence.why, silence.detail) for silence in silences} == {
        (0, Why.FAILED, "StorageFailed")
    }
    here = {record.name: record.getMessage() for record in caplog.records if "disk is full" in record.getMessage()}
    assert set(here) == {"tenant_client.rounds.network.flower_app"}


def test_what_a_disk_does_is_told_apart_from_what_a_bug_does(tmp_path: Path) -> None:
    (tmp_path / "garbage.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StorageFailed, match="not a database"), reporting():
        open_database(tmp_path / "garbage.db")
    connection = open_database(tmp_path / "tenant.db")
    with pytest.raises(sqlite3.IntegrityError), reporting():
        connection.execute("INSERT INTO told VALUES (x'00')")
    connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StorageFailed, match="readonly"), reporting():
        connection.execute("DELETE FROM told")
    connection.close()


def test_a_trustee_whose_disk_is_full_is_replaced_where_another_one_will_do(tmp_path: Path) -> None:
    """The first trustee signs tokens and masks nothing: neither tokens nor the week need it."""
    grounds = Grounds.of_failures(tmp_path, COHORT)
    with grounds.opened(tmp_path) as federation:
        federation.trustees[0]._connection.execute("PRAGMA query_only = ON")
        tenant = federation.tenants[0]
        tenant._connection.execute("DELETE FROM tokens")
        begin(federation, 0, WEEKS[1])
        assert {trustee for _, trustee in tenant.tokens.evaluations()} == {1, 2, 3, 4}
        release, _ = hold(federation, WEEKS[0])
        assert release.contributors == COHORT


# ---- messages --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flip:
    """One bit of a message, somewhere between its beginning (0) and its end (1)."""

    where: float

    def __call__(self, data: bytes) -> bytes:
        bit = min(int(self.where * 8 * len(data)), 8 * len(data) - 1)
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        return bytes(flipped)


@dataclass(frozen=True)
class Cut:
    """A message cut off."""

    where: float

    def __call__(self, data: bytes) -> bytes:
        return data[: int(self.where * len(data))]


class Faulty:
    """Delivers contributions as `faults` say, by node; keeps what it delivered whole."""

    def __init__(self, faults: Mapping[int, object], order: list[int], earlier: Mapping[int, bytes]) -> None:
        self._faults = faults
        self._order = order
        self._earlier = earlier
        self._late: list[Message] = []
        self.own: dict[int, bytes] = {}
        self.whole: set[int] = set()

    def __call__(self, messages: list[Message]) -> Iterable[Message]:
        if not messages:
            return []
        if messages[0].metadata.message_type != f"query.{Query.CONTRIBUTION}":
            late, self._late = self._late, []  # when something else is asked for
            return [*late, *messages]
        self.own |= {node(one): blob(one) for one in messages}
        delivered = [one for message in messages for one in self._delivered(message)]
        self.whole = {n for n, own in self.own.items() if own in {blob(one) for one in delivered}}
        places = {number: place for place, number in enumerate(self._order)}
        return sorted(delivered, key=lambda one: places[node(one)])

    def _delivered(self, message: Message) -> list[Message]:
        fault, number = self._faults.get(node(message)), node(message)
        if fault == "lost":
            return []
        if fault == "late":
            self._late.append(message)
            return []
        if fault == "replayed":
            fill(message, self._earlier[number])
        elif fault == "swapped":
            fill(message, self.own[(number + 1) % len(self.own)])
        elif isinstance(fault, Flip | Cut):
            hello, said = blob(message)[:HELLO_BYTES], blob(message)[HELLO_BYTES:]  # a hello is protected by TLS alone
            fill(message, hello + fault(said))
        return [message, message] if fault == "doubled" else [message]


def node(message: Message) -> int:
    return message.metadata.src_node_id


def blob(message: Message) -> bytes:
    held = message.content[RECORD][BLOB]
    assert isinstance(held, bytes)
    return held


def fill(message: Message, data: bytes) -> None:
    message.content = RecordDict({RECORD: ConfigRecord({BLOB: data})})


@dataclass
class Mangling(Reached):
    """A trustee, with what goes wrong on its way: each fault once."""

    faults: dict[str, object]
    other: MaskHolder
    earlier: Mapping[str, bytes]

    def endorse(self, request: bytes) -> bytes:
        return self._answer("endorse", request)

    def unmask(self, call: bytes) -> bytes:
        return self._answer("unmask", call)

    def _answer(self, method: str, question: bytes) -> bytes:
        fault = self.faults.pop(method, None)
        if fault == "swapped":
            return bytes(getattr(self.other, method)(question))
        if fault == "misheard":
            return bytes(getattr(self.inner, method)(Flip(0.5)(question)))
        said: bytes = getattr(self.inner, method)(question)
        if fault == "lost":
            raise Unreachable("the answer is lost")
        if fault == "doubled":
            assert getattr(self.inner, method)(question) == said
        if fault == "replayed":
            return self.earlier[f"{method} {self.index}"]
        return fault(said) if isinstance(fault, Flip | Cut) else said


class Story:
    """A federation of five whose first week is over, and what was said in it. Shown by name: it is large."""

    def __init__(
        self, root: Path, grounds: Grounds, contributions: Mapping[int, bytes], answers: Mapping[str, bytes]
    ) -> None:
        self.root = root
        self.grounds = grounds
        self.window: Window = WEEKS[1]
        self.contributions = contributions
        self.answers = answers

    @contextmanager
    def copy(self) -> Iterator[Federation]:
        with TemporaryDirectory(dir=self.root) as folder:
            shutil.copytree(self.root / "before", Path(folder) / "copy")
            with self.grounds.opened(Path(folder) / "copy") as federation:
                yield federation


@dataclass
class Recording(Reached):
    """Keeps what a trustee answers."""

    said: dict[str, bytes]

    def endorse(self, request: bytes) -> bytes:
        return self.said.setdefault(f"endorse {self.index}", self.inner.endorse(request))

    def unmask(self, call: bytes) -> bytes:
        return self.said.setdefault(f"unmask {self.index}", self.inner.unmask(call))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = tmp_path_factory.mktemp("story")
    grounds = Grounds.of_failures(root / "before", 5)
    answers: dict[str, bytes] = {}
    faultless = Faulty({}, list(range(5)), {})
    with grounds.opened(root / "before") as federation:
        trustees = [Recording(one, answers) for one in federation.trustees]
        hold(federation, WEEKS[0], trustees=trustees, deliver=faultless)
    return Story(root, grounds, faultless.own, answers)


PLACES = st.floats(0, 1, exclude_max=True)
DAMAGE = st.builds(Flip, PLACES) | st.builds(Cut, PLACES)
ON_THE_WAY = st.sampled_from(["lost", "late", "doubled", "replayed", "swapped"]) | DAMAGE
ANSWERS = st.tuples(st.sampled_from(MASKING), st.sampled_from(["endorse", "unmask"]))
OF_TRUSTEES = st.sampled_from(["lost", "doubled", "replayed", "swapped", "misheard"]) | DAMAGE


@pytest.mark.nightly
@settings(max_examples=15, phases=[Phase.explicit, Phase.generate], print_blob=True)
@given(
    faults=st.dictionaries(st.integers(0, 4), ON_THE_WAY),
    order=st.permutations(range(5)),
    of_trustees=st.dictionaries(ANSWERS, OF_TRUSTEES),
)
def test_a_release_counts_exactly_those_whose_contributions_came_whole(
    story: Story, faults: dict[int, object], order: list[int], of_trustees: dict[tuple[int, str], object]
) -> None:
    """Whatever else happens on the way is a typed refusal, after which the round goes on."""
    with story.copy() as federation:
        deliver = Faulty(faults, order, story.contributions)
        trustees = [
            Mangling(
                one,
                {method: fault for (index, method), fault in of_trustees.items() if index == one.index},
                federation.trustees[one.index % 5],
                story.answers,
            )
            for one in federation.trustees
        ]
        whole: set[int] = set()
        for _ in range(1 + len(of_trustees) + 1):
            try:
                release, _ = hold(federation, story.window, trustees=trustees, deliver=deliver)
            except CohortTooSmall:
                assert len(deliver.whole) < COHORT
                whole |= deliver.whole
                deliver = Faulty({}, order, {})
            except PharoahError:
                assert federation.provider.unfinished() is not None
            else:
                break
        else:
            raise AssertionError("the week never ends")
        whole |= deliver.whole
        answered = {answer.tenant for answer in release.answered}
        assert answered == {federation.tenants[number].id for number in whole}
        missing = frozenset(range(5)) - whole
        assert complaints(federation, story.window, {}, missing) == []


def test_the_exact_counts_are_told_from_any_others(story: Story) -> None:
    with story.copy() as federation:
        release, _ = hold(federation, story.window)
        assert is_exact(federation, release)
        table, *others = release.tables
        for wrong in (table.events + 1, -table.events, table.events * 0.9):
            assert not is_exact(federation, replace(release, tables=(replace(table, events=wrong), *others)))
        assert not is_exact(federation, replace(release, answered=release.answered[1:]))


# ---- clocks ----------------------------------------------------------------------------------------------------------

EPOCH_HOURS = WEEKS[-1][1]


@pytest.mark.nightly
@pytest.mark.parametrize(("epochs_off", "asked"), [(0, 3), (1, 3), (-1, 3), (2, 4), (-2, 4)])
def test_a_trustee_with_a_wrong_clock_is_replaced_and_one_at_the_next_epoch_will_do(
    tmp_path: Path, epochs_off: int, asked: int
) -> None:
    """Rounds know no clock: the third trustee masks in them, whatever the time is with it."""
    now = 300.0
    limits = dict.fromkeys(range(1, 6), TrusteeLimits(now_hour=lambda: now))
    limits[3] = TrusteeLimits(now_hour=lambda: now + epochs_off * EPOCH_HOURS)
    grounds = Grounds.founded(tmp_path, COHORT)
    with grounds.opened(tmp_path, limits) as federation:
        for number in range(COHORT):
            begin(federation, number)
            fail(federation, number)
        assert {len(tenant.tokens.evaluations()) for tenant in federation.tenants} == {asked}
        hold(federation, WEEKS[0])
        assert complaints(federation, WEEKS[0], {}) == []


def test_with_three_wrong_clocks_of_five_there_are_no_tokens(tmp_path: Path) -> None:
    wrong = dict.fromkeys((1, 2, 3), TrusteeLimits(now_hour=lambda: 3 * EPOCH_HOURS))
    grounds = Grounds.founded(tmp_path, COHORT)
    with grounds.opened(tmp_path, wrong) as federation, pytest.raises(PeerFault, match="EpochNotCurrent") as fault:
        begin(federation, 0)
    assert "only 2 of 3 trustees" in fault.value.what
