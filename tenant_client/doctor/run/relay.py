"""The relay: a process that copies the job's output unchanged, and keeps the last part of it in bounded files.

- It is a script that imports only the standard library.
- It ignores signals of terminals and schedulers and runs until the job's last process closes its output, so that the
  job never loses its reader, even if all other processes of Pharoah are killed.
- A slow or full disk for the kept files never slows the copying.

Messages on the control socket: the relay sends READY; BROKEN and a stream's index if that stream's reader is gone (the
job must then get its SIGPIPE); and DRAINED once it has copied all that was written before the supervisor sent END.
"""

import json
import os
import select
import signal
import sys
import threading
import time
from collections import deque

READY, BROKEN, DRAINED, END = b"R", b"B", b"D", b"E"

_BLOCK_BYTES = 1 << 18
_QUEUE_BYTES = 16 << 20
_LAST_WORDS_S = 2.0
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGPIPE", "SIGXFSZ")


class Spool:
    """The last bytes of one stream, in `path` and before it `path.1`, each of at most `cap_bytes`.

    Written by a thread of its own; what a slow disk cannot take is dropped, oldest first, and so is what a full disk
    refuses.
    """

    def __init__(self, path: str, cap_bytes: int) -> None:
        self._path = path
        self._cap_bytes = cap_bytes
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._writing = False
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, data: bytes) -> None:
        """Queues `data`; never waits for the disk."""
        with self._changed:
            self._queue.append(data)
            self._queued_bytes += len(data)
            while self._queued_bytes > _QUEUE_BYTES:
                self._queued_bytes -= len(self._queue.popleft())
            self._changed.notify_all()

    def flush(self, until_s: float) -> None:
        """Waits until all is written, or until `until_s` on the monotonic clock."""
        with self._changed:
            self._changed.wait_for(self._idle, max(0.0, until_s - time.monotonic()))

    def _idle(self) -> bool:
        return not self._queue and not self._writing

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                data = self._queue.popleft()
                self._queued_bytes -= len(data)
                self._writing = True
            try:
                self._append(data)
            except OSError:  # a full disk may have room again later
                pass
            finally:
                with self._changed:
                    self._writing = False
                    self._changed.notify_all()

    def _append(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o600)
        try:
            full = os.fstat(descriptor).st_size + len(data) > self._cap_bytes
            if not full:
                _write_all(descriptor, data)
        finally:
            os.close(descriptor)
        if full:
            os.replace(self._path, self._path + ".1")  # noqa: PTH105 - the relay starts without pathlib
            self._append(data[-self._cap_bytes :])


class Stream:
    """One stream of the job: where it is read, where it goes, and where its end is kept."""

    def __init__(self, index: int, source: int, sink: int, spool: Spool | None) -> None:
        self._index = index
        self._source = source
        self._sink = sink
        self.spool = spool
        self.drained = threading.Event()

    def copy(self, ended: int, control: int) -> None:
        """Copies until the last writer is gone; sets `drained` when nothing is left after `ended` became readable."""
        try:
            self._copy(ended)
        except BrokenPipeError:
            _tell(control, BROKEN + bytes([self._index]))
        os.close(self._source)
        self.drained.set()

    def _copy(self, ended: int) -> None:
        poller = select.poll()
        poller.register(self._source, select.POLLIN)
        poller.register(ended, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poller.poll()]
            if self._source not in ready:
                poller.unregister(ended)
                self.drained.set()
            elif data := _read(self._source):
                self._pass_on(data)
            else:
                return

    def _pass_on(self, data: bytes) -> None:
        if self.spool is not None:
            self.spool.put(data)
        try:
            _write_all(self._sink, data)
        except BrokenPipeError:
            raise
        except OSError:  # a full disk or a terminal that is gone: these bytes are lost, the job goes on
            return


def main(argument: str) -> None:
    """Runs the relay as its JSON argument says."""
    told = json.loads(argument)
    control = told["control"]
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    _close_all_but({control, *(n for stream in told["streams"] for n in (stream["source"], stream["sink"]))})
    streams = [_stream(stream, told) for stream in told["streams"]]
    ended, ending = os.pipe()
    threads = [threading.Thread(target=stream.copy, args=(ended, control)) for stream in streams]
    _tell(control, READY)  # whoever waits too long for this kills us, so nothing was read before
    for thread in threads:
        thread.start()
    threading.Thread(target=_listen, args=(control, ending, streams), daemon=True).start()
    for thread in threads:
        thread.join()
    _flush(streams)


def _stream(stream: dict[str, int | str], told: dict[str, int | str | None]) -> Stream:
    folder = told["spool"]
    spool = Spool(f"{folder}/{stream['name']}.log", int(told["spool_bytes"] or 0)) if folder else None
    return Stream(int(stream["index"]), int(stream["source"]), int(stream["sink"]), spool)


def _listen(control: int, ending: int, streams: list[Stream]) -> None:
    """Waits for the job's end as told by the supervisor; a supervisor that is gone says nothing, and that is fine."""
    try:
        if os.read(control, 1) != END:
            return
    except OSError:
        return
    os.write(ending, END)
    for stream in streams:
        stream.drained.wait()
    _flush(streams)
    _tell(control, DRAINED)


def _flush(streams: list[Stream]) -> None:
    until_s = time.monotonic() + _LAST_WORDS_S
    for stream in streams:
        if stream.spool is not None:
            stream.spool.flush(until_s)


def _tell(control: int, word: bytes) -> None:
    try:
        os.write(control, word)
    except OSError:  # the supervisor is gone; the job may go on for days
        return


def _read(source: int) -> bytes:
    try:
        return os.read(source, _BLOCK_BYTES)
    except OSError:  # EIO: how a pseudo-terminal says that its last writer is gone
        return b""


def _write_all(sink: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(sink, rest) :]
        except BlockingIOError:  # somebody who shares the sink made it non-blocking
            select.select([], [sink], [])


def _close_all_but(kept: set[int]) -> None:
    """Descriptors that the job's owner meant for the job would stay open here, and keep their readers waiting."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the relay starts without pathlib
        descriptor = int(name)
        try:
            if descriptor <= 2 and descriptor not in kept:
                os.dup2(nothing, descriptor)
            elif descriptor not in kept:
                os.close(descriptor)
        except OSError:  # the descriptor by which the folder was listed
            continue


if __name__ == "__main__":
    main(sys.argv[1])
