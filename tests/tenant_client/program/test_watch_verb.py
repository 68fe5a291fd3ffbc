"""`pharoah-tenant watch`: a provider that is killed under load costs no hint, what it says, and its exit codes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from crypto.errors import NothingPublished, Unreachable
from crypto.ids import LeaseId, TenantId
from crypto.signing import SigningKey
from federation.protocol.bundle import Bundle, MismatchEntry, PairJudgement
from federation.protocol.service_messages import Action, Hint, HintState, Suspicion
from federation.protocol.services import ProviderMethod
from federation.transport.certificates import make_certificate
from federation.transport.client import Peer
from provider_server.rounds.store.store import Store
from simulation.run.processes import free_ports
from tenant_client.doctor.advice.hints import STANDS_H, HintLog, episodes, line_of, standing
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal, Unit
from tenant_client.program.cli import app
from tenant_client.program.verbs.hints import UNKNOWN
from tests.support import schemas
from tests.support.factories import NO_SIGNATURE, labels, ladder, token
from tests.support.federations import Grounds
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[3]
HOST = "127.0.0.1"
LEASE = LeaseId(b"lease of a job 1")
OTHER = LeaseId(b"lease of a job 2")
Numbers = list[int]
WITHOUT_END = 1_000_000


# ---- a provider on disk, and programs around it ----------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A provider's home, a tenant's home that knows where it is, and who the tenant is."""

    provider: Path
    tenant: Path
    tenant_id: TenantId
    port: int

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "PHAROAH_HOME": str(self.tenant), "OMP_NUM_THREADS": "1"}

    @contextmanager
    def providing(self, count: int) -> Iterator[subprocess.Popen[str]]:
        """A provider that says `count` things in all; it is killed in the end, if not before."""
        words = [str(self.provider), str(self.port), str(LEASE), str(self.tenant_id), str(count)]
        command = [sys.executable, "-m", "tests.support.hinting_provider", *words]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=self.environment
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            try:
                yield process
            finally:
                process.kill()

    def called(self, *words: str, verb: str = "watch", **more: str) -> Result:
        """The verb in this process, to its end."""
        result = CliRunner().invoke(app, [verb, *words], env=self.environment | more)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def answered(self, *words: str, **more: str) -> Result:
        """The verb with `--once`, again until the provider has answered in the seconds that the verb allows."""
        return until(lambda: done if (done := self.called("--once", *words, **more)).exit_code != UNKNOWN else None)

    def made(self) -> int:
        """How many hints the provider has made so far."""
        with closing(Store(self.provider / "provider.db", create=False)) as store:
            return int(store.hints.state() or 0)

    def logged(self) -> list[Hint]:
        with closing(open_database(self.tenant / "tenant.db")) as connection:
            return HintLog(connection).hints()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    grounds = Grounds.founded(tmp_path, 2)
    federation = grounds.federation
    home, tenant = tmp_path / "provider", tmp_path / "tenants/000"
    made = make_certificate([HOST], datetime.now(UTC))
    (home / "tls.pem").write_bytes(made.certificate_pem)
    (home / "tls.key").write_bytes(made.key_pem)
    (home / "signing.key").write_bytes(federation.provider._signing_key._private.private_bytes_raw())
    (home / "context.key").write_bytes(federation.provider._context_secret)
    (tenant / "provider.pem").write_bytes(made.certificate_pem)
    with free_ports(HOST, 1) as (port,):
        (tenant / "tenant.toml").write_text(f'[provider]\nonline = "{HOST}:{port}"\n')
        yield Place(home, tenant, federation.tenants[0].id, port)


