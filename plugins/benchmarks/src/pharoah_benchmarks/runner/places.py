"""Where runs go: idle nodes, a run on one of them, and what became of it. This machine is one; others are beside.

A run on a node is `benchmark run --local --json` there. It ends when its standard input does, which the runner alone
holds open: so nothing is left of a runner that is killed.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from crypto.errors import PharoahError

MOST_BYTES = 1 << 16  # of what a run prints, the last ones
ON_NODE = ("-m", "pharoah_benchmarks.runner.on_node")


class PlaceAway(PharoahError):
    """A scheduler does not answer, or refuses; it is asked again."""

    default_hint = "runs that go on are not touched; it is asked again until it answers"


class How(StrEnum):
    """How a run ended: by itself, for a job that came first, with its node, or by its limit or ours."""

    ENDED = "ended"
    DISPLACED = "displaced"
    LOST = "lost"
    STOPPED = "stopped"


@dataclass(frozen=True)
class End:
    """How a run ended, and the last that it printed."""

    how: How
    text: bytes


class Running(Protocol):
    """A run that was started."""

    def poll(self) -> End | None:
        """What became of it, again and again the same; None while it runs; PlaceAway."""

    def stop(self) -> None:
        """Asks it to end; `poll` says when it has."""

    def kill(self) -> None:
        """Ends it without asking."""


class Place(Protocol):
    """Nodes, and runs on them, which have names of their own."""

    def idle(self) -> list[str]:
        """The nodes on which nothing runs; PlaceAway."""

    def start(self, run: str, node: str, words: Sequence[str], limit_s: float) -> Running:
        """Starts `benchmark` with these words there; PlaceAway."""

    def end(self, run: str) -> bool:
        """Ends what is left of a run of a runner that is gone; whether nothing is; PlaceAway."""


class Process:
    """A run behind a process of this machine."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert self.process.stdout  # noqa: S101 - for mypy
        self._output = self.process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._text, self._how = b"", How.ENDED
        self._end: End | None = None

    def poll(self) -> End | None:
        """As `Running`."""
        if self._end is None:
            over = self.process.poll() is not None
            self._text = (self._text + (self._output.read(MOST_BYTES) or b""))[-MOST_BYTES:]
            if over:
                self._end = End(self._how, self._text)
                self._output.close()
                self.stop()
        return self._end

    def stop(self) -> None:
        """As `Running`."""
        self._how = How.STOPPED
        if self.process.stdin:
            self.process.stdin.close()

    def kill(self) -> None:
        """As `Running`."""
        self._how = How.STOPPED
        self.process.kill()


class Local:
    """This machine, under the name that it has in telemetry: its host name."""

    def __init__(self, program: str) -> None:
        self._program = program or sys.executable

    def idle(self) -> list[str]:
        """As `Place`."""
        return [socket.gethostname()]

    def start(self, run: str, node: str, words: Sequence[str], limit_s: float) -> Process:
        """As `Place`."""
        return Process([self._program, *ON_NODE, *words])

    def end(self, run: str) -> bool:
        """As `Place`: it ended with its runner."""
        return True
