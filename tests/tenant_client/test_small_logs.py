"""Small logs, a kind of fault each, labelled by other hands; controls that have to stay as they are among them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenant_client.diagnosis.diagnose import diagnose, gather

LOGS = Path(__file__).resolve().parents[1] / "logs" / "small_logs.jsonl"
ROWS = [json.loads(line) for line in LOGS.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["id"]))
def test_a_small_log_has_its_reason_and_whose_it_is(row: dict[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(row["text"], encoding="utf-8")
    told = diagnose(gather([log]).evidence)
    assert told.reason in {row["expected"], *row["also"].split(",")} - {""}, told.sentence
    assert row.get("domain") in (None, told.domain), told.sentence
