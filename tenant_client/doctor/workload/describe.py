"""Computes a workload's descriptor from traces, independent of batch, step, rank, vendor and format.

- *Weights, not activations.* The shapes of weights, of their transposes and gradients are kept. Of other shapes only
  sizes that are also sizes of a weight are kept, and only in feature positions; the others become 0.
- *Structure.* The classes of a model's operators, and the weight shapes that dominate its calls. It is the same for
  traces that lack rare operators or see one stage of a pipeline.
- *What is not told.* Without shapes, without calls that take weights (compiled models), or where graphs were replayed,
  the structure is not that of the model. The descriptor then says what it lacks, and keeps how often what ran.
- *One iteration.* Collectives are those of one whole iteration, found by marks in the trace, else by their period.
- An NCCL log among the traces adds its version.

Nothing leaves the tenant (`tenant_client.doctor.workload.descriptor`). docs/check.md says what it keeps.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import gcd, log2, prod
from pathlib import Path

from crypto.errors import PharoahError
from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, of_form, open_inputs
from federation.base.visible import counted_as
from tenant_client.doctor.sources import execution_trace, kineto, nccl_log
from tenant_client.doctor.sources.trace import Argument, Call, Collective, Dims, Trace, item_bytes
from tenant_client.doctor.workload.descriptor import Descriptor, Operator
from tenant_client.doctor.workload.iteration import skeleton
from tenant_client.doctor.workload.operators import (
    class_of,
    classes_of,
    is_compiled,
    is_part_of_a_model,
    kernel_family,
    kernel_multiplies,
    multiplies,
    narrow_precision,
    precision,
    role_of,
    table,
)

_WANTED = "pass JSON traces of torch.profiler or ExecutionTraceObserver"
_RECORD_CALLS = (
    "record the processor's side, too: profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],"
    " record_shapes=True)"
)
BETWEEN_TENSORS = -1  # separates the dimensions of two tensors in an operator's shape
ANY_SIZE = 0  # stands for a size that is no weight's: batch, sequence length, products of them
# A weight shape dominates from this share of all heavy calls on: between 1/8 and 1/9, since models are made of blocks
# with a few equally frequent shapes, whose shares are 1/n and a little less.
DOMINANT_SHARE = 0.118
_NARROWEST_RESULT = 2  # bytes: what is multiplied in 8 bits or fewer is summed in more
_GRADIENT_BYTES = (2, 4)  # of one number: autocast multiplies in 16 bits what has gradients in 32
_MARKS = {"all_reduce": "dp", "reduce_scatter": "sharded", "all_to_all": "ep", "send": "pp", "recv": "pp"}
_ORDER = ("dp", "sharded", "tp", "ep", "pp", "cp")


class NothingToDescribe(PharoahError):
    """The inputs have no operator."""

    default_hint = (
        "pass traces of torch.profiler or ExecutionTraceObserver that cover at least one training step;"
        " compiled regions alone do not tell their operators"
    )


def read_traces(
    paths: Iterable[Path], limits: ReadLimits = DEFAULT_LIMITS, told: Callable[[str], None] = lambda text: None
) -> list[Trace]:
    """Every trace and NCCL log in files, folders and archives; SourceError at the first that cannot be read.

    `told` hears of what else lies in a folder or an archive.
    """
    traces = []
    for path in paths:
        with open_inputs(path, limits) as readers:
            traces += [_read(reader, limits) for reader in of_form(readers, _recognises, "a trace", told, _WANTED)]
    return traces


def _recognises(head: bytes) -> bool:
    is_trace = execution_trace.recognises(head) or kineto.recognises(head)
    return is_trace or nccl_log.looks_like(head.decode("utf-8", "replace"))


def _read(reader: CappedReader, limits: ReadLimits) -> Trace:
    head = reader.peek()
    if execution_trace.recognises(head):
        return execution_trace.read(reader, limits)
    if kineto.recognises(head):
        return kineto.read(reader, limits)
    found = nccl_log.version(reader, limits)
    return Trace(reader.file, versions={"nccl": found} if found else {})


def describe_files(
    paths: Iterable[Path], limits: ReadLimits = DEFAULT_LIMITS, told: Callable[[str], None] = lambda text: None
) -> Descriptor:
    """The descriptor of one workload, from the traces of some of its ranks and steps; `told` hears of odd inputs."""
    traces = read_traces(paths, limits, told)
    known = [(trace.file, sizes) for trace in traces if (sizes := _sizes(trace))]
    for file, sizes in known:
        if sizes.isdisjoint(known[0][1]):
            told(f"{known[0][0]} and {file} look like two models, and are described as one workload")
    return describe(traces)


def _sizes(trace: Trace) -> set[Operator]:
    """What tells the sizes of a trace's model; nothing where it lacks something."""
    weights = _weights(trace.calls)
    is_whole = not _lacks([trace], trace.calls, weights)
    return {part for part in _structure(trace.calls, weights) if part[1]} if is_whole else set()


