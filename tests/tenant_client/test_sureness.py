"""How sure a diagnosis is: what it rests on, the table in the package, and what more or worse cases change."""

from dataclasses import replace

import pytest

from benchmarks.diagnosis import sureness as benchmark
from federation.protocol.toml_tables import BadTable
from tenant_client.diagnosis.diagnose import Diagnosis, diagnose, explain, gather
from tenant_client.diagnosis.lessons import Lessons
from tenant_client.diagnosis.sureness import TABLE, Basis, basis_of, parse, sureness_of
from tenant_client.sources import exit_status
from tenant_client.sources.evidence import Evidence, Form, Role
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


def test_more_cases_make_surer_and_wrong_ones_less_sure() -> None:
    few, many = (parse(f"[traceback]\ncases = [{n}, {n}, {n}]\nreasons = {{}}")[Basis.TRACEBACK] for n in (3, 300))
    assert few.share("key_error", 1) < 0.6 < 0.95 < many.share("key_error", 1) < 1
    worse = parse("[traceback]\ncases = [300, 299, 300]\nreasons = { key_error = [4, 0, 4] }")[Basis.TRACEBACK]
    assert worse.share("key_error", 1) < 0.6 < worse.share("type_error", 1)
    assert worse.share("key_error", 2) > 0.95


def test_what_nobody_has_measured_is_not_sure_of_anything() -> None:
    table = parse("[kernel_log]\ncases = [5, 5, 5]\nreasons = {}")
    assert sureness_of(diagnose([KEY]), table) is None


@pytest.mark.parametrize(
    "text",
    [
        "[dream]\ncases = [1, 1, 1]\nreasons = {}", "[traceback]\ncases = [1, 2, 1]\nreasons = {}",
        "[traceback]\ncases = [0, 0, 0]\nreasons = {}", "[traceback]\ncases = [1, 1]\nreasons = {}",
        "[traceback]\ncases = [1, 1, -1]\nreasons = {}",
        "[traceback]\ncases = [1, 1, 1]\nreasons = { bad_weather = [1, 1, 1] }",
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(BadTable):
        parse(text)


def test_the_table_of_the_package_knows_the_commonest_bases_and_adds_up() -> None:
    assert {Basis.TRACEBACK, Basis.LOG_LINE, Basis.SEVERAL, Basis.LAUNCHER} <= set(TABLE)
    for basis, shares in TABLE.items():
        sums = tuple(sum(counts[which] for counts in shares.reasons.values()) for which in range(3))
        assert sums == shares.cases, basis


def test_cases_whose_decisive_lines_read_the_same_count_once() -> None:
    one = benchmark._judged("a", ("key_error",), diagnose([KEY]), makes=True)
    other = benchmark._judged("a", ("key_error",), diagnose([replace(KEY, line=9, rank=1)]), makes=True)
    wrong = benchmark._judged("a", ("type_error",), diagnose([KEY]), makes=True)
    unknown = benchmark._judged("a", ("key_error",), diagnose([TERMINATED]), makes=True)
    judged = list(benchmark.distinct([one, other, wrong, unknown]))
    assert judged == [one, wrong]
    made = parse(benchmark.table(judged))
    assert made[Basis.TRACEBACK].cases == (2, 1, 2)
    assert benchmark.calibration(judged, made)["n"] == 2
