"""What the observer sees of a job's health beside its progress: functions, garbage collection, memory and losses."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tenant_client.doctor.run.differential import Differential
from tenant_client.doctor.run.hook import patterns
from tenant_client.doctor.run.hook.patterns import Pattern
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.host_memory import HostMemory
from tenant_client.doctor.run.loss_trend import LossTrend
from tenant_client.doctor.run.oom_kills import OomKills
from tenant_client.doctor.run.watchdog import Kind, WatchFinding
from tenant_client.doctor.run.watcher import Watcher


class Health(Watcher):
    """Watches one attempt. `findings` are in the order in which they began; a rank has one of each kind at a time."""

    failure = "watching functions, memory and losses"

    def __init__(self, run_dir: Path, memory: HostMemory | None = None, kills: OomKills | None = None) -> None:
        self.findings: list[WatchFinding] = []
        self._run_dir = run_dir
        self._memory = memory or HostMemory()
        self._kills = kills or OomKills()
        self._pids: set[int] = set()  # of the attempt in which the kernel ended one
        self._functions = Differential()
        self._trends: dict[tuple[int, int], LossTrend] = {}

    def look(self, now_s: float, ranks: Sequence[Progress]) -> list[WatchFinding]:
        """Reads what lies in the run directory; the new findings."""
        found = (patterns.read(self._run_dir / patterns.file_name(progress.rank)) for progress in ranks)
        pids = {progress.rank: progress.pid for progress in ranks}
        return self.feed(now_s, ranks, [one for one in found if one is not None and one.pid == pids[one.rank]])

    def feed(self, now_s: float, ranks: Sequence[Progress], seen: Sequence[Pattern]) -> list[WatchFinding]:
        """Takes where the ranks are at `now_s` and their newest patterns; returns the new findings."""
        known = len(self.findings)
        step = min((progress.step for progress in ranks), default=0)
        self._judge_functions(now_s, step, seen)
        self._judge_losses(now_s, ranks, {pattern.rank: pattern for pattern in seen})
        training = {progress.rank: progress.pid for progress in ranks if progress.phase == "train"}
        for rank, text in self._memory.feed(now_s, training).items():
            self._set(Kind.MEMORY_GROWTH, now_s, step, rank, text)
        self._judge_kills(now_s, step, {progress.rank: progress.pid for progress in ranks})
        return self.findings[known:]

    def _judge_kills(self, now_s: float, step: int, pids: Mapping[int, int]) -> None:
        """What the kernel ended; a restart begins anew."""
        ended = self._kills.feed(now_s, pids)
        known = [one for one in self.findings if one.kind is Kind.OUT_OF_MEMORY and one.cleared_at_s is None]
        if ended is not None and not known:
            ranks, what = ended
            who = f"rank {ranks[0]}" if ranks else "a rank"
            text = f"the kernel ended {who} for want of memory: {what}"
            self.findings.append(WatchFinding(Kind.OUT_OF_MEMORY, now_s, step, ranks, text))
        elif known and pids and not set(pids.values()) & self._pids:
            self.findings = [replace(one, cleared_at_s=now_s) if one in known else one for one in self.findings]
        if ended is not None:
            self._pids = set(pids.values())

    def _judge_functions(self, now_s: float, step: int, seen: Iterable[Pattern]) -> None:
        standing = self._functions.feed(seen)
        for oddity in standing:
            kind = Kind.GC_PAUSES if oddity.kind == "gc" else Kind.SLOW_FUNCTION
            self._set(kind, now_s, step, oddity.rank, oddity.text)
        slow = {(Kind.GC_PAUSES if oddity.kind == "gc" else Kind.SLOW_FUNCTION, oddity.rank) for oddity in standing}
        self._clear_others(now_s, (Kind.GC_PAUSES, Kind.SLOW_FUNCTION), slow)

    def _judge_losses(self, now_s: float, ranks: Iterable[Progress], seen: Mapping[int, Pattern]) -> None:
        flat = set()
        for progress in ranks:
            pattern = seen.get(progress.rank)
            if pattern is None or pattern.first_loss is None or progress.loss is None:
                continue
            new = LossTrend(pattern.first_loss, fresh=pattern.fresh)
            trend = self._trends.setdefault((progress.rank, progress.pid), new)
            if math.isfinite(trend.first) and trend.feed(progress.step, progress.loss):
                flat.add((Kind.LOSS_PLATEAU, progress.rank))
                text = (
                    f"loss of rank {progress.rank} does not improve: {trend.first:.4g} at first, {trend.recent:.4g} now"
                )
                self._set(Kind.LOSS_PLATEAU, now_s, progress.step, progress.rank, text)
        self._clear_others(now_s, (Kind.LOSS_PLATEAU,), flat)

    def _set(self, kind: Kind, now_s: float, step: int, rank: int, text: str) -> None:
        if not any(one.kind is kind and one.ranks == (rank,) and one.cleared_at_s is None for one in self.findings):
            self.findings.append(WatchFinding(kind, now_s, step, (rank,), text))

    def _clear_others(self, now_s: float, kinds: Sequence[Kind], standing: set[tuple[Kind, int]]) -> None:
        self.findings = [
            replace(one, cleared_at_s=now_s)
            if one.kind in kinds and one.cleared_at_s is None and (one.kind, one.ranks[0]) not in standing
            else one
            for one in self.findings
        ]
