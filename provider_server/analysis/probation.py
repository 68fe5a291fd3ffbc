"""What a repair does to a node's hazard: a covariate learnt from failures that come again, beside what nodes are like.

    spells (analysis.recurrent) ─ pieces ─▶ node-hours and failures by node and band ─ fit_probation ─▶ Probation
    Probation + spells so far ─ standing ─▶ hazard of every node now, and why

The hazard of a node is rate · ratio(time since it came back) · (a + K) / (a + H): nodes that never went down have ratio
1, K are the node's failures so far, H how many a usual node would have had in the same hours. This is a gamma frailty
with mean 1 and variance 1/a, integrated out, so that a node that fails again because it is a lemon is told from one
that does because it was just repaired. Parts are replaced, so both K and H fade: `memory_h` is the time in which they
fall to 1/e.

Guarantees. The estimate is the maximum of the likelihood of all spells together, with weak priors (`PRIOR_SD` and those
beside it). Without frailty and priors it is failures over node-hours of each band; without fading, the gamma frailty of
Nielsen and others. `standing` reads nothing at or after its time. Intervals are normal on the log scale.

Not promised: which of the two a repair was, a fix or a reset; that a node came back is all that is known. That ratios
of one fleet hold for another: `shipped` is of one fleet, for where there is no history yet.

Source: Nielsen, Gill, Andersen and Sørensen, Scandinavian Journal of Statistics 19, 1992 (gamma frailty in counting
processes); Andersen and Gill, Annals of Statistics 10, 1982 (recurrent events).
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import minimize

from federation.protocol.life_table import Floats
from provider_server.analysis.hazard import Estimate
from provider_server.analysis.recurrent import Spells

EDGES_H = (6.0, 24.0, 72.0, 168.0, 336.0, 720.0)
LONGEST_H = 720.0  # of a piece, within which nothing fades
PRIOR_SD = 2.0  # of the last log ratio around 0
SMOOTH_SD = 0.7  # of each other log ratio around the one after it
FRAILTY_SD = 2.0  # of the logarithm of the gamma's shape, around 1
MEMORY_H, MEMORY_SD = 1440.0, 1.0  # median of the memory, and of its logarithm
STEP = 1e-3  # of the differences that give the information
TABLE = Path(__file__).with_suffix(".toml")


class Probation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Failures per node-hour of a node never down, ratios by hours since it came back, and what nodes are like.

    `ratios` and `log_sds` have a band before each of `edges_h` and one after the last. `source` says what it was learnt
    from.
    """

    edges_h: tuple[float, ...]
    rate_per_node_hour: float
    ratios: tuple[float, ...]
    log_sds: tuple[float, ...]
    frailty_variance: float
    memory_h: float
    failures: int
    source: str = ""

    def __post_init__(self) -> None:
        if not len(self.ratios) == len(self.log_sds) == len(self.edges_h) + 1:
            raise ValueError("one ratio and one log_sd for each band")
        if list(self.edges_h) != sorted(set(self.edges_h)) or min(self.edges_h, default=1.0) <= 0:
            raise ValueError("edges_h must rise from above 0")
        if (
            min(self.rate_per_node_hour, self.frailty_variance, self.memory_h, *self.ratios) <= 0
            or min(self.log_sds) < 0
        ):
            raise ValueError("rates, ratios and variances must be positive")

    def estimate(self) -> Estimate:
        """The ratios with their standard errors, shape (bands,)."""
        return Estimate(np.array(self.ratios), np.array(self.log_sds))

    def ratio(self, since_h: float | None) -> float:
        """The ratio so many hours after a node came back; 1 for one that never went down."""
        if since_h is None:
            return 1.0
        return self.ratios[int(np.searchsorted(self.edges_h, since_h, side="right"))]


@cache
def shipped() -> Probation:
    """The ratios of `probation.toml`, for a fleet without a history of its own."""
    return msgspec.convert(tomllib.loads(TABLE.read_text()), Probation)


# ---- the fit ---------------------------------------------------------------------------------------------------------


