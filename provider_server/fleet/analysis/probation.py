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
from scipy.linalg.lapack import dtbtrs
from scipy.optimize import minimize

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.hazard import Estimate
from provider_server.fleet.analysis.recurrent import Spells

EDGES_H = (6.0, 24.0, 72.0, 168.0, 336.0, 720.0)
LONGEST_H = 720.0  # of a piece, within which nothing fades
PRIOR_SD = 2.0  # of the last log ratio around 0
SMOOTH_SD = 0.7  # of each other log ratio around the one after it
FRAILTY_SD = 2.0  # of the logarithm of the gamma's shape, around 1
MEMORY_H, MEMORY_SD = 1440.0, 1.0  # median of the memory, and of its logarithm
STEP = 1e-4  # of the differences that give the information
PIECES_AT_ONCE = 1 << 15  # so that what is worked out of them stays in the processor's cache
HISTORY = {"node": pl.String, "failures": pl.Float64, "expected": pl.Float64}
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
    """Pieces of some nodes as arrays, shape (pieces,), in order of node and start.

    `first` has the place of each node's first piece. `gap_h` is the time since the piece before, in which the node was
    down.
    """

    nodes: tuple[str, ...]
    first: NDArray[np.int64]
    band: NDArray[np.int64]
    hours: Floats
    failed: Floats
    gap_h: Floats


def _paths(table: pl.DataFrame) -> list[_Paths]:
    """Pieces in order of node and start, in parts of whole nodes."""
    start_h, hours, failed = (table[name].to_numpy().astype(np.float64) for name in ("start_h", "hours", "failed"))
    counted, band = table.group_by("node", maintain_order=True).len(), table["band"].to_numpy()
    ends = np.cumsum(counted["len"].to_numpy().astype(np.int64))
    first = np.concatenate([[0], ends])  # and the end of all
    gap_h = np.zeros(len(hours))
    gap_h[1:] = np.maximum(start_h[1:] - (start_h + hours)[:-1], 0.0)
    gap_h[first[:-1]] = 0.0
    cuts = np.unique(
        np.searchsorted(first, np.arange(0, len(hours) + PIECES_AT_ONCE, PIECES_AT_ONCE)).clip(max=len(ends))
    )
    parts = []
    for low, high in pairwise(cuts.tolist()):
        nodes, at = tuple(counted["node"][low:high]), slice(first[low], first[high])
        parts.append(_Paths(nodes, first[low:high] - first[low], band[at], hours[at], failed[at], gap_h[at]))
    return parts


def fit_probation(found: Spells, edges_h: Sequence[float] = EDGES_H) -> Probation:
    """Rate, ratios and frailty of these spells; ValueError where none of them ended in a failure."""
    paths = _paths(pieces(found, edges_h))
    failures = sum(float(part.failed.sum()) for part in paths)
    if not failures:
        raise ValueError("no failure to learn from")
    start = np.zeros(len(edges_h) + 4)
    start[0] = np.log(failures / sum(float(part.hours.sum()) for part in paths))
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
        failures=int(failures),
    )


def _loss(at: Floats, paths: Sequence[_Paths]) -> tuple[float, Floats]:
    """Minus the logarithm of likelihood and prior, at log rate, log ratios, log shape and log memory; its gradient."""
    ratios, memory = at[1:-2], at[-1] - np.log(MEMORY_H)
    log_rates = at[0] + np.concatenate([[0.0], ratios])
    prior = (at[-3] / PRIOR_SD) ** 2 + (np.diff(ratios) ** 2).sum() / SMOOTH_SD**2 + (at[-2] / FRAILTY_SD) ** 2
    prior += (memory / MEMORY_SD) ** 2
    pulled = np.zeros(len(at))
    pulled[1:-2] -= np.diff(ratios, append=ratios[-1]) / SMOOTH_SD**2
    pulled[2:-2] += np.diff(ratios) / SMOOTH_SD**2
    pulled[-3:] += at[-3] / PRIOR_SD**2, at[-2] / FRAILTY_SD**2, memory / MEMORY_SD**2
    seen = np.sum([_likelihood(part, log_rates, np.exp(at[-2]), np.exp(at[-1])) for part in paths], axis=0)
    likelihood, by_rate, others = seen[0], seen[1:-2], seen[-2:]
    return float(prior / 2.0 - likelihood), pulled - np.array([by_rate.sum(), *by_rate[1:], *others])


