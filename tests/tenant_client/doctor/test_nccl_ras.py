"""Answers of RAS as NCCL's source prints them (`tests.support.ras`); none was recorded: no such job ran here."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from federation.base.reading import CappedReader, ReadLimits, SourceError
from tenant_client.doctor.diagnosis.collectives import CollectiveVerdict
from tenant_client.doctor.diagnosis.collectives.ras import RasFindings, analyse_ras, ras_evidence
from tenant_client.doctor.sources import nccl_ras, nccl_ras_text
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.nccl_ras import Answer, decode
from tenant_client.program.cli import app
from tests.support.ras import DOCUMENTED, answer, communicator

Comm = dict[str, Any]


def read(*texts: str) -> list[Answer]:
    return list(decode("".join(texts).encode(), "ras.json"))


def all_reduces(*counts: int) -> dict[int, dict[str, int]]:
    return {number: {"AllReduce": count} for number, count in enumerate(counts)}


def judged(*answers: list[Comm], apart_s: float = 90.0) -> RasFindings:
    return analyse_ras(read(*(answer(comms, at * apart_s) for at, comms in enumerate(answers))))


# ---- reading -------------------------------------------------------------------------------------------------------


def test_the_documented_answer_is_read() -> None:
    (one,) = read(DOCUMENTED)
    (comm,) = one.communicators
    assert (one.nccl_version, one.file) == ("2.29.1", "ras.json")
    assert (comm.ranks[0].pid, comm.ranks[0].collective_counts["AllReduce"]) == (1524344, 0)
    assert comm.missing_ranks[0].status.unresponsive


def test_several_answers_in_one_file_and_what_a_raw_connection_says_before() -> None:
    text = "SERVER PROTOCOL 2\nOK\nOK\n" + DOCUMENTED + answer([], 60)
    first, second = read(text)
    assert second.at_s - first.at_s == 60.0
    compact = "".join(json.dumps(json.loads(one)) + "\n" for one in (DOCUMENTED, answer([])))
    assert len(read(compact)) == 2


def changed(**parts: Any) -> str:
    told = json.loads(DOCUMENTED)
    comm = told["communicators"][0]
    for name, part in parts.items():
        (told if name in told else comm if name in comm else comm["ranks"][0])[name] = part
    return json.dumps(told)


@pytest.mark.parametrize(
    "text",
    [
        DOCUMENTED[:400],
        DOCUMENTED + DOCUMENTED[:30],
        "nothing\n" + DOCUMENTED,
        "[" * 100_000,
        changed(timestamp="today"),
        changed(timestamp="0001-01-01 00:00:00x"),
        changed(ranks=json.loads(DOCUMENTED)["communicators"][0]["ranks"] * 2),
        changed(rank=1),  # the missing one
        changed(rank=-1),
        changed(rank=1 << 40),
        changed(host="x" * 100_000),
        changed(collective_counts={"AllReduce": -1}),
        changed(collective_counts={"AllReduce": 1 << 63}),
        changed(collective_counts={f"Kind{number}": 0 for number in range(1000)}),
        changed(collective_counts={"AllReduce": 1.5}),
        changed(pid="1"),
    ],
    ids=lambda text: text[-40:].replace("\n", ""),
)
def test_what_is_no_answer_is_refused_with_the_file(text: str) -> None:
    with pytest.raises(SourceError, match=r"^ras\.json, answer \d"):
        read(text)


def test_sizes_that_lie_change_nothing() -> None:
    lying = changed(size=1 << 60, ranks_count=-5, missing_ranks_count=10**30, communicators_count=0)
    assert read(lying)[0].communicators == read(DOCUMENTED)[0].communicators


def test_an_answer_beyond_the_cap_is_refused() -> None:
    with pytest.raises(SourceError, match="more than"):
        nccl_ras.read(CappedReader(io.BytesIO(DOCUMENTED.encode() * 9), "ras.json", 1 << 30), ReadLimits(5000))


@settings(max_examples=200)
@given(st.integers(0, len(DOCUMENTED) - 1), st.binary(max_size=4))
def test_any_bytes_are_answers_or_refused(at: int, put: bytes) -> None:
    data = DOCUMENTED.encode()
    try:
        found = list(decode(data[:at] + put + data[at + len(put) :], "ras.json"))
    except SourceError:
        return
    if found:
        ras_evidence(analyse_ras(found))


# ---- judging -------------------------------------------------------------------------------------------------------


def test_a_process_that_does_not_answer_is_named_by_one_answer() -> None:
    counts = all_reduces(*[50] * 32)
    del counts[21]
    found = judged([communicator(counts, silent=[21])])
    assert (found.verdict, list(found.accused)) == (CollectiveVerdict.MISSING, [21])
    (seen,) = ras_evidence(found)
    assert (seen.reason, seen.role) == ("peer_lost", Role.SYMPTOM)
    assert (seen.rank, seen.host, seen.gpu) == (21, "172.16.64.212", "5")
    assert "rank 21 (GPU 5, process 483093 on 172.16.64.212)" in seen.text
    assert "considered dead: none" in seen.text


def test_a_rank_behind_is_named_by_two_answers_and_undecided_by_one() -> None:
    comms = [communicator(all_reduces(*[6650] * 7, 6649))]
    once, twice = judged(comms), judged(comms, comms)
    assert (once.verdict, dict(once.accused)) == (CollectiveVerdict.UNDECIDED, {})
    (symptom,) = ras_evidence(once)
    assert "ask again 60 s later" in symptom.text
    assert (symptom.role, symptom.reason, symptom.rank) == (Role.SYMPTOM, "collective_timeout", 7)
    assert (twice.verdict, list(twice.accused)) == (CollectiveVerdict.MISSING, [7])
    (root,) = ras_evidence(twice)
    assert (root.role, root.rank, root.reason) == (Role.ROOT, 7, "nccl_timeout_error")
    assert "AllReduce of communicator 0x27a079b828ff1a75" in root.text
    assert "launched 6649 collectives, 7 of 8 ranks 6650" in root.text


def test_many_ranks_behind_in_one_answer_name_nobody_as_in_a_job_that_goes_on() -> None:
    (symptom,) = ras_evidence(judged([communicator(all_reduces(*[90] * 6, 89, 89))]))
    assert (symptom.reason, symptom.rank) == ("nccl_timeout_error", None)


def test_two_answers_of_a_moment_are_one() -> None:
    comms = [communicator(all_reduces(5, 4))]
    assert judged(comms, comms, apart_s=59).verdict is CollectiveVerdict.UNDECIDED


def test_a_job_that_goes_on_is_clean() -> None:
    before, after = ([communicator(all_reduces(*counts))] for counts in ((90, 89, 90), (99, 98, 99)))
    assert judged(before, after).verdict is CollectiveVerdict.CLEAN


def test_a_communicator_whose_ranks_move_in_another_one_does_not_hang() -> None:
    idle = communicator(all_reduces(3, 2), name="0xidle")
    before, after = (communicator(all_reduces(*counts), name="0xbusy") for counts in ((7, 7), (8, 8)))
    assert judged([idle, before], [idle, after]).verdict is CollectiveVerdict.CLEAN


def test_who_waits_elsewhere_is_not_named() -> None:
    """Rank 1 is behind in the world since it waits for rank 3 in their pair."""
    world = communicator(all_reduces(9, 8, 9, 8), name="0xworld")
    pair = communicator({1: {"AllGather": 5}, 3: {"AllGather": 4}}, name="0xpair")
    found = judged([world, pair], [world, pair])
    assert list(found.accused) == [3]
    assert [seen.rank for seen in ras_evidence(found) if seen.role is Role.ROOT] == [3]


def test_who_waits_for_a_silent_process_is_not_named() -> None:
    world = communicator(all_reduces(9, 8, 9), silent=[3], name="0xworld")
    pair = communicator({0: {"AllGather": 5}, 1: {"AllGather": 4}}, name="0xpair")
    assert list(judged([world, pair], [world, pair]).accused) == [3]


def test_a_rank_that_launched_something_else_is_a_mismatch_and_a_tie_accuses_nobody() -> None:
    odd = {**all_reduces(6, 6, 6), 3: {"AllReduce": 5, "Broadcast": 1}}
    found = judged([communicator(odd)], [communicator(odd)])
    assert (found.verdict, list(found.accused)) == (CollectiveVerdict.MISMATCH, [3])
    tie = {0: {"AllReduce": 6}, 1: {"AllReduce": 5, "Broadcast": 1}}
    found = judged([communicator(tie)], [communicator(tie)])
    assert (found.verdict, dict(found.accused)) == (CollectiveVerdict.MISMATCH, {})


def test_equal_counts_that_stay_are_the_network_and_one_answer_of_them_is_nothing() -> None:
    comms = [communicator(all_reduces(40, 40, 40, 40))]
    assert judged(comms).verdict is CollectiveVerdict.CLEAN
    found = judged(comms, comms)
    assert (found.verdict, dict(found.accused)) == (CollectiveVerdict.NETWORK, {})
    assert [seen.role for seen in ras_evidence(found)] == [Role.SYMPTOM]


@pytest.mark.parametrize("state", [{"init_state": 7}, {"finalize_called": True}, {"destroy_flag": True}])
def test_a_communicator_that_begins_or_ends_is_not_judged(state: dict[str, Any]) -> None:
    comms = [communicator(all_reduces(3, 2), status={0: state})]
    assert judged(comms, comms).verdict is CollectiveVerdict.CLEAN


def test_errors_that_ranks_report_are_symptoms() -> None:
    comms = [communicator(all_reduces(3, 3), status={1: {"async_error": 6}, 0: {"init_state": 99}})]
    seen = ras_evidence(judged(comms))
    assert [(one.rank, one.reason, one.role) for one in seen] == [
        (0, "runtime_error", Role.SYMPTOM),
        (1, "peer_lost", Role.SYMPTOM),
    ]
    assert "ncclRemoteError (6)" in seen[1].text


def test_without_a_communicator_of_all_gpus_no_rank_is_told() -> None:
    comms = [
        communicator({0: {"AllReduce": 5}, 1: {"AllReduce": 4}}, name="0xa"),
        communicator({2: {"AllReduce": 5}, 3: {"AllReduce": 5}}, name="0xb"),
    ]
    (root, *_) = ras_evidence(judged(comms, comms))
    assert (root.role, root.rank, root.host, root.gpu) == (Role.ROOT, None, "172.16.64.210", "1")
    assert root.text.startswith("GPU 1, process 483073 on 172.16.64.210")


def test_answers_of_another_job_do_not_count_as_earlier_ones() -> None:
    other = [communicator(all_reduces(1, 1), name="0xother")]
    assert judged(other, [communicator(all_reduces(5, 4))]).verdict is CollectiveVerdict.UNDECIDED


# ---- the verb ------------------------------------------------------------------------------------------------------


def test_diagnose_recognises_answers_and_names_the_rank(tmp_path: Path) -> None:
    comms = [communicator(all_reduces(*[6650] * 7, 6649))]
    for at in (0, 90):
        (tmp_path / f"{at}.txt").write_text(answer(comms, at))
    result = CliRunner().invoke(app, ["diagnose", str(tmp_path), "--json", "--home", str(tmp_path / "home")])
    told = json.loads(result.stdout)
    assert (result.exit_code, told["reason"], told["rank"], told["gpu"]) == (0, "nccl_timeout_error", 7, "7")
    assert told["sure"] is None  # nobody measured it


def test_the_log_of_a_dead_process_explains_more_than_its_silence(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text(answer([communicator(all_reduces(5), silent=[1], dead=True)]))
    (tmp_path / "train.log").write_text(
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    batch["ids"]\n'
        "KeyError: 'ids'\n"
    )
    alone = CliRunner().invoke(app, ["diagnose", str(tmp_path / "ras.json"), "--home", str(tmp_path / "home")])
    assert alone.stdout.startswith("peer_lost: rank 1, 172.16.64.210, GPU 1: ")
    both = CliRunner().invoke(app, ["diagnose", str(tmp_path), "--home", str(tmp_path / "home")])
    assert both.stdout.startswith("key_error: ")


# Put together from the excerpts of NCCL's page on RAS, and `INCOMPLETE` once more as NCCL 2.30.7 prints it.
TEXT = """\
NCCL version 2.30.7 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213