def pieces(found: Spells, edges_h: Sequence[float] = EDGES_H) -> pl.DataFrame:
    """Spells cut where the time since a node came back passes an edge: node, band, start_h, hours, failed.

    Band 0 is of nodes that never went down, band b + 1 lies before edge b. No piece is longer than `LONGEST_H`.
    """
    never = found.spells.filter(pl.col("back_h").is_null())
    cut = [_piece(never, 0, pl.col("start_h"), pl.col("stop_h"))]
    again = found.spells.filter(pl.col("back_h").is_not_null())
    for band, (low, high) in enumerate(pairwise((0.0, *edges_h, np.inf)), start=1):
        start = pl.max_horizontal("start_h", pl.col("back_h") + low)
        stop = pl.min_horizontal("stop_h", pl.col("back_h") + high)
        cut.append(_piece(again.filter(stop > start), band, start, stop))
    return _shortened(pl.concat(cut)).sort("node", "start_h")


def _piece(inside: pl.DataFrame, band: int, start: pl.Expr, stop: pl.Expr) -> pl.DataFrame:
    failed = pl.col("failed") & (stop == pl.col("stop_h"))
    return inside.select("node", band=pl.lit(band, pl.Int64), start_h=start, hours=stop - start, failed=failed)


def _shortened(table: pl.DataFrame) -> pl.DataFrame:
    parts = (pl.col("hours") / LONGEST_H).ceil().cast(pl.Int64).clip(1)
    table = table.with_columns(parts=parts, part=pl.int_ranges(0, parts)).explode("part")
    hours = pl.col("hours") / pl.col("parts")
    last = pl.col("part") == pl.col("parts") - 1
    return table.select(
        "node", "band", start_h=pl.col("start_h") + pl.col("part") * hours, hours=hours, failed=pl.col("failed") & last
    )


@dataclass(frozen=True, eq=False)
class _Paths:
    """Pieces as arrays (pieces of a node in order, nodes), beyond a node's last with `hours` 0: what happened to each.

    `gap_h` is the time between a piece and the one before, in which the node was down.
    """

    nodes: tuple[str, ...]
    band: NDArray[np.int64]
    hours: Floats
    failed: Floats
    gap_h: Floats


def _paths(table: pl.DataFrame) -> _Paths:
    ends = pl.col("start_h") + pl.col("hours")
    gap = (pl.col("start_h") - ends.shift(1).over("node")).fill_null(0.0).clip(0.0)
    table = table.with_columns(
        gap=gap, place=pl.int_range(pl.len()).over("node"), number=pl.col("node").rank("dense") - 1
    )
    index = table["place"].to_numpy(), table["number"].to_numpy()
    nodes = tuple(table["node"].unique().sort())
    arrays = [np.zeros((int(index[0].max()) + 1, len(nodes))) for _ in range(4)]
    for array, name in zip(arrays, ("band", "hours", "failed", "gap"), strict=True):
        array[index] = table[name].to_numpy()
    return _Paths(nodes, arrays[0].astype(np.int64), *arrays[1:])


def fit_probation(found: Spells, edges_h: Sequence[float] = EDGES_H) -> Probation:
    """Rate, ratios and frailty of these spells; ValueError where none of them ended in a failure."""
    paths = _paths(pieces(found, edges_h))
    if not paths.failed.any():
        raise ValueError("no failure to learn from")
    start = np.zeros(len(edges_h) + 4)
    start[0] = np.log(paths.failed.sum() / paths.hours.sum())
    start[-1] = np.log(MEMORY_H)
    best = np.asarray(minimize(_loss, start, args=(paths,), method="L-BFGS-B", options={"ftol": 1e-10}).x, np.float64)
    log_sd = np.sqrt(np.diag(np.linalg.inv(_information(best, paths))))
    return Probation(
        edges_h=tuple(edges_h),
        rate_per_node_hour=float(np.exp(best[0])),
        ratios=tuple(np.exp(best[1:-2]).tolist()),
        log_sds=tuple(log_sd[1:-2].tolist()),
        frailty_variance=float(np.exp(-best[-2])),
        memory_h=float(np.exp(best[-1])),
        failures=int(paths.failed.sum()),
    )


