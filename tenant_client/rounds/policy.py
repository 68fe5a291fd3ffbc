"""A tenant's policy: limits for plans. A plan beyond them is refused before anything is counted.

`policy.toml` beside this file is what `join` writes: every key with its default. A running node reads it anew for every
question.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from crypto.errors import PharoahError, PlanRefused
from federation.base.clock import date
from federation.protocol.plan import PILOT_COHORT, PILOT_OWNERS, Plan
from federation.protocol.refusals import Rule
from federation.protocol.toml_tables import convert, loads

if TYPE_CHECKING:
    from federation.protocol.directory import Directory

FILE = "policy.toml"
SAMPLE = Path(__file__).with_name(FILE)
PILOT = {"owners_minimum": PILOT_OWNERS, "cohort_minimum": PILOT_COHORT}
CLOCKS_DIFFER_H = 1.0
_SLACK = 1 + 1e-9
Limit = Annotated[int, Meta(ge=0)]
# A NaN, which lies in no range, would compare as false with everything and so lift the limit that it stands for.
RealLimit = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


class PolicyError(PharoahError):
    """The policy file cannot be used."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits. `epsilon_per_window` holds for the sum of all plans over a lease in a window, at `delta`.

    A lease of several windows pays in each: `lease_hours_maximum` is the age of a lease from which on nothing of it is
    counted, 0 for none, and so limits what it pays in all. `window_hours_minimum` is the length of the shortest window
    of a plan's epoch. `colluding_share` is the share of a round's contributors that may know its own noise without harm
    to the others, of a minimal cohort and of any larger one. `honest_minimum` is how many tenants this one knows to be
    honest: its own share of the noise never falls below what so many need, however many the directory names. Without
    it, those are all but the `colluding_share` of the members that it saw enrolled at the last round that it answered,
    or at its own enrolment before the first; 0 trusts the directory. `link_epochs` tells the provider, when the epoch
    changes, which new tokens belong to which old ones, so that it can carry over what it learnt; docs/privacy.md says
    what that costs.
    """

    epsilon_per_window: RealLimit = 1.0
    delta: RealLimit = 1e-8
    owners_minimum: Limit = 5
    cohort_minimum: Limit = 10
    window_hours_minimum: Limit = 168
    lease_hours_maximum: Limit = 0
    mask_trustees_minimum: Limit = 3
    failures_per_unit_maximum: Limit = 1
    colluding_share: RealLimit = 0.5
    honest_minimum: Limit | None = None
    link_epochs: bool = False
    dimensions: tuple[str, ...] = ("workload", "context", "context_level", "band", "domain")


def load_policy(path: Path) -> Policy:
    """The policy at `path`; unknown keys, wrong types and numbers that are no limit are refused by name."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PolicyError(f"{path}: {error}", hint="write it as TOML, or remove it for the defaults") from error
    return convert(loads(text, path, PolicyError), Policy, path, PolicyError)


def policy_of(home: Path) -> Policy:
    """The policy of a home as it is now; the defaults without a file. PolicyError where it cannot be used."""
    file = home / FILE
    return load_policy(file) if file.exists() else Policy()


def as_pilot(text: str) -> str:
    """The sample with the limits of a pilot."""
    for key, value in PILOT.items():
        text = re.sub(rf"(?m)^{key} = \d+ ", f"{key} = {value} ", text)
    return text


def check_plan(plan: Plan, policy: Policy, directory: "Directory", now_hour: float, members_seen: int) -> None:
    """Returns if the tenant may answer `plan` at `now_hour`; raises PlanRefused with the first reason why not.

    `members_seen` is how many members it saw enrolled at its last round.
    """
    question = _Question(plan, policy, directory, now_hour, members_seen)
    for broken, hint, rule in _RULES:
        if reason := broken(question):
            limit = getattr(policy, rule, None)
            raise PlanRefused(
                f"plan {plan.round_id} refused: {reason}",
                hint=hint,
                rule=rule,
                limit=limit if isinstance(limit, int | float) else None,
            )


@dataclass(frozen=True)
class _Question:
    """The arguments of a rule."""

    plan: Plan
    policy: Policy
    directory: "Directory"
    now_hour: float
    members_seen: int


def _noise(at: _Question) -> str:
    from federation.protocol.privacy_cost import plan_loss  # needs the extra `federation`; the limits alone do not

    cost = plan_loss(at.plan).at(at.plan.delta)
    as_said = cost <= at.plan.epsilon * _SLACK
    return "" if as_said else f"it says epsilon {at.plan.epsilon:.9g} and its noise gives {cost:.9g}"


def _work(at: _Question) -> str:
    from federation.protocol.noise import MOST_TABLE_ENTRIES, table_entries

    asked = table_entries(at.plan)
    fits = asked <= MOST_TABLE_ENTRIES
    return "" if fits else f"its noise takes tables of {asked} entries, at most {MOST_TABLE_ENTRIES} are made"


def _epsilon(at: _Question) -> str:
    asked, allowed = at.plan.epsilon, at.policy.epsilon_per_window
    return "" if asked <= allowed * _SLACK else f"epsilon {asked:.9g} is above the policy's {allowed:.9g}"


def _delta(at: _Question) -> str:
    asked, allowed = at.plan.delta, at.policy.delta
    return "" if asked <= allowed * _SLACK else f"delta {asked:.9g} is above the policy's {allowed:.9g}"