#0-0 (cf264af53edbe986) ERROR
  Asynchronous errors on 31 ranks
  31 ranks reported ncclRemoteError

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
"""


def test_the_text_of_older_versions_names_the_silent_process(tmp_path: Path) -> None:
    file = tmp_path / "ras.txt"
    file.write_text(TEXT)
    result = CliRunner().invoke(app, ["diagnose", str(file), "--json", "--home", str(tmp_path / "home")])
    told = json.loads(result.stdout)
    assert (told["reason"], told["rank"], told["host"], told["gpu"]) == ("peer_lost", None, "172.16.64.213", "5")
    assert "process 3487984 on 172.16.64.213, GPU 5: dead, it does not answer RAS" in told["sentence"]
    assert [seen["reason"] for seen in told["cascade"]] == ["peer_lost", "nccl_timeout_error"]
    file.write_text(TEXT[:300])  # cut off
    cut = CliRunner().invoke(app, ["diagnose", str(file), "--home", str(tmp_path / "home")])
    assert cut.stdout.startswith("cause unknown")


def test_counts_that_differ_in_a_text_are_a_symptom_alone(tmp_path: Path) -> None:
    (tmp_path / "ras.txt").write_text(TEXT[: TEXT.index("Errors\n======")] + TEXT[TEXT.index("Warnings\n") :])
    result = CliRunner().invoke(app, ["diagnose", str(tmp_path), "--home", str(tmp_path / "home")])
    assert result.exit_code == 3
    assert "only a symptom of it: nccl_timeout_error" in result.stdout
    assert "different AllReduce operation counts; a moment may show that" in result.stdout


def test_a_text_of_a_million_processes_gives_a_few_symptoms() -> None:
    head, line = TEXT[: TEXT.index("  Process 3")], "  Process {} on node gpu-a managing GPU 5\n"
    data = (head + "".join(line.format(number) for number in range(100_000))).encode()
    assert len(list(nccl_ras_text.read(CappedReader(io.BytesIO(data), "ras.txt", 1 << 30)))) <= 4096


def warned(*sections: str) -> list[Evidence]:
    data = (TEXT[: TEXT.index("Errors\n======")] + "Warnings\n========\n\n" + "\n".join(sections)).encode()
    return list(nccl_ras_text.read(CappedReader(io.BytesIO(data), "ras.txt", 1 << 20)))


def lagging(kind: str, *lines: str) -> str:
    head = f"#0-0 (9b1c0fd27733ae41) MISMATCH\n  Communicator ranks have different {kind} operation counts\n"
    return head + "".join(f"  {line}\n" for line in lines)


PLACE = "-- GPU 3 managed by process 77 on node n2"


@pytest.mark.parametrize(
    ("lines", "ranks"),
    [
        (["15 ranks have launched up to operation 9", f"Rank 11 has launched up to operation 8 {PLACE}"], [11]),
        (["15 ranks have launched up to operation 9", f"Rank 11 has not launched any operations {PLACE}"], [11]),
        (
            [
                "30 ranks have launched up to operation 9",
                "2 ranks have launched up to operation 8",
                f"Rank 4 {PLACE}",
                f"Rank 5 {PLACE}",
            ],
            [4, 5],
        ),
        (
            ["15 ranks have launched up to operation 8", f"Rank 11 has launched up to operation 9 {PLACE}"],
            [None],
        ),  # ahead
        (["3 ranks have launched up to operation 9", "5 ranks have launched up to operation 8"], [None]),
        ([], [None]),
    ],
)
def test_a_few_ranks_behind_are_named_in_a_text(lines: list[str], ranks: list[int | None]) -> None:
    found = warned(lagging("AllReduce", *lines))
    assert [one.rank for one in found] == ranks
    reasons = {"nccl_timeout_error" if rank is None else "collective_timeout" for rank in ranks}
    assert {one.reason for one in found} == reasons
    if ranks != [None]:
        assert (found[0].host, found[0].gpu) == ("n2", "3")
        assert "; a moment may show that" in found[0].text


def test_each_collective_of_each_communicator_has_counts_of_its_own() -> None:
    late = f"Rank 3 has launched up to operation 8 {PLACE}"
    found = warned(
        lagging("AllReduce", "7 ranks have launched up to operation 9", late),
        lagging("collective", "8 ranks have launched up to operation 4"),  # as NCCL 2.24 says it
        lagging("AllGather", "7 ranks have launched up to operation 9", late.replace("3", "6", 1)),
    )
    assert [(one.reason, one.rank) for one in found] == [
        ("collective_timeout", 3),
        ("nccl_timeout_error", None),
        ("collective_timeout", 6),
    ]


def test_the_text_names_the_rank_that_is_behind(tmp_path: Path) -> None:
    head = TEXT[: TEXT.index("Errors\n======")]
    late = "15 ranks have launched up to operation 9", f"Rank 11 has launched up to operation 8 {PLACE}"
    (tmp_path / "ras.txt").write_text(head + "Warnings\n========\n\n" + lagging("AllReduce", *late))
    result = CliRunner().invoke(app, ["diagnose", str(tmp_path), "--home", str(tmp_path / "home")])
    assert result.exit_code == 0
    assert result.stdout.startswith("collective_timeout: rank 11, n2, GPU 3: ")


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, len(TEXT) - 1), st.integers(0, 60), st.sampled_from(["", "9" * 400, "\0", "Rank ", " -- GPU", "²"])
)
def test_any_text_of_ras_ends_in_symptoms(at: int, cut: int, put: str) -> None:
    data = (TEXT[:at] + put + TEXT[at + cut :]).encode()
    assert all(
        one.role is Role.SYMPTOM for one in nccl_ras_text.read(CappedReader(io.BytesIO(data), "ras.txt", 1 << 20))
    )
