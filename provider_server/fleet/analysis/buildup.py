"""Build-up levels: how far a node's state has drifted, 0 to 3, hour by hour, from summaries of telemetry.

    HourSummary ─ streams (node, device, metric) ─ decayed, against peers ─▶ scores ─ latches per node ─▶ levels

A stream is what one device reports under one metric of `buildup.toml`. Counters are added up and forgotten with their
half-life; gauges are averaged likewise, as distances from their peers' median of the same hour. Both become an x: log2
of 1 + count / unit, or units of a gauge. The score is x less the peers' median x, over their spread (1.4826 times the
median absolute deviation, at least 1): 3 is eight times the usual count, or more where peers differ widely. A node has
the highest score of its streams.

Guarantees:

- A shift of all peers raises no level.
- More errors of a node, all else equal, never lower its level, in that hour or later: a median moves by no more than
  one of its values, and latches keep order (as long as no peer is at its cap, which depends on the others).
- A level rises as soon as a score reaches `UP`; it falls when scores were below `DOWN` for `CALM_H` hours in which
  every stream of the node reported.
- A missing stream keeps its score, so silence lowers no level; it shows as `stale` or `silent`, and is counted. A
  stream is dropped after `FORGET_H` hours of silence, which is counted too.
- A run that resumes from `state()` gives the same levels as an unbroken one. Memory: one row per stream.

What most peers share raises no level, but `shifts` tells of it: their median of the last day against that of the last
weeks, as where a whole hall warms.

Not promised: that a level is bad (`fleet_events` estimates the hazard of each); correction for load. Where fewer than
`MIN_PEERS` streams report a metric, counts are compared with zero, and gauges are ignored.
"""

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
import polars as pl
from msgspec import Meta

from crypto.errors import DecodeError
from federation.protocol.toml_tables import loads, rows, shipped
from provider_server.fleet.telemetry.catalogue import METRICS
from provider_server.fleet.telemetry.summaries import MISSING, HourSummary

LEVELS = 4
UP = (3.0, 5.0, 7.0)
DOWN = (2.0, 4.0, 6.0)
CALM_H = 24
CAP = 9.0  # no score is higher, so that one burst is forgotten within some half-lives
FORGET_H = 28 * 24
MIN_PEERS = 8

LATELY_H, PAST_H = 24, 28 * 24  # half-lives of a median, and of what it is compared with
SHIFTED = 3.0  # units of a gauge, or doublings of a count, as for level 1
FEWEST_H = 7 * 24  # of a past before anything is compared with it

FRESH, STALE, SILENT, UNKNOWN = "fresh", "stale", "silent", "unknown"
STATUS = pl.Enum([FRESH, STALE, SILENT, UNKNOWN])
STREAM = ("node", "device", "metric")


Positive = Annotated[float, Meta(gt=0)]
Text = Annotated[str, Meta(min_length=1)]


class Signal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metric that drifts before hardware fails; the head of `buildup.toml` explains the fields."""

    metric: str
    summary: Literal["increase", "mean"]
    half_life_h: Positive
    unit: Positive
    words: Text
    reason: Text
    source: Text
    half_life_range_h: tuple[Positive, Positive] | None = None
    unit_range: tuple[Positive, Positive] | None = None

    def __post_init__(self) -> None:
        if self.metric not in METRICS or self.summary not in METRICS[self.metric].summarise:
            raise ValueError(f"telemetry has no {self.summary} of this metric")

    @property
    def kept(self) -> float:
        """Share of a total that is left after an hour."""
        return math.exp2(-1.0 / self.half_life_h)


def parse(text: str) -> tuple[Signal, ...]:
    """Reads a table of signals; BadTable if it is not valid, as with a summary that the metric does not have."""
    return tuple(rows(loads(text, "buildup.toml"), Signal, "buildup.toml", "metric"))


@cache
def signals() -> tuple[Signal, ...]:
    """The table of `buildup.toml`, read when it is first asked."""
    return parse(shipped("provider_server.fleet.analysis", "buildup.toml"))


def signals_of(metrics: Container[str] | None) -> tuple[Signal, ...]:
    """The rows of that table whose metric is asked for; None: all."""
    return signals() if metrics is None else tuple(one for one in signals() if one.metric in metrics)


Natural = Annotated[int, Meta(ge=0)]


class _Streams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: list[str]
    device: list[str]
    metric: list[str]
    total: list[float]
    score: list[float]
    usual: list[float]
    silent_h: list[Natural]


class _Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: list[str]
    quiet_1: list[Natural]
    quiet_2: list[Natural]
    quiet_3: list[Natural]


class _Medians(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    group: list[str]
    metric: list[str]
    lately: list[float]
    past: list[float]
    hours: list[Natural]


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    hour: int | None
    doubts: dict[str, Natural]
    streams: _Streams
    nodes: _Nodes
    medians: _Medians | None = None


_STREAMS = {
    **dict.fromkeys(STREAM, pl.String()),
    **dict.fromkeys(("total", "score", "usual"), pl.Float64()),
    "silent_h": pl.Int64(),
}
_QUIET = tuple(f"quiet_{level}" for level in range(1, LEVELS))  # calm hours so far; CALM_H: the latch is open
_NODES = {"node": pl.String(), **dict.fromkeys(_QUIET, pl.Int64())}


_MEDIANS = {
    "group": pl.String(),
    "metric": pl.String(),
    "lately": pl.Float64(),
    "past": pl.Float64(),
    "hours": pl.Int64(),
}


class Shift(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole group has moved: its median of a metric is `units` above its own past (doublings of a count)."""

    group: str
    metric: str
    units: float


