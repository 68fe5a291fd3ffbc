"""Messages of the libraries, launchers and schedulers of a job, each in a log of its own: tests/logs/families.toml."""

import tomllib
from pathlib import Path

import pytest

from tenant_client.diagnosis.diagnose import Diagnosis, diagnose, gather
from tenant_client.sources.evidence import Role

TABLE = Path(__file__).resolve().parents[1] / "logs" / "families.toml"
MESSAGES = [
    (row["right"], row.get("domain"), row["text"])
    for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["message"]
]


def diagnosed(text: str, folder: Path) -> Diagnosis:
    log = folder / "job.log"
    log.write_text(f"loading\n{text}", encoding="utf-8")
    return diagnose(gather([log]).evidence)


@pytest.mark.parametrize(
    ("right", "domain", "text"), MESSAGES, ids=[f"{number}-{row[0]}" for number, row in enumerate(MESSAGES)]
)
def test_a_message_names_its_reason_and_no_other(right: str, domain: str | None, text: str, tmp_path: Path) -> None:
    found = diagnosed(text, tmp_path)
    if right == "symptom":
        assert found.root is not None
        assert found.root.role is Role.SYMPTOM
    elif right == "unknown":
        assert found.root is None or found.root.role is Role.SYMPTOM, found.sentence
    else:
        assert (found.reason, domain or found.domain) == (right, found.domain), found.sentence


def test_what_a_job_went_on_after_is_no_last_word(tmp_path: Path) -> None:
    assert diagnosed("tee: run.log: Disk quota exceeded\n", tmp_path).reason == "disk_full"
    assert diagnosed("tee: run.log: Disk quota exceeded\niteration 7 loss 2.0\n", tmp_path).root is None
