"""How far simulated faults are from those of real clusters: gaps, recency after a repair, and shares by class.

Beside half of a published trace of outages (InfiniteHBD: 400 GPU servers, 348 days; `node_faults.toml` was fitted to
the first half alone, so the second judges it):

`exponential`        nodes that fail at one rate, at any time, and are back as the fitted ones are
`fitted`             400 nodes by `node_faults.toml`
`regional`           the cloud as shipped: a failure is of any node of its lease, which is back at once
`regional_histories` the same with `node_faults`

Of fleets, figures are means and 95% ranges over draws, each as long as the trace; of clouds, means over seeds. A figure
is *off* where it differs from the trace's by more than the tolerance, or its distribution by more than the KS distance.
Failures of clouds count as hardware by their reason; classes are those that Acme's Table 3 and the trace both have.

Not promised: that one fleet is the world. The trace is of one provider, and its second half is not like its first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import polars as pl
import typer

from federation.base.console import InputFile
from federation.protocol.causes import CAUSES, Domain, causes_of
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.analysis.recurrent import Spells, spells
from provider_server.fleet.outage_files import read_outages
from simulation.cloud.cloud import Cloud, build_cloud
from simulation.cloud.node_faults import NodeFaults, fitted, fleet_outages
from simulation.cloud.node_places import placed
from simulation.cloud.profiles import Ints
from simulation.cloud.scenario import load
from simulation.judge.world import FaultFigures, Gaps, figures, gaps, ks_distance, share_distance
from simulation.studies.study import Seed, Table, tracked

Half = Literal["first", "second"]
NODES, DAY_H, DAYS = 400, 24.0, 348
HARDWARE = ("Hardware Failure",)
SCENARIO = "regional"
SEEN = 0.95  # of the faults asked for, those that a fitted fleet has: the others would come while a node is down
# By what factor a mean may differ from the trace's figure. Set before the second half was read.
TOLERANCES = {
    "fleet_gap_cv": 1.25,
    "fleet_gap_shape": 1.25,
    "node_gap_shape": 1.25,
    "ratio_7_days": 1.6,
    "ratio_30_days": 1.4,
}
KS_TOLERANCES = {"ks_fleet_gaps": 0.12, "ks_node_gaps": 0.2}
SHARE_TOLERANCES = {"classes_from_trace": 0.15, "reasons_from_acme": 0.05, "lost_time_from_acme": 0.03}
_CLASSES = {"GPU": "gpu", "Parameter Plane Cable": "network", "NIC": "network"}  # of the trace; others are the node's
_REASONS = {
    "nvlink_error": "gpu",
    "cuda_error": "gpu",
    "ecc_error": "gpu",
    "network_error": "network",
    "node_failure": "node",
}


@dataclass(frozen=True)
class WorldRow:
    """One kind of fleet or cloud. `low` and `high` are of single draws, `off` names the figures beyond tolerance.

    `outside` names the trace's figures that no single draw's 95% range holds.
    """

    name: str
    draws: int
    mean: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    off: tuple[str, ...]
    outside: tuple[str, ...]


@dataclass(frozen=True)
class WorldFigures:
    """All rows beside one half of a trace."""

    half: Half
    trace: Mapping[str, float]
    rows: tuple[WorldRow, ...]


@dataclass(frozen=True)
class Measured:
    """One draw."""

    figures: FaultFigures
    gaps: Gaps
    shares: Mapping[str, float]


def trace(file: Path, half: Half) -> tuple[Measured, Mapping[str, float]]:
    """The figures of half of the trace, and how many faults of each class it has."""
    rows = read_outages(file).rows
    named = sorted(set(rows["node"]))
    others = [f"never down {number}" for number in range(NODES - len(named))]
    found = _spells(rows, named + others, half)
    classes: dict[str, float] = {}
    for kind in found.failures["kind"]:
        name = _CLASSES.get(kind.split("/")[1], "node")
        classes[name] = classes.get(name, 0.0) + 1.0
    return Measured(figures(found), gaps(found), {}), classes


def _spells(outages: pl.DataFrame, nodes: Sequence[str], half: Half) -> Spells:
    """The half's hardware faults, known of as they were at its end."""
    middle_h, end_h = DAYS / 2 * DAY_H, DAYS * DAY_H
    begin_h, end_h = (0.0, middle_h) if half == "first" else (middle_h, end_h)
    known = outages.filter(pl.col("start_h") < end_h).with_columns(end_h=pl.when(pl.col("end_h") < end_h).then("end_h"))
    return spells(known, nodes, begin_h, end_h, HARDWARE)


