"""The acceptance on a GPU (`make gpu`), as far as no GPU is needed: its parts, their report, and what it reads."""

import json
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from federation.protocol.service_messages import CheckVerdict, Suspicion
from pharoah_confirm import cuda
from pharoah_confirm.assess import BenchmarkFinding, Measured, assess
from pharoah_confirm.criteria import learn
from pharoah_confirm.sample import Sample
from provider_server.fleet.telemetry.quality import Reason, Tally
from simulation.studies.gpu import card, readers, signatures, speed
from simulation.studies.gpu.__main__ import FAILED, PASSED, ROOT, SKIPPED, WHEELS, Result, attempted, judged, write
from simulation.studies.gpu.parts import PARTS, Part
from tenant_client.doctor.sources.reasons import REASONS
from tests import needs

FAULTS = tomllib.loads((ROOT / "simulation/studies/gpu/failures.toml").read_text(encoding="utf-8"))
GOOD = {"check": "it computes", "good": True, "said": "yes"}
BAD = {"check": "it is fast", "good": False, "said": "12%"}


def soon() -> float:
    return time.time() + 600


# ---- parts and their report ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "ended", "result", "why"),
    [
        ([GOOD], "", PASSED, ""),
        ([GOOD, BAD], "", FAILED, "it is fast: 12%"),
        ([{"skipped": "no card"}], "", SKIPPED, "no card"),
        ([GOOD, {"skipped": "no second card"}], "", SKIPPED, "no second card"),
        ([BAD, {"skipped": "no second card"}], "", FAILED, "it is fast: 12%"),
        ([GOOD], "took longer than 5 s", FAILED, "took longer than 5 s"),
        ([], "", SKIPPED, "it checked nothing"),
    ],
)
def test_what_became_of_a_part(lines: list[dict[str, object]], ended: str, result: str, why: str) -> None:
    found = judged(Result("one"), [{"figures": {"rate": 1.5}}, *lines], ended, "the last words")
    assert (found.result, found.why, found.figures) == (result, why, {"rate": 1.5})
    assert ("stderr" in found.evidence) == bool(ended)


def test_a_report_says_what_was_tried_with_what(tmp_path: Path) -> None:
    results = [
        judged(Result("card"), [{"figures": {"card": "H100"}}, GOOD], "", ""),
        judged(Result("x"), [BAD], "", ""),
    ]
    text = write(tmp_path, results, time.time() - 3, 480.0)
    assert (tmp_path / "report.txt").read_text(encoding="utf-8") == text
    assert "1 passed, 1 failed, 0 skipped" in text
    assert "NOT it is fast: 12%" in text
    told = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (told["card"], told["fail"], told["parts"][1]["why"]) == ({"card": "H100"}, 1, "it is fast: 12%")


def test_parts_without_a_card_or_without_time_say_so(tmp_path: Path) -> None:
    alone = attempted(tmp_path, sys.executable, "cpu", soon(), Part("readers", "readers:read"))
    late = attempted(tmp_path, sys.executable, "cpu", time.time() + 1, Part("card", "card:describe", needs_card=False))
    assert (alone.result, alone.why) == (SKIPPED, "torch finds no CUDA device")
    assert (late.result, late.why) == (SKIPPED, "no time is left of the budget of all parts")


def test_each_part_has_a_function_and_the_names_are_its_own() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
    for part in PARTS:
        module, function = part.function.split(":")
        source = (ROOT / "simulation/studies/gpu" / f"{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^def {function}\(notes: Notes", source, re.MULTILINE), part
        assert part.name.removeprefix("failure-") in FAULTS or not part.name.startswith("failure-")
    reasons = {reason for row in FAULTS.values() for reason in (*row["cuda"], *row["cpu"])}
    assert reasons - set(REASONS) <= {"mismatched_collective"}  # which some versions do not tell apart


def test_the_wheels_are_those_of_the_makefile_and_of_the_lock() -> None:
    listed = re.search(r"^GPU_WHEELS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed is not None
    assert tuple(listed[1].split()) == WHEELS
    locked = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(WHEELS) <= set(locked)


@pytest.mark.nightly
def test_the_acceptance_runs_without_a_card(tmp_path: Path) -> None:
    needs.installed("torch")
    parts = ["card", "readers", "hook-eager", "signature", "kernels"]
    command = [
        sys.executable,
        "-m",
        "simulation.studies.gpu",
        "--out",
        tmp_path / "out",
        "--wheels",
        tmp_path / "none",
        *parts,
    ]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    told = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stdout
    if told["card"]["device"] == "cpu":
        expected = [PASSED, SKIPPED, PASSED, PASSED, SKIPPED]
        assert [part["result"] for part in told["parts"]] == expected, done.stdout
        assert all(part["why"] for part in told["parts"] if part["result"] == SKIPPED)


@pytest.mark.nightly
@pytest.mark.xdist_group("torchrun")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_that_fails_on_the_processor_is_judged_right(tmp_path: Path, fault: str) -> None:
    needs.installed("torch")
    part = Part(f"failure-{fault}", "failures:fail", (fault,), 300.0, needs_card=False)
    found = attempted(tmp_path, sys.executable, "cpu", soon(), part)
    assert found.result == PASSED, (found.why, found.evidence)
    assert "step 10" in found.evidence["output"]


@pytest.mark.nightly
def test_a_part_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    needs.installed("torch")
    part = Part("failure-hang", "failures:fail", ("hang",), 9.0, needs_card=False)
    found = attempted(tmp_path, sys.executable, "cpu", soon(), part)
    assert (found.result, found.why) == (FAILED, "took longer than 9 s")
    assert "failures.py" in found.evidence["stderr"]  # where it was
    mine = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(path)]
    assert mine == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# ---- a card beside what is published -------------------------------------------------------------------------------


