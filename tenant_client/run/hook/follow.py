"""Drives the hook from what a torch job does anyway, so that its code need not change.

One iteration is one step of one optimiser: the one that was seen first, until it steps no more while another goes on.
So several optimisers per iteration, and several backward passes per step (gradient accumulation), count once. The loss
is whatever single number was last passed to `backward`: scaled where the job scales it, and of one micro-batch where it
has several. A step that torch.compile swallowed whole is not seen.
"""

import atexit
import functools
import importlib
import os
import sys
from collections import Counter
from typing import Any

from tenant_client.run.hook.hook import current_hook

PATIENCE_STEPS = 8


class StepCounter:
    """Tells which steps of which optimisers begin a new iteration.

    >>> counter = StepCounter()
    >>> [counter.is_iteration(optimizer) for optimizer in (1, 2, 1, 2, 2)]
    [True, False, True, False, False]
    """

    def __init__(self) -> None:
        self._main: int | None = None
        self._others: Counter[int] = Counter()

    def is_iteration(self, optimizer: int) -> bool:
        """Takes one step of the optimiser with this identity."""
        self._others[optimizer] += 1
        if self._main not in (None, optimizer) and self._others[optimizer] < PATIENCE_STEPS:
            return False
        self._main = optimizer
        self._others.clear()
        return True


class Follower:
    """Calls the hook of whatever process it is in after each iteration, with a loss now and then. It never raises."""

    def __init__(self, torch: Any) -> None:
        self._counter = StepCounter()
        self._loss: Any = None
        self._first = True
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
        self._tensor = torch.Tensor

    def attach(self, torch: Any) -> None:
        """Registers with torch's optimisers and its `backward`; AttributeError where torch has neither."""
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self.after_step)
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def seen(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
            if not self._is_compiling() and current_hook().wants_loss:
                self.before_backward(tensors)
            return backward(tensors, *arguments, **keywords)

        torch.autograd.backward = seen

    def after_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        """What torch calls after each step of each optimiser."""
        if self._is_compiling():
            return
        hook = current_hook()
        if not hook.explicit and self._counter.is_iteration(id(optimizer)):
            loss, self._loss = self._loss, None
            hook.step(loss)
            if self._first:
                self._first = False
                hook.saw_optimizer(optimizer)

    def before_backward(self, tensors: Any) -> None:
        """Keeps the number that `backward` begins from, not its graph."""
        first = tensors[0] if isinstance(tensors, list | tuple) and len(tensors) == 1 else tensors
        if type(first) is self._tensor and first.numel() == 1:
            self._loss = first.detach()


def follow(torch: Any) -> None:
    """Watches this process's optimisers; for `autoload/sitecustomize.py`, right after the job imported torch."""
    Follower(torch).attach(torch)
    if "RANK" in os.environ and "--multiprocessing-fork" not in sys.orig_argv:
        current_hook().start()  # without RANK it may be the launcher, or a tool; it is a rank when it steps
    atexit.register(lambda: current_hook().close())
