"""Output of NCCL's RAS and Inspector, assembled from the source of NCCL 2.30.7: none was recorded here.

RAS: `jsonWriteHeader` to `jsonWriteFooter` in `src/ras/client_support.cc`, field for field. `DOCUMENTED` is the example
of `docs/userguide/source/troubleshooting/ras.rst`. Inspector: `plugins/profiler/inspector/inspector_json.cc`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_START = datetime(2025, 12, 19, 13, 6, 53, tzinfo=UTC)

DOCUMENTED = """\
{
  "nccl_version": "2.29.1",
  "cuda_runtime_version": 13000,
  "cuda_driver_version": 13000,
  "timestamp": "2025-12-19 13:06:53",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0xae94423cfbb2ef4a",
      "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
      "size": 2,
      "ranks_count": 1,
      "missing_ranks_count": 1,
      "ranks": [
        {
          "rank": 0,
          "host": "172.16.64.245",
          "pid": 1524344,
          "cuda_dev": 0,
          "nvml_dev": 0,
          "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": false
          },
          "collective_counts": {
            "Broadcast": 0,
            "Reduce": 0,
            "AllGather": 0,
            "ReduceScatter": 0,
            "AllReduce": 0
          }
        }
      ],
      "missing_ranks": [
        {
          "rank": 1,
          "host": "172.16.64.245",
          "pid": 1524345,
          "cuda_dev": 1,
          "nvml_dev": 1,
          "status": {
            "unresponsive": true,
            "considered_dead": false
          }
        }
      ]
    }
  ],
  "ras": {
    "collection_time_sec": 0.000,
    "timeouts_count": 0
  }
}
"""


def place(number: int) -> dict[str, Any]:
    """GPU `number` of a job with eight processes on each host."""
    host, device = f"172.16.64.{210 + number // 8}", number % 8
    return {"host": host, "pid": 483_072 + number, "cuda_dev": device, "nvml_dev": device}


def communicator(
    counts: Mapping[int, Mapping[str, int]],
    silent: Iterable[int] = (),
    name: str = "0x27a079b828ff1a75",
    status: Mapping[int, Mapping[str, Any]] | None = None,
    *,
    dead: bool = False,
) -> dict[str, Any]:
    """A communicator of these GPUs, in the order of its ranks, of which the `silent` ones do not answer."""
    fine = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    gone = sorted(silent)
    position = {number: at for at, number in enumerate(sorted({*counts, *gone}))}
    ranks = [
        {
            "rank": position[number],
            **place(number),
            "status": {**fine, **(status or {}).get(number, {})},
            "collective_counts": {kind: launched.get(kind, 0) for kind in KINDS},
        }
        for number, launched in sorted(counts.items())
    ]
    absence = {"unresponsive": True, "considered_dead": dead}
    missing = [{"rank": position[number], **place(number), "status": absence} for number in gone]
    sizes = {"size": len(position), "ranks_count": len(ranks), "missing_ranks_count": len(missing)}
    return {"hash": name, "secondary_hash": f"{name}:0x1", **sizes, "ranks": ranks, "missing_ranks": missing}


def answer(communicators: Sequence[Mapping[str, Any]], after_s: float = 0.0) -> str:
    """What `ncclras -f json` prints."""
    told = {
        "nccl_version": "2.30.7",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": (_START + timedelta(seconds=after_s)).strftime("%Y-%m-%d %H:%M:%S"),
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
    }
    return json.dumps(told, indent=2) + "\n"


def inspected(
    times_us: Sequence[Sequence[int]], name: str = "0x7f8c496ae9f661", members: Sequence[int] | None = None
) -> dict[str, str]:
    """Inspector's logs of a communicator, by file name: one a process, a line for each collective."""
    logs: dict[str, str] = {}
    for rank, of_rank in enumerate(zip(*times_us, strict=True)):
        where = place((members or range(len(times_us[0])))[rank])
        lines = [_line(name, rank, len(times_us[0]), where, sn, time_us) for sn, time_us in enumerate(of_rank)]
        logs[f"{where['host']}-pid{where['pid']}.log"] = "".join(lines)
    return logs


def _line(name: str, rank: int, n_ranks: int, where: Mapping[str, Any], sn: int, time_us: int) -> str:
    size, time_s = 1 << 26, time_us / 1e6
    bandwidth = size / 1e9 / time_s if time_s else 0.0
    told = {
        "header": {"id": name, "comm_name": "unknown", "rank": rank, "n_ranks": n_ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1748030377748202,
            "hostname": where["host"],
            "pid": where["pid"],
        },
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": sn,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": time_us,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": round(bandwidth, 6),
            "coll_busbw_gbs": round(bandwidth * 2 * (n_ranks - 1) / n_ranks, 6),
        },
    }
    return json.dumps(told, separators=(",", ":")) + "\n"
