"""The verbs that look at a workload, on made-up traces and on the world's: one token for one model, never for two."""

import json
import stat
from collections.abc import Sequence
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from federation.base.catalogue_file import read_catalogue
from federation.protocol.bundle import CatalogueEntry
from tenant_client.doctor.workload.compare import jaccard
from tenant_client.doctor.workload.describe import describe, read_traces
from tenant_client.doctor.workload.descriptor import Descriptor, own_sketch, rungs
from tenant_client.program.cli import app
from tests.support import calling, schemas
from tests.support.traces import Op, Transformer, convnet, kernel, kineto, operator, profiled

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
KEYS = ["family", "archetype", "subarchetype", "exact", "nearest", "key", "lacks"]
GPT = Transformer()


@pytest.fixture(autouse=True)
def _no_settings_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PHAROAH_CATALOGUE", raising=False)
    monkeypatch.setenv("PHAROAH_HOME", str(tmp_path / "home"))


@pytest.fixture
def traces(tmp_path: Path) -> dict[str, Path]:
    """Files of one decoder in two batches, and of a network of convolutions."""
    made = {"decoder": GPT.step(), "batch": Transformer(batch=12).step(), "convolutions": convnet()}
    files = {name: tmp_path / f"{name}.json" for name in made}
    for name, file in files.items():
        file.write_bytes(profiled([made[name]] * 2, cuda_runtime_version=12040))
    return files


run = partial(calling.call, app)


