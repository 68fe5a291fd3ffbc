"""A federation of real programs on loopback: trustees, a provider and tenants as separate processes, for one round.

Runs the commands that people would type: makes keys, hands over cards and invitations, starts the programs, holds a
round and stops everything. Only the tenants' jobs are made up: they are written into the journals as
`pharoah-tenant run` would.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count, islice, product
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, socket

from crypto.errors import PharoahError
from crypto.ids import LeaseId
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.program.operations.admin import HeldRound
from provider_server.rounds.home import settings_of
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Failure, Journal, Unit
from tenant_client.doctor.workload.descriptor import Descriptor
from trustee.home import own_card

START_S, VERB_S = 240.0, 300.0  # on a machine that has much else to do
STOP_S = 20.0
AT_ONCE = 16
POLL_S = 0.1
WORKLOADS, CONTEXTS, LEASES_EACH = 2, 2, 12
WEEKS = 6  # that rounds may be held over: the last whole ones
LEAST_EPOCH = 13
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_PROXY": "*", "no_proxy": "*"}
PROVIDER_TOML = """
[listen]
host = "{host}"
advertised_host = "{host}"
tenants_port = {tenants}
online_port = {online}
metrics_port = {metrics}

[rounds]
every = "manual"
join_s = 30.0
deadline_s = 60.0
poll_s = 0.1
retry_s = 0.5

[plan]
windows = {windows}
weeks_per_epoch = {weeks}
"""
TENANT_TOML = "\n[node]\ntick_s = 0.25\nbusy_poll_s = 0.1\nidle_poll_s = 0.3\nheartbeat_s = 10.0\n"

Say = Callable[[str], None]


class HeldHere(HeldRound):
    """A round, and the time from the first key to the last program's end."""

    total_seconds: float


class ProgramFailed(PharoahError):
    """One of the programs ended with an error, or did not start in time."""


@dataclass(frozen=True)
class Places:
    """Where each party of a federation below `root` lives, and at which address all listen.

    `wrapped` has the beginning of a command line for a program that is to run behind another, by name.
    """

    root: Path
    tenants: int
    trustees: int
    host: str = "127.0.0.1"
    wrapped: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def provider(self) -> Path:
        """The provider's home."""
        return self.root / "provider"

    def trustee(self, number: int) -> Path:
        """A trustee's home, from 1."""
        return self.root / f"trustee-{number}"

    def tenant(self, number: int) -> Path:
        """A tenant's home, from 1."""
        return self.root / f"tenant-{number}"

    @property
    def trustee_homes(self) -> list[Path]:
        """All of them."""
        return [self.trustee(number) for number in range(1, self.trustees + 1)]

    @property
    def tenant_homes(self) -> list[Path]:
        """All of them."""
        return [self.tenant(number) for number in range(1, self.tenants + 1)]

    @property
    def programs(self) -> list[str]:
        """What runs, by the names of the homes, in the order in which it starts."""
        return [*(home.name for home in self.trustee_homes), "provider", *(home.name for home in self.tenant_homes)]

    @property
    def invitation(self) -> Path:
        """What the provider hands to everybody."""
        return self.root / "invitation"


def hold(places: Places, say: Say, *, keep: bool = False) -> HeldRound:
    """Founds a federation below an empty root, and holds one round; what `rounds hold --json` printed.

    Everything is stopped then, or goes on: `stop` beside the homes ends it.
    """
    say("trustees generate the shared key, the provider founds the federation, tenants enrol")
    with founded(places), ExitStack() as until_held:
        say("writing made-up jobs into the tenants' journals")
        start_hour = last_week()
        happen(places, start_hour)
        pids = " ".join(str(process.pid) for process in started(places, until_held, say).values())
        say("holding one round")
        held = round_of(places, start_hour)
        if keep:
            (places.root.parent / "stop").write_text(f"#!/bin/sh\nkill {pids}\n")
            until_held.pop_all()  # and not closed: nobody ends them here
        else:
            say("stopping all programs")
    return held


