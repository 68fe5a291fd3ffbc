"""Operation timelines of a job on many ranks, in the table format of ByteDance's StragglerAnalysis, Parquet or CSV.

One row for each operation: `dp_rank`, `stage` (of the pipeline), `rank`, `step`, `optype`, `start_ts`, `duration` (both
in seconds), `seq_id` (the number among the operations of its kind in a step), `mc` and `gmc` (chunk of the model within
the stage and in the whole model), `mb_id` (micro-batch); -1 where a number means nothing. Ranks that share a pipeline
stage by tensor parallelism are one. Parquet needs `polars`; CSV needs nothing.
"""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federation.base.reading import CappedReader, ReadLimits, SourceError, lines, of_form, open_inputs
from federation.base.visible import source_name

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]

NUMBERS = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
TIMES = ("start_ts", "duration")
_COLUMNS = (*NUMBERS, *TIMES, "optype")
_PARQUET = b"PAR1"
_COLUMNS_HINT = "see docs/causes.md"
_MOST_ROWS = 20_000_000
_MOST_BYTES = 4 << 30
_MOST = 1 << 20  # of data-parallel ranks, stages and operations of one kind in a step: a larger number is garbage


@dataclass(frozen=True)
class Operation:
    """One operation of a step, the same on every data-parallel rank; `number` counts those of its kind and stage."""

    kind: str
    number: int
    stage: int
    chunk: int
    global_chunk: int
    micro_batch: int


@dataclass(frozen=True)
class StepTrace:
    """Complete steps. Times in seconds, by operation, data-parallel rank and step.

    `rank` is by data-parallel rank and stage; `left_out` counts the steps that lacked an operation on some rank.
    """

    operations: tuple[Operation, ...]
    start_s: Floats
    duration_s: Floats
    rank: Whole
    steps: tuple[int, ...]
    left_out: int

    @property
    def end_s(self) -> Floats:
        """When each operation ended."""
        ends: Floats = self.start_s + self.duration_s
        return ends


def read_step_trace(path: Path) -> StepTrace:
    """The trace in `path`, or the only one in a folder or archive; SourceError where it has no complete step."""
    file = source_name(path)
    with open_inputs(path, ReadLimits(total_bytes=_MOST_BYTES)) as inputs:
        wanted = of_form(inputs, _is_table, "a table of operations", hint=_COLUMNS_HINT)
        tables = [_of_parquet(one) if one.peek().startswith(_PARQUET) else _of_csv(one) for one in wanted]
    if len(tables) != 1:
        raise SourceError(file, 0, f"{len(tables) or 'no'} tables of operations: name one")
    columns = tables[0]
    _check(file, columns)
    first, where, steps = _places(columns)
    shape = len(first), int(columns["dp_rank"].max()) + 1, len(steps)
    if math.prod(shape) > _MOST_ROWS:
        raise SourceError(file, "column dp_rank", "most operations are missing on most ranks")
    complete = _complete(file, columns, shape, where)
    times = [np.full(shape, np.nan) for _ in TIMES]
    for values, name in zip(times, TIMES, strict=True):
        values[where] = columns[name]
    rank = np.full((shape[1], int(columns["stage"].max()) + 1), -1, np.int64)
    rank[columns["dp_rank"], columns["stage"]] = columns["rank"]
    return StepTrace(
        operations=tuple(_operation(columns, row) for row in first),
        start_s=times[0][:, :, complete],
        duration_s=times[1][:, :, complete],
        rank=rank,
        steps=tuple(int(number) for number in steps[complete]),
        left_out=int((~complete).sum()),
    )


def _places(columns: Columns) -> tuple[Whole, tuple[Whole, Whole, Whole], Whole]:
    """A row of each operation, each row's place in arrays by operation, rank and step, and the steps."""
    kind = np.unique(columns["optype"], return_inverse=True)[1]
    key = (kind * (_MOST + 1) + columns["stage"]) * (_MOST + 1) + columns["seq_id"]
    _, first, operation = np.unique(key, return_index=True, return_inverse=True)
    steps, step = np.unique(columns["step"], return_inverse=True)
    return first, (operation, columns["dp_rank"], step), steps


