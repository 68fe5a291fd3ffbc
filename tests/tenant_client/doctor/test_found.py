"""A collective that timed out is told by the rank that the watch had found hanging, with its line."""

from dataclasses import replace
from pathlib import Path

import pytest

from tenant_client.doctor.run.diagnose_attempt import cause_of
from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.watchdog import Kind, WatchFinding

WHY = "rank 1 is outside, idle, for 9 s; 1 rank waits for it in all_reduce (seq 83, group default_pg)"
HUNG = WatchFinding(
    Kind.NON_COMMUNICATION_HANG, 1e9, 41, (1,), f"{WHY}; rank 1 at wait_for_lock (hang.py:4) < <module> (hang.py:12)"
)


def told(tmp_path: Path, finding: WatchFinding, log: str = "step 40 loss 1.0\n") -> tuple[str, str, str]:
    file = tmp_path / "output.log"
    file.write_text(log, encoding="utf-8")
    cause = cause_of([file], [finding], 1, tmp_path, FailOpen(quiet=True)).cause
    return cause.reason, cause.sentence, cause.advice


def test_the_line_of_the_hang_leads_and_the_advice_is_about_it(tmp_path: Path) -> None:
    assert told(tmp_path, HUNG) == (
        "collective_timeout",
        "rank 1 hung at wait_for_lock (hang.py:4); collective_timeout followed",
        "Look at wait_for_lock (hang.py:4), where rank 1 stood while the other ranks waited for it.",
    )


@pytest.mark.parametrize(
    ("finding", "log"),
    [
        (replace(HUNG, text=WHY), "step 40 loss 1.0\n"),
        (replace(HUNG, cleared_at_s=1e9 + 9), "step 40 loss 1.0\n"),
        (HUNG, "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\nKeyError: 'lr'\n"),
    ],
)
def test_it_does_not_where_no_line_is_known_the_hang_ended_or_the_log_names_a_cause(
    tmp_path: Path, finding: WatchFinding, log: str
) -> None:
    reason, sentence, advice = told(tmp_path, finding, log)
    assert " hung at " not in sentence
    assert (advice, reason == "key_error") == ("", "KeyError" in log)
