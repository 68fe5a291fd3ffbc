"""The watchdog over what the ranks write: their progress, and since which step a loss is no number."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tenant_client.doctor.run.hook import progress, readings
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.restart_point import bad_since
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.watchdog import Sample, Standing, Watch, WatchFinding, WatchLimits
from tenant_client.doctor.run.watcher import Watcher


class RankWatch(Watcher):
    """Watches the steps and the losses of one attempt's ranks."""

    failure = "watching"

    def __init__(self, run_dir: Path, limits: WatchLimits, started_at_s: float) -> None:
        self._run_dir = run_dir
        self._watch = Watch(limits, started_at_s)

    @property
    def steps(self) -> int:
        """Steps that every rank has done."""
        return self._watch.steps

    @property
    def hangs(self) -> bool:
        """Whether a hang was reported that has not ended."""
        return self._watch.hangs

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        """Judges how far the ranks are now."""
        return self._new(self._watch.feed(now_s, map(self._sample, ranks)))

    def look_back(self, at_s: float, ranks: Iterable[Progress]) -> Sequence[WatchFinding]:
        """Judges how far they were at `at_s`, by what they had written until then."""
        return self._new(self._watch.feed(at_s, (sample_of(rank) for rank in ranks if rank.updated_at_s <= at_s)))

    def standing(self, at_s: float) -> Standing:
        """How the job stands."""
        return self._watch.standing(at_s)

    def finish(self, at_s: float, how: Ending | None) -> Sequence[WatchFinding]:
        """Judges the end: which ranks ended before the others of a job that failed, and the last losses."""
        return self._new(self._watch.finish(at_s, failed=how is not None and how.code != 0 and not how.asked_by))

    def _new(self, found: Sequence[WatchFinding]) -> Sequence[WatchFinding]:
        self.findings = self._watch.findings
        return found

    def _sample(self, rank: Progress) -> Sample:
        """With the step since which the loss is no number, as `show --only restart` has it."""
        sample = sample_of(rank)
        if rank.loss is None or math.isfinite(rank.loss):
            return sample
        return replace(sample, bad_since=bad_since(readings.read(self._run_dir / readings.file_name(rank.rank))))


def progresses(run_dir: Path) -> Iterator[Progress]:
    """How far each rank is; unreadable ranks are left out."""
    yield from filter(None, map(progress.read, run_dir.glob("progress-*")))


def sample_of(rank: Progress) -> Sample:
    """What the watchdog takes of a rank's progress."""
    return Sample(
        rank=rank.rank,
        step=rank.step,
        phase=rank.phase,
        updated_at_s=rank.updated_at_s,
        loss=rank.loss,
        restart=rank.restart,
        evaluations=rank.evaluations,
        tally=rank.tally,
    )
