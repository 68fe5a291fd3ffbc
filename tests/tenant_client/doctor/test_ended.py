"""Who ended a job, and while what: decided from how it stood at the signal."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tenant_client.doctor.records.attempts import AttemptCause, AttemptState
from tenant_client.doctor.run.attempt import sender_of
from tenant_client.doctor.run.attempt_recorder import Record
from tenant_client.doctor.run.divergence import diverges
from tenant_client.doctor.run.ended import Asked, by_somebody, names_hardware, while_what
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.watchdog import Kind, Sample, Standing, Watch, WatchFinding, WatchLimits
from tests import needs
from tests.jobs.wrapped import attempts, failures, run, start
from tests.support.ended_jobs import cases, run_all, score

pytestmark = pytest.mark.xdist_group("ended")  # real jobs that take their time: named groups begin first

STALLED = "both ranks stuck at step 88 for 14 s"
QUICK = ("--poll-s", 0.1, "--hang-floor-s", 1.0, "--hang-factor", 5.0, "--lease", "one")
# Steps until the observer has begun, and for a while; then what the test says.
JOB = """
import os, pathlib, sys, time
from tenant_client.doctor.run.hook.hook import pharoah_hook
observer = pathlib.Path(os.environ["PHAROAH_RUN_DIR"], "settings.json")
with pharoah_hook() as hook:
    seen = 0
    while seen < 100:
        seen += observer.exists()
        time.sleep(0.02)
        hook.step(2.0)
    if sys.argv[1] == "evaluates":
        with hook.phase("eval"):
            time.sleep(0.3)
    print("now", flush=True)
    while sys.argv[1] != "stalls":
        time.sleep(0.02)
        hook.step(2.0)
    time.sleep(3600)
