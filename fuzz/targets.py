"""What is fuzzed: one target for each decoder of bytes that somebody else wrote, its invariant stated first.

A target is a function of bytes. It returns where its invariant holds and raises anything at all where it does not, so
that an exception that a decoder should not raise is a finding by itself. `Broken` is raised where a decoder returned
something that it should not have. Targets that need a file write it below one temporary folder in memory.
"""

import atexit
import io
import json
import pickle
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from crypto import bundle, messages, plan, signing
from crypto.bundle import SKETCH_BYTES, Catalogue, CatalogueEntry
from crypto.codec import decode, encode
from crypto.errors import BadSignature, DecodeError
from crypto.ids import Digest, EncodedElement, MaskPublicKey, RoundId, TenantId
from crypto.messages import Contribution, Directory, Member, Receipt, RegistrationRequest, TrusteeRecord, UnmaskRequest
from crypto.plan import Marginal, MaskTrustee, Mechanism, Plan, PlanDimension
from crypto.ristretto import IDENTITY, Element, Scalar, mul, mul_base
from crypto.signing import SigningKey, open_signed, open_signed_by
from crypto.voprf import Proof
from simulation import scenario
from tenant_client import catalogue, policy, templates
from tenant_client.live import progress
from tenant_client.sources import (
    closed_pickle,
    elastic,
    execution_trace,
    flight_recorder,
    job_log,
    kernel_log,
    kineto,
    nccl_log,
    scheduler,
)
from tenant_client.sources.evidence import Evidence
from tenant_client.sources.reading import CappedReader, Limits, SourceError, lines, open_inputs
from tenant_client.sources.trace import Trace

LIMITS = Limits(total_bytes=1 << 20, archive_members=64, records=10_000)
REPOSITORY = Path(__file__).resolve().parents[1]
KEY = SigningKey(bytes(range(32)))


class Broken(Exception):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Target:
    """A decoder under test; `seeds` are inputs to start from."""

    name: str
    invariant: str
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]


TARGETS: dict[str, Target] = {}


