"""Many real nodes through one SuperLink, a round every minute, some of them killed and started again all the time.

Each node is a process, `pharoah-tenant serve` with a home of its own, at the SuperLink of `pharoah-provider serve`:
over TLS, with its registered key, as all of them are programs that people would start. Everything is as shipped but
epsilon, which is so large that a count too many or too few stands out of the noise, and the minute between rounds.

While rounds are held, a node is killed (SIGKILL) every `kill_every_s`. Every second one is started again at once, the
others when the SuperLink has missed them. A last round is held with everybody.

`answers_missed`           of all nodes in all rounds: those that a release lacks; `answers_missed_by_the_living` are
                           those of nodes that were connected from the beginning of the round to its end
`weeks_lost`               of all nodes: weeks that no release counts after the last round
`inexact_releases`         releases of which a cell is more than eight standard deviations of its noise from the exact
                           count of those who answered, as their journals have it in the end
`missed_s_*`               from a kill until the SuperLink no longer lists the node as connected
`back_s_*`                 from the start of a killed node's process to its connection
`node_memory_bytes`        of one node, private and its share of what several processes share (PSS); median
`node_cpu_share`           CPU seconds per second of a node that was never killed; median
`provider_cpu_share`       the same of the provider

Not promised: that a machine bears more nodes than were asked for, or that its load is only theirs.
"""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypedDict

from federation.protocol.noise import SystemSampler
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.rounds import release as gate
from provider_server.rounds.release import Release
from provider_server.store.store import Store
from simulation.judge.exactness import differences, weeks_counted
from simulation.run.node_fleet import Death, Fleet, cpu_seconds, memory_bytes
from simulation.run.processes import (
    Places,
    ProgramFailed,
    Say,
    founded,
    happen,
    last_week,
    round_of,
    tenant_names,
    weeks_per_epoch,
)
from tenant_client.home import open_tenant

TRUSTEES, LEASES = 3, 2
EPSILON = 2000.0
SIGMAS = 8.0
STARTING_AT_ONCE = 6
ROUNDS_TOML = """
[rounds]
every = "manual"
join_s = 5.0
deadline_s = 40.0
retry_s = 0.5

[plan]
epsilon = {epsilon}
owners_minimum = 3
windows = {windows}
weeks_per_epoch = {weeks}
cohort_minimum = {cohort}
noise_shares = {shares}
"""
POLICY_TOML = "owners_minimum = 3\nepsilon_per_window = {epsilon}\ncohort_minimum = {cohort}\n"


class NodesFigures(TypedDict):
    """Of `bench nodes`; seconds of a round are of wall time."""

    nodes: int
    rounds_due: int
    rounds_completed: int
    round_s_median: float | None
    round_s_most: float | None
    kills: int
    answers_wanted: int
    answers_missed: int
    answers_missed_by_the_living: int
    weeks_lost: int
    inexact_releases: int
    missed_s_median: float | None
    missed_s_most: float | None
    back_s_median: float | None
    back_s_most: float | None
    node_memory_bytes: int
    node_cpu_share: float | None
    provider_memory_bytes: int
    provider_cpu_share: float


@dataclass(frozen=True)
class Held:
    """One round, from its beginning to its end."""

    round_id: str
    began_s: float
    ended_s: float


def nodes(root: Path, count: int, rounds: int, pace_s: float, kill_every_s: float, say: Say) -> NodesFigures:
    """Founds a federation of so many nodes below an empty root, holds the rounds, and stops everything."""
    places = Places(root, count, TRUSTEES)
    say(f"{count} tenants enrol")
    weeks = rounds + 1
    with founded(places, weeks):
        configure(places, weeks_per_epoch(weeks))
        starts = [last_week() - number * HOURS_PER_WEEK for number in reversed(range(weeks))]
        say("writing made-up jobs into the tenants' journals")
        happen(places, *starts, leases=LEASES)
        return measured(places, starts, pace_s, kill_every_s, say)


def measured(places: Places, starts: Sequence[int], pace_s: float, kill_every_s: float, say: Say) -> NodesFigures:
    """Holds a round over each of the weeks that begin then, the last one with everybody."""
    with ExitStack() as stack:
        fleet = Fleet(places, stack)
        fleet.start(*(home.name for home in places.trustee_homes))
        fleet.start("provider")
        todo = iter([home.name for home in places.tenant_homes])
        while some := list(islice(todo, STARTING_AT_ONCE)):
            fleet.start(*some)
            say(f"{some[-1]} is connected")
        before, began_s = _cpu_seconds(fleet), time.monotonic()
        with fleet.dying(kill_every_s):
            held = [*_hold(places, starts[:-1], pace_s, say)]
            load = _load(fleet, before, time.monotonic() - began_s)
        held += _hold(places, starts[-1:], 0.0, say)
    return _figures(fleet, len(starts), held, load)


