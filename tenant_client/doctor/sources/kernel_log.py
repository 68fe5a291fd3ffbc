"""The kernel's log: Xid and SXid, the out-of-memory killer, memory and bus errors, links that go down.

Reads `dmesg` (plain, -T, --decode with ISO times), /dev/kmsg records, the journal's short forms and the fabric
manager's log. Seconds since boot are no times (`Evidence.at_s` is None). What a code means stands in `xid.toml`.
An OOM kill of a process that does not look like training is a symptom at most. A link that came up again is none.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits
from federation.protocol.causes import Domain
from federation.protocol.xid_codes import CAUSED_BY, XID_LINE
from tenant_client.doctor.sources.cues import match_line, table
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.links import without_survived
from tenant_client.doctor.sources.prefixes import place, stamp
from tenant_client.doctor.sources.reasons import UNKNOWN
from tenant_client.doctor.sources.scanning import Gate, Line, Scanner, gate_of
from tenant_client.doctor.sources.xid import XIDS, Xid, XidRole

SOURCE = "kernel_log"
_TEXT = 400
_MOST_KINDS = 4096
_SXID = re.compile(r"SXid \((?:PCI:)?[0-9a-fA-F:.]+\): (\d+)(.*)", re.ASCII)
_SLEEPS = re.compile(r"PM: (?:suspend |hibernation: hibernation )e")
_SHAPES = re.compile(
    r"^\d+,\d+,\d+,[-c+];|^(?:<\d+>)?\[ *\d+\.\d{6}\]|^\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]{8} \d{4}\] |^kern +:"
    r"|^\S+(?: +\d+ \S+)? \S+ kernel: |^(?:NVRM: |\[[A-Z][a-z]{2} \d+ \d{4} [\d:]{8}\] \[\w+\] \[tid \d+\])"
    r"|^\d{4}-\d\d-\d\dT[\d:]{8},\d{6}[+-]\d\d:\d\d ",
    re.ASCII,
)


class _Said(NamedTuple):
    reason: str
    role: Role
    domain: Domain | None = None
    advice: str = ""


class KernelLines:
    """Lines in their order: whether some codes are causes depends on what the same GPU said before."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._seen: set[str] = set()

    def evidence(self, line: Line) -> Evidence | None:
        """What a line says, None where it says nothing of a failure."""
        found = (self._xid(line.text) or _sxid(line.text)) if "Xid" in line.text else None
        if found is None:
            cue = match_line(line.text, ("kernel",))
            found = _Said(cue.reason, cue.role, cue.domain, cue.advice) if cue else None
        if found is None:
            return None
        where = place(line.text)
        gpu = "" if "SXid" in line.text or "NVSwitch" in line.text else where.gpu  # a switch's bus id is no GPU's
        text, at_s = line.text.strip()[:_TEXT], stamp(line.text)
        said = found.reason, found.role, SOURCE, self._file, line.number, text, at_s, None, where.host, gpu
        return Evidence(*said, domain=found.domain, advice=found.advice)

    def _xid(self, text: str) -> _Said | None:
        found = XID_LINE.search(text)
        if not found:
            return None
        earlier = CAUSED_BY.search(found[3])
        if earlier:
            blamed = XIDS.get(int(earlier[1]))
            if blamed is None or not blamed.reason:
                return _Said(UNKNOWN, Role.SYMPTOM)
            role = Role.SYMPTOM if blamed.role is XidRole.SYMPTOM else Role.ROOT
            return _Said(blamed.reason, role, blamed.domain, blamed.advice)
        xid = XIDS.get(int(found[2]))
        if xid is None or not xid.reason:
            return _Said(UNKNOWN, Role.SYMPTOM)
        role = _role(xid, found[3], after_another=found[1] in self._seen)
        if role is Role.ROOT:
            self._seen.add(found[1])
        return _Said(xid.reason, role, xid.domain, xid.advice)


def _role(xid: Xid, rest: str, *, after_another: bool) -> Role:
    if xid.role is XidRole.SYMPATHETIC:
        return Role.SYMPTOM if after_another else Role.ROOT
    if xid.role is XidRole.BY_SEVERITY:
        return Role.SYMPTOM if re.search(r"\bNon-?fatal\b(?! XC[1-9])", rest) else Role.ROOT  # XC1: what ran was ended
    return Role(xid.role.value)


def _sxid(text: str) -> _Said | None:
    found = _SXID.search(text)
    if not found:
        return None
    return _Said("nvlink_error", Role.ROOT if re.search(r"(?<!Non-)\bFatal\b", found[2]) else Role.SYMPTOM)


def code_of(evidence: Evidence) -> int | None:
    """The Xid that a piece of evidence is about; None for everything else."""
    found = XID_LINE.search(evidence.text)
    return int(found[2]) if found else None


def sleeps(text: str) -> bool:
    """Whether a line says that the machine is about to sleep, or has woken."""
    return _SLEEPS.search(text) is not None


def looks_like(head: str) -> bool:
    """Whether the first lines of a file are a kernel's or a fabric manager's."""
    lines = [line for line in head.splitlines() if line.strip()][:60]
    return sum(1 for line in lines if _SHAPES.match(line)) * 2 > len(lines)


@cache
def _gate() -> Gate:
    return gate_of(table().words)


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Evidence]:
    """Evidence in the log's order, the first of each kind (reason, role, GPU, code)."""
    scanner, lines = Scanner(without_survived(reader, limits), _gate(), limits), KernelLines(reader.file)
    seen: set[tuple[object, ...]] = set()
    while (line := scanner.hit()) is not None:
        found = lines.evidence(line)
        if found is None:
            continue
        kind = (found.reason, found.role, found.host, found.gpu, code_of(found))
        if kind not in seen and len(seen) < _MOST_KINDS:
            seen.add(kind)
            yield found
