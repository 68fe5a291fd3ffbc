"""Tells the observer where the training thread is: in backward, waiting for a collective, loading, saving.

Nothing of the job is wrapped. The thread that looks at the stack (`patterns`) tells what it saw, and from that follows
where the rank is, since when, and how long it waits for others. Calls of `Work.wait` leave no Python frame: that they
are about to be made is told by their lookup, and the line of code is remembered.

The cell goes to the observer through the socket in the run directory; without an observer there is none. A thread of
ours looks whether the observer asks something (`answers`).
"""

import os
import sys
import threading
import time
from pathlib import Path

from tenant_client.doctor.run.hook.answers import answer_forever, connected, dump_on_signal, hand_over, make_page
from tenant_client.doctor.run.hook.cell import (
    BACKWARD,
    CHECKPOINT,
    END,
    EVAL,
    LOADER,
    OUTSIDE,
    START,
    WAIT,
    Cell,
    StepRecord,
    Who,
)
from tenant_client.doctor.run.hook.tally import Spending

_PHASES = {"start": START, "eval": EVAL, "checkpoint": CHECKPOINT, "end": END, "failed": END}
_KINDS = {"collective": WAIT, "backward": BACKWARD, "input": LOADER, "checkpoint": CHECKPOINT}
_ASIDE = (START, EVAL, CHECKPOINT)
_STILL_NS = 50_000  # of processor time between two looks: who goes on to another collective takes more
_SPINS = 0.9
_STRETCH_S, _LONG_STRETCH_S = 0.8, 2.0


class Whereabouts:
    """What one rank tells of itself. `saw` is for the thread that looks, everything else for the one that trains."""

    def __init__(self) -> None:
        self.spending = Spending(time.perf_counter())
        self._cell: Cell | None = None
        self._phase = START
        self._seen = (START, 0)
        self._waited_ns = self._aside_ns = self._looks = 0
        self._stride = 1
        self._recorded_s = 0.0

    def open(self, run_dir: Path, rank: int) -> None:
        """Begins if an observer listens in `run_dir` and torch is there; OSError where the machine lacks something."""
        if "torch" not in sys.modules or self._cell is not None:
            return
        restart, world = (int(os.environ.get(name, "0")) for name in ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE"))
        with connected(run_dir) as connection:
            if connection is None:
                return
            descriptor, page = make_page()
            who = Who(rank, world, os.getpid(), threading.get_native_id(), restart)
            cell = Cell(page, who, time.monotonic_ns())
            hand_over(connection, descriptor)
        self._cell = cell
        dump_on_signal(run_dir, rank)
        os.register_at_fork(after_in_child=self._leave_to_parent)
        arguments = cell, threading.get_ident()
        threading.Thread(target=answer_forever, args=arguments, name="pharoah", daemon=True).start()

    def close(self) -> None:
        """Says no more: the observer forgets this rank."""
        cell, self._cell = self._cell, None
        if cell is not None:
            cell.void()

    def _leave_to_parent(self) -> None:
        self._cell = None

    def phase(self, phase: str) -> None:
        """The job itself says where it is."""
        self._phase = _PHASES.get(phase, OUTSIDE)

    def step(self, step: int, now_s: float) -> None:
        """A step has ended. One record for a stretch of steps: ranks that are as fast choose the same ends."""
        self._phase = OUTSIDE
        took_s = now_s - self._recorded_s
        if self._cell is None or (step % self._stride and took_s < _LONG_STRETCH_S):
            return
        if took_s > _LONG_STRETCH_S and self._stride > 1:
            self._stride //= 2
        elif took_s < _STRETCH_S:
            self._stride *= 2
        self._recorded_s = now_s
        self._cell.record(StepRecord(step, int(1e9 * now_s), self._waited_ns, self._aside_ns, self._looks))

    def saw(self, kind: str, step: int, took_ns: int, cpu_ns: int) -> None:
        """The training thread was seen in a function of this kind; since the look before it computed for `cpu_ns`."""
        self.spending.looked(kind, 1e-9 * took_ns)
        cell = self._cell
        if cell is None:
            return
        self._looks += 1
        place = _KINDS.get(kind, self._phase)
        if place == WAIT:
            self._waited_ns += took_ns
        elif place == BACKWARD:
            self._waited_ns += max(0, took_ns - cpu_ns)
        elif place in _ASIDE:
            self._aside_ns += took_ns
        goes_on = place in (WAIT, BACKWARD) and _STILL_NS < cpu_ns < _SPINS * took_ns
        if goes_on or (place, step) != self._seen:
            self._seen = place, step
            cell.move(place, step, time.monotonic_ns())
