"""Noise and findings when not everybody answers: what a round opens at an attendance, and what is found in a year.

`rows`  a provider and tenants that set nothing, with 200 tenants: contributions are drawn and opened by the protocol's
        functions (masks, which cancel exactly, are left out), and of the honest half of those who answer the noise
        is measured. `variance_over_ideal` is its variance over that which epsilon asks for,
        `variance_over_ideal_stated` what the accountant says of it, and `variance_over_ideal_before` that of shares
        which must suffice for a minimal cohort, as they were before noise had layers.
`found` the standard scenario at epsilon 1, learnt as in `simulation.studies.learning`, when each tenant answers each
        round with this probability, independently. Who was away counts the windows that it missed in its next answer;
        the provider's exposure follows. Means over clouds. Rows of the tables are those of everybody's leases. In one
        cloud all attendances have the same noise but for its size, fresh for each cloud: AUROC differs by .02 from
        noise to noise, and what is asked for is the difference that attendance makes.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Annotated

import msgspec
import numpy as np
import typer
from numpy.typing import NDArray

from crypto import polya
from crypto.ids import RoundId
from crypto.inversion import chacha20
from crypto.masking import add_words
from federation.protocol import noise
from federation.protocol.attendance import Shares
from federation.protocol.noise import Integers, NoiseSampler, SystemSampler
from federation.protocol.plan import Plan
from provider_server.fleet.exposure import Slices, expose
from provider_server.fleet.learning.findings import learn
from provider_server.fleet.release import Answered, Release
from provider_server.rounds.opening import release
from provider_server.rounds.planning import MarginalSpec, make_plan
from provider_server.rounds.settings import PlanTable
from simulation.cloud.scenario import load
from simulation.run.engine_options import EngineKind
from simulation.run.engines import Kind
from simulation.studies import learning
from simulation.studies.learning import NO_TRUSTEE, SELECTION_KEY, Year
from simulation.studies.study import Quick, Seed, Table, by_seed
from tenant_client.doctor.records.journal import LabelledFailure
from tenant_client.rounds.counts import build_tables

Answering = NDArray[np.bool_]
Told = tuple[int, LabelledFailure]

MEMBERS = 200
ATTENDANCES = (1.0, 0.9, 0.75, 0.5, 0.25)
ANSWERING = (1.0, 0.9, 0.6)
COLLUDING = 0.5
CELLS, QUICK_CELLS = 20_000, 400


class AttendanceRow(msgspec.Struct, frozen=True):
    """The noise of a round in which so many answered, of which `honest` are."""

    attendance: float
    contributors: int
    honest: int
    variance_over_ideal: float
    variance_over_ideal_stated: float
    variance_over_ideal_before: float


class FoundRow(msgspec.Struct, frozen=True):
    """How well a year's findings rank planted pairs, when this share of tenants answers each round."""

    answering: float
    clouds: int
    auroc: float
    average_precision: float


class AttendanceFigures(msgspec.Struct, frozen=True):
    """Of `study attendance`; `found` is empty where no cloud was asked for."""

    rows: tuple[AttendanceRow, ...]
    found: tuple[FoundRow, ...]


# ---- the noise of a round --------------------------------------------------------------------------------------------


def rows(sampler: NoiseSampler, *, quick: bool) -> Iterator[AttendanceRow]:
    """One row for each attendance."""
    plan = shipped(QUICK_CELLS if quick else CELLS)
    before = Shares(plan.noise_shares, plan.noise_shares, 0)
    for attendance in ATTENDANCES:
        contributors = round(attendance * MEMBERS)
        honest = int(contributors * (1 - COLLUDING))
        yield AttendanceRow(
            attendance,
            contributors,
            honest,
            measured(plan, contributors, honest, sampler),
            honest / contributors * noise.opened_shares(plan, contributors),
            before.excess(honest),
        )


def shipped(cells: int) -> Plan:
    """A plan of one marginal by a provider that sets nothing, for a directory of 200."""
    settings = replace(PlanTable().settings, marginals=(MarginalSpec("cells", ("cell",), (), 1.0),))
    levels = {"cell": tuple(str(cell) for cell in range(cells))}
    start, end, *_ = settings.edges(0)
    return make_plan(settings, RoundId(bytes(16)), (start, end), [], [NO_TRUSTEE], levels, members=MEMBERS)


def measured(plan: Plan, contributors: int, honest: int, sampler: NoiseSampler) -> float:
    """The variance of what the honest add to an opening, over the variance that the plan asks for."""
    nothing = [np.zeros(table.shape, np.int64) for table in plan.tables]
    total = add_words(noise.contribution(plan, nothing, sampler) for _ in range(honest))
    (opened,) = noise.open_groups(plan, [total], contributors)
    (counts,) = noise.from_ring(plan, opened)
    (stated,) = noise.noise_variances(plan, contributors)
    return float(np.mean(counts**2)) * noise.opened_shares(plan, contributors) / stated


