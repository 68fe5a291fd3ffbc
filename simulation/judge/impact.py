"""The federation's benefit to users: failures avoided by checks, degradations hinted at in time, and false hints.

    bundles of the weeks so far ─ check before each start ─▶ placed elsewhere ─▶ expected failures, by the true hazard
    their hazards, levels as telemetry shows them ─ Episodes ─▶ hints ─▶ degradations warned of in time, false hints

Bundles, verdicts and hints are those of the programs (`publication.compose`, `federation.protocol.check.Checker`,
`provider_server.hints.episodes.Episodes`); what fails follows the truth of the cloud. `docs/impact.md` has every
formula, where constants come from, and what is not modelled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from federation.protocol.bundle import Bundle, PairJudgement
from federation.protocol.check import Check, Checker
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.service_messages import CheckVerdict
from simulation.cloud.cloud import Cloud
from simulation.cloud.profiles import Ints
from simulation.judge.hint_evaluation import foresee
from simulation.judge.user_loop import Costs, Flags, Trial, World, learning_weeks

Heeds = Callable[[Check], bool]


def on_mismatch(check: Check) -> bool:
    """Whether to go elsewhere: where the verdict is a mismatch."""
    return check.verdict is CheckVerdict.MISMATCH


def on_warning(check: Check) -> bool:
    """Whether to use another context: at a warning too, unless it says that the context may not be the cause."""
    found = check.evidence
    return found is not None and found.judgement in (PairJudgement.WORSE, PairJudgement.SUSPECTED)


@dataclass(frozen=True)
class Impact:
    """What users gained in the weeks after the warm-up, and what it cost them; None where there was nothing to judge.

    Of all GPU-hours that mismatches cost, the share avoided; of job starts on other pairs, the share refused; of
    degradations, the share that a hint foretold by half an hour; hints on leases that did not degrade.
    """

    mismatch_gpu_hours_avoided_share: float | None
    false_refusal_share: float | None
    warned_30min_share: float | None
    false_hints_per_1000_lease_hours: float | None
    gpu_hours_saved: float
    gpu_hours_saved_by_checks: float
    gpu_hours_saved_by_hints: float
    dollars_saved: float


def impact(
    world: World, bundles: Sequence[Bundle | None], heeds: Heeds = on_warning, costs: Costs | None = None
) -> Impact:
    """What these bundles, one for each of `learning_weeks`, gain; a job goes elsewhere if it `heeds` its check."""
    costs = costs or Costs()
    placed = check_all(world, bundles, heeds)
    avoided, refused, by_checks = gained_by_checks(world, placed, costs)
    foreseen = foresee(world, bundles, placed.context, costs)
    saved = by_checks + foreseen.gpu_hours_saved
    return Impact(
        avoided,
        refused,
        foreseen.warned_share,
        foreseen.false_per_1000_lease_hours,
        saved,
        by_checks,
        foreseen.gpu_hours_saved,
        costs.dollars_per_gpu_hour * saved,
    )


@dataclass(frozen=True, eq=False)
class Placed:
    """For each of the world's leases: the context where it runs in the end, and whether its own was refused."""

    context: Ints
    refused: Flags


def check_all(world: World, bundles: Sequence[Bundle | None], heeds: Heeds) -> Placed:
    """Every lease asks the newest bundle of the time before it starts."""
    leases = world.trial.cloud.leases
    context, refused = leases.context[world.rows].copy(), np.zeros(len(world.rows), np.bool_)
    starts = HOURS_PER_WEEK * np.array(learning_weeks(world.trial.cloud.scenario.weeks))
    period = np.searchsorted(starts, leases.start_h[world.rows], side="right") - 1
    for number, bundle in enumerate(bundles):
        begun = np.flatnonzero(period == number)
        better = _better(world.trial, bundle, world.rows[begun], heeds)
        for place, row in zip(begun.tolist(), world.rows[begun].tolist(), strict=True):
            pair = int(leases.workload[row]), int(leases.context[row])
            if pair in better:
                refused[place] = True
                context[place] = _alternative(world.trial.cloud, row, better)
    return Placed(context, refused)


def _better(trial: Trial, bundle: Bundle | None, rows: Ints, heeds: Heeds) -> dict[tuple[int, int], int | None]:
    """The pairs among these leases from which one goes elsewhere, each with the context that the check proposes."""
    if bundle is None:
        return {}
    checker, leases = Checker(bundle), trial.cloud.leases
    found = {}
    pairs = leases.workload[rows] * trial.cloud.scenario.contexts + leases.context[rows]
    for row in rows[np.unique(pairs, return_index=True)[1]].tolist():
        answer = checker.check(trial.labels(row))
        if heeds(answer):
            proposed = None if answer.better_context is None else trial.contexts[answer.better_context]
            found[int(leases.workload[row]), int(leases.context[row])] = proposed
    return found


def _alternative(cloud: Cloud, row: int, better: Mapping[tuple[int, int], int | None]) -> int:
    """The proposal, or the context where its tenant runs most that is not refused as well; its own if there is none."""
    workload, own = int(cloud.leases.workload[row]), int(cloud.leases.context[row])
    proposed = better[workload, own]
    if proposed is not None:
        return proposed
    often = np.argsort(-np.asarray(cloud.clients[cloud.leases.tenant[row]].context_shares), kind="stable")
    return next((place for place in often.tolist() if (workload, place) not in better), own)


def gained_by_checks(world: World, placed: Placed, costs: Costs) -> tuple[float | None, float | None, float]:
    """Share avoided, share falsely refused, and GPU-hours saved, all expected under the true hazard."""
    cloud, rows = world.trial.cloud, world.rows
    leases, hazard = cloud.leases, cloud.hazard
    workload, level, nodes = leases.workload[rows], leases.level[rows], leases.nodes[rows]
    per_failure = costs.gpus_per_node * nodes * (costs.checkpoint_every_h / 2.0 + costs.recovery_h)

    def lost(context: Ints) -> tuple[float, float]:
        """GPU-hours lost in all, and those that planted factors cause."""
        failures = hazard.per_node_hour(workload, context, level) * nodes * hazard.effective_hours(world.hours)
        caused = failures * (1.0 - 1.0 / hazard.mismatch[workload, context])
        return float(per_failure @ failures), float(per_failure @ caused)

    (all_before, caused_before), (all_after, caused_after) = lost(leases.context[rows]), lost(placed.context)
    planted = hazard.mismatch[workload, leases.context[rows]] > 1
    return (
        1.0 - caused_after / caused_before if caused_before else None,
        float(placed.refused[~planted].mean()) if np.any(~planted) else None,
        all_before - all_after,
    )
