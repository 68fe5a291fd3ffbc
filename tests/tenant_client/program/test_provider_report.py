"""`show JOB --report`: a provider's own report, of hardware alone, with no word that its documents do not have."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tenant_client.doctor.advice.provider_report import Cloud, Fault, NotHardware, report_of
from tenant_client.doctor.diagnosis.excerpts import Excerpt, ToldLine
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.excerpts import Excerpts
from tenant_client.doctor.records.starts import Started, Starts
from tenant_client.doctor.run.hook.readings import Log
from tenant_client.program.cli import app
from tests.support import schemas
from tests.tenant_client.doctor.test_spike_origin import SPIKE, losses

LOST = (
    "[ 8.1] gpu-17 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4211, name=secret_model.py, GPU has fallen off the bus."
)
BOUNDS = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python, Ch 00000008, MMU Fault: ENGINE GRAPHICS"
ENDED_S = 1_790_000_000.0
# What the documents name (docs/causes.md has the sources), by hand.
FIELDS: dict[str, Any] = {
    "gcp": {"disruptionSchedule", "faultReasons", "behavior", "description"},
    "azure": {
        *("properties", "startDateTime", "impactCategory", "impactDescription", "impactedResourceId"),
        *(
            "additionalProperties",
            "PhysicalHostName",
            "LogUrl",
            "Manufacturer",
            "SerialNumber",
            "ModelNumber",
            "Location",
        ),
    },
    "aws": {"Instances", "Status", "ReasonCodes", "StartTime", "EndTime", "Description", "DryRun"},
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Failures of a lost GPU, of an Xid that programs cause, of a node, and of a program."""
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts = Attempts(connection)
        for number, (unit, reason, text) in enumerate(
            [
                ("lost", "device_lost", LOST),
                ("bounds", "illegal_memory_access", BOUNDS),
                ("node", "node_failure", "slurmstepd: error: NODE FAILURE"),
                ("code", "key_error", "KeyError: 'lr'"),
            ]
        ):
            attempts.begin(unit, ENDED_S - 100.0 + number)
            attempts.end(unit, 1, AttemptState.FAILED, ENDED_S)
            attempts.explain(unit, 1, AttemptCause(reason, 3, host="gpu-17", gpu="0000:3b:00", sentence=text))
            Excerpts(connection).keep(unit, 1, Excerpt("/me/secret_model.py:4", (ToldLine("kern.log", 3, text),)))
            Starts(connection).keep(unit, 1, Started(command=("python", "secret_model.py", "--lr", "3e-4")))
    return tmp_path


def call(home: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["show", *words, "--home", str(home)])


def keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(keys, value))
    return set(value).union(*map(keys, value.values())) if isinstance(value, dict) else set()


@pytest.mark.parametrize("cloud", list(Cloud))
@pytest.mark.parametrize("job", ["lost", "node"])
def test_a_report_has_published_fields_alone_and_nothing_of_the_workload(home: Path, job: str, cloud: Cloud) -> None:
    done = call(home, job, "--report", cloud.value)
    assert done.exit_code == 0
    report = schemas.held("pharoah-tenant show summary --report", done.stdout)
    assert keys(report["body"]) <= FIELDS[cloud.value]
    text = json.dumps([report["call"], report["body"]])
    assert all(f"{{{name}}}" in text for name in report["fill_in"])
    assert text.count("{") - text.count("{{") >= len(report["fill_in"])
    for secret in ("secret_model", "4211", "--lr", "/me", "kern.log"):
        assert secret not in done.stdout + done.stderr
    assert "gpu-17" in done.stdout
    assert all(f"fill in {{{name}}}" in done.stderr for name in report["fill_in"])


def test_each_provider_is_told_in_its_own_words(home: Path) -> None:
    bodies = {cloud: json.loads(call(home, "lost", "--report", cloud.value).stdout)["body"] for cloud in Cloud}
    what = "Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.; node gpu-17, GPU 0000:3b:00; 2026-09-21T14:13:20Z"
    assert bodies[Cloud.GCP] == {
        "disruptionSchedule": "IMMEDIATE",
        "faultReasons": [{"behavior": "UNRECOVERABLE_GPU_ERROR", "description": what}],
    }
    properties = bodies[Cloud.AZURE]["properties"]
    assert properties["impactCategory"] == "Resource.Hpc.Unhealthy.XID79FallenOffBus"
    assert properties["startDateTime"] == "2026-09-21T14:13:20Z"
    assert properties["additionalProperties"]["Location"] == "0000:3b:00"
    assert (bodies[Cloud.AWS]["Status"], bodies[Cloud.AWS]["ReasonCodes"]) == ("impaired", ["other"])
    node = json.loads(call(home, "node", "--report", "aws").stdout)["body"]
    assert node["ReasonCodes"] == ["unresponsive"]


@pytest.mark.parametrize(("job", "why"), [("bounds", "Xid 31 is hardware in"), ("code", "key_error names no device")])
def test_no_report_is_made_of_what_does_not_speak_of_hardware(home: Path, job: str, why: str) -> None:
    done = call(home, job, "--report", "azure")
    assert (done.exit_code, done.stdout) == (2, "")
    assert why in done.stderr
    assert "--only explain" in done.stderr


def test_a_replica_that_differed_is_silent_data_corruption(home: Path) -> None:
    folder = home / "runs" / "code-1"
    folder.mkdir(parents=True)
    for rank, spike in enumerate(({}, SPIKE)):
        log = Log(folder, rank)
        for one in losses(0, spike):
            log.add(one)
    body = json.loads(call(home, "code", "--report", "gcp").stdout)["body"]
    assert body["faultReasons"][0]["behavior"] == "SILENT_DATA_CORRUPTION"


@pytest.mark.parametrize(
    ("code", "category"),
    [
        ("48", "XID48DoubleBitECC"),
        ("74", "NvLink"),
        ("94", "XID94ContainedECCError"),
        ("95", "XID95UncontainedECCError"),
        ("140", "GpuXIDError"),
        ("amd_uncorrectable", "HpcGenericFailure"),
    ],
)
def test_azure_has_a_category_of_its_own_for_some_codes(code: str, category: str) -> None:
    made = report_of(Cloud.AZURE, Fault("ecc_error", 0.0, code=code, hardware_probability=0.9))
    assert made.body["properties"]["impactCategory"].rpartition(".")[2] == category


def test_a_code_of_which_nothing_is_known_is_refused() -> None:
    with pytest.raises(NotHardware):
        report_of(Cloud.GCP, Fault("ecc_error", 0.0, code="79"))
