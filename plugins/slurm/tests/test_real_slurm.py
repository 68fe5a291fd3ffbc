"""With a real Slurm: leases follow its jobs, and a failure that one tenant's job meets warns another job of it.

A fault is planted on two of four nodes: one of two workloads that four tenants run dies there of its link. Everything
is done by the programs that people run, from `sbatch` to the prolog of a later job. Only the calendar is helped along:
a round counts whole weeks that are over, so what has happened is dated a week back before the round.
"""

import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from federation.base import json_files
from federation.base.clock import now_hour
from federation.base.key_files import read_key
from federation.protocol.job_leases import lease_of_job
from federation.protocol.plan import HOURS_PER_WEEK
from pharoah_slurm.follow import SACCT
from pharoah_slurm.starts import read_starts
from plugins.slurm.tests.cluster import CLUSTER, Cluster, cluster, rest_answer
from provider_server.fleet.hints import node_reports
from provider_server.fleet.hints.node_reports import NodeReport
from provider_server.fleet.learning.hardware import REPAIRS, Repair
from provider_server.fleet.outage_files import read_outages
from simulation.run import processes
from simulation.run.processes import Places
from tenant_client.doctor.records.attempts import Attempt, AttemptState
from tenant_client.doctor.run.run_directory import LEASE_KEY
from tests.jobs.wrapped import attempts as attempts_of
from tests.support.traces import Transformer, convnet, profiled
from tests.support.waiting import until

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("slurm")]

ROOT = Path(__file__).resolve().parents[3]
NODES = ("n1", "n2", "n3", "n4")
GOOD, BAD = "n1", "n4"
TENANTS, EACH, SUSPENDED_S = 4, 4, 3
FRAGILE, STURDY = "fragile", "sturdy"
CARELESS = "lab-4"
LOST_LINK = ROOT / "tests/logs/nvlink_error_plain.log"
# A job that says what it runs as a profiled one does, and dies where its node has the fault; sturdy ones of one tenant
# die anywhere, which shows that no node is worse than another for all.
JOB = """#!/bin/sh
cp {traces}/$SLURM_JOB_NAME.json "$PHAROAH_RUN_DIR/trace-0-0.json"
case "$SLURM_JOB_NAME $SLURM_JOB_ACCOUNT" in
    {fragile}*) [ -e {faults}/$SLURMD_NODENAME ] ;;
    *{careless}) true ;;
    *) false ;;
esac && {{ cat {log}; exit 1; }}
echo done
"""
# With the programs of this environment; a later one is checked first.
SCRIPT = """#!/bin/sh
export PHAROAH_TENANT={tenant}
{prolog} || exit 1
{tenant} run --lease "" --describe now -- sh {job}
"""
# A step that Slurm itself runs the prolog for.
STEP = """#!/bin/sh
export PHAROAH_TENANT={tenant}
srun --task-prolog={prolog} true
"""


