"""The job's stdout and stderr: a pipe or a pseudo-terminal each, read by the relay.

- If both have the same target they share one channel, so that their order is preserved.
- If the target is a terminal the job sees a terminal of the same size, with output processing off (the real one does
  it).
- The supervisor keeps the reading ends too: a killed relay is restarted without loss.
"""

import fcntl
import json
import os
import signal
import socket
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tenant_client.doctor.run import relay

_START_S = 5.0
_PIPE_BYTES = 1 << 20
_OFLAG = 1  # index of the output flags in termios' list


@dataclass
class Channel:
    """One way out of the job: `source` is read by the relay, `inner` is what the job writes to, `sink` is ours."""

    name: str
    sink: int
    source: int
    inner: int
    terminal: bool
    job_descriptors: tuple[int, ...]
    broken: bool = False


@dataclass
class Streams:
    """All channels of one job, and the relay behind them."""

    channels: list[Channel]
    spool: Path | None
    spool_bytes: int
    relay_pid: int = 0
    starts: int = 0
    _control: socket.socket | None = field(default=None, repr=False)
    _own: list[relay.Stream] = field(default_factory=list, repr=False)
    _to_threads: socket.socket | None = field(default=None, repr=False)
    _ending: int = -1

    def start_relay(self) -> None:
        """Starts a relay and waits until it reads; OSError where none comes up."""
        ours, its = socket.socketpair()
        spool = self.spool if self.starts < 2 else None  # perhaps it was the spool that broke it
        self.starts += 1
        whole = [(index, channel) for index, channel in enumerate(self.channels) if not channel.broken]
        streams = [{"index": i, "source": c.source, "sink": c.sink, "name": c.name} for i, c in whole]
        told = {"streams": streams, "control": its.fileno(), "spool_bytes": self.spool_bytes}
        argument = json.dumps(told | {"spool": str(spool) if spool else None})
        with its:
            self.relay_pid = _spawn(relay.__file__, argument, [its.fileno(), *(c.source for _, c in whole)])
        ours.settimeout(_START_S)
        try:
            if ours.recv(1) != relay.READY:
                raise OSError("it does not start")
        except OSError:
            self._kill_relay()  # two that read one stream would mix it up; before it hears that we hung up, and reads
            ours.close()
            raise
        self.close()
        self._control = ours
        ours.settimeout(0)
        _signal_when_readable(ours)

    def start_again(self) -> None:
        """Another relay for one that was killed; where none comes up, a thread of ours copies instead."""
        try:
            self.start_relay()
        except OSError:
            self._copy_here()

    def files(self) -> dict[int, int]:
        """What the job must have as which descriptor."""
        return {number: channel.inner for channel in self.channels for number in channel.job_descriptors}

    def let_go(self) -> None:
        """Closes the job's ends here, so that the job's own exit ends the streams."""
        for channel in self.channels:
            os.close(channel.inner)

    def close(self) -> None:
        """Hangs up on the relay; a thread of ours that copies in its place goes on."""
        for end in (self._control, self._to_threads):
            if end is not None:
                end.close()

    def listen(self) -> None:
        """Acts on what the relay said: a stream whose reader is gone must break for the job as well."""
        for index in self._broken():
            self.channels[index].broken = True
            os.close(self.channels[index].source)

    def resize(self) -> None:
        """The real terminal's window changed."""
        for channel in self.channels:
            if channel.terminal and not channel.broken:
                _copy_window_size(channel.sink, channel.source)

    def drain(self, wait_s: float) -> bool:
        """Whether the relay has copied, within `wait_s`, all that was written so far."""
        if self._control is None or self._own:
            return self._drain_here(wait_s) if self._own else True
        try:
            self._control.send(relay.END)
            self._control.settimeout(wait_s)
            while word := self._control.recv(1):
                if word == relay.DRAINED:
                    return True
        except TimeoutError:
            return False
        except OSError:  # the relay is gone
            pass
        if self._relay_ended_well():
            return True
        self.start_again()
        return self.drain(wait_s)

    def _relay_ended_well(self) -> bool:
        """Whether a relay that is gone had copied all; one that was killed may have left output behind."""
        try:
            return os.waitpid(self.relay_pid, 0)[1] == 0
        except ChildProcessError:  # the supervisor has seen it end, and would have started another
            return True

    def _kill_relay(self) -> None:
        os.kill(self.relay_pid, signal.SIGKILL)
        os.waitpid(self.relay_pid, 0)
        self.relay_pid = 0

    def _copy_here(self) -> None:
        self.close()
        self._control, to_threads = socket.socketpair()
        ended, self._ending = os.pipe()
        for channel in (channel for channel in self.channels if not channel.broken):
            stream = relay.Stream(self.channels.index(channel), os.dup(channel.source), channel.sink, None)
            self._own.append(stream)
            threading.Thread(target=stream.copy, args=(ended, to_threads.fileno()), daemon=True).start()
        self._to_threads = to_threads
        self._control.settimeout(0)
        _signal_when_readable(self._control)

    def _drain_here(self, wait_s: float) -> bool:
        os.write(self._ending, relay.END)
        return all(stream.drained.wait(wait_s) for stream in self._own)

    def _broken(self) -> Iterator[int]:
        while self._control is not None:
            try:
                word = self._control.recv(2)
            except BlockingIOError:
                return
            if not word.startswith(relay.BROKEN):
                return
            yield word[1]


