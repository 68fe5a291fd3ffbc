"""Summaries per node, device and hour, from chunks in any order, an hour at a time and in bounded memory.

    samples ─ runs.segments ─▶ segments of an hour ─ one per slot and time ─▶ joined to the hour before ─▶ HourSummary

Guarantees. What comes out does not depend on the order of chunks, as long as none comes after the hour that it
belongs to was given away (`Chunk.complete_to_s`; such samples are counted as late). A counter's increase over hours
adds up to its increase over all of them. Of two series for one thing at one time, the one with more samples counts,
then the preferred name. A device or node that was seen or is expected and says nothing is `missing`, in every hour
until it is back.

Kept in memory: segments of the hours that are not complete yet (about 130 bytes per series and hour), and one sample
per slot. Shares above a threshold are shares of samples, which is time where they are evenly spaced.

Not promised: increases before the first sample (but of series that come with their first event, `born`), or between
the fall of a counter and the sample before it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from provider_server.fleet.telemetry.catalogue import Kind
from provider_server.fleet.telemetry.quality import Reason
from provider_server.fleet.telemetry.runs import Events, Segments, coded, segments
from provider_server.fleet.telemetry.samples import HOUR_S, Chunk, Floats, Ints, SeriesBook, Source, Window

LONGEST_GAP_S = 300.0
REPORTED, PARTIAL, MISSING = "reported", "partial", "missing"
STATUS = pl.Enum([REPORTED, PARTIAL, MISSING])


@dataclass(frozen=True, eq=False)
class HourSummary:
    """One hour since 1970.

    `rows`: node, device, metric, status, count, mean, max, min, last, increase, resets, changes, above_share, gap_s;
    null where the metric has no such summary or nothing was reported. `nodes`: node, status. `events`: node, device,
    metric, time_s, code.
    """

    hour: int
    rows: pl.DataFrame
    nodes: pl.DataFrame
    events: pl.DataFrame


def summarise(
    source: Source, book: SeriesBook, window: Window, expected: Iterable[str] = (), longest_gap_s: float = LONGEST_GAP_S
) -> Iterator[HourSummary]:
    """Every hour of the window, in order, as soon as it is complete. `expected` are nodes that ought to report."""
    summaries = Summaries(book, window, expected, longest_gap_s)
    for chunk in source.chunks(book, window):
        yield from summaries.add(chunk)
    yield from summaries.finish()


class Summaries:
    """Hours that are not complete yet."""

    def __init__(
        self, book: SeriesBook, window: Window, expected: Iterable[str] = (), longest_gap_s: float = LONGEST_GAP_S
    ) -> None:
        self._book = book
        self._window = window
        self._expected = sorted(set(expected))
        self._longest_gap_s = longest_gap_s
        self._next_hour = window.start_hour
        self._parts: defaultdict[int, list[Segments]] = defaultdict(list)
        self._last = np.zeros(0)
        self._last_series = np.zeros(0, np.int64)
        self._names = _Names(book)

    def add(self, chunk: Chunk) -> Iterator[HourSummary]:
        """Takes a chunk in, and gives the hours that are complete before it."""
        while self._next_hour < self._window.end_hour and HOUR_S * (self._next_hour + 1) <= chunk.complete_to_s:
            yield self._given()
        found = segments(chunk, self._book, self._window, float(HOUR_S * self._next_hour))
        if found is not None:
            for hour in np.unique(found.hour).tolist():
                self._parts[hour].append(_of_hour(found, hour))

    def finish(self) -> Iterator[HourSummary]:
        """The rest: no chunk comes any more."""
        while self._next_hour < self._window.end_hour:
            yield self._given()

    def _given(self) -> HourSummary:
        hour, self._next_hour = self._next_hour, self._next_hour + 1
        parts = self._parts.pop(hour, [])
        grown = len(self._book.slots) - len(self._last)
        self._last = np.concatenate([self._last, np.full(grown, np.nan)])
        self._last_series = np.concatenate([self._last_series, np.full(grown, -1)])
        rows, events = self._joined(hour, Segments.joined(parts)) if parts else (_NO_ROWS, _NO_EVENTS)
        return self._shown(hour, rows, events)

    # ---- one hour ---------------------------------------------------------------------------------------------------

    def _joined(self, hour: int, found: Segments) -> tuple[pl.DataFrame, Events]:
        """One row per slot that reported, joined to what it reported last; and the hour's events."""
        columns = self._book.columns()
        found = _sorted(found, columns.slot)
        found = self._one_each(found)
        slot = columns.slot[found.series]
        starts = np.flatnonzero(np.concatenate([[True], slot[1:] != slot[:-1]]))
        ends = np.append(starts[1:], len(slot))
        grown, resets, changed, events = self._seams(found, slot, starts)
        edges = np.maximum(found.first_s[starts] - HOUR_S * hour, HOUR_S * (hour + 1) - found.last_s[ends - 1])
        between = np.zeros(len(slot))
        between[1:] = np.where(slot[1:] == slot[:-1], found.first_s[1:] - found.last_s[:-1], 0)
        self._last[slot[starts]] = found.last[ends - 1]
        self._last_series[slot[starts]] = found.series[ends - 1]
        add, largest = np.add.reduceat, np.maximum.reduceat
        rows = {
            "slot": slot[starts],
            "count": add(found.count, starts),
            "total": add(found.total, starts),
            "max": largest(found.high, starts),
            "min": np.minimum.reduceat(found.low, starts),
            "last": found.last[ends - 1],
            "increase": add(found.increase + grown, starts),
            "resets": add(found.resets + resets, starts),
            "changes": add(found.changes + changed, starts),
            "above": add(found.above, starts),
            "gap_s": np.maximum(edges, largest(np.maximum(found.gap_s, between), starts)),
        }
        return pl.DataFrame(rows), events

    def _one_each(self, found: Segments) -> Segments:
        """Leaves out what is there twice: of segments that overlap in one slot, one stays."""
        columns = self._book.columns()
        slot = columns.slot[found.series]
        overlap = (slot[1:] == slot[:-1]) & (found.first_s[1:] <= _latest(found.last_s, slot)[:-1])
        if not overlap.any():
            return found
        keep = np.ones(len(found), np.bool_)
        for number in np.unique(slot[1:][overlap]).tolist():
            members = np.arange(*np.searchsorted(slot, [number, number + 1]))
            keep[members] = self._chosen(found, members)
        for number in np.flatnonzero(~keep).tolist():
            self._count(Reason.DUPLICATE, int(slot[number]), int(found.count[number]))
        return _without(found, keep)

    def _chosen(self, found: Segments, members: Ints) -> list[bool]:
        """Which segments of a slot stay: those of the series with most samples first, and no two at one time."""
        ranks, series = self._book.columns().rank, found.series[members].tolist()
        samples = {one: int(found.count[members][found.series[members] == one].sum()) for one in series}

        def preference(place: int) -> tuple[object, ...]:
            one = series[place]
            at = members[place]
            labels = self._book.series[one].labels
            return -samples[one], int(ranks[one]), labels, -int(found.count[at]), float(found.first_s[at])

        kept: list[int] = []
        for place in sorted(range(len(members)), key=preference):
            at = members[place]
            if all(
                found.first_s[at] > found.last_s[other] or found.last_s[at] < found.first_s[other] for other in kept
            ):
                kept.append(int(at))
        return [int(at) in kept for at in members]

    def _seams(self, found: Segments, slot: Ints, starts: Ints) -> tuple[Floats, Ints, Ints, Events]:
        """What happened between segments: growth and resets of counters, changes of states, all events by then."""
        columns = self._book.columns()
        before, series = np.empty(len(slot)), np.empty(len(slot), np.int64)
        before[1:], series[1:] = found.last[:-1], found.series[:-1]
        before[starts], series[starts] = self._last[slot[starts]], self._last_series[slot[starts]]
        late = found.first_s > self._window.start_s + self._longest_gap_s
        before[columns.born[found.series] & late & np.isnan(before)] = 0.0
        step = found.first - before
        counter, state = columns.counter[found.series], columns.state[found.series] & ~found.stamped
        fell = counter & (step < 0)
        reset = fell & (series == found.series)
        grown = np.where(counter & (step > 0), step, 0.0) + np.where(reset, found.first, 0.0)
        changed = state & (step != 0) & ~np.isnan(step)
        self._doubt(Reason.SEAM, slot[fell & ~reset])
        self._doubt(Reason.RESET, np.repeat(slot, found.resets + reset))
        event = columns.event[found.series] & (found.first != columns.good[found.series]) & ~found.stamped
        self._doubt(Reason.STANDING, slot[event & ~counter & np.isnan(step)])
        new = event & (changed | (grown > 0))
        events = Events(
            np.concatenate([found.events.series, found.series[new]]),
            np.concatenate([found.events.time_s, found.first_s[new]]),
            np.concatenate([found.events.code, coded(columns, found.series[new], found.first[new])]),
        )
        return grown, reset.astype(np.int64), changed.astype(np.int64), events

    def _shown(self, hour: int, rows: pl.DataFrame, events: Events) -> HourSummary:
        """Every slot that is known, with its names, and nulls instead of what nobody reported."""
        names = self._names.frame()
        partial = pl.col("gap_s") > self._longest_gap_s
        status = pl.when(pl.col("count") == 0).then(pl.lit(MISSING)).when(partial).then(pl.lit(PARTIAL))
        shown = (
            names.join(rows, on="slot", how="left", maintain_order="left")
            .with_columns(pl.col("count").fill_null(0))
            .with_columns(
                mean=pl.when("has_mean").then(pl.col("total") / pl.col("count")),
                max=pl.when("has_max").then("max"),
                min=pl.when("has_min").then("min"),
                last=pl.when("has_last").then("last"),
                increase=pl.when("has_increase").then("increase"),
                resets=pl.when("has_increase").then("resets"),
                changes=pl.when("has_changes").then("changes"),
                above_share=pl.when("has_above").then(pl.col("above") / pl.col("count")),
                status=status.otherwise(pl.lit(REPORTED)).cast(STATUS),
            )
        )
        for reason, text in ((Reason.MISSING, MISSING), (Reason.GAP, PARTIAL)):
            for metric, count in shown.filter(pl.col("status") == text).group_by("metric").len().iter_rows():
                self._book.tally.count(reason, metric, count)
        return HourSummary(hour, shown.select(SHOWN), self._nodes(shown), self._events(events))

    def _nodes(self, shown: pl.DataFrame) -> pl.DataFrame:
        """A node is missing if all of it is, partial if any of it is not reported in full."""
        seen = shown.group_by("node").agg(
            all_missing=(pl.col("status") == MISSING).all(), all_reported=(pl.col("status") == REPORTED).all()
        )
        whole = pl.when("all_missing").then(pl.lit(MISSING)).when("all_reported").then(pl.lit(REPORTED))
        seen = seen.select("node", status=whole.otherwise(pl.lit(PARTIAL)).cast(STATUS))
        expected = pl.DataFrame({"node": self._expected}, schema={"node": pl.String})
        nodes = expected.join(seen, on="node", how="full", coalesce=True)
        silent = nodes.filter(pl.col("status").is_null()).height
        self._book.tally.count(Reason.MISSING, "(node)", silent)
        return nodes.with_columns(pl.col("status").fill_null(pl.lit(MISSING, STATUS))).sort("node")

    def _events(self, events: Events) -> pl.DataFrame:
        slots = [self._book.slots[slot] for slot in self._book.columns().slot[events.series].tolist()]
        columns = {
            "node": [slot.node for slot in slots],
            "device": [slot.device for slot in slots],
            "metric": [slot.metric.name for slot in slots],
            "time_s": events.time_s,
            "code": events.code,
        }
        return pl.DataFrame(columns, schema=EVENT_SCHEMA).unique().sort("time_s", "node", "device", "metric")

    def _doubt(self, reason: Reason, slots: Ints) -> None:
        for slot, count in zip(*np.unique(slots, return_counts=True), strict=True):
            self._count(reason, int(slot), int(count))

    def _count(self, reason: Reason, slot: int, count: int) -> None:
        self._book.tally.count(reason, self._book.slots[slot].metric.name, count)


