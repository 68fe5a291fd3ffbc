"""How well a histogram of goodput tells what contexts delivered, at a total epsilon: errors, and what intervals hold.

Worlds have 20 contexts. On most, a job-week loses 6% of its time on average; on three, 20%. A tenant starts ten
job-weeks a week, on contexts by its own mix. What is lost scatters as a beta distribution, so that most job-weeks lose
little and a few nearly all. Job-weeks are counted as tenants count them (`tenant_client.rounds.goodputs`) and told as
the provider does (`provider_server.analysis.attainment`); the noise is the mechanism's own, as for votes.

The truth is the share of the job-weeks of a context that reached the target, of all that were counted. `error` is the
median of how far estimates are off, over contexts and worlds, `error_90` what nine in ten keep; `width` is the median
width of an interval. `covered` is how many of the 95% intervals have the truth, `covered_all` the same at all edges,
`covered_quantiles` of the intervals for the quantiles. A context misses the aim if fewer than `AIM` of its job-weeks
reach the target; `found` is the share of those that are named, `fdr` the mean false share of the named.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.random import Generator

from federation.protocol.noise import NoiseSampler
from federation.protocol.subjects import GOODPUT_BANDS, GOODPUT_EDGES, Subject
from provider_server.analysis.attainment import ContextGoodput, by_context
from simulation.bench.cell_noise import cell_noise
from simulation.bench.votes import evaluated
from simulation.cloud.fabric import Floats
from simulation.run.engines import Engine
from tenant_client.rounds.goodputs import GoodputUnit, goodputs

TENANTS = (20, 40)
SHARES = (0.1, 0.2, 0.5)
CONTEXTS, BAD_CONTEXTS = 20, 3
LOST, LOST_ON_BAD, CONCENTRATION = 0.06, 0.2, 3.0  # means, and the beta distribution's a + b
JOB_WEEKS = 10  # of a tenant, and a week
TARGET, AIM = 0.9, 0.7


class GoodputRow(msgspec.Struct, frozen=True):
    """One share and size; `sigma` is the standard deviation of a cell's total, `job_weeks` the mean of a context."""

    share: float
    sigma: float
    tenants: int
    weeks: int
    job_weeks: float
    error: float
    error_90: float
    width: float
    covered: float
    covered_all: float
    covered_quantiles: float
    found: float
    fdr: float
    worlds: int


class GoodputRows(msgspec.Struct, frozen=True):
    """Of `bench goodput`."""

    rows: tuple[GoodputRow, ...]


@dataclass(frozen=True)
class Told:
    """One world: of each context its job-weeks, the error at the target, and what its intervals hold."""

    share: float
    sigma: float
    tenants: int
    weeks: int
    job_weeks: float
    errors: tuple[float, ...]
    widths: tuple[float, ...]
    covered: tuple[tuple[bool, ...], ...]
    covered_quantiles: tuple[bool, ...]
    found: float | None
    false_share: float


def goodput(engine: Engine, seeds: Sequence[int], sampler: NoiseSampler, *, quick: bool) -> Iterator[list[Told]]:
    """One world of a size after another."""
    sizes = TENANTS[:1] if quick else TENANTS
    yield from engine.map(_world, (sampler, quick), [(tenants, seed) for seed in seeds for tenants in sizes])


def steps(seeds: int, *, quick: bool) -> int:
    """How many lists `goodput` yields."""
    return seeds * (1 if quick else len(TENANTS))


def _world(settings: tuple[NoiseSampler, bool], of: tuple[int, int]) -> list[Told]:
    sampler, quick = settings
    tenants, seed = of
    rng = np.random.default_rng((tenants, seed))
    weeks = evaluated(quick=quick)
    lost = np.full(CONTEXTS, LOST)
    lost[rng.choice(CONTEXTS, BAD_CONTEXTS, replace=False)] = LOST_ON_BAD
    counts = np.sum([_tenant(number, lost, weeks, rng) for number in range(tenants)], axis=0)
    told = []
    for until, exact in zip(weeks, counts, strict=True):
        for share in SHARES:
            variance, noise = cell_noise(Subject.GOODPUT, share, until, exact.shape, sampler)
            told.append(_told(exact, exact + noise, variance, (share, tenants, until)))
    return told


