"""NCCL's debug output: what broke, on which rank, and what was running."""

from pathlib import Path

import pytest

from tenant_client.sources.evidence import Role
from tenant_client.sources.nccl_log import NcclVersions, looks_like, read, versions
from tenant_client.sources.reading import open_inputs
from tests.logs_of_our_own import DATA, reader

NCCL_DATA = DATA / "nccl_logs"
MASTER, WORKER = NCCL_DATA / "llama2-7b-master.log.gz", NCCL_DATA / "llama2-7b-worker-1.log.gz"
MEGATRON = NCCL_DATA / "megatron_gpt2_16nodes.out.gz"
INIT = "gpu-a:31:99 [2] NCCL INFO comm 0x5 rank 10 nranks 16 cudaDev 2 nvmlDev 2 busId 1a000 - Init COMPLETE\n"


def needs(file: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not file.exists(), reason=f"../shared/data/nccl_logs/{file.name} is missing")


@pytest.mark.parametrize(
    ("text", "reason", "role"),
    [
        ("NET/IB : Got completion from peer 10.1.0.7<4> with error 12, opcode 0", "network_error", Role.SYMPTOM),
        ("NET/IB: Got completion from peer 10.1.0.7<4> with status=5 opcode=0", "network_error", Role.SYMPTOM),
        ("NET/IB : Got completion with error 12, opcode 0, len 0", "network_error", Role.SYMPTOM),
        ("NET/IB : mlx5_0:1 Got async event : port error", "network_error", Role.ROOT),
        ("Call to ibv_create_cq failed", "network_error", Role.ROOT),
        ("socketStartConnect: Connect to 10.0.0.1<3> failed : No route to host", "network_error", Role.ROOT),
        ("Cuda failure 'an illegal memory access was encountered'", "cuda_error", Role.ROOT),
        ("Cuda failure 2 'out of memory'", "out_of_memory_error", Role.ROOT),
        ("Cuda failure 'driver shutting down'", "unknown", Role.TEARDOWN),
        ("socketProgress: Connection closed by remote peer gpu-b<5>", "nccl_remote_error", Role.SYMPTOM),
    ],
)
def test_warnings_that_are_evidence(text: str, reason: str, role: Role) -> None:
    (seen,) = read(reader(f"gpu-a:31:77 [2] transport/net.cc:12 NCCL WARN {text}\n"))
    assert (seen.reason, seen.role, seen.host, seen.gpu, seen.rank) == (reason, role, "gpu-a", "2", None)


@pytest.mark.parametrize("text", ["NCCL WARN NET/Plugin : No symbol", "NCCL INFO [Service thread] Connection closed"])
def test_warnings_that_are_none(text: str) -> None:
    assert list(read(reader(f"gpu-a:31:77 [2] {text}\n"))) == []


def test_a_process_keeps_the_rank_that_it_told_before() -> None:
    warning = "[2025-11-03 04:00:00] gpu-a:31:77 [2] net.cc:1 NCCL WARN Call to ibv_reg_mr failed\n"
    (seen,) = read(reader(INIT + warning))
    assert (seen.rank, seen.at_s, seen.line) == (10, 1762142400.0, 2)


def test_versions_network_and_transports_out_of_info_lines() -> None:
    text = (
        "NCCL version 2.21.5+cuda12.4\n"
        "gpu-a:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:1.1.1.1<0>\n"
        "gpu-a:1:2 [0] NCCL INFO Using network IB\n"
        "gpu-a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read\n"
        "gpu-a:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 9[1] [send] via NET/IB/0/GDRDMA\n"
    )
    found = versions(reader(text + INIT))
    assert found == NcclVersions("2.21.5", "12.4", "IB", "RoCE", 16, (("P2P/IPC", 1), ("NET/IB", 1)))


def test_a_log_without_nccl_has_no_versions() -> None:
    assert versions(reader("hello\n")) == NcclVersions()


def test_recognised_by_content() -> None:
    assert looks_like(INIT * 5)
    assert not looks_like(INIT + "iteration 1\n" * 5)


# ---- real logs -----------------------------------------------------------------------------------------------------


@needs(MASTER)
def test_versions_of_a_real_job_on_32_gpus() -> None:
    with open_inputs(MASTER) as inputs:
        found = versions(next(inputs))
    assert (found.nccl, found.cuda, found.network, found.fabric, found.nranks) == ("2.14.3", "11.7", "IB", "RoCE", 32)
    assert dict(found.channels) == {"P2P/IPC": 60, "NET/IB": 18}


@needs(MEGATRON)
def test_versions_of_a_real_job_on_16_nodes() -> None:
    with open_inputs(MEGATRON) as inputs:
        found = versions(next(inputs))
    assert (found.nccl, found.cuda, found.nranks) == ("2.7.8", "10.2", 64)


@needs(WORKER)
def test_a_real_worker_that_writes_no_nccl_lines() -> None:
    with open_inputs(WORKER) as inputs:
        assert versions(next(inputs)) == NcclVersions()


@needs(MASTER)
def test_a_real_clean_job_has_no_evidence() -> None:
    with open_inputs(MASTER) as inputs:
        assert list(read(next(inputs))) == []
