"""The hook inside a training process: reports progress, samples a few steps, and is never the reason that a job fails.

    with pharoah_hook() as hook:
        for batch in loader:
            loss = train_on(batch)
            hook.step(loss=loss)          # a number or a tensor; a tensor is not waited for
            ...
            with hook.phase("eval"):
                evaluate()

Jobs with a torch optimiser need none of this: `tenant_client.run.hook.follow` calls the same hook for them. Without
`PHAROAH_RUN_DIR` every method does nothing. Nothing here raises, prints or imports torch; the first thing that goes
wrong is logged once as a warning and ends the hook's work, as does being in a forked child or in a helper process of
a rank that reports already.
"""

import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenant_client.run.hook.loss import LossReader
from tenant_client.run.hook.marks import Marks
from tenant_client.run.hook.pacing import Pacer, PacingSettings
from tenant_client.run.hook.progress import Phase, Progress, Writer, file_name, read
from tenant_client.run.hook.sampler import Sampler

RUN_DIR = "PHAROAH_RUN_DIR"
LOSS_EVERY_STEPS = 10
REPORT_EVERY_S = 0.25  # measured between real steps, which leave caches cold, a report takes 50 µs: 0.02 % of the time
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
        self._next_report_s = 0.0
        self._losses = LossReader(None)
        self._next_loss_step = 0
        self._writer: Writer | None = None
        self._sampler: Sampler | None = None
        self._marks = Marks()
        self.explicit = False

    def start(self) -> None:
        """Reports that the process is there, before its first step, unless another one speaks for this rank."""
        self._safely(self._start)

    def step(self, loss: Any = None) -> None:
        """To be called after each optimiser step; `loss` is read every tenth time, or each time if it is a float.

        Reported at once, but not more often than every `REPORT_EVERY_S` seconds.
        """
        self._safely(self._on_step, loss)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Reports another phase while the block runs, so that a long evaluation does not look like a hang."""
        before = self._phase
        self._safely(self._enter, phase)
        try:
            yield
        finally:
            self._safely(self._enter, before)

    def close(self) -> None:
        """Reports the end; the hook does nothing any more."""
        self._safely(self._close_sampler)
        self._safely(self._end)
        self._idle = True
        self._marks.close()

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
            self._idle = True
            self._marks.close()
            self._close_sampler()
            self._complain(f"no further progress reports: {type(error).__name__}: {error}")

    def _close_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.close()

    def _complain(self, what: str) -> None:
        if not self._complained:
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
            self._open_marks(self._run_dir)

    def _open_marks(self, run_dir: Path) -> None:
        try:
            self._marks.open(run_dir, _rank())
        except Exception as error:  # noqa: BLE001  # progress is reported all the same
            self._marks.close()
            self._complain(f"this rank is not compared with others: {type(error).__name__}: {error}")

    def _written(self) -> Progress | None:
        return read(self._run_dir / file_name(_rank())) if self._run_dir is not None else None

    def _end(self) -> None:
        written = self._written() if self._writer is not None else None
        if written is not None and written.pid == self._pid:  # a launcher may have started, and its worker taken over
            self._enter("end")

    def _on_step(self, loss: Any) -> None:
        if not self._steps:
            self._first_step()
        if self._writer is None or threading.get_ident() != self._thread:
            return
        now_s = time.perf_counter()
        if loss is not None and (isinstance(loss, float) or self.wants_loss):
            self._losses.take(loss)
            self._next_loss_step = self._steps + LOSS_EVERY_STEPS
        self._steps += 1
        self._marks.step(self._steps)
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
        torch, settings = sys.modules.get("torch"), PacingSettings.from_environment(os.environ)
        if torch is None or self._writer is None or self._run_dir is None:
            return
        self._losses = LossReader(torch)
        pacer = Pacer(settings, time.perf_counter())
        rank = self._writer.rank
        if not settings.local_ranks or int(os.environ.get("LOCAL_RANK", rank)) < settings.local_ranks:
            self._sampler = Sampler(torch, self._run_dir, rank, pacer, self._complain)

    def _enter(self, phase: Phase) -> None:
        self._open()
        if self._sampler is not None:
            self._sampler.forget_last_step()  # the time around a phase is not that of an ordinary step
        self._marks.phase(phase)
        self._report(phase)

    def _report(self, phase: Phase) -> None:
        self._phase = phase
        self._losses.poll()
        if self._writer is not None:
            self._writer.update(self._steps, phase, self._losses.value, time.time())
        self._next_report_s = time.perf_counter() + REPORT_EVERY_S


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
