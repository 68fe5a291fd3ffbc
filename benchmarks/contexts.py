"""How well planted contexts are recovered, and which features separate Titan's GPUs. One JSON object per figure.

    python benchmarks/contexts.py [FIGURE]…

`planted` draws fleets whose contexts are known (`plant`), with 50 features that have nothing to do with them, and gives
the adjusted Rand index of what is found, with selection and without, where failures are shuffled, and after a refit.
`titan` gives the order in which batch and place of a GPU are selected from the lives of Titan's GPUs. `size` gives
seconds for 10,000 nodes and 60 features, and `chance` how often something is selected where there is nothing.
"""

import csv
import gzip
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.figures import DATA, Figure, main
from federation.protocol.life_table import Floats
from provider_server.analysis.contexts import ContextMap, find_contexts
from provider_server.analysis.selection import Ints, NodeTable, Selected, select

MODELS = ("A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X")
DRIVERS = ("535.104.05", "535.183.01", "550.90.07")
MODES_C = (62.0, 74.0)
MODE_SD_C = 1.5
LOWEST, HIGHEST = 0.3, 4.0  # failures per 1,000 node-hours
APART = 2.5
MEAN_HOURS = 2000.0
FRAILTY = 0.25  # variance of a node's own factor
SEEDS, UNSELECTED_SEEDS = 20, 3  # without selection, hundreds of modes are looked for
TITAN = DATA / "titan" / "gpu_lifetimes.csv.gz"
PLACES = ("col", "row", "cage", "slot", "node")


@dataclass(frozen=True, eq=False)
class Planted:
    """A fleet, the context (N,) of each of its nodes, and the rates (contexts,) per 1,000 node-hours."""

    table: NodeTable
    context: Ints
    rates: Floats


def plant(seed: int, *, nodes: int = 1200, contexts: int = 8, irrelevant: int = 50) -> Planted:
    """Contexts are combinations of model, driver and mode of temperature, of unequal size, some of all that there are.

    Rates are drawn evenly on the log scale, and drawn again until each feature has two contexts that differ in it
    alone and in their rates by `APART`: otherwise no failure would say that the feature matters. The second context
    has the rate of the first: only their looks tell them apart. A node's own factor makes failures cluster.
    Irrelevant features look as relevant ones do (names, levels, modes), and nothing connects them with a context.
    """
    rng = np.random.default_rng([seed, 1])
    cells, rates = list(product(MODELS, DRIVERS, MODES_C)), np.zeros(contexts)
    chosen: list[tuple[str, str, float]] = []
    while not _matters(chosen, rates):
        chosen = [cells[place] for place in rng.choice(len(cells), contexts, replace=False)]
        rates = np.exp(rng.uniform(np.log(LOWEST), np.log(HIGHEST), contexts))
        rates[1] = rates[0]
    shares = 0.4 / contexts + 0.6 * rng.dirichlet(np.full(contexts, 2.0))
    context = rng.choice(contexts, nodes, p=shares)
    hours = rng.gamma(4.0, MEAN_HOURS / 4.0, nodes)
    modes = np.array([cell[2] for cell in chosen])[context]
    table = NodeTable(
        nodes=tuple(f"node{place:05}" for place in rng.permutation(nodes)),
        numbers={"temperature": modes + rng.normal(0.0, MODE_SD_C, nodes)},
        categories={
            "model": tuple(chosen[place][0] for place in context),
            "driver": tuple(chosen[place][1] for place in context),
        },
        failures=_failures(rates[context] * hours / 1000.0, rng),
        node_hours=hours,
    )
    return Planted(_with_irrelevant(table, irrelevant, rng), context, rates)


def lived_on(planted: Planted, seed: int) -> Planted:
    """The same fleet a period later: other failures."""
    means = planted.rates[planted.context] * planted.table.node_hours / 1000.0
    failures = _failures(means, np.random.default_rng([seed, 2]))
    return replace(planted, table=replace(planted.table, failures=failures))


def shuffled(planted: Planted, seed: int) -> Planted:
    """The same fleet, its failures dealt out anew: nothing has to do with them."""
    order = np.random.default_rng([seed, 3]).permutation(len(planted.context))
    table = planted.table
    return replace(planted, table=replace(table, failures=table.failures[order], node_hours=table.node_hours[order]))


def agreement(planted: Planted, found: ContextMap) -> float:
    """Adjusted Rand index of the contexts that were found with those that were planted."""
    return float(adjusted_rand_score(planted.context, [found.of(node) for node in planted.table.nodes]))


def everything(table: NodeTable) -> list[Selected]:
    """All features, as if each told as much: what there is without selection."""
    return [Selected(name, 1.0, 1.0, 0.0) for name in sorted([*table.numbers, *table.categories])]


def titan_lives() -> NodeTable:
    """One row per GPU and life: its batch and place, whether it died, and the hours it was watched."""
    with gzip.open(TITAN, "rt", newline="") as text:
        rows = list(csv.DictReader(text))
    return NodeTable(
        nodes=tuple(f"{row['SN']}/{number}" for number, row in enumerate(rows)),
        numbers={},
        categories={name: tuple(row[name] for row in rows) for name in ("batch", *PLACES)},
        failures=np.array([row["dead"] == "TRUE" for row in rows], np.float64),
        node_hours=np.array([float(row["time"]) / 3600.0 for row in rows]),
    )


