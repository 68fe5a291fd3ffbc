"""Reads a job's output: tracebacks, CUDA and watchdog messages, messages of launchers and schedulers.

- Lines of the kernel and of NCCL are read as in their own logs.
- An exception counts at the end of a traceback, not if a text mentions it. Of chained exceptions one counts
  (`spokesman`).
- A failure that the job survived for `SURVIVED` more steps, or before it ended well, is dropped. Of several attempts in
  one file the last counts. Lines after a scheduler's stop order are teardown.
- What a logger reported below ERROR, with or without a traceback, was caught: it is the cause only where nothing shows
  that the job lived on, and never beside a later verdict.
- A warning counts where a later failure is what it warned of; what a device's runtime says below an exception, too.
"""

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits
from federation.protocol.causes import Domain
from tenant_client.doctor.sources import last_words
from tenant_client.doctor.sources.containers import lines_of
from tenant_client.doctor.sources.cues import Cue, Level, level_of, match_exception, match_line, says_something, table
from tenant_client.doctor.sources.evidence import Evidence, Form, Role
from tenant_client.doctor.sources.kernel_log import SOURCE as KERNEL, KernelLines
from tenant_client.doctor.sources.nccl_log import RANK_WORD, NcclLines
from tenant_client.doctor.sources.prefixes import NCCL_LINE, LineOrigin, place, stamp
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN, somebody_ended
from tenant_client.doctor.sources.scanning import Gate, Line, Scanner, gate_of
from tenant_client.doctor.sources.survival import (
    CAUGHT,
    ENDED_BADLY,
    GOES_ON,
    NO_ERROR,
    SUMMED_UP,
    SURVIVED,
    WELL,
    LogLevel,
    Steps,
    begins_again,
    completed,
    is_teardown,
    part_of,
    record,
)
from tenant_client.doctor.sources.torchrun import SOURCE as TORCHRUN, WORDS as TORCHRUN_WORDS, TorchrunLines
from tenant_client.doctor.sources.tracebacks import IGNORED, Raised, Tracebacks

SOURCE = "job_log"
_TEXT = 400
_MOST_KINDS = 1024
_SURVIVED_AGAIN = 3
_ALIVE = 3  # records of the logger that reported an exception below ERROR
_LIVED = 20  # records after an exception that a logger reported as an error
_MOST_LOOKED_AT = 20_000  # lines after a failure; then only those with a word
_MOST_WARNINGS = 64
_ABOVE = 40  # lines above an exception in which the reason for it may stand
_BELOW = 20  # lines below an exception in which its message may go on
DISK_FULL = "disk_full"
CANCELLED, ABORTED = "cancelled", "aborted"
CONNECTION = "connection_error"
_CLOSED = "RendezvousClosedError"  # of those who come to a group that another has given up
_OF_AN_END = (UNKNOWN, ABORTED, "killed", "runtime_error")
SEGFAULT = "segmentation_fault"
DEVICE_LOST = "device_lost"
PERMISSION = "permission_error"
_OF_A_MISSING_FILE = (PERMISSION, "file_not_found_error", "import_error")  # what a denied file may lead to
GENERAL = "runtime_error"
_SAYS_LITTLE = (GENERAL, "shared_memory_full")  # that a segment was not made says not why
_OWN_CRASH = re.compile(r"Caught signal|SIGSEGV received|Fatal Python error")
_WRAPPED = re.compile(r"(?<=[\s(])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception))(?:: |\(['\"])")
_PROGRESS_WORDS = ("it/s", "s/it", "loss", "iteration")
_COUNTED_WORDS = ("step", "upd", "batch")  # progress where a number follows
_STOPPED = re.compile(r"CANCELLED AT \S+(?: DUE TO (TIME LIMIT|PREEMPTION))?|^TERM_[A-Z]+:")
_ERROR_LOOKING = re.compile(r"\b(?:error|fatal|fail(?:ed|ure)|abort(?:ed)?)\b|\w(?:Error|Exception)\b", re.IGNORECASE)

