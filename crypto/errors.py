"""Errors for callers and users. Each says what happened, where, and what to do.

- `DecodeError`, `PeerFault`: another party sent invalid data.
- `Refusal`: the request is valid, but carrying it out would break a guarantee.
- A bug in Pharoah is neither; it stays an ordinary exception.
"""

from typing import ClassVar


class PharoahError(Exception):
    """Base class of all errors that a caller may catch. `what` is the fact, `hint` the remedy."""

    default_hint: ClassVar[str] = ""

    def __init__(self, what: str, *, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = self.default_hint if hint is None else hint

    def diagnostics(self) -> str:
        """The text for a person: the fact, and the remedy on a second line."""
        return f"{self.what}\nhint: {self.hint}" if self.hint else self.what


class DecodeError(PharoahError):
    """Received bytes are not a valid message of the expected type."""

    default_hint = "the message is damaged or from another version; ask the sender for it again"


class PeerFault(PharoahError):
    """The answer of a peer is provably wrong."""


class BadSignature(PeerFault):
    """A message is not signed by the key that is pinned for its sender."""

    default_hint = "compare the pinned key with the one that its owner publishes"


class WrongShare(PeerFault):
    """A trustee's evaluation has no valid proof for its public share key."""

    default_hint = "use another trustee, and inform this one's owner"


class Unreachable(PeerFault):
    """A peer did not answer in time; whether it processed the request is unknown."""

    default_hint = (
        "try again later, nothing is lost; if it persists, check the address and certificate with the peer's owner"
    )


class Refusal(PharoahError):
    """A valid request, refused because it would break a guarantee."""


class PlanRefused(Refusal):
    """A plan violates its own rules or the tenant's policy.

    `rule` is one of `federation.protocol.refusals`, and `limit` the policy's number for it.
    """

    def __init__(self, what: str, *, hint: str | None = None, rule: str = "", limit: float | None = None) -> None:
        super().__init__(what, hint=hint)
        self.rule = rule
        self.limit = limit


class VersionsApart(Refusal):
    """The two sides are two versions of the protocol apart or more (`federation.protocol.versions`)."""

    default_hint = "upgrade the older side"


class BudgetExceeded(Refusal):
    """The leases in the windows of a plan have too little privacy budget left."""

    default_hint = "nothing was spent or sent; raise the limit in policy.toml only if the owner of the data agrees"


class CohortTooSmall(Refusal):
    """Fewer contributions than the cohort minimum: their sum would reveal too much about each."""

    default_hint = "wait for more tenants, or abandon the round; the contributions stay masked"


class MemberRefused(Refusal):
    """One contribution of a set cannot be unmasked. `what` begins with its tenant; the others are unaffected."""

    default_hint = "the round continues without this contribution; its tenant must enrol again"


class AlreadyAnswered(Refusal):
    """A trustee has already endorsed another set of contributions for this round, or for its window."""

    default_hint = "a round is unmasked for one set only; start a new round"


class OutOfOrder(Refusal):
    """A step came before the one that it needs, such as unmasking before enough trustees endorsed the set."""

    default_hint = "take the step before it first; a trustee that was away can still answer"


class TooFewOwners(Refusal):
    """Fewer tenants signed that they own a row of the plan than the plan guarantees."""

    default_hint = "the provider must merge the row into a coarser one; the round stays masked"


class Equivocation(PeerFault):
    """The provider signed different sets of contributions for one round, to different trustees."""

    default_hint = "nothing was unmasked; keep the log as proof, and inform the tenants"


class QuotaExceeded(Refusal):
    """A tenant requested more token evaluations in an epoch than the trustees allow."""

    default_hint = "wait for the next epoch, or ask the trustees for a higher quota"


class NotSignedIn(Refusal):
    """The call has no valid session."""

    default_hint = "sign in again"


class TooManyRequests(Refusal):
    """A tenant exceeds the provider's rate limit."""

    default_hint = "wait, and call less often"


class NotYours(Refusal):
    """The call refers to something that the caller does not own; the error does not reveal whether it exists."""

    default_hint = "use a hint and its lease as the provider sent them"


class PassRefused(Refusal):
    """A pass for an anonymous check is not of this week and key, or was spent before."""

    default_hint = "use another pass; `pharoah-tenant check` without --online needs none"


class NothingPublished(Refusal):
    """The provider has published no bundle yet."""

    default_hint = "try again after the first round"
