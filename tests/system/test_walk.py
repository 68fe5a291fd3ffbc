"""A random walk over everything that may go wrong with members: nothing is lost, charged twice or counted wrong.

PHAROAH_WALK_SEED=7 python -m pytest -m "" tests/system/test_walk.py     # goes the same way again
"""

import os
import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from crypto.codec import encode
from federation.protocol.round_messages import Unheard
from provider_server.rounds.provider import Provider
from provider_server.rounds.release import Release
from tenant_client.rounds.tenant import Tenant
from tests.support.walk import DISKS, EPOCH, TENANTS, WEEKS, Kind, Operation, a_walk, scenario

MEMORY = Path("/dev/shm")  # noqa: S108 - Linux's file system in memory
OPERATIONS = 1_000

BAD_WEEKS = [
    Operation(Kind.CUT_TENANT, 2, 2),  # its answer is lost: charged and not heard
    Operation(Kind.KILL_PROVIDER, 0, 24),
    Operation(Kind.HOLD),
    Operation(Kind.TRUSTEE_AWAY, 3),
    Operation(Kind.HOLD),
    Operation(Kind.KILL_TENANT, 5, 4),
    Operation(Kind.JOIN),
    Operation(Kind.HOLD),
    Operation(Kind.TRUSTEE_BACK),
    Operation(Kind.FILL_TRUSTEE, 3, 1),
    Operation(Kind.HOLD),
    Operation(Kind.KILL_TRUSTEE, 2, 2),
    Operation(Kind.HOLD),
    Operation(Kind.LOSE_TRUSTEE, 4),
    Operation(Kind.LEAVE, 1),
    Operation(Kind.FILL_PROVIDER, 0, 4),
    Operation(Kind.SKEW, 0, 1),
    Operation(Kind.HOLD),
    Operation(Kind.RESTART),
]


def gone(operations: list[Operation], tenants: int = TENANTS) -> tuple[Counter[Kind], Counter[Kind], list[Release]]:
    """Plays a scenario on a new federation and holds it to what must hold: what was done, what was met, releases."""
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with TemporaryDirectory(dir=memory) as folder, a_walk(Path(folder) / "home", tenants) as walk:
        for number, (operation, complaints) in enumerate(walk.play(operations)):
            assert complaints == [], f"after {operations[: number + 1]}, of which {operation} is the last"
        assert walk.ended() == [], f"after {operations}"
        return walk.done, walk.met, walk.provider.releases()


def rescued(releases: list[Release]) -> int:
    """How many answers of second openings count weeks that the first had missed."""
    second = [made for made in releases if made.plan.is_second]
    answers = (one for made in second for one in made.answered if one.start_hour < made.plan.end_hour)
    return len([*answers, *(late for made in second for late in made.late)])


def test_a_bad_spring() -> None:
    done, met, released = gone(BAD_WEEKS, tenants=6)
    assert [release.plan.is_second for release in released] == [False] * 8
    assert done.total() == len(BAD_WEEKS)
    assert set(met) == {one.kind for one in BAD_WEEKS if one.kind in DISKS}


def test_what_is_lost_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tenant whose answer was lost repeats it to nobody."""
    monkeypatch.setattr(Tenant, "repeat", lambda _tenant, _payload: encode(Unheard(())))
    with a_walk(tmp_path / "home", tenants=4) as walk:
        for operation in (Operation(Kind.CUT_TENANT, 2, 0), Operation(Kind.HOLD)):
            walk.happen(operation)
        assert walk.complaints() == []
        assert walk.ended() == ["the weeks [0] of tenant 2 are lost"]


LAST_OF_AN_EPOCH = [
    *[Operation(Kind.HOLD)] * (EPOCH - 1),
    Operation(Kind.LOSE_TRUSTEE, 4),
    Operation(Kind.CUT_TENANT, 2, 0),  # its answer is lost
    Operation(Kind.CUT_TENANT, 3, 1),  # it is not asked
    Operation(Kind.HOLD),
    Operation(Kind.KILL_PROVIDER, 0, 30),
    Operation(Kind.HOLD),
]


def test_what_misses_the_last_opening_of_an_epoch_counts_in_the_second() -> None:
    _, _, released = gone(LAST_OF_AN_EPOCH, tenants=6)
    assert [release.plan.is_second for release in released] == [*[False] * EPOCH, True, *[False] * (WEEKS - EPOCH)]
    assert rescued(released) == 2


def test_it_would_be_lost_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Provider, "unheard_weeks", lambda _provider: None)
    with a_walk(tmp_path / "home", tenants=6) as walk:
        for operation in LAST_OF_AN_EPOCH:
            walk.happen(operation)
        lost = EPOCH - 1
        assert walk.ended() == [f"the weeks [{lost}] of tenant {number} are lost" for number in (2, 3)]


@pytest.mark.nightly
def test_an_answer_to_an_opening_that_waited_counts_in_the_second_one() -> None:
    """The second was collected while the first waited for a trustee: too early for what was lost of the first."""
    gone(scenario(1438809637, 60))


@pytest.mark.nightly  # two minutes of processor time
def test_a_thousand_operations_lose_nothing() -> None:
    seed = int(os.environ.get("PHAROAH_WALK_SEED") or random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    done, met = Counter[Kind](), Counter[Kind]()
    released, walks = list[Release](), 0
    while done.total() < OPERATIONS:
        new, took, made = gone(scenario(seed + walks, 60))
        done, met, released, walks = done + new, met + took, released + made, walks + 1
    second = sum(release.plan.is_second for release in released)
    print(  # noqa: T201
        f"{done.total()} operations in {walks} walks, {len(released)} releases, {second} of them second openings with"
        f" {rescued(released)} answers that had missed the first: {dict(done)}, of which met {dict(met)}"
    )
    assert rescued(released) > 0
    assert set(met) == DISKS
    assert set(done) == set(Kind)
