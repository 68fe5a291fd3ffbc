"""Kineto traces, as torch.profiler exports them: Chrome's trace format, one file per rank.

The file is decoded in pieces that end where an event ends, so that memory does not grow with it. Each event is decoded
against a type that names the few fields that are read; the rest is skipped and not built. Files of 2021 to 2026 are
understood: categories in either case, events that are lists instead of objects, `distributedInfo` missing, null or
without a world size, times as integers, floats or text, shapes absent, a bare list of events. So is `trace_view.json`
of Ascend's PyTorch profiler, whose shapes and types are one text (`2048,4096;4096,6144`) and whose collectives and
kernels have no category: collectives are named `hcom_allReduce__381_0_1` (hash of the group, number, iteration), and a
kernel says its `Task Type`.

Not read: values of arguments (`Concrete Inputs`), call stacks but for PyTorch's DataParallel, module names, names of
hosts and users.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, SourceError
from tenant_client.doctor.sources.trace import (
    Call,
    Timeline,
    Trace,
    arguments,
    direct_kind,
    item_bytes,
    strings,
    tensor_bytes,
)

_PIECE, _LONGEST = 1 << 18, 1 << 28  # a piece and what is made of it fit into a cache of the processor
_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_LOOK_BACK = (1 << 12, 1 << 16, 1 << 22)  # how far from a piece's end its last whole event is looked for
_NOTHING = msgspec.Raw(b"{}")
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # text is checked only where it is read
_GRAPH_LAUNCHES = frozenset(("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"))
_GRAPH_CAPTURES = frozenset(
    (
        "cudaStreamBeginCapture",
        "cuStreamBeginCapture_v2",
        "hipStreamBeginCapture",
        "cudaStreamEndCapture",
        "hipStreamEndCapture",
    )
)
_HCCL = re.compile(r"hcom_([a-z]+)_{1,2}\d+(?:_\d+)+$", re.IGNORECASE)
_ON_DEVICE = re.compile(rb'"device"\s*:\s*(\d{1,4})\b')
# DataParallel of one process: its own range (since PyTorch 1.8), else the functions that it is made of, or its files.
_REPLICATES = re.compile(r"DataParallel\.forward$|.*\btorch/nn/parallel/(?:data_parallel|parallel_apply)\.py\b")
_SPLITS = {
    "scatter": "scatter",
    "broadcast": "copy",
    "replicate": "copy",
    "gather": "gather",
    "parallel_apply": "apply",
}
_OPERATORS, _KERNELS = ("cpu_op", "operator"), ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")


class _Event(msgspec.Struct):
    """The fields of an event that are read, whatever its kind."""

    cat: str | None = None
    name: str | None = None
    ts: float | str | None = None
    dur: float | str | None = None
    args: msgspec.Raw = _NOTHING


class _Shapes(msgspec.Struct):
    """What is read of an operator's arguments."""

    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    dims_2021: msgspec.Raw = msgspec.field(name="Input dims", default=_NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)


class _Communication(msgspec.Struct):
    """What is read of a collective's arguments."""

    kind: str = msgspec.field(name="Collective name", default="")
    elements: int = msgspec.field(name="In msg nelems", default=0)
    dtype: str = ""
    group_size: int = msgspec.field(name="Group size", default=0)
    group: str = msgspec.field(name="Process Group Description", default="")


class _Device(msgspec.Struct):
    """What is read of the arguments of Ascend's kernels and collectives."""

    task: str = msgspec.field(name="Task Type", default="")
    count: int = 0
    dtype: str = msgspec.field(name="data_type", default="")


class _Beside(msgspec.Struct):
    """What a trace says beside its events; all of it may be missing or something else."""

    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    metadata: Any = None
    cuda: Any = msgspec.field(name="cuda_runtime_version", default=None)
    hip: Any = msgspec.field(name="hip_runtime_version", default=None)
    pharoah_versions: Any = None
    pharoah_software: Any = None


class _Tail(_Beside):
    """The end of a trace: its last events and what follows them."""

    events: msgspec.Raw = msgspec.field(name="traceEvents", default=msgspec.Raw(b"[]"))


_events = msgspec.json.Decoder(list[_Event])
_raw_events = msgspec.json.Decoder(list[msgspec.Raw])
_event = msgspec.json.Decoder(_Event)
_shapes = msgspec.json.Decoder(_Shapes)
_communication = msgspec.json.Decoder(_Communication)
_device = msgspec.json.Decoder(_Device)
_tail = msgspec.json.Decoder(_Tail)
_beside = msgspec.json.Decoder(_Beside)


