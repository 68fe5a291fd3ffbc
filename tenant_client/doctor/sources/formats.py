r"""The formats of logs and dumps: one table, asked from its top which of them a file has.

    head = Head.of(reader)
    form = next(one for one in FORMATS if one.looks_like(head))
    for found in form.read(reader, limits): ...

The last row takes whatever comes, so every file has a format. Another one is one more row; a row from elsewhere goes
before these: docs/architecture.md, "Plug-ins".

>>> next(one.name for one in FORMATS if one.looks_like(Head("dmesg", b"[   17.123456] nvidia: loaded\n")))
'kernel log'
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath

from federation.base.reading import CappedReader, ReadLimits, SourceError, form_of, is_text
from tenant_client.doctor.sources import (
    elastic,
    event_logs,
    exports,
    flight_recorder,
    host_log,
    job_log,
    kernel_log,
    nccl_inspector,
    nccl_log,
    nccl_ras,
    nccl_ras_text,
    slurm_records,
    stacks,
    tool_reports,
)
from tenant_client.doctor.sources.evidence import Evidence, NoFault
from tenant_client.doctor.sources.flight_recorder import Dump
from tenant_client.doctor.sources.job_log import Leftover

Found = (
    Evidence | NoFault | Dump | nccl_ras.Answer | stacks.Stack | Leftover
)  # dumps, answers and stacks say most where all of a job are seen together
_HEAD = 16 << 10
_MOST_OF_A_REPORT = 1 << 26
_OF_A_JOB = re.compile(
    rb"Traceback \(most recent|\w(?:Error|Exception): |^\[rank\d|^(?:srun|slurmstepd): "
    rb"|\b(?:loss|epoch|iter|step)\b|NCCL|torch",
    re.MULTILINE,
)
_MARKDOWN_NAME = re.compile(r"(?i).*\.(?:md|markdown|mdx|rst|adoc)|(?:readme|changelog|contributing)(?:\.txt)?")
_MARKDOWN = re.compile(  # a heading, and further ones or a table
    r"\A\s*# \S[^\n]{0,120}\n(?=.*?^(?:\|?(?: *:?-{3,}:? *\|)+|#{2,4} \S[^\n]*\n.*?^#{2,4} \S))",
    re.DOTALL | re.MULTILINE,
)
_CODE_NAME = re.compile(
    r"(?i).*\.(?:pyi?|c|cc|cpp|cxx|cuh?|hip|hpp|h|go|rs|java|jl|jsx?|tsx?|lua|sh|bash|zsh|toml|cfg|ini|cmake|proto"
    r"|css|tex|bib|patch|diff|gitignore)|requirements[\w-]*\.txt|constraints[\w-]*\.txt|(?:[\w-]+\.)?dockerfile|makefile|cmakelists\.txt"
    r"|(?:licen[cs]e|copying|notice|authors)(?:\.txt)?"
)
_LOG_NAME = re.compile(r"(?i)\.(?:log|out|err)\b|^(?:std(?:out|err)|slurm-\d)")  # jobs print tables and headings, too
_YAML_NAME = re.compile(r"(?i).*\.ya?ml")
_YAML_OF_A_STATE = re.compile(
    r"^\s*(?:- )?(?:status|phase|reason|state|message|conditions):|^- hosts?:.*error", re.MULTILINE
)
_FAILED_JOB = re.compile(rb"^Traceback \(most recent|^\[rank\d", re.MULTILINE)
_INSPECTOR = "an NCCL Inspector log: it tells which ranks are slow, not why a job failed"


class NotOfAJob(SourceError):
    """The file is no log or dump from which a diagnosis could be made."""


@dataclass(frozen=True)
class Head:
    """How a file begins."""

    file: str
    data: bytes

    @classmethod
    def of(cls, reader: CappedReader) -> "Head":
        """That of an input which nobody has read yet."""
        return cls(reader.file, reader.peek()[:_HEAD])

    @cached_property
    def text(self) -> str:
        """The same as text; "" where it is none."""
        return self.data.decode("utf-8", "replace") if is_text(self.data) else ""


@dataclass(frozen=True)
class Format:
    """One format by its name for a person: whether a file that begins so has it, and what one holds, in its order."""

    name: str
    looks_like: Callable[[Head], bool]
    read: Callable[[CappedReader, ReadLimits], Iterable[Found]]


def _dump(reader: CappedReader, limits: ReadLimits) -> Iterator[Dump]:
    yield flight_recorder.read_dump(reader, limits)


def _job_log(reader: CappedReader, limits: ReadLimits) -> Iterator[Evidence | Leftover]:
    """What the log leaves unexplained, which is complete at its end, and its evidence; its rank may be in its name."""
    leftover, rank = Leftover(), elastic.rank_of(reader.file)
    yield leftover
    for seen in job_log.read(reader, limits, leftover):
        yield replace(seen, rank=rank) if seen.rank is None else seen


_Report = Callable[[CappedReader, ReadLimits], Iterable[Evidence | NoFault]]


def _or_log_below(
    report: _Report, of_a_job: re.Pattern[bytes] = _OF_A_JOB
) -> Callable[[CappedReader, ReadLimits], Iterator[Found]]:
    """Reads a report, and a job's log where one goes on below it: many begin with `nvidia-smi` or `scontrol`."""

    def read(reader: CappedReader, limits: ReadLimits) -> Iterator[Found]:
        begin = reader.read(min(_MOST_OF_A_REPORT, limits.total_bytes))
        yield from report(CappedReader(io.BytesIO(begin), reader.file, limits.total_bytes), limits)
        is_json = begin.lstrip()[:1] in (b"{", b"[")
        if len(begin) == _MOST_OF_A_REPORT or (not is_json and of_a_job.search(begin)):
            yield from _job_log(CappedReader(_Rejoined(begin, reader), reader.file, limits.total_bytes), limits)

    return read


