"""How many tenants and weeks a fail-slow map needs, at a total epsilon, and what one tenant sees alone.

Worlds have 20 contexts, of which two are 15% slower. Each tenant starts job-weeks of three workloads, on contexts by
its own mix; half of them are watched. Step times scatter by 3% from job-week to job-week, and one job-week in twenty is
a quarter slower for reasons of its own. `way` is who looks:

`together`   the noisy counts of all tenants, `share` of epsilon 1; 0: without noise
`alone`      a tenant by its own counts, the mean over tenants

A provider alone sees no step times and so nothing of it. Slow job-weeks are counted as tenants count them
(`tenant_client.rounds.speeds`), contexts judged as the provider does. Noise is the mechanism's own, as for votes.
`auroc` is of contexts by their score, `found` the share of slow ones named, `fdr` the mean false share of the named.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.random import Generator
from sklearn.metrics import roc_auc_score

from federation.protocol.noise import NoiseSampler
from federation.protocol.subjects import SLOW_PACE, Subject
from provider_server.analysis.slow_contexts import slow_contexts
from simulation.bench.cell_noise import cell_noise, cell_sigma
from simulation.bench.votes import evaluated
from simulation.cloud.fabric import Floats
from simulation.run.engines import Engine
from tenant_client.rounds.speeds import PacedUnit, speeds

TENANTS = (10, 20, 40)
SHARES = (0.0, 0.1, 0.2, 0.5)
CONTEXTS, SLOW_CONTEXTS, SLOWER = 20, 2, 1.15
WORKLOADS, JOB_WEEKS, WATCHED = 3, 10, 0.5  # of a tenant, and a week
SCATTER, OWN_REASONS, OWN_SLOWER = 0.03, 0.05, 1.25
TOGETHER, ALONE = "together", "alone"


class SlowRow(msgspec.Struct, frozen=True):
    """One way of looking; `sigma` is the standard deviation of the noise of a cell's total, in job-weeks."""

    way: str
    share: float
    sigma: float
    tenants: int
    weeks: int
    watched: float
    auroc: float
    found: float
    fdr: float
    worlds: int


class SlowRows(msgspec.Struct, frozen=True):
    """Of `bench slow`."""

    rows: tuple[SlowRow, ...]


@dataclass(frozen=True)
class Looked:
    """One world by one way."""

    way: str
    share: float
    tenants: int
    weeks: int
    watched: float
    auroc: float
    found: float
    fdr: float


def slow(engine: Engine, seeds: Sequence[int], sampler: NoiseSampler, *, quick: bool) -> Iterator[list[Looked]]:
    """One world of a size after another."""
    sizes = TENANTS[:1] if quick else TENANTS
    yield from engine.map(_world, (sampler, quick), [(tenants, seed) for seed in seeds for tenants in sizes])


def steps(seeds: int, *, quick: bool) -> int:
    """How many lists `slow` yields."""
    return seeds * (1 if quick else len(TENANTS))


def _world(settings: tuple[NoiseSampler, bool], of: tuple[int, int]) -> list[Looked]:
    sampler, quick = settings
    tenants, seed = of
    rng = np.random.default_rng((tenants, seed))
    weeks = evaluated(quick=quick)
    slower = np.zeros(CONTEXTS, bool)
    slower[rng.choice(CONTEXTS, SLOW_CONTEXTS, replace=False)] = True
    counts = np.stack([_tenant(number, slower, weeks, rng) for number in range(tenants)])
    looked = []
    for place, until in enumerate(weeks):
        own = counts[:, place]
        watched = float(own.sum())
        for share in SHARES:
            variance, noise = cell_noise(Subject.SPEED, share, until, (CONTEXTS, 2), sampler)
            seen = _judged(own.sum(axis=0) + noise, variance, slower)
            looked.append(Looked(TOGETHER, share, tenants, until, watched, *seen))
        alone = np.mean([_judged(one, 0.0, slower) for one in own], axis=0)
        looked.append(Looked(ALONE, 0.0, tenants, until, watched, *map(float, alone)))
    return looked


def _tenant(number: int, slower: np.ndarray, weeks: Sequence[int], rng: Generator) -> Floats:
    """Its slow and usual job-weeks by context, until each of `weeks`; shape (weeks, contexts, 2)."""
    mix = rng.dirichlet(np.full(CONTEXTS, 0.5))
    many = rng.poisson(JOB_WEEKS * WATCHED * weeks[-1])
    at_h, context = np.sort(rng.random(many)) * weeks[-1] * 168.0, rng.choice(CONTEXTS, many, p=mix)
    workload = rng.integers(WORKLOADS, size=many)
    step_s = np.exp(SCATTER * rng.normal(size=many)) * np.where(slower[context], SLOWER, 1.0)
    step_s *= np.where(rng.random(many) < OWN_REASONS, OWN_SLOWER, 1.0)
    rows = zip(at_h.tolist(), context.tolist(), workload.tolist(), step_s.tolist(), strict=True)
    ends = [168.0 * week for week in weeks]
    own = [
        PacedUnit(f"{number}-{row}", bisect_right(ends, at), at, str(c), str(w), step)
        for row, (at, c, w, step) in enumerate(rows)
    ]
    found = np.zeros((len(weeks), CONTEXTS, 2))
    for one in speeds(own):
        ((where, pace),) = one.cells
        found[np.array(weeks) * 168.0 > one.at_h, int(where), 0 if pace == SLOW_PACE else 1] += 1
    return found


def _judged(counts: Floats, variance: float, slower: np.ndarray) -> tuple[float, float, float]:
    """AUROC, share of the slow contexts named, false share of those named."""
    names = [str(number) for number in range(CONTEXTS)]
    found = slow_contexts(names, counts[:, 0], counts[:, 1], np.full(CONTEXTS, variance))
    score = {int(one.context): one.score for one in found}
    named = [int(one.context) for one in found if one.is_named]
    right = int(slower[named].sum())
    auroc = float(roc_auc_score(slower, [score[number] for number in range(CONTEXTS)]))
    return auroc, right / SLOW_CONTEXTS, (len(named) - right) / max(1, len(named))


def summary(looked: Sequence[Looked]) -> SlowRows:
    """A row for each way, share and size; means over worlds."""
    groups: dict[tuple[str, float, int, int], list[Looked]] = defaultdict(list)
    for one in looked:
        groups[one.way, one.share, one.tenants, one.weeks].append(one)
    return SlowRows(tuple(_row(own) for own in groups.values()))


def _row(own: Sequence[Looked]) -> SlowRow:
    first = own[0]
    sigma = cell_sigma(Subject.SPEED, first.share, first.weeks)
    numbers = np.array([(one.watched, one.auroc, one.found, one.fdr) for one in own])
    watched, auroc, found, fdr = numbers.mean(axis=0).tolist()
    return SlowRow(first.way, first.share, sigma, first.tenants, first.weeks, watched, auroc, found, fdr, len(own))


def lines(rows: SlowRows) -> Iterator[str]:
    """For people."""
    for row in rows.rows:
        yield (
            f"{row.way}, share {row.share:g} (σ {row.sigma:.1f}), {row.tenants} tenants, {row.weeks} weeks:"
            f" {row.watched:.0f} watched, AUROC {row.auroc:.2f}, found {row.found:.2f}, FDR {row.fdr:.2f};"
            f" {row.worlds} worlds"
        )
