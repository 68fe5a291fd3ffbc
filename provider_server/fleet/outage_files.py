"""Outages of nodes as operators keep them: one row for each time that a node was down, from CSV or a published trace.

| file | read as |
|---|---|
| CSV with columns `node`, `start`, `end`, `kind` | as it is; `end` is empty while a node is not back |
| CSV of Los Alamos (`System`, `nodenumz`, `Prob Started`, …) | node "system/number"; kind is the column of its cause |
| JSON of NVSentinel, or of Kubernetes nodes | `health_events`: what was unhealthy until it was healthy again |
| JSON of Alertmanager, or an answer of Prometheus of what was up | by `monitor_events` |
| Slurm's events (`sacctmgr -P list event`), its nodes as text or JSON | by `slurm_nodes`; kind is that of the reason |
| JSON of InfiniteHBD (`node_id`, `event_time` in days, `event_type`, `fault_type`) | starts joined to ends |

Guarantees. Every row is an outage, be it short, inside another or still open: nothing is merged here. Rows that cannot
be read, or end before they start, are told in `left_out` with the place of the first; where they are more than the
others, the file is refused. So are rows of 1970 or of a far time among rows of today. An end in the year 1 or 9999 is
none. `doubts` says where times without a zone stand beside others with one. A `kind` is a path, from the class to the
detail ("Hardware Failure/GPU").

Times are hours: since 1970 (UTC where no zone is given), or of a trace since it began. CSV has numbers of hours, ISO
8601, or month/day/year as Los Alamos writes it.

Not promised: to find rows that tell of one failure twice.
"""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import polars as pl

from crypto.errors import DecodeError, PharoahError
from federation.base.foreign import LATEST_S, MALFORMED, moment
from federation.base.reading import ReadLimits, SourceError, form_of, is_text, open_inputs, shape_of
from federation.base.slurm_nodes import events_of, events_told
from federation.base.visible import counted_as
from provider_server.fleet.health_events import documents, outages_told
from provider_server.fleet.monitor_events import rows_of

SCHEMA = {"node": pl.String, "start_h": pl.Float64, "end_h": pl.Float64, "kind": pl.String}
UNKNOWN = "unknown"
YEAR_1980_H, LATEST_H = 87_648.0, LATEST_S / 3600  # the list of Los Alamos begins in 1996
_TIME = re.compile(rb"\b(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?) ?(Z|[+-]\d\d:?\d\d)?")
_MOST_LOOKED_AT = 1 << 24
_OPEN_END = r"^(?:0001|9999)-"
PLACE = "row"  # where it stands in its file, from 1
ALL = pl.lit(value=True)
DAY_H = 24.0
MOST_HOURS, LEAST_SECONDS, LEAST_MS = 1e7, 1e8, 1e11  # 1e7 hours are the year 3110, 1e8 s 1973, 1e11 ms the same
US_PER_H = 3_600_000_000
ISO = ("%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M%#z", "%Y-%m-%d %H:%M%#z")
NAIVE = (
    *("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"),
    *("%Y/%m/%d %H:%M:%S%.f", "%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M"),
    *("%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M %p", "%m/%d/%Y %I:%M:%S %p"),
    *("%d/%b/%Y %H:%M", "%d/%b/%Y %I:%M %p", "%d-%b-%Y %H:%M", "%d-%b-%Y %H:%M:%S", "%d %b %Y %H:%M"),
)
SHORT_YEARS = ("%m/%d/%y %H:%M", "%d/%b/%y %H:%M", "%d/%b/%y %I:%M %p")
DAY_FIRST = r"^\s*(?:1[3-9]|2\d|3[01])/\d{1,2}/\d"
LANL_CAUSES = ("Facilities", "Hardware", "Human Error", "Network", "Undetermined", "Software")
ONE_JOB = "a node that runs several jobs at once has one row for them, with one workload"
EVENTS = "SLURM_TIME_FORMAT=%s sacctmgr -P list event format=NodeName,TimeStart,TimeEnd,State,Reason"
JSON_FORMS = (
    "pass what `kubectl get nodes -o json`, `scontrol show nodes --json`, NVSentinel, Alertmanager or a query_range of"
    " `up` tells, or objects or a CSV file with node, start, end and kind; see docs/nodes.md"
)
NONE = "a fleet without outages has no hazard to estimate"
LIMITS = ReadLimits(total_bytes=1 << 30, archive_members=64)
# Forms of which too little is told, and what tells more.
_LESS = tuple(
    (re.compile(begin), form, hint)
    for begin, form, hint in (
        (
            r"\s*(Cluster\s+)?NodeName\s+TimeStart\b",
            "what `sacctmgr list event` prints for a person, with columns cut off",
            EVENTS,
        ),
        (
            r"\s*(?:\w+[|,;\t])*NodeName[|,;\t]",
            "a list of events without NodeName, TimeStart, TimeEnd, State and Reason, or with other signs than |",
            EVENTS,
        ),
        (
            r"\s*(?:[\w.-]+\|){1,2}\d[\d:T-]{8,18}\|",
            "a list of Slurm without the line of names",
            EVENTS,
        ),
        (r"# To edit this file start with a cluster line", "what `sacctmgr dump` writes: accounts, no events", EVENTS),
        (
            r"\s*(?:\w{3} \w{3} +\d+ [\d:]{8} \d{4}\s+)?(?:PARTITION\s+AVAIL|NODELIST\s+NODES|REASON\s+NODELIST)\b",
            "what `sinfo` prints, without times",
            "sinfo -R",
        ),
        (r"(?:---\s*)?(?:apiVersion|kind|items|metadata):", "YAML of Kubernetes", "kubectl get nodes -o json"),
        (r"NAME\s+STATUS\s+ROLES\b", "what `kubectl get nodes` prints for a person", "kubectl get nodes -o json"),
    )
)
COLUMNS = ("node", "start", "end")
MOST_NAMED = 8
_HEAD = 16 << 10
PREAMBLE_LINES = 3  # above a header: the file of Los Alamos has a line of titles there


