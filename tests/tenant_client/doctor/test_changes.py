"""What changed between the run that worked and this one: relations, in few lines, the likeliest first."""

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from typer.testing import CliRunner

from crypto.ids import Token
from federation.protocol.bundle import Bundle, MismatchEntry, PairJudgement, RuleEntry
from tenant_client.doctor.advice.changes import Change, changes, relations
from tenant_client.doctor.advice.culprits import Evidence, came_shortly_before, ordered
from tenant_client.doctor.advice.incompatibilities import TABLE, Effect
from tenant_client.doctor.advice.moved import Moved, moved
from tenant_client.doctor.advice.own_runs import NothingToCompare, Run, Went, that_worked
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.program.cli import app
from tests.support.changing import replace
from tests.support.factories import a_descriptor, labels, token
from tests.support.upgrades import history, places_of

LLAMA = a_descriptor()


def run(unit: str = "a", place: int = 0, level: int = 0, **differing: Any) -> Run:
    own = labels(0, place) | ({"context_level": str(token("drifted"))} if level else {})
    return Run(unit, own, replace(LLAMA, **differing))


def texts(before: Run, after: Run) -> list[str]:
    return [f"{change.kind}: {change.text}" for change in changes(before, after)]


def culprits(before: Run, after: Run, reason: str, *runs: tuple[Run, bool]) -> tuple[Change, ...]:
    return ordered(changes(before, after), before, after, Evidence(reason, runs))


# ---- relations -----------------------------------------------------------------------------------------------------


def test_equal_runs_have_no_changes_and_unknown_workloads_none_that_are_made_up() -> None:
    assert changes(run(), run("b")) == ()
    assert changes(Run("a", {}, None), Run("b", labels(0), LLAMA)) == ()


def test_another_context_comes_first_and_another_level_is_told_from_it() -> None:
    moved = changes(run(), run(place=1, precision="fp8"))
    assert [change.kind for change in moved] == ["context", "precision"]
    assert moved[0].text.startswith("another hardware context: ")
    assert texts(run(), run(level=1)) == ["context: the same hardware context at another build-up level"]


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        ("2.9.1", "2.10.0", "nccl 2.9.1 → 2.10.0, newer"),
        ("2.21.5", "2.19.3", "nccl 2.21.5 → 2.19.3, older"),
        ("2.1", "2.1.post1", "nccl 2.1 → 2.1.post1, newer"),
        (None, "2.19.3", "nccl 2.19.3 is new"),
        ("2.19.3", None, "nccl 2.19.3 is gone"),
    ],
)
def test_versions_are_ordered_as_versions(was: str | None, now: str | None, text: str) -> None:
    one, other = (run(versions=(("nccl", version),) if version else ()) for version in (was, now))
    assert texts(one, other) == [f"version: {text}"]


def test_a_collective_over_twice_the_ranks_is_said_so() -> None:
    one, other = (run(collectives=(("all_reduce", ranks, 20), ("all_reduce", ranks, 24))) for ranks in (3, 4))
    assert texts(one, other) == ["collective: all_reduce: ranks × 2"]
    assert texts(other, one) == ["collective: all_reduce: ranks ÷ 2"]


def test_operators_of_one_factor_are_one_line() -> None:
    small, large = (
        run(structure=frozenset((name, (0, size, -1, size)) for name in ("a", "b", "c", "d", "e"))) for size in (9, 10)
    )
    assert texts(small, large) == ["operator: a, b, c and 2 more: 2 sizes × 2"]


def test_what_has_no_one_factor_is_counted() -> None:
    assert list(relations("mm", {(1,), (2,)}, {(1,), (3, 3)})) == ["mm: 1 of 2 sizes are gone, 1 are new"]
    assert list(relations("mm", set(), {(1,)})) == ["mm: is new"]


# ---- what is known of versions --------------------------------------------------------------------------------------


def with_versions(unit: str = "a", place: int = 0, **versions: str) -> Run:
    return run(unit, place, versions=tuple((name.replace("_", "-"), version) for name, version in versions.items()))


