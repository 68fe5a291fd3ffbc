"""SECURITY.md: every attack in its tables names tests, and every test that it names is there, once."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(test_\w+)`")


def rows() -> list[list[str]]:
    """The cells of all rows of all tables, without their heads."""
    lines = re.findall(r"^\|(.+)\|$", TEXT, re.MULTILINE)
    ruled = {at for at, line in enumerate(lines) if set(line) <= set("-|")}
    return [
        [cell.strip() for cell in line.split(" | ")]
        for at, line in enumerate(lines)
        if at not in ruled and at + 1 not in ruled
    ]


def test_every_test_that_is_named_is_there_once() -> None:
    sources = [
        file.read_text(encoding="utf-8") for place in ("tests", "plugins") for file in (ROOT / place).rglob("*.py")
    ]
    there = Counter(name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE))
    named = NAMED.findall(TEXT)
    assert len(named) > 80
    assert {name: there[name] for name in named if there[name] != 1} == {}


def test_every_attack_names_the_tests_that_fail_when_it_works() -> None:
    found = rows()
    assert len(found) > 50
    for row in found:
        *_, tests = row
        assert NAMED.search(tests), row
        assert set(re.sub(NAMED, "", tests)) <= set(", "), row


def test_every_item_of_the_review_has_a_row() -> None:
    assert {row[0] for row in rows() if row[0].isdecimal()} == set(map(str, range(1, 16)))


def test_no_address_is_made_up() -> None:
    assert not re.search(r"\S@\S", TEXT)