def describe(traces: Sequence[Trace]) -> Descriptor:
    """The descriptor of one workload, from traces of some of its ranks and steps; NothingToDescribe without a call."""
    calls = sum((trace.calls for trace in traces), Counter[Call]())
    ran = {call.name for call in calls}
    ran |= {kernel for trace in traces for kernel in trace.kernels if ran and is_compiled(kernel)}
    if not any(is_part_of_a_model(name) or is_compiled(name) for name in ran) and not any(map(_replayed, traces)):
        raise _nothing(traces)
    weights = _weights(calls)
    shapes = {dims for (_, dims) in weights} | {dims[::-1] for (_, dims) in weights}
    lacks = _lacks(traces, calls, weights)
    kernels = sum((trace.kernels for trace in traces), Counter[str]())
    return Descriptor(
        operators=frozenset(_operators(calls, shapes)),
        structure=_structure(calls, weights),
        collectives=skeleton(min(traces, key=lambda trace: (not trace.collectives, trace.rank or 0))),
        precision=_narrow(calls, kernels) or ("" if "operators" in lacks else _precision(calls)),
        parallelism=_parallelism(traces, calls),
        versions=tuple(sorted({item for trace in traces for item in trace.versions.items()})),
        kernel_families=frozenset(map(kernel_family, kernels)),
        lacks=lacks,
        replicas=_replicas(traces),
        counts=_counts(traces, calls, lacks) if lacks else (),
        software=tuple(sorted({item for trace in traces for item in trace.software.items()})),
    )


def _nothing(traces: Sequence[Trace]) -> NothingToDescribe:
    """Why there is nothing to describe; of kernels alone what they tell, and how to record what called them."""
    files = ", ".join(trace.file for trace in traces) or "no input"
    kernels = sum((trace.kernels for trace in traces), Counter[str]())
    if any(trace.is_of_xla for trace in traces):
        return NothingToDescribe(f"no operator of PyTorch in {files}, a trace of XLA (JAX, TensorFlow)")
    if not kernels:
        return NothingToDescribe(f"no operator in {files}")
    families = ", ".join(sorted(set(map(kernel_family, kernels))))
    ran = f"{counted_as(kernels.total(), 'kernel')} of {counted_as(len(kernels), 'name')} ({families})"
    return NothingToDescribe(f"no operator in {files}, the GPU's side alone: {ran}", hint=_RECORD_CALLS)


def _lacks(traces: Sequence[Trace], calls: Iterable[Call], weights: Mapping[tuple[str, Dims], int]) -> tuple[str, ...]:
    """What the traces do not tell of the model: `operators` behind graphs, `shapes`, or calls that take `weights`."""
    if any(map(_replayed, traces)):
        return ("operators",)
    is_compiled_only = not any(is_part_of_a_model(call.name) for call in calls)
    if not is_compiled_only and not any(any(call.arguments) for call in calls):
        return ("shapes",)
    return () if any(name in table().heavy for name, _ in weights) else ("weights",)


def _replayed(trace: Trace) -> bool:
    """Whether graphs ran whose operators are not in the trace."""
    return trace.graph_launches > 0 and not trace.graph_captures