NUMBERS = ("count", "mean", "max", "min", "last", "increase", "resets", "changes", "above_share", "gap_s")
SHOWN = ("node", "device", "metric", "status", *NUMBERS)
EVENT_SCHEMA = {"node": pl.String, "device": pl.String, "metric": pl.String, "time_s": pl.Float64, "code": pl.Float64}
_INTS, _FLOATS = ("slot", "count", "resets", "changes", "above"), ("total", "max", "min", "last", "increase", "gap_s")
_NO_ROWS = pl.DataFrame(schema=dict.fromkeys(_INTS, pl.Int64) | dict.fromkeys(_FLOATS, pl.Float64))
_NO_EVENTS = Events(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


class _Names:
    """The slots of a book as a table, added to when slots are."""

    def __init__(self, book: SeriesBook) -> None:
        self._book = book
        self._frame = self._of(0)

    def frame(self) -> pl.DataFrame:
        """One row per slot, in their order: names, and which summaries it has."""
        if self._frame.height != len(self._book.slots):
            self._frame = pl.concat([self._frame, self._of(self._frame.height)])
        return self._frame

    def _of(self, begin: int) -> pl.DataFrame:
        slots = self._book.slots[begin:]
        has: dict[str, Sequence[bool]] = {
            f"has_{name}": [name in slot.metric.summarise for slot in slots]
            for name in ("mean", "max", "min", "last", "increase", "changes")
        }
        has["has_above"] = [slot.metric.kind is Kind.GAUGE and slot.metric.above is not None for slot in slots]
        names = {
            "slot": range(begin, begin + len(slots)),
            "node": [slot.node for slot in slots],
            "device": [slot.device for slot in slots],
            "metric": [slot.metric.name for slot in slots],
        }
        schema = {"slot": pl.Int64, "node": pl.String, "device": pl.String, "metric": pl.String}
        return pl.DataFrame(names | has, schema=schema | dict.fromkeys(has, pl.Boolean))


def _of_hour(found: Segments, hour: int) -> Segments:
    if (found.hour == hour).all():
        return found
    events = found.events
    mine = events.time_s // HOUR_S == hour
    part = found.take(found.hour == hour)
    return part.with_events(Events(events.series[mine], events.time_s[mine], events.code[mine]))


def _sorted(found: Segments, slot_of: Ints) -> Segments:
    """By slot, then by time; series and length last, so that no tie is left to the order of chunks."""
    return found.take(np.lexsort((found.count, found.series, found.last_s, found.first_s, slot_of[found.series])))


def _latest(last_s: Floats, slot: Ints) -> Floats:
    """The latest end so far within each slot."""
    starts = np.flatnonzero(np.concatenate([[True], slot[1:] != slot[:-1]]))
    ends = np.append(starts[1:], len(slot))
    latest = last_s.copy()
    for begin, end in zip(starts[ends - starts > 2], ends[ends - starts > 2], strict=True):
        latest[begin:end] = np.maximum.accumulate(last_s[begin:end])
    return latest


def _without(found: Segments, keep: NDArray[np.bool_]) -> Segments:
    """Only what is kept, and no events of what is not; what is kept of a series does not overlap."""
    kept, events = found.take(keep), found.events
    spans = pl.DataFrame({"series": kept.series, "first_s": kept.first_s, "last_s": kept.last_s}).sort("first_s")
    times = pl.DataFrame({"series": events.series, "time_s": events.time_s, "code": events.code}).sort("time_s")
    asked = times.join_asof(spans, left_on="time_s", right_on="first_s", by="series", check_sortedness=False)
    mine = asked.filter(pl.col("time_s") <= pl.col("last_s"))
    return kept.with_events(Events(*(mine[name].to_numpy() for name in ("series", "time_s", "code"))))


def per_node(rows: pl.DataFrame) -> pl.DataFrame:
    """Summaries of a node from those of its devices: extremes, mean by samples, sums of increases and changes."""
    weight = pl.col("count")
    return rows.group_by("node", "metric", maintain_order=True).agg(
        devices=pl.len(),
        reporting=(weight > 0).sum(),
        count=weight.sum(),
        mean=(pl.col("mean") * weight).sum() / weight.filter(pl.col("mean").is_not_null()).sum(),
        max=pl.col("max").max(),
        min=pl.col("min").min(),
        increase=pl.when(pl.col("increase").is_not_null().any()).then(pl.col("increase").sum()),
        changes=pl.when(pl.col("changes").is_not_null().any()).then(pl.col("changes").sum()),
        gap_s=pl.col("gap_s").max(),
    )
