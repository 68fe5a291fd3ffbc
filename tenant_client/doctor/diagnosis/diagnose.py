"""Finds the cause of a failed job: gathers evidence from all files and selects the piece that names the cause.

    gathered = gather([Path("logs/")])
    print(diagnose(gathered.evidence).sentence)

Rules, in this order:

1. Evidence about hardware, devices, killed workers and memory wins, in this order of levels.
2. Then the launcher's verdict (torchrun's first failure, the exit status): errors of other ranks follow from the rank
   that it names. A rank that a signal ended raised no exception, so an exception is another rank's. An abort comes
   last: what was printed before it says why.
3. Then the first error: the first line of a file; across ranks the earliest time if all times come from one kind of
   source, else network before collective before program, and a bare RuntimeError last.
4. A symptom (time-out, lost peer, killed context) is what the survivors of a failure say. It is kept and shown, but
   names a reason only if rounds do not count that reason, or if the kernel said it, but for an Xid that is none of
   NVLink's: those that are symptoms follow what a process did, or was done to it. Teardown never does.
5. Then the owner's lessons. Nothing is guessed: without evidence the reason is `unknown`.

In a log directory of torchelastic only the last attempt counts: earlier ones were restarted.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, SourceError, open_inputs, shape_of
from federation.base.visible import counted_as
from federation.protocol.causes import Domain
from tenant_client.doctor.diagnosis import collectives, odd_stacks
from tenant_client.doctor.diagnosis.collectives.ras import analyse_ras, ras_evidence
from tenant_client.doctor.diagnosis.filter_rules import keeps
from tenant_client.doctor.diagnosis.lessons import Lessons
from tenant_client.doctor.diagnosis.log_templates import Templates
from tenant_client.doctor.diagnosis.odd_calls import mismatch
from tenant_client.doctor.diagnosis.wording import shared_fault, told
from tenant_client.doctor.sources import (
    elastic,
    event_logs,
    exit_status,
    job_log,
    kernel_log,
    nccl_ras,
    slurm_records,
    tool_reports,
    torchrun,
)
from tenant_client.doctor.sources.cues import Level, level_of
from tenant_client.doctor.sources.evidence import Evidence, NoFault, Role
from tenant_client.doctor.sources.exit_status import EXIT_CODE
from tenant_client.doctor.sources.flight_recorder import Dump
from tenant_client.doctor.sources.formats import EMPTY, FORMATS, JOB_LOG, Format, Found, Head, NotOfAJob
from tenant_client.doctor.sources.job_log import Leftover
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN
from tenant_client.doctor.sources.scanning import Line
from tenant_client.doctor.sources.stacks import Stack
from tenant_client.doctor.sources.xid import XIDS, XidRole

_FEW = 8
_HINTS = 5
_HEADS = 3
_MOST_FILES = 100_000
_MOST_LOCAL = 8  # ranks of most hosts
_READ = (
    "read are logs of jobs, kernels, schedulers, kubelets, storage and BMCs, dumps and stacks, and what tools print of"
    " GPUs, links, nodes and jobs"
)
_IS_PACKED = re.compile(r"\bunpack")
_BESIDE_SLEEP = 100  # lines
_LESSON = "lessons"
CANCELLED = "cancelled"
_TIMED_OUT = "collective_timeout"
_NO_MEMORY, _KILLED, _UNEVEN_END = "host_out_of_memory", "killed", "uneven_end"
# Pictures of a moment, which name a cause where no log does, and may show something that is none.
_PICTURES = (odd_stacks.SOURCE, tool_reports.SOURCE, slurm_records.SOURCE, event_logs.SOURCE)
_VERDICTS = (torchrun.SOURCE, exit_status.SOURCE)
_ATTEMPT = re.compile(r"attempt_(\d{1,6})", re.ASCII)
# Symptoms, those nearest to the cause first; killed GPU contexts last, since every killed process leaves some.
_SYMPTOMS = (Level.HARDWARE, Level.MEMORY, Level.WORKER, Level.NETWORK, Level.COLLECTIVE, Level.PROGRAM, Level.DEVICE)


@dataclass(frozen=True)
class Diagnosis:
    """The cause: `reason` is a slug of `REASONS` or "unknown", `root` its evidence, `cascade` the later failures.

    If the reason is unknown, `root` is an exception without a matching cue, or None; `symptom` is then what the job's
    survivors say, or None. `verdict` is what the launcher says of the rank that ended first,
    `odd` that several ranks failed alike. `nothing` says what the files are in which nothing was found.
    """

    reason: str
    root: Evidence | None
    cascade: tuple[Evidence, ...] = ()
    symptom: Evidence | None = None
    verdict: Evidence | None = None
    odd: str = ""
    nothing: str = "no known error pattern in the logs"

    @property
    def rank(self) -> int | None:
        """The rank that failed first, if known: that of the root; else the launcher's, unless hardware is the cause."""
        named = next((seen.rank for seen in self._agreeing() if seen.rank is not None), None)
        if named is not None or self.verdict is None:
            return named
        ended_so = self.reason == _NO_MEMORY and self.verdict.reason == _KILLED
        return self.verdict.rank if ended_so or self.root is None or self.root.source == job_log.SOURCE else None

    @property
    def host(self) -> str:
        """The host that failed first; "" if unknown."""
        return next((seen.host for seen in self._agreeing() if seen.host), "")

    @property
    def gpu(self) -> str:
        """The GPU that failed first; "" if unknown."""
        return next((seen.gpu for seen in self._agreeing() if seen.gpu), "")

    @property
    def domain(self) -> Domain | None:
        """Infrastructure, framework or script, by the evidence and else by the reason; None for unknown."""
        own = self.root.domain if self.root else None
        return own or (REASONS[self.reason].domain if self.reason in REASONS else None)

    @property
    def advice(self) -> str:
        """The advice for this evidence, else for the reason; empty for unknown."""
        own = self.root.advice if self.root else ""
        return own or (REASONS[self.reason].advice if self.reason in REASONS else "")

    @property
    def sentence(self) -> str:
        """One line for a person."""
        if self.root is None and self.symptom is not None:
            what = f"{self.symptom.reason}: {self.symptom.where}: {told(self.symptom.text)}"
            return f"cause unknown, only a symptom of it: {what}{self._odd}"
        if self.root is None:
            ended = f"; rank {self.rank}: {self.verdict.text}" if self.verdict and self.rank is not None else ""
            return f"cause unknown: {self.nothing}{ended}"
        where = [f"rank {self.rank}" if self.rank is not None else "", self.host, f"GPU {self.gpu}" if self.gpu else ""]
        place = ", ".join(part for part in where if part)
        what = told(self.root.text)
        reason = "cause unknown" if self.reason == "unknown" else self.reason
        file = "" if what.startswith(self.root.where) else f"{self.root.where}: "
        return f"{reason}: {f'{place}: ' if place else ''}{file}{what}{self._odd}"

    @property
    def _odd(self) -> str:
        return f"; {self.odd}" if self.odd else ""

    def _agreeing(self) -> Iterator[Evidence]:
        if self.root is not None:
            yield self.root
            reasons = {self.reason, _parent(self.reason)}  # a job may say less
            yield from (seen for seen in self.cascade if seen.reason in reasons and seen.role is self.root.role)


