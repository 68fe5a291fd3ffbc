"""How fast each node runs the provider's own jobs, whatever these were: from seconds per step of benchmark lines.

    log seconds of a run = what its task takes + how much slower its node is + noise

A task is a job of one size with one set of versions and settings. Both parts are fitted by medians in turn (Tukey's
median polish), so that a node counts as slow only against others that ran the same, and a disturbed run for little.
Only runs that did well on one node count. Nodes without a task in common with others cannot be compared, and are taken
for usual. The same is done for the spread of steps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

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
    place = {node: at for at, node in enumerate(nodes)}
    seen = [
        (place[str(job.settings[NODE])], _task(job), np.log(value))
        for job in jobs
        if job.outcome == OK and job.nodes == 1 and job.settings.get(NODE) in place and (value := of(job)) is not None
    ]
    if not seen:
        return np.full(len(nodes), np.nan)
    node, tasks, logs = zip(*seen, strict=True)
    return _polished(np.array(logs), np.array(node, np.intp), _numbered(tasks), len(nodes))


def _task(job: BenchmarkJob) -> tuple[object, ...]:
    settings = sorted((name, str(value)) for name, value in job.settings.items() if name != NODE)
    return (job.pace and job.pace.task, *sorted(job.versions.items()), *settings)


def _numbered(values: Iterable[object]) -> Ints:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.intp)


def _polished(logs: Floats, node: Ints, task: Ints, nodes: int) -> Floats:
    of_node = np.zeros(nodes)
    for _ in range(SWEEPS):
        of_task = _medians(logs - of_node[node], task, int(task.max()) + 1)
        of_node = np.nan_to_num(_medians(logs - of_task[task], node, nodes))
    found = _medians(logs - of_task[task], node, nodes)
    return np.asarray(found - np.nanmedian(found), np.float64)


def _medians(values: Floats, group: Ints, groups: int) -> Floats:
    """Of each group (groups,); nan of an empty one."""
    found = np.full(groups, np.nan)
    order = np.argsort(group, kind="stable")
    present, starts = np.unique(group[order], return_index=True)
    found[present] = [np.median(part) for part in np.split(values[order], starts[1:])]
    return found
