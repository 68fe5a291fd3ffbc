"""Recipes of data: levels of some metrics by BuildUp, what may be left out and what never, and who asks for it."""

import json
from pathlib import Path

import numpy as np
import pytest

from federation.protocol.toml_tables import BadTable
from provider_server.fleet.analysis.buildup import BuildUp, signals, signals_of
from provider_server.fleet.analysis.metric_worth import Evidence, Fitted, Scores, changes, choose, thresholds_reached
from provider_server.fleet.learning.hardware import WARM_UP_H
from provider_server.fleet.learning.recipe import SLOW_S, Cost, Gathered, Reading, advise
from provider_server.fleet.learning.signatures import metrics_of
from provider_server.fleet.telemetry.catalogue import METRICS
from provider_server.fleet.telemetry.prometheus import PrometheusSettings
from provider_server.fleet.telemetry.quality import Tally
from provider_server.fleet.telemetry.recipe import FAILURES, Ingredient, Recipe, load
from provider_server.program.verbs.feed import HOURS
from tests.provider_server.fleet.test_buildup import ECC, FLAPS, HEAT, after, fleet, level, row, summary
from tests.provider_server.fleet.test_telemetry_prometheus import ask, matrix, played
from tests.provider_server.program.test_verbs_telemetry import END, START, call, told, write

NODES = 40
THREE = (ECC, FLAPS, HEAT)


# ---- levels of some metrics ------------------------------------------------------------------------------------------


def drifting(hours: int) -> list[dict[tuple[str, str], float | None]]:
    """Values of three metrics of sixteen nodes; some say nothing at times."""
    rng = np.random.default_rng(4)
    found = []
    for hour in range(hours):
        values: dict[tuple[str, str], float | None] = {}
        for place, metric in enumerate(THREE):
            for node in range(16):
                high = node % 5 == place and 8 < hour < 20 + 2 * node
                value = float(rng.poisson(40.0 if high else 0.2)) if metric != HEAT else 60.0 + 15.0 * high
                values[f"n{node}", metric] = None if rng.random() < 0.05 else value
        found.append(values)
    return found


HOURS_SEEN = 64


@pytest.fixture(scope="module")
def scores() -> Scores:
    """Of all three metrics together."""
    table = [one for one in signals() if one.metric in THREE]
    reading, whole = Reading(table), BuildUp(table=table)
    for hour, values in enumerate(drifting(HOURS_SEEN)):
        reading.add(summary(hour, values), whole, counts=False)
    return reading.scores([f"n{number}" for number in range(16)])


@pytest.mark.parametrize("some", [THREE, (ECC,), (FLAPS, HEAT), ()])
def test_levels_of_some_metrics_are_those_that_build_up_makes_of_them_alone(
    some: tuple[str, ...], scores: Scores
) -> None:
    alone = BuildUp(table=[one for one in signals() if one.metric in some])
    expected = []
    for hour, values in enumerate(drifting(HOURS_SEEN)):
        chosen = {key: value for key, value in values.items() if key[1] in some}
        shown = alone.add(summary(hour, chosen or values))
        expected.append(dict(shown.select("node", "level").iter_rows()))
    levels = scores.levels(some)
    assert levels.tolist() == [[one.get(f"n{number}", 0) for number in range(16)] for one in expected]
    assert (levels.max() > 0) == bool(some)
    assert (levels[-1].min() == 0) or not some


def test_thresholds_are_counted_from_each_on() -> None:
    scores = np.array([-3.0, 1.99, 2.0, 3.0, 4.5, 7.0, 9.0, np.nan])
    assert thresholds_reached(scores).tolist() == [0, 0, 1, 2, 3, 6, 6, 0]


def test_what_is_no_longer_asked_for_is_no_silence_and_holds_up_no_level() -> None:
    build = BuildUp()
    both = {**fleet(ECC), **fleet(FLAPS), ("n0", ECC): 1e4}
    assert level(after(build, [summary(hour, both) for hour in range(3)])) == 3
    careless, told_so = (BuildUp.resumed(build.state(), table=table) for table in (None, signals_of({FLAPS, "xid"})))
    hours = [summary(hour, fleet(FLAPS)) for hour in range(3, 40)]
    held, free = after(careless, hours), after(told_so, hours)
    assert (row(held, "n0")["status"], level(held)) == ("stale", 3)  # a series that vanished lowers no level
    assert (row(free, "n0")["status"], level(free)) == ("fresh", 0)


