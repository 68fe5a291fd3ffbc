"""Error codes of own GPUs over leases: a bad node, a bad job, and what an operator without tenants sees."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from crypto.ids import LeaseId, TenantId
from federation.protocol.xid_judge import DECIDED
from provider_server.fleet.analysis.buildup import Shift
from provider_server.fleet.hints import node_reports
from provider_server.fleet.leases import Lease
from provider_server.fleet.node_codes import KEPT_H, CodeEvent, Held, NodeCodeRow, held, load, node_codes, remember
from provider_server.program.pages.actions import MOST_NAMED, RECENT_H, of_codes, of_shifts

# Ten jobs, a day each, one after the other on each of four nodes.
LEASES = [
    Held(f"n{node}", f"job-{(day + node) % 10}", 24.0 * day, 24.0 * (day + 1)) for node in range(4) for day in range(10)
]


def rows(events: Sequence[CodeEvent], leases: Sequence[Held] = LEASES) -> dict[tuple[str, str], NodeCodeRow]:
    return {(row["node"], row["code"]): row for row in node_codes(events, leases)}


def test_one_node_under_many_jobs_is_the_hardware() -> None:
    found = rows([CodeEvent("n1", "31", 24.0 * day + 5) for day in (1, 3, 4, 6, 8)])["n1", "31"]
    assert found["hardware_probability"] >= DECIDED
    assert found["events"] == 5
    assert found["judgement"].startswith("Xid 31: the hardware")


def test_one_job_on_every_node_is_the_jobs_code() -> None:
    mine = [one for one in LEASES if one.job == "job-7"]
    found = rows([CodeEvent(one.node, "31", one.start_h + 1) for one in mine])
    assert len(found) == 4
    assert all(row["hardware_probability"] < 0.01 for row in found.values())
    assert "the job's code" in found["n0", "31"]["judgement"]


def test_without_leases_the_code_alone_is_told_and_several_times_are_no_several_jobs() -> None:
    once, often = rows([CodeEvent("a", "31", 1.0)], []), rows([CodeEvent("a", "31", hour) for hour in (1.0, 9.0)], [])
    assert once["a", "31"]["hardware_probability"] == often["a", "31"]["hardware_probability"] < 0.1
    assert rows([CodeEvent("a", "99999", 1.0)], []) == {}


def test_idle_nodes_are_no_job_that_fails_everywhere() -> None:
    found = rows([CodeEvent(node, "79", 1.0) for node in "abcd"], [])
    assert all(row["hardware_probability"] > 0.8 for row in found.values())


def test_what_follows_within_the_hour_is_told_from_what_it_follows() -> None:
    together, apart = ([CodeEvent("n1", "48", 5.0), CodeEvent("n1", "45", hour)] for hour in (5.2, 50.0))
    assert rows(together)["n1", "45"]["hardware_probability"] >= DECIDED
    assert rows(apart)["n1", "45"]["hardware_probability"] < 0.5


def test_repairs_after_a_code_teach() -> None:
    events = [CodeEvent("n1", "119", 5.0), CodeEvent("n2", "119", 7.0)]
    before, after = (
        {row["node"]: row["hardware_probability"] for row in node_codes(events, [], repairs)}
        for repairs in ((), (("n1", 30.0), ("n1", 40.0), ("n2", 3.0)))
    )
    assert after["n2"] > before["n2"]


def test_leases_of_one_workload_are_one_job() -> None:
    lease, other = (
        Lease(LeaseId(bytes([number]) * LeaseId.length), TenantId(bytes(TenantId.length)), 1, 0.0, 9.0, labels)
        for number, labels in ((1, {"subarchetype": "ab"}), (2, {}))
    )
    assert held([(lease, ("n1", "n2")), (other, ("n1",))]) == [
        Held("n1", "ab", 0.0, 9.0), Held("n2", "ab", 0.0, 9.0), Held("n1", str(other.lease), 0.0, 9.0),
    ]  # fmt: skip


def test_a_running_provider_keeps_events_and_its_page_names_nodes_whose_hardware_it_is(tmp_path: Path) -> None:
    bad = [CodeEvent("n1", "31", 24.0 * day + 5) for day in (1, 3, 4, 6, 8)]
    remember(tmp_path, bad[:3], LEASES, (), 200.0)
    assert not list(of_codes(load(tmp_path).rows[:0], 200.0))
    remember(tmp_path, bad[2:], LEASES, (), 240.0)
    kept = load(tmp_path)
    assert kept.events == tuple(bad)  # each once
    (act,) = of_codes(kept.rows, 240.0)
    assert act.what.startswith("n1: Xid 31: the hardware, 9")
    assert not list(of_codes(kept.rows, bad[-1].hour + RECENT_H + 1))
    remember(tmp_path, (), LEASES, (), 240.0 + KEPT_H)
    assert load(tmp_path).events == ()


def test_a_group_that_has_moved_as_a_whole_is_an_action(tmp_path: Path) -> None:
    assert node_reports.load_shifts(tmp_path) == []
    node_reports.keep_shifts(tmp_path, [Shift("2", "gpu_temperature", 4.0), Shift("", "pcie_replays", 3.5)])
    seen = SimpleNamespace(shifts=node_reports.load_shifts(tmp_path), group_name=lambda number: f"group {number}")
    assert [one.what for one in of_shifts(cast("Any", seen))] == [
        "More degrees of GPU temperature than in the weeks before on all of group 2",
        "More PCIe retransmits than in the weeks before on all of the fleet",
    ]


def test_many_bad_nodes_are_counted() -> None:
    found = node_codes([CodeEvent(f"n{number}", "79", 1.0) for number in range(MOST_NAMED + 2)], [])
    sure = [row | {"hardware_probability": 0.99} for row in found]
    assert [one.what for one in of_codes(sure, 2.0)][-1] == "2 more nodes with errors of their hardware"