def test_the_version_that_brought_a_known_incompatibility_names_it_and_comes_first() -> None:
    before = with_versions(cuda="12.1", nccl="2.16.5", python="3.10.13", torch="2.0.1")
    after = with_versions("b", 1, cuda="12.4", nccl="2.17.1", python="3.11.9", torch="2.1.2")
    unexplained = changes(before, after)
    assert [change.kind for change in unexplained] == ["context", *["version"] * 4]
    assert unexplained[1].text == "nccl 2.16.5 → 2.17.1, newer"
    assert "nccl-missing-fin" in {known.id for known in unexplained[1].known}
    explained = culprits(before, after, "nccl_timeout_error")
    assert [change.text for change in explained[:1]] == ["nccl 2.16.5 → 2.17.1, newer"]
    assert {change.text for change in explained} == {change.text for change in unexplained}


def test_what_was_known_of_the_run_that_worked_explains_nothing() -> None:
    both = with_versions(nccl="2.17.1", torch="2.0.1"), with_versions("b", nccl="2.17.1", torch="2.1.2")
    (change,) = culprits(*both, "nccl_timeout_error")
    assert change.text.startswith("torch")
    assert "nccl-missing-fin" not in {known.id for known in change.known}


def test_further_software_is_compared_where_both_runs_tell_it() -> None:
    old, new = (run(software=(("deepspeed", "0.14.2"), ("numpy", numpy))) for numpy in ("1.26.4", "2.0.0"))
    (change,) = changes(old, new)
    assert change.text == "numpy 1.26.4 → 2.0.0, newer"
    assert "deepspeed-numpy-2" in {known.id for known in change.known}
    assert changes(run(), new) == ()


def test_an_older_version_may_bring_one_back() -> None:
    (change,) = changes(with_versions(nccl="2.29.3"), with_versions("b", nccl="2.29.2"))
    assert {known.id: known.found for known in change.known} == {"nccl-weak-cas-hang": ("nccl 2.29.2",)}


UPGRADED_BESIDE = {
    "cuda": ("12.1", "12.4"),
    "cudnn": ("8.9.2", "9.1.0"),
    "nccl": ("2.20.5", "2.21.5"),
    "python": ("3.10.13", "3.11.9"),
    "torch": ("2.3.1", "2.5.1"),
}
FAILED_AS = {
    Effect.HANG: "nccl_timeout_error",
    Effect.CRASH: "segmentation_fault",
    Effect.WRONG_RESULTS: "nan_loss",
    Effect.INIT_FAILURE: "cuda_error",
    Effect.IMPORT_ERROR: "import_error",
    Effect.OUT_OF_MEMORY: "gpu_out_of_memory",
    Effect.CHECKPOINT: "model_loading_error",
}


@pytest.mark.nightly
def test_the_culprit_of_an_upgrade_is_among_the_first_three_of_many_changes() -> None:
    """Each entry comes by each of its components, beside up to five other upgrades and another context."""
    places = []
    for name, entry in TABLE.items():
        if entry.log_only or entry.effect not in FAILED_AS:
            continue
        inside = {component: version_around(text, within=True) for component, text in entry.versions.items()}
        beside = {one: pair for one, pair in UPGRADED_BESIDE.items() if one not in entry.versions}
        for culprit, text in entry.versions.items():
            was = (
                {one: old for one, (old, _) in beside.items()} | inside | {culprit: version_around(text, within=False)}
            )
            now = {one: new for one, (_, new) in beside.items()} | inside
            does: dict[str, Any] = {"precision": (*entry.precision, "bf16")[0]}
            does |= {"collectives": tuple((kind, 3, 20) for kind in (*entry.collectives, "all_reduce"))}
            before = run("a", 0, versions=tuple(was.items()), **does)
            found = culprits(before, run("b", 1, versions=tuple(now.items()), **does), FAILED_AS[entry.effect])
            places_of_it = [at for at, change in enumerate(found) if change.text.startswith(f"{culprit} ")]
            assert name in {known.id for known in found[places_of_it[0]].known}
            places.append(places_of_it[0])
    assert len(places) > 150
    assert sum(place < 3 for place in places) >= 0.9 * len(places)


