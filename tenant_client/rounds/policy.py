"""A tenant's policy: limits for plans. A plan beyond them is refused before anything is counted.

    # policy.toml, all keys optional
    epsilon_per_job_week = 1.0
    delta = 1e-8
    owners_minimum = 5

The other keys are the fields of `Policy`.
"""

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from crypto.errors import PharoahError, PlanRefused
from federation.protocol.directory import Directory
from federation.protocol.plan import Plan
from federation.protocol.privacy_cost import plan_loss

CLOCKS_DIFFER_H = 1.0
_SLACK = 1 + 1e-9
# A NaN would compare as false with everything and so lift the limit that it stands for.
_KINDS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    float: ("a finite number from 0", lambda value: type(value) in (int, float) and 0 <= value < math.inf),
    int: ("a whole number from 0", lambda value: type(value) is int and value >= 0),
    tuple: ("a list of names", lambda value: type(value) is list and all(type(name) is str for name in value)),
}


class PolicyError(PharoahError):
    """The policy file cannot be used."""


@dataclass(frozen=True)
class Policy:
    """Limits. `epsilon_per_job_week` holds for the sum of all plans over the same job-week, at `delta`.

    `colluding_share` is the share of a minimal cohort that may know its own noise without harm to the others.
    `horizon_weeks_maximum` limits the rounds of a series, all of which a job-week pays for with its first, and
    `carry_over_weeks_maximum` how many weeks that were missed one answer may count, and pay for, besides its own.
    """

    epsilon_per_job_week: float = 1.0
    delta: float = 1e-8
    owners_minimum: int = 5
    cohort_minimum: int = 10
    window_hours_maximum: int = 168
    mask_trustees_minimum: int = 3
    failures_per_unit_maximum: int = 1
    horizon_weeks_maximum: int = 104
    carry_over_weeks_maximum: int = 13
    colluding_share: float = 0.1
    dimensions: tuple[str, ...] = ("workload", "context", "context_level", "band", "domain", "reason")


def load_policy(path: Path) -> Policy:
    """The policy at `path`; unknown keys, wrong types and numbers that are no limit are refused by name."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(f"{path}: {error}", hint="write it as TOML, or remove it for the defaults") from error
    known = {field.name: getattr(Policy, field.name) for field in fields(Policy)}
    given: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise PolicyError(f"{path}: unknown key {key!r}", hint=f"known keys: {', '.join(known)}")
        wanted, fits = _KINDS[type(known[key])]
        if not fits(value):
            raise PolicyError(f"{path}: {key} must be {wanted}", hint=f"the default is {known[key]!r}")
        given[key] = tuple(value) if isinstance(value, list) else value
    return Policy(**given)


def check_plan(plan: Plan, policy: Policy, directory: Directory, now_hour: float) -> None:
    """Returns if the tenant may answer `plan` at `now_hour`; raises PlanRefused with the first reason why not."""
    for refused, reason, hint in _objections(plan, policy, directory, now_hour):
        if refused:
            raise PlanRefused(f"plan {plan.round_id} refused: {reason}", hint=hint)


def _objections(plan: Plan, policy: Policy, directory: Directory, now_hour: float) -> list[tuple[bool, str, str]]:
    cost = plan_loss(plan).at(plan.delta)
    rarest = plan.rarest_row
    trusted = {(trustee.index, trustee.mask_key) for trustee in directory.trustees}
    strange = [trustee.index for trustee in plan.trustees if (trustee.index, trustee.mask_key) not in trusted]
    foreign = sorted({dimension.name for dimension in plan.dimensions} - set(policy.dimensions))
    honest = plan.cohort_minimum * (1 - policy.colluding_share)
    epoch = directory.epoch(plan.start_hour)
    lenient = "the provider must change the plan; relax policy.toml only if the owner of the data agrees"
    return [
        (
            cost > plan.epsilon * _SLACK,
            f"it says epsilon {plan.epsilon:.9g} and its noise gives {cost:.9g}",
            "the provider must raise the noise scales",
        ),
        (
            plan.epsilon > policy.epsilon_per_job_week * _SLACK,
            f"epsilon {plan.epsilon:.9g} is above the policy's {policy.epsilon_per_job_week:.9g}",
            lenient,
        ),
        (
            plan.delta > policy.delta * _SLACK,
            f"delta {plan.delta:.9g} is above the policy's {policy.delta:.9g}",
            lenient,
        ),
        (
            rarest is not None and rarest[1] < policy.owners_minimum,
            f"row {rarest and rarest[0]} has {rarest and rarest[1]} owners, the policy wants {policy.owners_minimum}",
            "the provider must merge rows of too few tenants into coarser ones",
        ),
        (
            plan.owners_minimum < policy.owners_minimum,
            f"it promises {plan.owners_minimum} owners per row, the policy wants {policy.owners_minimum}",
            "trustees hold the provider to the number in the plan; it must be raised there",
        ),
        (
            plan.epoch != epoch,
            f"it names epoch {plan.epoch}, and its window begins in epoch {epoch} of the directory",
            "the provider must name the epoch of the window; owners are counted by epoch",
        ),
        (
            plan.end_hour > now_hour + CLOCKS_DIFFER_H,
            f"its window ends at hour {plan.end_hour}, and by the clock here it is hour {now_hour:.0f}",
            "a week is counted after its end; if that has passed, compare the clocks of provider and tenant",
        ),
        (
            plan.end_hour - plan.start_hour > policy.window_hours_maximum,
            f"its window has {plan.end_hour - plan.start_hour} hours, the policy allows {policy.window_hours_maximum}",
            "a unit is a lease within the window; the provider must cut the window into weeks",
        ),
        (
            plan.cohort_minimum < policy.cohort_minimum,
            f"its cohort minimum {plan.cohort_minimum} is below the policy's {policy.cohort_minimum}",
            lenient,
        ),
        (
            plan.noise_shares > honest,
            f"its noise is complete only with {plan.noise_shares} honest tenants of {plan.cohort_minimum}",
            "the provider must lower noise_shares, which raises each tenant's noise",
        ),
        (
            len(plan.trustees) < policy.mask_trustees_minimum,
            f"it has {len(plan.trustees)} mask trustees, the policy asks for {policy.mask_trustees_minimum}",
            lenient,
        ),
        (bool(strange), f"trustees {strange} are not in the directory with these keys", "compare the directories"),
        (
            plan.failures_per_unit > policy.failures_per_unit_maximum,
            f"it counts {plan.failures_per_unit} failures per job-week, above the policy's"
            f" {policy.failures_per_unit_maximum}",
            lenient,
        ),
        (
            plan.horizon > policy.horizon_weeks_maximum,
            f"its series has {plan.horizon} rounds, the policy allows {policy.horizon_weeks_maximum}",
            lenient,
        ),
        (bool(foreign), f"it counts by {foreign}, which the policy does not list", lenient),
    ]
