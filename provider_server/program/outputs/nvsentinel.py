"""Nodes as NVSentinel's `HealthEvent`, sent to the Unix socket of its platform connector.

Field numbers are those of NVSentinel's `data-models/protobufs/health_event.proto`, package `datamodels`, as of commit
264bfab85e3c. An event is sent when a node is raised or no longer raised. With STORE_ONLY, the default, NVSentinel keeps
and exports events and changes nothing in the cluster; EXECUTE_REMEDIATION lets it quarantine and drain. No event is
fatal: a raised node has not failed.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import grpc

from provider_server.fleet.hints.node_reports import NodeReport, NodeStanding, OutputFailed
from provider_server.program.outputs.protobuf_tables import messages

TIMEOUT_S = 10.0
OWN_BACKOFF = [("grpc.use_local_subchannel_pool", 1)]  # a connector that was away is not avoided for a second
METHOD = "/datamodels.PlatformConnector/HealthEventOccurredV1"
CHECK, AGENT = "PharoahBuildUp", "pharoah"
NICS = ("interconnect",)
LEAST_LEVEL = 1  # NVSentinel chooses its own threshold; each event carries the level


class Strategy(IntEnum):
    """NVSentinel's ProcessingStrategy."""

    EXECUTE_REMEDIATION = 1
    STORE_ONLY = 2


FIELDS = {
    "HealthEvents": [("version", 1, "uint32"), ("events", 2, "*HealthEvent")],
    "Entity": [("entityType", 1, "string"), ("entityValue", 2, "string")],
    "HealthEvent": [
        ("version", 1, "uint32"),
        ("agent", 2, "string"),
        ("componentClass", 3, "string"),
        ("checkName", 4, "string"),
        ("isFatal", 5, "bool"),
        ("isHealthy", 6, "bool"),
        ("message", 7, "string"),
        ("recommendedAction", 8, "RecommendedAction"),
        ("errorCode", 9, "*string"),
        ("entitiesImpacted", 10, "*Entity"),
        ("generatedTimestamp", 12, "Timestamp"),
        ("nodeName", 13, "string"),
        ("processingStrategy", 16, "ProcessingStrategy"),
    ],
}
ENUMS = {
    "RecommendedAction": {"NONE": 0, "CONTACT_SUPPORT": 5},
    "ProcessingStrategy": {"UNSPECIFIED": 0, **{one.name: one.value for one in Strategy}},
}
MESSAGES = messages("datamodels", FIELDS, ENUMS)
HealthEvents, HealthEvent = MESSAGES["HealthEvents"], MESSAGES["HealthEvent"]


class Changes:
    """The standing of each node as a receiver has it. A silent node keeps its standing.

    >>> from provider_server.fleet.hints.node_reports import NodeReport
    >>> changes, one = Changes(), NodeReport("n1", 1, 2, True, "memory")
    >>> len(changes.of([one])), changes.taken([one]), len(changes.of([one]))
    (1, None, 0)
    """

    def __init__(self) -> None:
        self._last: dict[str, NodeStanding] = {}

    def of(self, reports: Sequence[NodeReport]) -> list[NodeReport]:
        """Nodes that are raised now and were not, or are no longer."""
        return [
            one
            for one in reports
            if one.is_heard and one.standing(LEAST_LEVEL) != self._last.get(one.node, NodeStanding.OK)
        ]

    def taken(self, reports: Sequence[NodeReport]) -> None:
        """The receiver has these; without this they are sent again."""
        self._last |= {one.node: one.standing(LEAST_LEVEL) for one in reports if one.is_heard}


class Nvsentinel:
    """Sends events to a platform connector; an event is repeated until it was taken."""

    def __init__(self, socket: str, strategy: Strategy) -> None:
        self._target = f"unix:{socket}"
        self._strategy = strategy
        self._changes = Changes()

    def take(self, reports: Sequence[NodeReport]) -> None:
        """Sends an event for each node that changed; OutputFailed if they are not taken."""
        changed = self._changes.of(reports)
        if changed:
            self._send(health_events(changed, self._strategy))
        self._changes.taken(reports)

    def _send(self, events: Any) -> None:
        with grpc.insecure_channel(self._target, options=OWN_BACKOFF) as channel:
            try:
                channel.unary_unary(METHOD, HealthEvents.SerializeToString, bytes)(events, timeout=TIMEOUT_S)
            except grpc.RpcError as error:
                raise OutputFailed(f"NVSentinel did not take health events: {error.code().name}") from error


def health_events(changed: Sequence[NodeReport], strategy: Strategy) -> Any:
    """A HealthEvents message with an event for each report."""
    events = HealthEvents(version=1)
    for one in changed:
        is_raised = one.standing(LEAST_LEVEL) is NodeStanding.RAISED
        event = events.events.add(
            version=1,
            agent=AGENT,
            componentClass="NIC" if one.suspicion in NICS else "GPU",
            checkName=CHECK,
            isFatal=False,
            isHealthy=not is_raised,
            message=one.line(LEAST_LEVEL),
            errorCode=[f"LEVEL_{one.level}"] if is_raised else [],
            nodeName=one.node,
            processingStrategy=strategy.value,
        )
        event.generatedTimestamp.seconds = one.hour * 3600
    return events
