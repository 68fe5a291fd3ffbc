"""The bound of what releases tell of a pair: an oracle that knows the cloud, the planted factor and the noise.

Of each unit, a lease in a window, it knows how many infrastructure failures to expect, and so the probability that one
counts; of the released sums, the exact law of their noise. What it does not know is which pairs are planted. It ranks
pairs by the likelihood ratio of the sum of their released counts.

Not promised where leases differ more than their hazards say (`lease_frailty`), or where tenants misreport.
"""

from collections.abc import Sequence

import numpy as np

from federation.protocol.noise import opened_shares
from provider_server.fleet.release import Release
from simulation.cloud.profiles import Floats
from simulation.studies.learning import Year

GRID = 4096  # sums from -GRID/2 up to GRID/2: many times what a pair of a scenario counts in a year
TURNED = np.exp(2j * np.pi * np.fft.fftfreq(GRID))
STEP = TURNED - 1.0
RARE, TERMS = 0.1, 12  # the series is within 1e-10 of units that count so seldom


def log_likelihood_ratios(year: Year, releases: Sequence[Release], pairs: Sequence[tuple[int, int]]) -> Floats:
    """Of each pair (P,), numbers of workload and context: that it fails by the planted factor, over as expected.

    `releases` are the first of the year, of discrete Laplace noise.
    """
    expected, noise, factor = _expected(year, len(releases)), _noise(releases), year.cloud.scenario.mismatch_factor
    ratios = []
    for workload, context in pairs:
        total, units = 0.0, [np.zeros(0)]
        for one, of_pair in zip(releases, expected, strict=True):
            table, row = one.table("pairs"), f"workload {workload}"
            if row in table.levels("workload"):  # else what it counts is in a coarser row
                cell = table.levels("workload").index(row), table.levels("context").index(f"context {context}")
                total += float(table.events[cell])
                units.append(of_pair.get((workload, context), np.zeros(0)))
        worse, as_expected = (_law(ratio * np.concatenate(units), noise)[round(total)] for ratio in (factor, 1.0))
        ratios.append(np.log(worse / as_expected))
    return np.array(ratios)


def _expected(year: Year, windows: int) -> list[dict[tuple[int, int], Floats]]:
    """Window by window, how many failures to expect of each unit of a pair that is not planted."""
    rows, hazard, found = year.cloud.leases, year.cloud.hazard, []
    for slices in year.slices[:windows]:
        own = np.array([int.from_bytes(lease.lease, "big") for lease in slices.leases])
        workload, context = rows.workload[own], rows.context[own]
        rate = hazard.per_node_hour(workload, context, rows.level[own]) / hazard.mismatch[workload, context]
        failures = rate * (slices.node_hours @ hazard.band)
        kinds, of_unit = np.unique(np.stack([workload, context]), axis=1, return_inverse=True)
        parts = np.split(failures[np.argsort(of_unit, kind="stable")], np.cumsum(np.bincount(of_unit))[:-1])
        found.append({(int(one), int(other)): part for (one, other), part in zip(kinds.T, parts, strict=True)})
    return found


def _noise(releases: Sequence[Release]) -> Floats:
    """The characteristic function of the noise of all releases together, (GRID,)."""
    log_total = np.zeros(GRID)
    for one in releases:
        scale = next(marginal.noise_scale for marginal in one.plan.marginals if marginal.name == "pairs")
        success, shares = np.exp(-1.0 / scale), opened_shares(one.plan, one.contributors, one.smallest_group)
        log_total += 2.0 * shares * np.log((1.0 - success) / np.abs(1.0 - success * TURNED))
    return np.asarray(np.exp(log_total), np.float64)


def _law(failures: Floats, noise: Floats) -> Floats:
    """The probability of each released sum mod `GRID`, where units (n,) expect so many failures and count one each."""
    counts = -np.expm1(-failures)
    rare, log_count = counts[counts <= RARE], np.zeros(GRID, np.complex128)
    for power in range(1, TERMS + 1):  # of log(1 + count × step), whose sum over many units this is
        log_count -= (-STEP) ** power * float((rare**power).sum()) / power
    for count in counts[counts > RARE]:
        log_count += np.log1p(count * STEP)
    law = np.fft.fft(np.exp(log_count) * noise).real / GRID
    return np.asarray(np.maximum(law, np.finfo(float).tiny), np.float64)
