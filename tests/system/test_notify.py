"""The example that tells of a failure: what a webhook and sendmail get, and that the webhook's address stays secret."""

import json
import os
import subprocess
import sys
from email.message import Message
from pathlib import Path

from tests.support.receiver import receiver

ROOT = Path(__file__).resolve().parents[2]
SAID = "lease 81, attempt 2 failed: gpu_out_of_memory"


def attempt(number: int, state: str, reason: str) -> dict[str, object]:
    cause = {"reason": reason, "sentence": f"{reason}: out.log, line 4: secret words of a log"}
    return {"unit": "81", "attempt": number, "state": state, "cause": cause}


FAILED = {"attempts": [attempt(1, "failed", "key_error"), attempt(2, "failed", "gpu_out_of_memory")]}
SUCCEEDED = {"attempts": [attempt(1, "failed", "key_error"), attempt(2, "succeeded", "unknown")]}


def notify(journal: object, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Runs the example with a `sendmail` that keeps its input."""
    sendmail = folder / "sendmail"
    sendmail.write_text(f'#!/bin/sh\necho "$@" > {folder}/options; cat > {folder}/mail\n')
    sendmail.chmod(0o755)
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/notify.py"), "81"],
        input=json.dumps(journal),
        env={"PATH": f"{folder}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_webhook_gets_lease_and_cause_and_no_line_of_a_log(tmp_path: Path) -> None:
    got: list[dict[str, str]] = []

    def take(_path: str, _header: Message, body: bytes) -> int:
        got.append(json.loads(body))
        return 200

    with receiver(take) as url:
        done = notify(FAILED, tmp_path, PHAROAH_WEBHOOK=f"{url}/services/secret")
    assert (done.returncode, done.stderr) == (0, "")
    assert got == [{"text": SAID}]
    assert not (tmp_path / "mail").exists()


def test_sendmail_gets_a_mail(tmp_path: Path) -> None:
    assert notify(FAILED, tmp_path, PHAROAH_MAIL_TO="me@example.org").returncode == 0
    mail = (tmp_path / "mail").read_text()
    assert f"Subject: {SAID}\n" in mail
    assert "To: me@example.org\n" in mail
    assert "secret words" not in mail
    assert (tmp_path / "options").read_text() == "-t -i\n"


def test_an_address_that_does_not_answer_is_not_repeated(tmp_path: Path) -> None:
    done = notify(FAILED, tmp_path, PHAROAH_WEBHOOK="http://127.0.0.1:1/services/secret")
    assert done.returncode == 1
    assert done.stderr == "notify: the webhook did not take it: URLError\n"


def test_nothing_is_told_of_success_or_without_an_address(tmp_path: Path) -> None:
    notify(SUCCEEDED, tmp_path, PHAROAH_MAIL_TO="me@example.org")
    notify(FAILED, tmp_path)
    assert not (tmp_path / "mail").exists()
