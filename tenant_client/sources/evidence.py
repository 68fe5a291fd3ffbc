"""What a source saw go wrong: one observation, with the place it came from. It stays with its owner.

>>> seen = Evidence("nvlink_error", Role.ROOT, "kernel_log", "dmesg", 12, "NVRM: Xid (PCI:0000:3b:00): 74, …")
>>> seen.where
'dmesg, line 12'
"""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What an observation can be in a failure: its beginning, what follows from it, or the end of the processes."""

    ROOT = "root"
    SYMPTOM = "symptom"
    TEARDOWN = "teardown"


@dataclass(frozen=True)
class Evidence:
    """One observation.

    `reason` is a slug of `federation.protocol.causes.CAUSES` or `unknown`; `line` counts from 1, 0 where lines mean
    nothing; `at_s` in seconds since the epoch, None where the source has no clock; `gpu` a PCI bus id or an index, ""
    where not named.
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

    @property
    def where(self) -> str:
        """File and line, for a person."""
        return f"{self.file}, line {self.line}" if self.line else self.file
