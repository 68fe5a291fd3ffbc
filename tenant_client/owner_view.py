"""What the owner of the data may see at any time: what a plan would take, and what has been spent."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from crypto.accountant import plan_loss
from crypto.codec import encode
from crypto.ids import Digest
from crypto.messages import Contribution
from crypto.noise import Integers
from crypto.plan import Marginal, Plan
from tenant_client.ledger import Charge
from tenant_client.tenant import Tenant


@dataclass(frozen=True)
class PreviewCell:
    """One cell that is not zero: its meaning and the exact count that noise and masks would hide."""

    marginal: str
    cell: tuple[tuple[str, str], ...]
    count: int


@dataclass(frozen=True)
class Preview:
    """Everything that an answer to a plan would consist of."""

    round_id: str
    window_hours: tuple[int, int]
    message_bytes: int
    cells: int
    epsilon: float
    delta: float
    mechanism: str
    noise_scales: tuple[tuple[str, float], ...]
    counts: tuple[PreviewCell, ...]


def preview(tenant: Tenant, plan: Plan) -> Preview:
    """What answering `plan` would send. Reads only: nothing is charged, drawn or kept."""
    counted = tenant.counts(plan)
    unsigned = Contribution(tenant.id, plan.round_id, Digest(bytes(32)), bytes(8 * plan.cells))
    return Preview(
        round_id=str(plan.round_id),
        window_hours=(plan.start_hour, plan.end_hour),
        message_bytes=len(tenant.sent(plan.round_id) or encode(unsigned)),
        cells=plan.cells,
        epsilon=plan_loss(plan).at(plan.delta),
        delta=plan.delta,
        mechanism=plan.mechanism,
        noise_scales=tuple((marginal.name, marginal.noise_scale) for marginal in plan.marginals),
        counts=tuple(cell for m, table in zip(plan.marginals, counted, strict=True) for cell in _cells(plan, m, table)),
    )


def _cells(plan: Plan, marginal: Marginal, counts: Integers) -> Iterator[PreviewCell]:
    levels = {dimension.name: dimension.levels for dimension in plan.dimensions}
    for place in np.argwhere(counts):
        named = tuple((name, levels[name][at]) for name, at in zip(marginal.dimensions, place, strict=True))
        yield PreviewCell(marginal.name, named, int(counts[tuple(place)]))


@dataclass(frozen=True)
class BudgetLine:
    """What the job-weeks of one charged window have paid in all, and what is left of the policy's limit."""

    window_hours: tuple[int, int]
    rounds: int
    epsilon: float
    remaining: float


@dataclass(frozen=True)
class Budget:
    """The ledger for a person: by window, and what a job that ran through all of them has paid as one unit."""

    limit_epsilon: float
    delta: float
    lines: tuple[BudgetLine, ...]
    whole_job_epsilon: float


def budget(tenant: Tenant) -> Budget:
    """The state of the ledger against the policy."""
    charges, policy = tenant.ledger.charges(), tenant.policy
    windows = sorted({(charge.start_h, charge.end_h) for charge in charges})
    lines = tuple(_line(tenant, window, charges) for window in windows)
    return Budget(policy.epsilon_per_job_week, policy.delta, lines, _whole_job(charges, policy.delta))


def _line(tenant: Tenant, window: tuple[int, int], charges: list[Charge]) -> BudgetLine:
    spent = tenant.ledger.spent(*window).at(tenant.policy.delta)
    rounds = sum((charge.start_h, charge.end_h) == window for charge in charges)
    return BudgetLine(window, rounds, spent, max(0.0, tenant.policy.epsilon_per_job_week - spent))


def _whole_job(charges: list[Charge], delta: float) -> float:
    """Group privacy of a job present in every window: epsilon adds up, and the square root of rho does."""
    epsilon = sum(charge.loss.epsilon for charge in charges)
    root_rho = sum(charge.loss.rho**0.5 for charge in charges)
    return type(charges[0].loss)(epsilon, root_rho**2).at(delta) if charges else 0.0
