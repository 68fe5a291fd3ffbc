"""Combines the provider's hints about the job's lease with the watchdog's findings.

- Hints are read from the log in the tenant's home, which `pharoah-tenant serve` and `watch` fill. No process beside a
  job opens a connection.
- An open hint is joined to a finding of a hang or a slow rank, since both may have one cause; else it is a finding of
  its own.
- When the lease ends, by the provider's word, no hint about it is open any more.
- Findings are shown and journalled. A hint that says so asks the job for a checkpoint, by `save-now` in the run
  directory; nothing else is done.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from crypto.codec import decode
from federation.base.clock import SECONDS_PER_HOUR
from federation.protocol.service_messages import Action, Hint, HintState, LeaseChange, LeaseEnd, Suspicion
from tenant_client.doctor.advice.hints import Episode, action_of, end_of, episodes, line_of, said_of
from tenant_client.doctor.run.attempt_recorder import Record
from tenant_client.doctor.run.hook.checkpoints import ask
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.watchdog import Kind, WatchFinding
from tenant_client.doctor.run.watcher import Watcher

EVERY_S = 10.0
_BUSY_S = 0.2
_JOINED = (Kind.SLOW_RANK, Kind.HANG)


class Hinted:
    """The hints of one lease: those open when the attempt began, and all later ones.

    `end` is what the provider said last of the end of the lease.
    """

    def __init__(self, home: Path, lease: str) -> None:
        self._file = home / "tenant.db"
        self._lease = lease
        self._hints: list[Hint] = []
        self._cursor: int | None = None
        self._read_at_s = 0.0
        self.end: LeaseEnd | None = None

    def read(self, now_s: float, *, at_once: bool = False) -> list[Hint]:
        """New hints since the last call; the log is read every `EVERY_S`, or at once."""
        if self._cursor is not None and 0 <= now_s - self._read_at_s < EVERY_S and not at_once:
            return []
        self._read_at_s = now_s
        found, self.end = _read(self._file, self._lease, self._cursor or 0)
        new = found if self._cursor is not None else [one.last for one in _standing(found, now_s)]
        self._cursor = found[-1].number if found else self._cursor or 0
        self._hints += new
        return new

    def standing(self, now_s: float) -> list[Episode]:
        """The episodes that are open."""
        is_over = self.end is not None and self.end.change is not LeaseChange.MOVED
        return [] if is_over else _standing(self._hints, now_s)

    def word_of(self, hint: Hint, own: Sequence[WatchFinding]) -> str:
        """The text for a new hint, joined with the watchdog's findings so far."""
        for finding in own:
            joined = join(finding, [] if hint.state is HintState.CLEARED else [Episode(hint, hint)])
            if joined is not finding:
                return f"{joined.kind}: {joined.text}"
        return line_of(hint)

    def text_of(self, finding: WatchFinding, now_s: float) -> str:
        """The text for a new finding of the watchdog."""
        return join(finding, _standing(self._hints, now_s)).text

    def findings(self, own: Sequence[WatchFinding], now_s: float) -> list[WatchFinding]:
        """All findings of the attempt, for the journal."""
        return fuse(own, episodes(self._hints), now_s)


def asks_to_save(hint: Hint) -> bool:
    """Whether the job is to take a checkpoint now."""
    return hint.state is not HintState.CLEARED and hint.action in (Action.CHECKPOINT, Action.MOVE)


def fuse(own: Sequence[WatchFinding], hinted: Sequence[Episode], now_s: float) -> list[WatchFinding]:
    """The watchdog's findings, each joined to an open hint, and the hints without a matching finding."""
    standing = [one for one in hinted if one.stands(now_s / SECONDS_PER_HOUR)]
    joined = [join(finding, standing) for finding in own]
    told = standing[-1:] if joined != list(own) else []
    return [*joined, *(_finding(one) for one in hinted if one not in told)]


def join(finding: WatchFinding, standing: Sequence[Episode]) -> WatchFinding:
    """The finding, with the provider's suspicion added if a hint is open and both may have one cause."""
    if not standing or finding.kind not in _JOINED or finding.cleared_at_s is not None:
        return finding
    hint = standing[-1].last
    seen = "reports a raised failure risk" if hint.suspicion is Suspicion.UNCLEAR else f"suspects {hint.suspicion}"
    return replace(finding, text=f"{finding.text}; the provider {seen}: {action_of(hint)}")


def _finding(episode: Episode) -> WatchFinding:
    is_over = episode.last.state is HintState.CLEARED
    text = said_of(episode.first if is_over else episode.last)
    cleared_at_s = episode.last.at_h * SECONDS_PER_HOUR if is_over else None
    return WatchFinding(Kind.HINT, episode.first.at_h * SECONDS_PER_HOUR, 0, (), text, cleared_at_s)


def _standing(hints: Iterable[Hint], now_s: float) -> list[Episode]:
    return [one for one in episodes(hints) if one.stands(now_s / SECONDS_PER_HOUR)]


def _read(file: Path, lease: str, after: int) -> tuple[list[Hint], LeaseEnd | None]:
    """New hints and the newest end in the log, which is read only and may have an older schema."""
    if not file.exists():
        return [], None
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"hints", "lease_ends"} <= tables:
            return [], None
        query = "SELECT hint FROM hints WHERE lease = ? AND number > ? ORDER BY number"
        hints = [decode(Hint, hint) for (hint,) in connection.execute(query, (lease, after))]
        query = "SELECT end FROM lease_ends WHERE lease = ? ORDER BY number DESC LIMIT 1"
        end = connection.execute(query, (lease,)).fetchone()
        return hints, decode(LeaseEnd, end[0]) if end else None


# ---- while a job runs ------------------------------------------------------------------------------------------------


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
