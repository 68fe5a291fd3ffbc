"""`jobs` lists what ran, `show` has all of it on one screen, and `--only` picks a section."""

import json
import os
import time
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tenant_client.doctor.advice.explanation import FailureCause, FailureSide
from tenant_client.doctor.diagnosis.excerpts import Excerpt, ToldLine
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.excerpts import Excerpts
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.program.cli import app
from tenant_client.program.verbs import show as verb
from tenant_client.rounds.disclosure.happened import ExplainedAttempt
from tests.support import schemas

KEY_ERROR = AttemptCause("key_error", 1, place="stderr.log, line 7", sentence="key_error: stderr.log, line 7: 'lr'")
TOLD = ("Traceback (most recent call last):", '  File "train.py", line 41, in step', "KeyError: 'lr'")
LINES = ("KeyError: 'lr'", 'File "train.py", line <*> in step')
HANG = {"kind": "hang", "text": "no step for 120 s on rank 3", "ranks": [3], "cleared_at_s": None}
YESTERDAY_S = time.time() - 86400.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three jobs, oldest first: one that worked, one that failed before and was helped, one that failed alike."""
    for name in [name for name in os.environ if name.startswith("PHAROAH_")]:
        monkeypatch.delenv(name)
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts, incidents = Attempts(connection), Incidents(connection)
        for number, unit in enumerate(("good", "before", "again")):
            at_s = YESTERDAY_S + 3600.0 * number
            attempts.begin(unit, at_s)
            attempts.name(unit, f"python {unit}.py")
            state = AttemptState.SUCCEEDED if unit == "good" else AttemptState.FAILED
            attempts.end(unit, 1, state, at_s + 90.0, steps=7, findings=[HANG] if unit == "again" else [])
            if unit != "good":
                attempts.explain(unit, 1, KEY_ERROR)
                incidents.keep(unit, 1, LINES, None)
            if unit == "again":
                lines = (ToldLine("stderr.log", number, text) for number, text in enumerate(TOLD, 5))
                Excerpts(connection).keep(unit, 1, Excerpt("/me/train.py:41", tuple(lines)))
            if unit == "before":
                incidents.helped(unit, "pinned the configuration")
    return tmp_path


def call(home: Path, *words: str) -> Result:
    done = CliRunner().invoke(app, [*words, "--home", str(home)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def view(home: Path, *words: str) -> Any:
    summary = words[0] == "show" and "--only" not in words
    form = "pharoah-tenant show summary" if summary else schemas.form_of("pharoah-tenant", words)
    return schemas.held(form, call(home, *words, "--json").stdout)


def test_jobs_stand_newest_last_with_state_and_cause_and_the_next_command_follows_a_failure(home: Path) -> None:
    done = call(home, "jobs")
    rows = [line.split("  ") for line in done.stdout.splitlines()]
    assert [(name, state, job) for name, _, state, job in rows] == [
        ("good", "succeeded", "python good.py"),
        ("before", "failed key_error", "python before.py"),
        ("again", "failed key_error", "python again.py"),
    ]
    assert done.stderr == "next: pharoah-tenant show again\n"
    assert call(home, "jobs", "good").stderr == ""


def test_jobs_are_chosen_by_outcome_time_and_number(home: Path) -> None:
    def names(*words: str) -> list[str]:
        return [row["lease"] for row in view(home, "jobs", *words)["leases"]]

    assert names("--failed") == ["before", "again"]
    assert names("--failed", "--last", "1") == ["again"]
    assert names("--last", "2") == ["before", "again"]
    assert names("a", "--last", "2") == ["again"]
    since = datetime.fromtimestamp(YESTERDAY_S).astimezone() + timedelta(minutes=30)
    assert names("--since", f"{since:%Y-%m-%dT%H:%M}") == ["before", "again"]
    later = f"{since + timedelta(days=2):%Y-%m-%d}"
    assert (names("--since", later), call(home, "jobs", "--since", later).exit_code) == ([], 3)
    assert call(home, "jobs", "--since", "soon").exit_code == 2


def test_a_job_is_shown_on_one_screen(home: Path) -> None:
    done = call(home, "show", "again")
    shown = done.stdout.splitlines()
    assert (done.exit_code, done.stderr) == (0, "")
    assert shown[0].startswith("again (python again.py) attempt 1: failed after 0:01:30, 7 steps, began ")
    told = [
        "key_error: stderr.log, line 7: 'lr'",
        "do: Check the missing key",
        "hang: no step for 120 s on rank 3",
        "at: /me/train.py:41",
        "log: stderr.log:7",
        "line: Traceback",
        'line:   File "train.py", line 41, in step',
        "line: KeyError: 'lr'",
        "like before attempt 1: key_error: stderr.log, line 7: 'lr'; helped: pinned the configuration",
    ]
    assert all(line.startswith(f"  {begins}") for line, begins in zip(shown[1:-1], told, strict=True))
    assert shown[-1] == "next: pharoah-tenant show again --only explain"
    assert len(shown) <= 24
    assert call(home, *shown[-1].removeprefix("next: pharoah-tenant ").split()).exit_code == 0


NAN = {"kind": "nan_loss", "text": "loss of rank 0 is nan since step 41", "ranks": [0], "cleared_at_s": None}
HUNG = {
    "kind": "non_communication_hang",
    "text": "rank 1 is outside, idle, for 9 s; 1 rank waits for it; rank 1 at wait_for_lock (hang.py:7) < f (a.py:9)",
    "ranks": [1],
    "cleared_at_s": None,
}


def end(home: Path, unit: str, state: AttemptState, reason: str, **finding: Any) -> None:
    with closing(open_database(home / "tenant.db")) as connection:
        Attempts(connection).end(unit, 1, state, YESTERDAY_S + 9e3, steps=150, findings=[finding])
        Attempts(connection).explain(unit, 1, AttemptCause(reason))


def states(home: Path) -> list[str]:
    return [line.split("  ")[2] for line in call(home, "jobs").stdout.splitlines()]


@pytest.mark.parametrize(
    ("finding", "said", "to_do"),
    [
        (NAN, "succeeded, but NaN loss since step 41", "do: Go back to the checkpoint before the loss rose"),
        (NAN | {"kind": "slow_rank", "text": "rank 1 slows down the other ranks"}, "succeeded, but slow rank", ""),
        (NAN | {"cleared_at_s": YESTERDAY_S}, "succeeded", ""),
        (NAN | {"kind": "hint"}, "succeeded", ""),
    ],
)
def test_a_success_with_a_finding_that_held_is_marked(
    home: Path, finding: dict[str, Any], said: str, to_do: str
) -> None:
    end(home, "good", AttemptState.SUCCEEDED, "unknown", **finding)
    assert states(home)[0] == said
    shown = call(home, "show", "good").stdout
    assert ("do: " in shown, to_do in shown, "over both sides" in shown) == (bool(to_do), True, False)


@pytest.mark.parametrize(
    ("reason", "finding", "said"),
    [
        ("collective_timeout", HUNG, "failed: rank 1 hung at wait_for_lock (hang.py:7); collective_timeout followed"),
        ("collective_timeout", HUNG | {"cleared_at_s": YESTERDAY_S}, "failed collective_timeout"),
        ("collective_timeout", HUNG | {"text": "rank 1 is outside, idle"}, "failed collective_timeout"),
        ("key_error", HUNG, "failed key_error"),
    ],
)
def test_the_list_leads_with_the_rank_that_hung_where_a_time_out_ended_it(
    home: Path, reason: str, finding: dict[str, Any], said: str
) -> None:
    end(home, "again", AttemptState.FAILED, reason, **finding)
    assert states(home)[-1] == said


@pytest.mark.parametrize(("joined", "side", "told"), [(True, "both", 1), (True, "tenant", 0), (False, "both", 0)])
def test_both_sides_are_told_where_there_are_two_and_another_is_meant(
    home: Path, monkeypatch: pytest.MonkeyPatch, side: str, told: int, *, joined: bool
) -> None:
    explained = ExplainedAttempt("again", 1, FailureCause.MISMATCH, FailureSide(side), "probably this", ())
    monkeypatch.setattr(verb, "is_pinned", lambda _: joined)
    monkeypatch.setattr(verb, "_both_sides", lambda *_: explained)
    assert call(home, "show", "again").stdout.count("over both sides: probably this") == told


def test_of_a_job_that_worked_no_failure_is_told(home: Path) -> None:
    done = call(home, "show", "good")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 1)
    assert view(home, "show", "good")["both_sides"] is None


def test_a_job_is_found_by_the_start_of_its_name_and_is_the_newest_without_one(home: Path) -> None:
    names = [view(home, "show", *words)["job"] for words in (["be"], [], ["--latest"])]
    assert names == ["before", "again", "again"]
    assert "there is no lease 'x'" in call(home, "show", "x").stderr
    assert call(home, "show", "be", "--latest").exit_code == 2


def test_sections_are_parts_of_the_whole(home: Path) -> None:
    whole = view(home, "show", "summary", "again")
    for section in ("cause", "evidence", "precedents"):
        assert view(home, "show", "--only", section, "again") == whole[section]
        assert json.loads(call(home, "show", "again", "--json", f"--only={section}").stdout) == whole[section]
    assert whole["cause"]["advice"].startswith("Check the missing key")
    assert (whole["evidence"]["lines"], len(whole["evidence"]["findings"])) == (list(TOLD), 1)
    assert whole["precedents"]["precedents"][0]["lease"] == "before"


def test_a_section_without_content_says_so_and_an_unknown_one_names_all(home: Path) -> None:
    for section, said in (("evidence", "nothing in the logs"), ("precedents", "no earlier failure")):
        done = call(home, "show", "good", "--only", section)
        assert (done.exit_code, done.stdout, said in done.stderr) == (3, "", True)
    for words in (["--only", "weather"], ["--only"], ["--only="]):
        refused = call(home, "show", "good", *words)
        assert (refused.exit_code, "expectations" in refused.stderr) == (2, True)


def test_a_section_has_the_options_of_its_own(home: Path) -> None:
    new = call(home, "show", "again", "--may-change", "nccl", "--only", "changes", "--from", "good")
    old = call(home, "changes", "again", "--from", "good", "--only", "nccl")
    assert (new.exit_code, new.stdout, new.stderr) == (old.exit_code, old.stdout, old.stderr)
    assert "--may-change" in call(home, "show", "again", "--only", "changes", "-h").stdout
    assert "Missing option '--from'" in call(home, "show", "again", "--only", "path").stderr
    assert "Missing option '--from'" in call(home, "path", "again").stderr


def test_the_journal_is_a_section_of_one_job_or_of_all(home: Path) -> None:
    every, one = view(home, "show", "--only", "journal"), view(home, "show", "--only", "journal", "before")
    assert [row["unit"] for row in every["attempts"]] == ["good", "before", "again"]
    assert [row["unit"] for row in one["attempts"]] == ["before"]
    assert set(one["jobs"]) == {row["unit"] for row in one["leases"]} == {"before"}
    assert {row["lease"] for row in (*one["incidents"], *one["explanations"])} == {"before"}


def test_a_job_without_a_trace_of_stragglers_says_what_to_set(home: Path) -> None:
    (home / "runs" / "again-1").mkdir(parents=True)
    done = call(home, "show", "again", "--only", "stragglers")
    assert (done.exit_code, "NCCL_INSPECTOR_DUMP_DIR" in done.stderr) == (2, True)
