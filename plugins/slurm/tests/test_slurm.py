"""Leases as Slurm's accounting tells them, from what `sacct --json` of Slurm 22.05.8 said of a cluster of four nodes.

Ten jobs ran there: one on two nodes, an array of two, one that failed, a heterogeneous one of two components, one that
was requeued and runs again, one that waited, one that was cancelled before it ran, and one that was suspended for 4 s.
Accounts and users were renamed, and steps and resources left out.
"""

import copy
import json
import lzma
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from crypto.ids import LeaseId, TenantId
from federation.base.key_files import read_key
from federation.base.settings import BadSettings
from federation.protocol.job_leases import lease_key, lease_of_job
from federation.protocol.service_messages import LeaseChange, LeaseEnd
from pharoah_slurm.follow import Look, Turn, events_of, follow
from pharoah_slurm.starts import JobStart, UnusableSlurm, read_starts
from provider_server.program.cli import app
from provider_server.rounds import home as homes
from provider_server.rounds.intake.lease_events import Change, End
from provider_server.rounds.intake.recorder import LeaseRecorder
from provider_server.rounds.provider import Provider
from provider_server.rounds.settings import Leases
from tenant_client.doctor.run.run_directory import LEASE_KEY, lease_name
from tests.support.federations import Grounds

FOLDER = Path(__file__).parent / "sacct"
SAID = json.loads((FOLDER / "sacct-22.05.8.json").read_text())
RUNS, REQUEUED, SUSPENDED, HET = 6, 6, 10, (4, 5)
STARTED = {1, 2, 3, 4, 5, 6, 7, 8, 10}


def starts(answer: object = SAID) -> list[JobStart]:
    return read_starts(json.dumps(answer).encode())


def one(job: int, restarts: int = 0, answer: object = SAID) -> JobStart:
    (found,) = [start for start in starts(answer) if (start.job, start.restarts) == (job, restarts)]
    return found


def changed(job: int, **times: int | str) -> Any:
    """The answer with other times of the last record of a job, or another state."""
    answer = copy.deepcopy(SAID)
    record = [one for one in answer["jobs"] if one["job_id"] == job][-1]
    for name, value in times.items():
        if name == "state":
            record["state"]["current"] = value
        else:
            record["time"][name] = value
    return answer


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_each_start_of_each_job_is_read_and_jobs_that_never_ran_are_not() -> None:
    assert {(start.job, start.restarts) for start in starts()} == {(job, 0) for job in STARTED} | {(RUNS, 1)}


def test_nodes_accounts_and_limits() -> None:
    assert one(1).nodes == ("n1", "n2")
    assert (one(1).account, one(3).account, one(1).cluster, one(1).limit_s) == ("lab-a", "lab-b", "test", 600)


def test_components_of_a_heterogeneous_job_are_starts_of_their_own() -> None:
    first, second = map(one, HET)
    assert first.start_s == second.start_s
    assert {first.nodes, second.nodes} == {("n4",), ("n1",)}


def test_a_requeued_start_ended_and_the_next_one_runs() -> None:
    before, now = one(REQUEUED, 0), one(REQUEUED, 1)
    assert before.is_requeued
    assert before.end_s is not None
    assert before.end_s <= now.start_s
    assert not now.is_requeued


def test_time_in_which_a_job_is_suspended_is_not_run() -> None:
    suspended = one(SUSPENDED)
    assert suspended.suspended_s == 4
    assert suspended.end_s is not None
    assert suspended.planned_end_s == suspended.start_s + 600 + 4  # its time limit stood still meanwhile
    *_, ended = events_of(suspended, LeaseId(bytes(16)), TenantId(bytes(16)), 0.0)
    assert isinstance(ended, End)
    assert ended.at.timestamp() == suspended.end_s - 4


