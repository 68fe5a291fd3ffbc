"""Contexts: planted ones come back among 50 irrelevant features, keep their numbers, and say in words what they are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest
from numpy.typing import ArrayLike

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.contexts import ContextMap, find_contexts
from provider_server.fleet.analysis.partition import Fleet, told_by_failures
from provider_server.fleet.analysis.selection import NodeTable, Selected, select
from tests.support.planted_contexts import TITAN, Planted, agreement, everything, lived_on, plant, shuffled, titan_lives

SEEDS = range(3)
MODEL = [Selected("model", 90.0, 0.005, 4.0)]

needs_titan = pytest.mark.skipif(not TITAN.exists(), reason=f"../shared/data/titan/{TITAN.name} is missing")


def selected(table: NodeTable, seed: int = 0) -> tuple[Selected, ...]:
    return select(table, np.random.default_rng(seed), permutations=99)


def contexts(
    table: NodeTable, chosen: Sequence[Selected], before: ContextMap | None = None, *, most: int = 40
) -> ContextMap:
    return find_contexts(table, chosen, before, np.random.default_rng(0), most=most)


@cache
def fitted(seed: int) -> tuple[Planted, tuple[Selected, ...], ContextMap]:
    fleet = plant(seed)
    chosen = selected(fleet.table, seed)
    return fleet, chosen, contexts(fleet.table, chosen)


def fleet_of(
    categories: Mapping[str, Sequence[str]],
    failures: ArrayLike,
    numbers: Mapping[str, Floats] | None = None,
    names: Sequence[str] | None = None,
) -> NodeTable:
    """A table of nodes with 1,000 hours each."""
    events = np.asarray(failures, np.float64)
    count = len(events)
    return NodeTable(
        nodes=tuple(names or [f"n{place:04}" for place in range(count)]),
        numbers=numbers or {},
        categories={name: tuple(values) for name, values in categories.items()},
        failures=events,
        node_hours=np.full(count, 1000.0),
    )


def models(*sizes: int, start: int = 0) -> NodeTable:
    """Nodes of models A, B, C, … in turn; each fails twice as often as the one before."""
    codes = np.repeat(np.arange(len(sizes)), sizes)
    names = [f"n{start + place:04}" for place in range(len(codes))]
    return fleet_of({"model": ["ABCDEF"[code] for code in codes]}, 2.0**codes, names=names)


def test_a_feature_that_somebody_asks_for_splits_even_a_fleet_that_never_failed() -> None:
    quiet = fleet_of({"model": ["A", "B"] * 12}, np.zeros(24))
    for asked, names in ((True, ["model A: 12 nodes", "model B: 12 nodes"]), (False, None)):
        found = contexts(quiet, (Selected("model", 1e-9, 1.0, 0.0, asked=asked),))
        assert len(found.contexts) == (2 if asked else 1)
        if names:
            assert [one.description for one in found.contexts] == names


# ---- planted contexts ----------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_planted_contexts_come_back_among_fifty_irrelevant_features() -> None:
    assert min(agreement(fitted(seed)[0], fitted(seed)[2]) for seed in SEEDS) >= 0.95


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
def test_no_irrelevant_feature_is_selected_and_no_relevant_one_is_missed(seed: int) -> None:
    assert {one.name for one in fitted(seed)[1]} == {"model", "driver", "temperature"}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
def test_contexts_of_equal_rate_are_told_apart_by_their_look(seed: int) -> None:
    fleet, _, found = fitted(seed)
    assert fleet.rates[0] == fleet.rates[1]
    numbers = np.array([found.of(node) for node in fleet.table.nodes])
    assert not set(numbers[fleet.context == 0]) & set(numbers[fleet.context == 1])


@pytest.mark.nightly
def test_without_selection_contexts_are_lost() -> None:
    fleet = plant(0, nodes=400, irrelevant=6)
    assert agreement(fleet, contexts(fleet.table, everything(fleet.table))) < 0.6


@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.nightly) for seed in SEEDS[1:])])
def test_failures_that_were_shuffled_select_nothing(seed: int) -> None:
    assert selected(shuffled(fitted(seed)[0], seed).table, seed) == ()


def test_intervals_hold_the_planted_rates() -> None:
    held = []
    for seed in SEEDS:
        fleet, _, found = fitted(seed)
        place_of = dict(zip(fleet.table.nodes, fleet.context, strict=True))
        for context in found.contexts:
            truth = fleet.rates[np.bincount([place_of[node] for node in context.nodes]).argmax()]
            assert context.low < context.failures_per_1000_node_hours < context.high
            held.append(context.low <= truth <= context.high)
    assert np.mean(held) >= 0.85  # 24 intervals of 95%


# ---- selection -----------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_nothing_depends_on_the_order_of_nodes_and_columns() -> None:
    fleet, chosen, found = fitted(1)
    table = fleet.table.at(np.random.default_rng(5).permutation(len(fleet.context)))
    table = replace(
        table,
        numbers=dict(list(table.numbers.items())[::-1]),
        categories=dict(list(table.categories.items())[::-1]),
    )
    assert selected(table, 1) == chosen
    assert contexts(table, chosen) == found


def test_what_is_unknown_is_a_level_of_its_own() -> None:
    rng = np.random.default_rng(0)
    silent = rng.random(400) < 0.3
    values = np.where(silent, np.nan, rng.normal(size=400))
    blank = ["" if one else "here" for one in silent]
    failures = rng.poisson(np.where(silent, 4.0, 1.0)).astype(np.float64)
    number = fleet_of({}, failures, {"number": values, "noise": rng.normal(size=400)})
    assert [one.name for one in selected(number)] == ["number"]
    found = contexts(number, selected(number))
    assert {found.of(node) for node in np.array(number.nodes)[silent]} == {2}
    assert [context.description.split(":")[0] for context in found.contexts][1] == "number unknown"
    category = fleet_of({"category": blank}, failures)
    assert [one.name for one in selected(category)] == ["category"]


def test_a_name_for_each_node_and_a_constant_are_never_selected() -> None:
    rng = np.random.default_rng(0)
    failures = rng.poisson(rng.gamma(0.5, 4.0, 300)).astype(np.float64)
    # names in the order of failures could not be told from a feature by any look at the data that was fitted
    serial = np.argsort(np.argsort(failures, kind="stable"))
    table = fleet_of({"serial": [f"s{one:03}" for one in serial], "same": ["x"] * 300}, failures)
    assert selected(table) == ()


def test_features_that_act_only_together_are_found_once_one_of_them_is() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.integers(0, 2, (2, 800))
    # the second has no effect of its own: it halves what the first does not, and doubles the rest
    rate = np.where(first == 0, 2.0, 4.0) * np.where(first == second, 1.5, 0.5)
    table = fleet_of({"first": [f"{x}" for x in first], "second": [f"{x}" for x in second]}, rng.poisson(rate))
    assert {one.name for one in selected(table)} == {"first", "second"}


def test_few_failures_select_nothing_and_the_context_says_so() -> None:
    table = fleet_of({"model": ["A"] * 50 + ["B"] * 50}, [0.0] * 80 + [1.0] * 20)
    assert selected(table) == ()
    (context,) = contexts(table, ()).contexts
    assert context.description == "all nodes (20 failures are too few to tell them apart): 100 nodes"
    more = replace(table, failures=table.failures * 10.0)
    assert selected(more)


def test_permutations_that_cannot_reach_the_level_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot reach"):
        select(models(50, 50), np.random.default_rng(0), level=0.01, permutations=98)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"failures": np.ones(3)}, "one entry per node"),
        ({"nodes": ("a", "a")}, "once"),
        ({"numbers": {"model": np.ones(2)}}, "both numbers and categories"),
        ({"node_hours": np.array([0.0, 1.0])}, "without node-hours"),
        ({"failures": np.array([-1.0, 1.0])}, "from 0 on"),
    ],
)
def test_tables_that_contradict_themselves_are_refused(wrong: dict[str, object], why: str) -> None:
    table = fleet_of({"model": ["A", "B"]}, [1.0, 1.0])
    with pytest.raises(ValueError, match=why):
        replace(table, **wrong)  # type: ignore[arg-type]


# ---- groups --------------------------------------------------------------------------------------------------------


def test_contexts_are_usable_and_no_more_than_asked_for() -> None:
    rng = np.random.default_rng(0)
    racks = [f"r{one}" for one in rng.integers(0, 60, 900)]
    table = fleet_of({"rack": [*racks, "tiny", "tiny", "tiny"]}, rng.poisson(2.0, 903))
    rack = [Selected("rack", 50.0, 0.01, 4.0)]
    assert len(contexts(table, rack).contexts) <= 40
    assert len(contexts(table, rack, most=100).contexts) == 60
    assert min(len(context.nodes) for context in contexts(table, rack, most=100).contexts) >= 5


@pytest.mark.parametrize(
    ("shape", "count"),
    [("two modes", 2), ("three modes", 3), ("even", 1), ("skewed", 1), ("normal", 1), ("heavy tails", 1)],
)
def test_a_number_is_told_apart_at_valleys_alone_where_failures_are_alike(shape: str, count: int) -> None:
    rng = np.random.default_rng(1)
    normal = rng.normal(size=600)
    values = {
        "two modes": normal + 7.0 * (rng.random(600) < 0.2),
        "three modes": normal + 7.0 * rng.integers(0, 3, 600),
        "even": rng.random(600),
        "skewed": np.exp(normal),
        "normal": normal,
        "heavy tails": rng.standard_t(2, 600),
    }[shape]
    table = fleet_of({}, rng.poisson(2.0, 600), {"temperature": values})
    assert len(contexts(table, [Selected("temperature", 50.0, 0.01, 4.0)]).contexts) == count


def test_a_number_without_modes_is_cut_where_failures_change() -> None:
    rng = np.random.default_rng(0)
    age = rng.random(1000)
    table = fleet_of({}, rng.poisson(np.where(age > 0.37, 3.0, 0.5)), {"age": age})
    found = contexts(table, [Selected("age", 50.0, 0.01, 4.0)])
    young = np.array([found.of(node) for node in table.nodes]) == found.of(table.nodes[int(age.argmin())])
    assert np.mean(young == (age <= 0.37)) >= 0.97


def test_a_few_bad_nodes_make_no_context() -> None:
    rng = np.random.default_rng(2)
    age = rng.random(1000)
    calm = Fleet.of(fleet_of({}, rng.poisson(2.0, 1000), {"age": age}), [Selected("age", 1.0, 0.01, 0.0)], 5, 0)
    bursts = rng.poisson(2.0 * rng.gamma(0.1, 10.0, 1000))
    wild = Fleet.of(fleet_of({}, bursts, {"age": age}), [Selected("age", 1.0, 0.01, 0.0)], 5, 0)
    assert calm.variance < 0.1 < 5.0 < wild.variance
    assert len(told_by_failures(wild, 40)) == 1
    assert len(told_by_failures(replace(wild, variance=0.0), 40)) > 5, "this data must tempt who ignores bursts"


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
def test_a_refit_on_other_failures_keeps_the_numbers(seed: int) -> None:
    fleet, chosen, found = fitted(seed)
    again = contexts(lived_on(fleet, seed).table, chosen, found)
    assert np.mean([found.of(node) == again.of(node) for node in fleet.table.nodes]) >= 0.95


def test_a_map_survives_json() -> None:
    found = fitted(0)[2]
    found.of("anything")  # what is remembered for look-ups must not be written
    assert msgspec.json.decode(msgspec.json.encode(found), type=ContextMap) == found


def test_a_split_leaves_the_number_to_the_larger_part() -> None:
    whole = contexts(models(100), MODEL)
    assert [context.number for context in whole.contexts] == [1]
    parts = contexts(models(40, 60), MODEL, whole)
    assert {context.number: len(context.nodes) for context in parts.contexts} == {1: 60, 2: 40}
    assert parts.next_number == 3


def test_after_a_merger_the_larger_number_stays_and_the_other_is_never_used_again() -> None:
    parts = contexts(models(40, 60), MODEL)
    assert [len(context.nodes) for context in parts.contexts] == [60, 40]
    merged = contexts(models(100), MODEL, parts)
    assert [context.number for context in merged.contexts] == [1]
    again = contexts(models(40, 60), MODEL, merged)
    assert [context.number for context in again.contexts] == [1, 3]


def test_a_fleet_of_other_nodes_gets_other_numbers() -> None:
    old = contexts(models(40, 60), MODEL)
    assert [context.number for context in contexts(models(40, 60, start=500), MODEL, old).contexts] == [3, 4]


def test_nodes_that_come_and_go_do_not_change_numbers() -> None:
    old = contexts(models(40, 60, 30), MODEL)
    table = models(40, 60, 30).at(np.arange(10, 130))
    grown = replace(
        table,
        nodes=(*table.nodes[:100], *(f"new{place}" for place in range(20))),
        categories={"model": (*table.categories["model"][:100], *("C" * 20))},
    )
    found = contexts(grown, MODEL, old)
    assert all(found.of(node) == old.of(node) for node in grown.nodes[:100])
    assert found.next_number == old.next_number


# ---- words ---------------------------------------------------------------------------------------------------------


def test_descriptions_say_what_tells_a_context_from_others() -> None:
    rng = np.random.default_rng(0)
    drivers = np.repeat(["550.54.14", "550.90.07", "535.104.05", "535.183.01", "525.60"], 40)
    heat = np.concatenate([np.linspace(61.0, 64.0, 100), np.linspace(74.0, 77.0, 100)])
    rate = np.where(np.char.startswith(drivers, "550"), 1.0, 8.0)
    table = fleet_of({"driver": drivers.tolist()}, rng.poisson(rate), {"temperature": heat})
    both = [Selected("driver", 90.0, 0.01, 4.0), Selected("temperature", 9.0, 0.01, 4.0)]
    found = find_contexts(table, both, None, rng, most=3, units={"temperature": "°C"})
    assert sorted(context.description for context in found.contexts) == [
        "driver 525.60, 535.104.05 or 535.183.01, temperature 74–77 °C: 100 nodes",
        "driver 535.104.05, temperature 63.42–64 °C: 20 nodes",
        "driver 550.x: 80 nodes",
    ]


# ---- real failures -------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@needs_titan
def test_on_titan_batch_cage_and_node_are_selected_before_slot() -> None:
    table = titan_lives()
    some = table.at(np.random.default_rng(0).permutation(len(table.nodes))[:10_000])
    names = [one.name for one in selected(some)]
    assert names[0] == "batch"
    assert {"batch", "cage", "node"} <= set(names[: names.index("slot")] if "slot" in names else names)
