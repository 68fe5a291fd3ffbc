"""The provider's own nodes as metrics for Prometheus. Off unless `[outputs] node_metrics`: they name nodes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from federation.base.clock import now_hour
from provider_server.fleet.analysis.node_risk import HORIZONS
from provider_server.fleet.hints import node_probes, node_risk
from provider_server.fleet.hints.node_reports import NodeReport
from provider_server.fleet.learning.risk_history import GAP_EDGES_S, RiskHistory


class NodeMetrics:
    """Gauges in the registry of the metrics port; a node or context that is gone is removed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._level = Gauge(
            "pharoah_node_level",
            "Build-up level of a node: 0, or 1 to 3 where telemetry shows signs of a failure.",
            ["node", "context", "suspicion"],
            registry=registry,
        )
        self._heard = Gauge(
            "pharoah_node_heard",
            "1 if the node sent telemetry in the newest hour, else 0.",
            ["node"],
            registry=registry,
        )
        self._hour = Gauge(
            "pharoah_node_report_hour",
            "End of the hour that nodes were judged by, in hours since 1970.",
            registry=registry,
        )
        self._rate = Gauge(
            "pharoah_context_failures_per_1000_node_hours",
            "Failure rate of a hardware context.",
            ["context", "description"],
            registry=registry,
        )

    def take(self, reports: Sequence[NodeReport]) -> None:
        """Replaces what was shown before."""
        for gauge in (self._level, self._heard, self._rate):
            gauge.clear()
        self._hour.set(max((one.hour for one in reports), default=0))
        for one in reports:
            context = "" if one.context is None else str(one.context)
            self._level.labels(one.node, context, one.suspicion if one.level else "").set(one.level)
            self._heard.labels(one.node).set(one.is_heard)
            if one.failures_per_1000_node_hours is not None:
                self._rate.labels(context, one.description).set(one.failures_per_1000_node_hours)


class PlanMetrics(Collector):
    """Risks and tests of nodes, by the defaults of `nodes risk` and `probes`; nodes that are gone are removed.

    Leases are not looked at: a test may have to wait.
    """

    def __init__(self, home: Path, registry: CollectorRegistry, clock: Callable[[], float] = now_hour) -> None:
        self._home = home
        self._clock = clock
        self._history = RiskHistory()
        registry.register(self)
        self._chance = Gauge(
            "pharoah_node_failure_probability",
            "Probability that a node fails within so many hours.",
            ["node", "hours"],
            registry=registry,
        )
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
        facts = node_risk.Facts.of_home(self._home, now_h)
        rows, self._history = node_risk.risks(reports, facts), facts.history
        suspicions = {one.node: one.suspicion for one in reports if one.level}
        visits = node_probes.probes(rows, suspicions, {}, {}, now_h, node_probes.HOURS, node_probes.BUDGET)
        for gauge in (self._chance, self._short, self._worth):
            gauge.clear()
        for row in rows:
            self._short.labels(row.node).set(row.jobs == "short")
            for hours, chance in zip(HORIZONS, row.probabilities, strict=True):
                self._chance.labels(row.node, str(hours)).set(chance)
        for visit in visits:
            self._worth.labels(visit["node"], visit["test"]).set(visit["worth"])

    def collect(self) -> Iterator[Metric]:
        """The hours between failures of a node, in the buckets of NVSentinel; none before outages were kept."""
        if self._history.gaps:
            edges = [*map(floatToGoString, GAP_EDGES_S), "+Inf"]
            yield HistogramMetricFamily(
                "pharoah_node_mtbi_seconds",
                "Time from one failure of a node to its next, as fault_quarantine_node_mtbi_seconds.",
                buckets=list(zip(edges, map(float, self._history.gaps), strict=True)),
                sum_value=self._history.gaps_sum_s,
            )
