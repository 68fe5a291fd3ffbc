"""The receivers of reports on nodes that the settings name."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from provider_server.hints.poller import Sink
from provider_server.outputs.node_metrics import NodeMetrics
from provider_server.outputs.nvsentinel import Nvsentinel, Strategy
from provider_server.outputs.plan_metrics import PlanMetrics
from provider_server.settings import Outputs


def sinks(settings: Outputs, registry: CollectorRegistry, home: Path) -> list[Sink]:
    """NoOtlp or BadHeaders where OTLP is configured and cannot work."""
    found: list[Sink] = [NodeMetrics(registry), PlanMetrics(home, registry)] if settings.node_metrics else []
    if settings.otlp_url:
        from provider_server.outputs.otlp import Otlp, headers

        found.append(Otlp(settings.otlp_url, headers(settings.otlp_headers_file)))
    if settings.nvsentinel_socket:
        found.append(Nvsentinel(settings.nvsentinel_socket, Strategy[settings.nvsentinel_strategy]))
    return found