# ---- what is simulated -----------------------------------------------------------------------------------------------


def exponential() -> NodeFaults:
    """Nodes without lemons, waves, faults that come together or come back, that fail as often as the fitted ones."""
    alone = msgspec.structs.replace(fitted(), lemon_variance=0.0, wave_variance=0.0, together=0.0, returning=0.0)
    return msgspec.structs.replace(alone, per_node_hour=SEEN * alone.per_node_hour)


def fleet(process: NodeFaults, half: Half, seed: Sequence[int]) -> Measured:
    """One draw of a fleet as large and as long as the trace's."""
    outages = fleet_outages(process, NODES, DAYS * DAY_H, np.random.default_rng([*seed]))
    found = _spells(outages, [f"node-{number}" for number in range(NODES)], half)
    return Measured(figures(found), gaps(found), {})


def cloud(half: Half, seed: int, *, node_faults: bool) -> Measured:
    """One draw of the scenario."""
    rng = np.random.default_rng([seed, 15])
    drawn = build_cloud(msgspec.structs.replace(load(SCENARIO), node_faults=node_faults), rng)
    found = _spells(*_outages(drawn, rng), half)
    return Measured(figures(found), gaps(found), _shares(drawn))


def _outages(drawn: Cloud, rng: np.random.Generator) -> tuple[pl.DataFrame, list[str]]:
    """Outages by infrastructure failures, and all nodes that a lease ever had."""
    places = placed(drawn.leases, float(HOURS_PER_WEEK * drawn.scenario.weeks))
    infrastructure = np.array([cause.domain is Domain.INFRASTRUCTURE for cause in CAUSES.values()])
    rows = np.flatnonzero(infrastructure[drawn.failures.reason])
    at = drawn.failures.at_h[rows]
    if drawn.struck is not None:
        node, back = drawn.struck.node[rows], drawn.struck.back_h[rows]
    else:
        node, back = _any_node(places.lease, places.use.node, drawn.failures.lease[rows], rng), at
    reasons = np.array([*CAUSES])[drawn.failures.reason[rows]]
    kinds = [f"Hardware Failure/{_REASONS[each]}" if each in _REASONS else "Other Failure" for each in reasons]
    columns = {"node": [f"node-{each}" for each in node], "start_h": at, "end_h": back, "kind": kinds}
    return pl.DataFrame(columns), [f"node-{number}" for number in range(int(places.use.node.max()) + 1)]


def _any_node(lease_of: Ints, node_of: Ints, lease: Ints, rng: np.random.Generator) -> Ints:
    order = np.argsort(lease_of, kind="stable")
    first, last = (np.searchsorted(lease_of[order], lease, side=side) for side in ("left", "right"))
    chosen: Ints = node_of[order][rng.integers(first, last)]
    return chosen


def _shares(drawn: Cloud) -> dict[str, float]:
    """Failures by reason, and by domain the node-hours that they lost, as `lost/<domain>`."""
    failures, leases, causes = drawn.failures, drawn.leases, [*CAUSES.values()]
    counts = np.bincount(failures.reason, minlength=len(causes))
    order = np.lexsort((failures.age_h, failures.lease))
    lease, age = failures.lease[order], failures.age_h[order]
    again = np.concatenate([[False], lease[1:] == lease[:-1]])
    since = age - np.where(again, np.concatenate([[0.0], age[:-1]]), 0.0)
    lost = np.bincount(failures.reason[order], leases.nodes[lease] * since, len(causes))
    of = {cause.slug: float(count) for cause, count in zip(causes, counts, strict=True)}
    for domain in Domain:
        own = [cause.domain is domain for cause in causes]
        of[f"lost/{domain}"] = float(lost[own].sum() / lost.sum())
    return of


# ---- beside the trace ------------------------------------------------------------------------------------------------


