"""Real programs of two versions in one federation, upgraded in every order, and a third that is too far away.

All are installed from wheels. The later versions are copies of this tree in which every message has gained a field, and
every database a step to its tables (`tests.support.versions`).
"""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from federation.protocol.plan import HOURS_PER_WEEK
from simulation.run.processes import (
    COMMANDS,
    WEEKS,
    Places,
    end,
    founded,
    happen,
    last_week,
    running,
    start,
    wait_until_ready,
)
from tests.support.versions import Installed, installed

pytestmark = [pytest.mark.xdist_group("programs"), pytest.mark.nightly]  # seven to ten minutes

TENANTS, TRUSTEES = 4, 3
FIRST = last_week() + (1 - WEEKS) * HOURS_PER_WEEK
RELEASES = """
import sys; from contextlib import closing; from pathlib import Path
from provider_server.rounds.store.store import Store
with closing(Store(Path(sys.argv[1]), create=False)) as store:
    print([[made.plan.protocol, made.contributors] for made in store.releases()])
"""
# Who upgrades on one day; the programs of each.
PARTIES = {
    "provider": ("provider",),
    "a trustee": ("trustee-1",),
    "the other trustees": ("trustee-2", "trustee-3"),
    "tenants": tuple(f"tenant-{number}" for number in range(1, TENANTS + 1)),
}
COPIES = {"provider": "provider.db.version-0015", "tenant": "tenant.db.version-1", "trustee": "trustee.db.version-1"}

State = frozenset[str]  # the parties that are upgraded
NOBODY, EVERYBODY = frozenset[str](), frozenset(PARTIES)


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Installed]:
    """This version, the next one, and the one after that, which reads the next one and not this one."""
    return [installed(tmp_path_factory.mktemp(f"version-{number}"), number) for number in (1, 2, 3)]


@pytest.fixture
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """A federation founded by this version, with jobs in each week."""
    # A path of a socket has room for 107 bytes.
    places = Places(tmp_path_factory.mktemp("homes") / "of", TENANTS, TRUSTEES)
    places.root.mkdir()
    with founded(places):
        happen(places, *(FIRST + week * HOURS_PER_WEEK for week in range(WEEKS)))
        yield places


def of_versions(places: Places, to: Mapping[str, Installed]) -> Places:
    """The same places, whose programs are of these versions."""
    return replace(places, wrapped={name: version.wrapper for name, version in to.items()})


def hold(places: Places, version: Installed, week: int) -> None:
    """Holds a round over a week."""
    start_hour = FIRST + week * HOURS_PER_WEEK
    window = ["--start", str(start_hour), "--end", str(start_hour + HOURS_PER_WEEK)]
    version.run("-m", "provider_server", "rounds", "hold", "--home", str(places.provider), *window)


def releases(places: Places, version: Installed) -> list[tuple[int, int]]:
    """The protocol of each release, and how many contributed."""
    return [tuple(one) for one in json.loads(version.run("-c", RELEASES, str(places.provider / "provider.db")))]


def reports(places: Places) -> list[int]:
    """How many reports each tenant has."""
    found = []
    for home in places.tenant_homes:
        with closing(sqlite3.connect(home / "tenant.db")) as connection:
            found += connection.execute("SELECT count(*) FROM bundles").fetchone()
    return found


