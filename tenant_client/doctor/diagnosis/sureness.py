r"""How sure a diagnosis is: the share of labelled cases in which such evidence was right about such a cause.

- `sureness.toml` holds, for each kind of evidence and each family of reasons (whose fault: infrastructure, framework,
  script; or `stopped`, nobody's), the cases, those with the right reason, and those with the right domain.
  `pharoah-sim study sureness --write` makes it, of logs that other hands wrote and labelled.
- What is told is the lower end of the exact one-sided 95% interval (Clopper and Pearson, Biometrika 1934) of the
  family's cases, or of all cases of that kind of evidence where that is less.
- Fewer than a handful of cases prove nothing: then nothing is told, as of an owner's lesson and an unknown cause.

Not promised: the share among your own failures, which are other ones than the labelled cases.

    >>> known = parse("[traceback]\ncases = [90, 89, 90]\nfamilies = { script = [5, 5, 5] }")[Basis.TRACEBACK]
    >>> round(known.share("script", 1), 2), known.share("framework", 1)
    (0.55, None)
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from federation.protocol.causes import Domain
from federation.protocol.toml_tables import BadTable, LazyTable, convert, loads, shipped
from tenant_client.doctor.sources import (
    elastic,
    exit_status,
    flight_recorder_file,
    job_log,
    kernel_log,
    nccl_log,
    torchrun,
)
from tenant_client.doctor.sources.evidence import Evidence, Form, Role
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN

if TYPE_CHECKING:  # it loads numpy for dumps
    from tenant_client.doctor.diagnosis.diagnose import Diagnosis

STOPPED = "stopped"
FAMILIES = (*Domain, STOPPED)
_HANDFUL = 5
_ERRS = 0.05
_FILE = "sureness.toml"


class Basis(StrEnum):
    """What a diagnosis rests on."""

    LAUNCHER = "launcher"
    EXIT_STATUS = "exit_status"
    ERROR_FILE = "error_file"
    TRACEBACK = "traceback"
    LAST_WORDS = "last_words"
    LOG_LINE = "log_line"
    KERNEL_LOG = "kernel_log"
    NCCL_LOG = "nccl_log"
    FLIGHT_RECORDER = "flight_recorder"
    SYMPTOM = "symptom"
    SEVERAL = "several"


WORDS: Mapping[Basis, str] = MappingProxyType(
    {
        Basis.LAUNCHER: "the launcher's verdict",
        Basis.EXIT_STATUS: "the exit status alone",
        Basis.ERROR_FILE: "torchrun's error file",
        Basis.TRACEBACK: "a traceback",
        Basis.LAST_WORDS: "an exception without its traceback",
        Basis.LOG_LINE: "a line of the job's log",
        Basis.KERNEL_LOG: "the kernel log",
        Basis.NCCL_LOG: "NCCL's log",
        Basis.FLIGHT_RECORDER: "flight recorder dumps",
        Basis.SYMPTOM: "a symptom",
        Basis.SEVERAL: "several sources that agree",
    }
)
_BY_SOURCE = {
    torchrun.SOURCE: Basis.LAUNCHER,
    exit_status.SOURCE: Basis.EXIT_STATUS,
    elastic.SOURCE: Basis.ERROR_FILE,
    kernel_log.SOURCE: Basis.KERNEL_LOG,
    nccl_log.SOURCE: Basis.NCCL_LOG,
    flight_recorder_file.SOURCE: Basis.FLIGHT_RECORDER,
}
_BY_FORM = {Form.TRACEBACK: Basis.TRACEBACK, Form.LAST_WORDS: Basis.LAST_WORDS, Form.LINE: Basis.LOG_LINE}


@dataclass(frozen=True)
class Sureness:
    """How sure a diagnosis is of its reason and of its domain, from 0 to 1, and the measured cases like it."""

    basis: Basis
    reason: float
    domain: float
    cases: int
    right: int

    @property
    def words(self) -> str:
        """For a person."""
        measured = f"{self.right} of {self.cases} measured cases like it were right"
        return f"at least {self.reason:.0%} sure: from {WORDS[self.basis]} ({measured})"


@dataclass(frozen=True)
class Shares:
    """Of one basis: (cases, right reason, right domain), in all and by family of reasons."""

    cases: tuple[int, int, int]
    families: Mapping[str, tuple[int, int, int]]

    def share(self, family: str, which: int) -> float | None:
        """The least expected share of right reasons (1) or right domains (2); None of fewer than a handful of cases."""
        own = self.families.get(family, (0, 0, 0))
        return None if own[0] < _HANDFUL else min(_least(of[which], of[0]) for of in (own, self.cases))


def _least(right: int, n: int) -> float:
    """The share of which so many right cases or more would come about in one of twenty samples."""
    low, high = 0.0, 1.0
    for _ in range(24):
        share = (low + high) / 2
        tail = sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(right, n + 1))
        low, high = (share, high) if tail < _ERRS else (low, share)
    return low


TABLE: Mapping[Basis, Shares] = LazyTable(lambda: parse(shipped("tenant_client.doctor.diagnosis", _FILE)))


def sureness_of(diagnosis: "Diagnosis", table: Mapping[Basis, Shares] = TABLE) -> Sureness | None:
    """How sure it is; None for an unknown cause, and for a basis that nobody has measured."""
    basis, family = basis_of(diagnosis), family_of(diagnosis)
    if basis is None or basis not in table:
        return None
    reason, domain = (table[basis].share(family, which) for which in (1, 2))
    if reason is None or domain is None:
        return None
    n, right, _ = table[basis].families[family]
    return Sureness(basis, reason, domain, n, right)


def family_of(diagnosis: "Diagnosis") -> str:
    """Whose fault it is, by the diagnosis; `stopped` where it is nobody's."""
    return diagnosis.domain or STOPPED


