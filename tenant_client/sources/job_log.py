"""Reads a job's output: tracebacks, CUDA and watchdog messages, messages of launchers and schedulers.

- Lines of the kernel and of NCCL are read as in their own logs.
- An exception counts at the end of a traceback, not if a text mentions it. Of chained exceptions one counts
  (`spokesman`).
- A warning counts where a later failure is what it warned of.
- A failure that the job survived for `_SURVIVED` more steps is dropped. Lines after a scheduler's stop order are
  teardown.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from federation.runtime.reading import DEFAULT_LIMITS, CappedReader, ReadLimits
from tenant_client.sources import last_words
from tenant_client.sources.containers import lines_of
from tenant_client.sources.cues import Cue, Level, level_of, match_exception, match_line, says_something, table
from tenant_client.sources.evidence import Evidence, Form, Role
from tenant_client.sources.kernel_log import KernelLines
from tenant_client.sources.last_words import STEP
from tenant_client.sources.nccl_log import RANK_WORD, NcclLines
from tenant_client.sources.prefixes import NCCL_LINE, LineOrigin, place, stamp
from tenant_client.sources.reasons import REASONS, UNKNOWN, somebody_ended
from tenant_client.sources.scanning import Line, Scanner, gate_of
from tenant_client.sources.torchrun import WORDS as TORCHRUN_WORDS, TorchrunLines
from tenant_client.sources.tracebacks import Raised, Tracebacks

SOURCE = "job_log"
_TEXT = 400
_MOST_KINDS = 1024
_MOST_WARNINGS = 64
_SURVIVED = 5
DISK_FULL = "disk_full"
CANCELLED = "cancelled"
SEGFAULT = "segmentation_fault"
_OWN_CRASH = re.compile(r"Caught signal|SIGSEGV received|Fatal Python error")
_WRAPPED = re.compile(r"(?<=[\s(])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception))(?:: |\(['\"])")
_IGNORED = "xception ignored in"
_PROGRESS_WORDS = ("it/s", "s/it", "loss", "iteration")
_COUNTED_WORDS = ("step", "upd", "batch")  # progress where a number follows
_COUNTED = re.compile(r"\b(?:step|upd|updates?|batch)\W{1,8}(\d+)", re.ASCII | re.IGNORECASE)
_STOPPED = re.compile(r"CANCELLED AT \S+(?: DUE TO (TIME LIMIT|PREEMPTION))?")
_ERROR_LOOKING = re.compile(r"\b(?:error|fatal|fail(?:ed|ure)|abort(?:ed)?)\b|\w(?:Error|Exception)\b", re.IGNORECASE)

# An exception of these may be a question that the program asked: `except KeyError: build it`.
_PROBES = frozenset({"KeyError", "AttributeError", "IndexError", "ImportError", "ModuleNotFoundError", "StopIteration"})
# Reasons that say more than the exception that they were raised from.
_TELLING = frozenset({"model_loading_error", "dataset_loading_error", "argument_error"})
_WORKER_LEFT = "exited unexpectedly"  # of a data loader; PyTorch gives no reason


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
        for inner in lines_of(line):
            job.take(inner)
    job.leftover.tail = [inner for line in scanner.tail() for inner in lines_of(line)]
    yield from job.close()


@cache
def _words() -> tuple[str, ...]:
    return (*table().words, *TORCHRUN_WORDS, RANK_WORD, _IGNORED)


@cache
def _gate() -> re.Pattern[bytes]:
    return gate_of(_words())


@cache
def _gate_and_progress() -> re.Pattern[bytes]:
    return gate_of((*_words(), *_PROGRESS_WORDS, *_COUNTED_WORDS))


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
        self._warned: deque[tuple[re.Pattern[str], Evidence]] = deque(maxlen=_MOST_WARNINGS)
        self._read: deque[str] = deque(maxlen=1024)  # of tracebacks

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
        if not any(seen.role is Role.ROOT and seen.reason != CANCELLED for seen in self._kept.values()):
            self._keep_last_words()
        failed = [seen for seen in self._kept.values() if seen.role is Role.ROOT]
        for explains, warning in self._warned:
            if any(seen.line > warning.line and explains.search(seen.text) for seen in failed):
                self._keep(warning)
        return sorted(self._kept.values(), key=lambda seen: seen.line)

    def _keep_last_words(self) -> None:
        """Takes weak evidence from the end; of a job that was cancelled, only what made it fail before that."""
        tail = self.leftover.tail
        if self._stopped and not any(ended_itself(line.text) for line in tail):
            return
        tail = [line for line in tail if not self._stopped or line.number < self._stopped_at]
        exceptions = last_words.raised(tail, self._read)
        one, cue = spokesman(exceptions) if exceptions else (None, None)
        if one is not None and cue is not None:
            self._keep(self._evidence(cue, one.line, one.text, one.head, Form.LAST_WORDS))
        word = None if any(_tells(seen) for seen in self._kept.values()) else last_words.said(tail)
        if word is not None:
            self._keep(self._evidence(word.cue, word.line.number, word.text, word.line.text, Form.LAST_WORDS))

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
        cue = match_line(line.text, ("warning", "job"))
        if cue is None:
            return None
        if cue.explains:
            self._warned.append((cue.explains, self._evidence(cue, line.number, line.text, line.text)))
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
        domain, advice = (cue.domain, cue.advice) if cue else (None, "")
        where, text, at_s = place(head), text.strip()[:_TEXT], stamp(head)
        if where.rank is None and NCCL_LINE.search(head[:256]):
            where = LineOrigin(self._nccl.rank_of(head), where.host, where.gpu)
        said = reason, role, SOURCE, self._file, number, text, at_s, where.rank, where.host, where.gpu, form
        return Evidence(*said, domain, advice)

    def _keep(self, seen: Evidence) -> None:
        if self._after_stop(seen) or self._crashed_for_a_peer(seen):
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

    def _crashed_for_a_peer(self, seen: Evidence) -> bool:
        """Who lost its peer may crash while it ends; what a launcher says of a crash comes late by nature."""
        if seen.reason != SEGFAULT or not _OWN_CRASH.search(seen.text):
            return False
        before = [one for one in self._kept.values() if one.role is Role.SYMPTOM and one.line < seen.line]
        return any(level_of(one.reason) in (Level.NETWORK, Level.COLLECTIVE) for one in before)

    def _went_on(self, text: str) -> None:
        found = STEP.search(text)
        if not any(word in text for word in _PROGRESS_WORDS):
            found = _COUNTED.search(text)
            if not found:
                return
        self._steps.add(next(filter(None, found.groups())) if found else text[:_TEXT])
        if len(self._steps) >= _SURVIVED:
            self._kept.clear()
            self._steps.clear()
            self._tracebacks = Tracebacks()
            self._stopped = ""


def _tells(seen: Evidence) -> bool:
    """Whether weak evidence beside this would say less: it is a root, or what survivors say of a lost rank or link."""
    failed = seen.reason not in (UNKNOWN, CANCELLED)
    return failed and (seen.role is Role.ROOT or (seen.role is Role.SYMPTOM and not REASONS[seen.reason].counted))


def ended_itself(text: str) -> bool:
    """Whether a line of srun says that a task ended otherwise than by a scheduler's signal."""
    return "Exited with exit code" in text or ("srun: error: " in text and "Aborted" in text)