"""


def test_a_stall_is_told_before_who_ended_it() -> None:
    hang = Standing(11, hangs=True, stalled="rank 1 is outside; rank 1 at main (base.py:41)", rank=1)
    cause = while_what(Asked(1000.0, signal.SIGTERM, "timeout", hang), "unknown", None)
    assert (cause.reason, cause.rank) == ("cancelled_stalled", 1)
    told = "cancelled_stalled: rank 1 is outside; rank 1 at main (base.py:41); ended by SIGTERM from timeout"
    assert cause.sentence == told
    assert while_what(Asked(1000.0, standing=hang), "exit_code", None).sentence.endswith("; ended from outside")


def ended(standing: Standing, said: str = "unknown", *, sender: str = "", ends_at_s: float | None = None) -> str:
    return while_what(Asked(1000.0, signal.SIGTERM, sender, standing), said, ends_at_s).reason


@pytest.mark.parametrize(
    ("standing", "said", "reason"),
    [
        (Standing(88), "unknown", "cancelled"),
        (Standing(88), "value_error", "cancelled"),  # what ranks say when they are ended
        (Standing(88, evaluations=2), "unknown", "cancelled_healthy"),
        (Standing(88, diverging="loss of rank 0 is nan", evaluations=2), "unknown", "cancelled_diverging"),
        (Standing(88, stalled=STALLED, diverging="loss of rank 0 is nan"), "unknown", "cancelled_stalled"),
        (Standing(88, stalled=STALLED), "time_limit", "time_limit"),
        (Standing(88, stalled=STALLED, hangs=True), "time_limit", "cancelled_stalled"),
        (Standing(88, evaluations=2), "preempted", "preempted"),
        (Standing(), "evicted", "evicted"),
    ],
)
def test_what_a_scheduler_says_comes_first_and_then_how_the_job_stood(
    standing: Standing, said: str, reason: str
) -> None:
    assert ended(standing, said) == reason


def test_a_limit_is_known_by_who_sent_the_signal_or_by_the_time() -> None:
    assert ended(Standing(88), sender="timeout") == "time_limit"
    assert ended(Standing(88), sender="bash") == "cancelled"
    assert ended(Standing(88), ends_at_s=1060.0) == "time_limit"
    assert ended(Standing(88), ends_at_s=1600.0) == "cancelled"


def test_a_signal_to_the_job_alone_came_from_somebody_unless_its_log_says_why() -> None:
    unknown, named = AttemptCause(), AttemptCause("unknown", place="job.log, line 3")
    assert by_somebody(Ending(None, signal.SIGTERM), unknown, asked=False)
    assert by_somebody(Ending(143), unknown, asked=False)
    assert not by_somebody(Ending(143), named, asked=False)
    assert not by_somebody(Ending(None, signal.SIGKILL), AttemptCause("killed"), asked=False)
    assert by_somebody(Ending(1), AttemptCause("cancelled"), asked=False)
    assert not by_somebody(Ending(1, asked_by=(15,)), AttemptCause("node_failure"), asked=True)


@pytest.mark.parametrize(
    ("reason", "source", "counted"),
    [
        ("nvlink_error", "kernel_log", True),
        ("network_error", "nccl_log", True),
        ("host_out_of_memory", "kernel_log", False),
        ("connection_error", "job_log", False),
        ("unknown", "", False),
    ],
)
def test_only_the_kernel_and_nccl_name_a_device_or_a_link(reason: str, source: str, *, counted: bool) -> None:
    assert names_hardware(AttemptCause(reason), source) is counted
    assert not names_hardware(AttemptCause(reason, domain="framework"), source)


def test_what_the_job_started_is_the_jobs_own_doing() -> None:
    assert sender_of(os.getpid(), os.getppid()) is None
    assert sender_of(os.getppid(), os.getpid()) not in (None, "")
    assert sender_of(0, os.getpid()) == ""


def test_a_sender_that_becomes_another_program_is_still_the_jobs() -> None:
    """Between two programs a process has no environment, and a shell becomes its last command."""
    env = {**os.environ, "MARK": "ours"}
    for _ in range(30):
        with subprocess.Popen(["/bin/sh", "-c", "sleep 0.01; exec sleep 9"], env=env) as process:
            until_s = time.monotonic() + 0.03
            while time.monotonic() < until_s:
                assert sender_of(process.pid, 1, "MARK=ours") is None
            process.kill()


# ---- how it stands -------------------------------------------------------------------------------------------------


def trained(steps: int, step_s: float, losses: Sequence[float] = (), *, aside: float = 0.0) -> tuple[Watch, float]:
    """A watch that saw so many steps, one of them after a pause of `aside` seconds, and when the last was done."""
    watch, now_s = Watch(WatchLimits(), 0.0), 0.0
    for step in range(steps):
        now_s += step_s + (aside if step == steps // 2 else 0.0)
        loss = losses[step] if losses else 2.0
        watch.feed(now_s, [Sample(rank, step + 1, "train", now_s, loss) for rank in (0, 1)])
    return watch, now_s


@pytest.mark.parametrize(("step_s", "aside", "seen_s"), [(0.1, 0.0, 10.0), (3.0, 0.0, 30.0), (0.1, 20.0, 40.2)])
def test_a_stall_is_seen_before_it_is_an_alarm_but_no_pause_as_it_had_before(
    step_s: float, aside: float, seen_s: float
) -> None:
    watch, now_s = trained(40, step_s, aside=aside)
    assert watch.standing(now_s + seen_s - 1.0).stalled == ""
    standing = watch.standing(now_s + seen_s + 1.0)
    assert (standing.hangs, standing.steps) == (False, 40)
    assert standing.stalled == f"both ranks stuck at step 40 for {seen_s + 1:.0f} s"


def test_an_evaluation_and_the_start_have_their_own_patience() -> None:
    watch, now_s = trained(2, 1.0)
    assert watch.standing(now_s + 600.0).stalled == ""
    watch, now_s = trained(40, 1.0)
    watch.feed(now_s + 1.0, [Sample(rank, 40, "eval", now_s + 1.0, evaluations=1) for rank in (0, 1)])
    assert (watch.standing(now_s + 600.0).stalled, watch.standing(now_s).evaluations) == ("", 1)


@pytest.mark.parametrize(
    ("losses", "diverging"),
    [
        ([2.0] * 30 + [math.nan], True),
        ([2.0 + 0.1 * (step % 3) for step in range(30)] + [7.0, 8.5, 9.0], True),
        ([2.0 + 0.02 * step + 0.01 * (step % 3) for step in range(40)], True),
        ([3.0 - 0.02 * step + 0.2 * (step % 3) for step in range(40)], False),
        ([2.0 + 0.1 * (step % 3) for step in range(30)] + [4.1, 4.3, 4.2], False),  # a gradient scaler's doubling
        ([2.0 + 0.1 * (step % 3) for step in range(30)] + [9.0, 2.0, 2.1], False),
        ([-4.0 - 0.1 * step + 0.2 * (step % 2) for step in range(40)], False),
        ([2.0], False),
    ],
)
def test_losses_that_diverge(losses: list[float], *, diverging: bool) -> None:
    watch, now_s = trained(len(losses), 1.0, losses)
    assert bool(watch.standing(now_s).diverging) is diverging
    assert diverging or not diverges([loss for loss in losses if math.isfinite(loss)])


# ---- real jobs -----------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(("what", "reason"), [("evaluates", "cancelled_healthy"), ("stalls", "cancelled_stalled")])
def test_a_real_job_that_somebody_ends(tmp_path: Path, what: str, reason: str) -> None:
    process = start(tmp_path / "home", [sys.executable, "-c", JOB, what], QUICK)
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    assert process.stderr is not None
    if what == "stalls":
        assert b"hang: rank 0 stuck" in process.stderr.readline()
    process.terminate()
    process.communicate()
    (attempt,) = attempts(tmp_path / "home")
    assert (attempt.state, attempt.cause.reason) == (AttemptState.STOPPED, reason), attempt.cause.sentence
    assert "SIGTERM from " in attempt.cause.sentence
    assert failures(tmp_path / "home") == []


@pytest.mark.nightly
def test_the_same_job_again_supersedes_it_and_another_one_does_not(tmp_path: Path) -> None:
    quick = ("--lease",)
    stopped = ["sh", "-c", "kill -TERM $$; : --lr 3e-4"]
    run(tmp_path / "home", stopped, (*quick, "one"))
    run(tmp_path / "home", ["true"], (*quick, "two"))
    assert attempts(tmp_path / "home")[0].cause.reason == "cancelled"
    run(tmp_path / "home", ["sh", "-c", "kill -TERM $$; : --lr 1e-3"], (*quick, "three"))
    first, _, third = attempts(tmp_path / "home")
    assert (first.cause.reason, third.cause.reason) == ("cancelled_superseded", "cancelled")
    assert first.cause.sentence.endswith("began again 0 min later on three")


def test_a_script_that_ends_its_own_group_was_not_ended_by_anybody(tmp_path: Path) -> None:
    script = "trap 'exit 3' TERM; (trap '' TERM; sleep 0.2; kill -TERM 0; sleep 5) & wait"
    done = run(tmp_path / "home", ["sh", "-c", script])
    (attempt,) = attempts(tmp_path / "home")
    assert (done.code, attempt.state) == (3, AttemptState.FAILED)


@pytest.mark.nightly
def test_real_jobs_in_each_of_the_states(tmp_path: Path) -> None:
    needs.installed("torch")
    figures = score(run_all(cases(1, seed=2), tmp_path, parallel=3))
    assert figures["right"] >= 0.95, figures["wrong"]


def test_a_hang_that_a_signal_ended_past_run_is_a_stall_and_no_failure(tmp_path: Path) -> None:
    home, run_dir = tmp_path / "home", tmp_path / "run"
    run_dir.mkdir()
    record = Record(home, "one", run_dir, (), FailOpen(quiet=True))
    record.begin(1000.0, 1)
    text = "rank 1 is outside, idle, for 8 s; 1 rank waits for it; rank 1 at main (base.py:41)"
    hang = WatchFinding(Kind.NON_COMMUNICATION_HANG, 1010.0, 11, (1,), text)
    stood = Asked(1030.0, signal.SIGTERM, "", Standing(11, hangs=True, stalled=text, rank=1))
    record.ended(Ending(None, signal.SIGTERM), stood, 1030.0, 11, [hang], {})
    (attempt,) = attempts(home)
    assert (attempt.state, attempt.cause.reason, attempt.cause.rank) == (AttemptState.STOPPED, "cancelled_stalled", 1)
    assert attempt.cause.sentence == f"cancelled_stalled: {text}; ended by SIGTERM"
    record.begin(2000.0, 2)
    record.ended(Ending(1), Asked(2030.0, standing=stood.standing), 2030.0, 11, [hang], {})  # its own time-out
    attempt = attempts(home)[-1]
    assert (attempt.state, attempt.cause.reason, attempt.cause.rank) == (AttemptState.FAILED, "collective_timeout", 1)
    assert attempt.cause.sentence == "rank 1 hung at main (base.py:41); collective_timeout followed"
