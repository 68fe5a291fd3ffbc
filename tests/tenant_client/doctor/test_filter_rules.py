"""Filter rules: what may become one, what none drops, and the file that their owner edits."""

from contextlib import closing
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from federation.base.reading import SourceError
from tenant_client.doctor.diagnosis import filter_rules
from tenant_client.doctor.diagnosis.diagnose import gather, hints
from tenant_client.doctor.diagnosis.filter_rules import (
    FILE,
    Rule,
    RulesError,
    append_rules,
    healthy_patterns,
    keeps,
    load_rules,
    parse,
    pattern_of,
    read_lines,
)
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.run.learn_healthy import ENOUGH, HealthyLines, learn, workload_name
from tests.support.factories import a_descriptor

DAY = date(2026, 11, 22)
STEPS = [f"Sun Nov 22 01:02:{step:02d} step {step}/50 loss {1 / step:.4f} errors: 0" for step in range(1, 51)]


def attempt(folder: Path, *lines: str) -> list[Path]:
    log = folder / "output.log"
    log.write_text("\n".join([*STEPS, *lines]) + "\n")
    return [log]


def taught(home: Path, folder: Path, attempts: int, *lines: str, job: str = "train.py") -> int:
    """The rules that so many healthy attempts give."""
    with closing(open_database(home / "tenant.db")) as connection:
        made = 0
        for number in range(attempts):
            unit = f"lease-{number}"
            connection.execute("INSERT OR IGNORE INTO units VALUES (?, 0, '{}')", (unit,))
            connection.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (unit, job))
            made += learn(connection, home, unit, 1, 1e9 + number, attempt(folder, *lines))
    return made


# ---- what a rule covers --------------------------------------------------------------------------------------------


def test_numbers_and_words_of_time_vary_and_zero_is_not_any_number() -> None:
    assert pattern_of("at 03:25:27 PM: 3 errors") == pattern_of("at 11:07:15 AM: 12 errors")
    assert pattern_of("step 3: 0 errors") != pattern_of("step 3: 12 errors")
    assert pattern_of("loss 2.5e+00") != pattern_of("loss nan")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "KeyError: 'lr'",
        "[rank3]: torch.cuda.OutOfMemoryError: CUDA out of memory.", "slurmstepd: error: Detected 1 oom_kill event",
        "  exitcode  : -9 (pid: 8) Root Cause (first observed failure):", "Traceback (most recent call last):",
    ],
)  # fmt: skip
def test_no_rule_drops_a_line_that_may_be_evidence(line: str, tmp_path: Path) -> None:
    assert keeps(line, {pattern_of(line)})
    assert pattern_of(line) not in healthy_patterns(attempt(tmp_path, line))


def test_what_a_healthy_attempt_prints_is_dropped_and_what_it_does_not_is_left(tmp_path: Path) -> None:
    rules = healthy_patterns(attempt(tmp_path))
    assert not [line for line in STEPS if keeps(line.replace("01:02", "04:05"), rules)]
    assert keeps("Sun Nov 22 01:02:03 step 9/50 loss 0.1 errors: 4", rules)
    assert keeps("fabric agent lost plane b", rules)


def test_progress_bars_end_their_lines_with_a_carriage_return(tmp_path: Path) -> None:
    (tmp_path / "bar.log").write_bytes(b"epoch 1\r10%|#\r20%|##\nlost plane b")
    assert list(read_lines(tmp_path / "bar.log")) == ["epoch 1", "10%|#", "20%|##", "lost plane b"]


# ---- learning ------------------------------------------------------------------------------------------------------


def test_a_line_becomes_a_rule_when_enough_healthy_attempts_have_printed_it(tmp_path: Path) -> None:
    assert taught(tmp_path, tmp_path, ENOUGH - 1, "warm-up done") == 0
    assert load_rules(tmp_path / FILE).rules == ()
    assert taught(tmp_path, tmp_path, ENOUGH, "warm-up done") == 2
    rules = load_rules(tmp_path / FILE)
    assert {rule.line for rule in rules.rules} == {pattern_of(STEPS[0]), "warm-up done"}
    assert rules.rules[0].seen == tuple(f"lease-{number} attempt 1" for number in range(ENOUGH))
    assert taught(tmp_path, tmp_path, 2 * ENOUGH, "warm-up done") == 0


