"""What ran, as every trace format tells it: calls of operators with shapes, collectives in order, kernels, versions.

A trace is large and repeats itself; this is not. Equal calls are counted and not kept, so that a file of gigabytes
becomes a table of some thousand rows. Values that a trace may hold (scalars, call stacks, file names, host names) are
not read.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf, prod
from typing import Any

Dims = tuple[int, ...]
Argument = tuple[Dims, ...]

_COLLECTIVE = re.compile(r"(?:nccl|gloo|mpi|ucc|hccl|xccl|c10d):_?([a-z_]+)")
# Collectives that go past c10d, of servers and symmetric memory: `vllm::all_reduce`, `symm_mem::one_shot_all_reduce`.
_DIRECT = re.compile(
    r"(?!(?:aten|prims|_?c10d\w*|nccl|gloo|fsdp|autograd|profiler|torch[\w.]*)::)"
    r"\w+::(?:\w*_)?(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)(?!\w*_(?:copy_in|copy_out|wait)$)"
)
# Libraries of experts name their two all-to-alls by what they do: `deep_ep::internode_dispatch`, `..::moe_combine`.
_EXPERTS = re.compile(
    r"(?:(?:\w*_)?(?:ep|moe|pplx|mori)\w*::(?:\w+_)?|\w+::\w*moe_)(?:dispatch|combine)(?!\w*_(?:wait|layout)$)"
)
_ITERATION = re.compile(r"ProfilerStep#\d+$")
# As Kineto, execution traces, record_param_comms and HCCL (BFP16, INT8) spell them; unknown ones count four bytes.
_ITEM_BYTES = {
    "byte": 1,
    "char": 1,
    "bool": 1,
    "float8": 1,
    "int8": 1,
    "hif8": 1,
    "fp8": 1,
    "fp16": 2,
    "int16": 2,
    "int64": 8,
    "fp64": 8,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "long": 8,
    "double": 8,
}
_SIZE = re.compile(r"(?<![\w.+-])\d{1,19}(?![\w.])", re.ASCII)  # in the text that Ascend's profiler writes
_SIZES = range(1 << 63)
_POINT_TO_POINT = {"send": "send", "recv": "recv", "receive": "recv", "batchsendrecv": "send"}  # the latter: HCCL's


@dataclass(frozen=True)
class Call:
    """One kind of call: the operator, and for each argument the dimensions of its tensors and its type.

    An argument that is no tensor has no dimensions: (); a list of tensors has those of all of them, in order.
    """

    name: str
    arguments: tuple[Argument, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True)
class Collective:
    """One collective: its type (`all_reduce`), how many ranks take part (0: not said), bytes, and when it began.

    `group` is what the program calls the group of ranks, "" where it has no name.
    """

    kind: str
    group_size: int
    bytes: int
    at: float
    group: str = ""


@dataclass
class Trace:
    """What one rank did while it was traced.

    `steps` are the times, in those of `collectives`, at which an iteration began or an optimiser's step ended.
    `graph_launches` counts replays of CUDA or HIP graphs; `graph_captures` is whether one was recorded meanwhile. What
    a graph does at its replay is no call of an operator: only its kernels are in the trace. `devices` are those of
    kernels; `replicates` is whether this one process split its batch over them (torch.nn.DataParallel);
    `is_of_xla`, whether a program of XLA (JAX, TensorFlow) wrote it, which names no operator.
    """

    file: str
    calls: Counter[Call] = field(default_factory=Counter)
    collectives: list[Collective] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    kernels: Counter[str] = field(default_factory=Counter)
    versions: dict[str, str] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)
    rank: int | None = None
    world_size: int | None = None
    graph_launches: int = 0
    graph_captures: bool = False
    devices: set[int] = field(default_factory=set)
    replicates: bool = False
    is_of_xla: bool = False


class Timeline:
    """Gathers collectives and iterations while a trace is read; a trace may tell of each of them in two ways."""

    def __init__(self) -> None:
        self._described: list[Collective] = []  # with group and bytes
        self._annotated: list[Collective] = []  # by name alone, perhaps with a shape
        self._bare: list[Collective] = []  # c10d's operators, where a backend tells nothing else
        self._direct: list[tuple[Collective, float]] = []  # operators that go past c10d, with their ends
        self._iterations: list[float] = []
        self._optimizer_steps: list[float] = []

    def described(self, kind: str, group_size: int, size: int, at: float, group: str = "") -> None:
        """A collective that says what it is: `record_param_comms` since PyTorch 2.2, Ascend's `hcom_`."""
        if normal_kind(kind):
            self._described.append(Collective(normal_kind(kind), group_size, size, at, group))

    def annotation(self, name: str, size: int, begin: float, end: float) -> None:
        """A range with a name: a collective, an iteration, a step of an optimiser, or nothing of interest."""
        collective = _COLLECTIVE.match(name)
        if collective and normal_kind(collective[1]):
            self._annotated.append(Collective(normal_kind(collective[1]), 0, size, begin))
        elif _ITERATION.match(name):
            self._iterations.append(begin)
        elif name.startswith("Optimizer.step#"):
            self._optimizer_steps.append(end)

    def operator(self, call: Call, begin: float, end: float) -> None:
        """An operator of c10d or that `direct_kind` knows; its first tensor is the message."""
        tensors = (pair for pair in zip(call.arguments, call.types, strict=False) if pair[0])
        size = next((tensor_bytes(Call("", (dims,), (kind,))) for dims, kind in tensors), 0)
        if kind := direct_kind(call.name):
            self._direct.append((Collective(kind, 0, size, begin), end))
        elif kind := normal_kind(call.name.removeprefix("c10d::")):
            self._bare.append(Collective(kind, 0, size, begin))

    def finish(self, trace: Trace) -> None:
        """Moves the better account of each into `trace`, in order of time."""
        found = sorted(self._described or self._annotated or self._bare, key=lambda one: one.at)
        direct = self._outermost([one.at for one in found])
        trace.collectives = sorted([*found, *direct], key=lambda one: one.at)
        trace.steps = sorted(self._iterations if len(self._iterations) > 1 else self._optimizer_steps)

    def _outermost(self, known: Sequence[float]) -> Iterator[Collective]:
        """The operators that go past c10d, less what they call of their kind, and those that end up in it after all."""
        until = -inf
        for one, end in sorted(self._direct, key=lambda pair: pair[0].at):
            if one.at >= until:
                until = end
                if bisect_left(known, one.at) == bisect_left(known, end):
                    yield one