def copies(places: Places) -> dict[str, str]:
    """The digest of each copy of a database that was kept before an upgrade, by home and name."""
    found = places.root.glob("*/*.db.version-*")
    return {str(path.relative_to(places.root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def copy_of(name: str) -> str:
    """The copy that the first upgrade of a program's home leaves."""
    return f"{name}/{COPIES[name.partition('-')[0]]}"


class Walk:
    """Upgrades party after party, each while all others run and with a round afterwards, and goes back to any state.

    A walk begins in a state that has more ways out than in; where they are as many, those that come in go on.
    """

    def __init__(self, places: Places, kept: Path, one: Installed, two: Installed) -> None:
        self._places, self._kept, self._one, self._two = places, kept, one, two
        self.seen: dict[State, Path] = {}  # homes as they were after the round in a state
        self.edges: set[tuple[State, str]] = set()

    def begin(self) -> State:
        """The round before any upgrade, and a walk; where it ended."""
        with running(self._at(NOBODY), print) as programs:
            self._hold(NOBODY)
            assert copies(self._places) == {}
            return self._go(programs, NOBODY)

    def again(self, state: State) -> State:
        """Another walk, from a state that was seen."""
        shutil.rmtree(self._places.root)
        shutil.copytree(self.seen[state], self._places.root)
        with running(self._at(state), print) as programs:
            return self._go(programs, state)

    def left(self, state: State) -> list[str]:
        """Parties whose upgrade from a state was not tried yet."""
        return [party for party in PARTIES if party not in state and (state, party) not in self.edges]

    def _go(self, programs: dict[str, subprocess.Popen[bytes]], state: State) -> State:
        try:
            while left := self.left(state):
                if 2 * len(state) < len(PARTIES) and state not in self.seen:
                    self._keep(programs, state)
                self._upgrade(programs, state, left[0])
                self.edges.add((state, left[0]))
                state |= {left[0]}
        finally:
            for process in programs.values():
                process.terminate()
            for process in programs.values():
                end(process)
        expected = [(1, TENANTS)] * len(state) + [(2 if state == EVERYBODY else 1, TENANTS)]
        assert releases(self._places, self._two if "provider" in state else self._one) == expected
        return state

    def _upgrade(self, programs: dict[str, subprocess.Popen[bytes]], state: State, party: str) -> None:
        before, upgraded = copies(self._places), state | {party}
        for name in PARTIES[party]:
            end(programs[name])
            programs[name] = start(self._at(upgraded), name)
        for name in PARTIES[party]:
            wait_until_ready(self._places, name, programs[name])
        self._hold(upgraded)
        after = copies(self._places)
        assert before.items() <= after.items()
        assert after.keys() - before.keys() == {copy_of(name) for name in PARTIES[party]}, (state, party)

    def _hold(self, state: State) -> None:
        hold(self._places, self._two if "provider" in state else self._one, len(state))
        assert reports(self._places) == [len(state) + 1] * TENANTS, state

    def _at(self, state: State) -> Places:
        versions = {name: self._two if party in state else self._one for party in PARTIES for name in PARTIES[party]}
        return of_versions(self._places, versions)

    def _keep(self, programs: Mapping[str, subprocess.Popen[bytes]], state: State) -> None:
        """Homes as a power cut would leave them now; nobody works meanwhile."""
        for process in programs.values():
            process.send_signal(SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        self.seen[state] = self._kept / str(len(self.seen))
        shutil.copytree(self._places.root, self.seen[state], ignore=shutil.ignore_patterns("*.sock"))
        for process in programs.values():
            process.send_signal(SIGCONT)


def test_organisations_upgrade_in_every_order_with_rounds_between(
    places: Places, versions: list[Installed], tmp_path: Path
) -> None:
    walk = Walk(places, tmp_path / "kept", *versions[:2])
    state = walk.begin()
    assert state == EVERYBODY
    for name in places.programs:
        refused(versions[0], places.root / name)
    while begin := [state for state in walk.seen if walk.left(state)]:
        walk.again(begin[0])
    assert len(walk.edges) == len(PARTIES) * 2 ** (len(PARTIES) - 1)  # through which every order leads


def refused(version: Installed, home: Path) -> None:
    """An older program says that it does not open a home, and leaves it alone."""
    role = home.name.partition("-")[0]
    database = home / f"{role}.db"
    before = database.read_bytes()
    with pytest.raises(subprocess.CalledProcessError) as ended:
        version.run("-m", *COMMANDS[role], "--home", str(home))
    found, known = ("'0016'", "'0015'") if role == "provider" else ("2", "1")
    assert f"has version {found}, this program knows up to {known}" in ended.value.stderr
    assert "nothing was changed; install" in ended.value.stderr
    assert database.read_bytes() == before


def test_part_of_the_tenants_is_upgraded_and_one_that_is_two_behind_is_left_out(
    places: Places, versions: list[Installed]
) -> None:
    one, two, three = versions
    ones = dict.fromkeys(places.programs, one)
    with running(of_versions(places, ones | {"tenant-1": two, "trustee-1": two}), print):
        hold(places, one, 0)
    assert reports(places) == [1] * TENANTS

    without_last = replace(places, tenants=TENANTS - 1)
    upgraded = dict.fromkeys(without_last.programs, two)
    with running(of_versions(without_last, upgraded), print):
        hold(places, two, 1)
    assert reports(places) == [2] * (TENANTS - 1) + [1]

    with running(of_versions(places, ones | upgraded | {"provider": three}), print):
        hold(places, three, 2)
        assert releases(places, three) == [(1, TENANTS), (2, TENANTS - 1), (2, TENANTS - 1)]
        status = three.run("-m", "provider_server", "status", "--home", str(places.provider))
    assert reports(places) == [3] * (TENANTS - 1) + [1]
    upgrades = {copy_of(name) for name in upgraded}
    assert copies(places).keys() == upgrades | {"provider/provider.db.version-0016"}
    assert "they speak protocol 1, this provider reads 2 to 3: upgrade them to pharoah 0.2.0 or later" in status
    log = (places.root / f"tenant-{TENANTS}.log").read_text()
    assert "this tenant speaks protocol 1, the provider reads 2" in log
    assert "upgrade this tenant to a release of pharoah that speaks protocol 2 or later" in log