def test_rules_of_one_workload_are_not_anothers(tmp_path: Path) -> None:
    taught(tmp_path, tmp_path, ENOUGH)
    rules = load_rules(tmp_path / FILE)
    assert rules.of("train.py")
    assert not rules.of("infer.py")
    assert rules.fitting([pattern_of(STEPS[0])]) == "train.py"
    assert rules.fitting(["lost plane b"]) == ""


def test_jobs_of_one_archetype_share_their_rules(tmp_path: Path) -> None:
    made = []
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts, journal = Attempts(connection), Journal(connection)
        for unit, job, model in (
            ("a", "x.py", "llama"),
            ("b", "y.py", "llama"),
            ("c", "z", "llama"),
            ("d", "z", "bert"),
        ):
            attempts.begin(unit, 1e9)
            attempts.name(unit, job)
            journal.describe(unit, 1e9, a_descriptor(model))
            made.append(learn(connection, tmp_path, unit, 1, 1e9, attempt(tmp_path)))
        names = [workload_name(connection, tmp_path, unit) for unit in "abcd"]
    assert made == [0, 0, 1, 0]
    assert names[0] == names[1] == names[2] != names[3]


def test_lines_of_old_attempts_are_forgotten(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        known = HealthyLines(connection)
        for number in range(40):
            assert not known.add("w", f"a{number} attempt 1", float(number), [f"only {'x' * number} here"])
        assert connection.execute("SELECT COUNT(*) FROM healthy_lines").fetchone()[0] <= 8


# ---- the file ------------------------------------------------------------------------------------------------------


def test_an_owner_turns_a_rule_off_and_it_stays_off(tmp_path: Path) -> None:
    taught(tmp_path, tmp_path, ENOUGH)
    file = tmp_path / FILE
    file.write_text(f"# mine\n{file.read_text()}enabled = false\n")
    assert not load_rules(file).of("train.py")
    assert taught(tmp_path, tmp_path, 2 * ENOUGH, "warm-up done") == 1
    assert file.read_text().startswith("# mine\n")
    assert load_rules(file).of("train.py") == {"warm-up done"}


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.text(max_size=9))
def test_any_line_is_written_and_read_again(line: str, workload: str) -> None:
    rule = Rule(workload.encode("utf-8", "replace").decode(), line, ("a attempt 1",), DAY)
    assert parse(filter_rules._text(rule)).rules == (rule,)


def test_a_file_that_cannot_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[[rule]]\nline = 3\n")
    with pytest.raises(RulesError, match=r"rules\.toml"):
        taught(tmp_path, tmp_path, ENOUGH)
    assert (tmp_path / FILE).read_text() == "[[rule]]\nline = 3\n"
    append_rules(tmp_path / "other.toml", [Rule("w", "a", ("b",), DAY)])
    assert load_rules(tmp_path / "other.toml").rules == (Rule("w", "a", ("b",), DAY),)


# ---- what it is for ------------------------------------------------------------------------------------------------


def test_an_error_that_healthy_attempts_print_too_is_no_unusual_line(tmp_path: Path) -> None:
    harmless, odd = "error: metrics agent 4 is away, retrying", "fabric error: lease 12 was not renewed"
    log = tmp_path / "job.log"
    log.write_text("\n".join([*STEPS, harmless, odd]))
    gathered = gather([log])
    assert {hint.example for hint in hints(gathered)} == {harmless, odd}
    dropped = healthy_patterns(attempt(tmp_path, harmless))
    assert {hint.example for hint in hints(gathered, dropped=dropped)} == {odd}
    log.write_text("\n".join([*STEPS, harmless, "lost plane b", *STEPS[-3:]]))
    assert {hint.example for hint in hints(gather([log]), dropped=dropped)} == {"lost plane b"}


def test_what_is_no_log_is_refused_by_its_form(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\x04\x22\x4d\x18" + bytes(100))
    with pytest.raises(SourceError, match="not a log: an lz4 file"):
        list(filter_rules.read_lines(tmp_path / "log"))
    (tmp_path / "empty").touch()
    assert list(filter_rules.read_lines(tmp_path / "empty")) == []