def _likelihood(paths: _Paths, log_rates: Floats, shape: float, memory_h: float) -> Floats:
    """The log likelihood, then its derivatives by the logarithms of each band's rate, of the shape and of the memory.

    What a piece adds to K and H tells in all later ones: derivatives come back from the last piece to the first.
    """
    usual = np.exp(log_rates)[paths.band] * paths.hours
    histories, fading = _histories(paths, usual, memory_h)
    like, before = shape + histories
    after, ends = before + usual, np.flatnonzero(paths.failed)
    longer, of_after = np.log(after / before), -(paths.failed + like) / after
    value = (log_rates[paths.band[ends]] + np.log(like[ends] / after[ends])).sum() - (like * longer).sum()
    own = np.stack([paths.failed / like - longer, of_after + like / before])
    by_histories = fading.back(own)  # derivatives by K and H before a piece; `then` are those after it
    then = np.zeros_like(own)
    then[:, :-1] = by_histories[:, 1:] * fading.down[1:]
    by_rate = np.bincount(paths.band, paths.failed + usual * (of_after + then[1]), minlength=len(log_rates))
    then *= fading.faded
    by_memory = (histories * (by_histories * paths.gap_h + then * paths.hours)).sum() / memory_h
    return np.array([value, *by_rate, shape * own.sum(), by_memory])


@dataclass(frozen=True, eq=False)
class _Fading:
    """What is left of K and H after a piece (`faded`) and the gap before one (`down`; 0 at a node's first).

    They follow a linear recurrence, and their derivatives its transpose: a bidiagonal system, solved in one call.
    """

    faded: Floats
    down: Floats

    @classmethod
    def of(cls, paths: _Paths, memory_h: float) -> "_Fading":
        down = np.exp(-paths.gap_h / memory_h)
        down[paths.first] = 0.0
        return cls(np.exp(-paths.hours / memory_h), down)

    def before(self, added: Floats) -> Floats:
        """K and H before each piece, shape (2, pieces), from what is `added` to them in each."""
        come = np.zeros_like(added)
        come[:, 1:] = added[:, :-1] * self.down[1:]
        return self._solved(come, "N")

    def back(self, own: Floats) -> Floats:
        """Derivatives by K and H before each piece, from those of each piece's `own` likelihood."""
        return self._solved(own, "T")

    def _solved(self, right: Floats, trans: str) -> Floats:
        bands = np.ones((2, len(self.faded)), order="F")
        bands[1, :-1] = -self.faded[:-1] * self.down[1:]
        solution, _ = dtbtrs(bands, right.T, uplo="L", trans=trans, diag="U")
        return np.asarray(solution.T, np.float64)


def _histories(paths: _Paths, usual: Floats, memory_h: float) -> tuple[Floats, _Fading]:
    """K and H before each piece, shape (2, pieces), and how they fade."""
    fading = _Fading.of(paths, memory_h)
    return fading.before(np.stack([paths.failed, usual])), fading


def _after(paths: _Paths, usual: Floats, memory_h: float) -> Floats:
    """K and H of each node after its last piece, shape (2, nodes)."""
    histories, fading = _histories(paths, usual, memory_h)
    last = np.append(paths.first[1:], len(usual)) - 1
    return np.asarray(histories[:, last] * fading.faded[last] + np.stack([paths.failed[last], usual[last]]))


def _information(at: Floats, gradient: Floats, paths: Sequence[_Paths]) -> Floats:
    """The observed information, from differences of the gradient."""
    second = np.array([_loss(at + step, paths)[1] - gradient for step in STEP * np.eye(len(at))]) / STEP
    return np.asarray((second + second.T) / 2.0)


# ---- nodes now -------------------------------------------------------------------------------------------------------


def histories(model: Probation, found: Spells, at_h: float) -> pl.DataFrame:
    """Of every node the faded `failures` K and `expected` H of the time before: node, failures, expected."""
    stop = pl.min_horizontal("stop_h", pl.lit(at_h))
    over = pl.col("failed") & (pl.col("stop_h") < at_h)
    so_far = found.spells.filter(pl.col("start_h") < at_h).with_columns(stop_h=stop, failed=over)
    rates = model.rate_per_node_hour * np.array([1.0, *model.ratios])
    after = [pl.DataFrame(schema=HISTORY)]
    for paths in _paths(pieces(Spells(so_far, found.failures, 0.0, found.start_h, at_h), model.edges_h)):
        failures, expected = _after(paths, rates[paths.band] * paths.hours, model.memory_h)
        after.append(pl.DataFrame({"node": paths.nodes, "failures": failures, "expected": expected}))
    return pl.concat(after)


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
