"""From telemetry and releases to answers, by the verbs of a platform engineer: contexts, learn, explain, publish."""

import json
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from crypto.ids import LeaseId
from crypto.signing import open_signed
from federation.base.catalogue_file import write_catalogue
from federation.protocol.bundle import SKETCH_BYTES, Bundle, CatalogueEntry
from provider_server.fleet.analysis.buildup import BuildUp
from provider_server.fleet.analysis.contexts import Context, ContextMap
from provider_server.fleet.learning.hardware import Kept, keep, load
from provider_server.fleet.leases import Lease
from provider_server.program.cli import app
from provider_server.rounds import home as homes
from provider_server.rounds.context_names import names_by_label, names_by_token
from provider_server.rounds.settings import Names
from provider_server.rounds.store.store import Store
from tests.support import calling, schemas
from tests.support.changing import replace
from tests.support.federations import CONTEXT, WEEKS, Grounds, lease_id

START, HOURS, STEP_S = 480_000, 72, 600
NODES = 40


call = partial(calling.call, app)
told = partial(calling.told, app, "pharoah-provider")


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
    return call(
        "nodes", "contexts", "--home", root, "--file", feed[0], "--inventory", feed[1], *window, *more, "--json"
    )


@pytest.mark.nightly
def test_contexts_are_told_apart_by_what_tells_failures(tmp_path: Path) -> None:
    result = contexts(tmp_path / "home")
    assert result.exit_code == 0, result.stderr
    rows = schemas.held("pharoah-provider nodes contexts", result.stdout)
    assert [row["nodes"] for row in rows] == [20, 20]
    assert {("A100" in row["description"]) for row in rows} == {True, False}
    assert all("rack" not in row["description"] for row in rows)
    assert "contexts differ in model" in result.stderr
    kept = load(tmp_path / "home")
    assert kept is not None
    assert len({kept.contexts.of(f"n{node}") for node in range(0, NODES, 2)}) == 1


@pytest.mark.nightly
def test_garbage_in_the_feed_changes_no_context_and_is_counted(tmp_path: Path) -> None:
    clean, dirty = contexts(tmp_path / "clean"), contexts(tmp_path / "dirty", garbage=True)
    assert dirty.exit_code == 0, dirty.stderr
    assert json.loads(dirty.stdout) == json.loads(clean.stdout)
    for reason, count in (("blank", 200), ("not_a_number", 300), ("future", 100), ("repeated", 50)):
        (line,) = (line for line in dirty.stderr.splitlines() if reason in line)
        assert line.split()[-1] == str(count)
        assert reason not in clean.stderr


@pytest.mark.nightly
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


@pytest.mark.nightly
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
    result = call("nodes", "contexts", "--home", tmp_path)
    assert result.exit_code == 2
    assert "prometheus_url" in result.stderr


# ---- releases --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a provider that held two weeks."""
    root = tmp_path_factory.mktemp("held")
    Grounds.of_failures(root, 4, released=2)
    (root / "provider" / "provider.toml").touch()
    return root / "provider"


def test_learning_publishes_nothing_and_shows_everything(held: Path, tmp_path: Path) -> None:
    before = (held / "provider.db").read_bytes()
    (row,) = told("findings", "learn", "--home", held)
    assert (row["releases"], row["alarms"]) == (2, [])
    assert row["pairs"] >= 1
    assert row["rates"] >= 1
    assert all(len(one["alike"]) == len(one["versions"]) > 1 for one in row["versions"])
    assert (held / "provider.db").read_bytes() == before


def test_a_pair_is_explained_by_the_first_digits_of_its_tokens(held: Path, tmp_path: Path) -> None:
    held = shutil.copytree(held, tmp_path / "provider")
    told("findings", "publish", "--home", held)
    (bundled, *_) = told("findings", "list", "--home", held, "--probability", 0)
    (row,) = told("findings", "explain", bundled["workload"][:10], bundled["context"][:10], "--home", held)
    assert (row["workload"], row["context"]) == (bundled["workload"], bundled["context"])
    assert row["reason"].startswith("fails ")
    assert row["risk_ratio_low"] <= row["risk_ratio"] <= row["risk_ratio_high"]
    said = call("findings", "explain", bundled["workload"], bundled["context"], "--home", held).stdout
    assert "net outcome" in said
    assert "negative control" in said
    assert (row["version"] is None) == ("of archetype" not in said and "only version" not in said)


