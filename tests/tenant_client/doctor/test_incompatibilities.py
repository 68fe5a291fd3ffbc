"""The table of known incompatibilities: well formed, cited, and matched by versions and lines as its sources say."""

import gzip
import json
import platform
import tomllib
from contextlib import closing
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from typer.testing import CliRunner

from federation.protocol.toml_tables import BadTable
from tenant_client.doctor.advice.incompatibilities import TABLE, Fit, Job, Known, against, fits, in_logs, parse
from tenant_client.doctor.advice.log_scan import known_in, software_in
from tenant_client.doctor.records.attempts import AttemptCause
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal, Unit
from tenant_client.doctor.run import diagnose_attempt
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.hook.sampler import PACKAGES, software
from tenant_client.doctor.sources.installed import installed
from tenant_client.doctor.sources.scanning import Line
from tenant_client.doctor.sources.software import COMPONENTS, Software, component_of, of_versions, software_of
from tenant_client.doctor.workload.descriptor import Descriptor
from tenant_client.program.cli import app
from tests.support import calling
from tests.support.factories import a_descriptor

CASES = tomllib.loads((Path(__file__).parent / "known_cases.toml").read_text(encoding="utf-8"))["case"]
POSITIVE = [case for case in CASES if case["expected"]]
NEGATIVE = [case for case in CASES if not case["expected"]]
GOOD = """
[some-thing]
versions = {nccl = "==2.18.1"}
effect = "hang"
symptom = "it hangs"
words = ["stands"]
pattern = "it stands still"
example = "now it stands still"
do = "upgrade"
source = "https://example.org/release-notes"
quote = "a hang was fixed"
"""


def job_of(**versions: str) -> Job:
    return Job(of_versions((name.replace("_", "-"), version) for name, version in versions.items()))


def known_of(*lines: str, reason: str = "") -> tuple[Known, ...]:
    numbered = [("job.log", Line(number, text)) for number, text in enumerate(lines, 1)]
    return in_logs(Job(software_of(lines)), numbered, reason)


def found_in(lines: list[str], reason: str = "") -> list[str]:
    return [known.id for known in known_of(*lines, reason=reason)]


# ---- the table ------------------------------------------------------------------------------------------------------


def test_the_table_covers_the_stack_of_a_training_job() -> None:
    components = {component for entry in TABLE.values() for component in entry.versions}
    assert len(TABLE) >= 150
    assert {"nccl", "driver", "cuda", "cudnn", "torch", "deepspeed", "triton", "flash-attn", "jax"} <= components
    assert components == COMPONENTS.keys(), "a component that no entry asks for is read for nothing"


@pytest.mark.parametrize("name", TABLE)
def test_an_entry_is_told_apart_from_versions_outside_of_its_ranges(name: str) -> None:
    entry = TABLE[name]
    for component, text in entry.versions.items():
        tried = _around(text)
        inside = {version for version in tried if Version(version) in SpecifierSet(text)}
        others = {other: next(iter(_inside(spec))) for other, spec in entry.versions.items() if other != component}
        for version in tried:
            job = job_of(**{key.replace("-", "_"): value for key, value in (others | {component: version}).items()})
            assert (fits(entry, job, seen=True) is not None) == (version in inside)
        assert inside, f"no version tried is in {text}"


def _around(text: str) -> list[str]:
    """Versions at the bounds of a range, just above them, and far away."""
    bounds = [Version(one.version.removesuffix(".*")) for one in SpecifierSet(text)]
    return ["99999", "0", *map(str, bounds), *(f"{bound.base_version}.1" for bound in bounds)]


def _inside(text: str) -> list[str]:
    return [version for version in _around(text) if Version(version) in SpecifierSet(text)]


