"""NCCL's debug output (`NCCL_DEBUG=INFO|WARN`, also into `NCCL_DEBUG_FILE`): what broke, and in which version.

A line's host, process and device become a rank where an INFO line of the same process named it. A completion error
says that the peer is dead or the link is down: evidence of the network only if nothing else explains it.
"""

import re
from collections.abc import Iterator
from functools import cache

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, lines
from tenant_client.doctor.sources.cues import match_line, table
from tenant_client.doctor.sources.evidence import Evidence
from tenant_client.doctor.sources.prefixes import NCCL_LINE, place, stamp
from tenant_client.doctor.sources.scanning import Gate, Line, Scanner, gate_of

SOURCE = "nccl_log"
RANK_WORD = "COMPLETE"  # of "Init COMPLETE", where a process tells its rank
_TEXT = 400
_OF_CUDA = "cuda_error"
_MOST_KINDS = 4096
_COMM = re.compile(r"\brank (\d{1,7}) nranks (\d{1,7})\b", re.ASCII)
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)", re.ASCII)


class NcclLines:
    """Lines in their order: the ranks of processes are learnt on the way."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._ranks: dict[tuple[str, str], dict[str, int]] = {}

    def evidence(self, line: Line) -> Evidence | None:
        """What a line says, None where it says nothing of a failure."""
        cue = match_line(line.text, ("nccl",))
        if cue is None:
            return None
        if cue.reason == _OF_CUDA:
            cue = match_line(line.text, ("device",)) or cue
        where = place(line.text)
        rank = where.rank if where.rank is not None else self.rank_of(line.text)
        text, at_s = line.text.strip()[:_TEXT], stamp(line.text)
        told = cue.reason, cue.role, SOURCE, self._file, line.number, text, at_s, rank, where.host, where.gpu
        return Evidence(*told, domain=cue.domain, advice=cue.advice)

    def rank_of(self, text: str) -> int | None:
        """The rank that wrote a line, where it said so before; of a process with several GPUs, that of the line's."""
        found = NCCL_LINE.search(text[:256])
        ranks = self._ranks.get((found["host"], found["pid"]), {}) if found else {}
        return next(iter(ranks.values())) if len(ranks) == 1 else ranks.get(found["gpu"]) if found else None

    def learn(self, text: str) -> None:
        """Note the rank of a process' GPU that tells it."""
        if RANK_WORD not in text:
            return
        found, comm = NCCL_LINE.search(text[:256]), _COMM.search(text)
        if found and comm and len(self._ranks) < 1 << 17:
            self._ranks.setdefault((found["host"], found["pid"]), {}).setdefault(found["gpu"], int(comm[1]))


def looks_like(head: str) -> bool:
    """Whether the first lines of a file are NCCL's own."""
    found = [line for line in head.splitlines() if line.strip()][:60]
    return sum(1 for line in found if NCCL_LINE.search(line[:160]) or _VERSION.search(line)) * 5 > len(found) * 4


@cache
def _gate() -> Gate:
    return gate_of((*table().words, RANK_WORD))


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Evidence]:
    """Evidence in the log's order, the first of each kind (reason, role, host, device)."""
    scanner, known = Scanner(reader, _gate(), limits), NcclLines(reader.file)
    seen: set[tuple[object, ...]] = set()
    while (line := scanner.hit()) is not None:
        known.learn(line.text)
        found = known.evidence(line)
        if found is None:
            continue
        kind = (found.reason, found.role, found.rank, found.host, found.gpu)
        if kind not in seen and len(seen) < _MOST_KINDS:
            seen.add(kind)
            yield found


def version(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> str:
    """The version of NCCL as its log names it, "" where it does not."""
    for _, raw in lines(reader, limits):
        found = _VERSION.search(raw[:4096].decode("utf-8", "replace")) if b"NCCL version" in raw else None
        if found:
            return found[1]
    return ""