# ---- the choice ------------------------------------------------------------------------------------------------------


def planted(failures_of_a: int, hours: int = 700) -> Evidence:
    """Metric a foretells cause 0, b and its copy c cause 1, d drifts and means nothing, e is still."""
    rng = np.random.default_rng(11)
    reached = np.zeros((5, hours, NODES), np.uint8)
    for node in range(NODES):
        begin = 30 * node % (hours - 100)
        for metric in range(4):
            if node % 4 == min(metric, 2 + (metric == 3)) or (metric == 2 and node % 4 == 1):
                reached[metric, begin : begin + 90, node] = 2
    reached[2] = reached[1]
    scores = Scores(("a", "b", "c", "d", "e"), reached, np.zeros_like(reached, np.bool_))
    at_risk = np.ones((hours, NODES), np.bool_)
    at_risk[0] = False
    cause = np.full((hours, NODES), -1, np.int16)
    cause[(rng.random(cause.shape) < 0.005) & at_risk] = 1
    raised = scores.levels(["b"]) > 0
    cause[1:][(raised[:-1]) & (rng.random(raised[1:].shape) < 0.2)] = 1
    places = np.argwhere(scores.levels(["a"])[:-1] > 0)
    for hour, node in places[rng.permutation(len(places))[:failures_of_a]].tolist():
        cause[hour + 1, node] = 0
    return Evidence(scores, at_risk, cause, np.zeros(NODES, np.intp))


@pytest.mark.parametrize("failures", [3, 30])
def test_the_only_metric_of_a_cause_is_never_left_out_and_one_of_two_copies_is(failures: int) -> None:
    evidence = planted(failures)
    out = choose(evidence, {"b": 5.0, "c": 1.0, "d": 1.0, "e": 9.0}, 0.03)
    assert "a" not in out
    assert len({"b", "c"} & set(out)) == 1
    assert "b" in out  # the dearer of the two
    assert "e" in out
    everything, less = evidence.before("abcde"), evidence.before("bcde")
    alone = evidence.beyond(everything, less)
    assert alone.telling
    assert alone.failures >= failures > 2 * alone.expected * (failures > 3)


def test_metrics_that_are_kept_stay_and_few_failures_leave_nothing_out() -> None:
    evidence = planted(30)
    assert "b" not in choose(evidence, {"b": 5.0}, 0.03, frozenset("b"))
    assert choose(evidence, {}, 2.9 / evidence.failures) == ()  # no failure seen is up to 3


def test_concordance_and_what_is_caught_are_those_of_pairs_and_of_the_highest() -> None:
    evidence = planted(30, 400)
    fitted = Fitted.of(evidence, evidence, ("a", "b"))
    judged = fitted.judge()
    levels = evidence.before(("a", "b"))
    risk = fitted.rates[levels[evidence.at_risk]]
    failed = evidence.cause[evidence.at_risk] >= 0
    pairs = np.sign(risk[failed][:, None] - risk[None, :])
    assert judged.concordance == pytest.approx(0.5 + pairs.mean() / 2)
    noise = Fitted.of(evidence, evidence, ("d",))
    assert abs(noise.judge().concordance - 0.5) < 0.05 < judged.concordance - 0.5
    lost = changes(fitted, noise, np.random.default_rng(0), draws=100)[1]
    assert lost.low < lost.value < lost.high < 0
    order = np.argsort(-risk, kind="stable")[: round(0.05 * len(risk))]
    sure = risk[order] > np.sort(risk)[::-1][len(order)]  # those of the last, tied group count in part
    assert failed[order][sure].sum() / failed.sum() <= judged.caught + 1e-9


# ---- the file, and who asks for it -----------------------------------------------------------------------------------


def test_a_recipe_is_read_as_it_was_written_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    recipe = Recipe({name: Ingredient(15, 'because "so"') for name in (*FAILURES, ECC)})
    file = tmp_path / "recipe.toml"
    file.write_text(recipe.toml())
    assert load(file) == recipe
    for wrong, says in (
        (recipe.toml().replace(ECC, "ecc"), "unknown metrics: ecc"),
        (recipe.toml().replace("metrics.xid", "metrics.power"), "no xid"),
        (recipe.toml().replace("interval_s = 15", "interval_s = 0", 1), "interval_s"),
        (recipe.toml().replace("version = 1", "version = 2"), "version"),
        ("metrics = 3", "metrics.toml|metrics must be"),
    ):
        file.write_text(wrong)
        with pytest.raises(BadTable, match=says):
            load(file)
    with pytest.raises(BadTable, match="cannot be read"):
        load(tmp_path)


