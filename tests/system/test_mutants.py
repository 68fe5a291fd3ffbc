"""What breaks checks to try the suite: it moves one bound at a time, and believes no test that fails anyway."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import guards, importers, pick, watchers

SOURCE = '''
MOST = 3


def fits(value: int) -> bool:
    return value <= MOST


def refuse(value: int, names: list[str]) -> int:
    """No `bound` here > 7."""
    wrong = [name for name in names if len(name) != 2]
    if wrong or not 1 <= value or not fits(value):
        raise ValueError(value)
    if value == 2:
        raise KeyError(value)
    return value if value > 1 else 0
'''
CHANGES = {
    "fits": {"value < MOST", "value <= MOST + 1"},
    "names": {"len(name) < 2", "len(name) > 2"},
    "value": {"1 < value", "1 <= value + 1", "value <= 2", "value >= 2"},
    "clauses": {"not 1 <= value or not fits(value)", "wrong or not fits(value)", "wrong or not 1 <= value"},
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with one module of checks, one that imports it, and tests of both."""
    files = {
        "crypto/__init__.py": "",
        "crypto/checks.py": SOURCE,
        "crypto/above.py": "from crypto.checks import refuse\n",
        "tests/test_checks.py": "from crypto import checks\ndef test_it(): assert checks.refuse(3, []) == 3\n",
        "tests/test_above.py": "import crypto.above\ndef test_it(): assert crypto.above\n",
        "tests/test_other.py": "def test_it(): pass\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_bound_and_clause_of_a_refusal_is_changed_and_nothing_else(tree: Path) -> None:
    made = [one for guard in mutants.mutants(tree / "crypto/checks.py", tree) for one in guard]
    assert {one.change.split("  ->  ")[1] for one in made} == set.union(*CHANGES.values())
    assert len({one.source for one in made}) == len(made)
    for one in made:
        before, after = SOURCE.splitlines(), one.source.splitlines()
        assert [number for number, line in enumerate(before, 1) if line != after[number - 1]] == [one.line]


def test_named_bounds_count_only_where_they_decide_without_raising() -> None:
    source = ast.parse("def judge(rate):\n    return rate >= LIKELY\n")
    assert not list(guards(source, named_bounds=False))
    assert [ast.unparse(guard.test) for guard in guards(source, named_bounds=True)] == ["rate >= LIKELY"]


def test_a_seed_picks_the_same_mutants_from_every_place() -> None:
    picked = pick(30, 1)
    assert picked == pick(30, 1) != pick(30, 2)
    assert len({one.name for one in picked}) == 30
    for place in mutants.PLACES:
        assert sum(Path(one.path).match(place) for one in picked) == 6


def test_tests_of_the_module_come_before_tests_of_its_importers(tree: Path) -> None:
    assert watchers("crypto/checks.py", importers(tree)) == [
        ["crypto/checks.py", "tests/test_checks.py"],
        ["tests/test_above.py"],
    ]


@pytest.mark.nightly
def test_a_mutant_that_no_test_notices_is_named_and_fails_the_run(tree: Path, tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from tests import mutants; sys.exit(mutants.main(sys.argv[1:]))"
    (tree / "tests/mutants.py").write_text(Path(mutants.__file__).read_text())
    (tree / "tests/test_zero.py").write_text("import crypto.checks\ndef test_fails_anyway(): assert False\n")
    done = subprocess.run(
        [sys.executable, "-c", code, "--mutants", "99", "--only", "MOST"], cwd=tree, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "value < MOST: killed by tests/test_checks.py::test_it" in done.stderr
    assert "value <= MOST + 1: SURVIVED" in done.stderr
    assert done.stderr.endswith("mutants of seed 1: 2, killed: 1\n")