@pytest.mark.parametrize("name", [name for name, entry in TABLE.items() if entry.pattern])
def test_an_entrys_line_is_found_in_a_log(name: str, tmp_path: Path) -> None:
    entry = TABLE[name]
    log = tmp_path / "job.log"
    log.write_text(f"step 1 loss 2.5\n{entry.example}\nstep 2 loss 2.4\n", encoding="utf-8")
    known = {one.id: one for one in known_in([log], "") if TABLE[one.id].pattern == entry.pattern}
    assert known
    assert all(one.where == f"{log}, line 2" for one in known.values())
    unknown = [f"{of} {text}" for of, text in entry.versions.items() if of not in software_in([log]).versions]
    if name in known:
        assert known[name].fit is (Fit.APPLIES if entry.log_only or not unknown else Fit.MAY_APPLY)
        assert known[name].fit is Fit.APPLIES or known[name].when == f"it has {', '.join(unknown)}"


def test_a_line_with_its_versions_applies_and_with_none_may() -> None:
    line = TABLE["driver-525-gsp-timeout"].example
    assert [one.fit for one in known_of(line)] == [Fit.MAY_APPLY]
    assert [one.fit for one in known_of(line, "Nvidia driver version: 525.85.12")] == [Fit.APPLIES]
    assert known_of(line, "Nvidia driver version: 550.90.07") == ()


def test_of_entries_with_one_line_the_most_particular_remain() -> None:
    line = TABLE["flash-attn-abi"].example
    assert found_in([line]) == ["flash-attn-abi"]
    assert found_in([line, "torch==2.6.0"]) == ["flash-attn-abi"]
    assert found_in([line, "torch==2.6.0", "flash_attn==2.8.0.post2"]) == ["flash-attn-2-8-torch-2-6"]
    assert found_in([line, "torch==2.7.1", "flash_attn==2.8.0.post2"]) == ["flash-attn-abi"]