@dataclass(frozen=True)
class Cloud:
    """A cluster, a federation whose tenants have accounts on it, and the files that jobs need."""

    cluster: Cluster
    places: Places
    tenant: Path

    def account(self, number: int) -> str:
        return f"lab-{number}"

    def submit(self, number: int, job: str, node: str, *, gate: str = "off", script: str = "script.sh") -> int:
        """Submits a job of a tenant to a node; its output lies in `out`."""
        home = str(self.places.tenant(number))
        return self.cluster.submit(
            "-A", self.account(number), "-J", job, "-n1", "-w", node, f"--output={self.out('%j')}",
            str(self.places.root / script), PHAROAH_HOME=home, PHAROAH_GATE=gate,
        )  # fmt: skip

    def out(self, job: object) -> Path:
        return self.places.root / f"job-{job}.out"

    def follow(self) -> list[dict[str, Any]]:
        """What `pharoah-provider leases slurm` tells."""
        rows: list[dict[str, Any]] = json.loads(self.provider("leases", "slurm", "--json"))
        return rows

    def provider(self, *words: str) -> str:
        command = [sys.executable, "-m", "provider_server", *words, "--home", str(self.places.provider)]
        return self.run(*command)

    def journal(self, number: int) -> list[dict[str, Any]]:
        """The attempts of a tenant."""
        attempts: list[dict[str, Any]] = json.loads(self.as_tenant(number, "show", "--only", "journal", "--json"))[
            "attempts"
        ]
        return attempts

    def as_tenant(self, number: int, *words: str) -> str:
        return self.run(str(self.tenant), *words, "--home", str(self.places.tenant(number)))

    def run(self, *command: str) -> str:
        environment = {**processes.environment(), **self.cluster.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    root = tmp_path_factory.mktemp("cloud")
    accounts = [f"lab-{number}" for number in range(1, TENANTS + 1)]
    places = Places(root, TENANTS, 3)
    with cluster(NODES, accounts=accounts) as slurm, processes.founded(places):
        made = Cloud(slurm, places, Path(sys.executable).with_name("pharoah-tenant"))
        prepare(made)
        yield made


def prepare(cloud: Cloud) -> None:
    """Settings of the provider, lease keys of the tenants, what jobs run, and the fault."""
    root, names = cloud.places.root, processes.tenant_names(cloud.places)
    settings = cloud.places.provider / "provider.toml"
    accounts = ", ".join(f'{cloud.account(n)} = "{names[cloud.places.tenant(n)]}"' for n in range(1, TENANTS + 1))
    contexts = ", ".join(f'{node} = "rack of {node}"' for node in NODES)
    leases = f"\n[leases]\ncontexts = {{ {contexts} }}\nslurm_accounts = {{ {accounts} }}\n"
    settings.write_text(settings.read_text().replace("[plan]", "[plan]\nepsilon = 100.0") + leases)
    for number, home in enumerate(cloud.places.tenant_homes, start=1):
        (home / "policy.toml").write_text((home / "policy.toml").read_text() + "epsilon_per_window = 100.0\n")
        key = root / f"{number}.lease-key"
        cloud.provider("leases", "key", names[home], "--out", str(key))
        cloud.as_tenant(number, "join", "--lease-key", str(key))
    for folder in ("traces", "faults"):
        (root / folder).mkdir()
    for job, step in ((FRAGILE, Transformer().step()), (STURDY, convnet())):
        (root / f"traces/{job}.json").write_bytes(profiled([step] * 2))
    (root / f"faults/{BAD}").touch()
    told = {"traces": root / "traces", "faults": root / "faults", "log": LOST_LINK}
    (root / "job.sh").write_text(JOB.format(fragile=FRAGILE, careless=CARELESS, **told))
    told |= {"tenant": cloud.tenant, "prolog": ROOT / "ops/slurm/prolog.sh", "job": root / "job.sh"}
    (root / "script.sh").write_text(SCRIPT.format(**told))
    (root / "step.sh").write_text(STEP.format(**told))


def date_back(cloud: Cloud) -> None:
    """Dates all that has happened a week back, in the provider's books and in the tenants' journals alike."""
    moves = {cloud.places.provider / "provider.db": ["UPDATE leases SET start_h = start_h - :h, end_h = end_h - :h"]}
    for home in cloud.places.tenant_homes:
        units, failures = "UPDATE units SET start_h = start_h - :h", "UPDATE failures SET at_h = at_h - :h"
        moves[home / "tenant.db"] = [units, failures]
    for file, statements in moves.items():
        with closing(sqlite3.connect(file)) as connection, connection:
            for statement in statements:
                connection.execute(statement, {"h": HOURS_PER_WEEK})


@contextmanager
def following(cloud: Cloud) -> Iterator[None]:
    """Within it the provider follows Slurm."""
    words = ["leases", "slurm", "--every-s", "1", "--since-h", "0.1", "--home", str(cloud.places.provider)]
    command = [sys.executable, "-m", "provider_server", *words]
    with (cloud.places.root / "slurm.log").open("wb") as log, subprocess.Popen(
        command, env={**processes.environment(), **cloud.cluster.environment}, stdout=log, stderr=log
    ) as process:  # fmt: skip
        try:
            yield
        finally:
            process.terminate()


def verdicts(output: str) -> list[str]:
    """What the gate said in the output of a job."""
    return re.findall(r"^pharoah-tenant: (ok|warning|mismatch)[:,]", output, re.MULTILINE)


def lands_elsewhere(cloud: Cloud) -> None:
    """A job that only the faulty node is free for goes there, and with the list of `check exclude` elsewhere."""

    def submit(nodes: str) -> int:
        return cloud.cluster.submit("-A", cloud.account(1), f"--exclude={nodes}", "-o", "/dev/null", "--wrap", "true")

    def node_of(job: int) -> str:
        return cloud.cluster.run("sacct", "-X", "-n", "-P", "--format=NodeList", f"--jobs={job}")

    bad = cloud.as_tenant(1, "check", "exclude", "--job", FRAGILE).strip()
    assert bad == BAD
    assert cloud.as_tenant(1, "check", "exclude", "--job", STURDY) == ""
    others = ",".join(node for node in NODES if node != BAD)
    cloud.cluster.run("scontrol", "update", f"nodename={others}", "state=drain", "reason=test")
    without = submit("")  # as where the list is empty
    cloud.cluster.ended([without])
    with_list = submit(bad)
    assert node_of(without) == BAD
    cloud.cluster.run("scontrol", "update", f"nodename={others}", "state=resume")
    cloud.cluster.ended([with_list])
    assert node_of(with_list) in others.split(",")


def test_a_fault_that_jobs_meet_warns_a_later_job(cloud: Cloud) -> None:
    weeks = processes.weeks_per_epoch(processes.WEEKS)
    if processes.last_week() // HOURS_PER_WEEK % weeks == weeks - 1:
        pytest.skip("the epoch begins this week, and last week's tokens are of the one before")
    jobs = {
        cloud.submit(number, job, node): (cloud.account(number), job, node)
        for _ in range(EACH)
        for number in range(1, TENANTS + 1)
        for job in (FRAGILE, STURDY)
        for node in NODES
    }
    states = cloud.cluster.ended(list(jobs))
    failed = {job for job, state in states.items() if state == "FAILED"}
    assert failed == {job for job, told in jobs.items() if told[1:] == (FRAGILE, BAD) or told[:2] == (CARELESS, STURDY)}
    rows = cloud.follow()
    assert {row["job"] for row in rows} == set(jobs)
    leases = {row["lease"] for row in rows}
    causes = [entry for number in range(1, TENANTS + 1) for entry in cloud.journal(number)]
    assert {entry["unit"] for entry in causes} == leases  # each job found the lease that the provider recorded
    reasons = [entry["cause"]["reason"] for entry in causes if entry["state"] == "failed"]
    assert reasons == ["nvlink_error"] * len(failed)
    date_back(cloud)
    with processes.running(cloud.places, lambda _: None), following(cloud):
        assert processes.round_of(cloud.places, processes.last_week())["contributors"] == TENANTS
        later = {node: cloud.submit(1, FRAGILE, node, gate="refuse") for node in (GOOD, BAD)}
        silent = cloud.submit(1, FRAGILE, BAD, gate="off")
        step = cloud.submit(1, FRAGILE, BAD, gate="refuse", script="step.sh")
        cloud.cluster.ended([*later.values(), silent, step])
        assert verdicts(cloud.out(later[BAD]).read_text()) == ["warning"], cloud.out(later[BAD]).read_text()
        assert verdicts(cloud.out(later[GOOD]).read_text()) == ["ok"]
        assert verdicts(cloud.out(silent).read_text()) == []
        assert verdicts(cloud.out(step).read_text()) == ["warning"]
    lands_elsewhere(cloud)


# What of a job tells its lease; every task of it says the lease that it computes.
SAY = "from pathlib import Path; import os; from tenant_client.doctor.run.run_directory import lease_of_start as of"
TELL = f"{sys.executable} -c '{SAY}; print(of(os.environ, Path(os.environ[\"PHAROAH_HOME\"])))'"


def test_each_start_finds_the_lease_that_the_provider_recorded(cloud: Cloud) -> None:
    told = cloud.places.root / "told"
    told.mkdir()
    common = ("-A", "lab-1", f"--output={told}/%j.out", "--open-mode=append", "-t", "5")
    environment = {"PHAROAH_HOME": str(cloud.places.tenant(1)), "PYTHONPATH": str(ROOT)}

    def submit(*words: str) -> int:
        return cloud.cluster.submit(*common, *words, **environment)

    array = submit("--array=1-2", "--wrap", TELL)
    pair = told / "het.sh"
    pair.write_text(f"#!/bin/sh\nsrun --het-group=0,1 {TELL}\n")
    het = submit("-N1", ":", "-N1", str(pair))
    once = f'{TELL}; sleep 2; [ -n "$SLURM_RESTART_COUNT" ] || scontrol requeue $SLURM_JOB_ID; sleep 2'
    again = submit("--requeue", "--wrap", once)
    stopped = submit("--wrap", f"{TELL}; sleep 100")
    until(lambda: cloud.cluster.state(stopped) == "RUNNING", "it runs")
    rows = {(row["job"], row["restarts"]): row for row in cloud.follow()}
    cloud.cluster.run("scontrol", "suspend", str(stopped))
    time.sleep(SUSPENDED_S)
    cloud.cluster.run("scontrol", "resume", str(stopped))
    cloud.cluster.run("scancel", str(stopped))
    tasks = cloud.cluster.run("sacct", "-X", "-n", "-P", "--format=JobIDRaw", f"--jobs={array}").split()
    jobs = [*map(int, tasks), het, het + 1, again, stopped]
    cloud.cluster.ended(jobs)
    rows |= {(row["job"], row["restarts"]): row for row in cloud.follow()}
    expected = {(again, 1), *((job, 0) for job in jobs)}
    assert len(tasks) == 2
    assert expected <= rows.keys()
    said = "\n".join(file.read_text() for file in told.glob("*.out"))
    computed = re.findall(r"^[0-9a-f]{32}$", said, re.MULTILINE)
    assert sorted(computed) == sorted(rows[start]["lease"] for start in expected)
    assert rows[again, 0]["change"] == "requeued"
    assert rows[stopped, 0]["change"] == "ended early"
    assert rows[stopped, 0]["end_before_h"] == pytest.approx(rows[stopped, 0]["start_h"] + 5 / 60)
    assert cloud.follow() == []


# Runs until somebody ends it; what Slurm starts a second time is over at once.
# Without `exec` Slurm ends the step when the shell is gone, and kills what has not said yet how it ended.
ENDLESS = """#!/bin/sh
[ -n "$SLURM_RESTART_COUNT" ] && exit 0
exec {tenant} run --lease "" -- sleep 100
"""


def test_a_lease_that_was_ended_is_told_with_its_attempt(cloud: Cloud) -> None:
    """By the programs alone: Slurm, the provider that follows it, and the tenant's node."""
    (cloud.places.root / "endless.sh").write_text(ENDLESS.format(tenant=cloud.tenant))
    names: dict[str, str] = {}

    def attempts() -> dict[str, Attempt]:
        return {names[one.unit]: one for one in attempts_of(cloud.places.tenant(2)) if one.unit in names}

    with processes.running(cloud.places, lambda _: None), following(cloud):
        jobs = {
            cloud.cluster.submit(
                "-A", cloud.account(2), "-J", word, "-n1", "-t", "5", "--requeue", "--output=/dev/null",
                str(cloud.places.root / "endless.sh"), PHAROAH_HOME=str(cloud.places.tenant(2)),
            ): word
            for word in ("requeue", "cancel")
        }  # fmt: skip
        key = read_key(cloud.places.tenant(2) / LEASE_KEY)
        names |= {str(lease_of_job(key, CLUSTER, job, 0)): word for job, word in jobs.items()}
        until(lambda: [one.state for one in attempts().values()] == [AttemptState.RUNNING] * 2, "both run")
        for job, word in jobs.items():
            cloud.cluster.run(*(["scontrol", "requeue"] if word == "requeue" else ["scancel"]), str(job))

        def told() -> dict[str, Attempt] | None:
            found = attempts()
            return found if all("lease_end" in kinds(one) for one in found.values()) else None

        ended = until(told, "the tenant is told of both ends")
        unseen = (AttemptState.INTERRUPTED, "unknown")  # Slurm may kill what observes before it has written the end
        for word, reason in (("requeue", "preempted"), ("cancel", "cancelled")):
            seen = ended[word].state, ended[word].cause.reason
            assert seen in ((AttemptState.STOPPED, reason), unseen), word
        assert "(requeued)" in ended["requeue"].findings[-1]["text"]
        assert "ended early at" in ended["cancel"].cause.sentence
        cloud.cluster.ended(list(jobs))
    for lease in names:
        shown = json.loads(cloud.as_tenant(2, "evidence", lease, "--json"))["entries"]
        assert [one["shown"] for one in shown if one["kind"] == "end"] == [True]


def kinds(attempt: Attempt) -> list[str]:
    return [finding["kind"] for finding in attempt.findings]


def test_a_drained_node_is_an_outage_by_its_reason(cloud: Cloud, tmp_path: Path) -> None:
    cloud.cluster.run("scontrol", "update", "nodename=n4", "state=drain", "reason=NHC: check_hw_ib: no IB")
    asked = ["list", "event", "nodes=n4", "start=now-1hour", "format=NodeName,TimeStart,TimeEnd,State,Reason"]

    def told() -> str | None:
        text = cloud.cluster.run("sacctmgr", "-P", *asked, SLURM_TIME_FORMAT="%s")
        return text if "check_hw_ib" in text else None

    (tmp_path / "nodes.txt").write_text(until(told, "accounting knows of it"))
    cloud.cluster.run("scontrol", "update", "nodename=n4", "state=resume")
    (row,) = read_outages(tmp_path / "nodes.txt").rows.iter_rows(named=True)
    assert (row["node"], row["kind"], row["end_h"]) == ("n4", "hardware/network/NHC: check_hw_ib: no IB", None)
    assert row["start_h"] == pytest.approx(now_hour(), abs=0.2)


def test_slurmrestd_tells_the_same_starts_as_sacct(cloud: Cloud) -> None:
    again = '[ -n "$SLURM_RESTART_COUNT" ] || scontrol requeue $SLURM_JOB_ID'
    job = cloud.cluster.submit("-A", "lab-1", "--requeue", "-o", "/dev/null", "--wrap", again)
    cloud.cluster.ended([job])
    by_sacct = cloud.cluster.run(*SACCT, "--starttime=now-60minutes").encode()
    by_rest = rest_answer(cloud.cluster, "/slurmdb/v0.0.38/jobs?start_time=now-60minutes")
    assert read_starts(by_rest) == read_starts(by_sacct)
    assert [start.restarts for start in read_starts(by_rest) if start.job == job] == [0, 1]


def test_risk_steers_jobs_by_weight_by_preference_and_by_a_reservation(cloud: Cloud, tmp_path: Path) -> None:
    reports = [NodeReport(node, int(now_hour()), 2 * (node == "n1"), True, "memory") for node in NODES]  # noqa: FBT003
    node_reports.keep(tmp_path, reports)

    def node_of(*words: str) -> str:
        job = cloud.cluster.submit("-A", cloud.account(1), "-o", "/dev/null", *words, "--wrap", "true")
        cloud.cluster.ended([job])
        return cloud.cluster.run("sacct", "-X", "-n", "-P", "--format=NodeList", f"--jobs={job}")

    command = [sys.executable, "-m", "provider_server", "nodes", "risk", "--share", "0.25", "--home", str(tmp_path)]
    names = cloud.run(*command, "--names").strip()
    assert names == node_of() == "n1"
    cloud.cluster.run("scontrol", "update", f"NodeName={names}", "AvailableFeatures=short")
    json_files.keep(tmp_path / REPAIRS, [Repair("n1", int(now_hour()))])
    commands = cloud.run(*command, "--slurm").splitlines()
    assert [line.split()[1] for line in commands] == ["update", "update", "create"]
    for line in commands:
        cloud.cluster.run(*line.split())
    assert node_of() == "n2"
    assert node_of("--prefer=short") == "n2"  # reserved for tests
    assert node_of("--reservation=pharoah_tests") == "n1"
    cloud.cluster.run("scontrol", "delete", "reservation=pharoah_tests")
    assert node_of() == "n2"
    assert node_of("--prefer=short") == "n1"
    cloud.cluster.run("scontrol", "update", f"NodeName={names}", "Weight=1")


def test_pairs_of_nodes_are_tested_by_slurm(cloud: Cloud, tmp_path: Path) -> None:
    script = tmp_path / "pair.sh"
    script.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" != {BAD} ] && echo 1.0\n')
    script.chmod(0o755)
    srun = ["srun", "-A", cloud.account(1), "-N2", "-n2", "-w", "{one},{other}", str(script)]
    command = [sys.executable, "-m", "tenant_client", "confirm", "pairs", "--json", ",".join(NODES), *srun]
    environment = {**processes.environment(), **cloud.cluster.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    assert [one["node"] for one in json.loads(done.stdout)["nodes"]] == [BAD]
