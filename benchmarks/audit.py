"""A statistical audit of the whole path, from a tenant's counts through masks and trustees to releases.

    python benchmarks/audit.py [--quick] [--series] [--json] [--seconds S] [--runs N]

Half of many job-weeks fail, by coin: each is a canary in cells of its own, in every marginal. The attacker is the
provider with every mask trustee but one and as many of the ten tenants as a row says; it sees single contributions and
all releases, and guesses which job-weeks failed by the likelihood ratio. What its guesses prove of epsilon is set
beside the claim, at the plan's own δ and at δ = 0.01, where counts alone prove much. Settings are those of a provider
and of tenants that set nothing; noise that is halved on purpose must be convicted.

A column `proved` is a lower bound: by counts alone, which holds whatever the law of the noise is, and by law, if it is
Gaussian. `at most` is an upper bound under the same law; for one contribution, the most by which any of 64 bits tells
the two apart. `finds`: noise of this part of its scale, or less, is convicted with probability .999. `power`: the
probability to convict what is to be convicted or, in an honest row, noise that is halved. Both are computed.

False convictions: fewer than 10^-6 of audits; with --quick, than 10^-10. Sources: `benchmarks.audit_bounds`. The exit
status is 1 if a verdict is not the one that is expected.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial, reduce
from operator import add
from typing import Any

from benchmarks.audit_bounds import Tally
from benchmarks.audit_cases import Case, OfOne, OfReleases, Row, Verdict
from benchmarks.audit_masks import (
    as_it_is,
    plus_order_two,
    seen_by_accomplices,
    seen_under_an_alias,
    seen_under_the_old_derivation,
    with_top_bit,
)
from benchmarks.audit_parties import DEFAULTS, Parties, default_settings, make_parties, make_plans
from federation.protocol.plan import Mechanism, Plan

RISK, QUICK_RISK = 1e-6, 1e-10
CONVICTED = Verdict.CONVICTED
GAUSSIAN, LAPLACE = Mechanism.DISCRETE_GAUSSIAN, Mechanism.DISCRETE_LAPLACE
HORIZON = DEFAULTS.horizon_weeks
SECONDS = 540.0
MEMBERS, ATTENDANCES = 30, ((30, 3), (20, 2), (10, 1))
SPELLINGS = {
    "the top bit set": with_top_bit,
    "plus the point of order two": plus_order_two,
    "the key as it is": as_it_is,
}
_FAST, _SMALL = 5 * 2**14, 2**12  # tables that are drawn by inversion, and by OpenDP


def cases(parties: Parties, *, quick: bool) -> list[Case]:
    """The lines of the report, in order."""
    return [
        *of_rounds(parties, quick=quick),
        *of_series(parties, quick=quick),
        *of_attendances(quick=quick),
    ]


def of_rounds(parties: Parties, *, quick: bool) -> list[Case]:
    """Rounds that belong to no series."""

    def case(setting: str, of: tuple[Sequence[Plan], int], runs: int, quick_runs: int, **rest: Any) -> Case:
        return OfReleases(setting, parties, *of, quick_runs if quick else runs, **rest)

    gaussian, small, laplace = (
        (make_plans(parties, default_settings(mechanism, 1), canaries), canaries)
        for mechanism, canaries in ((GAUSSIAN, _FAST), (GAUSSIAN, _SMALL), (LAPLACE, _SMALL))
    )
    halved = {"factor": 0.5, "expected": CONVICTED}
    return [
        case("one round, Gaussian", gaussian, 150, 1),
        case("  noise halved", gaussian, 260, 1, **halved),
        case("  two collude: 8 of 9 shares", gaussian, 100, 1, colluding=2),
        case("one round, Gaussian, small tables", small, 24, 0),
        case("  noise halved", small, 24, 0, **halved),
        case("one round, Laplace", laplace, 80, 3),
        case("  noise halved", laplace, 20, 3, **halved),
        case("  two collude: 8 of 9 shares", laplace, 240, 0, colluding=2, expected=CONVICTED),
    ]


def of_attendances(*, quick: bool) -> list[Case]:
    """One round of a federation of thirty, in layers, when some of them answer; a tenth of these collude."""
    parties = make_parties(MEMBERS)
    plans = make_plans(parties, default_settings(GAUSSIAN, 1), _FAST)
    found: list[Case] = []
    for answered, colluding in ATTENDANCES:
        here = parties.answering(answered), plans, _FAST
        setting = f"one round, {answered} of {MEMBERS} answer, {colluding} collude"
        found.append(OfReleases(setting, *here, 1 if quick else 60, colluding=colluding))
        found.append(OfReleases("  noise halved", *here, 2 if quick else 100, 0.5, colluding, CONVICTED))
    return found


def of_series(parties: Parties, *, quick: bool) -> list[Case]:
    """The default series, and single contributions to it."""
    plans = make_plans(parties, default_settings(GAUSSIAN, HORIZON), _FAST)
    releases = parties, plans, _FAST
    one = parties, plans[0], _FAST, 1 if quick else 16
    aliases = (
        OfOne(f"  alias: {name}", *one, partial(seen_under_an_alias, spelling=spelling))
        for name, spelling in SPELLINGS.items()
    )
    old = partial(seen_under_the_old_derivation, spelling=with_top_bit)
    return [
        OfReleases(f"series of {plans[0].horizon} rounds, as shipped", *releases, 1 if quick else 50),
        OfReleases("  nobody colludes", *releases, 0 if quick else 50, colluding=0),
        OfReleases("  noise halved", *releases, 1 if quick else 7, 0.5, expected=CONVICTED),
        OfOne("one contribution, no trustee colludes", *one, partial(seen_by_accomplices, accomplices=0)),
        OfOne("one contribution, 2 of 3 trustees collude", *one, partial(seen_by_accomplices, accomplices=2)),
        *aliases,
        OfOne("  alias, masks of the old derivation", *one, old, CONVICTED),
        OfOne("  3 of 3 trustees collude", *one, partial(seen_by_accomplices, accomplices=3), CONVICTED),
    ]


def audit(chosen: Sequence[Case], risk: float, seconds: float = math.inf, runs: int | None = None) -> list[Row]:
    """All rows. Each case has one run; of its other runs there are as many as fit into `seconds` of processor time."""
    chosen = [case for case in chosen if case.runs]
    wanted = [min(case.runs, runs or case.runs) for case in chosen]
    costs, tallies = [], []
    for case in chosen:
        began = time.process_time()
        tallies.append(_told(case, 1))
        costs.append(time.process_time() - began)
    rest = sum(cost * (many - 1) for cost, many in zip(costs, wanted, strict=True))
    part = min(1.0, max(0.0, seconds - sum(costs)) / rest) if rest else 0.0
    rows = []
    for case, tally, cost, many in zip(chosen, tallies, costs, wanted, strict=True):
        began, more = time.process_time(), int(part * (many - 1))
        total = reduce(add, (_told(case, 2 + run) for run in range(more)), tally)
        row = case.judged(total, risk / len(chosen))
        rows.append(replace(row, cpu_s=cost + time.process_time() - began))
    return rows


def _told(case: Case, run: int) -> Tally:
    print(f"audit: {case.setting.strip()}: run {run} …", file=sys.stderr)
    return case.run()


def table(rows: Sequence[Row]) -> str:
    """The report, as it is printed."""
    head = ("setting", "job-weeks", "claimed", "proved: counts", "law", "at most", "claimed at .01", "counts at .01")
    lines = [(*head, "finds", "power", "verdict", "CPU s"), *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    )


def _cells(row: Row) -> tuple[str, ...]:
    figures = (row.claimed, row.by_counts, row.by_law, row.at_most)
    at_audit = row.claimed_at_audit_delta, row.by_counts_at_audit_delta, row.finds
    power = "" if row.power is None else f"1 - {1 - row.power:.0e}"
    verdict = f"{row.verdict}, NOT {row.expected}" if is_wrong(row) else row.verdict
    numbers = ("" if figure is None else f"{figure:.3f}" for figure in (*figures, *at_audit))
    return row.setting, f"{row.canaries:,}", *numbers, power, verdict, f"{row.cpu_s:.1f}"


def is_wrong(row: Row) -> bool:
    """Whether another verdict was to be expected of so many job-weeks."""
    return row.verdict not in (row.expected, Verdict.UNDECIDED)


def main() -> int:
    """Prints the report; progress goes to stderr."""
    options = argparse.ArgumentParser(description="A statistical audit of the whole path.")
    options.add_argument("--quick", action="store_true", help="a few runs of the cases that few runs decide")
    options.add_argument("--series", action="store_true", help="only the series as shipped, and contributions to it")
    options.add_argument("--json", action="store_true", dest="as_json", help="one JSON object per row")
    options.add_argument("--seconds", type=float, default=SECONDS, help="of processor time (default: %(default)s)")
    options.add_argument("--runs", type=int, help="of each case at most")
    chosen = options.parse_args()
    risk = QUICK_RISK if chosen.quick else RISK
    which = of_series if chosen.series else cases
    rows = audit(which(make_parties(), quick=chosen.quick), risk, chosen.seconds, chosen.runs)
    print("\n".join(json.dumps(asdict(row)) for row in rows) if chosen.as_json else table(rows))
    return int(any(is_wrong(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
