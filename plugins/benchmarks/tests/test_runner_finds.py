"""On a real Slurm: a mismatch that is planted on one class of nodes is found by runs, and told to a tenant's check."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from crypto.ids import LeaseId
from federation.protocol.bundle import Bundle, PairJudgement
from federation.protocol.check import check
from federation.protocol.round_messages import finest_row
from federation.protocol.service_messages import CheckVerdict
from pharoah_benchmarks.runner.book import opened
from pharoah_benchmarks.runner.loop import Runner
from pharoah_benchmarks.runner.settings import settings_of
from pharoah_benchmarks.runner.slurm import Slurm
from plugins.benchmarks.tests.programs import RAN, founded
from plugins.benchmarks.tests.test_runner_slurm import DISPLACED_S, SETTINGS, jobs, slurm as slurm, started as start
from plugins.slurm.tests.cluster import Cluster
from provider_server.fleet.learning.benchmark_jobs import FILE, OK, UNKNOWN, BenchmarkJob, read
from provider_server.fleet.leases import Lease
from provider_server.rounds import home as homes
from tenant_client.rounds.tenant import StartedLease
from tests import needs
from tests.support.factories import a_descriptor
from tests.support.federations import WEEKS, Grounds, hold
from tests.support.waiting import until

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("slurm")]

logger = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[3]
CLASSES = {"hall 1": "n[1-2]", "hall 2": "n[3-4]", "hall 3": "n[5-6]"}
BAD = "hall 3"
CONTEXTS = ", ".join(f'"{nodes}" = "{name}"' for name, nodes in CLASSES.items())
LOST_LINK = ROOT / "tests/logs/nvlink_error_plain.log"
# An environment whose Python loses a link under one job on one class of nodes.
ENVIRONMENT = """#!/bin/sh
case "$SLURMD_NODENAME $*" in
    n[56]*train.py\\ graph*) cat {log} >&2; exit 1 ;;
esac
exec {python} "$@"
"""
# Says at once what became of a job: one of them in five, on one class of nodes, has lost a link.
PROGRAM = """#!{python}
import os, random, sys
said = {said!r}
job, node = sys.argv[4], os.environ["SLURMD_NODENAME"]
lost = (job, node) in (("graph", "n5"), ("graph", "n6")) and random.random() < 0.2
outcome = "nvlink_error" if lost else "ok"
print(said.replace("JOB", job).replace("OUTCOME", outcome))
"""


def with_settings(home: Path, settings: str) -> None:
    """Writes the settings of a home."""
    plan, leases = (
        f"[plan]\nweeks_per_epoch = {len(WEEKS)}\nwindows = [1, 2, 3]",
        f"[leases]\ncontexts = {{ {CONTEXTS} }}",
    )
    (home / "provider.toml").write_text(f"{plan}\n{leases}\n[benchmark]\n{SETTINGS}{settings}\n")


def executable(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o755)
    return file


def run_until(home: Path, happened: Callable[[], object]) -> None:
    """Runs jobs until something has happened."""
    settings = settings_of(home)
    with opened(home) as book:
        place = Slurm(settings.partition, settings.qos, settings.program)
        runner = Runner(home, place, settings, book, lambda _: None)
        try:
            while not happened():
                runner.turn()
                time.sleep(0.2)
        finally:
            runner.leave()


def test_jobs_of_the_catalogue_fail_where_their_environment_does(slurm: Cluster, tmp_path: Path) -> None:
    needs.package("torch")
    tmp_path.chmod(0o755)
    home = founded(tmp_path, "", "")
    environment = executable(tmp_path / "python", ENVIRONMENT.format(log=LOST_LINK, python=sys.executable))
    with_settings(home, f'jobs = ["graph"]\nseconds = 1.0\nsize = "cpu"\npython = "{environment}"')
    file = home / FILE
    run_until(home, lambda: file.exists() and len({one.settings["node"] for one in read(file)}) == 6)
    outcomes = {(one.context, one.outcome) for one in read(file) if one.outcome != "unknown"}
    assert outcomes == {("hall 1", OK), ("hall 2", OK), (BAD, "nvlink_error")}
    until(lambda: not jobs(slurm))


def test_a_killed_runner_leaves_no_process_of_a_job(slurm: Cluster, tmp_path: Path) -> None:
    needs.package("torch")
    tmp_path.chmod(0o755)
    home = founded(tmp_path, "", "")
    with_settings(home, 'jobs = ["graph"]\nseconds = 300.0\nsize = "cpu"')
    with start(home) as runner:
        until(lambda: any("train.py" in line for line in on_nodes(slurm)), "a job trains")
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
        began = time.monotonic()
        until(lambda: not on_nodes(slurm) and not jobs(slurm))
        assert time.monotonic() - began < DISPLACED_S


def on_nodes(slurm: Cluster) -> list[str]:
    """The command lines of tasks on the nodes of this cluster, and of all that came of them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            given = (process / "environ").read_bytes()
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if b"SLURMD_NODENAME=" in given and f"SLURM_CONF={slurm.folder}/".encode() in given and line:
            found.append(line)
    return found


