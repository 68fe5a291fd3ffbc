"""Ranks that stand in another collective than the others, by the lines of their watchdogs."""

import pytest

from tenant_client.doctor.diagnosis.diagnose import diagnose
from tenant_client.doctor.diagnosis.odd_calls import odd_call
from tenant_client.doctor.sources.evidence import Evidence, Role

LINE = "[rank{0}]:[E611 23:19:00.2 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
LINE += "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=2, NumelOut=32, Timeout(ms)=900000) ran for 900005 milliseconds"


def lines(calls: dict[int, tuple[int, str]]) -> list[str]:
    return [LINE.format(rank, *call) for rank, call in calls.items()]


def test_a_few_in_another_operation_of_the_same_number_stand_apart() -> None:
    calls = dict.fromkeys(range(8), (71208, "ALLREDUCE")) | {3: (71208, "_ALLGATHER_BASE")}
    words = "rank 3 called _ALLGATHER_BASE of 2 elements where 7 others called ALLREDUCE of 2 elements (sequence 71208)"
    assert odd_call(lines(calls)) == (words, 3)
    assert odd_call(reversed(lines(calls))) == (words, 3)


def test_of_three_ranks_the_one_that_differs_is_odd_and_of_two_none() -> None:
    calls = {0: (7, "ALLREDUCE"), 1: (7, "ALLREDUCE"), 2: (7, "BROADCAST")}
    found = odd_call(lines(calls))
    assert found is not None
    assert found[1] == 2
    del calls[0]
    assert odd_call(lines(calls)) == (
        "rank 1 called ALLREDUCE of 2 elements, rank 2 BROADCAST of 2 elements (sequence 7)",
        None,
    )


def test_other_amounts_of_elements_are_a_mismatch_but_for_calls_that_may_be_uneven() -> None:
    texts = lines(dict.fromkeys(range(3), (7, "ALLREDUCE")))
    texts[1] = texts[1].replace("NumelIn=2,", "NumelIn=3,")
    assert odd_call(texts) == (
        "rank 1 called ALLREDUCE of 3 elements where 2 others called ALLREDUCE of 2 elements (sequence 7)",
        1,
    )
    assert odd_call([text.replace("ALLREDUCE", "ALLTOALL_BASE") for text in texts]) is None


def test_two_calls_of_one_number_in_two_named_groups_are_no_mismatch() -> None:
    calls = {rank: (7, "ALLREDUCE" if rank < 2 else "BROADCAST") for rank in range(4)}
    named = [
        text.replace(f"[Rank {rank}]", f"[PG ID {rank // 2} PG GUID {rank // 2}(mesh) Rank {rank}]")
        for rank, text in enumerate(lines(calls))
    ]
    assert odd_call(named) is None
    assert odd_call([text.replace("GUID 1", "GUID 0") for text in named]) == (
        "rank 0 called ALLREDUCE of 2 elements, rank 1 ALLREDUCE of 2 elements, rank 2 BROADCAST of 2 elements,"
        " rank 3 BROADCAST of 2 elements (sequence 7, group 0(mesh))",
        None,
    )


@pytest.mark.parametrize(
    "calls",
    [
        dict.fromkeys(range(8), (7, "ALLREDUCE")),
        {rank: (7, "ALLREDUCE" if rank % 2 else "BROADCAST") for rank in range(8)},  # two groups, as likely
        {rank: (7 + (rank == 3), "BROADCAST" if rank == 3 else "ALLREDUCE") for rank in range(8)},  # another number
        {0: (7, "SEND"), 1: (7, "RECV")},
        {rank: (7, ("ALLREDUCE", "BROADCAST", "GATHER")[max(0, rank - 10)]) for rank in range(13)},  # three kinds
        {},
    ],
)
def test_nobody_is_accused_where_it_may_be_something_else(calls: dict[int, tuple[int, str]]) -> None:
    assert odd_call([*lines(calls), "WorkNCCL(SeqNum=7, OpType=GATHER", "nothing"]) is None


def test_it_is_the_cause_beside_symptoms_and_not_beside_a_root() -> None:
    calls = dict.fromkeys(range(4), (5, "ALLREDUCE")) | {0: (5, "GATHER")}
    late = [
        Evidence("collective_timeout", Role.SYMPTOM, "job_log", "a.log", place, text, rank=place)
        for place, text in enumerate(lines(calls))
    ]
    found = diagnose(late)
    assert (found.reason, found.rank) == ("mismatched_collective", 0)
    assert found.sentence.endswith("rank 0 called GATHER where 3 others called ALLREDUCE of 2 elements (sequence 5)")
    root = Evidence("key_error", Role.ROOT, "job_log", "a.log", 9, "KeyError: 'x'", rank=2)
    assert diagnose([*late, root]).reason == "key_error"
