"""When to save: at Young and Daly's interval, and at once when the observer asks for it.

The interval weighs the time that a checkpoint takes against the work that a failure loses. The rate of failures is the
observer's, who writes it into `failures-per-hour` in the run directory, or the job's own. `save-now` there is the
request: its time of change counts, so that each is answered once.

>>> round(interval_s(checkpoint_s=60.0, failures_per_hour=0.1))
2039
>>> interval_s(checkpoint_s=60.0, failures_per_hour=0.0)
inf
"""

import os
from contextlib import suppress
from math import inf, sqrt
from pathlib import Path

SAVE_NOW, RATE = "save-now", "failures-per-hour"
ASSUMED_S = 60.0  # what a checkpoint takes, before one was measured


def interval_s(checkpoint_s: float, failures_per_hour: float) -> float:
    """Seconds of work between two checkpoints by Daly's higher-order estimate ("A higher order estimate …", 2006)."""
    if failures_per_hour <= 0:
        return inf
    between_s = 3600.0 / failures_per_hour
    if checkpoint_s >= 2 * between_s:
        return between_s
    ratio = checkpoint_s / (2 * between_s)
    return sqrt(2 * checkpoint_s * between_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


class Checkpoints:
    """Knows when this job saved last and how long that took; `now_s` is monotonic."""

    def __init__(self, run_dir: Path, began_s: float) -> None:
        self._file, self._rate_file = run_dir / SAVE_NOW, run_dir / RATE
        self._rate, self._rate_ns = 0.0, 0
        self._last_s = began_s
        self._cost_s = ASSUMED_S
        self._answered_ns = self._asked_ns()
        self._told_ns = self._answered_ns

    def saved(self, now_s: float, took_s: float) -> None:
        """A checkpoint was complete at `now_s`."""
        self._last_s, self._cost_s = now_s, took_s
        self._answered_ns = self._asked_ns()

    def due(self, now_s: float, failures_per_hour: float | None) -> bool:
        """Whether to save now; at the rate that the observer knows if None is given."""
        rate = self._known_rate() if failures_per_hour is None else failures_per_hour
        return self.is_asked() or now_s - self._last_s >= interval_s(self._cost_s, rate)

    def _known_rate(self) -> float:
        """What the observer has written, 0 before it has; kept where it cannot be read."""
        written_ns = _changed_ns(self._rate_file)
        if written_ns != self._rate_ns:
            with suppress(OSError, ValueError):
                self._rate, self._rate_ns = float(self._rate_file.read_text(encoding="ascii")), written_ns
        return self._rate

    def is_asked(self) -> bool:
        """Whether the observer has asked since the last checkpoint."""
        return self._asked_ns() > self._answered_ns

    def is_news(self) -> bool:
        """The same, but true only once for each request."""
        asked_ns = self._asked_ns()
        is_news = asked_ns > max(self._told_ns, self._answered_ns)
        self._told_ns = max(self._told_ns, asked_ns)
        return is_news

    def _asked_ns(self) -> int:
        return _changed_ns(self._file)


def _changed_ns(file: Path) -> int:
    try:
        return os.stat(file).st_mtime_ns  # noqa: PTH116  # at every step of a job
    except OSError:
        return 0


def tell_rate(run_dir: Path, failures_per_hour: float) -> None:
    """Tells the job that runs in `run_dir` how often it is expected to fail; OSError where that cannot be written."""
    written = run_dir / f"{RATE}.new"
    written.unlink(missing_ok=True)
    with written.open("x", encoding="ascii") as file:
        file.write(repr(failures_per_hour))
    written.replace(run_dir / RATE)


def ask(run_dir: Path) -> None:
    """Asks the job that runs in `run_dir` to save now; OSError where that cannot be written."""
    descriptor = os.open(run_dir / SAVE_NOW, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.utime(descriptor)
    finally:
        os.close(descriptor)
