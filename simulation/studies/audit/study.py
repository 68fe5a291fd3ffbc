"""A statistical audit of the whole path, from a tenant's counts through masks and trustees to releases.

Neighbours differ in a unit, a lease in a window. Half of many units fail, by coin, in each window of a year: each is a
canary in cells of its own, in every marginal. The attacker is the provider with every mask trustee but one and as many
of the ten tenants as a row says; it sees single contributions and all releases, and guesses which units failed by the
likelihood ratio. What its guesses prove of epsilon is set beside the claim, at the plan's own δ and at δ = 0.01.
Settings are those of a provider and of tenants that set nothing, and as many collude as noise is over-provisioned for;
noise that is a fifth narrower must be convicted.

A column `proved` is a lower bound: by counts alone, which holds whatever the law of the noise is, and by law, if it is
Gaussian. `at most` is an upper bound under the same law; for one contribution, the most by which any of 64 bits tells
the two apart. `finds`: noise of this part of its scale, or less, is convicted with probability .999. `power`: the
probability to convict what is to be convicted or, in an honest row, noise that is halved. Both are computed.

False convictions: fewer than 10^-6 of audits; with --quick, than 10^-10. Sources: `audit.bounds`. The exit status is 1
if a verdict is not the one that is expected.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import Annotated

import typer

from federation.base.screen import say
from federation.protocol.plan import Mechanism
from simulation.studies.audit.bounds import Tally
from simulation.studies.audit.cases import Case, OfOne, OfReleases, Row, Verdict
from simulation.studies.audit.masks import (
    as_it_is,
    plus_order_two,
    seen_by_accomplices,
    seen_under_an_alias,
    seen_under_the_old_derivation,
    with_top_bit,
)
from simulation.studies.audit.parties import Parties, default_settings, make_parties, make_plans
from simulation.studies.study import Quick, Table

RISK, QUICK_RISK = 1e-6, 1e-10
CONVICTED = Verdict.CONVICTED
GAUSSIAN, LAPLACE = Mechanism.DISCRETE_GAUSSIAN, Mechanism.DISCRETE_LAPLACE
SECONDS = 540.0
MEMBERS, ATTENDANCES = 30, ((30, 15), (20, 10), (10, 5))
NARROWER = 0.8
SPELLINGS = {
    "the top bit set": with_top_bit,
    "plus the point of order two": plus_order_two,
    "the key as it is": as_it_is,
}
_CELLS, _OF_ONE = 2**15, 5 * 2**14


def cases(parties: Parties, *, quick: bool) -> list[Case]:
    """The lines of the report, in order."""
    return [
        *of_epoch(parties, quick=quick),
        *of_contributions(parties, quick=quick),
        *of_attendances(quick=quick),
        *of_gaussian(parties, quick=quick),
    ]


def of_epoch(parties: Parties, *, quick: bool) -> list[Case]:
    """All windows of an epoch, as shipped."""
    of = parties, make_plans(parties, default_settings(LAPLACE), _CELLS), _CELLS
    setting = f"{len(of[1])} windows of an epoch, as shipped; half collude"
    return [
        OfReleases(setting, *of, 2 if quick else 20, colluding=5),
        OfReleases("  one of ten colludes", *of, 0 if quick else 5),
        OfReleases("  noise a fifth narrower", *of, 3 if quick else 8, NARROWER, 5, CONVICTED),
    ]


def of_gaussian(parties: Parties, *, quick: bool) -> list[Case]:
    """One round under Gaussian noise."""
    of = parties, make_plans(parties, default_settings(GAUSSIAN), _OF_ONE)[:1], _OF_ONE
    return [
        OfReleases("one round, Gaussian; half collude", *of, 1 if quick else 50, colluding=5),
        OfReleases("  noise halved", *of, 2 if quick else 50, 0.5, 5, CONVICTED),
    ]


def of_attendances(*, quick: bool) -> list[Case]:
    """One round of a federation of thirty, in layers, when some of them answer; half of these collude."""
    parties = make_parties(MEMBERS)
    plans = make_plans(parties, default_settings(LAPLACE), _OF_ONE)[:1]
    found: list[Case] = []
    for answered, colluding in ATTENDANCES:
        here = parties.answering(answered), plans, _OF_ONE
        setting = f"one round, {answered} of {MEMBERS} answer, {colluding} collude"
        found.append(OfReleases(setting, *here, 1 if quick else 10, colluding=colluding))
        found.append(OfReleases("  noise a fifth narrower", *here, 4 if quick else 10, NARROWER, colluding, CONVICTED))
    return found


def of_contributions(parties: Parties, *, quick: bool) -> list[Case]:
    """Single contributions."""
    plan = make_plans(parties, default_settings(LAPLACE), _OF_ONE)[0]
    one = parties, plan, _OF_ONE, 1 if quick else 16
    aliases = (
        OfOne(f"  alias: {name}", *one, partial(seen_under_an_alias, spelling=spelling))
        for name, spelling in SPELLINGS.items()
    )
    old = partial(seen_under_the_old_derivation, spelling=with_top_bit)
    return [
        OfOne("one contribution, no trustee colludes", *one, partial(seen_by_accomplices, accomplices=0)),
        OfOne("one contribution, 2 of 3 trustees collude", *one, partial(seen_by_accomplices, accomplices=2)),
        *aliases,
        OfOne("  alias, masks of the old derivation", *one, old, CONVICTED),
        OfOne("  3 of 3 trustees collude", *one, partial(seen_by_accomplices, accomplices=3), CONVICTED),
    ]


def audit(chosen: Sequence[Case], risk: float, seconds: float = math.inf) -> list[Row]:
    """All rows. Each case has one run; of its other runs there are as many as fit into `seconds` of processor time."""
    chosen = [case for case in chosen if case.runs]
    wanted = [case.runs for case in chosen]
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
    say(f"{case.setting.strip()}: run {run} …")
    return case.run()


def is_wrong(row: Row) -> bool:
    """Whether another verdict was to be expected of so many units."""
    return row.verdict not in (row.expected, Verdict.UNDECIDED)


def run(
    seconds: Annotated[float, typer.Option(min=0, help="Of processor time.")] = SECONDS,
    *,
    epoch: Annotated[bool, typer.Option("--epoch", help="Only the windows of an epoch, as shipped.")] = False,
    quick: Quick = False,
) -> Table:
    """A statistical audit of the whole path: lower bounds on epsilon. It fails where a verdict is not the expected."""
    which, risk = of_epoch if epoch else cases, QUICK_RISK if quick else RISK
    rows = audit(which(make_parties(), quick=quick), risk, seconds)
    return Table(rows, failed=any(map(is_wrong, rows)))
