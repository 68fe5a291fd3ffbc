"""Replacement plans: who goes out, what an undecided verdict does, minutes saved, and the verb."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tenant_client.doctor.advice.clues import FailureFacts, FindingFact
from tenant_client.doctor.advice.explanation import explain
from tenant_client.doctor.advice.hints import HintLog
from tenant_client.doctor.advice.replacement import (
    ASK_PROVIDER,
    CONFIDENCE,
    UNCLEAR,
    Costs,
    Decision,
    HazardFact,
    Nodes,
    minutes_saved,
    plan,
)
from tenant_client.doctor.records.attempts import Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.run.watchdog import Kind
from tenant_client.program.cli import app
from tests.support.factories import NO_SIGNATURE
from tests.tenant_client.program.test_watch_verb import LEASE, hint

ROOT = Path(__file__).resolve().parents[3]
HANG = FindingFact("non_communication_hang", (5,), "rank 5 is outside for 9 s before all_reduce; 7 ranks wait for it")
NODES = Nodes(("a", "b", "c", "d"), 2, ("e", "f"))
CALM = HazardFact()
COSTS = Costs(hours_left=10.0, timeout_minutes=30.0, failure_minutes=40.0, replacement_minutes=2.0)


def test_the_node_of_the_named_rank_goes_out_and_the_first_spare_comes_in() -> None:
    found = plan([HANG], None, CALM, NODES, COSTS)
    assert (found.decision, found.node_out, found.node_in, found.ranks) == (Decision.REPLACE, "c", "e", (5,))
    assert found.confidence == CONFIDENCE["non_communication_hang"]
    assert HANG.text in found.why


def test_without_spares_and_names_the_provider_is_asked_and_the_rank_is_named() -> None:
    found = plan([HANG], None, CALM, Nodes(), COSTS)
    assert (found.node_out, found.node_in) == ("the node of rank 5", ASK_PROVIDER)


def test_minutes_saved_is_the_stated_formula() -> None:
    raised = HazardFact(0.05, 0.01, "hint: 5 times the usual hazard")
    assert minutes_saved("non_communication_hang", 0.5, CALM, COSTS) == pytest.approx(0.5 * 30 - 2)
    assert minutes_saved("non_communication_hang", 0.5, raised, COSTS) == pytest.approx(0.5 * (30 + 0.04 * 10 * 40) - 2)
    assert minutes_saved("non_communication_slow", 0.5, CALM, COSTS) == pytest.approx(0.5 * 600 * (1 - 1 / 1.3) - 2)
    assert minutes_saved("non_communication_hang", 0.5, CALM, Costs(timeout_minutes=1, replacement_minutes=2)) < 0


@pytest.mark.parametrize("kind", UNCLEAR)
def test_an_unclear_verdict_isolates_tests_and_returns(kind: str) -> None:
    found = plan([FindingFact(kind, (1, 4), "1 and 4")], None, CALM, NODES, COSTS)
    assert (found.decision, found.node_out, found.node_in) == (Decision.ISOLATE, "", "")
    assert [step.split()[0] for step in found.steps[:3]] == ["isolate", "test", "return"]
    assert "a, c" in found.steps[0]


def test_ranks_of_several_nodes_are_a_group_and_those_of_one_are_not() -> None:
    both = FindingFact("non_communication_hang", (2, 3), "ranks 2 and 3")
    assert plan([both], None, CALM, NODES, COSTS).node_out == "b"
    apart = FindingFact("non_communication_hang", (1, 2), "ranks 1 and 2")
    assert plan([apart], None, CALM, NODES, COSTS).decision is Decision.ISOLATE


def test_a_hint_alone_names_no_node_and_nothing_keeps_all() -> None:
    found = plan([], None, HazardFact(0.1, 0.01, "hint: 10 times"), NODES, COSTS)
    assert found.decision is Decision.ISOLATE
    assert "a, b, c, d" in found.steps[0]
    assert plan([], None, CALM, NODES, COSTS).decision is Decision.KEEP


def test_an_error_that_names_itself_keeps_the_nodes_and_a_symptom_halves_the_confidence() -> None:
    facts = FailureFacts("key_error", "KeyError: 'x'", findings=(HANG,))
    assert plan([HANG], explain(facts), CALM, NODES, COSTS).decision is Decision.KEEP
    stack = FindingFact(HANG.kind, HANG.ranks, f"{HANG.text}; rank 5 at load (train.py:66)")
    found = plan([stack], explain(FailureFacts(findings=(stack,))), CALM, NODES, COSTS)
    assert (found.decision, found.confidence) == (Decision.REPLACE, CONFIDENCE[HANG.kind] / 2)


def test_kinds_are_kinds_of_the_watch() -> None:
    assert {*CONFIDENCE, *UNCLEAR} <= {kind.value for kind in Kind}


# ---- the verb --------------------------------------------------------------------------------------------------------


def home_with(tmp_path: Path, *findings: dict[str, object], state: AttemptState | None = None) -> Path:
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts = Attempts(connection)
        number = attempts.begin(str(LEASE), 0.0, number=1, lives=lambda _: True)
        attempts.keep_findings(str(LEASE), number, 59, findings)
        if state is not None:
            attempts.end(str(LEASE), number, state, 10.0, findings=findings)
    return tmp_path


def ask(home: Path, *options: str) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(
        app, ["show", "--only", "replacement", str(LEASE), "--home", str(home), "--json", *options]
    )
    assert result.stdout, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return result.exit_code, found


def test_the_verb_reads_what_the_watch_journalled_of_a_running_attempt(tmp_path: Path) -> None:
    finding = {"kind": HANG.kind, "since_s": 5.0, "step": 59, "ranks": [1], "text": HANG.text, "cleared_at_s": None}
    home = home_with(tmp_path, finding)
    code, found = ask(home, "--nodes", "a,b,c", "--spare", "d")
    assert (code, found["node_out"], found["node_in"]) == (1, "b", "d")
    shown = CliRunner().invoke(
        app, ["show", "--only", "replacement", str(LEASE), "--home", str(home), "--nodes", "a,b,c"]
    )
    assert f"replace b by {ASK_PROVIDER}" in shown.stdout


def test_a_plan_does_not_wait_for_numpy(tmp_path: Path) -> None:
    """Ranks stand while it is made: half of its processor time would be numpy's import."""
    finding = {"kind": HANG.kind, "since_s": 5.0, "step": 59, "ranks": [1], "text": HANG.text, "cleared_at_s": None}
    words = ["replacement", str(LEASE), "--home", str(home_with(tmp_path, finding)), "--nodes", "a,b,c"]
    script = f"import sys\nfrom tenant_client.program.cli import app\ntry: app({words!r})\nexcept SystemExit as end:\n"
    script += " print(end.code, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 False"


def test_what_has_ended_or_is_cleared_replaces_nothing(tmp_path: Path) -> None:
    finding = {"kind": HANG.kind, "since_s": 5.0, "step": 59, "ranks": [1], "text": HANG.text, "cleared_at_s": None}
    ended, cleared = tmp_path / "ended", tmp_path / "cleared"
    ended.mkdir()
    cleared.mkdir()
    home_with(ended, finding, state=AttemptState.FAILED)
    home_with(cleared, {**finding, "cleared_at_s": 7.0})
    assert ask(ended)[1]["decision"] == ask(cleared)[1]["decision"] == "keep"


def test_a_standing_hint_alone_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = home_with(tmp_path)
    raised = hint(1)
    monkeypatch.setattr("tenant_client.program.verbs.replacement.now_hour", lambda: raised.at_h + 0.1)
    with closing(open_database(home / "tenant.db")) as connection:
        HintLog(connection).take(raised, 0.0, NO_SIGNATURE)
    code, found = ask(home)
    assert (code, found["decision"]) == (3, "isolate")
