"""Which rule a tenant refuses a plan by, and its policy's limit: all that a refusal tells beside the name of its class.

    PlanRefused owners_minimum 5

The rule is one of a closed list, the limit a number of the tenant's policy.toml. Neither depends on jobs. A tenant that
is too far from the provider's version says which one it speaks.

Not promised: that the rule is the only one that the plan breaks. The first one ends the check.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from crypto.errors import PharoahError, PlanRefused, VersionsApart
from federation.protocol.versions import PROTOCOL, who_upgrades

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
    PROTOCOL = "protocol"


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
        if isinstance(error, VersionsApart):
            return cls(name, Rule.PROTOCOL, PROTOCOL)
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

    def about(self, plan: object) -> str:
        """Why a plan is refused, for a person; empty if the limit allows it. Settings of plans do, too."""
        if self.rule is Rule.PROTOCOL and self.limit is not None:
            return who_upgrades(int(self.limit))
        asked = getattr(plan, _COMPARED.get(self.rule, ""), None) if self.rule else None
        if asked is None or self.limit is None:
            return _WORDS.get(self.rule, self.rule) if self.rule else _CLASSES.get(self.name, self.name)
        is_most = self.rule in _MOST
        if (asked <= self.limit) if is_most else (asked >= self.limit):
            return ""
        return f"{self.rule} {asked:.9g} is {'above' if is_most else 'below'} their policy's {self.limit:.9g}"


_MOST = (Rule.EPSILON, Rule.DELTA, Rule.FAILURES)
_COMPARED = {  # the field of a plan that the limit is for
    Rule.EPSILON: "epsilon",
    Rule.DELTA: "delta",
    Rule.OWNERS: "owners_minimum",
    Rule.COHORT: "cohort_minimum",
    Rule.FAILURES: "failures_per_unit",
}
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
    Rule.WINDOW: "a window of the plan's epoch is shorter than their policy allows",
    Rule.TRUSTEES: "fewer trustees mask than their policy asks for",
    Rule.CLOCK: "the window is not over by their clocks",
    Rule.HONEST: "the noise counts on more honest tenants than their policy's colluding_share allows",
    Rule.THINNEST: "the noise counts on more honest tenants than their policy's honest_minimum",
    Rule.GROWTH: "the noise counts on more members than they have seen",
    Rule.STRANGERS: "trustees of the plan are not those of their directory",
    Rule.DIMENSIONS: "the plan counts by dimensions that their policy does not list",
}