@contextmanager
def watching(place: Place, *words: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The verb in a process of its own, and the lines that it has printed so far."""
    command = [sys.executable, "-m", "tenant_client", "watch", *words]
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=place.environment
    ) as process:
        assert process.stdout is not None
        stdout = process.stdout

        def read() -> None:
            for line in stdout:
                lines.append(line)  # noqa: PERF402 - the test looks at it meanwhile

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield process, lines
        finally:
            process.kill()
            reader.join()


@contextmanager
def load(place: Place) -> Iterator[list[int]]:
    """Others ask the provider without a pause; how many answers they got."""
    answers, stop = [0, 0], threading.Event()

    def ask(number: int) -> None:
        certificate = (place.tenant / "provider.pem").read_bytes()
        with Peer(f"{HOST}:{place.port}", certificate, deadline_s=5.0, retries=0) as peer:
            while not stop.is_set():
                try:
                    peer.call(ProviderMethod.DIRECTORY, b"")
                except (Unreachable, NothingPublished):
                    continue
                answers[number] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def reached(lines: list[str], number: int) -> bool:
    return bool(lines) and numbers(lines[-1:])[0] >= number


def numbers(lines: list[str]) -> Numbers:
    return [int(json.loads(line)["number"]) for line in lines]


# ---- no hint is lost -------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_provider_that_is_killed_under_load_costs_no_hint_and_repeats_none(place: Place) -> None:
    kept = []
    with watching(place, "--json") as (process, lines), load(place) as answers:
        for stop in (1, 150):
            with place.providing(WITHOUT_END):
                until(partial(reached, lines, stop))
            kept.append(len(lines))
        count = place.made() + 100
        with place.providing(count):
            until(lambda: len(lines) >= count and all(answers))
            assert process.poll() is None
    assert numbers(lines) == [*range(1, count + 1)]
    assert kept == sorted(set(kept))
    assert kept[-1] < count
    assert [hint.number for hint in place.logged()] == [*range(1, count + 1)]
    assert {hint.lease for hint in place.logged()} == {LEASE}  # of the other tenant's as many went elsewhere


@pytest.mark.nightly
def test_a_tenant_that_is_killed_goes_on_after_the_last_hint_that_it_kept(place: Place) -> None:
    count, seen = 200, []
    with place.providing(count):
        for stop in (1, 60, 120):
            with watching(place, "--json") as (_, lines):
                until(partial(reached, lines, stop))
            seen += numbers([line for line in lines if line.endswith("\n")])
        with watching(place):
            until(lambda: len(place.logged()) == count)
    assert [hint.number for hint in place.logged()] == [*range(1, count + 1)]
    twice = {number for number in seen if seen.count(number) > 1}
    assert len(twice) <= 2  # a hint that still stood when the next one began


# ---- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_exit_code_of_once_says_whether_a_hint_stands(place: Place) -> None:
    with place.providing(0):
        assert place.answered("--wait-s", "1").exit_code == 0
    with place.providing(3):
        until(lambda: place.made() == 3)
        done = place.answered("--wait-s", "5")
        assert (done.exit_code, done.stderr) == (1, "")
        assert len(done.stdout.splitlines()) == 3
        assert done.stdout.splitlines()[2].startswith(f"hint 3: lease {LEASE} raised: test with `pharoah-tenant")
        again = place.answered("--wait-s", "1")
        assert (again.exit_code, again.stdout) == (1, done.stdout.splitlines(keepends=True)[2])
        assert place.answered("--wait-s", "1", PHAROAH_LEASE=str(OTHER)).exit_code == 0
        other = place.answered("--wait-s", "1", "--lease", str(OTHER))
        assert (other.exit_code, other.stdout) == (0, "")
    with place.providing(4):
        until(lambda: place.made() == 4)
        watched = partial(schemas.held, "pharoah-tenant watch")
        done = place.answered("--wait-s", "5", "--json")
        assert done.exit_code == 0
        assert [told["state"] for told in map(watched, done.stdout.splitlines())] == ["raised", "cleared"]


@pytest.mark.nightly
def test_a_provider_that_is_away_is_unknown_but_for_what_is_known(place: Place) -> None:
    done = place.called("--once", "--wait-s", "1")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "did not answer" in done.stderr
    with closing(open_database(place.tenant / "tenant.db")) as connection:
        HintLog(connection).take(hint(1, at_h=time.time() / 3600), time.time(), NO_SIGNATURE)
    assert place.called("--once", "--wait-s", "1").exit_code == 1


def test_errors_are_unknown_with_once_and_refused_without(place: Place) -> None:
    (place.tenant / "tenant.toml").unlink()
    done = place.called("--once")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "has no address" in done.stderr
    assert place.called().exit_code == 2


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_whoever_has_seen_enough_ends_it(place: Place, kind: signal.Signals) -> None:
    with place.providing(1), watching(place) as (process, lines):
        until(lambda: len(lines) == 1)
        process.send_signal(kind)
        assert process.wait(PATIENCE_S) == 0


# ---- the log ---------------------------------------------------------------------------------------------------------


def hint(number: int, state: HintState = HintState.RAISED, times: int = 1, at_h: float = 10.0, **more: Any) -> Hint:
    action = {HintState.CLEARED: Action.NOTHING, HintState.ESCALATED: Action.MOVE}.get(state, Action.CONFIRM)
    fields = {"suspicion": Suspicion.MEMORY, "lease": LEASE, "action": action} | more
    return Hint(
        number=number,
        at_h=at_h,
        state=state,
        ratio=20.0,
        ratio_low=15.0,
        ratio_high=30.0,
        probability=0.0512,
        within_hours=24.0,
        times=times,
        **fields,
    )


def test_the_log_keeps_each_number_once_and_knows_the_last(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        log = HintLog(connection)
        assert (log.cursor(), log.hints()) == (0, [])
        told = hint(3), hint(4, lease=OTHER), hint(3, times=2)
        assert [log.take(one, 1.0, NO_SIGNATURE) for one in told] == [True, True, False]
        assert (log.cursor(), [one.number for one in log.hints(after=3)]) == (4, [4])
        assert log.hints(str(LEASE)) == [hint(3)]


def test_an_episode_goes_from_its_first_hint_to_its_last_and_stands_until_it_is_cleared_or_old() -> None:
    raised, worse, cleared = hint(1), hint(3, HintState.ESCALATED, at_h=12.0), hint(4, HintState.CLEARED, at_h=20.0)
    elsewhere, again = hint(2, lease=OTHER), hint(5, HintState.ESCALATED, times=2, at_h=30.0)
    found = episodes([raised, elsewhere, worse, cleared, again])
    assert [(one.first.number, one.last.number) for one in found] == [(1, 4), (2, 2), (5, 5)]
    assert [one.number for one in standing([raised, elsewhere, worse], 13.0)] == [3, 2]
    assert [one.number for one in standing([raised, worse, cleared, again], 31.0)] == [5]
    assert list(standing([raised], 10.0 + STANDS_H)) == []
    assert list(standing([raised], 9.0 + STANDS_H)) == [raised]


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (hint(7), "raised: test with `pharoah-tenant confirm memory`; its worst node has 20 times the usual hazard"),
        (hint(7), "(15–30); failure probability of the lease 5.1% within 24 h; suspected: memory"),
        (hint(7, HintState.ESCALATED, 3), "escalated: take a checkpoint, and request other nodes; "),
        (hint(7, HintState.ESCALATED, 3), "within 24 h, for the third time; suspected"),
        (hint(7, HintState.CLEARED), "cleared: no action; its nodes are back to normal"),
        (hint(7, action=Action.CHECKPOINT, suspicion=Suspicion.UNCLEAR), "take a checkpoint; "),
    ],
)
def test_a_line_has_one_action_and_a_reason(told: Hint, line: str) -> None:
    assert line in line_of(told)
    assert line_of(told).startswith(f"hint 7: lease {LEASE} ")
    assert "\n" not in line_of(told)


# ---- checks by the provider ------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_check_by_the_provider_says_what_its_newest_bundle_says(place: Place) -> None:
    """The tenant holds no bundle: by itself it knows nothing."""
    own = labels(0, 0) | {"context": str(token("here"))}
    with closing(open_database(place.tenant / "tenant.db")) as connection:
        Journal(connection).add([Unit("lease", 1.0, own), Unit("bare", 1.0, {})], [])
    entry = MismatchEntry(ladder(0).subarchetype, token("here"), 1.0, 8.0, 4.0, 16.0, 3.0, PairJudgement.WORSE, ())
    key = SigningKey((place.provider / "signing.key").read_bytes())
    with closing(Store(place.provider / "provider.db")) as store:
        store.add_bundle(4, key.sign(Bundle(4, 0, 168, (), (entry,), (), None)))
    with place.providing(0):
        asked = place.called("lease", "--online", verb="check")
        bare = place.called("bare", "--online", verb="check")
    assert (asked.exit_code, asked.stdout.splitlines()[0][:9]) == (2, "mismatch:")
    assert (bare.exit_code, "no context tokens" in bare.stderr) == (3, True)
    assert place.called("lease", verb="check").exit_code == 3
    away = place.called("lease", "--online", verb="check")
    assert (away.exit_code, "gave no answer" in away.stderr) == (3, True)


@pytest.mark.nightly
def test_what_the_provider_was_asked_is_listed_by_kind_and_hour_also_where_nothing_answered(place: Place) -> None:
    def listed() -> dict[str, int]:
        rows = json.loads(place.called("--json", verb="sent").stdout)["questions"]
        assert {row["receiver"] for row in rows} <= {f"{HOST}:{place.port}"}
        assert all(0 <= time.time() / 3600 - row["hour"] < 2 and row["sent_bytes"] > 0 for row in rows)
        counted: Counter[str] = Counter()
        for row in rows:
            counted[row["kind"]] += row["questions"]
        return dict(counted)

    own = labels(0, 0) | {"context": str(token("here"))}
    with closing(open_database(place.tenant / "tenant.db")) as connection:
        Journal(connection).add([Unit("lease", 1.0, own)], [])
    place.called("lease", verb="check")  # is answered here, and asks nobody
    assert (place.called(verb="sent").exit_code, listed()) == (UNKNOWN, {})
    with place.providing(0):
        place.called("lease", "--online", verb="check")
        assert listed() == {"sign-in": 1, "check": 1}
        place.called("--once")
    assert listed() == {"sign-in": 2, "check": 1, "watch": 1}
    place.called("lease", "--online", verb="check")  # the provider is away: a sign-in may have left, and no check
    assert listed() == {"sign-in": 3, "check": 1, "watch": 1}
    shown = place.called(verb="sent")
    assert shown.exit_code == 0
    assert f"requests to {HOST}:{place.port}: " in shown.stdout
