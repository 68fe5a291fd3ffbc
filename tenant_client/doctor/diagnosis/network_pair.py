"""The two nodes between which a collective stalled, where dumps and logs tell: evidence for a vote. Pure.

Only what accuses nobody counts: by the flight recorder all ranks of a group had joined and none completed, so what lies
between them is suspect; and only a group whose ranks, by NCCL's INFO logs, run on exactly two nodes. A larger group
does not say which of its links it was. The rail is not known: a flight recorder knows no cards.
"""

from collections.abc import Mapping

from tenant_client.doctor.diagnosis.collectives.findings import CollectiveFindings, CollectiveVerdict
from tenant_client.doctor.diagnosis.rank_graph import RankSeat


def stalled_pair(findings: CollectiveFindings, seats: Mapping[int, RankSeat]) -> tuple[str, str] | None:
    """The nodes by name, in order; None where nothing names two."""
    if findings.verdict is not CollectiveVerdict.NETWORK:
        return None
    for finding in findings.groups:
        ranks = finding.call.group.ranks or ()
        hosts = sorted({seats[rank].host if rank in seats else "" for rank in ranks})
        if len(hosts) == 2 and hosts[0]:
            return hosts[0], hosts[1]
    return None