class BuildUp:
    """Levels of all nodes, an hour at a time. `peers` names the group (the context) in which a node is compared."""

    def __init__(self, peers: Mapping[str, str] | None = None, table: Sequence[Signal] | None = None) -> None:
        self._signals = tuple(signals() if table is None else table)
        self._peers = dict(peers or {})
        self._hour: int | None = None
        self._doubts: Counter[str] = Counter()
        self._streams = pl.DataFrame(schema=_STREAMS)
        self._nodes = pl.DataFrame(schema=_NODES)
        self._medians = pl.DataFrame(schema=_MEDIANS)
        self._table = pl.DataFrame(
            {
                "metric": [signal.metric for signal in self._signals],
                "counts": [signal.summary == "increase" for signal in self._signals],
                "kept": [signal.kept for signal in self._signals],
                "unit": [float(signal.unit) for signal in self._signals],
            },
            schema={"metric": pl.String, "counts": pl.Boolean, "kept": pl.Float64, "unit": pl.Float64},
        )

    @classmethod
    def resumed(
        cls, state: bytes, peers: Mapping[str, str] | None = None, table: Sequence[Signal] | None = None
    ) -> "BuildUp":
        """Goes on from `state()`; DecodeError for anything else. Streams whose signal is gone are left out."""
        try:
            read = msgspec.json.decode(state, type=_State)
            streams = pl.DataFrame(msgspec.structs.asdict(read.streams), schema=_STREAMS)
            nodes = pl.DataFrame(msgspec.structs.asdict(read.nodes), schema=_NODES)
            medians = pl.DataFrame(msgspec.structs.asdict(read.medians) if read.medians else None, schema=_MEDIANS)
        except (msgspec.MsgspecError, pl.exceptions.PolarsError) as error:
            raise DecodeError(f"not a state of build-up levels: {error}") from error
        resumed = cls(peers, table)
        resumed._hour, resumed._doubts = read.hour, Counter(read.doubts)
        resumed._streams = streams.filter(pl.col("metric").is_in([signal.metric for signal in resumed._signals]))
        resumed._nodes, resumed._medians = nodes, medians
        return resumed

    def state(self) -> bytes:
        """Everything that the next hour needs, as JSON."""
        streams = _Streams(**self._streams.to_dict(as_series=False))
        nodes = _Nodes(**self._nodes.to_dict(as_series=False))
        medians = _Medians(**self._medians.to_dict(as_series=False))
        return msgspec.json.encode(_State(1, self._hour, dict(self._doubts), streams, nodes, medians))

    @property
    def doubts(self) -> Mapping[str, int]:
        """Counts so far: node-hours that were stale, silent or unknown; hours skipped; values refused; forgotten."""
        return MappingProxyType(dict(self._doubts))

    def shifts(self) -> list[Shift]:
        """What whole groups have gained over their own past, the most first."""
        units = pl.col("lately") - pl.col("past")
        found = self._medians.filter((units >= SHIFTED) & (pl.col("hours") >= FEWEST_H)).select(
            "group", "metric", units=units
        )
        return [Shift(*row) for row in found.sort("units", "group", "metric", descending=True).iter_rows()]

    def silent(self) -> pl.DataFrame:
        """Node and metric, each once, of streams that said nothing in the newest hour."""
        return self._streams.filter(pl.col("silent_h") > 0).select("node", "metric").unique()

    def repaired(self, nodes: Iterable[str]) -> None:
        """Forgets the history of these nodes, whose hardware was replaced."""
        gone = pl.col("node").is_in(list(nodes))
        self._streams, self._nodes = self._streams.filter(~gone), self._nodes.filter(~gone)

    def add(self, hour: HourSummary) -> pl.DataFrame:
        """One row per node: node, hour, level, status, score, why, and the score of each signal by its metric.

        Hours come in order, ValueError otherwise; those left out count as silence. `level` is 0 where the status is
        `unknown`: nothing was ever reported. `why` says what the highest score comes from, and is empty at level 0.
        """
        skipped = 0 if self._hour is None else hour.hour - self._hour - 1
        if skipped < 0:
            raise ValueError(f"hour {hour.hour} came after hour {self._hour}")
        self._hour = hour.hour
        self._count("hours_skipped", skipped)
        self._streams = self._forgotten(self._scored(self._joined(hour.rows, skipped)))
        seen = self._by_node(hour.nodes)
        self._nodes = seen.select(_latched(level) if name in _QUIET else name for level, name in enumerate(_NODES))
        return self._shown(hour.hour, seen.drop(_QUIET).join(self._nodes, on="node", maintain_order="left"))

    # ---- streams ----------------------------------------------------------------------------------------------------

    def _joined(self, rows: pl.DataFrame, skipped: int) -> pl.DataFrame:
        """Every stream known or new, with this hour's value, null where it said nothing that can be used."""
        asked = rows.select(*STREAM, "increase", "mean").join(self._table.select("metric", "counts"), on="metric")
        value = pl.when("counts").then("increase").otherwise("mean")
        usable = value.is_finite() & ~(pl.col("counts") & (value < 0))
        asked = asked.with_columns(value=pl.when(usable).then(value), refused=value.is_not_null() & ~usable)
        self._count("values_refused", int(asked["refused"].sum()))
        now = asked.group_by(STREAM).agg(pl.col("value").max()).sort(STREAM)
        known = self._streams.join(now, on=STREAM, how="full", coalesce=True)
        new_silent = pl.col("total").is_null() & pl.col("value").is_null()  # a slot that has never said anything
        silent_h = pl.when(pl.col("value").is_null()).then(pl.col("silent_h") + 1 + skipped).otherwise(0)
        return known.filter(~new_silent).with_columns(
            pl.col("total", "score", "usual").fill_null(0.0), silent_h=silent_h
        )

    def _scored(self, streams: pl.DataFrame) -> pl.DataFrame:
        """Totals and scores of the streams that reported; the others keep theirs."""
        group = pl.col("node").replace_strict(self._peers, default="", return_dtype=pl.String)
        reported = pl.col("value").is_not_null()
        streams = streams.join(self._table, on="metric", maintain_order="left").with_columns(group=group)
        streams = streams.with_columns(peers=_among_peers(reported.sum()), fleet=reported.sum().over("metric"))
        many = pl.col("fleet") >= MIN_PEERS
        distance = (1.0 - pl.col("kept")) * (pl.col("value") - _median("value"))
        total = pl.col("total") * pl.col("kept") + pl.when("counts").then("value").when(many).then(distance).otherwise(
            0.0
        )
        streams = streams.with_columns(total=pl.when(reported).then(total).otherwise("total"))
        doublings = (1.0 + pl.col("total") / pl.col("unit")).log(2.0)
        x = pl.when("counts").then(doublings).otherwise(pl.col("total") / pl.col("unit"))
        streams = streams.with_columns(x=pl.when(reported).then(x)).with_columns(typical=_median("x"))
        self._follow(streams.filter(reported & (pl.col("peers") >= MIN_PEERS)))
        streams = streams.with_columns(off=(pl.col("x") - pl.col("typical")).abs())
        streams = streams.with_columns(
            typical=pl.when(many).then("typical").otherwise(0.0),
            spread=pl.when(many).then(pl.max_horizontal(1.0, 1.4826 * _median("off"))).otherwise(1.0),
        )
        most = pl.col("typical") + CAP * pl.col("spread")
        score = (pl.min_horizontal("x", most) - pl.col("typical")) / pl.col("spread")
        return streams.select(
            *STREAM,
            total=pl.when(reported).then(pl.min_horizontal("total", _total_of(most))).otherwise("total"),
            score=pl.when(reported).then(score).otherwise("score"),
            usual=pl.when(reported).then(_total_of(pl.col("typical"))).otherwise("usual"),
            silent_h="silent_h",
        )

    def _follow(self, reporting: pl.DataFrame) -> None:
        """Takes this hour's median of each group and metric into those of the last day and of the last weeks."""
        gauge = pl.col("value").median() / pl.col("unit").first()
        middle = pl.when(pl.col("counts").first()).then(pl.col("typical").first()).otherwise(gauge)
        now = reporting.group_by("group", "metric").agg(middle=middle)
        both = self._medians.join(now, on=("group", "metric"), how="full", coalesce=True)
        self._medians = both.select(
            "group",
            "metric",
            *(
                pl.coalesce(
                    pl.col(name) + (1.0 - math.exp2(-1.0 / half)) * (pl.col("middle") - pl.col(name)), name, "middle"
                ).alias(name)
                for name, half in (("lately", LATELY_H), ("past", PAST_H))
            ),
            hours=pl.col("hours").fill_null(0) + pl.col("middle").is_not_null(),
        ).sort("group", "metric")

    def _forgotten(self, streams: pl.DataFrame) -> pl.DataFrame:
        kept = streams.filter(pl.col("silent_h") <= FORGET_H)
        self._count("streams_forgotten", streams.height - kept.height)
        return kept

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def _by_node(self, reporting: pl.DataFrame) -> pl.DataFrame:
        """Every node with its latches so far, its scores, its highest stream and its status."""
        best = pl.col("score").arg_max()
        scores = [
            pl.col("score").filter(pl.col("metric") == signal.metric).max().alias(f"score of {signal.metric}")
            for signal in self._signals
        ]
        found = self._streams.group_by("node").agg(
            *scores,
            pl.col("score").max(),
            missing=(pl.col("silent_h") > 0).any(),
            best=pl.struct("device", "metric", "total", "usual", "silent_h").get(best),
        )
        named = reporting.select("node", silent=pl.col("status") == MISSING)
        nodes = named.join(found, on="node", how="full", coalesce=True).join(self._nodes, on="node", how="left")
        known = pl.when(pl.col("score").is_null()).then(pl.lit(UNKNOWN))
        heard = known.when(pl.col("silent").fill_null(value=True)).then(pl.lit(SILENT))
        status = heard.when("missing").then(pl.lit(STALE)).otherwise(pl.lit(FRESH)).cast(STATUS)
        nodes = nodes.with_columns(pl.col(_QUIET).fill_null(CALM_H), status=status).sort("node")
        for name, count in nodes.filter(pl.col("status") != FRESH).group_by("status").len().iter_rows():
            self._count(f"node_hours_{name}", count)
        return nodes

    def _shown(self, hour: int, nodes: pl.DataFrame) -> pl.DataFrame:
        level = pl.sum_horizontal(pl.col(name) < CALM_H for name in _QUIET)
        nodes = nodes.with_columns(hour=pl.lit(hour, pl.Int64), level=level.cast(pl.Int8))
        words = {signal.metric: signal.words for signal in self._signals}
        why = [_why(words, best) if level else "" for level, best in nodes.select("level", "best").iter_rows()]
        scores = [pl.col(f"score of {signal.metric}").alias(signal.metric) for signal in self._signals]
        return nodes.select("node", "hour", "level", "status", "score", pl.Series("why", why, pl.String), *scores)

    def _count(self, doubt: str, count: int) -> None:
        if count:
            self._doubts[doubt] += count


