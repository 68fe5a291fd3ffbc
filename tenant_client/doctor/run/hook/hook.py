"""The hook inside a training process: reports progress, samples a few steps, and is never the reason that a job fails.

    with pharoah_hook() as hook:
        for batch in loader:
            loss = train_on(batch)
            hook.step(loss=loss)          # a number or a tensor; a tensor is not waited for
            ...
            with hook.phase("eval"):
                evaluate()

Jobs with a torch optimiser need none of this: `tenant_client.doctor.run.hook.follow` calls the same hook for them.
Without `PHAROAH_RUN_DIR` every method does nothing. Nothing here raises, prints or imports torch; the first thing that
goes wrong is logged once as a warning and ends the hook's work, as does being in a forked child or in a helper process
of a rank that reports already.
"""

import errno
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tenant_client.doctor.run.hook.checkpoints import Checkpoints
from tenant_client.doctor.run.hook.loss import LossReader
from tenant_client.doctor.run.hook.pacing import Pacer, PacingSettings
from tenant_client.doctor.run.hook.patterns import Patterns
from tenant_client.doctor.run.hook.progress import NONE_LEFT, Phase, Progress, Writer, file_name, read
from tenant_client.doctor.run.hook.readings import Log as ReadingLog, Reading
from tenant_client.doctor.run.hook.sampler import Sampler
from tenant_client.doctor.run.hook.whereabouts import Whereabouts

RUN_DIR = "PHAROAH_RUN_DIR"
LOSS_EVERY_STEPS = 10
REPORT_EVERY_S = 0.25  # measured between real steps, which leave caches cold, a report takes 60 µs: 0.02 % of the time
_REPORT_S, _RAREST = 0.0005, 20  # where the file system takes longer, reports are rarer by as much: 5 s apart at most
_MOST_LINES = 1024
_OWNER = "PHAROAH_RANK_OWNER"  # tells the child processes of a rank that trains that they are not the rank

_log = logging.getLogger("pharoah")