def test_a_job_that_ended_in_the_second_in_which_it_began_ran_for_one() -> None:
    start = one(SUSPENDED, answer=changed(SUSPENDED, end=one(SUSPENDED).start_s, suspended=0))
    *_, ended = events_of(start, LeaseId(bytes(16)), TenantId(bytes(16)), 0.0)
    assert isinstance(ended, End)
    assert ended.at.timestamp() == start.start_s + 1


def test_a_job_without_a_limit_is_taken_to_run_for_another_day() -> None:
    answer = changed(SUSPENDED, end=0, state="RUNNING")
    answer["jobs"][-1]["time"]["limit"] = None
    start = one(SUSPENDED, answer=answer)
    assert start.planned_end_s is None
    *_, moved = events_of(start, LeaseId(bytes(16)), TenantId(bytes(16)), 1.8e9)
    assert isinstance(moved, Change)
    assert 1 <= (moved.until.timestamp() - 1.8e9) / 86_400 <= 2


def test_what_a_job_had_before_it_was_resized_belongs_to_its_start() -> None:
    answer = copy.deepcopy(SAID)
    record = next(job for job in answer["jobs"] if job["job_id"] == 1)
    later = copy.deepcopy(record) | {"nodes": "n1"}
    record["state"]["current"] = "RESIZING"
    later["time"] |= {"start": record["time"]["end"], "end": record["time"]["end"] + 50}
    answer["jobs"].append(later)
    resized = one(1, answer=answer)
    assert (resized.nodes, resized.start_s, resized.end_s) == (("n1",), record["time"]["start"], later["time"]["end"])


def as_of_23_11(answer: Any) -> Any:
    """The same in the form of data parser v0.0.40: numbers that may be missing are objects, a state is a list."""
    newer = copy.deepcopy(answer)
    for job in newer["jobs"]:
        job["state"]["current"] = [job["state"]["current"]]
        limit, offset = job["time"]["limit"], job["het"]["job_offset"]
        job["time"]["limit"] = {"set": limit is not None, "infinite": False, "number": limit or 0}
        job["het"]["job_offset"] = {"set": offset is not None, "infinite": False, "number": offset or 0}
        job["time"]["start"] = job["time"]["start"] or 0
    return newer | {"warnings": []}


def test_the_newer_schema_tells_the_same() -> None:
    assert starts(as_of_23_11(SAID)) == starts()
    endless = as_of_23_11(changed(SUSPENDED, end=0, state="RUNNING"))
    endless["jobs"][-1]["time"]["limit"] = {"set": False, "infinite": True, "number": 0}
    endless["jobs"][-1]["state"]["current"] = ["RUNNING", "REQUEUE"]
    assert one(SUSPENDED, answer=endless).limit_s is None
    assert one(SUSPENDED, answer=endless).is_requeued


def test_a_job_that_is_over_without_an_end_ended_after_what_elapsed() -> None:
    (failed,) = read_starts((FOLDER / "sacct_node_fail_end_0.json").read_bytes())
    assert failed.end_s == 1782000000 + 20615
    untold: Counter[str] = Counter()
    answer = changed(SUSPENDED, end=0, state="NODE_FAIL")
    del answer["jobs"][-1]["time"]["elapsed"]
    assert SUSPENDED not in {start.job for start in read_starts(json.dumps(answer).encode(), untold)}
    assert "job 10: NODE_FAIL, and neither its end nor what elapsed is told" in untold


ODD: dict[str, Any] = {
    "a time of the year 11476": {"time": {"start": 300_000_000_000}},
    "a time before 1970": {"time": {"start": -5}},
    "a time beyond every float": {"time": {"start": 10**400}},
    "time suspended for ever": {"time": {"start": 1, "suspended": 10**400}},
    "an end in the year 11476": {"time": {"start": 1, "end": 300_000_000_000}},
    "no number as a job": {"job_id": "²"},
    "a job of many digits": {"job_id": 10**4500},
    "a list of hosts without end": {"nodes": "n[0-9999999999][x]"},
    "a list of nothing but brackets": {"nodes": "[" * 100_000},
    "no account": {"account": 4},
}


