"""What runs use of a host: read from files like the kernel's, expected from earlier runs, and shown by the verb."""

import json
import math
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tenant_client.doctor.advice.resources import Earlier, expect, resources
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.usages import Usage, Usages
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.usage import UsageMeter, UsageRecorder
from tenant_client.doctor.workload.descriptor import Descriptor
from tenant_client.program.cli import app
from tests.needs import installed
from tests.support import schemas

MODEL = Descriptor(
    operators=frozenset({("aten::mm", (6, 7))}),
    structure=frozenset({("mm", (64, 128))}),
    collectives=(("all_reduce", 1, 20),),
    precision="float32",
    parallelism="data",
    versions=(("torch", "2.13"),),
    kernel_families=frozenset(),
)
OTHER = replace(MODEL, structure=frozenset({("mm", (8, 8))}))
NEWER = replace(MODEL, versions=(("torch", "2.14"),))
BUSY_TOO = {"OMP_NUM_THREADS": "1", "PHAROAH_SAMPLE_LOAD": "1000", "PHAROAH_SAMPLE_JITTER": "1000"}
USED = Usage(2, 4e8, 1e8, 10, 5e6, 20.0)


# ---- what is read ----------------------------------------------------------------------------------------------------


def process(proc: Path, pid: int, *, peak_kb: int, own_pages: int, ticks: int, sent: int, children: str = "") -> None:
    """Files as the kernel has them."""
    folder = proc / str(pid)
    (folder / f"task/{pid}").mkdir(parents=True, exist_ok=True)
    (folder / "net").mkdir(exist_ok=True)
    (folder / "status").write_text(f"Name:\tpython\nVmHWM:\t  {peak_kb} kB\n")
    (folder / "statm").write_text(f"900 {own_pages + 7} 7 1 0 1 0\n")
    (folder / "stat").write_text(f"{pid} (a ) name) S 1 1 1 0 -1 4194560 1 2 3 4 {ticks} 0 0 0 20 0 1 0\n")
    (folder / f"task/{pid}/children").write_text(children)
    rows = [f"    lo: 1 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0", "  eth0: 9 0 0 0 0 0 0 0 100 0 0 0 0 0 0 0"]
    (folder / "net/dev").write_text("\n".join(["Inter-|", " face |", *rows]) + "\n")


def at(step: int, *pids: int) -> list[Progress]:
    return [Progress(rank, pid, step, 1.0, "train", None, 0) for rank, pid in enumerate(pids)]


def test_peaks_are_the_highest_and_rates_count_from_the_first_step(tmp_path: Path) -> None:
    meter = UsageMeter(tmp_path)
    meter.look(at(0, 10))
    assert meter.usage.ranks == 0  # no such process
    process(tmp_path, 10, peak_kb=1000, own_pages=5, ticks=900, sent=50)
    process(tmp_path, 11, peak_kb=3000, own_pages=5, ticks=100, sent=50, children="12")
    process(tmp_path, 12, peak_kb=9000, own_pages=100, ticks=100, sent=50)
    meter.look(at(0, 10, 11))
    meter.look(at(3, 10, 11))
    process(tmp_path, 10, peak_kb=2000, own_pages=5, ticks=1000, sent=4050)
    process(tmp_path, 12, peak_kb=9000, own_pages=20, ticks=250, sent=4050)
    meter.look(at(7, 10, 11))
    assert meter.usage == Usage(2, 3000 * 1024.0, 100 * 4096.0, 4, 4000.0, 2.5)
    before = meter.usage
    process(tmp_path, 11, peak_kb=1, own_pages=0, ticks=0, sent=0)
    (tmp_path / "10/net/dev").write_text("")  # it ends while it is read
    meter.look(at(8, 10, 11))
    assert meter.usage == before
    meter.look(at(9, 10))  # the other rank has ended: what one used is no rate of two
    assert meter.usage.steps == 4


def test_each_attempt_is_kept_by_itself() -> None:
    kept: list[tuple[int, Usage]] = []
    attempt = 1
    recorder = UsageRecorder(lambda: attempt, lambda number, usage: kept.append((number, usage)))
    own = os.getpid()
    recorder.look(100.0, at(1, own))
    recorder.look(130.0, at(2, own))
    assert kept == []
    recorder.look(170.0, at(4, own))
    attempt = 2
    recorder.look(171.0, at(1, own))
    recorder.finish(172.0, None)
    assert [(number, usage.steps) for number, usage in kept] == [(1, 3), (1, 3), (2, 0)]
    assert kept[-1][1].rank_bytes > 1 << 20


