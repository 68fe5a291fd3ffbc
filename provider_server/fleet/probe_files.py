"""Tests that ran, as the operator's scheduler notes them: a CSV file with the columns node, test and at.

    node,test,at
    n042,memory,2026-11-24T03:10:00Z

Guarantee: a row that cannot be read is an error that names it; rows may come in any order, and other columns too.
"""

import csv
from datetime import UTC, datetime
from pathlib import Path

from crypto.errors import PharoahError
from federation.base.clock import SECONDS_PER_HOUR

COLUMNS = ("node", "test", "at")


class UnusableTests(PharoahError):
    """A file of tests that ran cannot be read."""

    default_hint = "write a CSV file with a header and the columns node, test and at, as 2026-11-24T03:10:00Z"


def read_tests(path: Path) -> dict[tuple[str, str], float]:
    """The hour since 1970 at which each test of each node ran last."""
    newest: dict[tuple[str, str], float] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
                raise UnusableTests(f"{path} has no column {', '.join(missing)}")
            for number, row in enumerate(rows, start=2):
                key = row["node"] or "", row["test"] or ""
                newest[key] = max(newest.get(key, 0.0), _hour(row["at"] or "", path, number))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UnusableTests(f"{path} cannot be read: {error}") from error
    return newest


def _hour(text: str, path: Path, number: int) -> float:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UnusableTests(f"{path}, line {number}: no time: {text[:40]!r}") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() / SECONDS_PER_HOUR
