"""`pharoah-provider benchmark plan`, `start`, `status` and `stop`."""

import signal
import threading
import time
from pathlib import Path
from typing import TypedDict

from federation.base import logs
from federation.base.console import AsJson
from federation.base.screen import say, show, show_json
from federation.base.visible import counted_as
from pharoah_benchmarks.record import is_running, running
from pharoah_benchmarks.run import CannotRun
from pharoah_benchmarks.runner.book import Run, opened
from pharoah_benchmarks.runner.kubernetes import Kubernetes
from pharoah_benchmarks.runner.loop import LEAVE_S, POLL_S, Runner
from pharoah_benchmarks.runner.places import Local, Place
from pharoah_benchmarks.runner.plan import Context, spent
from pharoah_benchmarks.runner.settings import Benchmark, settings_of
from pharoah_benchmarks.runner.slurm import Slurm
from provider_server.program.verbs.console import Home, LogFormat, print_rows, required
from provider_server.rounds.home import founded

STOP = "benchmarks.stop"  # in the home: the runner ends when it is there
LAST = 20


class NextRow(TypedDict):
    """A run that would start now, and why."""

    node: str
    context: Context
    job: str
    stands_for: str
    why: str


class RunRow(TypedDict):
    """A run: where it ran what, what it cost, and its outcome, which is empty while it runs."""

    run: str
    node: str
    context: Context
    job: str
    stands_for: str
    node_hours: float
    outcome: str
    said: str


class StatusView(TypedDict):
    """Whether a runner runs, what runs, what ended last, and what of the budget is spent."""

    running: bool
    node_hours_spent: float
    node_hours_a_day: float
    runs: list[RunRow]
    last: list[RunRow]


def plan(home: Home = None, *, as_json: AsJson = False) -> None:
    """Say what would run next where, and why; nothing is run."""
    place, settings = _settled(home)
    with opened(place) as book:
        found = Runner(place, _place(settings), settings, book, _unheard).plan()
    rows: list[NextRow] = [
        {"node": one.node, "context": one.context, "job": one.job, "stands_for": one.stands_for, "why": one.why}
        for one in found.runs
    ]
    print_rows(rows, lambda row: f"{row['job']} on {row['node']}: {row['why']}", as_json=as_json)
    say(f"no more than {counted_as(len(rows), 'run')}: {found.why_no_more}")


def start(home: Home = None, log_format: LogFormat = logs.Format.JSON, *, as_json: AsJson = False) -> None:
    """Run jobs on idle nodes as the section benchmark of provider.toml says, until `benchmark stop`.

    Each run that has ended is told on stdout. What a scheduler that does not answer keeps from running runs once it
    answers. Stopped by SIGTERM or an interrupt, too, it ends what it started.
    """
    place, settings = _settled(home)
    logs.configure(log_format)
    over = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: over.set())

    def told(run: Run) -> None:
        print_rows([_row(run)], _line, as_json=as_json)

    with running(place), opened(place) as book:
        (place / STOP).unlink(missing_ok=True)
        runner = Runner(place, _place(settings), settings, book, told)
        try:
            while not over.is_set() and not (place / STOP).exists():
                runner.turn()
                over.wait(POLL_S)
        finally:
            runner.leave()


def stop(home: Home = None) -> None:
    """End the runner of this home and all that it started; what one that was killed has left, too."""
    place, settings = _settled(home)
    (place / STOP).touch()
    until_s = time.monotonic() + 3 * LEAVE_S
    while is_running(place):
        if time.monotonic() > until_s:
            raise CannotRun("the runner does not end", hint="end its process: what it started ends with it")
        time.sleep(POLL_S)
    with running(place), opened(place) as book:
        left = len(book.open())
        Runner(place, _place(settings), settings, book, _unheard).leave()
        (place / STOP).unlink(missing_ok=True)
    say(f"stopped; {counted_as(left, 'run')} of a runner that was killed ended" if left else "stopped")


def status(home: Home = None, *, as_json: AsJson = False) -> None:
    """Show what runs, what ended last, and what of the budget of the last 24 hours is spent."""
    place, settings = _settled(home)
    with opened(place) as book:
        runs = book.all()
    told: StatusView = {
        "running": is_running(place),
        "node_hours_spent": spent(runs, time.time()),
        "node_hours_a_day": settings.node_hours_a_day,
        "runs": [_row(run) for run in runs if not run.outcome],
        "last": [_row(run) for run in runs if run.outcome][-LAST:],
    }
    if as_json:
        show_json(told)
        return
    show(
        f"runner: {'running' if told['running'] else 'not running'}",
        f"node-hours in 24 h: {told['node_hours_spent']:.2f} of {told['node_hours_a_day']:g}",
        *(_line(row) for row in [*told["runs"], *told["last"]]),
    )


def _settled(home: Path | None) -> tuple[Path, Benchmark]:
    place = required(home)
    founded(place)
    return place, settings_of(place)


def _place(settings: Benchmark) -> Place:
    if settings.place == "slurm":
        return Slurm(settings.partition, settings.qos, settings.program)
    return Kubernetes(settings) if settings.place == "kubernetes" else Local(settings.program)


def _unheard(_: Run) -> None:
    """Nobody listens."""


def _row(run: Run) -> RunRow:
    return {
        "run": run.run,
        "node": run.node,
        "context": run.context,
        "job": run.job,
        "stands_for": run.stands_for,
        "node_hours": run.node_hours,
        "outcome": run.outcome,
        "said": run.said,
    }


def _line(row: RunRow) -> str:
    said = f" ({row['said']})" if row["said"] else ""
    return f"{row['job']} on {row['node']}: {row['outcome'] or 'running'}, {row['node_hours']:.3f} node-hours{said}"