# An exception of these may be a question that the program asked: `except KeyError: build it`.
_PROBES = frozenset({"KeyError", "AttributeError", "IndexError", "ImportError", "ModuleNotFoundError", "StopIteration"})
# Reasons that say more than the exception that they were raised from.
_TELLING = frozenset({"model_loading_error", "dataset_loading_error", "argument_error"})
_QUIET = " NCCL INFO "
_HEAD, _BANNER = 16 << 10, 3
_CHANGES = re.compile(r"\d+|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b")
_LEAVES = frozenset({"peer_lost", "nccl_remote_error"})  # what those who stay say of one who has ended
_OWN_SERVER = re.compile(r"//(?:localhost|127\.|0\.0\.0\.0|\[::1?\])")
_NAMES_A_HOST = re.compile(r"host=|://|\('|\b[\w-]+\.[\w.-]+:\d")
_PRINTING = ("__repr__", "__str__", "__format__")
_OF_JAX = frozenset({"SimplifiedTraceback", "UnfilteredStackTrace", "JaxStackTraceBeforeTransformation"})  # only frames
_IN_THREAD = "Exception in thread "  # Python's: the program itself goes on
_EVENT = re.compile(r"\d+[smhd]\w* +(?:Normal|Warning) +\w+ +\w+/\S")  # of Kubernetes, shown beside the log
_OF_SLURM = re.compile(r"^(?:slurmstepd|slurmd|epilog)\b")
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
    job = _Job(reader.file, leftover or Leftover(), _banner(reader.peek()[:_HEAD]))
    scanner = Scanner(reader, _gate(), limits)
    while (line := job.wanted(scanner)) is not None:
        for inner in lines_of(line):
            job.take(inner, scanner.previous() if "Traceback (m" in inner.text else "")
    job.leftover.tail = [inner for line in scanner.tail() for inner in lines_of(line)]
    yield from job.close()


@cache
def _words() -> tuple[str, ...]:
    return (*table().words, *TORCHRUN_WORDS, RANK_WORD, IGNORED[0])


@cache
def _gate() -> Gate:
    return gate_of(_words())


@cache
def _gate_and_progress() -> Gate:
    return gate_of((*_words(), *_PROGRESS_WORDS, *_COUNTED_WORDS))


def _banner(head: bytes) -> list[str]:
    """The head of a file, numbers and days aside, where none comes again before an error: each attempt has it."""
    lines = [_masked(line) for line in head.decode("utf-8", "replace").splitlines()[:60] if line.strip()]
    before = lines[: next((at for at, line in enumerate(lines) if _ERROR_LOOKING.search(line)), len(lines))]
    first = before[:_BANNER]
    whole = len(first) == _BANNER and all(before.count(line) == 1 and len(line) > _BANNER for line in first)
    return first if whole else []


def _masked(text: str) -> str:
    return _CHANGES.sub("0", " ".join(text[:_TEXT].split()))


@dataclass
class _Caught:
    """Evidence that a logger reported below ERROR, or as that of a part, and the lines in which the job lived on.

    `shape` is that of the logger's records. So many as `needed` of them show that it lived on; of a part, any logger's.
    """

    seen: Evidence
    shape: str
    part: str = ""
    needed: int = _ALIVE
    later: set[int] = field(default_factory=set)