def version_around(text: str, *, within: bool) -> str:
    """A version at, just above or far from the bounds of a range, that is in it or is not."""
    bounds = [Version(one.version.removesuffix(".*")) for one in SpecifierSet(text)]
    tried = (*map(str, bounds), *(f"{bound.base_version}.1" for bound in bounds), "0.0.1", "99999")
    return next(version for version in tried if (Version(version) in SpecifierSet(text)) == within)


# ---- which change is the culprit -----------------------------------------------------------------------------------


def test_a_version_with_which_runs_succeeded_goes_behind_one_without_which_none_failed() -> None:
    before = with_versions(cuda="12.1", nccl="2.20.5", torch="2.3.1")
    after = with_versions("b", cuda="12.4", nccl="2.21.5", torch="2.5.1")
    fine = with_versions("c", cuda="12.1", nccl="2.21.5", torch="2.5.1")
    alone = [change.name for change in culprits(before, after, "nccl_timeout_error")]
    found = culprits(before, after, "nccl_timeout_error", *[(fine, False)] * 4, *[(after, True)] * 3)
    assert alone[0] == "nccl"  # most of what is known to hang is NCCL's
    assert found[0].name == "cuda"
    assert str(found[0].went) == "failed so: 3 of 3 runs with it, 0 of 4 without"
    assert str(found[1].went) == "failed so: 3 of 7 runs with it"


def test_the_likelihood_of_runs_is_the_mean_over_both_shares() -> None:
    shares = [(step + 0.5) / 20 for step in range(20)]
    by_hand = [more**2 * (1 - more) * fewer * (1 - fewer) ** 3 for more in shares for fewer in shares if fewer < more]
    assert math.exp(Went(2, 3, 1, 4).log_likelihood) == pytest.approx(sum(by_hand) / len(by_hand))
    assert math.isfinite(Went(900, 1000, 5, 4000).log_likelihood)


def test_what_the_bundle_says_against_the_new_state_comes_first() -> None:
    before, after = with_versions(nccl="2.17.1", torch="2.0.1"), with_versions("b", 1, nccl="2.18.3", torch="2.1.2")
    rule = RuleEntry(("fabric = roce", "torch in [2.1, 2.2)"), 4.0, 2.5, 6.0, 80.0)
    told = Bundle(7, 0, 168, (), (), (), None, rules=(rule,))
    found = ordered(changes(before, after), before, after, Evidence("segmentation_fault", (), told))
    assert found[0].name == "torch"
    assert found[0].told == "torch in [2.1, 2.2) fails 4.0 times as often (2.5–6.0), if fabric = roce"
    assert {change.told for change in found[1:]} == {""}
    back = ordered(changes(after, before), after, before, Evidence("segmentation_fault", (), told))
    assert {change.told for change in back} == {""}


def test_a_context_that_the_bundle_judges_worse_says_so() -> None:
    before, after = run(), run("b", 1)
    workload, context = (Token.fromhex(after.labels[label]) for label in ("archetype", "context"))
    row = MismatchEntry(workload, context, 0.99, 8.0, 5.0, 12.0, 9.0, PairJudgement.WORSE, ())
    told = Bundle(7, 0, 168, (), (row,), (), None)
    (change,) = ordered(changes(before, after), before, after, Evidence("nvlink_error", (), told))
    assert change.told.startswith("fails 8.0 times as often as expected")
    (back,) = ordered(changes(after, before), after, before, Evidence("nvlink_error", (), told))
    assert back.told == ""


