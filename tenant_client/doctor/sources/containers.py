r"""The program's own lines out of the records that containers and structured loggers write: one record a line.

>>> [line.text for line in lines_of(Line(7, r'{"log":"KeyError: 3\n","stream":"stderr"}'))]
['KeyError: 3']
>>> [line.text for line in lines_of(Line(7, '{"labels":{"pod":"a-0"},"line":"KeyError: 3"}'))]  # Loki's
['KeyError: 3']
>>> [line.text for line in lines_of(Line(7, "2025-03-02T04:05:06.7Z stderr F KeyError: 3"))]
['KeyError: 3']
"""

import json
import re

from tenant_client.doctor.sources.scanning import Line

TEXTS = (
    *("log", "message", "msg", "textPayload", "data", "event", "line"),
    *("_raw", "@message", "Message", "LogMessage", "LogEntry", "LogEntry_s", "stringValue", "body", "content"),
)
_WRAPPED_IN = (  # exports of Datadog, Elastic, Splunk, Google, Azure, OpenTelemetry and fluentd
    *("attributes", "_source", "content", "result", "jsonPayload", "body", "properties", "log", "record"),
    *("fields", "event", "data", "message"),
)
_TRACES = ("exc_info", "traceback", "stack_trace", "exception", "stack", "exc_text")
_TRACED_IN = ("error", "exception", "attributes")
_LEVELS = ("level", "levelname", "severity")
_MOST_DEPTH = 4
_CUT = re.compile(r'^\{"(?:log|message|msg)": ?"(?P<text>(?:[^"\\]|\\.)*)', re.ASCII)
_TAGGED = re.compile(r"^[^\t{]{4,60}\t[^\t{]{1,200}\t(?=\{)", re.ASCII)  # by fluentd
_CRI = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] ", re.ASCII)


def lines_of(line: Line) -> list[Line]:
    """The lines in a record of Docker, the container runtime interface or a JSON logger; else the line itself."""
    text = line.text if line.text[:1] == "{" else _TAGGED.sub("", line.text, count=1)
    if text[:1] == "{":
        inner = _of_json(text)
        return [Line(line.number, text) for text in inner.splitlines()] if inner else [line]
    if line.text[:2] == "20" and " std" in line.text[:48]:
        return [Line(line.number, _CRI.sub("", line.text, count=1))]
    return [line]


def text_of(record: dict[str, object], depth: int = 0) -> str:
    """What a program said in a record, at any depth, with the traceback beside it; "" for nothing."""
    said, trace, level = _first(record, TEXTS), _trace(record, depth), _first(record, _LEVELS)
    if said[:1] == "{" and depth < _MOST_DEPTH:  # a JSON logger in a container
        said = _of_json(said, depth + 1) or said
    if not said and depth < _MOST_DEPTH:
        inner = (value for key in _WRAPPED_IN if isinstance(value := record.get(key), dict))
        said = next((text for one in inner if (text := text_of(one, depth + 1))), "")
    label = f"[{level.upper()}] " if level else ""  # a logger's level counts for each line of its traceback
    lines = [] if trace in said else trace.splitlines()
    return "\n".join([*([said] if said else []), *(label + line for line in lines)])


def is_wrapped(record: dict[str, object]) -> bool:
    """Whether what a program said lies deeper than in the record itself."""
    return not _first(record, TEXTS) and bool(text_of(record))


def _of_json(text: str, depth: int = 0) -> str:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        cut = _CUT.match(text)  # a long record is cut
        return cut["text"].replace("\\n", "\n").replace('\\"', '"') if cut else ""
    return text_of(record, depth) if isinstance(record, dict) else ""


def _trace(record: dict[str, object], depth: int) -> str:
    own = _first(record, _TRACES)
    if own or depth >= _MOST_DEPTH:
        return own
    inner = (value for key in _TRACED_IN if isinstance(value := record.get(key), dict))
    return next((text for one in inner if (text := _trace(one, depth + 1))), "")


def _first(record: dict[str, object], keys: tuple[str, ...]) -> str:
    return next((value for key in keys if isinstance(value := record.get(key), str)), "")