@pytest.mark.parametrize("what", ODD)
def test_an_odd_job_keeps_no_other_from_its_lease(
    what: str, grounds: Grounds, provider: Provider, tmp_path: Path
) -> None:
    answer = copy.deepcopy(SAID)
    sys.set_int_max_str_digits(0)
    odd = {**answer["jobs"][0], "job_id": 77, **ODD[what]}
    told = json.dumps({**answer, "jobs": [odd, *answer["jobs"]]}).encode()
    sys.set_int_max_str_digits(4300)
    left_out: Counter[str] = Counter()
    recorder = LeaseRecorder(provider, tmp_path / "provider", CONTEXTS)
    seen = follow(provider, recorder, bytes(32), {"lab-a": tenant(grounds)}, read_starts(told, left_out), 5e5 * 3600)
    assert len(seen.changes) == len(STARTED)
    assert [why for why in left_out + seen.left_out if why.startswith(("job 77: ", "job ²: ", "job ?: "))]


@pytest.mark.parametrize("nodes", ["n[3-1]", "n[", "n[01", "rack[a-c]x[1-2]", "n[]", "[n1"])
def test_a_list_of_nodes_that_is_none_is_left_out_by_name(nodes: str) -> None:
    answer, left_out = copy.deepcopy(SAID), Counter[str]()
    odd = {**answer["jobs"][0], "job_id": 77, "nodes": nodes}
    assert read_starts(json.dumps({**answer, "jobs": [odd, *answer["jobs"]]}).encode(), left_out) == starts()
    assert left_out[f"job 77: its list of nodes {nodes!r} is none"] == 1


def test_what_other_programs_of_slurm_print_is_named() -> None:
    queue = {"jobs": [{"job_id": 5, "job_state": ["RUNNING"], "nodes": "n1", "start_time": {"number": 1782000000}}]}
    with pytest.raises(UnusableSlurm, match="what `scontrol` or `squeue` prints"):
        read_starts(json.dumps(queue).encode())


def test_a_limit_of_centuries_is_none() -> None:
    assert one(SUSPENDED, answer=changed(SUSPENDED, limit=4_294_967_000)).limit_s is None


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b'{"jobs": [{"job_id": "1"}]}', b'{"jobs": [], "errors": [{"error": "no"}]}']
)
def test_what_is_no_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(UnusableSlurm):
        read_starts(answer)


# ---- following -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grounds, Path]:
    """A federation without leases, to be copied."""
    root = tmp_path_factory.mktemp("held")
    return Grounds.founded(root, 2), root


@pytest.fixture
def grounds(held: tuple[Grounds, Path], tmp_path: Path) -> Grounds:
    shutil.copytree(held[1] / "provider", tmp_path / "provider")
    (tmp_path / "provider/context.key").write_bytes(bytes(range(32)))
    return held[0]


@pytest.fixture
def provider(grounds: Grounds, tmp_path: Path) -> Iterator[Provider]:
    with closing(grounds.provider(tmp_path)) as opened:
        yield opened


def tenant(grounds: Grounds, number: int = 0) -> TenantId:
    return grounds.federation.tenants[number].id


CONTEXTS = {"n[1-3]": "hall 1", "n4": "hall 2"}


def looked(
    grounds: Grounds,
    provider: Provider,
    home: Path,
    answer: object = SAID,
    now_h: float = 5e5,
    contexts: Mapping[str, str] = CONTEXTS,
) -> Look:
    recorder = LeaseRecorder(provider, home / "provider", contexts)
    secret = read_key(home / "provider/context.key")
    return follow(provider, recorder, secret, {"lab-a": tenant(grounds)}, starts(answer), now_h * 3600)


def lease_of(home: Path, grounds: Grounds, job: int, restarts: int = 0) -> LeaseId:
    key = lease_key(read_key(home / "provider/context.key"), tenant(grounds))
    return lease_of_job(key, "test", job, restarts)


