"""What a tenant says to the provider's online service and hears from it, beside the rounds (`crypto.messages`).

tenant → provider   Signed(SignIn)      who asks; the answer is a Session
provider → tenant   Session             a bearer token for the calls below, for a while
tenant → provider   CheckRequest        tokens of a workload and of a context; the answer is a CheckAnswer
tenant → provider   WatchRequest        hints after this number, for as long as the tenant listens
provider → tenant   Hint                one of the tenant's own leases is in danger, or no longer
tenant → provider   Outcome             what a test confirmed; sent only if the tenant has opted in
caller → server     Signed(Introduction)   who calls, in the metadata of a call (`transport.introductions`)

A hint speaks of a lease as a whole: of no device, no node, no serial number and no other tenant. Its suspicion is a
kind of hardware and never more. Hints of one tenant are numbered 1, 2, 3, … without a gap, so that a tenant which kept
the last number it acted on misses none and takes none twice.
"""

import math
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import ClassVar

from crypto.bundle import HazardEntry, MismatchEntry
from crypto.ids import Digest, LeaseId, TenantId, Token, VerifyKey

SESSION_BYTES = 64


class Verdict(IntEnum):
    """What a check says, and the exit codes of `pharoah-tenant check`."""

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
    """The one thing to do."""

    NOTHING = "nothing"
    CHECKPOINT = "checkpoint"
    CONFIRM = "confirm"
    MOVE = "move"


@dataclass(frozen=True)
class SignIn:
    """Signed by the tenant; the provider takes it within minutes of `at_s` (seconds since 1970), by its own clock."""

    LABEL: ClassVar[str] = "pharoah/sign-in/1"
    tenant: TenantId
    at_s: int


@dataclass(frozen=True, repr=False)
class Session:
    """A bearer token: whoever shows it until `until_s` is the tenant. A secret, and so without a repr."""

    LABEL: ClassVar[str] = "pharoah/session/1"
    token: bytes
    until_s: int

    def __post_init__(self) -> None:
        if len(self.token) != SESSION_BYTES:
            raise ValueError(f"a session's token has {SESSION_BYTES} bytes")


@dataclass(frozen=True, repr=False)
class CheckRequest:
    """Does this workload belong here? `ladder` goes from the finest rung to the coarsest. The provider learns both."""

    LABEL: ClassVar[str] = "pharoah/check-request/1"
    session: bytes
    ladder: tuple[Token, ...]
    context: Token
    context_level: Token


@dataclass(frozen=True)
class CheckAnswer:
    """A verdict (a value of `Verdict`) by bundle `bundle`, with its evidence; alternatives are within the evidence."""

    LABEL: ClassVar[str] = "pharoah/check-answer/1"
    bundle: int
    verdict: int
    evidence: MismatchEntry | None
    hazards: tuple[HazardEntry, ...]

    def __post_init__(self) -> None:
        Verdict(self.verdict)


@dataclass(frozen=True, repr=False)
class WatchRequest:
    """Every hint of mine after number `after`; 0 for all that are kept."""

    LABEL: ClassVar[str] = "pharoah/watch-request/1"
    session: bytes
    after: int

    def __post_init__(self) -> None:
        if self.after < 0:
            raise ValueError("hints are numbered from 1 on")


@dataclass(frozen=True)
class Hint:
    """A lease's hazard of infrastructure failures has changed.

    `ratio` is the hazard now over what is usual on such contexts, with its 95% interval; `probability` that of a
    failure within the next `within_hours`. `times` counts the episodes of this lease, this one included.
    """

    LABEL: ClassVar[str] = "pharoah/hint/1"
    number: int
    at_h: float
    lease: LeaseId
    state: HintState
    suspicion: Suspicion
    ratio: float
    ratio_low: float
    ratio_high: float
    probability: float
    within_hours: float
    action: Action
    times: int

    def __post_init__(self) -> None:
        if self.number < 1 or self.times < 1:
            raise ValueError("hints and episodes are numbered from 1 on")
        if not 0 <= self.ratio_low <= self.ratio <= self.ratio_high < math.inf:
            raise ValueError("ratio must be finite, not negative and within its interval")
        if not 0 <= self.probability <= 1:
            raise ValueError("probability must lie in [0, 1]")


@dataclass(frozen=True, repr=False)
class Outcome:
    """What a test after hint `hint` showed: whether `suspicion` holds, and how far from normal performance is."""

    LABEL: ClassVar[str] = "pharoah/outcome/1"
    session: bytes
    hint: int
    lease: LeaseId
    suspicion: Suspicion
    confirmed: bool
    shortfall_percent: float

    def __post_init__(self) -> None:
        if self.hint < 1 or not 0 <= self.shortfall_percent <= 100:
            raise ValueError("hints are numbered from 1 on, and a shortfall lies in [0, 100]")


@dataclass(frozen=True)
class Introduction:
    """The holder of `key` calls the server whose certificate has the digest `server`, at `at_s` (seconds since 1970).

    It permits nothing by itself; a server keeps places for callers whom it knows.
    """

    LABEL: ClassVar[str] = "pharoah/introduction/1"
    key: VerifyKey
    server: Digest
    at_s: int
