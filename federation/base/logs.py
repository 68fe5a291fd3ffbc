"""Logs of a running program: one line of JSON per event on stderr, or plain text for a person at a terminal.

An event is a log record; what its caller gave as `extra` becomes keys beside `time`, `level`, `logger` and `message`.
Foreign text in it steers no terminal and begins no line: `federation.base.visible`. Lines of a traceback are
indented. Nothing here decides what may be logged: callers log facts, never secrets, payloads or tokens.
"""

import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from textwrap import indent

from federation.base.visible import json_text, visible, visible_lines

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class Format(StrEnum):
    """For a machine, or for a person."""

    JSON = "json"
    TEXT = "text"


class JsonLines(logging.Formatter):
    """A record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_text(line)


class TextLines(logging.Formatter):
    """A record as one line, and its traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line or lines, without the last end."""
        line = f"{self.formatTime(record)} {record.levelname} {visible(record.getMessage())}"
        if not record.exc_info:
            return line
        return f"{line}\n{indent(visible_lines(self.formatException(record.exc_info)), '    ')}"


def configure(kind: Format, level: int = logging.INFO) -> None:
    """Sends the records of this process to stderr, in place of whatever was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind is Format.JSON else TextLines())
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for noisy in ("httpx", "httpcore", "uvicorn", "alembic", "flwr", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
        logging.getLogger(noisy).handlers.clear()  # Flower's own would write each line again, in colour
