"""What a workload is: the same whatever batch, steps, rank, vendor and format; another for another model."""

import gzip
import random
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from federation.base.reading import ReadLimits, SourceError
from tenant_client.doctor.sources.trace import Call, Collective, Trace
from tenant_client.doctor.workload.compare import jaccard
from tenant_client.doctor.workload.describe import (
    ANY_SIZE,
    BETWEEN_TENSORS,
    NothingToDescribe,
    describe,
    describe_files,
    read_traces,
)
from tenant_client.doctor.workload.descriptor import Descriptor, rungs
from tests.support.traces import (
    Op,
    Transformer,
    annotation,
    collective,
    convnet,
    kernel,
    kineto,
    nodes,
    operator,
    profiled,
    read_execution_trace,
    read_kineto,
    recommender,
)

GPT = Transformer()
SAME, HARDLY, OTHER = 1.0, 0.8, 0.3


def described(*steps: Sequence[Op]) -> Descriptor:
    return describe([read_kineto(profiled(steps))])


def shapeless(steps: Sequence[Sequence[Op]]) -> Descriptor:
    return describe([read_kineto(kineto([operator(Op(op.name)) for step in steps for op in step]))])


REFERENCE = described(GPT.step())


def test_a_descriptor_says_what_the_workload_is() -> None:
    blocks = {("aten::linear", shape) for shape in ((768, 256), (256, 256), (1024, 256), (256, 1024))}
    classes = {(name, ()) for name in ("linear", "attention", "layer_norm", "gelu")}
    assert REFERENCE.structure == blocks | classes
    assert ("aten::linear", (0, 0, 8, BETWEEN_TENSORS, 10, 8, BETWEEN_TENSORS, 10)) in REFERENCE.operators
    assert (REFERENCE.precision, REFERENCE.parallelism) == ("bf16", "dp")
    assert REFERENCE.collectives == (("all_reduce", 0, 21),)


# ---- what does not matter ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "least"),
    [
        (replace(GPT, batch=1), HARDLY),
        (replace(GPT, batch=24), HARDLY),
        (replace(GPT, batch=96, sequence=17), HARDLY),
        (replace(GPT, sequence=1234), HARDLY),
        (replace(GPT, attention="aten::_scaled_dot_product_efficient_attention"), SAME),
        (replace(GPT, attention="aten::_scaled_dot_product_cudnn_attention"), SAME),
        (replace(GPT, blocks=8), SAME),
        (replace(GPT, vocabulary=1024), HARDLY),
    ],
    ids=["one", "many", "short", "long", "another vendor", "another backend", "deeper", "padded"],
)
def test_runs_of_one_model_have_one_structure_and_hardly_other_operators(variant: Transformer, least: float) -> None:
    other = described(variant.step())
    assert other.structure == REFERENCE.structure
    assert least <= jaccard(other, REFERENCE) <= 1


def test_a_batch_or_sequence_that_is_also_a_weights_size_is_not_taken_for_it() -> None:
    other = described(replace(GPT, batch=256, sequence=1024).step())
    assert other.structure == REFERENCE.structure
    assert jaccard(other, REFERENCE) >= HARDLY


def test_the_number_and_order_of_steps_change_nothing() -> None:
    for steps in (2, 5):
        assert described(*[GPT.step()] * steps) == REFERENCE


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_events_in_the_file_changes_nothing(seed: int) -> None:
    events = [annotation(f"ProfilerStep#{number}", 100 * number) for number in range(4)]
    events += [operator(op, place) for place, op in enumerate(GPT.step())]
    events += [
        collective(kind, 64, 8, 100 * step + 7 * at) for step in range(3) for at, kind in enumerate(("send", "recv"))
    ]
    shuffled = random.Random(seed).sample(events, len(events))
    found = describe([read_kineto(kineto(shuffled))])
    assert found == describe([read_kineto(kineto(events))])
    assert [kind for kind, _, _ in found.collectives] == ["send", "recv"]


@pytest.mark.parametrize("schema", ["1.0.1", "1.1.1-chakra.0.0.4"])
def test_the_format_changes_nothing_that_both_formats_say(schema: str) -> None:
    for step in (GPT.step(), convnet(), recommender()):
        other = describe([read_execution_trace(nodes([step], schema))])
        assert replace(other, collectives=()) == replace(described(step), collectives=())
        assert [kind for kind, _, _ in other.collectives] == [kind for kind, _, _ in described(step).collectives]