def recognises(head: bytes) -> bool:
    """Whether a file that begins so may be a Kineto trace."""
    return b'"traceEvents"' in head or b'"schemaVersion"' in head or b'"ph"' in head


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Trace:
    """The trace in `reader`; SourceError where it is not one, is cut off, or goes beyond a cap."""
    builder, count = _Builder(Trace(reader.file)), 0
    for events, beside in _pieces(reader):
        count += len(events)
        if count > limits.records:
            raise SourceError(reader.file, reader.position, f"more than {limits.records} events")
        for event in events:
            builder.add(event)
        if beside is not None:
            builder.describe(beside)
    return builder.finish()


def _pieces(reader: CappedReader) -> Iterator[tuple[list[_Event], _Beside | None]]:
    """The events of a trace, some megabytes at a time, and what is said beside them."""
    head, buffer = _head(reader)
    yield [], head
    while block := reader.read(max(_PIECE, len(buffer))):  # doubled where nothing ends: time grows with length alone
        buffer += block
        events, end = _whole_events(buffer)
        buffer = buffer[end:]
        if len(buffer) > _LONGEST:
            raise SourceError(reader.file, reader.position, f"no event ended within {_LONGEST} bytes")
        yield events, None
    try:
        yield _last_events(buffer, is_object=head is not None)
    except _BROKEN as error:
        at = reader.position - len(buffer)
        raise SourceError(reader.file, at, f"not JSON from here, or cut off: {error}") from error


def _head(reader: CappedReader) -> tuple[_Beside | None, bytes]:
    """What stands before the events, None if the file is a bare list of them; and the first bytes of the events."""
    buffer = b""
    while len(buffer) <= _LONGEST and (block := reader.read(max(_PIECE, len(buffer)))):
        buffer += block
        if buffer.lstrip().startswith(b"["):
            return None, buffer.lstrip()[1:]
        found = _HEAD.search(buffer)
        if found:
            try:
                return _beside.decode(buffer[: found.start()] + b'"traceEvents":[]}'), buffer[found.end() :]
            except _BROKEN as error:
                raise SourceError(reader.file, 0, f"not a Kineto trace: {error}") from error
    raise SourceError(reader.file, 0, "not a Kineto trace: no traceEvents", hint="name a trace of torch.profiler")


def _whole_events(buffer: bytes) -> tuple[list[_Event], int]:
    """The events that end before a late boundary in `buffer`, and where the next one begins.

    A boundary inside a string or a nested list leaves something that is not JSON; an earlier one is tried then.
    """
    for look_back in _LOOK_BACK:
        boundaries = list(_BOUNDARY.finditer(buffer, max(0, len(buffer) - look_back)))
        for found in reversed(boundaries[-3:]):
            try:
                return _decoded(b"[" + buffer[: found.start() + 1] + b"]"), found.end() - 1
            except _BROKEN:
                continue
        if len(boundaries) >= 3:  # a wider look would end with the same ones
            break
    return [], 0


def _last_events(buffer: bytes, *, is_object: bool) -> tuple[list[_Event], _Beside | None]:
    if not is_object:
        return _decoded(b"[" + buffer), None
    tail = _tail.decode(b'{"traceEvents":[' + buffer)
    return _decoded(bytes(tail.events)), tail


def _decoded(data: bytes) -> list[_Event]:
    """A list of events; those that are something else (seen: lists) or whose name is no text are left out."""
    try:
        return _events.decode(data)
    except (msgspec.ValidationError, UnicodeDecodeError):
        return [event for raw in _raw_events.decode(data) if (event := _valid(raw)) is not None]


def _valid(raw: msgspec.Raw) -> _Event | None:
    try:
        return _event.decode(raw)
    except _BROKEN:
        return None