class _Job:
    def __init__(self, file: str, leftover: Leftover, banner: Sequence[str] = ()) -> None:
        self._file = file
        self.leftover = leftover
        self._kept: dict[tuple[object, ...], Evidence] = {}
        self._caught: list[_Caught] = []
        self._earlier: dict[tuple[object, ...], Evidence] = {}  # of the attempt before, while this one shows nothing
        self._survived: set[tuple[str, str]] = set()
        self._banner, self._repeated = banner, 0
        self._tracebacks = Tracebacks()
        self._kernel, self._nccl, self._torchrun = KernelLines(file), NcclLines(file), TorchrunLines(file)
        self._steps, self._alive = Steps(), 0
        self._recent: deque[Line] = deque(maxlen=32)  # a chain of exceptions is complete only some lines later
        self._alive_at = self._failed_at = self._looked_at = 0
        self._stopped, self._stopped_at = "", 0
        self._unlogged = False
        self._in_threads: set[int] = set()  # lines of exceptions
        self._warned: deque[tuple[re.Pattern[str], Evidence]] = deque(maxlen=_MOST_WARNINGS)
        self._read: deque[str] = deque(maxlen=1024)  # of tracebacks
        self._attempts: deque[Evidence] = deque(maxlen=_MOST_WARNINGS)  # what ended the earlier ones
        self._tries, self._lived_at = 1, 0

    def wanted(self, scanner: Scanner) -> Line | None:
        """The next line to look at: any within a traceback and after a failure, else one that holds a word."""
        if self._tracebacks.open or self._torchrun.open:
            return scanner.line()
        if not self._failed_at:
            return scanner.hit()
        self._looked_at += 1
        return scanner.line() if self._looked_at < _MOST_LOOKED_AT else scanner.hit(_gate_and_progress())

    def take(self, line: Line, above: str = "") -> None:
        part = self._tracebacks.feed(line.number, line.text, above)
        for chain in self._tracebacks.finished():
            self._take_chain(chain)
        if part:
            self._read.append(line.text)
        elif (self._failed_at or self._tracebacks.open) and self._begins_again(line.text):
            self._begin_again(line)
        elif not self._spoke(line) and (self._failed_at or self._tracebacks.open) and _QUIET not in line.text:
            self._recent.append(line)
            if self._lives(line) and self._survive(line.number):
                self._tracebacks = Tracebacks()

    def close(self) -> list[Evidence]:
        for chain in self._tracebacks.close():
            self._take_chain(chain)
        self._end_well()
        self._keep_caught()
        if not self._failures():
            self._kept = {**self._kept, **self._earlier}
        self._drop_probes()
        self._warned.extend(_lasting(self._earlier.values()))
        if not self._roots():
            self._keep_last_words()
        else:
            self._explain_vague()
        if self._tries > 1 and all(_CLOSED in one.text for one in self._roots()):
            self._keep_repeated()
        self._keep_notice()
        failed = [seen for seen in self._kept.values() if seen.role is Role.ROOT]
        for explains, warning in self._warned:
            if explained := [one for one in failed if warning.line - one.line < _BELOW and explains.search(one.text)]:
                if warning.domain:  # it says whose the same failure is
                    self._kept = {k: seen for k, seen in self._kept.items() if seen.reason != warning.reason}
                self._keep(warning)
            if warning.reason != GENERAL:  # it says more of what happened than the exception
                known = self._kept.items()
                self._kept = {k: _general(seen) if seen in explained else seen for k, seen in known}
        return sorted(map(self._owned, self._kept.values()), key=lambda seen: seen.line)

    def _owned(self, seen: Evidence) -> Evidence:
        """A lost connection that names no host is to the job's own server, where the end of the log names one."""
        anybody = seen.reason != CONNECTION or seen.domain is not None or _NAMES_A_HOST.search(seen.text)
        if anybody or not any(_OWN_SERVER.search(line.text) for line in self.leftover.tail):
            return seen
        return replace(seen, domain=Domain.SCRIPT)

    def _keep_last_words(self) -> None:
        """Takes weak evidence from the end; of a job that was cancelled, only what made it fail before that."""
        tail = [line for line in self.leftover.tail if line.number > self._alive_at]
        if self._stopped and not any(ended_itself(line.text) for line in tail):
            return
        tail = [line for line in tail if not self._stopped or line.number < self._stopped_at]
        well = next((line.number for line in tail if _tells_well(line)), tail[-1].number if tail else 0)
        tail = [line for line in tail if line.number <= well or not _OF_SLURM.search(line.text)]  # it clears up
        exceptions = last_words.raised(tail, self._read)
        one, cue = spokesman(exceptions) if exceptions else (None, None)
        if one is not None and cue is not None:
            self._keep(self._evidence(cue, one.line, one.text, one.head, Form.LAST_WORDS))
        word = last_words.said(tail, self._read)
        if word is not None and (_breaks(word.cue) or not any(map(_tells, self._kept.values()))):
            self._keep(self._evidence(word.cue, word.line.number, word.text, word.line.text, Form.LAST_WORDS))

        if not any(one.reason not in (UNKNOWN, ABORTED) for one in self._roots()):
            self._keep_reported(tail)

    def _drop_probes(self) -> None:
        """Drops a file that a shell might not touch where the program came up all the same and raised another error."""
        raised = (one for one in self._roots() if one.form is Form.TRACEBACK and one.reason not in _OF_A_MISSING_FILE)
        last = max((one.line for one in raised), default=0)
        self._kept = {
            kind: seen
            for kind, seen in self._kept.items()
            if seen.reason != PERMISSION or seen.form is not Form.LINE or seen.line > last
        }

    def _explain_vague(self) -> None:
        """Takes what the lines above an exception in general words say of a device, a host or the network."""
        roots = self._roots()
        if not all(map(_vague, roots)):
            return
        first = min(one.line for one in roots)
        above = [line for line in self.leftover.tail if first - _ABOVE < line.number < first]
        word = last_words.said([line for line in above if line.number > self._alive_at], self._read)
        if word is not None and word.cue.level < Level.PROGRAM and word.cue.role is not Role.TEARDOWN:
            self._kept = {kind: _general(seen) for kind, seen in self._kept.items()}
            self._keep(self._evidence(word.cue, word.line.number, word.text, word.line.text, Form.LAST_WORDS))
            return
        reported = last_words.reported([line for line in above if line.number > self._alive_at], self._read)
        one, cue = spokesman(reported) if reported else (None, None)
        if one is not None and cue is not None and cue.level < Level.PROGRAM:
            self._keep(self._evidence(cue, one.line, one.text, one.head, Form.LAST_WORDS))

    def _keep_reported(self, tail: Sequence[Line]) -> None:
        """Takes an exception that some line names, unless what survivors say stands before it."""
        symptoms = [one.line for one in self._kept.values() if one.role is Role.SYMPTOM and one.reason != UNKNOWN]
        reported = [
            one for one in last_words.reported(tail, self._read) if one.line < min(symptoms, default=one.line + 1)
        ]
        one, cue = spokesman(reported) if reported else (None, None)
        if one is not None and cue is not None and (cue.role is Role.ROOT or not symptoms):
            self._keep(self._evidence(cue, one.line, one.text, one.head, Form.LAST_WORDS))

    def _keep_repeated(self) -> None:
        """Takes the first exception with which attempt after attempt ended; peers may fail otherwise each time."""
        told = last_words.lone([line for line in self.leftover.tail if line.number > self._lived_at])
        cues = ((one, match_exception(one.text, ())) for one in told)
        lines = [self._evidence(cue, one.line, one.text, one.head, Form.LAST_WORDS) for one, cue in cues if cue]
        ends = [one for one in (*self._attempts, *lines) if one.role is Role.ROOT and one.line > self._lived_at]
        for one in ends:
            if any(other.line != one.line and _kind(other) == _kind(one) for other in ends):
                self._kept = {kind: seen for kind, seen in self._kept.items() if _CLOSED not in seen.text}
                self._keep(one)
                return

    def _keep_notice(self) -> None:
        """Takes the word that the machine goes, where it stands before failures that follow from such an end."""
        failures = self._failures()
        failed = [one for one in failures if one.reason != CANCELLED]
        own = any(level_of(one.reason) is Level.PROGRAM and one.reason not in _OF_AN_END for one in failed)
        if own or not failures:
            return
        first, tail = min((one.line for one in failed), default=0), self.leftover.tail
        word = last_words.notice(
            [line for line in tail if self._alive_at < line.number < first or _EVENT.match(line.text)]
        )
        if word is not None:
            self._keep(self._evidence(word.cue, word.line.number, word.text, word.line.text, Form.LAST_WORDS))

    def _roots(self) -> list[Evidence]:
        return [seen for seen in self._kept.values() if seen.role is Role.ROOT and seen.reason != CANCELLED]

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
            self._take(seen, line.text)
        elif _ERROR_LOOKING.search(line.text):
            self.leftover.suspicious.append(Line(line.number, line.text.strip()[:_TEXT]))
        return seen is not None

    def _of_line(self, line: Line) -> Evidence | None:
        cue = match_line(line.text, ("warning", "job"))
        if cue is None:
            return None
        if cue.explains:
            finer = match_line(line.text, ("device",)) or cue
            self._warned.append((cue.explains, self._evidence(finer, line.number, line.text, line.text)))
            return None
        stopped = _STOPPED.search(line.text)
        if stopped and (cue.role is Role.TEARDOWN or somebody_ended(cue.reason)):
            self._stopped, self._stopped_at = stopped[1] or "CANCELLED", line.number
            self._failed_at = line.number
        return self._evidence(cue, line.number, line.text, line.text)

    def _take_chain(self, chain: Sequence[Raised]) -> None:
        raised, cue = spokesman(chain)
        seen = self._evidence(cue, raised.line, raised.text, raised.head, Form.TRACEBACK)
        if _IN_THREAD in chain[0].below:
            self._in_threads.add(raised.line)
        said = record(raised.head)  # of a logger that heads each line of the traceback
        if cue is None or (said and said.level is LogLevel.WARNING):
            self.leftover.suspicious.append(Line(raised.line, raised.text[:_TEXT]))
        if not said or said.level is not LogLevel.WARNING:
            self._take(seen, raised.head, chain[0].below)

    def _take(self, seen: Evidence, head: str, below: str = "") -> None:
        """Keeps what may be the end; what a logger reported below ERROR is put aside, until something else shows it."""
        said, introduced = record(head), record(below)
        if said is None and introduced is not None and (introduced.level is not LogLevel.INFO or CAUGHT.search(below)):
            said = introduced
        part, goes_on = (part_of(below), GOES_ON.search(below)) if introduced else ("", None)
        below_error = said is not None and (said.level < LogLevel.ERROR or bool(part) or goes_on is not None)
        caught = below_error and not self._after_stop(seen)
        self._unlogged |= said is None and (introduced is None or introduced.level < LogLevel.WARNING)
        if said is None or not caught or seen.source != SOURCE or somebody_ended(seen.reason) or not _is_failure(seen):
            self._keep(seen)
        elif len(self._caught) < _MOST_KINDS:
            self._caught.append(_Caught(seen, said.shape, part, 1 if goes_on else _ALIVE))
            self._fail(seen)

    def _evidence(self, cue: Cue | None, number: int, text: str, head: str, form: Form = Form.LINE) -> Evidence:
        reason, role = (cue.reason, cue.role) if cue else (UNKNOWN, Role.ROOT)
        domain, advice = (cue.domain, cue.advice) if cue else (None, "")
        where, text, at_s = place(head), text.strip()[:_TEXT], stamp(head)
        if where.rank is None and NCCL_LINE.search(head[:256]):
            where = LineOrigin(self._nccl.rank_of(head), where.host, where.gpu)
        elif cue is not None and cue.level is Level.PROGRAM and ":" not in where.gpu:
            where = replace(where, gpu="")  # the program named it: it is not where something broke
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
            self._fail(seen, again=known is not None)

    def _fail(self, seen: Evidence, *, again: bool = False) -> None:
        self._failed_at = max(self._failed_at, seen.line, 1)
        if not again:  # what comes again and again between steps ends nothing
            self._steps, self._alive, self._looked_at = Steps(), 0, 0
            for line in [line for line in self._recent if line.number > seen.line]:
                if self._lives(line) and self._survive(line.number):
                    break

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

    def _lives(self, line: Line) -> bool:
        """Whether a line shows that the job lives on: a step, or a record of a logger."""
        stepped = self._steps.feed(line.text)
        said = None if stepped else record(line.text)
        if not stepped and (said is None or said.level is LogLevel.ERROR or is_teardown(line.text)):
            return False
        self._alive += 1
        for caught in self._caught:
            if len(caught.later) < _ALIVE and (said is None or caught.part or said.shape == caught.shape):
                caught.later.add(line.number)
        return True

    def _survive(self, number: int) -> bool:
        """Forgets the failures once there are so many steps after them."""
        failures = self._failures()
        before = bool(failures) and all(_kind(one) in self._survived for one in failures)
        again = before or (bool(self._earlier) and not failures)
        survived = self._steps.count >= (_SURVIVED_AGAIN if again else SURVIVED)
        survived |= self._alive >= _LIVED and bool(failures) and not self._unlogged
        if survived:
            self._survived.update(map(_kind, failures))
            self._forget(number)
            self._lived_at = number
        return survived

    def _failures(self) -> list[Evidence]:
        return [*filter(_is_failure, self._kept.values()), *(caught.seen for caught in self._caught)]

    def _forget(self, number: int) -> None:
        """Whatever failed before this line, the job lived on."""
        self._kept.clear()
        self._caught.clear()
        self._earlier.clear()
        self._steps, self._alive, self._alive_at, self._failed_at = Steps(), 0, number, 0
        self._stopped, self._unlogged = "", False
        self._recent.clear()

    def _begins_again(self, text: str) -> bool:
        """Whether this line starts another attempt: it says so, or with others it is how the file began."""
        if self._banner:
            self._repeated = self._repeated + 1 if _masked(text) == self._banner[self._repeated] else 0
        return begins_again(text) or self._repeated == _BANNER

    def _begin_again(self, line: Line) -> None:
        if self._alive and WELL.search(line.text):
            self._forget(line.number)
            self._lived_at = line.number
            return
        for chain in self._tracebacks.close():
            self._take_chain(chain)
        self._keep_caught()
        earlier = dict(self._kept if self._failures() else self._earlier)
        failed_at = self._failed_at
        self._attempts.extend(self._roots())
        self._tries += 1
        self._forget(line.number)
        self._earlier, self._failed_at, self._repeated = earlier, failed_at, 0

    def _end_well(self) -> None:
        """Forgets what came before the job said that it ended well, and what peers say of its end after that."""
        done = completed(self.leftover.tail, self._failed_at)
        failures = self._failures()
        if failures and self._steps.count >= _SURVIVED_AGAIN and all(one.source == KERNEL for one in failures):
            self._forget(self._failed_at)  # the kernel tells of other processes, too
        for line in self.leftover.tail:
            if self._says_well(line) or self._sums_up(line, done):
                self._alive_at = self._lived_at = line.number
                self._earlier.clear()
                self._caught = [caught for caught in self._caught if caught.seen.line > line.number]
                later = {kind: seen for kind, seen in self._kept.items() if seen.line > line.number}
                self._kept = {kind: seen for kind, seen in later.items() if seen.reason not in _LEAVES}

    def _says_well(self, line: Line) -> bool:
        if not _tells_well(line):
            return False
        said = record(line.text)
        if said is not None and said.level < LogLevel.ERROR:
            return True
        lines = {one.line for one in self._failures()}
        return line.number > self._failed_at and (self._alive > 0 or (bool(lines) and lines <= self._in_threads))

    def _sums_up(self, line: Line, done: Collection[int]) -> bool:
        """Whether a program says here that it has ended with results, or has done all, and nothing failed later."""
        if line.number <= self._failed_at or not (line.number in done or SUMMED_UP.search(line.text)):
            return False
        ended = any(ended_itself(one.text) for one in self._kept.values())
        return not ended and not any(
            ENDED_BADLY.search(one.text) for one in self.leftover.tail if one.number > line.number
        )

    def _keep_caught(self) -> None:
        """Of what was caught, keeps what may have ended the job all the same, and parts that a later failure names."""
        kept = [one for one in self._kept.values() if one.role is Role.ROOT]
        died = not kept and any(one.source == TORCHRUN or ended_itself(one.text) for one in self._kept.values())
        for caught in self._caught:
            later = [one for one in kept if one.line > caught.seen.line]
            verdict = self._stopped or any(one.source != SOURCE for one in later)
            told = caught.part and any(caught.part in one.text.lower() for one in later)
            lived = len(caught.later) >= caught.needed or (caught.later and later)
            if died or told or not (verdict or lived):
                self._keep(caught.seen)
        self._caught.clear()


