"""Levels of a fleet over a long time in little memory: runs of hours that are alike, read back some nodes at a time.

    levels hour by hour ─ Recorder ─▶ FleetHours ─ parts ─▶ levels of some nodes, of all hours

A node that keeps its level and status for a week is one row, not 168; a year of 12,500 nodes is a million rows instead
of a hundred million. What is read back is what was recorded, by node and hour.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

RECORDED = ("node", "hour", "level", "status")
BATCH_H = 168  # hours that wait to be made runs
NODES_AT_ONCE = 250


@dataclass(frozen=True, eq=False)
class FleetHours:
    """`runs`: node, hour (its first), hours, level, status."""

    runs: pl.DataFrame

    @property
    def nodes(self) -> list[str]:
        """All nodes, by name."""
        return self.runs["node"].unique().sort().to_list()

    @property
    def start_hour(self) -> int:
        """The first hour; ValueError where there is none."""
        return int(self.runs["hour"].to_numpy().min())

    @property
    def end_hour(self) -> int:
        """The hour after the last; ValueError where there is none."""
        return int((self.runs["hour"] + self.runs["hours"]).to_numpy().max())

    @property
    def node_hours(self) -> int:
        """Rows that were recorded."""
        return int(self.runs["hours"].sum())

    def since(self, hour: int) -> "FleetHours":
        """From that hour on."""
        late = pl.max_horizontal(pl.lit(hour) - pl.col("hour"), 0)
        cut = self.runs.with_columns(hour=pl.col("hour") + late, hours=pl.col("hours") - late)
        return FleetHours(cut.filter(pl.col("hours") > 0))

    def levels(self) -> pl.DataFrame:
        """Every node and hour, as recorded, sorted by hour and node."""
        return _hourly(self.runs).sort("hour", "node")

    def parts(self, nodes_at_once: int = NODES_AT_ONCE) -> Iterator[pl.DataFrame]:
        """The same of some nodes after the other, sorted by node and hour; at least one part."""
        runs = self.runs.sort("node", "hour")
        nodes = self.nodes
        for begin in range(0, max(1, len(nodes)), nodes_at_once):
            yield _hourly(runs.filter(pl.col("node").is_in(nodes[begin : begin + nodes_at_once])))


def _hourly(runs: pl.DataFrame) -> pl.DataFrame:
    hours = pl.int_ranges(pl.col("hour"), pl.col("hour") + pl.col("hours"))
    return runs.with_columns(hour=hours).explode("hour").select(RECORDED)


class Recorder:
    """Takes levels hour by hour, and keeps runs of them."""

    def __init__(self) -> None:
        self._waiting: list[pl.DataFrame] = []
        self._runs: list[pl.DataFrame] = []

    def add(self, levels: pl.DataFrame) -> None:
        """The levels of one hour, or of several that are not recorded yet."""
        self._waiting.append(levels.select(RECORDED))
        if len(self._waiting) >= BATCH_H:
            self._settle()

    def hours(self) -> FleetHours:
        """Everything so far; ValueError where there is nothing."""
        self._settle()
        return FleetHours(pl.concat(self._runs))

    def _settle(self) -> None:
        if not self._waiting:
            return
        levels = pl.concat(self._waiting).sort("node", "hour")
        self._waiting.clear()
        before = [pl.col(name).shift(1).over("node") for name in ("hour", "level", "status")]
        alike = (pl.col("hour") == before[0] + 1) & (pl.col("level") == before[1]) & (pl.col("status") == before[2])
        number = (~alike.fill_null(value=False)).cum_sum()
        runs = levels.with_columns(number=number).group_by("number", maintain_order=True)
        first = runs.agg(pl.col(RECORDED).first(), hours=pl.len().cast(pl.Int64))
        self._runs.append(first.drop("number"))
