"""Evidence from the exit status of a process: what ended it, where nothing else says why.

137 may be the out-of-memory killer, a scheduler or a person; only the kernel log shows which, and `killed` is what the
status alone supports. 134 follows a fault that another source names, so it is a symptom; 1 is Python's after an
exception; 2 is that of argparse and of many other programs.

    >>> of(137).text, of(137).reason
    ('exit status 137: killed by SIGKILL', 'killed')
    >>> of(-11).reason, of(17).reason, of(1).reason
    ('segmentation_fault', 'exit_code', 'unknown')
"""

import signal

from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.reasons import UNKNOWN

SOURCE = "exit_status"
EXIT_CODE = "exit_code"
_BY_SIGNAL = {
    signal.SIGKILL: "killed",
    signal.SIGABRT: "aborted",
    signal.SIGSEGV: "segmentation_fault",
    signal.SIGBUS: "shared_memory_full",
    signal.SIGXCPU: "time_limit",
}
_MEANINGS = {1: "an error", 2: "a usage error, perhaps", 126: "not executable", 127: "command not found"}


def of(status: int, file: str = "exit status", *, rank: int | None = None, host: str = "") -> Evidence | None:
    """Evidence for a status as a shell (128 + n) or Python (-n) gives it; None for success."""
    if status == 0:
        return None
    killer, reason = signal_of(status), reason_of(status)
    what = f"killed by {killer.name}" if killer else _MEANINGS.get(status, "failed")
    return Evidence(reason, role_of(status), SOURCE, file, 0, f"exit status {status}: {what}", None, rank, host)


def reason_of(status: int) -> str:
    """What a status alone supports; "unknown" where it is that of many failures, or of a stop that was asked for."""
    killer = signal_of(status)
    if killer:
        return _BY_SIGNAL.get(killer, UNKNOWN)
    return UNKNOWN if status in _MEANINGS else EXIT_CODE


def role_of(status: int) -> Role:
    """What a status is beside other evidence."""
    if signal_of(status) is signal.SIGABRT:
        return Role.SYMPTOM
    return Role.TEARDOWN if reason_of(status) == UNKNOWN else Role.ROOT


def signal_of(status: int) -> signal.Signals | None:
    """The signal behind a status, None where there is none."""
    number = -status if status < 0 else status - 128
    try:
        return signal.Signals(number)
    except ValueError:
        return None
