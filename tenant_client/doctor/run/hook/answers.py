"""What a rank tells the observer: its cell, once, and when asked its stack and the flight recorder's records.

    rank → observer   `c`, with the descriptor of the cell's page
    observer → rank   one byte in the page: `s` for the stack of the thread that trains, `r` for the records
    rank → observer   the answer, behind it

The page is handed over once through a local (Unix) socket in the run directory, which only the owner can enter. No
descriptor is kept here: the job may close all that it finds (daemons, sandboxes), and what it opens next would get the
same numbers. The thread that answers looks at the page once a second, and opens nothing.

A rank that is stuck in native code with the interpreter's lock answers nothing. It still writes its stacks into
`stack-<rank>` when its thread in that file's first line gets `STACK_SIGNAL`, unless the job uses that signal itself:
`faulthandler` needs no lock. That thread has a descriptor table of its own, with this file in it and nothing else, so
that the job can neither close it nor put another one in its place.
"""

import _thread
import ctypes
import faulthandler
import fcntl
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from tenant_client.doctor.run.hook.cell import SIZE, Cell

SOCKET = "ranks.sock"
CELL, STACK, RECORDS = b"c", b"s", b"r"
STACK_SIGNAL = signal.SIGRTMAX - 3
_FRAMES = 24
_LOOK_S = 1.0
_TIMEOUT = struct.pack("ll", 1, 0)  # seconds, microseconds
_CLOSE_RANGE, _CLOSE_RANGE_UNSHARE = 436, 2  # the number of the system call is the same on all architectures
_LEAST_NUMBER, _MOST_NUMBER = 255, 65535


def address(run_dir: Path) -> tuple[int, str]:
    """A descriptor to be closed after use, and a name below it: the path itself may be longer than sockets allow."""
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return descriptor, f"/proc/self/fd/{descriptor}/{SOCKET}"


@contextmanager
def connected(run_dir: Path) -> Iterator[socket.socket | None]:
    """The way to the observer, if there is one, for one message; what is not ours any more afterwards stays open."""
    if not (run_dir / SOCKET).exists():
        yield None
        return
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own = os.fstat(connection.fileno())
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEOUT)
        yield connection if _connect(connection, run_dir) else None
    finally:
        number = connection.detach()
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), own):
                os.close(number)


def _connect(connection: socket.socket, run_dir: Path) -> bool:
    descriptor, name = address(run_dir)
    try:
        connection.connect(name)
    except OSError:  # nobody listens any more
        return False
    finally:
        os.close(descriptor)
    return True


def make_page() -> tuple[int, memoryview]:
    """Memory that can be handed over and cannot shrink. It stays mapped: Python's `mmap` would keep a descriptor."""
    descriptor = os.memfd_create("pharoah", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.posix_fallocate(descriptor, 0, SIZE)  # a page that is not there when it is written would be SIGBUS
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    at = libc.mmap(None, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if at == ctypes.c_void_p(-1).value:
        os.close(descriptor)
        raise OSError(ctypes.get_errno(), "no memory to share")
    return descriptor, memoryview((ctypes.c_ubyte * SIZE).from_address(at)).cast("B")


def hand_over(connection: socket.socket, descriptor: int) -> None:
    """Sends the page's descriptor, which is closed here."""
    try:
        socket.send_fds(connection, [CELL], [descriptor])
    finally:
        os.close(descriptor)


def dump_on_signal(run_dir: Path, rank: int) -> None:
    """From now on, a thread of this process writes the stacks of all when it gets `STACK_SIGNAL`.

    Not where the kernel (before 5.9) gives it no descriptor table of its own. A signal to the process as a whole may
    meet another thread, in whose table the number of the file is the highest one and free.
    """
    number = min(os.sysconf("SC_OPEN_MAX") - 1, _MOST_NUMBER)
    if number < _LEAST_NUMBER or signal.getsignal(STACK_SIGNAL) is not signal.SIG_DFL:
        return
    held: list[int] = []
    ready = threading.Lock()
    ready.acquire()
    arguments = str(run_dir / stack_file(rank)), number, held, ready
    _thread.start_new_thread(_hold, arguments)  # without what `threading` has threads run for others
    if ready.acquire(timeout=1.0) and held:
        faulthandler.register(STACK_SIGNAL, number)


def _hold(path: str, number: int, held: list[int], ready: threading.Lock) -> None:
    """Holds the file open as `number` in a descriptor table of this thread alone, for ever.

    The job's numbers mean nothing there, so once it has it, no code of the job may run in this thread: signals are
    blocked, and nothing is allocated that could begin a garbage collection.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {STACK_SIGNAL})
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    line = b"%d\n" % threading.get_native_id()
    private = ctypes.CDLL(None).syscall(_CLOSE_RANGE, 0, -1, _CLOSE_RANGE_UNSHARE) == 0
    try:
        if private:
            descriptor = os.open(path, flags, 0o600)
            os.write(descriptor, line)
            os.dup2(descriptor, number, inheritable=False)
            held.append(number)
    except OSError:  # no stacks then
        pass
    finally:
        ready.release()
    while private:
        time.sleep(1e9)


def stack_file(rank: int) -> str:
    """The name of the file in the run directory."""
    return f"stack-{rank}"


def answer_forever(cell: Cell, thread: int) -> None:
    """Answers until the cell is void."""
    while not cell.is_void:
        with suppress(Exception):  # the observer then decides without this rank's word
            if (asked := cell.take_asked()) in (STACK, RECORDS):
                cell.answer(asked, _stack(thread) if asked == STACK else _records())
        time.sleep(_LOOK_S)


def _stack(thread: int) -> bytes:
    frame = sys._current_frames().get(thread)
    frames = islice(traceback.walk_stack(frame), _FRAMES) if frame is not None else ()
    codes = [(one.f_code, line) for one, line in frames]
    return "\n".join(f"{code.co_name} ({code.co_filename}:{line})" for code, line in reversed(codes)).encode()


def _records() -> bytes:
    distributed: Any = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(distributed, "_dump_fr_trace_json", None)
    return b"" if dump is None else bytes(dump())
