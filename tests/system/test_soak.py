"""What a soak rests on: its clocks move programs and no waiting, a leak is seen as one, alerts are Prometheus' own."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.soak.alerts import Scrapes, firing
from tests.soak.clock import Clocks
from tests.soak.readings import Reading, slope

DAY_S = 86_400
ASKED = "import sys, time; [print(int(time.time()), time.monotonic(), flush=True) for _ in sys.stdin]"


def test_a_clock_moves_while_its_program_runs_and_waiting_does_not(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path / "clocks")
    command = [*clocks.prefix("one"), sys.executable, "-c", ASKED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def told() -> tuple[int, float]:
            process.stdin.write("\n")  # type: ignore[union-attr]  # it is there
            process.stdin.flush()  # type: ignore[union-attr]
            wall, monotonic = process.stdout.readline().split()  # type: ignore[union-attr]
            return int(wall), float(monotonic)

        first = told()
        clocks.move(400 * DAY_S)
        moved = told()
        clocks.step("one", -3600)
        stepped = told()
        process.stdin.close()
    assert 0 <= moved[0] - first[0] - 400 * DAY_S < 60
    assert -60 < stepped[0] - moved[0] + 3600 < 60
    assert 0.0 <= stepped[1] - first[1] < 60.0
    assert abs(clocks.now() - 3600 - stepped[0]) < 60


def lives(growth: float, chance: random.Random) -> list[Reading]:
    """Three processes over forty weeks, each of which grows by so much a week after a quick beginning."""
    return [
        Reading(week, "tenant-1", pid, 90.0 + 5 * pid + min(week, 3) * 4 + growth * week + chance.gauss(0, 0.5), 20, 9)
        for pid in range(3)
        for week in range(40)
    ]


def test_a_leak_is_told_from_what_is_flat() -> None:
    chance = random.Random(4)
    flat, leaks = slope(lives(0.0, chance), "memory"), slope(lives(0.05, chance), "memory")
    assert flat is not None
    assert leaks is not None
    assert flat.low < 0.0 < flat.high
    assert 0.0 < leaks.low < leaks.value < 7.0
    assert leaks.lives == 3
    assert slope(lives(0.0, chance)[:8], "memory") is None


@pytest.mark.xdist_group("prometheus")
def test_an_alert_is_firing_once_a_moved_clock_left_it_long_enough() -> None:
    needs.program("prometheus")
    well, away = (f'pharoah_trustee_up{{trustee="3"}} {up}\n' for up in (1, 0))
    scrapes, begin = Scrapes(), 2_000_000_000.0
    for week in range(12):
        now = begin + 7 * DAY_S * week
        scrapes.add(now, well)
        scrapes.add(now + 2, None if week == 3 else away if week == 4 else well)
        scrapes.add(now + 4, None if week == 8 else away if week == 5 else well)
    trustee, provider = firing(scrapes)
    assert (trustee.alert, provider.alert) == ("PharoahTrusteeAway", "PharoahProviderDown")
    for fired, week, after_s in ((trustee, 5, 3600), (provider, 8, 300)):
        assert 0 <= fired.from_s - (begin + 7 * DAY_S * week + after_s) <= 1200
        assert 0 <= begin + 7 * DAY_S * (week + 1) - fired.until_s <= 600
