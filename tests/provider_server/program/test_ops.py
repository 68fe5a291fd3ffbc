"""Rules and dashboards are about metrics that there are, and Prometheus' own tools understand every expression."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric, generate_latest

from provider_server.program.metrics import Metrics
from provider_server.program.outputs.node_metrics import NodeMetrics, PlanMetrics
from provider_server.rounds.network.grid_tenants import Why
from provider_server.rounds.week import Stage
from tests import needs
from tests.support.grafana import objections

ROOT = Path(__file__).resolve().parents[3]
PROMETHEUS, ALERTMANAGER = ROOT / "ops/prometheus/prometheus.yml", ROOT / "ops/alertmanager/alertmanager.yml"
RULES, TESTS = ROOT / "ops/prometheus/alerts.yml", ROOT / "ops/prometheus/alerts_test.yml"
DASHBOARDS = sorted((ROOT / "ops/grafana").glob("*.json"))
NAME = re.compile(r"\bpharoah_\w+")
LIMITS = 120.0


def families() -> list[Metric]:
    """Every metric that the provider can expose."""
    registry = Metrics().registry
    NodeMetrics(registry)
    PlanMetrics(Path(), registry)
    return list(registry.collect())


def registered() -> set[str]:
    """Every series of them."""
    found: set[str] = set()
    for family in families():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + suffix for suffix in suffixes}
    return found


def promtool(*words: object, status: int = 0) -> str:
    command = [str(needs.program("promtool")), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMITS, cwd=ROOT)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def panels(dashboard: Path) -> Iterator[dict[str, Any]]:
    yield from json.loads(dashboard.read_text(encoding="utf-8"))["panels"]


def expressions(dashboard: Path) -> list[str]:
    return [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]


def rules() -> dict[str, str]:
    """The text of each rule, by the name of its alert."""
    parts = re.split(r"^ +- alert: ", RULES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {part.split("\n", 1)[0]: part for part in parts}


def test_promtool_takes_the_rules_and_would_not_take_others(tmp_path: Path) -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES)
    broken = tmp_path / "broken.yml"
    broken.write_text(RULES.read_text().replace("pharoah_suspects > 0", "pharoah_suspects >"))
    promtool("check", "rules", broken, status=1)


def test_rules_fire_when_they_must_and_not_before(tmp_path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", TESTS)
    shutil.copy(TESTS, tmp_path)
    (tmp_path / RULES.name).write_text(RULES.read_text().replace("pharoah_suspects > 0", "pharoah_suspects > 2"))
    short = TESTS.read_text().split("tests:\n")
    own = [test for test in short[1].split("  - name: ") if test.startswith("PharoahSuspects")]
    (tmp_path / TESTS.name).write_text(short[0] + "tests:\n" + "".join(f"  - name: {test}" for test in own))
    assert "FAILED" in promtool("test", "rules", tmp_path / TESTS.name, status=1)


def test_every_rule_is_tested_both_ways() -> None:
    text = TESTS.read_text(encoding="utf-8")
    for name in rules():
        assert f"- name: {name} fires\n" in text
        assert f"- name: {name} is silent\n" in text


def test_every_rule_says_what_and_how_bad() -> None:
    for name, text in rules().items():
        assert "summary:" in text, name
        assert "description:" in text, name
        assert re.search(r"severity: (warning|critical)", text), name


def test_rules_are_about_metrics_that_there_are() -> None:
    used = set(NAME.findall(RULES.read_text(encoding="utf-8")))
    assert used <= registered()
    assert used >= {"pharoah_round_waiting", "pharoah_trustee_up", "pharoah_release_due_hour", "pharoah_suspects"}


def test_labels_that_rules_name_are_those_of_the_metrics() -> None:
    metrics = Metrics()
    metrics.stage_seconds.labels(Stage.CONTRIBUTE.value).observe(2000.0)
    for outcome in ("released", "waiting", "refused"):
        metrics.rounds.labels(outcome).inc()
    for why in Why:
        metrics.silences.labels(why.value).inc()
    exposed = generate_latest(metrics.registry).decode()
    for part in ('stage="contribute"', 'le="1800.0"', 'outcome="refused"', 'why="malformed"'):
        assert part.split("=")[1] in RULES.read_text(encoding="utf-8")
        assert part in exposed
    (listed,) = re.findall(r'why=~"([a-z|]+)"', RULES.read_text(encoding="utf-8"))
    assert {*listed.split("|"), "malformed"} == set(Why)


def test_every_metric_is_in_a_dashboard_and_no_other() -> None:
    shown = {name for dashboard in DASHBOARDS for text in expressions(dashboard) for name in NAME.findall(text)}
    assert shown <= registered()
    assert {family.name for family in families()} == {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown}


def test_promtool_takes_the_expressions_of_dashboards(tmp_path: Path) -> None:
    lines = ["groups:", "  - name: dashboards", "    rules:"]
    for number, text in enumerate(text for dashboard in DASHBOARDS for text in expressions(dashboard)):
        lines += [f"      - record: panel:{number}", f"        expr: {json.dumps(text)}"]
    file = tmp_path / "dashboards.yml"
    file.write_text("\n".join(lines) + "\n")
    promtool("check", "rules", file)
    file.write_text("\n".join(lines).replace("increase(", "increase", 1) + "\n")
    promtool("check", "rules", file, status=1)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_can_be_imported_as_they_are(dashboard: Path) -> None:
    whole = json.loads(dashboard.read_text(encoding="utf-8"))
    assert whole["uid"].startswith("pharoah-")
    assert [one["type"] for one in whole["templating"]["list"]] == ["datasource"]
    seen = list(panels(dashboard))
    assert len({panel["id"] for panel in seen}) == len(seen)
    taken: set[tuple[int, int]] = set()
    for panel in seen:
        assert panel["title"]
        assert panel["description"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in own) < 24
        assert not own & taken
        taken |= own


@pytest.mark.nightly
@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_are_of_the_types_that_grafana_publishes(dashboard: Path, tmp_path: Path) -> None:
    text = dashboard.read_text(encoding="utf-8")
    assert objections(text, tmp_path) == ""
    for right, wrong in (('"schemaVersion": 39', '"schemaVersion": "39"'), ('"absolute"', '"relative"')):
        assert "is not assignable" in objections(text.replace(right, wrong, 1), tmp_path)


def test_dashboards_are_provisioned_with_the_datasource_that_they_take() -> None:
    folder = ROOT / "ops/grafana/provisioning"
    source = yaml.safe_load((folder / "datasources/pharoah.yml").read_text(encoding="utf-8"))["datasources"][0]
    (given,) = {
        one["query"] for board in DASHBOARDS for one in json.loads(board.read_text("utf-8"))["templating"]["list"]
    }
    assert source["type"] == given
    provider = yaml.safe_load((folder / "dashboards/pharoah.yml").read_text(encoding="utf-8"))["providers"][0]
    assert provider["type"] == "file"


def test_alertmanager_and_prometheus_take_their_files() -> None:
    assert "valid prometheus config" in promtool("check", "config", PROMETHEUS)
    command = [str(needs.program("amtool")), "check-config", str(ALERTMANAGER)]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMITS)