def _tells_well(line: Line) -> bool:
    return WELL.search(line.text) is not None and not _ERROR_LOOKING.search(NO_ERROR.sub("", line.text))


def _lasting(earlier: Iterable[Evidence]) -> Iterator[tuple[re.Pattern[str], Evidence]]:
    """What an attempt before lost for good, as a warning: the next one may find it missing."""
    explains = next(cue.explains for cue in table().sections["warning"] if cue.reason == DEVICE_LOST)
    if explains:
        yield from ((explains, seen) for seen in earlier if seen.reason == DEVICE_LOST and seen.role is Role.ROOT)


def _kind(seen: Evidence) -> tuple[str, str]:
    return seen.reason, _masked(seen.text)


def _general(seen: Evidence) -> Evidence:
    """An exception that something else explains: no cause where its own words are general."""
    return replace(seen, role=Role.SYMPTOM) if seen.reason in _SAYS_LITTLE else seen


def _vague(seen: Evidence) -> bool:
    """Whether an exception says no more than that something failed."""
    own = seen.domain is not None or bool(seen.advice)
    return seen.reason in (GENERAL, UNKNOWN) and seen.form is not Form.LINE and not own


def _is_failure(seen: Evidence) -> bool:
    return seen.role is not Role.TEARDOWN


def _tells(seen: Evidence) -> bool:
    """Whether weak evidence beside this would say less: it is a root, or what survivors say of a lost rank or link."""
    failed = seen.reason not in (UNKNOWN, CANCELLED, ABORTED)
    return failed and (seen.role is Role.ROOT or (seen.role is Role.SYMPTOM and not REASONS[seen.reason].counted))


