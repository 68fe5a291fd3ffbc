"""Traces, flight recorder dumps, and the archives that they come in."""

import io
import json
import pickle
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from federation.base.reading import SourceError, open_inputs
from fuzz.targets.inputs import LIMITS, as_file, reader
from fuzz.targets.target import require, target
from tenant_client.doctor.diagnosis.collectives.ras import analyse_ras, ras_evidence
from tenant_client.doctor.diagnosis.stragglers.waits import waits
from tenant_client.doctor.sources import (
    closed_pickle,
    execution_trace,
    flight_recorder,
    kineto,
    nccl_inspector,
    nccl_ras,
)
from tenant_client.doctor.sources.trace import Trace


def some_kineto() -> Iterator[bytes]:
    """An operator, a collective, a kernel, a step; as an object and as a bare list."""
    shapes = {"Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"]}
    said = {"Collective name": "allreduce", "In msg nelems": 6, "Group size": 2, "dtype": "Float"}
    events: list[Any] = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.5, "dur": "2", "args": shapes},
        {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 2, "args": said},
        {"ph": "X", "cat": "kernel", "name": "sm90_gemm", "ts": 3, "dur": 1, "args": {}},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 9},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "ts": 4},
        ["not", "an event"],
    ]
    beside = {"distributedInfo": {"rank": 0, "world_size": 2, "nccl_version": "2.21"}, "cuda_runtime_version": 12040}
    yield json.dumps({"schemaVersion": 1, "traceEvents": events, **beside}).encode()
    yield json.dumps({**beside, "traceEvents": events, "pharoah_versions": {"torch": "2.4"}}).encode()
    yield json.dumps(events).encode()


@target("kineto", "any bytes are a Trace or SourceError", some_kineto)
def check_kineto(data: bytes) -> None:
    """Read as a whole."""
    with suppress(SourceError):
        require("a trace", holds=isinstance(kineto.read(reader(data, "rank0"), LIMITS), Trace))


def some_execution_traces() -> Iterator[bytes]:
    """Both schemas."""
    old = {"name": "aten::mm", "id": 2, "input_shapes": [[2, 3], []], "input_types": ["Tensor(float)", "Int"]}
    new = {
        "name": "nccl:all_reduce",
        "id": 3,
        "inputs": {"shapes": [[[2], [3]]], "types": ["GenericList[Tensor(half)]"]},
    }
    step = {"name": "Optimizer.step#AdamW", "id": 4, "inputs": [1, "x"]}
    yield json.dumps({"schema": "1.0.1", "pid": 1, "nodes": [old, step]}).encode()
    yield json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [new, step]}).encode()


@target("execution-trace", "any bytes are a Trace or SourceError", some_execution_traces)
def check_execution_trace(data: bytes) -> None:
    """Read as a whole."""
    with suppress(SourceError):
        require("a trace", holds=isinstance(execution_trace.read(reader(data, "rank0"), LIMITS), Trace))


def some_dumps() -> Iterator[dict[str, Any]]:
    """One record, and one of Gloo's sends."""
    entry = {
        "record_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce",
        "state": "started",
        "pg_id": 0,
        "input_sizes": [[2, 3]],
        "output_sizes": [[2, 3]],
        "input_dtypes": ["Float"],
        "frames": [{"name": "step", "filename": "train.py", "line": 88}],
    }
    send = {**entry, "record_id": 1, "profiling_name": "gloo:send 0->1", "state": "scheduled", "retired": True}
    told = {"last_enqueued_collective": "41", "last_completed_collective": 40}
    configured = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    yield {"version": "2.10", "pg_config": configured, "pg_status": {"0": told}, "entries": [entry, send]}
    yield {"version": "2.1", "rank": 3, "entries": []}


def dumped() -> Iterator[bytes]:
    """As JSON and as every kind of pickle that the standard library writes without and with frames."""
    for dump in some_dumps():
        yield json.dumps(dump).encode()
        yield from (pickle.dumps(dump, protocol) for protocol in range(2, 6))


@target("flight-recorder", "any bytes, JSON or pickle, are a Dump or SourceError", dumped)
def check_flight_recorder(data: bytes) -> None:
    """Under a name that gives the rank."""
    with suppress(SourceError):
        read = flight_recorder.read_dump(reader(data, "dump_0"), LIMITS)
        require("a dump", holds=isinstance(read, flight_recorder.Dump) and read.rank >= 0)


