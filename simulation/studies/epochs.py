"""Two years over a change of epoch: what is found with and without links between the tokens of both.

Each cloud is the `standard` scenario for 104 weeks under the provider's settings as shipped: two epochs of
four windows. Tokens change with the epoch. Contexts are renamed by the provider in both cases; workloads only where
tenants link them, and here all do. Releases, with their noise, are the same with and without.

`auroc`, `average_precision`, `found_share`   of the pairs of the current epoch's tokens, as in `study learning`
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.learning.findings import learn
from provider_server.fleet.learning.links import Names, renamed
from simulation.cloud.scenario import Scenario
from simulation.studies import attendance, learning
from simulation.studies.study import Quick, Seed, Seeds, Table, tracked


class EpochsRow(msgspec.Struct, frozen=True):
    """The findings after so many weeks; means over clouds."""

    linked: bool
    weeks: int
    clouds: int
    auroc: float
    average_precision: float
    found_share: float


class EpochsFigures(msgspec.Struct, frozen=True):
    """Of `study epochs`."""

    rows: tuple[EpochsRow, ...]


@dataclass(frozen=True)
class Seen:
    """The findings of one cloud after a round."""

    linked: bool
    weeks: int
    judged: learning.Judged
    planted: int


def scenario(*, quick: bool) -> Scenario:
    """Two epochs of the standard scenario under the settings as shipped."""
    one = learning.shipped(quick=quick)
    return msgspec.structs.replace(one, weeks=2 * one.windows[-1])


def seen(seeds: Sequence[int], *, quick: bool) -> Iterator[Seen]:
    """One after another: each cloud, from the last round of the first epoch on, without links and with them."""
    for seed in seeds:
        year = learning.live(scenario(quick=quick), seed)
        answers = attendance.present(year, 1.0, seed)
        noise = attendance.InsecureRepeatable(os.urandom(16))
        made = attendance.releases(year, attendance.failures_of(year), answers, noise)
        truth = learning.true_rates(year)
        (last,) = (at for at, one in enumerate(made[:-1]) if made[at + 1].plan.epoch > one.plan.epoch)
        for at in range(last, len(made)):
            plan = made[at].plan
            known = [lease for lease in year.leases if lease.start_h < plan.end_hour]
            for linked in (False, True):
                names = names_of(year, linked=linked) if plan.epoch else {}
                findings = learn(*renamed(made[: at + 1], known, names))
                judged = learning.judge(year, truth, findings, plan.epoch)
                yield Seen(linked, plan.end_hour // HOURS_PER_WEEK, judged, len(year.cloud.mismatched))


def names_of(year: learning.Year, *, linked: bool) -> Names:
    """The tokens of the first epoch by those of the second: of contexts, and of workloads if they are linked."""
    of = year.cloud.scenario
    names: dict[str, str] = {}
    for number in range(max(of.workloads, of.contexts)):
        for level in range(of.buildup_levels):
            workload, context = number % of.workloads, number % of.contexts
            before, now = (learning.labels_of(of, epoch, workload, context, level) for epoch in (0, 1))
            kinds = before.keys() if linked else ("context", "context_level")
            names |= {before[kind]: now[kind] for kind in kinds}
    return names


def summary(all_seen: Sequence[Seen]) -> EpochsFigures:
    """Means over clouds."""
    rows = []
    for weeks, linked in sorted({(one.weeks, one.linked) for one in all_seen}):
        own = [one for one in all_seen if (one.weeks, one.linked) == (weeks, linked)]
        rows.append(
            EpochsRow(
                linked,
                weeks,
                len(own),
                float(np.mean([one.judged.auroc for one in own])),
                float(np.mean([one.judged.average_precision for one in own])),
                sum(one.judged.true for one in own) / sum(one.planted for one in own),
            )
        )
    return EpochsFigures(tuple(rows))


def run(seed: Seed = 0, seeds: Seeds = 3, *, quick: Quick = False) -> Table:
    """Findings over a change of epoch, with and without links between the tokens of both epochs."""
    return Table(summary(tracked(seen(range(seed, seed + seeds), quick=quick), 10 * seeds, "findings")))