@dataclass
class Gathered:
    """The content of the files: evidence in file order, files with faults, and lines without a matching cue.

    A file that is `cut` has that fault, and counts as far as it goes. Flight recorder dumps are analysed together, and
    so are RAS answers: their evidence comes last. `taken_for` says of each log what it was read as, `no_faults` what a
    file without a fault says, `heads` how the first logs begin.
    """

    evidence: list[Evidence] = field(default_factory=list)
    faults: list[SourceError] = field(default_factory=list)
    left_out: list[SourceError] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    leftovers: dict[str, Leftover] = field(default_factory=dict)
    taken_for: dict[str, str] = field(default_factory=dict)
    dumps: list[Dump] = field(default_factory=list)
    ras: list[nccl_ras.Answer] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    no_faults: dict[str, str] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)

    def take(self, file: str, found: Found) -> None:
        """Sorts in one thing that a file holds."""
        match found:
            case Evidence():
                self.evidence.append(found)
            case Leftover():
                self.leftovers[file] = found
            case Dump():
                self.dumps.append(found)
            case nccl_ras.Answer():
                self.ras.append(found)
            case Stack():
                self.stacks.append(found)
            case NoFault():
                self.no_faults.setdefault(file, found.text)


@dataclass(frozen=True)
class UnknownLine:
    """An unusual kind of line, shown to the owner: its template, an example, and its count."""

    template: str
    example: str
    count: int
    file: str


# ---- reading -------------------------------------------------------------------------------------------------------


