"""The four syndromes, from timelines that are written down here: who is named, when, and when nobody is."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tenant_client.doctor.run.hook.answers import (
    RECORDS,
    STACK,
    answer_forever,
    connected,
    hand_over,
    make_page,
    stack_file,
)
from tenant_client.doctor.run.hook.cell import (
    OUTSIDE,
    RECORDS as KEPT,
    SIZE,
    WAIT,
    Cell,
    CellState,
    StepRecord,
    Who,
    decode,
)
from tenant_client.doctor.run.hook.whereabouts import Whereabouts
from tenant_client.doctor.run.syndromes import links, waits
from tenant_client.doctor.run.syndromes.hangs import HangLimits, blamed, judge
from tenant_client.doctor.run.syndromes.links import stalled, under_way
from tenant_client.doctor.run.syndromes.process import Activity, pressure_percent
from tenant_client.doctor.run.syndromes.ranks import Ranks
from tenant_client.doctor.run.syndromes.reports import Reports
from tenant_client.doctor.run.syndromes.slowness import SlowLimits, Slowness
from tenant_client.doctor.run.syndromes.stacks import by_signal
from tenant_client.doctor.run.syndromes.views import Doing, Link, RankView, Syndrome, Verdict, Waiting
from tenant_client.doctor.run.syndromes.watch import Syndromes, aside_of, sentence
from tenant_client.doctor.run.watchdog import Kind
from tests.support.waiting import until

LIMITS = HangLimits()
IDLE, BUSY = Doing(), Doing(cores=1.0)
WAITS_FOR_1 = Waiting(missing=frozenset({1}), waiting=frozenset({0, 2}))


# ---- the cell ------------------------------------------------------------------------------------------------------


def a_cell(rank: int = 0, world: int = 2) -> Cell:
    return Cell(bytearray(SIZE), Who(rank, world, 4711, 4712, 0), now_ns=0)


def test_where_a_rank_is_follows_from_what_it_was_seen_in() -> None:
    where = Whereabouts()
    where._cell = cell = a_cell()

    def state() -> CellState:
        found = decode(cell.page)
        assert found is not None
        return found

    where.step(1, 10.0)
    where.saw("compute", 1, 50, 50)
    moved = state().entries
    where.saw("compute", 1, 50, 50)  # nothing tells a rank that computes from one that loops
    assert (state().place, state().entries) == ("outside", moved)
    for took_ns, cpu_ns in ((200_000, 0), (300_000, 10_000), (400_000, 390_000)):  # blocked, blocked, spinning
        where.saw("collective", 1, took_ns, cpu_ns)
    assert (state().place, state().entries) == ("wait", moved + 1)
    where.saw("collective", 1, 300_000, 100_000)  # it has gone on to another one
    assert state().entries == moved + 2
    where.saw("backward", 1, 1_000_000, 300_000)
    where.phase("eval")
    where.saw("compute", 1, 70, 70)
    assert state().place == "eval"
    where.step(2, 11.0)
    assert state().records[-1] == StepRecord(2, int(11e9), 1_200_000 + 700_000, 70, 8)


def test_records_of_short_steps_are_of_whole_stretches() -> None:
    where = Whereabouts()
    where._cell = cell = a_cell()
    now_s = 100.0
    for step in range(1, 801):
        now_s += 0.06 if step <= 400 else 1.5
        where.step(step, now_s)
        if step in (400, 420):
            found = decode(cell.page)
            assert found is not None
            ends = [record.step for record in found.records]
            if step == 400:
                assert ends[-10:] == list(range(400 - 16 * 9, 401, 16))
            else:
                assert ends[-8:] == list(range(413, 421))


def test_the_newest_steps_are_kept() -> None:
    cell = a_cell()
    for step in range(1, 3 * KEPT):
        cell.record(StepRecord(step, step, 0, 0, 0))
    found = decode(cell.page)
    assert found is not None
    assert [record.step for record in found.records] == list(range(2 * KEPT, 3 * KEPT))


def test_a_half_written_cell_and_a_foreign_page_are_not_believed() -> None:
    cell = a_cell()
    page = bytearray(cell.page)
    page[64] ^= 1  # since when, and not since when again
    assert decode(page) is None
    assert decode(bytearray(SIZE)) is None
    cell.void()
    assert decode(cell.page) is None


# ---- hangs ---------------------------------------------------------------------------------------------------------


def view(rank: int, place: str, *, doing: Doing = IDLE, since_s: float = 0.0, aside: str = "") -> RankView:
    return RankView(rank, place, since_s, 7, 70, doing, aside)


def three(one: RankView) -> dict[int, RankView]:
    """Rank 1 as given, the others waiting."""
    return {0: view(0, "wait"), 1: one, 2: view(2, "wait")}


@pytest.mark.parametrize(
    ("one", "undecided_from_s", "hang_from_s"),
    [
        (view(1, "outside", doing=Doing(stopped=True)), None, 5.0),
        (view(1, "loader", doing=Doing(stopped=True)), None, 5.0),
        (view(1, "outside"), None, 8.0),
        (view(1, "backward"), None, 8.0),
        (replace(view(1, "outside"), answered=False), 8.0, 24.0),
        (view(1, "outside", aside="loader"), 8.0, 180.0),
        (view(1, "loader"), 8.0, 180.0),
        (view(1, "checkpoint"), 8.0, 180.0),
        (view(1, "outside", doing=Doing(in_disk_wait=True)), 8.0, 180.0),
        (view(1, "outside", doing=BUSY), 8.0, 600.0),
        (view(1, "loader", doing=Doing(bytes_per_s=1e6)), 8.0, 600.0),
    ],
)
def test_how_long_a_rank_may_keep_others_waiting(
    one: RankView, undecided_from_s: float | None, hang_from_s: float
) -> None:
    said = {now_s: judge(float(now_s), three(one), WAITS_FOR_1, LIMITS) for now_s in range(700)}
    hangs = [now_s for now_s, found in said.items() if found and found.syndrome is Syndrome.NON_COMMUNICATION_HANG]
    assert hangs == list(range(int(hang_from_s), 700))
    undecided = [now_s for now_s, found in said.items() if found and found.syndrome is Syndrome.UNDECIDED]
    assert undecided == ([] if undecided_from_s is None else list(range(int(undecided_from_s), int(hang_from_s))))
    assert {found.ranks for found in said.values() if found} == {(1,)}


def test_a_job_that_is_stopped_as_a_whole_does_not_hang() -> None:
    views = {rank: view(rank, "outside", doing=Doing(stopped=True)) for rank in range(3)}
    assert judge(1000.0, views, Waiting(), LIMITS) is None


def test_all_in_one_collective_is_the_communication() -> None:
    views = {rank: view(rank, "wait") for rank in range(4)}
    stuck = Waiting(stuck=frozenset(views), waiting=frozenset(views))
    assert judge(7.0, views, stuck, LIMITS) is None
    nobody = judge(11.0, views, stuck, LIMITS)
    assert nobody == Verdict(Syndrome.COMMUNICATION_HANG, (), nobody.why if nobody else "")
    link = judge(11.0, views, stuck, LIMITS, [Link(3, 1)])
    assert link is not None
    assert (link.ranks, link.link) == ((1, 3), Link(3, 1))
    rank = judge(11.0, views, stuck, LIMITS, [Link(3, 1), Link(0, 3), Link(3, None)])
    assert rank is not None
    assert rank.ranks == (3,)


def test_on_a_crowded_host_ranks_that_wait_for_a_processor_do_not_hang() -> None:
    stuck = Waiting(stuck=frozenset({0, 1}), waiting=frozenset({0, 1}))
    for doing, crowded, said in ((BUSY, True, Syndrome.UNDECIDED), (IDLE, True, Syndrome.COMMUNICATION_HANG)):
        found = judge(11.0, {0: view(0, "wait"), 1: view(1, "wait", doing=doing)}, stuck, LIMITS, crowded=crowded)
        assert found is not None
        assert found.syndrome is said
    spinning = judge(11.0, {rank: view(rank, "wait", doing=BUSY) for rank in range(2)}, stuck, LIMITS)
    assert spinning is not None
    assert spinning.syndrome is Syndrome.COMMUNICATION_HANG


def test_a_rank_that_calls_something_else_is_named() -> None:
    views = {rank: view(rank, "wait") for rank in range(3)}
    found = judge(11.0, views, Waiting(differing=frozenset({2}), waiting=frozenset({0, 1})), LIMITS)
    assert found is not None
    assert (found.syndrome, found.ranks) == (Syndrome.MISMATCHED_COLLECTIVE, (2,))


def test_two_ranks_that_do_not_call_the_same_are_told_with_their_calls() -> None:
    def records(operation: str, size: int) -> bytes:
        call: dict[str, object] = {"collective_seq_id": 7, "p2p_seq_id": 0, "op_id": 7, "record_id": 6, "pg_id": 0}
        call |= {"process_group": ["0", "default_pg"], "profiling_name": operation, "state": "scheduled"}
        call |= {f"{way}_sizes": [[size]] for way in ("input", "output")}
        call |= {f"{way}_dtypes": ["Float"] for way in ("input", "output")}
        call |= {"time_created_ns": 1, "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0}
        call["is_p2p"] = False
        group = {"desc": "default_pg", "name": "0", "ranks": "[0, 1]"}
        return json.dumps({"version": "2.10", "entries": [call], "pg_config": {"0": group}, "pg_status": {}}).encode()

    views = {rank: view(rank, "wait") for rank in range(2)}
    for operation, size in (("broadcast", 4), ("all_reduce", 5)):
        waiting = waits.of(views, {0: records("gloo:all_reduce", 4), 1: records(f"gloo:{operation}", size)})
        assert waiting is not None
        assert judge(7.0, views, waiting, LIMITS) is None  # not for long enough
        found = judge(11.0, views, waiting, LIMITS)
        assert found is not None
        assert (found.syndrome, found.ranks) == (Syndrome.MISMATCHED_COLLECTIVE, (0, 1))
        shown = f"rank 0: all_reduce [4] -> [4] Float; rank 1: {operation} [{size}] -> [{size}] Float"
        assert found.why == f"the ranks do not call the same: {shown} (seq 7, group default_pg)"


def test_of_a_stack_the_jobs_own_lines_are_shown_and_what_they_called() -> None:
    own = "<module> (/data/a/train.py:9)\nmain (/data/a/train.py:7)"
    torch = f"{own}\nwrapper (/x/lib/python3.12/functools.py:83)\nall_reduce (/x/site-packages/torch/d.py:5)"
    said = Verdict(Syndrome.COMMUNICATION_HANG, (0, 1), "they wait")
    told = sentence(said, {0: torch, 1: own, 2: "step (/x/site-packages/torch/optim.py:5)"})
    first, second = "rank 0 at all_reduce < main (train.py:7)", "rank 1 at main (train.py:7) < <module> (train.py:9)"
    assert told == f"they wait; {first}; {second}; rank 2 at step (optim.py:5)"


def test_peers_that_have_only_begun_to_wait_accuse_nobody() -> None:
    views = three(view(1, "outside")) | {0: view(0, "wait", since_s=8.0), 2: view(2, "wait", since_s=9.0)}
    assert judge(15.0, views, WAITS_FOR_1, LIMITS) is None
    assert judge(17.5, views, WAITS_FOR_1, LIMITS) is not None


def test_long_steps_are_given_time() -> None:
    records = tuple(StepRecord(step, int(20e9 * step), 0, 0, 0) for step in range(1, 8))
    views = {rank: replace(one, records=records) for rank, one in three(view(1, "outside")).items()}
    assert judge(19.0, views, WAITS_FOR_1, LIMITS) is None
    assert judge(21.0, views, WAITS_FOR_1, LIMITS) is not None


@pytest.mark.parametrize(
    ("bad", "ranks"),
    [([], ()), ([Link(0, 1), Link(1, 0)], (0, 1)), ([Link(0, 1), Link(2, 3)], ()), ([Link(2, None)], (2,))],
)
def test_who_is_at_the_ends_of_bad_links(bad: list[Link], ranks: tuple[int, ...]) -> None:
    assert blamed(bad)[0] == ranks


def test_functions_tell_where_a_rank_is_and_files_do_not() -> None:
    assert aside_of("<module> (train.py:9)\nnext_batch (feed.py:2)\nget (queue.py:171)") == "loader"
    assert aside_of("<module> (train.py:9)\nsave_checkpoint (x.py:2)") == "checkpoint"
    assert aside_of("<module> (eval_batch_loader.py:9)\nmain (save.py:3)") == ""


def test_how_short_of_processors_a_host_is(tmp_path: Path) -> None:
    pressure = tmp_path / "cpu"
    assert pressure_percent(pressure) == 0.0
    pressure.write_text("some avg10=61.21 avg60=3.00 avg300=0.00 total=1\nfull avg10=0.00\n")
    assert pressure_percent(pressure) == 61.21


@pytest.mark.parametrize(("percent", "said"), [(50.0, Syndrome.NON_COMMUNICATION_SLOW), (90.0, Syndrome.UNDECIDED)])
def test_where_somebody_always_waits_for_a_processor_nobody_is_called_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, percent: float, said: Syndrome
) -> None:
    watch = Syndromes(tmp_path)
    slow = Verdict(Syndrome.NON_COMMUNICATION_SLOW, (1,), "rank 1 is slow")
    states = {rank: decode(a_cell(rank).page) for rank in range(2)}
    monkeypatch.setattr(watch._ranks, "states", lambda: states)
    monkeypatch.setattr(watch._slowness, "feed", lambda *_, crowded: slow)
    monkeypatch.setattr("tenant_client.doctor.run.syndromes.watch.pressure_percent", lambda: percent)
    found = watch.poll(1.0)
    watch.close()
    assert found is not None
    assert (found.syndrome, found.ranks) == (said, (1,))


def test_a_process_that_computes_works_and_one_that_sleeps_does_not() -> None:
    me = Activity(os.getpid())
    began_s = time.monotonic()
    me.look(began_s)
    while time.process_time() % 1 and time.monotonic() < began_s + 0.3:
        pass
    assert me.look(time.monotonic()).cores > 0.2
    with subprocess.Popen(["sleep", "60"]) as sleeper:  # noqa: S607
        other = Activity(sleeper.pid)
        assert not other.look(0.0).stopped
        sleeper.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
        found = other.look(5.0)
        sleeper.kill()
    assert found.stopped
    assert found.cores < 0.05


def test_data_that_is_not_read_at_the_other_end_is_under_way() -> None:
    lines = [
        "0: 0A4D0002:1000 0A4D0102:2000 01 00000040:00000000 01:00000000 00000002 0 0 11 1",
        "1: 0A4D0102:2000 0A4D0002:1000 01 00000000:00000000 00:00000000 00000000 0 0 22 1",
        "2: 0A4D0002:3000 0A4D0102:4000 01 00000000:00000000 00:00000000 00000000 0 0 12 1",
        "3: 0A4D0102:4000 0A4D0002:3000 01 00000000:00000000 00:00000000 00000000 0 0 23 1",
        "4: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 99 1",
    ]
    table = under_way(lines)
    assert len(table) == 4
    assert stalled({0: table, 1: table}, {0: {"11", "12"}, 1: {"22", "23"}}) == {Link(0, 1)}


def test_of_data_under_way_that_which_is_sent_again_is_held_up_and_the_rest_waits_for_it() -> None:
    held_up = "0: 0A4D0002:1000 0A4D0102:2000 01 00000040:00000000 01:00000000 00000005 0 0 11 1"
    waits = "1: 0A4D0102:5000 0A4D0202:6000 01 00000080:00000000 00:00000000 00000000 0 0 22 1"
    answers = "2: 0A4D0202:6000 0A4D0102:5000 01 00000000:00000080 00:00000000 00000000 0 0 33 1"
    inodes = {0: {"11"}, 1: {"22"}, 2: {"33"}}
    one, other = (
        {rank: under_way(lines) for rank in inodes} for lines in ([held_up, waits, answers], [waits, answers])
    )
    assert stalled(one, inodes) == {Link(0, None)}
    assert stalled(other, inodes) == {Link(1, 2)}
    unread = {1: under_way([waits.replace("00000080:", "00000000:"), answers])}  # by a process that is no rank
    assert (stalled(unread, inodes), stalled(unread, inodes, crowded=True)) == ({Link(1, None)}, set())


# ---- slow ----------------------------------------------------------------------------------------------------------


def played(
    own_s: Mapping[int, list[float]], transfer_s: list[float], *, noise: random.Random | None = None
) -> list[tuple[float, Verdict]]:
    """What is said of ranks that meet in each step, each after its own time, and leave after the transfer."""
    slowness, now_s, said = Slowness(SlowLimits()), 0.0, []
    records: dict[int, list[StepRecord]] = {rank: [] for rank in own_s}
    waited = dict.fromkeys(own_s, 0.0)
    stride = max(1, round(0.8 / transfer_s[0] / 8))
    polled_s = 0.0
    for step, transfer in enumerate(transfer_s, start=1):
        own = {rank: times[step - 1] * (noise.uniform(0.9, 1.2) if noise else 1.0) for rank, times in own_s.items()}
        took_s = max(own.values()) + transfer
        now_s += took_s
        for rank, seconds in own.items():
            waited[rank] += took_s - seconds
            if step % stride == 0:
                record = StepRecord(step, int(1e9 * now_s), int(1e9 * waited[rank]), 0, int(10 * now_s))
                records[rank] = [*records[rank], record][-KEPT:]
        if now_s - polled_s >= 1.0:
            polled_s = now_s
            found = slowness.feed(now_s, records)
            said += [] if found is None else [(now_s, found)]
    return said


@pytest.mark.nightly
@pytest.mark.parametrize("step_s", [0.05, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_rank_that_becomes_slow_is_named_after_a_few_steps(step_s: float, ranks: int) -> None:
    steps = int(60 / step_s)
    own_s = {rank: [step_s] * 2 * steps for rank in range(ranks)}
    own_s[1] = [step_s] * steps + [2 * step_s] * steps
    said = played(own_s, [0.1 * step_s] * 2 * steps, noise=random.Random(3))
    onset_s = next(at_s for at_s, _ in said)
    assert {(found.syndrome, found.ranks) for _, found in said} == {(Syndrome.NON_COMMUNICATION_SLOW, (1,))}
    began_s = 1.3 * step_s * steps
    assert onset_s <= began_s + max(15.0, 3 * 2.5 * step_s)


@pytest.mark.parametrize("step_s", [0.05, 0.3, 1.0, 3.0])
def test_collectives_that_become_slow_are_nobodys_own_time(step_s: float) -> None:
    steps = int(60 / step_s)
    own_s = {rank: [step_s] * 2 * steps for rank in range(3)}
    said = played(own_s, [0.1 * step_s] * steps + [1.5 * step_s] * steps, noise=random.Random(4))
    assert {(found.syndrome, found.ranks) for _, found in said[:1]} == {(Syndrome.COMMUNICATION_SLOW, ())}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_job_with_long_steps_now_and_then_is_not_slow(seed: int) -> None:
    rng = random.Random(seed)
    own_s = {rank: [1.0 + 5.0 * (rng.random() < 0.05) for _ in range(400)] for rank in range(4)}
    assert played(own_s, [0.1] * 400, noise=rng) == []


def test_all_ranks_that_compute_longer_accuse_neither_a_rank_nor_the_network() -> None:
    own_s = {rank: [0.5] * 100 + [1.5] * 100 for rank in range(4)}
    assert played(own_s, [0.1] * 200, noise=random.Random(5)) == []


class LookedAt:
    """A rank that is looked at now and then, as `patterns` does; each look tells only whether it waits."""

    def __init__(self, rng: random.Random, every_s: float) -> None:
        self._where = Whereabouts()
        self._where._cell = self._cell = a_cell()
        self._rng, self._every_s = rng, every_s
        self._looked_s = self._next_s = 0.0

    def step(self, number: int, began_s: float, own_s: float, took_s: float) -> None:
        while self._next_s < began_s + took_s:
            kind = "collective" if self._next_s > began_s + own_s else "compute"
            self._where.saw(kind, number, int(1e9 * (self._next_s - self._looked_s)), 0)
            self._looked_s = self._next_s
            self._next_s += self._every_s * self._rng.uniform(0.5, 1.5)
        self._where.step(number, began_s + took_s)

    @property
    def records(self) -> tuple[StepRecord, ...]:
        found = decode(self._cell.page)
        assert found is not None
        return found.records


def sampled(
    rng: random.Random, ranks: int, step_s: float, seconds: float, slow_from_s: float = math.inf
) -> list[tuple[float, Verdict]]:
    """What is said of ranks known from looks alone; from `slow_from_s` on, the first takes a step longer."""
    looks_each_s = rng.uniform(0.07, 0.25)
    slowness, said = Slowness(SlowLimits()), []
    looked_at = [LookedAt(rng, looks_each_s) for _ in range(ranks)]
    now_s, polled_s, number = 100.0, 100.0, 0
    while now_s < 100.0 + seconds:
        number += 1
        own_s = [step_s * rng.uniform(0.7, 0.9) for _ in range(ranks)]
        own_s[0] += step_s if now_s >= 100.0 + slow_from_s else 0.0
        took_s = max(own_s) + 0.1 * step_s
        for one, seconds_of_its_own in zip(looked_at, own_s, strict=True):
            one.step(number, now_s, seconds_of_its_own, took_s)
        now_s += took_s
        while polled_s < now_s - 1.0:
            polled_s += 1.0
            found = slowness.feed(polled_s, {rank: one.records for rank, one in enumerate(looked_at)})
            said += [] if found is None else [(polled_s - 100.0, found)]
    return said


@pytest.mark.nightly
@pytest.mark.parametrize("step_s", [0.05, 0.3, 1.0, 3.0])
def test_chance_alone_accuses_nobody(step_s: float) -> None:
    """Half an hour of each; six hours of each were run once."""
    rng = random.Random(f"quiet {step_s}")
    assert [said for ranks in (2, 3, 4) for said in sampled(rng, ranks, step_s, 600.0)] == []


@pytest.mark.parametrize("step_s", [0.05, 0.3, 1.0, 3.0])
def test_a_rank_that_takes_a_step_longer_stands_out_of_chance(step_s: float) -> None:
    rng = random.Random(f"slow {step_s}")
    for ranks in (2, 3, 4):
        (at_s, first), *_ = sampled(rng, ranks, step_s, 90.0, slow_from_s=60.0)
        assert (first.syndrome, first.ranks) == (Syndrome.NON_COMMUNICATION_SLOW, (0,))
        assert 60.0 < at_s < 76.0


# ---- the socket ----------------------------------------------------------------------------------------------------


def handed_over(run_dir: Path, rank: int) -> Cell:
    """The cell of a rank that has handed it over."""
    with connected(run_dir) as connection:
        assert connection is not None
        descriptor, page = make_page()
        cell = Cell(page, Who(rank, 2, 1, 1, 0), 0)
        hand_over(connection, descriptor)
    return cell


def joined(run_dir: Path, rank: int) -> Cell:
    """The same, of one that answers."""
    cell = handed_over(run_dir, rank)
    threading.Thread(target=answer_forever, args=(cell, threading.get_ident()), daemon=True).start()
    return cell


def test_ranks_hand_over_their_cells_and_answer(tmp_path: Path) -> None:
    run_dir = tmp_path / ("deep" * 40)  # longer than a socket's address may be
    run_dir.mkdir()
    ranks = Ranks(run_dir)
    try:
        cell, other = joined(run_dir, 0), joined(run_dir, 1)
        cell.move(WAIT, 1, 5)
        assert {rank: one.place for rank, one in ranks.states().items()} == {0: "wait", 1: "start"}
        stacks = ranks.ask(STACK, [0, 1, 7], 5.0)
        assert sorted(stacks) == [0, 1]
        assert "test_ranks_hand_over_their_cells_and_answer" in stacks[0].decode()
        assert set(ranks.ask(RECORDS, [0, 1], 5.0)) == {0, 1}
        other.void()
        assert set(ranks.ask(RECORDS, [0, 1], 3.0)) == {0}
    finally:
        ranks.close()
        cell.void()


def test_without_an_observer_nothing_begins(tmp_path: Path) -> None:
    with connected(tmp_path) as connection:
        assert connection is None


def test_what_is_no_sealed_cell_is_refused(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    try:
        with (tmp_path / "page").open("w+b") as file, connected(tmp_path) as connection:
            file.truncate(SIZE)
            assert connection is not None
            hand_over(connection, os.dup(file.fileno()))
        assert ranks.states() == {}
    finally:
        ranks.close()


def test_a_rank_whose_process_has_ended_is_dropped(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    try:
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            handed_over(tmp_path, 1)
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        os.close(reading)
        until(lambda: sorted(ranks.states()) == [1])
        os.close(writing)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # its parent need not have looked yet
        assert ranks.states() == {}
        os.waitpid(child, 0)
    finally:
        ranks.close()


def test_a_hang_is_said_of_the_same_ranks_until_somebody_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Syndromes(tmp_path)
    cells = [a_cell(rank) for rank in range(2)]
    for cell in cells:
        cell.move(WAIT, 1, 0)
    found: list[set[Link]] = [{Link(0, 1)}, {Link(0, 1)}, set(), set()]
    monkeypatch.setattr(watch._ranks, "states", lambda: {rank: decode(cell.page) for rank, cell in enumerate(cells)})
    monkeypatch.setattr(links, "look", lambda _, crowded: found.pop(0) if found else set())
    said = [watch.poll(now_s) for now_s in (4.0, 9.0, 20.0, 40.0)]
    watch.close()
    assert said[0] is None
    assert [(one.syndrome, one.ranks) for one in said[1:] if one] == [(Syndrome.COMMUNICATION_HANG, (0, 1))] * 3
    monkeypatch.setattr(watch._ranks, "states", lambda: {0: decode(cells[0].page)})
    ended = watch.poll(41.0)  # who ended did not go on
    assert ended is not None
    assert ended.ranks == (0, 1)
    monkeypatch.setattr(watch._ranks, "states", lambda: {rank: decode(cell.page) for rank, cell in enumerate(cells)})
    cells[0].move(OUTSIDE, 1, int(40e9))
    assert watch.poll(42.0) is None


STUCK = """
import ctypes, sys, time
from pathlib import Path
from tenant_client.doctor.run.hook.answers import dump_on_signal
if sys.argv[2] == "listens":
    dump_on_signal(Path(sys.argv[1]), 0)
