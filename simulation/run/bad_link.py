"""A small fabric with one bad link, and a week of three tenants' jobs of which some stall on it, for a tutorial.

    cables.txt ─ as ibnetdiscover prints it      ports.csv ─ counters of all ports over the week's last day
    tenant-N.stalls ─ a line for each job that stalled, in the words of `pharoah-tenant patterns vote`
    tenant-1.running ─ the lease of a job that runs now

The fabric has eight units of four nodes, two rails, a leaf for each unit and rail, and two spines a rail. The uplink of
`leaf-3-0` to `spine-2-0` is bad. Of the jobs with flows over that leaf's uplinks, nine of ten stall; one of
twenty-five others stalls for another reason. Ports that are well have errors too, two of them many. Jobs, times and
stalls are drawn with a seed, and made up: the tutorial's federation, its noise and its release are real.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from crypto.ids import LeaseId
from federation.protocol.plan import HOURS_PER_WEEK
from simulation.run.processes import Places, provider, tenant_names, workload
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Failure, Journal, Unit

UNITS, NODES, RAILS, SPINES = 8, 4, 2, 2
JOB_NODES = 4
FIRST_UPLINK = 33
BAD_UNIT, BAD_RAIL = 3, 0
NOISY_PORTS = {("leaf-1-1", "4"): 150, ("leaf-3-0", "34"): 190, ("leaf-4-0", "33"): 260}  # symbol errors an hour
STALLS, STALLS_ELSEWHERE = 0.9, 0.04
JOB_H, GAP_H = 4.0, 0.5
WORKLOADS = 3
COUNTER = "node_infiniband_symbol_error_total"
PROVIDER_TOML = """votes_share = 0.5

[telemetry]
fabric = ["{cables}"]

[leases]
contexts = {{ "n[1-32]" = "hall 1" }}
"""
POLICY_TOML = 'dimensions = ["workload", "context", "context_level", "band", "domain", "part"]\n'


@dataclass(frozen=True)
class Job:
    """One job of a tenant, on nodes of two units; `stalled` names two nodes and the rail."""

    tenant: int
    began_h: float
    nodes: tuple[str, ...]
    stalled: tuple[str, str, int] | None

    def lease(self, home: Path) -> LeaseId:
        """Its lease."""
        text = f"{home}/{self.began_h}/{self.nodes}"
        return LeaseId(hashlib.sha256(text.encode()).digest()[: LeaseId.length])


def settle(places: Places, later: Path, start_hour: int, now_h: float) -> None:
    """Asks for votes, lets tenants take part, and puts a week of jobs into the books and journals; files beside.

    `later` is where the folder of `places` will be moved to.
    """
    cables = places.root / "cables.txt"
    cables.write_text(ibnetdiscover())
    end_hour = start_hour + HOURS_PER_WEEK
    (places.root / "ports.csv").write_text("".join(counters(end_hour)))
    settings = places.provider / "provider.toml"
    settings.write_text(settings.read_text() + PROVIDER_TOML.format(cables=cables))
    for home in places.tenant_homes:
        policy = home / "policy.toml"
        policy.write_text(policy.read_text().partition("dimensions =")[0] + POLICY_TOML)
    running = Job(1, now_h - 1, tuple(node(unit, 0) for unit in range(1, JOB_NODES + 1)), None)
    places.tenant(1).with_suffix(".running").write_text(f"{running.lease(places.tenant(1))}\n")
    happen(places, [*week(places.tenants, start_hour), running])
    settings.write_text(settings.read_text().replace(str(cables), str(later / cables.name)))


# ---- the fabric ------------------------------------------------------------------------------------------------------


def node(unit: int, number: int) -> str:
    """A node by unit, from 1, and place, from 0."""
    return f"n{(unit - 1) * NODES + number + 1}"


def ibnetdiscover() -> str:
    """All cables, as infiniband-diags' ibnetdiscover prints them."""
    return "\n".join([*_leaves(), *_spines(), *_cards()])


def _leaf(unit: int, rail: int) -> tuple[str, str]:
    return f"S-{0x1000 + unit * 16 + rail:016x}", f"leaf-{unit}-{rail}"


def _spine(number: int, rail: int) -> tuple[str, str]:
    return f"S-{0x2000 + number * 16 + rail:016x}", f"spine-{number}-{rail}"


def _card(unit: int, number: int, rail: int) -> tuple[str, str]:
    return f"H-{0x3000 + (unit * NODES + number) * 16 + rail:016x}", f"{node(unit, number)} mlx5_{rail}"


def _units() -> range:
    return range(1, UNITS + 1)


def _leaves() -> Iterator[str]:
    for unit in _units():
        for rail in range(RAILS):
            yield _block("Switch", 41, *_leaf(unit, rail))
            yield from (_line(number + 1, *_card(unit, number, rail), 1) for number in range(NODES))
            yield from (_line(FIRST_UPLINK + at, *_spine(at + 1, rail), unit) for at in range(SPINES))


def _spines() -> Iterator[str]:
    for number in range(1, SPINES + 1):
        for rail in range(RAILS):
            yield _block("Switch", 41, *_spine(number, rail))
            yield from (_line(unit, *_leaf(unit, rail), FIRST_UPLINK + number - 1) for unit in _units())