def gather(paths: Iterable[Path], limits: ReadLimits = DEFAULT_LIMITS, formats: Sequence[Format] = FORMATS) -> Gathered:
    """Reads files, and directories recursively. An unreadable file is a fault and does not stop the rest.

    The format is the first of `formats` that knows its beginning. What is no text is left out: told of an archive,
    and of a directory where it is packed otherwise than can be unpacked here; a fault where it was named itself.
    """
    gathered = Gathered()
    for path in paths:
        for file, named in files_in(path):
            try:
                _read(file, limits, formats, gathered, named=named)
            except SourceError as fault:
                gathered.faults.append(fault)
            except OSError as error:
                gathered.faults.append(SourceError(str(file), "", error.strerror or "unreadable"))
    if gathered.dumps:
        gathered.evidence += collectives.evidence(collectives.analyse(gathered.dumps))
    if gathered.ras:
        gathered.evidence += ras_evidence(analyse_ras(gathered.ras))
    if gathered.stacks:
        gathered.evidence += odd_stacks.odd_stacks(gathered.stacks)
    return gathered


def files_in(path: Path) -> Iterator[tuple[Path, bool]]:
    """The files to read, each with whether it was named itself; of a log directory of torchelastic the last attempt."""
    if not path.is_dir():
        yield path, True
        return
    found = [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()][:_MOST_FILES]
    last: dict[str, int] = {}
    for file in found:
        before, attempt = _attempt(file)
        last[before] = max(attempt, last.get(before, 0))
    for file in sorted(found):
        before, attempt = _attempt(file)
        if attempt in (-1, last[before]):
            yield file, False


def _attempt(file: Path) -> tuple[str, int]:
    """The directory of a run and the number of the attempt within it; -1 outside such directories."""
    for at, part in enumerate(file.parts):
        found = _ATTEMPT.fullmatch(part)
        if found:
            return str(Path(*file.parts[:at])), int(found[1])
    return "", -1


def _read(file: Path, limits: ReadLimits, formats: Sequence[Format], gathered: Gathered, *, named: bool) -> None:
    with open_inputs(file, replace(limits, up_to_cut=True)) as inputs:
        taken = [_take(reader, limits, formats, gathered) for reader in inputs]
    others = [fault for fault in taken if fault]
    if named and others and len(others) == len(taken):
        raise others[0]
    gathered.left_out += others if named else (fault for fault in others if _IS_PACKED.search(fault.what))


def _take(reader: CappedReader, limits: ReadLimits, formats: Sequence[Format], gathered: Gathered) -> NotOfAJob | None:
    """Reads one input; why it is none, if it is none."""
    head = Head.of(reader)
    form = next(one for one in formats if one.looks_like(head))
    gathered.taken_for[reader.file] = form.name
    if form.name == JOB_LOG and len(gathered.heads) < _HEADS:
        gathered.heads[reader.file] = head
    try:
        for found in form.read(reader, limits):
            gathered.take(reader.file, found)
        if reader.is_cut:
            gathered.cut.add(reader.file)
            gathered.faults.append(
                SourceError(reader.file, reader.position, "cut off here; what comes before was read")
            )
    except NotOfAJob as fault:
        del gathered.taken_for[reader.file]
        return fault
    return None


# ---- deciding ------------------------------------------------------------------------------------------------------


def diagnose(evidence: Iterable[Evidence]) -> Diagnosis:
    """Selects the cause; the evidence is in the order of files and lines."""
    seen = _awake(list(evidence))
    root = _root(seen)
    if root is None:
        symptom = next(iter(_symptoms(seen)), None)
        return Diagnosis(UNKNOWN, None, _few(seen, None), symptom, _verdict(seen))
    return Diagnosis(root.reason, root, _few(seen, root), verdict=_verdict(seen), odd=shared_fault(seen, root))


def _awake(seen: list[Evidence]) -> list[Evidence]:
    """Without links that went down since the machine was about to sleep, or slept."""
    asleep = [(one.file, one.line) for one in seen if one.source == kernel_log.SOURCE and kernel_log.sleeps(one.text)]
    return [
        one
        for one in seen
        if one.source != kernel_log.SOURCE
        or level_of(one.reason) is not Level.NETWORK
        or not any(file == one.file and abs(at - one.line) < _BESIDE_SLEEP for file, at in asleep)
    ]


