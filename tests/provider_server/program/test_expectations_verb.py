"""`pharoah-provider findings expectations`: targets, exit codes, text, and JSON as its schema says."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from federation.protocol.life_table import Dimension, LifeTable
from federation.protocol.plan import Marginal, PlanDimension
from federation.protocol.subjects import GOODPUT_BANDS, Subject
from provider_server.fleet.release import Release
from provider_server.program.cli import app
from provider_server.program.verbs import expectations
from tests.support import changing
from tests.support.plans import small_plan

GOOD, BAD = "a" * 32, "b" * 32


def release() -> Release:
    """One context where nine in ten leases keep 95% of their time, and one where half do."""
    dimensions = (PlanDimension("context", (GOOD, BAD), (5, 5)), PlanDimension("goodput", GOODPUT_BANDS, ()))
    marginals = (Marginal("goodput", ("context", "goodput"), (), 9.0, Subject.GOODPUT),)
    plan = changing.replace(small_plan(), dimensions=dimensions, marginals=marginals)
    table = LifeTable.zeros([Dimension(one.name, one.levels) for one in dimensions])
    events = np.array([[0.0, 0.0, 20.0, 0.0, 380.0], [100.0, 50.0, 50.0, 0.0, 200.0]])
    table = replace(table, events=events, noise_variance=np.full((2, 5), 100.0))
    return Release(plan, (), (table,), 10)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(*_: object) -> tuple[Release, dict[str, str]]:
        return release(), {BAD: "hall 2"}

    monkeypatch.setattr(expectations, "newest_counting", newest)


@pytest.mark.usefixtures("counted")
def test_a_context_that_misses_the_aim_is_named_first_and_is_exit_code_1(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["findings", "expectations", "--home", str(tmp_path)])
    first, shares, lowest, second, *_ = done.stdout.splitlines()
    assert done.exit_code == 1
    assert first.startswith("hall 2: fewer than 90% reach 90%: 400 leases (noise of a band ± 10)")
    assert "90% in 50% (4" in shares
    assert "lowest 10%: up to 0% at least, 50% at most" in lowest
    assert second.startswith(f"{GOOD[:12]}: not named")


@pytest.mark.usefixtures("counted")
def test_a_lower_aim_names_none_and_the_json_is_what_its_types_say(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["findings", "expectations", "--home", str(tmp_path), "--aim", "0.3", "--json"])
    view = msgspec.json.decode(done.stdout, type=expectations.ExpectationsView)
    assert (done.exit_code, view["target"], view["aim"], view["noise_sd"]) == (0, 0.9, 0.3, 10.0)
    assert [one.goodput for one in view["contexts"][0]["attained"]] == [0.5, 0.8, 0.9, 0.95]
    assert json.loads(done.stdout)["version"] == 1


def test_a_target_between_the_bands_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["findings", "expectations", "--home", str(tmp_path), "--target", "0.85"])
    assert done.exit_code == 2
