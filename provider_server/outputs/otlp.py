"""Nodes as OpenTelemetry metrics and logs: OTLP over HTTP with binary protobuf, for any collector.

    POST /v1/metrics   hw.status of each node's GPUs and network, pharoah.node.level
    POST /v1/logs      a record for each node whose standing changed

`hw.status`, `hw.id`, `hw.type` and `hw.state` follow the hardware conventions of OpenTelemetry 1.44
(docs/hardware/common.md there, in development): an UpDownCounter for each state, 1 for the current one. A raised node
is in `predicted_failure`. The host is the resource's `host.name`. `hw.gpu.*` of utilisation and memory are for the
exporter that reads the GPU, and are not repeated. Needs the extra `otlp` (opentelemetry-proto).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from crypto.errors import PharoahError
from provider_server.hints.node_reports import NodeReport, NodeStanding, OutputFailed
from provider_server.outputs.changes import LEAST_LEVEL, Changes

if TYPE_CHECKING:
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

TIMEOUT_S = 10.0
OK, PREDICTED = "ok", "predicted_failure"
NETWORK = ("interconnect",)  # suspicions; all others are of the GPU or its host link
INFO, WARN = 9, 13  # severity numbers of the log data model
HOUR_NS = 3_600_000_000_000
SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
SCOPE = "pharoah"


class NoOtlp(PharoahError):
    """OTLP is configured, and its package is not installed."""

    default_hint = "install it with `pip install 'pharoah[otlp]'`, or empty [outputs] otlp_url"


class BadHeaders(PharoahError):
    """The file of headers has a line without a colon."""

    default_hint = "write one `name: value` to a line"


def headers(file: str) -> dict[str, str]:
    """Headers from a file, such as an authorization; none without one. Errors do not repeat what stands in it."""
    if not file:
        return {}
    try:
        lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise BadHeaders(f"cannot be read: {file}") from error
    if any(":" not in line for line in lines):
        raise BadHeaders(f"not a file of headers: {file}")
    return {name.strip(): value.strip() for name, value in (line.split(":", 1) for line in lines)}


class Otlp:
    """Sends reports to a collector; a log record is repeated until it was taken."""

    def __init__(self, url: str, sent_with: Mapping[str, str]) -> None:
        try:
            import opentelemetry.proto.collector.logs.v1.logs_service_pb2  # noqa: F401
        except ImportError as error:
            raise NoOtlp("there is no opentelemetry-proto here") from error
        self._url = url.rstrip("/")
        self._headers = {**sent_with, "content-type": "application/x-protobuf"}
        self._changes = Changes()

    def take(self, reports: Sequence[NodeReport]) -> None:
        """Sends metrics of all nodes, then a record for each that changed; OutputFailed if either is not taken."""
        self._post("metrics", metrics_request(reports))
        changed = self._changes.of(reports)
        if changed:
            self._post("logs", logs_request(changed))
        self._changes.taken(reports)

    def _post(self, signal: str, body: bytes) -> None:
        try:
            with httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client:
                answer = client.post(f"{self._url}/v1/{signal}", content=body, headers=self._headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OutputFailed(f"the OTLP collector did not answer: {type(error).__name__}") from error
        if answer.status_code != httpx.codes.OK:
            raise OutputFailed(f"the OTLP collector answered {answer.status_code} to {signal}")


def metrics_request(reports: Sequence[NodeReport]) -> bytes:
    """One ExportMetricsServiceRequest with a resource for each node."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.metrics.v1 import metrics_pb2

    request = ExportMetricsServiceRequest()
    for one in reports:
        if not one.is_heard:
            continue  # no data is what is known of it
        of_node = request.resource_metrics.add(resource=_resource(one), schema_url=SCHEMA)
        scope = of_node.scope_metrics.add()
        scope.scope.name = SCOPE
        status = scope.metrics.add(name="hw.status", unit="1", description="Operational status: 1 for the current one")
        status.sum.aggregation_temporality = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
        for part, state in _states(one).items():
            for possible in (OK, PREDICTED):
                named = {"hw.id": part, "hw.type": part, "hw.state": possible}
                status.sum.data_points.add(
                    time_unix_nano=one.hour * HOUR_NS, as_int=int(possible == state)
                ).attributes.extend(_attributes(named))
        level = scope.metrics.add(name="pharoah.node.level", unit="1", description="Build-up level, 0 to 3")
        level.gauge.data_points.add(time_unix_nano=one.hour * HOUR_NS, as_int=one.level)
    return bytes(request.SerializeToString())


def logs_request(changed: Sequence[NodeReport]) -> bytes:
    """One ExportLogsServiceRequest with a record for each node."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    request = ExportLogsServiceRequest()
    for one in changed:
        is_raised = one.standing(LEAST_LEVEL) is NodeStanding.RAISED
        of_node = request.resource_logs.add(resource=_resource(one), schema_url=SCHEMA)
        scope = of_node.scope_logs.add()
        scope.scope.name = SCOPE
        record = scope.log_records.add(
            time_unix_nano=one.hour * HOUR_NS,
            severity_number=WARN if is_raised else INFO,
            severity_text="WARN" if is_raised else "INFO",
            event_name="pharoah.node.raised" if is_raised else "pharoah.node.cleared",
        )
        record.body.string_value = one.line(LEAST_LEVEL)
        record.attributes.extend(_attributes({"pharoah.node.suspicion": one.suspicion}))
    return bytes(request.SerializeToString())


def _states(one: NodeReport) -> dict[str, str]:
    """The state of each part, by its `hw.type`."""
    suspected = None if one.level < LEAST_LEVEL else "network" if one.suspicion in NETWORK else "gpu"
    return {part: PREDICTED if part == suspected else OK for part in ("gpu", "network")}


def _resource(one: NodeReport) -> "Resource":
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    return Resource(attributes=_attributes({"host.name": one.node, "service.name": "pharoah-provider"}))


def _attributes(values: Mapping[str, str]) -> list[Any]:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in values.items()]
