"""What launchers say in a job's output: recorded lines of each, what is no event, and what the journal has of it."""

import json
import logging
import os
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tenant_client.doctor.records.attempts import Attempt, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.launcher import Launcher, Output
from tenant_client.doctor.run.observe import Observer
from tenant_client.doctor.run.settings import RunSettings
from tenant_client.doctor.sources.launcher_events import EventKind, LauncherEvent, read_event
from tests.support.launchers import TORCHFT, started, torchrun

NVRX = "2026-08-07 22:12:30,250 [INFO] [gpu-7] [workload:?(?) infra:0(0)] profiling.py:99   - Cycle: {} Event: {} "
NVRX += "Node: gpu-7_4711_0 Rank: 0 Time: 2026-08-07 22:12:30.250 UTC"
AT_S = 1786140750.25


def test_a_start_of_torchrun_has_its_number_and_the_ranks() -> None:
    event = read_event(started(1, 8).encode())
    assert event == LauncherEvent(EventKind.STARTED, "torchrun started the workers", 1, 8)
    assert event.at_s is None  # torchrun writes 0


def test_a_failure_of_torchrun_names_rank_and_host() -> None:
    event = read_event(b"[default0]:" + torchrun("FAILED", rank=3, exit_code=-9).encode())
    assert event == LauncherEvent(EventKind.FAILED, "rank 3 failed on gpu-7, torchrun says", 0)


@pytest.mark.parametrize("state", ["RENDEZVOUS", "SUCCEEDED", "TERMINATED", "ASSIGN_WORKER_RANKS"])
def test_other_events_of_torchrun_say_nothing(state: str) -> None:
    assert read_event(torchrun(state).encode()) is None
    assert read_event(torchrun("FAILED", source="AGENT", rank=None).encode()) is None


def test_a_cycle_of_nvrx_starts_and_fails() -> None:
    begun = read_event(NVRX.format(3, "worker_start_completed").encode())
    assert begun == LauncherEvent(EventKind.STARTED, "NVRx started the workers", 3)
    failed = read_event(NVRX.format(4, "failure_detected").encode())
    assert failed == LauncherEvent(EventKind.FAILED, "NVRx detected a failure on gpu-7_4711_0", 3)
    assert begun.at_s == failed.at_s == AT_S
    assert read_event(NVRX.format(4, "rendezvous_started").encode()) is None


def test_records_of_torchft() -> None:
    texts = [event.text for line in TORCHFT if (event := read_event(line.encode()))]
    assert texts == [
        "torchft formed quorum 2 at step 5",
        "torchft did not commit step 5",
        "torchft has an error in replica a: process_group_abort",
    ]


DAMAGED = [
    started(1, 8)[:-20],
    started(1, 8).replace('"agent_restarts": 1', '"agent_restarts": "one"'),
    started(1, 8).replace("role_world_size", "role_world_sizes").replace("gpu-7", "\\ud800"),
    '{"torchft": "torchft_quorums"}',
    '{"torchft": "torchft_quorums", "at_s": ' + "[" * 5000 + "]" * 5000 + "}",
    NVRX.format(4, "failure_detected").replace("22:12:30.250 UTC", "22:99:30.250 UTC"),
    NVRX.format("9" * 12, "failure_detected"),
    started(1, 8).replace("gpu-7", "g" * 70_000),
]


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_no_error(line: str) -> None:
    event = read_event(line.encode())
    assert event is None or event.at_s is None


@given(st.binary(max_size=300), st.sampled_from([started(0, 2), *TORCHFT, NVRX.format(4, "failure_detected")]))
def test_any_bytes_are_an_event_or_none(data: bytes, line: str) -> None:
    half = len(line) // 2
    for text in (data, line.encode()[:half] + data, line.encode()[:half] + data + line.encode()[half:]):
        assert isinstance(read_event(text), LauncherEvent | None)


# ---- output that comes while it is read ------------------------------------------------------------------------------


def test_output_is_read_once_over_a_line_in_two_parts_and_a_new_file(tmp_path: Path) -> None:
    log, output, mark = tmp_path / "stderr.log", Output(tmp_path), TORCHFT[0]

    def put(text: str) -> list[bytes]:
        with log.open("a") as file:
            file.write(text)
        return list(output.lines())

    assert put(f"{mark}\n{mark[:9]}") == [mark.encode()]
    assert put(mark[9:]) == []
    assert put("\n") == [mark.encode()]
    log.rename(tmp_path / "stderr.log.1")
    with (tmp_path / "stderr.log.1").open("a") as file:
        file.write(f"{mark}\n")
    assert put(f"{mark} again\n") == [mark.encode(), f"{mark} again".encode()]
    assert put("nothing to read\n") == []


