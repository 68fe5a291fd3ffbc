"""Error codes of GPUs in a tenant's own journal: which jobs saw them on which nodes, and what became of it."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from federation.base.sqlite import Connection
from federation.protocol.xid_judge import Tally
from tenant_client.doctor.advice.explanation import Explanation, FailureCause, FailureSide, explain
from tenant_client.doctor.advice.failure_facts import Known, facts_of, newest
from tenant_client.doctor.advice.own_codes import own_codes
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.starts import Started, Starts
from tenant_client.program.cli import app
from tenant_client.program.pages import views
from tests.jobs.wrapped import run

FAULT = "NVRM: Xid (PCI:0000:3b:00): 31, pid=9, name=python, MMU Fault: ENGINE GRAPHICS faulted"
HOUR_S = 3600.0


def ran(
    connection: Connection, unit: str, program: str, nodes: str, *, at: float, failed_on: str | None = None
) -> None:
    attempts = Attempts(connection)
    attempts.begin(unit, at * HOUR_S)
    Starts(connection).keep(unit, 1, Started(command=("python", program), hosts=nodes))
    Journal(connection).place(unit, nodes)
    state = AttemptState.SUCCEEDED if failed_on is None else AttemptState.FAILED
    attempts.end(unit, 1, state, (at + 1) * HOUR_S)
    if failed_on is not None:
        cause = AttemptCause(
            "cuda_error", host=failed_on, place="dmesg, line 3", sentence=f"cuda_error: dmesg, line 3: {FAULT}"
        )
        attempts.explain(unit, 1, cause)
        Incidents(connection).keep(unit, 1, (FAULT,), None)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with closing(open_database(tmp_path / "tenant.db")) as opened:
        yield opened


def test_a_job_that_fails_so_on_other_nodes_is_told_from_a_node_on_which_others_fail(connection: Connection) -> None:
    for number, node in enumerate(("n1", "n2", "n3")):
        ran(connection, f"bad-{number}", "bad.py", node, at=number, failed_on=node)
    ran(connection, "good", "good.py", "n[1-4]", at=9)
    own = own_codes(connection)
    assert own.history("bad-0", "n1")["31"].job == Tally(2, 2)
    assert own.history("bad-0", "n1")["31"].node == Tally(0, 1)
    assert own.history("good", "n4")["31"].rest == Tally(3, 3)


def test_of_several_nodes_the_one_that_the_line_names_has_the_code(connection: Connection) -> None:
    ran(connection, "wide", "wide.py", "n[1-3]", at=0, failed_on="n2.cluster")
    ran(connection, "unknown", "other.py", "n[1-3]", at=1, failed_on="")
    ran(connection, "later", "later.py", "n2", at=2)
    pairs = own_codes(connection).pairs["31"]
    assert {node: seen for (_, node), seen in pairs.items() if "wide" in _} == {"n1": False, "n2": True, "n3": False}
    assert not [job for job, _ in pairs if "other" in job]
    assert own_codes(connection).history("later", "n2")["31"].node == Tally(1, 1)


def test_what_helped_and_what_was_fixed_teach(connection: Connection) -> None:
    ran(connection, "one", "a.py", "n1", at=0, failed_on="n1")
    assert own_codes(connection).outcomes == {}
    Incidents(connection).helped("one", "provider replaced the GPU")
    assert own_codes(connection).outcomes == {"31": {"hardware": 1}}


def call(home: Path, *words: str) -> Any:
    done = CliRunner().invoke(app, [*words, "--home", str(home)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.stdout


def test_show_and_diagnose_say_whose_it_is_and_evidence_has_the_probability(
    connection: Connection, tmp_path: Path
) -> None:
    for number, node in enumerate(("n1", "n2", "n3", "n4")):
        ran(connection, f"bad-{number}", "bad.py", node, at=number, failed_on=node)
    ran(connection, "good", "good.py", "n[1-4]", at=9)
    told = "Xid 31: your code, 99% (the same on 3 other nodes; this node clean under 1 other job)"
    assert told in call(tmp_path, "show", "bad-0")
    (code,) = json.loads(call(tmp_path, "show", "bad-0", "--json"))["codes"]
    assert code["hardware_probability"] < 0.01
    log = tmp_path / "dmesg.log"
    log.write_text(f"[    8.1] {FAULT}\n[    9.1] Out of memory: Killed process 77 (python) total-vm:9kB\n")
    evidence = json.loads(call(tmp_path, "diagnose", str(log), "--json"))["evidence"]
    by_code = {one["code"]: one["hardware_probability"] for one in evidence}
    assert 0.0 < by_code["31"] < 0.1
    assert by_code[""] is None
    run = tmp_path / "runs" / "bad-0-1"
    run.mkdir(parents=True)
    (run / "dmesg.log").write_text(f"[    8.1] {FAULT}\n")
    assert told in call(tmp_path, "diagnose", str(run / "dmesg.log"))


def test_where_a_code_showed_before_turns_the_explanation(connection: Connection) -> None:
    ran(connection, "alone", "bad.py", "n1", at=0, failed_on="n1")
    alone = explained(connection, "alone")
    assert alone.side is not FailureSide.TENANT or not any("Xid 31" in text for text in alone.ranked[0].evidence_for)
    for number, node in enumerate(("n2", "n3", "n4"), 1):
        ran(connection, f"bad-{number}", "bad.py", node, at=number, failed_on=node)
    mine = explained(connection, "alone")
    assert mine.cause is FailureCause.CODE
    assert "the same on 3 other nodes" in " ".join(mine.ranked[0].evidence_for)


def test_other_jobs_with_the_code_on_the_node_accuse_the_node(connection: Connection) -> None:
    for number in range(4):
        ran(connection, f"job-{number}", f"job{number}.py", "sick", at=number, failed_on="sick")
        ran(connection, f"fine-{number}", f"job{number}.py", "n2", at=10 + number)
    found = explained(connection, "job-3")
    gpu = next(one for one in found.ranked if one.cause is FailureCause.GPU)
    assert "here under 3 other jobs too" in " ".join(gpu.evidence_for)


def test_run_jobs_and_page_say_whose_error_it_is(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "job.py"
    log.write_text(f"print({FAULT!r}); raise SystemExit(3)\n", encoding="utf-8")
    done = run(home, [sys.executable, str(log)])
    assert "pharoah-tenant: Xid 31: your code, " in done.stderr
    assert "(Xid 31: your code, " in call(home, "jobs")
    assert json.loads(call(home, "jobs", "--json"))["leases"][0]["code"].startswith("Xid 31: your code, ")
    house = views.house(home, 0.0)
    assert [one.codes[0].startswith("Xid 31: your code, ") for one in house.explanations.values()] == [True]


def explained(connection: Connection, unit: str) -> Explanation:
    known = Known.of(connection)
    attempt = newest(known, unit)
    assert attempt is not None
    return explain(facts_of(known, attempt))
