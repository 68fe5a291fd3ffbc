"""Expectations of leases: indicators and error budgets by hand, slices from what ranks show, the verb and the page."""

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tenant_client.doctor.advice.error_budget import DAY_S, HOUR_S, Alert, Budget, Cell, Objective, Targets, budget_of
from tenant_client.doctor.advice.expectations import (
    AT_MOST,
    NO_RESTART,
    NO_STEPS,
    NOT_WATCHED,
    LeaseExpectations,
    Report,
    report,
)
from tenant_client.doctor.records.attempts import Attempt, AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.goodput import GOOGLE, Losses
from tenant_client.doctor.records.paces import SLICE_S, Badput, Lost, Paces, Slice
from tenant_client.doctor.run.hook.progress import Progress, Tally
from tenant_client.doctor.run.hook.readings import Log, Reading
from tenant_client.doctor.run.pace import Pace, PaceRecorder, SavedSteps
from tenant_client.doctor.run.watchdog import Sample
from tenant_client.program.cli import app
from tests.jobs.wrapped import run
from tests.support import schemas
from tests.tenant_client.program.test_pages_tenant import visitor

START = 1_000_000 * SLICE_S
TARGETS = Targets(
    {Objective.GOODPUT: 0.9, Objective.STEADY: 0.95, Objective.HANG_FREE: 0.99, Objective.RESTARTS: 0.9}, 600.0, 30
)
RUNNING, SUCCEEDED, FAILED, STOPPED, INTERRUPTED = AttemptState


def attempt(number: int, state: AttemptState, begin: float, end: float | None, lease: str = "0a") -> Attempt:
    """Times in slices from the start."""
    ended_at_s = None if end is None else START + end * SLICE_S
    return Attempt(lease, number, state, START + begin * SLICE_S, ended_at_s, None, None, AttemptCause(), 0, ())


def full(at: int, steps: int = 600, step_s: float = 1.0, hang_s: float = 0.0, saved: int | None = None) -> Slice:
    """A slice of steps of one length."""
    squares = steps * step_s**2
    at_s = START + at * SLICE_S
    return Slice(at_s, SLICE_S, steps, steps, steps * step_s, squares, hang_s, at_s + 1.0 if steps else None, saved)


def of(
    attempts: Sequence[Attempt],
    *slices: Sequence[Slice],
    lost: Losses | None = None,
    now: float = 100.0,
    lease: str = "",
) -> Report:
    kept = {(one.unit, one.attempt): own for one, own in zip(attempts, slices, strict=False)}
    jobs = {one.unit: f"job of {one.unit[0]}" for one in attempts}
    return report(attempts, kept, lost or {}, jobs, TARGETS, {}, START + now * SLICE_S, lease)


def shares(seen: LeaseExpectations) -> dict[str, float | None]:
    return {one.objective.value: one.share for one in seen.indicators}


def budget(seen: Report, objective: Objective) -> Budget:
    return next(one for one in seen.budgets if one.objective is objective)


# ---- indicators ------------------------------------------------------------------------------------------------------


def test_a_lease_that_only_steps_delivers_all() -> None:
    seen = of([attempt(1, SUCCEEDED, 0, 3)], [full(0), full(1), full(2)])
    (lease,) = seen.leases
    assert shares(lease) == {"goodput": 1.0, "steady": 1.0, "hang_free": 1.0, "restarts": None}
    assert (lease.hours, lease.hang_free_hours, lease.step_s, lease.step_variation) == (0.5, 0.5, 1.0, 0.0)
    assert lease.indicators[-1].why == NO_RESTART
    assert seen.is_met


@pytest.mark.parametrize(
    ("state", "saved", "share", "lost"),
    [
        (SUCCEEDED, None, 1.0, 0),
        (RUNNING, None, 1.0, 0),
        (FAILED, None, 1.0, None),
        (FAILED, 900, 0.75, 300),
        (STOPPED, 1200, 1.0, 0),
        (INTERRUPTED, 600, 0.5, 600),
    ],
)
def test_steps_that_no_checkpoint_had_are_lost_where_an_attempt_did_not_succeed(
    state: AttemptState, saved: int | None, share: float, lost: int | None
) -> None:
    """Where none was seen, the share is an upper bound, and says so."""
    end = None if state is RUNNING else 2
    (lease,) = of([attempt(1, state, 0, end)], [full(0), full(1, saved=saved)], now=2).leases
    assert (shares(lease)["goodput"], lease.lost_steps) == (share, lost)
    assert lease.indicators[0].why == (AT_MOST if lost is None else "")


