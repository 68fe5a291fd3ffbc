"""A job that is run and not changed: its signature is in the journal afterwards, and its traces are gone."""

import json
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crypto.ids import LeaseId
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.run.hook.progress import Progress, Writer
from tenant_client.doctor.run.workload import RunWorkload
from tenant_client.doctor.workload.describe import describe_files
from tenant_client.program.cli import app
from tenant_client.rounds.disclosure.happened import what_happened
from tenant_client.rounds.disclosure.overview import leases
from tenant_client.rounds.tenant import StartedLease
from tests import needs
from tests.jobs.wrapped import ROOT, attempts, run
from tests.support.factories import Cast, a_descriptor
from tests.support.gloo import tried_again_without_gloo

SHAPES = {"Input Dims": [[8, 64], [128, 64], [128]], "Input type": ["float", "float", "float"]}
LINEAR = {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "ts": 1, "dur": 1, "args": SHAPES}


@pytest.mark.nightly
@pytest.mark.xdist_group("torchrun")
@tried_again_without_gloo
def test_an_unchanged_job_gets_its_signature(tmp_path: Path) -> None:
    needs.installed("torch")
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    home = tmp_path / "home"
    done = run(home, [*job, ROOT / "examples/ddp.py", "--steps", "8"], ["--describe", "now"], timeout_s=90.0)
    if "connectFullMesh" in done.stderr:
        (tmp_path / "no-gloo").touch()
    assert done.code == 0, done.stderr
    assert attempts(home)[-1].steps == 8
    assert done.stderr.endswith("; workload described\n")
    with closing(open_database(home / "tenant.db")) as connection:
        ((unit, descriptor),) = Journal(connection).descriptors().items()
        assert Journal(connection).undescribed() == {}
    assert unit == "lease-1"
    assert ("linear", ()) in descriptor.structure
    assert any(name == "aten::linear" for name, dims in descriptor.structure if dims)
    assert "torch" in dict(descriptor.versions)
    assert {kind for kind, _, _ in descriptor.collectives} >= {"all_reduce"}
    assert not list(home.rglob("trace-*"))


@pytest.mark.nightly
def test_a_job_that_trains_nothing_is_said_not_to_be_described(tmp_path: Path) -> None:
    done = run(tmp_path / "home", [sys.executable, "-c", "pass"])
    why = "no step of a PyTorch optimiser was seen in a process that `run` started"
    assert done.stderr.endswith(f"; workload not described: {why}\n")
    failed = run(tmp_path / "home", [sys.executable, "-c", "1 / 0"])
    assert f"pharoah-tenant: workload not described: {why}\n" in failed.stderr
    with closing(open_database(tmp_path / "home" / "tenant.db")) as connection:
        assert what_happened(connection).undescribed == {"lease-1": why}
        assert [row.undescribed for row in leases(connection)] == [why]
    for verb in ("status", "journal"):
        shown = CliRunner().invoke(app, [verb, "--home", str(tmp_path / "home")])
        assert f"workload not described: {why}" in shown.stdout


def a_record(run_dir: Path, steps: int) -> None:
    Writer(run_dir, Progress(0, 1, steps, 1e9, "train", None, 0))


def test_why_a_workload_is_not_described(tmp_path: Path) -> None:
    workload = RunWorkload(tmp_path, sampled=True)
    assert "no step" in workload.why_not()
    a_record(tmp_path, 13)
    assert "took no sample" in workload.why_not()
    (tmp_path / "sampling-3").write_text("the host is busy")
    assert workload.why_not() == "the host is busy"
    (tmp_path / "trace-0-0.json").write_text("{}")
    assert workload.take(workload.traces()) is None
    assert workload.why_not().startswith("its traces could not be read: ")
    assert workload.traces() == []
    assert "--no-sample" in RunWorkload(tmp_path, sampled=False).why_not()


def test_a_trace_that_gives_no_description_leaves_it_to_the_next(tmp_path: Path) -> None:
    workload = RunWorkload(tmp_path, sampled=True)
    (tmp_path / "trace-0-0.json").write_text("{}")
    assert workload.take(workload.traces()) is None
    (tmp_path / "trace-0-1.json").write_text(json.dumps({"traceEvents": [LINEAR]}))
    assert workload.take(workload.traces()) is not None
    workload.kept(kept=False)
    assert (workload.described, workload.why_not()) == (False, "the journal could not be written")
    assert not (tmp_path / "described").exists()
    workload.kept(kept=True)
    assert workload.described
    assert (tmp_path / "described").exists()


def test_why_a_lease_is_not_described_is_kept_until_it_is(cast: Cast) -> None:
    journal = cast.tenant(trustees=()).journal
    journal._connection.execute("INSERT INTO units VALUES ('one', 0.0, '{}')")
    for why in ("too few steps", "the host is busy"):
        journal.leave_undescribed("one", why)
    assert journal.undescribed() == {"one": "the host is busy"}
    journal.describe("one", 1.0, a_descriptor())
    journal.leave_undescribed("one", "too few steps")  # a later attempt, of the same workload
    assert journal.undescribed() == {}


def test_a_lease_that_ran_before_it_was_registered_gets_its_labels(cast: Cast) -> None:
    tenant = cast.tenant(trustees=cast.trustees())
    lease = LeaseId(bytes(16))
    tenant._connection.execute("INSERT INTO units VALUES (?, 3.5, '{}')", (str(lease),))
    tenant.journal.describe(str(lease), 1e9, a_descriptor())
    tenant.start_leases([StartedLease(lease, 4.0, {"context": "c"}, a_descriptor())], epoch=0)
    (unit,) = tenant.journal.units()
    assert unit.start_h == 3.5  # when the job began, not when it was told
    assert unit.labels["context"] == "c"
    assert set(unit.labels) >= {"archetype", "subarchetype", "family"}


def test_the_newest_description_of_a_lease_counts(cast: Cast) -> None:
    tenant = cast.tenant(trustees=())
    tenant._connection.execute("INSERT INTO units VALUES ('one', 0.0, '{}')")
    tenant.journal.describe("one", 1.0, a_descriptor("first"))
    tenant.journal.describe("one", 2.0, a_descriptor("second"))
    assert tenant.journal.descriptors() == {"one": a_descriptor("second")}


def test_what_a_trace_says_survives_the_journal(tmp_path: Path, cast: Cast) -> None:
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [LINEAR]}))
    descriptor = describe_files([tmp_path / "trace.json"])
    tenant = cast.tenant(trustees=())
    tenant._connection.execute("INSERT INTO units VALUES ('one', 0.0, '{}')")
    tenant.journal.describe("one", 1.0, descriptor)
    assert tenant.journal.descriptors()["one"] == descriptor
