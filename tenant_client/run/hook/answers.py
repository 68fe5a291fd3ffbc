"""What a rank tells the observer: its cell, once, and when asked its stack and the flight recorder's records.

    observer → rank   one byte: `s` for the stack of the thread that trains, `r` for the records
    rank → observer   the byte again, four bytes of length, and that many bytes

A local (Unix) socket in the run directory, which only the owner can enter. The thread that answers sleeps in `recv`.

A rank that is stuck in native code with the interpreter's lock answers nothing. It still writes its stacks into
`stack-<rank>` when it gets `STACK_SIGNAL`, unless the job uses that signal itself: `faulthandler` needs no lock.
"""

import faulthandler
import fcntl
import mmap
import os
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from tenant_client.run.hook.cell import SIZE

SOCKET = "ranks.sock"
HEAD = struct.Struct("<cI")
STACK, RECORDS = b"s", b"r"
STACK_SIGNAL = signal.SIGRTMAX - 3
_FRAMES = 24
_TIMEOUT_S = 1.0


def address(run_dir: Path) -> tuple[int, str]:
    """A descriptor to be closed after use, and a name below it: the path itself may be longer than sockets allow."""
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return descriptor, f"/proc/self/fd/{descriptor}/{SOCKET}"


def connect(run_dir: Path) -> socket.socket | None:
    """The way to the observer, if there is one."""
    if not (run_dir / SOCKET).exists():
        return None
    descriptor, name = address(run_dir)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(name)
    except OSError:
        connection.close()
        return None
    finally:
        os.close(descriptor)
    return connection


def make_page() -> tuple[int, mmap.mmap]:
    """Memory that can be handed over and cannot shrink."""
    descriptor = os.memfd_create("pharoah", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor, mmap.mmap(descriptor, SIZE)


def hand_over(connection: socket.socket, descriptor: int) -> None:
    """Sends the page's descriptor, which is closed here."""
    socket.send_fds(connection, [b"c"], [descriptor])
    os.close(descriptor)
    connection.settimeout(None)


def dump_on_signal(run_dir: Path, rank: int) -> None:
    """From now on, `STACK_SIGNAL` has this process write the stacks of its threads."""
    if signal.getsignal(STACK_SIGNAL) is signal.SIG_DFL:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        faulthandler.register(STACK_SIGNAL, os.open(run_dir / stack_file(rank), flags, 0o600))


def stack_file(rank: int) -> str:
    """The name of the file in the run directory."""
    return f"stack-{rank}"


def answer_forever(connection: socket.socket, thread: int) -> None:
    """Answers until the observer is gone."""
    with suppress(Exception), connection:  # the observer then decides without this rank's word
        while asked := connection.recv(1):
            answer = _stack(thread) if asked == STACK else _records()
            connection.sendall(HEAD.pack(asked, len(answer)) + answer)


def _stack(thread: int) -> bytes:
    frame = sys._current_frames().get(thread)
    lines = [] if frame is None else traceback.extract_stack(frame)
    return "\n".join(f"{one.name} ({one.filename}:{one.lineno})" for one in lines[-_FRAMES:]).encode()


def _records() -> bytes:
    distributed: Any = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(distributed, "_dump_fr_trace_json", None)
    return b"" if dump is None else bytes(dump())
