"""Small traces for tests, as torch.profiler and ExecutionTraceObserver write them, of two models made of few operators.

A model here is a list of `Op`s for one training step; `kineto` and `execution_trace` tell the same list in the words of
either format.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits
from tenant_client.doctor.sources import execution_trace as execution, kineto as chrome
from tenant_client.doctor.sources.trace import Trace

Event = dict[str, Any]
Shape = list[int]


@dataclass(frozen=True)
class Op:
    """A call of an operator: shapes of its tensors ([] for what is none) and their types."""

    name: str
    shapes: tuple[Any, ...] = ()
    dtype: str = "float"

    @property
    def types(self) -> list[str]:
        """One for each argument, as Kineto spells them."""
        return [self.dtype if shape else "Scalar" for shape in self.shapes]


def dumped(value: Any) -> bytes:
    """JSON as UTF-8, nothing escaped that need not be."""
    return json.dumps(value, ensure_ascii=False).encode()


def read_kineto(data: bytes, limits: ReadLimits = DEFAULT_LIMITS) -> Trace:
    """The trace in `data`, a file named `rank0`."""
    return chrome.read(CappedReader(io.BytesIO(data), "rank0", limits.total_bytes), limits)


def read_execution_trace(data: bytes, limits: ReadLimits = DEFAULT_LIMITS) -> Trace:
    """The trace in `data`, a file named `rank0`."""
    return execution.read(CappedReader(io.BytesIO(data), "rank0", limits.total_bytes), limits)


# ---- events --------------------------------------------------------------------------------------------------------


def operator(op: Op, ts: Any = 0.0, *, category: str = "cpu_op", **more: Any) -> Event:
    """A call of an operator on the CPU."""
    args = {"External id": 7, "Input Dims": list(op.shapes), "Input type": op.types, **more}
    return {"ph": "X", "cat": category, "name": op.name, "pid": 1, "tid": 2, "ts": ts, "dur": 5, "args": args}


def annotation(name: str, ts: Any, dur: Any = 1.0, op: Op | None = None) -> Event:
    """A range that a user or a library named."""
    args = {"Input Dims": list(op.shapes), "Input type": op.types} if op else {}
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur, "args": args}


def collective(kind: str, elements: int, group: int, ts: Any, dtype: str = "Float") -> Event:
    """A collective as PyTorch has described it since 2.2."""
    said: Event = {"Collective name": kind, "In msg nelems": elements, "Group size": group, "dtype": dtype}
    return operator(Op("record_param_comms"), ts, **said)


def kernel(name: str, ts: Any = 0.0, category: str = "kernel") -> Event:
    """Work of the GPU."""
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 3, "args": {"stream": 7}}


def kineto(events: Sequence[Any], before: Mapping[str, Any] | None = None, **after: Any) -> bytes:
    """A whole trace; what it says beside its events stands before or after them."""
    return dumped({**(before or {"schemaVersion": 1}), "traceEvents": list(events), **after})


def nodes(steps: Sequence[Sequence[Op]], schema: str = "1.1.1-chakra.0.0.4") -> bytes:
    """An execution trace of some steps."""
    flat = [op for step in steps for op in step]
    return dumped({"schema": schema, "pid": 1, "nodes": [_node(op, n, schema) for n, op in enumerate(flat)]})


def _node(op: Op, number: int, schema: str) -> Event:
    shapes, types = list(op.shapes), [f"Tensor({op.dtype})" if shape else "Int" for shape in op.shapes]
    if schema.startswith("1.0.1"):
        return {"name": op.name, "id": number, "inputs": [1, 2], "input_shapes": shapes, "input_types": types}
    return {"name": op.name, "id": number, "inputs": {"values": [1, 2], "shapes": shapes, "types": types}}


def profiled(steps: Sequence[Sequence[Op]], **beside: Any) -> bytes:
    """A Kineto trace of some steps, each under its mark; `nccl:` names become annotations."""
    events: list[Event] = []
    for number, step in enumerate(steps):
        events.append(annotation(f"ProfilerStep#{number}", 1000.0 * number, 999.0))
        for place, op in enumerate(step, 1):
            at = 1000.0 * number + place
            events.append(operator(op, at) if "::" in op.name else annotation(op.name, at, op=op))
    return kineto(events, **beside)


# ---- models --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transformer:
    """A step of a decoder of equal blocks: what may vary from run to run, and what makes it another model."""

    batch: int = 6
    sequence: int = 100
    width: int = 256
    blocks: int = 4
    vocabulary: int = 1000
    dtype: str = "c10::BFloat16"
    attention: str = "aten::_scaled_dot_product_flash_attention"
    first: bool = True
    last: bool = True

    def step(self) -> list[Op]:
        """Forward, backward and the gradients' sum over all ranks."""
        tokens = [self.batch, self.sequence, self.width]
        ops = [self._op("aten::embedding", [self.vocabulary, self.width], tokens[:2])] if self.first else []
        ops += [op for _ in range(self.blocks) for op in self._block(tokens)]
        ops += self._linear(tokens, self.vocabulary) if self.last else []
        return [*ops, self._op("aten::_foreach_add_", [self.width]), self._op("nccl:all_reduce", [1 << 20])]

    def _block(self, tokens: Shape) -> list[Op]:
        wide = [*tokens[:2], 4 * self.width]
        return [
            *(self._norm(tokens), *self._linear(tokens, 3 * self.width), *self._attention()),
            *(*self._linear(tokens, self.width), self._op("aten::add", tokens, tokens, [])),
            *(self._norm(tokens), *self._linear(tokens, 4 * self.width), self._op("aten::gelu", wide)),
            *(*self._linear(wide, self.width), self._op("aten::gelu_backward", wide, wide)),
        ]

    def _attention(self) -> list[Op]:
        heads, size = self.width // 64, self.sequence
        states = [self.batch, heads, size, 64]
        if self.attention != "eager":
            fused = self._op("aten::scaled_dot_product_attention", states, states, states)
            return [fused, self._op(self.attention, states, states, states)]
        flat, scores = [self.batch * heads, size, 64], [self.batch, heads, size, size]
        products = self._op("aten::bmm", flat, [flat[0], 64, size]), self._op("aten::bmm", [flat[0], size, size], flat)
        return [products[0], self._op("aten::_softmax", scores, [], []), products[1]]

    def _linear(self, taken: Shape, out: int) -> list[Op]:
        rows, width = self.batch * self.sequence, taken[-1]
        return [
            self._op("aten::linear", taken, [out, width], [out]),
            self._op("aten::addmm", [out], [rows, width], [width, out], [], []),
            self._op("aten::mm", [out, rows], [rows, width]),
        ]

    def _norm(self, tokens: Shape) -> Op:
        return self._op("aten::layer_norm", tokens, [], [self.width], [self.width], [], [])

    def _op(self, name: str, *shapes: Shape) -> Op:
        return Op(name, shapes, self.dtype)


