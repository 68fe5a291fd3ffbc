"""The verdicts as findings of the attempt: said once, cleared when they no longer hold."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tenant_client.run.syndromes.views import Syndrome, Verdict
from tenant_client.run.syndromes.watch import HANGS, Syndromes, sentence
from tenant_client.run.watchdog import Kind, WatchFinding

_KINDS = {syndrome: Kind(syndrome.value) for syndrome in Syndrome}
_HANGS = {_KINDS[syndrome] for syndrome in HANGS}
_STACKS = 2  # a finding has room for no more


class Reports:
    """The findings of one attempt, in the order in which they began."""

    def __init__(self, run_dir: Path, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.findings: list[WatchFinding] = []
        self._syndromes = Syndromes(run_dir)
        self._monotonic_s = monotonic_s

    def poll(self, now_s: float, step: int) -> list[WatchFinding]:
        """The new findings; `now_s` is the time of day."""
        verdict = self._syndromes.poll(self._monotonic_s())
        holds = None if verdict is None else (_KINDS[verdict.syndrome], verdict.ranks)
        known = [one for one in self.findings if one.cleared_at_s is None and (one.kind, one.ranks) == holds]
        self.findings = [
            one if one.cleared_at_s is not None or one in known else replace(one, cleared_at_s=now_s)
            for one in self.findings
        ]
        if verdict is None or known:
            return []
        self.findings.append(self._finding(verdict, now_s, step))
        return self.findings[-1:]

    @property
    def hang(self) -> WatchFinding | None:
        """The hang that holds."""
        return next((one for one in self.findings if one.cleared_at_s is None and one.kind in _HANGS), None)

    def _finding(self, verdict: Verdict, now_s: float, step: int) -> WatchFinding:
        stacks = {rank: self._syndromes.stack_of(rank) for rank in verdict.ranks[:_STACKS]}
        return WatchFinding(_KINDS[verdict.syndrome], now_s, step, verdict.ranks, sentence(verdict, stacks))

    def clear(self, now_s: float) -> None:
        """The job has succeeded: no hang holds any more."""
        self.findings = [
            replace(one, cleared_at_s=one.cleared_at_s or now_s) if one.kind in _HANGS else one for one in self.findings
        ]

    def close(self) -> None:
        """Ends the watch."""
        self._syndromes.close()
