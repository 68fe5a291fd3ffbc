"""How fast and in how little memory a profiler trace is read; one JSON object per trace on stdout, progress on stderr.

    python benchmarks/traces.py             a made-up trace of 200 MB, and the largest real one where there is any
    PHAROAH_PEER_PYTHON=…/bin/python …      the same by HolisticTraceAnalysis in that interpreter, in the same run

Megabytes are those of unpacked JSON, 10^6 bytes each. Every reading happens in a process of its own; its time begins
after the imports, its memory is that of the whole process. The peer is looked for in this interpreter otherwise.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data" / "kineto"
MEGABYTE = 1_000_000
SYNTHETIC_BYTES = 200 * MEGABYTE
LEAST_MB_PER_SECOND, MOST_MEMORY_OF_FILE = 150, 3
Figure = dict[str, Any]

# ---- a made-up trace -----------------------------------------------------------------------------------------------

# A call on the CPU, the Python frame around it, its launch, the arrow from launch to kernel and the kernel. Shapes,
# numbers of arguments and lengths of names are those of a decoder traced with record_shapes and with_stack.
CALL = """  {{
    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 4711, "tid": 4711,
    "ts": {at}.014, "dur": 21.337,
    "args": {{
      "External id": {number},"Record function id": 0, "Concrete Inputs": ["", "", "", "1", "{number}"], \
"Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"], \
"Input Strides": [[1], [{width}, 1], [1, {width}], [], []], \
"Input Dims": [[{out}], [4096, {width}], [{width}, {out}], [], []], "Ev Idx": {number}
    }}
  }},
  {{
    "ph": "X", "cat": "python_function", "name": "torch/nn/modules/linear.py(125): forward", "pid": 4711, "tid": 4711,
    "ts": {at}.002, "dur": 25.8,
    "args": {{
      "Python parent id": {number}, "Python id": {number}, "Ev Idx": {number}
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4711, "tid": 4711,
    "ts": {at}.5, "dur": 4.1,
    "args": {{
      "External id": {number}, "cbid": 211, "correlation": {number}
    }}
  }},
  {{
    "ph": "s", "id": {number}, "pid": 4711, "tid": 4711, "ts": {at}.5,
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7,
    "ts": {at}.9, "dur": 18.2,
    "args": {{
      "External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {number}, \
"registers per thread": 168, "shared memory": 204800, "blocks per SM": 1.939394, "warps per SM": 23.272728, \
"grid": [2, 128, 1], "block": [384, 1, 1], "est. achieved occupancy %": 18
    }}
  }},
"""
MARK = """  {{
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}", "pid": 4711, "tid": 4711,
    "ts": {at}, "dur": 149999.5,
    "args": {{ "External id": {number} }}
  }},
"""
OPERATORS = (
    "aten::linear",
    "aten::addmm",
    "aten::layer_norm",
    "aten::gelu",
    "aten::add",
    "aten::_softmax",
    "aten::bmm",
)
KERNELS = (
    "nvjet_tst_256x128_64x4_2x1_v_bz_coopB_TNT",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3>>",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>>",
)
CALLS_OF_A_STEP, FIRST_TIME = 5_000, 1_700_000_000_000_000


def synthetic(path: Path) -> Path:
    """Writes the same trace every time, a little over SYNTHETIC_BYTES long."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],\n')
        file.write('  "cuda_runtime_version": 12040,\n  "distributedInfo": {"rank": 0, "world_size": 8},\n')
        file.write('  "traceEvents": [\n')
        number = 0
        while file.tell() < SYNTHETIC_BYTES:
            file.write(MARK.format(step=number // CALLS_OF_A_STEP, at=FIRST_TIME + 30 * number, number=number))
            file.writelines(_call(number + place) for place in range(CALLS_OF_A_STEP))
            number += CALLS_OF_A_STEP
        file.write('  {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 1}\n  ],\n')
        file.write('  "traceName": "made_up.json"\n}\n')
    return path


def _call(number: int) -> str:
    width = 1024 << number % 3
    return CALL.format(
        number=number,
        at=FIRST_TIME + 30 * number,
        name=OPERATORS[number % len(OPERATORS)],
        kernel=KERNELS[number % len(KERNELS)],
        width=width,
        out=4 * width,
    )


# ---- one reading, in a process of its own --------------------------------------------------------------------------


def _ours() -> Callable[[Path], int]:
    sys.path.insert(0, str(ROOT))
    from tenant_client.workload.describe import read_traces

    return lambda path: sum(trace.calls.total() for trace in read_traces([path]))


def _peer() -> Callable[[Path], int]:
    import logging

    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    logging.disable(logging.CRITICAL)
    return lambda path: len(parse_trace_dataframe(str(path), ParserConfig.get_default_cfg())[1])


# Each gives what it found: calls of operators by ours, rows of its table by the peer, who keeps other events too.
READERS = {"ours": _ours, "peer": _peer}


def reading(reader: str, path: Path) -> Figure:
    """Reads once: seconds on the clock and of the processor, and the most memory that the process ever held."""
    read = READERS[reader]()
    before, began, worked = _peak_bytes(), time.perf_counter(), time.process_time()
    found = read(path)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - worked,
        "peak_bytes": _peak_bytes(),
        "peak_bytes_before": before,
        "found": found,
    }


def _peak_bytes() -> int:
    """`VmHWM`; getrusage would count what the parent process held before this one began."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


# ---- the comparison ------------------------------------------------------------------------------------------------


def compared(path: Path, repeats: int) -> Figure:
    """Both readers on one file, each in fresh processes; of several readings the fastest and the largest."""
    size = _unpacked_bytes(path)
    ours = _measured("ours", sys.executable, path, size, repeats)
    python = _peer_python()
    peer = _measured("peer", python, path, size, 1) if python else None
    return {
        "figure": path.name,
        "megabytes": size / MEGABYTE,
        "ours": ours,
        "peer": peer,
        "times_faster": peer and ours["mb_per_second"] / peer["mb_per_second"],
        "fast_enough": ours["mb_per_second"] >= LEAST_MB_PER_SECOND,
        "small_enough": ours["memory_of_file"] <= MOST_MEMORY_OF_FILE,
    }


def _unpacked_bytes(path: Path) -> int:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return sum(map(len, iter(lambda: file.read(MEGABYTE), b"")))


def _measured(reader: str, python: str, path: Path, size: int, repeats: int) -> Figure:
    sys.stderr.write(f"{path.name} by {reader} …\n")
    command = [python, str(Path(__file__).resolve()), "--read", reader, str(path)]
    found = [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(repeats)]
    best, peak = min(found, key=lambda one: one["seconds"]), max(one["peak_bytes"] for one in found)
    return {
        "mb_per_second": size / MEGABYTE / best["seconds"],
        "mb_per_cpu_second": size / MEGABYTE / best["cpu_seconds"],
        "peak_mb": peak / MEGABYTE,
        "peak_mb_before": best["peak_bytes_before"] / MEGABYTE,
        "memory_of_file": peak / size,
        "found": best["found"],
    }


def _peer_python() -> str | None:
    """An interpreter that has HolisticTraceAnalysis, None where nobody named or installed one."""
    python = os.environ.get("PHAROAH_PEER_PYTHON") or sys.executable
    found = subprocess.run([python, "-c", "import hta.common.trace_parser"], capture_output=True, check=False)
    if found.returncode:
        sys.stderr.write(f"no HolisticTraceAnalysis in {python}: name an interpreter in PHAROAH_PEER_PYTHON\n")
    return None if found.returncode else python


def measure() -> Iterator[Figure]:
    """The made-up trace, and the largest real one."""
    with tempfile.TemporaryDirectory() as folder:
        sys.stderr.write(f"writing {SYNTHETIC_BYTES // MEGABYTE} MB …\n")
        yield compared(synthetic(Path(folder) / "made_up.json"), repeats=5)
    real = sorted(DATA.glob("*.json.gz"), key=_unpacked_bytes)
    if real:
        yield compared(real[-1], repeats=5)
    else:
        sys.stderr.write("the largest real trace: left out: ../shared/data/kineto is missing\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        sys.stdout.write(json.dumps(reading(sys.argv[2], Path(sys.argv[3]))) + "\n")
    elif sys.argv[1:]:
        sys.exit("traces.py: error: it takes no arguments\nhint: python benchmarks/traces.py")
    else:
        from benchmarks.figures import show  # not above: the peer's interpreter runs this file too

        show(measure())
