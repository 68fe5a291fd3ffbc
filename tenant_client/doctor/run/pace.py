"""Sums up how an attempt goes, for `advice.expectations`: slices of ten minutes from what the ranks show at each look.

The rank with the lowest number speaks for all: in synchronous training ranks step together. The time of a step is what
passes between two looks, over the steps in between: where steps are shorter than a look is apart, their spread is that
of means. Looks between which there was a checkpoint or an evaluation time no step, and neither does a stall: no step
for `STALLED` usual ones, and at least `STALLED_S`. What the rank adds up beside its steps (`hook.tally`), stalls, and
what passed from the last step on are lost time, booked in the slices in which it passed.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tenant_client.doctor.records.paces import SLICE_S, Badput, Lost, Slice, by_slice
from tenant_client.doctor.run.hook import readings
from tenant_client.doctor.run.hook.progress import NO_TALLY, Progress, Tally
from tenant_client.doctor.run.rank_watch import sample_of
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.watchdog import Sample, WatchFinding
from tenant_client.doctor.run.watcher import Watcher

KEEP_EVERY_S = 60.0
STALLED, STALLED_S = 10.0, 5.0
_TALLIED = {Badput.CHECKPOINT: "checkpoint_s", Badput.EVALUATION: "eval_s", Badput.METRICS: "metrics_s"}
_OPEN = {
    "checkpoint": Badput.CHECKPOINT,
    "eval": Badput.EVALUATION,
    "end": Badput.OTHER,
    "failed": Badput.OTHER,
}


class Pace:
    """The slices of one attempt that began at `began_s`, from `now_s` on. Pure."""

    def __init__(self, now_s: float, began_s: float | None = None) -> None:
        self._began_s, self._seen_s = now_s if began_s is None else began_s, now_s
        self._lost: defaultdict[tuple[int, Badput], float] = defaultdict(float)
        self._timed, self._timed_s = 0, 0.0
        self._stepped_s = self._aside_s = 0.0  # when the last step was done, and what was booked since
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

    def take_lost(self) -> Lost:
        """Seconds by slice and reason since the last call."""
        taken, self._lost = self._lost, defaultdict(float)
        return taken

    def end(self, at_s: float, *, failed: bool) -> None:
        """Books what passed since the last step: with the phase that was open, as a stall, or as the end."""
        last = self._last
        if last is None or not self._stepped_s:
            return
        if last.phase in _OPEN:  # where it ended: what the process then takes to be gone is no stall
            self._book(_OPEN[last.phase], last.updated_at_s, at_s)
            at_s = last.updated_at_s
        began_s = self._stepped_s + self._aside_s
        is_stall = failed and self._is_stall(at_s - began_s)
        self._book(Badput.STALL if is_stall else Badput.OTHER, began_s, at_s)

    def _book(self, reason: Badput, begin_s: float, end_s: float) -> None:
        for at_s, seconds in by_slice(begin_s, end_s):
            self._lost[at_s, reason] += seconds

    def _book_tally(self, before: Tally, now: Sample) -> None:
        """Books what the rank added up since. A rank that was started again begins at nothing."""
        until_s = now.updated_at_s
        for reason, name in _TALLIED.items():
            summed_s, known_s = getattr(now.tally, name), getattr(before, name)
            if spent_s := summed_s - known_s if summed_s >= known_s else summed_s:
                self._book(reason, until_s - spent_s, until_s)
                self._aside_s += spent_s
                until_s -= spent_s

    def _is_stall(self, seconds: float) -> bool:
        return self._timed > 0 and seconds > max(STALLED * self._timed_s / self._timed, STALLED_S)

    def _moved(self, own: Slice, now: Sample) -> Slice:
        before, self._last = self._last, now
        self._book_tally(before.tally if before else NO_TALLY, now)
        begun_step = before.step if before is not None and before.step <= now.step else 0
        steps = now.step - begun_step
        if steps <= 0:
            return own
        first_s = (now.tally.first_s if not begun_step else 0.0) or now.updated_at_s
        own = replace(own, steps=own.steps + steps, first_s=first_s if own.first_s is None else own.first_s)
        stepped_s, self._stepped_s = self._stepped_s, now.tally.last_s or now.updated_at_s
        aside_s, self._aside_s = self._aside_s, 0.0
        if before is None or not begun_step:
            return own
        stalled_s = self._stepped_s - stepped_s - aside_s - steps * self._timed_s / max(1, self._timed)
        if self._is_stall(stalled_s):
            self._book(Badput.STALL, stepped_s, stepped_s + stalled_s)
            return own
        if own.saved != self._saved or not _both_train(before, now) or aside_s > 0.0:
            return own
        took_s = now.updated_at_s - before.updated_at_s
        self._timed, self._timed_s = self._timed + steps, self._timed_s + took_s
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

    `attempt` is the number of the one that runs and when it was started, `hangs` whether it does.
    """

    failure = "cannot keep how the attempt goes"

    def __init__(
        self,
        run_dir: Path,
        attempt: Callable[[], tuple[int, float]],
        hangs: Callable[[], bool],
        keep: Callable[[int, Sequence[Slice], Lost], None],
    ) -> None:
        self._saved = SavedSteps(run_dir)
        self._running, self._hangs, self._keep = attempt, hangs, keep
        self._attempt = 0
        self._began_s = self._kept_s = 0.0
        self._pace = Pace(0.0)

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        """One look at the ranks of the attempt; what was seen is kept every `KEEP_EVERY_S`."""
        attempt, started_s = self._running()
        if attempt != self._attempt:
            self._pace.end(started_s, failed=True)
            self._store(now_s)
            self._attempt, self._began_s, self._pace = attempt, started_s, Pace(now_s, started_s)
        saved = self._saved.newest(self._began_s)
        self._pace.feed(now_s, [*map(sample_of, ranks)], hangs=self._hangs(), saved=saved)
        if now_s - self._kept_s >= KEEP_EVERY_S:
            self._store(now_s)
        return ()

    def finish(self, at_s: float, how: Ending | None) -> Sequence[WatchFinding]:
        """Keeps what was seen since."""
        self._pace.end(at_s, failed=how is None or how.code != 0)
        self._store(at_s)
        return ()

    def _store(self, now_s: float) -> None:
        self._kept_s = now_s
        if slices := self._pace.take():
            self._keep(self._attempt, slices, self._pace.take_lost())
