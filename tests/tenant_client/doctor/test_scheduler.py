"""Where a process runs, out of environments as Slurm, Kubernetes and torchrun set them."""

import pytest
from hypothesis import given, strategies as st

from federation.base.hostlist import hostlist
from tenant_client.doctor.sources.scheduler import Placement, placement

SLURM = {
    "SLURM_JOB_ID": "90211", "SLURM_ARRAY_JOB_ID": "90200", "SLURM_ARRAY_TASK_ID": "11", "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NTASKS": "16", "SLURM_NNODES": "8", "SLURMD_NODENAME": "gpu02",
    "SLURM_JOB_NODELIST": "gpu[01-08]", "SLURM_STEP_GPUS": "0,1", "SLURM_RESTART_COUNT": "2",
    "SLURM_JOB_PARTITION": "train", "SLURM_JOB_ACCOUNT": "llm",
}  # fmt: skip


def test_slurm() -> None:
    assert placement(SLURM) == Placement(
        scheduler="slurm", job_id="90211", array_job_id="90200", array_task=11, node="gpu02",
        nodes=tuple(f"gpu0{n}" for n in range(1, 9)), rank=3, local_rank=1, node_rank=1, world_size=16, node_count=8,
        restarts=2, partition="train", account="llm", gpus=("0", "1"),
    )  # fmt: skip


def test_torchrun_within_slurm_knows_the_process_better() -> None:
    inner = {"RANK": "30", "LOCAL_RANK": "6", "WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "3"}
    elastic = {"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "x"}
    found = placement({**SLURM, **inner, **elastic})
    assert (found.rank, found.local_rank, found.world_size, found.node_rank) == (30, 6, 64, 3)
    assert (found.restarts, found.restarts_maximum, found.job_id) == (3, 3, "90211")


def test_kubernetes() -> None:
    found = placement(
        {
            "KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "pre-worker-2", "POD_NAMESPACE": "llm",
            "NODE_NAME": "node-7",
            "PET_NNODES": "4", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "2", "JOB_COMPLETION_INDEX": "2",
            "NVIDIA_VISIBLE_DEVICES": "GPU-aa,GPU-bb",
        }
    )  # fmt: skip
    assert (found.scheduler, found.pod, found.namespace, found.node) == ("kubernetes", "pre-worker-2", "llm", "node-7")
    assert (found.node_rank, found.node_count, found.local_world_size, found.array_task) == (2, 4, 8, 2)
    assert found.gpus == ("GPU-aa", "GPU-bb")


def test_the_only_node_is_that_of_the_jobs_list() -> None:
    """`salloc` leaves the user's shell on the login node."""
    login = {"SLURM_JOB_ID": "81", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "gpu05", "HOSTNAME": "login1"}
    assert placement(login).only_node == "gpu05"
    assert placement({**SLURM, "SLURM_NNODES": "1"}).only_node == "gpu02"  # a step on one node of a larger job
    assert placement(SLURM).only_node == ""
    assert placement({"HOSTNAME": "gpu-a"}).only_node == ""  # how many others there are is not known


def test_torchruns_own_name_for_no_name_is_none() -> None:
    assert placement({"TORCHELASTIC_RUN_ID": "none", "PET_RDZV_ID": "pre"}).job_id == "pre"


def test_no_scheduler_and_values_that_are_no_numbers() -> None:
    assert placement({}) == Placement()
    assert placement({"RANK": "three", "PET_NNODES": "1:4", "WORLD_SIZE": "-1", "LOCAL_RANK": "²"}) == Placement()


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("login", ["login"]),
        ("node[01-04,7],gpu-a", ["node01", "node02", "node03", "node04", "node7", "gpu-a"]),
        ("r1n[9-11].cluster", ["r1n9.cluster", "r1n10.cluster", "r1n11.cluster"]),
        ("n[5-3]", []),
        ("n[a-b,2]", ["n2"]),
        ("n[²,2-³]", []),
        ("n[1-", ["n[1-"]),
        ("r[1-2]n[08-09].x,b", ["r1n08.x", "r1n09.x", "r2n08.x", "r2n09.x", "b"]),
        ("gpu[001-002,007]", ["gpu001", "gpu002", "gpu007"]),
        ("a[1]b[1]c[1]d[1]e[1]f[1]", ["a[1]b[1]c[1]d[1]e[1]f[1]"]),  # more dimensions than Slurm has
    ],
)
def test_host_lists(text: str, hosts: list[str]) -> None:
    if text == "n[1-":
        assert len(list(hostlist(text))) <= 2
    else:
        assert list(hostlist(text)) == hosts


def test_a_list_of_a_thousand_million_hosts_is_cut() -> None:
    assert sum(1 for _ in hostlist("n[1-999999999]")) == 65536
    assert sum(1 for _ in hostlist("n[1-99999]n[1-99999]n[1-99999]")) == 65536


@given(st.text(alphabet="n[]-,0123456789 ", max_size=40))
def test_any_text_is_a_list_of_hosts(text: str) -> None:
    assert sum(1 for _ in hostlist(text)) <= 65536


@given(st.dictionaries(st.sampled_from([*SLURM, "RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"]), st.text()))
def test_any_environment_is_a_placement(environment: dict[str, str]) -> None:
    assert placement(environment).restarts >= 0
