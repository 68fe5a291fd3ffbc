"""Patterns of a rank's functions: what the hook writes, and which rank the comparison calls slow."""

import gc
import json
import sys
import time
from pathlib import Path

import pytest

from tenant_client.doctor.run.differential import WINDOWS, Differential, Oddity
from tenant_client.doctor.run.hook import patterns
from tenant_client.doctor.run.hook.patterns import SIZE, Function, Pattern, Patterns, Stack, encode, file_name, read
from tenant_client.doctor.run.hook.whereabouts import Whereabouts
from tests.support.changing import replace

STEP_MS = 100.0


def a_pattern(
    rank: int, window: int = 1, work: float = 0.0, role: str = "2:17", gc_ms: float = 0.0, **ms: float
) -> Pattern:
    """50 steps of 100 ms; `ms` are milliseconds per step by kind, and the collective takes what is left, waiting."""
    named = {**ms, "collective": STEP_MS - sum(ms.values())}
    functions = tuple(
        Function(kind, f"train.py:{kind}", int(each), each, 0.0, 1.0 if kind == "collective" else 0.0)
        for kind, each in named.items()
    )
    return Pattern(rank, 4711, window, 50 * window, 50, 5.0, role, work, None, 2.5, gc_ms, gc_ms, functions)


def told(*shown: Pattern, windows: int = WINDOWS) -> list[Oddity]:
    differential = Differential()
    found: list[Oddity] = []
    for window in range(windows):
        found = differential.feed([replace(pattern, window=window + 1) for pattern in shown])
    return found


# ---- what is written -----------------------------------------------------------------------------------------------


def slow_part() -> None:
    time.sleep(0.004)


def test_a_pattern_names_the_jobs_own_function_and_times_collections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "INTERVAL_S", 0.005)
    monkeypatch.setattr(patterns, "BUDGET", 1.0)
    complaints: list[str] = []
    watched = Patterns(tmp_path, 3, complaints.append, Whereabouts(), {})
    step, ends_s = 0, time.monotonic() + 120
    while read(tmp_path / file_name(3)) is None and time.monotonic() < ends_s:
        slow_part()
        if step % 50 == 0:
            gc.collect(0)
        step += 1
        watched.on_step(step, 2.0, 0.5)
    watched.close()
    pattern = read(tmp_path / file_name(3))
    assert pattern is not None
    assert complaints == []
    assert watched._gc not in gc.callbacks
    slow = next(function for function in pattern.functions if function.name == "test_patterns.py:slow_part")
    assert (slow.kind, slow.waiting > 0.5, slow.mean_ms > 1.0) == ("compute", True, True)
    assert (pattern.first_loss, pattern.work, pattern.gc_ms > 0) == (0.5, 2.0 * pattern.steps, True)


def test_a_line_that_waits_for_a_collective_is_known_by_its_number() -> None:
    frame = sys._getframe()
    here = Stack({(id(frame.f_code), frame.f_lineno): frame.f_code}).function(frame)[0]
    elsewhere = Stack({(id(frame.f_code), frame.f_lineno + 1): frame.f_code}).function(frame)[0]
    assert (here, elsewhere) == ("collective", "compute")


def test_a_pattern_is_read_as_it_was_written_and_never_larger_than_said(tmp_path: Path) -> None:
    pattern = a_pattern(1, input=30.0)
    (tmp_path / "p").write_bytes(encode(pattern))
    assert read(tmp_path / "p") == pattern
    many = replace(pattern, functions=tuple(Function("compute", "ä" * 80, 9, 1e3, 1e3, 0.5) for _ in range(20)))
    assert len(encode(many)) <= SIZE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 2000,
        "7",
        '{"rank": 1}',
        encode(a_pattern(1)).decode().replace('"steps":50', '"steps":-1'),
        encode(a_pattern(1)).decode().replace('"seconds":5.0', '"seconds":NaN'),
        encode(a_pattern(1)).decode().replace('"seconds":5.0', '"seconds":"5"'),
        encode(a_pattern(1)).decode().replace('["collective"', '[["collective"]'),
        encode(a_pattern(1)).decode()[:-9],
        json.dumps({"functions": [1, 2]}),
    ],
)
def test_what_is_no_pattern_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "p").write_text(text)
    found = read(tmp_path / "p")
    assert found is None or isinstance(found.functions[0].kind, str)


# ---- what is concluded ---------------------------------------------------------------------------------------------


def test_the_rank_whose_input_is_slow_is_named_after_some_windows() -> None:
    ranks = [a_pattern(rank, input=40.0 if rank == 2 else 1.0, compute=30.0) for rank in range(4)]
    assert told(*ranks, windows=WINDOWS - 1) == []
    (found,) = told(*ranks)
    assert (found.rank, found.kind, found.name) == (2, "input", "train.py:input")
    assert (found.organ, round(found.share, 2)) == ("data loader or storage", 0.39)


def test_of_two_ranks_the_one_that_waits_for_the_other_is_not_slow() -> None:
    (found,) = told(a_pattern(0, compute=30.0), a_pattern(1, compute=80.0))
    assert (found.rank, found.kind) == (1, "compute")


def test_ranks_of_other_roles_are_not_compared() -> None:
    assert told(a_pattern(0, compute=30.0), a_pattern(1, role="9:99", compute=80.0)) == []


def test_ranks_that_differ_by_chance_are_all_well() -> None:
    assert told(*(a_pattern(rank, input=1.0, compute=30.0 + rank) for rank in range(4))) == []


@pytest.mark.parametrize(("work", "slow"), [(1000.0, True), (1300.0, True), (1600.0, False)])
def test_a_rank_with_longer_sequences_may_be_slower_by_their_square(work: float, slow: bool) -> None:  # noqa: FBT001
    others = [a_pattern(rank, work=1000.0, compute=30.0) for rank in (0, 1, 3)]
    found = told(*others, a_pattern(2, work=work, compute=85.0))
    assert [oddity.rank for oddity in found] == [2] * slow


def test_garbage_collection_on_one_rank_is_named_and_what_it_delays_is_not() -> None:
    odd = replace(a_pattern(1, compute=60.0), gc_ms=40.0)
    (found,) = told(a_pattern(0, compute=20.0), odd)
    assert (found.rank, found.kind, found.organ) == (1, "gc", "garbage collection")


def test_what_a_rank_waits_for_in_backward_is_anothers_input() -> None:
    functions = (Function("backward", "train.py:main", 80, 80.0, 0.0, 0.2), Function("compute", "", 20, 20.0, 0.0, 0.0))
    waiting = replace(a_pattern(0), functions=functions)
    slow = (Function("input", "data.py:fetch", 60, 60.0, 0.0, 1.0), *functions[1:])
    (found,) = told(waiting, replace(a_pattern(1), functions=slow))
    assert (found.rank, found.kind) == (1, "input")
