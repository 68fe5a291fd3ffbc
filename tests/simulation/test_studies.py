"""The studies: each is imported, runs in its small size, and is found under the names that it had."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from federation.base.visible import json_text
from provider_server.fleet.learning.signatures import metrics_of
from simulation.cli import app
from simulation.studies import impact
from simulation.studies.study import Table
from simulation.studies.verbs import BY_NAME, STUDIES, Study, command
from tests.support import schemas
from tests.support.plans import InsecureSeeded

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT.parent / "shared/data/infinitehbd/fault_trace.json.gz"
FLOWER = ("flower_client_cpu_seconds", "flower_server_seconds", "flower_wall_seconds")


def aggregation(found: Any) -> None:
    rows = found["rows"]
    assert [(row["n"], row["length"]) for row in rows] == [(16, 1000), (50, 1000)]
    assert [[row[key] is None for key in FLOWER] for row in rows] == [3 * [False], 3 * [True]]
    assert all(row["bytes_up"] == 8 * row["length"] and 0 < row["server_seconds"] < row["wall_seconds"] for row in rows)


def check(found: Any) -> None:
    assert 0.05 < found["p50_ms"] <= found["p99_ms"] < 10_000
    assert 0.0001 < found["local_ms"] <= found["local_p99_ms"] < found["p99_ms"]
    assert 1 < found["requests_per_second"] < 100_000
    assert 20 < found["idle_mib"] < found["watchers_mib"] < 2000


def field(found: Any) -> None:
    null, misreported = found["rows"]
    assert (null["name"], null["auroc"], null["worse_true"], null["worse_false"]) == ("null", None, 0, 0)
    assert null["readers"] == misreported["readers"] == "operators"
    assert misreported["epsilon"] is None
    assert misreported["auroc"] > 0.9


def first_weeks(found: Any) -> None:
    assert found["saved"]["of_constants"] > 0.4
    assert 0.9 <= found["saved"]["coverage"] <= 0.99
    assert all(0.0 < row["public"] <= row["worst"] for row in found["checkpoints"])
    assert {row["fleet"] for row in found["rates"]} > {"RSC-1", "Titan"}


def impacts(found: Any) -> None:
    assert list(found) == ["epsilon_1", "epsilon_1_closed_loop", "without_pharoah"]
    assert all(tuple(figures) == impact.KEYS for figures in found.values())
    assert found["without_pharoah"]["dollars_saved"] == {"mean": 0.0, "least": 0.0, "most": 0.0}
    for level in ("epsilon_1", "epsilon_1_closed_loop"):
        assert found[level]["first_bundle_avoided_share"] == found[level]["mismatch_gpu_hours_avoided_share"]


def learning(found: Any) -> None:
    exact, *private = found.values()
    assert list(found) == ["without_privacy", "epsilon_1", "epsilon_2"]
    assert all(exact[key] > level[key] for level in private for key in ("auroc", "average_precision"))


def injection(found: Any) -> None:
    for part in found["judged"].values():
        assert part["minutes_fitted"] > 0.0
        assert 0.0 <= part["auroc_nodes_fitted"] <= 1.0
    signatures = metrics_of(["decoder", "graph"])
    assert set(found["telling"]["decoder"]) | set(found["telling"]["graph"]) == signatures


def scale(found: Any) -> None:
    assert [(row["tenants"], row["cells"]) for row in found["rows"]] == [(10, 400), (40, 400)]
    for row in found["rows"]:
        assert row["measured_tenants"] == row["tenants"]
        assert row["tenant_bytes"] > 8 * row["cells"] * row["vectors"]
        assert row["provider_bytes"] > row["tenants"] * row["tenant_bytes"]


# A study, what is asked of it beside a small size, and what of its answer could be wrong.
SMALL: dict[str, tuple[dict[str, Any], Callable[[Any], object]]] = {
    "aggregation": ({}, aggregation),
    "attendance": ({"seeds": 1}, lambda found: found["found"][2]["clouds"] == 1),
    "audit": ({"runs": 1, "epoch": True}, lambda found: found),
    "check": ({}, check),
    "confirm": ({"only": ["runs"]}, lambda found: found["runs"]["1.3"]["mismatch"] > 900),
    "cost": ({"only": ["codec"]}, lambda found: found),
    "diagnosis": ({"campaign": False}, lambda found: found["two_sided"]["both"]["right"] > 25),
    "explanations": ({"of": "folders"}, lambda found: found["seen"]["top1"] > 0.8),
    "field": ({"seeds": 1, "only": ["null", "misreported_20"]}, field),
    "first-weeks": ({}, first_weeks),
    "impact": ({"seeds": 1, "first": True, "only": ["epsilon_1", "epsilon_1_closed_loop", impact.WITHOUT]}, impacts),
    "injection": ({}, injection),
    "learning": ({"seeds": 1}, learning),
    "scale": ({}, scale),
    "two-sided": ({}, lambda found: found["provider"]["right"] > 20),
    "xid": ({}, lambda found: found["planted"]["accused_by_program"] == 0 < found["planted"]["called"]),
    "world": ({"outages": TRACE, "draws": 2, "seeds": 0}, lambda found: found["half"] == "second"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SMALL)
def test_a_study_answers_in_its_small_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more, expected = SMALL[name]
    if name == "world" and not TRACE.exists():
        pytest.skip(f"../shared/data/infinitehbd/{TRACE.name} is missing")
    study = BY_NAME[name]
    if "SystemSampler" in vars(sys.modules[study.function.__module__]):
        monkeypatch.setattr(f"{study.function.__module__}.SystemSampler", lambda: InsecureSeeded(3))
    table = study.run(quick=True, **more)
    text = json_text(table.found)
    verb = f"pharoah-sim study {name}"
    found = schemas.held(verb, text) if verb in schemas.generate().JSON else json.loads(text)
    assert expected(found) is not False
    assert not table.failed
    assert len(list(table.lines())) > 1


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_a_study_is_a_verb_with_its_options_and_the_alias_is_the_same(study: Study) -> None:
    options = {one.opts[0] for one in command(study).params}
    assert "--json" in options
    for verb in ("study", "bench"):
        shown = CliRunner().invoke(app, [verb, study.name, "--help"])
        assert shown.exit_code == 0
        assert all(name in shown.stdout for name in options if name.startswith("--"))


@pytest.mark.parametrize(
    "words",
    [
        ("attendance", "--clouds", "0"), ("learning", "--first-seed", "200"),
        ("impact", "--first-bundle", "--only", "own_history"), ("check", "--seconds", "1", "--watchers", "40"),
    ],
)  # fmt: skip
def test_command_lines_that_issues_name_are_still_parsed(words: tuple[str, ...]) -> None:
    command(BY_NAME[words[0]]).make_context(words[0], list(words[1:]))


def test_without_a_name_studies_and_questions_are_listed_and_none_is_imported() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from simulation.cli import app;"
        "print(CliRunner().invoke(app, ['study']).stdout);"
        "print([m for m in ('numpy', 'flwr', 'sklearn', 'simulation.studies.field') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *listed, loaded = done.stdout.strip().splitlines()
    assert [line.split()[0] for line in listed if line] == [study.name for study in STUDIES]
    assert loaded == "[]"


def test_the_diagnosis_has_its_old_name_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.diagnosis", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "--tool" in done.stdout


@pytest.mark.parametrize(("name", "known"), [("field", "rate_6_5"), ("cost", "masking")])
def test_an_unknown_part_is_refused_with_those_that_there_are(name: str, known: str) -> None:
    refused = CliRunner().invoke(app, ["study", name, "--only", "heaven"])
    assert refused.exit_code == 2
    assert known in refused.stderr


def test_a_study_that_failed_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.studies.cost.figures", lambda *_: Table({"a": 1}, failed=True))
    ended = CliRunner().invoke(app, ["study", "cost"])
    assert (ended.exit_code, ended.stdout) == (1, "a  1\n")