def convnet(batch: int = 4, channels: int = 64, vendor: str = "cudnn") -> list[Op]:
    """A step of a small convolutional network on NVIDIA (`cudnn`) or AMD (`miopen`)."""
    ops = []
    for width in (channels, 2 * channels, 4 * channels):
        seen, weight = [batch, width, 56, 56], [width, width, 3, 3]
        ops += [
            Op("aten::conv2d", (seen, weight, [], [], [], [], [])),
            Op(f"aten::{vendor}_convolution", (seen, weight, [], [], [], [], [], [], [])),
            Op("aten::batch_norm", (seen, [width], [width], [width], [width], [], [], [], [])),
            Op(f"aten::{vendor}_batch_norm", (seen, [width], [width], [width], [width], [], [], [])),
            Op("aten::relu_", (seen,)),
        ]
    return [*ops, Op("aten::linear", ([batch, 4 * channels], [10, 4 * channels], [10]))]


def recommender(batch: int = 32, rows: int = 5000) -> list[Op]:
    """A step of a recommendation model: tables of embeddings, and layers above them."""
    tables = [Op("aten::embedding_bag", ([rows + number, 48], [batch], [batch])) for number in range(4)]
    tower = [Op("aten::linear", ([batch, 48], [48, 48], [48])), Op("aten::relu", ([batch, 48],))]
    exchange = [Op("nccl:all_to_all", ([batch, 48],)), Op("nccl:all_reduce", ([48, 48],))]
    return [*tables, *tower, *tower, Op("aten::sigmoid", ([batch, 1],)), *exchange]
