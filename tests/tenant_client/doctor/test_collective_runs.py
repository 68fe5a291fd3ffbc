"""Whole programs: any schedule with one rank that stops, dumps of recorded runs, and dumps of torch itself."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tenant_client.doctor.diagnosis.collectives import CollectiveCause, CollectiveVerdict, analyse, evidence
from tenant_client.doctor.sources.evidence import Role
from tenant_client.doctor.sources.flight_recorder import Group, Operation, read_dumps
from tests import needs
from tests.support.clusters import C, Rank, S, call, judged, world
from tests.support.waiting import PATIENCE_S

RUNS = Path(__file__).resolve().parents[4] / "shared" / "data" / "flight_recorder"


# ---- any schedule --------------------------------------------------------------------------------------------------


@st.composite
def schedules(draw: st.DrawFn) -> tuple[int, list[tuple[Group, Operation]]]:
    """A program: groups of a few ranks, and which of them calls what, in one order that all ranks follow."""
    size = draw(st.integers(2, 8))
    subsets = draw(st.lists(st.sets(st.integers(0, size - 1), min_size=2), min_size=1, max_size=4))
    groups = [world(size), *(Group(f"g{at}", "SUB", tuple(sorted(one))) for at, one in enumerate(subsets))]
    kinds = ["all_reduce", "broadcast", "barrier", "all_to_all"]
    steps = draw(st.lists(st.tuples(st.sampled_from(groups), st.sampled_from(kinds)), min_size=1, max_size=30))
    return size, [(group, call(kind)) for group, kind in [*steps, (groups[0], "all_reduce")]]


def played(size: int, steps: list[tuple[Group, Operation]], stops: dict[int, int], ahead: int = 0) -> list[Rank]:
    """Every rank calls in order and blocks in the call after the `ahead` next ones that cannot complete."""
    ranks = [
        Rank(rank, knows=tuple(dict.fromkeys(group for group, _ in steps if rank in members(group))))
        for rank in range(size)
    ]
    budget = dict.fromkeys(range(size), ahead)
    halted: set[int] = set()
    seqs: dict[Group, int] = {}
    for at, (group, operation) in enumerate(steps):
        seqs[group] = seqs.get(group, 0) + 1
        present = {rank for rank in members(group) if rank not in halted and stops.get(rank, len(steps)) > at}
        stuck = {rank for rank in present if budget[rank] < ahead}
        complete = len(present) == len(members(group)) and not stuck
        for rank in present:
            ranks[rank].add(group, seqs[group], operation, C if complete else S)
            if not complete:
                budget[rank] -= 1
                if budget[rank] < 0:
                    halted.add(rank)
        halted |= {rank for rank in members(group) if stops.get(rank, len(steps)) <= at}
    return ranks


def members(group: Group) -> tuple[int, ...]:
    return group.ranks or ()


@pytest.mark.nightly
@settings(max_examples=150, deadline=None)
@given(schedules())
def test_a_clean_run_accuses_nobody(schedule: tuple[int, list[tuple[Group, Operation]]]) -> None:
    size, steps = schedule
    found = judged(played(size, steps, {}))
    assert (found.verdict, found.culprits, found.groups) == (CollectiveVerdict.CLEAN, (), ())


@pytest.mark.nightly
@settings(max_examples=300, deadline=None)
@given(schedules(), st.data())
def test_one_rank_that_stops_is_named_and_nobody_else(
    schedule: tuple[int, list[tuple[Group, Operation]]], data: st.DataObject
) -> None:
    size, steps = schedule
    bad, at, ahead = (data.draw(st.integers(0, top)) for top in (size - 1, len(steps) - 1, 3))
    found = judged(played(size, steps, {bad: at}, ahead))
    assert (found.verdict, found.culprits) == (CollectiveVerdict.MISSING, (bad,))


# ---- what the world writes -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not RUNS.exists(), reason=f"{RUNS} is missing")
@pytest.mark.parametrize(
    ("run", "verdict", "cause"),
    [
        ("gpu_error_1st", CollectiveVerdict.STOPPED, CollectiveCause.DEVICE),
        ("lock_gil_1st", CollectiveVerdict.MISSING, CollectiveCause.HOST),
    ],
)
def test_recorded_runs_name_the_injected_ranks_in_any_order(
    run: str, verdict: CollectiveVerdict, cause: CollectiveCause
) -> None:
    """NVIDIA's own analysis, in reference_output.txt, finds the first of the two in gpu_error_1st."""
    first = (RUNS / run / "fault_injection.log").read_text().splitlines()[0]
    injected = tuple(json.loads(first.partition(":")[2]))
    dumps = list(read_dumps(RUNS / run))
    found = analyse(dumps)
    for seed in range(5):
        random.Random(seed).shuffle(dumps)
        assert analyse(dumps) == found
        assert (found.culprits, found.verdict) == (injected, verdict)
        assert {culprit.cause for culprit in found.accused} == {cause}
    assert found.sentence.startswith(f"rank {injected[0]}: ")
    assert [one.rank for one in evidence(found) if one.role is Role.ROOT] == list(injected)


@pytest.mark.skipif(not RUNS.exists(), reason=f"{RUNS} is missing")
@pytest.mark.parametrize("run", ["gpu_error_1st", "lock_gil_1st"])
def test_without_the_dumps_of_the_injected_ranks_nobody_healthy_is_accused(run: str) -> None:
    found = analyse(list(read_dumps(RUNS / run)))
    left = analyse([dump for dump in read_dumps(RUNS / run) if dump.rank not in found.culprits])
    assert (left.culprits, left.no_dump, left.verdict) == ((), found.culprits, CollectiveVerdict.UNDECIDED)


GLOO = """
import os, sys, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
value = torch.ones(4)
for _ in range(3):
    dist.all_reduce(value)
if rank == 0 and sys.argv[3] == "hang":
    dist.all_reduce(value, async_op=True)
time.sleep(0.5)  # a work is retired by a thread of Gloo's, a moment after it is done
open(f"{folder}/json_dump_{rank}", "wb").write(_dump_fr_trace_json())
open(f"{folder}/pickle_dump_{rank}", "wb").write(_dump_fr_trace())
os._exit(0)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["hang", "clean"])
def test_dumps_of_torch_with_gloo(tmp_path: Path, mode: str) -> None:
    needs.installed("torch")
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", GLOO]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path), mode], env=environment) for rank in range(2)]
    assert [rank.wait(PATIENCE_S) for rank in ranks] == [0, 0]
    for form in ("json", "pickle"):
        found = analyse(dump for rank in range(2) for dump in read_dumps(tmp_path / f"{form}_dump_{rank}"))
        assert found.culprits == ((1,) if mode == "hang" else ())
        if mode == "hang":
            assert found.sentence.startswith("rank 1: all_reduce, seq 4, group default_pg (0)")
