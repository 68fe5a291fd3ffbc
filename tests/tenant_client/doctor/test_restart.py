"""Which checkpoint to restart from, when to take one, and how a hint reaches the job."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from federation.protocol.service_messages import Action, HintState
from tenant_client.doctor.run.hook import hook as hooks, readings
from tenant_client.doctor.run.hook.checkpoints import Checkpoints, ask, interval_s
from tenant_client.doctor.run.hook.hook import Hook, current_hook
from tenant_client.doctor.run.hook.progress import read
from tenant_client.doctor.run.hook.readings import Log, Reading
from tenant_client.doctor.run.lease_hints import asks_to_save
from tenant_client.doctor.run.restart_point import RestartPoint, restart_point
from tenant_client.doctor.run.spike_origin import Origin
from tenant_client.program.cli import app
from tests.support.schemas import held
from tests.tenant_client.doctor.test_hinted import raised

ROOT = Path(__file__).resolve().parents[3]
NAN = math.nan


def a_run(
    losses: dict[int, float] | None = None, norms: dict[int, float] | None = None, saved: tuple[int, ...] = (200, 400)
) -> list[Reading]:
    """A reading every ten steps up to 600, its loss 2 ± .02 and its norm 1 ± .01 but where said, and checkpoints."""
    found = []
    for step in range(0, 601, 10):
        ripple = 0.01 * math.sin(step)
        loss, norm = (losses or {}).get(step, 2 + 2 * ripple), (norms or {}).get(step, 1 + ripple)
        found.append(Reading(step, float(step), loss, norm, saved=False))
        found += [Reading(step, step + 0.5, None, None, saved=True)] * (step in saved)
    return found


def advice(*ranks: list[Reading]) -> RestartPoint | None:
    return restart_point(dict(enumerate(ranks)))


# ---- which checkpoint ----------------------------------------------------------------------------------------------


def test_a_healthy_run_needs_no_restart() -> None:
    assert advice(a_run(), a_run()) is None


def test_after_a_spike_the_checkpoint_before_it_is_named_with_the_batches_to_skip() -> None:
    found = advice(a_run(), a_run(dict.fromkeys(range(450, 480, 10), 40.0)))
    assert found == RestartPoint(400, (441, 470), (1,), "a spike")


def test_a_checkpoint_within_the_trouble_of_another_rank_is_not_safe() -> None:
    found = advice(a_run(), a_run(norms=dict.fromkeys(range(390, 601, 10), 90.0)))
    assert found is not None
    assert (found.checkpoint, found.skip, found.ranks, found.origin) == (200, (381, 600), (1,), Origin.HARDWARE)


def test_a_checkpoint_just_before_the_first_bad_reading_may_hold_the_fault_already() -> None:
    found = advice(a_run(dict.fromkeys(range(410, 601, 10), NAN)), a_run())
    assert found == RestartPoint(200, (401, 410), (0,), "NaN or infinity")


def test_without_a_safe_checkpoint_there_is_none() -> None:
    found = advice(a_run(dict.fromkeys(range(190, 601, 10), math.inf)))
    assert found is not None
    assert found.checkpoint is None
    assert "no checkpoint is safe" in found.sentence


def test_an_old_spike_that_was_survived_does_not_hide_the_newest() -> None:
    found = advice(a_run({250: 40.0, 560: 40.0}))
    assert found == RestartPoint(400, (551, 560), (0,), "a spike")


def test_the_verb_places_checkpoints_by_their_time(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "lease-1"
    run_dir.mkdir(parents=True)
    for rank, losses in enumerate(({}, {450: 40.0})):
        log = Log(run_dir, rank)
        for reading in a_run(losses, saved=()):
            log.add(reading)
    saved = tmp_path / "model.pt"
    saved.touch()
    os.utime(saved, (305, 305))
    result = CliRunner().invoke(
        app, ["show", "--only", "restart", "lease", "--home", str(tmp_path), "--saved", str(saved), "--json"]
    )
    assert result.exit_code == 1
    told = held("pharoah-tenant show --only restart", result.stdout)
    assert (told["checkpoint"], told["skip"], told["ranks"]) == (300, [441, 450], [1])
    assert CliRunner().invoke(app, ["show", "--only", "restart", "nobody", "--home", str(tmp_path)]).exit_code == 3


def test_the_verb_takes_the_run_of_this_very_name_though_a_newer_one_begins_so(tmp_path: Path) -> None:
    for number, (name, losses) in enumerate([("nan", {450: NAN}), ("nan_assert", {}), ("nan-2", {}), ("empty", None)]):
        run_dir = tmp_path / "runs" / f"{name}-1"
        run_dir.mkdir(parents=True)
        for reading in a_run(losses) if losses is not None else ():
            Log(run_dir, 0).add(reading)
        os.utime(run_dir, (number, number))

    def asked(name: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["show", "--only", "restart", name, "--home", str(tmp_path)])
        return done.exit_code, done.stdout + done.stderr

    assert asked("nan")[0] == 1
    assert asked("nan_a") == (0, "nan_assert-1: no NaN or loss spike found\n")
    code, said = asked("na")
    assert (code, "3 leases start with 'na'" in said) == (3, True)
    code, said = asked("empty")
    assert (code, "no readings of losses yet of empty-1" in said) == (3, True)
    code, said = asked("nobody")
    assert (code, "there is no lease 'nobody' here" in said) == (3, True)


def test_readings_are_kept_as_they_were_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "MOST", 10)
    log = Log(tmp_path, 0)
    wanted = [Reading(step, 2.0 * step, NAN if step == 11 else 1.5, None, saved=step == 12) for step in range(13)]
    for reading in wanted:
        log.add(reading)
    with (tmp_path / "readings-0").open("ab") as file:
        file.write(b"torn")
    found = readings.read(tmp_path / "readings-0")
    assert repr(found) == repr(wanted[-len(found) :])
    assert 5 <= len(found) <= 10


# ---- when to save --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "cost_s"), [(0.01, 30.0), (0.1, 60.0), (1.0, 120.0)])
def test_the_interval_loses_the_least_time(rate: float, cost_s: float) -> None:
    """Against Daly's complete model of the time to solution, by search."""
    mean_s = 3600.0 / rate

    def waste(work_s: float) -> float:
        return math.expm1((work_s + cost_s) / mean_s) * mean_s / work_s

    best = min(waste(10.0 * number) for number in range(1, 5000))
    assert waste(interval_s(cost_s, rate)) == pytest.approx(best, rel=1e-4)
    assert waste(2 * interval_s(cost_s, rate)) > best * 1.001


