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
STEP = 1e-4  # of the differences that give the information
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


def by_band(found: Spells, edges_h: Sequence[float] = EDGES_H) -> pl.DataFrame:
    """Spells cut where the time since a node came back passes an edge: node, band, start_h, hours, failed.

    Band 0 is of nodes that never went down, band b + 1 lies before edge b.
    """
    never = found.spells.filter(pl.col("back_h").is_null())
    cut = [_piece(never, 0, pl.col("start_h"), pl.col("stop_h"))]
    again = found.spells.filter(pl.col("back_h").is_not_null())
    for band, (low, high) in enumerate(pairwise((0.0, *edges_h, np.inf)), start=1):
        start = pl.max_horizontal("start_h", pl.col("back_h") + low)
        stop = pl.min_horizontal("stop_h", pl.col("back_h") + high)
        cut.append(_piece(again.filter(stop > start), band, start, stop))
    return pl.concat(cut).sort("node", "start_h")


def _piece(inside: pl.DataFrame, band: int, start: pl.Expr, stop: pl.Expr) -> pl.DataFrame:
    failed = pl.col("failed") & (stop == pl.col("stop_h"))
    return inside.select("node", band=pl.lit(band, pl.Int64), start_h=start, hours=stop - start, failed=failed)


def pieces(found: Spells, edges_h: Sequence[float] = EDGES_H) -> pl.DataFrame:
    """The same, with no piece longer than `LONGEST_H`."""
    table = by_band(found, edges_h)
    parts = (pl.col("hours") / LONGEST_H).ceil().cast(pl.Int64).clip(1)
    table = table.with_columns(parts=parts, part=pl.int_ranges(0, parts)).explode("part")
    hours = pl.col("hours") / pl.col("parts")
    last = pl.col("part") == pl.col("parts") - 1
    return table.select(
        "node", "band", start_h=pl.col("start_h") + pl.col("part") * hours, hours=hours, failed=pl.col("failed") & last
    )


@dataclass(frozen=True, eq=False)
class _Paths:
    """Pieces as arrays, shape (pieces,), by step: every node's first piece, then the second of those that have one.

    Nodes with most pieces come first, so that those of one step are the first of the step before. `starts` has the
    place of each step's first piece, and the end. `gap_h` is the time since the piece before, in which the node was
    down.
    """

    nodes: tuple[str, ...]
    band: NDArray[np.int64]
    hours: Floats
    failed: Floats
    gap_h: Floats
    starts: NDArray[np.int64]

    def steps(self) -> list[slice]:
        """The pieces of each step."""
        return [slice(at, end) for at, end in pairwise(self.starts.tolist())]


def _paths(table: pl.DataFrame) -> _Paths:
    ends = pl.col("start_h") + pl.col("hours")
    gap = (pl.col("start_h") - ends.shift(1).over("node")).fill_null(0.0).clip(0.0)
    table = table.with_columns(gap=gap, place=pl.int_range(pl.len()).over("node"), many=pl.len().over("node"))
    table = table.sort("place", -pl.col("many").cast(pl.Int64), "node")
    nodes = tuple(table.filter(pl.col("place") == 0)["node"])
    starts = np.concatenate([[0], np.cumsum(np.bincount(table["place"].to_numpy()))])
    hours, failed, gap_h = (table[name].to_numpy().astype(np.float64) for name in ("hours", "failed", "gap"))
    return _Paths(nodes, table["band"].to_numpy(), hours, failed, gap_h, starts)


def fit_probation(found: Spells, edges_h: Sequence[float] = EDGES_H) -> Probation:
    """Rate, ratios and frailty of these spells; ValueError where none of them ended in a failure."""
    paths = _paths(pieces(found, edges_h))
    if not paths.failed.any():
        raise ValueError("no failure to learn from")
    start = np.zeros(len(edges_h) + 4)
    start[0] = np.log(paths.failed.sum() / paths.hours.sum())
    start[-1] = np.log(MEMORY_H)
    fit = minimize(_loss, start, args=(paths,), jac=True, method="L-BFGS-B", options={"ftol": 1e-10})
    best = np.asarray(fit.x, np.float64)
    log_sd = np.sqrt(np.diag(np.linalg.inv(_information(best, fit.jac, paths))))
    return Probation(
        edges_h=tuple(edges_h),
        rate_per_node_hour=float(np.exp(best[0])),
        ratios=tuple(np.exp(best[1:-2]).tolist()),
        log_sds=tuple(log_sd[1:-2].tolist()),
        frailty_variance=float(np.exp(-best[-2])),
        memory_h=float(np.exp(best[-1])),
        failures=int(paths.failed.sum()),
    )


