"""Plans which node to take out of a running lease and which to let in, or what to do where that is not clear.

    findings of the watch, explanation (the tenant's) ─┐
    hazard with and without the hint (the provider's) ─┴─ plan ─▶ ReplacementPlan

- `REPLACE`: the watch names one rank that the others wait for. Its node goes out, the first spare comes in.
- `ISOLATE`: undecided. Ranks are named that may be victims (a collective that hangs or is slow), or none, or only a
  hint stands, which names no node. The plan has the steps: isolate the group, test it, return what passes.
- `KEEP`: nothing holds, or an error of the job's own code, software or size names itself: another node changes nothing.
  What only symptoms tell (a rank stands at a line of Python) is no such error; it halves the confidence, by assumption.

Minutes saved are the expected minutes lost without the replacement, less those lost with it:

    confidence × (stall + (hazard now − usual hazard) × hours left × minutes per failure) − minutes of the replacement

`stall` is what the standing hang would still take until the collective's time-out or, of a slow rank, what 30% of a
step adds to the rest of the lease (the least at which the watch calls a rank slow). Without a hint the hazards are
alike. Negative: wait for the next checkpoint or do nothing.

Pure; nothing is sent, and nothing is executed: torchrun, Slurm or a person does that. Not promised: that the node is
bad. A rank may stand in the job's own code, and `confidence` only says how often the watch named the right rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tenant_client.doctor.advice.clues import FindingFact
from tenant_client.doctor.advice.explanation import Explanation, FailureSide

# The lower 95% bound (one-sided) of 12 of 12 right ranks, of each of these two in the study `syndromes`.
CONFIDENCE: Mapping[str, float] = {"non_communication_hang": 0.78, "non_communication_slow": 0.78}
UNCLEAR = ("communication_hang", "communication_slow", "undecided", "hang", "slow_rank")
NAMES_ITSELF = 4.0  # the weight in an explanation from which errors of frameworks and scripts stand by themselves
_SLOW_SHARE = 1 - 1 / 1.3
ASK_PROVIDER = "ask the provider"


class Decision(StrEnum):
    """What is to be done with the nodes of the lease."""

    REPLACE = "replace"
    ISOLATE = "isolate"
    KEEP = "keep"


@dataclass(frozen=True)
class HazardFact:
    """Infrastructure failures per hour of the lease: now, and as usual, that is without the hint that stands."""

    now_per_hour: float = 0.0
    usual_per_hour: float = 0.0
    hint: str = ""


@dataclass(frozen=True)
class Costs:
    """Hours left to the lease, and minutes: until a hang times out, lost per failure, and for the replacement."""

    hours_left: float = 24.0
    timeout_minutes: float = 30.0
    failure_minutes: float = 30.0
    replacement_minutes: float = 1.0


@dataclass(frozen=True)
class Nodes:
    """The lease's nodes in the order of their ranks, `ranks_each` on each, and spares; none where not told."""

    names: tuple[str, ...] = ()
    ranks_each: int = 1
    spares: tuple[str, ...] = ()

    def of(self, rank: int) -> str:
        """The node of a rank, "the node of rank 3" where it was not told."""
        place = rank // self.ranks_each
        return self.names[place] if place < len(self.names) else f"the node of rank {rank}"


@dataclass(frozen=True)
class ReplacementPlan:
    """What to do, and why; `node_out` and `node_in` are empty unless a node is to be replaced."""

    decision: Decision
    node_out: str
    node_in: str
    why: str
    confidence: float
    minutes_saved: float
    ranks: tuple[int, ...]
    steps: tuple[str, ...]


def plan(
    findings: Sequence[FindingFact], explanation: Explanation | None, hazard: HazardFact, nodes: Nodes, costs: Costs
) -> ReplacementPlan:
    """The plan for one lease, of the findings that still hold.

    >>> finding = FindingFact("non_communication_hang", (1,), "rank 1 is outside for 9 s; 2 ranks wait for it")
    >>> found = plan([finding], None, HazardFact(), Nodes(("a", "b", "c"), 1, ("d",)), Costs())
    >>> found.decision, found.node_out, found.node_in, round(found.minutes_saved, 1)
    (<Decision.REPLACE: 'replace'>, 'b', 'd', 22.4)
    """
    is_own = explanation is not None and explanation.side is FailureSide.TENANT
    if explanation is not None and is_own and explanation.ranked[0].weight >= NAMES_ITSELF:
        return _keep(f"{explanation.sentence}: another node would not change that")
    named = [one for one in findings if one.kind in CONFIDENCE]
    clear = next((one for one in named if len({nodes.of(rank) for rank in one.ranks}) == 1), None)
    if clear is not None:
        return _replace(clear, CONFIDENCE[clear.kind] / (2 if is_own else 1), hazard, nodes, costs)
    unclear = next(iter(named), None) or next((one for one in findings if one.kind in UNCLEAR), None)
    if unclear is not None or hazard.hint:
        return _isolate(unclear, hazard, nodes)
    return _keep("no finding of the watch and no hint stands")


def minutes_saved(kind: str, confidence: float, hazard: HazardFact, costs: Costs) -> float:
    """The formula above; may be negative."""
    stall = costs.timeout_minutes if kind.endswith("_hang") else _SLOW_SHARE * 60 * costs.hours_left
    excess = max(0.0, hazard.now_per_hour - hazard.usual_per_hour)
    failures = excess * costs.hours_left * costs.failure_minutes
    return confidence * (stall + failures) - costs.replacement_minutes


def _replace(
    finding: FindingFact, confidence: float, hazard: HazardFact, nodes: Nodes, costs: Costs
) -> ReplacementPlan:
    node_in = next(iter(nodes.spares), ASK_PROVIDER)
    saved = minutes_saved(finding.kind, confidence, hazard, costs)
    out = nodes.of(finding.ranks[0])
    steps = (
        f"end the agent or job step on {out}",
        f"let {node_in} in" if nodes.spares else "ask the provider for a node, or go on with fewer",
        "restart from the last checkpoint",
        f"test {out} before it takes part again: `pharoah-tenant confirm`",
    )
    why = "; ".join(filter(None, [finding.text, hazard.hint]))
    return ReplacementPlan(
        Decision.REPLACE, out, node_in, why, confidence, round(saved, 1), tuple(finding.ranks), steps
    )


def _isolate(finding: FindingFact | None, hazard: HazardFact, nodes: Nodes) -> ReplacementPlan:
    ranks = finding.ranks if finding is not None else ()
    group = ", ".join(dict.fromkeys(map(nodes.of, ranks))) or ", ".join(nodes.names) or "all nodes of the lease"
    why = "; ".join(_reasons(finding, hazard))
    steps = (
        f"isolate {group}: save a checkpoint if ranks still move, end the job there, and start nothing else",
        f"test {group}: each pair by `pharoah-tenant confirm interconnect --partner`, each node by `confirm`",
        "return what passes to the job or the spares; keep out what fails, and tell the provider: `confirm --tell`",
        "if all pass: restart from the last checkpoint; another such verdict replaces the whole group",
    )
    return ReplacementPlan(Decision.ISOLATE, "", "", f"undecided: {why}", 0.0, 0.0, tuple(ranks), steps)


def _reasons(finding: FindingFact | None, hazard: HazardFact) -> Iterator[str]:
    if finding is not None:
        yield finding.text
    if hazard.hint:
        yield hazard.hint + ("" if finding is not None else ", and a hint names no node")


def _keep(why: str) -> ReplacementPlan:
    return ReplacementPlan(Decision.KEEP, "", "", why, 0.0, 0.0, (), ())
