"""Templates of lines, and lessons of the owner."""

import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tenant_client.doctor.diagnosis.lessons import Lessons, LessonsError, bare, load_lessons, save_lessons
from tenant_client.doctor.diagnosis.log_templates import Templates, mask

NONE = Lessons()


def test_what_varies_is_masked_and_words_are_not() -> None:
    assert mask("pump 7 at 0x7f3a lost 12.5 l/s on 2025-11-03 04:00:01") == "pump <*> at <*> lost <*> l/s on <*> <*>"
    assert mask("a  decade  of defaced facades") == "a decade of defaced facades"


def test_words_that_vary_become_wildcards() -> None:
    known = Templates()
    ids = {known.learn(f"lease of worker {name} was lost at step 4") for name in ("ann", "bob", "cy")}
    (only,) = ids
    assert (known.text(only), known.count(only)) == ("lease of worker <*> was lost at step <*>", 3)
    assert known.of("lease of worker dan was lost at step 9") == only


def test_other_lines_are_other_templates_and_asking_learns_nothing() -> None:
    known = Templates()
    assert known.of("a b c") is None
    first, second = known.learn("disk is full"), known.learn("pump has stopped working")
    assert first != second
    assert known.of("nothing like these at all") is None
    assert len(known) == 2


def test_the_rarest_come_first() -> None:
    known = Templates()
    for line in ["common one here"] * 5 + ["rare thing happened today"] + ["other two words"] * 2:
        known.learn(line)
    assert [known.count(one) for one in known.rarest(2)] == [1, 2]


def test_a_flood_of_new_lines_ends_at_the_caps() -> None:
    rng, known = random.Random(1), Templates()
    letters = "abcdefghijklmnopqrstuvwxyz"
    for _ in range(3000):
        known.learn(" ".join("".join(rng.choices(letters, k=6)) for _ in range(3)))
    assert len(known) <= 10_000
    assert sum(known.count(one) for one in range(len(known))) == 3000


@given(st.lists(st.text(max_size=60), max_size=30))
def test_every_line_is_counted_once_and_found_again(lines: list[str]) -> None:
    known = Templates()
    for line in lines:
        known.learn(line)
    assert sum(known.count(one) for one in range(len(known))) == len(lines)
    assert all(known.of(line) is not None for line in lines)


# ---- lessons -------------------------------------------------------------------------------------------------------


def test_a_lesson_covers_lines_that_differ_in_numbers() -> None:
    taught = NONE.teach("licence server 10.0.0.3 refused seat 4", "connection_error")
    assert taught.reason_of("licence server 10.0.0.9 refused seat 77") == "connection_error"
    assert taught.reason_of("licence server 10.0.0.9 granted seat 77") is None
    assert NONE.reason_of("licence server 10.0.0.9 refused seat 77") is None


def test_a_part_of_a_line_is_enough_and_a_regular_expression_works() -> None:
    taught = NONE.teach("seat 4 was revoked", "connection_error").teach(
        r"pump-\w+ (lost|leaks)", "os_error", regex=True
    )
    assert taught.reason_of("E 2026-03-01 licence: seat 77 was revoked by admin") == "connection_error"
    assert taught.reason_of("warning: pump-north leaks") == "os_error"
    assert taught.reason_of("warning: pump-north runs; a seat was revoked") is None


@pytest.mark.parametrize(
    "before",
    [
        "2026-03-01 09:00:00,123 ", "2026-03-01T09:00:00Z ", "[rank3]: ", "rank3: ", "7: ", "node-7: ",
        "E1122 00:01:02.345000 4711 torch/x.py:12] ", "[2026-03-01 09:00:00] [ERROR] ", "(train pid=4711) ",
        "Mar  1 09:00:00 ", "WARNING: ", "[default0]:",
    ],
)  # fmt: skip
def test_what_a_pasted_line_begins_with_is_left_out(before: str) -> None:
    assert bare(f"{before}licence server refused seat 4") == "licence server refused seat 4"
    assert NONE.teach(f"{before}licence server refused", "os_error").reason_of("licence server refused") == "os_error"


def test_a_line_of_nothing_but_a_beginning_stays() -> None:
    assert bare("[rank3]: 17") == "[rank3]: 17"


def test_a_lesson_is_forgotten_by_its_text_or_its_pattern() -> None:
    taught = NONE.teach("[rank0]: pump 7 stopped", "os_error").teach("valve.*open", "os_error", regex=True)
    assert dict(taught.forget("pump <*> stopped").reasons) == {}
    assert dict(taught.forget("[rank3]: pump 9 stopped").reasons) == {}
    assert dict(taught.forget("valve.*open").regexes) == {}
    with pytest.raises(LessonsError, match="no lesson 'pump'"):
        taught.forget("pump")


@pytest.mark.parametrize("regex", ["(", "x*", ""])
def test_a_regular_expression_that_is_none_or_matches_all_is_refused(regex: str) -> None:
    with pytest.raises(LessonsError):
        NONE.teach(regex, "os_error", regex=True)


def test_lessons_are_written_and_read_again(tmp_path: Path) -> None:
    taught = NONE.teach("pump 7 stopped", "os_error").teach("valve.*open", "ecc_error", regex=True)
    save_lessons(taught, tmp_path / "lessons.json")
    read = load_lessons(tmp_path / "lessons.json")
    assert (dict(read.reasons), dict(read.regexes)) == ({"pump <*> stopped": "os_error"}, {"valve.*open": "ecc_error"})
    assert [file.name for file in tmp_path.iterdir()] == ["lessons.json"]


def test_no_file_means_no_lessons(tmp_path: Path) -> None:
    assert dict(load_lessons(tmp_path / "none.json").reasons) == {}


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", '{"version": 2, "lessons": {}}', '{"version": 1}', '{"version": 1, "lessons": {"pump": "no_reason"}}',
        '{"version": 1, "lessons": {"<*> <*>": "os_error"}}', '{"version": 1, "lessons": {"pump": 3}}', "[" * 100_000,
    ],
)  # fmt: skip
def test_wrong_lessons_are_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "lessons.json"
    file.write_text(content)
    with pytest.raises(LessonsError):
        load_lessons(file)


@pytest.mark.parametrize(("line", "reason"), [("pump", "unknown"), ("17", "os_error"), ("", "os_error")])
def test_a_lesson_that_would_cover_everything_or_name_nothing_is_refused(line: str, reason: str) -> None:
    with pytest.raises(LessonsError):
        NONE.teach(line, reason)
