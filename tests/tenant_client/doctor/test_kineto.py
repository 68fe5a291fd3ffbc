"""Kineto traces of every year and shape: read alike in pieces of any size, and nothing kept that is a tenant's own."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from federation.base.reading import CappedReader, ReadLimits, SourceError
from tenant_client.doctor.sources import kineto as module
from tenant_client.doctor.sources.trace import Call, Collective, Trace
from tests.support.traces import Event, Op, annotation, collective, dumped, kernel, kineto, operator, read_kineto

LINEAR = Op("aten::linear", ([2, 3], [4, 3], [4]))
CALL = Call("aten::linear", (((2, 3),), ((4, 3),), ((4,),)), ("float", "float", "float"))
RELU = Op("aten::relu", ([2, 4],))
TRICKY = ['}, {"ph": "X"', '"traceEvents": [', "]}, {", '\\"}],[{"', "ünï¢ødé 火", "}\n,\t{"]


def in_pieces(data: bytes, size: int) -> Trace:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", size)
        return read_kineto(data)


def calls(trace: Trace) -> dict[str, int]:
    return {call.name: count for call, count in trace.calls.items()}


# ---- operators -----------------------------------------------------------------------------------------------------


def test_equal_calls_are_counted_once_with_shapes_and_types() -> None:
    trace = read_kineto(kineto([operator(LINEAR, 1), operator(RELU, 2), operator(LINEAR, 3)]))
    assert trace.calls == {CALL: 2, Call("aten::relu", (((2, 4),),), ("float",)): 1}
    assert trace.file == "rank0"


def test_the_spelling_of_2021_means_the_same() -> None:
    old = operator(LINEAR, category="Operator")
    old["args"]["Input dims"] = old["args"].pop("Input Dims")
    assert read_kineto(kineto([old])).calls == {CALL: 1}
    kernels = [kernel("volta_sgemm", 1, "Kernel"), kernel("Memcpy HtoD", 2, "Memcpy"), kernel("x", 3, "gpu_memset")]
    assert read_kineto(kineto(kernels)).kernels == {"volta_sgemm": 1, "memcpy": 1, "memset": 1}


@pytest.mark.parametrize("category", ["cpu_op", "CPU_OP", "operator", "Operator"])
def test_categories_count_in_either_case(category: str) -> None:
    assert calls(read_kineto(kineto([operator(LINEAR, category=category)]))) == {"aten::linear": 1}


@pytest.mark.parametrize("category", ["python_function", "cuda_runtime", "ac2g", "Trace", "user_annotation", ""])
def test_other_categories_are_no_operators(category: str) -> None:
    trace = read_kineto(kineto([operator(LINEAR, category=category)]))
    assert (trace.calls, trace.kernels) == ({}, {})


@pytest.mark.parametrize(
    ("dims", "arguments"),
    [
        ([[2, 3], [], [4]], (((2, 3),), (), ((4,),))),
        ([[[2, 3], [4]], [5]], (((2, 3), (4,)), ((5,),))),
        ([[[], [4]], "x", None, 3, {}], (((4,),), (), (), (), ())),
        ([[2.5, 3], [True, 2], [-1]], ((), (), ())),
        ([[1 << 62], [1 << 63], [1 << 70]], (((1 << 62,),), (), ())),
        ([], ()),
        ({}, ()),
        ("text", ()),
        (None, ()),
    ],
)
def test_dimensions_are_those_of_tensors_and_lists_of_tensors(dims: Any, arguments: Any) -> None:
    event = operator(LINEAR)
    event["args"]["Input Dims"] = dims
    (call,) = read_kineto(kineto([event])).calls
    assert call.arguments == arguments


@pytest.mark.parametrize("args", [{}, [], None, "text", {"Input Dims": [[1]], "Input type": 5}])
def test_calls_without_shapes_or_types_count_by_name(args: Any) -> None:
    event = operator(LINEAR) | {"args": args}
    (call,) = read_kineto(kineto([event])).calls
    assert (call.name, call.types) == ("aten::linear", ())
    del event["args"]
    assert calls(read_kineto(kineto([event]))) == {"aten::linear": 1}


# ---- the form of the file ------------------------------------------------------------------------------------------


def test_a_bare_list_is_a_trace() -> None:
    for blank in (b"", b" \n"):
        trace = read_kineto(blank + dumped([operator(LINEAR), kernel("k")]) + blank)
        assert (calls(trace), trace.kernels) == ({"aten::linear": 1}, {"k": 1})
    assert read_kineto(b"[]") == Trace("rank0")


@pytest.mark.parametrize("odd", [[1, {"ph": "X"}], 5, "text", None, {"name": 5}, {"cat": ["x"]}, {"ts": {}}, [[]]])
def test_events_that_are_something_else_are_left_out(odd: Any) -> None:
    for events in ([odd, operator(LINEAR)], [operator(LINEAR), odd], [odd, operator(LINEAR), odd]):
        assert calls(read_kineto(kineto(events))) == {"aten::linear": 1}


@pytest.mark.parametrize("said", [None, {}, [], 5, "text", {"rank": "0"}, {"world_size": None}, {"rank": True}])
def test_without_ranks_there_are_none(said: Any) -> None:
    trace = read_kineto(kineto([operator(LINEAR)], distributedInfo=said))
    assert (trace.rank, trace.world_size, trace.versions) == (None, None, {})


def test_ranks_are_found_before_and_after_the_events() -> None:
    whole = {"backend": "nccl", "rank": 3, "world_size": 8, "nccl_version": "2.21.5", "pg_config": [{"a": 1}, {"b": 2}]}
    before = read_kineto(kineto([operator(LINEAR)], {"distributedInfo": whole}))
    after = read_kineto(kineto([operator(LINEAR)], distributedInfo=whole))
    assert before == after
    assert (after.rank, after.world_size, after.versions) == (3, 8, {"nccl": "2.21.5"})
    assert read_kineto(kineto([], {"distributedInfo": {"rank": 5}})).rank == 5


@pytest.mark.parametrize(
    ("beside", "versions"),
    [
        ({"cuda_runtime_version": 12040}, {"cuda": "12.4"}),
        ({"cuda_runtime_version": 11080}, {"cuda": "11.8"}),
        ({"hip_runtime_version": 60443483}, {"hip": "6.4.43483"}),
        ({"cuda_runtime_version": "12.4", "hip_runtime_version": None}, {}),
        ({"pharoah_versions": {"torch": "2.6", "nccl": "2.25"}}, {"torch": "2.6", "nccl": "2.25"}),
        ({"pharoah_versions": {"torch": 2, "cuda": ""}, "cuda_runtime_version": 12040}, {}),
        ({"pharoah_versions": ["torch"]}, {}),
    ],
)
def test_versions_are_read_as_people_write_them(beside: dict[str, Any], versions: dict[str, str]) -> None:
    assert read_kineto(kineto([], **beside)).versions == versions
    assert read_kineto(kineto([], beside)).versions == versions


@pytest.mark.parametrize(
    ("told", "software"),
    [({"deepspeed": "0.14.2", "linux": 6}, {"deepspeed": "0.14.2"}), (["deepspeed"], {}), (None, {})],
)
def test_further_software_is_read_apart_from_versions(told: Any, software: dict[str, str]) -> None:
    trace = read_kineto(kineto([], pharoah_software=told))
    assert (trace.software, trace.versions) == (software, {})


@pytest.mark.parametrize("keys_after", [0, 1, 2, 9])
def test_events_may_stand_anywhere_among_nested_metadata(keys_after: int) -> None:
    beside: dict[str, Any] = {
        f"deviceProperties{n}": [{"id": m, "sub": [{"a": 1}, {"b": []}]} for m in range(9)] for n in range(9)
    }
    items = list(beside.items())
    first, last = dict(items[: 9 - keys_after]), dict(items[9 - keys_after :])
    data = dumped({**first, "traceEvents": [operator(LINEAR, n) for n in range(9)], **last})
    for size in (64, 1000, 1 << 22):
        assert in_pieces(data, size).calls == {CALL: 9}


def test_unicode_stays_what_it_is_in_pieces_of_any_size() -> None:
    data = kineto([operator(Op(f"ünï::火{number}"), number) for number in range(20)])
    for size in range(1, 40):
        assert calls(in_pieces(data, size)) == {f"ünï::火{number}": 1 for number in range(20)}


def test_a_name_that_is_no_text_costs_that_event_alone() -> None:
    events = [operator(LINEAR), operator(RELU), operator(LINEAR)]
    assert calls(read_kineto(kineto(events).replace(b"aten::relu", b"aten::\xff\xfe"))) == {"aten::linear": 2}


# ---- pieces --------------------------------------------------------------------------------------------------------


def a_mixture(extra: Sequence[Any] = ()) -> list[Any]:
    odd = operator(RELU, 2, note='}, {"a"', more=[{"b": 1}, {"c": [{"d": {}}, {"e": 2}]}])
    return [
        *(
            operator(LINEAR, 1.5),
            odd,
            [7, {"x": 1}, {"y": 2}],
            *extra,
            kernel("a}, {b"),
            collective("allreduce", 9, 2, "3"),
        ),
        *(annotation("ProfilerStep#1", 0), annotation("ProfilerStep#2", 9.5), operator(LINEAR, 4)),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100])
def test_an_event_may_begin_at_every_offset_of_a_piece(size: int) -> None:
    for offset in range(max(size, 8)):
        data = kineto(a_mixture(), {"pad": "x" * offset}, distributedInfo={"rank": 1, "pg": [{"a": 1}, {"b": 2}]})
        expected = read_kineto(data)
        assert expected.calls[CALL] == 2
        assert expected.steps == [0, 9.5]
        assert in_pieces(data, size) == expected


json_values = st.recursive(
    st.none() | st.integers(-5, 5) | st.sampled_from(TRICKY) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", *TRICKY]), inner, max_size=3),
    max_leaves=8,
)
events = st.one_of(
    st.builds(lambda ts, more: operator(LINEAR, ts, more=more), st.integers(0, 9) | st.floats(0, 9), json_values),
    st.builds(lambda name: kernel(name, 1), st.sampled_from(TRICKY)),
    st.builds(lambda ts: collective("all_gather", 4, 2, ts), st.floats(0, 9)),
    st.lists(json_values, max_size=2),
)


@pytest.mark.nightly
@given(
    events=st.lists(events, max_size=12),
    before=st.dictionaries(st.sampled_from(TRICKY), json_values, max_size=2),
    after=st.dictionaries(st.sampled_from(TRICKY), json_values, max_size=2),
    size=st.integers(1, 200),
    indent=st.sampled_from([None, 0, 2]),
)
@settings(max_examples=80)
def test_pieces_of_any_size_give_the_same_trace(
    events: list[Any], before: Mapping[str, Any], after: Mapping[str, Any], size: int, indent: int | None
) -> None:
    data = json.dumps({**before, "traceEvents": events, **after}, indent=indent, ensure_ascii=False).encode()
    trace = read_kineto(data)
    assert in_pieces(data, size) == trace
    assert trace.calls[CALL] == sum(isinstance(event, dict) and event["name"] == LINEAR.name for event in events)
    bare = json.dumps(events, indent=indent).encode()
    assert in_pieces(bare, size).calls == trace.calls


# ---- broken traces -------------------------------------------------------------------------------------------------


def refused(data: bytes, limits: ReadLimits | None = None, size: int = 1 << 22) -> SourceError:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", size)
        with pytest.raises(SourceError) as failure:
            read_kineto(data, limits or ReadLimits())
    assert failure.value.file == "rank0"
    assert failure.value.what.startswith("rank0, byte ")
    return failure.value


def test_a_trace_that_is_cut_off_anywhere_is_refused() -> None:
    data = kineto(a_mixture(), distributedInfo={"rank": 1})
    for cut in range(0, len(data), 5):
        for size in (64, 1 << 22):
            found = refused(data[:cut], size=size)
            assert isinstance(found.position, int)
            assert 0 <= found.position <= cut


def test_the_position_of_a_fault_is_within_a_piece_of_it() -> None:
    whole = [operator(LINEAR, number) for number in range(100)]
    data = bytearray(kineto(whole))
    place = data.index(b'"ts": 70,')
    data[place] = ord("!")
    found = refused(bytes(data), size=1000)
    assert isinstance(found.position, int)
    assert place - 1500 < found.position <= place


def test_what_is_no_trace_is_refused() -> None:
    for data in (b"", b"{}", b'{"traceEvents": null}', b"null", b'"traceEvents": [', b'{"schemaVersion": 1}'):
        refused(data)
    for data in (kineto([]) + b"x", b"[]]", b'{"traceEvents": [{},]}', b'{,"traceEvents": []}'):
        refused(data)


@pytest.mark.parametrize("place", ['"args": {"Input Dims": ', '"args": ', '"x": '])
@pytest.mark.parametrize("depth", [500, 950, 5_000, 200_000])
def test_nesting_of_any_depth_ends_well(place: str, depth: int) -> None:
    nested = f'{{"cat": "cpu_op", "name": "aten::a", {place}{"[" * depth}{"]" * depth}{"}" * place.count("{")}}}'
    for data in (f'{{"traceEvents": [{nested}]}}', f'{{"a": {"[" * depth}{"]" * depth}, "traceEvents": []}}'):
        said = read_or_refused(data.encode())
        assert "recursion" in said if depth >= 5_000 else not said or depth == 950


def test_there_may_be_as_many_events_as_the_cap_and_no_more() -> None:
    data = kineto([operator(LINEAR, number) for number in range(50)])
    for size in (64, 1 << 22):
        assert in_pieces(data, size).calls == {CALL: 50}
        assert refused(data, ReadLimits(records=49), size).what.endswith("more than 49 events")
    assert read_kineto(data, ReadLimits(records=50)).calls == {CALL: 50}


def test_an_event_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST", 1000)
    data = kineto([operator(LINEAR), operator(RELU, note="x" * 2000), operator(LINEAR)])
    assert refused(data, size=100).what.endswith("no event ended within 1000 bytes")
    assert refused(b'{"x": "' + b"x" * 5000, size=100).what.endswith("no traceEvents")


class Counting(io.BytesIO):
    """Bytes that remember how often they were asked for."""

    asked = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.asked += 1
        return super().read(size)


def test_the_time_for_a_broken_trace_grows_with_its_length_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 100)
    broken = kineto([operator(LINEAR, number) for number in range(200)]).replace(b'"ts": 0,', b'"ts": },')
    for data in (broken, broken.replace(b"traceEvents", b"events")):
        counting = Counting(data)
        with pytest.raises(SourceError):
            module.read(CappedReader(counting, "rank0", 1 << 30))
        assert len(data) > 40_000
        assert counting.asked < 20


@pytest.mark.parametrize(
    "args",
    [
        '{"Input Dims": ' + "1" * 5000 + "}",
        '{"Input Dims": [[' + "1" * 5000 + "]]}",
        '{"Collective name": "allreduce", "In msg nelems": 1e999}',
        '{"Collective name": "allreduce", "In msg nelems": ' + "1" * 5000 + "}",
        '{"Collective name": 5}',
        '{"Collective name": "all\udcff", "Group size": 2}',
        '{"Input type": ["\udcff"]}',
    ],
)
def test_arguments_that_nothing_can_hold_count_as_absent(args: str) -> None:
    data = '{"traceEvents": [{"cat": "cpu_op", "name": "record_param_comms", "ts": 1, "args": %s}]}' % args  # noqa: UP031
    trace = read_kineto(data.encode(errors="surrogateescape"))
    assert list(trace.calls) == [Call("record_param_comms")]
    assert trace.collectives == []


@given(data=st.binary(max_size=200), wrapped=st.booleans())
@example(data=b'{"cat":"cpu_op","name":"\xff"}', wrapped=True)
@example(data=b'{"cat":"cpu_op","name":"a","args":{"Input type":["\xff"]}}', wrapped=True)
@example(data=b"\xff\xfe", wrapped=False)
@settings(max_examples=200)
def test_any_bytes_give_a_trace_or_a_source_error(data: bytes, *, wrapped: bool) -> None:
    said = read_or_refused(b'{"traceEvents":[' + data + b"]}" if wrapped else data)
    assert said.startswith("rank0, byte ") or not said


@given(
    damage=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3), st.binary(max_size=3)), min_size=1, max_size=5),
    size=st.integers(30, 400),
)
@settings(max_examples=200)
def test_any_damage_gives_a_trace_or_a_source_error(damage: list[tuple[int, int, bytes]], size: int) -> None:
    data = kineto(a_mixture(), {"distributedInfo": {"rank": 1}}, cuda_runtime_version=12040)
    for place, length, instead in damage:
        data = data[:place] + instead + data[place + length :]
    said = read_or_refused(data, size)
    assert said.startswith("rank0, byte ") or not said


def read_or_refused(data: bytes, size: int = 1 << 22) -> str:
    """What a refusal said, nothing if the bytes are a trace; any other exception is a bug."""
    try:
        return in_pieces(data, size).file.removeprefix("rank0")
    except SourceError as error:
        return error.what


def test_a_trace_is_recognised_by_how_it_begins() -> None:
    for head in (kineto([]), b'{"schemaVersion": 1, "x"', dumped([operator(LINEAR)])):
        assert module.recognises(head)
    assert not module.recognises(b'{"schema": "1.0.1", "nodes": []}')


# ---- collectives and iterations ------------------------------------------------------------------------------------


def test_a_collective_tells_type_group_and_bytes() -> None:
    trace = read_kineto(
        kineto([collective("_allgather_base", 100, 8, 5.5, "BFloat16"), collective("allreduce", 7, 4, 2)])
    )
    assert trace.collectives == [Collective("all_reduce", 4, 28, 2.0), Collective("all_gather", 8, 200, 5.5)]


@pytest.mark.parametrize("kind", ["wait", "barrier", "init", "", "coalesced"])
def test_what_only_accompanies_collectives_is_none(kind: str) -> None:
    assert read_kineto(kineto([collective(kind, 1, 2, 0)])).collectives == []


def test_annotations_stand_in_where_no_collective_is_described() -> None:
    named = [annotation("nccl:all_reduce", 2.0, op=Op("", ([4, 2],), "c10::Half")), annotation("gloo:broadcast", 1)]
    assert read_kineto(kineto(named)).collectives == [
        Collective("broadcast", 0, 0, 1.0),
        Collective("all_reduce", 0, 16, 2.0),
    ]


def test_a_collective_that_is_told_twice_counts_once() -> None:
    both = [collective("allreduce", 100, 8, 5.0), annotation("nccl:all_reduce", 5.1, op=Op("", ([100],)))]
    for events in (both, both[::-1]):
        assert read_kineto(kineto(events)).collectives == [Collective("all_reduce", 8, 400, 5.0)]


def test_annotations_among_the_operators_of_2021_count_too() -> None:
    marks = [operator(Op(f"ProfilerStep#{number}"), 10 * number, category="Operator") for number in range(3)]
    trace = read_kineto(kineto([*marks, operator(Op("nccl:all_to_all", ([8],)), 15, category="Operator")]))
    assert trace.steps == [0, 10, 20]
    assert trace.collectives == [Collective("all_to_all", 0, 32, 15.0)]


@pytest.mark.parametrize("written", [str, int, float, lambda at: f"{at}.000"])
def test_times_may_be_text_or_numbers(written: Any) -> None:
    events = [annotation(f"ProfilerStep#{at}", written(at)) for at in (30, 4, 100)]
    assert read_kineto(kineto([*events, collective("send", 1, 2, written(50))])).steps == [4, 30, 100]
    assert read_kineto(kineto([collective("send", 1, 2, written(50))])).collectives == [Collective("send", 2, 4, 50.0)]


@pytest.mark.parametrize("ts", [None, "", "soon", "nan"])
def test_times_that_are_none_lose_no_collective(ts: Any) -> None:
    (found,) = read_kineto(kineto([collective("recv", 1, 2, ts)])).collectives
    assert (found.kind, found.group_size) == ("recv", 2)


def test_the_end_of_an_optimizers_step_marks_an_iteration_where_no_other_mark_is() -> None:
    ends = [annotation("Optimizer.step#SGD.step", 10, 5.0), annotation("Optimizer.step#SGD.step", "30", "2")]
    assert read_kineto(kineto(ends)).steps == [15.0, 32.0]
    assert read_kineto(kineto([*ends, annotation("ProfilerStep#1", 0)])).steps == [15.0, 32.0]
    marks = [annotation("ProfilerStep#1", 0), annotation("ProfilerStep#2", 20)]
    assert read_kineto(kineto([*ends, *marks])).steps == [0.0, 20.0]


# ---- secrecy -------------------------------------------------------------------------------------------------------


def test_what_is_a_tenants_own_is_not_kept() -> None:
    canaries: Event = {
        "Concrete Inputs": ["CANARY-value", "[1, 2]"],
        "Call stack": "/srv/CANARY-user/train.py(7)",
        "Module Hierarchy": "CANARY-module",
        "Process Group Description": "CANARY-group",
        "Input Strides": [["CANARY-stride"]],
    }
    called: Event = operator(LINEAR, 1, **canaries)
    function = {"ph": "X", "cat": "python_function", "name": "CANARY-function", "ts": 1, "args": canaries}
    spoken = annotation("CANARY-range", 1)
    copied = kernel("CANARY-path", category="gpu_memcpy")
    labels = {"ph": "M", "name": "process_labels", "args": {"labels": "CANARY-label"}, "pid": "CANARY-pid"}
    described = collective("allreduce", 1, 2, 3) | {"id": "CANARY-id"}
    beside = {"host_name": "CANARY-host", "traceName": "/CANARY/trace.json", "metadata": {"user": "CANARY-name"}}
    information = {"rank": 1, "pg_config": [{"pg_name": "CANARY-pg"}], "hosts": ["CANARY-host"]}
    data = kineto([called, function, spoken, copied, labels, described], beside, distributedInfo=information)
    assert data.count(b"CANARY") > 15
    trace = read_kineto(data)
    assert trace.calls[CALL] == 1
    assert trace.rank == 1
    assert "CANARY" not in repr(trace)


# ---- Ascend's trace_view.json --------------------------------------------------------------------------------------


def on_ascend(name: str, at: str, **said: Any) -> Event:
    """Work of an NPU: no category, and times as text."""
    return {"ph": "X", "name": name, "pid": 9, "tid": 2, "ts": at, "dur": 8.5, "args": {"connection_id": 1, **said}}


def test_the_view_of_ascends_profiler_is_a_bare_list_with_shapes_as_text() -> None:
    called = {"Input Dims": "2,3;\r\n4,3;\r\n;\r\n", "Input type": "float;\r\nfloat;\r\nScalar;\r\nNone"}
    operation = {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 7, "ts": "5.125", "dur": 2}
    sent = {"count": 100, "data_type": "BFP16", "alg_type": "MESH-RING-NHR"}
    events = [
        {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "Ascend Hardware"}},
        {**operation, "args": called},
        on_ascend("MatMulV3", "6.000", **{"Task Type": "AI_CORE"}),
        on_ascend("hcom_reduceScatter__381_0_1", "9.500", **sent),
        on_ascend("hcom_reduceScatter__381_0_1", "9.700", **{"Task Type": "HCCL"}),
        on_ascend("hcom_allReduce__381_1_1", "8.500", **(sent | {"data_type": "FP32"})),
        on_ascend("hcom_receive__44_0_1", "10.000"),
        on_ascend("Notify_Wait", "9.600", notify_id="1"),
        on_ascend("AscendCL@aclnnMatmul", "5.500", Mode="ACL_OP"),
    ]
    trace = read_kineto(dumped(events))
    assert trace.calls == {
        Call("aten::linear", (((2, 3),), ((4, 3),), (), ()), ("float", "float", "Scalar", "None")): 1
    }
    assert trace.collectives == [
        Collective("all_reduce", 0, 400, 8.5),
        Collective("reduce_scatter", 0, 200, 9.5),
        Collective("recv", 0, 0, 10.0),
    ]
    assert trace.kernels == {"MatMulV3": 1, "hcom_reduceScatter": 1, "hcom_allReduce": 1, "hcom_receive": 1}


@pytest.mark.parametrize("name", ["hcom_reduceScatter_AicpuKernel_503_490_1", "hcom_", "xhcom_send__1_2_3"])
def test_what_only_resembles_a_collective_of_hccl_is_none(name: str) -> None:
    assert read_kineto(dumped([on_ascend(name, "1.0", count=1)])).collectives == []
