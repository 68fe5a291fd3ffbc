"""From samples to segments: what one chunk says of each of its series in each hour, in one pass over its columns.

A *run* is the samples of one series in one hour, a *segment* what is kept of a run. Segments of a slot add up later
(`provider_server.fleet.telemetry.summaries`), in whatever order their chunks came. Runs are reduced by NumPy's
`reduceat`; only runs whose extremes are suspicious, and series whose times are not in order, are looked at sample by
sample.

Rules: blank, not-a-number and implausible values are dropped; so is a sample that is not later than one before it of
the same series in the chunk, and whatever is outside of the window or later than now. A counter that falls began anew
at 0.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from provider_server.fleet.telemetry.quality import Reason
from provider_server.fleet.telemetry.samples import HOUR_S, Chunk, Columns, Floats, Ints, SeriesBook, Stamps, Window

Flags = NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Events:
    """Changes of a state to something that is not good, and growths of a counter: which series, when, and to what."""

    series: Ints
    time_s: Floats
    code: Floats


@dataclass(frozen=True, eq=False)
class Segments:
    """One entry per run; values in the metric's unit. `gap_s` is the longest time between two samples of the run."""

    series: Ints
    hour: Ints
    count: Ints
    total: Floats
    low: Floats
    high: Floats
    first_s: Floats
    first: Floats
    last_s: Floats
    last: Floats
    gap_s: Floats
    increase: Floats
    resets: Ints
    changes: Ints
    above: Ints
    stamped: Flags
    events: Events

    def __len__(self) -> int:
        return len(self.series)

    def take(self, which: Ints | Flags) -> "Segments":
        """Some of them; events stay whole."""
        return replace(self, **{name: getattr(self, name)[which] for name in COLUMNS})

    def with_events(self, events: Events) -> "Segments":
        """The same with other events."""
        return replace(self, events=events)

    @classmethod
    def joined(cls, parts: "list[Segments]") -> "Segments":
        """All of several."""
        columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
        events = (np.concatenate([getattr(part.events, field.name) for part in parts]) for field in fields(Events))
        return cls(**columns, events=Events(*events))


COLUMNS = tuple(field.name for field in fields(Segments) if field.name != "events")


def segments(chunk: Chunk, book: SeriesBook, window: Window, complete_to_s: float) -> Segments | None:
    """What a chunk comes to, None for nothing. Samples before `complete_to_s` are late: their hour was given away."""
    book.tally.read(len(chunk.series))
    chunk = _in_window(chunk, book, window, complete_to_s)
    chunk = _in_order(_by_series(chunk), book)
    chunk = _plausible(chunk, book)
    return _reduced(chunk, book.columns()) if len(chunk.series) else None


# ---- which samples count --------------------------------------------------------------------------------------------


def _kept(chunk: Chunk, keep: Flags) -> Chunk:
    return replace(chunk, series=chunk.series[keep], time_s=chunk.time_s[keep], value=chunk.value[keep])


def _dropped(chunk: Chunk, book: SeriesBook, reasons: dict[Reason, Flags]) -> Chunk:
    """Drops each sample for the first reason that it meets."""
    keep = np.ones(len(chunk.series), np.bool_)
    for reason, bad in reasons.items():
        _count(book, reason, chunk.series[keep & bad])
        keep &= ~bad
    return chunk if keep.all() else _kept(chunk, keep)


def _count(book: SeriesBook, reason: Reason, series: NDArray[np.uint32]) -> None:
    for number, count in zip(*np.unique(series, return_counts=True), strict=True):
        book.tally.count(reason, book.slots[book.series[number].slot].metric.name, count)


def _in_window(chunk: Chunk, book: SeriesBook, window: Window, complete_to_s: float) -> Chunk:
    time_s = chunk.time_s
    begin, end = max(window.start_s, complete_to_s), min(window.end_s, window.now_s)
    if not len(time_s) or (begin <= time_s.min() and time_s.max() < end):
        return chunk
    outside = (time_s < window.start_s) | (time_s >= window.end_s)
    reasons = {
        Reason.NOT_A_NUMBER: ~np.isfinite(time_s),
        Reason.FUTURE: time_s > window.now_s,
        Reason.OUTSIDE: outside,
        Reason.LATE: time_s < complete_to_s,
    }
    return _dropped(chunk, book, reasons)


