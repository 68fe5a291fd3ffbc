"""Stacks of a hung job: in each form the same stack, and of several ranks the odd one."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from tenant_client.doctor.diagnosis.odd_stacks import odd_stacks
from tenant_client.doctor.sources.stacks import looks_like, stacks_in
from tenant_client.program.cli import app

CALLS = [("wait", "torch/dist.py", 41), ("step", "train.py", 7), ("<module>", "train.py", 90)]
OTHER = [("read", "io.py", 5), ("load", "data.py", 12), ("step", "train.py", 6), ("<module>", "train.py", 90)]
HELPER = [("get", "queue.py", 180), ("run", "threading.py", 953)]
Calls = list[tuple[str, str, int]]


def py_spy(calls: Calls) -> str:
    def thread(name: str, calls: Calls) -> str:
        frames = "".join(f"    {call} ({file}:{line})\n" for call, file, line in calls)
        return f'Thread {70 + len(name)} (idle): "{name}"\n{frames}'

    head = "Process 71: python -u train.py\nPython v3.12.3 (/usr/bin/python3.12)\n\n"
    return head + thread("Thread-1", HELPER) + thread("MainThread", calls)


def py_spy_json(calls: Calls) -> str:
    def thread(name: str, calls: Calls) -> dict[str, object]:
        frames = [
            {"name": call, "filename": f"/x/{file}", "short_filename": file, "line": line} for call, file, line in calls
        ]
        return {"pid": 71, "thread_name": name, "owns_gil": False, "os_thread_id": len(name), "frames": frames}

    return json.dumps([thread("Thread-1", HELPER), thread("MainThread", calls)], indent=2)


def faulthandler(calls: Calls) -> str:
    def frames(calls: Calls) -> str:
        return "".join(f'  File "{file}", line {line} in {call}\n' for call, file, line in calls)

    head = "Thread 0x00007f0000000001 (most recent call first):\n"
    return head + frames(HELPER) + "\nCurrent thread 0x00007f0000000000 (most recent call first):\n" + frames(calls)


def pystack(calls: Calls) -> str:
    frames = "".join(f'    (Python) File "{file}", line {line}, in {call}\n' for call, file, line in reversed(calls))
    return f"Traceback for thread 71 (python) [] (most recent call last):\n{frames}"


def py_bt(calls: Calls) -> str:
    frames = "".join(f'  File "{file}", line {line}, in {call}\n    x = y\n' for call, file, line in calls)
    return f"Traceback (most recent call first):\n{frames}"


FORMS = [py_spy, py_spy_json, faulthandler, pystack, py_bt]


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_main_thread_with_the_innermost_call_first(form: object) -> None:
    text = form(CALLS)  # type: ignore[operator]
    assert looks_like(text)
    (stack,) = stacks_in(text, "dump_rank3.txt")
    assert [(frame.name, frame.file, frame.line) for frame in stack.frames] == CALLS
    assert stack.rank == 3


def test_a_crash_and_a_traceback_are_no_stacks_of_a_hung_job() -> None:
    assert not looks_like("Fatal Python error: Segmentation fault\n\n" + faulthandler(CALLS))
    assert not looks_like('Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n')


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("py-spy.rank12.txt", 12),
        ("stacks_r7.txt", 7),
        ("n1-rank-0.json", 0),
        ("attempt_0/5/stderr.log", 5),
        ("logs.tar.gz:dumps/rank_2", 2),
        ("server12.txt", None),
        ("frank.txt", None),
    ],
)
def test_a_rank_stands_in_the_name_of_the_file(file: str, rank: int | None) -> None:
    assert [stack.rank for stack in stacks_in(py_spy(CALLS), file)] == [rank]


def test_several_processes_in_one_file_are_told_apart_by_their_numbers() -> None:
    text = py_spy(CALLS) + py_spy(CALLS).replace("71:", "72:") + py_spy(OTHER).replace("71:", "73:")
    stacks = list(stacks_in(text, "all.txt"))
    assert [stack.who for stack in stacks] == ["process 71", "process 72", "process 73"]
    (odd,) = odd_stacks(stacks)
    assert odd.text.startswith("process 73 in read (io.py:5) < load (data.py:12); process 71, process 72 in wait")


def diagnosed(folder: Path, calls: dict[str, str]) -> tuple[int, str]:
    for name, text in calls.items():
        (folder / name).write_text(text)
    result = CliRunner().invoke(app, ["diagnose", str(folder), "--home", str(folder / "home")])
    return result.exit_code, result.stdout


def test_the_odd_rank_is_shown_and_no_cause_is_claimed(tmp_path: Path) -> None:
    code, text = diagnosed(tmp_path, {f"rank{rank}.txt": py_spy(OTHER if rank == 2 else CALLS) for rank in range(4)})
    assert code == 3
    assert text.startswith("cause unknown: rank 2: ")
    assert "rank 2 in read (io.py:5) < load (data.py:12); ranks 0, 1, 3 in wait (torch/dist.py:41) < step" in text


def test_ranks_that_are_all_together_or_nowhere_are_told_so(tmp_path: Path) -> None:
    together = [stack for rank in range(3) for stack in stacks_in(py_spy(CALLS), f"rank{rank}")]
    assert [one.text for one in odd_stacks(together)] == [
        "ranks 0, 1, 2 are all in wait (torch/dist.py:41) < step (train.py:7)"
    ]
    apart = [*stacks_in(py_spy(CALLS), "rank0"), *stacks_in(py_spy(OTHER), "rank1")]
    assert [one.rank for one in odd_stacks(apart)] == [0, 1]
    (alone,) = odd_stacks(together[:1])
    assert alone.text == "rank 0 is in wait (torch/dist.py:41) < step (train.py:7)"


def test_a_log_that_names_a_cause_goes_before_stacks(tmp_path: Path) -> None:
    log = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    b["ids"]\nKeyError: \'ids\'\n'
    files = {f"rank{rank}.txt": py_spy(OTHER if rank == 2 else CALLS) for rank in range(4)}
    assert diagnosed(tmp_path, {**files, "train.log": log})[1].startswith("key_error: ")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FORMS), st.data())
def test_any_text_ends_in_stacks_perhaps_none(form: object, data: st.DataObject) -> None:
    text = form(CALLS)  # type: ignore[operator]
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from(["", "9" * 400, "[" * 2000, "\0", '"', "null", "(", "Thread 1 ", "²"]))
    changed = text[:at] + put + text[at + data.draw(st.integers(0, 40)) :]
    looks_like(changed)
    found = list(stacks_in(changed, "rank1"))
    if found:
        assert list(odd_stacks(found))