class _Builder:
    """Collects what events say, equal calls once."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._calls: Counter[tuple[str, bytes, bytes]] = Counter()
        self._timeline = Timeline()
        self._hccl: set[str] = set()
        self._parts: set[str] = set()

    def add(self, event: _Event) -> None:
        """Takes one event."""
        category, name = (event.cat or "").lower(), event.name or ""
        if category in _OPERATORS:
            self._add_call(event, name)
        elif category in _KERNELS:
            self._trace.kernels[name if category == "kernel" else category.removeprefix("gpu_")] += 1
            if device := _ON_DEVICE.search(bytes(event.args)):
                self._trace.devices.add(int(device[1]))
        elif category == "python_function":
            self._note_replicas(name)
        elif category == "user_annotation":
            self._note_replicas(name)
            shapes = self._shapes(event)
            self._annotate(event, _call(name, bytes(shapes.dims), bytes(shapes.types)))
        elif name in _GRAPH_LAUNCHES:
            self._trace.graph_launches += 1
        elif name in _GRAPH_CAPTURES:
            self._trace.graph_captures = True
        elif not category and b'"hlo_' in bytes(event.args):
            self._trace.is_of_xla = True
        elif not category:
            self._add_on_ascend(event, name)

    def _add_call(self, event: _Event, name: str) -> None:
        shapes = self._shapes(event)
        dims, types = bytes(shapes.dims), bytes(shapes.types)
        self._calls[name, bytes(shapes.dims_2021) if dims == b"{}" else dims, types] += 1
        if name == "record_param_comms":
            self._add_collective(event)
        elif "::" not in name:  # old traces file annotations among the operators
            self._note_replicas(name)
            self._annotate(event, _call(name, dims, types))
        elif name.startswith("c10d::") or direct_kind(name):
            begin = _number(event.ts)
            self._timeline.operator(_call(name, dims, types), begin, begin + _number(event.dur))

    def _note_replicas(self, name: str) -> None:
        if _REPLICATES.match(name):
            self._trace.replicates = True
        elif part := _SPLITS.get(name.lower()):
            self._parts.add(part)

    def _shapes(self, event: _Event) -> _Shapes:
        try:
            return _shapes.decode(event.args)
        except _BROKEN:
            return _Shapes()

    def _add_collective(self, event: _Event) -> None:
        try:
            said = _communication.decode(event.args)
        except _BROKEN:
            return
        size = said.elements * item_bytes(said.dtype)
        self._timeline.described(said.kind, said.group_size, size, _number(event.ts), said.group)

    def _add_on_ascend(self, event: _Event, name: str) -> None:
        """A kernel or a collective of an NPU; a view shows a collective on its own line and on that of its stream."""
        try:
            said = _device.decode(event.args)
        except _BROKEN:
            return
        if found := _HCCL.match(name):
            if name not in self._hccl:
                self._hccl.add(name)
                self._trace.kernels[f"hcom_{found[1]}"] += 1
                self._timeline.described(found[1], 0, said.count * item_bytes(said.dtype), _number(event.ts))
        elif said.task:
            self._trace.kernels[name] += 1

    def _annotate(self, event: _Event, call: Call) -> None:
        begin = _number(event.ts)
        self._timeline.annotation(call.name, tensor_bytes(call), begin, begin + _number(event.dur))

    def describe(self, beside: _Beside) -> None:
        """Takes what the file says beside its events."""
        said = beside.distributed if isinstance(beside.distributed, dict) else {}
        self._trace.rank = _whole(said.get("rank"), self._trace.rank)
        self._trace.world_size = _whole(said.get("world_size"), self._trace.world_size)
        found = {"cuda": _cuda(beside.cuda), "hip": _hip(beside.hip), "nccl": said.get("nccl_version")}
        own = beside.pharoah_versions if isinstance(beside.pharoah_versions, dict) else {}
        for library, version in (found | own).items():
            if isinstance(version, str) and version:
                self._trace.versions[str(library)] = version
        besides = beside.pharoah_software if isinstance(beside.pharoah_software, dict) else {}
        self._trace.software |= {str(name): version for name, version in besides.items() if isinstance(version, str)}

    def finish(self) -> Trace:
        """The trace, complete."""
        for (name, dims, types), count in self._calls.items():
            self._trace.calls[_call(name, dims, types)] += count
        self._timeline.finish(self._trace)
        self._trace.replicates |= {"gather", "copy"} <= self._parts or {"gather", "scatter"} <= self._parts
        return self._trace


def _call(name: str, dims: bytes, types: bytes) -> Call:
    return Call(name, arguments(_value(dims)), strings(_value(types)))


def _value(data: bytes) -> Any:
    """What an argument holds; None where it is nothing that Python can hold."""
    try:
        return msgspec.json.decode(data)
    except _BROKEN:
        return None


def _number(value: float | str | None) -> float:
    try:
        return float(value or 0.0)
    except ValueError:
        return 0.0


def _whole(value: Any, otherwise: int | None) -> int | None:
    return value if type(value) is int else otherwise


def _cuda(value: Any) -> str:
    """12040 is CUDA 12.4."""
    return f"{value // 1000}.{value % 1000 // 10}" if type(value) is int else ""


def _hip(value: Any) -> str:
    """60443483 is HIP 6.4.43483."""
    return f"{value // 10_000_000}.{value // 100_000 % 100}.{value % 100_000}" if type(value) is int else ""
