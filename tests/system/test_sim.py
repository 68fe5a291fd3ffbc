"""`pharoah-sim`: a tiny scenario from the command line to the report, and manners of the three programs."""

import json
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

import provider_server.program.cli
import simulation.cli
import tenant_client.program.cli
from federation.base.clock import now_hour
from provider_server.program.pages.serving import listening as provider_page
from provider_server.program.pages.snapshot import Reader
from provider_server.program.pages.views import view
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.readiness import Known
from provider_server.rounds.store.store import Store
from tenant_client.program.pages.serving import listening as tenant_page
from tests.support import schemas

PROGRAMS = {
    "tenant": tenant_client.program.cli.app,
    "provider": provider_server.program.cli.app,
    "sim": simulation.cli.app,
}
KEYS = {
    "tenants",
    "job_weeks",
    "failures_per_1000_node_days",
    "rounds",
    "epsilon",
    "delta",
    "seconds",
    "bytes_per_tenant_round",
    "mismatch",
    "hazard",
    "impact",
}
IMPACT_KEYS = {
    "mismatch_gpu_hours_avoided_share",
    "first_bundle_avoided_share",
    "false_refusal_share",
    "right_refusal_share",
    "refusal_gpu_hours",
    "warned_30min_share",
    "false_hints_per_1000_lease_hours",
    "gpu_hours_saved",
    "gpu_hours_saved_by_checks",
    "gpu_hours_saved_by_hints",
    "dollars_saved",
}


def call(program: str, *arguments: str) -> Result:
    return CliRunner().invoke(PROGRAMS[program], arguments)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "tiny"
    result = call("sim", "run", "--scenario", "tiny", "--out", str(out), "--json")
    assert result.exit_code == 0, result.stderr
    (out / "stdout.json").write_text(result.stdout)
    return out


@pytest.fixture(scope="module")
def summary(played: Path) -> dict[str, Any]:
    found: dict[str, Any] = schemas.held("pharoah-sim run", (played / "stdout.json").read_text())
    return found


def test_json_has_the_stable_keys_and_nothing_else_is_on_stdout(summary: dict[str, Any]) -> None:
    assert set(summary) >= KEYS
    assert set(summary["mismatch"]) == {
        "auroc",
        "average_precision",
        "auroc_without_privacy",
        "average_precision_without_privacy",
    }
    assert set(summary["hazard"]) == {
        "mean_abs_log_rate_error",
        "mean_abs_log_rate_error_without_privacy",
        "interval_coverage",
    }
    ways = {"on_mismatch_only", "without_privacy", "without_pharoah"}
    assert set(summary["impact"]) == IMPACT_KEYS | ways
    assert all(set(summary["impact"][way]) == IMPACT_KEYS for way in ways)
    assert not any(summary["impact"]["without_pharoah"].values())
    assert summary["tenants"] == 8
    assert summary["rounds"] == 2


def test_the_run_writes_its_outcome_and_a_report_that_loads_nothing(played: Path, summary: dict[str, Any]) -> None:
    outcome = json.loads((played / "outcome.json").read_text())
    assert {key: value for key, value in outcome.items() if key != "detail"} == summary
    report = (played / "report.html").read_text()
    assert "<svg" in report
    assert not re.search(r"(src|href)=.https?://", report)


@pytest.mark.nightly
def test_the_budget_of_a_tenant_shows_each_week_once(played: Path) -> None:
    home = str(played / "homes" / "tenants" / "000")
    view = json.loads(call("tenant", "privacy", "budget", "--home", home, "--json").stdout)
    (first, second), now = ([line["window_hours"] for line in view["lines"]]), time.time() / 3600
    assert first[1] == second[0] == first[0] + 168 == second[1] - 168
    assert now - 168 < second[1] <= now, "the last whole week"
    assert all(0.99 < line["epsilon"] <= 1.0 and line["rounds"] == 1 for line in view["lines"])
    assert view["whole_job_epsilon"] > 1.5


