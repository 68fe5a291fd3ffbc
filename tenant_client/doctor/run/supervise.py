r"""The supervisor: starts the job, forwards signals, waits, and ends as the job did.

- The job stays in the supervisor's process group, so that signals of a terminal (Ctrl-C, Ctrl-\, Ctrl-Z) reach it
  directly. Signals to the supervisor alone are forwarded.
- The job starts with the signal mask and dispositions that the supervisor was started with.
- The supervisor ends with the job's exit code or by the same signal. The first process of a container cannot die by a
  signal; there the exit code is 128 + its number, as in a shell.
"""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from tenant_client.doctor.run.streams import Streams

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as in a shell

_FORWARDED = frozenset(
    (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCONT,
        signal.SIGTSTP,
        signal.SIGALRM,
        signal.SIGXCPU,
    )
)
WATCHED = _FORWARDED | {signal.SIGCHLD, signal.SIGIO, signal.SIGWINCH}
ENDING_SIGNALS = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))

BY_TERMINAL = -1
_SI_KERNEL = 0x80  # <asm-generic/siginfo.h>: sent by the kernel, which for the signals above means by the terminal
_RESET_BY_US = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them in itself; the job must not inherit that


@dataclass(frozen=True)
class Ending:
    """How the job ended: an exit code or a signal, neither where that is not known.

    `asked_by` are ending signals that came from outside before.
    """

    exit_code: int | None
    signal: int | None = None
    asked_by: tuple[int, ...] = ()

    @property
    def code(self) -> int:
        """As a shell would put it."""
        return self.exit_code if self.exit_code is not None else 128 + (self.signal or 0)


@dataclass
class Job:
    """A running job. `mask` is the signal mask that we and it were started with."""

    pid: int
    mask: frozenset[int]
    asked_by: list[int] = field(default_factory=list)
    status: int | None = None


def block() -> frozenset[int]:
    """From here on signals wait until `wait` asks for them; returns the mask from before."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored it would take the job's status away
    return frozenset(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED))


def start(command: Sequence[str], env: Mapping[str, str], files: Mapping[int, int], mask: frozenset[int]) -> Job:
    """Starts the job with `files` as its descriptors; OSError where there is no such program."""
    actions = [(os.POSIX_SPAWN_DUP2, ours, its) for its, ours in files.items()]
    pid = os.posix_spawnp(command[0], list(command), env, file_actions=actions, setsigmask=mask, setsigdef=_RESET_BY_US)
    return Job(pid, mask)


def wait(job: Job, streams: Streams | None, asked: Callable[[int, int, float], None] = lambda *_: None) -> Ending:
    """Forwards signals and serves the relay until the job has ended.

    `asked` hears of each signal that asks the job to end, with the process that sent it (0 of another namespace, and
    `BY_TERMINAL` where a terminal did) and when it came.
    """
    while True:
        info = signal.sigwaitinfo(WATCHED)
        if info.si_signo == signal.SIGCHLD:
            status = _reap(job, streams)
            if status is not None:
                return ending_of(status, job.asked_by)
        elif info.si_signo == signal.SIGIO and streams is not None:
            streams.listen()
        elif info.si_signo == signal.SIGWINCH and streams is not None:
            streams.resize()
        elif info.si_signo in _FORWARDED:
            at_s = time.time()
            _forward(info, job)
            if info.si_signo in ENDING_SIGNALS:
                asked(info.si_signo, BY_TERMINAL if info.si_code == _SI_KERNEL else info.si_pid, at_s)


def wait_only(job: Job) -> Ending:
    """Waits and does nothing else: what is left to do where `wait` itself broke."""
    return ending_of(os.waitpid(job.pid, 0)[1] if job.status is None else job.status, job.asked_by)


def ending_of(status: int, asked_by: Sequence[int] = ()) -> Ending:
    """What a wait status says."""
    if os.WIFSIGNALED(status):
        return Ending(None, os.WTERMSIG(status), tuple(asked_by))
    return Ending(os.WEXITSTATUS(status), None, tuple(asked_by))


def end_like(how: Ending) -> NoReturn:
    """Ends this process as the job ended, by the same signal if by one, without a second core file."""
    if how.signal is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if how.signal not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(how.signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {how.signal})  # and no other: one of them may be waiting
        os.kill(os.getpid(), how.signal)
    os._exit(how.code)


def _reap(job: Job, streams: Streams | None) -> int | None:
    """The job's wait status if it has ended. Reaps ours too, and strangers where we are a container's init."""
    ended = dict(_ended())
    job.status = ended.get(job.pid)
    if streams is not None and ended.get(streams.relay_pid, 0) != 0:  # even if the job is over: it may have left output
        streams.start_again()
    return job.status


def _ended() -> Iterator[tuple[int, int]]:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def _forward(info: signal.struct_siginfo, job: Job) -> None:
    if info.si_signo in ENDING_SIGNALS:
        job.asked_by.append(info.si_signo)
    if info.si_code != _SI_KERNEL:
        os.kill(job.pid, info.si_signo)
    if info.si_signo == signal.SIGTSTP:
        os.kill(os.getpid(), signal.SIGSTOP)
