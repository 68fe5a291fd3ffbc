"""All output to stdout and stderr. Each argument is a line; control characters in foreign text are escaped.

    show("results")      on stdout
    show_json(view)      on stdout, for programs
    say("all else")      on stderr

Guarantees. What is written has gone through `federation.base.visible`. A line stays one line, so that foreign text
cannot begin one that looks like ours. `guard` does the same for whatever goes round these functions: tracebacks,
warnings, log lines without a handler, words of libraries; there newlines count as ours. Letters that the terminal's
encoding lacks become question marks. A rule of ruff (TID251) forbids other ways; a test looks for those that ruff does
not see.

Not promised: anything about what is written to file descriptors 1 and 2 themselves. The job's own output under
`pharoah-tenant run` passes there, byte for byte, and so do complaints of gRPC's core.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from federation.base.visible import json_text, visible, visible_lines

if TYPE_CHECKING:
    import threading

    from rich.progress import Progress

EVERY_S = 10.0
_STDERR = 2
_COLOURS = {"error": "1;31", "warning": "1;33"}


def show(*lines: str) -> None:
    """Results, on stdout."""
    _write(sys.stdout, lines)


def show_json(value: object) -> None:
    """One JSON value, on stdout, on a line of its own."""
    _write(sys.stdout, (json_text(value),))


def say(*lines: str) -> None:
    """Everything that is no result, on stderr."""
    _write(sys.stderr, lines)


def say_loud(program: str, kind: str, what: str, *more: str) -> None:
    """`program: kind: what`, then more lines, on stderr; on a terminal the kind, error or warning, has its colour."""
    raw = _raw_stderr()
    if not has_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") in (None, "dumb"):
        say(f"{program}: {kind}: {what}", *more)
        return
    raw.write(f"{visible(program)}: \x1b[{_COLOURS[kind]}m{kind}:\x1b[0m {visible(what)}\n")
    raw.flush()
    say(*more)


def has_terminal() -> bool:
    """Whether stderr is a terminal, so that a person reads it."""
    raw = _raw_stderr()
    return raw is not None and raw.isatty()


def say_at_once(line: str) -> None:
    """One line on stderr by one write, so that it does not mix with those of a job; OSError where stderr is gone."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    os.write(_STDERR, f"{visible(line)}\n".encode(encoding, errors="replace"))


@contextmanager
def progress() -> "Iterator[Progress]":
    """Bars on stderr where that is a terminal, else a line every ten seconds; the words of both must be ours."""
    import threading

    from rich.console import Console
    from rich.progress import Progress

    raw = _raw_stderr()
    bars = Progress(
        console=Console(file=raw),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not raw.isatty(),
        auto_refresh=raw.isatty(),  # else what is done would be told only at the end
    )
    over = threading.Event()
    if not raw.isatty():
        threading.Thread(target=_tell, args=(bars, over), daemon=True).start()
    try:
        with bars:
            yield bars
    finally:
        over.set()


def _tell(bars: "Progress", over: "threading.Event") -> None:
    """Says how far it is every so often, until it is over."""
    while not over.wait(EVERY_S):
        for task in bars.tasks:
            if not task.finished:
                of = "" if task.total is None else f" {task.completed:.0f} of {task.total:.0f}"
                say(f"{task.description}{of}, {task.elapsed or 0:.0f} s so far")


def guard() -> None:
    """Puts a `VisibleStream` in front of stdout and stderr, for as long as this process lives."""
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)


class VisibleStream(io.TextIOBase):
    """A text stream in front of another one, which writes nothing that steers a terminal.

    It has no `buffer`, by which click would go round it.
    """

    def __init__(self, raw_stream: TextIO) -> None:
        self.raw_stream = raw_stream

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute there, which only a C class can set
        """As the stream behind has it."""
        return self.raw_stream.encoding

    def write(self, text: str) -> int:
        """Writes the text with all that is no printable letter, newline or tab spelt out."""
        self.raw_stream.write(visible_lines(text))
        return len(text)

    def writable(self) -> bool:
        """That is what it is for."""
        return True

    def flush(self) -> None:
        """As the stream behind does."""
        self.raw_stream.flush()

    def isatty(self) -> bool:
        """No terminal to whoever would colour words or move a cursor: it would be shown and not obeyed."""
        return False

    def fileno(self) -> int:
        """As the stream behind says; bytes that are written there are the writer's own."""
        return self.raw_stream.fileno()


def guarded(stream: TextIO) -> TextIO:
    """A `VisibleStream` in front of a stream, unless it is one or there is none."""
    if stream is None or isinstance(stream, VisibleStream):
        return stream
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return VisibleStream(stream)  # type: ignore[return-value]


def _raw_stderr() -> Any:
    return sys.stderr.raw_stream if isinstance(sys.stderr, VisibleStream) else sys.stderr


def _write(stream: TextIO | None, lines: tuple[str, ...]) -> None:
    if stream is None or not lines:  # a program may be started without the streams
        return
    stream.write("".join(f"{visible(line)}\n" for line in lines))
    stream.flush()