def _loss(at: Floats, paths: _Paths) -> tuple[float, Floats]:
    """Minus the logarithm of likelihood and prior, at log rate, log ratios, log shape and log memory; its gradient."""
    ratios, memory = at[1:-2], at[-1] - np.log(MEMORY_H)
    log_rates = at[0] + np.concatenate([[0.0], ratios])
    prior = (at[-3] / PRIOR_SD) ** 2 + (np.diff(ratios) ** 2).sum() / SMOOTH_SD**2 + (at[-2] / FRAILTY_SD) ** 2
    prior += (memory / MEMORY_SD) ** 2
    pulled = np.zeros(len(at))
    pulled[1:-2] -= np.diff(ratios, append=ratios[-1]) / SMOOTH_SD**2
    pulled[2:-2] += np.diff(ratios) / SMOOTH_SD**2
    pulled[-3:] += at[-3] / PRIOR_SD**2, at[-2] / FRAILTY_SD**2, memory / MEMORY_SD**2
    likelihood, by_rate, by_shape, by_memory = _likelihood(paths, log_rates, np.exp(at[-2]), np.exp(at[-1]))
    return float(prior / 2.0 - likelihood), pulled - np.array([by_rate.sum(), *by_rate[1:], by_shape, by_memory])


def _likelihood(paths: _Paths, log_rates: Floats, shape: float, memory_h: float) -> tuple[float, Floats, float, float]:
    """The log likelihood, and its derivatives by the logarithms of each band's rate, of the shape and of the memory.

    They go through the pieces from the last to the first: what a piece adds to K and H tells in all later ones.
    """
    usual = np.exp(log_rates)[paths.band] * paths.hours
    histories, (faded, down), _ = _histories(paths, usual, memory_h)
    ends = np.flatnonzero(paths.failed)
    failures, expected = shape + histories[:, ends]
    value = float((log_rates[paths.band[ends]] + np.log(failures / (expected + usual[ends]))).sum())
    of_log_usual, of_shape, of_memory = np.zeros(len(usual)), 0.0, 0.0
    later = np.zeros((2, len(paths.nodes)))  # derivatives by K and H after a piece
    for step in reversed(paths.steps()):
        failed, then = paths.failed[step], later[:, : step.stop - step.start]
        like, before = shape + histories[:, step]
        after = before + usual[step]
        longer, of_after = np.log(after / before), -(failed + like) / after
        value -= float(like @ longer)
        now = np.stack([failed / like - longer, of_after + like / before])  # derivatives by K and H before it
        of_shape += now.sum()
        of_log_usual[step] = failed + usual[step] * (of_after + then[1])
        then *= faded[step]
        now += then
        of_memory += (histories[:, step] * (now * paths.gap_h[step] + then * paths.hours[step])).sum() / memory_h
        np.multiply(now, down[step], out=then)
    by_rate = np.bincount(paths.band, of_log_usual, minlength=len(log_rates)).astype(np.float64)
    return value, by_rate, float(shape * of_shape), float(of_memory)


def _histories(paths: _Paths, usual: Floats, memory_h: float) -> tuple[Floats, tuple[Floats, Floats], Floats]:
    """K and H before each piece, (2, pieces); what is left after a piece and a gap; K and H of the nodes at the end."""
    faded, down = np.exp(-paths.hours / memory_h), np.ones(len(usual))
    gaps = np.flatnonzero(paths.gap_h)
    down[gaps] = np.exp(-paths.gap_h[gaps] / memory_h)
    histories, after = np.zeros((2, len(usual))), np.zeros((2, len(paths.nodes)))
    for step in paths.steps():
        now = after[:, : step.stop - step.start]
        now *= down[step]
        histories[:, step] = now
        now *= faded[step]
        now += paths.failed[step], usual[step]
    return histories, (faded, down), after


def _information(at: Floats, gradient: Floats, paths: _Paths) -> Floats:
    """The observed information, from differences of the gradient."""
    second = np.array([_loss(at + step, paths)[1] - gradient for step in STEP * np.eye(len(at))]) / STEP
    return np.asarray((second + second.T) / 2.0)


# ---- nodes now -------------------------------------------------------------------------------------------------------


def histories(model: Probation, found: Spells, at_h: float) -> pl.DataFrame:
    """Of every node the faded `failures` K and `expected` H of the time before: node, failures, expected."""
    stop = pl.min_horizontal("stop_h", pl.lit(at_h))
    over = pl.col("failed") & (pl.col("stop_h") < at_h)
    so_far = found.spells.filter(pl.col("start_h") < at_h).with_columns(stop_h=stop, failed=over)
    paths = _paths(pieces(Spells(so_far, found.failures, 0.0, found.start_h, at_h), model.edges_h))
    usual = model.rate_per_node_hour * np.array([1.0, *model.ratios])[paths.band] * paths.hours
    failures, expected = _histories(paths, usual, model.memory_h)[-1]
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