def _median(column: str) -> pl.Expr:
    """The median of a metric among the peers of each stream, or in the fleet where they are too few."""
    fleet = pl.col(column).median().over("metric")
    return pl.when(pl.col("peers") >= MIN_PEERS).then(_among_peers(pl.col(column).median())).otherwise(fleet)


def _among_peers(expression: pl.Expr) -> pl.Expr:
    return expression.over("group", "metric")


def _total_of(x: pl.Expr) -> pl.Expr:
    """The total that has this x."""
    return pl.col("unit") * pl.when("counts").then(2.0**x - 1.0).otherwise(x)


def _latched(level: int) -> pl.Expr:
    """Calm hours of a level's latch after this hour."""
    quiet, score = pl.col(_QUIET[level - 1]), pl.col("score").fill_null(0.0)
    closed = pl.when(score >= DOWN[level - 1]).then(0).otherwise(quiet + (pl.col("status") == FRESH))
    kept = pl.when(quiet >= CALM_H).then(CALM_H).otherwise(closed)
    return pl.when(score >= UP[level - 1]).then(0).otherwise(kept).cast(pl.Int64).alias(_QUIET[level - 1])


def _why(words: Mapping[str, str], best: Mapping[str, str | float] | None) -> str:
    """What a level comes from, for an operator."""
    if best is None:
        return ""
    metric = str(best["metric"])
    text = f"{best['device'] or 'node'}: {float(best['total']):.4g} {words[metric]} lately"
    text += f", usual {float(best['usual']):.2g}" if METRICS[metric].kind == "counter" else " above its peers"
    return text + (f"; not reported for {best['silent_h']} h" if best["silent_h"] else "")
