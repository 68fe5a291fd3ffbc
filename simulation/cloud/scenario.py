"""Scenarios: what a simulated cloud looks like, as data.

A scenario fixes structure only (how many tenants, workloads, contexts and weeks; which rates to aim at); who runs what
and what fails is drawn from it with a generator. Those that come with Pharoah are `scenarios/*.toml`; `load` reads
these by name and anything else by path, with some keys changed. Every key must be present and within its range; an
unknown key is refused.

    >>> load("quickstart").weeks
    13
    >>> load("quickstart", {"epsilon": 0.5}).epsilon
    0.5
    >>> names()
    ('hyperscale', 'quickstart', 'regional', 'standard', 'tiny')
"""

from collections.abc import Mapping
from importlib import resources
from itertools import pairwise
from math import log2
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from crypto.codec import Number
from crypto.errors import PharoahError
from federation.protocol.causes import Domain
from federation.protocol.plan import Mechanism
from federation.protocol.toml_tables import NOTHING, convert, loads

_FOLDER = resources.files(__package__) / "scenarios"
# A larger share of job-weeks with a counted infrastructure failure would need job-weeks that fail many times over.
_MOST_FAILING = 0.7


class ScenarioError(PharoahError):
    """A scenario cannot be found, read or played."""

    default_hint = "simulation/cloud/scenarios/quickstart.toml shows every key"


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated cloud; durations are in hours or weeks as the names say.

    `jobs_per_week` is the expected number of job-weeks (a lease within one week) in each week. `failures_per_week` has
    the expected failures by domain: for infrastructure those that are counted once each job-week is limited to
    `failures_per_unit`, for framework and script the leases that end by one. `age_band_edges_h` are lower edges,
    the last band is open. `mismatch_share` of all pairs (workload, context), but at least `mismatch_minimum`, fail
    `mismatch_factor` times as often as their parts explain; they are planted where a pair has between the two
    `mismatch_exposure` times its even share of all jobs. `mismatch_blocks` more defects are shared by pairs
    that are alike (`truth.plant_blocks`). Leases differ by a gamma factor of mean 1 and variance
    `lease_frailty`, 0 for not at all. `context_drift` is the standard deviation by which the logarithm of a context's
    hazard wanders over all weeks; in a share of its weeks, the first of `context_bursts`, leases that start on it fail
    as many times as often as the second says. A version fails as often as the one before with the chance
    `versions_as_before`. `late_versions` of each archetype, the newest, begin half-way.
    `private_share` of the workloads have one owner each, `pinned_tenants` tenants run on one context alone. With
    `acme_mix`, reasons and lost node-hours follow Acme's Table 3; without, every reason of a domain is equally likely.
    With `node_faults`, nodes have names and histories, and fail as those of a real fleet do (`node_faults`). With
    `measured_clients`, tenants' rates and bursts follow published clients (`client_laws`), else Zipf's law. Noise is
    complete without the `colluding_share` of a cohort: such tenants know their own noise.
    `windows` are the weeks of an epoch at whose end its windows end, the last of which ends the epoch. Contributions
    are opened in up to `groups` groups.
    """

    name: str
    title: str
    tenants: int
    archetypes: int
    versions_per_archetype: int
    contexts: int
    weeks: int
    jobs_per_week: int
    largest_job_nodes: int
    private_share: Number
    pinned_tenants: int
    buildup_levels: int
    buildup_factors: tuple[Number, ...]
    age_band_edges_h: tuple[Number, ...]
    age_band_factors: tuple[Number, ...]
    mismatch_share: Number
    mismatch_minimum: int
    mismatch_factor: Number
    mismatch_exposure: tuple[Number, Number]
    lease_frailty: Number
    failures_per_unit: int
    epsilon: Number
    delta: Number
    mechanism: Mechanism
    windows: tuple[int, ...]
    groups: int
    owners_minimum: int
    cohort_minimum: int
    acme_mix: bool
    failures_per_week: Mapping[Domain, Number]
    context_drift: Number = 0.0
    context_bursts: tuple[Number, Number] = (0.0, 1.0)
    late_versions: int = 0
    mismatch_blocks: int = 0
    versions_as_before: Number = 0.5
    node_faults: bool = False
    measured_clients: bool = False
    colluding_share: Number = 0.5

    def __post_init__(self) -> None:
        for key, (lowest, highest) in _RANGES.items():
            within = lowest <= getattr(self, key) <= highest
            self._require(key, f"must lie between {lowest:g} and {highest:g}", holds=within)
        for key in ("owners_minimum", "cohort_minimum"):
            self._require(key, f"of {self.tenants} tenants", holds=getattr(self, key) <= self.tenants)
        for key, length in (("buildup_factors", self.buildup_levels), ("age_band_factors", len(self.age_band_edges_h))):
            fits = len(getattr(self, key)) == length and all(value > 0 for value in getattr(self, key))
            self._require(key, f"must be {length} positive numbers", holds=fits)
        rarest, commonest = self.mismatch_exposure
        self._require("mismatch_exposure", "must rise from 0 or more", holds=0 <= rarest < commonest)
        share, factor = self.context_bursts
        self._require(
            "context_bursts", "must be a share below 1 and a factor of 1 or more", holds=0 <= share < 1 <= factor
        )
        some = self.late_versions < self.versions_per_archetype
        self._require("late_versions", "must leave a version of each archetype", holds=some)
        edges = self.age_band_edges_h
        rising = edges[:1] == (0.0,) and all(low < high for low, high in pairwise(edges))
        self._require("age_band_edges_h", "must start at 0 and rise", holds=rising)
        rising = bool(self.windows) and all(low < high for low, high in pairwise((0, *self.windows)))
        self._require("windows", "must be weeks from 1 on, in order", holds=rising)
        pure = self.delta > 0 or self.mechanism is Mechanism.DISCRETE_LAPLACE
        self._require("delta", "must be above 0 where noise is Gaussian", holds=pure)
        self._require("largest_job_nodes", "must be a power of two", holds=log2(self.largest_job_nodes).is_integer())
        self._check_failures()

    @property
    def workloads(self) -> int:
        """Number of workloads: every version of every archetype; `a * versions_per_archetype + v` is version v of a."""
        return self.archetypes * self.versions_per_archetype

    @property
    def mismatches(self) -> int:
        """Number of planted pairs (workload, context)."""
        return max(self.mismatch_minimum, round(self.mismatch_share * self.workloads * self.contexts))

    def _check_failures(self) -> None:
        rates = self.failures_per_week
        positive = set(rates) == set(Domain) and all(rate > 0 for rate in rates.values())
        self._require("failures_per_week", f"must be positive for {', '.join(Domain)}", holds=positive)
        sound = self.jobs_per_week - rates[Domain.FRAMEWORK] - rates[Domain.SCRIPT]
        most = _MOST_FAILING * self.failures_per_unit * sound
        rule = f"must have infrastructure below {most:.0f}: other failures leave {sound:.0f} job-weeks a week"
        self._require("failures_per_week", rule, holds=rates[Domain.INFRASTRUCTURE] < most)

    def _require(self, key: str, rule: str, *, holds: bool) -> None:
        if not holds:
            value = getattr(self, key)
            shown = {str(domain): rate for domain, rate in value.items()} if isinstance(value, Mapping) else value
            raise ScenarioError(f"{self.name}: {key} = {shown!r} {rule}")


_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "tenants": (2, 100_000),
        "archetypes": (2, 1_000),
        "versions_per_archetype": (1, 100),
        "contexts": (2, 1_000),
        "weeks": (1, 520),
        "jobs_per_week": (10, 1_000_000),
        "largest_job_nodes": (1, 1024),
        "private_share": (0, 0.9),
        "pinned_tenants": (0, 100),
        "buildup_levels": (1, 10),
        "mismatch_share": (0, 0.2),
        "mismatch_minimum": (0, 1_000),
        "mismatch_factor": (1, 100),
        "lease_frailty": (0, 20),
        "context_drift": (0, 2),
        "late_versions": (0, 99),
        "mismatch_blocks": (0, 100),
        "versions_as_before": (0, 1),
        "failures_per_unit": (1, 100),
        "epsilon": (0.001, 100),
        "delta": (0, 1e-3),
        "groups": (1, 100),
        "owners_minimum": (1, 1_000),
        "cohort_minimum": (1, 100_000),
        "colluding_share": (0, 0.9),
    }
)


def names() -> tuple[str, ...]:
    """The scenarios that come with Pharoah, in alphabetical order."""
    files = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(file.removesuffix(".toml") for file in files if file.endswith(".toml")))


def load(name_or_path: str | Path, changes: Mapping[str, Any] = NOTHING) -> Scenario:
    """The scenario of that name, or the one in that file, with other values for some of its keys.

    `changes` maps keys to values as TOML has them; `table.key` is a key of a table. ScenarioError where the scenario is
    missing, unreadable or invalid.
    """
    if name_or_path in names():
        return parse(
            _FOLDER.joinpath(f"{name_or_path}.toml").read_text(encoding="utf-8"), f"{name_or_path}.toml", changes
        )
    path = Path(name_or_path)
    if not path.is_file():
        raise ScenarioError(f"no scenario {str(name_or_path)!r}", hint=f"use one of {', '.join(names())}, or a file")
    try:
        return parse(path.read_text(encoding="utf-8"), str(path), changes)
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"cannot read {path}: {error}") from error


def parse(text: str, file: str, changes: Mapping[str, Any] = NOTHING) -> Scenario:
    """A scenario from TOML; `file` appears in messages and, without folder and suffix, as the scenario's name."""
    read = loads(text, file, ScenarioError)
    for key, value in changes.items():
        table, _, inner = key.rpartition(".")
        within = read.get(table) if table else read
        if not isinstance(within, dict):
            raise ScenarioError(f"{file} has no table {table!r}")
        within[inner] = value
    return convert(read, Scenario, file, ScenarioError, {"name": Path(file).stem})