# ---- what is expected ------------------------------------------------------------------------------------------------


def test_intervals_hold_as_many_runs_as_they_say_and_no_more() -> None:
    rng = np.random.default_rng(7)
    covered = []
    for _ in range(1000):
        *before, after = np.exp(rng.normal(20.0, 0.05, 4)).tolist()
        found = expect(before, 0.05)
        covered.append(found.low <= after <= found.high)
    assert 0.94 < np.mean(covered) < 0.985
    wide, narrow = expect([1.0, 2.0], 0.05), expect([1.0, 1.0], 0.05)
    assert wide.high / wide.low > 3 > 1.5 > narrow.high / narrow.low
    assert math.isclose(wide.value, math.sqrt(2.0))


def test_nothing_used_before_means_none_is_expected() -> None:
    assert expect([0.0, 0.0], 0.05).high == 0.0


def test_runs_of_the_same_workload_come_before_those_of_the_same_structure() -> None:
    runs = [Earlier(NEWER, replace(USED, rank_bytes=9e8)), Earlier(OTHER, replace(USED, rank_bytes=1e6))]
    found = resources(MODEL, runs, None, 2, 1e12)
    assert (found.alike, found.demands[0].expected.value) == ("structure", pytest.approx(9e8))  # type: ignore[union-attr]
    found = resources(MODEL, [*runs, Earlier(MODEL, USED)], None, 2, 1e12)
    assert (found.alike, found.demands[0].expected.value) == ("exact", pytest.approx(4e8))  # type: ignore[union-attr]
    assert resources(MODEL, runs, None, 4, 1e12).alike is None  # as many ranks on a host


def test_a_worker_wants_more_memory_if_it_took_more_or_the_host_has_less() -> None:
    runs = [Earlier(MODEL, USED)] * 3
    assert not resources(MODEL, runs, None, 2, 1.3e9).wants_memory
    assert resources(MODEL, runs, None, 2, 0.9e9).wants_memory
    assert not resources(MODEL, runs, USED, 2, 0.9e9).wants_memory  # it ran, and took what was expected
    more = resources(MODEL, runs, replace(USED, workers_bytes=2e8, sent_bytes=1e6), 2, 1e12)
    assert more.wants_memory
    assert [one.verdict for one in more.demands] == ["as expected", "more", "less", "as expected"]


# ---- the verb --------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts, journal, usages = Attempts(connection), Journal(connection), Usages(connection)
        for number, memory in enumerate((4e8, 4.1e8, 8e8)):
            lease = f"{number:x}{number:x}" * 16
            attempts.begin(lease, 1e9 + number)
            journal.describe(lease, 1e9, MODEL)
            usages.keep(lease, 1, replace(USED, rank_bytes=memory))
    return tmp_path


def called(home: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["show", "--only", "resources", *words, "--home", str(home)])
    return done.exit_code, done.stdout


def test_the_verb_shows_before_and_after(home: Path) -> None:
    code, text = called(home, "22", "--json")
    view = schemas.held("pharoah-tenant show --only resources", text)
    assert (code, view["alike"], view["wants_memory"]) == (1, "exact", True)
    memory = view["demands"][0]
    assert (memory["quantity"], memory["verdict"], memory["measured"]) == ("rank_bytes", "more", 8e8)
    assert memory["expected"]["runs"] == 2
    code, text = called(home, "22")
    assert "memory of a rank: 405 MB expected" in text
    assert "800 MB measured, more" in text
    assert text.rstrip().endswith("this worker wants more host memory")
    assert called(home, "11")[0] == 0
    assert called(home, "00")[0] == 3  # none ran before it
    assert called(home)[0] == 2


@pytest.mark.nightly
def test_a_run_of_an_example_is_what_an_earlier_one_lets_expect(tmp_path: Path) -> None:
    installed("torch")
    for seed, lease in ((1, "aa" * 16), (2, "bb" * 16)):
        script = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        job = [*script, "examples/ddp.py", "--steps", "60", "--seed", str(seed)]
        words = [sys.executable, "-m", "tenant_client", "run", "--home", str(tmp_path), "--lease", lease, "--", *job]
        subprocess.run(words, check=True, timeout=600, env=os.environ | BUSY_TOO)
    until_s = time.monotonic() + 60
    while (found := called(tmp_path, "bb", "--json"))[0] != 0 and time.monotonic() < until_s:
        time.sleep(1.0)
    by_name = {one["quantity"]: one for one in json.loads(found[1])["demands"]}
    memory = by_name["rank_bytes"]
    assert abs(memory["expected"]["value"] - memory["measured"]) < 0.2 * memory["measured"]