def test_slow_steps_checkpoints_and_the_time_between_attempts_are_not_productive() -> None:
    """Two slices at the usual speed, one at half of it, one of which half is a checkpoint, and one between attempts."""
    first = [full(0), full(1), full(2, 300, 2.0), full(3, 300, 1.0, saved=1800)]
    seen = of([attempt(1, FAILED, 0, 4), attempt(2, SUCCEEDED, 5, 6)], first, [full(5)])
    (lease,) = seen.leases
    assert shares(lease)["goodput"] == pytest.approx((600 + 600 + 300 + 300 + 0 + 600) / 3600)
    assert shares(lease)["steady"] == pytest.approx(2100 / 2700)
    mean, squares = 2700 / 2400, (2100 + 300 * 4) / 2400
    assert lease.step_variation == pytest.approx((squares - mean**2) ** 0.5 / mean)
    assert lease.restart_s == SLICE_S + 1.0
    assert shares(lease)["restarts"] == 0.0  # one second too late


def test_hangs_are_taken_off_the_watched_time() -> None:
    (lease,) = of([attempt(1, FAILED, 0, 2)], [full(0), full(1, 0, hang_s=300.0, saved=600)]).leases
    assert lease.hang_free_hours == 0.25
    assert shares(lease)["hang_free"] == 0.75


def test_the_next_lease_of_the_job_is_its_restart_if_it_comes_within_the_hour() -> None:
    ended, soon, late = attempt(1, STOPPED, 0, 1, "aa"), attempt(1, SUCCEEDED, 2, 3, "ab"), 8
    seen = of([ended, soon], [full(0)], [full(2)])
    assert [lease.restart_s for lease in seen.leases] == [SLICE_S + 1.0, None]
    seen = of([ended, attempt(1, SUCCEEDED, late, 9, "ab")], [full(0)], [full(late)])
    assert [lease.restart_s for lease in seen.leases] == [None, None]
    seen = of([attempt(1, SUCCEEDED, 0, 1, "aa"), soon], [full(0)], [full(2)])
    assert [lease.restart_s for lease in seen.leases] == [None, None]


def test_what_is_not_known_says_why() -> None:
    seen = of([attempt(1, FAILED, 0, 2)])
    (lease,) = seen.leases
    assert [one.why for one in lease.indicators] == [NO_STEPS, NO_STEPS, NOT_WATCHED, NO_RESTART]
    assert (lease.step_s, lease.step_variation, lease.hang_free_hours) == (None, None, None)
    assert seen.is_met is None
    watched = [full(0, 0), full(1, 0)]
    assert shares(of([attempt(1, FAILED, 0, 2)], watched).leases[0])["hang_free"] == 1.0


def test_a_lease_whose_end_nobody_saw_ended_with_its_last_slice() -> None:
    for state in (INTERRUPTED, RUNNING):
        assert of([attempt(1, state, 0, None)], [full(0, saved=600)], now=1000).leases[0].hours == SLICE_S / HOUR_S


def test_only_the_leases_that_were_asked_for_count() -> None:
    both = [attempt(1, SUCCEEDED, 0, 1, "aa"), attempt(1, FAILED, 0, 1, "bb")]
    assert [lease.lease for lease in of(both, [full(0)], [full(0, saved=0)]).leases] == ["bb", "aa"]
    seen = of(both, [full(0)], [full(0, saved=0)], lease="b")
    assert [lease.lease for lease in seen.leases] == ["bb"]
    assert budget(seen, Objective.GOODPUT).share == 0.0
    assert not seen.is_met


# ---- error budgets ---------------------------------------------------------------------------------------------------


