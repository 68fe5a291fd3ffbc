"""The suite's own options, on a small suite: what was skipped is all that is run again, in any order that is asked."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.selection import GROUP, shuffled

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = "from tests.selection import pytest_addoption, pytest_configure\n"
NEEDS_A_FILE = """
import pathlib, pytest

def there() -> None:
    if not pathlib.Path("installed").exists():
        pytest.skip("it is not installed")
"""
MODULES = {
    "test_plain.py": "def test_one(): pass\ndef test_two(): pass\n",
    "test_whole.py": f"{NEEDS_A_FILE}there()\ndef test_three(): pass\ndef test_four(): pass\n".replace(
        'skip("it is not installed")', 'skip("it is not installed", allow_module_level=True)'
    ),
    "test_some.py": f"""{NEEDS_A_FILE}
@pytest.mark.xdist_group("some")
@pytest.mark.parametrize("of", ["a", "b@c"])
def test_five(of): there() if of == "a" else None
def test_six(): there()
@pytest.mark.xfail(reason="it does fail", strict=True)
def test_seven(): assert False
""",
}
SKIPPED = {
    "test_whole.py::test_three",
    "test_whole.py::test_four",
    "test_some.py::test_five[a]",
    "test_some.py::test_six",
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def passed(suite: Path, *options: str) -> list[str]:
    """The tests that passed, in their order."""
    command = [sys.executable, "-m", "pytest", "-rp", "-p", "no:randomly", *options]  # no order but ours
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=suite, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return [GROUP.sub("", name) for name in re.findall(r"^PASSED (\S+)$", done.stdout, re.MULTILINE)]


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadgroup")], ids=["alone", "workers"])
def test_what_was_skipped_is_all_that_runs_again(suite: Path, workers: tuple[str, ...]) -> None:
    first = passed(suite, *workers)
    assert {"test_plain.py::test_one", "test_some.py::test_five[b@c]"} <= set(first)
    assert not SKIPPED & set(first)
    (suite / "installed").touch()
    again = passed(suite, "--skipped", *workers)
    assert (sorted(again), passed(suite, "--skipped", *workers)) == (sorted(SKIPPED), [])


@pytest.mark.nightly
def test_a_run_without_a_cache_leaves_no_word_and_runs_all(suite: Path) -> None:
    first = passed(suite, "-p", "no:cacheprovider")
    assert "test_plain.py::test_one" in first
    assert passed(suite, "-p", "no:cacheprovider", "--skipped") == first
    assert not (suite / ".pytest_cache").exists()


@pytest.mark.nightly
def test_without_what_is_needed_it_is_skipped_again_and_remembered(suite: Path) -> None:
    passed(suite)
    assert passed(suite, "--skipped") == []
    (suite / "installed").touch()
    assert set(passed(suite, "--skipped")) == SKIPPED


@pytest.mark.nightly
def test_an_order_is_that_of_its_seed_and_keeps_modules_together(suite: Path) -> None:
    (suite / "installed").touch()
    orders = [passed(suite, "--order-seed", seed) for seed in ("1", "1", "2")]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(passed(suite))
    for order in orders:
        modules = [name.partition("::")[0] for name in order]
        assert len(re.findall(r"\b(\w+\.py)\b(?! \1)", " ".join(modules))) == len(set(modules))


def test_every_place_is_taken_by_every_test_in_some_order() -> None:
    items = [(module, module + name) for module in "xyz" for name in "abc"]
    places = {(place, item) for seed in range(200) for place, item in enumerate(shuffled(items, seed))}
    assert len(places) == len(items) ** 2


def test_what_is_needed_is_named_when_it_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match="Debian's package chromium adds it"):
        needs.program("chromium")
    (tmp_path / "chromium").touch(mode=0o755)
    assert needs.program("chromium") == tmp_path / "chromium"
