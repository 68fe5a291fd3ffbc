"""Samples from Parquet and CSV files in long form: a time, a metric's name, a value, and a column for every label.

A saved answer of Prometheus (JSON, a matrix) or an export of VictoriaMetrics is read as such a table; what
`query_range` repeats after a series vanished is repeated here.

Read in bounded batches, in the order of the file; packed files are unpacked. Of columns that name no node, device or
part, a series keeps one number that tells it from others, so that a table with hundreds of labels takes no more memory
than one with three. Times are seconds since 1970 (`ms` for milliseconds), or of a date
type in Parquet, which is then UTC. A CSV cell that is no number makes its row a bad one, which is counted; a file
that is no table of this form is an error that names it.

Not promised: to sort. Rows of one series are taken in the file's order, and one that goes back in time is dropped. If
the files are in order of time, say so (`lag_s`): hours are then given away while reading, and memory stays small.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from crypto.errors import PharoahError
from federation.base.foreign import MALFORMED
from federation.base.reading import CappedReader, form_of, is_text, open_inputs
from federation.base.visible import visible
from provider_server.fleet.telemetry.quality import Reason
from provider_server.fleet.telemetry.samples import LABELS_READ, UNKNOWN, Chunk, SeriesBook, Stamps, Window

BATCH_ROWS = 1_000_000
PARQUET = b"PAR1"
OTHERS = "other labels"
SCRAPE = "let Prometheus scrape it and set [telemetry] prometheus_url, or export samples with their times"
RANGE = "a saved answer of Prometheus to /api/v1/query_range, or to /api/v1/query of METRIC[1d]"
MOST_NAMED = 6
TABLES = ("text", "a table with commas between its columns")
_ANSWER = re.compile(rb'\s*\{\s*"status"\s*:')
LOAD = f"load it by `promtool tsdb create-blocks-from openmetrics` into Prometheus, and pass {RANGE}"
_EXPORT = re.compile(rb'\s*\{\s*"metric"\s*:\s*\{')
_TIMED = re.compile(rb"(?m)^[a-zA-Z_:][\w:]*(?:\{[^}\n]*\})? [-+\d.eNIaf]+ \d{10,13}(?:\.\d+)?$")
_SCRAPE = re.compile(rb"(?m)^# (?:HELP|TYPE) \w|^[a-zA-Z_:][\w:]*\{[^}\n]*\} [-+\d.eNI]")
SECONDS = {"s": 1.0, "ms": 1e-3}
NAME = "__name__"


class UnusableFile(PharoahError):
    """A file of samples that cannot be read."""

    default_hint = (
        "a file has a row for each sample, with the columns time_s (seconds since 1970), metric, value, and one for"
        f" each label; {RANGE} also serves; see docs/nodes.md"
    )


class _Result(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Export(msgspec.Struct):
    metric: dict[str, str]
    values: list[float | None]
    timestamps: list[int]

    def samples(self) -> list[tuple[float, str]]:
        """Times in seconds, and values; null is no number."""
        return [(at_ms / 1000, str(value)) for at_ms, value in zip(self.timestamps, self.values, strict=False)]


_exported = msgspec.json.Decoder(_Export)


class _Data(msgspec.Struct):
    resultType: str  # noqa: N815  # Prometheus' own name
    result: list[_Result]


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


@dataclass(frozen=True)
class Layout:
    """Which columns are what; every other column is a label. `lag_s`: how far rows may be out of the order of time."""

    time: str = "time_s"
    metric: str = "metric"
    value: str = "value"
    unit: str = "s"
    stamps: Stamps = Stamps.SCRAPE
    lag_s: float | None = None

    def __post_init__(self) -> None:
        if self.unit not in SECONDS:
            raise ValueError(f"times are in {sorted(SECONDS)}, not {self.unit!r}")


class FileSource:
    """The samples of some files, one after the other."""

    def __init__(self, paths: Sequence[Path], layout: Layout | None = None, batch_rows: int = BATCH_ROWS) -> None:
        self._paths = tuple(paths)
        self._layout = layout or Layout()
        self._batch_rows = batch_rows

    def chunks(self, book: SeriesBook, window: Window) -> Iterator[Chunk]:
        """One chunk per batch of rows; UnusableFile for what is no table of samples."""
        complete_to_s = 0.0
        for path in self._paths:
            for batch in self._batches(path):
                chunk = self._chunk(book, batch, complete_to_s)
                yield chunk
                if self._layout.lag_s is not None and len(chunk.time_s):
                    median_s = float(np.median(np.minimum(chunk.time_s, window.now_s)))
                    complete_to_s = max(complete_to_s, median_s - self._layout.lag_s)

    def _batches(self, path: Path) -> Iterator[pl.DataFrame]:
        with open_inputs(path) as inputs:
            for reader in inputs:
                head = reader.peek()
                if head.startswith(PARQUET):
                    lazy = pl.scan_parquet(_source(reader))
                elif _ANSWER.match(head):
                    lazy = self._answered(reader).lazy()
                elif _EXPORT.match(head):
                    lazy = self._exported(reader).lazy()
                elif _TIMED.search(head):
                    raise UnusableFile(f"{reader.file} is text of OpenMetrics with times, which is not read", hint=LOAD)
                elif _SCRAPE.search(head):
                    raise UnusableFile(f"{reader.file} is a scrape of /metrics: one moment, and no times", hint=SCRAPE)
                elif is_text(head) and form_of(head) in TABLES:
                    lazy = pl.scan_csv(_source(reader), infer_schema=False)
                else:
                    raise UnusableFile(f"{reader.file} is {form_of(head)}")
                yield from self._read(lazy, reader.file)

    def _answered(self, reader: CappedReader) -> pl.DataFrame:
        """The samples of a saved answer of Prometheus, a row for each; UnusableFile where it has none with times."""
        layout = self._layout
        try:
            answer = msgspec.json.decode(reader.read(), type=_Answer)
        except MALFORMED as error:
            raise UnusableFile(f"{reader.file} is no answer of Prometheus: {error}", hint=f"pass {RANGE}") from error
        if answer.status != "success" or answer.data is None:
            raise UnusableFile(f"{reader.file}: Prometheus reports {visible(answer.error)!r}", hint=f"pass {RANGE}")
        if answer.data.resultType != "matrix":
            raise UnusableFile(f"{reader.file} is an answer of Prometheus for one moment", hint=f"pass {RANGE}")
        if not any(NAME in one.metric for one in answer.data.result):
            raise UnusableFile(
                f"{reader.file} has no series with the name of a metric", hint=f"pass {RANGE}, not of a sum"
            )
        return pl.concat([_series(one, layout) for one in answer.data.result], how="diagonal")

    def _exported(self, reader: CappedReader) -> pl.DataFrame:
        """The samples that VictoriaMetrics exports, a series on each line; UnusableFile for another form."""
        try:
            found = [_exported.decode(line) for line in reader.read().splitlines() if line.strip()]
        except MALFORMED as error:
            raise UnusableFile(f"{reader.file} is no export of VictoriaMetrics: {error}") from error
        series = (_Result(one.metric, one.samples()) for one in found)
        return pl.concat([_series(one, self._layout) for one in series], how="diagonal")

    def _read(self, lazy: pl.LazyFrame, file: str) -> Iterator[pl.DataFrame]:
        layout = self._layout
        try:
            names = lazy.collect_schema().names()
            if missing := {layout.time, layout.metric, layout.value} - set(names):
                if sign := next((sign for sign in ";\t|" if len(names) == 1 and sign in names[0]), ""):
                    hint = "save it with commas between them, and points in numbers"
                    raise UnusableFile(f"{file} has {sign!r} between its columns", hint=hint)
                raise UnusableFile(f"{file} has no column {', '.join(sorted(missing))}, but {_few(names)}")
            known = [name for name in names if name in {layout.time, layout.metric, layout.value, *LABELS_READ}]
            others = [name for name in names if name not in known]
            if others:
                lazy = lazy.select(*known, pl.struct(others).hash().alias(OTHERS))
            yield from lazy.collect_batches(chunk_size=self._batch_rows, maintain_order=True)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise UnusableFile(f"{file} cannot be read: {str(error).splitlines()[0]}") from error

    def _chunk(self, book: SeriesBook, batch: pl.DataFrame, complete_to_s: float) -> Chunk:
        layout = self._layout
        time, value = _seconds(batch[layout.time], layout.unit), _float(batch[layout.value])
        labels = batch.select(pl.exclude(layout.time, layout.value).cast(pl.String)).rename({layout.metric: NAME})
        table = labels.with_columns(time=time, value=value, good=time.is_not_null() & value.is_not_null())
        self._count_bad(book, table)
        table = table.filter("good")
        names = labels.columns
        kinds = table.group_by(names, maintain_order=True).len(name="rows of them")
        numbers = [book.number(_texts(row), row["rows of them"]) for row in kinds.iter_rows(named=True)]
        kinds = kinds.with_columns(series=pl.Series(numbers, dtype=pl.Int64))
        table = table.join(kinds, on=names, how="left", nulls_equal=True, maintain_order="left")
        table = table.filter(pl.col("series") != UNKNOWN)
        return Chunk(
            table["series"].to_numpy().astype(np.uint32),
            table["time"].to_numpy(),
            table["value"].to_numpy(),
            complete_to_s,
            layout.stamps,
        )

    def _count_bad(self, book: SeriesBook, table: pl.DataFrame) -> None:
        bad = table.filter(~pl.col("good"))
        for name, count in bad.group_by(NAME).len().iter_rows():
            book.tally.read(count)
            book.tally.count(Reason.BAD_ROW, name or "", count)


def _series(one: _Result, layout: Layout) -> pl.DataFrame:
    columns = {layout.time: [at for at, _ in one.values], layout.value: [text for _, text in one.values]}
    labels = {name: text for name, text in one.metric.items() if name not in columns and name != NAME}
    told = labels | {layout.metric: one.metric.get(NAME, "")}
    times = pl.DataFrame(columns, schema={layout.time: pl.Float64, layout.value: pl.String})
    return times.with_columns(
        pl.col(layout.time) / SECONDS[layout.unit], *(pl.lit(text).alias(name) for name, text in told.items())
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(visible(name[:40]) for name in names[:MOST_NAMED])


def _source(reader: CappedReader) -> Path | io.BytesIO:
    return reader.plain or io.BytesIO(reader.read())


def _seconds(column: pl.Series, unit: str) -> pl.Series:
    if column.dtype == pl.Datetime:
        return column.dt.cast_time_unit("us").cast(pl.Int64).cast(pl.Float64) / 1e6
    return _float(column) * SECONDS[unit]


def _float(column: pl.Series) -> pl.Series:
    return column.cast(pl.Float64, strict=False)


def _texts(row: Mapping[str, object]) -> dict[str, str]:
    return {name: str(text) for name, text in row.items() if text is not None and name != "rows of them"}
