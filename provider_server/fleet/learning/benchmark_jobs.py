"""The provider's own benchmark jobs: exact counts, for newcomers' first rates and for rules on versions and settings.

The provider owns the code and the outcome of its benchmarks, so nothing here is private, and nothing is noisy. A file
has one JSON object per line:

    {"job": "gemm-0412", "context": 3, "nodes": 4, "start_h": 812.5, "hours": 6.0, "outcome": "nvlink_error",
     "versions": {"torch": "2.9.1", "nccl": "2.28.3"}, "settings": {"fabric": "ndr", "ranks": 32}, "archetype": "bert"}

(on one line). `outcome` is `ok`, a slug of `federation.protocol.causes`, or what only the owner of a job's code can say
of it: `hang` and `wrong_result`, which are the hardware's, and `unknown`, which is nobody's. `archetype` is a name of
the catalogue or a token in hexadecimal; `versions`, `settings` and `pace` (`Pace`) may be left out. A job counts one
failure at most: what ended it.

Guarantees: a file is read as a whole or not at all, and an error names the file, the line and the fault.
Not promised: that benchmarks fail as tenants' jobs do (`analysis.cold_start` allows for a difference).
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from crypto.errors import PharoahError
from federation.protocol.causes import CAUSES, Domain
from federation.protocol.life_table import Dimension, Floats, LifeTable
from provider_server.fleet.analysis.conditions import Records
from provider_server.fleet.analysis.rules import Rule, find_rules

OK, HANG, WRONG_RESULT, UNKNOWN = "ok", "hang", "wrong_result", "unknown"
FILE = "benchmarks.jsonl"  # in the provider's home: those that it ran itself
NOT_SET = "not set"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Setting = str | float | bool


class BadBenchmarks(PharoahError):
    """A file of benchmark jobs cannot be read."""

    default_hint = "nothing was read; correct or remove the line; docs/learning.md describes the format"


class Pace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast a job ran: only runs of one `task` are compared. `step_spread` is over the median step."""

    task: Name
    seconds_per_step: Annotated[float, msgspec.Meta(gt=0)]
    step_spread: Annotated[float, msgspec.Meta(ge=0)] | None = None


class BenchmarkJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One job that has ended. `start_h` counts from the federation's start; `context` is a number or a name.

    ValueError for what cannot be: an outcome that is no cause, infinite times.
    """

    job: Name
    context: Annotated[int, msgspec.Meta(ge=0)] | Name
    nodes: Annotated[int, msgspec.Meta(ge=1)]
    start_h: Annotated[float, msgspec.Meta(ge=0)]
    hours: Annotated[float, msgspec.Meta(gt=0)]
    outcome: str
    archetype: Name
    versions: dict[Name, Name] = msgspec.field(default_factory=dict)
    settings: dict[Name, Setting] = msgspec.field(default_factory=dict)
    pace: Pace | None = None

    def __post_init__(self) -> None:
        if self.outcome not in {OK, HANG, WRONG_RESULT, UNKNOWN} | CAUSES.keys():
            raise ValueError(f"outcome {self.outcome!r} is neither {OK} nor a known cause, such as nvlink_error")
        if not (math.isfinite(self.start_h) and math.isfinite(self.hours)):
            raise ValueError("start_h and hours must be finite")
        if self.pace and not (math.isfinite(self.pace.seconds_per_step) and math.isfinite(self.pace.step_spread or 0)):
            raise ValueError("seconds_per_step and step_spread must be finite")

    @property
    def node_hours(self) -> float:
        """Exposure."""
        return self.nodes * self.hours

    @property
    def place(self) -> str:
        """The context as text."""
        return str(self.context)

    def failed(self, domain: Domain) -> bool:
        """Whether a cause in `domain` ended it."""
        if self.outcome in (HANG, WRONG_RESULT):
            return domain is Domain.INFRASTRUCTURE
        return self.outcome in CAUSES and CAUSES[self.outcome].domain is domain


def read(path: Path) -> tuple[BenchmarkJob, ...]:
    """The jobs of a file, in order; BadBenchmarks where it cannot be read or holds something else."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadBenchmarks(f"{error.strerror}: {path}", hint="pass a readable file of JSON lines") from error
    return parse(data, str(path))


