"""docs/report.md quotes what was measured, and what follows from a law; `make report` looks at the PDF as well."""

import re
import subprocess

import msgspec
import numpy as np
import pytest

from docs import measured, report
from provider_server.rounds.settings import PlanTable
from tests.system.test_docs import README, ROOT, outputs

TEXT = report.REPORT.read_text(encoding="utf-8")
KNOWN = report.figures(measured.load())
QUOTED = report.QUOTED.findall(TEXT)
PYTHON = ROOT / "out/docs-venv/bin/python"
UNMEASURED = {"6.5", "95%", "4%", "5%", "90%", "1.7", "2.4", "4.9"}  # rates and levels that are set, goals, deviations
SCALES = (1.25, 1 / 0.15, 20.0)  # of pairs, hazard and control at epsilon 1


def test_every_figure_is_the_one_that_was_measured() -> None:
    assert list(report.misquoted(TEXT, KNOWN)) == []
    assert len(QUOTED) > 90


@pytest.mark.parametrize("title", [title for _, title in QUOTED if not title.endswith(report.BESIDE)])
def test_a_figure_that_changed_is_noticed(title: str) -> None:
    entry, figure = KNOWN[title]
    assert figure.value is not None
    changed = msgspec.structs.replace(figure, value=1.3 * figure.value + figure.value.is_integer())
    assert list(report.misquoted(TEXT, {**KNOWN, title: (entry, changed)}))


def test_a_name_or_a_peers_figure_that_is_wrong_is_noticed() -> None:
    assert list(report.misquoted('[1](measured.md "nothing: of this name")', KNOWN))
    one = '[0.892](measured.md "field, by week: rows/0/average_precision, beside")'
    assert list(report.misquoted(one, KNOWN))
    assert not list(report.misquoted(one.replace("0.892", "0.891"), KNOWN))


def test_no_figure_of_the_results_is_without_its_name() -> None:
    results = re.findall(r"^## (?:What is found|What it costs|Alone).*?(?=^## )", TEXT, re.MULTILINE | re.DOTALL)
    assert len(results) == 3
    bare = re.findall(r"(?<![\w.])\d+\.\d+%?|\d+%", report.QUOTED.sub("", "".join(results)))
    assert set(bare) <= UNMEASURED


def test_deviations_are_those_of_the_law() -> None:
    p = np.exp(-1 / SCALES[0])
    complete = np.sqrt(2 * p) / (1 - p)
    windows = len(PlanTable().windows)
    said = [float(number) for number in re.findall(r"(?:deviation of|window,|and) (\d\.\d)", sentence("**Noise.** At"))]
    assert said == [round(complete * factor, 1) for factor in (1, np.sqrt(2), np.sqrt(2 * windows))]


def sentence(start: str) -> str:
    return TEXT[TEXT.index(start) :].split("\n\n")[0].replace("\n", " ")


def test_what_epsilon_becomes_where_fewer_are_honest() -> None:
    head, (_, *told) = table_rows("of those who answer")
    parts = [float(share.rstrip("%")) / 50 for share in head[1:]]
    assert [float(one) for one in told] == [round(epsilon(min(part, 1.0)), 1) for part in parts]


def table_rows(start: str) -> tuple[list[str], list[str]]:
    """The head and the only row of the table that begins so."""
    head, _, row = (line for line in TEXT[TEXT.index(f"| {start}") :].splitlines()[:3])
    return head.strip("| ").split(" | "), row.strip("| ").split(" | ")


def epsilon(part: float) -> float:
    """What a unit pays where so much of the noise is there: log P(0) / P(1), summed over the tables."""
    total = 0.0
    for scale in SCALES:
        p = np.exp(-1 / scale)
        steps = np.arange(1, 4000)
        law = np.cumprod(np.concatenate([[1.0], (part + steps - 1) / steps * p]))  # NB(part, p) but for its constant
        total += np.log(law @ law / (law[1:] @ law[:-1]))
    return float(total)


def test_what_a_check_prints_is_as_in_readme() -> None:
    assert [block for block in outputs(report.REPORT) if block not in outputs(README)] == []
    assert outputs(report.REPORT)


@pytest.mark.nightly
def test_the_pdf_has_all_figures_and_the_same_bytes_each_time() -> None:
    if not PYTHON.exists():
        pytest.skip("there is no out/docs-venv here: `make report` makes it")
    script = """if True:
        import typst
        from docs import measured, report
        text, known = report.REPORT.read_text("utf-8"), report.figures(measured.load())
        one, other = (typst.compile(report.printed(text, known), root=report.DOCS) for _ in range(2))
        assert one == other
        assert list(report.unprintable(one, text)) == []
        more = 'as [77.3](measured.md "field: rows/0/auroc")'
        assert len(list(report.unprintable(one, more))) == 1
        report.PAGES = range(2, 4)
        assert len(list(report.unprintable(one, text))) == 1
    """
    subprocess.run([PYTHON, "-c", script], cwd=ROOT, check=True)
