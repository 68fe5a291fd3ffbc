"""Plans, starts, watches and records, until it is stopped; what was started is in the book before it starts.

    idle nodes ─ plan ─ book.start ─▶ place ─ poll ─▶ End ─ a line in benchmarks.jsonl ─ book.end

Whatever happens, a run is counted once: it has an outcome in the book, or whoever runs next ends it. One that was
displaced or stopped is exposure without a failure. One that said nothing that can be read is none, and its node rests.
"""

import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path

import msgspec

from crypto.errors import PharoahError
from federation.base.hostlist import hostlist
from pharoah_benchmarks.record import hours_since_founded, record, told_by
from pharoah_benchmarks.run import Ran
from pharoah_benchmarks.runner.book import Book, Run
from pharoah_benchmarks.runner.places import End, How, Place, Running
from pharoah_benchmarks.runner.plan import CANNOT_RUN, Context, Next, Plan, local_time, plan
from pharoah_benchmarks.runner.settings import Benchmark
from provider_server.fleet.learning import hardware
from provider_server.fleet.learning.benchmark_jobs import FILE, UNKNOWN, BadBenchmarks, BenchmarkJob, read
from provider_server.rounds.home import settings_of

logger = logging.getLogger(__name__)

POLL_S, LOOK_S = 1.0, 30.0
LEAVE_S = 30.0  # for a run to end once it is asked to
NAMED = "pharoah-{}-"
_LOST = "node_failure"


class Runner:
    """The runs of a home at a place; `told` hears of each that has ended."""

    def __init__(self, home: Path, place: Place, settings: Benchmark, book: Book, told: Callable[[Run], None]) -> None:
        self._home = home
        self._place = place
        self._settings = settings
        self._book = book
        self._told = told
        self._running: dict[str, Running] = {}
        self._failure = ""
        self._looked_s = -math.inf

    def turn(self) -> None:
        """Records what has ended, and from time to time starts what may."""
        with self._failing():
            self._watch()
            if time.monotonic() - self._looked_s >= LOOK_S:
                self._looked_s = time.monotonic()
                for one in self.plan().runs:
                    self._start(one)
            self._failure = ""

    def plan(self) -> Plan:
        """What is to start now; PlaceAway."""
        idle = self._place.idle()
        now = local_time(time.time())
        return plan(idle, contexts_of(self._home, idle), self._book.all(), self._settings, now)

    def leave(self) -> None:
        """Ends all runs, those of a runner that was killed too; what a scheduler that is away has is ended later."""
        for ask in (methodcaller("stop"), methodcaller("kill")):
            for one in self._running.values():
                with self._failing():
                    ask(one)
            until_s = time.monotonic() + LEAVE_S
            while self._book.open() and time.monotonic() < until_s:
                with self._failing():
                    self._watch()
                time.sleep(POLL_S)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Says what failed, once; it is tried again at the next turn."""
        try:
            yield
        except (PharoahError, OSError) as error:
            what, hint = (error.what, error.hint) if isinstance(error, PharoahError) else (str(error), "")
            if what != self._failure:
                logger.warning("%s", what, extra={"event": "benchmark", "error": type(error).__name__, "hint": hint})
            self._failure = what

    def _start(self, one: Next) -> None:
        settings, now_s = self._settings, time.time()
        run = f"{NAMED.format(one.job)}{uuid.uuid4().hex[:12]}"
        words = ["run", one.job, "--local", "--json", "--seconds", f"{settings.seconds:g}", "--node", one.node]
        options = {"--size": settings.size, "--python": settings.python}
        words += [word for option, value in options.items() if value for word in (option, value)]
        self._book.start(Run(run, one.job, one.node, one.context, one.stands_for, settings.longest_s, now_s, now_s))
        self._running[run] = self._place.start(run, one.node, words, settings.longest_s)

    def _watch(self) -> None:
        """Looks at every run that has not ended."""
        for run in self._book.open():
            live, now_s = self._running.get(run.run), time.time()
            if live is None:  # of a runner that was killed
                if self._place.end(run.run):
                    self._record(run, End(How.STOPPED, b""))
                continue
            end, over_s = live.poll(), now_s - run.started_s - run.planned_s
            if end or now_s - run.seen_s > LOOK_S:
                self._book.see(run.run, now_s)
            if end:
                self._record(msgspec.structs.replace(run, seen_s=now_s), end)
                del self._running[run.run]
                self._looked_s = -math.inf  # its node is idle
            elif over_s > 0:
                (live.stop if over_s < LEAVE_S else live.kill)()

    def _record(self, run: Run, end: End) -> None:
        """Keeps what became of a run: first for findings, then in the book."""
        outcome, said = self._outcome(run, end)
        self._book.end(run.run, outcome, said)
        self._told(msgspec.structs.replace(run, outcome=outcome, said=said))

    def _outcome(self, run: Run, end: End) -> tuple[str, str]:
        """The outcome of a run, whose line is written, and what was said of it."""
        before = read(self._home / FILE) if (self._home / FILE).exists() else ()
        ran, last = _ran(end.text, run), b"\n".join(end.text.splitlines()[-1:]).decode(errors="replace")[:200]
        if ran is None and end.how is How.ENDED:
            return CANNOT_RUN, last
        if known := [one.outcome for one in before if one.job == run.run]:  # by a runner that was killed then
            return known[0], ""
        try:
            if ran:
                record(self._home, told_by(self._home, ran, run.context, run.archetype), ran)
                return ran.outcome, ran.said
            if run.node_hours:
                record(self._home, self._unsaid(run, end.how, before))
        except (BadBenchmarks, ValueError) as error:  # whatever it printed, it is no outcome
            return CANNOT_RUN, str(error)
        return end.how, last

    def _unsaid(self, run: Run, how: How, before: Sequence[BenchmarkJob]) -> BenchmarkJob:
        """The hours of a run that did not say what it was: as the last of that job, on that node if there is one."""
        alike = [one for one in before if one.job.startswith(NAMED.format(run.job))]
        like = next(iter([one for one in alike if one.settings.get("node") == run.node][-1:] or alike[-1:]), None)
        return BenchmarkJob(
            job=run.run,
            context=run.context,
            nodes=1,
            start_h=hours_since_founded(self._home, time.time() - run.started_s),
            hours=run.node_hours,
            outcome=_LOST if how is How.LOST else UNKNOWN,
            archetype=run.archetype,
            versions=like.versions if like else {},
            settings={**(like.settings if like else {}), "node": run.node},
        )


def _ran(text: bytes, run: Run) -> Ran | None:
    """What it says of itself, under its name; None where that cannot be read."""
    for line in reversed(text.splitlines()):
        try:
            ran = msgspec.json.decode(line, type=Ran)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
            continue
        if ran.job == run.job:
            return msgspec.structs.replace(ran, run=run.run, node=run.node)
    return None


def contexts_of(home: Path, nodes: Sequence[str]) -> dict[str, Context]:
    """The contexts of nodes, as leases have them, else as telemetry does; a node without one is left out."""
    named = {node: name for hosts, name in settings_of(home).leases.contexts.items() for node in hostlist(hosts)}
    kept = hardware.load(home)
    found = {node: named.get(node) or (kept.contexts.of(node) if kept else None) for node in nodes}
    return {node: context for node, context in found.items() if context is not None}
