"""What runs next, and a runner on this machine: whatever a job does, it is counted once and blocks no node."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from federation.base.settings import BadSettings
from pharoah_benchmarks.record import running
from pharoah_benchmarks.runner.book import Book, Run, opened
from pharoah_benchmarks.runner.loop import Runner
from pharoah_benchmarks.runner.places import Local, PlaceAway
from pharoah_benchmarks.runner.plan import CANNOT_RUN, plan
from pharoah_benchmarks.runner.settings import Benchmark, settings_of
from plugins.benchmarks.tests.programs import founded, program
from plugins.benchmarks.tests.test_benchmarks import call, told
from provider_server.fleet.learning.benchmark_jobs import FILE, OK, UNKNOWN, read
from tests.support.changing import replace
from tests.support.waiting import until

NODES = ["n1", "n2", "n3", "n4"]
CONTEXTS: dict[str, int | str] = {"n1": "old", "n2": "old", "n3": "new", "n4": "new"}
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
NOW_S = NOON.timestamp()
ALL = Benchmark(jobs=("graph", "encoder"), share_of_idle=1.0)
ENDED = Run("r", "graph", "n1", "old", "", 840.0, NOW_S - 900, NOW_S - 300, OK)


def ran(*runs: tuple[str, str], **changes: object) -> list[Run]:
    """Runs of jobs on nodes that have ended, unless `changes` say otherwise."""
    made = [
        replace(ENDED, run=f"r{at}", job=job, node=node, context=CONTEXTS[node]) for at, (job, node) in enumerate(runs)
    ]
    return [replace(one, **changes) for one in made]


def jobs_of(runs: Sequence[Run], settings: Benchmark = ALL, now: datetime = NOON) -> dict[str, str]:
    return {one.node: one.job for one in plan(NODES, CONTEXTS, runs, settings, now).runs}


def why(runs: Sequence[Run], settings: Benchmark = ALL, now: datetime = NOON) -> str:
    return plan(NODES, CONTEXTS, runs, settings, now).why_no_more


# ---- what runs next --------------------------------------------------------------------------------------------------


def test_jobs_that_ran_least_in_a_context_are_next() -> None:
    assert jobs_of([]) == {"n1": "graph", "n2": "encoder", "n3": "graph", "n4": "encoder"}
    assert jobs_of(ran(("graph", "n1"), ("graph", "n2"))) == {
        "n1": "encoder", "n2": "encoder", "n3": "graph", "n4": "encoder",
    }  # fmt: skip


def test_nodes_that_ran_least_are_first_where_not_all_may_run() -> None:
    half = replace(ALL, share_of_idle=0.5)
    assert list(jobs_of([], half)) == ["n1", "n2"]
    assert list(jobs_of(ran(("graph", "n1"), ("graph", "n2")), half)) == ["n3", "n4"]
    assert why([], half) == "share_of_idle: 2 at once"
    assert list(jobs_of([], replace(ALL, share_of_idle=0.01))) == ["n1"]


def test_a_node_has_one_run_at_a_time_and_one_without_a_context_none() -> None:
    assert "n1" not in jobs_of(ran(("graph", "n1"), outcome=""))
    assert plan(["n9"], CONTEXTS, [], ALL, NOON).runs == []


def test_a_node_on_which_nothing_could_run_rests() -> None:
    failed = ran(("graph", "n1"), outcome=CANNOT_RUN)
    assert "n1" not in jobs_of(failed)
    assert "1 resting" in why(failed)
    assert "n1" in jobs_of([replace(one, seen_s=NOW_S - 700) for one in failed])


def test_the_budget_of_a_day_is_kept_with_what_runs() -> None:
    small = replace(ALL, seconds=3360.0, node_hours_a_day=2.5)  # a run is an hour at most
    assert len(jobs_of([], small)) == 2
    assert len(jobs_of(ran(("graph", "n1"), outcome="", planned_s=3600.0), small)) == 1
    spent = ran(("graph", "n1"), started_s=NOW_S - 9000, seen_s=NOW_S - 1800)
    assert jobs_of(spent, small) == {}
    assert why(spent, small) == "node_hours_a_day: 0.50 left"
    assert len(jobs_of([replace(one, seen_s=NOW_S - 86_401) for one in spent], small)) == 2


@pytest.mark.parametrize(
    ("quiet", "hour", "minute", "is_quiet"),
    [
        ("08:00-18:00", 12, 0, True),
        ("08:00-18:00", 7, 40, False),
        ("08:00-18:00", 7, 50, True),  # it would run into them
        ("08:00-18:00", 18, 0, False),
        ("22:00-06:00", 23, 0, True),
        ("22:00-06:00", 5, 59, True),
        ("22:00-06:00", 6, 0, False),
        ("00:00-00:00", 3, 0, True),
        ("", 12, 0, False),
    ],
)
def test_nothing_runs_in_quiet_hours(quiet: str, hour: int, minute: int, is_quiet: bool) -> None:  # noqa: FBT001
    at = NOON.replace(hour=hour, minute=minute)
    settings = replace(ALL, quiet=quiet)
    assert bool(jobs_of([], settings, at)) != is_quiet
    assert ("quiet until" in why([], settings, at)) == is_quiet


def test_what_stands_in_for_a_workload_says_for_which() -> None:
    settings = replace(ALL, stands_for={"ab": "graph", "cd": "graph"})
    tokens = [one.stands_for for one in plan(NODES, CONTEXTS, [], settings, NOON).runs]
    assert tokens == ["ab", "cd", "ab", "cd"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('jobs = ["gemm"]', "no job 'gemm'"),
        ('stands_for = { ab = "gemm" }', "no job 'gemm'"),
        ('quiet = "8-18"', "quiet: '8-18' are no hours"),
        ('quiet = "08:00-25:00"', "are no hours"),
        ('place = "slurm"', "could not be displaced"),
        ('place = "kubernetes"\nimage = "x"', "needs image, priority_class and limits"),
        ('size = "tpu"', "no size 'tpu'"),
        ('place = "moon"', "benchmark.place has an unknown value"),
        ("share_of_idle = 1.5", "share_of_idle"),
        ("node_hours_a_day = 0", "node_hours_a_day"),
        ("minutes = 3", "minutes"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tmp_path: Path, settings: str, said: str) -> None:
    home = founded(tmp_path, "", settings)
    with pytest.raises(BadSettings, match=said.replace("'", ".")):
        settings_of(home)
    assert call("plan", "--home", home).exit_code == 2


# ---- on this machine -------------------------------------------------------------------------------------------------


class Here:
    """A runner on this machine, of jobs by name."""

    def __init__(self, folder: Path, book: Book, home: Path, **changes: object) -> None:
        self.home, self.book, self.ended = home, book, list[Run]()
        settings = replace(Benchmark(seconds=1.0, share_of_idle=1.0), **changes)
        self.runner = Runner(home, Local(str(program(folder))), settings, book, self.ended.append)

    def until(self, happened: Callable[[], object]) -> None:
        def turned() -> object:
            self.runner.turn()
            return happened()

        until(turned)


Started = Callable[..., Here]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return founded(tmp_path, f'"{socket.gethostname()}" = "hall 3"', "")


@pytest.fixture
def book(home: Path) -> Iterator[Book]:
    with opened(home) as book:
        yield book


@pytest.fixture
def started(tmp_path: Path, home: Path, book: Book) -> Iterator[Started]:
    made: list[Here] = []

    def of(*jobs: str) -> Here:
        made.append(Here(tmp_path, book, home, jobs=jobs))
        return made[-1]

    yield of
    for one in made:
        one.runner.leave()


def test_runs_follow_each_other_and_are_lines_for_findings(started: Started, home: Path, book: Book) -> None:
    here = started("graph")
    here.until(lambda: len(here.ended) == 2)
    here.runner.leave()
    jobs = read(home / FILE)
    assert [one.job for one in jobs[:2]] == [run.run for run in here.ended[:2]]
    assert {(one.outcome, one.context, one.archetype) for one in jobs[:2]} == {(OK, "hall 3", "graph")}
    assert book.open() == []
    assert jobs[0].node_hours == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("convolution", "no PyTorch here"),
        ("experts", '{"job": "experts", "run": 3}'),
        ("diffusion", "outcome 'melted' is neither ok nor a known cause"),
    ],
)
def test_what_says_nothing_that_can_be_read_is_no_outcome(started: Started, home: Path, job: str, said: str) -> None:
    here = started(job)
    here.until(lambda: here.ended)
    assert here.ended[0].outcome == CANNOT_RUN
    assert said in here.ended[0].said
    assert not (home / FILE).exists()
    assert "1 resting" in here.runner.plan().why_no_more


def test_what_is_stopped_is_exposure_and_no_failure(started: Started, home: Path, book: Book) -> None:
    here = started("encoder")
    here.until(book.open)
    here.runner.leave()
    assert here.ended[0].outcome == "stopped"
    (one,) = read(home / FILE)
    assert (one.outcome, one.archetype, one.node_hours > 0) == (UNKNOWN, "encoder", True)


def test_what_does_not_end_is_ended(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pharoah_benchmarks.runner.loop.LEAVE_S", 1.0)
    monkeypatch.setattr("pharoah_benchmarks.runner.settings.START_S", 0.0)
    monkeypatch.setattr("pharoah_benchmarks.runner.settings.SLACK_S", 0.0)
    here = started("decoder")
    here.until(lambda: here.ended)
    assert here.ended[0].outcome == "stopped"


def test_runs_of_a_runner_that_was_killed_are_counted_once(started: Started, home: Path, book: Book) -> None:
    now_s = time.time()
    lost = Run("pharoah-graph-1", "graph", "n1", "hall 3", "", 60.0, now_s - 36.0, now_s)
    for run in (lost, replace(lost, run="pharoah-graph-2", seen_s=lost.started_s)):
        book.start(run)
    here = started()
    here.runner.leave()
    assert [(run.run, run.outcome) for run in here.ended] == [
        ("pharoah-graph-1", "stopped"),
        ("pharoah-graph-2", "stopped"),
    ]
    (one,) = read(home / FILE)  # the other one was never seen to run
    assert (one.job, one.outcome) == ("pharoah-graph-1", UNKNOWN)
    assert one.node_hours == pytest.approx(0.01, rel=0.01)
    book.start(replace(lost, run="pharoah-graph-3"))
    recorded = (home / FILE).read_bytes()
    (home / FILE).write_bytes(recorded + recorded.replace(b"graph-1", b"graph-3"))
    here.runner.leave()
    assert len(read(home / FILE)) == 2


def test_a_place_that_is_away_is_asked_again(
    started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here, idle = started("graph"), Local.idle

    def away(_: Local) -> list[str]:
        raise PlaceAway("nobody answers")

    monkeypatch.setattr("pharoah_benchmarks.runner.loop.LOOK_S", 0.0)
    monkeypatch.setattr(Local, "idle", away)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            here.runner.turn()
    assert [record.message for record in caplog.records] == ["nobody answers"]
    monkeypatch.setattr(Local, "idle", idle)
    here.until(lambda: here.ended)


def test_a_full_disk_loses_no_outcome(started: Started, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    here = started("graph")
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
        here.until(book.open)
        time.sleep(0.5)
        here.runner.turn()
        assert here.ended == []
    here.until(lambda: here.ended)
    assert here.ended[0].outcome == OK


def test_two_runners_of_a_home_are_one(home: Path) -> None:
    with running(home):
        result = call("start", "--home", home)
    assert result.exit_code == 2
    assert "another benchmark runs for this home" in result.stderr


def start(home: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "provider_server", "benchmark", "start", "--home", str(home), "--json"],
        stdout=subprocess.PIPE,
    )


def test_a_runner_is_seen_and_stopped_by_verbs(tmp_path: Path) -> None:
    settings = f'jobs = ["encoder"]\nprogram = "{program(tmp_path)}"'
    home = founded(tmp_path, f'"{socket.gethostname()}" = "hall 3"', settings)
    (row,) = told("plan", "--home", home)
    assert (row["job"], row["context"], row["why"]) == ("encoder", "hall 3", "ran 0 times in hall 3, no job fewer")
    with start(home) as runner:
        until(lambda: told("status", "--home", home)["runs"])
        seen = told("status", "--home", home)
        assert seen["running"]
        assert seen["node_hours_spent"] == pytest.approx((600 + 120 + 120) / 3600)
        assert told("plan", "--home", home) == []
        assert call("stop", "--home", home).exit_code == 0
        assert runner.wait(60) == 0
    seen = told("status", "--home", home)
    assert (seen["running"], seen["runs"], seen["last"][0]["outcome"]) == (False, [], "stopped")
    assert call("stop", "--home", home).exit_code == 0


def test_a_killed_runner_leaves_nothing_and_is_settled(tmp_path: Path) -> None:
    settings = f'jobs = ["encoder"]\nprogram = "{program(tmp_path)}"'
    home = founded(tmp_path, f'"{socket.gethostname()}" = "hall 3"', settings)
    with start(home) as runner:
        until(lambda: _of(tmp_path))
        os.kill(runner.pid, signal.SIGKILL)
    until(lambda: not _of(tmp_path))
    assert "1 run of a runner that was killed ended" in call("stop", "--home", home).stderr
    assert told("status", "--home", home)["last"][0]["outcome"] == "stopped"


def _of(folder: Path) -> list[str]:
    """Processes of the program in a folder."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(file.read_bytes().split(b"\0")[:2])
        except OSError:
            continue
    return [str(line) for line in lines if str(folder / "program").encode() in line]
