"""Says while a job runs what the provider says of its lease: hints, and when it ends."""

from collections.abc import Callable, Sequence
from pathlib import Path

from federation.base.clock import SECONDS_PER_HOUR
from federation.protocol.service_messages import LeaseChange, LeaseEnd
from tenant_client.doctor.advice.hints import end_of
from tenant_client.doctor.run.attempt_recorder import Record
from tenant_client.doctor.run.hook.checkpoints import ask
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.lease_hints import Hinted, asks_to_save
from tenant_client.doctor.run.watchdog import WatchFinding
from tenant_client.doctor.run.watcher import Watcher


class LeaseWatch(Watcher):
    """What is new about one lease. A hint that says so asks the job for a checkpoint.

    Its findings are `Hinted.findings`, which joins them to those of other watchers.
    """

    failure = "cannot read the provider's hints"

    def __init__(
        self, hinted: Hinted, run_dir: Path, ranks: Watcher, record: Record, say: Callable[[str], None]
    ) -> None:
        self._hinted, self._run_dir, self._ranks, self._record, self._say = hinted, run_dir, ranks, record, say
        self._end: LeaseEnd | None = None

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        """Says what is new."""
        for hint in self._hinted.read(now_s):
            if asks_to_save(hint):
                ask(self._run_dir)
            self._say(self._hinted.word_of(hint, self._ranks.findings))
        self._say_end()
        return ()

    def close(self, at_s: float) -> None:
        """Joins the end of the lease to the attempt, which is over."""
        self._hinted.read(at_s, at_once=True)
        self._say_end()
        if self._hinted.end is not None:
            self._record.settle(self._hinted.end)

    def _say_end(self) -> None:
        end = self._hinted.end
        if end is None or end == self._end:
            return
        self._end = end
        self._say(f"lease {end.lease} {end_of(end)}")
        if end.change is LeaseChange.MOVED:
            self._record.move_end(end.end_h * SECONDS_PER_HOUR)