def test_where_a_failure_comes_now_and_then_the_run_before_the_first_of_them_is_compared(home: Path) -> None:
    """`lucky` worked with the version that fails: what came before it is compared, and what it shares is named."""
    with closing(open_database(home / "tenant.db")) as connection:
        attempts, journal = Attempts(connection), Journal(connection)
        for number, state in enumerate((AttemptState.SUCCEEDED, AttemptState.FAILED), start=3):
            unit = {3: "lucky", 4: "again"}[number]
            attempts.begin(unit, 3600.0 * number)
            journal.describe(unit, 0.0, replace(LLAMA, versions=(*LLAMA.versions, ("nccl", "2.21.5"))))
            attempts.end(unit, 1, state, 3600.0 * number + 60.0)
        attempts.explain("again", 1, AttemptCause("nccl_timeout_error"))
    said = asked(home, "again")[1].splitlines()
    assert said[0] == "old → again"
    assert said[1] == "  version: nccl 2.21 → 2.21.5, newer"
    assert said[2].strip() == "failed so: 2 of 3 runs with it, 0 of 1 without"


def test_a_version_that_a_lucky_run_had_too_is_still_named() -> None:
    old, new = with_versions(nccl="2.20.5"), with_versions("lucky", nccl="2.21.5")
    (change,) = came_shortly_before(changes(new, new), [old, new], new)
    assert change.text == "nccl 2.20.5 → 2.21.5, newer, in lucky too"
    assert came_shortly_before(changes(old, new), [new, old], new) == ()


def test_operators_are_moved_by_the_versions_that_came_with_them_in_every_run() -> None:
    old = replace(LLAMA, versions=(("cudnn", "8.9"), ("torch", "2.4")), kernel_families=frozenset({"v8"}))
    new = replace(LLAMA, versions=(("cudnn", "9.1"), ("torch", "2.5")), kernel_families=frozenset({"v9"}))
    mixed = replace(old, versions=(("cudnn", "8.9"), ("torch", "2.5")))
    assert moved(old, new, [old, new]) == (Moved(("v8", "v9"), ("cudnn", "torch")),)
    assert moved(old, new, [old, new, mixed]) == (Moved(("v8", "v9"), ("cudnn",)),)
    assert moved(old, new, [mixed, replace(new, kernel_families=frozenset({"v8"}))]) == ()
    assert moved(old, replace(old, versions=new.versions), []) == ()


@pytest.mark.nightly
def test_the_culprit_of_an_injected_upgrade_is_among_the_first_three() -> None:
    """Other seeds than those of the benchmark's figures; of what nobody knows, at the third failure."""
    for catalogued, failure in ((True, 1), (False, 3)):
        places = []
        for seed in range(90):
            found = places_of(history(np.random.default_rng([77, seed]), catalogued=catalogued), failure)
            places += [found[0]] if found else []
        assert len(places) >= 50
        assert sum(place < 3 for place in places) >= 0.85 * len(places)  # 90%, and chance


sizes = st.sets(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=5)


@given(sizes, st.integers(1, 4))
def test_a_common_factor_is_found_whatever_the_sizes(was: set[tuple[int, ...]], by: int) -> None:
    now: set[tuple[int, ...]] = {(one + 20 * by, other) for one, other in was}
    assert list(relations("mm", was, now)) == [f"mm: 1 sizes × {2 ** (20 * by)}"]


# ---- which run to compare with -------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three runs in order: of the same model, of another model, and one that failed with a newer NCCL."""
    connection = open_database(tmp_path / "tenant.db")
    attempts, journal = Attempts(connection), Journal(connection)
    other = replace(LLAMA, structure=frozenset({("aten::conv2d", (3, 3))}))
    newer = replace(LLAMA, versions=(*LLAMA.versions, ("nccl", "2.21.5")))
    runs = [
        ("old", LLAMA, AttemptState.SUCCEEDED),
        ("other", other, AttemptState.SUCCEEDED),
        ("new", newer, AttemptState.FAILED),
    ]
    for number, (unit, descriptor, state) in enumerate(runs):
        attempts.begin(unit, 3600.0 * number)
        journal.describe(unit, 0.0, descriptor)
        attempts.end(unit, 1, state, 3600.0 * number + 60.0)
    attempts.explain("new", 1, AttemptCause("nccl_timeout_error"))
    connection.close()
    return tmp_path


