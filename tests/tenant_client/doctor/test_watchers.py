"""The loop over all that watch an attempt: one that raises is a warning, and the others go on."""

from collections.abc import Sequence

from tenant_client.doctor.run.fail_open import FailOpen
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.supervise import Ending
from tenant_client.doctor.run.watchdog import Kind, WatchFinding
from tenant_client.doctor.run.watcher import Watcher, Watchers

SEEN = WatchFinding(Kind.SLOW_RANK, 1.0, 5, (1,), "rank 1 slows down the other ranks")
RANK = Progress(0, 4711, 5, 1.0, "train", None, 0)


class Steady(Watcher):
    """Finds one thing at its first look."""

    failure = "watching steadily"

    def __init__(self) -> None:
        self.findings: list[WatchFinding] = []
        self.ranks: list[Sequence[Progress]] = []
        self.ended: list[Ending | None] = []
        self.closed = False

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        self.ranks.append(ranks)
        if self.findings:
            return ()
        self.findings = [SEEN]
        return self.findings

    def finish(self, at_s: float, how: Ending | None) -> Sequence[WatchFinding]:
        self.ended.append(how)
        return ()

    def close(self, at_s: float) -> None:
        self.closed = True


class Broken(Watcher):
    """Raises whenever it is asked."""

    failure = "watching the moon"

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        raise ZeroDivisionError("new moon")

    def finish(self, at_s: float, how: Ending | None) -> Sequence[WatchFinding]:
        raise OSError("full moon")

    def close(self, at_s: float) -> None:
        raise RuntimeError("eclipse")


def test_a_watcher_that_raises_is_named_and_the_others_look_end_and_close() -> None:
    ours, before, after, said = FailOpen(quiet=True), Steady(), Steady(), list[tuple[WatchFinding, float]]()
    watchers = Watchers(ours, lambda finding, now_s: said.append((finding, now_s)), [before, Broken(), after])
    for now_s in (1.0, 2.0, 3.0):
        watchers.look(now_s, [RANK])
    watchers.finish(4.0, Ending(1))
    watchers.close(5.0)
    assert said == [(SEEN, 1.0), (SEEN, 1.0)]
    assert list(watchers.findings) == [SEEN, SEEN]
    for one in (before, after):
        assert (one.ranks, one.ended, one.closed) == ([[RANK]] * 3, [Ending(1)], True)
    assert ours.warnings == [f"watching the moon: {word}" for word in ("new moon", "full moon", "eclipse")]
