"""How fast each node runs the provider's own jobs, whatever these were: from seconds per step of benchmark lines.

    log seconds of a run = what its task takes + how much slower its node is + noise

A task is a job of one size with one set of versions and settings. Both parts are fitted by medians in turn (Tukey's
median polish), over the median run of each node and task, so that a node counts as slow only against others that ran
the same, and a disturbed run for little. Only runs that did well on one node count. Nodes without a task in common with
others cannot be compared, and are taken for usual. The same is done for the spread of steps.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median

import numpy as np

from federation.protocol.life_table import Floats
from provider_server.fleet.analysis.measured import STEP_SPREAD, STEP_TIME
from provider_server.fleet.analysis.selection import Ints
from provider_server.fleet.learning.benchmark_jobs import OK, BenchmarkJob

NODE = "node"
SWEEPS = 10
LEAST_SPREAD = 1e-4


def measures(jobs: Sequence[BenchmarkJob], nodes: Sequence[str]) -> dict[str, Floats]:
    """By measure, the log of each node's (nodes,) over the usual, nan where none ran; {} without a run that says."""
    return {name: found for name, of in _OF.items() if np.isfinite(found := _by_node(jobs, nodes, of)).any()}


_OF: Mapping[str, Callable[[BenchmarkJob], float | None]] = {
    STEP_TIME: lambda job: job.pace.seconds_per_step if job.pace else None,
    STEP_SPREAD: lambda job: max(job.pace.step_spread, LEAST_SPREAD) if job.pace and job.pace.step_spread else None,
}


def _by_node(jobs: Sequence[BenchmarkJob], nodes: Sequence[str], of: Callable[[BenchmarkJob], float | None]) -> Floats:
    runs: dict[tuple[str, Hashable], list[float]] = {}
    for job in jobs:
        node, value = job.settings.get(NODE), of(job)
        if job.outcome == OK and job.nodes == 1 and isinstance(node, str) and value is not None:
            runs.setdefault((node, _task(job)), []).append(math.log(value))
    place, tasks = {node: at for at, node in enumerate(nodes)}, dict.fromkeys(task for _node, task in runs)
    number = {task: at for at, task in enumerate(tasks)}
    seen = [(place[node], number[task], median(own)) for (node, task), own in runs.items() if node in place]
    if not seen:
        return np.full(len(nodes), np.nan)
    at_node, at_task, logs = zip(*seen, strict=True)
    return _polished(np.array(logs), np.array(at_node, np.intp), np.array(at_task, np.intp), len(nodes))


def _task(job: BenchmarkJob) -> Hashable:
    settings = frozenset((name, str(value)) for name, value in job.settings.items() if name != NODE)
    return job.pace and job.pace.task, frozenset(job.versions.items()), settings


def _polished(logs: Floats, node: Ints, task: Ints, nodes: int) -> Floats:
    found = np.zeros(nodes)
    for _ in range(SWEEPS):
        of_task = _medians(logs - found[node], task, int(task.max()) + 1)
        found = _medians(logs - of_task[task], node, nodes)
    return np.asarray(found - np.nanmedian(found), np.float64)


def _medians(values: Floats, group: Ints, groups: int) -> Floats:
    """Of each group (groups,); nan of an empty one."""
    found = np.full(groups, np.nan)
    order = np.argsort(group, kind="stable")
    present, starts = np.unique(group[order], return_index=True)
    found[present] = [np.median(part) for part in np.split(values[order], starts[1:])]
    return found
