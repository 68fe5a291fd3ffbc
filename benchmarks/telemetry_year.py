"""Memory and time for a long stretch of hourly telemetry from Parquet, in order of time. JSON on stdout, a line a week.

    python -m benchmarks.telemetry_year [DAYS [NODES]]      default: 365 days of 12,500 nodes with 8 GPUs each

A file a day, made when it is its turn, has two samples of each GPU and hour: corrected memory errors, of which a
twentieth of the nodes have many for some days, and the last Xid. It is read as `contexts` and `hazard` read
`--file … --sorted` (`hardware.follow`): summaries, build-up levels, sums by node, runs of levels. Peak memory is of the
whole process, which makes the files too; `cpu_seconds` are those of reading.
"""

import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from benchmarks.figures import Figure, show
from provider_server.analysis.fleet_events import fit_levels, gather
from provider_server.fleet.telemetry.files import FileSource, Layout
from provider_server.fleet.telemetry.inventory import Inventory
from provider_server.fleet.telemetry.samples import HOUR_S, Chunk, SeriesBook, Window
from provider_server.learning.hardware import follow

NODES, GPUS, DAYS, FIRST = 12_500, 8, 365, 480_000
BAD_SHARE, BAD_DAYS, BAD_PER_HOUR, GOOD_PER_HOUR = 0.05, 5, 40.0, 0.05
XID_PER_HOUR = 6.5 / 1000 / 24 / GPUS
DAY_H, WEEK = 24, 7
ERRORS, XID = "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_XID_ERRORS"


class Fleet:
    """Telemetry that is made a day at a time; yields figures of what was read so far through `weeks`."""

    def __init__(self, folder: Path, nodes: int, days: int) -> None:
        self._folder, self._days = folder, days
        self._rng = np.random.default_rng(0)
        names = np.repeat([f"node{number:05}" for number in range(nodes)], GPUS)
        gpus = np.tile([str(number) for number in range(GPUS)], nodes)
        labels = {"Hostname": pl.Series(names, dtype=pl.Categorical), "gpu": pl.Series(gpus, dtype=pl.Categorical)}
        self._labels = pl.DataFrame(labels)
        self._errors, self._xid = np.zeros(len(names)), np.zeros(len(names))
        self._bad = np.zeros(nodes, np.bool_)
        self.making_s = 0.0
        self.weeks: list[Figure] = []

    def chunks(self, book: SeriesBook, window: Window) -> Iterator[Chunk]:
        """As a `FileSource` of one file a day gives them."""
        began_s = time.process_time()
        for day in range(self._days):
            making_s = time.process_time()
            file = self._write(day)
            self.making_s += time.process_time() - making_s
            yield from FileSource([file], Layout(lag_s=float(HOUR_S))).chunks(book, window)
            file.unlink()
            if (day + 1) % WEEK == 0 or day + 1 == self._days:
                read_s = time.process_time() - began_s - self.making_s
                sys.stderr.write(f"day {day + 1} of {self._days}, {peak_gb():.2f} GB, {read_s:.0f} s of CPU\n")
                self.weeks.append({"days": day + 1, "cpu_seconds": read_s, "peak_gb": peak_gb()})

    def _write(self, day: int) -> Path:
        nodes = len(self._bad)
        self._bad = np.where(self._rng.random(nodes) < 1 / BAD_DAYS, self._rng.random(nodes) < BAD_SHARE, self._bad)
        rates, frames = np.repeat(np.where(self._bad, BAD_PER_HOUR, GOOD_PER_HOUR), GPUS), []
        for hour in range(FIRST + DAY_H * day, FIRST + DAY_H * (day + 1)):
            self._errors += self._rng.poisson(rates)
            failing = self._rng.random(len(rates)) < XID_PER_HOUR
            self._xid = np.where(failing, np.where(self._xid == 79, 48.0, 79.0), self._xid)
            for metric, values in (
                (ERRORS, self._errors),
                (XID, self._xid),
            ):
                told = {"time_s": pl.lit(HOUR_S * (hour + 0.5)), "metric": pl.lit(metric, pl.Categorical)}
                frames.append(self._labels.with_columns(**told, value=pl.Series(values.copy())))
        file = self._folder / f"{day:03}.parquet"
        pl.concat(frames).write_parquet(file)
        return file


def year(days: int, nodes: int) -> Iterator[Figure]:
    """A line for each week that was read, and one for all with the estimates of `hazard`."""
    hours = DAY_H * days
    window = Window(FIRST, FIRST + hours, float(HOUR_S * (FIRST + hours)))
    with TemporaryDirectory(prefix="pharoah-bench-") as folder:
        fleet = Fleet(Path(folder), nodes, days)
        read = follow(fleet, window, Inventory(), None)
    yield from fleet.weeks
    found = gather(read.at_risk(), dict.fromkeys(read.hours.nodes, 0))
    fit_levels(found.table)
    yield {
        "figure": "telemetry_year",
        "nodes": nodes,
        "days": days,
        "node_hours": read.hours.node_hours,
        "runs": read.hours.runs.height,
        "failures": found.failures,
        "peak_gb": peak_gb(),
    }


def peak_gb() -> float:
    """The most that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    show(year(*(int(word) for word in [*sys.argv[1:], *map(str, (DAYS, NODES)[len(sys.argv) - 1 :])])))
