"""Risks of nodes as commands of Slurm: weights, and a reservation of the riskiest for tests. Nothing is run.

Slurm takes nodes of a low weight first. A reservation with MAINT and IGNORE_JOBS lets jobs that run go on and no new
one begin; tests are submitted to it with `--reservation`. Features are left to the operator, since `AvailableFeatures`
replaces all that a node has, and there is no way to add one. Tried against Slurm 22.05.8 (`plugins/slurm/tests`).
"""

import re
from collections.abc import Sequence

from provider_server.fleet.hints.node_risk import NodeRisk

LONG, SHORT, HIGH = 1, 100, 1000  # weights of nodes for long and short jobs, and of those in the bucket high
RESERVATION, MINUTES = "pharoah_tests", 60
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # no other is told to a shell


def slurm_commands(found: Sequence[NodeRisk]) -> list[str]:
    """One for each weight that a node has, then the reservation; names that a shell could misread are left out."""
    nodes = [one for one in found if NAME.fullmatch(one.node)]
    by_weight = {weight: [one.node for one in nodes if _weight(one) == weight] for weight in (LONG, SHORT, HIGH)}
    commands = [f"scontrol update NodeName={','.join(names)} Weight={w}" for w, names in by_weight.items() if names]
    if by_weight[HIGH]:
        how = f"StartTime=now Duration={MINUTES} Users=root Flags=MAINT,IGNORE_JOBS Nodes={','.join(by_weight[HIGH])}"
        commands.append(f"scontrol create reservation ReservationName={RESERVATION} {how}")
    return commands


def _weight(one: NodeRisk) -> int:
    if one.bucket == "high":
        return HIGH
    return SHORT if one.jobs == "short" else LONG