def test_a_change_of_the_world_is_told_once_by_all_nodes(tmp_path: Path) -> None:
    launcher, log = Launcher(tmp_path), tmp_path / "output.log"
    lines = [started(0, 8), started(0, 8), started(1, 8), started(1, 6), started(1, 6)]
    log.write_text("\n".join([*lines, ""]))
    (finding,) = launcher.look(100.0, ())
    assert (finding.kind.value, finding.text, finding.cleared_at_s) == (
        "launcher",
        "world size changed from 8 to 6",
        100.0,
    )
    assert launcher.starts == {1: 100.0}
    assert launcher.look(101.0, ()) == []


def test_the_first_start_counts_as_none_whatever_its_number(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    lines = [NVRX.format(cycle, "worker_start_completed") for cycle in (5, 6)]
    (tmp_path / "output.log").write_text("\n".join([*lines, ""]))
    launcher.look(0.0, ())
    assert launcher.starts == {1: AT_S}


def test_a_job_that_says_much_fills_no_journal(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    lines = [TORCHFT[1].replace('"step": 5', f'"step": {step}') for step in range(1000)]
    lines += [started(number, 8) for number in range(3)]
    (tmp_path / "output.log").write_text("\n".join([*lines, ""]))
    assert len(launcher.look(0.0, ())) == 100
    assert launcher.starts == {1: 0.0, 2: 0.0}  # and nothing is missed


@pytest.fixture
def observer(tmp_path: Path) -> tuple[Observer, Path]:
    """An observer of this process, and its run directory."""
    run_dir = tmp_path / "runs/81-1"
    run_dir.mkdir(parents=True)
    told = {"run_dir": str(run_dir), "attempt": "1", "elastic_dir": "", "elastic_is_ours": "False"}
    settings = RunSettings(tmp_path, "81", watch=False, quiet=True)
    return Observer(settings, told, FailOpen(quiet=True), os.getpid(), 1000.0), run_dir


def attempts(home: Path) -> list[Attempt]:
    with closing(open_database(home / "tenant.db")) as connection:
        return Attempts(connection).list()


def test_each_start_is_an_attempt_and_the_first_has_its_cause(observer: tuple[Observer, Path], tmp_path: Path) -> None:
    watched, run_dir = observer
    log = run_dir / "output.log"
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    log.write_text(f"{started(0, 8)}\n[rank1]: Traceback (most recent call last):\n[rank1]: {oom}\n")
    watched.tick(1001.0)
    assert [one.state for one in attempts(tmp_path)] == [AttemptState.RUNNING]
    with log.open("a") as file:
        file.write(f"{started(1, 6)}\n")
    watched.tick(1002.0)
    watched.tick(1003.0)
    first, second = attempts(tmp_path)
    assert (first.state, first.ended_at_s, first.cause.reason) == (AttemptState.FAILED, 1002.0, "gpu_out_of_memory")
    assert (second.state, second.started_at_s) == (AttemptState.RUNNING, 1002.0)
    assert [finding["text"] for finding in first.findings] == ["world size changed from 8 to 6"]


# ---- torchft's handler, without torchft ------------------------------------------------------------------------------


def test_the_handler_writes_what_torchft_logs(capsys: pytest.CaptureFixture[str]) -> None:
    """The call is that of torchft 0.2.0, `manager.py`: an empty message, and all of it in `extra`."""
    from examples.launchers.torchft_events import LOGGERS, show_events

    show_events()
    said = {"job_id": "unknown", "replica_id": "a", "rank": 0, "quorum_id": 2, "step": 5}
    logging.getLogger("torchft_quorums").info("", extra=said)
    for name in LOGGERS:
        logging.getLogger(name).handlers.clear()
    line = capsys.readouterr().err
    view = json.loads(line)
    assert view.pop("at_s") > 0
    assert view == {"torchft": "torchft_quorums", "replica_id": "a", "rank": 0, "quorum_id": 2, "step": 5}
    assert read_event(line.encode()) == read_event(TORCHFT[0].encode())
