"""The workload of an attempt: a description from the first traces that give one, or the reason why there is none."""

from collections.abc import Callable, Sequence
from pathlib import Path

from crypto.errors import PharoahError
from tenant_client.doctor.run.attempt_recorder import Record
from tenant_client.doctor.run.hook.progress import Progress, read
from tenant_client.doctor.run.hook.sampler import DESCRIBED, WILL_PROFILE
from tenant_client.doctor.run.watchdog import WatchFinding
from tenant_client.doctor.run.watcher import Watcher
from tenant_client.doctor.workload.descriptor import Descriptor

_LAST_TRACE_S = 5.0


class WorkloadWatch(Watcher):
    """Journals the workload of one attempt, or why it is not known yet; `say` hears once when it will be."""

    failure = "cannot describe the traces"

    def __init__(self, workload: "RunWorkload", record: Record, say: Callable[[str], None]) -> None:
        self._workload, self._record, self._say = workload, record, say
        self._why_not = ""

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        """Takes the traces that are complete."""
        self._take(self._workload.complete_traces(now_s), now_s, ended=False)
        return ()

    def take_last(self, at_s: float) -> None:
        """Takes all traces: the job has ended."""
        self._take(self._workload.traces(), at_s, ended=True)

    @property
    def words(self) -> str:
        """What became of it, as a clause."""
        return "workload described" if self._workload.described else f"workload not described: {self._why_not}"

    def _take(self, traces: Sequence[Path], at_s: float, *, ended: bool) -> None:
        found = self._workload.take(traces)
        if found is not None:
            self._workload.kept(kept=self._record.describe(found, at_s))
        before, self._why_not = self._why_not, "" if self._workload.described else self._workload.why_not(ended=ended)
        if self._why_not == before:
            return
        if self._why_not.startswith(WILL_PROFILE) and not before.startswith(WILL_PROFILE):
            self._say(f"workload not described yet: {self._why_not}")
        if self._why_not:
            self._record.leave_undescribed(self._why_not)


class RunWorkload:
    """Describes the workload of the job that writes its traces to `run_dir`; `described` once that is done."""

    def __init__(self, run_dir: Path, *, sampled: bool) -> None:
        self.described = False
        self._run_dir = run_dir
        self._sampled = sampled
        self._failed = ""

    def complete_traces(self, now_s: float) -> list[Path]:
        """The traces of the ranks, once no new one has appeared for a while, since ranks may lag."""
        traces = self.traces()
        newest_s = max((trace.stat().st_mtime for trace in traces), default=now_s)
        return traces if now_s - newest_s >= _LAST_TRACE_S else []

    def traces(self) -> list[Path]:
        """All traces that there are."""
        return sorted(self._run_dir.glob("trace-*.json*"))

    def take(self, traces: Sequence[Path]) -> Descriptor | None:
        """The descriptor of `traces`, which are removed: they hold more than is stored. None once there was one."""
        from tenant_client.doctor.workload.describe import describe_files

        try:
            if not traces or self.described:
                return None
            try:
                return describe_files(traces)
            except PharoahError as error:
                self._failed = f"its traces could not be read: {error.what}"
                return None
        finally:
            for trace in traces:
                trace.unlink(missing_ok=True)

    def kept(self, *, kept: bool) -> None:
        """Takes whether the descriptor is in the journal, which ends the sampling."""
        self.described, self._failed = kept, "" if kept else "the journal could not be written"
        if kept:
            (self._run_dir / DESCRIBED).touch()

    def why_not(self, *, ended: bool = False) -> str:
        """Why there is no description by now, as a clause; `ended` if there will be none."""
        if not self._sampled:
            return "sampling is switched off (--no-sample)"
        if self._failed:
            return self._failed
        said = (path.read_text(encoding="utf-8").strip() for path in sorted(self._run_dir.glob("sampling-*")))
        if why := next(filter(None, said), ""):
            return why.replace(WILL_PROFILE, "the job ended before its profile, due", 1) if ended else why
        if any(record.step for record in filter(None, map(read, self._run_dir.glob("progress-*")))):
            return "the job took no sample; a warning in its output may say why"
        return "no step of a PyTorch optimiser was seen in a process that `run` started"