def _root(seen: Sequence[Evidence]) -> Evidence | None:
    roots = [one for one in seen if one.role is Role.ROOT and one.source not in _VERDICTS]
    failed = [one for one in roots if one.reason != CANCELLED]
    if failed or any(job_log.ended_itself(one.text) for one in seen):  # a scheduler cancels what has failed, too
        roots = failed
    if roots and min(level_of(root.reason) for root in roots) <= Level.MEMORY:
        return _nearest(roots)
    verdict = _verdict(seen)
    if verdict is not None:
        roots = _of_verdict(roots, verdict)
    if roots:
        return _first_of_program(_without_late_ranks(roots))
    if verdict is not None and verdict.role is Role.ROOT:
        return verdict
    abort = verdict if verdict is not None and verdict.role is Role.SYMPTOM else None
    named = [one for one in _symptoms(seen) if _may_name(one) and one is not abort and not _of_another(one, abort)]
    shown = sorted((one for one in seen if _is_shown(one)), key=lambda one: _PICTURES.index(one.source))
    return next(filter(None, (mismatch(seen), *_left(seen), *named, abort, *shown)), None)


def _is_shown(one: Evidence) -> bool:
    """Whether a picture shows something of which no reason is known: the last to be told."""
    return one.source in _PICTURES and one.reason == UNKNOWN


def _left(seen: Sequence[Evidence]) -> Iterator[Evidence]:
    """Ranks that ended by themselves before the others, and of which nothing else is said."""
    heard = Counter(one.rank for one in seen)
    yield from (one for one in seen if one.reason == _UNEVEN_END and (one.rank is None or heard[one.rank] == 1))


def _of_another(symptom: Evidence, abort: Evidence | None) -> bool:
    """Whether it is of another rank than the one that aborted first, whose local rank alone is known without a host."""
    if abort is None or symptom.rank is None or abort.rank is None or symptom.reason == _TIMED_OUT:
        return False  # a watchdog ends by an abort who has waited too long
    return symptom.rank != abort.rank and bool(abort.host or symptom.rank < _MOST_LOCAL)


def _may_name(symptom: Evidence) -> bool:
    xid = XIDS.get(kernel_log.code_of(symptom) or 0)
    from_kernel = symptom.source == kernel_log.SOURCE and (xid is None or xid.role is XidRole.BY_SEVERITY)
    return from_kernel or symptom.source in _PICTURES or not REASONS[symptom.reason].counted


def _symptoms(seen: Sequence[Evidence]) -> list[Evidence]:
    """Those that name a reason, the nearest to the cause first."""
    symptoms = [one for one in seen if one.role is Role.SYMPTOM and one.reason != UNKNOWN]
    return sorted(symptoms, key=lambda one: _SYMPTOMS.index(level_of(one.reason)))


def _verdict(seen: Sequence[Evidence]) -> Evidence | None:
    """The launcher's, with the host if it says one; else that of the exit status."""
    verdicts = [one for source in _VERDICTS for one in seen if one.source == source]
    return next((one for one in verdicts if one.host), verdicts[0] if verdicts else None)


def _of_verdict(roots: list[Evidence], verdict: Evidence) -> list[Evidence]:
    """The errors that may be those of the rank that failed first."""
    if verdict.rank is None:
        return roots
    if verdict.role is Role.ROOT and verdict.reason != EXIT_CODE:
        return [root for root in roots if root.rank == verdict.rank]
    own = [root for root in roots if root.rank in (None, verdict.rank)]
    return own if own or verdict.role is Role.ROOT else roots


def _few(seen: Sequence[Evidence], root: Evidence | None) -> tuple[Evidence, ...]:
    """The first evidence of each kind except the root, with evidence of the same reason first."""
    kinds: dict[tuple[object, ...], Evidence] = {}
    for one in seen:
        if one is not root:
            kinds.setdefault((one.reason, one.role, one.source), one)
    reason = root.reason if root else UNKNOWN
    return tuple(sorted(kinds.values(), key=lambda one: one.reason != reason)[:_FEW])


def _nearest(roots: Sequence[Evidence]) -> Evidence:
    """The first of those nearest to the hardware; of a reason and a finer one of it, such that say the finer."""
    lowest = min(level_of(root.reason) for root in roots)
    nearest = [root for root in roots if level_of(root.reason) == lowest]
    reasons = {root.reason for root in nearest}
    finer = [root for root in nearest if _parent(root.reason) in reasons - {root.reason}]
    return _earliest(finer or nearest)


def _parent(reason: str) -> str:
    return REASONS[reason].parent if reason in REASONS else ""


