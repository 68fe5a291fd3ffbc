"""The classifier: its score on logs of our own and on real ones, its rules one by one, and that it never guesses.

The logs of tests/logs and the cues come from the same hand: their score shows that nothing got lost, not accuracy in
the world. The real logs were read by a person first; what each truly says stands in tests/logs/real.toml.
"""

import gzip
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from federation.protocol.causes import CAUSES, Domain
from tenant_client.doctor.diagnosis.diagnose import Diagnosis, diagnose, explain, gather, hints
from tenant_client.doctor.diagnosis.lessons import Lessons
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.reasons import REASONS
from tests.support.logs_of_our_own import DATA, LOGS, expected, found, real

KEY = Evidence("key_error", Role.ROOT, "job_log", "job.log", 40, "KeyError: 'x'", rank=3)
NVLINK = Evidence("nvlink_error", Role.ROOT, "kernel_log", "dmesg", 3, "Xid 74", 200.0, host="gpu-a", gpu="0000:3b:00")
TIMEOUT = Evidence("collective_timeout", Role.SYMPTOM, "job_log", "job.log", 10, "Watchdog caught", rank=1)
TERMINATED = Evidence("unknown", Role.TEARDOWN, "job_log", "job.log", 5, "closing signal SIGTERM")


FAULT = Evidence("illegal_memory_access", Role.ROOT, "job_log", "job.log", 7, "CUDA error: an illegal", rank=0)


def test_kernels_that_fail_on_several_ranks_are_said_to_be_several() -> None:
    twice = [FAULT, replace(FAULT, rank=0, line=8)]
    assert not diagnose(twice).odd
    assert diagnose([*twice, replace(FAULT, rank=5, line=9)]).sentence.endswith("; the same on 2 ranks")
    assert not diagnose([KEY, replace(KEY, rank=5)]).odd


def test_a_long_error_is_told_with_its_last_words() -> None:
    long = f"DistBackendError: NCCL error in: {'x' * 300} Last error: socketProgress: Connection closed"
    sentence = diagnose([replace(TIMEOUT, text=long)]).sentence
    assert sentence.endswith("… Last error: socketProgress: Connection closed")


# ---- scores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(expected()))
def test_reason_rank_host_gpu_and_line_of_each_log(name: str) -> None:
    wanted = expected()[name]
    assert {key: found(name)[key] for key in wanted} == wanted


@pytest.mark.parametrize("variant", ["plain", "messy"])
def test_all_29_reasons_by_count_and_by_gpu_time(variant: str) -> None:
    right = set()
    for slug in CAUSES:
        names = [name for name in expected() if name.removesuffix(".log") == f"{slug}_{variant}"]
        assert len(names) == 1, slug
        if REASONS[found(names[0])["reason"]].parent == slug:
            right.add(slug)
    assert set(CAUSES) - right == set()
    lost = sum(cause.share_of_lost_gpu_time for cause in CAUSES.values())
    assert sum(CAUSES[slug].share_of_lost_gpu_time for slug in right) == pytest.approx(lost)


@pytest.mark.parametrize("name", sorted(name for name, wanted in expected().items() if wanted["reason"] == "unknown"))
def test_without_support_nothing_is_guessed(name: str) -> None:
    diagnosis = diagnose(gather([LOGS / name]).evidence)
    assert (diagnosis.reason, diagnosis.domain) == ("unknown", None)
    assert diagnosis.sentence.startswith("cause unknown: ")


@pytest.mark.parametrize("name", sorted(real()))
def test_real_logs_say_what_a_person_read_in_them(name: str) -> None:
    file = DATA / name
    if not file.exists():
        pytest.skip(f"../shared/data/{name} is missing")
    gathered = gather([file])
    assert gathered.faults == []
    assert diagnose(gathered.evidence).reason == real()[name]["reason"]


