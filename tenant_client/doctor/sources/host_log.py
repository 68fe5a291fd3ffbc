r"""Logs that a whole host or another program keeps: which of their lines may be a job's.

A system log (syslog, rsyslog, the journal as text or JSON) holds the lines of all programs. Kept are those of the
kernel, and as they were written those of a program that may be a job's or its scheduler's; of a log with one program
alone also that one's, unless it is a service. All others become empty lines. Of the logs of display and web servers
nothing is read.

>>> form_of('2026/01/05 10:00:00 [error] 7#7: *1 connect() failed (111: Connection refused)')
'log of a web server'
>>> form_of("Jul 25 23:23:13 n1 ftpd[2]: Transport endpoint is not connected\nJul 25 23:23:14 n1 sshd[1]: bye")
'system log of a host'
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, joined, lines
from tenant_client.doctor.sources.links import lasting

SYSTEM_LOG = "system log of a host"
BUG_REPORT = "NVIDIA bug report"
OTHERS = {  # read for nothing
    "log of a display server": re.compile(r"^\[ *\d+\.\d{3}\] \((?:EE|II|WW|--|==|\*\*|\+\+|!!|NI|\?\?)\)"),
    "log of a web server": re.compile(
        r"^\d{4}/\d\d/\d\d [\d:]{8} \[\w+\] \d+#\d+: |^\[\w{3} \w{3} \d\d [\d:.]+ \d{4}\] \[\w*:\w+\] \[pid "
        r"|^\S+ \S+ \S+ \[\d\d/\w{3}/\d{4}:[\d:]{8} [+-]\d{4}\] \"[A-Z]+ "
    ),
}
_SYSLOG = re.compile(
    r"^(?:<\d+>)?(?:-|[A-Z][a-z]{2} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)?) "
    r"(?P<host>(?!(?:[A-Z]+|[a-z]) )[\w.-]+) (?P<program>[\w./@-]+?)(?P<pid>\[\d+\])?: (?P<said>.*)",
    re.ASCII | re.DOTALL,
)
_MOST_FIELDS = 256
_OF_A_JOB = re.compile(
    r"(?i)(?:.*/)?(?:python[\d.]*|pt_\w*|torch\S*|\S*train\S*|\S+\.(?:py|sh)|ray\w*|srun|slurm\w*|mpirun|orted|prted"
    r"|deepspeed|accelerate|docker/\S+|podman|nvidia\S*|nv-\S+|kubelet|earlyoom|systemd-oomd|nohang\S*|oomd|bash|sh|jupyter\S*|job\S*|run\S*)"
)
_SERVICE = re.compile(r"kernel|\S+d|\S+-daemon|cron|CRON|nginx|gnome-\S+|Xorg|NetworkManager|su|sudo|anacron|dbus\S*")


@lru_cache(1)  # a head is asked about several times in turn
def form_of(head: str) -> str:
    """What a file is by its first lines: one of the forms above, "" for none of them."""
    found = [line for line in head.splitlines() if line.strip()][:60]
    if head.startswith("__CURSOR="):
        return SYSTEM_LOG
    if "nvidia-bug-report" in head or "NVIDIA bug report" in head:
        return BUG_REPORT
    for form, shape in OTHERS.items():
        if sum(1 for line in found if shape.match(line)) * 2 > len(found):
            return form
    records = [record for line in found if (record := _record(line)) is not None]
    of_a_system = any(record.has_pid or _SERVICE.fullmatch(record.program) for record in records)
    return SYSTEM_LOG if of_a_system and len(records) * 2 > len(found) else ""


def of_jobs(reader: CappedReader, head: str, limits: ReadLimits = DEFAULT_LIMITS) -> CappedReader:
    """A system log with what may be a job's and the kernel's, line for line."""
    if head.startswith("__CURSOR="):
        return joined(lasting(_exported(reader, limits)), reader, limits)
    programs = {record.program for line in head.splitlines() if (record := _record(line)) is not None}
    only = next(iter(programs)) if len(programs) == 1 else ""
    alone = "" if _SERVICE.fullmatch(only) else only
    return joined(lasting(_own(line, alone) for _, line in lines(reader, limits)), reader, limits)


@dataclass(frozen=True)
class _Record:
    program: str
    said: str
    line: str
    has_pid: bool


def _own(line: bytes, alone: str) -> bytes:
    record = _record(line.decode("utf-8", "replace")) if line else None
    if record is None:
        return line if alone else b""
    if record.program == "kernel":
        return record.line.encode()
    kept = record.program == alone or _OF_A_JOB.fullmatch(record.program)
    return record.said.encode() if kept else b""


def _record(line: str) -> _Record | None:
    if line[:1] == "{" and '"MESSAGE"' in line:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return None
        line = _of_journal(record)
    found = _SYSLOG.match(line)
    return _Record(found["program"], found["said"], line, bool(found["pid"])) if found else None


def _exported(reader: CappedReader, limits: ReadLimits) -> Iterator[bytes]:
    """Of `journalctl -o export`, a field a line, each record in the place of the empty line that ends it."""
    record: dict[str, object] = {}
    for _, line in lines(reader, limits):
        name, _, value = line.decode("utf-8", "replace").partition("=")
        if value and len(record) < _MOST_FIELDS:
            record[name] = value
        yield _own(_of_journal(record).encode(), "") if not line else b""
        record = record if line else {}
    yield _own(_of_journal(record).encode(), "")


def _of_journal(record: dict[str, object]) -> str:
    """A record of the journal as a line of text; its message is a list of bytes where it is not plain text."""
    try:
        said, us = record["MESSAGE"], record.get("__REALTIME_TIMESTAMP")
        text = bytes(said).decode("utf-8", "replace") if isinstance(said, list) else str(said)
        at = datetime.fromtimestamp(int(str(us)) / 1e6, UTC).isoformat() if us else "-"
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return ""
    is_kernel = record.get("_TRANSPORT") == "kernel"
    program = "kernel" if is_kernel else str(record.get("SYSLOG_IDENTIFIER") or record.get("_COMM") or "-")
    return f"{at} {record.get('_HOSTNAME') or '-'} {program}: {' '.join(text.splitlines())}"