def _loss(at: Floats, paths: _Paths) -> float:
    """Minus the logarithm of likelihood and prior, at log rate, log ratios, log shape and log memory."""
    ratios, shape, memory_h = np.concatenate([[0.0], at[1:-2]]), np.exp(at[-2]), np.exp(at[-1])
    log_rate = at[0] + ratios[paths.band]
    prior = (at[-3] / PRIOR_SD) ** 2 + (np.diff(at[1:-2]) ** 2).sum() / SMOOTH_SD**2 + (at[-2] / FRAILTY_SD) ** 2
    prior += ((at[-1] - np.log(MEMORY_H)) / MEMORY_SD) ** 2
    return float(prior / 2.0 - _walk(paths, log_rate, shape, memory_h)[0])


def _walk(paths: _Paths, log_rate: Floats, shape: float, memory_h: float) -> tuple[float, Floats, Floats]:
    """The log likelihood, and K and H of each node after its last piece, shape (nodes,)."""
    likelihood = 0.0
    failures, expected = np.zeros(len(paths.nodes)), np.zeros(len(paths.nodes))
    for log_usual, hours, failed, gap_h in zip(log_rate, paths.hours, paths.failed, paths.gap_h, strict=True):
        fading = np.exp(-gap_h / memory_h)
        failures, expected = failures * fading, expected * fading
        usual = np.exp(log_usual) * hours
        before, after = np.log(shape + expected), np.log(shape + expected + usual)
        like = np.log(shape + failures)
        likelihood += float(failed @ (log_usual + like - after) - (shape + failures) @ (after - before))
        fading = np.exp(-hours / memory_h)
        failures, expected = failures * fading + failed, expected * fading + usual
    return likelihood, failures, expected


def _information(at: Floats, paths: _Paths) -> Floats:
    """The observed information, from second differences."""
    steps = STEP * np.eye(len(at))
    second = [
        [sum(a * b * _loss(at + a * one + b * two, paths) for a in (1, -1) for b in (1, -1)) for two in steps]
        for one in steps
    ]
    return np.array(second) / (2 * STEP) ** 2


# ---- nodes now -------------------------------------------------------------------------------------------------------


def histories(model: Probation, found: Spells, at_h: float) -> pl.DataFrame:
    """Of every node the faded `failures` K and `expected` H of the time before: node, failures, expected."""
    stop = pl.min_horizontal("stop_h", pl.lit(at_h))
    over = pl.col("failed") & (pl.col("stop_h") < at_h)
    so_far = found.spells.filter(pl.col("start_h") < at_h).with_columns(stop_h=stop, failed=over)
    paths = _paths(pieces(Spells(so_far, found.failures, 0.0, found.start_h, at_h), model.edges_h))
    log_rate = np.log(model.rate_per_node_hour) + np.log([1.0, *model.ratios])[paths.band]
    _, failures, expected = _walk(paths, log_rate, 1.0 / model.frailty_variance, model.memory_h)
    return pl.DataFrame({"node": paths.nodes, "failures": failures, "expected": expected})


def standing(model: Probation, found: Spells, at_h: float) -> pl.DataFrame:
    """Every node that is up at a time: node, since_h (null: never down), failures, expected, ratio, frailty, rate.

    `failures` and `expected` are K and H of the time just before, faded; `frailty` is what the node is like by these
    two, `rate` its failures per node-hour now.
    """
    so_far, shape = found.spells.filter(pl.col("start_h") < at_h), 1.0 / model.frailty_variance
    up = so_far.filter(pl.col("stop_h") >= at_h).select("node", since_h=at_h - pl.col("back_h"))
    history = histories(model, found, at_h)
    ratios = pl.Series("ratio", [model.ratio(each) for each in up["since_h"].to_list()], pl.Float64)
    frailty = (shape + pl.col("failures")) / (shape + pl.col("expected"))
    rated = up.with_columns(ratios).join(history, on="node", maintain_order="left").with_columns(frailty=frailty)
    rate = model.rate_per_node_hour * pl.col("ratio") * pl.col("frailty")
    return rated.select("node", "since_h", "failures", "expected", "ratio", "frailty", rate=rate)
