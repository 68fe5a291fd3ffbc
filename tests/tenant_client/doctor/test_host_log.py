"""Logs of a whole host: whose lines count, and what a file is read as."""

import json
from pathlib import Path

import pytest

from tenant_client.doctor.diagnosis.diagnose import diagnose, gather
from tenant_client.doctor.sources.prefixes import place

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
SSHD = "Jul 25 23:23:14 n1 sshd[1]: session closed for user root"
HEAD = "Traceback (most recent call last):"


def read_as(tmp_path: Path, *lines: str) -> tuple[str, str, str, str]:
    """The form, the reason or the symptom's, the host and the GPU."""
    file = tmp_path / "some.log"
    file.write_text("\n".join(lines) + "\n")
    gathered = gather([file])
    found = diagnose(gathered.evidence)
    symptom = f"symptom {found.symptom.reason}" if found.symptom else found.reason
    return gathered.taken_for[str(file)], found.reason if found.root else symptom, found.host, found.gpu


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("system log of a host", ("Jul 25 23:23:13 n1 ftpd[26463]: Transport endpoint is not connected", SSHD)),
        ("system log of a host", ("<30>Jul 25 23:23:13 n1 nginx[7]: connect() failed (111: Connection refused)", SSHD)),
        (
            "system log of a host",
            ("2026-01-05T10:00:00.1+00:00 n1 gnome-shell[3]: Caught signal 11 (Segmentation f", SSHD),
        ),
        ("system log of a host", ("Jul 25 23:23:13 n1 snapd[9]: OSError: [Errno 28] No space left on device", SSHD)),
        ("system log of a host", ("Jul 25 23:23:13 n1 crond[9]: MemoryError", "Jul 25 23:23:14 n1 crond[9]: killed")),
        (
            "log of a display server",
            ("[ 1.588] (EE) Backtrace:", "[ 1.588] (EE) Caught signal 11 (Segmentation fault)"),
        ),
        ("log of a web server", ("2026/01/05 10:00:00 [error] 7#7: *1 connect() failed (111: Connection refused)",)),
        (
            "kernel log",
            ("[ 5306.653879] e1000e 0:1f.6 enp0s31f6: NIC Link is Down", "[ 5307.207167] PM: suspend entry (deep)"),
        ),
    ],
)
def test_lines_of_other_programs_and_of_a_machine_that_sleeps_are_no_failure_of_a_job(
    form: str, lines: tuple[str, ...], tmp_path: Path
) -> None:
    assert read_as(tmp_path, *lines) == (form, "unknown", "", "")


def test_a_link_that_goes_down_long_before_the_machine_sleeps_is_told(tmp_path: Path) -> None:
    down, sleeps = "[ 5306.653879] igb eno1: NIC Link is Down", "[ 5307.207167] PM: suspend entry (deep)"
    quiet = ("[ 5306.753879] usb 1-1: new device",) * 120
    assert read_as(tmp_path, down, *quiet, sleeps)[1] == "network_error"


@pytest.mark.parametrize(
    "lines",
    [
        (f"Jul 25 23:23:13 n1 kernel: {XID}", SSHD),
        (json.dumps({"_TRANSPORT": "kernel", "_HOSTNAME": "n1", "MESSAGE": list(XID.encode())}),),
        (json.dumps({"SYSLOG_IDENTIFIER": "kernel", "_HOSTNAME": "n1", "MESSAGE": XID}), '{"MESSAGE": 7}', "{"),
        ("__CURSOR=s=1", "_TRANSPORT=kernel", f"MESSAGE={XID}", "_HOSTNAME=n1", "", "__CURSOR=s=2", "MESSAGE=bye"),
    ],
)
def test_the_kernels_lines_count_in_every_form_of_a_system_log_and_name_the_host(
    lines: tuple[str, ...], tmp_path: Path
) -> None:
    form, reason, host, gpu = read_as(tmp_path, *lines)
    assert (form, host, gpu) == ("system log of a host", "n1", "0000:3b:00")
    assert reason != "unknown"


def test_a_jobs_own_lines_count_in_a_system_log(tmp_path: Path) -> None:
    job = [f"Jul 25 23:23:13 n1 python3[7]: {line}" for line in (HEAD, '  File "a.py", line 1, in f', "KeyError: 'x'")]
    assert read_as(tmp_path, *job, SSHD)[:2] == ("system log of a host", "key_error")
    alone = [line.replace("python3", "my-model") for line in job]
    assert read_as(tmp_path, *alone)[:2] == ("system log of a host", "key_error")
    assert read_as(tmp_path, *alone, SSHD)[1] == "unknown"


def test_a_logger_with_levels_and_modules_writes_no_system_log(tmp_path: Path) -> None:
    lines = [f"2026-01-05T10:00:00Z {level} trainer: x" for level in ("INFO", "WARN", "ERROR")]
    assert read_as(tmp_path, *lines, HEAD, '  File "a.py", line 1', "KeyError: 'x'")[:2] == ("job log", "key_error")


def test_a_bug_report_counts_by_its_kernels_lines_alone(tmp_path: Path) -> None:
    lines = ("Start of NVIDIA bug report log file.", "[ 1.5] (EE) Caught signal 11 (Segmentation fault)")
    assert read_as(tmp_path, *lines)[:2] == ("NVIDIA bug report", "unknown")
    assert read_as(tmp_path, *lines, XID)[3] == "0000:3b:00"


@pytest.mark.parametrize(
    ("text", "rank", "host", "gpu"),
    [
        ("urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='a')", None, "", ""),
        ("botocore.errorfactory.NoSuchBucket: x", None, "", ""), ("train2.py: error: unrecognized", None, "", ""),
        ("slurmstepd-gpu7: error: *** STEP 9.0 ON gpu7 CANCELLED AT 2026", None, "gpu7", ""),
        ("node01: KeyError: 'x'", None, "node01", ""), ("gpu-a: RuntimeError: x", None, "gpu-a", ""),
        ("RuntimeError: found at least two devices, cuda:0 and cpu!", None, "", ""),
        ("CUDA out of memory. GPU 2 has a total capacity", None, "", "2"), ("NaN on cuda:3", None, "", "3"),
        ("ValueError: expected rank 4 tensor, got rank 3", None, "", ""), ("lora rank 16 is too big", None, "", ""),
        ("AssertionError: Rank 3: found NaN", 3, "", ""), ("worker of rank 5 left", 5, "", ""),
    ],
)  # fmt: skip
def test_rank_host_and_gpu_are_taken_only_from_where_they_can_stand(
    text: str, rank: int | None, host: str, gpu: str
) -> None:
    where = place(text)
    assert (where.rank, where.host, where.gpu) == (rank, host, gpu)
