"""Marks in the rank's cell where the training thread is: in backward, waiting for a collective, loading, saving.

Five functions of torch are wrapped; none is replaced, and what a wrapper does costs a microsecond. The cell goes to the
observer through the socket in the run directory; without an observer nothing is wrapped. A thread of ours sleeps until
the observer asks it (`answers`), and nothing of it survives a fork.
"""

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenant_client.run.hook.answers import answer_forever, connect, hand_over, make_page
from tenant_client.run.hook.cell import BACKWARD, CHECKPOINT, END, EVAL, LOADER, OUTSIDE, WAIT, Cell, Who

_PLACES = {"eval": EVAL, "checkpoint": CHECKPOINT, "end": END}


class Marks:
    """The marks of one process; every method is for the thread that made it, and does nothing in others."""

    def __init__(self) -> None:
        self._cell: Cell | None = None
        self._thread = 0

    def open(self, run_dir: Path, rank: int) -> None:
        """Begins if an observer listens in `run_dir` and torch is there; OSError where the machine lacks something."""
        torch = sys.modules.get("torch")
        socket = connect(run_dir) if torch is not None and self._cell is None else None
        if socket is None:
            return
        self._thread = threading.get_ident()
        restart, world = (int(os.environ.get(name, "0")) for name in ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE"))
        descriptor, page = make_page()
        who = Who(rank, world, os.getpid(), threading.get_native_id(), restart)
        self._cell = Cell(page, who, time.monotonic_ns())
        hand_over(socket, descriptor)
        os.register_at_fork(after_in_child=self.close)
        answers = threading.Thread(target=answer_forever, args=(socket, self._thread), name="pharoah", daemon=True)
        answers.start()
        _attach(torch, self)

    def close(self) -> None:
        """No further marks."""
        self._cell = None

    def step(self, step: int) -> None:
        """A step has ended."""
        if self._cell is not None and threading.get_ident() == self._thread:
            self._cell.enter(OUTSIDE, time.monotonic_ns())
            self._cell.step(step, time.monotonic_ns())

    def phase(self, phase: str) -> None:
        """The job itself says where it is."""
        if self._cell is not None and threading.get_ident() == self._thread:
            self._cell.enter(_PLACES.get(phase, OUTSIDE), time.monotonic_ns())

    def within(self, place: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, during which the rank is at `place`."""

        @functools.wraps(function)
        def marked(*arguments: Any, **keywords: Any) -> Any:
            cell = self._cell
            if cell is None or threading.get_ident() != self._thread:
                return function(*arguments, **keywords)
            before = cell.place
            cell.enter(place, time.monotonic_ns())
            try:
                return function(*arguments, **keywords)
            finally:
                cell.enter(before, time.monotonic_ns())

        return marked

    def within_backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same for backward, whose CPU time tells computing from waiting."""
        marked = self.within(BACKWARD, function)

        @functools.wraps(function)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            cell = self._cell
            if cell is None or threading.get_ident() != self._thread:
                return function(*arguments, **keywords)
            began_ns = time.thread_time_ns()
            try:
                return marked(*arguments, **keywords)
            finally:
                cell.computed_in_backward(time.thread_time_ns() - began_ns)

        return timed


def _attach(torch: Any, marks: Marks) -> None:
    """Wraps torch's functions; what this torch lacks is left out."""
    torch.autograd.backward = marks.within_backward(torch.autograd.backward)
    for name in ("save", "load"):
        marked = marks.within(CHECKPOINT, getattr(torch, name))
        for module in (torch, torch.serialization):  # both, so that it can be pickled by its name
            setattr(module, name, marked)
    distributed: Any = sys.modules.get("torch._C._distributed_c10d") or getattr(torch._C, "_distributed_c10d", None)
    if distributed is not None:
        distributed.Work.wait = marks.within(WAIT, distributed.Work.wait)
    loader: Any = sys.modules.get("torch.utils.data.dataloader")
    if loader is not None:
        batches = loader._BaseDataLoaderIter
        batches.__next__ = marks.within(LOADER, batches.__next__)
