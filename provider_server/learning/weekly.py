"""The counts of each release's own week, with exposure and the exact variance of the noise.

A release of a series holds the running total R_t. Its own week is R_t - R_(t-1), and the noise of that difference is
not the difference of the noises: both totals are decoded from the same openings (`crypto.continual_counting`), so the
noise of the week is the sum of g_s Z_s, with g_s the change of what opening s adds to the total. Where every opening
carries the weeks before it, the g are the coefficients of the root of (1 - x): 1, -1/2, -1/8, ..., and the variance of
a long series is 4/pi times that of one fresh noise. A cell born at position p has no noise from before p. An opening
that does not carry holds its week alone, under its own noise and no other.

The noises of different weeks are correlated, neighbours by about -0.4, so sums over weeks are much more precise than
single weeks (`span_tables`, `noise_covariance`). A release without a series covers one week already.

Not promised: that the noise of a week is independent of a model learnt from earlier totals. A model that has fitted the
noise of R_(t-1) is judged slightly too severely by week t.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from crypto.continual_counting import WEIGHT_ONE

from crypto import continual_counting
from federation.protocol import life_table
from federation.protocol.causes import Domain
from federation.protocol.life_table import Floats, LifeTable
from federation.protocol.plan import Plan
from provider_server.analysis.drift import Watched
from provider_server.analysis.prediction import Prediction, mean_risk, predict
from provider_server.fleet.exposure import OF_FAILURE, Slices
from provider_server.fleet.leases import Lease
from provider_server.rounds.release import Release


def week_tables(release: Release, earlier: Sequence[Release] = ()) -> tuple[LifeTable, ...]:
    """Tables of the release's own week, one per marginal in the order of its plan.

    `earlier` are the releases before it, oldest first; those of other series are passed over.
    """
    weeks = [*_of_its_series(release, earlier), release]
    return span_tables(weeks, len(weeks) - 1)


def span_tables(weeks: Sequence[Release], first: int) -> tuple[LifeTable, ...]:
    """What a series counted in its releases from position `first` to the last; `weeks` are all so far, oldest first."""
    last = weeks[-1]
    steps = _steps([made.carries for made in weeks], first)
    births = _split(last.plan, life_table.births([made.plan.tables for made in weeks]))
    tables = []
    for number, now in enumerate(last.tables):
        terms = steps**2 * [_fresh_variance(made, number) for made in weeks]
        variance = np.cumsum(terms[::-1])[::-1][births[number]]  # sums over the openings since each cell's birth
        before = LifeTable.zeros(now.dimensions)
        if first:
            before = weeks[first - 1].tables[number].aligned(now.dimensions)
        tables.append(
            LifeTable(
                now.dimensions,
                now.events - before.events,
                now.exposure_node_hours - before.exposure_node_hours,
                now.at_risk - before.at_risk,
                variance,
            )
        )
    return tuple(tables)


def infrastructure(plan: Plan, tables: Sequence[LifeTable]) -> tuple[LifeTable, ...]:
    """Of `tables`, in the order of the plan, those that count infrastructure failures by lease; of these alone."""
    found = []
    for marginal, table in zip(plan.marginals, tables, strict=True):
        if "domain" in table.names and not marginal.domains:
            found.append(table.at("domain", Domain.INFRASTRUCTURE))
        elif marginal.domains == (Domain.INFRASTRUCTURE,) and not set(OF_FAILURE) & set(table.names):
            found.append(table)
    return tuple(found)


def predict_week(
    rates: Mapping[tuple[str, str], float],
    risks: Mapping[tuple[str, str], float],
    release: Release,
    leases: Sequence[Lease],
    mix: Mapping[str, float] | None = None,
) -> Prediction:
    """The counts that `rates` and `risks` predict for a release's job-weeks; see `analysis.prediction.predict`."""
    return predict(rates, risks, _slices(release, leases), release.plan.failures_per_unit, mix or {})


def mean_risks(
    risks: Mapping[tuple[str, str], float], releases: Sequence[Release], leases: Sequence[Lease]
) -> dict[str, float]:
    """The mean risk, by node-hours, of what ran at each context level in the weeks of `releases`: their `mix`."""
    return mean_risk(risks, [_slices(made, leases) for made in releases])


def _slices(release: Release, leases: Sequence[Lease]) -> Slices:
    first = release.first_hour
    return release.slices([lease for lease in leases if lease.start_h < release.plan.end_hour and lease.end_h > first])


# ---- what is watched -------------------------------------------------------------------------------------------------


