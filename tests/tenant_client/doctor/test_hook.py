"""The hook in a training process: when it samples, what it writes, and that nothing of it reaches the job."""

import errno
import json
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenant_client.doctor.run.hook import hook as hooks
from tenant_client.doctor.run.hook.follow import PATIENCE_STEPS, Follower, StepCounter
from tenant_client.doctor.run.hook.hook import Hook, current_hook, pharoah_hook
from tenant_client.doctor.run.hook.loss import LossReader
from tenant_client.doctor.run.hook.pacing import Pacer, PacingSettings
from tenant_client.doctor.run.hook.progress import Progress, file_name, read
from tenant_client.doctor.run.hook.sampler import Sampler
from tenant_client.doctor.run.syndromes.ranks import Ranks
from tests import needs

needs.installed("torch")
torch: Any = None  # until a test here needs it: importing it takes each worker two seconds

AUTOLOAD = Path(__file__).resolve().parents[3] / "tenant_client/doctor/run/hook/autoload"
UNGUARDED = {f"PHAROAH_SAMPLE_{name}": "inf" for name in ("BUDGET", "LOAD", "JITTER")}


@pytest.fixture(scope="module", autouse=True)
def _with_torch() -> None:
    global torch
    torch = needs.package("torch")


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run directory named in the environment, and a sampler that no busy machine stops."""
    for name, value in {**UNGUARDED, "PHAROAH_RUN_DIR": str(tmp_path), "PHAROAH_RANK_OWNER": ""}.items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hooks, "_current", None)
    monkeypatch.setattr(hooks, "REPORT_EVERY_S", 0.0)
    yield tmp_path
    current_hook().close()


def train(hook: Hook, steps: int) -> None:
    """A training loop with a hook in it."""
    model = torch.nn.Linear(12, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(torch.ones(5, 12)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hook.step(loss)


def seen(run_dir: Path, rank: int = 0) -> Progress:
    found = read(run_dir / file_name(rank))
    assert found is not None
    return found


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.iterdir())


def traces(run_dir: Path) -> list[str]:
    return [name for name in names(run_dir) if name.startswith("trace-")]


# ---- when to sample ------------------------------------------------------------------------------------------------


def test_ranks_of_different_speed_sample_at_the_same_steps() -> None:
    sampled = []
    for step_s, cost_s in ((0.1, 0.12), (0.11, 0.15)):
        pacer, steps = Pacer(PacingSettings(), 0.0), []
        for step in range(1, 20_000):
            if pacer.due(step, step * step_s, load_per_core=0.1):
                steps.append(step)
                pacer.charge(cost_s)
        sampled.append(steps)
    assert sampled[0] == sampled[1] == [10, 2560, 5120, 10240]


@pytest.mark.parametrize("cost_s", [0.01, 0.3, 20.0])
def test_after_the_first_sample_the_budget_holds_at_every_step(cost_s: float) -> None:
    pacer = Pacer(PacingSettings(samples=100), 0.0)
    for step in range(1, 200_000):
        if pacer.due(step, step * 0.05, load_per_core=0.1):
            pacer.charge(cost_s)
            assert pacer.samples == 1 or pacer.spent_s <= PacingSettings.budget * step * 0.05
    assert pacer.samples >= (1 if cost_s == 20.0 else 4)


def sampled_under_load(step_s: float, cost_s: float = 0.3, steps: int = 50_000) -> list[float]:
    """When a job on a host that stays busy samples, in seconds since its first step."""
    pacer, found = Pacer(PacingSettings(), 0.0), []
    for step in range(1, steps):
        pacer.saw(step_s)
        if pacer.due(step, step * step_s, load_per_core=9.0):
            found.append(step * step_s)
            pacer.charge(cost_s)
    return found


def test_a_host_that_turns_quiet_is_sampled_at_the_next_candidate() -> None:
    pacer = Pacer(PacingSettings(), 0.0)
    assert not any(pacer.due(step, float(step), load_per_core=9.0) for step in range(1, 100))
    assert pacer.busy == "load 9.0 per core"
    assert next(step for step in range(100, 200) if pacer.due(step, float(step), load_per_core=0.1)) == 102


@pytest.mark.parametrize("step_s", [0.01, 0.1, 0.5, 2.0, 20.0])
def test_a_busy_host_is_sampled_once_within_its_budget_and_soon_after_ten_minutes_at_the_latest(step_s: float) -> None:
    (at_s,) = sampled_under_load(step_s)
    wanted = PacingSettings()
    assert at_s * wanted.budget >= min(wanted.first_cost_s, wanted.patience_s * wanted.budget)
    assert at_s <= wanted.patience_s * 9 / 8 + step_s
    assert at_s < 400 or step_s > 0.01


def test_a_job_on_a_busy_host_without_a_budget_waits_as_long_as_it_has_patience() -> None:
    pacer = Pacer(PacingSettings(budget=0.0), 0.0)
    assert pacer.put_off_s() == 600.0
    assert next(step for step in range(1, 1000) if pacer.due(step, float(step), load_per_core=9.0)) == 654


@pytest.mark.parametrize(("durations_s", "due"), [([0.1, 0.11] * 8, True), ([0.1, 0.9] * 8, False), ([], True)])
def test_steps_of_very_different_length_count_as_busy(durations_s: list[float], *, due: bool) -> None:
    pacer = Pacer(PacingSettings(), 0.0)
    for duration_s in durations_s:
        pacer.saw(duration_s)
    assert pacer.due(10, 10.0, load_per_core=0.1) is due


def test_settings_come_from_the_environment() -> None:
    given = {"PHAROAH_SAMPLE_ACTIVE": "3", "PHAROAH_SAMPLE_BUDGET": "0.01", "PHAROAH_SAMPLE_LOAD": "", "OTHER": "1"}
    assert PacingSettings.from_environment(given) == PacingSettings(active=3, budget=0.01)
    with pytest.raises(ValueError, match="many"):
        PacingSettings.from_environment({"PHAROAH_SAMPLE_SAMPLES": "many"})


# ---- what it writes ------------------------------------------------------------------------------------------------


def test_a_sample_has_operators_with_shapes_and_versions(run_dir: Path) -> None:
    with pharoah_hook() as hook:
        train(hook, 15)
        assert seen(run_dir).phase == "train"
    assert traces(run_dir) == ["trace-0-0.json"]
    trace = json.loads((run_dir / "trace-0-0.json").read_bytes())
    shapes = [event["args"].get("Input Dims") for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
    assert [[3], [5, 12], [12, 3], [], []] in shapes
    assert sum(event["name"].startswith("ProfilerStep#") for event in trace["traceEvents"]) == 2
    assert trace["pharoah_versions"]["torch"] == torch.__version__
    assert trace["pharoah_software"]["numpy"]
    assert not any("Call stack" in event.get("args", {}) for event in trace["traceEvents"])


def test_files_are_the_owners_and_nothing_else_is_left(run_dir: Path) -> None:
    with pharoah_hook() as hook:
        train(hook, 50)
    assert traces(run_dir) == ["trace-0-0.json", "trace-0-1.json", "trace-0-2.json"]
    assert names(run_dir) == ["progress-0", "readings-0", *traces(run_dir)]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in run_dir.iterdir())


def test_progress_names_step_loss_rank_and_restart(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    with pharoah_hook() as hook:
        for step in range(4):
            hook.step(loss=float(step))
        assert seen(run_dir, 5).phase == "train"
        with hook.phase("checkpoint"):
            assert seen(run_dir, 5).phase == "checkpoint"
        assert seen(run_dir, 5).phase == "train"
    last = seen(run_dir, 5)
    assert (last.rank, last.pid, last.step, last.loss, last.restart) == (5, os.getpid(), 4, 3.0, 2)
    assert last.phase == "end"


def test_who_leaves_by_an_exception_did_not_just_end(run_dir: Path) -> None:
    def fails() -> None:
        with pharoah_hook() as hook:
            hook.step(loss=1.0)
            raise KeyError("x")

    with pytest.raises(KeyError):
        fails()
    assert seen(run_dir).phase == "failed"


def test_reports_are_bounded_in_time_and_the_last_one_is_exact(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "REPORT_EVERY_S", 3600.0)
    with pharoah_hook() as hook:
        for _ in range(5):
            hook.step(loss=1.0)
        assert seen(run_dir).step == 1
        with hook.phase("eval"):
            assert (seen(run_dir).step, seen(run_dir).phase) == (5, "eval")
        hook.step()
    assert (seen(run_dir).step, seen(run_dir).phase) == (6, "end")


def test_a_sample_that_the_job_does_not_live_to_complete_is_dropped(run_dir: Path) -> None:
    with pharoah_hook() as hook:
        train(hook, 12)
    assert names(run_dir) == ["progress-0", "readings-0", "sampling-0"]
    assert "not completed" in (run_dir / "sampling-0").read_text()
    assert not torch.autograd._profiler_enabled()


def test_fewer_local_ranks_can_be_asked_to_sample(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAROAH_SAMPLE_LOCAL_RANKS", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pharoah_hook() as hook:
        train(hook, 15)
    assert traces(run_dir) == []
    assert seen(run_dir).step == 15


def test_only_one_plain_number_is_a_loss() -> None:
    def read_of(loss: Any) -> float | None:
        reader = LossReader(torch)
        reader.take(loss)
        reader.poll()
        return reader.value

    numbers = (1.5, 2, torch.tensor(2.5, requires_grad=True), torch.tensor([[0.5]]))
    assert [read_of(number) for number in numbers] == [1.5, 2.0, 2.5, 0.5]
    others = (None, "loss", torch.ones(2), torch.nn.Parameter(torch.ones(1)))
    assert [read_of(other) for other in others] == [None] * 4


# ---- what the job does anyway --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequence", "iterations"),
    [
        ("aaaa", 4),
        ("abababab", 4),
        ("cccdcccd", 6),  # a critic with three steps for one of its generator
        ("ab" + "c" * (2 * PATIENCE_STEPS), 2 + PATIENCE_STEPS),  # a is left behind after a warm-up
        ("abcdefghij" * 3, 3),  # one optimiser per layer
    ],
)
def test_an_iteration_is_one_step_of_the_main_optimizer(sequence: str, iterations: int) -> None:
    counter = StepCounter()
    assert sum(counter.is_iteration(ord(optimizer)) for optimizer in sequence) == iterations


def test_an_explicit_loop_is_not_counted_twice(run_dir: Path) -> None:
    follower = Follower(torch)
    with pharoah_hook() as hook:
        assert hook is current_hook()
        for _ in range(3):
            follower.after_step(object(), (), {})
            hook.step()
        assert seen(run_dir).step == 3
    follower.after_step(object(), (), {})
    assert (seen(run_dir).step, seen(run_dir).phase) == (3, "end")


def test_nothing_is_sampled_once_the_workload_is_described(run_dir: Path) -> None:
    with pharoah_hook() as hook:
        train(hook, 15)
        (run_dir / "described").touch()
        train(hook, 200)
    assert traces(run_dir) == ["trace-0-0.json"]


def test_a_host_that_stays_busy_is_the_reason_that_is_left(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAROAH_SAMPLE_LOAD", "-1")
    monkeypatch.setenv("PHAROAH_SAMPLE_BUDGET", "0.0015")
    with pharoah_hook() as hook:
        train(hook, 40)
    assert traces(run_dir) == []
    assert (run_dir / "sampling-0").read_text().startswith("will profile ")


def test_the_jobs_own_profiler_is_never_disturbed(run_dir: Path) -> None:
    with pharoah_hook() as hook:
        train(hook, 11)  # a sample has begun
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            train(hook, 5)
        train(hook, 50)
    assert "aten::linear" in {event.key for event in profile.key_averages()}
    assert traces(run_dir) == []
    assert (run_dir / "sampling-0").read_text() == "the job was profiled by its owner"
    assert seen(run_dir).step == 66


def test_no_sample_while_the_job_profiles(run_dir: Path) -> None:
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
        pharoah_hook() as hook,
    ):
        train(hook, 30)
    assert "aten::linear" in {event.key for event in profile.key_averages()}
    assert traces(run_dir) == []


# ---- whatever goes wrong -------------------------------------------------------------------------------------------


def test_without_a_run_directory_nothing_happens(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PHAROAH_RUN_DIR")
    monkeypatch.chdir(run_dir)
    with pharoah_hook() as hook, hook.phase("eval"):
        assert hook.closed
        hook.start()
        train(hook, 15)
        assert hook.closed
        assert not torch.autograd._profiler_enabled()
    assert names(run_dir) == []
    assert caplog.records == []


@pytest.mark.parametrize("name", ["absent", "a file", "/proc"])
def test_a_run_directory_that_cannot_be_written_is_one_warning(
    name: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (run_dir / "a file").touch()
    monkeypatch.setenv("PHAROAH_RUN_DIR", str(run_dir / name))
    with pharoah_hook() as hook, hook.phase("eval"):
        train(hook, 15)
    assert len(caplog.records) == 1
    assert "the job is not affected" in caplog.text


@pytest.mark.nightly
def test_a_failing_report_ends_a_sample_too(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pharoah_hook() as hook:
        train(hook, 12)
        assert torch.autograd._profiler_enabled()
        hook._writer = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Hook, "_open", lambda _: 1 / 0)
            with hook.phase("eval"):
                pass
        assert not torch.autograd._profiler_enabled()
        train(hook, 12)
    assert len(caplog.records) == 1


def test_a_disk_that_fills_up_is_one_warning(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pharoah_hook() as hook:
        train(hook, 3)
        monkeypatch.setattr(os, "pwrite", full)
        train(hook, 3)
        monkeypatch.undo()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert seen(run_dir).step == 3


@pytest.mark.parametrize("method", ["_begin", "_advance", "_export", "_watch_other_profilers"])
def test_a_sampler_that_fails_ends_sampling_and_not_progress(
    method: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("torch has changed")

    monkeypatch.setattr(Sampler, method, fail)
    with pharoah_hook() as hook:
        train(hook, 30)
        assert seen(run_dir).step == 30
    assert traces(run_dir) == []
    assert len(caplog.records) == 1
    assert "torch has changed" in caplog.text
    assert not torch.autograd._profiler_enabled()


def test_settings_that_are_no_numbers_are_one_warning(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PHAROAH_SAMPLE_FIRST_STEP", "soon")
    with pharoah_hook() as hook:
        train(hook, 15)
    assert len(caplog.records) == 1
    assert traces(run_dir) == []


def test_a_forked_child_reports_nothing(run_dir: Path) -> None:
    with pharoah_hook() as hook:
        train(hook, 2)
        child = os.fork()
        if child == 0:
            hook.step()
            hook.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert (seen(run_dir).step, seen(run_dir).phase) == (2, "train")


def test_a_step_in_another_thread_is_not_counted(run_dir: Path) -> None:
    import threading

    with pharoah_hook() as hook:
        train(hook, 2)
        thread = threading.Thread(target=hook.step)
        thread.start()
        thread.join()
        assert seen(run_dir).step == 2


# ---- processes that nobody changed ---------------------------------------------------------------------------------

LOOP = """
import torch