def _cards() -> Iterator[str]:
    for unit in _units():
        for number in range(NODES):
            for rail in range(RAILS):
                yield _block("Ca", 1, *_card(unit, number, rail))
                yield _line(1, *_leaf(unit, rail), number + 1)


def _block(kind: str, ports: int, guid: str, name: str) -> str:
    return f'\n{kind}\t{ports} "{guid}"\t\t# "{name}"'


def _line(port: int, guid: str, name: str, far_port: int) -> str:
    return f'[{port}]\t"{guid}"[{far_port}]\t\t# "{name}" lid 1 4xNDR'


def counters(end_hour: int, hours: int = 24) -> Iterator[str]:
    """Symbol errors of every switch port over the hours before `end_hour`, as rows of telemetry."""
    drawn = random.Random(2)  # noqa: S311 - no secret
    yield "time_s,metric,instance,device,value\n"
    for hour in range(end_hour - hours, end_hour):
        for switch, port in _ports():
            rate = NOISY_PORTS.get((switch, port), drawn.choice((0, 0, 1, 3)))
            for quarter in range(4):
                value = rate * (hour - end_hour + hours + quarter / 4)
                yield f"{3600 * hour + 900 * quarter},{COUNTER},{switch},{port},{value:.0f}\n"


def _ports() -> Iterator[tuple[str, str]]:
    for rail in range(RAILS):
        for unit in _units():
            down = range(1, NODES + 1)
            yield from ((_leaf(unit, rail)[1], str(port)) for port in (*down, *_uplinks()))
        for number in range(1, SPINES + 1):
            yield from ((_spine(number, rail)[1], str(unit)) for unit in _units())


def _uplinks() -> range:
    return range(FIRST_UPLINK, FIRST_UPLINK + SPINES)


# ---- the week --------------------------------------------------------------------------------------------------------


def week(tenants: int, start_hour: int) -> Iterator[Job]:
    """Jobs of a node in each of four units, on all nodes at once, one after the other; a tenant's in turn."""
    drawn, turn = random.Random(1), 0  # noqa: S311 - no secret
    for slot in range(int(HOURS_PER_WEEK / (JOB_H + GAP_H))):
        for units in _places(drawn):
            nodes = tuple(node(*place) for place in units)
            yield Job(turn % tenants + 1, start_hour + slot * (JOB_H + GAP_H), nodes, _stall(drawn, units, nodes))
            turn += 1


def _places(drawn: random.Random) -> Iterator[list[tuple[int, int]]]:
    """All nodes, by units, in jobs of four of which no two are in one unit."""
    for number in range(NODES):
        units = list(_units())
        drawn.shuffle(units)
        for first in range(0, UNITS, JOB_NODES):
            yield [(unit, number) for unit in units[first : first + JOB_NODES]]


def _stall(drawn: random.Random, places: list[tuple[int, int]], nodes: tuple[str, ...]) -> tuple[str, str, int] | None:
    """Where a job stalls: between two neighbours, at the bad leaf or, of another cause, anywhere."""
    units = [unit for unit, _ in places]
    hit = BAD_UNIT in units and drawn.random() < STALLS
    if not hit and drawn.random() >= STALLS_ELSEWHERE:
        return None
    at = units.index(BAD_UNIT) if hit else drawn.randrange(JOB_NODES)
    neighbour = (at + drawn.choice((1, -1))) % JOB_NODES
    return nodes[at], nodes[neighbour], BAD_RAIL if hit else drawn.randrange(RAILS)


def happen(places: Places, jobs: list[Job]) -> None:
    """Leases by node names on the provider's books; jobs, and failures of those that stalled, in the journals."""
    names, events = tenant_names(places), places.root / "leases.jsonl"
    with events.open("w") as file:
        for number, home in enumerate(places.tenant_homes, start=1):
            own = [job for job in jobs if job.tenant == number]
            file.writelines(line for job in own for line in _events(job, home, names[home]))
            stalls = [line for job in own for line in _vote(job, home)]
            home.with_suffix(".stalls").write_text("".join(stalls))
            with closing(open_database(home / "tenant.db")) as connection:
                journal = Journal(connection)
                for at, job in enumerate(own):
                    _journal(journal, job, str(job.lease(home)), at)
    provider(places, "leases events", str(events))


def _journal(journal: Journal, job: Job, lease: str, at: int) -> None:
    ended_h = job.began_h + JOB_H - 1
    failed = [Failure(lease, ended_h, JOB_H - 1, "nccl_timeout_error")] if job.stalled else []
    journal.add([Unit(lease, job.began_h, {})], failed)
    journal.describe(lease, job.began_h * 3600, workload(at % WORKLOADS))


def _events(job: Job, home: Path, tenant: str) -> Iterator[str]:
    begin = {"event": "begin", "lease": str(job.lease(home)), "tenant": tenant, "node_names": job.nodes}
    until = _at(job.began_h + JOB_H)
    yield json.dumps(begin | {"at": _at(job.began_h), "until": until}) + "\n"


def _vote(job: Job, home: Path) -> Iterator[str]:
    if job.stalled:
        one, other, rail = job.stalled
        yield f"{job.lease(home)} {one} {other} --rail {rail} --at {job.began_h + JOB_H - 1:g}\n"


def _at(hour: float) -> str:
    return datetime.fromtimestamp(hour * 3600, UTC).isoformat()
