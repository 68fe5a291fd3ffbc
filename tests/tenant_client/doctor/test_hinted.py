"""Hints beside a job: one finding with one action where the job shows a sign too, and never anything into the job."""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crypto.ids import LeaseId
from federation.protocol.service_messages import Action, Hint, HintState, Suspicion
from tenant_client.doctor.advice.hints import STANDS_H, Episode, HintLog, episodes
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.run.lease_hints import EVERY_S, Hinted, fuse, join
from tenant_client.doctor.run.watchdog import Kind, WatchFinding
from tests.jobs.wrapped import LEASE as NO_LEASE, PROGRAM, Outcome, attempts, run, start
from tests.support.factories import NO_SIGNATURE
from tests.tenant_client.program.test_watch_verb import LEASE, OTHER, hint

NOW_H = 500_000.0
NOW_S = NOW_H * 3600
CONFIRM = "test with `pharoah-tenant confirm memory`"
ON_LEASE = ("--lease", str(LEASE))
# Says that it has begun and stands still until a file is there; then it prints, and ends as it would without us.
STANDS = """
import os, sys, time
from pathlib import Path
from typing import Any
from tenant_client.doctor.run.hook.progress import Progress, Writer
Writer(Path(os.environ["PHAROAH_RUN_DIR"]), Progress(0, os.getpid(), 0, time.time(), "start", None, 0))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
print("done")
sys.exit(5)
"""


def slow(ranks: Sequence[int] = (3,), cleared_at_s: float | None = None) -> WatchFinding:
    return WatchFinding(Kind.SLOW_RANK, NOW_S, 10, tuple(ranks), "rank 3 slows down the other ranks", cleared_at_s)


def told(*hints: Hint) -> list[Episode]:
    return episodes(hints)


def raised(number: int = 1, at_h: float = NOW_H, lease: LeaseId = LEASE, **more: Any) -> Hint:
    return hint(number, at_h=at_h, lease=lease, **more)


def keep(home: Path, *hints: Hint) -> None:
    home.mkdir(exist_ok=True)
    with closing(open_database(home / "tenant.db")) as connection:
        for one in hints:
            HintLog(connection).take(one, 0.0, NO_SIGNATURE)


# ---- one finding, one action -----------------------------------------------------------------------------------------


def test_a_slow_rank_and_a_hint_are_one_finding_with_one_action() -> None:
    (found,) = fuse([slow()], told(raised()), NOW_S)
    assert (found.kind, found.ranks) == (Kind.SLOW_RANK, (3,))
    assert found.text == f"rank 3 slows down the other ranks; the provider suspects memory: {CONFIRM}"


def test_a_hint_without_a_sign_of_the_job_is_a_finding_of_its_own() -> None:
    (found,) = fuse([], told(raised(at_h=NOW_H - 1)), NOW_S)
    assert (found.kind, found.since_s, found.cleared_at_s) == (Kind.HINT, NOW_S - 3600, None)
    assert found.text.startswith(f"lease {LEASE} raised: {CONFIRM}; ")
    (over,) = fuse([], told(raised(at_h=NOW_H - 3), hint(2, HintState.CLEARED, at_h=NOW_H - 1)), NOW_S)
    assert (over.since_s, over.cleared_at_s) == (NOW_S - 3 * 3600, NOW_S - 3600)


@pytest.mark.parametrize(
    "own",
    [
        slow(cleared_at_s=NOW_S),
        WatchFinding(Kind.NAN_LOSS, NOW_S, 10, (0,), "loss of rank 0 is nan"),
        WatchFinding(Kind.LOSS_SPIKE, NOW_S, 10, (0,), "loss rose"),
    ],
)
def test_what_is_over_or_of_another_kind_is_not_joined(own: WatchFinding) -> None:
    assert [found.kind for found in fuse([own], told(raised()), NOW_S)] == [own.kind, Kind.HINT]
    assert join(own, told(raised())) is own