def ends_told(provider: Provider, grounds: Grounds) -> list[LeaseEnd]:
    return [one for one in provider.store.hints.after(tenant(grounds), 0) if isinstance(one, LeaseEnd)]


def ended(provider: Provider, name: LeaseId) -> float:
    lease = provider.store.lease(name)
    assert lease is not None
    return lease.end_h


def test_leases_are_recorded_once_with_their_nodes_and_contexts(
    grounds: Grounds, provider: Provider, tmp_path: Path
) -> None:
    seen = looked(grounds, provider, tmp_path)
    assert len(seen.changes) == len(STARTED)  # job 3 is of an account that nobody named
    assert list(seen.left_out.values()) == [1]
    assert "'lab-b'" in "".join(seen.left_out)
    assert looked(grounds, provider, tmp_path).changes == []
    placed = {lease.lease: (lease, nodes) for lease, nodes in provider.store.placed(0, 1e6)}
    lease, nodes = placed[lease_of(tmp_path, grounds, 1)]
    assert (lease.nodes, nodes, lease.tenant) == (2, ("n1", "n2"), tenant(grounds))
    assert lease.labels["context"] == provider.context_labels(lease.start_h, "hall 1", 0)["context"]
    other, _ = placed[lease_of(tmp_path, grounds, HET[0])]
    assert other.labels["context"] == provider.context_labels(other.start_h, "hall 2", 0)["context"]
    assert lease.start_h == pytest.approx(one(1).start_s / 3600)
    assert lease.end_h - lease.start_h == pytest.approx(1 / 3600)


def test_accounts_in_capital_letters_are_those_of_the_settings(
    grounds: Grounds, provider: Provider, tmp_path: Path
) -> None:
    answer = copy.deepcopy(SAID)
    for job in answer["jobs"]:
        job["account"] = job["account"].upper()
    seen = looked(grounds, provider, tmp_path, answer)
    assert len(seen.changes) == len(STARTED)
    assert seen.left_out == {"account 'LAB-B' is not in [leases] slurm_accounts": 1}


def test_where_no_account_is_named_each_is_told_with_its_number(provider: Provider, tmp_path: Path) -> None:
    recorder = LeaseRecorder(provider, tmp_path / "provider", CONTEXTS)
    seen = follow(provider, recorder, bytes(32), {}, starts(), 5e5)
    assert not seen.changes
    assert sum(seen.left_out.values()) == len(starts())
    assert all("slurm_accounts, which names none" in why for why in seen.left_out)


def test_an_end_that_changes_is_followed_and_told(grounds: Grounds, provider: Provider, tmp_path: Path) -> None:
    looked(grounds, provider, tmp_path, changed(SUSPENDED, end=0, state="RUNNING"))
    longer = looked(grounds, provider, tmp_path, changed(SUSPENDED, end=0, state="RUNNING", limit=20))
    assert [(one.turn, one.start.job) for one in longer.changes] == [(Turn.MOVED, SUSPENDED)]
    early = looked(grounds, provider, tmp_path)
    assert [(one.turn, one.start.job) for one in early.changes] == [(Turn.EARLY, SUSPENDED)]
    name = lease_of(tmp_path, grounds, SUSPENDED)
    assert ended(provider, name) * 3600 == pytest.approx((one(SUSPENDED).end_s or 0) - 4)
    told = [end for end in ends_told(provider, grounds) if end.lease == name]
    assert [end.change for end in told] == [LeaseChange.MOVED, LeaseChange.ENDED_EARLY]
    assert told[-1].end_h * 3600 == pytest.approx(one(SUSPENDED).end_s or 0)  # suspended or not, it ended then


