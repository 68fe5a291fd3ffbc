"""`pharoah-tenant show --only changes --only` and `--rules`: whether what changed between two runs may have."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from federation.protocol.change_rules import Rule, RuleVerdict, judge
from tenant_client.doctor.advice.own_runs import Run
from tenant_client.doctor.advice.run_snapshots import snapshots
from tenant_client.doctor.records.attempts import Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.program.cli import app
from tests.support.changing import replace
from tests.support.factories import a_descriptor, labels
from tests.support.schemas import held

LLAMA = a_descriptor()
SOFTWARE = (("driver", "535.104"), ("numpy", "1.26"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A run that worked, and one with a newer NCCL and driver."""
    newer = replace(LLAMA, versions=(("nccl", "2.21.5"), ("torch", "2.4")), software=(("driver", "550.2"), SOFTWARE[1]))
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        for number, (unit, descriptor) in enumerate((("old", replace(LLAMA, software=SOFTWARE)), ("new", newer))):
            Attempts(connection).begin(unit, 3600.0 * number)
            Journal(connection).describe(unit, 0.0, descriptor)
            Attempts(connection).end(unit, 1, AttemptState.SUCCEEDED, 3600.0 * number + 60.0)
    return tmp_path


def asked(home: Path, *words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["show", "--only", "changes", "new", *words, "--home", str(home)])
    return done.exit_code, done.stdout, done.stderr


def test_only_is_an_assertion_with_an_exit_code(home: Path) -> None:
    assert asked(home, "--only", "nccl, driver")[:2] == (0, "old → new: holds\n  holds   only nccl, driver\n")
    code, said, _ = asked(home, "--only", "driver")
    assert code == 1
    assert said.splitlines()[1:] == ["  broken  only driver", "    nccl 2.21 → 2.21.5"]


def test_rules_are_read_from_a_file_and_told_as_json(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[[rule]]\nnewer = ["nccl"]\nsame = ["operator"]\n[[rule]]\nwithin = ["driver < 550"]\n')
    code, said, _ = asked(home, "--only", "nccl,driver", "--rules", str(file), "--json")
    told = held("pharoah-tenant show --only changes --rules", said)
    assert (code, told["verdict"]) == (1, "broken")
    assert [rule["verdict"] for rule in told["rules"]] == ["holds", "holds", "broken"]
    assert told["rules"][2]["why"] == ["driver 550.2: not driver < 550"]
    assert told["rules"][2]["against"][0]["after"] == "550.2"


def test_a_rule_about_nothing_and_a_wrong_file_end_with_2(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[[rule]]\nsame = ["ncl"]\n')
    assert asked(home, "--rules", str(file))[0] == 2
    file.write_text('[[rule]]\nonyl = ["nccl"]\n')
    code, _, said = asked(home, "--rules", str(file))
    assert code == 2
    assert "rule 1: unknown key 'onyl'" in said
    assert "known keys: name, only" in said


def verdict(before: Run, after: Run, **terms: Any) -> RuleVerdict:
    return judge([Rule(**terms)], *snapshots(before, after)).verdict


def test_what_a_run_does_not_tell_is_unknown() -> None:
    described, bare = Run("a", labels(0), LLAMA), Run("b", labels(0), None)
    assert verdict(described, described, only=()) is RuleVerdict.HOLDS
    assert verdict(described, bare, only=("nccl",)) is RuleVerdict.UNKNOWN
    assert verdict(bare, bare, only=("nccl",)) is RuleVerdict.UNKNOWN
    assert verdict(bare, bare, same=("context",)) is RuleVerdict.HOLDS
    with_software = Run("c", labels(0), replace(LLAMA, software=SOFTWARE))
    assert verdict(described, with_software, only=("nccl",)) is RuleVerdict.UNKNOWN
    assert verdict(described, with_software, only=("nccl", "software")) is RuleVerdict.HOLDS
    without_shapes = Run("d", labels(0), replace(LLAMA, lacks=("shapes",)))
    assert verdict(described, without_shapes, same=("operator",)) is RuleVerdict.UNKNOWN
    assert verdict(without_shapes, without_shapes, same=("operator",)) is RuleVerdict.HOLDS


@pytest.mark.parametrize(
    ("kind", "differing"),
    [
        ("precision", {"precision": "fp8"}),
        ("parallelism", {"parallelism": "another"}),
        ("collective", {"collectives": (("all_reduce", 9, 9),)}),
        ("operator", {"structure": frozenset({("aten::conv2d", (3, 3))})}),
        ("version", {"versions": (("torch", "9"),)}),
    ],
)
def test_each_kind_of_a_run_breaks_a_rule_that_does_not_name_it(kind: str, differing: dict[str, Any]) -> None:
    runs = Run("a", labels(0), LLAMA), Run("b", labels(0), replace(LLAMA, **differing))
    assert verdict(*runs, only=(kind,)) is RuleVerdict.HOLDS
    assert verdict(*runs, only=("context",)) is RuleVerdict.BROKEN
    elsewhere = Run("b", labels(0, 1), LLAMA)
    assert verdict(runs[0], elsewhere, only=("context",)) is RuleVerdict.HOLDS
    assert verdict(runs[0], elsewhere, only=(kind,)) is RuleVerdict.BROKEN