def test_a_card_is_found_by_the_name_that_cuda_gives() -> None:
    expected = {
        "H100 80GB HBM3": (989, 3350),
        "H100 PCIe": (756, 2000),
        "H200": (989, 4800),
        "A100 80GB PCIe": (312, 1935),
        "A100-SXM4-80GB": (312, 2039),
        "A100-PCIE-40GB": (312, 1555),
        "L4": (121, 300),
        "L40S": (362, 864),
    }
    rows = {name: card.published(f"NVIDIA {name}") or {} for name in expected}
    assert {name: (row["bf16"], row["memory"]) for name, row in rows.items()} == expected
    assert card.published("NVIDIA GeForce GT 710") is None


def test_a_slow_card_is_below_its_share_and_a_slow_slot_is_no_fault_of_it() -> None:
    row = {"bf16": 989, "memory": 3350, "link": 63, "least": {"bf16": 0.4}}
    found = card.shares({"bf16": 500.0, "memory": 2000.0, "link": 26.0}, row, 31.5)
    assert {what: share >= least for what, (share, least) in found.items()} == {
        "bf16": True,
        "memory": False,
        "link": True,
    }
    assert card.shares({"link": 26.0}, row, None)["link"][0] < card.LEAST
    said = {"pcie.link.gen.max": "4", "pcie.link.width.max": "16"}
    assert card.slot_gbs(said) == pytest.approx(31.5, rel=0.01)
    assert card.slot_gbs({**said, "pcie.link.gen.max": "[N/A]"}) is None


# ---- a card that others use ----------------------------------------------------------------------------------------


def found_with(on_device: float, rate: float) -> tuple[Measured, BenchmarkFinding]:
    rng = np.random.default_rng(1)
    runs = [Sample("gemm", "H100", "TFLOP/s", rate * rng.normal(1, 0.01, 64)) for rate in (700.0,) * 8]
    measured = Measured(Sample("gemm", "H100", "TFLOP/s", rate * rng.normal(1, 0.01, 64)), 0.0, on_device)
    criterion = learn({str(number): [run] for number, run in enumerate(runs)})
    verdict = assess(Suspicion.COMPUTE, "gemm", lambda: measured, lambda _: (criterion, "own"), undisturbed=True)
    return measured, verdict


def test_a_busy_card_is_told_as_such_and_not_accused() -> None:
    measured, busy = found_with(0.98, 300.0)
    assert (busy.verdict, speed.told(measured, busy)) == (CheckVerdict.WARNING, True)
    assert "98% of the GPU" in busy.reason
    measured, slow = found_with(0.02, 300.0)
    assert (slow.verdict, speed.told(measured, slow)) == (CheckVerdict.MISMATCH, False)
    assert speed.told(*found_with(0.98, 700.0))


@pytest.mark.parametrize(("said", "share"), [("97", 0.97), ("3", 0.03), ("[N/A]", 0.0), ("No devices were found", 0.0)])
def test_how_busy_a_card_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, share: float) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho "{said}"\n')
    program.chmod(0o755)
    about = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda _: SimpleNamespace(uuid="abc")))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(cuda, "torch_for", lambda _: about)
    monkeypatch.setattr(cuda, "BETWEEN_LOOKS_S", 0.0)
    assert cuda.busy("cuda:0") == share
    looks = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert len(looks) == (cuda.LOOKS if share > cuda.IDLE else 1)
    assert "--id=GPU-abc" in looks[0]
    program.unlink()
    assert cuda.busy("cuda:0") == 0.0


# ---- readers and kernels -------------------------------------------------------------------------------------------


def test_what_nvidia_smi_says_is_read_as_telemetry() -> None:
    units = ("", " [W]", " [MHz]", " [MHz]", " [%]", " [%]", " [MiB]", " [MiB]")
    texts = ("41", "70.25 W", "1980 MHz", "2619 MHz", "97 %", "12 %", "1024 MiB", "80000 MiB")
    said = {field + unit: text for field, unit, text in zip(readers.FIELDS, units, texts, strict=True)}
    names = readers.exported(said)
    assert len(names) == len(readers.FIELDS)
    tally = Tally()
    now_s = 1_782_000_000.0
    broken = {**names, "nvidia_smi_temperature_gpu": 4000.0, "nvidia_smi_fan_speed_ratio": 0.3}
    told = readers.summarised(
        [(now_s + at, *row) for at, one in enumerate((names, broken)) for row in one.items()], tally
    )
    assert told["nvidia_smi_utilization_gpu_ratio"] == (97.0, 97.0)
    assert told["nvidia_smi_memory_used_bytes"] == (2.0**30, 2.0**30)
    assert told["nvidia_smi_temperature_gpu"] == (41.0, 41.0)
    assert {one.reason for one in tally.quality().counts} == {Reason.IMPLAUSIBLE, Reason.UNKNOWN_METRIC}


def test_time_in_kernels_of_a_known_family(tmp_path: Path) -> None:
    times = {"nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTN": 600, "void my_own_thing<float>(int)": 100}
    events = [{"cat": "kernel", "name": name, "dur": dur} for name, dur in times.items()]
    events += [
        {"cat": "gpu_memset", "name": "Memset (Device)", "dur": 300},
        {"cat": "cpu_op", "name": "aten::mm", "dur": 9},
    ]
    trace = tmp_path / "trace-0-0.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    found = signatures.kernel_times(trace)
    share, others = signatures.known(found)
    assert share == pytest.approx(0.9)
    assert others == Counter({"void my_own_thing<float>(int)": 100})
