"""The job's loss, read without making an accelerator wait for it.

A loss on an accelerator is copied into pinned host memory behind the work that is queued already, and looked at some
steps later, when that copy has long been made. Nothing is kept of the graph.
"""

from typing import Any


class LossReader:
    """Takes a loss now and then, gives its value when it is there. `value` is None before the first.

    What is neither a number nor a plain tensor of one element on the host or a CUDA or ROCm device is left out: a
    sharded tensor, for one, would need a collective to be read.
    """

    def __init__(self, torch: Any) -> None:
        self.value: float | None = None
        self._torch = torch
        self._host: Any = None
        self._copied: Any = None

    def take(self, loss: Any) -> bool:
        """Reads `loss`, at once where that is free, else later; false if it will not be read."""
        if isinstance(loss, float | int):
            self.value = float(loss)
        elif self._torch is None or type(loss) is not self._torch.Tensor or loss.numel() != 1:
            return False
        elif loss.device.type == "cpu":
            self.value = float(loss.detach())
        elif loss.device.type == "cuda" and not self._torch.cuda.is_current_stream_capturing():
            return self._start_copy(loss.detach())
        else:
            return False
        return True

    def poll(self) -> None:
        """Takes over a copy that has arrived meanwhile."""
        if self._copied is None or self._torch.cuda.is_current_stream_capturing() or not self._copied.query():
            return
        self._copied = None
        self.value = float(self._host)

    def _start_copy(self, loss: Any) -> bool:
        if self._copied is not None:
            return False
        if self._host is None:
            self._host = self._torch.empty((), dtype=self._torch.float32, pin_memory=True)
        self._host.copy_(loss.reshape(()), non_blocking=True)
        self._copied = self._torch.cuda.Event()
        self._copied.record(self._torch.cuda.current_stream(loss.device))
        return True

    @property
    def is_read(self) -> bool:
        """Whether `value` is that of the loss taken last."""
        return self._copied is None
