"""How sure a diagnosis is: what it rests on, the table in the package, and what more or worse cases change."""

from dataclasses import replace

import pytest

from federation.protocol.toml_tables import BadTable
from simulation.studies.diagnosis import sureness as benchmark
from tenant_client.doctor.diagnosis.diagnose import Diagnosis, diagnose, explain, gather
from tenant_client.doctor.diagnosis.lessons import Lessons
from tenant_client.doctor.diagnosis.sureness import TABLE, Basis, basis_of, parse, sureness_of
from tenant_client.doctor.sources import exit_status
from tenant_client.doctor.sources.evidence import Evidence, Form, Role
from tests.support.logs_of_our_own import LOGS

KEY = Evidence("key_error", Role.ROOT, "job_log", "job.log", 40, "KeyError: 'x'", rank=3, form=Form.TRACEBACK)
VERDICT = Evidence("unknown", Role.TEARDOWN, "torchrun", "job.log", 90, "first failure: exit code 1", rank=3)
TERMINATED = Evidence("unknown", Role.TEARDOWN, "job_log", "job.log", 95, "closing signal SIGTERM")


def of_log(name: str) -> Diagnosis:
    return diagnose(gather([LOGS / name]).evidence)


@pytest.mark.parametrize(
    ("name", "basis"),
    [
        ("key_error_plain.log", Basis.TRACEBACK), ("argument_error_plain.log", Basis.LOG_LINE),
        ("nvlink_error_plain.log", Basis.SEVERAL), ("node_failure_plain.log", Basis.LOG_LINE), ("clean_run.log", None),
    ],
)  # fmt: skip
def test_what_the_diagnosis_of_a_log_rests_on(name: str, basis: Basis | None) -> None:
    assert basis_of(of_log(name)) == basis


def test_last_words_and_an_exit_status_are_bases_of_their_own() -> None:
    assert basis_of(diagnose([replace(KEY, form=Form.LAST_WORDS)])) is Basis.LAST_WORDS
    ended = exit_status.of(-11)
    assert ended is not None
    assert basis_of(diagnose([ended])) is Basis.EXIT_STATUS


def test_the_launcher_agrees_with_the_exception_of_the_rank_that_it_names_and_of_no_other() -> None:
    assert basis_of(diagnose([KEY])) is Basis.TRACEBACK
    assert basis_of(diagnose([KEY, VERDICT])) is Basis.SEVERAL
    assert basis_of(diagnose([replace(KEY, rank=None), VERDICT])) is Basis.TRACEBACK
    assert basis_of(diagnose([KEY, TERMINATED])) is Basis.TRACEBACK


def test_an_owners_lesson_and_an_unknown_cause_have_no_sureness() -> None:
    gathered = gather([LOGS / "clean_run.log"])
    assert sureness_of(explain(gathered, Lessons({}))) is None
    line = next(iter(gathered.leftovers.values())).tail[-1].text
    taught = explain(gathered, Lessons({}).teach(line, "os_error"))
    assert (taught.reason, sureness_of(taught)) == ("os_error", None)


def least(right: int, n: int) -> float | None:
    cases = [n, right, n]
    return parse(f"[traceback]\ncases = {cases}\nfamilies = {{ script = {cases} }}")[Basis.TRACEBACK].share("script", 1)


def test_the_share_is_that_of_which_so_many_right_cases_are_one_sample_of_twenty() -> None:
    assert least(5, 5) == pytest.approx(0.05 ** (1 / 5), abs=1e-5)
    assert least(27, 30) == pytest.approx(0.7614, abs=1e-4), "Clopper and Pearson's table for 3 of 30, one-sided"
    assert least(0, 9) == pytest.approx(0.0, abs=1e-5)
    assert least(290, 300) > least(97, 100) > least(29, 30)  # type: ignore[operator]


def test_fewer_than_a_handful_of_cases_say_nothing_and_a_worse_kind_of_evidence_bounds_each_family() -> None:
    assert least(4, 4) is None
    text = "[traceback]\ncases = [300, 200, 300]\nfamilies = { script = [20, 20, 20], framework = [4, 4, 4] }"
    shares = parse(text)[Basis.TRACEBACK]
    assert shares.share("script", 1) == pytest.approx(0.62, abs=0.01)
    assert shares.share("script", 2) == pytest.approx(0.05 ** (1 / 20), abs=1e-5)
    assert sureness_of(diagnose([KEY]), {Basis.TRACEBACK: shares}) is not None
    assert sureness_of(diagnose([replace(KEY, reason="runtime_error")]), {Basis.TRACEBACK: shares}) is None
    assert shares.share("infrastructure", 1) is None


def test_what_nobody_has_measured_is_not_sure_of_anything() -> None:
    table = parse("[kernel_log]\ncases = [5, 5, 5]\nfamilies = {}")
    assert sureness_of(diagnose([KEY]), table) is None


@pytest.mark.parametrize(
    "text",
    [
        "[dream]\ncases = [1, 1, 1]\nfamilies = {}", "[traceback]\ncases = [1, 2, 1]\nfamilies = {}",
        "[traceback]\ncases = [0, 0, 0]\nfamilies = {}", "[traceback]\ncases = [1, 1]\nfamilies = {}",
        "[traceback]\ncases = [1, 1, -1]\nfamilies = {}",
        "[traceback]\ncases = [1, 1, 1]\nfamilies = { bad_weather = [1, 1, 1] }",
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(BadTable):
        parse(text)


def test_the_table_of_the_package_knows_the_commonest_bases_and_adds_up() -> None:
    assert {Basis.TRACEBACK, Basis.LOG_LINE, Basis.SEVERAL, Basis.LAUNCHER} <= set(TABLE)
    for basis, shares in TABLE.items():
        sums = [sum(counts[which] for counts in shares.families.values()) for which in range(3)]
        assert all(one <= other for one, other in zip(sums, shares.cases, strict=True)), basis
        assert basis is Basis.TRACEBACK or sums == list(shares.cases), "only of tracebacks some have no family"


def test_cases_whose_decisive_lines_read_the_same_count_once() -> None:
    one = benchmark._judged("a", ("key_error",), diagnose([KEY]), makes=True)
    other = benchmark._judged("a", ("key_error",), diagnose([replace(KEY, line=9, rank=1)]), makes=True)
    wrong = benchmark._judged("a", ("type_error",), diagnose([KEY]), makes=True)
    unknown = benchmark._judged("a", ("key_error",), diagnose([TERMINATED]), makes=True)
    judged = list(benchmark.distinct([one, other, wrong, unknown]))
    assert judged == [one, wrong]
    made = parse(benchmark.table(judged))
    assert made[Basis.TRACEBACK].cases == made[Basis.TRACEBACK].families["script"] == (2, 1, 2)
    more = ({("traceback", ""): [65, 56, 52]}, ["logs that are not kept"])
    assert parse(benchmark.table(judged, more))[Basis.TRACEBACK].cases == (67, 57, 54)
    few = benchmark.calibration(judged, made)
    assert (few["n"], few["not_measured"]) == (0, 2)
    whole = parse(benchmark.table(judged, ({("traceback", "script"): [65, 56, 52]}, [])))
    assert benchmark.calibration(judged, whole)["n"] == 2
