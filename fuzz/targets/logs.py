"""Logs, and what a scheduler puts into the environment."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from xml.etree import ElementTree as ET

from federation.base.hostlist import hostlist
from federation.base.reading import SourceError, lines
from federation.base.route import picture
from fuzz.targets.inputs import LIMITS, REPOSITORY, as_file, reader
from fuzz.targets.target import require, target
from tenant_client.doctor.diagnosis.diagnose import explain, gather, hints
from tenant_client.doctor.diagnosis.lessons import Lessons
from tenant_client.doctor.diagnosis.rank_graph import HealthMarks, graph_of, routes
from tenant_client.doctor.sources import elastic, job_log, kernel_log, nccl_log, scheduler
from tenant_client.doctor.sources.evidence import Evidence
from tenant_client.doctor.sources.nccl_topology import topology_of


def logs(*names: str) -> Callable[[], Iterator[bytes]]:
    """The project's own logs of these kinds, cut to a size that is quickly mutated."""

    def found() -> Iterator[bytes]:
        folder = REPOSITORY / "tests" / "logs"
        for name in names:
            for path in sorted(folder.glob(name)):
                for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                    if file.is_file():
                        yield file.read_bytes()[-4096:]

    return found


def require_evidence(found: Iterable[Evidence]) -> None:
    """All of it is evidence of lines that exist."""
    for seen in found:
        require("evidence", holds=isinstance(seen, Evidence) and seen.line >= 0)


@target("job-log", "any bytes are evidence, perhaps none, never an error", logs("*_messy*", "*_plain*"))
def check_job_log(data: bytes) -> None:
    """With what stayed unexplained."""
    leftover = job_log.Leftover()
    require_evidence(job_log.read(reader(data, "job.log"), LIMITS, leftover))
    require("lines of text", holds=all(isinstance(line.text, str) for line in leftover.tail))


# Lines with numbers in them, of each program that says how a job ended.
VERDICTS = b"""[2026-11-23 12:00:00,000] elastic: failed (exitcode: -9) local_rank: 1 (pid: 7) of binary: python
Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_12:00:00
  host      : gpu-a
  rank      : 1 (local_rank: 1)
  exitcode  : -5 (pid: 48213)
[rank3]:[E1123 12:00:00.123 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout: SeqNum=12, NumelIn=4
[Mon Nov 23 12:00:01 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=123, GPU has fallen off the bus.
[Nov 23 2026 12:00:01] SXid (PCI:0000:3b:00): 24007, Fatal, Link 12
slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-23T12:00:00 DUE TO TIME LIMIT ***
srun: error: n1: task 3: Exited with exit code 137
step 120/2000 | loss 2.31 | epoch 3
<12>Nov 23 12:00:00 n1 kernel: Out of memory: Killed process 4242 (python) total-vm:1kB
2026-11-23T12:00:00+23:59 RuntimeError: CUDA out of memory. Tried to allocate 20 GiB (GPU 0; 79 GiB total)
n1:12:34 [0] NCCL INFO comm 0x1 rank 3 nranks 8 cudaDev 3 busId 3b000 - Init COMPLETE
"""


@target("diagnosis", "any file has a diagnosis, perhaps none, or is named as unusable", lambda: (VERDICTS,))
def check_diagnosis(data: bytes) -> None:
    """As a person asks for it."""
    gathered = gather([as_file(data, "job.log")], LIMITS)
    explain(gathered, Lessons())
    hints(gathered)


@target("kernel-log", "any bytes are evidence, perhaps none, never an error", logs("nvlink*", "ecc*", "out_of_memory*"))
def check_kernel_log(data: bytes) -> None:
    """The recognition of the file too."""
    kernel_log.looks_like(data.decode("utf-8", "replace"))
    for seen in kernel_log.read(reader(data, "dmesg"), LIMITS):
        require_evidence([seen])
        kernel_log.code_of(seen)


@target("nccl-log", "any bytes are evidence and a version, perhaps none, never an error", logs("nccl*", "network*"))
def check_nccl_log(data: bytes) -> None:
    """The recognition of the file too."""
    nccl_log.looks_like(data.decode("utf-8", "replace"))
    require_evidence(nccl_log.read(reader(data, "nccl.log"), LIMITS))
    found = nccl_log.version(reader(data, "nccl.log"), LIMITS)
    require("a version", holds=found.replace(".", "").isdigit() or not found)