def test_operators_that_only_one_vendor_has_change_nothing() -> None:
    assert described(convnet(vendor="miopen")) == described(convnet(vendor="cudnn"))


def test_attention_is_attention_whether_it_is_fused_or_not() -> None:
    eager = described(replace(GPT, attention="eager").step())
    classes = {name for name, dims in eager.structure if not dims}
    assert classes == {"linear", "batched_matmul", "softmax", "layer_norm", "gelu"}
    mixed = described([*replace(GPT, attention="eager").step(), *GPT.step()])
    assert mixed.structure == REFERENCE.structure
    assert jaccard(eager, REFERENCE) > 0.7


def test_the_stages_of_a_pipeline_have_one_structure() -> None:
    stages = [
        replace(GPT, vocabulary=5000, first=first, last=last)
        for first, last in ((True, False), (False, False), (False, True))
    ]
    found = [described(stage.step()) for stage in stages]
    assert {one.structure for one in found} == {REFERENCE.structure}
    assert len({one.operators for one in found}) == 3


def test_rows_of_embeddings_do_not_matter_but_their_width_does() -> None:
    base = recommender()
    assert described(recommender(rows=90_000)) == described(base)
    wider = [
        Op(op.name, tuple([*shape[:-1], 96] if shape[-1:] == [48] else shape for shape in op.shapes)) for op in base
    ]
    assert described(wider).operators != described(base).operators


def test_ranks_together_are_what_each_of_them_is() -> None:
    ranks = [read_kineto(profiled([GPT.step()], distributedInfo={"rank": rank})) for rank in range(3)]
    assert describe(ranks) == describe(ranks[::-1]) == REFERENCE


def test_collectives_are_those_of_the_lowest_rank_that_has_any() -> None:
    ranks = [Trace(f"rank{rank}", Counter([Call("aten::add")]), rank=rank) for rank in range(3)]
    for rank, kind in ((1, "all_reduce"), (2, "send")):
        ranks[rank].collectives = [Collective(kind, 4, 16, 0.0)]
    for order in (ranks, ranks[::-1]):
        assert describe(order).collectives == (("all_reduce", 2, 4),)
        assert describe(order).parallelism == "dp+pp"


# ---- what matters --------------------------------------------------------------------------------------------------


MODELS = {
    "decoder": GPT.step(),
    "wider decoder": replace(GPT, width=320).step(),
    "convolutions": convnet(),
    "wider convolutions": convnet(channels=96),
    "recommender": recommender(),
}


@pytest.mark.parametrize("one", MODELS)
@pytest.mark.parametrize("other", MODELS)
def test_different_models_differ_in_structure_and_operators(one: str, other: str) -> None:
    mine, theirs = described(MODELS[one]), described(MODELS[other])
    assert (mine.structure == theirs.structure) == (one == other)
    if one.split()[-1] != other.split()[-1]:
        assert jaccard(mine, theirs) <= OTHER


def test_without_a_dominant_shape_the_commonest_width_tells_the_size() -> None:
    def tower(width: int) -> list[Op]:
        shapes = [[width, width, side, side] for side in range(1, 7)] + [[width, 2 * width, 1, 1], [3, width, 1, 1]]
        return [Op("aten::conv2d", ([2, 3, 9, 9], shape)) for shape in [*shapes, [7, 7, 1, 1]]]

    assert described(tower(64)).structure == {("convolution", ()), ("width", (64,))}
    assert described(tower(128)).structure == {("convolution", ()), ("width", (128,))}


# ---- without shapes ------------------------------------------------------------------------------------------------


def test_without_shapes_classes_and_their_shares_tell_models_apart() -> None:
    decoder, convolutions = shapeless([GPT.step()]), shapeless([convnet()])
    assert {name for name, _ in decoder.structure} == {"linear", "attention", "layer_norm", "gelu"}
    assert all(len(share) == 1 and share[0] <= 0 for _, share in decoder.structure)
    assert decoder.structure != convolutions.structure
    assert shapeless([GPT.step()] * 3).structure == decoder.structure
    deeper = [Op("aten::layer_norm")] * 90
    assert shapeless([[*GPT.step(), *deeper]]).structure != decoder.structure


def test_without_any_known_class_the_operators_are_the_structure() -> None:
    found = describe([read_kineto(kineto([operator(Op("custom::one")), operator(Op("aten::empty"))]))])
    assert found.structure == {("custom::one", ())} == found.operators


# ---- what a trace lacks --------------------------------------------------------------------------------------------