def _tenant(number: int, lost: Floats, weeks: Sequence[int], rng: Generator) -> Floats:
    """Its job-weeks by context and band, until each of `weeks`; shape (weeks, contexts, bands)."""
    mix = rng.dirichlet(np.full(CONTEXTS, 0.5))
    many = rng.poisson(JOB_WEEKS * weeks[-1])
    at_h, context = rng.random(many) * weeks[-1] * 168.0, rng.choice(CONTEXTS, many, p=mix)
    share = 1 - rng.beta(CONCENTRATION * lost[context], CONCENTRATION * (1 - lost[context]))
    own = [GoodputUnit(f"{number}-{row}", at, of) for row, (at, of) in enumerate(zip(at_h, share, strict=True))]
    contexts = {one.unit: str(of) for one, of in zip(own, context.tolist(), strict=True)}
    found = np.zeros((len(weeks), CONTEXTS, len(GOODPUT_BANDS)))
    for one in goodputs(own, contexts):
        ((where, band),) = one.cells
        found[np.array(weeks) * 168.0 > one.at_h, int(where), GOODPUT_BANDS.index(band)] += 1
    return found


def _told(exact: Floats, noisy: Floats, variance: float, size: tuple[float, int, int]) -> Told:
    names = [str(number) for number in range(CONTEXTS)]
    found = by_context(names, noisy, np.full(CONTEXTS, variance), GOODPUT_EDGES, (TARGET, AIM))
    own = [(one, exact[int(one.context)]) for one in found if exact[int(one.context)].any()]
    place = GOODPUT_EDGES.index(TARGET) - 1
    at_target = [(one.attained[place], _attained(counts)[place]) for one, counts in own]
    missing = {one.context for one, counts in own if _attained(counts)[place] < AIM}
    named = {one.context for one in found if one.is_missed}
    share, tenants, until = size
    return Told(
        share,
        variance**0.5,
        tenants,
        until,
        float(exact.sum(axis=1).mean()),
        tuple(abs(said.share - true) for said, true in at_target),
        tuple(said.high - said.low for said, _ in at_target),
        tuple(tuple(_covers(one, counts)) for one, counts in own),
        tuple(_between(one, counts) for one, counts in own),
        len(named & missing) / len(missing) if missing else None,
        len(named - missing) / max(1, len(named)),
    )


def _attained(counts: Floats) -> list[float]:
    """The share of job-weeks from each edge on, but for the first."""
    return [float(counts[place:].sum() / counts.sum()) for place in range(1, len(counts))]


def _covers(one: ContextGoodput, counts: Floats) -> Iterator[bool]:
    for said, true in zip(one.attained, _attained(counts), strict=True):
        yield said.low <= true <= said.high


def _between(one: ContextGoodput, counts: Floats) -> bool:
    """Whether every quantile is in the bands that are told."""
    reach = dict(zip(GOODPUT_EDGES, (1.0, *_attained(counts)), strict=True)) | {1.0: 0.0}
    return all(reach[said.low] >= 1 - said.share and reach[said.high] < 1 - said.share for said in one.quantiles)


def summary(told: Sequence[Told]) -> GoodputRows:
    """A row for each share and size, over contexts and worlds."""
    groups: dict[tuple[float, int, int], list[Told]] = defaultdict(list)
    for one in told:
        groups[one.share, one.tenants, one.weeks].append(one)
    return GoodputRows(tuple(_row(own) for own in groups.values()))


def _row(own: Sequence[Told]) -> GoodputRow:
    errors, covered = np.concatenate([one.errors for one in own]), np.concatenate([one.covered for one in own])
    found = [one.found for one in own if one.found is not None]
    return GoodputRow(
        own[0].share,
        own[0].sigma,
        own[0].tenants,
        own[0].weeks,
        float(np.mean([one.job_weeks for one in own])),
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        float(np.median(np.concatenate([one.widths for one in own]))),
        float(covered[:, GOODPUT_EDGES.index(TARGET) - 1].mean()),
        float(covered.mean()),
        float(np.concatenate([one.covered_quantiles for one in own]).mean()),
        float(np.mean(found)) if found else 0.0,
        float(np.mean([one.false_share for one in own])),
        len(own),
    )


def lines(rows: GoodputRows) -> Iterator[str]:
    """For people."""
    for row in rows.rows:
        yield (
            f"share {row.share:g} (σ {row.sigma:.1f}), {row.tenants} tenants, {row.weeks} weeks,"
            f" {row.job_weeks:.0f} job-weeks a context: error {row.error:.3f} (nine in ten {row.error_90:.3f}),"
            f" interval {row.width:.2f} wide, holds {row.covered:.1%} ({row.covered_all:.1%} at all edges, quantiles"
            f" {row.covered_quantiles:.1%}); found {row.found:.2f}, FDR {row.fdr:.2f}; {row.worlds} worlds"
        )