@cache
def direct_kind(operator: str) -> str:
    """The type of a collective that is no c10d's, by the name of its operator, else "".

    >>> direct_kind("vllm::all_reduce"), direct_kind("trtllm::allreduce"), direct_kind("c10d::allreduce_")
    ('all_reduce', 'all_reduce', '')
    >>> direct_kind("deep_ep::internode_combine"), direct_kind("aten::combine")
    ('all_to_all', '')
    """
    if _EXPERTS.match(operator):
        return "all_to_all"
    found = _DIRECT.match(operator)
    return normal_kind(found[1]) if found else ""


def normal_kind(name: str) -> str:
    """One spelling for each collective, "" for what only accompanies them: `_allgather_base` is an `all_gather`.

    >>> normal_kind("allreduce"), normal_kind("_reduce_scatter_base"), normal_kind("all_to_allv"), normal_kind("wait")
    ('all_reduce', 'reduce_scatter', 'all_to_all', '')
    """
    plain = name.lower().replace("_", "")
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "scatter", "gather"):
        if plain.startswith(kind.replace("_", "")):
            return kind
    if plain.startswith("reduce"):
        return "reduce"
    return _POINT_TO_POINT.get(plain, "")


def arguments(value: Any) -> tuple[Argument, ...]:
    """Dimensions of each argument from what a format records; anything unexpected counts as no tensor.

    >>> arguments([[2, 3], []]), arguments("2,3;4"), arguments([[[2, 3], [4]]])
    ((((2, 3),), ()), (((2, 3),), ((4,),)), (((2, 3), (4,)),))
    """
    if isinstance(value, str) and _SIZE.search(value):
        value = [list(map(int, _SIZE.findall(part))) for part in value.split(";")]
    return tuple(_tensors(item) for item in value) if isinstance(value, list) else ()


def _tensors(value: Any) -> Argument:
    if not isinstance(value, list) or not value:
        return ()
    if all(map(_is_size, value)):
        return (tuple(value),)
    return tuple(tuple(part) for part in value if isinstance(part, list) and part and all(map(_is_size, part)))


def _is_size(value: Any) -> bool:
    return type(value) is int and value in _SIZES


def strings(value: Any) -> tuple[str, ...]:
    """Types of arguments; anything but text is left empty."""
    if isinstance(value, str):
        value = value.replace("\r\n", "").split(";")
    return tuple(item if isinstance(item, str) else "" for item in value) if isinstance(value, list) else ()


def tensor_bytes(call: Call) -> int:
    """Size of all tensors that a call takes."""
    return sum(
        prod(dims) * item_bytes(kind)
        for argument, kind in zip(call.arguments, call.types, strict=False)
        for dims in argument
    )


def item_bytes(dtype: str) -> int:
    """Bytes of one element: `c10::BFloat16`, `Tensor(float)`, `Half` or `long int`."""
    plain = dtype.lower().replace("unsigned char", "byte").replace("signed char", "char")
    return next((size for name, size in _ITEM_BYTES.items() if name in plain), 4)
