"""A random walk over everything that may go wrong with members: nothing is lost, charged twice or counted wrong.

PHAROAH_WALK_SEED=7 python -m pytest -m "" tests/system/test_walk.py     # goes the same way again
"""

import os
import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from crypto.codec import digest, encode
from federation.protocol.round_messages import Receipt
from provider_server.fleet.release import Release
from tenant_client.rounds.tenant import Tenant
from tests.support.exactness import weeks_counted
from tests.support.walk import DISKS, EPOCH, TENANTS, WEEKS, Kind, Operation, a_walk, scenario

MEMORY = Path("/dev/shm")  # noqa: S108 - Linux's file system in memory
OPERATIONS = 1_000

BAD_WEEKS = [
    Operation(Kind.CUT_TENANT, 2, 2),  # its answer is lost: charged and not heard
    Operation(Kind.KILL_PROVIDER, 0, 24),
    Operation(Kind.HOLD),
    Operation(Kind.TRUSTEE_AWAY, 3),
    Operation(Kind.HOLD),
    Operation(Kind.JOIN),
    Operation(Kind.HOLD),
    Operation(Kind.TRUSTEE_BACK),
    Operation(Kind.HOLD),
    Operation(Kind.KILL_TENANT, 5, 4),
    Operation(Kind.FILL_TRUSTEE, 3, 1),
    Operation(Kind.HOLD),
    Operation(Kind.KILL_TRUSTEE, 2, 1),
    Operation(Kind.HOLD),
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
        return walk.done, walk.met, walk.provider.store.releases()


def rescued(releases: list[Release]) -> int:
    """How many answers count weeks that an earlier round had missed."""
    return sum(one.start_hour < made.plan.start_hour for made in releases for one in made.answered)


def test_a_bad_spring() -> None:
    done, met, released = gone(BAD_WEEKS, tenants=6)
    assert [release.plan.start_hour // 168 for release in released] == list(range(WEEKS))
    assert rescued(released) > 0
    assert done.total() == len(BAD_WEEKS)
    assert set(met) == {one.kind for one in BAD_WEEKS if one.kind in DISKS}


def test_what_is_lost_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tenant that forgets who was counted does not count again what nobody got."""
    monkeypatch.setattr(Tenant, "end", lambda _tenant, payload: encode(Receipt(digest(payload))))
    with a_walk(tmp_path / "home", tenants=4) as walk:
        for operation in (Operation(Kind.CUT_TENANT, 2, 0), Operation(Kind.HOLD)):
            walk.happen(operation)
        assert walk.complaints() == []
        assert walk.ended() == ["the weeks [0] of tenant 2 are lost"]


LOST_WHILE_IT_WAITS = [
    Operation(Kind.TRUSTEE_AWAY, 3),
    Operation(Kind.HOLD),
    Operation(Kind.LOSE_TRUSTEE, 4),
    Operation(Kind.HOLD),
    Operation(Kind.TRUSTEE_BACK),
    Operation(Kind.HOLD),
]


def test_a_round_that_is_given_up_counts_in_the_next() -> None:
    _, _, released = gone(LOST_WHILE_IT_WAITS, tenants=6)
    assert len(released) == WEEKS - 1
    assert rescued(released) == 6


def test_what_misses_the_last_window_of_an_epoch_is_not_counted_in_the_next_epoch(tmp_path: Path) -> None:
    with a_walk(tmp_path / "home", tenants=6) as walk:
        for operation in (
            *[Operation(Kind.HOLD)] * (EPOCH - 1),
            Operation(Kind.CUT_TENANT, 2, 0),
            Operation(Kind.HOLD),
        ):
            walk.happen(operation)
        assert walk.ended() == []
        counted = weeks_counted(walk.provider.store.releases())
        assert counted[walk.tenants[2].id] == set(range(WEEKS)) - {EPOCH - 1}
        assert counted[walk.tenants[3].id] == set(range(WEEKS))


@pytest.mark.nightly  # two minutes of processor time
def test_a_thousand_operations_lose_nothing() -> None:
    seed = int(os.environ.get("PHAROAH_WALK_SEED") or random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    done, met = Counter[Kind](), Counter[Kind]()
    released, walks = list[Release](), 0
    while done.total() < OPERATIONS:
        new, took, made = gone(scenario(seed + walks, 60))
        done, met, released, walks = done + new, met + took, released + made, walks + 1
    print(  # noqa: T201
        f"{done.total()} operations in {walks} walks, {len(released)} releases with {rescued(released)} answers that"
        f" count earlier weeks: {dict(done)}, of which met {dict(met)}"
    )
    assert rescued(released) > 0
    assert set(met) == DISKS
    assert set(done) == set(Kind)
