"""Evidence from the exit status of a process. It names no reason, since every status has several.

137 may be the out-of-memory killer, a scheduler or a person; only the kernel log shows which. 134 and 139 follow a
fault that another source names; 2 is the status of argparse and of many other programs.

    >>> of(137).text
    'exit status 137: killed by SIGKILL'
    >>> of(137).reason
    'unknown'
"""

import signal

from tenant_client.sources.cues import UNKNOWN
from tenant_client.sources.evidence import Evidence, Role

SOURCE = "exit_status"
_TEARDOWN = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_MEANINGS = {1: "an error", 2: "a usage error, perhaps", 126: "not executable", 127: "command not found"}


def of(status: int, file: str = "exit status", *, rank: int | None = None, host: str = "") -> Evidence | None:
    """Evidence for a status as a shell (128 + n) or Python (-n) gives it; None for success."""
    if status == 0:
        return None
    killer = signal_of(status)
    what = f"killed by {killer.name}" if killer else _MEANINGS.get(status, "failed")
    role = Role.TEARDOWN if killer is None or killer in _TEARDOWN else Role.SYMPTOM
    return Evidence(UNKNOWN, role, SOURCE, file, 0, f"exit status {status}: {what}", None, rank, host)


def signal_of(status: int) -> signal.Signals | None:
    """The signal behind a status, None where there is none."""
    number = -status if status < 0 else status - 128
    try:
        return signal.Signals(number)
    except ValueError:
        return None
