"""Runs faults one after the other while a job trains, and writes what telemetry shows (`fleet.analysis.injected`)."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pharoah_benchmarks.inject.kinds import KINDS, SPOILS
from pharoah_benchmarks.inject.pair import Pair, pair
from pharoah_benchmarks.inject.telemetry import grown, sample, steps
from provider_server.fleet.analysis.injected import INJURED, Label, Row

WINDOW_S = 0.5
HEALTHY, FAULTY, AFTER = 12, 24, 6  # windows; after a fault some pass unseen, until it is forgotten
Write = Callable[[bytes], object]


def inject(labels: Sequence[Label], write: Write) -> Iterator[Label]:
    """Runs each label, and gives it when its trace is written; a pair that failed or is spoilt is started anew."""
    left = list(labels)
    while left:
        with _started(left[0].job) as made:
            while left and made.trains:
                label = left.pop(0)
                write(b'{"label":' + msgspec.json.encode(label) + b"}\n")
                _trace(made, label, write)
                yield label
                if label.kind in SPOILS or (left and left[0].job != label.job):
                    break


@contextmanager
def _started(job: str) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="pharoah-inject-") as folder, pair(job, Path(folder)) as made:
        yield made


def _trace(made: Pair, label: Label, write: Write) -> None:
    fault, window_s = None, label.window_s
    before, due_s = [sample(node) for node in made.nodes], time.monotonic()
    try:
        for window in range(label.healthy + label.faulty):
            if window >= label.healthy:
                fault = fault or KINDS[label.kind](made.nodes[INJURED])
                fault.start(label.dose * (window - label.healthy + 1) / label.faulty)
            due_s += window_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            if not made.trains:
                return
            now = [sample(node) for node in made.nodes]
            for number, node in enumerate(made.nodes):
                row = Row(window, number, steps(node), grown(before[number], now[number]))
                write(msgspec.json.encode(row) + b"\n")
            before = now
    finally:
        if fault:
            fault.stop()
    time.sleep(AFTER * window_s)