def steps(half: Half, draws: int, seeds: int, first_seed: int) -> Iterator[tuple[str, Measured]]:
    """Draws of everything, one by one."""
    kinds: dict[str, Callable[[int], Measured]] = {
        "exponential": lambda draw: fleet(exponential(), half, (first_seed, draw, 1)),
        "fitted": lambda draw: fleet(fitted(), half, (first_seed, draw)),
        "regional": lambda seed: cloud(half, first_seed + seed, node_faults=False),
        "regional_histories": lambda seed: cloud(half, first_seed + seed, node_faults=True),
    }
    for name, draw in kinds.items():
        for number in range(draws if name in ("exponential", "fitted") else seeds):
            yield name, draw(number)


def compared(file: Path, half: Half, drawn: Sequence[tuple[str, Measured]]) -> WorldFigures:
    """All draws beside half of the trace."""
    world, classes = trace(file, half)
    names = list(dict.fromkeys(name for name, _ in drawn))
    of = {name: [one for each, one in drawn if each == name] for name in names}
    rows = tuple(row(name, each, world, classes) for name, each in of.items())
    told = {name: float(getattr(world.figures, name)) for name in FaultFigures.__dataclass_fields__}
    return WorldFigures(half, told, rows)


def row(name: str, drawn: Sequence[Measured], world: Measured, classes: Mapping[str, float]) -> WorldRow:
    """The draws of one kind."""
    names = FaultFigures.__dataclass_fields__
    values = {key: [float(getattr(one.figures, key)) for one in drawn] for key in names}
    mean = {key: float(np.mean(each)) for key, each in values.items()}
    for kind in ("fleet", "node"):
        together = np.concatenate([getattr(one.gaps, kind) for one in drawn])
        mean[f"ks_{kind}_gaps"] = ks_distance(together, getattr(world.gaps, kind))
    mean |= _share_distances(drawn, classes)
    told = {key: float(getattr(world.figures, key)) for key in names}
    off = [key for key, factor in TOLERANCES.items() if abs(np.log(mean[key] / told[key])) > np.log(factor)]
    off += [key for key, most in (KS_TOLERANCES | SHARE_TOLERANCES).items() if mean.get(key, 0.0) > most]
    low, high = ({key: float(np.quantile(each, at)) for key, each in values.items()} for at in (0.025, 0.975))
    outside = tuple(key for key in TOLERANCES if not low[key] <= told[key] <= high[key])
    return WorldRow(name, len(drawn), mean, low, high, tuple(off), outside)


def _share_distances(drawn: Sequence[Measured], classes: Mapping[str, float]) -> dict[str, float]:
    """Of clouds: hardware classes from the trace's and Acme's, reasons and lost time from Acme's."""
    if not drawn[0].shares:
        return {}
    total = {key: sum(one.shares[key] for one in drawn) for key in drawn[0].shares}
    acme = {cause.slug: float(cause.observed) for cause in causes_of(Domain.INFRASTRUCTURE)}
    lost = [
        abs(total[f"lost/{domain}"] / len(drawn) - sum(each.share_of_lost_gpu_time for each in causes_of(domain)) / 100)
        for domain in Domain
    ]
    return {
        "classes_from_trace": share_distance(_by_class(total), classes),
        "classes_of_acme_from_trace": share_distance(_by_class(acme), classes),
        "reasons_from_acme": share_distance({key: total[key] for key in acme}, acme),
        "lost_time_from_acme": max(lost),
    }


def _by_class(counts: Mapping[str, float]) -> dict[str, float]:
    return {
        name: sum(counts[reason] for reason, own in _REASONS.items() if own == name)
        for name in sorted(set(_REASONS.values()))
    }


def run(
    outages: Annotated[
        Path, typer.Argument(click_type=InputFile(exists=True), help="The trace's file.", show_default=False)
    ],
    draws: Annotated[int, typer.Option(min=1, help="Number of fleets of each kind.")] = 200,
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(min=0, help="Number of clouds, with and without histories of nodes.")] = 3,
    *,
    first_half: Annotated[
        bool, typer.Option("--first-half", help="Compare with the half that the numbers were fitted to.")
    ] = False,
) -> Table:
    """Faults of simulated nodes beside a real fleet's: gaps, recency after repairs, and shares by class."""
    half: Half = "first" if first_half else "second"
    trace(outages, half)  # at once, so that a file of something else costs no time
    drawn = tracked(steps(half, draws, seeds, seed), 2 * (draws + seeds), "draws")
    return Table(compared(outages, half, drawn))
