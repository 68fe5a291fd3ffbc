"""Execution traces: two schemas, one meaning; broken ones are refused and values are not kept."""

import io
import json
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from federation.base.reading import CappedReader, ReadLimits, SourceError
from tenant_client.doctor.sources import execution_trace as module
from tenant_client.doctor.sources.trace import Call, Collective
from tests.support.traces import Op, dumped, kineto, nodes, read_execution_trace

LINEAR = Op("aten::linear", ([2, 3], [4, 3], []))
CALL = Call("aten::linear", (((2, 3),), ((4, 3),), ()), ("Tensor(float)", "Tensor(float)", "Int"))
OLD, NEW = "1.0.1", "1.1.1-chakra.0.0.4"


@pytest.mark.parametrize("schema", [OLD, "1.0.3-chakra.0.0.4", NEW])
def test_every_schema_gives_the_same_calls(schema: str) -> None:
    trace = read_execution_trace(nodes([[LINEAR, Op("aten::relu", ([2, 4],)), LINEAR]], schema))
    assert trace.calls == {CALL: 2, Call("aten::relu", (((2, 4),),), ("Tensor(float)",)): 1}
    assert (trace.file, trace.rank, trace.kernels, trace.versions) == ("rank0", None, {}, {})


def test_collectives_stand_in_the_order_of_their_ids() -> None:
    ops = [Op("nccl:all_reduce", ([4, 4],)), LINEAR, Op("nccl:all_to_all", ([2],), "c10::Half")]
    expected = [Collective("all_reduce", 0, 64, 0.0), Collective("all_to_all", 0, 4, 2.0)]
    for schema in (OLD, NEW):
        assert read_execution_trace(nodes([ops], schema)).collectives == expected
    shuffled = json.loads(nodes([ops]))
    shuffled["nodes"].reverse()
    assert read_execution_trace(dumped(shuffled)).collectives == expected


def test_an_operator_past_c10d_counts_once_however_deep_it_calls_others() -> None:
    ops = [Op("vllm::all_reduce", ([4, 4], [])), Op("symm_mem::one_shot_all_reduce", ([4, 4],)), LINEAR]
    ops += [Op("vllm::all_gather", ([8],)), Op("record_param_comms", ([8],)), Op("nccl:all_gather", ([8],))]
    expected = [Collective("all_reduce", 0, 64, 0.0), Collective("all_gather", 0, 32, 5.0)]
    for key in ("parent", "ctrl_deps"):
        called = json.loads(nodes([ops]))
        for inner, outer in ((1, 0), (4, 3), (5, 4)):
            called["nodes"][inner][key] = outer
        assert read_execution_trace(dumped(called)).collectives == expected
    assert len(read_execution_trace(nodes([ops[:3]])).collectives) == 2


def test_marks_of_iterations_are_found() -> None:
    steps = [[Op(f"ProfilerStep#{number}"), LINEAR] for number in range(3)]
    assert read_execution_trace(nodes(steps)).steps == [0, 2, 4]


@pytest.mark.parametrize("inputs", [None, [], [1, "x"], {}, {"shapes": None, "types": 5}, {"shapes": {}, "types": [1]}])
def test_nodes_without_shapes_count_by_name(inputs: Any) -> None:
    trace = read_execution_trace(dumped({"schema": NEW, "nodes": [{"name": "aten::linear", "inputs": inputs}]}))
    (call,) = trace.calls
    assert (call.name, call.arguments) == ("aten::linear", ())


def test_what_is_no_execution_trace_is_refused() -> None:
    for data in (b"", b"{}", b"[]", b'{"nodes": 5}', b'{"nodes": [5]}', b'{"nodes": [{"name": 5}]}', kineto([])):
        refused(data)


def refused(data: bytes, limits: ReadLimits | None = None) -> str:
    with pytest.raises(SourceError) as failure:
        read_execution_trace(data, limits or ReadLimits())
    assert failure.value.what.startswith("rank0, byte ")
    return failure.value.what


def test_a_trace_that_is_cut_off_anywhere_is_refused() -> None:
    data = nodes([[LINEAR, LINEAR]])
    for cut in range(len(data)):
        assert "not an execution trace" in refused(data[:cut])


def test_there_may_be_as_many_nodes_and_bytes_as_the_caps_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    data = nodes([[LINEAR] * 10])
    assert read_execution_trace(data, ReadLimits(records=10)).calls == {CALL: 10}
    assert refused(data, ReadLimits(records=9)).endswith("more than 9 nodes")
    monkeypatch.setattr(module, "_MOST_BYTES", len(data))
    assert read_execution_trace(data).calls == {CALL: 10}
    assert refused(data + b" ").endswith(f"more than {len(data)} bytes")


@pytest.mark.parametrize("depth", [5_000, 200_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    assert "recursion" in refused(f'{{"nodes": [{{"inputs": {{"shapes": {nested}}}}}]}}'.encode())
    assert "recursion" in refused(f'{{"nodes": [{{"x": {nested}}}]}}'.encode())


@given(data=st.binary(max_size=100), wrapped=st.booleans())
@example(data=b'{"name":"\xff"}', wrapped=True)
@example(data=b'{"inputs":{"shapes":["\xff"]}}', wrapped=True)
@settings(max_examples=150)
def test_any_bytes_give_a_trace_or_a_source_error(data: bytes, *, wrapped: bool) -> None:
    said = read_or_refused(b'{"schema":"1","nodes":[' + data + b"]}" if wrapped else data)
    assert said.startswith("rank0, byte ") or not said


@given(place=st.integers(0, 600), length=st.integers(0, 3), instead=st.binary(max_size=3))
@settings(max_examples=150)
def test_any_damage_gives_a_trace_or_a_source_error(place: int, length: int, instead: bytes) -> None:
    data = nodes([[LINEAR, Op("nccl:all_reduce", ([4],)), LINEAR]])
    said = read_or_refused(data[:place] + instead + data[place + length :])
    assert said.startswith("rank0, byte ") or not said


def read_or_refused(data: bytes) -> str:
    """What a refusal said, nothing if the bytes are a trace; any other exception is a bug."""
    try:
        return read_execution_trace(data).file.removeprefix("rank0")
    except SourceError as error:
        return error.what


def test_the_formats_are_told_apart_by_how_they_begin() -> None:
    for schema in (OLD, NEW):
        assert module.recognises(CappedReader(io.BytesIO(nodes([[LINEAR]], schema)), "f", 1 << 30).peek())
    assert not module.recognises(kineto([], {"schemaVersion": 1}))


def test_values_of_inputs_are_not_kept() -> None:
    values = ["CANARY-value", [["CANARY-tensor", 5]]]
    new = {"name": "aten::add", "id": 1, "inputs": {"values": values, "shapes": [[2]], "types": ["Tensor(float)"]}}
    old = {"name": "aten::add", "id": 2, "inputs": values, "input_shapes": [[2]], "input_types": ["Tensor(float)"]}
    attributes = [{"name": "rf_id", "value": "CANARY-attribute"}]
    for node in (new, old):
        data = dumped({"schema": NEW, "host": "CANARY-host", "nodes": [node | {"attrs": attributes}]})
        assert data.count(b"CANARY") == 4
        trace = read_execution_trace(data)
        assert trace.calls == {Call("aten::add", (((2,),),), ("Tensor(float)",)): 1}
        assert "CANARY" not in repr(trace)