def test_a_lease_is_explained_as_the_pair_that_runs_on_it(held: Path) -> None:
    (row,) = told("findings", "explain", "--home", held, "--lease", lease_id(1, WEEKS[0], 0))
    assert told("findings", "explain", row["workload"], row["context"], "--home", held) == [row]
    assert call("findings", "explain", "--home", held, "--lease", "ff" * 16).exit_code == 3


def test_hardware_is_called_as_its_leases_name_it(held: Path, tmp_path: Path) -> None:
    home = shutil.copytree(held, tmp_path / "provider")
    with closing(homes.open_provider(home, None, homes.settings_of(home))) as provider:
        tenant, bundles = provider.directory.members[0].tenant, homes.open_publisher(home, provider.store)
        token = provider.context_labels(WEEKS[1][0], CONTEXT, 0)["context"]
        bundles.publish(bundles.releases(), bundles.learn(bundles.releases()))
    listed = "findings", "list", "--home", home, "--probability", 0
    assert f"on hardware group {token[:12]}" in call(*listed).stdout  # no lease was recorded by its verb yet
    line = {"lease": "ab" * 16, "tenant": str(tenant), "start_h": 1.0, "end_h": 9.0, "nodes": 2, "context": CONTEXT}
    (tmp_path / "leases.jsonl").write_text(json.dumps(line))
    told("leases", "record", tmp_path / "leases.jsonl", "--home", home)
    assert f"on {CONTEXT}: " in call(*listed).stdout
    assert token[:12] not in call(*listed).stdout
    assert {row["context_name"] for row in told(*listed) if row["context"] == token} == {CONTEXT}
    (pair, *_) = told(*listed)
    explained = call("findings", "explain", pair["workload"], CONTEXT, "--home", home)
    assert explained.stdout.startswith(f"workload {pair['workload']} on {CONTEXT}: ")


def test_groups_of_telemetry_have_the_operators_words_and_then_their_looks(held: Path, tmp_path: Path) -> None:
    home = shutil.copytree(held, tmp_path / "provider")
    settings = replace(homes.settings_of(home), names=Names(contexts={"context 2": "B200, hall 1"}))
    contexts = tuple(
        Context(number, f"{look}: 5 nodes", (), 1.0, 0.5, 2.0) for number, look in ((1, "A100"), (2, "B200"))
    )
    kept = Kept(0, ContextMap((), contexts, 3, ((), ()), (), ()), {}, BuildUp().state())
    with closing(Store(home / "provider.db")) as store:
        names = names_by_label(store, settings, kept)
    assert names == {"context 1": "A100", "context 2": "B200, hall 1"}
    by_token = names_by_token(
        lambda label, level: {"context": label, "context_level": f"{label}/{level}"}, names, range(2)
    )
    assert (by_token["context 2"], by_token["context 1/1"]) == ("B200, hall 1", "A100, wear level 1")


def test_a_pair_that_is_not_there_is_not_explained(held: Path) -> None:
    result = call("findings", "explain", "zz", "00", "--home", held)
    assert (result.exit_code, result.stdout) == (3, "")


def test_a_bundle_is_published_by_hand_and_the_old_ones_stay(held: Path, tmp_path: Path) -> None:
    home = shutil.copytree(held, tmp_path / "provider")
    (first,) = told("findings", "publish", "--home", home)
    (second,) = told("findings", "publish", "--home", home)
    assert second["bundle"] == first["bundle"] + 1
    listed = [
        told("findings", "list", "--home", home, "--probability", 0, "--bundle", n["bundle"]) for n in (first, second)
    ]
    assert listed[0] == listed[1] != []


def test_a_catalogue_is_published_before_the_first_week_and_replaced_later(held: Path, tmp_path: Path) -> None:
    names = ("bert", "llama")
    for number, known in ((1, names), (2, names[:1])):
        entries = tuple(CatalogueEntry(name, bytes(SKETCH_BYTES)) for name in known)
        write_catalogue(tmp_path / f"{number}.catalogue", entries)
    home = shutil.copytree(held, tmp_path / "provider")
    (published,) = told("findings", "publish", "--home", home)
    (row,) = told("findings", "catalogue", tmp_path / "1.catalogue", "--home", home)
    assert row == {"bundle": published["bundle"] + 1, "names": list(names)}
    before, after = (
        told("findings", "list", "--home", home, "--probability", 0, "--bundle", one["bundle"])
        for one in (published, row)
    )
    assert before == after != []
    said = call("findings", "catalogue", tmp_path / "2.catalogue", "--home", home).stdout
    assert said == f"bundle {row['bundle'] + 1} published, with a catalogue of 1 benchmark job\n"
    (later,) = told("findings", "publish", "--home", home)
    with closing(homes.open_provider(home, None, homes.settings_of(home))) as provider:
        newest = homes.open_publisher(home, provider.store).newest()
    assert newest is not None
    assert (newest.number, [entry.name for entry in newest.catalogue]) == (later["bundle"], ["bert"])


