import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from federation.base.reading import CappedReader, ReadLimits, SourceError
from tenant_client.doctor.sources import closed_pickle
from tenant_client.doctor.sources.flight_recorder import (
    CollectiveState,
    Dump,
    Group,
    Operation,
    looks_like,
    rank_in_name,
    read_dump,
    read_dumps,
)
from tests.support.waiting import PATIENCE_S

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
RUNS = DATA / "flight_recorder"


def of_bytes(data: bytes, name: str = "dump_3", limits: ReadLimits | None = None) -> Dump:
    return read_dump(CappedReader(io.BytesIO(data), name, 1 << 30), limits or ReadLimits())


def an_entry(**changes: Any) -> dict[str, Any]:
    entry = {
        "record_id": 7,
        "pg_id": 2,
        "process_group": ("35", "TENSOR_MODEL_PARALLEL_GROUP"),
        "collective_seq_id": 41,
        "p2p_seq_id": 0,
        "op_id": 41,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_758_610_505_947_721_376,
        "input_sizes": [[4096, 5120]],
        "output_sizes": [[4096, 5120]],
        "input_dtypes": ["BFloat16"],
        "output_dtypes": ["BFloat16"],
        "state": "started",
        "retired": False,
        "is_p2p": False,
        "timeout_ms": 180_000,
        "frames": [
            {"name": "all_reduce", "filename": "/site-packages/torch/distributed/distributed_c10d.py", "line": 3245},
            {"name": "step", "filename": "train.py", "line": 88},
        ],
    }
    return entry | changes


def a_dump(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": "2.10",
        "pg_config": {"35": {"name": "35", "desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": "[2, 3]"}},
        "pg_status": {"2": {"last_enqueued_collective": "41", "last_completed_collective": 40}},
        "entries": list(entries) or [an_entry()],
    } | changes


def as_json(dump: dict[str, Any]) -> bytes:
    return json.dumps(dump).encode()


# ---- what is read --------------------------------------------------------------------------------------------------


def every_form() -> list[bytes]:
    return [as_json(a_dump()), *(pickle.dumps(a_dump(), protocol) for protocol in (2, 3, 4, 5))]


@pytest.mark.parametrize("data", every_form(), ids=["json", "pickle 2", "pickle 3", "pickle 4", "pickle 5"])
def test_every_form_of_a_dump_reads_the_same(data: bytes) -> None:
    dump = of_bytes(data)
    assert (dump.rank, dump.file) == (3, "dump_3")
    assert dump.groups == (Group("35", "TENSOR_MODEL_PARALLEL_GROUP", (2, 3)),)
    size = ((4096, 5120),)
    assert dump.operations == (Operation("nccl", "all_reduce", None, size, size, ("BFloat16",), ("BFloat16",)),)
    assert dump.places == ("", "train.py:88 in step")
    assert dump.records.state.tolist() == [CollectiveState.STARTED]
    assert dump.records.seq.tolist() == [41]
    assert (dict(dump.status), dump.numbers, dump.complete) == ({2: (41, 40)}, (2,), False)


def test_a_profile_that_names_its_groups_is_no_dump() -> None:
    profile = {"cupti_version": 28, "distributedInfo": {"pg_config": []}, "traceEvents": []}
    assert looks_like(as_json(a_dump()), "dump_0.json")
    assert not looks_like(as_json(profile), "rank0.pt.trace.json")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_3", 3),
        ("nccl_trace_rank_12", 12),
        ("nccl_trace_rank_12.json.gz", 12),
        ("rank7.pkl", 7),
        ("5", 5),
        ("fault_injection.log", None),
        ("notes_2.txt", None),
    ],
)
def test_the_rank_is_at_the_end_of_the_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_a_rank_inside_wins_over_the_name_and_one_is_needed() -> None:
    assert of_bytes(as_json(a_dump(rank=9)), "dump").rank == 9
    with pytest.raises(SourceError, match="no rank"):
        of_bytes(as_json(a_dump()), "dump")


def test_sends_and_receives_name_source_and_target() -> None:
    names = ["nccl:send 1->2", "nccl:recv 1<-2"]
    dump = of_bytes(as_json(a_dump(*(an_entry(record_id=at, profiling_name=name) for at, name in enumerate(names)))))
    assert [(one.kind, one.peers) for one in dump.operations] == [("send", (1, 2)), ("recv", (2, 1))]


