"""Evidence of a failure: one observation of a source, with its file and line. It never leaves the tenant.

>>> seen = Evidence("nvlink_error", Role.ROOT, "kernel_log", "dmesg", 12, "NVRM: Xid (PCI:0000:3b:00): 74, …")
>>> seen.where
'dmesg, line 12'
"""

from dataclasses import dataclass
from enum import StrEnum

from federation.protocol.causes import Domain


class Role(StrEnum):
    """The role of an observation: the root of a failure, a symptom of it, or teardown of the processes."""

    ROOT = "root"
    SYMPTOM = "symptom"
    TEARDOWN = "teardown"


class Form(StrEnum):
    """How a log says it: one line that a cue knows, a traceback, or an exception's last line without one."""

    LINE = "line"
    TRACEBACK = "traceback"
    LAST_WORDS = "last_words"


@dataclass(frozen=True)
class Evidence:
    """One observation.

    `reason` is a slug of `sources.reasons.REASONS` or `unknown`; `line` counts from 1, 0 where lines mean
    nothing; `at_s` in seconds since the epoch, None where the source has no clock; `gpu` a PCI bus id or an index, ""
    where not named. `domain` and `advice` are what it says of itself; None and "" where those of its reason hold.
    """

    reason: str
    role: Role
    source: str
    file: str
    line: int
    text: str
    at_s: float | None = None
    rank: int | None = None
    host: str = ""
    gpu: str = ""
    form: Form = Form.LINE
    domain: Domain | None = None
    advice: str = ""

    @property
    def where(self) -> str:
        """File and line, for a person."""
        return f"{self.file}, line {self.line}" if self.line else self.file


@dataclass(frozen=True)
class NoFault:
    """What a file that shows no fault says: `all 2 jobs completed`."""

    text: str