def _first_of_program(roots: Sequence[Evidence]) -> Evidence:
    """The first among network, collective and program errors: by time if known, one line per file."""
    if len({root.source for root in roots}) == 1 and all(root.at_s is not None for root in roots):
        return _earliest(roots)
    by_file: dict[str, Evidence] = {}
    for root in roots:
        by_file.setdefault(root.file, root)
    return min(by_file.values(), key=lambda root: (level_of(root.reason), root.reason in ("runtime_error", UNKNOWN)))


def _earliest(roots: Sequence[Evidence]) -> Evidence:
    """The earliest if all times come from one kind of clock, else the first that was read, kernel logs first.

    The kernel log is closest to the hardware.
    """
    comparable = len({root.source for root in roots}) == 1 and all(root.at_s is not None for root in roots)
    if comparable:
        return min(roots, key=lambda root: root.at_s or 0.0)
    return min(roots, key=lambda root: root.source != kernel_log.SOURCE)


def _without_late_ranks(roots: Sequence[Evidence]) -> Sequence[Evidence]:
    """Drops ranks that, by torchelastic's record, failed after another rank."""
    times = {root.rank: root.at_s for root in roots if root.source == elastic.SOURCE and root.at_s is not None}
    first = min(times.values(), default=None)
    late = {rank for rank, at_s in times.items() if at_s is not None and first is not None and at_s > first}
    return [root for root in roots if root.rank is None or root.rank not in late]


# ---- what no cue explains ------------------------------------------------------------------------------------------


def explain(gathered: Gathered, lessons: Lessons) -> Diagnosis:
    """The diagnosis; if unknown, the owner's lessons are applied to the lines without a matching cue."""
    found = diagnose(gathered.evidence)
    if found.reason != UNKNOWN:
        return found
    for file, line in _unexplained(gathered):
        reason = lessons.reason_of(line.text)
        if reason is not None:
            taught = Evidence(reason, Role.SYMPTOM, _LESSON, file, line.number, line.text.strip()[:400])
            return Diagnosis(reason, taught, found.cascade)
    return replace(found, nothing=_nothing(gathered))


def _nothing(gathered: Gathered) -> str:
    """What the files are, where none of them says anything of a failure."""
    logs = [file for file, form in gathered.taken_for.items() if form != EMPTY and file not in gathered.no_faults]
    shapes = {file: shape_of(head.data) for file, head in gathered.heads.items()}
    shapes = {file: shape for file, shape in shapes.items() if shape != "text"}
    parts = [f"{file}: {text}" for file, text in list(gathered.no_faults.items())[:_HEADS]]
    if not logs and not parts and gathered.taken_for:
        first, *others = gathered.taken_for
        parts = [f"{first} is empty" if not others else f"all {len(others) + 1} files are empty"]
    if logs:
        n_lines = sum(left.tail[-1].number for left in gathered.leftovers.values() if left.tail)
        size = f" ({counted_as(n_lines, 'line')})" if n_lines and not shapes else ""
        forms = ", ".join(dict.fromkeys(gathered.taken_for[file] for file in logs if file not in shapes))
        read_as = f", read as {forms}" if forms else ""
        parts += [
            f"no known error pattern in the logs{size}{read_as}",
            *(f"{file} is {shapes[file]}" for file in shapes),
        ]
    return "; ".join([*parts, *([_READ] if logs else [])])


def hints(gathered: Gathered, most: int = _HINTS, dropped: AbstractSet[str] = frozenset()) -> tuple[UnknownLine, ...]:
    """The rarest kinds of lines that look like errors, else the last lines. For a person to read; never a cause.

    Lines that healthy attempts print are not shown; `dropped` are their rules.
    """
    templates, examples = Templates(), dict[int, tuple[str, Line]]()
    left = gathered.leftovers
    suspicious = [(file, line) for file in left for line in left[file].suspicious if keeps(line.text, dropped)]
    if not suspicious:
        last = {file: [line for line in left[file].tail if keeps(line.text, dropped)][-most:] for file in left}
        suspicious = [(file, line) for file in left for line in last[file]]
    for file, line in suspicious:
        examples[templates.learn(line.text)] = (file, line)
    return tuple(
        UnknownLine(templates.text(one), examples[one][1].text.strip()[:400], templates.count(one), examples[one][0])
        for one in templates.rarest(most)
    )


def _unexplained(gathered: Gathered) -> Iterator[tuple[str, Line]]:
    for file, left in gathered.leftovers.items():
        yield from ((file, line) for line in (*left.suspicious, *left.tail))
