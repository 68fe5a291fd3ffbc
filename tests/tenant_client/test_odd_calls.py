"""Ranks that stand in another collective than the others, by the lines of their watchdogs."""

import pytest

from tenant_client.diagnosis.diagnose import diagnose
from tenant_client.diagnosis.odd_calls import odd_call
from tenant_client.sources.evidence import Evidence, Role

LINE = "[rank{0}]:[E611 23:19:00.2 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
LINE += "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=2, NumelOut=32, Timeout(ms)=900000) ran for 900005 milliseconds"


def lines(calls: dict[int, tuple[int, str]]) -> list[str]:
    return [LINE.format(rank, *call) for rank, call in calls.items()]


def test_a_few_in_another_operation_of_the_same_number_stand_apart() -> None:
    calls = dict.fromkeys(range(8), (71208, "ALLREDUCE")) | {3: (71208, "_ALLGATHER_BASE")}
    words = "rank 3 timed out in _ALLGATHER_BASE where 7 others were in ALLREDUCE (sequence 71208)"
    assert odd_call(lines(calls)) == words
    assert odd_call(reversed(lines(calls))) == words


@pytest.mark.parametrize(
    "calls",
    [
        dict.fromkeys(range(8), (7, "ALLREDUCE")),
        {rank: (7, "ALLREDUCE" if rank % 2 else "BROADCAST") for rank in range(8)},  # two groups, as likely
        {rank: (7 + (rank == 3), "BROADCAST" if rank == 3 else "ALLREDUCE") for rank in range(8)},  # another number
        {0: (7, "ALLREDUCE"), 1: (7, "ALLREDUCE"), 2: (7, "BROADCAST")},  # too few
        {rank: (7, ("ALLREDUCE", "BROADCAST", "GATHER")[max(0, rank - 10)]) for rank in range(13)},  # three kinds
        {},
    ],
)
def test_nobody_is_accused_where_it_may_be_something_else(calls: dict[int, tuple[int, str]]) -> None:
    assert odd_call([*lines(calls), "WorkNCCL(SeqNum=7, OpType=GATHER", "nothing"]) == ""


def test_the_diagnosis_says_it_beside_a_symptom_and_not_beside_a_root() -> None:
    calls = dict.fromkeys(range(4), (5, "ALLREDUCE")) | {0: (5, "GATHER")}
    late = [
        Evidence("collective_timeout", Role.SYMPTOM, "job_log", "a.log", place, text, rank=place)
        for place, text in enumerate(lines(calls))
    ]
    assert diagnose(late).sentence.endswith(
        "; rank 0 timed out in GATHER where 3 others were in ALLREDUCE (sequence 5)"
    )
    root = Evidence("key_error", Role.ROOT, "job_log", "a.log", 9, "KeyError: 'x'", rank=2)
    assert "timed out in" not in diagnose([*late, root]).sentence
