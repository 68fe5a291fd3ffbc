"""Placement and tests of the provider's own nodes as metrics for Prometheus, beside `NodeMetrics` and as they are: off.

Shares and budgets are the defaults of `placement` and `probes`. Leases are not looked at: a test may have to wait.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from federation.runtime.clock import now_hour
from provider_server.hints import node_placement, node_probes
from provider_server.hints.node_reports import NodeReport
from provider_server.learning import on_probation


class PlanMetrics:
    """Gauges in the registry of the metrics port; those of nodes that are gone are removed."""

    def __init__(self, home: Path, registry: CollectorRegistry, clock: Callable[[], float] = now_hour) -> None:
        self._home = home
        self._clock = clock
        self._short = Gauge(
            "pharoah_node_for_short_jobs",
            "1 if the node is among the riskiest, which are for short jobs, else 0.",
            ["node"],
            registry=registry,
        )
        self._worth = Gauge(
            "pharoah_node_test_worth",
            "Worth of a minute of a test that is planned for the next hours: 1 is the last that the budget pays.",
            ["node", "test"],
            registry=registry,
        )

    def take(self, reports: Sequence[NodeReport]) -> None:
        """Replaces what was shown before."""
        now_h = self._clock()
        rows = node_placement.placed(reports, on_probation.load(self._home), now_h, node_placement.SHARE)
        suspicions = {one.node: one.suspicion for one in reports if one.level}
        visits = node_probes.probes(rows, suspicions, {}, {}, now_h, node_probes.HOURS, node_probes.BUDGET)
        self._short.clear()
        self._worth.clear()
        for row in rows:
            self._short.labels(row["node"]).set(row["jobs"] == "short")
        for visit in visits:
            self._worth.labels(visit["node"], visit["test"]).set(visit["worth"])
