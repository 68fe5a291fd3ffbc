"""From telemetry and releases to answers, by the verbs of a platform engineer: contexts, learn, explain, publish."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import Result
from typer.testing import CliRunner

from provider_server.analysis.buildup import BuildUp
from provider_server.analysis.contexts import Context
from provider_server.cli import app
from provider_server.observing import keep, load
from tests.federations import WEEKS, Grounds, begin, fail, hold
from transport.secret_files import write_secret

START, HOURS, STEP_S = 480_000, 72, 600
NODES = 40


def call(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(*words: object) -> Any:
    result = call(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# ---- contexts --------------------------------------------------------------------------------------------------------


def inventory(file: Path) -> Path:
    """Every other node is an H100; racks hold eight nodes and have nothing to do with failures."""
    nodes = [f'[[node]]\nname = "n{n}"\nmodel = "{model_of(n)}"\nrack = "r{n // 8}"\n' for n in range(NODES)]
    file.write_text("\n".join(nodes))
    return file


def model_of(node: int) -> str:
    return "H100" if node % 2 else "A100"


def telemetry(file: Path, *, garbage: bool = False) -> Path:
    """Temperatures, and an Xid 79 now and then on H100 nodes; with `garbage`, also what means nothing."""
    rng = np.random.default_rng(7)
    times = np.arange(START * 3600 + 5, (START + HOURS) * 3600, STEP_S)
    frames = []
    for node in range(NODES):
        codes = np.zeros(len(times))
        if node % 2:
            hours = np.array([4, 30, 56]) + rng.integers(0, 12, 3)
            codes[hours * (3600 // STEP_S)] = 79.0
        for metric, values in (
            ("DCGM_FI_DEV_GPU_TEMP", rng.normal(60, 1, len(times))),
            ("DCGM_FI_DEV_XID_ERRORS", codes),
        ):
            columns = {"time_s": times, "metric": metric, "value": values, "Hostname": f"n{node}", "gpu": "0"}
            frames.append(pl.DataFrame(columns))
    table = pl.concat(frames).sort("time_s", maintain_order=True)
    if garbage:
        temperature = pl.col("metric") == "DCGM_FI_DEV_GPU_TEMP"
        bad = [
            table.filter(temperature).head(200).with_columns(value=pl.lit(2147483632.0), time_s=pl.col("time_s") + 1),
            table.filter(temperature).head(300).with_columns(value=pl.lit(float("nan")), time_s=pl.col("time_s") + 2),
            table.filter(temperature).head(100).with_columns(time_s=pl.col("time_s") + 10**9),
            table.filter(temperature).head(50),
        ]
        table = pl.concat([table, *bad]).sort("time_s", maintain_order=True)
    table.write_parquet(file)
    return file


def contexts(root: Path, *more: object, garbage: bool = False) -> Any:
    root.mkdir(exist_ok=True)
    (root / "provider.toml").touch()
    feed = telemetry(root / "telemetry.parquet", garbage=garbage), inventory(root / "inventory.toml")
    window = "--start", START, "--end", START + HOURS
    return call("contexts", "--home", root, "--file", feed[0], "--inventory", feed[1], *window, *more, "--json")


def test_contexts_are_told_apart_by_what_tells_failures(tmp_path: Path) -> None:
    result = contexts(tmp_path / "home", "--out", tmp_path / "pictures")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [row["nodes"] for row in rows] == [20, 20]
    assert {("A100" in row["description"]) for row in rows} == {True, False}
    assert all("rack" not in row["description"] for row in rows)
    assert "contexts differ in model" in result.stderr
    kept = load(tmp_path / "home")
    assert kept is not None
    assert len({kept.contexts.of(f"n{node}") for node in range(0, NODES, 2)}) == 1
    assert {file.name for file in (tmp_path / "pictures").iterdir()} == {"contexts.png", "contexts.svg"}


def test_garbage_in_the_feed_changes_no_context_and_is_counted(tmp_path: Path) -> None:
    clean, dirty = contexts(tmp_path / "clean"), contexts(tmp_path / "dirty", garbage=True)
    assert dirty.exit_code == 0, dirty.stderr
    assert json.loads(dirty.stdout) == json.loads(clean.stdout)
    for reason, count in (("blank", 200), ("not_a_number", 300), ("future", 100), ("repeated", 50)):
        (line,) = (line for line in dirty.stderr.splitlines() if reason in line)
        assert line.split()[-1] == str(count)
        assert reason not in clean.stderr


def test_numbers_of_contexts_stay_in_the_next_stretch(tmp_path: Path) -> None:
    first = json.loads(contexts(tmp_path).stdout)
    kept = load(tmp_path)
    assert kept is not None
    swapped = replace(kept.contexts, contexts=tuple(_renumbered(one, 8 - one.number) for one in kept.contexts.contexts))
    fresh = BuildUp().state()
    keep(tmp_path, replace(kept, contexts=replace(swapped, next_number=9), build_up=fresh))
    again = json.loads(contexts(tmp_path).stdout)
    numbers = {row["description"]: row["context"] for row in first}
    assert {row["description"]: row["context"] for row in again} == {text: 8 - one for text, one in numbers.items()}


def _renumbered(context: Context, number: int) -> Context:
    return replace(context, number=number)


def test_a_job_is_where_most_of_its_nodes_are_at_the_worst_of_their_levels(tmp_path: Path) -> None:
    contexts(tmp_path)
    kept = load(tmp_path)
    assert kept is not None
    worn = replace(kept, levels={**kept.levels, "n2": 2})
    even, odd = kept.contexts.of("n0"), kept.contexts.of("n1")
    assert worn.place(["n1", "n3", "n0"]) == (odd, 0)
    assert worn.place(["n1", "n0", "n2"]) == (even, 2)
    with pytest.raises(ValueError, match="node n99 has no context"):
        worn.place(["n0", "n99"])


def test_without_telemetry_it_is_said_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "provider.toml").touch()
    result = call("contexts", "--home", tmp_path)
    assert result.exit_code == 2
    assert "prometheus_url" in result.stderr


# ---- releases --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a provider that held two weeks."""
    root = tmp_path_factory.mktemp("held")
    grounds = Grounds.founded(root, 4)
    with grounds.opened(root) as federation:
        for number in range(4):
            begin(federation, number)
            fail(federation, number)
        for window in WEEKS[:2]:
            hold(federation, window)
        secret = federation.provider._signing_key._private.private_bytes_raw()
        write_secret(root / "provider" / "signing.key", secret)
        write_secret(root / "provider" / "context.key", federation.provider._context_secret)
    (root / "provider" / "provider.toml").touch()
    return root / "provider"


