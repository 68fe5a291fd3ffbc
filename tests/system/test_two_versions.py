"""Real programs of two versions in one federation, upgraded one after the other, and a third that is too far away.

The versions are copies of this tree in which every message has gained a field (`tests.support.versions`).
"""

import json
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from federation.protocol.plan import HOURS_PER_WEEK
from simulation.run.processes import WEEKS, Places, founded, happen, last_week, running
from tests.support.versions import ROOT, Installed, installed

pytestmark = [pytest.mark.xdist_group("programs"), pytest.mark.nightly]  # three to six minutes

TENANTS, TRUSTEES = 4, 3
FIRST = last_week() + (1 - WEEKS) * HOURS_PER_WEEK
RELEASES = """
import sys; from contextlib import closing; from pathlib import Path
from provider_server.rounds.store.store import Store
with closing(Store(Path(sys.argv[1]), create=False)) as store:
    print([[made.plan.protocol, made.contributors] for made in store.releases()])
"""


@pytest.fixture(scope="module")
def one() -> Installed:
    """This version, from its sources."""
    return Installed(Path(sys.executable), ROOT)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The next version."""
    return installed(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The one after that, which reads the next one and not this one."""
    return installed(tmp_path_factory.mktemp("three"), 3)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """A federation founded by this version, with jobs in each week."""
    places = Places(tmp_path_factory.mktemp("federation"), TENANTS, TRUSTEES)
    with founded(places):
        happen(places, *(FIRST + week * HOURS_PER_WEEK for week in range(4)))
        yield places


@contextmanager
def upgraded(places: Places, to: Mapping[str, Installed]) -> Iterator[None]:
    """All programs, of which some are of another version."""
    wrapped = {name: version.wrapper for name, version in to.items()}
    with running(replace(places, wrapped=wrapped), print):
        yield


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


def test_organisations_upgrade_in_any_order_and_one_that_is_two_behind_is_left_out(
    places: Places, one: Installed, two: Installed, three: Installed
) -> None:
    with upgraded(places, {"tenant-1": two, "trustee-1": two}):
        assert hold(places, one, 0) == (1, TENANTS)
    assert reports(places) == [1] * TENANTS

    with upgraded(places, dict.fromkeys(("tenant-1", "trustee-1", "provider"), two)):
        assert hold(places, two, 1) == (1, TENANTS)
    assert reports(places) == [2] * TENANTS

    without_last = replace(places, tenants=TENANTS - 1)
    everybody = dict.fromkeys(without_last.programs, two)
    with upgraded(without_last, everybody):
        assert hold(places, two, 2) == (2, TENANTS - 1)
    assert reports(places) == [3] * (TENANTS - 1) + [2]

    with upgraded(places, everybody | {"provider": three}):
        assert hold(places, three, 3) == (2, TENANTS - 1)
        status = three.run("-m", "provider_server", "status", "--home", str(places.provider))
    assert reports(places) == [4] * (TENANTS - 1) + [2]
    assert "they speak protocol 1, this provider reads 2 to 3: upgrade them to pharoah 0.2.0 or later" in status
    log = (places.root / f"tenant-{TENANTS}.log").read_text()
    assert "this tenant speaks protocol 1, the provider reads 2" in log
    assert "upgrade this tenant to a release of pharoah that speaks protocol 2 or later" in log