model = torch.nn.Linear(4, 2)
first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
for step in range(16):
    for _ in range(3):  # gradient accumulation
        (model(torch.ones(2, 4)).sum() * 0 + step).backward()
    first.step()
    second.step()
"""
HELPER = LOOP + "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"


EVALUATES = """
import os, sys
from pathlib import Path
import torch
from tenant_client.doctor.run.hook.progress import read

class Model(torch.nn.Sequential):
    def train(self, mode=True):
        super().train(mode)
        self[0].eval()  # a part that stays frozen

def step():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

def now():
    told = read(Path(os.environ["PHAROAH_RUN_DIR"]) / "progress-0")
    print(told.phase, told.evaluations)

model = Model(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.eval(), model.train()
step(), now()
model.train(), now()
model.eval(), now()
model.eval(), now()
model.train(), now()
model.eval()
step(), now()
"""


def run_script(script: str, *arguments: str, path: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    """Runs a script as `pharoah-tenant run` would: the autoload directory in front of the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PHAROAH_", "PYTHON", "RANK"))}
    python_path = os.pathsep.join(filter(None, [str(AUTOLOAD), path]))
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=kept | UNGUARDED | {"PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


COMPILED = """
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="eager")
def step(batch):
    model.train()
    model(batch).sum().backward()
    model.eval()

for _ in range(4):
    step(torch.ones(2, 4))
    optimizer.step()
"""


@pytest.mark.nightly
def test_a_compiled_step_with_its_backward_runs_as_without_us(tmp_path: Path) -> None:
    run_script(COMPILED, PHAROAH_RUN_DIR=str(tmp_path))
    assert seen(tmp_path).step == 4


@pytest.mark.nightly
def test_an_evaluation_is_noticed_and_a_frozen_part_is_none(tmp_path: Path) -> None:
    done = run_script(EVALUATES, PHAROAH_RUN_DIR=str(tmp_path))
    assert done.stdout.splitlines() == ["train 0", "train 0", "eval 1", "eval 1", "train 1", "train 2"]


def test_a_job_is_followed_without_a_change_and_without_a_word(tmp_path: Path) -> None:
    done = run_script(LOOP, PHAROAH_RUN_DIR=str(tmp_path))
    assert (done.stdout, done.stderr) == ("", "")
    last = seen(tmp_path)
    assert (last.step, last.phase, last.loss, last.rank) == (16, "end", 13.0, 0)
    assert traces(tmp_path) == ["trace-0-0.json"]


@pytest.mark.nightly
def test_looking_for_torch_is_not_importing_it(tmp_path: Path) -> None:
    script = "import importlib.util; [importlib.util.find_spec('torch') for _ in range(3)]\n"
    run_script(script + LOOP, PHAROAH_RUN_DIR=str(tmp_path))
    assert seen(tmp_path).step == 16


@pytest.mark.nightly
def test_ranks_that_are_forked_report_each_for_itself(tmp_path: Path) -> None:
    body = "\n".join("    " + line for line in LOOP.strip().splitlines()[2:])
    script = f"""
import multiprocessing, os, torch
def train(rank):
    os.environ["RANK"] = str(rank)
{body}
ranks = [multiprocessing.get_context("fork").Process(target=train, args=(rank,)) for rank in range(2)]
for rank in ranks: rank.start()
for rank in ranks: rank.join()
"""
    run_script(script, PHAROAH_RUN_DIR=str(tmp_path))
    assert [(seen(tmp_path, rank).step, seen(tmp_path, rank).phase) for rank in range(2)] == [(16, "end")] * 2


@pytest.mark.nightly
def test_a_helper_process_of_a_rank_does_not_speak_for_it(tmp_path: Path) -> None:
    run_script(HELPER, LOOP.replace("16", "3"), PHAROAH_RUN_DIR=str(tmp_path), RANK="0")
    assert seen(tmp_path).step == 16


@pytest.mark.nightly
def test_a_process_that_only_imports_torch_is_a_rank_only_where_it_is_told_so(tmp_path: Path) -> None:
    run_script("import torch", PHAROAH_RUN_DIR=str(tmp_path))
    assert names(tmp_path) == []
    run_script("import torch", PHAROAH_RUN_DIR=str(tmp_path), RANK="3")
    assert (seen(tmp_path, 3).step, seen(tmp_path, 3).phase) == (0, "end")


def test_a_process_without_torch_is_not_touched(tmp_path: Path) -> None:
    script = "import json, sys; print(sorted({'tenant_client', 'logging', 'torch', 'typing'} & set(sys.modules)))"
    assert run_script(script, PHAROAH_RUN_DIR=str(tmp_path)).stdout == "[]\n"
    assert names(tmp_path) == []


@pytest.mark.nightly
def test_a_process_that_is_not_watched_imports_nothing_of_ours() -> None:
    assert run_script("import torch, sys; print('tenant_client' in sys.modules)").stdout == "False\n"


def test_the_hidden_sitecustomize_runs_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.hidden = __name__\n")
    script = "import sys, sitecustomize; print(sys.hidden, sitecustomize.__file__)"
    done = run_script(script, path=str(tmp_path), PHAROAH_RUN_DIR=str(tmp_path))
    assert done.stdout == f"sitecustomize {tmp_path / 'sitecustomize.py'}\n"


def test_an_error_in_the_hidden_sitecustomize_is_reported_by_python_and_not_by_us(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    done = run_script("print('on')", path=str(tmp_path), PHAROAH_RUN_DIR=str(tmp_path))
    assert done.stdout == "on\n"
    assert "Error in sitecustomize" in done.stderr
    assert "theirs" in done.stderr


def test_a_torch_without_these_interfaces_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("answer = 42\n")
    done = run_script("import torch; print(torch.answer)", path=str(tmp_path), PHAROAH_RUN_DIR=str(tmp_path))
    assert done.stdout == "42\n"
    assert done.stderr.count("\n") == 1
    assert "not watched" in done.stderr


@pytest.mark.nightly
def test_the_jobs_module_path_stays_as_it_was(tmp_path: Path) -> None:
    script = (
        "import sys; before = list(sys.path); import torch;"
        " print(sys.path == before, 'tenant_client.doctor.run.hook' in sys.modules)"
    )
    assert run_script(script, PHAROAH_RUN_DIR=str(tmp_path)).stdout == "True True\n"


@pytest.mark.nightly
def test_a_trace_that_the_disk_cannot_hold_does_not_appear(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    # Python would cut its compiled files at the limit, too, and keep them.
    done = run_script(limit + LOOP, PHAROAH_RUN_DIR=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
    assert names(tmp_path) == ["progress-0", "readings-0", "sampling-0"]
    assert (tmp_path / "sampling-0").read_text().startswith("sampling failed: ")
    assert seen(tmp_path).step == 16
    assert "no further traces" in done.stderr


# ---- where the rank is ---------------------------------------------------------------------------------------------


def test_a_rank_tells_where_it_is_and_nothing_is_wrapped(run_dir: Path) -> None:
    before = torch.autograd.backward, torch.save, torch.load, torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    ranks = Ranks(run_dir)

    def seen_at(place: str) -> bool:
        until_s = time.monotonic() + 30.0
        while time.monotonic() < until_s and ranks.states()[0].place != place:
            time.sleep(0.02)
        return ranks.states()[0].place == place

    try:
        with pharoah_hook() as hook:
            assert ranks.states() == {}
            train(hook, 4)
            assert seen_at("outside")
            with hook.phase("eval"):
                assert seen_at("eval")
            assert seen_at("outside")
            state = ranks.states()[0]
        assert ranks.states() == {}  # it says no more, and is not taken for one that stands still
    finally:
        ranks.close()
    assert [record.step for record in state.records] == [1, 2, 4]
    after = torch.autograd.backward, torch.save, torch.load, torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    assert after == before


def test_a_rank_that_cannot_be_compared_reports_all_the_same(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("tenant_client.doctor.run.hook.whereabouts.Whereabouts.open", fails)
    with pharoah_hook() as hook:
        train(hook, 3)
        assert seen(run_dir).step == 3
    assert "not compared with others" in caplog.text
