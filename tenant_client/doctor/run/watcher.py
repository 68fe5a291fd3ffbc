"""What watches an attempt: each is asked at every look, and what one raises is a warning and no more.

    progress of the ranks ─▶ Watchers.look ─▶ every Watcher ─▶ new findings, said once
    all findings, in the order of the watchers ─▶ journal, diagnosis

A new watcher is one file with a class below `Watcher`, and its name in `observe`. One from elsewhere is a plug-in
(docs/architecture.md).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.watchdog import WatchFinding


class Watcher(Protocol):
    """Watches one thing about an attempt.

    `failure` begins the warning where it raises. `findings` are all that it has found, in the order in which they
    began.
    """

    failure: str
    findings: Sequence[WatchFinding] = ()

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        """Looks once, at the ranks of this host and what else there is; the new findings."""

    def finish(self, at_s: float, how: Ending | None) -> Sequence[WatchFinding]:
        """Ends the watch before the diagnosis; the new findings. `how` is None if the exit status is unknown."""
        return ()

    def close(self, at_s: float) -> None:
        """Does what is left after the diagnosis, and gives back what it holds."""
        return


class Watchers:
    """All that watch one attempt. A watcher that raises keeps no other from looking."""

    def __init__(self, ours: FailOpen, say: Callable[[WatchFinding, float], None], watchers: Sequence[Watcher]) -> None:
        self._ours, self._say, self._all = ours, say, watchers

    @property
    def findings(self) -> Iterator[WatchFinding]:
        """Those of all watchers."""
        return (finding for watcher in self._all for finding in watcher.findings)

    def look(self, now_s: float, ranks: Sequence[Progress]) -> None:
        """Each looks; new findings are said."""
        self._each(now_s, lambda watcher: watcher.look(now_s, ranks))

    def finish(self, at_s: float, how: Ending | None) -> None:
        """The job has ended."""
        self._each(at_s, lambda watcher: watcher.finish(at_s, how))

    def close(self, at_s: float) -> None:
        """Nobody looks any more."""
        self._each(at_s, lambda watcher: watcher.close(at_s))

    def _each(self, now_s: float, turn: Callable[[Watcher], Sequence[WatchFinding] | None]) -> None:
        for watcher in self._all:
            with self._ours.guard(watcher.failure):
                for finding in turn(watcher) or ():
                    self._say(finding, now_s)
