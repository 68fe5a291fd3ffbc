"""A round outlives whoever is killed: at every write and every commit of a provider, a tenant or a trustee.

The killing is done by `tests/support/deaths.py`, in real processes with SIGKILL; what must hold afterwards is in
`tests/support/federations.py`, `complaints`.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.federations import WEEKS, Grounds, Witness, begin, complaints, fail, hold

pytestmark = pytest.mark.xdist_group("deaths")  # they share one process

MEMORY = Path("/dev/shm")  # noqa: S108 - Linux's file system in memory
Ask = Callable[..., dict[str, Any]]

WRITTEN = {
    "provider": {
        *("directory", "leases", "ownerships", "rounds", "contributions", "answers"),
        *("releases", "notes", "bundles", "node_keys", "revoked", "links"),
    },
    "tenant": {
        *("asked", "tokens", "registrations", "units", "sizes", "failures", "directory", "told"),
        *("charges", "epoch_windows", "secrets", "outbox", "refused", "bundles"),
    },
    "trustee": {
        *("directory", "joined", "evaluations", "evaluated", "endorsed", "opened"),
        *("epochs", "places", "served"),
    },
}


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Puts one line to the program that kills; its answer. In memory: what was written outlives a killed process."""
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with (
        TemporaryDirectory(dir=memory) as folder,
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.deaths", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def put(*words: object) -> dict[str, Any]:
            stdin.write(" ".join(map(str, words)) + "\n")
            stdin.flush()
            answer: dict[str, Any] = json.loads(stdout.readline())
            return answer

        yield put
        stdin.close()


def tables(points: list[str]) -> set[str]:
    """What is written to; each write and each commit is met twice."""
    assert [point.partition(" ")[0] for point in points] == ["before", "after"] * (len(points) // 2)
    return {point.split()[2] for point in points if "COMMIT" not in point}


@pytest.mark.nightly  # by day the provider dies, at every fifteenth
@pytest.mark.parametrize(("role", "week"), [("provider", 1), ("tenant", 0), ("trustee", 0)])
def test_the_week_survives_the_death_of_all_at_every_write(ask: Ask, role: str, week: int) -> None:
    seen = ask("all", role, week, 0, 1)
    assert seen["complaints"] == []
    assert seen["died"] == seen["chosen"] == len(seen["points"])
    assert tables(seen["points"]) == WRITTEN[role]


def test_in_its_first_week_the_provider_survives_as_well(ask: Ask) -> None:
    seen = ask("all", "provider", 0, 2, 15)  # every fifteenth point: before and after in turn
    assert seen["complaints"] == []
    assert seen["died"] == seen["chosen"] > 5
    assert tables(seen["points"]) == WRITTEN["provider"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("role", "written"),
    [
        (
            "tenant",
            {
                *("directory", "told", "charges", "epoch_windows", "endorsed_sets", "secrets", "outbox", "refused"),
                *("bundles", "published"),
            },
        ),
        ("trustee", {"directory", "joined", "endorsed", "epochs", "places", "served", "opened"}),
    ],
)
def test_one_party_dies_at_every_write_and_the_others_go_on(ask: Ask, role: str, written: set[str]) -> None:
    """A week goes on without the tenant, who takes part in the next one; for the trustee it waits."""
    seen = ask("alone", role, 1, 0, 1)
    assert seen["complaints"] == []
    assert seen["died"] == seen["chosen"] == len(seen["points"])
    assert tables(seen["points"]) == written


@pytest.mark.nightly
@pytest.mark.parametrize("week", [0, 1])
def test_two_parties_die_in_one_week(ask: Ask, week: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    seen = ask("twice", seed, week, 8)
    assert seen["complaints"] == []
    assert seen["died"] >= 8  # the first of two dies always, the second if its point was not passed before


def test_a_tenant_that_forgets_what_it_sent_is_seen(ask: Ask) -> None:
    """The provider dies while it collects, so the tenant is asked again: with other noise."""
    seen = ask("all", "provider", 0, 0, 14, "forgetful")
    assert any("contribution 0" in complaint and "2 different ones" in complaint for complaint in seen["complaints"])


def test_what_must_hold_does_not_hold_before_the_week_nor_after_half_of_it(tmp_path: Path) -> None:
    grounds = Grounds.founded(tmp_path, 4)
    with grounds.opened(tmp_path) as federation:
        for number in range(4):
            begin(federation, number)
            fail(federation, number)
        nothing = ["0 releases of the week", *(f"tenant {number} was charged 0 times" for number in range(4))]
        assert complaints(federation, WEEKS[0], {}) == [*nothing, "the week has no bundle"]
        hold(federation, WEEKS[0], silent=[2])
        assert complaints(federation, WEEKS[0], {}) == ["the tenants [2] are missing", "tenant 2 was charged 0 times"]
        assert complaints(federation, WEEKS[0], {}, missing=frozenset({2})) == []
        assert complaints(federation, WEEKS[0], {"contribution 1": {"a", "b"}}, missing=frozenset({2})) == [
            "contribution 1: 2 different ones"
        ]
        assert Witness(tmp_path / "nothing").seen() == {}
