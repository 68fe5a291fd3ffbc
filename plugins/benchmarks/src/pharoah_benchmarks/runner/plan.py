"""What runs next where, and why: pure, from idle nodes, what ran before, the budget and the hour.

Nodes that ran least often come first. On each of them runs the job that ran least often in its context, of those of the
catalogue or of those that stand in for workloads. A node on which nothing could be run rests for a while, so that one
that lacks something is not asked again and again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pharoah_benchmarks.catalogue import JOBS
from pharoah_benchmarks.runner.book import Run
from pharoah_benchmarks.runner.settings import Benchmark

CANNOT_RUN = "cannot run"
REST_S = 600.0
DAY_S = 86_400.0
Context = int | str


@dataclass(frozen=True)
class Next:
    """A run that is to start."""

    node: str
    context: Context
    job: str
    stands_for: str
    why: str


@dataclass(frozen=True)
class Plan:
    """What is to start, and why no more is."""

    runs: Sequence[Next]
    why_no_more: str


def plan(
    idle: Sequence[str],
    contexts: Mapping[str, Context],
    runs: Sequence[Run],
    settings: Benchmark,
    now: datetime,
) -> Plan:
    """The next runs on idle nodes; `now` has a time zone, in whose hours it is quiet. `contexts` are those of nodes."""
    now_s = now.timestamp()
    busy = {run.node for run in runs if not run.outcome}
    resting = {run.node for run in runs if run.outcome == CANNOT_RUN and now_s - run.seen_s < REST_S}
    free = [node for node in idle if node in contexts and node not in busy | resting]
    at_once = int(settings.share_of_idle * (len(set(idle) | busy))) or 1
    left_h = settings.node_hours_a_day - spent(runs, now_s)
    limits = {
        f"{len(idle)} idle, {len(busy)} running, {len(resting)} resting": len(free),
        f"share_of_idle: {at_once} at once": at_once - len(busy),
        f"node_hours_a_day: {left_h:.2f} left": int(left_h * 3600 / settings.longest_s),
    }
    quiet = settings.quiet_until(now)
    if quiet:
        limits = {f"quiet until {quiet:%H:%M}": 0}
    why, most = min(limits.items(), key=lambda one: one[1])
    on = Counter(run.node for run in runs)
    nodes = sorted(free, key=lambda node: (on[node], node))[: max(most, 0)]
    return Plan(_in_turn(nodes, contexts, runs, settings), why)


def spent(runs: Sequence[Run], now_s: float) -> float:
    """Node-hours of the last day: those that ended runs took, and those that others may take."""
    ended = sum(run.node_hours for run in runs if run.outcome and now_s - run.seen_s < DAY_S)
    return ended + sum(run.planned_s for run in runs if not run.outcome) / 3600


def _in_turn(
    nodes: Sequence[str], contexts: Mapping[str, Context], runs: Sequence[Run], settings: Benchmark
) -> list[Next]:
    tried = Counter((run.job, run.stands_for, run.context) for run in runs)
    jobs = [(job, token) for token, job in settings.stands_for.items()]
    jobs = jobs or [(job, "") for job in settings.jobs or JOBS]
    found = []
    for node in nodes:
        context = contexts[node]
        job, token = min(jobs, key=lambda one: tried[*one, context])
        found.append(
            Next(node, context, job, token, f"ran {tried[job, token, context]} times in {context}, no job fewer")
        )
        tried[job, token, context] += 1
    return found


def local_time(now_s: float) -> datetime:
    """The hour by this machine's clock."""
    return datetime.fromtimestamp(now_s, UTC).astimezone()