REPORTS = (
    b"==============NVSMI LOG==============\nGPU 00000000:07:00.0\n    ECC Errors\n        Volatile\n"
    b"            DRAM Uncorrectable            : 2\n",
    b'<?xml version="1.0" ?>\n<nvidia_smi_log><gpu id="0:07:00.0"><ecc_errors><volatile><dram_uncorrectable>2'
    b"</dram_uncorrectable></volatile></ecc_errors></gpu></nvidia_smi_log>",
    b"index, ecc.errors.uncorrected.volatile.total, temperature.gpu\n0, [GPU is lost], 31\n",
    b'[{"gpu": 0, "ecc": {"total_uncorrectable_count": 3}}]',
    b"+-------------------------+\n| NVIDIA-SMI 570 |\n| GPU  Name | Bus-Id | Volatile Uncorr. ECC |\n"
    b"| 0 A100 | 00000000:07:00.0 Off | 4 |\n",
    b'Errors for "n1"\n   GUID 0xb8 port 1: [LinkDownedCounter == 3]\n'
    b'   Link info: 1 1[ ] ==( 4X )==> 0xfc 5 7[ ] "leaf" ( )\n',
    b'# HELP DCGM_FI_DEV_XID_ERRORS x\nDCGM_FI_DEV_XID_ERRORS{gpu="3",Hostname="n1"} 79\n',
    b"link mlx5_0/1 state DOWN physical_state POLLING netdev ib0\n",
    b"JobID|State|ExitCode|NodeList\n9_2|FAILED|0:11|n[1-3]\n",
    b"JobId=9 JobName=a\n   JobState=TIMEOUT TimeLimit=1:00\n",
    b'{"jobs": [{"job_id": 9, "state": {"current": ["FAILED"]}, "exit_code": {"signal": {"id": 11}}, "steps": []}]}',
    b"REASON USER TIMESTAMP NODELIST\nNot responding slurm 2026-06-11T04:18:22 n[1-2]\n",
    b'Process 7: python\nPython v3.12\n\nThread 7 (idle): "MainThread"\n    wait (a.py:3)\n',
    b'[{"pid": 7, "thread_name": "MainThread", "owns_gil": 0, "frames": [{"name": "f", "file": "a", "line": 3}]}]',
)


@target("reports", "what tools and Slurm print has a diagnosis, perhaps none, or is named as unusable", lambda: REPORTS)
def check_reports(data: bytes) -> None:
    """Also beside another rank's stack."""
    gathered = gather([as_file(data, "rank1.txt"), as_file(REPORTS[-2], "rank2.txt")], LIMITS)
    explain(gathered, Lessons())
    require_evidence(gathered.evidence)


TOPOLOGY = b"""gpu-a:31:40 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1:2:0/IB ; OOB eth0:10.0.0.1<0>
gpu-a:31:77 [0] NCCL INFO Channel 00/02 :    0   1   2   3
gpu-a:31:77 [0] NCCL INFO Trees [0] 1/2/-1->0->-1 [1] 1/-1/-1->0->3
gpu-a:31:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[1] [send] via NET/IB/1(3)/GDRDMA
gpu-a:31:77 [0] NCCL INFO comm 0x1 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1a000 commId 0x5 - Init COMPLETE
gpu-a:31:99 [0] NCCL INFO Channel 01 : 0[1a000] -> 1[1c000] via P2P/IPC
"""


@target("nccl-topology", "any bytes are a graph whose paths can be drawn", lambda: iter((TOPOLOGY,)))
def check_topology(data: bytes) -> None:
    """No more connections are placed than there are, and every picture is XML."""
    graph = graph_of(topology_of(data.decode("utf-8", "replace").splitlines()))
    require("placed connections", holds=graph.placed <= graph.links)
    ET.fromstring(picture(routes(graph, 0, 1, HealthMarks())))  # noqa: S314 (drawn here)


def some_error_files() -> Iterator[bytes]:
    """With a call stack, and with a bare message."""
    stack = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    run()\nKeyError: 'x'\n"
    extra = {"py_callstack": stack, "timestamp": "1716000000"}
    yield json.dumps({"message": {"message": "KeyError: 'x'", "extraInfo": extra}}).encode()
    yield b'{"message": "Signal 9 (SIGKILL) received by PID 7", "errorCode": 1}'


@target("elastic", "any bytes are one piece of evidence or SourceError", some_error_files)
def check_elastic(data: bytes) -> None:
    """A file of one rank."""
    elastic.looks_like(data.decode("utf-8", "replace"))
    with suppress(SourceError):
        (seen,) = elastic.read(reader(data, "attempt_0/3/error.json"), LIMITS)
        require_evidence([seen])


@target("lines", "any bytes are numbered lines within the cap, and nothing of them is lost below it", logs("clean*"))
def check_lines(data: bytes) -> None:
    """Lines are those of `split`."""
    read = [line for _, line in lines(reader(data, "log"), LIMITS)]
    whole = [line[: LIMITS.line_bytes].rstrip(b"\r") for line in data.split(b"\n")]
    require("the same lines", holds=read == (whole if data.split(b"\n")[-1] else whole[:-1]))


@target("hostlist", "any text is at most 2^16 names", lambda: (b"gpu[01-03,7]", b"a,b[1-2]c,d[1-99999]", b"n[9-1]"))
def check_hostlist(data: bytes) -> None:
    """And an environment that holds it a placement."""
    text = data.decode("utf-8", "replace")
    names = list(hostlist(text))
    require("names", holds=len(names) <= 1 << 16)
    scheduler.placement(dict.fromkeys(("SLURM_JOB_NODELIST", "RANK", "CUDA_VISIBLE_DEVICES", "PET_NNODES"), text))