def runtime(name: str) -> dict[str, Any]:
    """A call of the CUDA or HIP runtime."""
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 2, "ts": 0, "dur": 1, "args": {}}


def replayed(kernels: dict[str, int], *others: Any) -> Descriptor:
    """A graph that was launched once, with so many of each kernel."""
    ran = [kernel(name) for name, count in kernels.items() for _ in range(count)]
    return describe([read_kineto(kineto([runtime("cudaGraphLaunch"), *ran, *others]))])


def test_a_whole_trace_lacks_nothing() -> None:
    assert (REFERENCE.lacks, REFERENCE.counts) == ((), ())
    assert described(convnet()).lacks == ()


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_trace_without_shapes_says_so_and_has_its_weights_of_one_iteration_counted(steps: int) -> None:
    found = shapeless([convnet()] * steps)
    assert found.lacks == ("shapes",)
    assert found.counts == (("aten::batch_norm", 3), ("aten::conv2d", 3), ("aten::linear", 1))


def test_depths_that_round_to_the_same_shares_differ_without_shapes() -> None:
    shallow, deep = (shapeless([replace(GPT, blocks=blocks).step()]) for blocks in (10, 11))
    assert shallow.structure == deep.structure
    assert rungs(shallow, ()).archetype != rungs(deep, ()).archetype


def test_a_compiled_model_lacks_the_calls_that_take_weights() -> None:
    found = described([Op("aten::mm", ([8, 64], [64, 64]))] * 4)
    assert found.lacks == ("weights",)
    assert found.counts == (("aten::mm", 1),)


def test_graphs_that_were_replayed_are_told_by_their_kernels() -> None:
    small, twice, large = (replayed({"gemm": count, "softmax": 2}) for count in (8, 8, 10))
    assert small.lacks == ("operators",)
    assert small.counts == (("gemm", 4), ("softmax", 1))
    assert rungs(small, ()).inputs == rungs(twice, ()).inputs
    assert rungs(small, ()).archetype != rungs(large, ()).archetype
    sampling = operator(Op("aten::linear", ([8, 64], [50257, 64], [])))
    assert replayed({"gemm": 8}, sampling).lacks == ("operators",)


def test_graphs_whose_capture_was_traced_lack_nothing() -> None:
    captured = [runtime("cudaStreamBeginCapture"), *(operator(op) for op in GPT.step())]
    found = replayed({"gemm": 8}, *captured)
    assert found.lacks == ()
    assert found.structure == REFERENCE.structure


@pytest.mark.parametrize("events", [[], [operator(Op("aten::empty"))], [annotation("ProfilerStep#1", 0)]])
def test_there_must_be_something_to_describe(events: list[Any]) -> None:
    with pytest.raises(NothingToDescribe, match=r"^no operator in rank0$") as failure:
        describe([read_kineto(kineto(events))])
    assert "torch.profiler" in failure.value.diagnostics()
    with pytest.raises(NothingToDescribe, match="no operator in no input"):
        describe([])


def test_a_trace_of_xla_is_named() -> None:
    op = {"ph": "X", "pid": 1, "tid": 13, "ts": 1.0, "dur": 5.0, "name": "fusion.1", "args": {"hlo_op": "fusion.1"}}
    with pytest.raises(NothingToDescribe, match=r"^no operator of PyTorch in rank0, a trace of XLA"):
        describe([read_kineto(kineto([op]))])


def test_of_kernels_alone_it_is_told_what_they_are_and_how_to_record_what_called_them() -> None:
    events = [kernel("ampere_sgemm_128x64_tn"), kernel("ampere_sgemm_128x64_tn"), kernel("softmax_warp_forward")]
    with pytest.raises(
        NothingToDescribe, match=r"^no operator in rank0, the GPU's side alone: 3 kernels of 2 names"
    ) as failure:
        describe([read_kineto(kineto(events))])
    assert "ProfilerActivity.CPU" in failure.value.diagnostics()


# ---- precision, parallelism, versions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("float", "fp32"), ("c10::Half", "fp16"), ("c10::BFloat16", "bf16"), ("c10::Float8_e4m3fn", "fp8"), ("int", "")],
)
def test_the_precision_is_that_of_the_weights(dtype: str, name: str) -> None:
    others = [Op("aten::add", ([2],), "double")] * 99
    assert described([*replace(GPT, dtype=dtype).step(), *others]).precision == (name or "fp64")