def spokesman(chain: Sequence[Raised]) -> tuple[Raised, Cue | None]:
    """Of a chain of exceptions, oldest first, the one that names the cause, with its cue.

    The lowest level below the program's own wins, of equals the cue that stands first; but that a worker left has its
    cause in the chain, if another exception there has one. Then what says more than its cause (a checkpoint that cannot
    be loaded). Else the first: what happened while it was handled does not replace it, unless it was a probe.
    """
    matched = [(raised, _cue_of(raised)) for raised in chain]
    full = next((pair for pair in matched if pair[1] and pair[1].reason == DISK_FULL), None)
    if full:  # whatever a library makes of it
        return full
    for role in (Role.ROOT, Role.SYMPTOM):
        known = [(raised, cue) for raised, cue in matched if cue and cue.role is role]
        low = [pair for pair in known if pair[1].level < Level.PROGRAM]
        low = [pair for pair in low if _WORKER_LEFT not in pair[0].text or len(known) == 1]
        telling = [pair for pair in known if pair[1].reason in _TELLING]
        if low or telling:
            return min(low, key=lambda pair: (pair[1].level, pair[1].order)) if low else telling[0]
    first, last = 0, len(chain) - 1  # the last one may have a successor too, which the log's end cut off
    while first < last and chain[first].then == "handling" and chain[first].type in _PROBES:
        first += 1
    return next((pair for pair in matched[first:] if pair[1] is None or pair[1].role is Role.ROOT), matched[first])


def _cue_of(raised: Raised) -> Cue | None:
    """That of the exception, or of the one that it wraps: `InductorError: CalledProcessError: …`."""
    cue = match_exception(raised.text, raised.frames)
    if cue is not None and (cue.reason != "runtime_error" or raised.type == "RuntimeError"):
        return cue
    inner = (_WRAPPED.sub(r"\1: ", raised.text[found.start(1) :], count=1) for found in _WRAPPED.finditer(raised.text))
    return next((known for text in inner if (known := match_exception(text, raised.frames))), cue)