def _by_series(chunk: Chunk) -> Chunk:
    """The same samples with each series in one piece, in its own order."""
    pieces = np.count_nonzero(chunk.series[1:] != chunk.series[:-1]) + 1
    if pieces <= 1 or pieces == len(np.unique(chunk.series)):
        return chunk
    order = np.argsort(chunk.series, kind="stable")
    return replace(chunk, series=chunk.series[order], time_s=chunk.time_s[order], value=chunk.value[order])


def _in_order(chunk: Chunk, book: SeriesBook) -> Chunk:
    """Drops what does not come after everything before it in its series."""
    same = chunk.series[1:] == chunk.series[:-1]
    wrong = np.flatnonzero((chunk.time_s[1:] <= chunk.time_s[:-1]) & same) + 1
    if not len(wrong):
        return chunk
    backwards, repeated = np.zeros((2, len(chunk.series)), np.bool_)
    starts = np.append(np.flatnonzero(np.concatenate([[True], ~same])), len(chunk.series))
    for piece in np.unique(np.searchsorted(starts, wrong, side="right")) - 1:
        part = slice(starts[piece] + 1, starts[piece + 1])
        latest = np.maximum.accumulate(chunk.time_s[starts[piece] : starts[piece + 1]])[:-1]
        backwards[part] = chunk.time_s[part] < latest
        repeated[part] = chunk.time_s[part] == latest
    return _dropped(chunk, book, {Reason.OUT_OF_ORDER: backwards, Reason.REPEATED: repeated})


def _plausible(chunk: Chunk, book: SeriesBook) -> Chunk:
    """Drops values that mean nothing. Extremes of a run tell whether it has any; NaN is an extreme of its run."""
    if not len(chunk.series):
        return chunk
    columns, starts = book.columns(), _starts(chunk.series)
    series = chunk.series[starts]
    low, high = np.minimum.reduceat(chunk.value, starts), np.maximum.reduceat(chunk.value, starts)
    suspicious = ~((low >= columns.low[series]) & (high <= columns.high[series]))
    if not suspicious.any():
        return chunk
    bad = {
        reason: np.zeros(len(chunk.series), np.bool_)
        for reason in (Reason.NOT_A_NUMBER, Reason.BLANK, Reason.IMPLAUSIBLE)
    }
    ends = np.append(starts[1:], len(chunk.series))
    for run in np.flatnonzero(suspicious):
        part, metric = slice(starts[run], ends[run]), book.slots[columns.slot[series[run]]].metric
        value = chunk.value[part]
        scaled = value * columns.scale[series[run]]
        bad[Reason.NOT_A_NUMBER][part] = np.isnan(value)
        bad[Reason.BLANK][part] = metric.is_blank(value)
        bad[Reason.IMPLAUSIBLE][part] = ~((scaled >= metric.low) & (scaled <= metric.high))
    return _dropped(chunk, book, bad)


# ---- what they come to ----------------------------------------------------------------------------------------------


def _starts(*keys: NDArray[np.uint32] | Ints) -> Ints:
    """Where runs of equal keys begin."""
    changes = keys[0][1:] != keys[0][:-1]
    for key in keys[1:]:
        changes |= key[1:] != key[:-1]
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def _reduced(chunk: Chunk, columns: Columns) -> Segments:
    time_s, value = chunk.time_s, chunk.value
    hours = _hours(time_s)
    starts = _starts(chunk.series, hours)
    ends = np.append(starts[1:], len(value))
    series = chunk.series[starts].astype(np.int64)
    low, high = np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts)
    increase, resets = _increase(value, starts, ends, columns.counter[series])
    changes, events = _changes(chunk, starts, ends, columns)
    scale = columns.scale[series]
    return Segments(
        series=series,
        hour=hours[starts].astype(np.int64),
        count=ends - starts,
        total=np.add.reduceat(value, starts) * scale,
        low=low * scale,
        high=high * scale,
        first_s=time_s[starts],
        first=value[starts] * scale,
        last_s=time_s[ends - 1],
        last=value[ends - 1] * scale,
        gap_s=_gaps(time_s, starts),
        increase=increase * scale,
        resets=resets,
        changes=changes,
        above=_above(value, starts, ends, columns.above[series], low, high),
        stamped=np.full(len(starts), chunk.stamps is Stamps.VALUE),
        events=events,
    )