@pytest.mark.parametrize("last", [hint(2, HintState.CLEARED, at_h=NOW_H), raised(1, NOW_H - STANDS_H)])
def test_a_hint_that_no_longer_stands_is_not_joined(last: Hint) -> None:
    assert fuse([slow()], told(last), NOW_S)[0] == slow()


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (
            raised(suspicion=Suspicion.UNCLEAR, action=Action.CHECKPOINT),
            "; the provider reports a raised failure risk: take a",
        ),
        (hint(1, HintState.ESCALATED, 3, at_h=NOW_H), "suspects memory: take a checkpoint, and request other nodes"),
    ],
)
def test_the_action_is_that_of_the_hint(last: Hint, text: str) -> None:
    assert text in join(slow(), told(last)).text


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_what_stood_and_what_comes_is_read_once_and_only_of_ones_own_lease(tmp_path: Path) -> None:
    old = [raised(1, NOW_H - 9), hint(2, HintState.CLEARED, at_h=NOW_H - 8), raised(3, NOW_H - 7, times=2)]
    keep(tmp_path, *old, raised(4, lease=OTHER))
    hinted = Hinted(tmp_path, str(LEASE))
    assert [one.number for one in hinted.read(NOW_S)] == [3]
    assert hinted.read(NOW_S + 1) == hinted.read(NOW_S + EVERY_S) == []
    keep(tmp_path, raised(5, lease=OTHER), hint(6, HintState.CLEARED, times=2, at_h=NOW_H))
    assert hinted.read(NOW_S + EVERY_S + 1) == []  # not so often
    (cleared,) = hinted.read(NOW_S + 3 * EVERY_S)
    assert (cleared.number, hinted.word_of(cleared, [slow()])) == (6, hinted.word_of(cleared, []))
    assert [(found.kind, found.cleared_at_s) for found in hinted.findings([], NOW_S)] == [(Kind.HINT, NOW_S)]


def test_a_home_without_a_log_has_no_hints_and_is_left_as_it_is(tmp_path: Path) -> None:
    assert Hinted(tmp_path, str(LEASE)).read(NOW_S) == []
    assert not list(tmp_path.iterdir())
    (tmp_path / "tenant.db").touch()
    assert Hinted(tmp_path, str(LEASE)).read(NOW_S) == []
    assert (tmp_path / "tenant.db").stat().st_size == 0


def test_a_hint_that_comes_later_is_joined_to_what_was_seen_before() -> None:
    hinted = Hinted(Path("nowhere"), str(LEASE))
    assert hinted.word_of(raised(), [slow()]) == f"slow_rank: {slow().text}; the provider suspects memory: {CONFIRM}"
    assert hinted.word_of(raised(), []).startswith(f"hint 1: lease {LEASE} raised: {CONFIRM}; ")


# ---- beside a real job -----------------------------------------------------------------------------------------------


def let_go_after(word: str, home: Path, job: Sequence[object], options: Sequence[object]) -> Outcome:
    """A job that waits for a file `go` in its folder, which comes as soon as a line with `word` is said."""
    said: list[str] = []
    with start(home, job, options, cwd=home.parent) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        for line in process.stderr:
            said.append(line.decode())
            if word in said[-1]:
                (home.parent / "go").touch()
        return Outcome(process.wait(), process.stdout.read(), "".join(said))


def test_a_hint_is_said_beside_the_job_and_journalled_and_changes_nothing_of_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    keep(home, raised(at_h=time.time() / 3600))
    job = ["sh", "-c", "until [ -e go ]; do sleep 0.1; done; echo done; exit 3"]
    done = let_go_after("pharoah-tenant: hint 1: ", home, job, ON_LEASE)
    assert (done.code, done.stdout) == (3, b"done\n")
    assert done.stderr.count("pharoah-tenant: hint 1: ") == 1
    (attempt,) = attempts(home)
    assert [finding["kind"] for finding in attempt.findings] == ["hint"]
    assert attempt.cause.reason == "exit_code"
    assert "hint" not in attempt.cause.sentence


def test_a_job_that_hangs_where_a_hint_stands_gets_one_finding(tmp_path: Path) -> None:
    home = tmp_path / "home"
    keep(home, raised(at_h=time.time() / 3600))
    job, options = [PROGRAM[0], "-c", STANDS, "go"], (*ON_LEASE, "--start-timeout-s", "1", "--poll-s", "0.2")
    done = let_go_after(f"; the provider suspects memory: {CONFIRM}", home, job, options)
    assert (done.code, done.stdout) == (5, b"done\n")
    assert f"; the provider suspects memory: {CONFIRM}\n" in done.stderr
    (attempt,) = attempts(home)
    assert [finding["kind"] for finding in attempt.findings] == ["hang"]
    assert CONFIRM in attempt.findings[0]["text"]


def test_a_log_that_cannot_be_read_costs_one_warning_and_the_job_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "tenant.db").write_text("Not SQLite. " * 100)
    job = ["sh", "-c", "until [ -e go ]; do sleep 0.1; done; sleep 1; echo done"]
    done = let_go_after("the provider's hints", home, job, (*ON_LEASE, "--poll-s", "0.2"))
    assert (done.code, done.stdout) == (0, b"done\n")
    assert done.stderr.count("the provider's hints") == 1


def test_a_job_on_another_lease_hears_nothing(tmp_path: Path) -> None:
    keep(tmp_path / "home", raised(at_h=time.time() / 3600))
    done = run(tmp_path / "home", ["sleep", "1"])
    assert (done.code, done.stderr.count("\n")) == (0, 1)
    assert "hint" not in done.stderr
    assert str(LEASE) != NO_LEASE