def test_without_weights_the_precision_is_that_of_most_inputs() -> None:
    assert described([Op("aten::add", ([2],), "c10::Half")] * 2 + [Op("aten::mul", ([2],))]).precision == "fp16"
    assert shapeless([GPT.step()]).precision == ""


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ([], "none"),
        (["allreduce"], "dp"),
        (["reduce_scatter", "all_gather"], "sharded"),
        (["allreduce", "all_to_allv"], "dp+ep"),
        (["send"], "pp"),
        (["recv", "allreduce", "_reduce_scatter_base"], "dp+sharded+pp"),
        (["broadcast"], "none"),
    ],
)
def test_collectives_tell_how_the_work_is_divided(kinds: list[str], name: str) -> None:
    events = [operator(Op("aten::add")), *(collective(kind, 1, 2, at) for at, kind in enumerate(kinds))]
    assert describe([read_kineto(kineto(events))]).parallelism == name


MULTIPLIED = Op("aten::mm", ([256, 1024], [1024, 8192]), "c10::Half")  # takes 2**18 elements, gives 2**21


@pytest.mark.parametrize(
    ("kind", "elements", "group", "name"),
    [
        ("allreduce", 1 << 21, "default_pg", "tp"),
        ("_reduce_scatter_base", 1 << 21, "", "tp"),
        ("allreduce", (1 << 21) + 1, "default_pg", "dp"),
        ("allreduce", 1 << 23, "", "dp"),  # the weight's gradient
        ("allreduce", 1 << 21, "DATA_PARALLEL_GROUP", "dp"),
        ("allreduce", 7, "TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("allreduce", 7, "TENSOR_AND_DATA_PARALLEL_GROUP", "dp"),
        ("send", 1 << 21, "mesh_cp", "cp"),
        ("allgather", 1 << 21, "", "none"),
    ],
)
def test_sums_of_activations_or_the_groups_name_tell_tensor_parallelism(
    kind: str, elements: int, group: str, name: str
) -> None:
    event = collective(kind, elements, 8, 9, "Half")
    event["args"]["Process Group Description"] = group
    assert describe([read_kineto(kineto([operator(MULTIPLIED), event]))]).parallelism == name


def test_rows_are_those_of_most_multiplications_so_that_gradients_of_weights_are_none() -> None:
    for_weight = Op("aten::mm", ([8192, 256], [256, 1024]), "c10::Half")
    for_input = Op("aten::mm", ([256, 8192], [8192, 1024]), "c10::Half")
    step = [operator(op) for op in (MULTIPLIED, for_input, for_weight)]
    gradient = collective("allreduce", 1 << 23, 8, 9, "Half")
    assert describe([read_kineto(kineto([*step, gradient]))]).parallelism == "dp"
    square = Op("aten::mm", ([2048, 1024], [1024, 1024]), "c10::Half")  # as large as its weight's gradient in 32 bits
    gradient = collective("allreduce", 1 << 20, 8, 9, "Float")
    assert describe([read_kineto(kineto([operator(square), gradient]))]).parallelism == "dp"


@pytest.mark.parametrize(("narrow", "wide", "name"), [(3, 1, "fp8"), (1, 3, "bf16")])
def test_fp8_is_the_precision_where_most_multiplications_are_of_it(narrow: int, wide: int, name: str) -> None:
    norm = [Op("aten::layer_norm", ([2, 4], [], [4]), "c10::BFloat16")] * 9
    scaled = [Op("aten::_scaled_mm", ([2, 4], [4, 4], []), "c10::Float8_e4m3fn")] * narrow
    assert described([*norm, *scaled, *[Op("aten::mm", ([2, 4], [4, 4]), "c10::BFloat16")] * wide]).precision == name


def test_kernels_tell_fp8_where_no_operator_does_also_behind_graphs() -> None:
    head = operator(Op("aten::mm", ([2, 4], [4, 4]), "c10::BFloat16"))
    engine = [kernel("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n")] * 3 + [kernel("nvjet_tst_64x8")]
    assert describe([read_kineto(kineto([head, *engine]))]).precision == "fp8"
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 1, "dur": 1}
    assert describe([read_kineto(kineto([launch, *engine]))]).precision == "fp8"
    assert describe([read_kineto(kineto([launch, *engine[3:]]))]).precision == ""


