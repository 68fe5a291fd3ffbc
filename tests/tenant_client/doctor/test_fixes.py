"""`patterns fix`: the owner's reason replaces the program's, which is kept, until the week is counted."""

from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from federation.base.sqlite import Connection
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.program.cli import app
from tests.support.schemas import held

HOUR_S = 3600.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A lease whose job failed twice and was then stopped, at hours 11, 12 and 13."""
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts = Attempts(connection)
        for number, state in ((1, AttemptState.FAILED), (2, AttemptState.FAILED), (3, AttemptState.STOPPED)):
            attempts.begin("lease-a", (9.5 + number) * HOUR_S)
            attempts.end("lease-a", number, state, (10.0 + number) * HOUR_S)
            said = "value_error" if state is AttemptState.FAILED else "cancelled_stalled"
            attempts.explain("lease-a", number, AttemptCause(said, sentence=f"{said}: …"))
            if state is AttemptState.FAILED:
                attempts.count("lease-a", number)
    return tmp_path


def fixed(home: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["patterns", "fix", *words, "--home", str(home)])
    return done.exit_code, done.output


def counted(home: Path) -> list[tuple[float, str]]:
    with closing(open_database(home / "tenant.db")) as connection:
        return list(connection.execute("SELECT at_h, reason FROM failures ORDER BY at_h"))


def answered(connection: Connection, start_h: int, end_h: int) -> None:
    row = bytes([start_h]) * 16, b"plan", start_h, end_h, 1.0, 0.1
    connection.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?)", row)


def test_a_fix_changes_what_is_counted_and_keeps_what_was_said(home: Path) -> None:
    assert fixed(home, "lease", "nvlink_error", "--attempt", "1")[0] == 0
    assert counted(home) == [(11.0, "nvlink_error"), (12.0, "value_error")]
    code, said = fixed(home, "lease", "segmentation_fault", "--attempt", "1", "--json")
    view = held("pharoah-tenant patterns fix", said)
    assert (code, view["said"], view["reason"], view["counted"]) == (
        0,
        "value_error",
        "segmentation_fault",
        "runtime_error",
    )
    assert counted(home) == [(11.0, "runtime_error"), (12.0, "value_error")]
    shown = CliRunner().invoke(app, ["show", "--only", "journal", "--home", str(home), "--json"])
    first = held("pharoah-tenant show --only journal", shown.stdout)["attempts"][0]
    assert (first["cause"]["reason"], first["said"]) == ("segmentation_fault", "value_error")
    assert first["cause"]["sentence"] == "value_error: …"
    text = CliRunner().invoke(app, ["show", "--only", "journal", "--home", str(home)]).output
    assert "segmentation_fault, as you fixed it; Pharoah had said:" in text


def test_a_failure_may_become_none_and_a_stopped_job_one(home: Path) -> None:
    assert "a round counts nothing" in fixed(home, "lease", "cancelled", "--attempt", "2")[1]
    assert counted(home) == [(11.0, "value_error")]
    assert fixed(home, "lease", "ecc_error")[0] == 0
    assert counted(home) == [(11.0, "value_error"), (13.0, "ecc_error")]


def test_a_fix_drops_what_the_evidence_said_of_itself(home: Path) -> None:
    with closing(open_database(home / "tenant.db")) as connection:
        Attempts(connection).explain("lease-a", 1, AttemptCause("connection_error", domain="script", advice="Look."))
    assert fixed(home, "lease", "nvlink_error", "--attempt", "1")[0] == 0
    with closing(open_database(home / "tenant.db")) as connection:
        cause = Attempts(connection).list("lease-a")[0].cause
    assert (cause.reason, cause.domain, cause.advice) == ("nvlink_error", "", "")


def test_what_was_counted_stays(home: Path) -> None:
    with closing(open_database(home / "tenant.db")) as connection:
        answered(connection, 0, 12)
    code, said = fixed(home, "lease", "ecc_error", "--attempt", "1")
    assert (code, "was counted already: 1970-01-01 to 1970-01-01 12:00 was answered" in said) == (2, True)
    assert counted(home) == [(11.0, "value_error"), (12.0, "value_error")]
    assert fixed(home, "lease", "ecc_error", "--attempt", "2")[0] == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("lease", "no_such_reason"), "unknown reason 'no_such_reason'"),
        (("lease", "ecc_error", "--attempt", "9"), "no attempt 9 of lease-a ended without success"),
        (("other", "ecc_error"), "no lease 'other'"),
    ],
)
def test_a_fix_of_what_is_not_there_is_refused(home: Path, words: tuple[str, ...], text: str) -> None:
    code, said = fixed(home, *words)
    assert (code, text in said) == (2, True), said
    assert counted(home) == [(11.0, "value_error"), (12.0, "value_error")]
