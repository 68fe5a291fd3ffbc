"""Whatever a job does, nothing of it is left: it does not end, forks, fills the disk, or its runner is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pharoah_benchmarks import guard
from pharoah_benchmarks.guard import ENDED, GONE, OUTPUT, TIME
from tests.support.waiting import until

STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(300)"
FORKS = """
import os, time
for _ in range(5):
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(300)
"""
FILLS = "open('large', 'wb').write(bytes(3 << 20))\nopen('larger', 'wb').write(bytes(3 << 20))"
PRINTS = "import sys\nwhile True:\n    sys.stdout.buffer.write(bytes(range(256)) * 256)"


def started(folder: Path, script: str, limit_s: float = 60.0) -> "subprocess.Popen[bytes]":
    words = [
        sys.executable,
        guard.__file__,
        str(limit_s),
        str(4 << 20),
        sys.executable,
        "-c",
        script,
        MARK + str(folder),
    ]
    return subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def how_it_ended(process: "subprocess.Popen[bytes]") -> str:
    """The guard's last word; its standard input stays open until then."""
    with process:
        assert process.stdout is not None
        return process.stdout.read().decode().strip()


MARK = "a job below "


def left(folder: Path) -> list[int]:
    """Processes that have the folder's mark in their command line, the guard aside."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes().split(b"\0")
        except OSError:
            continue
        if (MARK + str(folder)).encode() in words and guard.__file__.encode() not in words:
            found.append(int(line.parent.name))
    return found


@pytest.mark.parametrize(
    ("script", "limit_s", "how"),
    [
        ("pass", 60.0, ENDED),
        (FORKS, 60.0, ENDED),
        (FORKS + "time.sleep(300)", 1.0, TIME),
        (FILLS, 60.0, OUTPUT),
        (PRINTS, 60.0, OUTPUT),
    ],
    ids=["ends", "leaves daemons", "never ends", "fills the disk", "prints without end"],
)
def test_nothing_is_left_of_a_job_however_it_ended(tmp_path: Path, script: str, limit_s: float, how: str) -> None:
    assert how_it_ended(started(tmp_path, script, limit_s)) == how
    assert left(tmp_path) == []
    assert guard.size_of(tmp_path) <= 9 << 20


def test_a_guard_that_is_asked_to_end_leaves_nothing(tmp_path: Path) -> None:
    process = started(tmp_path, FORKS + "time.sleep(300)")
    until(lambda: len(left(tmp_path)) >= 6)
    process.terminate()
    assert how_it_ended(process) == GONE
    assert left(tmp_path) == []


@pytest.mark.nightly  # it waits as long as jobs may take to end
def test_a_job_that_does_not_heed_is_killed(tmp_path: Path) -> None:
    began = time.monotonic()
    process = started(tmp_path, STUBBORN, 0.5)
    assert how_it_ended(process) == TIME
    assert time.monotonic() - began > guard.GRACE_S
    assert left(tmp_path) == []


RUNNER = """
import subprocess, sys, time
subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
time.sleep(300)
"""


def test_a_runner_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    job = [sys.executable, "-c", FORKS + "time.sleep(300)", MARK + str(tmp_path)]
    words = [sys.executable, "-c", RUNNER, sys.executable, guard.__file__, "300", str(4 << 20), *job]
    runner = subprocess.Popen(words, cwd=tmp_path)
    until(lambda: len(left(tmp_path)) >= 6)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    until(lambda: not left(tmp_path))
    assert left(tmp_path) == []


def test_a_guard_whose_runner_lets_go_says_so(tmp_path: Path) -> None:
    process = started(tmp_path, "import time\ntime.sleep(300)")
    until(lambda: bool(left(tmp_path)))
    assert process.communicate(timeout=60)[0].decode().split() == [GONE]
    assert left(tmp_path) == []
