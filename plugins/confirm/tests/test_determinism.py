"""Runs that are compared bit by bit: real work on this machine's processors, with turned bits planted in it."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from federation.protocol.service_messages import CheckVerdict
from pharoah_confirm import determinism, replay
from pharoah_confirm.determinism import DeviceFinding, Results, judge
from pharoah_confirm.replay import (
    Backend,
    Digests,
    Replayed,
    Stages,
    digests,
    host,
    processors,
    replayed,
    work,
)
from tenant_client.doctor.advice.after_failure import after_failure
from tenant_client.doctor.records.attempts import AttemptCause, AttemptState
from tenant_client.program.cli import app
from tests import needs
from tests.support import calling, schemas

STAGES = [
    *(f"{kind}, step {step}, {stage}" for kind in ("float32", "float64") for step in (1, 2)
      for stage in ("forward", "reduction", "backward", "optimiser")),
    *(f"int64, step {step}, integers" for step in (1, 2)),
]  # fmt: skip


@pytest.fixture(scope="module")
def backend() -> Backend:
    """Small matrices: faults are planted, so that their number does not matter."""
    return replace(host(), side=48)


def turned(stages: Stages, at: str, bit: int, word: int = 100) -> Stages:
    """The same work, in which one bit of the first result of a stage is turned before the work goes on."""
    done = False
    for name, result in stages:
        if name == at and not done:
            np.ravel(result).view(np.uint8)[word % result.nbytes] ^= 1 << bit
            done = True
        yield name, result


def healthy(backend: Backend) -> Callable[[], Digests]:
    inputs = backend.inputs()
    return lambda: digests(work(inputs), backend.read)


def faulty(
    backend: Backend, at: str, bit: int = 3, runs: Callable[[int], bool] = lambda _: True
) -> Callable[[], Digests]:
    """A device that turns a bit in a stage of some runs, which are numbered from 1."""
    inputs, number = backend.inputs(), 0

    def run() -> Digests:
        nonlocal number
        number += 1
        return digests(turned(work(inputs), at, bit) if runs(number) else work(inputs), backend.read)

    return run


def ranks(*runs: Callable[[], Digests], kind: str = "one") -> list[Replayed]:
    return [replayed(f"cuda:{number}", kind, run, 0.0) for number, run in enumerate(runs)]


def accused(findings: list[DeviceFinding]) -> dict[str, str]:
    """Who is confirmed to be wrong, and in which stage."""
    return {one.of.device: one.stage for one in findings if one.verdict is CheckVerdict.MISMATCH}


# ---- the work ------------------------------------------------------------------------------------------------------


def test_the_stages_come_in_the_order_of_the_work_and_no_two_are_alike(backend: Backend) -> None:
    found = healthy(backend)()
    assert list(found) == STAGES
    assert len(set(found.values())) == len(STAGES)
    results = [result for name, result in work(backend.inputs()) if "float" in name]
    assert all(np.isfinite(result).all() for result in results)
    assert all(np.count_nonzero(result) > 0.4 * result.size for result in results)


def test_healthy_processors_are_never_accused(backend: Backend) -> None:
    numbers = sorted(os.sched_getaffinity(0))
    starts = [processors(backend, 0.0, numbers) for _ in range(20)]
    assert {finding.verdict for found in starts for finding in judge(found)} == {CheckVerdict.OK}
    assert len({json.dumps(one.stages) for found in starts for one in found}) == 1
    assert [one.device for one in starts[0]] == [f"cpu:{number}" for number in numbers]


@pytest.mark.nightly
def test_healthy_starts_of_the_whole_test_are_never_accused() -> None:
    found = [determinism.replays(["cpu"], 0.2) for _ in range(20)]
    assert {finding.verdict for one in found for finding in judge(one)} == {CheckVerdict.OK}
    assert len({json.dumps(one.stages) for devices in found for one in devices}) == 1
    assert min(one.runs for devices in found for one in devices) >= 2


@pytest.mark.parametrize("stage", STAGES)
def test_a_turned_bit_is_found_in_its_stage(backend: Backend, stage: str) -> None:
    for bit in (0, 7):
        (finding,) = judge(ranks(faulty(backend, stage, bit, lambda number: number == 2)))
        assert (finding.verdict, finding.stage) == (CheckVerdict.MISMATCH, stage)
        assert finding.reason == f"run 2 differs from the first, from this stage on: {stage}"


def test_a_fault_in_a_late_run_is_found_and_ends_the_test(backend: Backend) -> None:
    late = replayed("cpu:0", "one", faulty(backend, STAGES[2], runs=lambda number: number == 9), 600.0)
    assert (late.runs, late.differs) == (9, STAGES[2])
    first = replayed("cpu:0", "one", faulty(backend, STAGES[5], runs=lambda number: number == 1), 600.0)
    assert (first.runs, first.differs) == (2, STAGES[5])


# ---- devices beside each other -------------------------------------------------------------------------------------


def test_a_rank_that_is_always_wrong_is_found_by_the_others(backend: Backend) -> None:
    good, bad = healthy(backend), faulty(backend, STAGES[6])
    findings = judge(ranks(good, good, bad, good))
    assert accused(findings) == {"cuda:2": STAGES[6]}
    assert "3 of 4 of its kind compute something else" in findings[2].reason
    assert Counter(one.verdict for one in findings)[CheckVerdict.OK] == 3
    two = judge(ranks(good, bad, good, faulty(backend, STAGES[11]), good))
    assert accused(two) == {"cuda:1": STAGES[6], "cuda:3": STAGES[11]}


def test_without_a_majority_nobody_is_accused(backend: Backend) -> None:
    good, bad = healthy(backend), faulty(backend, STAGES[6])
    for runs in ((good, bad), (good, good, bad, bad), (good, bad, faulty(backend, STAGES[0]))):
        findings = judge(ranks(*runs))
        assert {one.verdict for one in findings} == {CheckVerdict.WARNING}
        assert all(one.stage in (STAGES[0], STAGES[6]) for one in findings)


def test_only_devices_of_one_kind_are_compared(backend: Backend) -> None:
    good, bad = healthy(backend), faulty(backend, STAGES[6])
    findings = judge([*ranks(good, good), *(replace_device(one, "cuda:9") for one in ranks(bad, kind="other"))])
    assert {one.verdict for one in findings} == {CheckVerdict.OK}
    assert "no other device of its kind" in findings[2].reason


def test_a_rank_that_differs_from_itself_has_no_vote_and_one_that_says_nothing_is_unknown(backend: Backend) -> None:
    good, torn = healthy(backend), faulty(backend, STAGES[6], runs=lambda number: number == 2)
    silent = Replayed("vm", "cuda:7", "one", problem="no result within 130 s")
    findings = judge([*ranks(torn, good, good), silent])
    assert accused(findings) == {"cuda:0": STAGES[6]}
    assert [one.verdict for one in findings[1:]] == [CheckVerdict.OK, CheckVerdict.OK, CheckVerdict.UNKNOWN]
    assert "no result within 130 s" in findings[3].reason


def test_an_earlier_run_of_a_device_gives_it_no_second_vote(backend: Backend) -> None:
    good, bad = healthy(backend), faulty(backend, STAGES[6])
    findings = judge([*ranks(good, bad), *ranks(good, bad)])
    assert [one.verdict for one in findings] == [CheckVerdict.WARNING] * 2


def replace_device(one: Replayed, device: str, machine: str = "vm") -> Replayed:
    return msgspec.structs.replace(one, device=device, machine=machine)


# ---- a GPU's arithmetic, by torch on the processor -----------------------------------------------------------------


@pytest.mark.nightly
def test_what_a_gpu_does_finds_a_turned_bit_too() -> None:
    torch: Any = needs.package("torch")
    before = torch.are_deterministic_algorithms_enabled()
    try:
        backend = replay.card(torch, "cpu", "", side=64)
        inputs = backend.inputs()
        first = digests(work(inputs), backend.read)
        assert all(digests(work(inputs), backend.read) == first for _ in range(20))
        assert [name.replace("bfloat16", "float64") for name in first] == STAGES
        for stage in first:

            def planted(at: str = stage) -> Stages:
                for name, result in work(inputs):
                    if name == at:
                        result.reshape(-1).view(torch.uint8)[9] ^= 4
                    yield name, result

            assert replay.first_difference(first, digests(planted(), backend.read)) == stage
    finally:
        torch.use_deterministic_algorithms(mode=before)


# ---- the processes, and the verb -----------------------------------------------------------------------------------


called = partial(calling.call, app, "confirm", "determinism")


def test_the_verb_on_this_machine() -> None:
    result = called("--device", "cpu", "--seconds", "0.1", "--json")
    assert result.exit_code == 0, result.output
    told = schemas.held("pharoah-tenant confirm determinism", result.stdout)
    assert [one["device"] for one in told["devices"]] == [f"cpu:{one}" for one in sorted(os.sched_getaffinity(0))]
    assert all(list(one["stages"]) == STAGES for one in told["devices"])


def test_files_of_other_machines_are_compared_and_the_wrong_machine_is_named(tmp_path: Path, backend: Backend) -> None:
    good, bad = healthy(backend), faulty(backend, STAGES[6])
    files = [tmp_path / f"{name}.json" for name in ("a", "b", "c")]
    for file, run in zip(files, (good, bad, good), strict=True):
        rows = tuple(replace_device(one, "cuda:0", file.stem) for one in ranks(run))
        file.write_bytes(msgspec.json.encode(Results(determinism.VERSION, rows)))
    found = called("--seconds", 0, *files)
    assert found.exit_code == 2
    assert "b cuda:0: confirmed: 2 equal runs, but 2 of 3 of its kind compute something else" in found.stdout
    assert STAGES[6] in found.stdout
    assert called("--seconds", 0, *files[:2]).exit_code == 1
    assert called("--seconds", 0, files[0], files[2]).exit_code == 0
    assert called("--seconds", 0).exit_code == 3
    told = tmp_path / "told.json"
    told.write_text(called("--seconds", 0, *files, "--json").stdout)
    assert called("--seconds", 0, told).exit_code == 2  # what it wrote can be read again


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "devices": []}', '{"version": 1, "devices": [1]}'])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    result = called("--seconds", 0, tmp_path / "x.json")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "x.json" in result.stderr


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'RuntimeError: CUDA error: out of memory' >&2; exit 1", "exit code 1: RuntimeError: CUDA error: out of"),
        ("kill -SEGV $$", "exit code -11: no result"),
        ("exec sleep 60", "no result within 0 s"),
        ("echo '[{\"device\": 1}]'", "exit code 0: no result"),
    ],
)
def test_a_device_that_crashes_or_hangs_is_not_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, problem: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(determinism, "START_S", 0.3)
    (finding,) = judge(determinism.replays(["cuda:0"], 0.1))
    assert finding.verdict is CheckVerdict.UNKNOWN
    assert problem in finding.reason


def test_settings_of_libraries_do_not_reach_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nenv > {tmp_path}/env\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    determinism.replays(["cpu"], 0.0)
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert "OPENBLAS_CORETYPE" not in seen
    assert determinism.FIXED.items() <= seen.items()
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_who_diagnoses_wrong_results_is_sent_here() -> None:
    cause = AttemptCause("silent_data_corruption", 3, sentence="silent_data_corruption: rank 3: hashes differ")
    _, do, _ = after_failure("a", AttemptState.FAILED, cause)
    assert "`pharoah-tenant confirm determinism`" in do
