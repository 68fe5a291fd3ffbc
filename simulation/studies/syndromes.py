"""The four syndromes on real jobs: faults injected on schedule, and clean runs with every legitimate pause.

Each job trains over Gloo on 2 to 4 ranks, with steps of .05 to 3 s, with DDP or with collectives of its own, each rank
in a network namespace with a link of its own (`unshare`, `ip`, `tc`; without them link faults are left out). What is
right, written down before any run:

| injected | right syndrome | right rank |
|---|---|---|
| `stop` (SIGSTOP), `sleep` before the averaging of gradients | non-communication hang | the rank |
| `slow`, `hog`: a rank sleeps or computes a usual step longer in each step | non-communication slow | the rank |
| `mismatch`, `skip`: another call, unless Gloo refuses it | communication hang | the rank, of 3 or more ranks |
| `stalled_link`: the rank's link carries nothing | communication hang | the rank, or the link's two ends |
| `throttled_link`: it carries little | communication slow | the rank, or the link's two ends |
| `checkpoint`, `evaluation`, `compilation`, stalls of data | nothing, or `undecided` | – |

Seconds count from the onset that the rank notes to the first verdict that is not `undecided`. An alarm is any other
verdict but `undecided`; one while a fault lasts, or until 10 s after it, is the fault's. `starved` is the share of
looks on a host with so little processor time that slowness is never called: such hours prove little.
"""

import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from errno import ENOENT
from pathlib import Path
from typing import Annotated, Any

import typer

from federation.base.screen import say
from simulation.studies.study import ROOT, Only, Seed, Table, chosen, tracked
from tenant_client.doctor.run.run_directory import RUN_DIR
from tenant_client.doctor.run.syndromes.process import pressure_percent
from tenant_client.doctor.run.syndromes.views import Syndrome, Verdict
from tenant_client.doctor.run.syndromes.watch import STARVED_PERCENT, Syndromes

JOB = Path(__file__).with_name("syndromes_job.py")
AUTOLOAD = ROOT / "tenant_client" / "doctor" / "run" / "hook" / "autoload"
RIGHT = {
    "stop": Syndrome.NON_COMMUNICATION_HANG,
    "sleep": Syndrome.NON_COMMUNICATION_HANG,
    "slow": Syndrome.NON_COMMUNICATION_SLOW,
    "hog": Syndrome.NON_COMMUNICATION_SLOW,
    "mismatch": Syndrome.MISMATCHED_COLLECTIVE,
    "skip": Syndrome.MISMATCHED_COLLECTIVE,
    "stalled_link": Syndrome.COMMUNICATION_HANG,
    "throttled_link": Syndrome.COMMUNICATION_SLOW,
}
LINKS = ("stalled_link", "throttled_link")
LAST = ("mismatch", "skip")  # nothing comes after them
PAUSES = ("checkpoint", "evaluation", "compilation", "stall_of_loader", "stall_of_feed", "stall_of_all")
FIRST_STEPS = 5
GRADIENT_KBIT = 500  # of a step, by ring and both ways: over a throttled link, gradients take about a step
STEPS_S = (0.05, 0.3, 1.0, 3.0)
FAULT_S, PAUSE_S, QUIET_S, AFTER_S, START_S = 18.0, 60.0, 18.0, 10.0, 22.0
POLL_S = 1.0
CONNECTS_IN_S, ENDS_IN_S, NO_HANG_S = 240.0, 60.0, 8.0


@dataclass(frozen=True)
class Found:
    """What was said after one injection."""

    kind: str
    ranks: int
    step_s: float
    ddp: bool
    rank: int
    said: str
    said_ranks: tuple[int, ...]
    seconds: float | None

    @property
    def right(self) -> bool:
        """Whether the syndrome is right."""
        return self.said == RIGHT[self.kind]

    @property
    def names_rank(self) -> bool | None:
        """Whether the rank is right; None where none can be told."""
        if self.kind in LAST and self.ranks == 2:
            return None
        if self.kind in LINKS:
            return self.rank in self.said_ranks and len(self.said_ranks) <= 2
        return self.said_ranks == (self.rank,)


