"""Sums up how an attempt goes, for `advice.expectations`: slices of ten minutes from what the ranks show at each look.

The rank with the lowest number speaks for all: in synchronous training ranks step together. The time of a step is what
passes between two looks, over the steps in between: where steps are shorter than a look is apart, their spread is that
of means. Looks between which there was a checkpoint or an evaluation time no step.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tenant_client.doctor.records.paces import SLICE_S, Slice
from tenant_client.doctor.run.hook import readings
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.rank_watch import sample_of
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.watchdog import Sample, WatchFinding
from tenant_client.doctor.run.watcher import Watcher

KEEP_EVERY_S = 60.0


class Pace:
    """The slices of one attempt from `now_s` on. Pure."""

    def __init__(self, now_s: float) -> None:
        self._began_s = self._seen_s = now_s
        self._slices: dict[int, Slice] = {}
        self._last: Sample | None = None
        self._saved: int | None = None

    def feed(self, now_s: float, samples: Sequence[Sample], *, hangs: bool, saved: int | None) -> None:
        """Takes one look; `saved` steps of the attempt are in a checkpoint. Samples of an attempt before are none."""
        passed_s, self._seen_s = max(0.0, now_s - self._seen_s), now_s
        at_s = int(now_s // SLICE_S * SLICE_S)
        own = self._slices.get(at_s, Slice(at_s))
        hang_s = own.hang_s + (passed_s if hangs else 0.0)
        own = replace(own, observed_s=own.observed_s + passed_s, hang_s=hang_s, saved=saved)
        new = [one for one in samples if one.updated_at_s >= self._began_s]
        self._slices[at_s] = self._moved(own, min(new, key=lambda one: one.rank)) if new else own
        self._saved = saved

    def take(self) -> list[Slice]:
        """The slices that changed since the last call, and the newest."""
        taken = list(self._slices.values())
        self._slices = {one.at_s: one for one in taken[-1:]}
        return taken

    def _moved(self, own: Slice, now: Sample) -> Slice:
        before, self._last = self._last, now
        begun_step = before.step if before is not None and before.step <= now.step else 0
        steps = now.step - begun_step
        if steps <= 0:
            return own
        own = replace(own, steps=own.steps + steps, first_s=now.updated_at_s if own.first_s is None else own.first_s)
        if before is None or not begun_step or own.saved != self._saved or not _both_train(before, now):
            return own
        took_s = now.updated_at_s - before.updated_at_s
        squares = own.squares + took_s * took_s / steps
        return replace(own, timed=own.timed + steps, stepping_s=own.stepping_s + took_s, squares=squares)


def _both_train(before: Sample, now: Sample) -> bool:
    return before.phase == now.phase == "train" and before.evaluations == now.evaluations


class SavedSteps:
    """Follows the checkpoints that ranks complete, by their readings in the run directory."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._sizes: dict[Path, int] = {}
        self._newest: readings.Reading | None = None

    def newest(self, since_s: float) -> int | None:
        """The step of the newest checkpoint since then; None if there is none."""
        for path in self._run_dir.glob(readings.file_name("*")):
            new, self._sizes[path] = readings.read_from(path, self._sizes.get(path, 0))
            for reading in new:
                if reading.saved and (self._newest is None or reading.at_s >= self._newest.at_s):
                    self._newest = reading
        found = self._newest
        return found.step if found is not None and found.at_s >= since_s else None


class PaceRecorder(Watcher):
    """Follows one attempt after the other; `keep` stores the slices of an attempt by its number.

    `attempt` is the number of the one that runs, `hangs` whether it does.
    """

    failure = "cannot keep how the attempt goes"

    def __init__(
        self,
        run_dir: Path,
        attempt: Callable[[], int],
        hangs: Callable[[], bool],
        keep: Callable[[int, Sequence[Slice]], None],
    ) -> None:
        self._saved = SavedSteps(run_dir)
        self._running, self._hangs, self._keep = attempt, hangs, keep
        self._attempt = 0
        self._began_s = self._kept_s = 0.0
        self._pace = Pace(0.0)

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        """One look at the ranks of the attempt; what was seen is kept every `KEEP_EVERY_S`."""
        attempt = self._running()
        if attempt != self._attempt:
            self._store(now_s)
            self._attempt, self._began_s, self._pace = attempt, now_s, Pace(now_s)
        saved = self._saved.newest(self._began_s)
        self._pace.feed(now_s, [*map(sample_of, ranks)], hangs=self._hangs(), saved=saved)
        if now_s - self._kept_s >= KEEP_EVERY_S:
            self._store(now_s)
        return ()

    def finish(self, at_s: float, how: Ending | None) -> Sequence[WatchFinding]:
        """Keeps what was seen since."""
        self._store(at_s)
        return ()

    def _store(self, now_s: float) -> None:
        self._kept_s = now_s
        if slices := self._pace.take():
            self._keep(self._attempt, slices)
