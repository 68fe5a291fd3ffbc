"""Hangs, slow ranks and bad losses are found from samples alone: not too early, not in a wrong phase, not twice."""

import math

import pytest
from hypothesis import given, strategies as st

from tenant_client.doctor.run.hook.progress import PHASES
from tenant_client.doctor.run.watchdog import Kind, Sample, Watch, WatchFinding, WatchLimits

LIMITS = WatchLimits(start_s=100.0, floor_s=20.0, factor=5.0, aside_s=200.0)


def steady(watch: Watch, *, steps: int = 10, step_s: float = 1.0, ranks: int = 2, from_s: float = 0.0) -> float:
    """Feeds steps that all ranks do together; returns when the last one was done."""
    for step in range(steps + 1):
        now_s = from_s + step * step_s
        phase = "train" if step else "start"
        found = watch.feed(now_s, [Sample(rank, step, phase, now_s) for rank in range(ranks)])
        assert not found
    return from_s + steps * step_s


def kinds(findings: list[WatchFinding]) -> list[str]:
    return [finding.kind for finding in findings]


def test_who_ended_by_itself_where_the_others_failed_is_told_after_a_failure_only() -> None:
    def ended(phases: list[str], *, failed: bool) -> list[WatchFinding]:
        watch = Watch(LIMITS, 0.0)
        now_s = steady(watch, ranks=len(phases))
        watch.feed(now_s + 1.0, [Sample(rank, 10, phase, now_s) for rank, phase in enumerate(phases)])
        return watch.finish(now_s + 2.0, failed=failed)

    (found,) = ended(["failed", "end", "train"], failed=True)
    assert (found.kind, found.ranks) == (Kind.UNEVEN_END, (1,))
    assert found.text == "rank 1 ended by itself (exit) at step 10, before the others"
    assert ended(["failed", "end", "train"], failed=False) == []
    assert ended(["failed", "end", "end"], failed=True) == []  # one that failed late
    assert ended(["failed", "failed", "train"], failed=True) == []


def test_the_step_of_a_bad_loss_is_the_one_at_which_it_was_read() -> None:
    watch = Watch(LIMITS, 0.0)
    now_s = steady(watch)
    for step in (24, 35):
        watch.feed(now_s + step, [Sample(0, step, "train", now_s + step, math.nan, bad_since=21)])
    assert "loss of rank 0 is nan since step 21" in [found.text for found in watch.findings]


# ---- hangs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step_s", "allowed_s"), [(1.0, 20.0), (10.0, 50.0)])
def test_a_steady_job_hangs_after_its_usual_steps_and_never_before_the_floor(step_s: float, allowed_s: float) -> None:
    watch = Watch(LIMITS, 0.0)
    stood_s = steady(watch, step_s=step_s)
    assert watch.feed(stood_s + allowed_s - 0.1, []) == []
    (hang,) = watch.feed(stood_s + allowed_s + 0.1, [])
    assert (hang.kind, hang.ranks, hang.step) == (Kind.HANG, (0, 1), 10)
    assert hang.text == f"both ranks stuck at step 10 for {allowed_s:.0f} s (limit {allowed_s:.0f} s)"


@pytest.mark.parametrize(
    ("phase", "step", "allowed_s"),
    [("start", 0, 100.0), ("train", 1, 100.0), ("eval", 10, 200.0), ("checkpoint", 10, 200.0)],
)
def test_each_phase_has_its_own_patience(phase: str, step: int, allowed_s: float) -> None:
    watch = Watch(LIMITS, 0.0)
    now_s = steady(watch) if step > 1 else 0.0
    watch.feed(now_s, [Sample(rank, step, phase, now_s) for rank in (0, 1)])
    assert watch.feed(now_s + allowed_s - 1.0, []) == []
    assert kinds(watch.feed(now_s + allowed_s + 1.0, [])) == ["hang"]


def test_one_rank_that_moves_is_no_hang_but_names_the_others() -> None:
    watch = Watch(LIMITS, 0.0)
    now_s = steady(watch, ranks=3)
    found = watch.feed(now_s + 30.0, [Sample(2, 40, "train", now_s + 30.0)])
    assert [(finding.kind, finding.ranks) for finding in found] == [(Kind.SLOW_RANK, (0, 1))]


def test_a_finding_stays_and_comes_back_only_after_it_has_passed() -> None:
    watch = Watch(LIMITS, 0.0)
    now_s = steady(watch)
    assert kinds(watch.feed(now_s + 30.0, [])) == ["hang"]
    assert watch.feed(now_s + 60.0, []) == []
    assert watch.feed(now_s + 61.0, [Sample(rank, 11, "train", now_s + 61.0) for rank in (0, 1)]) == []
    assert watch.findings[0].cleared_at_s == now_s + 61.0
    assert kinds(watch.feed(now_s + 1000.0, [])) == ["hang"]
    assert kinds(watch.findings) == ["hang", "hang"]


def test_a_job_that_has_ended_does_not_hang() -> None:
    watch = Watch(LIMITS, 0.0)
    now_s = steady(watch)
    watch.feed(now_s, [Sample(rank, 10, "end", now_s) for rank in (0, 1)])
    assert watch.feed(now_s + 1e6, []) == []


def test_a_restart_begins_anew() -> None:
    watch = Watch(LIMITS, 0.0)
    now_s = steady(watch)
    watch.feed(now_s + 10.0, [Sample(rank, 0, "start", now_s + 10.0, restart=1) for rank in (0, 1)])
    assert watch.feed(now_s + 100.0, []) == []
    assert watch.steps == 0