def burnt(bad: float, within_s: float, of_s: float = 30 * DAY_S, target: Objective = Objective.HANG_FREE) -> Budget:
    """A service that ran all the time and was bad to this share, and fine before."""
    now_s = START + of_s
    cells = [
        Cell(at_s, target, SLICE_S * (1.0 - bad * (at_s >= now_s - within_s)), SLICE_S)
        for at_s in range(START, int(now_s), SLICE_S)
    ]
    return budget_of(target, cells, TARGETS, now_s)


def test_the_budget_is_what_the_target_leaves() -> None:
    assert burnt(0.0, DAY_S).used == 0.0
    assert burnt(0.01, 30 * DAY_S).used == pytest.approx(1.0)
    assert burnt(0.02, 30 * DAY_S).used == pytest.approx(2.0)
    assert burnt(1.0, HOUR_S).used == pytest.approx(HOUR_S / (0.01 * 30 * DAY_S))
    assert burnt(1.0, 2 * DAY_S, 60 * DAY_S).used == pytest.approx(2 / 0.3)  # nothing older than the window is in it


@pytest.mark.parametrize(
    ("bad", "within_s", "alerts"),
    [
        (0.0099, 3.1 * DAY_S, ["", "", ""]),
        (0.011, 3.1 * DAY_S, ["", "", "ticket"]),
        (0.065, 6.2 * HOUR_S, ["", "page", ""]),
        (0.16, 1.2 * HOUR_S, ["page", "", ""]),
        (0.13, 1.2 * HOUR_S, ["", "", ""]),
        (1.0, 3.1 * DAY_S, ["page", "page", "ticket"]),
    ],
)
def test_alerts_are_those_of_the_workbook(bad: float, within_s: float, alerts: list[str]) -> None:
    seen = burnt(bad, within_s)
    assert [burn.alert.value for burn in seen.burns] == alerts
    assert seen.alert == next((Alert(one) for one in ("page", "ticket") if one in alerts), Alert.NONE)


def test_an_alert_is_over_soon_after_the_trouble() -> None:
    now_s = START + DAY_S
    cells = [
        Cell(at_s, Objective.HANG_FREE, SLICE_S * float(not now_s - 3000 <= at_s < now_s - 1200), SLICE_S)
        for at_s in range(START, int(now_s), SLICE_S)
    ]
    (hour, *_) = budget_of(Objective.HANG_FREE, cells, TARGETS, now_s).burns
    assert hour.rate is not None
    assert hour.rate > 14.4
    assert hour.alert is Alert.NONE


# ---- from what ranks show --------------------------------------------------------------------------------------------


def sample(step: int, at_s: float, phase: str = "train", rank: int = 0, evaluations: int = 0) -> Sample:
    return Sample(rank, step, phase, at_s, evaluations=evaluations)


def test_steps_are_counted_and_timed_but_for_pauses() -> None:
    pace = Pace(START)
    looks = [
        sample(0, START + 1, "start"),
        sample(1, START + 10),  # the first step began before anything was seen
        sample(3, START + 14),
        sample(4, START + 20, "eval", evaluations=1),
        sample(5, START + 30, evaluations=1),
        sample(6, START + 33, evaluations=1),
        sample(8, START + 39, evaluations=2),  # an evaluation in between
    ]
    for at, one in enumerate(looks):
        pace.feed(START + 5.0 * (at + 1), [sample(0, START, rank=3), one], hangs=at in (1, 2), saved=3 if at else None)
    (own,) = pace.take()
    assert (own.steps, own.timed, own.stepping_s, own.squares) == (8, 3, 7.0, 4.0 * 4.0 / 2 + 9.0)
    assert (own.observed_s, own.hang_s, own.first_s, own.saved) == (35.0, 10.0, START + 10, 3)


def test_slices_follow_each_other_and_only_changed_ones_are_taken_again() -> None:
    pace = Pace(START)
    for at in range(1, 4):
        pace.feed(START + at * SLICE_S - 1, [sample(10 * at, START + at * SLICE_S - 1)], hangs=False, saved=None)
    assert [(one.at_s - START, one.steps) for one in pace.take()] == [(0, 10), (SLICE_S, 10), (2 * SLICE_S, 10)]
    pace.feed(START + 3 * SLICE_S - 0.5, [sample(31, START + 3 * SLICE_S - 0.5)], hangs=False, saved=None)
    assert [(one.at_s - START, one.steps) for one in pace.take()] == [(2 * SLICE_S, 11)]