def _rare_rows(at: _Question) -> str:
    row, owners = at.plan.rarest_row or ("", at.policy.owners_minimum)
    wanted = at.policy.owners_minimum
    return "" if owners >= wanted else f"row {row} has {owners} owners, the policy wants {wanted}"


def _owners(at: _Question) -> str:
    promised, wanted = at.plan.owners_minimum, at.policy.owners_minimum
    return "" if promised >= wanted else f"it promises {promised} owners per row, the policy wants {wanted}"


def _epoch(at: _Question) -> str:
    named, windows = at.plan.epoch, at.plan.windows
    right = {at.directory.epoch(hour) for hour in (windows[0], windows[-1] - 1)}
    lie = " and ".join(map(str, sorted(right)))
    return "" if right == {named} else f"it names epoch {named}, and its windows lie in epoch {lie} of the directory"


def _over(at: _Question) -> str:
    end, now = at.plan.end_hour, at.now_hour
    over = end <= now + CLOCKS_DIFFER_H
    return "" if over else f"its window ends on {date(end)}, and by the clock here it is {date(now)} UTC"


def _window(at: _Question) -> str:
    hours, least = min(end - start for start, end in pairwise(at.plan.windows)), at.policy.window_hours_minimum
    return "" if hours >= least else f"a window of its epoch has {hours} hours, the policy wants {least}"


def _cohort(at: _Question) -> str:
    asked, least = at.plan.cohort_minimum, at.policy.cohort_minimum
    return "" if asked >= least else f"its cohort minimum {asked} is below the policy's {least}"


def _honest(at: _Question) -> str:
    shares, cohort = at.plan.noise_shares, at.plan.cohort_minimum
    enough = shares <= _others(at, cohort)
    return "" if enough else f"its noise is complete only with {shares} honest tenants of {cohort}"


def _thinnest(at: _Question) -> str:
    full, known = at.plan.shares.full, at.policy.honest_minimum
    fits = not known or full <= known
    return "" if fits else f"its noise relies on up to {full} honest tenants, the policy on {known}"


def _growth(at: _Question) -> str:
    """A minimal cohort's honest ones are counted on whoever is enrolled: fewer than that are never unmasked."""
    full, seen = at.plan.shares.full, at.members_seen
    relied = max(at.plan.noise_shares, _others(at, seen))
    fits = at.policy.honest_minimum is not None or full <= relied
    return "" if fits else f"its noise relies on up to {full} honest tenants, {relied} of the {seen} members last seen"


def _others(at: _Question, tenants: int) -> int:
    """How many of so many tenants do not collude."""
    return int(tenants * (1 - at.policy.colluding_share) * _SLACK)


def _trustees(at: _Question) -> str:
    has, wants = len(at.plan.trustees), at.policy.mask_trustees_minimum
    return "" if has >= wants else f"it has {has} mask trustees, the policy asks for {wants}"


def _strangers(at: _Question) -> str:
    strange = [one.index for one in at.plan.trustees if not at.directory.masks(one.index, one.mask_key)]
    return f"trustees {strange} are not in the directory with these keys" if strange else ""


def _failures(at: _Question) -> str:
    counts, most = at.plan.failures_per_unit, at.policy.failures_per_unit_maximum
    return "" if counts <= most else f"it counts {counts} failures of a lease in a window, above the policy's {most}"


def _dimensions(at: _Question) -> str:
    foreign = sorted({dimension.name for dimension in at.plan.dimensions} - set(at.policy.dimensions))
    return f"it counts by {foreign}, which the policy does not list" if foreign else ""


_PILOT = "; if its owner agreed to a pilot: `pharoah-tenant join --pilot INVITATION`"
_LENIENT = "the provider must change the plan; relax policy.toml only if the owner of the data agrees"
_GROWN = (
    "ask who the new members are: if you know as many tenants to be honest as the noise relies on, set honest_minimum"
    " to that number in policy.toml; else the provider must lower honest_minimum in provider.toml"
)
# Each returns the objection to a plan, "" for none; beside it, the hint, and the rule. They apply in this order.
_RULES: Sequence[tuple[Callable[[_Question], str], str, Rule]] = (
    (_noise, "the provider must raise the noise scales", Rule.NOISE),
    (_work, "the provider must lower the noise scales, or count fewer tables", Rule.WORK),
    (_epsilon, _LENIENT, Rule.EPSILON),
    (_delta, _LENIENT, Rule.DELTA),
    (_rare_rows, "the provider must merge rows of too few tenants into coarser ones" + _PILOT, Rule.OWNERS),
    (_owners, "trustees hold the provider to the number in the plan; it must be raised there" + _PILOT, Rule.OWNERS),
    (_epoch, "the provider must name the epoch of the window; owners are counted by epoch", Rule.EPOCH),
    (
        _over,
        "a window is counted after its end; if that has passed, compare the clocks of provider and tenant",
        Rule.CLOCK,
    ),
    (_window, "a lease pays in every window that it is in; the provider must make the windows longer", Rule.WINDOW),
    (_cohort, _LENIENT + _PILOT, Rule.COHORT),
    (_honest, "the provider must lower noise_shares, which raises each tenant's noise", Rule.HONEST),
    (_thinnest, "the provider must lower honest_minimum, or noise_shares, in provider.toml", Rule.THINNEST),
    (_growth, _GROWN, Rule.GROWTH),
    (_trustees, _LENIENT, Rule.TRUSTEES),
    (_strangers, "compare the directories", Rule.STRANGERS),
    (_failures, _LENIENT, Rule.FAILURES),
    (_dimensions, _LENIENT, Rule.DIMENSIONS),
)
