"""Days from failure to named cause: by hand, of real failures, and by whoever names it first."""

import math
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from federation.protocol.bundle import Bundle, MismatchEntry, PairJudgement
from tenant_client.doctor.advice.failure_facts import Known, name_by_bundle
from tenant_client.doctor.diagnosis.sureness import Basis, Sureness
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.first_causes import DaysToCause, FirstCauses, NamedBy, days_to_cause
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.doctor.records.journal import Journal, Unit
from tenant_client.program.cli import app
from tests.jobs.wrapped import LEASE, run
from tests.support import schemas
from tests.support.factories import keys, token

DAY_S = 86_400.0


def call(home: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*words, "--home", str(home)])
    return done.exit_code, done.stdout


def test_what_waits_takes_longer_than_all_others() -> None:
    assert days_to_cause([]) == DaysToCause(0, 0, None)
    assert days_to_cause([1.0, 3.0, math.inf]) == DaysToCause(3, 2, 3.0)
    assert days_to_cause([1.0, math.inf, math.inf]) == DaysToCause(3, 1, None)
    assert days_to_cause([1.0, math.inf]).median_days is None
    assert days_to_cause([0.5]).words == "43200 s from failure to named cause, median"
    assert days_to_cause([2.0, 2.0, math.inf]).words.endswith("; 1 of 3 without a named cause")


def test_the_first_who_names_it_counts_and_less_sure_diagnoses_do_not(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts, causes = Attempts(connection), FirstCauses(connection)
        for unit, reason, sure in (
            ("named", "key_error", None),
            ("unsure", "key_error", 0.3),
            ("older", "key_error", 0.9),  # journalled before days were kept
            ("unknown", "unknown", None),
            ("well", "unknown", None),
        ):
            attempts.begin(unit, 0.0)
            attempts.end(unit, 1, AttemptState.SUCCEEDED if unit == "well" else AttemptState.FAILED, 100.0)
            attempts.explain(unit, 1, AttemptCause(reason))
            if sure:
                Incidents(connection).keep(unit, 1, ["a line"], Sureness(Basis.LOG_LINE, sure, sure, 9, 3))
        causes.name("named", 1, 100.0 + DAY_S, NamedBy.DIAGNOSIS)
        causes.name("named", 1, 100.0 + 9 * DAY_S, NamedBy.OWNER)
        assert causes.days() == {"named": [1.0], "unsure": [math.inf], "unknown": [math.inf]}


def test_a_bundle_names_what_nobody_could(tmp_path: Path) -> None:
    labels = {"subarchetype": str(token("w0")), "family": str(token("w0")), "context": str(token("c0"))}
    worse = MismatchEntry(token("w0"), token("c0"), 0.99, 8.0, 4.0, 16.0, 9.0, PairJudgement.WORSE, ())
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts, causes = Attempts(connection), FirstCauses(connection)
        Journal(connection).add([Unit("a", 0.0, labels), Unit("b", 0.0, {}), Unit("c", 0.0, labels)], [])
        for unit, reason in (("a", "unknown"), ("b", "unknown"), ("c", "key_error")):
            attempts.begin(unit, 0.0)
            attempts.end(unit, 1, AttemptState.FAILED, 100.0)
            attempts.explain(unit, 1, AttemptCause(reason))
        name_by_bundle(connection, Known.of(connection), 200.0)
        assert causes.days() == {"a": [math.inf], "b": [math.inf]}
        BundleLog(connection).keep(0, keys().provider.sign(Bundle(0, 0, 0, (), (worse,), (), None)))
        name_by_bundle(connection, Known.of(connection), 100.0 + 3 * DAY_S)
        assert causes.days() == {"a": [3.0], "b": [math.inf]}


@pytest.mark.parametrize("by", ["fix", "helped"])
def test_a_real_failure_is_named_in_seconds_or_by_its_owner(tmp_path: Path, by: str) -> None:
    """One that its log explains, and one that ends without a word."""
    run(tmp_path, [sys.executable, "-c", "{}['lr']"])
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        (took,) = FirstCauses(connection).days()[LEASE]
    assert 0.0 <= took * DAY_S < 60.0
    run(tmp_path, [sys.executable, "-c", "raise SystemExit(7)"])
    waits = schemas.held("pharoah-tenant status", call(tmp_path, "status", "--json")[1])["days_to_cause"]
    assert waits == {"failures": 2, "named": 1, "median_days": None}
    assert "1 of 2 without a named cause" in call(tmp_path, "status")[1]
    named = {"fix": ["patterns", "fix", LEASE, "key_error"], "helped": ["patterns", "helped", LEASE, "a newer driver"]}
    done = CliRunner().invoke(app, [*named[by], "--home", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (row,) = schemas.held("pharoah-tenant jobs", call(tmp_path, "jobs", "--json")[1])["leases"]
    assert 0.0 < row["days_to_cause"] * DAY_S < 120.0
    metrics = call(tmp_path, "show", "--only", "expectations", "--metrics")[1]
    assert [line for line in metrics.splitlines() if line.startswith("pharoah_days_to_cause 0.0")]


def test_days_stand_on_the_screen_from_one_on(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        Attempts(connection).begin("old", time.time() - 5 * DAY_S)
        Attempts(connection).end("old", 1, AttemptState.FAILED, time.time() - 4 * DAY_S)
        FirstCauses(connection).name("old", 1, time.time(), NamedBy.OWNER)
    assert "cause named after 4 days" in call(tmp_path, "jobs")[1]
    assert "4.0 days from failure to named cause, median" in call(tmp_path, "status")[1]
