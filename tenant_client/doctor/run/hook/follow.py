"""Drives the hook from what a torch job does anyway, so that its code need not change.

One iteration is one step of one optimiser: the one that was seen first, until it steps no more while another goes on.
So several optimisers per iteration, and several backward passes per step (gradient accumulation), count once. The loss
is whatever single number `backward` was last called on: scaled where the job scales it, and of one micro-batch where it
has several. An evaluation begins when the model that is trained is told to `eval()`, and ends when it is told to
`train()`, or with the next step. A step that torch.compile swallowed whole is not seen.

No call of the job passes through a function of ours (`lookups`), so none stands in its tracebacks.
"""

import atexit
import importlib
import os
import sys
from collections import Counter
from typing import Any

from tenant_client.doctor.run.hook.hook import current_hook
from tenant_client.doctor.run.hook.lookups import LookupTold

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
        self._trained: set[int] = set()  # parameters, by identity
        self._evaluated = 0  # the model's identity
        self._asked = False

    def attach(self, torch: Any) -> None:
        """Registers with torch's optimisers, `backward`, `eval` and `train`; AttributeError where torch lacks them."""
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self.after_step)
        if not _hide_from_compiler(torch, LookupTold.__get__):
            return
        native = getattr(torch, "_C", None)
        work = getattr(getattr(native, "_distributed_c10d", None), "Work", None)
        for owner, name, tell in (
            (torch.Tensor, "backward", self.before_backward),
            (torch.nn.Module, "eval", self.before_eval),
            (torch.nn.Module, "train", self.before_train),
            (work, "wait", self.before_wait),
        ):
            if owner is not None:  # torch may be built without collectives
                setattr(owner, name, LookupTold(getattr(owner, name), tell))

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
        if not self._trained:
            self._trained = {id(one) for group in getattr(optimizer, "param_groups", ()) for one in group["params"]}

    def before_backward(self, loss: Any) -> None:
        """Keeps the number that `backward` begins from, not its graph."""
        if self._is_compiling() or not current_hook().wants_loss:
            return
        if type(loss) is self._tensor and loss.numel() == 1:
            self._loss = loss.detach()

    def before_wait(self, _: Any) -> None:
        """Keeps the line that looks it up: while `Work.wait` runs, there is no frame of its own."""
        if not self._is_compiling():
            current_hook().waits_at(sys._getframe(2))

    def before_eval(self, module: Any) -> None:
        """An evaluation begins, if it is the model that is told so, and not a frozen part of it."""
        if self._is_compiling() or not self._trained:
            return
        own = sum(id(parameter) in self._trained for parameter in module.parameters())
        if 2 * own >= len(self._trained):
            self._evaluated, self._asked = id(module), True
            current_hook().evaluating(begins=True)

    def before_train(self, module: Any) -> None:
        """The evaluation is over, unless it is `eval` itself that asks: it calls `train(False)`."""
        if self._is_compiling() or id(module) != self._evaluated:
            return
        if self._asked:
            self._asked = False
            return
        self._evaluated = 0
        current_hook().evaluating(begins=False)


def _hide_from_compiler(torch: Any, function: Any) -> bool:
    """Has torch.compile leave a function alone, which the job calls in regions that it compiles.

    False where that is not possible: a compiled lookup would look itself up without end.
    """
    frames: Any = getattr(getattr(getattr(torch, "_C", None), "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "skip_code"):
        frames.skip_code(function.__code__)
    elif hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    else:
        return frames is None
    return True


def follow(torch: Any) -> None:
    """Watches this process's optimisers; for `autoload/sitecustomize.py`, right after the job imported torch."""
    Follower(torch).attach(torch)
    if "RANK" in os.environ and "--multiprocessing-fork" not in sys.orig_argv:
        current_hook().start()  # without RANK it may be the launcher, or a tool; it is a rank when it steps
    atexit.register(lambda: current_hook().close())
