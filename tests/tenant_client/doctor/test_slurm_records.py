"""Slurm's records of jobs and nodes, composed after its manuals: which job or node failed, where and why."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from federation.base.reading import CappedReader
from tenant_client.doctor.sources.evidence import Evidence, NoFault
from tenant_client.doctor.sources.slurm_records import (
    jobs_in,
    looks_like_jobs,
    looks_like_nodes,
    read_nodes,
    reason_of,
)
from tenant_client.program.cli import app


def jobs(text: str) -> list[tuple[str, str, str]]:
    """Reason, host and text of each job that failed."""
    assert looks_like_jobs(text[: 16 << 10])
    return [(one.reason, one.host, one.text) for one in jobs_in(text, "s") if isinstance(one, Evidence)]


def well(text: str) -> str:
    (one,) = jobs_in(text, "s")
    assert isinstance(one, NoFault)
    return one.text


BARS = "JobID|JobName|State|ExitCode|NodeList\n"


@pytest.mark.parametrize(
    ("row", "reason", "part"),
    [
        ("9|a|TIMEOUT|0:0|n1", "time_limit", "TIMEOUT"),
        ("9|a|DEADLINE|0:0|n1", "time_limit", "DEADLINE"),
        ("9|a|NODE_FAIL|1:0|n1", "node_failure", "NODE_FAIL"),
        ("9|a|OUT_OF_MEMORY|0:125|n1", "host_out_of_memory", "OUT_OF_MEMORY"),
        ("9|a|PREEMPTED|0:0|n1", "preempted", "PREEMPTED"),
        ("9|a|CANCELLED by 1000|0:15|n1", "cancelled", "CANCELLED"),
        ("9|a|FAILED|0:11|n1", "segmentation_fault", "signal 11 (SIGSEGV)"),
        ("9|a|FAILED|139:0|n1", "segmentation_fault", "signal 11 (SIGSEGV)"),
        ("9|a|FAILED|0:9|n1", "killed", "signal 9 (SIGKILL)"),
        ("9|a|FAILED|0:6|n1", "aborted", "signal 6 (SIGABRT)"),
        ("9|a|FAILED|17:0|n1", "exit_code", "exit code 17"),
        ("9|a|FAILED|1:0|n1", "unknown", "exit code 1"),
        ("9|a|FAILED||n1", "unknown", "FAILED"),
    ],
)
def test_a_state_and_an_exit_code_name_the_reason(row: str, reason: str, part: str) -> None:
    ((found, host, text),) = jobs(f"{BARS}{row}\n8|b|COMPLETED|0:0|n2\n")
    assert (found, host) == (reason, "n1")
    assert text.startswith("job 9 (a) on n1: ")
    assert part in text
    assert text.endswith("; 1 other job did not fail")


def test_a_step_says_more_than_its_job_unless_it_was_cancelled() -> None:
    text = BARS + "9|a|FAILED|1:0|n[1-2]\n9.batch|batch|FAILED|1:0|n1\n9.0|python|{}|n2\n"
    assert jobs(text.format("FAILED|0:11"))[0][:2] == ("segmentation_fault", "n2")
    assert "its step 9.0, signal 11" in jobs(text.format("FAILED|0:11"))[0][2]
    assert jobs(text.format("OUT_OF_MEMORY|0:125"))[0][:2] == ("host_out_of_memory", "n2")
    assert jobs(text.format("CANCELLED|0:15"))[0][0] == "unknown"
    assert jobs(BARS + "9|a|NODE_FAIL|0:0|n[1-2]\n9.0|python|CANCELLED|0:9|n[1-2]\n")[0][0] == "node_failure"


def test_tasks_of_an_array_are_jobs_of_their_own() -> None:
    rows = "".join(f"70_{task}|a|{'FAILED|0:7' if task == 3 else 'COMPLETED|0:0'}|n{task}\n" for task in range(6))
    ((reason, host, text),) = jobs(BARS + rows)
    assert (reason, host) == ("shared_memory_full", "n3")
    assert text.startswith("job 70_3 (a) on n3")
    assert text.endswith("5 other jobs did not fail")


@pytest.mark.parametrize(
    "text",
    [
        "State|JobID|NodeList|ExitCode|\nFAILED|9|n1|0:11|\n",
        "JobIDRaw,ExitCode,State,NodeList\r\n9,0:11,FAILED,n1\r\n",
        "JobID\tState\tExitCode\tNodeList\n9\tFAILED\t0:11\tn1\n",
        "       JobID      State ExitCode   NodeList \n------------ ---------- -------- ---------- \n"
        "9                FAILED     0:11         n1 \n",
        "JobId=9 JobName=\n   JobState=FAILED Reason=RaisedSignal:11(Segmentation_fault) ExitCode=0:0\n"
        "   NodeList=n1\n",
        "ada@login3:~> sacct -j 9 -o JobID%-8,Start,NodeList%24,State%12,ExitCode\n"
        "JobID                  Start                 NodeList        State ExitCode \n"
        "-------- ------------------- ------------------------ ------------ -------- \n"
        "9        2026-05-02T10:00:00                       n1       FAILED     0:11 \n",
    ],
    ids=["bars", "commas", "tabs", "widths", "scontrol", "below a prompt"],
)
def test_columns_stand_in_any_order_between_any_signs(text: str) -> None:
    ((reason, host, _),) = jobs(text)
    assert (reason, host) == ("segmentation_fault", "n1")


def test_what_a_column_cut_off_is_known_by_its_beginning() -> None:
    head = "JobID      State      ExitCode \n---------- ---------- -------- \n"
    assert jobs(head + "9          OUT_OF_ME+    0:125 \n")[0][0] == "host_out_of_memory"
    assert jobs(head + "9          CANCELLED+      0:0 \n")[0][0] == "cancelled"


def a_job(**parts: Any) -> dict[str, Any]:
    number = {"set": True, "infinite": False, "number": 0}
    code = {"status": ["SUCCESS"], "return_code": number, "signal": {"id": {**number, "set": False}, "name": ""}}
    own = {"job_id": 9, "name": "a", "nodes": "n1", "state": {"current": ["COMPLETED"]}, "exit_code": code, "steps": []}
    return {**own, **parts}


def by_signal(number: int) -> dict[str, Any]:
    return {"status": ["SIGNALED"], "return_code": {"set": False, "number": 0}, "signal": {"id": number, "name": ""}}


@pytest.mark.parametrize(
    ("job", "reason", "name"),
    [
        (a_job(state={"current": ["TIMEOUT"], "reason": "None"}), "time_limit", "9"),
        (a_job(state={"current": "TIMEOUT"}), "time_limit", "9"),  # as 21.08 has it
        (a_job(state=["NODE_FAIL", "REQUEUED"]), "node_failure", "9"),
        (a_job(job_state=["OUT_OF_MEMORY"]), "host_out_of_memory", "9"),  # as scontrol has it
        (a_job(state={"current": ["FAILED"]}, exit_code=by_signal(11)), "segmentation_fault", "9"),
        (
            a_job(state={"current": ["FAILED"]}, array={"job_id": 7, "task_id": {"set": True, "number": 4}}),
            "unknown",
            "7_4",
        ),
        (
            a_job(state={"current": ["FAILED"]}, het={"job_id": 7, "job_offset": {"set": True, "number": 1}}),
            "unknown",
            "7+1",
        ),
        (
            a_job(
                state={"current": ["FAILED"]},
                steps=[{"state": ["FAILED"], "step": {"name": "python"}, "exit_code": by_signal(6)}],
            ),
            "aborted",
            "9",
        ),
    ],
)
def test_json_of_each_version_is_the_same_record(job: dict[str, Any], reason: str, name: str) -> None:
    text = json.dumps({"jobs": [job, a_job(job_id=8)], "meta": {}}, indent=1)
    ((found, host, told),) = jobs(text)
    assert (found, host) == (reason, "n1")
    assert told.startswith(f"job {name} (a) on n1: ")


def test_where_no_job_failed_it_is_said_how_they_stand() -> None:
    assert well(BARS + "9|a|COMPLETED|0:0|n1\n9.0|a|COMPLETED|0:0|n1\n") == "job 9 completed"
    assert well(BARS + "9|a|COMPLETED|0:0|n1\n8|a|COMPLETED|0:0|n1\n") == "all 2 jobs completed"
    assert well(BARS + "9|a|COMPLETED|0:0|n1\n8|a|PENDING|0:0|None\n") == "of 2 jobs 1 completed, 1 had not ended"
    assert well(BARS) == "a record of jobs that lists none"
    assert well(json.dumps({"jobs": [a_job(), a_job(job_id=8)]})) == "all 2 jobs completed"


def test_a_log_says_more_than_an_exit_code_and_less_than_a_time_limit(tmp_path: Path) -> None:
    log = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    b["ids"]\nKeyError: \'ids\'\n'
    (tmp_path / "train.log").write_text(log)
    (tmp_path / "sacct.txt").write_text(BARS + "9|a|FAILED|1:0|n1\n")
    asked = ["diagnose", str(tmp_path), "--home", str(tmp_path / "home")]
    assert CliRunner().invoke(app, asked).stdout.startswith("key_error: ")
    (tmp_path / "train.log").unlink()
    alone = CliRunner().invoke(app, asked)
    assert alone.exit_code == 3
    assert "job 9 (a) on n1: FAILED, exit code 1" in alone.stdout


def test_a_job_s_log_that_begins_with_its_record_is_read_too(tmp_path: Path) -> None:
    record = "JobId=9 JobName=a\n   JobState=RUNNING Reason=None\n   NodeList=n1\n\n"
    log = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    b["ids"]\nKeyError: \'ids\'\n'
    (tmp_path / "out.log").write_text(record + "step 1\n" + log)
    asked = ["diagnose", str(tmp_path / "out.log"), "--home", str(tmp_path / "home")]
    assert CliRunner().invoke(app, asked).stdout.startswith("key_error: ")


def test_every_state_of_the_table_has_a_reason_that_exists() -> None:
    for state in ("COMPLETED", "RUNNING", "NO_SUCH_STATE"):
        assert reason_of(state) == ""
    assert reason_of("BOOT_FAIL") == reason_of("NF") == "node_failure"


# ---- nodes -----------------------------------------------------------------------------------------------------------


def nodes(text: str) -> list[tuple[str, str, str]]:
    assert looks_like_nodes(text[: 16 << 10])
    found = list(read_nodes(CappedReader(io.BytesIO(text.encode()), "s", 1 << 26)))
    return [(one.reason, one.host, one.text) if isinstance(one, Evidence) else ("", "", one.text) for one in found]


SINFO = "REASON               USER      TIMESTAMP           NODELIST\n"
SHOWN = "NodeName=n7 Arch=x86_64\n   State={} ThreadsPerCore=2\n{}\n\n"
WHY = "   Reason={} [root@2026-03-04T05:06:07]"


@pytest.mark.parametrize(
    ("text", "reason", "host", "part"),
    [
        (
            SINFO + "Not responding       slurm     2026-03-04T05:06:07 n[7-8]\n",
            "node_failure",
            "n7",
            "n7, n8: Not resp",
        ),
        (
            SINFO + "NHC: no IB port up   root      2026-03-04T05:06:07 n7\n",
            "network_error",
            "n7",
            "since 2026-03-04T05:06:07",
        ),
        (
            "$ sinfo -R\n" + SINFO + "gres/gpu count repor slurm     2026-03-04T05:06:07 n7\n",
            "device_lost",
            "n7",
            "gres gpu count",
        ),
        (
            "Wed Mar 04 06:00:00 2026\nREASON     USER         TIMESTAMP           STATE  NODELIST\n"
            "ECC errors root(0)      2026-03-04T05:06:07 drain  n7\n"
            "planned    root(0)      2026-03-04T05:06:07 maint  n8\n",
            "ecc_error",
            "n7",
            "node n7: ECC errors, since",
        ),
        ("NODELIST STATE REASON\nn6 idle none\nn7 drng* NVSwitch fatal error\n", "nvlink_error", "n7", "NVSwitch"),
        ("HOSTNAMES REASON\nn6 none\nn7 GPU 3 fell off the bus\n", "device_lost", "n7", "GPU 3 fell"),
        ("HOSTNAMES REASON\nn6 none\nn7 none\n", "", "", "none is out"),
        (
            SHOWN.format("DOWN*", WHY.format("Node unexpectedly rebooted")),
            "node_failure",
            "n7",
            "unexpectedly rebooted",
        ),
        (SHOWN.format("DOWN+DRAIN", ""), "node_failure", "n7", "no reason told"),
        (SHOWN.format("IDLE+DRAIN", WHY.format("maintenance on Tuesday")), "", "", "none is out but 1 node by plan"),
        (SHOWN.format("IDLE", ""), "", "", "none is out"),
        (SINFO, "", "", "none is out"),
        (
            json.dumps({"nodes": [{"name": "n7", "state": ["DOWN"], "reason": "Not responding", "cpu_load": 0}]}),
            "node_failure",
            "n7",
            "Not responding",
        ),
    ],
)
def test_nodes_that_are_out_are_named_with_their_reason(text: str, reason: str, host: str, part: str) -> None:
    ((found, node, told),) = nodes(text)
    assert (found, node) == (reason, host)
    assert part in told


# ---- bad input -------------------------------------------------------------------------------------------------------

SEEDS = [
    BARS + "9|a|FAILED|0:11|n1\n8|b|COMPLETED|0:0|n2\n",
    "JobID      State      ExitCode \n---------- ---------- -------- \n9          OUT_OF_ME+    0:125 \n",
    "JobId=9 JobName=a\n   JobState=FAILED ExitCode=0:11\n   NodeList=n[1-3]\n",
    json.dumps({"jobs": [a_job(state={"current": ["FAILED"]}, exit_code=by_signal(11))]}),
    SINFO + "Not responding       slurm     2026-03-04T05:06:07 n[7-8]\n",
    SHOWN.format("DOWN*", WHY.format("x")),
    json.dumps({"nodes": [{"name": "n7", "state": ["DOWN"], "reason": "Not responding", "cpu_load": 0}]}),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SEEDS), st.data())
def test_any_text_ends_in_evidence_or_none(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(
        st.sampled_from(["", "9" * 400, "[" * 2000, "\0", "|", "=", "null", "{}", "[]", "-1", "²", "0-9999999999"])
    )
    changed = text[:at] + put + text[at + data.draw(st.integers(0, 40)) :]
    looks_like_jobs(changed)
    looks_like_nodes(changed)
    found = [*jobs_in(changed, "s"), *read_nodes(CappedReader(io.BytesIO(changed.encode()), "s", 1 << 26))]
    assert all(isinstance(one, Evidence | NoFault) for one in found)


def test_a_code_beyond_every_number_is_none_and_a_list_of_nodes_is_not_walked() -> None:
    rows = "".join(f"{number}|a|FAILED|{'9' * 300}:{'9' * 300}|n[1-9999999999]\n" for number in range(2000))
    found = jobs(BARS + rows)
    assert {(reason, host) for reason, host, _ in found} == {("unknown", "")}