def test_versions_and_kernel_families_of_all_ranks_are_gathered() -> None:
    ranks = [
        kineto([operator(Op("aten::add")), kernel("ncclDevKernel")], cuda_runtime_version=12040),
        kineto([kernel("volta_sgemm")], pharoah_versions={"torch": "2.6"}),
    ]
    found = describe([read_kineto(rank) for rank in ranks])
    assert found.versions == (("cuda", "12.4"), ("torch", "2.6"))
    assert found.kernel_families == {"collective", "cublas_gemm"}


def test_sizes_of_no_weight_are_left_open() -> None:
    call = Op("aten::mul", ([6, 256, 255], [100, 1024]), "float")
    assert ("aten::mul", (ANY_SIZE, ANY_SIZE, ANY_SIZE, BETWEEN_TENSORS, ANY_SIZE, 10)) in described(
        [*GPT.step(), call]
    ).operators


# ---- files ---------------------------------------------------------------------------------------------------------


def test_files_of_every_form_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(profiled([GPT.step()]))
    (tmp_path / "rank1.json.gz").write_bytes(gzip.compress(nodes([GPT.step()])))
    with tarfile.open(tmp_path / "rest.tar.gz", "w:gz") as archive:
        for name in ("rank0.json", "rank1.json.gz"):
            archive.add(tmp_path / name, name)
    files = [tmp_path / name for name in ("rank0.json", "rank1.json.gz", "rest.tar.gz")]
    assert [trace.file.rpartition(":")[2].rpartition("/")[2] for trace in read_traces(files)] == [
        *("rank0.json", "rank1.json.gz", "rank0.json", "rank1.json.gz")
    ]
    for file in files:
        assert describe_files([file]).structure == REFERENCE.structure
    assert describe_files(files).operators == REFERENCE.operators


def on_device(device: int) -> dict[str, Any]:
    return {**kernel("gemm"), "args": {"device": device, "stream": 7}}


@pytest.mark.parametrize(
    "marks",
    [
        [annotation("DataParallel.forward", 5.0)],
        [operator(Op("Scatter")), operator(Op("Broadcast")), operator(Op("Gather"))],
        [{**operator(Op("torch/nn/parallel/data_parallel.py(156): forward")), "cat": "python_function"}],
    ],
)
def test_data_parallel_of_one_process_is_told_with_the_number_of_its_devices(marks: list[Any]) -> None:
    step = [operator(op) for op in GPT.step()]
    found = describe([read_kineto(kineto([*step, *marks, *map(on_device, range(4))]))])
    assert (found.parallelism, found.replicas) == ("dp", 4)
    assert rungs(found, ()).inputs == rungs(replace(found, replicas=2), ()).inputs


@pytest.mark.parametrize(
    "marks",
    [
        [],
        [operator(Op("aten::gather")), operator(Op("aten::scatter"))],
        [annotation("DistributedDataParallel.forward", 5.0)],
    ],
)
def test_layers_of_one_process_on_several_devices_are_no_replicas(marks: list[Any]) -> None:
    step = [operator(op) for op in GPT.step()]
    found = describe([read_kineto(kineto([*step, *marks, *map(on_device, range(4))]))])
    assert (found.parallelism, found.replicas) == (REFERENCE.parallelism, 1)


def test_an_nccl_log_among_the_traces_adds_its_version_and_nothing_else(tmp_path: Path) -> None:
    trace, log = tmp_path / "rank0.json", tmp_path / "nccl.log"
    trace.write_bytes(profiled([GPT.step()]))
    init = "gpu-a:31:99 [2] NCCL INFO comm 0x5 rank 0 nranks 16 cudaDev 2 - Init COMPLETE\n"
    log.write_text("NCCL version 2.21.5+cuda12.2\n" + init)
    for order in ([trace, log], [log, trace]):
        assert describe_files(order) == replace(REFERENCE, versions=(*REFERENCE.versions, ("nccl", "2.21.5")))
    log.write_text(init)
    assert describe_files([trace, log]) == REFERENCE
    with pytest.raises(NothingToDescribe, match=r"no operator in .*nccl"):
        describe_files([log])


def test_files_that_are_no_traces_are_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    for data, form in (
        (b"", "an empty file"),
        (b"{}", "other JSON"),
        (b"hello", "text"),
        (b'{"schema": 1}', "other JSON"),
    ):
        path.write_bytes(data)
        with pytest.raises(SourceError, match=rf"notes\.json, byte 0: not a trace: {form}"):
            read_traces([path])
    path.write_bytes(profiled([GPT.step()]))
    with pytest.raises(SourceError, match="events"):
        read_traces([path], ReadLimits(records=5))