def watched(releases: Sequence[Release], predictions: Sequence[Prediction], log_sd: float = 0.0) -> tuple[Watched, ...]:
    """Counts week by week beside what was predicted: in total, by context, and by workload row.

    `releases` are all so far, oldest first, and `predictions` holds one for each, by the model in force at that time;
    `log_sd` is by how much its log rates may have been off all along. Contexts and the total are counted in the hazard
    table, whose rows are fewer than those of the pairs.
    """
    weeks = [dict(_named(made, week_tables(made, releases[:at]))) for at, made in enumerate(releases)]
    labels = [lease.labels for one in predictions for lease in one.leases]
    context_of = {own["context_level"]: f"context {own['context']}" for own in labels}
    rows = {level for week in weeks for level in week["pairs"].levels("workload")}
    found: list[Watched] = []
    for name, dimension, groups in (
        ("hazard", "context_level", dict.fromkeys(context_of, "total")),
        ("hazard", "context_level", context_of),
        ("pairs", "workload", {level: f"workload {level}" for level in rows}),
    ):
        tables = [week[name] for week in weeks]
        noises = [_marginal_noise(made, name) for made in releases]
        sums = [_by_group(table, one, dimension, groups) for table, one in zip(tables, predictions, strict=True)]
        for group in sorted(set(groups.values())):
            counted, predicted, variance, cells = np.array([week.get(group, np.zeros(4)) for week in sums]).T
            covariance = noise_covariance(releases, np.asarray(noises) * cells)
            hours = tuple(made.plan.start_hour for made in releases)
            found.append(Watched(group, hours, counted, predicted, variance, covariance, log_sd))
    return tuple(found)


def noise_covariance(releases: Sequence[Release], variances: Floats) -> Floats:
    """Covariance (weeks, weeks) of the noise of what each week says alone, summed over some cells.

    `variances` (weeks,) are those of the fresh noise of each release, times the number of those cells that it has. A
    cell that is born later has no noise before, so numbers of cells are all that is asked.
    """
    steps = _week_steps(releases)
    return np.asarray((steps * variances) @ steps.T, np.float64)


def _week_steps(releases: Sequence[Release]) -> Floats:
    """What each opening (columns) adds to what each week (rows) says alone."""
    steps = np.zeros((len(releases), len(releases)))
    for at, made in enumerate(releases):
        own = [place for place in range(at) if _same_series(releases[place], made)] + [at]
        steps[at, own] = _steps([releases[place].carries for place in own], len(own) - 1)
    return steps


def cell_covariance(releases: Sequence[Release], name: str) -> Floats:
    """The same for each cell of one marginal, as in the last release: (cells, weeks, weeks); infrastructure alone."""
    (table,) = (table for marginal, table in _named(releases[-1], releases[-1].tables) if marginal == name)
    fresh = np.array([_marginal_noise(made, name) for made in releases])
    has = []
    for made in releases:
        (own,) = (own for marginal, own in _named(made, made.plan.tables) if marginal == name)
        has.append(replace(own, at_risk=np.ones(own.shape)).aligned(table.dimensions).at_risk.ravel())
    steps = _week_steps(releases)
    found = np.einsum("ts,sc,us->ctu", steps, np.stack(has) * fresh[:, None], steps, optimize=True)
    return np.asarray(found, np.float64)


def _by_group(table: LifeTable, predicted: Prediction, dimension: str, groups: Mapping[str, str]) -> dict[str, Floats]:
    """By group of levels: failures counted, failures predicted, the variance of these, and the number of cells."""
    counted, expected = table.marginal(dimension).events, predicted.along(table, dimension)
    cells = np.full(len(counted), table.events.size / len(counted))
    columns = np.stack([counted, expected.mean, expected.variance, cells], axis=1)
    sums: dict[str, Floats] = {}
    for level, numbers in zip(table.levels(dimension), columns, strict=True):
        if level in groups:
            sums[groups[level]] = sums.get(groups[level], np.zeros(4)) + numbers
    return sums


# ---- within a series -------------------------------------------------------------------------------------------------


def _of_its_series(release: Release, earlier: Iterable[Release]) -> list[Release]:
    return [made for made in earlier if _same_series(made, release)]


def _same_series(one: Release, other: Release) -> bool:
    series = one.plan.series
    return series is not None and other.plan.series is not None and series.name == other.plan.series.name


def _steps(carries: Sequence[bool], first: int) -> Floats:
    """What each opening adds to the counts from position `first` on, in counts per count: (weeks,)."""
    steps = WEIGHT_ONE * continual_counting.decoding(tuple(carries))
    if first:
        steps[:first] -= WEIGHT_ONE * continual_counting.decoding(tuple(carries[:first]))
    return steps


def _fresh_variance(made: Release, number: int) -> float:
    """Of the noise that one release added to each cell of a table; none where it holds exact counts, as in a trial."""
    return made.fresh_variances[number] * bool(made.tables[number].noise_variance.any())


def _marginal_noise(made: Release, name: str) -> float:
    return _fresh_variance(made, [marginal.name for marginal in made.plan.marginals].index(name))


def _named(made: Release, tables: Sequence[LifeTable]) -> Iterable[tuple[str, LifeTable]]:
    for marginal, table in zip(made.plan.marginals, tables, strict=True):
        yield marginal.name, table.at("domain", Domain.INFRASTRUCTURE) if "domain" in table.names else table


def _split(plan: Plan, births: life_table.Births) -> list[life_table.Births]:
    ends = np.cumsum([table.events.size for table in plan.tables])[:-1]
    return [part.reshape(table.shape) for part, table in zip(np.split(births, ends), plan.tables, strict=True)]