def lay(spool: Path | None, spool_bytes: int) -> Streams:
    """Channels for stdout and stderr as they are now, and a relay that reads them; OSError where that fails."""
    streams = Streams(_channels(), spool, spool_bytes)
    try:
        streams.start_relay()
    except OSError:
        _abandon(streams)
        raise
    return streams


def _channels() -> list[Channel]:
    out, err = os.fstat(1), os.fstat(2)
    if (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino):
        return [_channel("output", 1, (1, 2))]
    return [_channel("stdout", 1, (1,)), _channel("stderr", 2, (2,))]


def _channel(name: str, sink: int, job_descriptors: tuple[int, ...]) -> Channel:
    if not os.isatty(sink):
        source, inner = os.pipe()
        with suppress(OSError):  # a larger buffer is a matter of speed
            fcntl.fcntl(inner, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return Channel(name, sink, source, inner, terminal=False, job_descriptors=job_descriptors)
    source, inner = os.openpty()
    attributes = termios.tcgetattr(sink)
    attributes[_OFLAG] &= ~termios.OPOST
    termios.tcsetattr(inner, termios.TCSANOW, attributes)
    _copy_window_size(sink, inner)
    return Channel(name, sink, source, inner, terminal=True, job_descriptors=job_descriptors)


def _abandon(streams: Streams) -> None:
    for channel in streams.channels:
        os.close(channel.source)
        os.close(channel.inner)


def _spawn(script: str, argument: str, passed: Sequence[int]) -> int:
    """Starts one of our scripts in a session of its own, out of reach of what a terminal sends."""
    inherited = [(os.POSIX_SPAWN_DUP2, descriptor, descriptor) for descriptor in passed]
    command = [sys.executable, "-I", "-S", script, argument]
    return os.posix_spawn(sys.executable, command, os.environ, file_actions=inherited, setsid=True, setsigmask=())


def _signal_when_readable(control: socket.socket) -> None:
    """SIGIO comes when the relay says something: the supervisor sleeps in one place only."""
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(control, fcntl.F_SETFL, fcntl.fcntl(control, fcntl.F_GETFL) | os.O_ASYNC)


def _copy_window_size(sink: int, terminal: int) -> None:
    with suppress(OSError, termios.error):  # the terminal is gone
        termios.tcsetwinsize(terminal, termios.tcgetwinsize(sink))