def _breaks(cue: Cue) -> bool:
    """Whether a cue names what broke, which says more than what survivors say."""
    return cue.role is Role.ROOT and cue.level <= Level.MEMORY


def ended_itself(text: str) -> bool:
    """Whether a line of srun says that a task ended otherwise than by a scheduler's signal."""
    return "Exited with exit code" in text or ("srun: error: " in text and "Aborted" in text)


def spokesman(chain: Sequence[Raised]) -> tuple[Raised, Cue | None]:
    """Of a chain of exceptions, oldest first, the one that names the cause, with its cue.

    The lowest level below the program's own wins, of equals the cue that stands first; but that a worker left has its
    cause in the chain, if another exception there has one. Then what says more than its cause (a checkpoint that cannot
    be loaded). Else the first: what happened while it was handled does not replace it, unless it was a probe.
    """
    shown = [raised for raised in chain if raised.type not in _OF_JAX] or chain
    chain, matched = shown, [(raised, _cue_of(raised)) for raised in shown]
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
    while first < last and chain[first].then == "handling" and _hides(chain[first], chain[first + 1]):
        first += 1
    return next((pair for pair in matched[first:] if pair[1] is None or pair[1].role is Role.ROOT), matched[first])


def _hides(raised: Raised, later: Raised) -> bool:
    """Whether the later one stands for it: it was a probe, could not be printed, or missed what could not be made."""
    if raised.type == "FileNotFoundError" and later.type == "PermissionError":
        return True
    return raised.type in _PROBES or any(frame.endswith(_PRINTING) for frame in later.frames[-1:])


def _cue_of(raised: Raised) -> Cue | None:
    """That of the exception, or of the one that it wraps: `InductorError: CalledProcessError: …`."""
    cue = match_exception(raised.text, raised.frames)
    if cue is not None and (cue.reason != "runtime_error" or raised.type == "RuntimeError"):
        return cue
    inner = (_WRAPPED.sub(r"\1: ", raised.text[found.start(1) :], count=1) for found in _WRAPPED.finditer(raised.text))
    return next((known for text in inner if (known := match_exception(text, raised.frames))), cue)