@dataclass(frozen=True)
class Ran:
    """One job: what was found of its faults, and what was said without one."""

    hours: float
    found: tuple[Found, ...]
    alarms: tuple[str, ...]
    undecided: int
    step_s: float
    pressures: tuple[float, ...]


def plan(kinds: Sequence[str], ranks: int, rng: random.Random, for_s: float) -> dict[str, Any]:
    """One job's schedule: the kinds one after the other, each on a rank by lot."""
    entries = []
    at_s = START_S
    for kind in kinds:
        on_all = kind == "stall_of_all" or (kind == "compilation" and rng.random() < 0.5)
        rank = -1 if on_all else rng.randrange(ranks)
        entries.append({"kind": kind, "rank": rank, "at_s": at_s, "for_s": for_s})
        at_s += for_s + QUIET_S
    step_s = rng.choice(STEPS_S)
    return {"entries": entries, "seconds": at_s, "step_s": step_s, "ddp": rng.random() < 0.5, "ranks": ranks}


class Job:
    """The ranks of one job in their namespaces."""

    def __init__(self, schedule: dict[str, Any], folder: Path) -> None:
        self.ranks, self.step_s, self.folder = schedule["ranks"], schedule["step_s"], folder
        self.events = folder / "events.jsonl"
        (folder / "schedule.json").write_text(json.dumps(schedule), encoding="utf-8")
        self.events.touch()
        self._switch = _namespace()
        _inside(self._switch, "ip link set lo up; echo 1 > /proc/sys/net/ipv4/ip_forward")
        self.holders = [_namespace() for _ in range(self.ranks)]
        for rank, holder in enumerate(self.holders):
            _connect(self._switch.pid, holder.pid, rank)
        self.processes = [self._start(rank) for rank in range(self.ranks)]

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.ranks, "MASTER_ADDR": "10.77.0.2"}
        told |= {"MASTER_PORT": 29500, "SCHEDULE": self.folder / "schedule.json", "EVENTS": self.events}
        told |= {RUN_DIR: self.folder, "PYTHONPATH": f"{AUTOLOAD}:{ROOT}", "OMP_NUM_THREADS": 1}
        told |= {"GLOO_SOCKET_IFNAME": "v0", "TP_SOCKET_IFNAME": "v0"}
        command = ["nsenter", f"--net=/proc/{self.holders[rank].pid}/ns/net", sys.executable]
        env = os.environ | {name: str(value) for name, value in told.items()}
        with (self.folder / f"log-{rank}").open("wb") as log:
            return subprocess.Popen([*command, str(JOB)], env=env, stdout=log, stderr=subprocess.STDOUT)

    def happened(self) -> list[dict[str, Any]]:
        """What the ranks came to, so far."""
        return [json.loads(line) for line in self.events.read_text(encoding="utf-8").splitlines()]

    def spoil(self, kind: str, rank: int) -> None:
        """Makes the rank's link bad."""
        self._link(rank, "tc qdisc add dev {} root tbf rate {} burst 1600 latency 60s", kind)

    def mend(self, rank: int) -> None:
        """Makes it good again."""
        self._link(rank, "tc qdisc del dev {} root", "")

    def _link(self, rank: int, command: str, kind: str) -> None:
        rate = "8bit" if kind == "stalled_link" else f"{round(GRADIENT_KBIT / self.step_s)}kbit"
        _inside(self._switch, command.format(f"s{rank}", rate))
        _inside(self.holders[rank], command.format("v0", rate))

    def close(self) -> None:
        """Ends all of it."""
        for process in (*self.processes, *self.holders, self._switch):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()


