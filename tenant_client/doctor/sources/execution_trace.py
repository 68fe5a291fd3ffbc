"""Execution traces of PyTorch (ExecutionTraceObserver), in JSON: what Chakra's converters start from.

Schema 1.0.1 keeps shapes beside each node; 1.0.3 and later put them under `inputs`. Nodes carry no times, so the order
of their ids stands for time. Values of inputs are not read.
"""

from typing import Any

import msgspec

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, SourceError
from tenant_client.doctor.sources.trace import Call, Timeline, Trace, arguments, direct_kind, strings, tensor_bytes

_MOST_BYTES = 1 << 32  # the file is decoded as a whole


class _Inputs(msgspec.Struct):
    shapes: Any = None
    types: Any = None


class _Node(msgspec.Struct):
    name: str = ""
    id: int = 0
    parent: Any = None
    ctrl_deps: Any = None  # the parent, as schema 1.0.3 and later call it
    inputs: _Inputs | list[Any] | None = None
    input_shapes: Any = None
    input_types: Any = None


class _File(msgspec.Struct):
    nodes: list[_Node]
    schema: str = ""


_file = msgspec.json.Decoder(_File)


def recognises(head: bytes) -> bool:
    """Whether a file that begins so may be an execution trace."""
    return b'"schema"' in head and (b'"nodes"' in head or b'"pid"' in head)


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Trace:
    """The trace in `reader`; SourceError where it is not one, is cut off, or goes beyond a cap."""
    data = reader.read(_MOST_BYTES)
    if reader.read(1):
        raise SourceError(reader.file, reader.position, f"an execution trace of more than {_MOST_BYTES} bytes")
    try:
        nodes = _file.decode(data).nodes
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(reader.file, 0, f"not an execution trace: {error}") from error
    if len(nodes) > limits.records:
        raise SourceError(reader.file, len(data), f"more than {limits.records} nodes")
    trace, timeline, ends = Trace(reader.file), Timeline(), _ends(nodes)
    for node in nodes:
        call = _call(node)
        trace.calls[call] += 1
        if "::" not in call.name:
            timeline.annotation(call.name, tensor_bytes(call), node.id, node.id)
        elif direct_kind(call.name):
            timeline.operator(call, node.id, ends[node.id] + 1)
    timeline.finish(trace)
    return trace


def _ends(nodes: list[_Node]) -> dict[int, int]:
    """The last node that each node calls, itself if none: who calls has the smaller id."""
    ends: dict[int, int] = {}
    for node in sorted(nodes, key=lambda node: -node.id):
        end = ends.setdefault(node.id, node.id)
        for caller in (node.parent, node.ctrl_deps):
            if type(caller) is int:
                ends[caller] = max(ends.get(caller, 0), end)
    return ends


def _call(node: _Node) -> Call:
    if isinstance(node.inputs, _Inputs):
        return Call(node.name, arguments(node.inputs.shapes), strings(node.inputs.types))
    return Call(node.name, arguments(node.input_shapes), strings(node.input_types))
