"""May a job use this node? As node health checks ask it: NHC and AzNHC by exit code, NVRx over a Unix socket.

Advice that fails open: only a node that is heard and raised is refused; one that is unknown, or whose newest report is
old, passes. Reports come from `nodes.json` in the home or a copy of it, or from a Prometheus that scrapes the
provider with `[outputs] node_metrics`.

The socket speaks `nvhcd.HealthCheckService/RunHealthCheck`, by which NVRx (nvidia-resiliency-ext 0.7.0,
`shared_utils/proto/nvhcd.proto` and `health_check.NodeHealthCheck`) asks before a node joins: a node passes with
`success` and an `output` whose `fail_count` is 0.
"""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import grpc
import httpx
import msgspec

from crypto.errors import PharoahError
from federation.base.clock import date
from provider_server.fleet.hints.node_reports import STALE_H, NodeReport, NodeStanding, load
from provider_server.program.outputs.protobuf_tables import messages

TIMEOUT_S = 5.0
HOUR_S = 3600.0
NODE = re.compile(r"[A-Za-z0-9._-]{1,253}")
SERVICE, METHOD = "nvhcd.HealthCheckService", "RunHealthCheck"
_MESSAGES = messages(
    "nvhcd",
    {
        "HealthCheckRequest": [("args", 1, "*string")],
        "HealthCheckResponse": [
            ("success", 1, "bool"),
            ("exit_code", 2, "int32"),
            ("output", 3, "string"),
            ("error", 4, "string"),
        ],
    },
)
HealthCheckRequest, HealthCheckResponse = _MESSAGES["HealthCheckRequest"], _MESSAGES["HealthCheckResponse"]


class NoReports(PharoahError):
    """Reports cannot be read now."""

    default_hint = "check that the provider reads telemetry and that this source is the right one"


class NoSocket(PharoahError):
    """NVRx cannot be answered at this path."""

    default_hint = "pass --socket with a path that you may write to and where nothing else lies"


class NodeCheck(TypedDict):
    """The answer for a node; `hour` is that of the report, in hours since 1970, and null without one."""

    node: str
    standing: str
    exit_code: int
    line: str
    level: int | None
    suspicion: str | None
    hour: int | None


def check(node: str, report: NodeReport | None, now_s: float, least_level: int) -> NodeCheck:
    """Refuses (exit code 1) a node that is heard and at this level or above, in a report of the last hours."""
    unknown = NodeStanding.UNKNOWN
    if report is None or now_s / HOUR_S - report.hour > STALE_H:
        why = "no report" if report is None else f"the newest report is of {date(report.hour)} UTC"
        line = f"{node}: {unknown}: {why}"
        return NodeCheck(node=node, standing=unknown, exit_code=0, line=line, level=None, suspicion=None, hour=None)
    standing = report.standing(least_level)
    return NodeCheck(
        node=node,
        standing=standing,
        exit_code=int(standing is NodeStanding.RAISED),
        line=report.line(least_level),
        level=report.level,
        suspicion=report.suspicion if report.level else None,
        hour=report.hour,
    )


def from_file(file: Path, node: str) -> NodeReport | None:
    """The report of a node in a file; NoReports where it is damaged or cannot be read."""
    try:
        return next((one for one in load(file) if one.node == node), None)
    except (OSError, PharoahError) as error:
        raise NoReports(f"reports cannot be read: {type(error).__name__}: {file}") from error


def from_prometheus(url: str, node: str) -> NodeReport | None:
    """The report of a node by the provider's metrics; NoReports where Prometheus does not answer."""
    if not NODE.fullmatch(node):
        raise NoReports("not a name of a node", hint="letters, digits, dots, dashes and underscores")
    with httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client:
        levels = _query(client, url, f'pharoah_node_level{{node="{node}"}}')
        heard = _query(client, url, f'pharoah_node_heard{{node="{node}"}}')
        hours = _query(client, url, "pharoah_node_report_hour")
    if not levels or not heard or not hours:
        return None
    labels = levels[0].metric
    number = int(labels["context"]) if labels.get("context") else None
    level, hour, is_heard = int(levels[0].value[1]), int(hours[0].value[1]), heard[0].value[1] == "1"
    return NodeReport(node, hour, level, is_heard, labels.get("suspicion", ""), number)


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Result(msgspec.Struct):
    result: list[_Series]


class _Answer(msgspec.Struct):
    data: _Result


def _query(client: httpx.Client, url: str, query: str) -> list[_Series]:
    try:
        answer = client.get(f"{url.rstrip('/')}/api/v1/query", params={"query": query}).raise_for_status()
        return msgspec.json.decode(answer.content, type=_Answer).data.result
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError) as error:
        raise NoReports(f"Prometheus gave no answer: {type(error).__name__}") from error


def response(answer: NodeCheck) -> object:
    """What NVRx reads: `fail_count` and `failed_checks` in a JSON output."""
    failed = [answer["line"]] if answer["exit_code"] else []
    output = json.dumps({"fail_count": len(failed), "failed_checks": failed, **answer})
    return HealthCheckResponse(success=not failed, exit_code=answer["exit_code"], output=output)


@contextmanager
def served(socket: Path, ask: Callable[[], NodeCheck]) -> Iterator[grpc.Server]:
    """Answers NVRx at a Unix socket; each question asks anew. A leftover socket is replaced, and no other file."""
    handler = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: response(ask()),
        request_deserializer=HealthCheckRequest.FromString,
        response_serializer=HealthCheckResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    try:
        if socket.exists() and not socket.is_socket():
            raise NoSocket(f"something else lies there: {socket}")
        socket.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{socket}")
    except (OSError, RuntimeError) as error:
        raise NoSocket(f"cannot listen: {socket}") from error
    server.start()
    try:
        yield server
    finally:
        server.stop(TIMEOUT_S).wait()
