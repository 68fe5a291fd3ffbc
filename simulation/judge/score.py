"""Compares findings, with and without privacy, with the truth that only the simulation knows.

- With privacy the bundles that tenants got are judged; without, and at other budgets, those that they would have got.
- A pair is judged where its row covers one workload and the provider gave a verdict.
- A rate is judged per context, build-up level and age band, against the expected failures of the leases that ran there,
  so that the mix of workloads is part of the truth.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from typing import Any, TypedDict

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from federation.protocol.bundle import Bundle, MismatchEntry
from federation.protocol.life_table import PER_NODE_HOURS, Floats
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.privacy_cost import plan_loss
from provider_server.fleet.exposure import Slices
from provider_server.fleet.release import Release
from simulation.cloud.hardware import context_names, label
from simulation.judge.impact import impact, on_mismatch
from simulation.judge.side_by_side import learn_all
from simulation.judge.user_loop import Trial, learning_weeks, world_of
from simulation.run.engines import Engine
from simulation.run.play import Played

META_PER_1000_NODE_DAYS = 6.5  # Kokolis et al., "Revisiting Reliability in Large-Scale ML Research Clusters", 2024
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
_1970 = datetime(1970, 1, 1, tzinfo=UTC)


class MismatchScore(TypedDict):
    """How well mismatched pairs were found; null where there was nothing to compare."""

    auroc: float | None
    average_precision: float | None
    auroc_without_privacy: float | None
    average_precision_without_privacy: float | None


class HazardScore(TypedDict):
    """How well hazards by context were estimated."""

    mean_abs_log_rate_error: float
    mean_abs_log_rate_error_without_privacy: float
    interval_coverage: float


Span = TypedDict("Span", {"from": str, "to": str})


class Summary(Span):
    """An outcome without its detail; docs/simulation.md has the keys of `impact`."""

    scenario: str
    title: str
    changes: dict[str, Any]
    seed: int
    noise_seed: int | None
    version: str
    tenants: int
    job_weeks: int
    failures_per_1000_node_days: float
    rounds: int
    epsilon: float
    delta: float
    mechanism: str
    seconds: float
    bytes_per_tenant_round: float
    mismatch: MismatchScore
    hazard: HazardScore
    impact: dict[str, Any]


class Outcome(Summary):
    """A whole outcome (docs/simulation.md)."""

    detail: dict[str, Any]


@dataclass(frozen=True)
class TruthScore:
    """How a bundle compares with the truth; None where there was nothing to compare."""

    auroc: float | None
    average_precision: float | None
    mean_abs_log_rate_error: float
    interval_coverage: float


class Judge:
    """Knows the truth of one run."""

    def __init__(self, played: Played) -> None:
        self._played = played
        self._scenario = played.cloud.scenario
        self._workload_of_row = _workload_of_row(played)
        self._context_of, self._level_of = _readings(played)
        self._expected = _expected(played)
        self._true_rates = {key: events / hours for key, (events, hours) in self._expected.items() if hours > 0}

    def outcome(
        self,
        seed: int,
        began: float,
        engine: Engine,
        tell: Callable[[str], None],
        *,
        changes: Mapping[str, object],
        noise_seed: int | None,
    ) -> Outcome:
        """The whole outcome of a run that `began` at that monotonic time, JSON-compatible (docs/simulation.md).

        The `engine` learns what no tenant was told; `tell` hears how far it is. `changes` are those of the scenario.
        """
        played, scenario = self._played, self._scenario
        private, others = played.bundles[-1], self._learn(engine, tell)
        judged, judged_exact = self.judge(private), self.judge(others.exact)
        detail = self._detail(private, others, judged)
        gained = self._impact(seed, others)
        return {
            "scenario": scenario.name,
            "title": scenario.title,
            "changes": dict(changes),
            "seed": seed,
            "noise_seed": noise_seed,
            "version": metadata.version("pharoah"),
            "from": _date(played.start_hour),
            "to": _date(played.end_hour),
            "tenants": scenario.tenants,
            "job_weeks": played.job_weeks,
            "failures_per_1000_node_days": self._failures_per_1000_node_days(),
            "rounds": len(played.releases),
            "epsilon": scenario.epsilon,
            "delta": scenario.delta,
            "mechanism": played.releases[0].plan.mechanism.value,
            "seconds": round(time.monotonic() - began, 3),
            "bytes_per_tenant_round": round(played.bytes_per_tenant_round, 1),
            "mismatch": {
                "auroc": judged.auroc,
                "average_precision": judged.average_precision,
                "auroc_without_privacy": judged_exact.auroc,
                "average_precision_without_privacy": judged_exact.average_precision,
            },
            "hazard": {
                "mean_abs_log_rate_error": judged.mean_abs_log_rate_error,
                "mean_abs_log_rate_error_without_privacy": judged_exact.mean_abs_log_rate_error,
                "interval_coverage": judged.interval_coverage,
            },
            "impact": gained,
            "detail": detail,
        }

    def judge(self, bundle: Bundle) -> TruthScore:
        """Compares a bundle with the truth."""
        pairs = self._pairs(bundle)
        planted = [pair in self._played.cloud.mismatched for pair in pairs]
        scores = [entry.probability_worse for entry in pairs.values()]
        both = 0 < sum(planted) < len(planted)
        errors, covered = self._rate_errors(bundle)
        return TruthScore(
            float(roc_auc_score(planted, scores)) if both else None,
            float(average_precision_score(planted, scores)) if both else None,
            float(np.mean(errors)),
            float(np.mean(covered)),
        )

    def _failures_per_1000_node_days(self) -> float:
        """Expected infrastructure failures of all leases; a node has a lease while it works."""
        events, hours = np.sum(list(self._expected.values()), axis=0)
        return float(24_000 * events / hours)

    def _learn(self, engine: Engine, tell: Callable[[str], None]) -> "_Others":
        """Learns what no tenant was told; most of the judge's time."""
        played, exact = self._played, without_privacy(self._played)
        early, rng = len(learning_weeks(self._scenario)), np.random.default_rng(0)
        epsilons = [epsilon for epsilon in EPSILONS if epsilon != self._scenario.epsilon]
        noised = [self._noised(exact, epsilon, rng) for epsilon in epsilons]
        batches = [exact, *(exact[:many] for many in range(1, early + 1)), *noised]
        bundles = []
        leases = played.federation.provider.store.leases(played.start_hour, played.end_hour)
        for bundle in learn_all(engine, batches, leases):
            bundles.append(bundle)
            tell(f"learnt {len(bundles)} of {len(batches)} bundles for comparison")
        first, rest = bundles[0], bundles[1 + early :]
        return _Others(first, tuple(bundles[1 : 1 + early]), dict(zip(epsilons, rest, strict=True)))

    def _impact(self, seed: int, others: "_Others") -> dict[str, Any]:
        """What the bundles of those weeks were worth to the tenants, beside others and none (docs/simulation.md)."""
        played = self._played
        rows = {int(name.rpartition("-")[2]): lease.labels for name, lease in played.leases.items()}
        world = world_of(Trial(played.cloud, rows.__getitem__, self._context_of, self._level_of, seed))
        private = played.bundles[: len(learning_weeks(self._scenario))]
        return {
            **asdict(impact(world, private)),
            "on_mismatch_only": asdict(impact(world, private, on_mismatch)),
            "without_privacy": asdict(impact(world, others.early)),
            "without_pharoah": asdict(impact(world, [None] * len(private))),
        }

    def _pairs(self, bundle: Bundle) -> dict[tuple[int, int], MismatchEntry]:
        """Verdicts by (workload, context), for the rows that stand for one workload."""
        return {
            (self._workload_of_row[str(entry.workload)], self._context_of[str(entry.context)]): entry
            for entry in bundle.mismatches
            if str(entry.workload) in self._workload_of_row
        }

    def _rate_errors(self, bundle: Bundle) -> tuple[list[float], list[bool]]:
        errors, covered = [], []
        for entry in bundle.hazards:
            truth = PER_NODE_HOURS * self._true_rates[(*self._level_of[str(entry.context_level)], entry.band)]
            errors.append(abs(float(np.log(entry.rate) - np.log(truth))))
            covered.append(entry.rate_low <= truth <= entry.rate_high)
        return errors, covered

    def _detail(self, private: Bundle, others: "_Others", judged: TruthScore) -> dict[str, Any]:
        played, scenario = self._played, self._scenario
        return {
            "workloads": [profile.name for profile in played.cloud.workloads],
            "contexts": list(context_names(scenario.contexts)),
            "mismatch": self._pair_rows(private, others.exact),
            "hazard": self._rate_rows(private, others.exact),
            "budget": self._budget(),
            "group": self._group(),
            "error_by_epsilon": self._error_by_epsilon(judged, others),
            "stages": [
                {"stage": stage, "seconds": round(seconds, 4), "bytes": played.bytes_by_stage[stage]}
                for stage, seconds in played.seconds_by_stage.items()
            ],
        }

    def _pair_rows(self, private: Bundle, exact: Bundle) -> list[dict[str, Any]]:
        without = self._pairs(exact)
        return [
            {
                "workload": workload,
                "context": context,
                "planted": (workload, context) in self._played.cloud.mismatched,
                "judgement": entry.judgement.value,
                "probability": entry.probability_worse,
                "risk_ratio": entry.risk_ratio,
                "low": entry.risk_ratio_low,
                "high": entry.risk_ratio_high,
                "probability_without_privacy": without[workload, context].probability_worse,
            }
            for (workload, context), entry in sorted(self._pairs(private).items())
        ]

    def _rate_rows(self, private: Bundle, exact: Bundle) -> list[dict[str, Any]]:
        without = {(entry.context_level, entry.band): entry.rate for entry in exact.hazards}
        rows = []
        for entry in sorted(
            private.hazards, key=lambda entry: (self._level_of[str(entry.context_level)], int(entry.band))
        ):
            context, level = self._level_of[str(entry.context_level)]
            rows.append(
                {
                    "context": context,
                    "level": level,
                    "band": _band_name(self._scenario.age_band_edges_h, entry.band),
                    "rate": entry.rate,
                    "low": entry.rate_low,
                    "high": entry.rate_high,
                    "truth": PER_NODE_HOURS * self._true_rates[context, level, entry.band],
                    "rate_without_privacy": without[entry.context_level, entry.band],
                }
            )
        return rows

    def _budget(self) -> list[dict[str, float]]:
        ledger, limit = self._played.federation.tenants[0].ledger, self._scenario.epsilon
        start, weeks = self._played.start_hour, self._weeks
        return [
            {"week": week, "epsilon": ledger.spent(*window).at(self._scenario.delta), "limit": limit}
            for week in range(weeks)
            if (window := (start + week * HOURS_PER_WEEK, start + (week + 1) * HOURS_PER_WEEK))
        ]

    @property
    def _weeks(self) -> int:
        return (self._played.end_hour - self._played.start_hour) // HOURS_PER_WEEK

    def _group(self) -> list[dict[str, float]]:
        loss = plan_loss(self._played.releases[0].plan)
        windows = range(1, len(self._played.releases) + 1)
        return [{"windows": count, "epsilon": loss.of_group(count).at(self._scenario.delta)} for count in windows]

    def _error_by_epsilon(self, judged: TruthScore, others: "_Others") -> list[dict[str, float | None]]:
        """What other budgets would have given: the same counts, with fresh noise of the scale that they allow."""
        points = []
        for epsilon in EPSILONS:
            found = self.judge(others.by_epsilon[epsilon]) if epsilon in others.by_epsilon else judged
            points.append(
                {
                    "epsilon": epsilon,
                    "mean_abs_log_rate_error": found.mean_abs_log_rate_error,
                    "auroc": found.auroc,
                    "average_precision": found.average_precision,
                }
            )
        return points

    def _noised(self, exact: Sequence[Release], epsilon: float, rng: np.random.Generator) -> list[Release]:
        settings = replace(self._played.federation.provider.settings, epsilon=epsilon)
        pairs = zip(exact, self._played.releases, strict=True)
        return [_with_noise(one, made, settings.scales(), rng) for one, made in pairs]


