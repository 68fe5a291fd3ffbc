"""Which failures the provider sees itself: by reason, from `visibility.toml`, scaled to the share that is asked for."""

from functools import partial
from importlib import resources

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.optimize import brentq

from federation.protocol.causes import CAUSES, Domain
from federation.protocol.toml_tables import loads
from simulation.cloud.cloud import Cloud
from simulation.cloud.profiles import Floats
from simulation.cloud.scenario import ScenarioError

_FILE = "visibility.toml"


def visible(cloud: Cloud, share: float, rng: Generator, by_workload: Floats | None = None) -> NDArray[np.bool_]:
    """Which of the cloud's failures (rows of `cloud.failures`) the provider sees; none but of infrastructure.

    `share` of these are seen, 0 to 1. `by_workload` (workloads,) says how much more often those of a workload are.
    """
    chance = _by_reason()[cloud.failures.reason]
    if by_workload is not None:
        chance = chance * by_workload[cloud.leases.workload[cloud.failures.lease]]
    infrastructure = np.array([cause.domain is Domain.INFRASTRUCTURE for cause in CAUSES.values()])
    own = infrastructure[cloud.failures.reason]
    return own & (rng.random(len(own)) < _scaled(chance, chance[own], share))


def _by_reason() -> Floats:
    """The chance of every reason, in the order of `CAUSES`."""
    text = resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    told = loads(text, _FILE, ScenarioError)
    return np.array([float(told.get(slug, 0.0)) for slug in CAUSES])


def _scaled(chance: Floats, of_all: Floats, share: float) -> Floats:
    """Chances times what makes their mean, `of_all`, the share: none above one."""
    if share <= 0.0 or not len(of_all):
        return np.zeros(len(chance))
    reachable = min(share, float(np.mean(of_all > 0.0)))

    def missing(log_scale: float, of_all: Floats) -> float:
        return float(np.minimum(1.0, of_all * np.exp(log_scale)).mean()) - reachable * (1.0 - 1e-9)

    scale = np.exp(brentq(partial(missing, of_all=of_all), -20.0, 20.0))
    return np.asarray(np.minimum(1.0, chance * scale), np.float64)