def some_answers() -> Iterator[bytes]:
    """One as NCCL documents it, and two in one file."""
    members = {0: {"AllReduce": 5, "Broadcast": 1}, 1: {"AllReduce": 4, "Broadcast": 1}}
    comm = {
        "hash": "0x1",
        "ranks": [_answering(rank, counts) for rank, counts in members.items()],
        "missing_ranks": [{**_answering(2, {}), "status": {"unresponsive": True, "considered_dead": False}}],
    }
    for after_s in (0, 90):
        stamp = f"2025-12-19 13:{after_s // 60:02}:{after_s % 60:02}"
        yield json.dumps({"nccl_version": "2.30.7", "timestamp": stamp, "communicators": [comm]}).encode()
    yield b"\n".join(one for one in islice(some_answers(), 2))


def _answering(rank: int, counts: dict[str, int]) -> dict[str, Any]:
    where = {"host": "gpu-a", "pid": 7 + rank, "cuda_dev": rank, "nvml_dev": rank}
    status = {"init_state": 0, "async_error": 6, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {"rank": rank, **where, "status": status, "collective_counts": counts}


@target("nccl-ras", "any bytes are answers that can be judged, or SourceError", some_answers)
def check_ras(data: bytes) -> None:
    """What can be read can be judged."""
    with suppress(SourceError):
        found = nccl_ras.read(reader(data, "ras.json"), LIMITS)
        if found:
            require("evidence", holds=isinstance(ras_evidence(analyse_ras(found)), list))


def some_inspector_logs() -> Iterator[bytes]:
    """Two ranks, and a half line at the end."""
    lines = []
    for number in range(40):
        header = {"id": "0x1", "comm_name": "unknown", "rank": number % 2, "n_ranks": 2, "nnodes": 1}
        told = {"coll": "AllReduce", "coll_sn": number // 2, "coll_msg_size_bytes": 1024, "coll_algobw_gbs": "nan"}
        record = {"header": header, "metadata": {"hostname": "gpu-a", "pid": 7 + number % 2}}
        lines.append(json.dumps({**record, "coll_perf": {**told, "coll_exec_time_us": 61 + number}}))
    yield "\n".join(lines).encode()
    yield "\n".join(lines)[:-9].encode()


@target("nccl-inspector", "any bytes are records that can be judged, or SourceError", some_inspector_logs)
def check_inspector(data: bytes) -> None:
    """What can be read can be judged."""
    with suppress(SourceError):
        found = waits(nccl_inspector.read(reader(data, "gpu-a-pid7.log"), LIMITS))
        require("finite numbers", holds=found.collectives >= 0 and found.left_out >= 0)


@target(
    "pickle",
    "any bytes are None, booleans, numbers, strings, lists, tuples and dicts of them, or SourceError; what the fast way"
    " takes, the slow way reads alike",
    lambda: (data for data in dumped() if data[:1] == b"\x80"),
)
def check_pickle(data: bytes) -> None:
    """The slow way takes some that are malformed (marks that nothing closes), which the fast way leaves out."""
    try:
        loaded = closed_pickle.load(data, "dump_0")
    except SourceError:
        return
    require("plain data", holds=is_plain(loaded))
    if closed_pickle.is_of_pytorch(data):  # as text, since NaN is not equal to itself
        require("both ways agree", holds=repr(loaded) == repr(closed_pickle.build(data, "dump_0")))


def is_plain(value: object) -> bool:
    """Whether nothing but data is in it, however deep."""
    todo, seen = [value], set[int]()
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            todo.extend([*item.keys(), *item.values()])
        elif isinstance(item, list | tuple):
            todo.extend(item)
        elif not (item is None or type(item) in (bool, int, float, str)):
            return False
    return True


def some_archives() -> Iterator[bytes]:
    """A tar of two members, plain and gzipped, and a lone gzip."""
    import gzip
    import tarfile

    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, content in (("rank_0", b"{}"), ("rank_1.gz", gzip.compress(b"x" * 100, mtime=0))):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    yield held.getvalue()
    yield gzip.compress(held.getvalue(), mtime=0)
    yield gzip.compress(b"text", mtime=0)


@target("archive", "any file is unpacked within the caps, or SourceError", some_archives)
def check_archive(data: bytes) -> None:
    """As a tar, and as a file that may be gzipped."""
    for name in ("dumps.tar", "dump_0"):
        with suppress(SourceError), open_inputs(as_file(data, name), LIMITS) as readers:
            for inner in readers:
                require("no more than the cap", holds=len(inner.read()) <= LIMITS.total_bytes)
