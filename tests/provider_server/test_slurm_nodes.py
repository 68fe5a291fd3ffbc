"""Nodes that Slurm had down or drained, as outages, from what `sacctmgr` of Slurm 22.05.8 prints."""

from pathlib import Path

import pytest

from provider_server.fleet.outage_files import UnusableOutages, read_outages
from provider_server.fleet.slurm_nodes import kind_of

HEADER = "NodeName|TimeStart|TimeEnd|State|Reason|User\n"
EVENTS = (
    HEADER
    + "|1795467925|Unknown||Cluster Registered TRES|\n"
    + "n4|1795468148|Unknown|DRAIN|NHC: check_hw_ib: no IB|root(0)\n"
    + "n1|1795400000|1795403600|DOWN*|Not responding|slurm(64030)\n"
    + "n2|1795400000|1795403600|DRAIN|maintenance, ask Ann|root(0)\n"
    + "n3|1795400000|1795403600|IDLE+POWERED_DOWN|Xid 79|root(0)\n"
)


def written(folder: Path, text: str) -> Path:
    file = folder / "events.txt"
    file.write_text(text)
    return file


def test_events_of_nodes_are_outages_of_a_kind_and_those_of_the_cluster_are_not(tmp_path: Path) -> None:
    rows = {row["node"]: row for row in read_outages(written(tmp_path, EVENTS)).rows.iter_rows(named=True)}
    assert {node: row["kind"] for node, row in rows.items()} == {
        "n1": "node lost/Not responding",
        "n2": "maintenance/maintenance, ask Ann",
        "n4": "hardware/network/NHC: check_hw_ib: no IB",
    }
    assert (rows["n1"]["start_h"], rows["n1"]["end_h"]) == (
        pytest.approx(1795400000 / 3600),
        pytest.approx(1795403600 / 3600),
    )
    assert rows["n4"]["end_h"] is None


def test_times_may_be_as_slurm_writes_them_by_itself(tmp_path: Path) -> None:
    text = HEADER + "n1|2026-11-23T21:09:08|2026-11-23T22:09:08|DOWN|Xid 79|root(0)\n"
    row = read_outages(written(tmp_path, text)).rows.row(0, named=True)
    assert row["end_h"] - row["start_h"] == pytest.approx(1.0)


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableOutages, match="row 1: start 'soon' is no time"):
        read_outages(written(tmp_path, HEADER + "n1|soon|Unknown|DOWN|Xid 79|root(0)\n"))


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Not responding", "node lost"),
        ("Node unexpectedly rebooted", "node lost"),
        ("Kill task failed", "software"),
        ("Prolog error", "software"),
        ("gres/gpu count reported lower than configured (7 < 8)", "hardware/gpu"),
        ("NHC: check_nv_healthmon: GPU 3 fell off the bus", "hardware/gpu"),
        ("Low RealMemory (reported:1000 < 100.00% of configured:2000)", "hardware/memory"),
        ("NHC: check_fs_mount: /scratch not mounted", "hardware/storage"),
        ("PSU 2 lost", "hardware/other"),
        ("Reboot ASAP", "maintenance"),
        ("firmware upgrade", "maintenance"),
        ("ticket 4711", "unknown"),
        ("", "unknown"),
    ],
)
def test_kinds_of_reasons(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind
