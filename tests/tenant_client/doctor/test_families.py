"""Messages of the libraries, launchers and schedulers of a job, each in a log of its own: tests/logs/families.toml."""

import tomllib
from pathlib import Path

import pytest

from federation.protocol.causes import Domain
from tenant_client.doctor.diagnosis.diagnose import Diagnosis, diagnose, gather
from tenant_client.doctor.sources.evidence import Role

TABLE = Path(__file__).resolve().parents[2] / "logs" / "families.toml"
MESSAGES = [
    (row["right"], row.get("domain"), row["text"])
    for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["message"]
]

SIDES = tomllib.loads((TABLE.parent / "sides.toml").read_text(encoding="utf-8"))
NAMED = [(reason, text) for reason, texts in SIDES["named"].items() for text in texts]
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 7, in main\n    step()\n'


def diagnosed(text: str, folder: Path) -> Diagnosis:
    log = folder / "job.log"
    log.write_text(f"loading\n{text}", encoding="utf-8")
    return diagnose(gather([log]).evidence)


@pytest.mark.parametrize(
    ("right", "domain", "text"), MESSAGES, ids=[f"{number}-{row[0]}" for number, row in enumerate(MESSAGES)]
)
def test_a_message_names_its_reason_and_no_other(right: str, domain: str | None, text: str, tmp_path: Path) -> None:
    found = diagnosed(text, tmp_path)
    if right == "symptom":
        assert found.root is not None
        assert found.root.role is Role.SYMPTOM
    elif right == "unknown":
        assert found.root is None or found.root.role is Role.SYMPTOM, found.sentence
    else:
        assert (found.reason, domain or found.domain) == (right, found.domain), found.sentence


def test_what_a_job_went_on_after_is_no_last_word(tmp_path: Path) -> None:
    assert diagnosed("tee: run.log: Disk quota exceeded\n", tmp_path).reason == "disk_full"
    assert diagnosed("tee: run.log: Disk quota exceeded\niteration 7 loss 2.0\n", tmp_path).root is None


@pytest.mark.parametrize("text", SIDES["own"])
def test_an_own_fault_is_named_and_never_called_infrastructure(text: str, tmp_path: Path) -> None:
    found = diagnosed(f"{text}\n", tmp_path)
    assert found.reason != "unknown"
    assert found.domain is not Domain.INFRASTRUCTURE, found.sentence


@pytest.mark.parametrize("text", SIDES["infrastructure"])
def test_its_twin_stays_infrastructure(text: str, tmp_path: Path) -> None:
    assert diagnosed(f"{text}\n", tmp_path).domain is Domain.INFRASTRUCTURE


@pytest.mark.parametrize(("reason", "text"), NAMED)
def test_an_exception_of_a_library_names_the_reason_that_it_is_raised_for(
    reason: str, text: str, tmp_path: Path
) -> None:
    assert diagnosed(f"{text}\n", tmp_path).reason == reason


@pytest.mark.parametrize(
    ("above", "error", "reason", "domain"),
    [
        (
            "========= Invalid __global__ read of size 4 bytes",
            "CUDA error: an illegal memory access was encountered",
            "illegal_memory_access",
            "script",
        ),
        ("", "CUDA error: an illegal memory access was encountered", "illegal_memory_access", "infrastructure"),
        (
            "E xla/cuda_dnn.cc:466] Memory usage: 3538944 bytes free, 25430786048 bytes total.",
            "DNN library initialization failed",
            "gpu_out_of_memory",
            "framework",
        ),
        (
            "E xla/cuda_dnn.cc:466] Memory usage: 12624061440 bytes free, 25430786048 bytes total.",
            "DNN library initialization failed",
            "cuda_error",
            "framework",
        ),
        (
            "Unable to determine the device handle for GPU4: 0000:C1:00.0: Unknown Error",
            "8 GPUs wanted, 7 found",
            "device_lost",
            "infrastructure",
        ),
        ("reward server at http://[::1]:8000/v1", "[Errno 111] Connection refused", "connection_error", "script"),
        (
            "reward server at http://store:8000/v1",
            "[Errno 111] Connection refused",
            "connection_error",
            "infrastructure",
        ),
    ],
)
def test_a_line_above_says_whose_failure_it_is(
    above: str, error: str, reason: str, domain: str, tmp_path: Path
) -> None:
    kind = "ConnectionRefusedError" if "refused" in error else "RuntimeError"
    found = diagnosed(f"{above}\n{TRACE}{kind}: {error}\n", tmp_path)
    assert (found.reason, found.domain) == (reason, domain), found.sentence


def test_an_exception_raised_while_another_is_printed_hides_it(tmp_path: Path) -> None:
    handled = "\nDuring handling of the above exception, another exception occurred:\n\n"
    printing = TRACE + '  File "<string>", line 3, in __repr__\n'
    log = f"{TRACE}TypeError: missing values\n{handled}{printing}AttributeError: no attribute 'command'\n"
    assert diagnosed(log, tmp_path).reason == "attribute_error"
    assert diagnosed(log.replace("__repr__", "report"), tmp_path).reason == "type_error"


def test_a_closed_terminal_is_not_the_disk(tmp_path: Path) -> None:
    frame = '  File "/env/tqdm/std.py", line 452, in fp_write\n'
    own = diagnosed(f"{TRACE}{frame}OSError: [Errno 5] Input/output error\n", tmp_path)
    assert (own.reason, own.domain) == ("os_error", Domain.SCRIPT)
    disk = diagnosed(f"{TRACE}OSError: [Errno 5] Input/output error: '/mnt/c'\n", tmp_path)
    assert disk.domain is Domain.INFRASTRUCTURE


def test_of_a_traceback_in_one_record_the_level_is_that_of_its_header(tmp_path: Path) -> None:
    logged = "2026-05-08 21:50:20,192 - __main__ - ERROR - " + TRACE + "KeyError: 'caption'\n"
    went_on = "".join(f"2026-05-08 21:51:{at:02},0 - __main__ - INFO - file of {at * 7} read\n" for at in range(25))
    assert diagnosed(logged, tmp_path).reason == "key_error"
    assert diagnosed(logged + went_on, tmp_path).root is None
    assert diagnosed(TRACE + "KeyError: 'caption'\n" + went_on, tmp_path).reason == "key_error"