def test_prometheus_is_asked_for_the_metrics_of_a_recipe_and_no_others() -> None:
    with played(matrix()) as play:
        ask(PrometheusSettings(play.url, only=frozenset({"power"})))
        assert len(play.asked) == 1
        ask(PrometheusSettings(play.url, only=frozenset({"xid"})))
        assert len(play.asked) == 1  # the book has no xid, the recipe no power


def test_what_raises_nothing_is_left_out_and_what_failures_are_read_from_stays() -> None:
    evidence = planted(30)
    advice = advise(renamed(evidence), 0.05, frozenset({"power"}), None)
    assert set(FAILURES) <= advice.recipe.names
    assert advice.decisions["power"] == "asked"
    assert "ecc_corrected" in advice.recipe.names  # it stands for a
    with pytest.raises(ValueError, match="no failure"):
        advise(renamed(evidence.between(0, 1)), 0.05, frozenset(), None)


def renamed(evidence: Evidence) -> Gathered:
    """The same evidence under names that the table has."""
    names = ("ecc_corrected", "ib_link_downed", "ib_link_recoveries", "thermal_violation", "pcie_replays")
    scores = Scores(names, evidence.scores.reached, evidence.scores.stale)
    known = Evidence(scores, evidence.at_risk, evidence.cause, evidence.context)
    costs = {name: Cost(1.0, 5760.0, 15.0) for name in (*names, "xid", "power", "boot_time")}
    return Gathered(known, costs, (None,), frozenset(), evidence.at_risk.size, Tally().quality())


@pytest.mark.nightly
def test_the_verb_writes_a_recipe_that_the_settings_take(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    nodes = 30
    worn = np.where(np.arange(nodes) % 3 == 0, 60.0, 0.0)[:, None] * np.ones(WARM_UP_H + HOURS)
    failed = rng.random(worn.shape) < np.where(worn > 0, 0.03, 0.005)
    file = write(tmp_path / "telemetry.parquet", worn, failed)
    (tmp_path / "provider.toml").touch()
    out = tmp_path / "recipe.toml"
    window = "--home", tmp_path, "--file", file, "--start", START, "--end", END
    (found,) = told("nodes", "recipe", *window, "--out", out)
    by_name = {one["metric"]: one for one in found["metrics"]}
    assert set(by_name) == {ECC, "xid", "row_remap_failure"}
    assert (by_name[ECC]["decision"], by_name["xid"]["decision"]) == ("foretells", "failures")
    assert by_name[ECC]["samples_per_day"] == pytest.approx(96.0)
    assert by_name[ECC]["worth"]["raised"]["failures"] > 3 * by_name[ECC]["worth"]["raised"]["expected"] / 2
    assert load(out).metrics[ECC].interval_s == max(SLOW_S, 900)
    assert found["concordance"]["difference"] == found["caught"]["difference"] == 0.0
    assert call("nodes", "recipe", *window, "--out", out).exit_code == 2  # it is there already
    assert call("nodes", "recipe", *window, "--keep", "warmth").exit_code == 2
    text = call("nodes", "recipe", *window).stdout
    assert "ecc_corrected: every 900 s" in text
    still = write(tmp_path / "still.parquet", worn, failed & False)
    few = call("nodes", "recipe", "--home", tmp_path, "--file", still, "--start", START, "--end", END)
    assert (few.exit_code, "longer window" in few.stderr) == (3, True)
    (tmp_path / "provider.toml").write_text(f"[telemetry]\nrecipe = {json.dumps(str(out))}\n")
    assert call("nodes", "recipe", *window).exit_code == 0


def test_what_tells_of_a_job_is_known_where_faults_were_injected_into_it() -> None:
    assert metrics_of([]) == frozenset()
    assert metrics_of(["graph", "decoder"]) == metrics_of(["graph"]) | metrics_of(["decoder"])
    assert metrics_of(["graph"]) <= METRICS.keys()
    with pytest.raises(BadTable, match="'poetry'"):
        metrics_of(["graph", "poetry"])
