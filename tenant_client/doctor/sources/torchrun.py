"""torchrun's own verdict in a job's output: which rank ended first, and with which exit code or signal.

    Root Cause (first observed failure):
    [0]:
      time      : 2025-03-02_04:05:06
      host      : gpu-a
      rank      : 1 (local_rank: 1)
      exitcode  : -9 (pid: 48213)

and, before that, `failed (exitcode: -9) local_rank: 1 (pid: 48213) of binary: …`. What the other ranks say after that
follows from it. An exit code of 1 is Python's for an exception: the verdict then only names the rank.

    >>> lines = TorchrunLines("job.log")
    >>> seen = lines.evidence(Line(7, "E api.py:869] failed (exitcode: -11) local_rank: 1 (pid: 77) of binary: python"))
    >>> seen.reason, seen.rank, seen.role.value
    ('segmentation_fault', 1, 'root')
"""

import re
import signal

from federation.base.foreign import number
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.exit_status import reason_of, role_of, signal_of
from tenant_client.doctor.sources.reasons import UNKNOWN
from tenant_client.doctor.sources.scanning import Line

SOURCE = "torchrun"
WORDS = ("Root Cause (first", "failed (exitcode:")
_FIELD = re.compile(r"^\s*(rank|exitcode|host) *: +(\S+)", re.ASCII)
_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,4})\) local_rank: (\d{1,6})", re.ASCII)
_MOST_LINES = 12
_RELAYED = 1  # Python's status for an exception, and that of a launcher whose worker failed


class TorchrunLines:
    """Lines in their order: a verdict is spread over several, and while it is `open` each line is wanted."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.open, self._until = False, 0
        self._rank: int | None = None
        self._host = ""

    def evidence(self, line: Line) -> Evidence | None:
        """What a line completes, None where it completes nothing."""
        failed = _FAILED.search(line.text)
        if failed:
            return self._verdict(int(failed[1]), int(failed[2]), line)
        if "Root Cause (first" in line.text:
            self._until = line.number + _MOST_LINES
        self.open = line.number < self._until
        field = _FIELD.match(line.text) if self.open else None
        if field is None:
            return None
        name, value = field.groups()
        if name == "exitcode":
            self.open, self._until = False, 0
            status = number(value.removeprefix("-"))
            return None if status is None else self._verdict(-status if value[0] == "-" else status, self._rank, line)
        if name == "host":
            self._host = value
        else:
            self._rank = number(value)
        return None

    def _verdict(self, status: int, rank: int | None, line: Line) -> Evidence | None:
        if status == 0:
            return None
        killer = signal_of(status)
        reason = UNKNOWN if status == _RELAYED else reason_of(status)
        role = Role.TEARDOWN if reason == UNKNOWN else role_of(status)
        if killer is signal.SIGHUP:  # a launcher is not asked to end by a signal to one of its ranks
            reason, role = "killed", Role.ROOT
        text = f"first failure: exit code {status}{f' ({killer.name})' if killer else ''}"
        return Evidence(reason, role, SOURCE, self._file, line.number, text, None, rank, self._host)
