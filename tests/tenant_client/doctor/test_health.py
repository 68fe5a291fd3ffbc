"""Growing memory, losses that do not fall, and what the observer makes of them.

Real jobs with an odd rank are in the study `odd-ranks`.
"""

import math
import random
from pathlib import Path

import pytest

from tenant_client.doctor.run.health import Health
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.host_memory import Growing, Growth, HostMemory, read_memory
from tenant_client.doctor.run.loss_trend import LossTrend
from tenant_client.doctor.run.watchdog import Kind
from tests.tenant_client.doctor.test_patterns import a_pattern

MIB = 1 << 20


def grown(amounts: list[float], available: float = 8 << 30) -> Growing | None:
    growth = Growth()
    found = None
    for number, amount in enumerate(amounts):
        found = growth.feed(2.0 * number, amount, available) or found
    return found


# ---- memory --------------------------------------------------------------------------------------------------------


def test_a_leak_is_found_with_its_rate_and_the_time_that_is_left() -> None:
    found = grown([1e9 + 10 * MIB * number for number in range(40)])
    assert found is not None
    assert found.bytes_s / MIB == pytest.approx(5.0, rel=0.1)
    assert found.full_in_s == pytest.approx((8 << 30) / found.bytes_s)


@pytest.mark.parametrize(
    "amounts",
    [
        [2e9 - 1.5e9 * math.exp(-number / 10) for number in range(400)],  # a cache fills up
        [1e9 + 10 * MIB * (number % 15) for number in range(400)],  # workers start anew with each epoch
        [1e9 + MIB * random.Random(number).gauss(0, 20) for number in range(400)],
        [1e9 + 0.01 * MIB * number for number in range(400)],  # would take weeks
    ],
)
def test_what_fills_up_or_comes_back_is_no_leak(amounts: list[float]) -> None:
    assert grown(amounts, available=64 << 30) is None


def test_the_workers_of_a_rank_are_counted_apart_from_it(tmp_path: Path) -> None:
    for pid, children, resident in ((10, "11 12", 500), (11, "13", 200), (12, "", 100), (13, "", 50)):
        (tmp_path / f"{pid}/task/{pid}").mkdir(parents=True)
        (tmp_path / f"{pid}/task/{pid}/children").write_text(children)
        (tmp_path / f"{pid}/statm").write_text(f"9999 {resident} 20 1 0 1 0\n")
    memory = read_memory(tmp_path, 10)
    assert (memory.own, memory.children) == (480 * 4096, (180 + 80 + 30) * 4096)
    assert read_memory(tmp_path, 99).own == 0.0


# ---- losses --------------------------------------------------------------------------------------------------------


def flat(losses: list[float], *, fresh: bool | None = True) -> bool:
    trend = LossTrend(losses[0], fresh=fresh)
    found = [trend.feed(10 * step, loss) for step, loss in enumerate(losses)]
    return any(found)


def noise(number: int) -> float:
    return random.Random(number).gauss(0.0, 0.05)


@pytest.mark.parametrize(("rate", "is_flat"), [(0.0, True), (0.02, False), (-0.01, True)])
def test_a_loss_that_does_not_fall_is_told_from_one_that_does(rate: float, is_flat: bool) -> None:  # noqa: FBT001
    assert flat([2.5 * math.exp(-rate * number) + noise(number) for number in range(200)]) is is_flat


def test_a_job_that_has_converged_is_well() -> None:
    assert not flat([2.5, *(0.1 + noise(number) for number in range(3000))])


def test_a_resumed_job_is_given_more_time() -> None:
    slowly = [2.5 - 0.0004 * number + noise(number) for number in range(1200)]
    assert flat(slowly[:200])
    assert not flat(slowly, fresh=False)


# ---- the observer --------------------------------------------------------------------------------------------------


def test_a_finding_is_told_once_with_its_rank_and_cleared(tmp_path: Path) -> None:
    health = Health(tmp_path, HostMemory(tmp_path))
    told = []
    for window in range(1, 9):
        slow_ms = 40.0 if window < 6 else 1.0
        ranks = [Progress(rank, 4711, 50 * window, 5.0 * window, "train", 1.0 / window, 0) for rank in (0, 1)]
        seen = [a_pattern(rank, window, compute=30.0, input=slow_ms if rank else 1.0) for rank in (0, 1)]
        told += health.feed(5.0 * window, ranks, seen)
    assert [(finding.kind, finding.ranks) for finding in told] == [(Kind.SLOW_FUNCTION, (1,))]
    assert health.findings[0].cleared_at_s is not None
