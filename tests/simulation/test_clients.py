"""Tenants whose rates and bursts follow published clients, and the benchmark that compares both."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy import stats

from benchmarks import clients
from simulation.cloud.client_laws import ClientLaws, published
from simulation.cloud.cloud import build_cloud
from simulation.cloud.profiles import draw_clients
from simulation.cloud.scenario import load

LAWS = ClientLaws(rate_sigma=2.0, week_median=0.5, week_sigma=1.0)
WINDOWS = clients.WINDOWS_A_WEEK


def test_shares_and_bursts_have_the_laws_that_the_table_says_and_are_not_those_of_zipf() -> None:
    scenario = msgspec.structs.replace(load("standard"), tenants=4_000)
    drawn = {
        measured: draw_clients(msgspec.structs.replace(scenario, measured_clients=measured), np.random.default_rng(3))
        for measured in (False, True)
    }
    assert sum(one.share for one in drawn[True]) == pytest.approx(1.0)
    assert [one.share for one in drawn[True]] == sorted((one.share for one in drawn[True]), reverse=True)
    laws, chance = published(), {}
    for measured, those in drawn.items():
        rates, bursts = np.log([one.share for one in those]), np.log([one.burstiness for one in those])
        scaled = (rates - rates.mean()) / laws.rate_sigma, (bursts - np.log(laws.week_median)) / laws.week_sigma
        chance[measured] = [stats.kstest(one, "norm").pvalue for one in scaled]
    assert min(chance[True]) > 1e-9
    assert max(chance[False]) < 1e-9


def test_the_rest_of_a_tenant_stays_as_it_is() -> None:
    shipped, measured = (
        draw_clients(msgspec.structs.replace(load("quickstart"), measured_clients=on), np.random.default_rng(5))
        for on in (False, True)
    )
    for one, other in zip(shipped, measured, strict=True):
        assert (one.workloads, one.context_shares, one.median_h) == (
            other.workloads,
            other.context_shares,
            other.median_h,
        )


def test_a_cloud_of_measured_clients_is_built() -> None:
    scenario = msgspec.structs.replace(load("tiny"), measured_clients=True)
    cloud = build_cloud(scenario, np.random.default_rng(1))
    assert {lease.tenant for week in range(scenario.weeks) for lease in cloud.week(week).leases}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 clients of two models in the published form, drawn from LAWS; one of them sends nothing in its first week."""
    rng = np.random.default_rng(8)
    for model, count in (("m-large", 300), ("m-small", 100)):
        of_model = tmp_path / "data" / "language" / model
        of_model.mkdir(parents=True)
        rates = rng.lognormal(1.0, LAWS.rate_sigma, count)
        week = rng.normal(0.0, LAWS.burstiness(count, rng)[:, None], (count, 2))
        for number in range(count):
            means = rates[number] * np.exp(week[number] - week[number].mean())
            means[0] *= number != 7
            lines = [f"{600 * at},{means[at // WINDOWS]},1,," for at in range(2 * WINDOWS)]
            (of_model / f"chunk-{number}-trace.csv").write_text("\n".join(lines))
    monkeypatch.setenv("SERVEGEN", str(tmp_path))
    clients.clients.cache_clear()


@pytest.mark.nightly
@pytest.mark.usefixtures("folder")
def test_the_benchmark_finds_the_laws_of_made_up_clients_and_tells_others_from_them() -> None:
    found = clients.fitted()
    assert found["rate_sigma"] == pytest.approx(LAWS.rate_sigma, rel=0.15)
    assert found["week_median"] == pytest.approx(LAWS.week_median, rel=0.3)
    assert found["week_sigma"] == pytest.approx(LAWS.week_sigma, rel=0.3)
    judged = clients.judged()
    assert judged["weeks_all_clients"] == 398  # number 7 of both models is left out
    assert judged["rates_all"] < 0.12 < judged["rates_all_as_shipped"]


def test_without_the_files_it_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVEGEN", str(tmp_path))
    clients.clients.cache_clear()
    with pytest.raises(FileNotFoundError, match="SERVEGEN"):
        clients.clients()
