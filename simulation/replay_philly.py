"""Philly: 15,000 jobs of 136 users, users as tenants; survival by number of GPUs against the pooled Kaplan–Meier curve.

Durations are the provider's knowledge; which of the jobs failed is the users'. Only failures by bucket and age band
are released, and one job adds one count to one cell of one table. Where so little is asked of a unit, Laplace noise is
several times smaller than Gaussian noise of the same epsilon (ADR 3), so that is what this plan uses.

A curve is reported while at least 5% of its bucket are still under observation: beyond, one single job moves it by more
than the tolerance, and no private answer can follow. The error over the full range is reported beside it.
"""

import csv
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from crypto.life_table import Floats
from crypto.plan import Mechanism
from provider_server.analysis.bands import quantile_bands
from provider_server.analysis.survival import survival_curve
from provider_server.planning import MarginalSpec, PlanSettings
from provider_server.release import Release
from simulation.replay import DELTA, DataError, Life, Replay

BUCKETS = ("1", "2-4", "5-8", ">8")
JUDGED_JOBS = 1000
REPORTED_SHARE = 0.05
MAX_BANDS = 60
NO_PRIVACY_EPSILON = 1.0  # stands in the plan when noise is switched off; nothing depends on it


@dataclass(frozen=True)
class PhillyResult:
    """Largest distance of the curves from the pooled ones, over judged buckets, the worst of the seeds."""

    epsilon: float | None
    seeds: int
    users: int
    jobs: int
    bands: int
    judged_buckets: tuple[str, ...]
    max_abs_survival_error: float
    mean_over_seeds_max_abs_survival_error: float
    max_abs_survival_error_full_range: float
    interval_coverage: float
    seconds: float

    @property
    def json(self) -> Mapping[str, object]:
        """Stable keys."""
        return {"data": "philly", **asdict(self)}