def said(*words: str | Path) -> dict[str, Any]:
    result = run(*words, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = schemas.held(" ".join(["pharoah-tenant", *map(str, words[:2])]), result.stdout)
    return found


def failed(*words: str | Path) -> str:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


# ---- describe ------------------------------------------------------------------------------------------------------


def test_an_owner_sees_what_the_workload_looks_like(traces: dict[str, Path]) -> None:
    found = said("workload", "describe", traces["decoder"])
    assert list(found) == [
        *("precision", "parallelism", "replicas", "versions", "software", "kernel_families"),
        *("structure", "collectives", "operators", "lacks"),
    ]
    assert (found["precision"], found["parallelism"], found["versions"]) == ("bf16", "dp", {"cuda": "12.4"})
    assert ["aten::linear", [768, 256]] in found["structure"]
    text = run("workload", "describe", traces["decoder"]).stdout
    assert text.startswith("precision        bf16\nparallelism      dp\nversions         cuda 12.4\n")
    assert "  aten::linear [768 256]\n" in text
    assert f"operators: {len(found['operators'])} " in text


def test_files_of_one_job_are_described_together(traces: dict[str, Path]) -> None:
    assert said("workload", "describe", traces["decoder"], traces["batch"])
    result = run("workload", "describe", traces["decoder"], traces["convolutions"], "--json")
    assert "look like two models" in result.stderr
    both = json.loads(result.stdout)
    operators = [said("workload", "describe", traces[name])["operators"] for name in ("decoder", "convolutions")]
    assert all(operator in both["operators"] for one in operators for operator in one if operator[0] == "aten::gelu")


# ---- tokens --------------------------------------------------------------------------------------------------------


def test_a_signature_is_a_ladder_of_tokens_under_stable_keys(traces: dict[str, Path]) -> None:
    found = said("workload", "tokens", traces["decoder"])
    assert list(found) == KEYS
    tokens = [found["family"], found["archetype"], found["subarchetype"], found["exact"]]
    assert len(set(tokens)) == 4
    assert {len(bytes.fromhex(token)) for token in tokens} == {16}
    assert (found["nearest"], found["key"]) == (None, "local")


def test_one_home_gives_the_same_tokens_again_and_another_gives_others(traces: dict[str, Path], tmp_path: Path) -> None:
    first = said("workload", "tokens", traces["decoder"])
    assert said("workload", "tokens", traces["decoder"], "--home", tmp_path / "home") == first
    other = said("workload", "tokens", traces["decoder"], "--home", tmp_path / "another")
    assert all(other[name] != first[name] for name in ("family", "archetype", "subarchetype", "exact"))


def test_one_model_has_one_archetype_whatever_the_batch(traces: dict[str, Path]) -> None:
    one, batch, convolutions = (
        said("workload", "tokens", traces[name]) for name in ("decoder", "batch", "convolutions")
    )
    assert [one[name] == batch[name] for name in ("family", "archetype", "subarchetype")] == [True] * 3
    assert one["archetype"] != convolutions["archetype"]


def test_the_key_is_for_its_owner_only(traces: dict[str, Path], tmp_path: Path) -> None:
    said("workload", "tokens", traces["decoder"])
    key = tmp_path / "home" / "local-tokens.key"
    assert (stat.S_IMODE(key.stat().st_mode), key.stat().st_size) == (0o600, 32)


def test_a_home_that_cannot_be_written_warns_and_works(traces: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    results = [
        run("workload", "tokens", traces["decoder"], "--home", tmp_path / "file" / "home", "--json") for _ in range(2)
    ]
    for result in results:
        assert result.exit_code == 0
        assert result.stderr.startswith("pharoah-tenant: warning: the local key cannot be stored")
        assert list(json.loads(result.stdout)) == KEYS
    assert results[0].stdout != results[1].stdout


def test_people_see_the_same_tokens(traces: dict[str, Path]) -> None:
    found, text = said("workload", "tokens", traces["decoder"]), run("workload", "tokens", traces["decoder"]).stdout
    for name, label in (("family", "family"), ("subarchetype", "sub-archetype"), ("exact", "exact")):
        assert f"{label:13} {found[name]}\n" in text
    assert text.endswith("nearest       no catalogue\n")


# ---- compare -------------------------------------------------------------------------------------------------------


def test_two_runs_of_one_model_are_one_archetype_and_their_difference_is_shown(traces: dict[str, Path]) -> None:
    found = said("workload", "compare", traces["decoder"], traces["batch"])
    assert list(found) == [
        *("same_family", "same_archetype", "same_subarchetype", "jaccard", "differences", "first_lacks", "second_lacks")
    ]
    assert found["same_archetype"] is True
    other = said("workload", "compare", traces["decoder"], traces["convolutions"])
    assert other["same_archetype"] is False
    assert {entry["property"] for entry in other["differences"]} >= {"structure", "operators", "precision"}
    text = run("workload", "compare", traces["decoder"], traces["convolutions"]).stdout
    assert "  same archetype      no\n" in text
    assert "    - bf16\n    + fp32\n" in text


def test_comparing_leaves_nothing_behind(traces: dict[str, Path], tmp_path: Path) -> None:
    said("workload", "compare", traces["decoder"], traces["batch"])
    assert not (tmp_path / "home").exists()


# ---- catalogue -----------------------------------------------------------------------------------------------------


def test_a_catalogue_names_the_nearest_workload(traces: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "benchmarks.catalogue"
    result = run("workload", "catalogue", out, f"gpt={traces['batch']}", f"cnn={traces['convolutions']}")
    assert (result.exit_code, result.output) == (0, "")
    assert [entry.name for entry in read_catalogue(out)] == ["cnn", "gpt"]
    found = said("workload", "tokens", traces["decoder"], "--catalogue", out)
    assert found["nearest"]["name"] == "gpt"
    assert found["nearest"]["similarity"] > 0.5
    assert "nearest       gpt (" in run("workload", "tokens", traces["decoder"], "--catalogue", out).stdout
    assert said("workload", "compare", traces["decoder"], traces["batch"], "--catalogue", out)["same_archetype"] is True


def test_the_catalogue_may_come_from_the_environment(
    traces: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("workload", "catalogue", tmp_path / "known", f"a={traces['decoder']}")
    monkeypatch.setenv("PHAROAH_CATALOGUE", str(tmp_path / "known"))
    assert said("workload", "tokens", traces["decoder"])["nearest"] == {"name": "a", "similarity": 1.0}


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["describe", "tokens", "compare", "catalogue"])
def test_errors_are_told_on_stderr_with_a_hint(verb: str, traces: dict[str, Path], tmp_path: Path) -> None:
    words: dict[str, list[str]] = {"compare": [str(traces["decoder"])], "catalogue": [str(tmp_path / "out")]}
    for name, data in (("missing", None), ("cut", profiled([convnet()])[:-9]), ("empty", kineto([kernel("gemm")]))):
        path = tmp_path / f"{name}.json"
        if data is not None:
            path.write_bytes(data)
        error = failed(verb, *words.get(verb, []), f"x={path}" if verb == "catalogue" else path)
        first, *_, last = error.strip().splitlines()
        assert first.startswith("pharoah-tenant: error: ")
        assert str(path) in first
        assert last.startswith("hint: ")
    assert not (tmp_path / "out").exists()


def test_a_catalogue_that_is_none_is_an_error(traces: dict[str, Path], tmp_path: Path) -> None:
    verbs: list[list[str | Path]] = [["tokens", traces["decoder"]], ["compare", traces["decoder"], traces["batch"]]]
    for verb in verbs:
        for path, fault in ((traces["decoder"], "not a catalogue ("), (tmp_path / "missing", "No such file")):
            error = failed(*verb, "--catalogue", path)
            assert error.startswith(f"pharoah-tenant: error: {fault}")
            assert f": {path}\n" in error
            assert "hint: write one with `pharoah-tenant workload catalogue`" in error


def test_names_in_a_catalogue_are_given_once_and_as_pairs(traces: dict[str, Path], tmp_path: Path) -> None:
    out, trace = tmp_path / "out", traces["decoder"]
    for words in (["x"], ["=y"], ["x="], [f"a={trace}", f"a={trace}"]):
        assert "Error" in failed("catalogue", out, *words)
    assert not out.exists()


def test_a_catalogue_that_cannot_be_written_is_an_error(traces: dict[str, Path], tmp_path: Path) -> None:
    error = failed("catalogue", tmp_path / "missing" / "out", f"a={traces['decoder']}")
    assert error.startswith(f"pharoah-tenant: error: No such file or directory: {tmp_path}/missing/out\n")
    assert "hint: " in error


# ---- the world's traces --------------------------------------------------------------------------------------------


@cache
def world(name: str) -> tuple[Descriptor, ...]:
    """The descriptors of the traces in a file of ../shared/data, one for each rank."""
    file = DATA / name
    if not file.exists():
        pytest.skip(f"../shared/data/{name} is missing")
    return tuple(describe([trace]) for trace in read_traces([file]))


DLRM = ("kineto/dlrm_v100_8ranks.tar.gz", "chakra/dlrm_v100_8ranks_et.tar.gz")
QWEN = ("kineto/qwen05b_h100.json.gz", "kineto/qwen05b_mi300x.json.gz")
BERT = ("kineto/bert_small_h100.json.gz", "kineto/bert_small_mi300x.json.gz")
ENCODER = ("kineto/encoder_fp8_rank0of128.json.gz", "kineto/encoder_fp8_rank1of128.json.gz")
RESNET = ("chakra/resnet_1gpu_schema_1.0.3_et.json.gz", "chakra/resnet_2gpu_schema_1.1.0_et.json.gz")
WITHOUT_SHAPES = ("kineto/resnet_ddp_a100_rank0of2.json.gz", "kineto/resnet_v100.json.gz")
ALONE = [
    ("kineto/recommendation_a100_rank3of8.json.gz",),
    ("kineto/recommendation_v100_rank1of2.json.gz",),
    ("kineto/resnet18_ddp_mi300x.json.gz",),
    ("kineto/toy_mi250.json.gz",),
]
PAIRS = {"dlrm": DLRM, "qwen": QWEN, "bert": BERT, "encoder": ENCODER, "resnet": RESNET, "shapeless": WITHOUT_SHAPES}
MODELS = [*PAIRS.values(), *ALONE]
TWO_MODELS = list(combinations(range(len(MODELS)), 2))


def runs(files: Sequence[str]) -> list[Descriptor]:
    return [descriptor for file in files for descriptor in world(file)]


def entries(*models: Sequence[str]) -> tuple[CatalogueEntry, ...]:
    """A catalogue of the first trace of each model."""
    return tuple(CatalogueEntry(files[0], own_sketch(world(files[0])[0]).to_bytes()) for files in models)


def archetypes(files: Sequence[str], catalogue: Sequence[CatalogueEntry]) -> set[bytes]:
    return {rungs(one, catalogue).archetype for one in runs(files)}


@pytest.mark.parametrize("name", PAIRS)
def test_one_model_is_one_archetype_with_any_catalogue(name: str) -> None:
    files = PAIRS[name]
    others = entries(*(model for model in MODELS if model is not files))
    for catalogue in ((), others, entries(files), (*others, *entries(files))):
        assert len(archetypes(files, catalogue)) == 1
    assert archetypes(files, others) == archetypes(files, ())
    assert archetypes(files, entries(files)) != archetypes(files, ())


def test_all_eight_ranks_are_there_in_both_formats() -> None:
    assert [len(world(file)) for file in DLRM] == [8, 8]


@pytest.mark.nightly
@pytest.mark.parametrize(("one", "other"), TWO_MODELS)
def test_different_models_are_different_archetypes_with_any_catalogue(one: int, other: int) -> None:
    everything = entries(*MODELS)
    for catalogue in ((), everything, entries(MODELS[one]), entries(MODELS[other])):
        assert not archetypes(MODELS[one], catalogue) & archetypes(MODELS[other], catalogue)


@pytest.mark.parametrize(("name", "least"), [(name, 0.6 if name == "encoder" else 0.91) for name in PAIRS])
def test_runs_of_one_model_have_like_operators(name: str, least: float) -> None:
    for one, other in combinations(runs(PAIRS[name]), 2):
        assert jaccard(one, other) >= least


@pytest.mark.parametrize(("one", "other"), TWO_MODELS)
def test_different_models_have_unlike_operators(one: int, other: int) -> None:
    mine, theirs = world(MODELS[one][0])[0], world(MODELS[other][0])[0]
    assert jaccard(mine, theirs) <= 0.3


@pytest.mark.parametrize("files", [QWEN, BERT], ids=["qwen", "bert"])
def test_vendors_are_subarchetypes_of_one_archetype(files: Sequence[str]) -> None:
    nvidia, amd = runs(files)
    assert rungs(nvidia, ()).archetype == rungs(amd, ()).archetype
    assert rungs(nvidia, ()).subarchetype != rungs(amd, ()).subarchetype
    assert [dict(one.versions).keys() for one in (nvidia, amd)] == [{"cuda"}, {"hip"}]


def test_versions_of_cuda_and_hip_are_subarchetypes(tmp_path: Path) -> None:
    beside: list[dict[str, Any]] = [
        *({"cuda_runtime_version": 12040}, {"cuda_runtime_version": 12060}),
        *({"hip_runtime_version": 60443483}, {"hip_runtime_version": 72053211}),
    ]
    found = []
    for place, said_beside in enumerate(beside):
        file = tmp_path / f"{place}.json"
        file.write_bytes(kineto([operator(op) for op in GPT.step()], **said_beside))
        found.append(said("workload", "tokens", file))
    assert len({one["archetype"] for one in found}) == 1
    assert len({one["subarchetype"] for one in found}) == 4


def test_traces_with_and_without_shapes_are_not_called_different(tmp_path: Path) -> None:
    with_shapes, without = tmp_path / "with.json", tmp_path / "without.json"
    with_shapes.write_bytes(kineto([operator(op) for op in GPT.step()]))
    without.write_bytes(kineto([operator(Op(op.name)) for op in GPT.step()]))
    assert said("workload", "describe", without)["lacks"] == ["shapes"]
    assert "archetype unknown: sizes of tensors were not recorded" in run("workload", "describe", without).stdout
    found = said("workload", "compare", with_shapes, without)
    assert (found["same_archetype"], found["first_lacks"], found["second_lacks"]) == (None, [], ["shapes"])
    assert "  same archetype      unknown\n" in run("workload", "compare", with_shapes, without).stdout
    run("workload", "catalogue", tmp_path / "known", f"gpt={with_shapes}")
    assert (
        said("workload", "compare", with_shapes, without, "--catalogue", tmp_path / "known")["same_archetype"] is None
    )
    assert said("workload", "compare", without, without, "--catalogue", tmp_path / "known")["same_archetype"] is True


def test_the_worlds_traces_pass_through_the_verbs() -> None:
    first, second = (DATA / name for name in QWEN)
    if not first.exists():
        pytest.skip(f"../shared/data/{QWEN[0]} is missing")
    found = said("workload", "compare", first, second)
    assert (found["same_archetype"], found["same_subarchetype"]) == (True, False)
    assert found["jaccard"] >= 0.91