def _operation(columns: Columns, row: int) -> Operation:
    numbers = (int(columns[name][row]) for name in ("seq_id", "stage", "mc", "gmc", "mb_id"))
    return Operation(str(columns["optype"][row]), *numbers)


def _complete(file: str, columns: Columns, shape: tuple[int, int, int], where: tuple[Whole, Whole, Whole]) -> Bools:
    """Which steps have each operation once on every data-parallel rank."""
    seen = np.zeros(shape, np.int64)
    np.add.at(seen, where, 1)
    twice = np.flatnonzero(seen[where] > 1)
    if len(twice):
        row = twice[-1]
        what = f"{columns['optype'][row]} {columns['seq_id'][row]} of stage {columns['stage'][row]}"
        raise SourceError(file, f"row {row + 1}", f"{what} is there twice in one step of a rank")
    complete: Bools = (seen == 1).all(axis=(0, 1))
    if not complete.any():
        raise SourceError(file, "column step", "no step has every operation on every data-parallel rank")
    return complete


def _check(file: str, columns: Columns) -> None:
    if not len(columns["step"]):
        raise SourceError(file, "row 1", "the trace has no rows")
    for name in ("dp_rank", "stage", "seq_id"):
        wrong = np.flatnonzero((columns[name] < 0) | (columns[name] > _MOST))
        if len(wrong):
            raise SourceError(file, f"row {wrong[0] + 1}", f"{name} is {columns[name][wrong[0]]}")
    wrong = np.flatnonzero(~np.isfinite(columns["start_ts"]) | ~(columns["duration"] >= 0))
    if len(wrong):
        raise SourceError(file, f"row {wrong[0] + 1}", "start_ts is no number, or duration is negative")


# ---- files -----------------------------------------------------------------------------------------------------------


def _is_table(head: bytes) -> bool:
    return head.startswith(_PARQUET) or b"dp_rank" in head.partition(b"\n")[0]


def _of_parquet(reader: CappedReader) -> Columns:
    try:
        import polars as pl
    except ImportError as error:
        hint = "install polars, or save the trace as CSV"
        raise SourceError(reader.file, "the file", "Parquet cannot be read here", hint=hint) from error
    try:
        lazy = pl.scan_parquet(reader.plain or io.BytesIO(reader.read()))
        _need(reader.file, lazy.collect_schema().names())
        if lazy.select(pl.len()).collect().item() > _MOST_ROWS:
            raise SourceError(reader.file, "the file", f"more than {_MOST_ROWS} rows")
        kept = [pl.col(name).cast(pl.Int64) for name in NUMBERS]
        kept += [pl.col(name).cast(pl.Float64) for name in TIMES]
        table = lazy.select(*kept, pl.col("optype").cast(pl.String)).collect()
        if any(table.null_count().row(0)):
            raise SourceError(reader.file, "the file", "a column has empty cells")
        return {name: table[name].to_numpy() for name in _COLUMNS}
    except pl.exceptions.PolarsError as error:
        raise SourceError(reader.file, "the file", f"no such Parquet file: {str(error)[:200]}") from error


def _of_csv(reader: CappedReader) -> Columns:
    found: dict[str, list[str]] = {name: [] for name in _COLUMNS}
    number = 0
    try:
        rows = csv.reader(line.decode() for _, line in lines(reader))
        names = next(rows, [])
        _need(reader.file, names)
        at = [(found[name], names.index(name)) for name in _COLUMNS]
        for number, row in enumerate(rows, 1):
            if number > _MOST_ROWS:
                raise SourceError(reader.file, f"row {number}", f"more than {_MOST_ROWS} rows")
            for cells, column in at:
                cells.append(row[column])
        whole = {name: np.array(found[name], np.float64).astype(np.int64) for name in NUMBERS}
        times = {name: np.array(found[name], np.float64) for name in TIMES}
    except (UnicodeDecodeError, csv.Error, IndexError, ValueError, OverflowError) as error:
        raise SourceError(reader.file, f"row {number}", f"not a row of a trace: {str(error)[:200]}") from error
    return whole | times | {"optype": np.array(found["optype"], np.str_)}


def _need(file: str, names: list[str]) -> None:
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise SourceError(file, "the header", f"no column {', '.join(missing)}", hint=_COLUMNS_HINT)
