"""What each attempt used of its host: memory, network and processors. Nothing of it leaves.

The observer writes it while a job runs (`run.usage`); `advice.resources` reads it.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from federation.base.sqlite import Rows


@dataclass(frozen=True)
class Usage:
    """Of the ranks on this host, as far as they were seen.

    `rank_bytes` is the peak resident memory of the largest rank's process, `workers_bytes` the peak of what the
    processes that one rank started had for themselves. Within `steps` steps the interfaces of the ranks' network
    sent `sent_bytes`, and ranks and workers took `cpu_s` of processor time. `gpu_bytes` is the highest that torch had
    allocated on one rank's GPU, which has `gpu_limit_bytes`; 0 without one.
    """

    ranks: int
    rank_bytes: float
    workers_bytes: float
    steps: int
    sent_bytes: float
    cpu_s: float
    gpu_bytes: float = 0.0
    gpu_limit_bytes: float = 0.0


class Usages(Rows):
    """Reads and writes them in a tenant's database."""

    def keep(self, unit: str, attempt: int, usage: Usage) -> None:
        """Stores what an attempt used so far."""
        *host, gpu_bytes, limit_bytes = astuple(usage)
        self._connection.execute(
            "INSERT OR REPLACE INTO usages VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (unit, attempt, *host)
        )
        if limit_bytes:
            peak = unit, attempt, gpu_bytes, limit_bytes
            self._connection.execute("INSERT OR REPLACE INTO gpu_peaks VALUES (?, ?, ?, ?)", peak)

    def all(self) -> Mapping[tuple[str, int], Usage]:
        """By lease and number of the attempt."""
        rows = self._connection.execute(
            "SELECT usages.*, COALESCE(gpu_bytes, 0.0), COALESCE(gpu_limit_bytes, 0.0) FROM usages"
            " LEFT JOIN gpu_peaks USING (unit, attempt) ORDER BY unit, attempt"
        )
        return {(unit, attempt): Usage(*values) for unit, attempt, *values in rows}
