"""How fast and in how little memory telemetry is summarised; one JSON object on stdout, progress on stderr.

    python benchmarks/telemetry.py            2,000 nodes x 30 metrics x one day at 15 s: 345.6 million samples
    python benchmarks/telemetry.py --small    the same with 50 nodes and four hours
    … --json                                  accepted, and what comes out anyway

Samples are made block by block while they are summarised, and the seconds for making them are taken off; both are
shown. Memory is the most that the whole process ever held. The metrics are the first 30 of the table, as they come:
gauges, counters and states, one device per node.
"""

import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, show
from provider_server.fleet.telemetry.catalogue import METRICS, Kind, Metric
from provider_server.fleet.telemetry.quality import Tally
from provider_server.fleet.telemetry.samples import HOUR_S, Chunk, Floats, SeriesBook, Window
from provider_server.fleet.telemetry.summaries import summarise

METRICS_READ, STEP_S, BLOCK_NODES, FIRST_HOUR = 30, 15, 100, 490_000
PER_HOUR = HOUR_S // STEP_S
LEAST_PER_SECOND, MOST_BYTES = 20e6, 2 << 30


class MadeUp:
    """A source of samples that cost little to make; `seconds` is what they cost."""

    def __init__(self, nodes: int, seed: int = 7) -> None:
        self._nodes = nodes
        self._noise = np.random.default_rng(seed).random((BLOCK_NODES, PER_HOUR))
        self.seconds = 0.0

    def chunks(self, book: SeriesBook, window: Window) -> Iterator[Chunk]:
        """Hour after hour, a block of nodes at a time."""
        for hour in range(window.start_hour, window.end_hour):
            for begin in range(0, self._nodes, BLOCK_NODES):
                began = time.perf_counter()
                chunk = self._chunk(book, hour, range(begin, min(begin + BLOCK_NODES, self._nodes)), window)
                self.seconds += time.perf_counter() - began
                yield chunk

    def _chunk(self, book: SeriesBook, hour: int, nodes: range, window: Window) -> Chunk:
        metrics = list(islice(METRICS.values(), METRICS_READ))
        numbers = [_number(book, metric, node) for metric in metrics for node in nodes]
        since = PER_HOUR * (hour - window.start_hour)
        values = [self._values(metric, len(nodes), since).ravel() for metric in metrics]
        times = HOUR_S * float(hour) + STEP_S * np.arange(PER_HOUR)
        series = np.repeat(np.array(numbers, np.uint32), PER_HOUR)
        return Chunk(series, np.tile(times, len(numbers)), np.concatenate(values), float(HOUR_S * hour))

    def _values(self, metric: Metric, nodes: int, since: int) -> Floats:
        factor = next(iter(metric.names.values()))
        noise = self._noise[:nodes]
        match metric.kind:
            case Kind.GAUGE:
                return noise * (0.8 * min(metric.high, 100.0 * factor) / factor)
            case Kind.COUNTER:
                return noise + (since + np.arange(PER_HOUR))
            case Kind.STATE:
                return np.zeros_like(noise)


def _number(book: SeriesBook, metric: Metric, node: int) -> int:
    name = next(iter(metric.names))
    labels = {"__name__": name, "Hostname": f"node-{node:05}", "gpu": "0", "device": "mlx5_0"}
    return book.number(labels | ({metric.part: "1"} if metric.part else {}), PER_HOUR)


def summaries(nodes: int, hours: int) -> Figure:
    """One reading of so many nodes and hours."""
    book = SeriesBook(Tally())
    window = Window(FIRST_HOUR, FIRST_HOUR + hours, HOUR_S * float(FIRST_HOUR + hours))
    source, rows, began, worked = MadeUp(nodes), 0, time.perf_counter(), time.process_time()
    for summary in summarise(source, book, window):
        rows += summary.rows.height
        sys.stderr.write(f"hour {summary.hour - FIRST_HOUR + 1} of {hours}\r")
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - worked
    quality = book.tally.quality()
    rate, peak = quality.read / (wall_s - source.seconds), _peak_bytes()
    return {
        "figure": "telemetry",
        "samples": quality.read,
        "used": quality.used,
        "rows": rows,
        "seconds": wall_s - source.seconds,
        "seconds_with_making": wall_s,
        "cpu_seconds_with_making": cpu_s,
        "samples_per_second": rate,
        "peak_bytes": peak,
        "fast_enough": rate >= LEAST_PER_SECOND,
        "small_enough": peak <= MOST_BYTES,
    }


def _peak_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - {"--small", "--json"}:
        sys.exit(f"telemetry.py: error: no option {sorted(unknown)}\nhint: --small, --json")
    show([summaries(50, 4) if "--small" in sys.argv else summaries(2_000, 24)])
