r"""The stack of a rank, by whatever means works: py-spy, the rank itself, or a signal to it.

>>> dump = '''Thread 0x2 (most recent call first):
...   File "threading.py", line 9 in wait
... Thread 0x1 (most recent call first):
...   File "train.py", line 7 in step
...   File "train.py", line 3 in <module>'''
>>> of_dump(dump)
'<module> (train.py:3)\nstep (train.py:7)'
"""

import ctypes
import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tenant_client.doctor.run.hook.answers import STACK, STACK_SIGNAL, stack_file
from tenant_client.doctor.run.hook.cell import Who
from tenant_client.doctor.run.syndromes.ranks import Ranks

_ANSWER_S, _PY_SPY_S, _DUMP_S = 3.0, 5.0, 0.5
_MOST_BYTES, _MOST_DIGITS = 1 << 20, 20
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def stack_of(ranks: Ranks, who: Who, run_dir: Path) -> str:
    """One function a line, the innermost last; "" where the rank cannot be asked."""
    return (
        _py_spy(who.pid)
        or ranks.ask(STACK, [who.rank], _ANSWER_S).get(who.rank, b"").decode(errors="replace")
        or by_signal(who.pid, run_dir / stack_file(who.rank))
    )


def by_signal(pid: int, file: Path) -> str:
    """What the process writes when its thread is told to that holds the file, and is named in its first line.

    It is told only if it listens, as the signal would end the process else.
    """
    with suppress(OSError, ValueError), file.open("rb") as dump:
        thread = int(dump.readline(_MOST_DIGITS))
        dump.seek(0, os.SEEK_END)
        if listens(pid) and ctypes.CDLL(None).tgkill(pid, thread, STACK_SIGNAL) == 0:
            time.sleep(_DUMP_S)
            return of_dump(dump.read(_MOST_BYTES).decode(errors="replace"))
    return ""


def of_dump(dump: str) -> str:
    """The stack of the oldest thread of a dump of `faulthandler`, which lists it last."""
    oldest = re.split(r"^(?:Current thread|Thread) .*$", dump, flags=re.MULTILINE)[-1]
    frames = _FRAME.findall(oldest)
    return "\n".join(f"{name} ({file}:{line})" for file, line, name in reversed(frames))


def listens(pid: int) -> bool:
    """Whether the signal meets a handler in the process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    caught = int(status.partition("SigCgt:")[2].split(maxsplit=1)[0], 16)
    return bool(caught >> (STACK_SIGNAL - 1) & 1)


def _py_spy(pid: int) -> str:
    program = shutil.which("py-spy")
    if program is None:
        return ""
    command = (program, "dump", "--nonblocking", "--pid", str(pid))
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_PY_SPY_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