def _matters(chosen: Sequence[tuple[str, str, float]], rates: Floats) -> bool:
    """Whether failures speak for each of the three features."""
    told = set()
    for one, other in combinations(range(len(chosen)), 2):
        differing = [place for place in range(3) if chosen[one][place] != chosen[other][place]]
        if len(differing) == 1 and abs(np.log(rates[one] / rates[other])) >= np.log(APART):
            told.add(differing[0])
    return len(told) == 3


def _failures(means: Floats, rng: np.random.Generator) -> Floats:
    own = rng.gamma(1.0 / FRAILTY, FRAILTY, len(means))
    return rng.poisson(means * own).astype(np.float64)


def _with_irrelevant(table: NodeTable, count: int, rng: np.random.Generator) -> NodeTable:
    """Half numbers (normal, skewed, with two modes), half categories of 2 to 12 levels, racks, and a serial number."""
    nodes = len(table.nodes)
    numbers, categories = dict(table.numbers), dict(table.categories)
    for place in range(count // 2):
        values = rng.normal(size=nodes)
        shapes = (values, np.exp(values), values + 8.0 * rng.integers(0, 2, nodes))
        numbers[f"number {place}"] = np.where(rng.random(nodes) < 0.02, np.nan, shapes[place % 3])
    for place in range(count - count // 2):
        size = (nodes, nodes // 16, 2, 3, 4, 6, 8, 12)[place % 8]
        levels = rng.permutation(nodes) % size if size > 12 else rng.integers(0, size, nodes)
        categories[f"category {place}"] = tuple(f"level {level}" for level in levels)
    return replace(table, numbers=numbers, categories=categories)


# ---- figures -------------------------------------------------------------------------------------------------------


def planted() -> Figure:
    """Fleets of 1,200 nodes with eight contexts and 50 irrelevant features; the least and the mean over seeds."""
    rows = [_one_fleet(seed) for seed in range(SEEDS)]
    without = [_without_selection(seed) for seed in range(UNSELECTED_SEEDS)]
    kept = sum(row["kept"] for row in rows) / sum(row["again"] for row in rows)
    return {
        "seeds": SEEDS,
        "min_adjusted_rand": min(row["ari"] for row in rows),
        "mean_adjusted_rand": float(np.mean([row["ari"] for row in rows])),
        "fleets_with_an_irrelevant_feature": sum(row["false"] > 0 for row in rows),
        "mean_adjusted_rand_without_selection": float(np.mean(without)),
        "mean_features_selected_of_shuffled_failures": float(np.mean([row["by_chance"] for row in rows])),
        "mean_failures": float(np.mean([row["failures"] for row in rows])),
        "share_of_nodes_that_keep_their_number_after_a_refit": kept,
    }


def _one_fleet(seed: int) -> dict[str, float]:
    fleet = plant(seed)
    chosen = select(fleet.table, np.random.default_rng(seed))
    found = find_contexts(fleet.table, chosen, None, np.random.default_rng(seed))
    later = lived_on(fleet, seed).table
    again = find_contexts(later, select(later, np.random.default_rng(seed)), found, np.random.default_rng(seed))
    return {
        "ari": agreement(fleet, found),
        "false": len({one.name for one in chosen} - {"model", "driver", "temperature"}),
        "by_chance": len(select(shuffled(fleet, seed).table, np.random.default_rng(seed))),
        "failures": float(fleet.table.failures.sum()),
        "kept": sum(found.of(node) == again.of(node) for node in fleet.table.nodes),
        "again": len(fleet.table.nodes),
    }


def _without_selection(seed: int) -> float:
    fleet = plant(seed)
    return agreement(fleet, find_contexts(fleet.table, everything(fleet.table), None, np.random.default_rng(seed)))


def titan() -> Figure:
    """FileNotFoundError where the data is not at hand."""
    table = titan_lives()
    began = time.perf_counter()
    orders = [select(table, np.random.default_rng(seed)) for seed in range(5)]
    seconds = (time.perf_counter() - began) / len(orders)
    found = find_contexts(table, orders[0], None, np.random.default_rng(0))
    names = [[one.name for one in order] for order in orders]
    first = all(order.index(name) < order.index("slot") for order in names for name in ("batch", "cage", "node"))
    return {
        "batch_cage_and_node_before_slot": first,
        "orders": names,
        "held_out_deviance": {one.name: one.gain for one in orders[0]},
        "chance": {one.name: one.chance for one in orders[0]},
        "seconds_to_select": seconds,
        "contexts": [f"{one.description}: {one.failures_per_1000_node_hours:.5f}" for one in found.contexts],
    }


def size() -> Figure:
    """Seconds for 10,000 nodes and 60 features."""
    fleet = plant(0, nodes=10_000, contexts=10, irrelevant=57)
    began = time.perf_counter()
    chosen = select(fleet.table, np.random.default_rng(0))
    selected = time.perf_counter()
    found = find_contexts(fleet.table, chosen, None, np.random.default_rng(0))
    grouped = time.perf_counter()
    return {
        "seconds_to_select": selected - began,
        "seconds_to_group": grouped - selected,
        "adjusted_rand": agreement(fleet, found),
        "selected": [one.name for one in chosen],
    }


def chance() -> Figure:
    """Fleets without a relevant feature in which some feature is selected, at a level of 10% so that it can be seen."""
    runs, level = 200, 0.1
    found = 0
    for seed in range(runs):
        table = shuffled(plant(seed, nodes=600), seed).table
        found += bool(select(table, np.random.default_rng(seed), level=level, permutations=19))
    return {"level": level, "fleets": runs, "share_with_a_selection": found / runs}


if __name__ == "__main__":
    main(planted, titan, size, chance)