def test_of_a_job_without_a_limit_only_the_end_is_told(grounds: Grounds, provider: Provider, tmp_path: Path) -> None:
    running, over = changed(SUSPENDED, end=0, state="RUNNING"), changed(SUSPENDED)
    for answer in (running, over):
        answer["jobs"][-1]["time"]["limit"] = None
    for now_h in (5e5, 5e5 + 24.0, 5e5 + 48.0):
        looked(grounds, provider, tmp_path, running, now_h)
    looked(grounds, provider, tmp_path, over, 5e5 + 49.0)
    name = lease_of(tmp_path, grounds, SUSPENDED)
    told = [(end.change, end.planned_h) for end in ends_told(provider, grounds) if end.lease == name]
    assert told == [(LeaseChange.ENDED, None)]


def test_a_requeue_ends_the_lease_and_the_next_start_is_another(
    grounds: Grounds, provider: Provider, tmp_path: Path
) -> None:
    first = copy.deepcopy(SAID)
    first["jobs"] = [job for job in first["jobs"] if job["job_id"] == REQUEUED][:1]
    first["jobs"][0]["time"]["end"], first["jobs"][0]["state"]["current"] = 0, "RUNNING"
    assert [one.turn for one in looked(grounds, provider, tmp_path, first).changes] == [Turn.BEGAN]
    told = {(one.start.job, one.start.restarts): one.turn for one in looked(grounds, provider, tmp_path).changes}
    assert told[REQUEUED, 0] is Turn.REQUEUED
    before, after = (ended(provider, lease_of(tmp_path, grounds, REQUEUED, restarts)) for restarts in (0, 1))
    assert before < after


def test_a_job_without_a_limit_moves_once_a_day(grounds: Grounds, provider: Provider, tmp_path: Path) -> None:
    endless = changed(SUSPENDED, end=0, state="RUNNING")
    endless["jobs"][-1]["time"]["limit"] = None
    looked(grounds, provider, tmp_path, endless, 5e5)
    assert looked(grounds, provider, tmp_path, endless, 5e5 + 1).changes == []
    assert [one.turn for one in looked(grounds, provider, tmp_path, endless, 5e5 + 24).changes] == [Turn.MOVED]


def test_nodes_without_a_context_are_left_out_and_told(grounds: Grounds, provider: Provider, tmp_path: Path) -> None:
    seen = looked(grounds, provider, tmp_path, contexts={"n[1-3]": "hall 1"})
    assert len(seen.changes) == len(STARTED) - 1
    assert "job 4: node n4 has no context: name it in [leases] contexts" in seen.left_out
    nowhere = looked(grounds, provider, tmp_path, contexts={})
    assert "job 4: nodes have no contexts yet: run `pharoah-provider nodes contexts`" in nowhere.left_out


def test_an_account_of_nobody_is_refused() -> None:
    with pytest.raises(BadSettings, match="slurm_accounts"):
        Leases(slurm_accounts={"lab-a": "no id"}).tenants()


def test_a_tenant_that_is_not_enrolled_gets_no_lease(grounds: Grounds, provider: Provider, tmp_path: Path) -> None:
    recorder = LeaseRecorder(provider, tmp_path / "provider", CONTEXTS)
    seen = follow(provider, recorder, bytes(32), {"lab-a": TenantId(bytes(16))}, starts(), 5e5)
    assert not seen.changes
    assert "job 1: this tenant is not enrolled" in seen.left_out


# ---- what the tenant computes ----------------------------------------------------------------------------------------

