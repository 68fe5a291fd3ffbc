"""The setting of the impact simulation: the cloud, the dates of bundles, the cost of lost hours, degrading nodes.

After the first window every job checks the newest bundle before it starts, and every lease is looked at every hour. All
constants of `simulation.judge.impact` are here, except those of degrading nodes (`simulation.cloud.degradation`);
docs/simulation.md gives their sources.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from federation.protocol.plan import HOURS_PER_WEEK
from simulation.cloud.cloud import Cloud
from simulation.cloud.degradation import Courses, Seen, draw_courses, observe
from simulation.cloud.profiles import Floats, Ints
from simulation.cloud.scenario import Scenario

WARNED_H = 0.5  # before the failure: what counts as a warning
WITHIN_H = 24.0  # the horizon of a hint's probability

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Costs:
    """What a lost hour is, and what it is worth. A failure costs what was done since the last checkpoint, and more."""

    checkpoint_every_h: float = 1.0  # the hour of Kokolis and others (HPCA 2025), and of Ascend's resumable training
    checkpoint_takes_h: float = 0.05
    notice_h: float = 1.0 / 6.0  # until anybody notices a failure: the default timeout of PyTorch's collectives
    restart_h: float = 0.25  # to get nodes, to load, to warm up: after a failure and after a move
    queue_h: float = 0.5  # assumed: until another context has room for the job
    data_h: float = 0.25  # assumed: until data and checkpoints are there
    room_share: float | None = None  # of a context's node-hours, what more it can take; None: all that comes
    gpus_per_node: int = 8
    dollars_per_gpu_hour: float = 2.5  # an H100 on demand in 2026 is 2 to 3.5

    @property
    def refusal_h(self) -> float:
        """Until a job that was refused runs elsewhere."""
        return self.queue_h + self.data_h + self.restart_h

    @property
    def recovery_h(self) -> float:
        """From a failure to where the job goes on."""
        return self.notice_h + self.restart_h


@dataclass(frozen=True, eq=False)
class Trial:
    """A cloud, and how its leases and hardware are called in bundles.

    `labels` are those of a lease by its row; `contexts` and `places` tell what a context token, and one of a context
    level, stand for. `seed` fixes what degrades and when.
    """

    cloud: Cloud
    labels: Callable[[int], Mapping[str, str]]
    contexts: Mapping[str, int]
    places: Mapping[str, tuple[int, int]]
    seed: int


def learning_weeks(scenario: Scenario) -> list[int]:
    """The weeks before which a bundle of all releases so far is published: after each window, but for the last.

    >>> from simulation.cloud.scenario import load
    >>> learning_weeks(load("standard"))
    [13, 26, 39]
    """
    epochs = range(0, scenario.weeks, scenario.windows[-1])
    return [week for epoch in epochs for end in scenario.windows if (week := epoch + end) < scenario.weeks]


@dataclass(frozen=True, eq=False)
class World:
    """What no bundle changes: leases that begin after the first window, how their nodes degrade, what telemetry shows.

    `rows` and `hours` (L,) are of leases; `draws` (N,) decide when nodes fail.
    """

    trial: Trial
    rows: Ints
    hours: Floats
    courses: Courses
    seen: Seen
    draws: Floats


def world_of(trial: Trial, bundles: int | None = None) -> World:
    """The world of a trial; the same each time. Of leases that begin under the first `bundles` (None: any)."""
    cloud, rng = trial.cloud, np.random.default_rng([trial.seed, 1])
    leases, end_h = cloud.leases, float(HOURS_PER_WEEK * cloud.scenario.weeks)
    weeks = [*learning_weeks(cloud.scenario), cloud.scenario.weeks]
    begin_h, last_h = HOURS_PER_WEEK * weeks[0], HOURS_PER_WEEK * weeks[-1 if bundles is None else bundles]
    rows = np.flatnonzero((leases.start_h >= begin_h) & (leases.start_h < last_h))
    courses = draw_courses(cloud, rows, rng)
    seen = observe(courses, cloud.scenario.buildup_levels, rng)
    hours = np.minimum(leases.end_h[rows], end_h) - leases.start_h[rows]
    return World(trial, rows, hours, courses, seen, rng.exponential(1.0, len(courses.lease)))