def target(
    name: str, invariant: str, seeds: Callable[[], Iterable[bytes]]
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Enters a function as the target `name`."""

    def enter(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
        TARGETS[name] = Target(name, invariant, check, seeds)
        return check

    return enter


def require(invariant: str, *, holds: bool) -> None:
    """Broken unless it holds."""
    if not holds:
        raise Broken(invariant)


# ---- the wire ------------------------------------------------------------------------------------------------------

MESSAGES: tuple[Any, ...] = tuple(
    dict.fromkeys(
        kind
        for module in (messages, plan, bundle, signing)
        for kind in vars(module).values()
        if isinstance(kind, type) and "LABEL" in vars(kind)
    )
)


def a_plan() -> Plan:
    """A small plan."""
    dimensions = PlanDimension("workload", ("a", "b"), (7, 8)), PlanDimension("band", ("0",), ())
    marginal = Marginal("pairs", ("workload", "band"), (), 3.0)
    trustees = (MaskTrustee(1, MaskPublicKey(bytes(32))),)
    start = RoundId(bytes(16)), 0, 0, 168, dimensions, (0.0, 9.0), (marginal,), 1, Mechanism.DISCRETE_GAUSSIAN
    return Plan(*start, 1.0, 1e-8, 5, 10, 8, trustees)


def some_messages() -> list[Any]:
    """A few valid messages of different shapes."""
    member = Member(KEY.public, MaskPublicKey(bytes(32)))
    trustee = TrusteeRecord(1, EncodedElement(bytes(32)), MaskPublicKey(bytes(32)))
    said = Contribution(member.tenant, RoundId(bytes(16)), Digest(bytes(32)), bytes(16))
    return [
        a_plan(),
        said,
        Directory(KEY.public, 1, EncodedElement(bytes(32)), (trustee,), (member,)),
        UnmaskRequest(KEY.sign(a_plan()), (TenantId(bytes(16)), member.tenant)),
        RegistrationRequest(0, 0, 168),
        Receipt(Digest(bytes(32))),
        Catalogue((CatalogueEntry("resnet", bytes(SKETCH_BYTES)),)),
        bundle.Bundle(1, 0, 168, (), (), (), bundle.Statement(1.0, 0.0, "discrete_laplace", 1, 3)),
    ]


def encoded_messages() -> Iterator[bytes]:
    """Those, and for every kind of message its label with nothing behind it."""
    yield from map(encode, some_messages())
    for kind in MESSAGES:
        yield bytes([0x91 + len(fields(kind))]) + b"\xd9" + bytes([len(kind.LABEL)]) + kind.LABEL.encode()


@target(
    "message", "any bytes are a valid message of one kind, whose encoding they are, or DecodeError", encoded_messages
)
def check_message(data: bytes) -> None:
    """Every kind of the wire is asked: at most one takes the bytes."""
    taken = []
    for kind in MESSAGES:
        with suppress(DecodeError):
            message = decode(kind, data)
            require("what decodes encodes to the same bytes", holds=encode(message) == data and type(message) is kind)
            taken.append(kind)
    require("bytes are one message", holds=len(taken) <= 1)


@target(
    "signed",
    "any bytes are a message that the pinned key signed, or DecodeError, or BadSignature",
    lambda: map(KEY.sign, some_messages()),
)
def check_signed(data: bytes) -> None:
    """As a tenant and as the provider opens it."""
    member = Member(KEY.public, MaskPublicKey(bytes(32)))
    with suppress(DecodeError, BadSignature):
        require("a plan", holds=type(open_signed(Plan, data, KEY.public)) is Plan)
    with suppress(DecodeError, BadSignature):
        said = open_signed_by(
            Contribution, data, lambda message: {member.tenant: KEY.public}.get(message.tenant, KEY.public)
        )
        require("a contribution", holds=type(said) is Contribution)


def scalars_and_elements() -> Iterator[bytes]:
    """Valid encodings and their neighbours."""
    three = Scalar.from_int(3)
    yield from (mul_base(three).encoded, three.encoded, three.encoded * 2, bytes(32), b"\xff" * 32, b"\xff" * 64)


@target(
    "ristretto",
    "any bytes are an element, a scalar or a proof that encodes to them, or DecodeError",
    scalars_and_elements,
)
def check_ristretto(data: bytes) -> None:
    """Arithmetic on what decodes is total."""
    with suppress(DecodeError):
        element = Element.decode(data)
        require("an element", holds=element.encoded == data and element != IDENTITY)
        Element.decode(mul(Scalar.from_int(3), element + element).encoded)
    with suppress(DecodeError):
        scalar = Scalar.decode(data)
        require("a scalar", holds=scalar.encoded == data and mul_base(scalar).encoded is not None)
    with suppress(DecodeError):
        require("a proof", holds=Proof.decode(data).encode() == data)


# ---- traces and dumps ----------------------------------------------------------------------------------------------


def reader(data: bytes, name: str) -> CappedReader:
    """A file of that name."""
    return CappedReader(io.BytesIO(data), name, LIMITS.total_bytes)


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


# ---- logs ----------------------------------------------------------------------------------------------------------


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


@target("kernel-log", "any bytes are evidence, perhaps none, never an error", logs("nvlink*", "ecc*", "out_of_memory*"))
def check_kernel_log(data: bytes) -> None:
    """The recognition of the file too."""
    kernel_log.looks_like(data.decode("utf-8", "replace"))
    for seen in kernel_log.read(reader(data, "dmesg"), LIMITS):
        require_evidence([seen])
        kernel_log.code_of(seen)


@target("nccl-log", "any bytes are evidence and versions, perhaps none, never an error", logs("nccl*", "network*"))
def check_nccl_log(data: bytes) -> None:
    """The recognition of the file too."""
    nccl_log.looks_like(data.decode("utf-8", "replace"))
    require_evidence(nccl_log.read(reader(data, "nccl.log"), LIMITS))
    require("versions", holds=nccl_log.versions(reader(data, "nccl.log"), LIMITS).nranks >= 0)


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
    names = list(scheduler.hostlist(text))
    require("names", holds=len(names) <= 1 << 16)
    scheduler.placement(dict.fromkeys(("SLURM_JOB_NODELIST", "RANK", "CUDA_VISIBLE_DEVICES", "PET_NNODES"), text))


# ---- files of the owner and of the operator ------------------------------------------------------------------------


@cache
def folder() -> Path:
    """One temporary folder, in memory where there is such a file system; gone at the end of the process."""
    memory = Path("/dev/shm")  # noqa: S108  # only where it exists, and mkdtemp makes a name of its own there
    made = Path(tempfile.mkdtemp(prefix="pharoah-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def as_file(data: bytes, name: str) -> Path:
    """A file that holds the data."""
    path = folder() / name
    path.write_bytes(data)
    return path


@target(
    "catalogue",
    "any file is entries or CatalogueError",
    lambda: [encode(Catalogue((CatalogueEntry("resnet", bytes(SKETCH_BYTES)),))), encode(Catalogue(()))],
)
def check_catalogue(data: bytes) -> None:
    """As a provider publishes it."""
    with suppress(catalogue.CatalogueError):
        require(
            "entries",
            holds=all(len(one.sketch) == SKETCH_BYTES for one in catalogue.read_catalogue(as_file(data, "c"))),
        )


@target(
    "policy",
    "any file is a Policy or PolicyError",
    lambda: [b'epsilon_per_job_week = 1.0\ndelta = 1e-8\nowners_minimum = 5\ndimensions = ["band", "reason"]\n'],
)
def check_policy(data: bytes) -> None:
    """No limit is lifted by a NaN."""
    with suppress(policy.PolicyError):
        read = policy.load_policy(as_file(data, "policy.toml"))
        require("a limit", holds=0 <= read.epsilon_per_job_week < float("inf") and read.owners_minimum >= 0)


@target(
    "scenario",
    "any file is a Scenario or ScenarioError",
    lambda: (path.read_bytes() for path in sorted((REPOSITORY / "simulation" / "scenarios").glob("*.toml"))),
)
def check_scenario(data: bytes) -> None:
    """Read by path."""
    with suppress(scenario.ScenarioError):
        require("a scenario", holds=scenario.load(as_file(data, "own.toml")).weeks >= 1)


@target(
    "lessons",
    "any file is Lessons or LessonsError",
    lambda: [b'{"version": 1, "lessons": {"lost its lease after <*> s": "nvlink_error"}}'],
)
def check_lessons(data: bytes) -> None:
    """What is read can be asked and saved."""
    with suppress(templates.LessonsError):
        read = templates.load_lessons(as_file(data, "lessons.json"))
        read.reason_of("worker 3 lost its lease after 20 s")
        templates.save_lessons(read, folder() / "saved.json")
        require("the same lessons", holds=templates.load_lessons(folder() / "saved.json") == read)


@target(
    "progress",
    "any bytes are a Progress or None",
    lambda: [progress.encode(progress.Progress(3, 4711, 120, 1.7e9, "train", 2.25, 0))],
)
def check_progress(data: bytes) -> None:
    """With the checksum that came, and with the right one."""
    body = data[: progress.SIZE - 4]
    for record in (data, body + zlib.crc32(body).to_bytes(4, "little")):
        read = progress.decode(record)
        require("a progress", holds=read is None or (read.rank >= 0 and read.phase in progress.PHASES))
