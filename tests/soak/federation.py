"""A federation of real programs under moved clocks, kept alive as a service manager would, and what is done to it."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.rounds.home import settings_of
from provider_server.rounds.settings import ProviderSettings
from simulation.run import processes
from simulation.run.processes import Places, founded, free_ports, last_week, tenant_names
from tests.soak.alerts import Scrapes
from tests.soak.clock import Clocks
from tests.soak.readings import Reading, read
from tests.support.versions import Installed

SECONDS_PER_DAY = 86_400
SETTLE_S = 12.0  # Flower takes a node for offline until it has been heard of again, every ten seconds
RELEASED_S = 240.0
LEASES_EACH = 4
CERTIFICATE_DAYS = 200
WEEKS_PER_EPOCH = 13
DISK = "size=512m"
JOBS = """
import json, sys
from pathlib import Path
from simulation.run.processes import journalled
hour, leases, *homes = sys.argv[1:]
numbered = [(home, int(home.rpartition("-")[2])) for home in homes]
print(json.dumps({home: journalled(Path(home), number, [int(hour)], int(leases)) for home, number in numbered}))
"""


class Soaked:
    """All programs of a federation, by name; `week` counts from 0."""

    def __init__(self, root: Path, tenants: int, stack: ExitStack) -> None:
        self._stack, self.clocks = stack, Clocks(root / "clocks")
        self._began = {name: self.clocks.prefix(name) for name in Places(root, tenants, 4).programs}
        self.places = Places(root / "homes", tenants, 3, wrapped=dict(self._began))
        self.places.root.mkdir()
        stack.enter_context(founded(self.places, weeks=1))
        self.disks = _small_disks(self.places, stack)
        self._logs = root / "logs"
        self._logs.mkdir()
        self._set_up()
        self.names = tenant_names(self.places)
        self.first_hour = last_week() + HOURS_PER_WEEK
        self.trustees = [home.name for home in self.places.trustee_homes]
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self.down: set[str] = set()
        self.week = 0
        self.scrapes, self.readings = Scrapes(), list[Reading]()
        self.ended: list[tuple[int, str, int]] = []  # programs that ended by themselves: week, name, exit code
        self._versions: dict[str, Installed] = {}
        self._environment: dict[str, str] = {}
        stack.callback(self._end)

    def _set_up(self) -> None:
        """Rounds come by themselves; certificates end within the soak."""
        toml = self.places.provider / "provider.toml"
        toml.write_text(toml.read_text().replace('every = "manual"', 'every = "window"'))
        windows = ", ".join(map(str, range(1, WEEKS_PER_EPOCH + 1)))
        assert f"weeks_per_epoch = {WEEKS_PER_EPOCH}" in toml.read_text()
        assert windows in toml.read_text()
        for name in ("provider", *(home.name for home in self.places.trustee_homes)):
            renew = "renew-certificate" if name == "provider" else "keys renew-certificate"
            self.call(name, renew, "--days", CERTIFICATE_DAYS)

    # ---- programs

    def start(self, *names: str) -> None:
        """Starts programs and waits until they do their work."""
        for name in names:
            self._keep_log(name)
            self.programs[name] = processes.start(self.places, name)
            self.down.discard(name)
        for name in names:
            processes.wait_until_ready(self.places, name, self.programs[name])

    def stop(self, *names: str) -> None:
        """Ends programs as a service manager does; they stay down."""
        self.down.update(names)
        for name in names:
            processes.end(self.programs[name])

    def kill(self, *names: str) -> None:
        """Kills programs with SIGKILL; they stay down."""
        self.down.update(names)
        for name in names:
            self.programs[name].send_signal(signal.SIGKILL)
            self.programs[name].wait()

    def restart(self, *names: str) -> None:
        """Ends programs, and starts them."""
        self.stop(*names)
        self.start(*names)

    def upgrade(self, version: Installed, *names: str) -> None:
        """Ends programs, and starts those of another version."""
        self.stop(*names)
        for name in names:
            self._versions[name] = version
        self._rewrap()
        self.start(*names)

    def use_database(self, url: str) -> None:
        """The provider's programs use another store from now on."""
        self._environment["PHAROAH_DATABASE"] = url
        self._rewrap()

    def _rewrap(self) -> None:
        wrapped = dict(self._began)
        wrapped["provider"] = [*wrapped["provider"], *(f"{key}={value}" for key, value in self._environment.items())]
        for name, version in self._versions.items():
            wrapped[name] = [*wrapped[name], *version.wrapper]
        self.places = replace(self.places, wrapped=wrapped)

    def supervise(self) -> None:
        """Starts what has ended by itself."""
        for name, process in self.programs.items():
            if name not in self.down and process.poll() is not None:
                self.ended.append((self.week, name, process.returncode))
                self._keep_log(name)
                self.programs[name] = processes.start(self.places, name)

    def call(self, name: str, verb: str, *options: object) -> str:
        """What a verb of a party prints, in the version that it runs."""
        package = processes.COMMANDS[name.partition("-")[0]][0]
        words = ["-m", package, *verb.split(), "--home", str(self.places.root / name), *map(str, options)]
        return self._run(name, words)

    def _run(self, name: str, words: Sequence[str]) -> str:
        command = [*self.places.wrapped[name], sys.executable, *words]
        done = subprocess.run(command, env=processes.environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(words[1:5])}: {done.stderr.strip()[-600:]}"
        return done.stdout

    # ---- time

    @property
    def start_hour(self) -> int:
        """Where this week begins."""
        return self.first_hour + self.week * HOURS_PER_WEEK

    @property
    def is_last_of_epoch(self) -> bool:
        """Whether the next week is of another epoch."""
        return (self.start_hour // HOURS_PER_WEEK + 1) % WEEKS_PER_EPOCH == 0

    def happen(self) -> None:
        """The jobs of this week, in the journals of all and on the provider's books."""
        lines = list[str]()
        tenants = [home.name for home in self.places.tenant_homes]
        for version in {self._versions.get(name) for name in tenants}:
            homes = [str(self.places.root / name) for name in tenants if self._versions.get(name) == version]
            told = self._run(Path(homes[0]).name, ["-c", JOBS, str(self.start_hour), str(LEASES_EACH), *homes])
            booked: dict[str, list[dict[str, Any]]] = json.loads(told)
            lines += [
                json.dumps({"tenant": self.names[Path(home)], **lease}) for home in homes for lease in booked[home]
            ]
        file = self.places.root / "leases.jsonl"
        file.write_text("\n".join(lines) + "\n")
        self.call("provider", "leases record", file)

    def reach_the_round(self) -> None:
        """Moves all clocks to when the round over this week is due."""
        settle_hours = ProviderSettings().rounds.settle_hours
        self._move((self.start_hour + HOURS_PER_WEEK + settle_hours) * 3600 + 60 - self.clocks.now())

    def days(self, days: float) -> None:
        """So many days pass, of which nobody sees more than the last seconds."""
        self._move(days * SECONDS_PER_DAY)
        self.live(SETTLE_S)

    def _move(self, seconds: float) -> None:
        self.scrape()
        self.clocks.move(seconds)

    def live(self, seconds: float) -> None:
        """Real time passes."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.scrape()
            self.supervise()
            time.sleep(min(2.0, max(0.0, end_s - time.monotonic())))

    def released(self) -> bool:
        """Waits until this week is released; False if it is not."""
        end_s, wanted = time.monotonic() + RELEASED_S, float(self.start_hour + HOURS_PER_WEEK)
        while time.monotonic() < end_s:
            self.supervise()
            if f"pharoah_release_end_hour {wanted}" in (self.scrape() or ""):
                return True
            time.sleep(0.5)
        return False

    def scrape(self) -> str | None:
        """The provider's metrics, which are kept."""
        port = self._metrics_port
        with suppress(httpx.HTTPError):
            text = httpx.get(f"http://127.0.0.1:{port}/pharoah/metrics", timeout=5.0, trust_env=False).text
            self.scrapes.add(self.clocks.now(), text)
            return text
        self.scrapes.add(self.clocks.now(), None)
        return None

    @property
    def _metrics_port(self) -> int:
        return settings_of(self.places.provider).listen.metrics_port

    def read(self) -> None:
        """What the processes hold now."""
        for name, process in self.programs.items():
            if process.poll() is None:
                with suppress(OSError):
                    self.readings.append(read(self.week, name, process.pid))

    # ---- what was lost

    def releases(self) -> list[dict[str, Any]]:
        """As the provider lists them."""
        listed: list[dict[str, Any]] = json.loads(self.call("provider", "rounds releases", "--json"))
        return listed

    def charges(self) -> dict[str, list[tuple[str, int, int]]]:
        """What each tenant's ledger charges, but for what was given back: round, first and last hour."""
        query = (
            "SELECT DISTINCT lower(hex(round_id)), start_h, end_h FROM charges"
            " WHERE round_id NOT IN (SELECT round_id FROM given_back)"
        )
        found = {}
        for home in self.places.tenant_homes:
            with closing(sqlite3.connect(home / "tenant.db")) as connection:
                found[home.name] = connection.execute(query).fetchall()
        return found

    def events(self) -> Counter[tuple[str, str, str]]:
        """Lines of all logs that are warnings or worse, by role, level and event or error."""
        found = Counter[tuple[str, str, str]]()
        for file in [*self.places.root.glob("*.log"), *self._logs.iterdir()]:
            for line in file.read_text(errors="replace").splitlines():
                told = _told(line)
                if told.get("level", "info") not in ("info", "debug"):
                    what = told.get("exception", "") and "exception"
                    what = what or " ".join(str(told[key]) for key in ("event", "error") if told.get(key))
                    found[file.name.partition("-")[0].partition(".")[0], told["level"], what or told["logger"]] += 1
        return found

    def _keep_log(self, name: str) -> None:
        file = self.places.root / f"{name}.log"
        if file.exists():
            with (self._logs / file.name).open("a") as kept:
                kept.write(file.read_text(errors="replace"))
            file.unlink()

    def _end(self) -> None:
        for process in self.programs.values():
            process.terminate()
        for process in self.programs.values():
            processes.end(process)

    # ---- disks and addresses

    @contextmanager
    def full(self, name: str) -> Iterator[None]:
        """Within it, the disk of a home has no room left."""
        filler = self.places.root / name / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            for size in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))
        try:
            yield
        finally:
            filler.unlink()

    def free_port(self) -> int:
        """A port for a new program."""
        (port,) = self._stack.enter_context(free_ports(self.places.host, 1))
        return port


def _told(line: str) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except ValueError:
        told = None
    if isinstance(told, dict):
        return told
    return {"level": "error", "logger": "no JSON", "event": "Traceback"} if line.startswith("Traceback") else {}


def _small_disks(places: Places, stack: ExitStack) -> tuple[str, ...]:
    """Moves three homes to disks of their own, where this account may mount any; which were."""
    mounted = list[str]()
    for name in ("provider", "trustee-2", "tenant-3"):
        home, before = places.root / name, places.root / f"{name}.before"
        home.rename(before)
        home.mkdir(mode=0o700)
        command = ["mount", "-t", "tmpfs", "-o", f"{DISK},mode=700", "pharoah-soak", str(home)]
        if os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0:
            stack.callback(subprocess.run, ["umount", "--lazy", str(home)], check=False)
            mounted.append(name)
        shutil.copytree(before, home, dirs_exist_ok=True)
        shutil.rmtree(before)
    return tuple(mounted)
