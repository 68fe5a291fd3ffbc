r"""What services write down of a node or a job, event by event: BMCs, memory, storage, schedulers, kubelets.

The table `event_logs.toml` says which logs there are and which of their lines tell of a failure. A log in JSON is read
as a line an entry. Of the events of one job, or of one thing, the first row of the table that is met tells.

Guarantees: any text ends in evidence, or in what the log covers without a failure (`NoFault`). What was taken back
(a line that restores what another lost) tells nothing. A scheduler's own verdict on a job is a root; all else is a
symptom, which names the cause where no log of the job does.

>>> import io
>>> line = "   2 | 03/21/2026 | 02:31:07 | Processor CPU1 Status | Thermal Trip | Asserted\n"
>>> reader = CappedReader(io.BytesIO(line.encode()), "sel.txt", 1 << 20)
>>> [one.reason for one in read(reader)]
['node_failure']
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, beginning, lines
from federation.base.visible import counted_as
from federation.protocol.toml_tables import BadTable, convert, loads, shipped
from tenant_client.doctor.sources import exit_status
from tenant_client.doctor.sources.evidence import Evidence, NoFault, Role
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN
from tenant_client.doctor.sources.xid import XIDS

SOURCE = "event_log"
_FILE = "event_logs.toml"
_BY_EXIT, _XID = "by_exit", "xid"
_MOST_BYTES, _MOST_DEPTH, _MOST_KEPT, _MOST_SHOWN, _LINE, _TEXT = 1 << 26, 32, 4096, 64, 2000, 300
_FIRST = 60  # lines of which most have the form of the log
_GROUP = re.compile(r"\(\?P<\w+>")
_ONE_HOST = re.compile(r"[\w.-]+")


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A log by its name; what the beginning of one holds, what most of its lines are, and what they name."""

    name: str
    kind: str
    begins: str
    line: str = ""
    form: Literal["lines", "json"] = "lines"
    skip: str = ""
    unit: str = ""
    host: str = ""
    verdict: bool = False


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line that tells of a failure; `ended_by` takes it back, `after` must have been told and last.

    A reason of "" is that of a line which tells of none, whatever later rows say.
    """

    kinds: tuple[str, ...]
    said: str
    reason: str
    ended_by: str = ""
    after: str = ""


@dataclass(frozen=True)
class _Row:
    event: Event
    said: re.Pattern[str]
    ended_by: re.Pattern[str] | None
    after: re.Pattern[str] | None


@dataclass(frozen=True)
class _Told:
    """An event as it was met."""

    row: int
    line: int
    text: str
    unit: str
    host: str
    found: re.Match[str]

    def group(self, name: str) -> str:
        """Of the row's pattern; "" where it has none."""
        return self.found.groupdict().get(name) or ""


def log_of(head: str) -> Log | None:
    """The log that begins so."""
    first = [line for line in head.splitlines() if line.strip()][:_FIRST]
    for log, begins, line in _logs():
        if begins.search(head) and (line is None or 2 * sum(1 for one in first if line.match(one)) > len(first)):
            return log
    return None


def looks_like(head: str) -> bool:
    """Whether a file that begins so is one of the logs."""
    return log_of(head) is not None


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Evidence | NoFault]:
    """The events that tell of a failure, those that say most first; where there is none, what was looked at."""
    log = log_of(reader.peek()[: 16 << 10].decode("utf-8", "replace").replace("\r", ""))
    if log is None:
        return
    events = _Events(log)
    rows = _entries(reader, limits) if log.form == "json" else _lines(reader, limits)
    for number, line in rows:
        events.take(number, line)
    told = sorted(events.told(), key=lambda one: (one.row, one.line))
    yield from (_evidence(log, one, reader.file) for one in told[:_MOST_SHOWN])
    if not told:
        yield NoFault(f"{log.name}, {counted_as(events.seen, 'line')}: no event of a failure")


class _Events:
    def __init__(self, log: Log) -> None:
        self._rows = _rows(log.kind)
        self._any = _any(log.kind)
        self._skip, self._unit, self._host = map(_compiled, (log.skip, log.unit, log.host))
        self._kept: dict[tuple[int, str, str], _Told] = {}
        self._in, self._at, self.seen = "", "", 0

    def take(self, number: int, line: str) -> None:
        """One line."""
        self.seen += bool(line.strip())
        if self._unit and (found := self._unit.search(line)):
            self._in, self._at = found[1], ""
        if self._host and (found := self._host.search(line)):
            self._at = found[1]
        if self._any.search(line):
            self._take_back(line)
            if not (self._skip and self._skip.search(line)):
                self._keep(number, line)

    def _take_back(self, line: str) -> None:
        for at, row in enumerate(self._rows):
            if row.ended_by and (found := row.ended_by.search(line)):
                self._kept.pop((at, self._in, found.groupdict().get("of") or ""), None)

    def _keep(self, number: int, line: str) -> None:
        for at, row in enumerate(self._rows):
            found = row.said.search(line)
            if found and row.event.reason == "":
                return
            if found and (row.after is None or any(row.after.search(one.text) for one in self._kept.values())):
                told = _Told(at, number, " ".join(line.split()), self._in, self._at, found)
                if len(self._kept) < _MOST_KEPT:
                    self._kept.setdefault((at, self._in, told.group("of")), told)
                return

    def told(self) -> Iterator[_Told]:
        """Of each unit the event that says most; of a log without units the first of each row."""
        best: dict[object, _Told] = {}
        for one in self._kept.values():
            key = one.unit if self._unit else one.row
            if key not in best or (one.row, one.line) < (best[key].row, best[key].line):
                best[key] = one
        yield from best.values()


