"""How often a series is opened: the precision of findings, and how soon they are made, at equal epsilon.

Fewer openings are less noise in each total, and findings come later. Each cloud is a year of the `standard` scenario
under the provider's settings as shipped (a cohort of 10 among 200 tenants), opened each week, every fourth week, every
quarter, and at the weeks that provider.toml has; the clouds are the same, noise is fresh. A tenant that is away when a
series is opened counts its weeks in a later opening.

`auroc`, `average_precision`   how well the newest findings at the end of a week rank planted pairs
`found_share`                  share of the planted pairs that are called worse then
`weeks_to_find`                the mean over planted pairs of the first week after which findings call them worse, with
                               a year for those that are never found; findings are looked at after twelve of the weeks

Not promised: anything about clouds in which mismatches begin within the year; and as in `bench learning`, masks and
messages are left out.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import numpy as np

from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.learning.findings import learn
from provider_server.settings import PlanTable
from simulation.bench import attendance, learning
from simulation.cloud.scenario import Scenario, load

SHIPPED = PlanTable()
WAYS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "weekly": (),
        "every_four_weeks": tuple(range(4, 53, 4)),
        "quarterly": (13, 26, 39, 52),
        "shipped": SHIPPED.openings,
    }
)
WEEKS = (13, 26, 52)
LOOKS = frozenset({1, 4, 8, 12, 13, 20, 24, 26, 32, 39, 40, 52})  # what is learnt after every week takes hours
ANSWERING = (1.0, 0.9, 0.6)


class OpeningsRow(msgspec.Struct, frozen=True):
    """The newest findings after so many weeks, when this share of tenants answers each round; means over clouds."""

    way: str
    answering: float
    weeks: int
    clouds: int
    auroc: float
    average_precision: float
    found_share: float


class DelayRow(msgspec.Struct, frozen=True):
    """How soon planted pairs are found when everybody answers, and at which weeks a series is opened."""

    way: str
    openings: tuple[int, ...]
    clouds: int
    weeks_to_find: float


class OpeningsFigures(msgspec.Struct, frozen=True):
    """Of `bench openings`."""

    rows: tuple[OpeningsRow, ...]
    delays: tuple[DelayRow, ...]


@dataclass(frozen=True)
class Seen:
    """The findings of one cloud, opened in one way: judged by the week after which they were made."""

    way: str
    answering: float
    openings: tuple[int, ...]
    judged: Mapping[int, learning.Judged]
    found: Mapping[int, frozenset[tuple[int, int]]]
    planted: int

    def at(self, weeks: int) -> learning.Judged:
        """The newest ones after so many weeks."""
        return self.judged[max(week for week in self.judged if week <= weeks)]

    def weeks_to_find(self, last: int) -> float:
        """Mean over planted pairs of the week after which each was found first, `last` for those that were not."""
        first: dict[tuple[int, int], int] = {}
        for week in sorted(self.found):
            for pair in self.found[week]:
                first.setdefault(pair, week)
        return (sum(first.values()) + last * (self.planted - len(first))) / self.planted


def seen(clouds: int, ways: Sequence[str], *, quick: bool) -> Iterator[Seen]:
    """One after another: each cloud, opened in each of these ways, at each share of tenants that answer."""
    for seed in range(clouds):
        for way in ways:
            yield from _of_year(learning.live(shipped(WAYS[way], quick=quick), seed), way, seed)


def shipped(openings: tuple[int, ...], *, quick: bool) -> Scenario:
    """The standard scenario under the settings as shipped, but for the weeks of the openings."""
    scenario = learning.small(load("standard")) if quick else load("standard")
    settled = {name: getattr(SHIPPED, name) for name in ("epsilon", "delta", "cohort_minimum", "owners_minimum")}
    return msgspec.structs.replace(scenario, **settled, groups=SHIPPED.groups, openings=openings)


def _of_year(year: learning.Year, way: str, seed: int) -> Iterator[Seen]:
    truth, failures = learning.true_rates(year), attendance.failures_by_week(year)
    ends = [plan.end_hour // HOURS_PER_WEEK for plan in year.plans]
    for answering in ANSWERING:
        answers = attendance.present(year, answering, seed)
        noise = attendance.InsecureRepeatable(os.urandom(16))
        made = attendance.releases(year, failures, answers, noise)
        looks = {end for end in ends if end in LOOKS} if answering == 1.0 else {ends[-1]}
        judged, found = {}, {}
        for at, end in enumerate(ends):
            if end in looks | {ends[-1]}:
                known = [lease for lease in year.leases if lease.start_h < end * HOURS_PER_WEEK]
                findings = learn(made[: at + 1], known)
                judged[end] = learning.judge(year, truth, findings)
                found[end] = frozenset(learning.found_pairs(year, findings))
        openings = year.plans[0].series.openings if year.plans[0].series else ()
        yield Seen(way, answering, openings, judged, found, len(year.cloud.mismatched))


def summary(all_seen: Sequence[Seen]) -> OpeningsFigures:
    """Means over clouds."""
    last = max(max(one.judged) for one in all_seen)
    rows, delays = [], []
    for way in dict.fromkeys(one.way for one in all_seen):
        for answering in ANSWERING:
            own = [one for one in all_seen if (one.way, one.answering) == (way, answering)]
            weeks = sorted({*(week for week in WEEKS if week < last), last}) if answering == 1.0 else [last]
            rows += [_row(way, answering, week, own) for week in weeks]
        full = [one for one in all_seen if (one.way, one.answering) == (way, 1.0)]
        delay = float(np.mean([one.weeks_to_find(last) for one in full]))
        delays.append(DelayRow(way, full[0].openings, len(full), delay))
    return OpeningsFigures(tuple(rows), tuple(delays))


def _row(way: str, answering: float, weeks: int, own: Sequence[Seen]) -> OpeningsRow:
    judged = [one.at(weeks) for one in own]
    return OpeningsRow(
        way,
        answering,
        weeks,
        len(own),
        float(np.mean([one.auroc for one in judged])),
        float(np.mean([one.average_precision for one in judged])),
        sum(one.true for one in judged) / sum(one.planted for one in own),
    )


def lines(figures: OpeningsFigures) -> Iterator[str]:
    """For people."""
    for row in figures.rows:
        yield (
            f"{row.way}, {row.answering:.0%} answer, after {row.weeks} weeks: AUROC {row.auroc:.3f},"
            f" average precision {row.average_precision:.3f}, {row.found_share:.0%} found"
        )
    for one in figures.delays:
        yield f"{one.way}: {one.weeks_to_find:.1f} weeks until a planted pair is found"
