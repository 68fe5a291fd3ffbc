"""A job that is run and not changed: its signature is in the journal afterwards, and its traces are gone."""

import json
import sys
from contextlib import closing
from pathlib import Path

import pytest

from crypto.ids import LeaseId
from tenant_client.records.database import open_database
from tenant_client.records.journal import Journal
from tenant_client.rounds.tenant import StartedLease
from tenant_client.workload.describe import describe_files
from tests import needs
from tests.jobs.wrapped import ROOT, attempts, run
from tests.support.factories import Cast, a_descriptor
from tests.support.gloo import tried_again_without_gloo

AT_ONCE = {f"PHAROAH_SAMPLE_{name}": "inf" for name in ("LOAD", "JITTER", "BUDGET")}


@pytest.mark.nightly
@pytest.mark.xdist_group("torchrun")
@tried_again_without_gloo
def test_an_unchanged_job_gets_its_signature(tmp_path: Path) -> None:
    needs.package("torch")
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    home = tmp_path / "home"
    done = run(home, [*job, ROOT / "examples/ddp.py", "--steps", "40"], env=AT_ONCE, timeout_s=90.0)
    if "connectFullMesh" in done.stderr:
        (tmp_path / "no-gloo").touch()
    assert done.code == 0, done.stderr
    assert attempts(home)[-1].steps == 40
    with closing(open_database(home / "tenant.db")) as connection:
        ((unit, descriptor),) = Journal(connection).descriptors().items()
    assert unit == "lease-1"
    assert ("linear", ()) in descriptor.structure
    assert any(name == "aten::linear" for name, dims in descriptor.structure if dims)
    assert "torch" in dict(descriptor.versions)
    assert {kind for kind, _, _ in descriptor.collectives} >= {"all_reduce"}
    assert not list(home.rglob("trace-*"))


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
    shapes = {"Input Dims": [[8, 64], [128, 64], [128]], "Input type": ["float", "float", "float"]}
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "ts": 1, "dur": 1, "args": shapes}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event]}))
    descriptor = describe_files([tmp_path / "trace.json"])
    tenant = cast.tenant(trustees=())
    tenant._connection.execute("INSERT INTO units VALUES ('one', 0.0, '{}')")
    tenant.journal.describe("one", 1.0, descriptor)
    assert tenant.journal.descriptors()["one"] == descriptor