def test_a_preview_counts_what_the_journal_holds_and_names_every_byte(played: Path) -> None:
    home = str(played / "homes" / "tenants" / "000")
    view = json.loads(call("tenant", "privacy", "preview", "--home", home, "--json").stdout)
    assert view["message_bytes"] > 8 * view["cells"]
    assert all(cell["count"] >= 1 for cell in view["counts"])
    told = call("tenant", "privacy", "preview", "--home", home).stdout
    assert f"{view['message_bytes']} bytes" in told


def test_check_answers_with_its_exit_code(played: Path) -> None:
    home = played / "homes" / "tenants" / "000"
    told = call("tenant", "check", "--latest", "--home", str(home), "--json")
    assert schemas.held("pharoah-tenant check fit", told.stdout)["verdict"] == told.exit_code
    unknown = call("tenant", "check", "00", "--home", str(home))
    assert unknown.exit_code == 3
    assert "no lease '00'" in unknown.stderr
    assert "hint:" in unknown.stderr


def test_the_provider_lists_its_releases_and_findings(played: Path) -> None:
    home = str(played / "homes" / "provider")
    releases = schemas.held(
        "pharoah-provider rounds releases", call("provider", "rounds", "releases", "--home", home, "--json").stdout
    )
    first, second = (row["start_hour"] for row in releases)
    assert second == first + 168
    assert all(row["contributors"] == 8 for row in releases)
    assert json.loads(call("provider", "findings", "list", "--probability", "0", "--home", home, "--json").stdout)


def test_the_pages_of_both_sides_open_in_the_homes_of_a_run(played: Path) -> None:
    provider, tenant = played / "homes" / "provider", played / "homes" / "tenants" / "000"
    with provider_page(provider, None, "127.0.0.1", 0) as address:
        assert httpx.get(f"{address}login").status_code == 200
    with closing(Store(provider / "provider.db", create=False)) as store:
        seen, now = Reader(provider, store).snapshot(), now_hour()
        settings = PlanSettings(1.0, 1e-8, 10, 9)
        shown = view(seen, Known(settings, seen.directory, {}, (int(now) - 168, int(now)), now, now), 24)
    assert not shown.overview.overdue_hours
    assert {curve.panel for curve in shown.hazards} == {"A100 rack A", "H100 rack A", "H200 rack A"}
    with tenant_page(tenant, "127.0.0.1", 0) as address:
        assert "Jobs" in httpx.get(address, follow_redirects=True).text


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_missing_home_or_scenario_is_an_error_with_a_hint(program: str, tmp_path: Path) -> None:
    wrong = {
        "tenant": ["watch", "--home", str(tmp_path)],
        "provider": ["rounds", "releases", "--home", str(tmp_path)],
        "sim": ["run", "--scenario", "no-such"],
    }
    result = call(program, *wrong[program])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "error:" in result.stderr
    assert "hint:" in result.stderr


@pytest.mark.parametrize("epsilon", ["0", "-1", "nan", "much"])
def test_an_epsilon_that_is_none_is_refused(epsilon: str, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.touch()
    assert call("sim", "replay", "titan", str(file), f"--epsilon={epsilon}").exit_code == 2


def test_help_of_the_tenant_program_imports_nothing_heavy() -> None:
    """The time is a benchmark's business; what makes it is which libraries are loaded."""
    code = (
        "import sys; from typer.testing import CliRunner; import tenant_client.program.cli as c;"
        "r = CliRunner().invoke(c.app, ['--help']); assert r.exit_code == 0;"
        "print([m for m in ('numpy', 'scipy', 'flwr', 'opendp', 'pandas', 'cryptography') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_scenarios_are_listed_by_name() -> None:
    listed = call("sim", "scenarios").stdout
    assert {line.split()[0] for line in listed.splitlines()} == {
        "hyperscale",
        "quickstart",
        "regional",
        "standard",
        "tiny",
    }
