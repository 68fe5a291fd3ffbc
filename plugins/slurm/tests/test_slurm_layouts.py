"""What `sacct --json` of Slurm 22.05.8 said of a cluster laid out otherwise: nine nodes, four partitions, one hidden.

Its nodes are `gpu[001-003,007]`, `rack[1-2]n[01-02]` and one with a domain, with GPUs as generic resources; jobs are
preempted by quality of service, and requeued by a node's failure, by their exit code, after a failed prolog and after
they were over. Then the controller lost its state, and its job ids began anew. Each job printed its own
SLURM_RESTART_COUNT, which stands here. Accounts, the cluster and one node were renamed, and most fields left out.
"""

from pathlib import Path

import pytest

from federation.base.hostlist import hostlist
from pharoah_slurm.starts import JobStart, read_starts
from provider_server.rounds.settings import Leases

FILE = Path(__file__).parent / "sacct/sacct-22.05.8-several-partitions.json"
ANEW_S = 1795721800  # when job ids began anew
PRINTED = {  # the restarts that each start of a job printed, as SLURM_RESTART_COUNT; no number is 0
    "victim": [0, 1],
    "requ": [0, 1, 2],
    "again2": [0, 1],
    "nodefail": [0, 1],
    "exitspecial": [0, 1],
    "rqexit": [0, 1],
    "badprolog": [0, 1],  # the first start printed nothing: its prolog failed
}
JOBS = {"victim": 4727, "requ": 4730, "again2": 4736, "nodefail": 4737, "exitspecial": 4738, "rqexit": 4741,
        "badprolog": 4743}  # fmt: skip


def starts() -> list[JobStart]:
    return read_starts(FILE.read_bytes())


def of(job: int) -> list[JobStart]:
    return [start for start in starts() if start.job == job and start.start_s < ANEW_S]


@pytest.mark.parametrize("name", PRINTED)
def test_each_start_has_the_restarts_that_the_job_itself_saw(name: str) -> None:
    assert [start.restarts for start in of(JOBS[name])] == PRINTED[name]
    assert [start.is_requeued for start in of(JOBS[name])] == [True] * (len(PRINTED[name]) - 1) + [False]


def test_a_job_that_failed_with_its_node_and_did_not_start_again_was_not_requeued() -> None:
    alone = FILE.read_text().splitlines()
    (record,) = (line for line in alone if '"NODE_FAIL"' in line)
    (start,) = read_starts(f'{{"jobs": [{record.strip().rstrip(",")}]}}'.encode())
    assert (start.state, start.is_requeued, start.restarts) == ("NODE_FAIL", False, 0)


def test_job_ids_that_began_anew_are_other_jobs() -> None:
    later = [start for start in starts() if start.start_s > ANEW_S]
    assert {start.job for start in later} & {start.job for start in starts() if start.start_s < ANEW_S}
    assert {start.restarts for start in later} == {0}


def test_nodes_of_every_form_are_found_in_contexts_as_slurm_conf_writes_them() -> None:
    contexts = ("gpu[001-003,007]", "rack[1-2]n[01-02]", "vis-hpc-a.dc1.example")
    named = {node for hosts in contexts for node in hostlist(hosts)}
    assert len(named) == 9
    assert {node for start in starts() for node in start.nodes} == named


def test_a_job_without_a_limit_and_jobs_that_never_began() -> None:
    (endless,) = of(4732)
    assert (endless.limit_s, endless.nodes) == (None, ("vis-hpc-a.dc1.example",))
    assert not [start for start in starts() if start.job == 4739]  # cancelled while it waited


def test_accounts_are_found_however_they_were_typed() -> None:
    """Slurm keeps `Bio-Med.2` as bio-med.2."""
    accounts = Leases(slurm_accounts={"Bio-Med.2": "01" * 16}).tenants()
    assert {start.account for start in starts()} & accounts.keys() == {"bio-med.2"}
