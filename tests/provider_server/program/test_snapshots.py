"""Snapshots of a fleet as files, and rules over two of them."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from provider_server.fleet.learning import hardware
from provider_server.program.cli import app
from provider_server.program.verbs.snapshots import BadSnapshot, read, text_of
from tests.provider_server.fleet.test_live import Scene, feed, scene
from tests.support.schemas import held

__all__ = ["feed", "scene"]  # fixtures

INVENTORY = """
[[node]]
name = "n1"
rack = "r3"
firmware = "28.39.1002"

[[node]]
name = "n2"
rack = "r4"
firmware = "28.39.1002"

[[gpu]]
node = "n1"
index = 0
model = "H100"

[[nic]]
node = "n2"
name = "mlx5_0"
"""


def call(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def taken(root: Path, name: str, inventory: str) -> Path:
    """A snapshot of a home that has this inventory and no telemetry."""
    (root / "provider.toml").touch()
    (root / "inventory.toml").write_text(inventory)
    words = ("nodes", "snapshot", "--home", root, "--inventory", root / "inventory.toml", "--out", root / name)
    assert call(*words) == (0, "", f"2 nodes in {root / name}\n")
    return root / name


def test_only_the_firmware_of_one_rack_changed(tmp_path: Path) -> None:
    before = taken(tmp_path, "before.csv", INVENTORY)
    flashed = taken(tmp_path, "flashed.csv", INVENTORY.replace("28.39.1002", "28.40.1000", 1))
    words = ("nodes", "changes", before, flashed, "--only", "firmware", "--where")
    assert call(*words, "rack=r3")[0] == 0
    code, said, _ = call(*words, "rack=r4")
    assert code == 1
    assert said.splitlines()[1:] == [
        "  broken  only firmware where rack = r4",
        "    firmware 28.39.1002 → 28.40.1000 on n1",
    ]
    assert call("nodes", "changes", before, flashed)[0] == 1
    assert call("nodes", "changes", before, before)[0] == 0


def test_rules_of_a_file_are_told_as_json(tmp_path: Path) -> None:
    before = taken(tmp_path, "before.csv", INVENTORY)
    after = taken(tmp_path, "after.csv", INVENTORY.replace("H100", "H200"))
    (tmp_path / "rules.toml").write_text('[[rule]]\nsame = ["gpu"]\n[[rule]]\nalike = ["driver"]\n')
    code, said, _ = call("nodes", "changes", before, after, "--rules", tmp_path / "rules.toml", "--json")
    told = held("pharoah-provider nodes changes", said)
    assert (code, told["verdict"]) == (1, "broken")
    assert told["rules"][0]["against"] == [{"thing": "n1", "feature": "gpu:0", "before": "H100", "after": "H200"}]
    assert told["rules"][1]["why"] == ["driver: not told by either"]


def test_a_column_that_one_lacks_is_unknown(tmp_path: Path) -> None:
    before = taken(tmp_path, "before.csv", INVENTORY)
    bare = tmp_path / "bare.csv"
    bare.write_text("node,rack,gpu:0,nic:mlx5_0\nn1,r3,H100,\nn2,r4,,there\n")
    assert call("nodes", "changes", before, bare)[0] == 2
    assert call("nodes", "changes", before, bare, "--only", "firmware")[0] == 0
    assert (
        call("nodes", "changes", before, bare, "--only", "rack")[1].splitlines()[-1]
        == f"    firmware: not told by {bare}"
    )


@pytest.mark.nightly  # a Prometheus of its own
def test_contexts_and_levels_that_the_home_keeps_are_in_a_snapshot(scene: Scene, tmp_path: Path) -> None:
    kept = hardware.load(scene.home)
    assert kept is not None
    code, _, said = call("nodes", "snapshot", "--home", scene.home, "--out", tmp_path / "fleet.csv")
    assert code == 0, said
    found = read(tmp_path / "fleet.csv")
    assert found.things.keys() >= {node for one in kept.contexts.contexts for node in one.nodes}
    assert found.tells >= {"node", "context", "level"}


def test_a_snapshot_of_nothing_and_one_that_exists_are_refused(tmp_path: Path) -> None:
    (tmp_path / "provider.toml").touch()
    code, _, said = call("nodes", "snapshot", "--home", tmp_path, "--out", tmp_path / "fleet.csv")
    assert (code, "no node is known" in said) == (2, True)
    before = taken(tmp_path, "before.csv", INVENTORY)
    assert (
        call("nodes", "snapshot", "--home", tmp_path, "--inventory", tmp_path / "inventory.toml", "--out", before)[0]
        == 2
    )
    assert call("nodes", "changes", before, before, "--where", "rack")[0] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,rack\nn1,r3\n", ":1: the column node is missing"),
        ("node,rack,rack\nn1,r3,r3\n", ":1: the column 'rack' is there twice"),
        ("node,rack\nn1\n", ":2: more or fewer cells"),
        ("node,rack\nn1,r3,r4\n", ":2: more or fewer cells"),
        ("node,rack\nn1,r3\n,r3\n", ":3: no name of a node"),
        ("node,rack\nn1,r3\nn1,r4\n", ":3: n1 is there twice"),
    ],
)
def test_a_wrong_file_is_refused_by_its_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text(text)
    with pytest.raises(BadSnapshot) as found:
        read(tmp_path / "fleet.csv")
    assert said in found.value.what


def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path) -> None:
    things = {"b, the 2nd": {"node": "b, the 2nd", "rack": 'r"3'}, "a": {"node": "a", "nic:mlx5_0": "leaf"}}
    (tmp_path / "fleet.csv").write_text(text_of(things))
    assert read(tmp_path / "fleet.csv").things == things
    assert text_of(things).startswith("node,nic:mlx5_0,rack\na,")