def _evidence(log: Log, one: _Told, file: str) -> Evidence:
    reason, role = _rows(log.kind)[one.row].event.reason, Role.ROOT if log.verdict else Role.SYMPTOM
    source = SOURCE
    if reason == _XID:
        xid = XIDS.get(int(one.group("xid")))
        reason = xid.reason if xid and xid.reason else UNKNOWN
    elif reason == _BY_EXIT:
        status = int(one.group("status") or -int(one.group("signal")))
        status = 256 - status if status > 256 else status  # PBS adds 256 to a signal
        reason, role = exit_status.reason_of(status), exit_status.role_of(status)
        source = SOURCE if reason == UNKNOWN else exit_status.SOURCE  # a verdict beside which a log may say more
    of_job = f" of job {one.unit}" if one.unit else ""
    text = f"{log.name}{of_job}: {one.text}"[:_TEXT]
    host = (one.group("host") or one.host).rstrip(",;.")
    only = host if _ONE_HOST.fullmatch(host) else ""
    return Evidence(reason, role, source, file, one.line, text, None, None, only, one.group("gpu"))


# ---- lines -----------------------------------------------------------------------------------------------------------


def _lines(reader: CappedReader, limits: ReadLimits) -> Iterator[tuple[int, str]]:
    for number, line in lines(reader, limits):
        yield number, line[:_LINE].decode("utf-8", "replace").rstrip()


def _entries(reader: CappedReader, limits: ReadLimits) -> Iterator[tuple[int, str]]:
    """Of a Redfish log or event, or several in a row: severity, identity, message and origin of each entry."""
    text, decoder, at = beginning(reader, limits, _MOST_BYTES), json.JSONDecoder(), 0
    while (begin := text.find("{", at)) >= 0:
        try:
            document, at = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            return
        for entry in _walk(document, 0):
            origin = entry.get("OriginOfCondition") or entry.get("Links") or ""
            severity = entry.get("MessageSeverity") or entry.get("Severity") or "?"
            resolved = "Resolved" if entry.get("Resolved") is True else severity
            told = (entry.get(key) for key in ("MessageId", "Message", "MessageArgs"))
            yield 0, " | ".join(str(one or "") for one in (resolved, *told, json.dumps(origin)))[:_LINE]


def _walk(node: object, depth: int) -> Iterator[dict[str, object]]:
    if isinstance(node, dict):
        if "MessageId" in node or ("Message" in node and ("Severity" in node or "EntryType" in node)):
            yield node
        node = list(node.values())
    if isinstance(node, list) and depth < _MOST_DEPTH:
        for inner in node:
            yield from _walk(inner, depth + 1)


# ---- the table -------------------------------------------------------------------------------------------------------


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log: tuple[Log, ...]
    event: tuple[Event, ...]


@cache
def _table() -> _Table:
    table = convert(loads(shipped("tenant_client.doctor.sources", _FILE), _FILE), _Table, _FILE)
    kinds = {log.kind for log in table.log}
    for row in table.event:
        if row.reason not in ("", UNKNOWN, _BY_EXIT, _XID) and row.reason not in REASONS:
            raise BadTable(f"{_FILE}: {row.reason!r} is not a reason")
        if not set(row.kinds) <= kinds:
            raise BadTable(f"{_FILE}: an event of {row.reason} is of a log that is not there")
    return table


@cache
def _logs() -> tuple[tuple[Log, re.Pattern[str], re.Pattern[str] | None], ...]:
    return tuple((log, re.compile(log.begins), _compiled(log.line)) for log in _table().log)


@cache
def _rows(kind: str) -> tuple[_Row, ...]:
    return tuple(
        _Row(event, re.compile(event.said), _compiled(event.ended_by), _compiled(event.after))
        for event in _table().event
        if kind in event.kinds
    )


def _compiled(text: str) -> re.Pattern[str] | None:
    return re.compile(text) if text else None


@cache
def _any(kind: str) -> re.Pattern[str]:
    """What a line holds that a row of the kind may match, or that may take an event back."""
    texts = (text for row in _rows(kind) for text in (row.event.said, row.event.ended_by) if text)
    return re.compile("|".join(_GROUP.sub("(?:", text.replace("(?i)", "")) for text in texts), re.IGNORECASE)
