"""The federation's benefit to users: failures avoided by checks, degradations hinted at in time, and false hints.

    bundles of the weeks so far ─ check before each start ─▶ placed elsewhere ─▶ expected failures, by the true hazard
    their hazards, levels as telemetry shows them ─ Episodes ─▶ hints ─▶ degradations warned of in time, false hints

Bundles, verdicts and hints are those of the programs (`publication.compose`, `federation.protocol.check.Checker`,
`provider_server.fleet.hints.episodes.Episodes`); what fails follows the truth of the cloud. `docs/simulation.md`
has every formula, where constants come from, and what is not modelled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from federation.protocol.bundle import Bundle, PairJudgement
from federation.protocol.check import Check, Checker
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.service_messages import CheckVerdict
from simulation.cloud.cloud import Cloud
from simulation.cloud.profiles import Floats, Ints
from simulation.judge.hint_evaluation import foresee
from simulation.judge.histories import Histories
from simulation.judge.user_loop import Costs, Flags, Trial, World, learning_weeks
from tenant_client.doctor.advice.own_history import Joined
from tenant_client.doctor.records.own_leases import OwnLease

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
    """What users gained after the first window, and what it cost them; None where there was nothing to judge.

    Of all GPU-hours that mismatches cost, the share avoided, and the same of the leases that began while the first
    bundle was in force; of job starts on other pairs, the share refused; of all refusals, the share on planted pairs,
    and how many GPU-hours they cost; of degradations, the share that a hint foretold by half an hour; hints on leases
    that did not degrade. What refusals cost is not taken off what is saved.
    """

    mismatch_gpu_hours_avoided_share: float | None
    first_bundle_avoided_share: float | None
    false_refusal_share: float | None
    right_refusal_share: float | None
    refusal_gpu_hours: float
    warned_30min_share: float | None
    false_hints_per_1000_lease_hours: float | None
    gpu_hours_saved: float
    gpu_hours_saved_by_checks: float
    gpu_hours_saved_by_hints: float
    dollars_saved: float


def impact(
    world: World,
    bundles: Sequence[Bundle | None],
    heeds: Heeds = on_warning,
    costs: Costs | None = None,
    own: "OwnHistory | None" = None,
) -> Impact:
    """What these bundles, one for each of `learning_weeks`, gain; a job goes elsewhere if it `heeds` its check.

    With `own`, each tenant checks against the bundle that it has joined with its own history until then.
    """
    costs = costs or Costs()
    return judged(world, bundles, check_all(world, bundles, heeds, costs, own), costs)


def judged(world: World, bundles: Sequence[Bundle | None], placed: "Placed", costs: Costs) -> Impact:
    """What it gains that leases run where they are placed, and that their hints come from these bundles."""
    avoided, refused, by_checks = gained_by_checks(world, placed, costs)
    at_first, _, _ = gained_by_checks(world, placed, costs, placed.period == 0)
    planted = world.trial.cloud.hazard.mismatch[_pairs(world)] > 1
    gpus = costs.gpus_per_node * world.trial.cloud.leases.nodes[world.rows]
    foreseen = foresee(world, bundles, placed.context, costs)
    saved = by_checks + foreseen.gpu_hours_saved
    return Impact(
        avoided,
        at_first,
        refused,
        float(planted[placed.refused].mean()) if placed.refused.any() else None,
        float(costs.refusal_h * gpus[placed.refused].sum()),
        foreseen.warned_share,
        foreseen.false_per_1000_lease_hours,
        saved,
        by_checks,
        foreseen.gpu_hours_saved,
        costs.dollars_per_gpu_hour * saved,
    )


@dataclass(frozen=True, eq=False)
class Placed:
    """Where each of the world's leases runs in the end, whether it left its own context, and under which bundle."""

    context: Ints
    refused: Flags
    period: Ints


@dataclass(frozen=True, eq=False)
class OwnHistory:
    """What tenants know themselves, and how they join it with a bundle."""

    histories: Histories
    joiner: Callable[[Bundle], Callable[[Sequence[OwnLease]], Joined]]


Better = Mapping[tuple[int, int], int | None]