def test_no_ranks_no_findings() -> None:
    assert Watch(LIMITS, 0.0).feed(1e9, []) == []


# ---- slow ranks ----------------------------------------------------------------------------------------------------


def lagging(lag_steps: float, *, feeds: int, watch: Watch, from_feed: int = 0) -> list[WatchFinding]:
    """Rank 1 of 4 is `lag_steps` behind in each feed; steps take one second."""
    found: list[WatchFinding] = []
    for feed in range(from_feed, from_feed + feeds):
        late = [0.0, lag_steps, 0.0, 0.0]
        found += watch.feed(feed + 50.0, [Sample(r, 40 + feed, "train", feed + 50.0 + late[r]) for r in range(4)])
    return found


def test_a_rank_that_is_always_behind_is_named_once() -> None:
    watch = Watch(LIMITS, 0.0)
    found = lagging(2.0, feeds=40, watch=watch)
    assert [(finding.kind, finding.ranks) for finding in found] == [(Kind.SLOW_RANK, (1,))]
    assert watch.findings[0].text == "rank 1 slows down the other ranks"
    lagging(0.0, feeds=20, watch=watch, from_feed=40)
    assert watch.findings[0].cleared_at_s is not None


def test_a_rank_that_is_half_a_step_behind_is_not() -> None:
    assert lagging(0.5, feeds=40, watch=Watch(LIMITS, 0.0)) == []


def test_a_rank_that_is_behind_now_and_then_is_not() -> None:
    watch = Watch(LIMITS, 0.0)
    found = [
        finding
        for feed in range(60)
        for finding in lagging(2.0 * (feed % 3 == 0), feeds=1, watch=watch, from_feed=feed)
    ]
    assert found == []


def test_a_report_that_is_late_is_no_slow_rank() -> None:
    """Ranks report at different moments of the same pace: what counts is the step at that time."""
    watch = Watch(LIMITS, 0.0)
    for now_s in range(1, 60):
        late = now_s - 0.9
        samples = [Sample(0, 10 * now_s, "train", float(now_s)), Sample(1, int(10 * late), "train", late)]
        assert watch.feed(float(now_s), samples) == []


# ---- losses --------------------------------------------------------------------------------------------------------


def trained(watch: Watch, losses: list[float], *, from_step: int = 1) -> list[WatchFinding]:
    """One loss in ten steps, as the hook reads them."""
    found = []
    for number, loss in enumerate(losses, start=from_step):
        found += watch.feed(float(number), [Sample(0, 10 * number, "train", float(number), loss)])
    return found


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_stays_bad_is_found_and_one_that_passes_is_not(bad: float) -> None:
    assert trained(Watch(LIMITS, 0.0), [1.0, 0.9, bad, 0.8]) == []
    watch = Watch(LIMITS, 0.0)
    (found,) = trained(watch, [1.0, 0.9, bad, bad, bad])
    assert (found.kind, found.ranks) == (Kind.NAN_LOSS, (0,))
    assert found.text == f"loss of rank 0 is {bad} since step 30"
    trained(watch, [0.9], from_step=6)
    assert watch.findings[0].cleared_at_s == 6.0


def test_at_the_end_one_bad_loss_is_enough() -> None:
    watch = Watch(LIMITS, 0.0)
    assert trained(watch, [1.0, math.nan]) == []
    assert kinds(watch.finish(3.0)) == ["nan_loss"]


def test_a_spike_stands_out_from_the_noise_around_it() -> None:
    noisy = [2.0 + 0.1 * math.sin(7.0 * number) for number in range(40)]
    assert trained(Watch(LIMITS, 0.0), [*noisy, 2.3, 2.2, 2.3]) == []
    assert trained(Watch(LIMITS, 0.0), [*noisy, 9.0, 2.0, 2.1]) == []
    watch = Watch(LIMITS, 0.0)
    (found,) = trained(watch, [*noisy, 9.0, 9.5])
    assert found.kind is Kind.LOSS_SPIKE
    assert "loss of rank 0 rose to 9.5" in found.text
    trained(watch, [2.0], from_step=43)
    assert watch.findings[0].cleared_at_s is not None


def test_a_falling_loss_is_no_spike() -> None:
    assert trained(Watch(LIMITS, 0.0), [10.0 * 0.9**number for number in range(100)]) == []


# ---- anything ------------------------------------------------------------------------------------------------------

SAMPLES = st.builds(
    Sample,
    rank=st.integers(0, 3),
    step=st.integers(0, 1 << 40),
    phase=st.sampled_from(PHASES),
    updated_at_s=st.floats(allow_nan=False, allow_infinity=False),
    loss=st.none() | st.floats(),
    restart=st.integers(0, 2),
)


@given(st.lists(st.tuples(st.floats(0, 1e10), st.lists(SAMPLES, max_size=6)), max_size=30))
def test_any_samples_are_judged_and_no_kind_is_open_twice(feeds: list[tuple[float, list[Sample]]]) -> None:
    watch = Watch(LIMITS, 0.0)
    for now_s, samples in feeds:
        watch.feed(now_s, samples)
    open_kinds = [finding.kind for finding in watch.findings if finding.cleared_at_s is None]
    assert len(open_kinds) == len(set(open_kinds))
