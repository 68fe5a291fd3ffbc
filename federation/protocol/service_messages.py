"""The messages between a tenant and the provider's online service, outside of rounds.

tenant → provider   Signed(SignIn)      who asks; the answer is a Session
provider → tenant   Session             a bearer token for the calls below, for a while
tenant → provider   CheckRequest        tokens of a workload and of a context; the answer is a CheckAnswer
tenant → provider   WatchRequest        hints and ends after this number, for as long as the tenant listens
provider → tenant   Signed(Hint)        the failure risk of one of the tenant's leases is raised, or normal again
provider → tenant   Signed(LeaseEnd)    one of the tenant's leases ended, or its planned end is another one
tenant → provider   Outcome             what a test confirmed; sent only if the tenant has opted in
caller → server     Signed(Introduction)   who calls, in the metadata of a call (`federation.transport.introductions`)

- A hint names a lease, and no device, node, serial number or other tenant. Its suspicion is a kind of hardware.
- Hints and ends of one tenant are numbered together, upwards. No number is used twice, so a tenant that stores the last
  number misses none, also of a provider whose store of yesterday was put back.
- An end says when, and whether the lease's job waits for another lease: no outcome, which is the tenant's.
- The provider signs each, so that a tenant can show others what it was told (`tenant_client.evidence`).
"""

import math
from enum import IntEnum, StrEnum

from crypto.codec import Bytes, Count, Few, Many, Message, Number, Secret, is_labelled
from crypto.ids import Digest, LeaseId, TenantId, Token, VerifyKey
from federation.protocol.bundle import HazardEntry, MismatchEntry

SESSION_BYTES = 64


class CheckVerdict(IntEnum):
    """The verdict of a check; its values are the exit codes of `pharoah-tenant check`."""

    OK = 0
    WARNING = 1
    MISMATCH = 2
    UNKNOWN = 3


class Suspicion(StrEnum):
    """The kind of hardware that a hint suspects, and so the test that would confirm it."""

    COMPUTE = "compute"
    MEMORY = "memory"
    HOST_LINK = "host_link"
    INTERCONNECT = "interconnect"
    STORAGE = "storage"
    HOST = "host"
    UNCLEAR = "unclear"


class HintState(StrEnum):
    """`RAISED` begins an episode, `ESCALATED` repeats it because it became worse or came back, `CLEARED` ends it."""

    RAISED = "raised"
    ESCALATED = "escalated"
    CLEARED = "cleared"


class Action(StrEnum):
    """The action that a hint recommends."""

    NOTHING = "nothing"
    CHECKPOINT = "checkpoint"
    CONFIRM = "confirm"
    MOVE = "move"


class SignIn(Message, frozen=True, tag="pharoah/sign-in/1"):
    """Signed by the tenant; the provider takes it within minutes of `at_s` (seconds since 1970), by its own clock."""

    tenant: TenantId
    at_s: Count


class Session(Secret, frozen=True, tag="pharoah/session/1"):
    """A bearer token: whoever shows it until `until_s` is the tenant. A secret, and so without a repr."""

    token: bytes
    until_s: Count

    def __post_init__(self) -> None:
        if len(self.token) != SESSION_BYTES:
            raise ValueError(f"a session's token has {SESSION_BYTES} bytes")


class CheckRequest(Secret, frozen=True, tag="pharoah/check-request/1"):
    """Does this workload belong here? `ladder` goes from the finest rung to the coarsest. The provider learns both."""

    session: bytes
    ladder: Few[Token]
    context: Token
    context_level: Token


class CheckAnswer(Message, frozen=True, tag="pharoah/check-answer/1"):
    """A `CheckVerdict` by bundle `bundle`, with its evidence; alternatives are within the evidence."""

    bundle: Count
    verdict: Count
    evidence: MismatchEntry | None
    hazards: Many[HazardEntry]

    def __post_init__(self) -> None:
        CheckVerdict(self.verdict)


class WatchRequest(Secret, frozen=True, tag="pharoah/watch-request/2"):
    """Every hint and end of mine after number `after`; 0 for all that are kept."""

    session: bytes
    after: Count

    def __post_init__(self) -> None:
        if self.after < 0:
            raise ValueError("hints are numbered from 1 on")


class Hint(Message, frozen=True, tag="pharoah/hint/1"):
    """A lease's hazard of infrastructure failures has changed.

    `ratio` is the hazard now over what is usual on such contexts, with its 95% interval; `probability` that of a
    failure within the next `within_hours`. `times` counts the episodes of this lease, this one included.
    """

    number: Count
    at_h: Number
    lease: LeaseId
    state: HintState
    suspicion: Suspicion
    ratio: Number
    ratio_low: Number
    ratio_high: Number
    probability: Number
    within_hours: Number
    action: Action
    times: Count

    def __post_init__(self) -> None:
        if self.number < 1 or self.times < 1:
            raise ValueError("hints and episodes are numbered from 1 on")
        if not 0 <= self.ratio_low <= self.ratio <= self.ratio_high < math.inf:
            raise ValueError("ratio must be finite, not negative and within its interval")
        if not 0 <= self.probability <= 1:
            raise ValueError("probability must lie in [0, 1]")


class LeaseChange(StrEnum):
    """What became of a lease's end. `MOVED`: another one is planned. `REQUEUED`: its job waits for another lease."""

    MOVED = "moved"
    ENDED = "ended"
    ENDED_EARLY = "ended_early"
    REQUEUED = "requeued"


class LeaseEnd(Message, frozen=True, tag="pharoah/lease-end/1"):
    """The end of a lease, as the provider follows it: said at hour `at_h`, at hour `end_h`, planned before `planned_h`.

    `planned_h` is None where no end was planned. It does not say who ended the lease: a lease ends with its job, too.
    """

    number: Count
    at_h: Number
    lease: LeaseId
    change: LeaseChange
    end_h: Number
    planned_h: Number | None

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError("ends are numbered from 1 on")


Notice = Hint | LeaseEnd


def kind_of_notice(body: Bytes) -> type[Hint] | type[LeaseEnd]:
    """The kind that the bytes of a notice are labelled as; `Hint` for what is neither, which does not decode."""
    return LeaseEnd if is_labelled(LeaseEnd, body) else Hint


class Outcome(Secret, frozen=True, tag="pharoah/outcome/1"):
    """What a test after hint `hint` showed: whether `suspicion` holds, and how far from normal performance is."""

    session: bytes
    hint: Count
    lease: LeaseId
    suspicion: Suspicion
    confirmed: bool
    shortfall_percent: Number

    def __post_init__(self) -> None:
        if self.hint < 1 or not 0 <= self.shortfall_percent <= 100:
            raise ValueError("hints are numbered from 1 on, and a shortfall lies in [0, 100]")


class Introduction(Message, frozen=True, tag="pharoah/introduction/1"):
    """The holder of `key` calls the server whose root has the digest `server`, at `at_s` (seconds since 1970).

    It permits nothing by itself; a server keeps places for callers whom it knows.
    """

    key: VerifyKey
    server: Digest
    at_s: Count
