"""Fleets whose contexts are known, and the lives of Titan's GPUs."""

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.contexts import ContextMap
from provider_server.fleet.analysis.selection import Ints, NodeTable, Selected

MODELS = ("A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X")
DRIVERS = ("535.104.05", "535.183.01", "550.90.07")
MODES_C = (62.0, 74.0)
MODE_SD_C = 1.5
LOWEST, HIGHEST = 0.3, 4.0  # failures per 1,000 node-hours
APART = 2.5
MEAN_HOURS = 2000.0
FRAILTY = 0.25  # variance of a node's own factor
TITAN = Path(__file__).resolve().parents[3] / "shared/data/titan/gpu_lifetimes.csv.gz"
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
