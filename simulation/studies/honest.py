"""How soon tenants and trustees see a provider that warns in vain or keeps warnings back, from noisy sums of outcomes.

Statistical. How many units fail in a window is what `regional` aims at: 572 in 13 weeks, of 6.5 failures per 1,000
node-days. How much noise is opened among 100 tenants, and how many units share a bad node, are those of that cloud with
node faults. Noise is drawn by the program's sampler; the verdict is the program's own (`federation.protocol.warnings`).
How good warnings are is assumed: 60% come true, 35% of failures have one; ByteDance publishes 46% to 85% precision in
predicting GPU failures (Liu et al., SYSTOR 2023). tests/system/test_warnings.py plays the path from journal to verdict.

    honest     precision and recall are exactly what is claimed, the worst case for false alarms, or 3 points above
    inflated   a fifth more warnings than those, without cause: precision falls from 60% to 50%
    hidden     every second warning, right or wrong, is kept back: recall falls from 35% to 17.5%

A year is honest before the others begin. `own_hints` counts what the provider's hints of today give in that cloud.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np

from federation.protocol.causes import CAUSES, Domain
from federation.protocol.noise import SystemSampler, opened_shares
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.warnings import CellNoise, Claims, WarnedSum, course
from simulation.cloud.cloud import Cloud, build_cloud
from simulation.cloud.profiles import Ints
from simulation.cloud.scenario import load
from simulation.judge.hint_evaluation import watch
from simulation.judge.user_loop import learning_weeks, world_of
from simulation.studies.impact import bundles_of, trial_of
from simulation.studies.learning import begun, releases, with_next_round
from simulation.studies.study import Figures, Only, Quick, Seed, Table, chosen

CLAIMS = Claims(0.6, 0.35)
EPSILON, SHARES = 1.0, (0.05, 0.1, 0.2)
WINDOW_WEEKS, TENANTS = 13, 100
YEARS, HONEST_ROUNDS, MOST_ROUNDS = 50, 4, 12
SAME_NODE_H = 168.0  # failures of a node within so many hours share a cause
INFRASTRUCTURE = [place for place, name in enumerate(CAUSES) if CAUSES[name].domain == Domain.INFRASTRUCTURE]


@dataclass(frozen=True)
class Fleet:
    """Units that fail within 13 weeks, sizes of clusters that share a node, and how much noise is opened."""

    failed: float
    clusters: Ints
    opened: float


@cache
def fleet(seed: int) -> Fleet:
    """Of the simulated cloud with node faults."""
    cloud = build_cloud(load("regional", {"node_faults": True}), np.random.default_rng(seed))
    at = np.isin(cloud.failures.reason, INFRASTRUCTURE)
    struck = np.zeros(len(at), np.int64) if cloud.struck is None else cloud.struck.node
    lease, hour, node = cloud.failures.lease[at], cloud.failures.at_h[at], struck[at]
    unit = lease * 1000 + (hour // (WINDOW_WEEKS * HOURS_PER_WEEK)).astype(np.int64)
    place = cloud.leases.context[lease] * 10**6 + node
    order = np.lexsort((hour, place))
    new = (np.diff(place[order], prepend=-1) != 0) | (np.diff(hour[order], prepend=0.0) > SAME_NODE_H)
    pairs = np.unique(np.stack([np.cumsum(new), unit[order]]), axis=1)
    year = with_next_round(begun(cloud))
    opened = 1.0 if year is None else opened_shares(year.plans[0], TENANTS)
    failed = WINDOW_WEEKS * cloud.scenario.failures_per_week[Domain.INFRASTRUCTURE]
    return Fleet(failed, np.unique(pairs[0], return_counts=True)[1], opened)


@dataclass(frozen=True)
class Course:
    """A provider: its rounds, the first honest ones, its conduct after, its size in fleets, its margin over claims."""

    rounds: int
    honest: int
    conduct: str = "honest"
    size: float = 1.0
    margin: float = 0.0


def sums_of(of: Course, share: float, runs: int, seed: int) -> Iterator[list[WarnedSum]]:
    """The sums of each run, at a share of epsilon."""
    known, rng, scale = fleet(seed), np.random.default_rng([seed, 1]), 1 / (EPSILON * share)
    noise = CellNoise("discrete_laplace", scale, known.opened)
    noisy = _noise(scale, known.opened, (runs, of.rounds, 5))
    for run in noisy:
        sums = []
        for number, errors in enumerate(run):
            counts = np.array([*_counts(of, known, rng, changed=number >= of.honest), 0, 0]) + errors
            came_true, in_vain, unwarned, checks_came_true, checks_in_vain = counts.tolist()
            checks = checks_came_true, checks_in_vain
            sums.append(WarnedSum(number, number + 1, came_true, in_vain, unwarned, *checks, CLAIMS, noise))
        yield sums


def _noise(scale: float, opened: float, shape: tuple[int, int, int]) -> Ints:
    whole, rest = int(opened), Fraction(opened % 1).limit_denominator(1000)
    draw, size = SystemSampler().laplace_share, math.prod(shape)
    parts = [draw(scale, 1, size) for _ in range(whole)] + ([draw(scale, 1 / rest, size)] if rest else [])
    return np.sum(parts, axis=0, dtype=np.int64).reshape(shape)


def _counts(of: Course, known: Fleet, rng: np.random.Generator, *, changed: bool) -> tuple[int, int, int]:
    """Warnings that came true and in vain, and failures without: clusters share their fate."""
    hinted, precision = of.size * known.failed * (CLAIMS.recall + of.margin), CLAIMS.precision + of.margin
    warned, in_vain = (_clustered(many, known, rng) for many in (hinted, hinted * (1 / precision - 1)))
    missed = _clustered(of.size * known.failed - hinted, known, rng)
    if changed and of.conduct == "inflated":
        in_vain = np.append(in_vain, _clustered(0.2 * hinted / precision, known, rng))
    if changed and of.conduct == "hidden":
        told, said = rng.random(len(warned)) < 0.5, rng.random(len(in_vain)) < 0.5
        missed, warned, in_vain = np.append(missed, warned[~told]), warned[told], in_vain[said]
    return int(warned.sum()), int(in_vain.sum()), int(missed.sum())


def _clustered(units: float, known: Fleet, rng: np.random.Generator) -> Ints:
    found: Ints = rng.choice(known.clusters, rng.poisson(units / known.clusters.mean()))
    return found


def detection(seed: int, runs: int) -> Figures:
    """Weeks until an alarm, since the provider is no longer honest."""
    found: Figures = {}
    kinds = [(share, 1.0, WINDOW_WEEKS) for share in SHARES]
    kinds += [(0.1, 2.0, WINDOW_WEEKS), (0.1, 1.0, 2 * WINDOW_WEEKS)]
    for share, size, weeks in kinds:
        for conduct in ("inflated", "hidden"):
            of = Course(HONEST_ROUNDS + MOST_ROUNDS, HONEST_ROUNDS, conduct, size * weeks / WINDOW_WEEKS)
            after = [_first_alarm(one, of.honest) for one in sums_of(of, share, runs, seed)]
            waits = weeks * np.array([MOST_ROUNDS + 1 if rounds is None else rounds for rounds in after])
            found[f"{conduct}, share {share:g}, {1000 * size:.0f} nodes, windows of {weeks} weeks"] = {
                "weeks_median": float(np.median(waits)),
                "weeks_95": float(np.quantile(waits, 0.95)),
                "within_26_weeks": round(float(np.mean(waits <= 26)), 3),
                "within_52_weeks": round(float(np.mean(waits <= 52)), 3),
            }
    return found


def _first_alarm(sums: Sequence[WarnedSum], honest: int) -> int | None:
    """In which round after the honest ones: 1 for the first, None for never."""
    later = course(sums)[honest:]
    return next((number for number, one in enumerate(later, 1) if one.alarm), None)


def false_alarms(seed: int, runs: int) -> Figures:
    """Rounds of honest providers that begin an alarm, over 50 years in quarters."""
    found: Figures = {}
    for share, margin in product(SHARES, (0.0, 0.03)):
        claimed, past, spoilt = 0, 0, 0
        for sums in sums_of(Course(4 * YEARS, 4 * YEARS, margin=margin), share, runs, seed):
            verdicts = course(sums)
            against_claim = [one.precision.below_claim or one.recall.below_claim for one in verdicts]
            against_past = [one.precision.below_past or one.recall.below_past for one in verdicts]
            claimed, past = claimed + _begun(against_claim), past + _begun(against_past)
            spoilt += any(against_claim) or any(against_past)
        found[f"share {share:g}, {100 * margin:.0f} points above its claims"] = {
            "honest_years": YEARS * runs,
            "below_claim_per_50_years": round(claimed / runs, 3),
            "below_past_per_50_years": round(past / runs, 3),
            "runs_of_50_years_without_any": round(1 - spoilt / runs, 3),
        }
    return found


def _begun(alarms: Sequence[bool]) -> int:
    return sum(now and not before for before, now in zip([False, *alarms], alarms, strict=False))


def own_hints(seed: int, runs: int) -> Figures:
    """What hints of today come to in `regional`, by window, beside the noise of a cell at a share of 0.1."""
    cloud: Cloud = build_cloud(load("regional"), np.random.default_rng(seed))
    year, weeks = begun(cloud), learning_weeks(cloud.scenario)[: 1 if runs < 10 else None]
    while len(year.plans) < len(weeks) and (later := with_next_round(year)) is not None:
        year = later
    world = world_of(trial_of(cloud, seed), len(weeks))
    told = watch(
        world, bundles_of(year, releases(year, EPSILON, SystemSampler()), weeks), cloud.leases.context[world.rows]
    )
    return {
        "hinted_leases_per_window": round(len(told.hints) / len(weeks), 1),
        "noise_sd": round(CellNoise("discrete_laplace", 10.0, fleet(seed).opened).variance ** 0.5, 1),
        "share_of_a_cluster": round(float((fleet(seed).clusters ** 2).sum() / fleet(seed).clusters.sum()), 2),
        "noise_opened": round(fleet(seed).opened, 3),
    }


PARTS = {one.__name__: one for one in (detection, false_alarms, own_hints)}


def run(seed: Seed = 300, only: Only = None, *, quick: Quick = False) -> Table:
    """Weeks until a dishonest provider is seen, and false alarms of honest ones, by the share of epsilon."""
    runs = {"detection": 400, "false_alarms": 60, "own_hints": 10}
    few = {"detection": 20, "false_alarms": 2, "own_hints": 1}
    return Table({name: PARTS[name](seed, (few if quick else runs)[name]) for name in chosen(only, PARTS)})
