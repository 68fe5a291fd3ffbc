"""What a job is called and where it failed, as far as its scheduler says."""

from pathlib import Path

import pytest

from tenant_client.doctor.run.attempt_recorder import Record
from tenant_client.doctor.run.ended import Asked
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.run_directory import lease_name
from tenant_client.doctor.run.supervise import Ending
from tests.jobs.wrapped import LEASE, attempts

K8S = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "pre-worker-2", "NODE_NAME": "node-7"}
ONE_NODE = {"SLURM_JOB_ID": "81", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "gpu05"}


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"SLURM_JOB_ID": "81"}, "slurm-81"),
        ({"SLURM_JOB_ID": "81", "SLURM_RESTART_COUNT": "2", "SLURM_PROCID": "3"}, "slurm-81"),
        ({"SLURM_JOB_ID": "81", "SLURM_ARRAY_JOB_ID": "80", "SLURM_ARRAY_TASK_ID": "0"}, "slurm-80_0"),
        ({"SLURM_JOB_ID": "81", "JOB_COMPLETION_INDEX": "4"}, "slurm-81"),
        ({"SLURM_JOB_ID": "../81"}, "slurm-.._81"),
        (K8S, "k8s-default-pre-worker-2"),  # pods may share a node
        ({**K8S, "POD_NAMESPACE": "llm", "POD_NAME": "pod/a"}, "k8s-llm-pod_a"),
        ({**K8S, "JOB_NAME": "pre", "JOB_COMPLETION_INDEX": "0"}, "k8s-default-pre-0"),
        ({**K8S, "JOB_NAME": "pre", "TORCHELASTIC_RUN_ID": "none"}, "k8s-default-pre"),
        ({**K8S, "TORCHELASTIC_RUN_ID": "none"}, "k8s-default-pre-worker-2"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "k8s-default-pod"),
    ],
)
def test_a_lease_is_called_as_the_scheduler_calls_the_allocation(env: dict[str, str], name: str) -> None:
    assert lease_name(env) == name


@pytest.mark.parametrize("env", [{}, {"SLURM_JOB_ID": ""}, {"HOSTNAME": "gpu-a"}])
def test_without_a_scheduler_every_lease_has_a_name_of_its_own(env: dict[str, str]) -> None:
    one, other = lease_name(env), lease_name(env)
    assert one.startswith("local-")
    assert one != other


def test_a_failure_whose_host_no_log_names_was_on_the_only_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failed_on(tmp_path / "one", monkeypatch, ONE_NODE, "") == "gpu05"
    assert failed_on(tmp_path / "two", monkeypatch, ONE_NODE | {"SLURM_NNODES": "2"}, "") == ""


def test_a_host_that_a_log_names_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warning = "gpu-a:31:77 [2] net.cc:1 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n"
    assert failed_on(tmp_path, monkeypatch, ONE_NODE, warning) == "gpu-a"


def test_a_log_directory_that_is_only_read_may_come_from_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failed_on(tmp_path, monkeypatch, ONE_NODE, "", notes=False) == ""


def failed_on(home: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], log: str, *, notes: bool = True) -> str:
    """The journalled host of a failure that left `log`, in this environment."""
    run_dir = home / "runs" / f"{LEASE}-1"
    run_dir.mkdir(parents=True)
    (run_dir / "stderr.log").write_text(log)
    with monkeypatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        record = Record(home, LEASE, run_dir, (), FailOpen(quiet=True), notes=notes)
    record.begin(0.0, 1)
    record.ended(Ending(1), Asked(60.0), 60.0, 0, (), {})
    (attempt,) = attempts(home)
    return attempt.cause.host