@dataclass(frozen=True)
class _Others:
    """Bundles that nobody got: without privacy, after all weeks and at each of `learning_weeks`; at other budgets."""

    exact: Bundle
    early: tuple[Bundle, ...]
    by_epsilon: Mapping[float, Bundle]


def without_privacy(played: Played) -> list[Release]:
    """The releases as they would be without noise."""
    made = []
    for release, exact in zip(played.releases, played.exact, strict=True):
        pairs = zip(release.tables, exact, strict=True)
        tables = (table.without_privacy(np.asarray(counts, np.float64)) for table, counts in pairs)
        made.append(replace(release, tables=tuple(tables)))
    return made


def _with_noise(exact: Release, made: Release, scales: Sequence[float], rng: np.random.Generator) -> Release:
    """The exact tables under noise of other scales than those that were `made`."""
    tables = []
    for table, noisy, marginal, scale in zip(exact.tables, made.tables, made.plan.marginals, scales, strict=True):
        variance = noisy.noise_variance * (scale / marginal.noise_scale) ** 2
        events = table.events + np.round(rng.normal(0, np.sqrt(variance), table.shape))
        tables.append(replace(table, events=events, noise_variance=variance))
    return replace(exact, tables=tuple(tables))


def _workload_of_row(played: Played) -> dict[str, int]:
    """Sub-archetype tokens, each with the workload that it stands for."""
    found: dict[str, set[int]] = defaultdict(set)
    for lease_id, lease in played.leases.items():
        found[lease.labels["subarchetype"]].add(played.workload_of[lease_id])
    return {row: workloads.pop() for row, workloads in found.items() if len(workloads) == 1}