def check_all(
    world: World,
    bundles: Sequence[Bundle | None],
    heeds: Heeds,
    costs: Costs | None = None,
    own: OwnHistory | None = None,
) -> Placed:
    """Every lease asks the newest bundle of the time before it starts, and goes elsewhere where there is room."""
    leases, costs = world.trial.cloud.leases, costs or Costs()
    context, refused = leases.context[world.rows].copy(), np.zeros(len(world.rows), np.bool_)
    starts = HOURS_PER_WEEK * np.array(learning_weeks(world.trial.cloud.scenario))
    period = np.searchsorted(starts, leases.start_h[world.rows], side="right") - 1
    node_hours = leases.nodes[world.rows] * world.hours
    for number, bundle in enumerate(bundles):
        begun = np.flatnonzero(period == number)
        room = _room(context[begun], node_hours[begun], world.trial.cloud.scenario.contexts, costs)
        for places, better in _advised(world, bundle, begun, heeds, own):
            for place in places.tolist():
                row = int(world.rows[place])
                if (int(leases.workload[row]), int(leases.context[row])) in better:
                    context[place] = _alternative(world.trial.cloud, row, better, room, float(node_hours[place]))
                    refused[place] = context[place] != leases.context[row]
    return Placed(context, refused, period)


def _room(context: Ints, node_hours: Floats, contexts: int, costs: Costs) -> Floats:
    """How many more node-hours each context can take, if these run there."""
    if costs.room_share is None:
        return np.full(contexts, np.inf)
    return np.asarray(costs.room_share * np.bincount(context, node_hours, contexts), np.float64)


def _advised(
    world: World, bundle: Bundle | None, begun: Ints, heeds: Heeds, own: OwnHistory | None
) -> Iterator[tuple[Ints, Better]]:
    """Leases that have begun under a bundle, by tenant if each has a history of its own, with what they are told."""
    if own is None or bundle is None:
        yield begun, _better(world.trial, bundle, world.rows[begun], heeds)
        return
    tenants, hour = world.trial.cloud.leases.tenant[world.rows[begun]], float(bundle.until_hour)
    failures, join = own.histories.failures(hour), own.joiner(bundle)
    for tenant in np.unique(tenants).tolist():
        places = begun[tenants == tenant]
        joined = join(own.histories.until(tenant, hour, failures)).bundle
        yield places, _better(world.trial, joined, world.rows[places], heeds)


def _better(trial: Trial, bundle: Bundle | None, rows: Ints, heeds: Heeds) -> Better:
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


def _alternative(cloud: Cloud, row: int, better: Better, room: Floats, node_hours: float) -> int:
    """The proposal, or the context where its tenant runs most that is not refused as well; its own if there is none.

    None has less room (node-hours by context, taken from here) than the lease needs.
    """
    workload, own = int(cloud.leases.workload[row]), int(cloud.leases.context[row])
    proposed = better[workload, own]
    often = np.argsort(-np.asarray(cloud.clients[cloud.leases.tenant[row]].context_shares), kind="stable").tolist()
    wanted = ([] if proposed is None else [proposed]) + [place for place in often if (workload, place) not in better]
    found = next((place for place in wanted if room[place] >= node_hours), own)
    room[found] -= node_hours * (found != own)
    return found


def _pairs(world: World) -> tuple[Ints, Ints]:
    """Workload and context of each lease, before anybody goes elsewhere."""
    leases = world.trial.cloud.leases
    return leases.workload[world.rows], leases.context[world.rows]


def gained_by_checks(
    world: World, placed: Placed, costs: Costs, among: Flags | None = None
) -> tuple[float | None, float | None, float]:
    """Share avoided, share falsely refused, and GPU-hours saved, all expected under the true hazard.

    `among` are the leases that are looked at, all if it is None.
    """
    cloud, rows, chosen = world.trial.cloud, world.rows, slice(None) if among is None else among
    leases, hazard = cloud.leases, cloud.hazard
    workload, level, nodes = leases.workload[rows], leases.level[rows], leases.nodes[rows]
    per_failure = costs.gpus_per_node * nodes * (costs.checkpoint_every_h / 2.0 + costs.recovery_h)

    def lost(context: Ints) -> tuple[float, float]:
        """GPU-hours lost in all, and those that planted factors cause."""
        failures = hazard.per_node_hour(workload, context, level) * nodes * hazard.effective_hours(world.hours)
        caused = failures * (1.0 - 1.0 / hazard.mismatch[workload, context])
        return float((per_failure * failures)[chosen].sum()), float((per_failure * caused)[chosen].sum())

    (all_before, caused_before), (all_after, caused_after) = lost(leases.context[rows]), lost(placed.context)
    others = (hazard.mismatch[_pairs(world)] == 1)[chosen]
    return (
        1.0 - caused_after / caused_before if caused_before else None,
        float(placed.refused[chosen][others].mean()) if np.any(others) else None,
        all_before - all_after,
    )