def left_running(places: Places) -> Iterator[str]:
    """What a person needs to play with programs that go on."""
    settings = settings_of(places.provider).listen
    yield f"provider    {places.provider}, tenants at {settings.host}:{settings.tenants_port}"
    yield f"            http://127.0.0.1:{settings.metrics_port}/pharoah/readyz"
    for home in places.trustee_homes:
        yield f"{home.name}   {home}, at {own_card(home).address}"
    for home in places.tenant_homes:
        yield f"{home.name}    {home}"
    yield f"logs        {places.root}/*.log"
    yield f"look        pharoah-provider status --home {places.provider}"
    yield f"stop        sh {places.root.parent / 'stop'}"


def kept_homes(out: Path) -> Path:
    """Where homes are made that stay: below `out`, empty."""
    shutil.rmtree(out / "homes", ignore_errors=True)
    (out / "homes").mkdir(parents=True)
    return (out / "homes").absolute()


def round_of(places: Places, start_hour: int) -> HeldRound:
    """Holds a round over the week from `start_hour`; what `rounds hold --json` printed."""
    window = ["--start", str(start_hour), "--end", str(start_hour + HOURS_PER_WEEK)]
    rows: list[HeldRound] = json.loads(provider(places, "rounds hold", "--json", *window))
    (told,) = rows
    return told


@contextmanager
def founded(places: Places, weeks: int = WEEKS) -> Iterator[None]:
    """Everything up to the first start of the programs, whose ports are theirs while the context lasts.

    Rounds may be held over the last so many whole weeks.
    """
    with free_ports(places.host, 2 + places.trustees) as ports, free_ports("127.0.0.1", 1) as metrics:
        ceremony(places, ports[2:])
        enrol(places, [*ports[:2], *metrics], weeks_per_epoch(weeks))
        yield


