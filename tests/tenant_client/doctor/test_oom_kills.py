"""Ranks that the kernel ended for want of memory, by its log and by the counters of both versions of cgroups."""

from pathlib import Path

import pytest

from tenant_client.doctor.run.health import Health
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.host_memory import HostMemory
from tenant_client.doctor.run.oom_kills import OomKills
from tenant_client.doctor.run.watchdog import Kind

PIDS = {0: 100, 1: 101}
LINE = "6,339,5140900,-;{} Killed process {} (python3) total-vm:9kB, anon-rss:8kB, UID:0\n"


class Host:
    """Files of a kernel: processes in a cgroup of version 1 or 2, and a log."""

    def __init__(self, folder: Path, version: int) -> None:
        self.proc, self.groups, self.log = folder / "proc", folder / "groups", folder / "kmsg"
        self.log.write_text(LINE.format("Out of memory:", 101))  # of an older process with this number
        top, file = (self.groups / "memory", "memory.oom_control") if version == 1 else (self.groups, "memory.events")
        self.counter = top / "job" / file
        self.counter.parent.mkdir(parents=True)
        self.count(3)
        for pid in (*PIDS.values(), 102):
            self.state(pid, "S")
            line = "4:memory:/job\n3:cpuset:/\n" if version == 1 else "0::/job\n"
            (self.proc / str(pid) / "cgroup").write_text(line)
        self.kills = OomKills(self.proc, self.groups, self.log)

    def state(self, pid: int, letter: str) -> None:
        (self.proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (self.proc / str(pid) / "stat").write_text(f"{pid} (python3 (x)) {letter} 1 1")

    def count(self, kills: int) -> None:
        self.counter.write_text(f"low 0\nunder_oom 0\noom 9\noom_kill {kills}\noom_group_kill 0\n")


@pytest.fixture(params=[1, 2])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(tmp_path, request.param)


def test_a_rank_that_the_log_names_is_found_once_it_has_ended(host: Host) -> None:
    assert host.kills.feed(0.0, PIDS) is None
    with host.log.open("a") as log:
        log.write(LINE.format("Memory cgroup out of memory:", 101))
    assert host.kills.feed(1.0, PIDS) is None  # it still ends
    host.state(101, "Z")
    found = host.kills.feed(60.0, PIDS)
    assert found is not None
    assert found[0] == (1,)
    assert "Memory cgroup out of memory: Killed process 101 (python3) total-vm:9kB" in found[1]


def test_a_counter_that_rises_while_a_rank_ends_tells_it_without_the_log(host: Host) -> None:
    assert host.kills.feed(0.0, PIDS) is None
    host.count(4)
    assert host.kills.feed(1.0, PIDS) is None
    host.state(101, "Z")
    found = host.kills.feed(3.0, PIDS)
    assert found == ((1,), f"oom_kill of {host.counter} rose from 3 to 4")
    host.state(100, "X")
    assert host.kills.feed(4.0, PIDS) == ((), found[1])  # which of them is not known


def test_a_helper_that_is_ended_while_the_ranks_go_on_is_no_rank(host: Host) -> None:
    assert host.kills.feed(0.0, PIDS) is None
    host.count(4)
    assert host.kills.feed(1.0, PIDS) is None
    host.state(101, "Z")  # much later, and of something else
    assert host.kills.feed(100.0, PIDS) is None


def test_a_host_that_shows_nothing_tells_nothing(tmp_path: Path) -> None:
    kills = OomKills(tmp_path, tmp_path, tmp_path / "kmsg")
    assert kills.feed(0.0, PIDS) is None


def test_the_finding_holds_until_the_ranks_were_started_again(host: Host) -> None:
    health = Health(host.proc, HostMemory(host.proc), host.kills)
    host.count(3)

    def look(now_s: float, pid_of_1: int) -> list[str]:
        ranks = [Progress(rank, pid, 5, now_s, "train", None, 0) for rank, pid in ((0, 100), (1, pid_of_1))]
        return [one.text for one in health.feed(now_s, ranks, [])]

    assert look(0.0, 101) == []
    host.count(4)
    host.state(101, "Z")
    (text,) = look(1.0, 101)
    assert text.startswith("the kernel ended rank 1 for want of memory: oom_kill of ")
    assert look(2.0, 101) == []
    (finding,) = health.findings
    assert (finding.kind, finding.ranks, finding.cleared_at_s) == (Kind.OUT_OF_MEMORY, (1,), None)
    look(9.0, 102)
    assert health.findings[0].cleared_at_s is None  # rank 0 is as it was
    ranks = [Progress(rank, 102, 5, 10.0, "train", None, 1) for rank in (0, 1)]
    health.feed(10.0, ranks, [])
    assert health.findings[0].cleared_at_s == 10.0