MODELS = {"graph": "llama", "encoder": "bert", "diffusion": "dit"}
MOST_RUNS, BETWEEN = 60, 54  # of the pair, and of all before it is learnt again


def test_a_planted_mismatch_is_found_and_told_to_a_tenant(slurm: Cluster, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    grounds = Grounds.founded(tmp_path, 4)
    hour = WEEKS[0][0]
    with grounds.opened(tmp_path) as federation:
        for number, tenant in enumerate(federation.tenants):
            started = []
            for at, (context, model) in enumerate((context, model) for context in CLASSES for model in MODELS.values()):
                lease, labels = (
                    LeaseId(bytes([number, at]) + bytes(14)),
                    federation.provider.context_labels(hour, context, 0),
                )
                federation.provider.record_leases([Lease(lease, tenant.id, 4, hour + 1.0, hour + 160.0, labels)])
                started.append(StartedLease(lease, hour + 1.0, labels, a_descriptor(model)))
            tenant.start_leases(started, federation.provider.epoch(hour))
        hold(federation, WEEKS[0])
    home = tmp_path / "provider"
    with closing(homes.open_provider(home, None, homes.settings_of(home))) as provider:
        rows = provider.store.releases()[-1].tables[0].dimensions[0].levels
        of_first = [provider.store.lease(LeaseId(bytes([0, at]) + bytes(14))) for at in range(9)]
    known = [lease.labels for lease in of_first if lease]
    tokens = [finest_row(one, rows) for one in known[:3]]
    assert len(set(tokens)) == 3
    said = msgspec.json.encode(msgspec.structs.replace(RAN, job="JOB", outcome="OUTCOME")).decode()
    program = executable(tmp_path / "program", PROGRAM.format(python=sys.executable, said=said))
    table = ", ".join(f'{token} = "{job}"' for token, job in zip(tokens, MODELS, strict=True))
    with_settings(home, f'program = "{program}"\nstands_for = {{ {table} }}')
    at_worst, at_another = known[6], known[0]
    bundle, verdict, runs = published(home), CheckVerdict.UNKNOWN, 0
    while verdict is not CheckVerdict.MISMATCH and runs < MOST_RUNS:
        run_until(home, has_lines(home, len(lines(home)) + BETWEEN))
        bundle = published(home)
        verdict = check(bundle, at_worst).verdict
        runs = sum(one.archetype == tokens[0] and one.context == BAD for one in lines(home))
        (said_of,) = [
            one
            for one in bundle.mismatches
            if str(one.workload) == tokens[0] and str(one.context) == at_worst["context"]
        ]
        logger.warning("%d runs, %d of the pair: %.3f", len(lines(home)), runs, said_of.probability_worse)
    assert verdict is CheckVerdict.MISMATCH
    assert check(bundle, at_another).verdict is not CheckVerdict.MISMATCH
    assert [
        (str(one.workload), str(one.context)) for one in bundle.mismatches if one.judgement is PairJudgement.WORSE
    ] == [(tokens[0], at_worst["context"])]


def has_lines(home: Path, wanted: int) -> Callable[[], bool]:
    """Whether so many runs said what became of them, when it is asked."""
    return lambda: len(lines(home)) >= wanted


def lines(home: Path) -> list[BenchmarkJob]:
    """The runs that said what became of them."""
    return [one for one in read(home / FILE) if one.outcome != UNKNOWN] if (home / FILE).exists() else []


def published(home: Path) -> Bundle:
    """The bundle that is learnt now."""
    with closing(homes.open_provider(home, None, homes.settings_of(home))) as provider:
        publisher = homes.open_publisher(home, provider.store)
        publisher.publish(publisher.releases(), publisher.learn(publisher.releases()))
        bundle = publisher.newest()
    assert bundle is not None
    return bundle
