"""Adds up what a rank spends beside its steps: saving, evaluating, computing metrics on the CPU; and its GPU's peak.

Phases are timed exactly where they end. What no phase tells is seen by the looks at the stack (`patterns`): saving
outside a phase, and metrics, which a library computes on the CPU while the GPU has nothing to do. Each second counts
once: metrics within an evaluation are none of the evaluation's.
"""

from typing import Any

from tenant_client.doctor.run.hook.progress import Phase, Tally

GPU_EVERY_S = 10.0
_ENDS = ("end", "failed")


class Spending:
    """Of one rank. `looked` is for the thread that looks, everything else for the one that trains."""

    def __init__(self, now_s: float) -> None:
        self._phase: Phase = "start"
        self._since_s = now_s
        self._first_s = self._last_s = self._eval_s = self._checkpoint_s = 0.0
        self._saving_s = self._metrics_s = self._metrics_before_s = 0.0  # by looks
        self._gpu = (0.0, 0.0)
        self._next_gpu_s = 0.0

    def move(self, phase: Phase, now_s: float) -> None:
        """The phase from now on; `now_s` is the same clock at each call."""
        if phase == self._phase:
            return
        took_s = now_s - self._since_s
        if self._phase == "checkpoint":
            self._checkpoint_s += took_s
        elif self._phase == "eval":
            self._eval_s += max(0.0, took_s - (self._metrics_s - self._metrics_before_s))
        self._phase, self._since_s, self._metrics_before_s = phase, now_s, self._metrics_s

    def stepped(self, at_s: float) -> None:
        """A step is done, at `at_s` since 1970."""
        self._first_s, self._last_s = self._first_s or at_s, at_s

    def looked(self, kind: str, took_s: float) -> None:
        """The training thread was seen in a function of this kind."""
        if kind == "metrics" and self._phase in ("train", "eval"):
            self._metrics_s += took_s
        elif kind == "checkpoint" and self._phase == "train":
            self._saving_s += took_s

    def look_at_gpu(self, torch: Any, now_s: float) -> None:
        """Reads the peak that torch's allocator keeps, every `GPU_EVERY_S` and at the end; no call to the driver."""
        if torch is None or (now_s < self._next_gpu_s and self._phase not in _ENDS):
            return
        self._next_gpu_s = now_s + GPU_EVERY_S
        cuda = getattr(torch, "cuda", None)  # not all builds have it, and a job goes on being watched without
        if cuda is not None and cuda.is_initialized():
            limit = self._gpu[1] or cuda.get_device_properties(cuda.current_device()).total_memory
            self._gpu = float(cuda.max_memory_allocated()), float(limit)

    @property
    def tally(self) -> Tally:
        """All so far."""
        saving_s = self._checkpoint_s + self._saving_s
        return Tally(self._first_s, self._last_s, saving_s, self._eval_s, self._metrics_s, *self._gpu)