def _hours(time_s: Floats) -> Ints:
    first = int(time_s.min() // HOUR_S)
    if time_s.max() < HOUR_S * (first + 1):  # the usual case, one hour at a time
        return np.broadcast_to(np.int64(first), time_s.shape)
    return (time_s // HOUR_S).astype(np.int64)


def _gaps(time_s: Floats, starts: Ints) -> Floats:
    steps = np.empty_like(time_s)
    np.subtract(time_s[1:], time_s[:-1], out=steps[1:])
    steps[starts] = 0
    return np.maximum.reduceat(steps, starts)


def _increase(value: Floats, starts: Ints, ends: Ints, counter: Flags) -> tuple[Floats, Ints]:
    """How much each run of a counter grew, and how often it began anew: then it adds what it reached since."""
    growth = np.where(counter, value[ends - 1] - value[starts], 0.0)
    resets = np.zeros(len(starts), np.int64)
    if counter.any():
        falls = np.flatnonzero((value[1:] < value[:-1]) & _rows(counter, starts, ends)[1:]) + 1
        run = np.searchsorted(starts, falls, side="right") - 1
        falls, run = falls[starts[run] < falls], run[starts[run] < falls]
        np.add.at(growth, run, value[falls - 1])
        np.add.at(resets, run, 1)
    return growth, resets


def _changes(chunk: Chunk, starts: Ints, ends: Ints, columns: Columns) -> tuple[Ints, Events]:
    """How often each run of a state changed, and the events among the changes; also those of counters that grew.

    Where a sample's time is that of its value, a new time is a change, whether or not the value is the same.
    """
    changes = np.zeros(len(starts), np.int64)
    runs = chunk.series[starts]
    state, counted = columns.state[runs], columns.counter[runs] & columns.event[runs]
    grown = _grown(chunk.value, starts, ends, counted)
    if not state.any():
        return changes, _events(chunk, grown, columns)
    new = np.ones(len(chunk.value), np.bool_)
    if chunk.stamps is Stamps.SCRAPE:
        new[1:] = chunk.value[1:] != chunk.value[:-1]
        new[starts] = False
    at = np.flatnonzero(new & _rows(state, starts, ends))
    np.add.at(changes, np.searchsorted(starts, at, side="right") - 1, 1)
    at = at[columns.event[chunk.series[at]] & (chunk.value[at] != columns.good[chunk.series[at]])]
    return changes, _events(chunk, np.concatenate([at, grown]), columns)


def _grown(value: Floats, starts: Ints, ends: Ints, counted: Flags) -> Ints:
    """Samples at which a counter with events has grown, since the one before or since it began anew."""
    if not counted.any():
        return np.zeros(0, np.int64)
    grown = np.zeros(len(value), np.bool_)
    grown[1:] = (value[1:] != value[:-1]) & (value[1:] > 0)
    grown[starts] = False
    return np.flatnonzero(grown & _rows(counted, starts, ends))


def _events(chunk: Chunk, at: Ints, columns: Columns) -> Events:
    series = chunk.series[at].astype(np.int64)
    return Events(series, chunk.time_s[at], coded(columns, series, chunk.value[at] * columns.scale[series]))


def coded(columns: Columns, series: Ints, value: Floats) -> Floats:
    """The codes of events: what a label says, else the value."""
    return np.where(np.isnan(columns.code[series]), value, columns.code[series])


def _above(value: Floats, starts: Ints, ends: Ints, above: Floats, low: Floats, high: Floats) -> Ints:
    """How many samples of each run are above its threshold; extremes settle most runs."""
    found = np.where(low > above, ends - starts, 0)
    mixed = (low <= above) & (high > above)
    if mixed.any():
        over = value > _rows(np.where(mixed, above, np.inf), starts, ends)
        found += np.add.reduceat(over, starts, dtype=np.int64)
    return found


def _rows(of_runs: NDArray[Scalar], starts: Ints, ends: Ints) -> NDArray[Scalar]:
    """What holds for a run, for each of its samples."""
    return np.repeat(of_runs, ends - starts)
