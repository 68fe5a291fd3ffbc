"""The three ways in which things go wrong, kept apart: a local or remote fault, and a refusal by design.

`DecodeError` and `PeerFault` say that somebody else sent something wrong. `Refusal` says that Pharoah understood the
request and will not do it, because a promise to the tenant would break. A bug of our own is neither: it stays an
ordinary exception. Every error tells what happened, where, and what to do about it.
"""

from typing import ClassVar


class PharoahError(Exception):
    """Base of everything that a caller may want to catch. `what` states the fact, `hint` the remedy."""

    default_hint: ClassVar[str] = ""

    def __init__(self, what: str, *, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = self.default_hint if hint is None else hint

    def diagnostics(self) -> str:
        """The text for a person: the fact, and on a second line what to do."""
        return f"{self.what}\nhint: {self.hint}" if self.hint else self.what


class DecodeError(PharoahError):
    """Bytes from outside are not a valid message of the expected type."""

    default_hint = "the sender speaks another version or the message was damaged; ask for it again"


class PeerFault(PharoahError):
    """A peer answered, and its answer is provably wrong."""


class BadSignature(PeerFault):
    """A signed message was not signed by the key that is pinned for its sender."""

    default_hint = "compare the key in your configuration with the one that its owner publishes"


class WrongShare(PeerFault):
    """A trustee's evaluation does not carry a valid proof for its public share key."""

    default_hint = "leave this trustee out, ask another one, and tell its owner"


class Unreachable(PeerFault):
    """A peer did not answer in time, or not at all; what it did with the question is not known."""

    default_hint = "nothing is lost, ask again later; if it lasts, compare address and certificate with its owner's"


class Refusal(PharoahError):
    """Understood and refused by design: going on would break a promise."""


class PlanRefused(Refusal):
    """The plan asks for more than its own rules or the tenant's policy allow."""


class BudgetExceeded(Refusal):
    """The job-weeks of this plan have no budget left for it."""

    default_hint = "nothing was spent or sent; raise the limit in the policy only if its owner agrees"


class CohortTooSmall(Refusal):
    """Fewer contributions than the cohort minimum: their sum would say too much about each."""

    default_hint = "wait for more tenants or drop the round; the contributions stay masked"


class MemberRefused(Refusal):
    """One contribution of a set cannot be unmasked, whatever becomes of the others; the fact begins with its tenant."""

    default_hint = "the round goes on without this contribution; its tenant must enrol anew"


class AlreadyAnswered(Refusal):
    """A trustee gave its masks for this round already, for another set of contributions."""

    default_hint = "a round is unmasked once, for one set; start a new round"


class OutOfOrder(Refusal):
    """A round of a series would be opened before the one that it follows, or beside it."""

    default_hint = "finish the round before; a trustee that was away answers it late and loses nothing"


class TooFewOwners(Refusal):
    """A row of the plan is held by fewer tenants, by their own signed word, than the plan promises."""

    default_hint = "the provider must fold the row into a coarser rung; the round stays masked"


class Equivocation(PeerFault):
    """The provider told different trustees different sets for one round, under its own signature."""

    default_hint = "nothing was unmasked; keep the log, it is proof, and tell the tenants"


class QuotaExceeded(Refusal):
    """A tenant asked for more token evaluations in an epoch than the trustees grant."""

    default_hint = "tokens are cached for the epoch; wait for the next one or ask the trustees for a higher quota"


class NotSignedIn(Refusal):
    """The call carries no session of this provider, or one that is over."""

    default_hint = "sign in again"


class TooManyRequests(Refusal):
    """A tenant calls more often than the provider lets it."""

    default_hint = "ask again in a while, and less often"


class NotYours(Refusal):
    """What the call speaks of is not the caller's; whether it is somebody else's is not said."""

    default_hint = "name a hint and its lease as the provider sent them to you"


class NothingPublished(Refusal):
    """There is no bundle yet."""

    default_hint = "ask again after the first round"
