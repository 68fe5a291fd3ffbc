"""Reads a job's output: tracebacks, CUDA and watchdog messages, messages of launchers and schedulers.

- Lines of the kernel and of NCCL are read as in their own logs.
- An exception counts at the end of a traceback, not if a text mentions it. Of chained exceptions one counts
  (`spokesman`).
- A failure that the job survived for `_SURVIVED` more steps is dropped. Lines after a scheduler's stop order are
  teardown.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from tenant_client.sources.cues import Cue, Level, match_exception, match_line, says_something, table
from tenant_client.sources.evidence import Evidence, Form, Role
from tenant_client.sources.kernel_log import KernelLines
from tenant_client.sources.nccl_log import RANK_WORD, NcclLines
from tenant_client.sources.prefixes import NCCL_LINE, LineOrigin, place, stamp
from tenant_client.sources.reading import DEFAULT_LIMITS, CappedReader, ReadLimits
from tenant_client.sources.reasons import UNKNOWN, somebody_ended
from tenant_client.sources.scanning import Line, Scanner, gate_of
from tenant_client.sources.torchrun import WORDS as TORCHRUN_WORDS, TorchrunLines
from tenant_client.sources.tracebacks import Raised, Tracebacks, is_exception

SOURCE = "job_log"
_TEXT = 400
_MOST_KINDS = 1024
_SURVIVED = 5
_LAST_WORDS = 4
_LAUNCHER = re.compile(r"(?:srun|slurmstepd): |\[?mpirun|make: ", re.ASCII)  # what ends a job has its own last words
# What launchers, containers and notebooks put before a line.
_BEFORE = re.compile(r"^(?:\[?(?:rank|default)?\d{1,6}\]?: ?|\([^()]{1,80}\) |(?:E|ERROR)[: ]+ ?)+", re.ASCII)
DISK_FULL = "disk_full"
_IGNORED = "xception ignored in"
_PROGRESS_WORDS = ("it/s", "s/it", "loss", "iteration")
_STEP = re.compile(r"\b(\d+)/\d+ \[|\biteration\D{0,12}(\d+)|\b(?:step|iter)\W{1,8}(\d+)", re.ASCII | re.IGNORECASE)
_STOPPED = re.compile(r"CANCELLED AT \S+(?: DUE TO (TIME LIMIT|PREEMPTION))?")
_ERROR_LOOKING = re.compile(r"\b(?:error|fatal|fail(?:ed|ure)|abort(?:ed)?)\b|\w(?:Error|Exception)\b", re.IGNORECASE)

# An exception of these may be a question that the program asked: `except KeyError: build it`.
_PROBES = frozenset({"KeyError", "AttributeError", "IndexError", "ImportError", "ModuleNotFoundError", "StopIteration"})
# Reasons that say more than the exception that they were raised from.
_TELLING = frozenset({"model_loading_error", "dataset_loading_error", "argument_error"})


@dataclass
class Leftover:
    """What a log says that no cue explains: lines that look like errors, and the last lines."""

    suspicious: deque[Line] = field(default_factory=lambda: deque(maxlen=400))
    tail: list[Line] = field(default_factory=list)


def read(
    reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS, leftover: Leftover | None = None
) -> Iterator[Evidence]:
    """Evidence in the log's order, the first of each kind; `leftover` takes what stayed unexplained."""
    job = _Job(reader.file, leftover or Leftover())
    scanner = Scanner(reader, _gate(), limits)
    while (line := job.wanted(scanner)) is not None:
        job.take(line)
    job.leftover.tail = scanner.tail()
    yield from job.close()


@cache
def _words() -> tuple[str, ...]:
    return (*table().words, *TORCHRUN_WORDS, RANK_WORD, _IGNORED)


@cache
def _gate() -> re.Pattern[bytes]:
    return gate_of(_words())


@cache
def _gate_and_progress() -> re.Pattern[bytes]:
    return gate_of((*_words(), *_PROGRESS_WORDS))