JOB = {"SLURM_JOB_ID": "6", "SLURM_CLUSTER_NAME": "test", "SLURMD_NODENAME": "n3"}
IN_COMPONENT = {  # of a step of the second component, as Slurm 22.05.8 sets it
    "SLURM_JOB_ID": "4", "SLURM_CLUSTER_NAME": "test", "SLURMD_NODENAME": "n1", "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID_HET_GROUP_0": "4", "SLURM_JOB_ID_HET_GROUP_1": "5",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n4", "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "job", "restarts"),
    [(JOB, 6, 0), (JOB | {"SLURM_RESTART_COUNT": "1"}, 6, 1), (IN_COMPONENT, 5, 0),
     (IN_COMPONENT | {"SLURMD_NODENAME": "n4"}, 4, 0)],
)  # fmt: skip
def test_a_job_finds_the_lease_that_the_provider_recorded(
    grounds: Grounds, provider: Provider, tmp_path: Path, environment: dict[str, str], job: int, restarts: int
) -> None:
    looked(grounds, provider, tmp_path)
    (tmp_path / LEASE_KEY).write_bytes(lease_key(read_key(tmp_path / "provider/context.key"), tenant(grounds)))
    name = lease_name(environment, tmp_path)
    assert name == str(lease_of(tmp_path, grounds, job, restarts))
    assert LeaseId(bytes.fromhex(name)) in {lease.lease for lease in provider.store.leases(0, 1e6)}


def test_without_a_key_the_name_is_the_schedulers(tmp_path: Path) -> None:
    assert lease_name(JOB, tmp_path) == "slurm-6"
    (tmp_path / LEASE_KEY).write_bytes(b"short")
    assert lease_name(JOB, tmp_path) == "slurm-6"


def test_a_lease_tells_nothing_of_its_job_without_the_key(grounds: Grounds) -> None:
    keys = [
        lease_key(secret, tenant(grounds, number)) for secret in (bytes(32), bytes(31) + b"\1") for number in (0, 1)
    ]
    names = {
        lease_of_job(key, cluster, job, restarts)
        for key in keys
        for cluster in "ab"
        for job in (1, 11)
        for restarts in (0, 1)
    }
    assert len(names) == 32  # every part of it counts, and none runs into the next


# ---- the verbs -------------------------------------------------------------------------------------------------------


def test_a_look_loads_neither_rounds_nor_what_counts_in_them() -> None:
    """It is run again and again, by hand or by cron."""
    code = "import sys; from provider_server.rounds import home; from pharoah_slurm import follow"
    unwanted = "'numpy', 'rbcl', 'provider_server.rounds.provider', 'provider_server.fleet.learning'"
    code += f"; print({{{unwanted}}} & {{*sys.modules}})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_the_verb_reads_a_file_and_tells_what_changed(
    grounds: Grounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "open_leases", lambda *_: grounds.provider(tmp_path))  # its keys lie in no file
    home, saved = tmp_path / "provider", tmp_path / "sacct.json"
    accounts = f'[leases]\nslurm_accounts = {{ lab-a = "{tenant(grounds)}" }}\ncontexts = {{ "n[1-4]" = "hall 1" }}\n'
    (home / "provider.toml").write_text(accounts)
    saved.write_text(json.dumps(SAID))
    rows = json.loads(CliRunner().invoke(app, ["leases", "slurm", str(saved), "--home", str(home), "--json"]).stdout)
    assert {row["job"] for row in rows} == STARTED - {3}
    saved.write_bytes(lzma.compress(saved.read_bytes()))
    again = CliRunner().invoke(app, ["leases", "slurm", str(saved), "--home", str(home)])
    assert again.exit_code == 0
    assert again.stdout == ""
    assert "lab-b" in again.stderr
    assert f"nothing recorded: {len(STARTED)} starts known and unchanged, 2 records left out" in again.stderr
    nodeless = CliRunner().invoke(app, ["leases", "slurm", str(FOLDER / "sacct_no_nodes.json"), "--home", str(home)])
    assert "nothing recorded: 0 starts known and unchanged, 1 record left out" in nodeless.stderr
    assert "left out: 1 record: it was never given nodes" in nodeless.stderr
    saved.write_text("JobID|State\n1|COMPLETED\n")
    other = CliRunner().invoke(app, ["leases", "slurm", str(saved), "--home", str(home)])
    assert other.exit_code == 2
    assert "not what `sacct --json` prints: a table that `sacct -P` prints" in other.stderr