def basis_of(diagnosis: "Diagnosis") -> Basis | None:
    """What a diagnosis rests on; None for an unknown cause and for an owner's lesson."""
    root = diagnosis.root
    if root is None or diagnosis.reason == UNKNOWN:
        return None
    own = _BY_SOURCE.get(root.source) or (_BY_FORM[root.form] if root.source == job_log.SOURCE else None)
    if own is not None and any(_agrees(other, root) for other in _others(diagnosis)):
        return Basis.SEVERAL
    return Basis.SYMPTOM if own is not None and root.role is Role.SYMPTOM else own


def _others(diagnosis: "Diagnosis") -> Iterator[Evidence]:
    yield from diagnosis.cascade
    if diagnosis.verdict is not None:
        yield diagnosis.verdict


def _agrees(other: Evidence, root: Evidence) -> bool:
    """Whether another source says the same, or the launcher names the rank that raised the root's exception."""
    if other.source == root.source:
        return False
    if other.source == torchrun.SOURCE and other.reason == UNKNOWN:
        return other.rank is not None and other.rank == root.rank
    return other.role is Role.ROOT and _same(other.reason, root.reason)


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    parents = [REASONS[reason].parent if reason in REASONS else "" for reason in (one, other)]
    return one == parents[1] or other == parents[0]


# ---- the table -----------------------------------------------------------------------------------------------------


_Counts = tuple[int, int, int]


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cases: _Counts
    families: dict[str, _Counts]


def parse(text: str) -> Mapping[Basis, Shares]:
    """Read a table; BadTable for an unknown basis or family, and for more right cases than there are."""
    table = convert(loads(text, _FILE), dict[Basis, _Row], _FILE)
    for basis, row in table.items():
        for family, counts in (("", row.cases), *row.families.items()):
            if family and family not in FAMILIES:
                raise BadTable(f"{_FILE}: {basis}: {family!r} is not one of {', '.join(FAMILIES)}")
            if counts[0] < 1 or min(counts) < 0 or max(counts) > counts[0]:
                raise BadTable(f"{_FILE}: {basis}: {family or 'cases'} must be [cases, right, right domain]")
    return MappingProxyType({basis: Shares(row.cases, row.families) for basis, row in table.items()})