def test_all_of_one_jobs_logs_together_say_the_same_whatever_their_names(tmp_path: Path) -> None:
    for number, file in enumerate(sorted((LOGS / "nvlink_error_messy").iterdir())):
        (tmp_path / f"{'zy'[number]}.bin").write_bytes(file.read_bytes())
    diagnosis = diagnose(gather([tmp_path]).evidence)
    assert (diagnosis.reason, diagnosis.gpu, diagnosis.rank) == ("nvlink_error", "0000:3b:00", 3)


# ---- rules ---------------------------------------------------------------------------------------------------------


def test_hardware_comes_before_an_exception_that_was_read_first() -> None:
    assert diagnose([KEY, NVLINK]).reason == "nvlink_error"


def test_a_device_comes_after_its_fabric_and_before_memory() -> None:
    device = replace(NVLINK, reason="cuda_error")
    memory = replace(NVLINK, reason="host_out_of_memory", source="job_log")
    assert diagnose([device, NVLINK]).reason == "nvlink_error"
    assert diagnose([KEY, memory]).reason == "host_out_of_memory"


def test_a_time_out_is_a_symptom_unless_nothing_else_explains_it() -> None:
    assert diagnose([TIMEOUT, KEY]).reason == "key_error"
    assert diagnose([TIMEOUT]).reason == "collective_timeout"  # which no round counts
    unknown = replace(KEY, reason="unknown")
    assert (diagnose([TIMEOUT, unknown]).reason, diagnose([TIMEOUT, unknown]).root) == ("unknown", unknown)


def test_a_killed_context_never_names_a_reason() -> None:
    text = "NVRM: Xid (PCI:0000:3b:00): 45, pid=4711, name=python, Ch 00000008"
    killed = replace(NVLINK, reason="cuda_error", role=Role.SYMPTOM, text=text)
    assert diagnose([killed, TIMEOUT]).reason == "collective_timeout"
    found = diagnose([killed])
    assert (found.reason, found.symptom) == ("unknown", killed)


