"""Explanations over both sides: what weighs more than what, facts from the journal, and the verb."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from crypto.ids import LeaseId
from federation.protocol.bundle import Bundle, MismatchEntry, PairJudgement
from federation.protocol.service_messages import HintState, Suspicion
from simulation.studies.diagnosis import explanations as bench
from simulation.studies.diagnosis.provider_half import hints_of
from tenant_client.doctor.advice.clues import FailureFacts, FindingFact, HintFact, RunCounts, clues_of
from tenant_client.doctor.advice.explanation import SIDES, FailureCause, FailureSide, explain
from tenant_client.doctor.advice.failure_facts import Known, explanations, facts_of, newest
from tenant_client.doctor.advice.hints import HintLog
from tenant_client.doctor.advice.own_runs import Run
from tenant_client.doctor.records.attempts import Attempt, AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.sources.reasons import REASONS
from tenant_client.program.cli import app
from tests.support.factories import NO_SIGNATURE, token
from tests.tenant_client.program.test_watch_verb import LEASE, OTHER, hint

HOUR_S = 3600.0
KEYS = ("top1", "top3", "side")
HANG = FailureFacts("collective_timeout", "all-reduce timed out")
STRONG = HintFact("interconnect", 12.0, 25.0, 0.5)
CODE_REASONS = [slug for slug, reason in REASONS.items() if reason.domain and reason.domain.value == "script"]


def weight(facts: FailureFacts, cause: FailureCause) -> float:
    return next((one.weight for one in explain(facts).ranked if one.cause is cause), 0.0)


# ---- what weighs more than what --------------------------------------------------------------------------------------


def test_nothing_known_is_undecided_and_a_fresh_hint_decides_a_symptom() -> None:
    assert explain(FailureFacts()).ranked[0].cause is FailureCause.UNDECIDED
    assert explain(HANG).cause is FailureCause.UNDECIDED
    found = explain(replace(HANG, hints=(STRONG,)))
    assert (found.cause, found.side) == (FailureCause.NETWORK, FailureSide.PROVIDER)
    assert found.ranked[0].evidence_for[0].startswith("the provider suspects interconnect: 25 times")


@pytest.mark.parametrize("reason", [slug for slug in CODE_REASONS if slug not in ("os_error", "checkpoint_write")])
@pytest.mark.parametrize("suspicion", list(Suspicion))
def test_no_hint_outweighs_an_error_of_the_script(reason: str, suspicion: Suspicion) -> None:
    """Whatever the hint: at most 3.5, and escalated 0.3 more, against 5."""
    worst = HintFact(suspicion.value, 1e6, 1e6, 0.1, is_escalated=True)
    facts = FailureFacts(reason, hints=(worst,))
    assert explain(facts).side is FailureSide.TENANT


def test_late_and_cleared_hints_weigh_less_and_then_nothing() -> None:
    gpu = [
        weight(FailureFacts(hints=(HintFact("memory", 8.0, 16.0, hours),)), FailureCause.GPU) for hours in (2, -0.5, -3)
    ]
    assert gpu[0] > gpu[1] > gpu[2] > 0
    assert weight(FailureFacts(hints=(HintFact("memory", 8.0, 16.0, -7.0),)), FailureCause.GPU) == 0.0
    cleared = HintFact("memory", 8.0, 16.0, 5.0, is_cleared=True)
    assert explain(replace(HANG, hints=(cleared,))).cause is FailureCause.UNDECIDED


def test_a_test_that_passed_speaks_against_its_organ() -> None:
    facts = replace(HANG, hints=(STRONG,), tests=(("interconnect", True),))
    found = explain(facts)
    assert found.cause is FailureCause.UNDECIDED
    (network,) = [one for one in found.ranked if one.cause is FailureCause.NETWORK]
    assert network.evidence_against == ("own test of interconnect passed",)


def test_own_runs_tell_code_from_hardware() -> None:
    crash = FailureFacts("illegal_memory_access", "an illegal memory access was encountered")
    everywhere, only_here = RunCounts(1, 0, 3, 0), RunCounts(3, 0, 0, 6)
    assert explain(replace(crash, runs=everywhere)).cause is FailureCause.CODE
    assert explain(replace(crash, runs=only_here)).side is FailureSide.PROVIDER
    assert explain(crash).cause is FailureCause.UNDECIDED


def test_two_sides_that_weigh_the_same_are_undecided() -> None:
    facts = FailureFacts(
        "connection_error", findings=(FindingFact("hang", (), "x.py:3"),), hints=(HintFact("storage", 9, 11, 1),)
    )
    weights = {one.side: one.weight for one in reversed(explain(facts).ranked)}
    assert abs(weights[FailureSide.PROVIDER] - weights[FailureSide.TENANT]) < 0.4
    assert explain(facts).cause is FailureCause.UNDECIDED


def test_a_hint_that_begins_with_the_job_s_own_error_says_little() -> None:
    crash = FailureFacts("illegal_memory_access", "an illegal memory access was encountered")
    with_it, before = (HintFact("compute", 10.0, 20.0, hours) for hours in (0.02, 3.0))
    assert explain(replace(crash, hints=(with_it,))).cause is FailureCause.UNDECIDED
    assert explain(replace(crash, hints=(before,))).cause is FailureCause.GPU
    assert explain(replace(HANG, hints=(with_it,))).cause is FailureCause.GPU
    assert "own kernel" in explain(replace(crash, hints=(with_it,))).ranked[1].evidence_for[1]


def test_a_job_of_one_node_has_no_network_between_nodes() -> None:
    few, many = (replace(HANG, hints=(STRONG,), ranks=ranks) for ranks in (8, 9))
    assert explain(few).cause is FailureCause.NVLINK
    assert explain(many).cause is FailureCause.NETWORK


def test_an_error_that_reports_what_a_program_sees_accuses_nobody_by_itself() -> None:
    slow = FailureFacts("runtime_error", "RuntimeError: straggler: rank 9 at 9.9 s > 3.0 x median 1.8 s")
    unseen = FailureFacts("value_error", "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
    assert {explain(facts).cause for facts in (slow, unseen)} == {FailureCause.UNDECIDED}
    hinted = [
        replace(slow, hints=(HintFact("compute", 2, 4, 1),)),
        replace(unseen, hints=(HintFact("host", 5, 10, 1),)),
    ]
    assert [explain(facts).cause for facts in hinted] == [FailureCause.GPU, FailureCause.HOST]


@pytest.mark.parametrize(
    "sentence", ["import_error: job.log, line 3: No module named 'apex'", "No module named 'apex'"]
)
def test_a_clue_says_its_reason_once(sentence: str) -> None:
    (clue, *_) = clues_of(FailureFacts("import_error", sentence))
    assert clue.text.count("import_error") == 1


@pytest.mark.parametrize(
    ("reason", "sentence", "hints", "cause"),
    [
        ("illegal_memory_access", "an illegal memory access; the same on 2 ranks", (), FailureCause.CODE),
        ("peer_lost", "connect to 10.0.0.1 failed : Connection refused", (STRONG,), FailureCause.UNDECIDED),
        ("peer_lost", "connect to 10.0.0.1 failed : Connection timed out", (STRONG,), FailureCause.NETWORK),
        ("cuda_error", "CUDA error: system not yet initialized", (), FailureCause.HOST),
        ("network_error", "ibv_reg_mr failed with error Cannot allocate memory", (), FailureCause.UNDECIDED),
        ("gpu_out_of_memory", "Tried to allocate more than 1EB memory.", (), FailureCause.UNDECIDED),
        ("gpu_out_of_memory", "Tried to allocate 2.00 GiB.", (), FailureCause.CAPACITY),
    ],
)  # fmt: skip
def test_words_of_an_error_weigh_beside_its_reason(
    reason: str, sentence: str, hints: tuple[HintFact, ...], cause: FailureCause
) -> None:
    assert explain(FailureFacts(reason, sentence, hints=hints)).cause is cause


def test_a_hung_job_that_was_stopped_was_not_simply_ended() -> None:
    stopped = FailureFacts(is_stopped=True)
    hung = replace(stopped, findings=(FindingFact("communication_hang", (), "all ranks wait"),))
    assert explain(stopped).cause is FailureCause.ENDED
    assert explain(hung).cause is FailureCause.UNDECIDED


hints_ = st.builds(
    HintFact,
    st.sampled_from([one.value for one in Suspicion]),
    st.floats(0, 50),
    st.floats(50, 1e9),
    st.floats(-100, 100),
    st.booleans(),
    st.booleans(),
)
findings_ = st.builds(
    FindingFact, st.sampled_from(["hang", "slow_rank", "nan_loss", "new_kind"]), st.just((1,)), st.text(max_size=80)
)
facts_ = st.builds(
    FailureFacts,
    st.sampled_from([*REASONS, "unknown"]),
    st.text(max_size=80),
    st.booleans(),
    st.floats(0, 1e4),
    st.lists(findings_, max_size=3).map(tuple),
    st.lists(hints_, max_size=3).map(tuple),
    st.sampled_from(["ok", "warning", "mismatch", "unknown"]),
    st.floats(0, 1e6),
)


@settings(max_examples=30)
@given(facts_)
def test_any_facts_have_an_explanation_that_names_undecided_once(facts: FailureFacts) -> None:
    found = explain(facts)
    assert [one.cause for one in found.ranked].count(FailureCause.UNDECIDED) == 1
    assert all(one.side is SIDES[one.cause] for one in found.ranked)
    named = [one for one in found.ranked if one.cause is not FailureCause.UNDECIDED]
    assert [one.weight for one in named] == sorted((one.weight for one in named), reverse=True)
    assert all(one.evidence_for for one in named)
    assert found.sentence


@settings(max_examples=30)
@given(facts_, hints_)
def test_a_further_hint_of_an_organ_never_speaks_against_it(facts: FailureFacts, more: HintFact) -> None:
    before, after = facts, replace(facts, hints=(*facts.hints, more))
    for cause in FailureCause:
        assert weight(after, cause) >= weight(before, cause) - 1e-9 or not weight(after, cause)


# ---- measured --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", ["seen", "unseen"])
def test_both_halves_keep_what_was_measured(half: str) -> None:
    """Targets: .9, .97, .98; on the unseen half .986 each at its only scoring."""
    figures = bench.score([(case, bench.facts_of(case)) for case in bench.cases(half)])
    assert figures["n"] == 71
    assert (figures["top1"], figures["top3"], figures["side"]) >= (0.9, 0.97, 0.98)


@pytest.mark.parametrize(
    ("half", "least", "claimed"), [("seen", (1.0, 1.0, 1.0), 0), ("unseen", (0.94, 0.95, 0.94), 0)]
)
@pytest.mark.parametrize("corpus", ["published", "folders"])
def test_other_cases_keep_what_was_measured(
    corpus: str, half: str, least: tuple[float, float, float], claimed: int
) -> None:
    """Targets: .9, .97, .98; the unseen halves reached .80, .95, .80 and .89, .94, .89 when they were scored."""
    figures = bench.score(bench.labelled(corpus, half))
    assert all(share >= at_least for share, at_least in zip((figures[key] for key in KEYS), least, strict=True))
    assert figures["wrong_side_claimed"] <= claimed


def test_later_cases_keep_what_was_measured() -> None:
    """19 of 20 right at their only scoring; the other one is a wrong side."""
    figures = bench.score(bench.labelled("later", "both"))
    assert (figures["n"], figures["wrong_side_claimed"], figures["side_left_open"]) == (20, 1, 0)


def test_the_halves_of_the_folders_are_every_other_name() -> None:
    names = {half: [case["id"] for case, _ in bench.labelled_folders(half)] for half in ("seen", "unseen")}
    assert {half: len(of_it) for half, of_it in names.items()} == {"seen": 18, "unseen": 18}
    every = sorted(names["seen"] + names["unseen"])
    assert names["seen"] == every[::2]


# ---- hints of a provider's half --------------------------------------------------------------------------------------

TELEMETRY = "time,node,gpu,metric,value\n"
LOG = "n1: started\nn2: started\n"


def half(folder: Path, kernel: str = "", telemetry: str = "2026-03-05T12:00:00Z,n1,0,DCGM_FI_DEV_GPU_UTIL,9\n") -> Path:
    (folder / "kernel.log").write_text(kernel)
    (folder / "telemetry.csv").write_text(TELEMETRY + telemetry)
    return folder


def test_an_event_becomes_a_hint_at_its_time_in_either_form_of_log(tmp_path: Path) -> None:
    text = "kernel: mlx5_core 0000:5e:00.0 ib2: Link down\n"
    for stamp in ("2026-03-05T11:00:00+0000", "2026-03-05T13:00:00+02:00", "Mar  5 11:00:00"):
        (hint_,) = hints_of(half(tmp_path, f"{stamp} n1 {text}"), LOG)
        assert (hint_.suspicion, hint_.ratio, hint_.hours_before) == ("interconnect", 10.0, 1.0), stamp
    (old,) = hints_of(half(tmp_path, f"2026-03-04T11:00:00+0000 n1 {text}"), LOG)
    assert old.is_cleared


@pytest.mark.parametrize(
    ("kernel", "organs"),
    [
        ("n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", ["host_link"]),
        ("n1 kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=1, DBE", ["memory"]),
        ("n1 kernel: NVRM: Xid (PCI:0000:3b:00): 13, pid=1, Graphics SM Warp Exception", []),
        ("n1 kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault", []),
        ("n1 kernel: NVRM: Xid (PCI:0000:3b:00): 45, pid=1, Ch 00000008", []),
        ("n9 kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=1, DBE", []),
        ("n1 kernel: Memory cgroup out of memory: Killed process 48213 (python3) total-vm:1kB", []),
        ("n1 kernel: Out of memory: Killed process 48213 (python3) total-vm:1kB", ["host"]),
    ],
)
def test_what_the_job_did_or_another_host_is_no_hint(tmp_path: Path, kernel: str, organs: list[str]) -> None:
    hints = hints_of(half(tmp_path, f"2026-03-05T11:00:00+0000 {kernel}\n"), LOG)
    assert [one.suspicion for one in hints] == organs


def test_counters_that_rose_and_clocks_held_down_are_hints(tmp_path: Path) -> None:
    rows = [
        f"2026-03-05T{at}:00:00Z,n1,0,{name},{value}\n"
        for name, values in {
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (100, 163, 164),  # 8 units of 8 above the first
            "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": (4, 132, 0),  # the power brake
            "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": (7, 7, 7),
        }.items()
        for at, value in zip((10, 11, 12), values, strict=True)
    ]
    hints = {one.suspicion: one for one in hints_of(half(tmp_path, telemetry="".join(rows)), LOG)}
    assert {organ: (one.ratio, one.hours_before) for organ, one in hints.items()} == {
        "host_link": (4.0, 0.0),
        "compute": (4.0, 1.0),
    }


# ---- from the journal ------------------------------------------------------------------------------------------------


def attempt(unit: str, number: int = 1, reason: str = "collective_timeout", **more: object) -> Attempt:
    made = Attempt(unit, number, AttemptState.FAILED, 0.0, 20 * HOUR_S, 1, None, AttemptCause(reason), 7, ())
    return replace(made, **more)  # type: ignore[arg-type]


def known(*attempts: Attempt, **more: object) -> Known:
    return replace(Known(attempts, {}, (), None, (), {}), **more)  # type: ignore[arg-type]


def test_only_hints_about_the_lease_count() -> None:
    mine, other = hint(1, at_h=19.0), hint(2, at_h=19.0, lease=OTHER)
    facts = facts_of(known(hints=(mine, other)), attempt(str(LEASE)))
    assert facts.hints == (HintFact("memory", 15.0, 20.0, 1.0),)
    after = facts_of(known(hints=(hint(1, at_h=30.0),)), attempt(str(LEASE)))
    assert after.hints[0].hours_before == -10.0
    course = (hint(1, at_h=3.0), hint(2, HintState.ESCALATED, at_h=4.0), hint(3, HintState.CLEARED, at_h=9.0))
    (cleared,) = facts_of(known(hints=course), attempt(str(LEASE))).hints
    assert (cleared.hours_before, cleared.is_cleared) == (17.0, True)


def test_the_bundle_s_verdict_and_a_hint_in_a_finding_count_once() -> None:
    entry = MismatchEntry(token("w0"), token("c0"), 0.99, 6.0, 4.0, 8.0, 9.0, PairJudgement.WORSE, alternatives=())
    bundle = Bundle(3, 0, 100, (), (entry,), (), None, band_edges_hours=(0.0, 1000.0))
    run = Run("u", {"family": str(token("w0")), "context": str(token("c0"))}, None)
    text = "rank 3 slows down the others; the provider suspects memory: test with `pharoah-tenant confirm memory`"
    findings = ({"kind": "slow_rank", "ranks": [3], "text": text, "cleared_at_s": None},)
    facts = facts_of(known(runs={"u": run}, bundle=bundle), attempt("u", findings=findings))
    assert facts.findings == (FindingFact("slow_rank", (3,), "rank 3 slows down the others"),)
    assert (facts.verdict, facts.ratio) == ("mismatch", 6.0)
    assert facts.runs == RunCounts()  # its structure is not known


def test_attempts_that_went_well_are_not_explained() -> None:
    well = attempt("u", state=AttemptState.SUCCEEDED, cause=AttemptCause())
    hinted = replace(well, attempt=2, findings=({"kind": "hint", "text": "raised", "cleared_at_s": None},))
    slow = replace(well, attempt=3, findings=({"kind": "gc_pauses", "text": "9%", "cleared_at_s": None},))
    told = [(one.attempt, found.cause) for one, found in explanations(known(well, hinted, slow))]
    assert told == [(3, FailureCause.CODE)]
    assert newest(known(well, hinted), "u") is None


@pytest.fixture
def home(tmp_path: Path) -> Path:
    unit = str(LEASE)
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts = Attempts(connection)
        number = attempts.begin(unit, 0.0)
        attempts.end(unit, number, AttemptState.FAILED, 20 * HOUR_S, exit_code=1)
        attempts.explain(unit, number, AttemptCause("peer_lost", sentence="peer_lost: rank 3: connection reset"))
        HintLog(connection).take(hint(1, at_h=19.5, suspicion=Suspicion.HOST), 0.0, NO_SIGNATURE)
    return tmp_path


def test_the_verb_and_the_journal(home: Path) -> None:
    done = CliRunner().invoke(app, ["show", "--only", "explain", str(LEASE)[:6], "--home", str(home)])
    assert done.exit_code == 0, done.output
    assert "attempt 1: probably a host (the provider's side): the provider suspects host: 20 times" in done.stdout
    told = json.loads(
        CliRunner().invoke(app, ["show", "--only", "explain", "--latest", "--json", "--home", str(home)]).stdout
    )
    assert [one["cause"] for one in told["ranked"]][:2] == ["host", "undecided"]
    assert set(told["ranked"][0]) == {"cause", "side", "weight", "evidence_for", "evidence_against"}
    shown = CliRunner().invoke(app, ["show", "--only", "journal", "--home", str(home)]).stdout
    assert "probably a host (the provider's side)" in shown


def test_the_page_shows_it(home: Path) -> None:
    from tenant_client.program.pages.html import renderer
    from tenant_client.program.pages.views import house

    seen = house(home, 21.0)
    assert seen.explanations[str(LEASE), 1].cause is FailureCause.HOST
    page = renderer()("attempts", at="/attempts", house=seen, first=0, step=100, job="")
    assert "probably a host (the provider&#39;s side)" in page


def test_a_lease_without_trouble_is_said(home: Path) -> None:
    with closing(open_database(home / "tenant.db")) as connection:
        Attempts(connection).begin(str(LeaseId(bytes(16))), 5.0)
    done = CliRunner().invoke(app, ["show", "--only", "explain", "00000000", "--home", str(home)])
    assert done.exit_code == 3
    assert "nothing to explain" in done.stderr


def test_a_stall_that_somebody_ended_is_explained_by_the_stall() -> None:
    hang = FindingFact("non_communication_hang", (1,), "rank 1 is outside; rank 1 at main (base.py:41)")
    sentence = "cancelled_stalled: rank 1 is outside; rank 1 at main (base.py:41); ended by SIGTERM"
    stalled = FailureFacts("cancelled_stalled", sentence, is_stopped=True, findings=(hang,))
    assert explain(stalled).cause is FailureCause.CODE
    assert explain(replace(stalled, findings=())).cause is not FailureCause.CODE


def test_what_succeeded_did_not_fail_soon_after_its_start() -> None:
    slow = FailureFacts(age_h=0.01, findings=(FindingFact("slow_function", (1,), "rank 1 is slow"),), has_failed=False)
    assert not any("of its start" in text for one in explain(slow).ranked for text in one.evidence_for)
    failed = replace(slow, has_failed=True, reason="key_error")
    assert any(text == "it failed within a minute of its start" for text in explain(failed).ranked[0].evidence_for)