class _Rejoined:
    """A file from its start, of which the beginning was read."""

    def __init__(self, begin: bytes, rest: CappedReader) -> None:
        self._begin, self._rest = io.BytesIO(begin), rest

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, b"" at the end."""
        return self._begin.read(size) or self._rest.read(size)


def _system_log(reader: CappedReader, limits: ReadLimits) -> Iterator[Evidence | Leftover]:
    return _job_log(host_log.of_jobs(reader, Head.of(reader).text, limits), limits)


def _exported(reader: CappedReader, limits: ReadLimits) -> Iterator[Evidence | Leftover]:
    begin = reader.read(min(_MOST_OF_A_REPORT, limits.total_bytes))
    if len(begin) == _MOST_OF_A_REPORT:  # too long to be put in order: its lines are read as they come
        return _job_log(CappedReader(_Rejoined(begin, reader), reader.file, limits.total_bytes), limits)
    whole = CappedReader(io.BytesIO(begin), reader.file, limits.total_bytes)
    return _job_log(exports.of_jobs(whole, limits), limits)


def _nothing(reader: CappedReader, limits: ReadLimits) -> tuple[Found, ...]:
    return ()


def _inspector(reader: CappedReader, limits: ReadLimits) -> tuple[Found, ...]:
    raise NotOfAJob(reader.file, 0, _INSPECTOR, hint="read them with `pharoah-tenant show --only stragglers`")


def _unknown(reader: CappedReader, limits: ReadLimits) -> tuple[Found, ...]:
    raise NotOfAJob(reader.file, 0, f"not a log or dump of a job: {form_of(Head.of(reader).data)}")


def _documentation(reader: CappedReader, limits: ReadLimits) -> Iterator[NoFault]:
    yield NoFault("documentation, in which an error that is quoted is no evidence; give the log itself")


def _code(reader: CappedReader, limits: ReadLimits) -> Iterator[NoFault]:
    yield NoFault("source code or configuration, which tells of no job")


def _name(head: Head) -> str:
    return PurePath(head.file.rpartition(":")[2]).name


def _is_documentation(head: Head) -> bool:
    name = _name(head)
    is_markdown = _MARKDOWN_NAME.fullmatch(name) or (_MARKDOWN.match(head.text) and not _LOG_NAME.search(name))
    return bool(head.text) and bool(is_markdown)


def _is_code(head: Head) -> bool:
    name = _name(head)
    is_script = head.text.startswith("#!") and name.endswith((".slurm", ".sbatch", ".pbs", ".job"))
    is_config = _YAML_NAME.fullmatch(name) and not _YAML_OF_A_STATE.search(head.text)
    return bool(head.text) and bool(_CODE_NAME.fullmatch(name) or is_script or is_config)


def _is_dump(head: Head) -> bool:
    return flight_recorder.looks_like(head.data, Path(head.file).name)


def _of_host(form: str) -> Callable[[Head], bool]:
    return lambda head: host_log.form_of(head.text) == form


EMPTY, JOB_LOG = "an empty file", "job log"
_RAS = "answer of NCCL's RAS"
FORMATS = (
    Format("documentation", _is_documentation, _documentation),
    Format("source code or configuration", _is_code, _code),
    Format("flight recorder dump", _is_dump, _dump),
    Format(_RAS, lambda head: nccl_ras.looks_like(head.data), nccl_ras.read),
    Format("NCCL Inspector log", lambda head: nccl_inspector.looks_like(head.data), _inspector),
    Format("torchelastic error file", lambda head: elastic.looks_like(head.text), elastic.read),
    Format("kernel log", lambda head: kernel_log.looks_like(head.text), kernel_log.read),
    Format(_RAS, lambda head: nccl_ras_text.looks_like(head.text), nccl_ras_text.read),
    Format("report of a tool", lambda head: tool_reports.looks_like(head.text), _or_log_below(tool_reports.read)),
    Format(
        "Slurm's record of jobs",
        lambda head: slurm_records.looks_like_jobs(head.text),
        _or_log_below(slurm_records.read_jobs),
    ),
    Format(
        "Slurm's record of nodes",
        lambda head: slurm_records.looks_like_nodes(head.text),
        _or_log_below(slurm_records.read_nodes),
    ),
    Format("log of events", lambda head: event_logs.looks_like(head.text), _or_log_below(event_logs.read, _FAILED_JOB)),
    Format("stacks of processes", lambda head: stacks.looks_like(head.text), stacks.read),
    # A job that NCCL logs at length writes other lines, too.
    Format("NCCL log", lambda head: nccl_log.looks_like(head.text), _job_log),
    Format(host_log.BUG_REPORT, _of_host(host_log.BUG_REPORT), kernel_log.read),
    Format(host_log.SYSTEM_LOG, _of_host(host_log.SYSTEM_LOG), _system_log),
    *(Format(form, _of_host(form), _nothing) for form in host_log.OTHERS),
    Format("export of a log service", lambda head: exports.looks_like(head.text), _exported),
    Format(EMPTY, lambda head: not head.data.strip() and len(head.data) < _HEAD, _nothing),
    Format(JOB_LOG, lambda head: bool(head.text), _job_log),
    Format("unknown", lambda head: True, _unknown),
)
