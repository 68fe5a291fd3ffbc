"""What a training script calls: how far it is, and whether to save now. Only `pharoah-tenant run` takes note of it.

    import pharoah

    for batch in loader:
        loss = train_on(batch)
        pharoah.step(loss=loss)          # not needed where an optimiser of PyTorch steps
        if pharoah.should_checkpoint():
            with pharoah.phase("checkpoint"):
                save()

All of it is the hook of this process (`tenant_client.doctor.run.hook`), which needs the standard library alone,
raises nothing into the job and opens no connection. It is loaded at the first call, and only where a run is watched.
"""

import atexit
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenant_client.doctor.run.hook.hook import Hook
    from tenant_client.doctor.run.hook.progress import Phase

__all__ = ["on_save_now", "phase", "should_checkpoint", "step"]


def step(loss: Any = None, *, grad_norm: Any = None, work: float = 0.0) -> None:
    """To be called after each step. `loss` and `grad_norm` are numbers or tensors; a tensor is not waited for.

    `work` is what the batch held, such as its tokens without padding: a rank that has more of it may take longer. From
    the first call on, steps of optimisers are not counted beside.
    """
    hook = _hook()
    if hook is None:
        return
    is_counted = hook.steps > 0 and not hook.explicit  # by the optimiser's step, just before the first call
    if not hook.explicit:
        hook.explicit = True
        atexit.register(hook.close)
    if not is_counted:
        hook.step(loss, grad_norm=grad_norm, work=work)


def should_checkpoint(failures_per_hour: float | None = None) -> bool:
    """Whether to save now: the interval for this rate of failures is over, or a hint asks for it.

    Without a rate it is that of the lease; where nothing is known, no interval is ever over. Ranks may differ in this:
    let one decide, and tell the others.
    """
    hook = _hook()
    return hook is not None and hook.should_checkpoint(failures_per_hour)


def phase(name: "Phase") -> AbstractContextManager[None]:
    """Reports another phase while the block runs: "checkpoint", or "eval", so that it does not look like a hang."""
    hook = _hook()
    return hook.phase(name) if hook else nullcontext()


def on_save_now(answer: Callable[[], object]) -> None:
    """`answer` is called after a step, in the thread that trains, when a hint asks for a checkpoint."""
    if hook := _hook():
        hook.on_save_now(answer)


def _hook() -> "Hook | None":
    """This process's hook; None outside of a run that is watched."""
    if "PHAROAH_RUN_DIR" not in os.environ:
        return None
    from tenant_client.doctor.run.hook.hook import current_hook

    return current_hook()