def asked(home: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["show", "--only", "changes", *words, "--home", str(home)])
    return done.exit_code, done.output


def test_the_last_run_of_the_same_structure_that_worked_is_the_one_to_compare_with(home: Path) -> None:
    code, said = asked(home, "new")
    assert code == 1
    assert "old" in said.splitlines()[0]
    assert "version: nccl 2.21 → 2.21.5, newer" in said
    assert len(said.splitlines()) == 2


def test_changes_names_what_a_version_brought(home: Path) -> None:
    with closing(open_database(home / "tenant.db")) as connection:
        older = replace(LLAMA, versions=(*LLAMA.versions, ("nccl", "2.16.5")))
        newer = replace(LLAMA, versions=(*LLAMA.versions, ("nccl", "2.17.1")))
        Journal(connection).describe("old", 1.0, older)
        Journal(connection).describe("new", 1.0, newer)
    code, said = asked(home, "new")
    assert code == 1
    assert said.splitlines()[1] == "  version: nccl 2.16.5 → 2.17.1, newer"
    assert "    known of nccl 2.17.1: a peer waits for a connection" in said
    (change,) = json.loads(asked(home, "new", "--json")[1])["changes"]
    assert change["known"][0]["id"] == "nccl-missing-fin"


def test_another_run_can_be_named_and_equal_ones_say_so(home: Path) -> None:
    assert "operator" in asked(home, "new", "--from", "other")[1]
    code, said = asked(home, "old", "--from", "old")
    assert (code, "no change found" in said) == (0, True)


def test_names_that_are_not_there_are_refused(home: Path) -> None:
    code, said = asked(home, "nobody")
    assert (code, "no lease 'nobody'" in said) == (2, True)


def test_without_a_run_that_worked_there_is_nothing_to_compare() -> None:
    with pytest.raises(NothingToCompare):
        that_worked([], {"a": run()}, "a")


def ran(home: Path, unit: str, ended_h: float, *findings: dict[str, object], described: bool = True) -> None:
    with closing(open_database(home / "tenant.db")) as connection:
        attempts = Attempts(connection)
        attempts.begin(unit, 3600.0 * (ended_h - 0.5))
        attempts.end(unit, 1, AttemptState.SUCCEEDED, 3600.0 * ended_h, findings=findings)
        if described:
            Journal(connection).describe(unit, 0.0, LLAMA)


def test_neither_a_run_with_nan_losses_nor_a_later_one_is_compared_with(home: Path) -> None:
    ran(home, "nan", 1.9, {"kind": "nan_loss", "cleared_at_s": None})
    ran(home, "later", 9.0)
    assert asked(home, "new")[1].splitlines()[0] == "old → new"
    ran(home, "hinted", 1.8, {"kind": "hint", "cleared_at_s": None}, {"kind": "loss_spike", "cleared_at_s": 6000.0})
    assert asked(home, "new")[1].splitlines()[0] == "hinted → new"


def test_why_there_is_nothing_to_compare(tmp_path: Path) -> None:
    ran(tmp_path, "first", 1.0)
    assert asked(tmp_path, "first")[0] == 2
    assert "no clean run before first: no other run succeeded" in asked(tmp_path, "first")[1]
    ran(tmp_path, "second", 2.0)
    assert "no clean run before first: 1 successful run ended later" in asked(tmp_path, "first")[1]
    ran(tmp_path, "third", 3.0, described=False)
    code, said = asked(tmp_path, "third")
    assert (code, "nothing to compare: workload: third was not described" in said) == (2, True)
    ran(tmp_path, "nan", 0.5, {"kind": "nan_loss", "cleared_at_s": None})
    assert "no clean run before first: 1 successful run ended with nan_loss" in asked(tmp_path, "first")[1]