def configure(places: Places, weeks: int) -> None:
    """Rounds of half of the nodes or more, without a wait for those who are away, and an epsilon that hides nothing."""
    cohort = max(4, places.tenants // 2)
    epoch = {"weeks": weeks, "windows": [*range(1, weeks + 1)]}
    told = {"epsilon": EPSILON, "cohort": cohort, "shares": max(2, cohort // 2), **epoch}
    file = places.provider / "provider.toml"
    file.write_text(file.read_text().partition("[rounds]")[0] + ROUNDS_TOML.format(**told))
    for home in places.tenant_homes:
        (home / "policy.toml").write_text(POLICY_TOML.format(**told))
        table = home / "tenant.toml"
        table.write_text(table.read_text().partition("[node]")[0])


def _hold(places: Places, starts: Sequence[int], pace_s: float, say: Say) -> Iterator[Held]:
    due_s = time.monotonic()
    for start_hour in starts:
        time.sleep(max(0.0, due_s - time.monotonic()))
        began_s = time.monotonic()
        try:
            told = round_of(places, start_hour)
            say(f"round of {told['contributors']} answers in {told['seconds']:.1f} s")
            yield Held(told["round_id"], began_s, time.monotonic())
        except ProgramFailed as error:
            say(f"no round: {error.what}")
        due_s += pace_s


# ---- the figures -----------------------------------------------------------------------------------------------------


class Load(TypedDict):
    """What nodes and provider took of the machine."""

    node_memory_bytes: int
    node_cpu_share: float | None
    provider_memory_bytes: int
    provider_cpu_share: float


def _load(fleet: Fleet, before: dict[int, float], seconds: float) -> Load:
    """Of the programs that run, CPU of those that have run all the time."""
    now = _cpu_seconds(fleet)
    running = {name: process.pid for name, process in fleet.programs.items() if process.pid in now}
    provider, tenants = running["provider"], [pid for name, pid in running.items() if name.startswith("tenant")]
    shares = [(now[pid] - before[pid]) / seconds for pid in tenants if pid in before]
    return {
        "node_memory_bytes": int(statistics.median(memory_bytes(pid) for pid in tenants)),
        "node_cpu_share": statistics.median(shares) if shares else None,
        "provider_memory_bytes": memory_bytes(provider),
        "provider_cpu_share": (now[provider] - before[provider]) / seconds,
    }


def _cpu_seconds(fleet: Fleet) -> dict[int, float]:
    """Of the programs that run, by process id."""
    seconds = {}
    for process in [*fleet.programs.values()]:
        if process.poll() is None:
            seconds[process.pid] = cpu_seconds(process.pid)
    return seconds


def _figures(fleet: Fleet, due: int, held: Sequence[Held], load: Load) -> NodesFigures:
    places, count = fleet.places, fleet.places.tenants
    with closing(Store(places.provider / "provider.db", create=False)) as store:
        releases = gate.releases_of(store)
    lasted = [one.ended_s - one.began_s for one in held]
    missed = [death.missed_s - death.killed_s for death in fleet.deaths if death.missed_s is not None]
    back = [death.back_s - death.started_s for death in fleet.deaths]
    return {
        "nodes": count,
        "rounds_due": due,
        "rounds_completed": len(releases),
        "round_s_median": statistics.median(lasted) if lasted else None,
        "round_s_most": max(lasted, default=None),
        "kills": len(fleet.deaths),
        "answers_wanted": count * len(releases),
        "answers_missed": sum(count - made.contributors for made in releases),
        "answers_missed_by_the_living": _missed_by_the_living(places, releases, held, fleet.deaths),
        **judged(places, releases),
        "missed_s_median": statistics.median(missed) if missed else None,
        "missed_s_most": max(missed, default=None),
        "back_s_median": statistics.median(back) if back else None,
        "back_s_most": max(back, default=None),
        **load,
    }


def _missed_by_the_living(
    places: Places, releases: Sequence[Release], held: Sequence[Held], deaths: Sequence[Death]
) -> int:
    """How many answers are not in a release although the node was connected all the time of its round."""
    when, names = {one.round_id: one for one in held}, tenant_names(places)
    missed = 0
    for release in releases:
        if (one := when.get(str(release.plan.round_id))) is not None:
            answered = {str(answer.tenant) for answer in release.answered}
            dead = {death.name for death in deaths if death.killed_s < one.ended_s and death.back_s > one.began_s}
            missed += sum(home.name not in dead and names[home] not in answered for home in places.tenant_homes)
    return missed


class Judged(TypedDict):
    """What the journals say of the releases."""

    weeks_lost: int
    inexact_releases: int


def judged(places: Places, releases: Sequence[Release]) -> Judged:
    """Holds the releases against the journals."""
    with ExitStack() as stack:
        tenants = [
            stack.enter_context(closing(open_tenant(home, (), os.urandom, SystemSampler())))
            for home in places.tenant_homes
        ]
        inexact = 0
        for release, own in differences(tenants, releases):
            sigmas = [table.noise_variance**0.5 for table in release.tables]
            inexact += any(bool((abs(one) > SIGMAS * sigma).any()) for one, sigma in zip(own, sigmas, strict=True))
        counted = weeks_counted(releases)
        weeks = set(range(releases[0].plan.start_hour // HOURS_PER_WEEK, releases[-1].plan.end_hour // HOURS_PER_WEEK))
        return {"weeks_lost": sum(len(weeks - counted[one.id]) for one in tenants), "inexact_releases": inexact}
