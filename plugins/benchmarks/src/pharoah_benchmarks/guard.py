"""Runs one command, and ends all that came of it: guard.py LIMIT_S MOST_BYTES COMMAND..., in the command's own folder.

It ends with the command, at the limit of time, when the folder has too much in it, when it is asked to (SIGTERM), or
when the other end of its standard input is closed, as whoever started it has when it is killed. Then nothing of the
command is left: whatever it started becomes a child of this process (PR_SET_CHILD_SUBREAPER), sessions of their own and
orphans included. The last line of its output is how it ended. What the command prints goes to `output` in the folder.

At the limit the command is asked first (SIGTERM), so that it may say why it ended. Needs the standard library alone.
"""

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ENDED, TIME, OUTPUT, GONE = "ended", "time", "output", "gone"
POLL_S, GRACE_S = 0.2, 20.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> None:
    """As the module says."""
    limit_s, most_bytes, *command = sys.argv[1:]
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: os.dup2(os.open(os.devnull, os.O_RDONLY), 0))  # an input that has ended
    folder = Path.cwd()
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(most_bytes), int(most_bytes)))
    with (folder / "output").open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    how = _watched(child, time.monotonic() + float(limit_s), int(most_bytes), folder)
    if how == TIME:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
    end_all()
    os.write(1, f"{how}\n".encode())


def _watched(child: "subprocess.Popen[bytes]", ends_s: float, most_bytes: int, folder: Path) -> str:
    while child.poll() is None:
        if select.select([0], [], [], POLL_S)[0]:
            return GONE
        if size_of(folder) >= most_bytes:
            return OUTPUT
        if time.monotonic() > ends_s:
            return TIME
    return OUTPUT if size_of(folder) >= most_bytes else ENDED


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder, which may vanish meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(place) / name).lstat().st_size
    return total


def end_all() -> None:
    """Kills all processes below this one, and returns when there are none: stopped first, so that none starts more."""
    while below := _below(os.getpid()):
        for kind in (signal.SIGSTOP, signal.SIGKILL):
            for process in below:
                with suppress(ProcessLookupError):
                    os.kill(process, kind)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _below(process: int) -> list[int]:
    """All that came of a process and are not dead, nearest first."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            own, state, parent = _stat(stat.read_bytes())
            if state not in b"ZX" or parent == process:
                parents.setdefault(parent, []).append(own)
    found = list(parents.get(process, ()))
    for one in found:  # which grows
        found += parents.get(one, ())
    return found


def _stat(text: bytes) -> tuple[int, bytes, int]:
    """Process, state and parent: the name between them may hold anything."""
    before, _, after = text.rpartition(b")")
    state, parent = after.split()[:2]
    return int(before.split()[0]), state, int(parent)


if __name__ == "__main__":
    main()
