"""Reports on the provider's own nodes, and what receivers get, by their published formats."""

import contextlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from federation.protocol.service_messages import Suspicion
from provider_server.fleet.analysis.contexts import Context, ContextMap
from provider_server.fleet.analysis.node_risk import HORIZONS
from provider_server.fleet.hints.node_hazard import NodeState
from provider_server.fleet.hints.node_probes import BUDGET, HOURS, probes
from provider_server.fleet.hints.node_reports import FILE, NodeReport, OutputFailed, keep, load, reports
from provider_server.fleet.hints.node_risk import Facts, risks
from provider_server.fleet.learning.hardware import Kept
from provider_server.program.outputs import nvsentinel
from provider_server.program.outputs.node_metrics import NodeMetrics, PlanMetrics
from provider_server.program.outputs.nvsentinel import ENUMS, FIELDS, Changes, HealthEvents, Nvsentinel, Strategy

HOUR = 490_000
HEARD = True
QUIET = NodeReport("n1", HOUR, 0, HEARD, "unclear", 4, "H100")
HOT = NodeReport("n2", HOUR, 2, HEARD, "memory", 4, "H100", 1.5)
FABRIC = NodeReport("n3", HOUR, 1, HEARD, "interconnect")
SILENT = NodeReport("n4", HOUR, 3, not HEARD, "memory")
ALL = [QUIET, HOT, FABRIC, SILENT]


def calm(report: NodeReport) -> NodeReport:
    return NodeReport(report.node, report.hour + 1, 0, HEARD, "unclear")


# ---- reports ---------------------------------------------------------------------------------------------------------


def test_a_report_joins_a_node_to_its_context(tmp_path: Path) -> None:
    contexts = ContextMap((), (Context(4, "H100", ("n1", "n2"), 1.5, 1.0, 2.0),), 5, ((),), (), ())
    states = {"n9": NodeState(0, Suspicion.UNCLEAR, is_heard=True), "n2": NodeState(2, Suspicion.MEMORY, is_heard=True)}
    found = reports(Kept(HOUR, contexts, {}, b""), states, HOUR)
    assert found == [HOT, NodeReport("n9", HOUR, 0, HEARD, "unclear")]
    assert load(tmp_path / FILE) == []
    keep(tmp_path, found)
    assert load(tmp_path / FILE) == found


def test_an_event_is_a_change_and_is_repeated_until_it_is_taken() -> None:
    changes = Changes()
    assert changes.of(ALL) == [HOT, FABRIC]
    assert changes.of(ALL) == [HOT, FABRIC]
    changes.taken(ALL)
    assert changes.of(ALL) == []
    silent = NodeReport(HOT.node, HOUR + 1, 0, not HEARD, "unclear")
    changes.taken([silent])
    assert changes.of([silent, FABRIC]) == []  # silence is no recovery
    assert changes.of([calm(HOT)]) == [calm(HOT)]


# ---- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_show_the_newest_reports_alone() -> None:
    registry = CollectorRegistry()
    metrics = NodeMetrics(registry)
    metrics.take(ALL)
    metrics.take([calm(HOT), SILENT])
    shown = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert sorted(shown) == [
        'pharoah_node_heard{node="n2"} 1.0',
        'pharoah_node_heard{node="n4"} 0.0',
        'pharoah_node_level{context="",node="n2",suspicion=""} 0.0',
        'pharoah_node_level{context="",node="n4",suspicion="memory"} 3.0',
        f"pharoah_node_report_hour {HOUR + 1}.0",
    ]


def test_metrics_of_plans_are_those_of_risk_and_probes(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    metrics = PlanMetrics(tmp_path, registry, lambda: float(HOUR))
    metrics.take(ALL)
    metrics.take([calm(HOT), SILENT])
    rows = risks([calm(HOT), SILENT], Facts.of_home(tmp_path, float(HOUR)))
    visits = probes(rows, {SILENT.node: SILENT.suspicion}, {}, {}, float(HOUR), HOURS, BUDGET)
    shown = {line.split(" ")[0]: float(line.split(" ")[1]) for line in lines_of(registry)}
    short = {f'pharoah_node_for_short_jobs{{node="{row.node}"}}': float(row.jobs == "short") for row in rows}
    assert {name: value for name, value in shown.items() if "short" in name} == short
    chances = {name: value for name, value in shown.items() if "probability" in name}
    assert chances == {
        f'pharoah_node_failure_probability{{hours="{hours}",node="{row.node}"}}': chance
        for row in rows
        for hours, chance in zip(HORIZONS, row.probabilities, strict=True)
    }
    planned = {f'pharoah_node_test_worth{{node="{one["node"]}",test="{one["test"]}"}}' for one in visits}
    assert {name for name in shown if "worth" in name} == planned != set()


def lines_of(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


# ---- NVSentinel ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def connector(socket: Path) -> Iterator[list[Any]]:
    """A platform connector: the HealthEvents that it was given."""
    taken: list[Any] = []

    def take(request: Any, _context: object) -> bytes:
        taken.append(request)
        return b""

    handler = grpc.unary_unary_rpc_method_handler(take, HealthEvents.FromString, bytes)
    server = grpc.server(ThreadPoolExecutor(1))
    service, method = nvsentinel.METHOD.strip("/").split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield taken
    finally:
        server.stop(None).wait()


def test_nvsentinel_gets_events_to_store_alone(tmp_path: Path) -> None:
    socket = tmp_path / "nvsentinel.sock"
    sink = Nvsentinel(str(socket), Strategy.STORE_ONLY)
    with pytest.raises(OutputFailed, match="UNAVAILABLE"):
        sink.take(ALL)
    with connector(socket) as taken:
        sink.take(ALL)
        sink.take(ALL)
        sink.take([calm(HOT), FABRIC])
    first, second = taken
    raised, fabric = first.events
    assert (raised.nodeName, raised.isHealthy, raised.isFatal, raised.componentClass) == ("n2", False, False, "GPU")
    assert (fabric.nodeName, fabric.componentClass, list(fabric.errorCode)) == ("n3", "NIC", ["LEVEL_1"])
    assert {event.processingStrategy for event in first.events} == {2}
    assert raised.generatedTimestamp.seconds == HOUR * 3600
    (cleared,) = second.events
    assert (cleared.nodeName, cleared.isHealthy, list(cleared.errorCode)) == ("n2", True, [])


def test_the_fields_are_those_that_nvsentinel_publishes() -> None:
    """Of `data-models/protobufs/health_event.proto` in NVIDIA/NVSentinel."""
    if "NVSENTINEL_PROTO" not in os.environ:
        pytest.skip("NVSENTINEL_PROTO names no health_event.proto of NVIDIA/NVSentinel")
    text = re.sub(r"//.*", "", Path(os.environ["NVSENTINEL_PROTO"]).read_text(encoding="utf-8"))
    assert "package datamodels;" in text
    assert "rpc HealthEventOccurredV1(HealthEvents)" in text
    assert "service PlatformConnector" in text
    blocks = dict(re.findall(r"(?:message|enum) (\w+) \{([^}]*)\}", text))
    for message, fields in FIELDS.items():
        published = re.findall(r"(repeated )?([\w.]+) (\w+) = (\d+);", blocks[message])
        known = {(name, int(n), "*" * bool(rep) + kind.rsplit(".", 1)[-1]) for rep, kind, name, n in published}
        assert set(fields) <= known, message
    for enum, values in ENUMS.items():
        assert set(values.items()) <= {(k, int(v)) for k, v in re.findall(r"(\w+) = (\d+);", blocks[enum])}, enum
