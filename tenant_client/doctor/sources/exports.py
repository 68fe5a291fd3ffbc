r"""Records that a log service exported: the lines of the program in them, the oldest first.

Datadog, Elastic, Splunk, Loki, CloudWatch, Google, Azure and OpenTelemetry write JSON: a record a line, or one document
with a list of them, each with what the program said some records deep; or a table as CSV, with a column for it and one
for its time. Often the newest is the first. Each record becomes a line with its number, of which carriage returns part
the lines of its text.

Guarantees: any text ends in lines. A record without text is an empty one. Where records have a time each, they come in
its order, and those of the same time as they stand, or the last first where the file is the newest first.

>>> head = '{"attributes":{"message":"KeyError: 3","timestamp":"2026-01-02T03:04:06Z"}}\n'
>>> looks_like(head), looks_like('{"log":"KeyError: 3"}\n')  # Docker's lines are read as they come
(True, False)
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, beginning, joined
from tenant_client.doctor.sources.containers import TEXTS, is_wrapped, text_of
from tenant_client.doctor.sources.prefixes import stamp

_MOST_BYTES, _MOST_DEPTH, _FIRST, _LINE = 1 << 26, 6, 20, 2000
_TIMES = (
    *("timestamp", "@timestamp", "time", "ts", "_time", "date", "TimeGenerated", "timeUnixNano", "eventTime"),
    *("observedTimeUnixNano", "receiveTimestamp"),
)
_COLUMNS = {"Date": "timestamp", "Time": "timestamp", "Line": "message", "Content": "message"}  # of tables
_TIMED_IN = ("attributes", "content", "_source", "result", "fields", "event")
_ANOTHER_S_OBJECT = re.compile(r'"(?:apiVersion|@odata\.\w+|schemaVersion|traceEvents)"\s*:')
_LIST = re.compile(r'(?s)\s*[\[{].{0,4000}?"(?:[@_]?message|_raw|log|textPayload|LogMessage|LogEntry|values|body)"\s*:')


@dataclass(frozen=True)
class _Record:
    text: str
    at: float | None


def looks_like(head: str) -> bool:
    """Whether a file that begins so is an export, unless its records may be read as they come."""
    if _is_table(head):
        return True
    if head.lstrip()[:1] not in ("{", "[") or _ANOTHER_S_OBJECT.search(head):
        return False
    documents = [one for line in head.splitlines()[:_FIRST] if isinstance(one := _document(line), dict)]
    if not documents:
        return bool(_LIST.match(head))
    records = [record for one in documents for record in _records(one)]
    return 2 * sum(map(is_wrapped, documents)) > len(documents) or len(records) > len(documents) or _falls(records)


def of_jobs(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> CappedReader:
    """The lines of the program in an export; its name says so where their order is another."""
    text = beginning(reader, limits, _MOST_BYTES)
    whole = _document(text)
    documents = map(_document, text.splitlines()) if whole is None else iter([whole])
    if _is_table(text):
        documents = _rows(text)
    records = [record for one in documents for record in (list(_records(one)) or [_Record("", None)])]
    if not any(one.text for one in records):
        records = [_Record(line, None) for line in text.splitlines()]
    ordered = _by_time(records)
    name = reader.file if ordered == records else f"{reader.file} (the oldest first)"
    lines = ("\r".join(one.text.splitlines()).encode() for one in ordered)
    return joined(lines, CappedReader(reader, name, limits.total_bytes), limits)


def _document(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_table(text: str) -> bool:
    header = text[:_LINE].lstrip("\ufeff").partition("\n")[0].replace('"', "").split(",")
    names = {_COLUMNS.get(name.strip(), name.strip()) for name in header}
    return not (names.isdisjoint(TEXTS) or names.isdisjoint(_TIMES))


def _rows(text: str) -> Iterator[dict[str, object]]:
    rows = csv.reader(io.StringIO(text))
    try:
        names = [_COLUMNS.get(name.strip(), name.strip()) for name in next(rows, [])]
        for cells in rows:
            yield dict(zip(names, cells, strict=False))
    except csv.Error:  # a cell beyond the module's limit
        return


def _by_time(records: list[_Record]) -> list[_Record]:
    """Those without text, which have no time to miss, stay where all others are in order."""
    times = [one.at for one in records if one.at is not None]
    told = [one for one in records if one.text]
    if any(one.at is None for one in told) or times == sorted(times):
        return records
    return sorted(told[::-1] if _falls(told) else told, key=lambda one: one.at or 0.0)


def _falls(records: list[_Record]) -> bool:
    """Whether most are older than the one before."""
    times = [one.at for one in records if one.at is not None]
    return sum(1 if later < earlier else -1 if later > earlier else 0 for earlier, later in pairwise(times)) > 0


def _records(node: object, depth: int = 0) -> Iterator[_Record]:
    """Those of a document: what has a text; else what lies in its lists, Loki's pairs of a time and a line, too."""
    if isinstance(node, dict):
        if text := text_of(node):
            yield _Record(text, _time_of(node))
            return
        node = list(node.values())
    elif (
        isinstance(node, list)
        and len(node) >= 2
        and isinstance(node[1], str)
        and isinstance(node[0], str)
        and node[0].isdigit()
    ):
        yield _Record(node[1], float(node[0][:30]))
        return
    for inner in node if isinstance(node, list) and depth < _MOST_DEPTH else ():
        if isinstance(inner, dict | list):
            yield from _records(inner, depth + 1)


def _time_of(record: dict[str, object], depth: int = 0) -> float | None:
    value = next((record[key] for key in _TIMES if key in record), None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 1 << 80 else None
    if isinstance(value, str):
        return float(value[:30]) if value.replace(".", "", 1).isdigit() and value.isascii() else stamp(value)
    inner = (found for key in _TIMED_IN if isinstance(found := record.get(key), dict))
    return next((at for one in inner if (at := _time_of(one, depth + 1)) is not None), None) if depth < 3 else None
