"""Files as people have them: packed in any way, beside other files, of forms that no reader was made for."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import random
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from crypto.errors import PharoahError
from federation.base.reading import ReadLimits
from tenant_client.doctor.diagnosis.diagnose import explain, gather
from tenant_client.doctor.diagnosis.lessons import Lessons
from tenant_client.doctor.diagnosis.rank_graph import graph_of
from tenant_client.doctor.sources.nccl_inspector import read_logs
from tenant_client.doctor.sources.nccl_topology import read_topology
from tenant_client.doctor.sources.step_trace import read_step_trace
from tenant_client.doctor.workload.compare import LACKING
from tenant_client.doctor.workload.describe import describe_files
from tenant_client.program.cli import app
from tests.support import pipelines
from tests.support.traces import Transformer, profiled

WILD = Path(__file__).resolve().parents[2] / "wild"
LIMITS = ReadLimits(total_bytes=1 << 22, archive_members=64, records=10_000)
CLOSED = "h1:100:7 [{gpu}] misc/socket.cc:1 NCCL WARN socketProgress: Connection closed by remote peer\n"


@pytest.fixture(autouse=True)
def _no_settings_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PHAROAH_CATALOGUE", raising=False)
    monkeypatch.setenv("PHAROAH_HOME", str(tmp_path / "home"))


def run(*arguments: Path | str, given: bytes = b"") -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], input=given)


def described(*traces: str) -> dict[str, Any]:
    result = run("workload", "describe", *(WILD / name for name in traces), "--json")
    assert result.exit_code == 0, result.stderr
    told: dict[str, Any] = json.loads(result.stdout)
    return told


# ---- one opener for all verbs ----------------------------------------------------------------------------------------


def tarred(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in (("readme.bin", bytes(range(32)) * 8), ("inner", data)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("readme.bin", bytes(range(32)) * 8)
        archive.writestr("inner", data)
    return out.getvalue()


PACKED: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zip": zipped,
    "tar": tarred,
    "tar of gzip, packed by xz": lambda data: lzma.compress(tarred(gzip.compress(data))),
    "a byte order mark": lambda data: codecs.BOM_UTF8 + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
}


def steps_of_two_ranks() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        factors, lengths = np.array([[1.0], [2.0]]), np.ones((2, 4, 2))
        return pipelines.write(Path(folder) / "steps.csv", factors, lengths).read_bytes()


ASKED = {
    ("describe",): (WILD / "nccl_allreduce_trace.json").read_bytes(),
    ("diagnose",): (WILD / "ras_text.txt").read_bytes(),
    ("path", "--from", "0", "--to", "1", "--log"): (WILD / "nccl_two_gpus_one_process.log").read_bytes(),
    ("stragglers",): steps_of_two_ranks(),
}


@pytest.mark.parametrize("form", [*PACKED, "a folder", "standard input"])
@pytest.mark.parametrize("verb", ASKED, ids=lambda verb: verb[0])
def test_a_file_says_the_same_to_each_verb_however_it_was_packed(
    verb: tuple[str, ...], form: str, tmp_path: Path
) -> None:
    data, plain = ASKED[verb], tmp_path / "plain"
    plain.write_bytes(data)
    expected = run(*verb, plain)
    assert expected.exit_code in (0, 1), expected.stderr
    if form == "standard input":
        result, where = run(*verb, "-", given=data), "standard input"
    else:
        path = tmp_path / "packed"
        file = path if form in PACKED else path / "deeper" / "file"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(PACKED[form](data) if form in PACKED else data)
        result, where = run(*verb, path), str(path)
    assert result.exit_code == expected.exit_code, result.stderr
    for said, of in zip(result.stdout.splitlines(), expected.stdout.splitlines(), strict=True):
        assert said == of or (said.startswith("peer_lost: 10.0.0.3, GPU 5: ") and where in said)
    assert "pharoah-" not in result.stdout


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"\x04\x22\x4d\x18\x04\x00" * 20, "an lz4 file; unpack it with `lz4 -d`"),
        (b"\x80\x02}q\x00.", "a pickle; refused by design"),
        (b"%PDF-1.7\nno log\n", "a PDF"),
        (b"7z\xbc\xaf\x27\x1c\x00\x04", "a 7z or RAR archive; unpack it"),
    ],
)
def test_what_nothing_reads_is_refused_by_the_name_of_its_form(data: bytes, form: str, tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_bytes(data)
    for verb in (["describe"], ["tokens"], ["diagnose"], ["stragglers"], ["compare", str(WILD / "bom_trace.json")]):
        result = run(*verb, path)
        assert result.exit_code == 2
        assert form in result.stderr, verb
    assert form in run("show", "--only", "path", "--from", "0", "--to", "1", "--log", path).stderr


# ---- traces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "code"), [("KeyError: 'x'", 0), ("bye", 3)])
def test_a_packed_log_that_is_cut_off_is_read_to_the_cut(end: str, code: int, tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "    go()"] * (code == 0)
    data = "\n".join(["starting", *lines, end, ""]).encode()
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(data + random.Random(1).randbytes(9_000).hex().encode())[:-2_000])
    done = run("diagnose", tmp_path / "a.log.gz")
    assert done.exit_code == code
    assert "cut off here; what comes before was read" in done.stderr


def test_what_stands_beside_a_trace_is_named_and_left_out() -> None:
    result = run("workload", "describe", WILD / "et_with_resources.tar.gz")
    assert result.exit_code == 0
    assert "left out: " in result.stderr
    assert "et_resources/cabc.py: not a trace" in result.stderr
    assert "aten::mm" in result.stdout


def test_collectives_that_go_past_c10d_are_those_of_nccl() -> None:
    custom, nccl = described("custom_allreduce_trace.json"), described("nccl_allreduce_trace.json")
    assert custom == nccl
    assert custom["parallelism"] == "tp"  # what is summed is as large as what its layers take
    assert custom["collectives"] == [["all_reduce", 3, 18]]
    tokens = [json.loads(run("workload", "tokens", WILD / f"{name}_trace.json", "--json").stdout) for name in CUSTOM]
    assert tokens[0]["exact"] == tokens[1]["exact"]


@pytest.mark.parametrize("library", ["deep_ep::low_latency", "pplx_kernels::a2a", "my_kernels::moe"])
def test_dispatch_and_combine_of_experts_are_all_to_alls(tmp_path: Path, library: str) -> None:
    trace = json.loads((WILD / "custom_allreduce_trace.json").read_bytes())
    for place, event in enumerate(one for one in trace["traceEvents"] if one["name"] == "vllm::all_reduce"):
        event["name"] = f"{library}_{('dispatch', 'combine')[place % 2]}"
    (tmp_path / "t.json").write_text(json.dumps(trace))
    told = json.loads(run("workload", "describe", tmp_path / "t.json", "--json").stdout)
    assert told["parallelism"] == "ep"
    assert {kind for kind, _ranks, _size in told["collectives"]} == {"all_to_all"}


def test_operators_of_c10d_count_where_their_backend_tells_nothing(tmp_path: Path) -> None:
    trace = json.loads((WILD / "nccl_allreduce_trace.json").read_bytes())
    names = {"record_param_comms", "nccl:all_reduce"}
    assert names & {event["name"] for event in trace["traceEvents"]}
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event["name"] not in names]
    (tmp_path / "t.json").write_text(json.dumps(trace))
    told = json.loads(run("workload", "describe", tmp_path / "t.json", "--json").stdout)
    assert [kind for kind, _ranks, _size in told["collectives"]] == ["all_reduce"]


CUSTOM = ("custom_allreduce", "nccl_allreduce")


def test_an_operator_that_ends_up_in_c10d_is_one_collective(tmp_path: Path) -> None:
    trace = json.loads((WILD / "nccl_allreduce_trace.json").read_bytes())
    outer = [
        event | {"name": "vllm::all_reduce", "ts": event["ts"] - 1, "dur": 8}
        for event in trace["traceEvents"]
        if event["name"] == "c10d::allreduce_"
    ]
    trace["traceEvents"] += outer
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    result = run("workload", "describe", tmp_path / "trace.json", "--json")
    assert json.loads(result.stdout) == described("nccl_allreduce_trace.json")
    assert outer


def test_precision_is_not_told_by_what_graphs_leave_over() -> None:
    told = described("graph_replay_float_logits.json")
    assert (told["precision"], told["lacks"]) == ("", ["operators"])
    assert (
        "precision        not recorded" in run("workload", "describe", WILD / "graph_replay_float_logits.json").stdout
    )


def test_compiled_regions_alone_are_told_as_of_compiled_models(tmp_path: Path) -> None:
    told = described("compiled_only.json")
    assert told["lacks"] == ["weights"]
    assert LACKING["weights"] in run("workload", "describe", WILD / "compiled_only.json").stdout
    text = (WILD / "compiled_only.json").read_text()
    other, empty = tmp_path / "other.json", tmp_path / "empty.json"
    other.write_text(text.replace("triton_poi_fused_add_cos_sin_0", "triton_poi_fused_mul_0"))
    equal = json.loads(run("workload", "compare", WILD / "compiled_only.json", other, "--json").stdout)
    assert equal["same_archetype"] is None
    trace = json.loads(text.replace("triton_poi_fused_add_cos_sin_0", "TorchDynamo Cache Lookup"))
    kernel = {"ph": "X", "cat": "kernel", "name": "triton_red_fused_0", "ts": 3, "dur": 1}
    other.write_text(json.dumps(trace | {"traceEvents": [*trace["traceEvents"], kernel]}))
    assert json.loads(run("workload", "describe", other, "--json").stdout)["lacks"] == ["weights"]
    empty.write_text(json.dumps(trace))
    result = run("workload", "describe", empty)
    assert result.exit_code == 2
    assert "compiled regions alone do not tell their operators" in result.stderr


def test_two_models_in_one_call_are_told(tmp_path: Path) -> None:
    both = [WILD / "model_conv.json", WILD / "model_linear.json"]
    for verb in ("describe", "tokens"):
        result = run(verb, *both)
        assert result.exit_code == 0
        assert "look like two models" in result.stderr
    assert not run("workload", "describe", both[0], both[0]).stderr
    for name, model in (("decoder", Transformer()), ("wider", Transformer(width=768)), ("batch", Transformer(batch=9))):
        (tmp_path / f"{name}.json").write_bytes(profiled([model.step()]))
    assert (
        "look like two models" in run("workload", "describe", tmp_path / "decoder.json", tmp_path / "wider.json").stderr
    )
    assert not run("workload", "describe", tmp_path / "decoder.json", tmp_path / "batch.json").stderr


# ---- NCCL ------------------------------------------------------------------------------------------------------------


def test_all_ranks_of_one_process_are_seen(tmp_path: Path) -> None:
    log = WILD / "nccl_two_gpus_one_process.log"
    graph = graph_of(read_topology([log]))
    assert {rank: (seat.device, seat.bus) for rank, seat in graph.seats.items()} == {0: (0, "17000"), 1: (1, "65000")}
    assert (graph.links, graph.placed) == (2, 2)
    result = run("show", "--only", "path", "--log", log, "--from", "0", "--to", "1")
    assert result.exit_code == 0
    assert "not known" not in result.stdout
    for gpu in (0, 1):
        (tmp_path / "n.log").write_text(log.read_text() + CLOSED.format(gpu=gpu))
        assert {seen.rank for seen in gather([tmp_path / "n.log"]).evidence} == {gpu}


@pytest.mark.parametrize("name", ["ras_monitor.txt", "ras_monitor.json"])
def test_what_a_monitor_of_ras_saw_is_read(name: str, tmp_path: Path) -> None:
    told = json.loads(run("diagnose", WILD / name, "--json").stdout)
    assert (told["reason"], told["host"], told["gpu"]) == ("peer_lost", "10.0.0.3", "5")
    assert "process 4242 on 10.0.0.3, GPU 5: dead" in told["sentence"]
    assert not told["cascade"]  # who answered again was not lost
    banner = tmp_path / "banner"
    banner.write_text("RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...\n" + (WILD / name).read_text())
    assert json.loads(run("diagnose", banner, "--json").stdout)["reason"] == "peer_lost"
    banner.write_text("[2026-01-19 13:07:07] PEER_NEW: Process 4 on node a managing GPUs 0,1 (NVML 4,5) \n")
    assert run("diagnose", banner).exit_code == 3


# ---- hostile input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(file.name for file in WILD.iterdir()))
def test_damaged_files_end_in_an_error_of_ours(name: str, tmp_path: Path) -> None:
    chance, whole = random.Random(name), (WILD / name).read_bytes()
    pieces = [b"", b"\x00", b"\xff\xfe", b"[[[[", b"-1", b"1e400", b'"', b"9" * 30, b"PK\x03\x04", b"\x1f\x8b\x08"]
    path = tmp_path / name
    for _ in range(25):  # `make fuzz` goes on where these end
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            data[at : at + chance.choice((0, 1, 8, len(data)))] = chance.choice(pieces)
            data = data or bytearray(b"\n")
        path.write_bytes(bytes(data))
        gather([path], LIMITS)
        for read in (
            lambda: describe_files([path], LIMITS),
            lambda: graph_of(read_topology([path], LIMITS)),
            lambda: read_step_trace(path),
            lambda: list(read_logs(path, LIMITS)),
        ):
            try:
                read()
            except PharoahError as error:
                assert error.what  # noqa: PT017  # whether it is raised depends on the damage


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "given is empty"),
        (b" \n\n", "given is empty"),
        (b"step 1\nstep 2\n", "no known error pattern in the logs (2 lines)"),
        (b'{"a": 1, "b": {"c": 2}}', "given is JSON with the keys a, b; read are logs of jobs"),
        (b"node,start,end,kind\nn1,1,2,x\n", "given is a table with the columns node, start, end, kind; read are"),
    ],
)
def test_a_file_in_which_nothing_is_found_is_told_by_its_form(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(data)
    result = run("diagnose", tmp_path / "given")
    assert result.exit_code == 3
    assert result.stdout.startswith("cause unknown: ")
    assert said in result.stdout


def test_only_empty_files_are_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "err").touch()
    (tmp_path / "out").touch()
    assert run("diagnose", tmp_path).stdout.startswith("cause unknown: all 2 files are empty")
    (tmp_path / "out").write_text("step 1\n")
    assert "empty" not in run("diagnose", tmp_path).stdout.splitlines()[0]


def test_what_diagnose_passes_over_is_named_once(tmp_path: Path) -> None:
    log, packed = b"KeyError: 'x'\n", b"\x04\x22\x4d\x18" + bytes(100)
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.log.lz4").write_bytes(packed)
    only = run("diagnose", folder)
    assert only.exit_code == 2
    assert only.stderr.count("left out: ") == 1
    assert "a.log.lz4, byte 0: not a log or dump of a job: an lz4 file; unpack it with `lz4 -d`" in only.stderr
    assert "and 1 further file" in only.stderr
    (folder / "c.log").write_bytes(log)
    (folder / "model.pt").write_bytes(b"\x80\x02" + bytes(100))  # beside logs; no one asks for it to be read
    beside = run("diagnose", folder)
    assert beside.exit_code == 0
    assert "and 1 further file" in beside.stderr
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        archive.writestr("core.bin", bytes(range(256)) * 9)
        archive.writestr("stderr.txt", log)
    whole = run("diagnose", tmp_path / "logs.zip")
    assert whole.exit_code == 0
    assert "left out: " in whole.stderr
    assert "core.bin" in whole.stderr


README = (
    "# Tune\n\n## Trouble\n\n| Message | Do |\n| --- | --- |\n| `torch.OutOfMemoryError: CUDA out of memory` | - |\n"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", README),
        ("notes.txt", README),
        ("train.py", 'raise RuntimeError("CUDA out of memory")\nTraceback (most recent call last):\nKeyError: 1\n'),
        ("config.yaml", "# avoids torch.OutOfMemoryError: CUDA out of memory\nlr: 1e-4\n"),
        (
            "job.slurm",
            "#!/bin/bash\n# slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 10:00 DUE TO TIME LIMIT ***\n",
        ),
    ],
)
def test_what_documentation_and_code_quote_is_no_evidence(name: str, text: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "repository.zip", "w") as archive:
        archive.writestr(f"repository-main/{name}", text)
    (tmp_path / name).write_text(text, encoding="utf-8")
    for file in (tmp_path / name, tmp_path / "repository.zip"):
        found = explain(gather([file]), Lessons())
        assert (found.reason, found.root, found.symptom) == ("unknown", None, None)
        assert "documentation" in found.sentence or "source code" in found.sentence


def test_a_state_in_yaml_and_a_log_with_a_heading_are_read(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(
        "kind: Pod\nstatus:\n  reason: Evicted\n  message: The node was low on resource: memory.\n"
    )
    (tmp_path / "job.log").write_text(
        "# torchrun train.py\nMemoryError\nTraceback (most recent call last):\nMemoryError\n"
    )
    assert explain(gather([tmp_path / "pod.yaml"]), Lessons()).reason == "evicted"
    assert explain(gather([tmp_path / "job.log"]), Lessons()).reason == "host_out_of_memory"
    (tmp_path / "eval.out").write_text("# Results\n\n| task | acc |\n|---|---|\n| arc | 0.61 |\n\nMemoryError\n")
    assert explain(gather([tmp_path / "eval.out"]), Lessons()).reason == "host_out_of_memory"
