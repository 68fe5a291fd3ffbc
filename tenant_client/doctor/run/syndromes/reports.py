"""The verdicts as findings of the attempt: said once, cleared when they no longer hold."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.syndromes.views import Syndrome, Verdict
from tenant_client.doctor.run.syndromes.watch import HANGS, Syndromes, sentence
from tenant_client.doctor.run.watchdog import Kind, WatchFinding
from tenant_client.doctor.run.watcher import Watcher

_KINDS = {syndrome: Kind(syndrome.value) for syndrome in Syndrome}
HANG_KINDS = frozenset(_KINDS[syndrome] for syndrome in HANGS)
_STACKS = 2  # a finding has room for no more


class Reports(Watcher):
    """The findings of one attempt; `steps` are those that every rank has done."""

    failure = "cannot compare the ranks"

    def __init__(
        self, run_dir: Path, steps: Callable[[], int], monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.findings: list[WatchFinding] = []
        self._steps = steps
        self._syndromes = Syndromes(run_dir)
        self._monotonic_s = monotonic_s

    def look(self, now_s: float, ranks: Sequence[Progress]) -> list[WatchFinding]:
        """Asks the ranks' cells, by a clock of its own; the new findings."""
        verdict = self._syndromes.poll(self._monotonic_s())
        holds = None if verdict is None else (_KINDS[verdict.syndrome], verdict.ranks)
        known = [one for one in self.findings if one.cleared_at_s is None and (one.kind, one.ranks) == holds]
        self.findings = [
            one if one.cleared_at_s is not None or one in known else replace(one, cleared_at_s=now_s)
            for one in self.findings
        ]
        if verdict is None or known:
            return []
        self.findings.append(self._finding(verdict, now_s, self._steps()))
        return self.findings[-1:]

    def _finding(self, verdict: Verdict, now_s: float, step: int) -> WatchFinding:
        stacks = {rank: self._syndromes.stack_of(rank) for rank in verdict.ranks[:_STACKS]}
        return WatchFinding(_KINDS[verdict.syndrome], now_s, step, verdict.ranks, sentence(verdict, stacks))

    def finish(self, at_s: float, how: Ending | None) -> Sequence[WatchFinding]:
        """If the job has succeeded, no hang holds any more."""
        if how is not None and how.code == 0:
            self.findings = [
                replace(one, cleared_at_s=one.cleared_at_s or at_s) if one.kind in HANG_KINDS else one
                for one in self.findings
            ]
        return ()

    def close(self, at_s: float) -> None:
        """Ends the watch."""
        self._syndromes.close()