def _namespace() -> subprocess.Popen[bytes]:
    """A process in a network namespace of its own, once it is there."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "100000"])  # noqa: S607
    own = Path("/proc/self/ns/net").readlink()
    while holder.poll() is None and Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
        time.sleep(0.05)
    return holder


def _inside(holder: subprocess.Popen[bytes], command: str) -> None:
    net = f"--net=/proc/{holder.pid}/ns/net"
    subprocess.run(["nsenter", net, "sh", "-c", command], check=True, capture_output=True)  # noqa: S607


def _connect(switch: int, holder: int, rank: int) -> None:
    """A link between the rank's namespace and the one that forwards."""
    near, far = f"nsenter --net=/proc/{switch}/ns/net", f"nsenter --net=/proc/{holder}/ns/net"
    net = f"10.77.{rank}"
    commands = (
        f"{near} ip link add name s{rank} type veth peer name v0 netns {holder}",
        f"{near} ip addr add {net}.1/24 dev s{rank} && {near} ip link set s{rank} up",
        f"{far} ip link set lo up && {far} ip addr add {net}.2/24 dev v0 && {far} ip link set v0 up",
        f"{far} ip route add default via {net}.1",
    )
    for command in commands:
        subprocess.run(command, shell=True, check=True, capture_output=True)  # noqa: S602


def observed(schedule: dict[str, Any]) -> Ran:
    """One job from start to end."""
    with tempfile.TemporaryDirectory(prefix="syndromes-") as name:
        folder = Path(name)
        watch = Syndromes(folder)
        job = Job(schedule, folder)
        try:
            said, events, seconds, pressures = _observe(job, watch, schedule)
        finally:
            job.close()
            watch.close()
    return judged(schedule, said, events, seconds, pressures)


def _observe(
    job: Job, watch: Syndromes, schedule: dict[str, Any]
) -> tuple[list[tuple[float, Verdict]], list[dict[str, Any]], float, tuple[float, ...]]:
    """What is said until the job ends, what happened to it, how long it trained, and how busy the host was."""
    said: list[tuple[float, Verdict]] = []
    pressures = []
    links: dict[float, dict[str, Any]] = {}
    came_s, began_s, last = time.monotonic(), 0.0, None
    while all(process.poll() is None for process in job.processes):
        time.sleep(POLL_S)
        now_s = time.monotonic()
        verdict = watch.poll(now_s)
        pressures.append(pressure_percent())
        seen = None if verdict is None else (verdict.syndrome, verdict.ranks)
        said += [(now_s, verdict)] if verdict is not None and seen != last else []
        last = seen
        began_s = began_s or (now_s if watch.steps >= FIRST_STEPS else 0.0)
        if now_s > (began_s + schedule["seconds"] + ENDS_IN_S if began_s else came_s + CONNECTS_IN_S):
            break
        _spoil(job, links)
    ended_s = time.monotonic() if any(process.poll() for process in job.processes) else math.inf
    events = [links.get(one["at_s"], one) for one in job.happened()]
    events = [one for one in events if ended_s - one["onset_s"] > NO_HANG_S]  # Gloo refused it: the job failed at once
    return said, events, time.monotonic() - began_s if began_s else 0.0, tuple(pressures)


def _spoil(job: Job, links: dict[float, dict[str, Any]]) -> None:
    """Spoils and mends the links of which the ranks say that it is time."""
    for event in job.happened():
        if event["kind"] in LINKS and event["at_s"] not in links:
            job.spoil(event["kind"], event["rank"])
            links[event["at_s"]] = {**event, "onset_s": time.monotonic(), "mended": False}
    for event in links.values():
        if not event["mended"] and time.monotonic() - event["onset_s"] > event["for_s"]:
            job.mend(event["rank"])
            event["mended"] = True