@pytest.mark.parametrize(
    ("change", "objection"),
    [
        (('"==2.18.1"', '"two"'), "not one of PEP 440"),
        (('"==2.18.1"', '""'), "not one of PEP 440"),
        (("{nccl =", "{nckl ="), "not in components.toml"),
        (('{nccl = "==2.18.1"}', "{}"), "no versions are given"),
        (('"hang"', '"boredom"'), "effect has an unknown value"),
        (('example = "now it stands still"\n', ""), "come together"),
        (("now it stands still", "now it moves"), "does not match its own example"),
        (('"it stands still"', '"it stands (still"'), "does not match its own example"),
        (('words = ["stands"]', 'words = ["moves"]'), "does not match its own example"),
        (("https://", "http://"), "https address"),
        (('"a hang was fixed"', '""'), "quoted"),
        (('"a hang was fixed"', f'"{"a hang " * 40}"'), "quoted"),
        (('do = "upgrade"', 'do = ""'), "symptom and advice"),
        (('do = "upgrade"', 'does = "upgrade"'), "unknown key 'does'"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(change: tuple[str, str], objection: str) -> None:
    assert parse(GOOD).keys() == {"some-thing"}
    assert change[0] in GOOD
    with pytest.raises(BadTable, match=objection) as refused:
        parse(GOOD.replace(*change))
    assert "some-thing" in str(refused.value)


def test_a_line_alone_must_have_a_pattern() -> None:
    without = "\n".join(line for line in GOOD.splitlines() if not line.startswith(("words", "pattern", "example")))
    parse(without)
    with pytest.raises(BadTable, match="log_only needs a pattern"):
        parse(f"{without}\nlog_only = true")


# ---- what fits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "versions", "fit"),
    [
        ("nccl-missing-fin", {"nccl": "2.17.1"}, Fit.APPLIES),
        ("nccl-missing-fin", {"nccl": "2.17.1+cuda12.0"}, Fit.APPLIES),
        ("nccl-missing-fin", {"nccl": "2.18.1"}, None),
        ("nccl-split-uds", {"nccl": "2.20.3"}, Fit.MAY_APPLY),
        ("nccl-split-uds", {"nccl": "2.20.5"}, None),
        ("nccl-split-uds", {"nccl": "2.17.1"}, None),
        ("nccl-peermem-linux-6-6", {"nccl": "2.21.5", "linux": "6.8.0-101-generic"}, Fit.MAY_APPLY),
        ("nccl-peermem-linux-6-6", {"nccl": "2.21.5", "linux": "5.15.0-91-generic"}, None),
        ("nccl-peermem-linux-6-6", {"nccl": "2.21.5"}, None),
        ("driver-570-accounting", {"driver": "570.124.06"}, Fit.MAY_APPLY),
        ("driver-570-accounting", {"driver": "570.133.20"}, None),
        ("deepspeed-numpy-2", {"deepspeed": "0.14.3", "numpy": "2.0.0"}, Fit.APPLIES),
        ("deepspeed-numpy-2", {"deepspeed": "0.14.4", "numpy": "2.0.0"}, None),
        ("deepspeed-numpy-2", {"deepspeed": "0.14.3", "numpy": "1.26.4"}, None),
        ("torch-old-nccl-beside", {"torch": "2.2.0+cu121", "nccl": "2.18.3"}, Fit.APPLIES),
        ("torch-old-nccl-beside", {"torch": "2.2.0+cu121", "nccl": "2.19.3"}, None),
        ("cudnn-9-10-sdpa", {"cudnn": "9.10.1.4"}, Fit.MAY_APPLY),
        ("cudnn-9-10-sdpa", {"cudnn": "91002"}, None),
        ("ofi-nccl-2-17", {"aws_ofi_nccl": "1.20.0", "nccl": "2.16.5"}, Fit.APPLIES),
        ("flash-attn-2-8-torch-2-6", {"flash_attn": "2.8.0.post2", "torch": "2.6.0"}, Fit.APPLIES),
        ("flash-attn-2-8-torch-2-6", {"flash_attn": "2.7.4.post1", "torch": "2.6.0"}, None),
        ("torch-nvjitlink", {"torch": "2.5.1"}, None),  # says nothing without its line
    ],
)
def test_versions_fit_as_the_source_says(name: str, versions: dict[str, str], fit: Fit | None) -> None:
    known = {one.id: one.fit for one in against(job_of(**versions))}
    assert known.get(name) == fit


def test_a_nightly_counts_as_the_version_that_it_precedes() -> None:
    entry = TABLE["triton-before-triton-key"]
    assert fits(entry, job_of(torch="2.4.0.dev20240330+cu121", triton="2.3.0")) is Fit.MAY_APPLY
    assert fits(entry, job_of(torch="2.3.0a0+ebedce2", triton="2.3.0")) is None


def test_what_else_is_asked_for_narrows_what_applies() -> None:
    versions = of_versions([("nccl", "2.20.1"), ("driver", "565.57.01")])
    entry = TABLE["nccl-alltoall-connect-hang"]
    assert fits(entry, Job(versions)) is Fit.MAY_APPLY
    assert fits(entry, Job(versions, collectives=frozenset({"all_to_all", "all_reduce"}))) is Fit.APPLIES
    assert fits(entry, Job(versions, collectives=frozenset({"all_reduce"}))) is None
    b200 = TABLE["driver-too-old-for-b200"]
    assert fits(b200, Job(versions)) is Fit.MAY_APPLY
    assert fits(b200, Job(versions | Software(gpus=frozenset({"B200"})))) is Fit.APPLIES
    assert fits(b200, Job(versions | Software(gpus=frozenset({"GB200", "H100 80GB HBM3"})))) is None
    bf16 = TABLE["nccl-sharp-bfloat16-hang"]
    old = of_versions([("nccl", "2.18.1")])
    assert fits(bf16, Job(old, precision="bf16")) is Fit.MAY_APPLY
    assert fits(bf16, Job(old, precision="fp32")) is None


def test_what_applies_comes_before_what_may() -> None:
    known = [one.fit for one in against(job_of(nccl="2.17.1", torch="2.1.0"))]
    assert known == sorted(known)
    assert set(known) == {Fit.APPLIES, Fit.MAY_APPLY}


def test_nothing_is_known_of_nothing() -> None:
    assert against(Job()) == ()
    assert found_in(["step 1 loss 2.5"], "nccl_timeout_error") == []


def test_a_line_does_not_stand_for_versions_out_of_range() -> None:
    line = TABLE["bitsandbytes-triton-ops"].example
    assert found_in([line]) == ["bitsandbytes-triton-ops"]
    assert found_in([line, "bitsandbytes==0.44.1"]) == ["bitsandbytes-triton-ops"]
    assert found_in([line, "bitsandbytes==0.45.5"]) == []


def test_versions_explain_a_failure_of_their_kind_alone() -> None:
    log = ["NCCL version 2.19.3+cuda12.1"]
    assert "nccl-graph-capture-leak" not in found_in(log, "nccl_timeout_error")
    assert "nccl-graph-capture-leak" in found_in(log, "gpu_out_of_memory")
    assert "nccl-2-19-4-slow" not in found_in(["NCCL version 2.19.4+cuda12.1"], "nccl_timeout_error")


# ---- cases by other hands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", POSITIVE, ids=lambda case: case["source"].split("com/")[1])
def test_a_case_from_a_thread_that_the_table_does_not_cite(case: dict[str, object]) -> None:
    found = found_in(list(case["lines"]), str(case["reason"]))  # type: ignore[call-overload]
    if case["source"] == "https://github.com/pytorch/pytorch/issues/166790":
        assert found == []  # its log does not name cuDNN, without which the entry is not known to fit
    else:
        assert found[0] in case["expected"]  # type: ignore[operator]


@pytest.mark.parametrize("case", NEGATIVE, ids=lambda case: case["source"].split("com/")[1])
def test_a_failure_of_which_nothing_is_known(case: dict[str, object]) -> None:
    lines = list(case["lines"])  # type: ignore[call-overload]
    assert [one for one in known_of(*lines, reason=str(case["reason"])) if one.line] == []


def test_nothing_is_found_in_logs_that_others_wrote_but_what_they_put_there() -> None:
    root = Path(__file__).parents[3]
    logs = [*(root / "tests" / "logs").rglob("*.log"), *(root / "simulation" / "studies" / "diagnosis").rglob("*.log")]
    found = {(log.parent.parent.name, log.name, one.id) for log in logs for one in known_in([log], "") if one.line}
    assert len(logs) > 120
    assert found == {
        ("tests", "attribute_error_messy.log", "numpy-aliases"),  # np.bool with a NumPy that has lost it
        ("torch-moved-under-it", "job.log", "flash-attn-abi"),  # the case is this
    }


def test_the_page_counts_what_is_there() -> None:
    page = (Path(__file__).parents[3] / "docs" / "causes.md").read_text(encoding="utf-8")
    assert f"Each of the {len(TABLE)} entries, over {len(COMPONENTS)} components" in page
    assert f"{sum(bool(entry.pattern) for entry in TABLE.values())} have a pattern" in page
    assert f"has {len(CASES)} cases" in page


def test_the_cases_are_those_that_the_table_does_not_cite() -> None:
    assert len(POSITIVE) >= 20
    assert not {case["source"] for case in CASES} & {entry.source for entry in TABLE.values()}


# ---- in a program ---------------------------------------------------------------------------------------------------


def test_software_is_read_from_a_report(tmp_path: Path) -> None:
    report = tmp_path / "environment.txt"
    report.write_text(
        "PyTorch version: 2.6.0+cu124\nCUDA used to build PyTorch: 12.4\nPython version: 3.10.17 (main)\n"
        "Python platform: Linux-6.1.134-1.el8.x86_64-x86_64-with-glibc2.28\nGPU 0: NVIDIA H100 80GB HBM3\n"
        "Nvidia driver version: 570.133.20\n[pip3] numpy==1.26.4\n[pip3] nvidia-nccl-cu12==2.21.5\n",
        encoding="utf-8",
    )
    found = software_in([report])
    assert found.gpus == {"H100 80GB HBM3"}
    assert {name: set(versions) for name, versions in found.versions.items()} == {
        "torch": {"2.6.0+cu124"},
        "cuda": {"12.4"},
        "python": {"3.10.17"},
        "linux": {"6.1.134"},
        "driver": {"570.133.20"},
        "numpy": {"1.26.4"},
        "nccl": {"2.21.5"},
    }


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    line = TABLE["bitsandbytes-triton-ops"].example
    (tmp_path / "a.log").write_text(f"{line}\n", encoding="utf-8")
    (tmp_path / "broken.log.gz").write_bytes(gzip.compress(f"{line}\n".encode() * 9999, mtime=0)[:-9])
    (tmp_path / "dump.bin").write_bytes(bytes(range(256)) * 99)
    known = known_in([tmp_path, tmp_path / "nothing.log"], "")
    assert [one.where for one in known] == [f"{tmp_path / 'a.log'}, line 1"]


def test_versions_are_read_where_programs_say_them_and_failures_everywhere(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    filler = "step 1 loss 2.5 tokens/s 12345\n" * 140_000
    log.write_text(f"bitsandbytes==0.45.5\n{filler}{TABLE['bitsandbytes-triton-ops'].example}\n", encoding="utf-8")
    assert known_in([log], "") == ()
    log.write_text(f"{filler}bitsandbytes==0.45.5\n{TABLE['bitsandbytes-triton-ops'].example}\n", encoding="utf-8")
    assert [one.where for one in known_in([log], "")] == [f"{log}, line 140002"]


def test_diagnose_says_what_is_known(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        'Traceback (most recent call last):\n  File "train.py", line 2, in <module>\n    import torch\n'
        "ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister\n",
        encoding="utf-8",
    )
    said = ["diagnose", str(log), "--home", str(tmp_path / "home")]
    assert "  may apply: torch-old-nccl-beside: torch cannot be imported" in CliRunner().invoke(app, said).stdout
    log.write_text(f"torch==2.2.0\nNCCL version 2.18.3\n{log.read_text(encoding='utf-8')}", encoding="utf-8")
    result = CliRunner().invoke(app, said)
    assert result.exit_code == 0
    assert "  known of torch 2.2.0, nccl 2.18.3: torch cannot be imported" in result.stdout
    assert "https://github.com/pytorch/pytorch/issues/119932" in result.stdout


# ---- before a job ---------------------------------------------------------------------------------------------------


check = partial(calling.call, app, "check")


def test_check_of_versions_needs_no_home_and_no_lease(tmp_path: Path) -> None:
    freeze = tmp_path / "freeze.txt"
    freeze.write_text("torch==2.2.0\nnvidia-nccl-cu12==2.18.1\n", encoding="utf-8")
    result = check("--versions", freeze, "--home", tmp_path / "none")
    assert result.exit_code == 1
    assert result.stdout.startswith("warning: 1 known failure of these versions\nknown of torch 2.2.0, nccl 2.18.1: ")
    assert "may apply: nccl 2.18.1: " in result.stdout
    told = json.loads(check("--versions", freeze, "--json", "--home", tmp_path / "none").stdout)
    assert told["verdict"] == 1
    assert told["known"][0]["id"] == "torch-old-nccl-beside"
    assert {one["fit"] for one in told["known"]} == {"applies", "may_apply"}
    assert not (tmp_path / "none").exists()


def test_versions_that_may_fail_are_no_warning(tmp_path: Path) -> None:
    freeze = tmp_path / "freeze.txt"
    freeze.write_text("nvidia-nccl-cu12==2.26.2\n", encoding="utf-8")
    result = check("--versions", freeze, "--home", tmp_path / "none")
    assert result.exit_code == 0
    assert result.stdout.startswith("ok: nothing that applies is known of nccl 2.26.2\nmay apply: nccl 2.26.2: ")
    assert "more may apply, see --json" in result.stdout


def test_a_file_without_versions_says_nothing_of_them(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 2.5\n", encoding="utf-8")
    result = check("--versions", tmp_path / "train.log", "--home", tmp_path / "none")
    assert result.exit_code == 3
    assert "no version of a known component" in result.stderr


def described(home: Path, *versions: tuple[str, str], collectives: tuple[tuple[str, int, int], ...] = ()) -> Path:
    """A home outside of a federation, whose lease `aa` ran a workload with these versions."""
    nothing: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    home.mkdir()
    with closing(open_database(home / "tenant.db")) as connection:
        journal = Journal(connection)
        journal.add([Unit("aa", 0.0, {})], [])
        journal.describe("aa", 0.0, Descriptor(nothing, nothing, collectives, "bf16", "dp", versions, frozenset()))
    return home


def test_check_of_a_lease_outside_of_a_federation_looks_at_its_versions(tmp_path: Path) -> None:
    home = described(tmp_path / "a", ("nccl", "2.20.1"), collectives=(("all_to_all", 3, 20),))
    result = check("aa", "--home", home)
    assert result.exit_code == 1
    assert "known of nccl 2.20.1: the first all-to-all never ends" in result.stdout
    quiet = check("aa", "--home", described(tmp_path / "b", ("nccl", "2.20.1"), collectives=(("all_reduce", 3, 20),)))
    assert quiet.exit_code == 3
    assert quiet.stdout.startswith("unknown: this home has not joined a federation: only the versions were checked\n")
    assert "all-to-all" not in quiet.stdout
    bare = check("aa", "--online", "--home", home)
    assert bare.exit_code == 3
    assert "has not joined a federation" in bare.stderr


def test_beside_a_job_versions_alone_say_only_what_applies(tmp_path: Path) -> None:
    log, cause, ours = [tmp_path / "log"], AttemptCause("collective_timeout"), FailOpen(quiet=True)
    log[0].write_text("it hangs\n", encoding="utf-8")
    workload = a_descriptor(versions=(("nccl", "2.20.1"), ("torch", "2.6.0")))
    assert {one.fit for one in known_in(log, cause.reason, workload)} == {Fit.MAY_APPLY}
    assert diagnose_attempt.known_of(log, cause, workload, ours) == ()
    all_to_all = a_descriptor(versions=workload.versions, collectives=(("all_to_all", 3, 20),))
    assert [one.symptom for one in diagnose_attempt.known_of(log, cause, all_to_all, ours)] == [
        "the first all-to-all never ends"
    ]
    assert not ours.warnings


def test_what_a_job_tells_of_itself_has_a_component() -> None:
    assert set(software()) >= {"numpy", "linux"}
    assert all(component_of(name) for name in {*software(), *versions_of_torch(), *PACKAGES})


def versions_of_torch() -> set[str]:
    """What the hook tells beside packages."""
    return {"python", "torch", "cuda", "hip", "cudnn", "nccl"}


def test_software_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "gpus" / "0000:3b:00.0").mkdir(parents=True)
    (tmp_path / "gpus" / "0000:3b:00.0" / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\n", "utf-8")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07\n", "utf-8")
    found = installed(tmp_path)
    assert found.gpus == {"H100 80GB HBM3"}
    assert found.versions["driver"] == {"550.90.07"}
    assert found.versions["numpy"] == {metadata.version("numpy")}
    assert found.versions["python"] == {platform.python_version()}
    assert "torch" in found.versions or find_spec("torch") is None
