"""The study of the diagnosis: what is right, its file of cases, a labelled log, and two jobs that fail."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from simulation.studies.diagnosis import campaign, logs, study, two_sided
from simulation.studies.diagnosis.answers import OURS, Answer, ask, blames_infrastructure, fits, here
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN
from tests import needs

ROOT = Path(__file__).resolve().parents[3]
TEXT = (
    'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n    config["lr"]\nKeyError: \'lr\'\n'
)


def corpus(folder: Path, **labels: Any) -> list[logs.Labelled]:
    row = {"id": "one", "source": "made up", "also": [], "why": "the last line", "text": TEXT, **labels}
    (folder / "fixture.jsonl").write_text(json.dumps(row) + "\n")
    return list(logs.labelled(folder, folder / "none.tar.gz"))


def tool(folder: Path, prints: str) -> tuple[str, ...]:
    script = folder / "tool.py"
    script.write_text(f"print({prints!r})\n")
    return (sys.executable, str(script))


@pytest.mark.parametrize(
    ("said", "right", "fitting"),
    [
        ("nan_loss", ["nan_loss"], True), ("runtime_error", ["nan_loss"], True), ("nan_loss", ["runtime_error"], True),
        ("segmentation_fault", ["nan_loss"], False), ("unknown", ["nan_loss"], False), ("unknown", ["unknown"], True),
        ("killed", ["exit_code"], False), ("no such slug", ["nan_loss"], False),
    ],
)  # fmt: skip
def test_a_finer_reason_and_the_one_above_fit_and_no_sibling(said: str, right: list[str], *, fitting: bool) -> None:
    assert fits(said, right) == fitting


def test_a_symptom_blames_nobody() -> None:
    assert blames_infrastructure("nccl_timeout_error")
    assert not any(map(blames_infrastructure, ("collective_timeout", "peer_lost", "killed", "key_error", UNKNOWN)))


def test_the_table_names_known_reasons_and_blames_no_stall_on_anybody() -> None:
    for case in campaign.cases(each=9, ranks=2, seed=3):
        assert case.reasons
        assert set(case.reasons) <= {*REASONS, UNKNOWN}
        if case.side == "own":
            assert not any(map(blames_infrastructure, case.reasons)), case.id


def test_each_kind_comes_in_each_rank_and_a_seed_draws_the_same_again() -> None:
    made = campaign.cases(each=2, ranks=2, seed=5)
    assert made == campaign.cases(each=2, ranks=2, seed=5) != campaign.cases(each=2, ranks=2, seed=6)
    assert {(case.kind, case.rank) for case in made} == {(kind, rank) for kind in campaign.kinds() for rank in (0, 1)}


def test_the_campaigns_file_has_an_incident_and_the_truth_of_each_case() -> None:
    made = campaign.cases(each=1, ranks=2, seed=1)
    written = json.loads(json.dumps(campaign.manifest(made, 1)))
    assert written["schema_version"] == 1
    assert [one["incident_id"] for one in written["incidents"]] == [case.id for case in made]
    assert set(written["metadata"]["truth"]) == {case.id for case in made}
    assert all(one["trigger"]["at"][0] >= 1 and len(one["faults"]) == 1 for one in written["incidents"])


def test_a_labelled_log_is_right_unknown_or_wrong(tmp_path: Path) -> None:
    of_key_error = corpus(tmp_path, reason="key_error")
    assert logs.score(of_key_error, here)["corpora"] == {"fixture": {"n": 1, "right": 1, "unknown": 0, "wrong": 0}}
    assert logs.score(of_key_error, lambda _: Answer(UNKNOWN))["unknown"] == 1
    of_nothing = corpus(tmp_path, reason="unknown")
    assert logs.score(of_nothing, here)["missed"] == [{"id": "one", "right": ("unknown",), "said": "key_error"}]
    assert logs.score(corpus(tmp_path, reason="unknown", also=["key_error"]), here)["right"] == 1


CASE = """
side = "provider"
organ = "gpu"
rank = 1
names = ["3b:00"]
names_not = ["rank 0"]
tenant = { reasons = ["unknown"] }
provider = { reasons = ["ecc_error"] }
both = { reasons = ["ecc_error"] }
"""


def test_a_case_with_two_halves_is_scored_by_reason_rank_side_organ_and_words(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "case.toml").write_text(CASE)
    todo = list(two_sided.cases(tmp_path))
    answers = {
        1: Answer("collective_timeout", 0, text="a time-out at rank 0"),
        2: Answer("ecc_error", 1, text="GPU 0000:3B:00"),
    }
    figures = two_sided.score(todo, lambda *halves: answers[len(halves)])
    assert [figures[half]["wrong"] for half in ("tenant", "provider", "both")] == [1, 1, 0]
    assert [figures[name]["right"] for name in ("rank", "side", "organ", "names")] == [1, 1, 1, 1]
    figures = two_sided.score(todo, lambda *_: answers[1])
    assert [figures[name]["right"] for name in ("rank", "side", "organ", "names")] == [0, 0, 0, 0]
    assert [figures[name]["unknown"] for name in ("side", "organ")] == [1, 1]
    figures = two_sided.score(todo, lambda *_: Answer("device_side_assert", side="provider"))
    assert [figures[name]["right"] for name in ("side", "organ")] == [1, 0]


def test_another_tool_answers_in_json(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(TEXT)
    said = ask(tool(tmp_path, '{"reason": "key_error", "rank": 3}'), log)
    assert (said.reason, said.rank) == ("key_error", 3)
    assert said.seconds > 0


@pytest.mark.parametrize("prints", ["", "no JSON", "[]", '{"rank": 1}'])
def test_what_is_no_answer_is_unknown(tmp_path: Path, prints: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(tool(tmp_path, prints), tmp_path / "job.log").reason == UNKNOWN
    assert "no answer" in capsys.readouterr().err


def test_the_campaigns_score() -> None:
    case = next(case for case in campaign.cases(each=1, ranks=2, seed=1) if case.kind == "exit_code")
    answers = [Answer("exit_code", case.rank, 0.5), Answer("connection_error", case.rank, 0.7), Answer(UNKNOWN)]
    assert campaign.score([(case, answer) for answer in answers]) == {
        "n": 3,
        "reason": 0.3333,
        "rank": 0.6667,
        "own_called_infrastructure": 1,
        "seconds_p99": 0.7,
    }


@pytest.mark.nightly
@pytest.mark.xdist_group("torchrun")
def test_a_job_is_made_to_fail_and_its_log_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs.installed("torch")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PHAROAH_HOME", str(tmp_path / "home"))
    todo = [case for case in campaign.cases(each=1, ranks=2, seed=1) if case.kind in ("sigkill", "exception")]
    ended, left_out = study.run_campaign(todo, 2, 1, tmp_path)
    assert left_out == []
    graded = [(one.case, ask(OURS, one.log)) for one in ended]
    scored = campaign.score(graded)
    assert (scored["n"], scored["reason"], scored["rank"]) == (2, 1.0, 1.0), graded
