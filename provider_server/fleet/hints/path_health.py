"""The health of hops between two nodes: build-up levels of the nodes, and errors of ports in recent telemetry.

Counters of errors are held against `LIMITS`, events per hour over the window; both are chosen, not learnt. Marks of
congestion (ECN, CNP, PFC) are told where they are many, and are no fault of the port that counts them. A port whose
counters were read and stayed below all limits is clear. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from federation.base.route import HopHealth
from provider_server.fleet.fabric import CableEnd, FabricHealth
from provider_server.fleet.hints.node_reports import NodeReport, NodeStanding
from provider_server.fleet.telemetry.summaries import HourSummary

LIMITS: Mapping[str, tuple[float, str]] = MappingProxyType(
    {
        "ib_link_downed": (0.0, "link went down"),
        "ib_link_recoveries": (0.0, "link recovered from errors"),
        "ib_symbol_errors": (120.0, "symbol errors"),
        "ib_receive_errors": (10.0, "receive errors"),
        "ib_transmit_discards": (100.0, "transmit discards"),
        "roce_out_of_sequence": (1_000.0, "packets out of sequence"),
        "roce_sequence_errors": (1_000.0, "sequence errors told by the peer"),
        "roce_ack_timeouts": (10.0, "acknowledgements timed out"),
        "roce_icrc_errors": (0.0, "corrupted RoCE packets"),
        "roce_ecn_marked": (1e7, "packets marked for congestion (ECN)"),
        "roce_cnp_handled": (1e6, "congestion notifications handled (CNP)"),
        "pfc_pauses_received": (1e6, "pause frames received (PFC)"),
    }
)


def health_of(reports: Sequence[NodeReport], hours: Iterable[HourSummary] = (), least_level: int = 1) -> FabricHealth:
    """What reports of nodes and hours of telemetry say."""
    total: dict[tuple[str, str, str], float] = defaultdict(float)
    looked_at = 0
    for hour in hours:
        looked_at += 1
        rows = hour.rows.select("node", "device", "metric", "increase").iter_rows()
        for node, device, metric, increase in rows:
            if metric in LIMITS and increase is not None:
                total[node, device, metric] += increase
    ports: dict[CableEnd, list[str]] = defaultdict(list)
    for (node, device, metric), increase in sorted(total.items()):
        limit, words = LIMITS[metric]
        noted = ports[CableEnd(node, device)]
        if increase > limit * looked_at:
            noted.append(f"{words}: {increase:,.0f} in {looked_at} h")
    return FabricHealth({report.node: _of_node(report, least_level) for report in reports}, ports)


def _of_node(report: NodeReport, least_level: int) -> tuple[HopHealth, str]:
    states = {
        NodeStanding.OK: HopHealth.CLEAR,
        NodeStanding.RAISED: HopHealth.DOUBT,
        NodeStanding.UNKNOWN: HopHealth.UNKNOWN,
    }
    return states[report.standing(least_level)], report.line(least_level).partition(": ")[2]