class Hook:
    """One process's hook; it writes nothing before `start` or the first step."""

    def __init__(self, run_dir: Path | None) -> None:
        self._run_dir = run_dir
        self._pid = os.getpid()
        self._idle = run_dir is None
        self._complained = False
        self._thread = 0
        self._steps = 0
        self._phase: Phase = "start"
        self._evaluations = 0
        self._next_report_s = 0.0
        self._losses = LossReader(None)
        self._next_loss_step = 0
        self._writer: Writer | None = None
        self._sampler: Sampler | None = None
        self._patterns: Patterns | None = None
        self._norms = LossReader(None)
        self._read_step = self._logged_step = 0
        self._readings: ReadingLog | None = None
        self._checkpoints: Checkpoints | None = None
        self._save_now: Callable[[], object] | None = None
        self._asked = False
        self._whereabouts = Whereabouts()
        self._spending = self._whereabouts.spending
        self._torch: Any = None
        self._waits: dict[tuple[int, int], CodeType] = {}
        self._stderr = _identity(2)
        self.explicit = False

    def start(self) -> None:
        """Reports that the process is there, before its first step, unless another one speaks for this rank."""
        self._safely(self._start)

    def step(self, loss: Any = None, *, grad_norm: Any = None, work: float = 0.0) -> None:
        """To be called after each optimiser step; `loss` is read every tenth time, or each time if it is a float.

        Reported at once, but not more often than every `REPORT_EVERY_S` seconds. `work` is what the batch held, such as
        its tokens without padding: a rank that has more of it may take longer. `grad_norm` is read when the loss is.
        """
        self._safely(self._on_step, loss, grad_norm, work)
        self._answer_save_now()

    def on_save_now(self, answer: Callable[[], object]) -> None:
        """`answer` is called after a step, in the thread that trains, when a hint asks for a checkpoint; it may raise.

        Without one, `PHAROAH_SAVE_SIGNAL` (such as USR1) names a signal that the process then gets, if it is set.
        """
        self._save_now = answer

    def should_checkpoint(self, failures_per_hour: float | None = None) -> bool:
        """Whether to save now: the interval for this rate of failures is over, or a hint asks for it.

        None is the rate of the lease by the newest bundle and by hints; where nothing is known, no interval is ever
        over. Ranks may differ in this: let one decide, and tell the others. What a checkpoint takes is measured by
        `phase("checkpoint")`.
        """
        if self._checkpoints is None or self._idle:
            return False
        return self._checkpoints.due(time.monotonic(), failures_per_hour)

    def saw_optimizer(self, optimizer: Any) -> None:
        """To be called after its first step: says which ranks do the same, and whether the job resumed."""
        self._safely(self._take_optimizer, optimizer)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Reports another phase while the block runs, so that a long evaluation does not look like a hang."""
        before, began_s = self._phase, time.monotonic()
        self._safely(self._enter, phase)
        try:
            yield
        except BaseException:
            self._safely(self._enter, before)
            raise
        if phase == "checkpoint":
            self._safely(self._saved, began_s)
        self._safely(self._enter, before)

    def evaluating(self, *, begins: bool) -> None:
        """Reports that an evaluation begins after some steps, or that it is over; the next step says so, too."""
        if self._steps and begins != (self._phase == "eval"):
            self._safely(self._enter, "eval" if begins else "train")

    def waits_at(self, frame: FrameType) -> None:
        """Takes a line of code that waits for a collective: the one that `frame` is at."""
        if len(self._waits) < _MOST_LINES:
            self._waits[id(frame.f_code), frame.f_lineno] = frame.f_code

    def close(self) -> None:
        """Reports the end; the hook does nothing any more."""
        self._safely(self._close_sampler)
        self._safely(self._end)
        self._idle = True
        self._whereabouts.close()
        if self._patterns is not None:
            self._patterns.close()

    @property
    def steps(self) -> int:
        """How many it has counted."""
        return self._steps

    @property
    def closed(self) -> bool:
        """Whether it does nothing (any more)."""
        return self._idle

    @property
    def wants_loss(self) -> bool:
        """Whether the coming `step` would read a tensor."""
        return not self._idle and self._steps >= self._next_loss_step and not self._sampling

    @property
    def _sampling(self) -> bool:
        return self._sampler is not None and self._sampler.sampling

    def _safely(self, work: Callable[..., None], *arguments: Any) -> None:
        if self._idle or os.getpid() != self._pid:
            return
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  # a training loop goes on whatever happens here
            if isinstance(error, OSError) and error.errno in NONE_LEFT:
                return
            self._idle = True
            self._whereabouts.close()
            self._close_sampler()
            if self._patterns is not None:
                self._patterns.close()
            self._complain(f"no further progress reports: {type(error).__name__}: {error}")

    def _close_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.close()

    def _complain(self, what: str) -> None:
        if not self._complained and self._stderr == _identity(2):  # which may be a checkpoint of the job by now
            self._complained = True
            _log.warning("pharoah: %s; the job is not affected", what)

    def _start(self) -> None:
        before = self._written()
        if before is None or before.pid == self._pid or not _alive(before.pid):
            self._open()

    def _open(self) -> None:
        if self._run_dir is not None and self._writer is None:
            restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
            first = Progress(_rank(), self._pid, 0, time.time(), "start", None, restart)
            self._writer = Writer(self._run_dir, first)
        if self._run_dir is not None:
            self._be_compared(self._run_dir)

    def _be_compared(self, run_dir: Path) -> None:
        try:
            self._whereabouts.open(run_dir, _rank())
        except Exception as error:  # noqa: BLE001  # progress is reported all the same
            self._whereabouts.close()
            if not isinstance(error, OSError) or error.errno not in NONE_LEFT:
                self._complain(f"this rank is not compared with others: {type(error).__name__}: {error}")

    def _written(self) -> Progress | None:
        return read(self._run_dir / file_name(_rank())) if self._run_dir is not None else None

    def _end(self) -> None:
        written = self._written() if self._writer is not None else None
        if written is not None and written.pid == self._pid:  # a launcher may have started, and its worker taken over
            self._enter("failed" if sys.exc_info()[1] or hasattr(sys, "last_value") else "end")

    def _take_optimizer(self, optimizer: Any) -> None:
        if self._patterns is not None:
            self._patterns.saw_optimizer(optimizer)

    def _saved(self, began_s: float) -> None:
        now_s = time.monotonic()
        if self._checkpoints is not None:
            self._checkpoints.saved(now_s, now_s - began_s)
        self._log(Reading(self._steps, time.time(), None, None, saved=True))

    def _log(self, reading: Reading) -> None:
        try:
            if self._readings is not None:
                self._readings.add(reading)
        except OSError as error:  # a full disk: progress, which takes no more room, goes on
            if error.errno not in NONE_LEFT:
                self._readings = None

    def _answer_save_now(self) -> None:
        if self._asked and self._save_now is not None:
            self._save_now()
        elif self._asked and (name := os.environ.get("PHAROAH_SAVE_SIGNAL")):
            self._safely(_raise, name)
        self._asked = False

    def _on_step(self, loss: Any, grad_norm: Any, work: float) -> None:
        if not self._steps:
            self._first_step()
        if self._writer is None or threading.get_ident() != self._thread:
            return
        now_s = time.perf_counter()
        if loss is not None and (isinstance(loss, float) or self.wants_loss):
            if self._losses.take(loss):
                self._read_step = self._steps + 1
                self._norms.take(grad_norm)
            self._next_loss_step = self._steps + LOSS_EVERY_STEPS
        self._steps += 1
        self._spending.stepped(time.time())
        self._whereabouts.step(self._steps, now_s)
        if self._patterns is not None:
            self._patterns.on_step(self._steps, work, self._losses.value)
        if now_s >= self._next_report_s or self._phase != "train":
            self._report("train")
        if self._sampler is not None and self._steps >= self._sampler.next_step:
            self._sampler.on_step(self._steps, now_s)

    def _first_step(self) -> None:
        self._thread = threading.get_ident()
        owner = os.environ.get(_OWNER, "")
        if owner.startswith(f"{_rank()}:") and owner != f"{_rank()}:{self._pid}":
            self._idle = True
            return
        self._open()
        os.environ[_OWNER] = f"{_rank()}:{self._pid}"
        _call_at_the_end_of_a_child(self.close)
        if self._run_dir is not None:
            self._readings = ReadingLog(self._run_dir, _rank())
            self._checkpoints = Checkpoints(self._run_dir, time.monotonic())
        torch, settings = sys.modules.get("torch"), PacingSettings.from_environment(os.environ)
        if torch is None or self._writer is None or self._run_dir is None:
            return
        self._torch = torch
        self._losses, self._norms = LossReader(torch), LossReader(torch)
        pacer = Pacer(settings, time.perf_counter())
        rank = self._writer.rank
        self._patterns = Patterns(self._run_dir, rank, self._complain, self._whereabouts, self._waits)
        if not settings.local_ranks or int(os.environ.get("LOCAL_RANK", rank)) < settings.local_ranks:
            self._sampler = Sampler(torch, self._run_dir, rank, pacer, self._complain)

    def _enter(self, phase: Phase) -> None:
        self._open()
        self._evaluations += phase == "eval" != self._phase
        if self._sampler is not None:
            self._sampler.forget_last_step()  # the time around a phase is not that of an ordinary step
        self._whereabouts.phase(phase)
        self._report(phase)

    def _report(self, phase: Phase) -> None:
        self._phase, began_s = phase, time.perf_counter()
        self._spending.move(phase, began_s)
        self._spending.look_at_gpu(self._torch, began_s)
        self._losses.poll()
        self._norms.poll()
        if self._read_step > self._logged_step and self._losses.is_read:
            self._logged_step = self._read_step
            norm = self._norms.value if self._norms.is_read else None
            self._log(
                Reading(self._read_step, time.time(), self._losses.value, norm, saved=False, is_own=not self.explicit)
            )
        self._asked = self._asked or (self._checkpoints is not None and self._checkpoints.is_news())
        if self._writer is not None:
            loss, tally = self._losses.value, self._spending.tally
            self._writer.update(self._steps, phase, loss, time.time(), self._evaluations, tally)
        now_s = time.perf_counter()
        self._next_report_s = now_s + REPORT_EVERY_S * min(max(1.0, (now_s - began_s) / _REPORT_S), _RAREST)


_current: Hook | None = None


def current_hook() -> Hook:
    """This process's hook, made at the first call."""
    global _current
    if _current is None or _current._pid != os.getpid():
        _current = _make_hook()
    return _current


@contextmanager
def pharoah_hook() -> Iterator[Hook]:
    """The hook for a loop that calls `step` itself; what watches torch's optimisers then leaves it alone."""
    global _current
    hook = current_hook()
    if hook.closed:
        hook = _current = _make_hook()
    outermost, hook.explicit = not hook.explicit, True
    try:
        yield hook
    finally:
        if outermost:
            hook.close()


def _make_hook() -> Hook:
    run_dir = os.environ.get(RUN_DIR)
    return Hook(Path(run_dir) if run_dir else None)


def _call_at_the_end_of_a_child(close: Callable[[], None]) -> None:
    """Children of multiprocessing end without `atexit`."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, close, exitpriority=0)


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Which file it is; None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _raise(name: str) -> None:
    signal.raise_signal(signal.Signals[f"SIG{name.removeprefix('SIG')}"])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def _rank() -> int:
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return 0
