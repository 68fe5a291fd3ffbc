"""Tells why a lease's newest attempt failed: to a Slack-compatible webhook, or by e-mail. Off unless you call it.

    pharoah-tenant run --lease 81 -- torchrun train.py ||
        pharoah-tenant show 81 --only journal --json | python examples/notify.py 81

The webhook's URL, which is a secret, comes from the environment (PHAROAH_WEBHOOK) and is never printed; mail goes to
PHAROAH_MAIL_TO by the system's `sendmail`. What is told is the lease and the cause; no line of a log.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from email.message import EmailMessage
from typing import Any

TIMEOUT_S = 10.0


def text_of(journal: dict[str, Any], lease: str) -> str | None:
    """One line about the newest attempt; None if it did not fail."""
    attempts = [one for one in journal["attempts"] if one["unit"] == lease]
    if not attempts or attempts[-1]["state"] != "failed":
        return None
    return f"lease {lease}, attempt {attempts[-1]['attempt']} failed: {attempts[-1]['cause']['reason']}"


def post(url: str, text: str) -> None:
    """Posts a message as Slack, Mattermost and others take it; the URL stands in no error."""
    body = json.dumps({"text": text}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})  # noqa: S310  # the user's own
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()  # noqa: S310
    except (urllib.error.URLError, ValueError) as error:
        sys.exit(f"notify: the webhook did not take it: {type(error).__name__}")


def mail(to: str, text: str) -> None:
    """Sends a mail by `sendmail`."""
    message = EmailMessage()
    message["To"], message["Subject"] = to, text
    message.set_content(f"{text}\n`pharoah-tenant jobs` shows more.\n")
    subprocess.run(["sendmail", "-t", "-i"], input=message.as_bytes(), check=True, timeout=TIMEOUT_S)  # noqa: S607


if __name__ == "__main__":
    told = text_of(json.load(sys.stdin), sys.argv[1])
    if told and (webhook := os.environ.get("PHAROAH_WEBHOOK")):
        post(webhook, told)
    if told and (address := os.environ.get("PHAROAH_MAIL_TO")):
        mail(address, told)