def test_what_an_attempt_before_left_behind_is_not_of_this_one(tmp_path: Path) -> None:
    kept: dict[int, int] = {}
    attempt = 1

    def keep(number: int, slices: Sequence[Slice], lost: Lost) -> None:
        kept[number] = sum(one.steps for one in slices)
        assert set(lost) <= {(START, Badput.OTHER)}

    def rank(step: int, at_s: float) -> list[Progress]:
        return [Progress(0, 4711, step, at_s, "train", None, 0)]

    recorder = PaceRecorder(tmp_path, lambda: (attempt, START + 20.0 * (attempt == 2)), lambda: False, keep)
    Log(tmp_path, 0).add(Reading(90, START + 5.0, None, None, saved=True))
    recorder.look(START, [])
    recorder.look(START + 10, rank(100, START + 9))
    attempt = 2
    recorder.look(START + 20, rank(100, START + 9))  # its ranks have not begun
    recorder.look(START + 30, rank(5, START + 29))
    recorder.finish(START + 31, None)
    assert kept == {1: 100, 2: 5}
    assert SavedSteps(tmp_path).newest(START) == 90
    assert SavedSteps(tmp_path).newest(START + 20) is None


def test_checkpoints_are_followed_while_readings_grow_and_are_cut(tmp_path: Path) -> None:
    log, saved = Log(tmp_path, 0), SavedSteps(tmp_path)
    assert saved.newest(0.0) is None
    for number in range(1, 4):
        log.add(Reading(10 * number - 5, START + 10.0 * number, 1.0, None, saved=False))
        log.add(Reading(10 * number, START + 10.0 * number + 5, None, None, saved=True))
        assert saved.newest(0.0) == 10 * number
    file = tmp_path / "readings-0"
    file.write_bytes(file.read_bytes()[-33:])
    assert saved.newest(0.0) == 30
    log.add(Reading(40, START + 50.0, None, None, saved=True))
    assert saved.newest(0.0) == 40