def _counts(traces: Sequence[Trace], calls: Mapping[Call, int], lacks: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """How often what ran, divided by what all have in common, so that the number of whole iterations is left out.

    Of graphs their kernels, else operators that take a weight: those are recorded before a backend is chosen. Of what
    is compiled as a whole, what the compiler made.
    """
    found = Counter[str]()
    for call, count in calls.items():
        found[call.name] += count
    if "operators" in lacks:
        found = sum((trace.kernels for trace in traces), Counter[str]())
    elif any(name in table().weights for name in found):
        found = Counter({name: count for name, count in found.items() if name in table().weights})
    else:
        of_model = Counter({name: count for name, count in found.items() if is_part_of_a_model(name)})
        compiled = Counter({name: count for name, count in found.items() if is_compiled(name)})
        found = of_model or compiled or sum((trace.kernels for trace in traces), Counter[str]())
    divisor = gcd(*found.values())
    return tuple((name, count // divisor) for name, count in sorted(found.items()))


def _weights(calls: Mapping[Call, int]) -> Counter[tuple[str, Dims]]:
    """How often each operator was called with each shape of weight.

    Of embeddings only the width counts: tables are cut into rows over ranks, and vocabularies are padded.
    """
    found = Counter[tuple[str, Dims]]()
    for call, count in calls.items():
        place = table().weights.get(call.name)
        tensors = call.arguments[place] if place is not None and place < len(call.arguments) else ()
        if len(tensors) == 1:
            found[call.name, tensors[0][-1:] if "embedding" in call.name else tensors[0]] += count
    return found


def _operators(calls: Iterable[Call], shapes: set[Dims]) -> Iterable[Operator]:
    sizes = {size for dims in shapes for size in dims if size > 1}
    for call in calls:
        if is_part_of_a_model(call.name):
            yield call.name, _reduced(call.arguments, shapes, sizes)


def _reduced(arguments: Sequence[Argument], shapes: set[Dims], sizes: set[int]) -> tuple[int, ...]:
    """The dimensions of all tensors, log2 of those that are the model's own."""
    reduced: list[int] = []
    for dims in (dims for argument in arguments for dims in argument):
        own = set(range(len(dims))) if dims in shapes else _places_of_features(len(dims))
        reduced += [_log2(size) if at in own and size in sizes else ANY_SIZE for at, size in enumerate(dims)]
        reduced.append(BETWEEN_TENSORS)
    return tuple(reduced[:-1])


def _places_of_features(dimensions: int) -> set[int]:
    """Where the sizes of a model stand in an activation: last after batch and sequence, second in an image."""
    return {dimensions - 1} if dimensions < 4 else {1, dimensions - 1}


def _structure(calls: Mapping[Call, int], weights: Mapping[tuple[str, Dims], int]) -> frozenset[Operator]:
    """Classes of operators with what tells their sizes: shapes that dominate, else the commonest width, else shares."""
    classes = {(name, ()) for name in classes_of(call.name for call in calls)}
    heavy = {weight: count for weight, count in weights.items() if weight[0] in table().heavy}
    if not heavy:
        return frozenset(_shares(calls) or {(call.name, ()) for call in calls if is_part_of_a_model(call.name)})
    total = sum(heavy.values())
    dominant = {weight for weight, count in heavy.items() if count / total >= DOMINANT_SHARE}
    return frozenset(classes | (dominant or {("width", (_commonest_width(heavy),))}))


def _commonest_width(heavy: Mapping[tuple[str, Dims], int]) -> int:
    """The number of channels or features that most heavy calls read or write."""
    widths = Counter[int]()
    for (_, dims), count in heavy.items():
        for size in dims[:2]:
            widths[size] += count
    return min(widths, key=lambda size: (-widths[size], size))


def _shares(calls: Mapping[Call, int]) -> set[Operator]:
    """Without shapes: the classes, each with log2 of its share of calls: it tells deep variants from shallow ones."""
    counts = Counter[str]()
    for call, count in calls.items():
        counts[class_of(call.name)] += count
    del counts[""]
    return {(name, (round(log2(counts[name] / counts.total())),)) for name in classes_of(call.name for call in calls)}


def _precision(calls: Mapping[Call, int]) -> str:
    """The commonest floating-point type of weights, else of the inputs of any operator."""
    of_weights, of_all = Counter[str](), Counter[str]()
    for call, count in calls.items():
        of_all.update({kind: count for kind in map(precision, call.types) if kind})
        place = table().weights.get(call.name, len(call.types))
        if place < len(call.types):
            of_weights[precision(call.types[place])] += count
    del of_weights[""]
    return next((kind for kind, _ in (of_weights or of_all).most_common(1)), "")


def _narrow(calls: Mapping[Call, int], kernels: Mapping[str, int]) -> str:
    """`fp8` or `fp4` where most multiplications by weights are of it, by operators or else by kernels.

    Only what is kept in 16 bits or more is a weight of `_precision`; libraries of fp8 multiply outside of operators.
    """
    by_operator, by_kernel = Counter[str](), Counter[str]()
    for call, count in calls.items():
        if multiplies(call.name):
            by_operator[narrow_precision(call.name, call.types)] += count
    for kernel, count in kernels.items():
        if kernel_multiplies(kernel):
            by_kernel[narrow_precision(kernel)] += count
    return next((kind for found in (by_operator, by_kernel) for kind, _ in found.most_common(1) if kind), "")


def _parallelism(traces: Sequence[Trace], calls: Mapping[Call, int]) -> str:
    """What collectives say of how the work is divided, e.g. `dp+ep`: by their group's name, their message, or type."""
    activations = _activations(calls)
    found = {_mark(collective, activations) for trace in traces for collective in trace.collectives}
    if _replicas(traces) > 1:
        found.add("dp")
    return "+".join(mark for mark in _ORDER if mark in found) or "none"


def _replicas(traces: Iterable[Trace]) -> int:
    """On how many devices one process runs copies of the model; 1 where each has a process of its own."""
    return max((len(trace.devices) for trace in traces if trace.replicates), default=1)


def _mark(collective: Collective, activations: set[int]) -> str:
    role = role_of(collective.group)
    if role not in ("", "dp"):
        return role
    if not role and collective.kind in ("all_reduce", "reduce_scatter") and collective.bytes in activations:
        return "tp"
    return _MARKS.get(collective.kind, "")


def _activations(calls: Mapping[Call, int]) -> set[int]:
    """Bytes of the activations that multiplications by weights take and give, less those of a weight or its gradient.

    Tensor parallelism sums these over ranks, in every block; data parallelism sums gradients. Activations have as many
    rows as most multiplications take; those for the gradients of weights have others.
    """
    found = {call: shape for call in calls if multiplies(call.name) and (shape := _multiplied(call))}
    counts = Counter[int]()
    for call, (rows, _, _, _) in found.items():
        counts[rows] += calls[call]
    rows = next((rows for rows, _ in counts.most_common(1)), 0)
    of_model = [shape for shape in found.values() if shape[0] == rows]
    weights = {inner * outer * item for _, inner, outer, _ in of_model for item in _GRADIENT_BYTES}
    return {rows * width * item for _, inner, outer, item in of_model for width in (inner, outer)} - weights


def _multiplied(call: Call) -> tuple[int, int, int, int] | None:
    """Rows, inner and outer width of a multiplication, and bytes of an item of its result; None if shapes are odd."""
    tensors = [(dims, item_bytes(kind)) for dims, kind in _matrices(call)]
    for (one, item), (other, _) in pairwise(tensors):
        if one[-1] in other[-2:]:
            outer = other[-1] if other[-2] == one[-1] else other[-2]
            return prod(one[:-1]), one[-1], outer, max(item, _NARROWEST_RESULT)
    return None


def _matrices(call: Call) -> Iterable[tuple[Dims, str]]:
    """The matrices among the tensors of a call, less what `addmm` adds."""
    pairs = list(zip(call.arguments, call.types, strict=False))["addmm" in call.name :]
    return [(argument[0], kind) for argument, kind in pairs if len(argument) == 1 and len(argument[0]) > 1]


def _log2(size: int) -> int:
    return round(log2(size))
