"""The provider's own nodes as metrics for Prometheus. Off unless `[outputs] node_metrics`: they name nodes."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge

from provider_server.hints.node_reports import NodeReport


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
