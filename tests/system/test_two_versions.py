"""Real programs of two versions in one federation, upgraded in every order, and a third that is too far away.

All are installed from wheels. The later versions are copies of this tree in which every message has gained a field, and
every database a step to its tables (`tests.support.versions`).
"""

import hashlib
import json
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

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

pytestmark = [pytest.mark.xdist_group("programs"), pytest.mark.nightly]  # six to ten minutes

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


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Installed]:
    """This version, the next one, and the one after that, which reads the next one and not this one."""
    return [installed(tmp_path_factory.mktemp(f"version-{number}"), number) for number in (1, 2, 3)]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    """A federation founded by this version, with jobs in each week."""
    places = Places(tmp_path / "federation", TENANTS, TRUSTEES)
    places.root.mkdir()
    with founded(places):
        happen(places, *(FIRST + week * HOURS_PER_WEEK for week in range(WEEKS)))
        yield places


def of_versions(places: Places, to: Mapping[str, Installed]) -> Places:
    """The same places, whose programs are of these versions."""
    return replace(places, wrapped={name: version.wrapper for name, version in to.items()})


def hold(places: Places, version: Installed, week: int) -> tuple[int, int]:
    """Holds a round; the protocol of its release, and how many contributed."""
    start_hour = FIRST + week * HOURS_PER_WEEK
    window = ["--start", str(start_hour), "--end", str(start_hour + HOURS_PER_WEEK)]
    version.run("-m", "provider_server", "rounds", "hold", "--home", str(places.provider), *window)
    releases = json.loads(version.run("-c", RELEASES, str(places.provider / "provider.db")))
    assert len(releases) == week + 1
    protocol, contributors = releases[-1]
    return protocol, contributors


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
    """Upgrades party after party, each time with all others running and a round afterwards, from any state again."""

    def __init__(self, places: Places, kept: Path, one: Installed, two: Installed) -> None:
        self._places, self._kept, self._one, self._two = places, kept, one, two
        self.seen: dict[State, Path] = {}  # homes of stopped programs
        self.edges: set[tuple[State, str]] = set()

    def begin(self) -> None:
        """The round before any upgrade."""
        with running(self._at(frozenset()), print):
            assert hold(self._places, self._one, 0) == (1, TENANTS)
        assert copies(self._places) == {}
        self._keep(frozenset())

    def left(self, state: State) -> list[str]:
        """Parties whose upgrade from a state was not tried yet."""
        return [party for party in PARTIES if party not in state and (state, party) not in self.edges]

    def go(self, state: State) -> None:
        """Starts everything in a state that was kept, and upgrades on until nothing is left, or a state is new to keep.

        From a state that has more ways out than in, walks must begin; through the others those that came go on.
        """
        shutil.rmtree(self._places.root)
        shutil.copytree(self.seen[state], self._places.root)
        with running(self._at(state), print) as programs, ExitStack() as upgraded:
            upgraded.callback(lambda: [end(process) for process in programs.values()])
            while (left := self.left(state)) and (len(state) >= len(PARTIES) / 2 or state in self.seen):
                self._upgrade(programs, state, left[0])
                self.edges.add((state, left[0]))
                state |= {left[0]}
        if self.left(state):
            self._keep(state)

    def _upgrade(self, programs: dict[str, subprocess.Popen[bytes]], state: State, party: str) -> None:
        before, ours = copies(self._places), self._at(state | {party})
        for name in PARTIES[party]:
            end(programs[name])
            programs[name] = start(ours, name)
        for name in PARTIES[party]:
            wait_until_ready(ours, name, programs[name])
        upgraded = state | {party}
        held = hold(self._places, self._two if "provider" in upgraded else self._one, len(upgraded))
        assert held == (2 if len(upgraded) == len(PARTIES) else 1, TENANTS), (state, party)
        assert reports(self._places) == [len(upgraded) + 1] * TENANTS, (state, party)
        after = copies(self._places)
        assert before.items() <= after.items()
        assert after.keys() - before.keys() == {copy_of(name) for name in PARTIES[party]}, (state, party)

    def _at(self, state: State) -> Places:
        versions = {name: self._two if party in state else self._one for party in PARTIES for name in PARTIES[party]}
        return of_versions(self._places, versions)

    def _keep(self, state: State) -> None:
        self.seen[state] = self._kept / str(len(self.seen))
        shutil.copytree(self._places.root, self.seen[state])


def test_organisations_upgrade_in_every_order_with_rounds_between(
    places: Places, versions: list[Installed], tmp_path: Path
) -> None:
    walk = Walk(places, tmp_path / "kept", *versions[:2])
    walk.begin()
    while begin := [state for state in walk.seen if walk.left(state)]:
        walk.go(begin[0])
    assert len(walk.edges) == len(PARTIES) * 2 ** (len(PARTIES) - 1)  # through which every order leads
    for state, homes in walk.seen.items():
        for name in (name for party in state for name in PARTIES[party]):
            refused(versions[0], homes / name)


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
        assert hold(places, one, 0) == (1, TENANTS)
    assert reports(places) == [1] * TENANTS

    without_last = replace(places, tenants=TENANTS - 1)
    upgraded = dict.fromkeys(without_last.programs, two)
    with running(of_versions(without_last, upgraded), print):
        assert hold(places, two, 1) == (2, TENANTS - 1)
    assert reports(places) == [2] * (TENANTS - 1) + [1]

    with running(of_versions(places, ones | upgraded | {"provider": three}), print):
        assert hold(places, three, 2) == (2, TENANTS - 1)
        status = three.run("-m", "provider_server", "status", "--home", str(places.provider))
    assert reports(places) == [3] * (TENANTS - 1) + [1]
    upgrades = {copy_of(name) for name in upgraded}
    assert copies(places).keys() == upgrades | {"provider/provider.db.version-0016"}
    assert "they speak protocol 1, this provider reads 2 to 3: upgrade them to pharoah 0.2.0 or later" in status
    log = (places.root / f"tenant-{TENANTS}.log").read_text()
    assert "this tenant speaks protocol 1, the provider reads 2" in log
    assert "upgrade this tenant to a release of pharoah that speaks protocol 2 or later" in log
