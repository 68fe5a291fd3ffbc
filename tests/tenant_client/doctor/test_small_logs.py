"""Small logs, a kind of fault each, labelled by other hands; controls that have to stay as they are among them."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tenant_client.doctor.diagnosis.diagnose import diagnose, gather
from tenant_client.doctor.sources.cues import table

LOGS = Path(__file__).resolve().parents[2] / "logs" / "small_logs.jsonl"
ROWS = [json.loads(line) for line in LOGS.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["id"]))
def test_a_small_log_has_its_reason_and_whose_it_is(row: dict[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(row["text"], encoding="utf-8")
    told = diagnose(gather([log]).evidence)
    assert told.reason in {row["expected"], *row["also"].split(",")} - {""}, told.sentence
    assert row.get("domain") in (None, told.domain), told.sentence


MESSAGES = tomllib.loads((LOGS.parent / "messages.toml").read_text(encoding="utf-8"))["message"]


@pytest.mark.parametrize("row", MESSAGES, ids=lambda row: f"{row['program']}: {row['text'][-60:]}")
def test_a_message_of_the_newest_version_is_read(row: dict[str, Any], tmp_path: Path) -> None:
    log, text = tmp_path / "dmesg", row["text"]
    if row.get("raised"):
        text = f'Traceback (most recent call last):\n  File "job.py", line 10, in <module>\n    main()\n{text}'
    log.write_text(f"[  100.000001] {text}\n" if row.get("kernel") else f"{text}\n", encoding="utf-8")
    told = diagnose(gather([log]).evidence)
    assert (told.reason, row.get("domain", told.domain)) == (row["reason"], told.domain), told.sentence
    assert row.get("advice", "") in told.advice


def test_each_program_that_was_looked_at_has_its_messages() -> None:
    assert {row["program"] for row in MESSAGES} == set(table().looked_at)