def _readings(played: Played) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """What the provider alone can read: the context behind each context token, context and level behind the other."""
    provider, scenario = played.federation.provider, played.cloud.scenario
    contexts, levels = {}, {}
    for hour in range(played.start_hour, played.end_hour, HOURS_PER_WEEK):
        for context in range(scenario.contexts):
            for level in range(scenario.buildup_levels):
                labels = provider.context_labels(hour, label(context), level)
                contexts[labels["context"]] = context
                levels[labels["context_level"]] = (context, level)
    return contexts, levels


def _expected(played: Played) -> Mapping[tuple[int, int, str], Floats]:
    """Expected infrastructure failures, and node-hours, by context, level and band, of the leases that ran."""
    hazard = played.cloud.hazard
    edges = played.federation.provider.settings.band_edges_hours
    own = {lease.lease: (played.workload_of[name], *played.place_of[name]) for name, lease in played.leases.items()}
    slices = Slices.of(list(played.leases.values()), played.start_hour, played.end_hour, edges)
    workload, context, level = np.array([own[lease.lease] for lease in slices.leases]).T
    expected = slices.node_hours * hazard.per_node_hour(workload, context, level)[:, None] * np.array(hazard.band)
    totals: dict[tuple[int, int, str], Floats] = defaultdict(lambda: np.zeros(2))
    for row, (place, levels) in enumerate(zip(context, level, strict=True)):
        for band in range(expected.shape[1]):
            totals[int(place), int(levels), str(band)] += (expected[row, band], slices.node_hours[row, band])
    return totals


def _date(hour: int) -> str:
    return f"{_1970 + timedelta(hours=hour):%Y-%m-%d}"


def _band_name(edges: Sequence[float], band: str) -> str:
    number = int(band)
    return f"{edges[number]:g}–{edges[number + 1]:g} h" if number + 1 < len(edges) else f"> {edges[number]:g} h"