def judged(
    schedule: dict[str, Any],
    said: list[tuple[float, Verdict]],
    events: list[dict[str, Any]],
    seconds: float,
    pressures: tuple[float, ...],
) -> Ran:
    """What was right of what was said."""
    found, excused = [], set()
    for event in (one for one in events if one["kind"] in RIGHT):
        onset_s = event["onset_s"]
        ends_s = math.inf if event["kind"] in LAST else onset_s + event["for_s"] + AFTER_S
        own = [(at_s, one) for at_s, one in said if onset_s < at_s <= ends_s]
        excused |= {at_s for at_s, _ in own}
        at_s, first = next(((a, v) for a, v in own if v.syndrome is not Syndrome.UNDECIDED), (None, None))
        named, ranks = (str(first.syndrome), first.ranks) if first else ("nothing", ())
        after_s = None if at_s is None else round(at_s - onset_s, 2)
        place = schedule["ranks"], schedule["step_s"], schedule["ddp"], event["by"]
        found.append(Found(event["kind"], *place, named, ranks, after_s))
        say(f"{found[-1]} {first.why if first else ''}")
    loud = [(at_s, one) for at_s, one in said if at_s not in excused and one.syndrome is not Syndrome.UNDECIDED]
    alarms = tuple(f"{one.syndrome} {one.ranks}: {one.why}" for _, one in loud)
    for alarm in alarms:
        say(f"false alarm: {alarm} (step {schedule['step_s']} s, {schedule['ranks']} ranks)")
    quiet = sum(one.syndrome is Syndrome.UNDECIDED for _, one in said)
    return Ran(seconds / 3600, tuple(found), alarms, quiet, schedule["step_s"], pressures)


def figures(ran: Sequence[Ran]) -> dict[str, Any]:
    """The shares and times over all jobs, and by kind."""
    found = [one for job in ran for one in job.found]
    pressures = [one for job in ran for one in job.pressures]
    kinds = sorted({one.kind for one in found})
    return {
        **_shares(found),
        "job_hours": round(sum(job.hours for job in ran), 3),
        "false_alarms": sum(len(job.alarms) for job in ran),
        "undecided": sum(job.undecided for job in ran),
        "hours_by_step": {str(step): round(sum(job.hours for job in ran if job.step_s == step), 3) for step in STEPS_S},
        "pressure_p50": statistics.median(pressures) if pressures else None,
        "starved": round(sum(one > STARVED_PERCENT for one in pressures) / len(pressures), 3) if pressures else None,
        "by_kind": {kind: _shares([one for one in found if one.kind == kind]) for kind in kinds},
        "cases": [asdict(one) for one in found],
    }


def _shares(found: Sequence[Found]) -> dict[str, Any]:
    ranks = [one.names_rank for one in found if one.names_rank is not None]
    seconds = sorted(one.seconds for one in found if one.right and one.seconds is not None)
    return {
        "n": len(found),
        "syndrome": round(sum(one.right for one in found) / len(found), 4) if found else None,
        "rank": round(sum(ranks) / len(ranks), 4) if ranks else None,
        "within_15_s": round(sum(s <= 15 for s in seconds) / len(found), 4) if found else None,
        "seconds_p50": seconds[len(seconds) // 2] if seconds else None,
        "seconds_p99": seconds[math.ceil(0.99 * len(seconds)) - 1] if seconds else None,
    }


def run(
    jobs: Annotated[int, typer.Option(min=0, help="With faults, all kinds in each.")] = 4,
    clean: Annotated[int, typer.Option(min=0, help="Without faults, all pauses in each.")] = 2,
    seed: Seed = 1,
    only: Only = None,
) -> Table:
    """The four syndromes on real jobs: faults injected on schedule, and clean runs with every legitimate pause."""
    if missing := [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]:
        raise FileNotFoundError(ENOENT, "a program is missing", missing[0])
    rng, kinds, plans = random.Random(seed), chosen(only, RIGHT), []  # noqa: S311 -- places of faults, no secret
    for number in range(jobs):
        passing = [kind for kind in kinds if kind not in LAST]
        rng.shuffle(passing)
        last = [kind for kind in kinds if kind == LAST[number % len(LAST)]]
        plans.append(plan([*passing, *last], rng.choice((2, 3, 4)), rng, FAULT_S))
    plans += [plan(rng.sample(PAUSES, len(PAUSES)), rng.choice((2, 3, 4)), rng, PAUSE_S) for _ in range(clean)]
    return Table(figures(tracked(map(observed, plans), len(plans), "jobs")))