class _Job:
    def __init__(self, file: str, leftover: Leftover) -> None:
        self._file = file
        self.leftover = leftover
        self._kept: dict[tuple[object, ...], Evidence] = {}
        self._tracebacks = Tracebacks()
        self._kernel, self._nccl, self._torchrun = KernelLines(file), NcclLines(file), TorchrunLines(file)
        self._steps: set[str] = set()
        self._stopped, self._stopped_at = "", 0
        self._ignored = -2
        self._read: deque[str] = deque(maxlen=64)  # of tracebacks

    def wanted(self, scanner: Scanner) -> Line | None:
        """The next line to look at: any within a traceback, else one that holds a word."""
        if self._tracebacks.open or self._torchrun.open:
            return scanner.line()
        return scanner.hit(_gate_and_progress() if self._kept else None)

    def take(self, line: Line) -> None:
        if _IGNORED in line.text:
            self._ignored = line.number
        part = self._tracebacks.feed(line.number, line.text, muted=0 <= line.number - self._ignored <= 1)
        for chain in self._tracebacks.finished():
            self._keep(self._of_chain(chain))
        if part:
            self._read.append(line.text)
        elif not self._spoke(line) and (self._kept or self._tracebacks.open):
            self._went_on(line.text)

    def close(self) -> list[Evidence]:
        for chain in self._tracebacks.close():
            self._keep(self._of_chain(chain))
        if not any(seen.role is Role.ROOT for seen in self._kept.values()):
            self._keep_last_words()
        return sorted(self._kept.values(), key=lambda seen: seen.line)

    def _keep_last_words(self) -> None:
        """Takes an exception's last line without its traceback: weak evidence, so only where the log ends with it."""
        told = [line for line in self.leftover.tail if not _LAUNCHER.match(line.text)]
        last = told[-_LAST_WORDS:]
        went_on = max((at for at, line in enumerate(last) if _STEP.search(line.text)), default=-1)
        for line in last[went_on + 1 :]:
            text = _BEFORE.sub("", line.text.strip(), count=1)
            cue = match_exception(text, ()) if line.text not in self._read and is_exception(text) else None
            if cue is not None and cue.role is Role.ROOT:
                self._keep(self._evidence(cue, line.number, text, line.text, Form.LAST_WORDS))

    def _spoke(self, line: Line) -> bool:
        self._nccl.learn(line.text)
        verdict = self._torchrun.evidence(line)
        if verdict is not None:
            self._keep(verdict)
            return True
        if not says_something(line.text):
            return False
        seen = self._kernel.evidence(line) or self._nccl.evidence(line) or self._of_line(line)
        if seen is not None:
            self._keep(seen)
        elif _ERROR_LOOKING.search(line.text):
            self.leftover.suspicious.append(Line(line.number, line.text.strip()[:_TEXT]))
        return seen is not None

    def _of_line(self, line: Line) -> Evidence | None:
        cue = match_line(line.text, ("job",))
        if cue is None:
            return None
        stopped = _STOPPED.search(line.text)
        if stopped and (cue.role is Role.TEARDOWN or somebody_ended(cue.reason)):
            self._stopped, self._stopped_at = stopped[1] or "CANCELLED", line.number
        return self._evidence(cue, line.number, line.text, line.text)

    def _of_chain(self, chain: Sequence[Raised]) -> Evidence:
        raised, cue = spokesman(chain)
        if cue is None:
            self.leftover.suspicious.append(Line(raised.line, raised.text[:_TEXT]))
        return self._evidence(cue, raised.line, raised.text, raised.head, Form.TRACEBACK)

    def _evidence(self, cue: Cue | None, number: int, text: str, head: str, form: Form = Form.LINE) -> Evidence:
        reason, role = (cue.reason, cue.role) if cue else (UNKNOWN, Role.ROOT)
        where, text, at_s = place(head), text.strip()[:_TEXT], stamp(head)
        if where.rank is None and NCCL_LINE.search(head[:256]):
            where = LineOrigin(self._nccl.rank_of(head), where.host, where.gpu)
        return Evidence(reason, role, SOURCE, self._file, number, text, at_s, where.rank, where.host, where.gpu, form)

    def _keep(self, seen: Evidence) -> None:
        if self._after_stop(seen):
            seen = replace(seen, role=Role.TEARDOWN)
        kind = (seen.reason, seen.role, seen.rank, seen.host, seen.gpu, seen.source)
        known = self._kept.get(kind)
        if (known is None and len(self._kept) < _MOST_KINDS) or (known is not None and seen.line < known.line):
            self._kept[kind] = seen  # a traceback is complete only some lines after its exception
        if seen.role is not Role.TEARDOWN:
            self._steps.clear()

    def _after_stop(self, seen: Evidence) -> bool:
        if not self._stopped or seen.line <= self._stopped_at or seen.reason == "node_failure":
            return False
        return self._stopped != "CANCELLED" or seen.role is Role.SYMPTOM

    def _went_on(self, text: str) -> None:
        if not any(word in text for word in _PROGRESS_WORDS):
            return
        found = _STEP.search(text)
        self._steps.add(next(filter(None, found.groups())) if found else text[:_TEXT])
        if len(self._steps) >= _SURVIVED:
            self._kept.clear()
            self._steps.clear()
            self._tracebacks = Tracebacks()
            self._stopped = ""


def spokesman(chain: Sequence[Raised]) -> tuple[Raised, Cue | None]:
    """Of a chain of exceptions, oldest first, the one that names the cause, with its cue.

    The lowest level below the program's own wins, of equals the cue that stands first; then what says more than its
    cause (a checkpoint that cannot be loaded). Else the first: what happened while it was handled does not replace it,
    unless it was a probe.
    """
    matched = [(raised, _cue_of(raised)) for raised in chain]
    full = next((pair for pair in matched if pair[1] and pair[1].reason == DISK_FULL), None)
    if full:  # whatever a library makes of it
        return full
    for role in (Role.ROOT, Role.SYMPTOM):
        known = [(raised, cue) for raised, cue in matched if cue and cue.role is role]
        low = [pair for pair in known if pair[1].level < Level.PROGRAM]
        telling = [pair for pair in known if pair[1].reason in _TELLING]
        if low or telling:
            return min(low, key=lambda pair: (pair[1].level, pair[1].order)) if low else telling[0]
    first, last = 0, len(chain) - 1  # the last one may have a successor too, which the log's end cut off
    while first < last and chain[first].then == "handling" and chain[first].type in _PROBES:
        first += 1
    return next((pair for pair in matched[first:] if pair[1] is None or pair[1].role is Role.ROOT), matched[first])


def _cue_of(raised: Raised) -> Cue | None:
    """That of the exception, or of the one that it wraps: `InductorError: CalledProcessError: …`."""
    cue, (_, _, wrapped) = match_exception(raised.text, raised.frames), raised.text.partition(": ")
    return match_exception(wrapped, raised.frames) if cue is None and is_exception(wrapped) else cue