# ---- verb and page ---------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A lease that succeeded now, after a hang, and one that is not known."""
    now_s = int(time.time() // SLICE_S * SLICE_S)
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts, paces = Attempts(connection), Paces(connection)
        for lease in ("0a" * 16, "0b" * 16):
            attempts.begin(lease, now_s - 2.0 * SLICE_S)
            attempts.name(lease, f"train {lease[:2]}")
            attempts.end(lease, 1, SUCCEEDED, float(now_s))
        first_s = now_s - 2 * SLICE_S + 1.0
        begun_s = [now_s - 2 * SLICE_S, now_s - SLICE_S]
        slices = [Slice(at_s, 600.0, 600, 600, 600.0, 600.0, 60.0 * at, first_s) for at, at_s in enumerate(begun_s)]
        paces.keep("0a" * 16, 1, slices)
        paces.keep("0a" * 16, 1, slices)
    return tmp_path


def test_the_verb_shows_leases_targets_and_budgets(home: Path) -> None:
    done = CliRunner().invoke(app, ["show", "--only", "expectations", "--home", str(home), "--json"])
    assert done.exit_code == 1  # the hang took 5% where 1% is allowed
    view = schemas.held("pharoah-tenant show --only expectations", done.stdout)
    used = {one["objective"]: one["used"] for one in view["budgets"]}
    assert used["hang_free"] == pytest.approx(5.0)
    assert used["restarts"] is None
    words = CliRunner().invoke(app, ["show", "--only", "expectations", "0a", "--home", str(home)]).stdout
    assert "(train 0a): 0.3 h" in words
    assert "hang-free   95.0% (target 99.0%, missed); 0.3 h without a hang" in words
    assert "goodput    100.0% (target 90.0%)" in words
    assert "restarts   unknown: nothing was restarted" in words
    assert "500% of the budget used; burn rate 1h 5.0, 6h 5.0, 3d 5.0; alert: ticket" in words
    (home / "tenant.toml").write_text("[expectations]\nhang_free = 0.9\n")
    assert CliRunner().invoke(app, ["show", "--only", "expectations", "--home", str(home)]).exit_code == 0
    assert CliRunner().invoke(app, ["show", "--only", "expectations", "0b", "--home", str(home)]).exit_code == 3


def test_the_page_shows_what_the_verb_shows(home: Path) -> None:
    with visitor(home) as (client, token):
        client.get("/", params={"token": token})
        text = client.get("/expectations").text
    assert "hang-free time missed" in text
    assert "burns fast" in text
    assert "500%" in text
    assert NO_STEPS in text


# ---- beside a real job -----------------------------------------------------------------------------------------------

STEPS = """
import os, time
from pathlib import Path
from tenant_client.doctor.run.hook.progress import Progress, Writer
from tenant_client.doctor.run.hook.readings import Log, Reading
folder = Path(os.environ["PHAROAH_RUN_DIR"])
writer = Writer(folder, Progress(0, os.getpid(), 0, time.time(), "start", None, 0))
while not (folder / "settings.json").exists():  # of the observer, which looks at the ranks from then on
    time.sleep(0.05)
for step in range(1, 41):
    time.sleep(0.05)
    writer.update(step, "train", None, time.time(), 0)
Log(folder, 0).add(Reading(30, time.time(), None, None, saved=True))
raise SystemExit(7)
"""


def test_run_keeps_how_its_attempt_went(tmp_path: Path) -> None:
    done = run(tmp_path, [sys.executable, "-c", STEPS], ["--poll-s", "0.2"])
    assert done.code == 7
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        ((_, slices),) = Paces(connection).all().items()
    assert sum(one.steps for one in slices) == 40
    assert slices[-1].saved == 30
    timed, stepping_s = sum(one.timed for one in slices), sum(one.stepping_s for one in slices)
    assert 0.05 <= stepping_s / timed < 0.5


# ---- where the time went ---------------------------------------------------------------------------------------------


def parts(seen: LeaseExpectations) -> dict[str, float]:
    """Seconds by reason, in slices."""
    return {why.value: round(seconds / SLICE_S, 4) for why, seconds in seen.bad_s.items()}


def test_goodput_and_badput_add_up_whatever_was_seen() -> None:
    """A start of half a slice, a checkpoint, lost steps, a gap, another start, slow steps, an end."""
    late = Slice(START, 600.0, 300, 300, 300.0, 300.0, 0.0, START + 301.0, None)
    first = [late, full(1, 600, saved=600), full(2, 300)]
    lost = {
        ("0a", 1): {(START + 2 * SLICE_S, Badput.CHECKPOINT): 120.0, (START + 2 * SLICE_S, Badput.OTHER): 180.0},
        ("0a", 2): {(START + 5 * SLICE_S, Badput.OTHER): 60.0, (START + 4 * SLICE_S, Badput.STALL): 9000.0},
    }
    second = [full(4), full(5, 500, 1.0)]
    (lease,) = of([attempt(1, FAILED, 0, 3), attempt(2, SUCCEEDED, 4, 6)], first, second, lost=lost).leases
    assert lease.all_s == 6 * SLICE_S
    assert sum(week.good_s for week in lease.weeks) + sum(lease.bad_s.values()) == pytest.approx(lease.all_s)
    assert parts(lease) == {
        "stall": 1.0,  # no more than there was
        "restart": 1.3,  # the gap, and from the last step to the failure
        "lost_work": 1.0,
        "start": 0.5,
        "checkpoint": 0.2,
        "other": 0.1,
        "slow_steps": round(40 / SLICE_S, 4),
    }
    assert shares(lease)["goodput"] == pytest.approx(sum(week.good_s for week in lease.weeks) / lease.all_s)


def test_time_before_steps_is_a_start_only_where_steps_were_seen() -> None:
    never = of([attempt(1, FAILED, 0, 1)], [full(0, 0)]).leases[0]
    assert parts(never) == {"other": 1.0}
    once = of([attempt(1, FAILED, 0, 1), attempt(2, SUCCEEDED, 1, 2)], [full(0, 0)], [full(1)]).leases[0]
    assert parts(once) == {"start": 1.0}


def test_attempts_that_overlap_share_no_second() -> None:
    """As of one wrapper for each task of an allocation."""
    (lease,) = of([attempt(1, SUCCEEDED, 0, 2), attempt(2, SUCCEEDED, 1, 3)], [full(0), full(1)], [full(2)]).leases
    assert (lease.all_s, parts(lease)) == (3 * SLICE_S, {})


def test_weeks_begin_on_monday() -> None:
    per_week = 7 * DAY_S / SLICE_S
    (lease,) = of([attempt(1, SUCCEEDED, 0, per_week)], [full(0)]).leases
    begun = [week.begin_s for week in lease.weeks]
    assert [time.gmtime(one)[6] for one in begun] == [0, 0]
    assert sum(week.all_s for week in lease.weeks) == pytest.approx(7 * DAY_S)


def test_what_a_rank_adds_up_is_booked_where_it_passed() -> None:
    """A checkpoint over two slices; a stall; an evaluation that was open at the end."""
    pace = Pace(START)

    def look(step: int, at_s: float, phase: str = "train", **tally: float) -> None:
        seen = Sample(0, step, phase, START + at_s, tally=Tally(first_s=START + 1.0, last_s=START + at_s, **tally))
        pace.feed(START + at_s, [seen], hangs=False, saved=None)

    for step in range(1, 11):
        look(step, 390.0 + step)
    look(11, 801.0, checkpoint_s=400.0)
    look(12, 802.0, checkpoint_s=400.0)
    look(13, 832.0, checkpoint_s=400.0)
    look(13, 840.0, "eval", checkpoint_s=400.0)
    pace.end(START + 850.0, failed=True)
    assert pace.take_lost() == {
        (START, Badput.CHECKPOINT): 199.0,
        (START + SLICE_S, Badput.CHECKPOINT): 201.0,
        (START + SLICE_S, Badput.STALL): 29.0,
        (START + SLICE_S, Badput.OTHER): 8.0,  # less than ten usual steps
        (START + SLICE_S, Badput.EVALUATION): 10.0,
    }
    assert sum(one.timed for one in pace.take()) == 10  # neither the step with the checkpoint nor the stall


def test_the_verb_and_its_metrics_say_where_the_time_went(home: Path) -> None:
    with closing(open_database(home / "tenant.db")) as connection:
        ended_s = Attempts(connection).list("0a" * 16)[0].ended_at_s or 0.0
        Paces(connection).lose("0a" * 16, 1, {(int(ended_s) - SLICE_S, Badput.CHECKPOINT): 100.0})
        Paces(connection).lose("0a" * 16, 1, {(int(ended_s) - SLICE_S, Badput.CHECKPOINT): 20.0})
        Attempts(connection).name("0a" * 16, 'say "hi"')
    words = CliRunner().invoke(app, ["show", "--only", "expectations", "0a", "--home", str(home)]).stdout
    assert "badput      10.0%: checkpoint 10.0%" in words
    text = CliRunner().invoke(app, ["show", "--only", "expectations", "0a", "--metrics", "--home", str(home)]).stdout
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    label = f'lease="{"0a" * 16}",job="say \\"hi\\""'
    assert lines == [
        f'pharoah_job_seconds{{{label},reason="goodput",google=""}} 1080.000',
        f'pharoah_job_seconds{{{label},reason="checkpoint",google="UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"}} 120.000',
    ]
    with visitor(home) as (client, token):
        client.get("/", params={"token": token})
        assert "checkpoint 10.0%" in client.get("/expectations").text


def test_each_reason_has_googles_word_for_it() -> None:
    """`BadputType` of ml-goodput-measurement 0.2.3."""
    known = "TPU_INITIALIZATION TRAINING_PREP PROGRAM_STARTUP DATA_LOADING_SYNC DATA_LOADING_ASYNC OTHER"
    known += " UNPRODUCTIVE_CHECKPOINT_SAVE_TIME UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME CUSTOM_BADPUT_EVENTS"
    known += " WASTED_PROGRESS_FROM_DISRUPTION INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
    assert set(GOOGLE) == set(Badput)
    assert set(GOOGLE.values()) <= set(known.split())
