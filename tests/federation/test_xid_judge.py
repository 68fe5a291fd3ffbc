"""Hardware, program or driver: what a code, its line, its company and its history say."""

import itertools
import math

import pytest

from federation.protocol.xid_codes import CAUSES, code_of, known_codes, outcome_of
from federation.protocol.xid_judge import ANY_OTHER, DECIDED, CodeHistory, CodeLine, CodeVerdict, Tally, judge

ASKED = (13, 31, 32, 43, 45, 48, 63, 64, 68, 74, 79, 94, 95, 109, 119, 120, 137, *range(144, 150))


def line(code: int, rest: str = "pid=1, name=python3", gpu: str = "3b") -> CodeLine:
    return CodeLine(f"[ 8.1] NVRM: Xid (PCI:0000:{gpu}:00): {code}, {rest}")


def verdict(code: int, history: CodeHistory | None = None, rest: str = "pid=1") -> CodeVerdict:
    (found,) = judge([line(code, rest)], history or CodeHistory())
    assert found is not None
    return found


def test_every_code_has_shares_that_add_up_a_source_and_a_next_step() -> None:
    for code in ASKED:
        found = known_codes()[str(code)]
        assert math.isclose(found.hardware + found.program + found.driver, 1.0)
        assert found.text
        assert found.named
        assert found.next


def test_what_nvidia_calls_hardware_alone_is_called_so_and_what_a_program_does_is_not() -> None:
    assert all(verdict(code).hardware >= DECIDED for code in (48, 63, 64, 74, 94, 95))
    assert all(verdict(code).cause == "program" for code in (13, 31, 43, 45))


def test_the_same_job_elsewhere_clears_this_node_and_other_jobs_here_accuse_it() -> None:
    clears, accuses = CodeHistory(job=Tally(3, 3)), CodeHistory(Tally(0, 4), Tally(4, 5), Tally(0, 20))
    for code in (13, 31, 69, 109, 119):
        assert verdict(code, clears).hardware < verdict(code).hardware < verdict(code, accuses).hardware
    assert verdict(31, accuses).hardware >= DECIDED
    assert verdict(79, clears).hardware < 0.2


def test_what_shows_everywhere_is_the_drivers() -> None:
    everywhere = CodeHistory(Tally(2, 5), Tally(2, 5), Tally(12, 30))
    assert all(verdict(code, everywhere).cause == "driver" for code in (13, 31, 119))


def test_no_history_of_its_own_makes_a_programs_error_the_hardwares() -> None:
    """However often the job ran clean elsewhere: an input may be to blame, so another job has to fail here as well."""
    for ran, others in itertools.product((0, 1, 4, 16, 64), repeat=2):
        assert verdict(31, CodeHistory(Tally(0, ran), Tally(0, others), Tally(0, 99))).hardware < DECIDED


def test_a_shares_answer_is_the_posterior_of_a_grid() -> None:
    """The closed form against sums over rates, for one history."""
    history, grid = CodeHistory(Tally(1, 3), Tally(2, 4), Tally(1, 9)), [(step + 0.5) / 20000 for step in range(20000)]

    def beta(p: float, a: float, b: float) -> float:
        norm = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
        return float(norm * p ** (a - 1) * (1 - p) ** (b - 1))

    def mean(a: float, b: float, failed: int, ran: int) -> float:
        return sum(beta(p, a, b) * p**failed * (1 - p) ** (ran - failed) for p in grid) / len(grid)

    known = known_codes()["31"]
    weights = (
        known.hardware * mean(1, 1, 2, 4) * mean(1, 30, 2, 12),
        known.program * mean(1, 1, 1, 3) * mean(1, 30, 3, 13),
        known.driver * mean(1, 3, 4, 16),
    )
    found = verdict(31, history)
    for cause, weight in zip(CAUSES, weights, strict=True):
        assert getattr(found, cause) == pytest.approx(weight / sum(weights), rel=1e-3)


def test_what_follows_on_the_same_gpu_is_judged_as_what_it_follows() -> None:
    after, other = judge([line(48), line(45)], CodeHistory()), judge([line(48), line(45, gpu="5e")], CodeHistory())
    assert after[1]
    assert other[1]
    assert after[1].hardware >= DECIDED
    assert after[1].why == "it follows Xid 48 on the same GPU"
    assert other[1].hardware < 0.1
    halt = judge([line(31), line(62)], CodeHistory())[1]
    assert halt is not None
    assert halt.cause == "program"
    assert (
        code_of("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 149") == "149"
    )


def test_other_gpus_of_the_job_speak_against_one_of_them_unless_the_error_spreads() -> None:
    faults, links = ([line(code, gpu=f"{gpu:02x}") for gpu in range(4)] for code in (13, 74))
    alone = verdict(13).hardware
    assert all(one and one.hardware < alone / 10 for one in judge(faults, CodeHistory()))
    assert all(one and one.hardware == pytest.approx(verdict(74).hardware) for one in judge(links, CodeHistory()))


def test_the_line_says_more_than_the_code() -> None:
    beyond, illegal = (
        verdict(13, rest=f"Graphics SM Warp Exception: {what}")
        for what in ("Out Of Range Address", "Illegal Instruction Encoding")
    )
    assert beyond.hardware < verdict(13).hardware < illegal.hardware
    assert verdict(31, rest="MMU Fault: ENGINE CE2 faulted").driver > verdict(31).driver
    assert verdict(145, rest="RLW_SRC_TRACK Nonfatal XC1 i0 Link 03").program > verdict(145).program


def test_what_became_of_such_errors_moves_the_next_one() -> None:
    bad = judge([line(31)], CodeHistory(), {"31": {"hardware": 12}})[0]
    assert bad is not None
    assert verdict(31).hardware < 0.1 < 0.5 < bad.hardware
    words = {"replaced the GPU": "hardware", "newer driver": "driver", "fixed the index": "program", "nothing": None}
    assert {text: outcome_of(text) for text in words} == words


def test_codes_of_other_makers_are_known_and_unknown_lines_are_not_judged() -> None:
    lines = {
        "amdgpu 0000:c1:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block": "amd_uncorrectable",
        "amdgpu 0000:c1:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24)": "amd_page_fault",
        "i915 0000:00:02.0: [drm] GPU HANG: ecode 12:1:85def5fb": "intel_hang",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered": "cuda_214",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal": "",
        "NVRM: Xid (PCI:0000:04:00): 99999, unknown error": "",
        "KeyError: 'lr'": "",
    }
    assert {text: code_of(text) for text in lines} == lines
    assert judge([CodeLine("KeyError: 'lr'")], CodeHistory()) == [None]


def test_an_undecided_verdict_names_one_test_and_a_decided_one_none() -> None:
    assert "would decide: run another job on this node" in verdict(31).sentence()
    assert verdict(48).test == ""
    told = verdict(31, CodeHistory(Tally(3, 3), Tally(0, 5))).sentence()
    assert told == "Xid 31: your code, 99% (the same on 3 other nodes; this node clean under 5 other jobs)"


def test_a_history_by_code_falls_back_on_that_of_any_other() -> None:
    here = CodeHistory(node=Tally(0, 9))
    by_code = judge([line(31)], {ANY_OTHER: here})[0]
    assert by_code == verdict(31, here)


def test_a_pair_counts_once_and_the_one_in_question_not_at_all() -> None:
    pairs = {("a", "n1"): True, ("a", "n2"): True, ("a", "n3"): False, ("b", "n1"): False, ("b", "n2"): True}
    assert CodeHistory.of(pairs, "a", "n1") == CodeHistory(Tally(1, 2), Tally(0, 1), Tally(1, 1))
