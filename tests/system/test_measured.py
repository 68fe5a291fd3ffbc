"""docs/measured.md is what docs/measured.json says, and README quotes nothing else."""

import re
import shlex

import pytest

from docs import measured
from tests.system.test_docs import README, parse, table

ENTRIES = measured.load()


def test_the_page_is_what_is_written_from_the_figures() -> None:
    assert measured.PAGE.read_text(encoding="utf-8") == measured.page(ENTRIES), "docs/measured.md is old: make measured"


def test_what_readme_quotes_is_a_row_of_the_page() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", measured.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    quoted = [(what, value) for what, value, *_ in table(README, "Measured")]
    assert len(quoted) == 6
    assert set(quoted) <= set(rows)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_figure_lies_within_its_range_and_its_command_exists(entry: measured.Entry) -> None:
    for figure in entry.figures:
        assert (figure.low is None) == (figure.high is None)
        if figure.value is not None and figure.low is not None and figure.high is not None:
            assert figure.low <= figure.value <= figure.high, figure.what
    if not entry.command.startswith(measured.TAKEN_DOWN):
        parse(shlex.split(entry.command))


def test_a_key_is_a_path_into_what_a_command_prints() -> None:
    assert measured.found({"1.0": {"ok": 1000}}, "1.0/ok") == 1000
    with pytest.raises(KeyError):
        measured.found({"1.0": {}}, "1.0/ok")


def test_every_quick_figure_has_a_key_so_that_make_measured_renews_it() -> None:
    assert [figure.what for entry in ENTRIES if entry.quick for figure in entry.figures if figure.key is None] == []