def test_gloo_work_that_is_retired_is_complete_and_its_nameless_group_is_the_default_one() -> None:
    gloo = an_entry(profiling_name="gloo:barrier", state="scheduled", retired=True, process_group=("0", "default_pg"))
    dump = of_bytes(as_json(a_dump(gloo, pg_config={"": {"name": "", "desc": "", "ranks": "[0, 1]"}})))
    assert dump.records.state.tolist() == [CollectiveState.COMPLETED]
    assert Group("0", "default_pg", (0, 1)) in dump.groups


def test_nccl_work_that_was_retired_by_a_timeout_is_not_complete() -> None:
    assert of_bytes(as_json(a_dump(an_entry(retired=True)))).records.state.tolist() == [CollectiveState.STARTED]


def test_a_folder_is_read_by_rank_names_only_and_a_broken_dump_can_be_passed_over(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(as_json(a_dump()))
    (tmp_path / "dump_1.gz").write_bytes(gzip.compress(pickle.dumps(a_dump())))
    (tmp_path / "dump_2").write_bytes(as_json(a_dump())[:-20])
    (tmp_path / "readme.txt").write_text("not a dump")
    refused: list[SourceError] = []
    assert [dump.rank for dump in read_dumps(tmp_path, refused=refused.append)] == [0, 1]
    assert [Path(error.file).name for error in refused] == ["dump_2"]
    with pytest.raises(SourceError, match="dump_2"):
        list(read_dumps(tmp_path))


# ---- what is refused -----------------------------------------------------------------------------------------------


class Runs:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "ran"
    harmful = pickle.dumps(a_dump(comm_lib_version=Runs(target)), protocol)
    pickle.loads(harmful)  # noqa: S301 - the attack is real
    assert target.exists()
    target.unlink()
    with pytest.raises(SourceError, match="dump_3, "):
        of_bytes(harmful)
    assert not target.exists()


def test_the_unpickler_itself_finds_nothing() -> None:
    for data in (b"\x80\x02cos\nsystem\n.", b"\x80\x02Pid\n.", b"\x80\x02K\x01Q."):
        with pytest.raises(pickle.UnpicklingError, match="refers to"):
            closed_pickle.Closed(io.BytesIO(data)).load()


HUGE = 0x7FFFFFFF
BOMBS = {
    "bytes of 2 GB": b"\x80\x02B" + struct.pack("<I", HUGE) + b"x.",
    "bytes of an exabyte": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.",
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "string of 2 GB": b"\x80\x02X" + struct.pack("<I", HUGE) + b"x.",
    "frame of an exabyte": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    "long of 2 GB": b"\x80\x02\x8b" + struct.pack("<i", HUGE) + b"x.",
    "long as text": b"\x80\x02L" + b"9" * 1_000_000 + b"L\n.",
    "memo of 32 GB": b"\x80\x02}r\xff\xff\xff\xff.",
    "memo of 32 GB after a string": b"\x80\x02X\x01\x00\x00\x00ar\xff\xff\xff\xff.",
    "nested lists": b"\x80\x02" + b"](" * 1_000_000 + b"e" * 1_000_000 + b".",
    "nested tuples as a key": b"\x80\x02})" + b"\x85" * 1_000_000 + b"Ns.",
    "doubled tuples as a key": b"\x80\x02})" + b"".join(b"q%ch%c\x86" % (at, at) for at in range(60)) + b"Ns.",
    "pairs of pairs as a key": b"\x80\x02}X\x01\x00\x00\x00aq\x00" + b"h\x00\x86" * 1_000_000 + b"Ns.",
    "a record a million times": b"\x80\x02}X\x07\x00\x00\x00entriesq\x00](}u"
    + b"q\x01"
    + b"h\x01" * 1_000_000
    + b"es.",
    "lists of lists of lists": b"\x80\x02]("
    + b"q\x00]("
    + b"".join(b"h%c" % at * 100 + b"eq%c](" % (at + 1) for at in range(20))
    + b"e.",
    "a list within itself": b"\x80\x02]q\x00h\x00a.",
    "empty stack": b"\x80\x02.",
    "empty stack in protocol 4": b"\x80\x04.",
    "items for nobody": b"\x80\x02(K\x01K\x02u.",
    "mark that is not there": b"\x80\x02u.",
    "memo that is not there": b"\x80\x02h\x05.",
    "json nested": b'{"version": "2.1", "entries": ' + b"[" * 200_000,
    "json nested where not read": b'{"version": "2.1", "other": ' + b"[" * 200_000,
}


def test_a_list_in_two_places_is_read_and_one_that_explodes_is_not() -> None:
    """As Python pickles records that share the sizes of their tensors."""
    sizes, frames = [[4096, 5120]], an_entry()["frames"]
    shared = {"input_sizes": sizes, "output_sizes": sizes, "frames": frames}
    apart = a_dump(*(an_entry(record_id=at) for at in range(3)))
    for protocol in (2, 4, 5):
        dump = of_bytes(pickle.dumps(a_dump(*(an_entry(record_id=at, **shared) for at in range(3))), protocol))
        assert dump.operations == of_bytes(as_json(apart)).operations
        assert len(dump.records.seq) == 3
    nested: list[object] = [0] * 1000
    for _ in range(8):
        nested = [nested] * 1000
    with pytest.raises(SourceError, match="too many places"):
        of_bytes(pickle.dumps(a_dump(an_entry(input_sizes=nested))))


@pytest.mark.nightly
@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_and_broken_pickles_end_in_a_source_error_with_file_and_position(data: bytes) -> None:
    with pytest.raises(SourceError) as caught:
        of_bytes(data)
    assert caught.value.file == "dump_3"
    assert caught.value.position is not None


def test_bombs_take_no_memory() -> None:
    """All of them in a process of its own that may have 1 GB of address space beyond what it starts with."""
    program = f"""
import io, resource
from tenant_client.doctor.sources.flight_recorder import read_dump
from federation.base.reading import CappedReader, SourceError
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for data in {sorted((data for data in BOMBS.values() if len(data) < 1000), key=len)!r}:
    try:
        read_dump(CappedReader(io.BytesIO(data), "dump_3", 1 << 30))
    except SourceError:
        pass
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S, env=env)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"version": "1.0"}, "version"),
        ({"version": 2}, r"\$\.version"),
        ({"entries": "none"}, r"\$\.entries"),
        ({"entries": [an_entry(collective_seq_id=1 << 70)]}, "collective_seq_id"),
        ({"entries": [an_entry(state="lost")]}, "record 7"),
        ({"entries": [an_entry(profiling_name="nccl:send 1=>2")]}, "profiling_name"),
        ({"pg_config": {"35": {"name": "35", "ranks": "__import__('os').abort()"}}}, "pg_config"),
        ({"pg_config": {"35": {"name": "35", "ranks": "[0, -5]"}}}, "pg_config"),
        ({"pg_status": {"2": {"last_enqueued_collective": "many"}}}, "pg_status"),
        ({"pg_status": {"2": {"last_completed_collective": 1 << 63}}}, "pg_status"),
        ({"pg_status": {"2": {"last_completed_collective": "9" * 5000}}}, "pg_status"),
    ],
)
def test_fields_of_another_shape_are_refused_by_name(change: dict[str, Any], where: str) -> None:
    for data in (as_json(a_dump(**change)), pickle.dumps(a_dump(**change))):
        with pytest.raises(SourceError, match=where):
            of_bytes(data)


def test_a_dump_of_too_many_records_is_refused() -> None:
    with pytest.raises(SourceError, match="more than 1 records"):
        of_bytes(as_json(a_dump(an_entry(), an_entry(record_id=8))), limits=ReadLimits(records=1))


@pytest.mark.parametrize("data", every_form())
def test_a_dump_cut_anywhere_ends_in_a_source_error(data: bytes) -> None:
    for length in range(0, len(data) - 1, 7):
        with pytest.raises(SourceError):
            of_bytes(data[:length])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_bytes_become_a_dump_or_a_source_error(data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from(every_form())))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=8)):
        whole[at] = byte
    with suppress(SourceError):
        of_bytes(bytes(whole))


# ---- what the world writes -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not RUNS.exists(), reason=f"{RUNS} is missing")
@pytest.mark.parametrize("run", ["gpu_error_1st", "lock_gil_1st"])
def test_recorded_dumps_take_the_fast_way_and_read_alike_in_every_form(run: str, tmp_path: Path) -> None:
    for dump in read_dumps(RUNS / run):
        data = Path(dump.file).read_bytes()
        assert closed_pickle.is_of_pytorch(data)
        loaded = closed_pickle.Closed(io.BytesIO(data)).load()
        assert closed_pickle.build(data, dump.file) == loaded
        for form in (pickle.dumps(loaded), as_json(loaded)):
            again = of_bytes(form, f"dump_{dump.rank}")
            assert (again.groups, again.operations, again.status) == (dump.groups, dump.operations, dump.status)
            assert again.records.seq.tolist() == dump.records.seq.tolist()