def holds_the_lock():
    print("stuck", flush=True)
    while True:
        ctypes.PyDLL(None).sleep(600)
holds_the_lock()
"""


@pytest.mark.parametrize(("listens", "found"), [("listens", ["<module>", "holds_the_lock"]), ("does not", [])])
def test_a_rank_that_is_stuck_with_the_interpreters_lock_shows_its_stack(
    tmp_path: Path, listens: str, found: list[str]
) -> None:
    command = (sys.executable, "-c", STUCK, str(tmp_path), listens)
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as stuck:
        assert stuck.stdout is not None
        assert stuck.stdout.readline() == b"stuck\n"
        stack = by_signal(stuck.pid, tmp_path / stack_file(0))
        assert [line.partition(" (")[0] for line in stack.splitlines()] == found
        assert stuck.poll() is None  # a signal that nobody listens to would have ended it
        stuck.kill()


class Told:
    """Syndromes that say what they are told."""

    def __init__(self, *verdicts: Verdict | None) -> None:
        self._verdicts = list(verdicts)

    def poll(self, _: float) -> Verdict | None:
        return self._verdicts.pop(0)

    def stack_of(self, rank: int) -> str:
        return f"main (train.py:3)\nsleep (rank.py:{rank})"


def test_a_verdict_is_said_once_with_its_stack_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = Verdict(Syndrome.NON_COMMUNICATION_HANG, (1,), "rank 1 is outside")
    reports = Reports(tmp_path, lambda: 7, lambda: 0.0)
    reports.close(0.0)
    monkeypatch.setattr(reports, "_syndromes", Told(None, hang, replace(hang, why="later"), None))
    said = [reports.look(float(now_s), ()) for now_s in range(4)]
    assert [len(found) for found in said] == [0, 1, 0, 0]
    (finding,) = reports.findings
    assert (finding.kind, finding.ranks, finding.cleared_at_s) == (Kind.NON_COMMUNICATION_HANG, (1,), 3.0)
    assert finding.text == "rank 1 is outside; rank 1 at sleep (rank.py:1) < main (train.py:3)"
