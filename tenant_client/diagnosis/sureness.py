r"""How sure a diagnosis is: the share of labelled cases in which the same kind of evidence named the right reason.

- `sureness.toml` holds, for each kind of evidence and for each reason that it named, the cases, those with the right
  reason, and those with the right domain. `python -m benchmarks.diagnosis.sureness --write` measures it.
- It is cautious: of a kind the lower end of Wilson's one-sided 95% interval (Wilson, JASA 1927), which stays low where
  cases are few. A reason whose own cases went worse is less sure than its kind, none is more sure.
- A kind without a case, an owner's lesson and an unknown cause have no sureness.

Not promised: the share among your own failures, which are other ones than the labelled cases.

    >>> known = parse("[traceback]\ncases = [90, 89, 90]\nreasons = { key_error = [1, 0, 1] }")[Basis.TRACEBACK]
    >>> round(known.share("type_error", 1), 2), round(known.share("key_error", 1), 2)
    (0.95, 0.76)
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import msgspec

from federation.protocol.toml_tables import BadTable, LazyTable, convert, loads, shipped
from tenant_client.diagnosis.collectives import findings
from tenant_client.diagnosis.diagnose import Diagnosis
from tenant_client.sources import elastic, exit_status, job_log, kernel_log, nccl_log, torchrun
from tenant_client.sources.evidence import Evidence, Form, Role
from tenant_client.sources.reasons import REASONS, UNKNOWN

_WEIGHT_OF_KIND = 4.0
_Z = 1.645
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
    findings.SOURCE: Basis.FLIGHT_RECORDER,
}
_BY_FORM = {Form.TRACEBACK: Basis.TRACEBACK, Form.LAST_WORDS: Basis.LAST_WORDS, Form.LINE: Basis.LOG_LINE}


@dataclass(frozen=True)
class Sureness:
    """How sure a diagnosis is of its reason and of its domain, from 0 to 1, and the measured cases of its basis."""

    basis: Basis
    reason: float
    domain: float
    cases: int
    right: int

    @property
    def words(self) -> str:
        """For a person."""
        measured = f"{self.right} of {self.cases} measured cases were right"
        return f"at least {self.reason:.0%} sure: from {WORDS[self.basis]} ({measured})"


@dataclass(frozen=True)
class Shares:
    """Of one basis: (cases, right reason, right domain), in all and by reason."""

    cases: tuple[int, int, int]
    reasons: Mapping[str, tuple[int, int, int]]

    def share(self, reason: str, which: int) -> float:
        """Of a reason that this basis names: the least expected share of right reasons (1) or right domains (2)."""
        of_kind = _least(self.cases[which], self.cases[0])
        own = self.reasons.get(reason, (0, 0, 0))
        return min(of_kind, (own[which] + _WEIGHT_OF_KIND * of_kind) / (own[0] + _WEIGHT_OF_KIND))


def _least(right: int, n: int) -> float:
    share, spread = right / n, _Z * _Z / n
    return (share + spread / 2 - math.sqrt(spread * (share * (1 - share) + spread / 4))) / (1 + spread)


TABLE: Mapping[Basis, Shares] = LazyTable(lambda: parse(shipped("tenant_client.diagnosis", _FILE)))


def sureness_of(diagnosis: Diagnosis, table: Mapping[Basis, Shares] = TABLE) -> Sureness | None:
    """How sure it is; None for an unknown cause, and for a basis that nobody has measured."""
    basis = basis_of(diagnosis)
    if basis is None or basis not in table:
        return None
    shares = table[basis]
    n, right, _ = shares.cases
    return Sureness(basis, shares.share(diagnosis.reason, 1), shares.share(diagnosis.reason, 2), n, right)


def basis_of(diagnosis: Diagnosis) -> Basis | None:
    """What a diagnosis rests on; None for an unknown cause and for an owner's lesson."""
    root = diagnosis.root
    if root is None or diagnosis.reason == UNKNOWN:
        return None
    own = _BY_SOURCE.get(root.source) or (_BY_FORM[root.form] if root.source == job_log.SOURCE else None)
    if own is not None and any(_agrees(other, root) for other in _others(diagnosis)):
        return Basis.SEVERAL
    return Basis.SYMPTOM if own is not None and root.role is Role.SYMPTOM else own


def _others(diagnosis: Diagnosis) -> Iterator[Evidence]:
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
    reasons: dict[str, _Counts]


def parse(text: str) -> Mapping[Basis, Shares]:
    """Read a table; BadTable for an unknown basis or reason, and for more right cases than there are."""
    table = convert(loads(text, _FILE), dict[Basis, _Row], _FILE)
    for basis, row in table.items():
        for reason, counts in (("", row.cases), *row.reasons.items()):
            if reason and reason not in REASONS:
                raise BadTable(f"{_FILE}: {basis}: {reason!r} is not a reason of causes.toml or reasons.toml")
            if counts[0] < 1 or min(counts) < 0 or max(counts) > counts[0]:
                raise BadTable(f"{_FILE}: {basis}: {reason or 'cases'} must be [cases, right, right domain]")
    return MappingProxyType({basis: Shares(row.cases, row.reasons) for basis, row in table.items()})