class UnusableOutages(PharoahError):
    """A file of outages that cannot be read."""

    default_hint = "a CSV file needs the columns node, start, end and kind; see docs/nodes.md"


@dataclass(frozen=True, eq=False)
class Outages:
    """Rows (node, start_h, end_h or null, kind) in order of start, and the window: from the first day to the last.

    `left_out` says how many rows could not be used, and why the first of them; `doubts` what may have been misread.
    """

    rows: pl.DataFrame
    start_h: float
    end_h: float
    left_out: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def read_outages(path: Path) -> Outages:
    """The outages of a file, however it is packed; UnusableOutages where it is none of these forms, or has none."""
    content = _content(path)
    rows, left_out = _rows(content, path)
    if rows.is_empty():
        raise UnusableOutages("; ".join((f"{path} has no outages", *left_out)), hint=NONE)
    days = pl.concat([rows["start_h"], rows["end_h"].drop_nulls()]).to_numpy() / DAY_H
    first = 0.0 if _is_trace(content) else max(0.0, math.ceil(days.min()) - 1.0)  # at risk before an outage at midnight
    end_h = DAY_H * (math.floor(days.max()) + 1.0)
    return Outages(rows.sort("start_h", "node"), DAY_H * first, end_h, left_out, tuple(_doubts(content)))


def read_starts(path: Path, wanted: pl.Expr = ALL) -> tuple[list[tuple[str, int]], tuple[str, ...]]:
    """Nodes and hours in which the wanted outages of a file began, in order, and what was left out.

    None of health where all was well.
    """
    rows, left_out = _rows(_content(path), path)
    rows = rows.filter(wanted).sort("start_h", "node")
    return [(node, int(start_h)) for node, start_h in rows.select("node", "start_h").iter_rows()], left_out


