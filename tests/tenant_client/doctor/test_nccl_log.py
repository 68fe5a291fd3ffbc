"""NCCL's debug output: what broke, on which rank, and in which version."""

from pathlib import Path

import pytest

from federation.base.reading import open_inputs
from tenant_client.doctor.sources.evidence import Role
from tenant_client.doctor.sources.nccl_log import looks_like, read, version
from tests.support.logs_of_our_own import DATA, reader

NCCL_DATA = DATA / "nccl_logs"
MASTER, WORKER = NCCL_DATA / "llama2-7b-master.log.gz", NCCL_DATA / "llama2-7b-worker-1.log.gz"
MEGATRON = NCCL_DATA / "megatron_gpt2_16nodes.out.gz"
INIT = "gpu-a:31:99 [2] NCCL INFO comm 0x5 rank 10 nranks 16 cudaDev 2 nvmlDev 2 busId 1a000 - Init COMPLETE\n"


def needs(file: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not file.exists(), reason=f"../shared/data/nccl_logs/{file.name} is missing")


@pytest.mark.parametrize(
    ("text", "reason", "role"),
    [
        ("NET/IB : Got completion from peer 10.1.0.7<4> with error 12, opcode 0", "transport_error", Role.SYMPTOM),
        ("NET/IB: Got completion from peer 10.1.0.7<4> with status=5 opcode=0", "transport_error", Role.SYMPTOM),
        ("NET/IB : Got completion with error 12, opcode 0, len 0", "transport_error", Role.SYMPTOM),
        ("NET/IB : mlx5_0:1 Got async event : port error", "network_error", Role.ROOT),
        ("Call to ibv_create_cq failed", "network_error", Role.ROOT),
        ("socketStartConnect: Connect to 10.0.0.1<3> failed : No route to host", "network_error", Role.ROOT),
        ("Cuda failure 'an illegal memory access was encountered'", "illegal_memory_access", Role.ROOT),
        ("Cuda failure 2 'out of memory'", "gpu_out_of_memory", Role.ROOT),
        ("Cuda failure 'driver shutting down'", "unknown", Role.TEARDOWN),
        ("socketProgress: Connection closed by remote peer gpu-b<5>", "peer_lost", Role.SYMPTOM),
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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NCCL version 2.21.5+cuda12.4", "2.21.5"),
        ("gpu-a:1:2 [0] NCCL INFO NCCL version 2.7.8+cuda10.2", "2.7.8"),
        ("NCCL version unknown", ""),
        ("using NCCL 2.21.5", ""),
    ],
)
def test_the_version_stands_where_nccl_says_version(line: str, expected: str) -> None:
    assert version(reader(f"{INIT}{line}\n{INIT}")) == expected


def test_recognised_by_content() -> None:
    assert looks_like(INIT * 5)
    assert not looks_like(INIT + "iteration 1\n" * 5)


# ---- real logs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        pytest.param(MASTER, "2.14.3", marks=needs(MASTER)),
        pytest.param(MEGATRON, "2.7.8", marks=needs(MEGATRON)),
        pytest.param(WORKER, "", marks=needs(WORKER)),  # it writes no line of NCCL's
    ],
)
def test_the_version_of_real_jobs(file: Path, expected: str) -> None:
    with open_inputs(file) as inputs:
        assert version(next(inputs)) == expected


@needs(MASTER)
def test_a_real_clean_job_has_no_evidence() -> None:
    with open_inputs(MASTER) as inputs:
        assert list(read(next(inputs))) == []
