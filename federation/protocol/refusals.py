"""Which rule a tenant refuses a plan by, and its policy's limit: all that a refusal tells beside the name of its class.

    PlanRefused owners_minimum 5

The rule is one of a closed list, the limit a number of the tenant's policy.toml. Neither depends on jobs.

Not promised: that the rule is the only one that the plan breaks. The first one ends the check.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from crypto.errors import PharoahError, PlanRefused
from federation.protocol.plan import Plan

_SHAPE = re.compile(
    r"(?P<name>[A-Za-z_]\w{0,63})(?: (?P<rule>[a-z_]{1,32})(?: (?P<limit>\d[\d.e+-]{0,31}))?)?", re.ASCII
)


class Rule(StrEnum):
    """What a plan broke. Those with the name of a key of policy.toml are limits of the policy."""

    NOISE = "noise"
    WORK = "work"
    EPSILON = "epsilon_per_window"
    DELTA = "delta"
    OWNERS = "owners_minimum"
    EPOCH = "epoch"
    CLOCK = "clock"
    WINDOW = "window_hours_minimum"
    COHORT = "cohort_minimum"
    HONEST = "colluding_share"
    THINNEST = "honest_minimum"
    GROWTH = "members"
    TRUSTEES = "mask_trustees_minimum"
    STRANGERS = "trustees"
    FAILURES = "failures_per_unit_maximum"
    DIMENSIONS = "dimensions"


@dataclass(frozen=True)
class Refused:
    """A refusal as it travels: the class of the error and, of a plan, the rule and the policy's limit."""

    name: str
    rule: Rule | None = None
    limit: float | None = None

    @classmethod
    def of(cls, error: PharoahError) -> "Refused":
        """What of an error leaves the tenant."""
        name = type(error).__name__
        if isinstance(error, PlanRefused) and error.rule:
            return cls(name, Rule(error.rule), error.limit)
        return cls(name)

    @classmethod
    def read(cls, text: str) -> "Refused | None":
        """A refusal that a peer sent; None for any other text, which could carry anything into a log."""
        found = _SHAPE.fullmatch(text)
        if found is None:
            return None
        try:
            rule = Rule(found["rule"]) if found["rule"] else None
            return cls(found["name"], rule, float(found["limit"]) if found["limit"] else None)
        except ValueError:
            return None

    def __str__(self) -> str:
        limit = None if self.limit is None else f"{self.limit:.9g}"
        return " ".join(filter(None, (self.name, self.rule, limit)))

    def about(self, plan: Plan) -> str:
        """Why the plan was refused, for a person."""
        return self.against(_asked(plan, self.rule))

    def against(self, asked: float | None) -> str:
        """Why a plan with this number is refused, for a person; empty if the limit allows it."""
        if asked is None or self.limit is None:
            return _WORDS.get(self.rule, self.rule) if self.rule else _CLASSES.get(self.name, self.name)
        if self.rule in _MOST:
            return f"{self.rule} {asked:.9g} is above their policy's {self.limit:.9g}" if asked > self.limit else ""
        return f"{self.rule} {asked:.9g} is below their policy's {self.limit:.9g}" if asked < self.limit else ""


_MOST = (Rule.EPSILON, Rule.DELTA, Rule.FAILURES)
_CLASSES = {
    "BudgetExceeded": "their privacy budget for these weeks is used up",
    "SeatsChanged": "a trustee's seat changed after the plan was made",
    "UnknownHead": "they do not know the directory of the plan yet",
    "Bug": "a bug of their program, see their logs",
}
_WORDS = {
    Rule.NOISE: "the noise is less than the plan's epsilon needs",
    Rule.WORK: "the noise takes more work than they do",
    Rule.EPOCH: "the plan names another epoch than their directory",
    Rule.CLOCK: "the window is not over by their clocks",
    Rule.HONEST: "the noise counts on more honest tenants than their policy's colluding_share allows",
    Rule.THINNEST: "the noise counts on more honest tenants than their policy's honest_minimum",
    Rule.GROWTH: "the noise counts on more members than they have seen",
    Rule.STRANGERS: "trustees of the plan are not those of their directory",
    Rule.DIMENSIONS: "the plan counts by dimensions that their policy does not list",
}


def _asked(plan: Plan, rule: Rule | None) -> float | None:
    """The number of the plan that a limit of the policy is compared with."""
    numbers: dict[Rule, float] = {
        Rule.EPSILON: plan.epsilon,
        Rule.DELTA: plan.delta,
        Rule.OWNERS: plan.owners_minimum,
        Rule.WINDOW: min(end - start for start, end in pairwise(plan.windows)),
        Rule.COHORT: plan.cohort_minimum,
        Rule.TRUSTEES: len(plan.trustees),
        Rule.FAILURES: plan.failures_per_unit,
    }
    return numbers.get(rule) if rule else None
