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

_TEXTS = ("log", "message", "msg", "textPayload", "data", "event", "line")
_TRACES = ("exc_info", "traceback", "stack_trace", "exception")
_LEVELS = ("level", "levelname", "severity")
_CUT = re.compile(r'^\{"(?:log|message|msg)": ?"(?P<text>(?:[^"\\]|\\.)*)', re.ASCII)
_CRI = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] ", re.ASCII)


def lines_of(line: Line) -> list[Line]:
    """The lines in a record of Docker, the container runtime interface or a JSON logger; else the line itself."""
    if line.text[:1] == "{":
        inner = _of_json(line.text)
        return [Line(line.number, text) for text in inner.splitlines()] if inner else [line]
    if line.text[:2] == "20" and " std" in line.text[:48]:
        return [Line(line.number, _CRI.sub("", line.text, count=1))]
    return [line]


def _of_json(text: str) -> str:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        cut = _CUT.match(text)  # a long record is cut
        return cut["text"].replace("\\n", "\n").replace('\\"', '"') if cut else ""
    if not isinstance(record, dict):
        return ""
    said, trace, level = (_first(record, keys) for keys in (_TEXTS, _TRACES, _LEVELS))
    label = f"[{level.upper()}] " if level else ""  # a logger's level counts for each line of its traceback
    return "\n".join([*([said] if said else []), *(label + line for line in trace.splitlines())])


def _first(record: dict[str, object], keys: tuple[str, ...]) -> str:
    return next((value for key in keys if isinstance(value := record.get(key), str)), "")