def _rows(content: bytes, path: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    is_told = content.lstrip()[:1] in (b"{", b"[")
    left_out: tuple[str, ...] = ()
    if _is_trace(content):
        rows, is_told = _trace(content, path), False
    elif is_told:
        rows, left_out = _health(content, path)
    else:
        rows, left_out = _table(content, path)
    if rows.is_empty() and not is_told:
        raise UnusableOutages("; ".join((f"{path} has no outages", *left_out)), hint=NONE)
    if PLACE not in rows.columns:
        rows = rows.with_row_index(PLACE, offset=1)
    backwards = (rows["end_h"] < rows["start_h"]).fill_null(value=False)
    is_of_today = float(rows["start_h"].median() or 0.0) > YEAR_1980_H  # type: ignore[arg-type]
    elsewhen = rows["start_h"].is_between(YEAR_1980_H, LATEST_H).not_() & is_of_today
    told = rows.rows(named=True) if (backwards | elsewhen).any() else []

    def complaint(row: int) -> str:
        node, start, end = told[row]["node"], _shown(told[row]["start_h"]), _shown(told[row]["end_h"])
        if elsewhen[row]:
            return f"it starts at another time than the others: '{node}', {start}"
        return f"it ends before it starts: '{node}', from {start} to {end}"

    usable, left_out = _usable(rows, backwards | elsewhen, path, complaint, left_out)
    return usable.select(*SCHEMA), left_out


def _shown(hour: float | None) -> str:
    """An hour as a person reads it: a time, or of a trace its number."""
    if hour is None:
        return "no end"
    time = moment(hour * 3600) if hour > YEAR_1980_H else None
    return f"{time:%Y-%m-%dT%H:%MZ}" if time else f"hour {hour:g}"


def _doubts(content: bytes) -> Iterator[str]:
    times = _TIME.findall(content[:_MOST_LOOKED_AT])
    zoneless = [time for time, zone in times if not zone]
    if zoneless and len(zoneless) < len(times):
        first = zoneless[0].decode()
        yield f"{len(zoneless)} of {len(times)} times have no zone and were read as UTC, the first {first}"


def _usable(
    rows: pl.DataFrame, bad: pl.Series, path: Path, complaint: Callable[[int], str], left_out: tuple[str, ...] = ()
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The other rows, and what is told of the bad ones by their place; UnusableOutages where those are the most."""
    if not bad.any():
        return rows, left_out
    places, kinds = rows[PLACE], defaultdict[str, list[int]](list)
    first = int(bad.arg_true()[0])
    if 2 * int(bad.sum()) > rows.height:
        raise UnusableOutages(f"{path}, row {places[first]}: {complaint(first)}")
    for row in bad.arg_true():
        kinds[complaint(row).split("'")[0]].append(row)
    told = (f"{counted_as(len(of), 'row')}, the first row {places[of[0]]}: {complaint(of[0])}" for of in kinds.values())
    return rows.filter(~bad), (*left_out, *told)


def _is_trace(content: bytes) -> bool:
    return content.lstrip()[:1] == b"[" and not re.match(
        rb'\s*\[\s*\{(?!.{0,4096}"(?:event_type|node_id)")', content, re.DOTALL
    )


def read_jobs(path: Path) -> pl.DataFrame:
    """Jobs (node, start_h, end_h or null, workload) of a CSV file, one row for each node of each job."""
    content = _content(path)
    if not {_name(cell) for cell in _first_line(content).split(",")} >= {"node", "start", "end", "workload"}:
        raise UnusableOutages(f"{path} has no columns node, start, end, workload", hint="see docs/nodes.md")
    table = _csv(content, path, 0).select("node", "start", "end", kind=_kind("workload"))
    jobs, left_out = _checked(table, path)
    if left_out:
        raise UnusableOutages(f"{path}: {left_out[0]}", hint="what a node ran decides whether its fault is gray")
    jobs = jobs.select("node", "start_h", "end_h", workload="kind")
    reached = pl.col("end_h").fill_null(math.inf).cum_max().shift(1).over("node")
    jobs = jobs.sort("node", "start_h")
    both = jobs.filter((pl.col("start_h") < reached).fill_null(value=False))
    if not both.is_empty():
        raise UnusableOutages(f"{path}: two jobs on {both['node'][0]} at hour {both['start_h'][0]:g}", hint=ONE_JOB)
    return jobs


def _content(path: Path) -> bytes:
    try:
        with open_inputs(path, LIMITS) as inputs:
            parts = [reader.read() for reader in inputs]
    except SourceError as error:
        raise UnusableOutages(f"{path} cannot be read: {error.what}") from error
    if len(parts) != 1:
        raise UnusableOutages(f"{path} holds {counted_as(len(parts), 'file')}", hint="pass one of them")
    return parts[0]


def _first_line(content: bytes) -> str:
    return content.split(b"\n", 1)[0].decode("utf-8", "replace")


# ---- a published trace of starts and ends ----------------------------------------------------------------------------


class _Fault(msgspec.Struct, frozen=True):
    level: str = msgspec.field(name="Level")
    family: str = msgspec.field(name="Class")
    words: str = msgspec.field(name="Desc")


class _Event(msgspec.Struct, frozen=True):
    node_id: str
    event_time: Annotated[float, msgspec.Meta(ge=0.0)]  # days
    event_type: Literal["fault_start", "fault_end"]
    fault_type: _Fault


def _trace(content: bytes, path: Path) -> pl.DataFrame:
    try:
        events = msgspec.json.decode(content, type=list[_Event])
    except MALFORMED as error:
        raise UnusableOutages(f"{path}: {error}") from error
    begun: defaultdict[tuple[str, _Fault], list[float]] = defaultdict(list)
    rows: list[tuple[str, float, float | None, _Fault]] = []
    for event in sorted(events, key=lambda event: (event.event_time, event.event_type != "fault_start")):
        fault = begun[event.node_id, event.fault_type]
        if event.event_type == "fault_start":
            fault.append(event.event_time)
        else:  # the end of a fault that began before the trace did
            rows.append((event.node_id, fault.pop(0) if fault else 0.0, event.event_time, event.fault_type))
    rows += [(node, start, None, fault) for (node, fault), starts in begun.items() for start in starts]
    table = [(node, start, end, f"{fault.level}/{fault.family}") for node, start, end, fault in rows]
    days = pl.DataFrame(table, schema=SCHEMA, orient="row")
    return days.with_columns(pl.col("start_h", "end_h") * DAY_H)


# ---- health of nodes as other tools tell it --------------------------------------------------------------------------


def _health(content: bytes, path: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    try:
        told = documents(content, [])
        if (plain := _plain(told)) is not None:
            return _checked(plain, path)
        nodes = [one for of in told if isinstance(of, dict) for one in of.get("nodes", of.get("sinfo")) or ()]
        left_out: list[str] = []
        if (rows := rows_of(told, left_out)) is not None:
            return pl.DataFrame(rows, schema=SCHEMA, orient="row"), tuple(left_out)
        if nodes:
            return _of_events(list(events_told(nodes, left_out)), path, left_out)
        return pl.DataFrame(outages_told(content, left_out), schema=SCHEMA, orient="row"), tuple(left_out)
    except (*MALFORMED, DecodeError) as error:
        what = error.what if isinstance(error, DecodeError) else str(error)
        raise UnusableOutages(f"{path} is {shape_of(content[:_HEAD])}: {what}", hint=JSON_FORMS) from error


def _plain(told: Sequence[object]) -> pl.DataFrame | None:
    """Objects with node and start, as a CSV file has them; None where one is something else."""
    flat = [one for of in told for one in (of if isinstance(of, list) else [of])]
    rows = [{str(name).lower(): one for name, one in row.items()} for row in flat if isinstance(row, dict)]
    if not rows or len(rows) < len(flat) or not all({"node", "start"} <= row.keys() for row in rows):
        return None
    columns = {name: [_text(row.get(name)) for row in rows] for name in (*COLUMNS, "kind")}
    table = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
    return table.with_columns(kind=_kind("kind"))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _of_events(
    events: Sequence[tuple[int, str, str, str, str]], path: Path, left_out: Sequence[str]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    columns = {PLACE: pl.UInt32, **dict.fromkeys(("node", "start", "end", "kind"), pl.String)}
    told = [event for event in events if event[2]]
    rows, more = _checked(pl.DataFrame(told, schema=columns, orient="row"), path)
    timeless = (f"node {event[1]}: nothing tells since when it is out" for event in events if not event[2])
    return rows, (*timeless, *left_out, *more)


# ---- tables ----------------------------------------------------------------------------------------------------------


def _table(content: bytes, path: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    text = content.decode("utf-8", "replace")
    left_out: list[str] = []
    if (events := events_of(text, left_out)) is not None:
        return _of_events(events, path, left_out)
    for skipped, line in enumerate(content.splitlines()[:PREAMBLE_LINES]):
        sign = _sign(line)
        names = set(_columns(line, sign))
        if names >= {"node", "start", "end", "kind"}:
            return _checked(_csv(content, path, skipped, sign).select(*COLUMNS, kind=_kind("kind")), path)
        if names >= {"nodenumz", "prob started", "prob fixed"}:
            return _checked(_los_alamos(_csv(content, path, skipped, sign)), path)
    for begin, form, hint in _LESS:
        if begin.match(text):
            raise UnusableOutages(f"{path} is {form}", hint=f"pass what `{hint}` prints")
    first = next(iter(content.splitlines()), b"") if is_text(content[:4096]) else b""
    columns = _columns(first, _sign(first))
    own = f", but {', '.join(columns[:MOST_NAMED])}" if len(columns) > 1 else ""
    raise UnusableOutages(f"{path} is {form_of(content[:4096])}: it has no columns node, start, end, kind{own}")


def _sign(header: bytes) -> str:
    """What stands between the columns: the commonest of a line of names."""
    return max(",;\t|", key=lambda sign: header.count(sign.encode()))


def _columns(header: bytes, sign: str) -> list[str]:
    return [_name(cell) for cell in header.decode("utf-8", "replace").split(sign)]


def _name(cell: str) -> str:
    return cell.split("(")[0].strip().strip('"').lower().removeprefix("\ufeff")


def _csv(content: bytes, path: Path, skipped: int, sign: str = ",") -> pl.DataFrame:
    how: dict[str, Any] = {"infer_schema": False, "skip_rows": skipped, "truncate_ragged_lines": True}
    try:
        return pl.read_csv(content, separator=sign, **how).rename(_name)
    except pl.exceptions.PolarsError as error:
        raise UnusableOutages(f"{path}: {str(error).splitlines()[0]}") from error


def _los_alamos(table: pl.DataFrame) -> pl.DataFrame:
    named = []
    for cause in (one for one in LANL_CAUSES if one.lower() in table.columns):
        detail = pl.col(cause.lower()).str.strip_chars()
        named.append(pl.when(detail.str.len_chars() > 0).then(pl.concat_str(pl.lit(f"{cause}/"), detail)))
    system = pl.col("system") if "system" in table.columns else pl.lit("")
    node = pl.concat_str(system, pl.col("nodenumz"), separator="/").str.strip_chars("/")
    return table.select(node=node, start="prob started", end="prob fixed", kind=pl.coalesce(*named, pl.lit(UNKNOWN)))


def _kind(column: str) -> pl.Expr:
    text = pl.col(column).str.strip_chars()
    return pl.when(text.str.len_chars() > 0).then(text).otherwise(pl.lit(UNKNOWN))


def _checked(table: pl.DataFrame, path: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """With times as hours, without the rows that have no node, or a time that is none; these are told."""
    text = {name: pl.col(name).str.strip_chars().replace("", None) for name in ("node", "start", "end")}
    table = table.with_columns(**text).with_columns(
        end=pl.when(pl.col("end").str.contains(_OPEN_END).not_()).then(pl.col("end"))
    )
    if PLACE not in table.columns:
        table = table.with_row_index(PLACE, offset=1)
    first = table.filter(pl.any_horizontal(pl.col("start", "end").str.contains(DAY_FIRST)))
    if not first.is_empty():
        told = f"{path}, row {first[PLACE][0]}: {first['start'][0]!r} or its end has the day before the month"
        raise UnusableOutages(told, hint="write days as 2025-12-31 or 31.12.2025: 02/01/2026 may be two days")
    found = table.select(PLACE, "node", start_h=_hours("start"), end_h=_hours("end"), kind=pl.col("kind"))
    bad = found["node"].is_null() | found["start_h"].is_null() | (found["end_h"].is_null() & table["end"].is_not_null())

    def complaint(row: int) -> str:
        return _complaint(table.row(row, named=True), found.row(row, named=True))

    return _usable(found.cast(SCHEMA), bad, path, complaint)  # type: ignore[arg-type]


def _complaint(told: dict[str, str | None], read: dict[str, object]) -> str:
    if told["node"] is None:
        return "no node"
    name = "start" if read["start_h"] is None else "end"
    return f"no {name}" if told[name] is None else f"{name} {told[name]!r} is no time"


def _hours(column: str) -> pl.Expr:
    """Hours since 1970, or as they stand; null where a text is no time. Large numbers are seconds or milliseconds."""
    text = pl.col(column)
    number = text.cast(pl.Float64, strict=False)
    size = number.abs()
    number = (
        pl.when(size < MOST_HOURS)
        .then(number)
        .when((size >= LEAST_SECONDS) & (size < LEAST_MS))
        .then((number / 3600).round(9))
        .when((size >= LEAST_MS) & (size < 1000 * LEAST_MS))
        .then((number / 3_600_000).round(9))
    )
    zoned = [text.str.to_datetime(form, time_unit="us", time_zone="UTC", strict=False) for form in ISO]
    naive = [_utc(text, form) for form in NAIVE]
    short = [_utc(text, form) for form in SHORT_YEARS]
    # %Y reads "6/21/05" as the year 5
    whole = [pl.when(time.dt.year() > 99).then(time) for time in naive]
    times = [time.dt.epoch("us") / US_PER_H for time in itertools.chain(zoned, whole, short)]
    return pl.coalesce(pl.when(number.is_finite()).then(number), *times)


def _utc(text: pl.Expr, form: str) -> pl.Expr:
    return text.str.to_datetime(form, time_unit="us", strict=False).dt.replace_time_zone("UTC")