def ceremony(places: Places, ports: Sequence[int]) -> None:
    """The trustees' key ceremony, by files."""
    homes = places.trustee_homes
    together(
        ["trustee", "init", "--home", str(home), "--address", f"{places.host}:{port}"]
        for home, port in zip(homes, ports, strict=True)
    )
    cards = [str(home / "trustee.card") for home in homes]
    dealings = [str(home / "dealing") for home in homes]
    threshold = ["--threshold", str((places.trustees + 1) // 2)]
    together(
        ["trustee", "ceremony", "deal", "--home", str(home), *threshold, "--out", dealing, *cards]
        for home, dealing in zip(homes, dealings, strict=True)
    )
    together(["trustee", "ceremony", "combine", "--home", str(home), *cards, *dealings] for home in homes)


def enrol(places: Places, ports: Sequence[int], weeks: int) -> None:
    """The provider's home, the tenants' cards, and the invitation that all of them take."""
    tenants, online, metrics = ports
    places.provider.mkdir(mode=0o700)
    epoch = {"weeks": weeks, "windows": [*range(1, weeks + 1)]}
    listening = {"tenants": tenants, "online": online, "metrics": metrics}
    settings = PROVIDER_TOML.format(host=places.host, **listening, **epoch)
    (places.provider / "provider.toml").write_text(settings)
    provider(places, "init", "--pilot", "--host", places.host, "--committee", str(places.trustee(1) / "committee"))
    cards = [str(home) + ".card" for home in places.tenant_homes]
    together(
        ["tenant_client", "join", "--home", str(home), "--card", card]
        for home, card in zip(places.tenant_homes, cards, strict=True)
    )
    provider(places, "tenants enrol", "--out", str(places.invitation), *cards)
    joining = ["tenant_client", "join", "--pilot", str(places.invitation), "--home"]
    together([*joining, str(home)] for home in places.tenant_homes)
    together(["trustee", "join", "--home", str(home), str(places.invitation)] for home in places.trustee_homes)
    for home in places.tenant_homes:
        tenant_toml = home / "tenant.toml"
        tenant_toml.write_text(tenant_toml.read_text().partition("[node]")[0] + TENANT_TOML)


def happen(places: Places, *start_hours: int, leases: int = LEASES_EACH) -> None:
    """So many leases of each tenant in each of the weeks that begin then, and some failures.

    Leases are on the provider's books and in the tenants' journals.
    """
    names, lines = tenant_names(places), places.root / "leases.jsonl"
    with lines.open("w") as file:
        for number, home in enumerate(places.tenant_homes, start=1):
            for booked in journalled(home, number, start_hours, leases):
                file.write(json.dumps({"tenant": names[home], **booked}) + "\n")
    provider(places, "leases record", str(lines))


def journalled(home: Path, number: int, start_hours: Iterable[int], leases: int) -> list[dict[str, object]]:
    """Writes leases of tenant `number` into its journal; as the provider books them, but for the tenant."""
    with closing(open_database(home / "tenant.db")) as connection:
        journal = Journal(connection)
        return [_lease(journal, home, number, *at) for at in product(start_hours, range(leases))]


def _lease(journal: Journal, home: Path, number: int, start_hour: int, lease: int) -> dict[str, object]:
    """One lease of tenant `number`, in its journal; as the provider books it."""
    name = LeaseId(hashlib.sha256(f"{home}/{start_hour}/{lease}".encode()).digest()[: LeaseId.length])
    began = float(start_hour + lease)
    failures = [Failure(str(name), began + 20.0, 20.0, "nvlink_error")] if lease % 4 == number % 4 else []
    journal.add([Unit(str(name), began, {})], failures)
    journal.describe(str(name), began * 3600, workload(lease % WORKLOADS))
    return {
        "lease": str(name),
        "nodes": 2,
        "start_h": began,
        "end_h": began + 100.0,
        "context": f"rack {lease // WORKLOADS % CONTEXTS}",
        "level": 0,
    }


def tenant_names(places: Places) -> dict[Path, str]:
    """Each tenant's id, by home."""
    from crypto.signing import SigningKey, tenant_id
    from federation.base.key_files import read_key

    return {home: str(tenant_id(SigningKey(read_key(home / "signing.key")).public)) for home in places.tenant_homes}


def workload(number: int) -> Descriptor:
    """One of a few made-up workloads, all of whose operators are its own."""
    return Descriptor(
        frozenset((f"aten::op_{number}_{at}", (12, at % 5)) for at in range(40)),
        frozenset({(f"block_{number}", (12, 12))}),
        (("all_reduce", 3, 20),),
        "bf16",
        "tp8",
        (("torch", "2.4"),),
        frozenset({"sm90_gemm"}),
    )


def memory_folder() -> Path | None:
    """Where files live in memory, if this system has such a place; whoever writes there uses a directory of its own."""
    memory = Path("/dev/shm")  # noqa: S108 - directories below it have random names and mode 0700
    return memory if memory.is_dir() else None


@contextmanager
def homes(out: Path | None) -> Iterator[Path]:
    """A folder for the homes of a run, in memory where possible; copied to `out` afterwards."""
    with tempfile.TemporaryDirectory(prefix="pharoah-", dir=memory_folder()) as root:
        yield Path(root)
        if out is not None:
            shutil.rmtree(out / "homes", ignore_errors=True)
            shutil.copytree(root, out / "homes")


def last_week() -> int:
    """Where the last whole week begins, in hours since 1970."""
    return (int(time.time() // 3600) // HOURS_PER_WEEK - 1) * HOURS_PER_WEEK


def weeks_per_epoch(last: int) -> int:
    """How long an epoch is in which the `last` weeks lie together: mask keys are erased soon after theirs."""
    first = last_week() // HOURS_PER_WEEK + 1 - last
    return next(weeks for weeks in count(LEAST_EPOCH) if first % weeks + last <= weeks)


@contextmanager
def running(places: Places, say: Say) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """All programs, by name, until the context ends; their logs are below `root`."""
    with ExitStack() as stack:
        yield started(places, stack, say)
        say("stopping all programs")


def started(places: Places, stack: ExitStack, say: Say) -> dict[str, subprocess.Popen[bytes]]:
    """All programs, by name, which do their work; `stack` ends them when it is closed."""
    programs = {name: start(places, name) for name in places.programs}
    for process in programs.values():
        stack.callback(end, process)
    say(f"starting {len(programs)} programs")
    for name, process in programs.items():
        wait_until_ready(places, name, process)
    return programs


READY = {"trustee": "serves at port", "provider": '"event": "serving"', "tenant": '"link": "connected"'}
COMMANDS = {
    "trustee": ["trustee", "serve"],
    "provider": ["provider_server", "serve"],
    "tenant": ["tenant_client", "serve"],
}


@contextmanager
def program(places: Places, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program that serves the home of that name, terminated when the context ends; its log begins anew."""
    process = start(places, name)
    try:
        yield process
    finally:
        end(process)


def start(places: Places, name: str) -> subprocess.Popen[bytes]:
    """Starts the program that serves the home of that name, which a Ctrl-C here does not reach."""
    command = [sys.executable, "-m", *COMMANDS[name.partition("-")[0]], "--home", str(places.root / name)]
    with (places.root / f"{name}.log").open("wb") as log:
        command = [*places.wrapped.get(name, ()), *command]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment(), process_group=0
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminates a program, or kills one that does not end."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_ready(places: Places, name: str, process: subprocess.Popen[bytes]) -> None:
    """Returns when a program does its work; ProgramFailed if it ends, or takes too long."""
    wait_for(places, name, process, READY[name.partition("-")[0]])


def wait_for(places: Places, name: str, process: subprocess.Popen[bytes], text: str) -> None:
    """Returns when the log of a program holds `text`; ProgramFailed if it ends, or takes too long."""
    log, end_s = places.root / f"{name}.log", time.monotonic() + START_S
    while text not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > end_s:
            last = log.read_text(errors="replace").splitlines()[-5:]
            raise ProgramFailed(f"{name} does not run: {' | '.join(last)}", hint=f"see {log}")
        time.sleep(POLL_S)


def provider(places: Places, verb: str, *options: str) -> str:
    """What a verb of `pharoah-provider` prints."""
    return run("provider_server", *verb.split(), "--home", str(places.provider), *options)


def run(*command: str) -> str:
    """What one program prints; ProgramFailed with its own words if it fails."""
    return together([list(command)])[0]


def together(commands: Iterable[list[str]]) -> list[str]:
    """What several programs print that run side by side, some at a time."""
    todo, printed = iter(commands), list[str]()
    while some := list(islice(todo, AT_ONCE)):
        printed += _together(some)
    return printed


def _together(commands: Sequence[list[str]]) -> list[str]:
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        for command in commands
    ]
    said = [process.communicate(timeout=VERB_S) for process in started]
    for process, (_, complaint) in zip(started, said, strict=True):
        if process.returncode:
            shown = " ".join(str(part) for part in list(process.args)[2:5])  # type: ignore[arg-type]
            raise ProgramFailed(f"{shown}: {' | '.join(complaint.strip().splitlines())}")
    return [output for output, _ in said]


def environment() -> dict[str, str]:
    """The environment of every program: nothing looks for the network."""
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, **OFFLINE, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@contextmanager
def free_ports(host: str, count: int) -> Iterator[list[int]]:
    """Ports that nobody else is given while the context lasts.

    They are bound and not listened at. Servers that set SO_REUSEADDR, as all of ours do, may bind one again and again.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket()) for _ in range(count)]
        for held in sockets:
            held.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            held.bind((host, 0))
        yield [held.getsockname()[1] for held in sockets]