EXPIRED = """Traceback (most recent call last):
  File "/env/streaming/download.py", line 131, in download_from_s3
    extra_args=extra_args)
botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the GetObject operation: It has expired.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "pretrain.py", line 77, in <module>
    trainer.fit()
RuntimeError: DataLoader worker (pid(s) 8812) exited unexpectedly
"""
ABORTED = """[rank9]:[E611 23:19:00.196 ProcessGroupNCCL.cpp:632] [Rank 9] Watchdog caught collective operation timeout
srun: error: gpu-b: tasks 8-9: Aborted (core dumped)
slurmstepd: error: *** STEP 9012.0 ON gpu-a CANCELLED AT 2026-06-11T23:19:34 ***
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (EXPIRED, "permission_error"),
        (EXPIRED.replace("ExpiredToken", "SlowDown"), "s3_storage_error"),
        (ABORTED, "collective_timeout"),
        (ABORTED.replace("srun: error: gpu-b: tasks 8-9: Aborted (core dumped)\n", ""), "cancelled"),
        ("kernel: NVRM: API mismatch: the client has the version 550.54, but\n", "driver_mismatch"),
        (
            EXPIRED.replace("RuntimeError: DataLoader worker (pid(s) 8812) exited unexpectedly", "")
            .replace("botocore.exceptions.ClientError: An error occurred (ExpiredToken)", "Exception: Current loss")
            .replace(" when calling the GetObject operation: It has expired.", " scale already at minimum - cannot"),
            "nan_loss",
        ),
    ],
)
def test_what_stands_nearest_to_the_cause_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "job.log").write_text(text)
    assert diagnose(gather([tmp_path]).evidence).reason == reason


def test_a_lost_peer_explains_less_than_the_peers_own_exception() -> None:
    lost = Evidence("network_error", Role.SYMPTOM, "nccl_log", "nccl.log", 1, "error 12")
    assert diagnose([lost, KEY]).reason == "key_error"
    assert diagnose([lost, TIMEOUT]).reason == "collective_timeout"
    alone = diagnose([lost])
    assert (alone.reason, alone.root, alone.symptom) == ("unknown", None, lost)
    assert alone.sentence == "cause unknown, only a symptom of it: network_error: nccl.log, line 1: error 12"


@pytest.mark.parametrize("reason", ["killed", "segmentation_fault"])
def test_the_rank_that_a_signal_ended_failed_first_whatever_survivors_raise(reason: str) -> None:
    verdict = Evidence(reason, Role.ROOT, "torchrun", "job.log", 90, "first failure: exit code", rank=1)
    survivor = replace(KEY, reason="connection_error", rank=0)
    assert diagnose([survivor, verdict]).root is verdict
    assert diagnose([replace(survivor, rank=None), verdict]).root is verdict
    own = replace(survivor, rank=1)
    assert diagnose([own, verdict]).root is own
    assert diagnose([survivor, NVLINK, verdict]).root is NVLINK


def test_a_rank_that_ended_by_an_exception_is_believed_before_others() -> None:
    named = Evidence("unknown", Role.TEARDOWN, "torchrun", "job.log", 90, "first failure: exit code 1", rank=3)
    survivor = replace(KEY, reason="connection_error", rank=0, line=2)
    assert diagnose([survivor, KEY, named]).root is KEY
    assert diagnose([survivor, named]).root is survivor
    assert diagnose([named]).reason == "unknown"


def test_the_launcher_names_the_rank_where_the_error_names_none() -> None:
    verdict = Evidence("unknown", Role.TEARDOWN, "torchrun", "job.log", 90, "first failure: exit code 1", rank=1)
    assert diagnose([replace(KEY, rank=None), verdict]).rank == 1
    assert diagnose([replace(KEY, rank=0), verdict]).rank == 0
    assert diagnose([verdict]).rank == 1
    assert diagnose([replace(NVLINK, rank=None), verdict]).rank is None
    assert diagnose([replace(KEY, rank=None)]).rank is None


def test_who_cancelled_a_job_is_named_only_where_nothing_had_failed() -> None:
    ended = replace(KEY, reason="cancelled", rank=None, line=2, text="*** JOB 81 ON a CANCELLED AT 2025-11-03T05:00:00")
    assert diagnose([ended, replace(ended, host="gpu-b")]).reason == "cancelled"
    assert diagnose([ended, KEY]).root is KEY
    exited = replace(TERMINATED, text="srun: error: gpu-a: task 3: Exited with exit code 1")
    assert diagnose([exited, ended]).reason == "unknown"


def test_an_exit_code_names_no_reason_beside_an_error() -> None:
    status = Evidence("exit_code", Role.ROOT, "exit_status", "exit status", 0, "exit status 17")
    assert diagnose([KEY, status]).root is KEY
    assert diagnose([status]).root is status
    assert diagnose([status]).domain is None


def test_an_abort_is_the_cause_where_nothing_was_said_before_it() -> None:
    ended = Evidence("killed", Role.SYMPTOM, "torchrun", "a.log", 9, "first failure: exit code -6 (SIGABRT)", rank=1)
    peer = Evidence("connection_error", Role.SYMPTOM, "job_log", "a.log", 5, "Connection reset by peer", rank=0)
    late = Evidence("collective_timeout", Role.SYMPTOM, "job_log", "a.log", 6, "Watchdog caught", rank=0)
    why = Evidence("runtime_error", Role.ROOT, "job_log", "a.log", 4, "what():  vocabulary is empty")
    assert diagnose([peer, ended]).reason == "killed"
    for rank in (0, 1):  # NCCL's watchdog aborts; of a rank that aborted before, torchrun would have ended the others
        assert diagnose([replace(late, rank=rank), ended]).reason == "collective_timeout"
    assert diagnose([why, peer, ended]).reason == "runtime_error"


def test_a_rank_that_ended_by_itself_is_the_cause_if_it_said_nothing() -> None:
    left = Evidence("uneven_end", Role.SYMPTOM, "watch", "progress", 0, "rank 1 ended without an error", rank=1)
    peer = Evidence("connection_error", Role.SYMPTOM, "job_log", "a.log", 5, "Connection closed by peer", rank=0)
    found = diagnose([left, peer])
    assert (found.reason, found.rank) == ("uneven_end", 1)
    assert diagnose([left, replace(peer, rank=1)]).reason == "unknown"
    assert diagnose([left, replace(peer, reason="key_error", role=Role.ROOT)]).reason == "key_error"


def test_who_was_killed_is_who_ran_out_of_memory_and_a_lone_status_has_its_rank() -> None:
    killed = Evidence("killed", Role.ROOT, "torchrun", "a.log", 9, "first failure: exit code -9 (SIGKILL)", rank=1)
    memory = Evidence("host_out_of_memory", Role.ROOT, "watch", "progress", 0, "oom_kill rose from 0 to 1")
    found = diagnose([memory, killed])
    assert (found.reason, found.rank) == ("host_out_of_memory", 1)
    asked = replace(killed, reason="unknown", role=Role.TEARDOWN, text="first failure: exit code -15 (SIGTERM)")
    assert diagnose([asked]).sentence.endswith("; rank 1: first failure: exit code -15 (SIGTERM)")


def test_teardown_never_names_a_reason() -> None:
    torn = replace(KEY, role=Role.TEARDOWN)
    assert diagnose([TERMINATED, torn]) == Diagnosis("unknown", None, (TERMINATED, torn))
    assert diagnose([TERMINATED, KEY]).root is KEY


def test_within_a_file_the_first_line_wins_between_network_and_program() -> None:
    network = replace(KEY, reason="connection_error", line=50)
    assert diagnose([KEY, network]).reason == "key_error"
    assert diagnose([network, replace(KEY, line=60)]).reason == "connection_error"
    assert diagnose([KEY, replace(network, file="other.log")]).reason == "connection_error"


def test_a_bare_runtime_error_of_another_rank_comes_last() -> None:
    bare = replace(KEY, reason="runtime_error", file="0.log", rank=0)
    assert diagnose([bare, KEY]).reason == "key_error"


def test_times_order_ranks_only_where_one_kind_of_source_tells_them() -> None:
    early = replace(KEY, source="elastic", file="3/error.json", at_s=100.0)
    late = replace(early, reason="connection_error", file="0/error.json", rank=0, at_s=107.0)
    assert diagnose([late, early]).reason == "key_error"
    assert diagnose([replace(late, source="job_log", rank=None), early]).reason == "connection_error"


def test_of_two_gpus_the_one_that_failed_first_is_named() -> None:
    other = replace(NVLINK, gpu="0000:5d:00", host="gpu-b", file="b/dmesg", at_s=100.0)
    found_gpu = diagnose([NVLINK, other])
    assert (found_gpu.gpu, found_gpu.host) == ("0000:5d:00", "gpu-b")


def test_a_diagnosis_collects_its_place_from_what_agrees_with_it() -> None:
    job = Evidence("nvlink_error", Role.ROOT, "job_log", "job.log", 9, "CUDA error: uncorrectable NVLink error", rank=5)
    diagnosis = diagnose([NVLINK, job, TIMEOUT, KEY])
    assert (diagnosis.rank, diagnosis.host, diagnosis.gpu) == (5, "gpu-a", "0000:3b:00")
    assert diagnosis.domain is Domain.INFRASTRUCTURE
    assert diagnosis.sentence == "nvlink_error: rank 5, gpu-a, GPU 0000:3b:00: dmesg, line 3: Xid 74"
    assert TIMEOUT in diagnosis.cascade


def test_no_evidence_is_no_diagnosis() -> None:
    assert diagnose([]).sentence == "cause unknown: no known error pattern in the logs"


reasons = st.sampled_from([*CAUSES, "unknown"])
evidence = st.builds(
    Evidence, reasons, st.sampled_from(Role), st.sampled_from(["job_log", "kernel_log", "elastic"]),
    st.sampled_from(["a", "b"]), st.integers(0, 9), st.text(max_size=5), st.none() | st.floats(0, 9),
    st.none() | st.integers(0, 3),
)  # fmt: skip


@settings(max_examples=40)
@given(st.lists(evidence, max_size=8))
def test_whatever_was_seen_a_diagnosis_names_a_root_among_it(seen: list[Evidence]) -> None:
    diagnosis = diagnose(seen)
    assert diagnosis.root is None or (diagnosis.root in seen and diagnosis.root.reason == diagnosis.reason)
    assert diagnosis.root is None or diagnosis.root.role is not Role.TEARDOWN
    assert (diagnosis.reason == "unknown") or diagnosis.root is not None
    assert "\n" not in diagnosis.sentence


# ---- gathering -----------------------------------------------------------------------------------------------------


def test_a_broken_file_is_a_fault_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(b"x" * 10_000)[:30])
    (tmp_path / "b.log").write_bytes((LOGS / "key_error_plain.log").read_bytes())
    (tmp_path / "c.json").write_text('{"message": {"errorCode": 1}}')
    gathered = gather([tmp_path, tmp_path / "none.log"])
    assert [Path(fault.file).name for fault in gathered.faults] == ["a.log.gz", "c.json", "none.log"]
    assert diagnose(gathered.evidence).reason == "key_error"


def test_what_is_no_text_is_passed_over_in_a_directory_and_a_fault_when_named(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.write_bytes(bytes(range(256)) * 40)
    assert gather([tmp_path]).faults == []
    assert [fault.file for fault in gather([dump]).faults] == [str(dump)]


def test_holes_of_zeros_do_not_hide_a_log(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_bytes(b"\0" * 3000 + (LOGS / "key_error_messy.log").read_bytes() * 2)
    assert diagnose(gather([tmp_path]).evidence).reason == "key_error"


def test_packed_logs_are_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as archive:
        archive.add(LOGS / "nvlink_error_messy", "job")
    gathered = gather([tmp_path])
    assert diagnose(gathered.evidence).reason == "nvlink_error"
    assert any("logs.tar.gz:job/dmesg.log" in seen.file for seen in gathered.evidence)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(contents=st.lists(st.binary(max_size=400), min_size=1, max_size=3))
def test_any_bytes_under_any_name_are_read_or_a_fault(contents: list[bytes], tmp_path: Path) -> None:
    for name, data in zip(("error.json", "x.tar", "y.gz"), contents, strict=False):
        (tmp_path / name).write_bytes(data)
    gathered = gather([tmp_path, *sorted(tmp_path.iterdir())])
    assert diagnose(gathered.evidence).sentence


# ---- what no cue explains ------------------------------------------------------------------------------------------

PUMP = "cooling loop {}: pump failure, shutting down\n"


def test_an_owner_teaches_what_a_line_means_and_cues_still_come_first(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("iteration 1 loss 2.0\n" * 20 + PUMP.format(7))
    taught = Lessons().teach(PUMP.format(3), "node_failure")
    assert diagnose(gather([log]).evidence).reason == "unknown"
    assert explain(gather([log]), Lessons()).reason == "unknown"
    diagnosis = explain(gather([log]), taught)
    assert diagnosis.root is not None
    assert (diagnosis.reason, diagnosis.root.source, diagnosis.root.text) == (
        "node_failure",
        "lessons",
        PUMP.format(7).strip(),
    )
    log.write_bytes(log.read_bytes() + (LOGS / "key_error_plain.log").read_bytes())
    assert explain(gather([log]), taught).reason == "key_error"


def test_hints_name_the_rarest_lines_that_look_like_errors(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("probe error: 3 retries\n" * 30 + "link error on pump 7\n" + "done\n")
    first = hints(gather([tmp_path]))[0]
    assert (first.template, first.count) == ("link error on pump <*>", 1)


def test_without_lines_that_look_like_errors_the_last_lines_are_hints(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("start\n" * 30 + "gave up\n")
    assert [hint.example for hint in hints(gather([tmp_path]), 1)] == ["gave up"]