def test_learning_publishes_nothing_and_shows_everything(held: Path, tmp_path: Path) -> None:
    before = (held / "provider.db").read_bytes()
    (row,) = told("learn", "--home", held, "--out", tmp_path)
    assert (row["releases"], row["alarms"]) == (2, [])
    assert row["pairs"] >= 1
    assert row["rates"] >= 1
    assert (held / "provider.db").read_bytes() == before
    page = (tmp_path / "findings.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    assert {"mismatches.png", "mismatches.svg", "hazards.svg", "risk-ratios.png"} <= {
        file.name for file in tmp_path.iterdir()
    }


def test_a_pair_is_explained_by_the_first_digits_of_its_tokens(held: Path, tmp_path: Path) -> None:
    held = shutil.copytree(held, tmp_path / "provider")
    told("publish", "--home", held)
    (bundled, *_) = told("findings", "--home", held, "--probability", 0)
    (row,) = told("explain", bundled["workload"][:10], bundled["context"][:10], "--home", held)
    assert (row["workload"], row["context"]) == (bundled["workload"], bundled["context"])
    assert row["reason"].startswith("fails ")
    assert row["risk_ratio_low"] <= row["risk_ratio"] <= row["risk_ratio_high"]
    said = call("explain", bundled["workload"], bundled["context"], "--home", held).stdout
    assert "net outcome" in said
    assert "negative control" in said


def test_a_pair_that_is_not_there_is_not_explained(held: Path) -> None:
    result = call("explain", "zz", "00", "--home", held)
    assert (result.exit_code, result.stdout) == (3, "")


def test_a_bundle_is_published_by_hand_and_the_old_ones_stay(held: Path, tmp_path: Path) -> None:
    home = shutil.copytree(held, tmp_path / "provider")
    (first,) = told("publish", "--home", home)
    (second,) = told("publish", "--home", home)
    assert second["bundle"] == first["bundle"] + 1
    listed = [told("findings", "--home", home, "--probability", 0, "--bundle", n["bundle"]) for n in (first, second)]
    assert listed[0] == listed[1] != []


def test_before_the_first_release_there_is_nothing_to_learn(tmp_path: Path) -> None:
    root = tmp_path / "new"
    grounds = Grounds.founded(root, 4)
    write_secret(
        root / "provider" / "signing.key", grounds.federation.provider._signing_key._private.private_bytes_raw()
    )
    write_secret(root / "provider" / "context.key", bytes(32))
    (root / "provider" / "provider.toml").touch()
    for verb in ("learn", "publish"):
        result = call(verb, "--home", root / "provider")
        assert (result.exit_code, result.stdout) == (3, ""), result.stderr