def test_what_is_no_catalogue_is_not_published(held: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("bert=bert.json")
    result = call("findings", "catalogue", tmp_path / "x", "--home", held)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "not a catalogue" in result.stderr


def test_a_bundle_names_the_contexts_that_the_settings_name_and_no_others(held: Path, tmp_path: Path) -> None:
    home = shutil.copytree(held, tmp_path / "provider")
    settings = home / "provider.toml"
    for text, names in (("", set()), (f'[names]\ncontexts = {{ "{CONTEXT}" = "H100, hall B" }}\n', {"H100, hall B"})):
        settings.write_text(f"[plan]\nweeks_per_epoch = 3\nwindows = [1, 2, 3]\n{text}")
        told("findings", "publish", "--home", home)
        with closing(homes.open_provider(home, None, homes.settings_of(home))) as provider:
            newest = homes.open_publisher(home, provider.store).newest()
            assert newest is not None
            assert set(newest.names.values()) == names
            own = {str(entry.context) for entry in newest.mismatches}
        assert bool(own & newest.names.keys()) == bool(names)


# ---- benchmark jobs --------------------------------------------------------------------------------------------------


def benchmark_jobs(file: Path, *, lift: float = 6.0) -> Path:
    """Jobs on a context that tenants use and on others that they do not; NCCL 2.18 fails `lift` times as often."""
    rng, lines = np.random.default_rng(1), []
    for number in range(2400):
        nccl, place = str(rng.choice(["2.17.1", "2.18.3", "2.20.5"])), int(rng.integers(8))
        failed = rng.random() < 0.02 * (lift if nccl == "2.18.3" else 1.0)
        lines.append(
            {
                "job": str(number),
                "context": f"new {place}" if place else CONTEXT,
                "nodes": 2,
                "start_h": 5.0,
                "hours": 6.0,
                "outcome": "nvlink_error" if failed else "ok",
                "versions": {"nccl": nccl},
                "archetype": str(rng.choice(["bert", "gpt"])),
            }
        )
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.mark.nightly
def test_benchmark_jobs_give_rules_and_first_rates(held: Path, tmp_path: Path) -> None:
    file = benchmark_jobs(tmp_path / "jobs.jsonl", lift=14.0)  # however strata are dealt, low is above 4
    (row,) = told("findings", "learn", "--home", held, "--benchmarks", file)
    assert [one["conditions"] for one in row["rules"]] == [["nccl in [2.18, 2.20)"]]
    assert row["rules"][0]["low"] > 3.0
    assert [one["context"] for one in row["newcomers"]] == [f"new {place}" for place in range(1, 8)]
    for one in row["newcomers"]:
        assert 0 < one["low"] < one["rate_per_1000_node_hours"] < one["high"]
        assert f"{CONTEXT}, at distance 1" in one["basis"]
    said = call("findings", "learn", "--home", held, "--benchmarks", file).stdout
    assert "rule: with nccl in [2.18, 2.20), benchmark jobs fail" in said
    assert "first rate of context new 1: " in said
    (without,) = told("findings", "learn", "--home", held)
    assert (without["rules"], without["newcomers"]) == ([], [])
    assert without["rates"] == row["rates"]


@pytest.mark.nightly
def test_rules_and_first_rates_are_published_and_rules_stay(held: Path, tmp_path: Path) -> None:
    home = shutil.copytree(held, tmp_path / "provider")
    file = benchmark_jobs(tmp_path / "jobs.jsonl")
    bundles = []
    for more in ((), ("--benchmarks", file), (), ("--benchmarks", benchmark_jobs(tmp_path / "even.jsonl", lift=1.0))):
        assert call("findings", "publish", "--home", home, *more).exit_code == 0
        provider = homes.open_provider(home, None, homes.settings_of(home))
        bundles.append(open_signed(Bundle, provider.newest_bundle() or b"", provider.directory.provider))
        provider.close()
    rule = ("nccl in [2.18, 2.20)",)
    assert [[one.conditions for one in bundle.rules] for bundle in bundles] == [[], [rule], [rule], []]
    plain, first, again, _ = (len({one.context_level for one in bundle.hazards}) for bundle in bundles)
    assert (first, again) == (plain + 7, plain)


def test_a_bad_file_of_benchmark_jobs_publishes_nothing(held: Path, tmp_path: Path) -> None:
    file = benchmark_jobs(tmp_path / "jobs.jsonl")
    file.write_text(file.read_text().replace('"ok"', '"gremlins"', 1))
    before = (held / "provider.db").read_bytes()
    result = call("findings", "publish", "--home", held, "--benchmarks", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'gremlins' is neither ok nor a known cause" in result.stderr
    assert (held / "provider.db").read_bytes() == before


def test_before_the_first_release_there_is_nothing_to_learn(tmp_path: Path) -> None:
    root = tmp_path / "new"
    Grounds.founded(root, 4)
    for verb in ("learn", "publish"):
        result = call(verb, "--home", root / "provider")
        assert (result.exit_code, result.stdout) == (3, ""), result.stderr


# ---- own failures ----------------------------------------------------------------------------------------------------


def with_lease(held: Path, tmp_path: Path, start_h: float, node: str) -> Path:
    """A home with a lease of 72 hours on a node with a name."""
    home = shutil.copytree(held, tmp_path / "provider")
    with closing(homes.open_provider(home, None, homes.settings_of(home))) as provider:
        tenant = provider.directory.members[0].tenant
        lease = Lease(LeaseId(b"o" * LeaseId.length), tenant, 1, start_h, start_h + HOURS, {})
        provider.record_leases([lease], {lease.lease: [node]})
    return home


def recorded(home: Path) -> list[float]:
    with closing(homes.open_provider(home, None, homes.settings_of(home))) as provider:
        record = provider.store.own.record()
        assert record is not None
        return [hour for hours in record.events.hours.values() for hour in hours]


def test_own_failures_of_outages_are_recorded_once_from_the_first_hour_named(held: Path, tmp_path: Path) -> None:
    released = WEEKS[1][1]
    home = with_lease(held, tmp_path, released + 10.0, "n1")
    hours = {"n1": [released - 9, released + 20, released + 30], "n2": [released + 20]}
    rows = [f"{node},{hour},{hour + 1},gpu" for node, of in hours.items() for hour in of]
    (tmp_path / "outages.csv").write_text("\n".join(["node,start,end,kind", *rows]))
    words = "nodes", "own-failures", "--home", home, "--events", tmp_path / "outages.csv", "--start", 0, "--end"
    (row,) = told(*words, released + 25)
    assert row == {"start_hour": 0, "end_hour": released + 25, "failures": 3, "on_leases": 1, "leases": 1}
    again = call(*words, released + 25)
    assert (again.exit_code, "recorded already" in again.stderr) == (2, True)
    assert told(*words, released + 100)[0]["start_hour"] == released + 25
    assert recorded(home) == [released + 20, released + 30]


def test_own_failures_are_read_from_telemetry(held: Path, tmp_path: Path) -> None:
    home = with_lease(held, tmp_path, float(START), "n1")
    file = telemetry(tmp_path / "telemetry.parquet")
    (row,) = told("nodes", "own-failures", "--home", home, "--file", file, "--start", START, "--end", START + HOURS)
    assert row["failures"] > row["on_leases"] == len(recorded(home)) >= 2


def test_codes_of_own_gpus_are_judged_from_telemetry_with_leases_and_without(held: Path, tmp_path: Path) -> None:
    home = with_lease(held, tmp_path, float(START), "n1")
    file = telemetry(tmp_path / "telemetry.parquet")
    words = "nodes", "codes", "--file", file, "--start", START, "--end", START + HOURS, "--home"
    found = told(*words, home)
    assert {row["code"] for row in found} == {"79"}
    assert all(0.5 < row["hardware_probability"] <= 1.0 for row in found)
    alone = tmp_path / "alone"
    alone.mkdir()
    assert {row["node"] for row in told(*words, alone)} == {row["node"] for row in found}