def test_a_checkpoint_is_due_by_time_or_when_asked_and_not_twice(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, began_s=0.0)
    assert not checkpoints.due(1e9, failures_per_hour=0.0)
    assert checkpoints.due(1e9, failures_per_hour=0.1)
    checkpoints.saved(1e9, took_s=60.0)
    assert not checkpoints.due(1e9 + 2000.0, failures_per_hour=0.1)
    assert checkpoints.due(1e9 + 2100.0, failures_per_hour=0.1)
    ask(tmp_path)
    assert (checkpoints.is_news(), checkpoints.is_news()) == (True, False)
    assert checkpoints.due(1e9, failures_per_hour=0.0)
    checkpoints.saved(1e9, took_s=60.0)
    assert not checkpoints.is_asked()


@pytest.mark.parametrize(
    ("action", "state", "asks"),
    [
        (Action.CHECKPOINT, HintState.RAISED, True),
        (Action.MOVE, HintState.ESCALATED, True),
        (Action.CONFIRM, HintState.RAISED, False),
        (Action.CHECKPOINT, HintState.CLEARED, False),
    ],
)
def test_only_a_hint_that_says_so_asks_for_a_checkpoint(action: Action, state: HintState, asks: bool) -> None:  # noqa: FBT001
    assert asks_to_save(raised(action=action, state=state)) is asks


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setenv("PHAROAH_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("PHAROAH_RANK_OWNER", "")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(hooks, "_current", None)
    monkeypatch.setattr(hooks, "REPORT_EVERY_S", 0.0)
    yield current_hook()
    current_hook().close()


def test_the_callback_is_called_once_and_a_checkpoint_answers(hook: Hook, tmp_path: Path) -> None:
    saved = []
    hook.on_save_now(lambda: saved.append(hook.should_checkpoint()))
    hook.step(1.0)
    ask(tmp_path)
    for _ in range(3):
        hook.step(1.0)
    assert saved == [True]
    with hook.phase("checkpoint"):
        pass
    assert not hook.should_checkpoint()
    assert [reading.saved for reading in readings.read(tmp_path / "readings-0")] == [False, True]


def test_without_a_callback_the_process_gets_the_signal_that_it_chose(tmp_path: Path) -> None:
    program = """
import signal, sys
from pathlib import Path
from tenant_client.doctor.run.hook import hook as hooks
from tenant_client.doctor.run.hook.checkpoints import ask
hooks.REPORT_EVERY_S = 0.0
signal.signal(signal.SIGUSR1, lambda *_: print("saved"))
with hooks.pharoah_hook() as hook:
    hook.step(1.0)
    ask(Path(sys.argv[1]))
    hook.step(1.0)
    hook.step(1.0)
"""
    ours = {"PHAROAH_RUN_DIR": str(tmp_path), "PHAROAH_SAVE_SIGNAL": "USR1", "RANK": "0", "PYTHONPATH": str(ROOT)}
    environment = os.environ | ours
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "saved\n"


def test_readings_that_cannot_be_written_do_not_end_the_progress(hook: Hook, tmp_path: Path) -> None:
    (tmp_path / "readings-0").mkdir()
    for _ in range(3):
        hook.step(1.0)
    progress = read(tmp_path / "progress-0")
    assert not hook.closed
    assert progress is not None
    assert progress.step == 3