# ---- what is found in a year -----------------------------------------------------------------------------------------


class InsecureRepeatable:
    """Noise that is the same again, whatever its scale, for whoever has the seed: rounded Gaussians."""

    def __init__(self, seed: bytes) -> None:
        self._rng = np.random.default_rng(int.from_bytes(seed))

    def gaussian(self, scale: float, size: int) -> Integers:
        """The law of shares to 1e-4 of a step, at the scales of a sum."""
        return np.rint(self._rng.normal(0.0, scale, size)).astype(np.int64)

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        """As the product's."""
        return polya.shares(scale, 1 / Fraction(shares), size, chacha20(self._rng.bytes(32)))


def _of_cloud(quick: bool, seed: int) -> list[tuple[float, learning.Judged]]:  # noqa: FBT001 - what all clouds share
    """One judgement at each share of tenants that answer."""
    scenario = load("standard")
    year = learning.live(learning.small(scenario) if quick else scenario, seed)
    truth, failures, noises = learning.true_rates(year), failures_of(year), os.urandom(16)
    judged = []
    for answering in ANSWERING:
        made = releases(year, failures, present(year, answering, seed), InsecureRepeatable(noises))
        judged.append((answering, learning.judge(year, truth, learn(made, year.leases))))
    return judged


def summary(noises: Sequence[AttendanceRow], judged: Sequence[tuple[float, learning.Judged]]) -> AttendanceFigures:
    """The rows, and means over clouds."""
    of = {answering: [one for share, one in judged if share == answering] for answering in ANSWERING}
    return AttendanceFigures(
        tuple(noises),
        tuple(
            FoundRow(
                answering,
                len(some),
                float(np.mean([one.auroc for one in some])),
                float(np.mean([one.average_precision for one in some])),
            )
            for answering, some in of.items()
            if some
        ),
    )


def present(year: Year, answering: float, seed: int) -> Answering:
    """Who answers, shape (rounds, tenants); rounds in which fewer than a cohort would are drawn again."""
    rng = np.random.default_rng((seed, round(1000 * answering)))
    size = len(year.plans), year.cloud.scenario.tenants
    drawn = rng.random(size) < answering
    while (few := drawn.sum(axis=1) < year.cloud.scenario.cohort_minimum).any():
        drawn[few] = rng.random((int(few.sum()), size[1])) < answering
    return drawn


def releases(year: Year, failures: Sequence[Told], answers: Answering, sampler: NoiseSampler) -> list[Release]:
    """The year's releases when these answer; `failures` are those of the year, in order.

    Who was not counted in the windows just before a round, of its epoch, counts them in this one.
    """
    made: list[Release] = []
    since = np.zeros(answers.shape[1], np.int64)  # the first hour that each tenant has not been counted for
    tenants = [learning.tenant_id(number) for number in range(answers.shape[1])]
    for is_here, plan in zip(answers, year.plans, strict=True):
        since = np.maximum(since, plan.first_hour)  # of an epoch before, nothing is counted any more
        starts = {tenants[one]: float(since[one]) for one in np.flatnonzero(is_here).tolist()}
        counted = [
            failure
            for tenant, failure in failures
            if is_here[tenant] and since[tenant] <= failure.failure.at_h < plan.end_hour
        ]
        counts = build_tables(plan, counted, SELECTION_KEY)
        total = noise.to_ring(plan, counts) + learning.noise_of(plan, len(starts), sampler)
        running = learning.running(year.cloud, min(starts.values()), plan.end_hour)
        edges = [edge for edge in plan.windows if edge <= plan.end_hour]
        slices = Slices.by_window(starts, [year.leases[row] for row in running], edges, plan.band_edges_hours)
        answered = [Answered(tenant, int(hour)) for tenant, hour in starts.items()]
        made.append(release(plan, total, answered, expose(plan, slices)))
        since[is_here] = plan.end_hour
    return made


def failures_of(year: Year, told: learning.Telling = learning.as_it_was) -> list[Told]:
    """The failures of a year as they are told, each with the number of its tenant."""
    return [
        (int(year.cloud.leases.tenant[learning.row_of(failure.failure.unit)]), failure)
        for failure in learning.failures(year.cloud, year.leases, 0, year.plans[-1].end_hour, told)
    ]


def run(
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option("--seeds", "--clouds", min=0, help="Number of clouds; 0: noise alone.")] = 5,
    engine: EngineKind = Kind.PROCESSES,
    *,
    quick: Quick = False,
) -> Table:
    """Noise over the ideal when not everybody answers, and the accuracy of findings then."""
    judged = by_seed(engine, _of_cloud, quick, range(seed, seed + seeds))
    return Table(summary(list(rows(SystemSampler(), quick=quick)), judged))
