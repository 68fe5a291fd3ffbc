"""Which rank hung or diverged in a collective? From the flight recorder's dumps of all ranks, none of them trusted.

The records of all ranks are merged by process group and sequence number, and each group is looked at for four things:

- a **mismatch**: ranks that call something else than most of their group (majority vote; a tie accuses nobody);
- **stopped** ranks: their own record of a collective is unfinished, which their peers saw complete. A collective that
  needs every rank's data completes nowhere unless all joined, so it is these ranks' device, or the thread that watches
  it, that stands still. Likewise ranks whose work has not started where the peers' has;
- **missing** ranks: they have not joined, others have;
- all joined and none completes: the **network**.

A rank that is missing in one group may only be waiting in another. So the ranks form a graph, from each waiting rank to
those it waits for, and the culprits are where its paths end: a rank that waits for nobody, or a cycle of ranks that
wait for each other. Ranks without a dump end paths too, but are called undecided and never culprits.

In the order of the data: `merge` makes one table of all dumps; `mismatch`, `progress` and `pairs` judge the calls, the
groups, and the sends and receives in it; `blame` follows the waiting ranks to `findings`.

Does not depend on the order of the dumps or of the ranks. Reads the dumps as those of a job that hangs: in a snapshot
of a running one, a rank that the others wait for looks missing, be it for microseconds. What a ring buffer has dropped
is not counted as missing. Linear in the records but for a sort.

Sources: `torch.distributed.flight_recorder` of PyTorch 2.13 for the comparisons per collective; C4D (HPCA 2025) for
non-communication and communication hang; NVIDIA Resiliency Extension for the order of groups (there by path length).
"""

from tenant_client.doctor.diagnosis.collectives.findings import (
    Call,
    CollectiveCause,
    CollectiveFindings,
    CollectiveVerdict,
    Culprit,
    GroupFinding,
    evidence,
)
from tenant_client.doctor.diagnosis.collectives.root_cause import analyse

__all__ = [
    "Call",
    "CollectiveCause",
    "CollectiveFindings",
    "CollectiveVerdict",
    "Culprit",
    "GroupFinding",
    "analyse",
    "evidence",
]