def parse(data: bytes, source: str) -> tuple[BenchmarkJob, ...]:
    """The jobs that JSON lines tell of, in order; empty lines are passed over. `source` names them in errors."""
    jobs: dict[str, BenchmarkJob] = {}
    versions, settings = frozenset[str](), frozenset[str]()
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            job = msgspec.json.decode(line, type=BenchmarkJob)
            if job.job in jobs:
                raise ValueError(f"job {job.job!r} is on an earlier line")
            versions, settings = versions | job.versions.keys(), settings | job.settings.keys()
            if both := sorted(versions & settings):
                raise ValueError(f"{', '.join(both)}: a version and a setting cannot have one name")
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadBenchmarks(f"{source}, line {number}: {error}") from error
        jobs[job.job] = job
    return tuple(jobs.values())


def evidence(jobs: Sequence[BenchmarkJob], domain: Domain = Domain.INFRASTRUCTURE) -> LifeTable:
    """Exact failures of `domain` and node-hours over (workload, context), each an archetype and a context as text.

    For a new context: `evidence(jobs).marginal("context").at("context", name)`.
    """
    workloads, contexts = _levels(job.archetype for job in jobs), _levels(job.place for job in jobs)
    cells = tuple(
        np.array([levels.index(name) for name in names], np.intp)
        for levels, names in (
            (workloads, [job.archetype for job in jobs]),
            (contexts, [job.place for job in jobs]),
        )
    )
    shape = (len(workloads), len(contexts))
    columns = (_failed(jobs, domain), _node_hours(jobs), np.ones(len(jobs)))
    events, node_hours, at_risk = np.zeros((3, *shape))
    for total, column in zip((events, node_hours, at_risk), columns, strict=True):
        np.add.at(total, cells, column)
    dimensions = (Dimension("workload", workloads), Dimension("context", contexts))
    return LifeTable(dimensions, events, node_hours, at_risk, np.zeros(shape))


def rules_from(
    jobs: Sequence[BenchmarkJob],
    rng: np.random.Generator,
    *,
    domain: Domain = Domain.INFRASTRUCTURE,
    max_depth: int = 3,
) -> tuple[Rule, ...]:
    """Readable rules: with which versions and settings jobs fail more often than others of their context and archetype.

    See `analysis.rules`: two thirds of the strata (context × archetype, dealt out by `rng`) learn, the others test, so
    jobs in one stratum alone give no rule. ValueError where a version and a setting have one name.
    """
    return find_rules(records(jobs, domain), rng, max_depth=max_depth) if jobs else ()


def records(jobs: Sequence[BenchmarkJob], domain: Domain) -> Records:
    """One record per job. A setting that is a number in every job is one; others are text, `not set` where absent."""
    versions, settings = (
        _levels(name for job in jobs for name in getattr(job, kind)) for kind in ("versions", "settings")
    )
    if both := sorted(set(versions) & set(settings)):
        raise ValueError(f"{', '.join(both)}: a version of one job and a setting of another cannot have one name")
    numbers = [name for name in settings if all(_is_number(job.settings.get(name)) for job in jobs)]
    strata = [(job.place, job.archetype) for job in jobs]
    return Records(
        strata=np.array([sorted(set(strata)).index(own) for own in strata], np.intp),
        events=_failed(jobs, domain),
        exposure_node_hours=_node_hours(jobs),
        noise_variance=np.zeros(len(jobs)),
        versions={name: [job.versions.get(name) for job in jobs] for name in versions},
        settings={name: [_text(job.settings.get(name)) for job in jobs] for name in settings if name not in numbers},
        numbers={name: [float(job.settings[name]) for job in jobs] for name in numbers},
    )


def _levels(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _failed(jobs: Sequence[BenchmarkJob], domain: Domain) -> Floats:
    return np.array([job.failed(domain) for job in jobs], np.float64)


def _node_hours(jobs: Sequence[BenchmarkJob]) -> Floats:
    return np.array([job.node_hours for job in jobs], np.float64)


def _is_number(value: Setting | None) -> bool:
    return isinstance(value, float)


def _text(value: Setting | None) -> str:
    if value is None:
        return NOT_SET
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else value
