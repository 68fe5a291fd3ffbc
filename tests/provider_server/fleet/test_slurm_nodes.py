"""Nodes that Slurm had down or drained, as outages, from what `sacctmgr` of Slurm 22.05.8 prints."""

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from federation.base.slurm_nodes import kind_of
from provider_server.fleet.analysis.recurrent import are_failures
from provider_server.fleet.outage_files import UnusableOutages, read_outages

SLURM = Path(__file__).parent / "slurm"
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


def test_what_is_left_out_is_told_by_its_row_in_the_file(tmp_path: Path) -> None:
    """Rows of the cluster and of what was planned count as rows, though neither is an outage."""
    text = EVENTS + "n5|1795403600|1795400000|DRAIN|Xid 48|root(0)\nn6|1|soon|DRAIN|Xid 48|root(0)\n"
    assert read_outages(written(tmp_path, text)).left_out == (
        "1 row, the first row 1: no node",
        "1 row, the first row 7: end 'soon' is no time",
        "1 row, the first row 6: it ends before it starts: 'n5', from 2026-11-23T03:13Z to 2026-11-23T02:13Z",
    )


@pytest.mark.parametrize(
    ("header", "row"),
    [
        (HEADER, "n1|1795400000|1795403600|DOWN|DIMM A3 | replaced|root(0)\n"),
        (HEADER.replace("|User", ""), "n1|1795400000|1795403600|DOWN|DIMM A3 | replaced\n"),
        (HEADER.replace("|User", "|"), "n1|1795400000|1795403600|DOWN|DIMM A3 | replaced|\n"),  # -p
    ],
)
def test_a_bar_in_a_reason_belongs_to_it(header: str, row: str, tmp_path: Path) -> None:
    assert read_outages(written(tmp_path, header + row)).rows["kind"].to_list() == [
        "hardware/memory/DIMM A3 | replaced"
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "REASON               USER      TIMESTAMP           NODELIST\nXid 79 root 2026-11-23T21:09:08 n[1-2]\n"
            "Not responding       slurm     Unknown             n3\n",
            "row 2: nothing tells since when it is out",
        ),
        (
            "NodeName=n1 Arch=x86_64\n   State=DOWN Reason=Xid 79 [root@2026-11-23T21:09:08]\n"
            "NodeName=n3 Arch=x86_64\n   State=IDLE+DRAIN\nNodeName=n4 Arch=x86_64\n   State=MAINT\n",
            "node n3: nothing tells since when it is out",
        ),
    ],
)
def test_a_node_that_is_out_since_no_known_time_is_told(text: str, told: str, tmp_path: Path) -> None:
    found = read_outages(written(tmp_path, text))
    assert found.rows["node"][0] == "n1"
    assert found.left_out == (told,)


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
        ("gres/gpu count repor", "hardware/gpu"),  # as `sinfo -R` cuts it off
        ("Low RealMemory (reported:1000 < 100.00% of configured:2000)", "configuration"),
        ("Low socket*core*thread count, Low CPUs", "configuration"),
        (
            "gres/gpu GRES core specification 0-3 doesn't match socket boundaries. (Socket 0 is",
            "configuration",
        ),
        ("gres/gpu GRES core s", "configuration"),
        ("gres/gpu count changed and jobs are using them (8 != 4)", "configuration"),
        ("node unexpected reboot", "node lost"),
        ("Sanity Check Failed", "health check"),
        ("NHC: check_ps_unauth_users", "health check"),
        ("NHC: check_fs_mount: /scratch not mounted", "hardware/storage"),
        ("PSU 2 lost", "hardware/other"),
        ("RMA 4711", "hardware/other"),
        ("awaiting motherboard", "hardware/other"),
        ("kernel update", "maintenance"),
        ("drained by user request", "maintenance"),
        ("scratch disk is full", "software"),
        ("slurmd restarting", "software"),
        ("fully drained", "unknown"),
        ("Reboot ASAP", "maintenance"),
        ("firmware upgrade", "maintenance"),
        ("ticket 4711", "unknown"),
        ("", "unknown"),
    ],
)
def test_kinds_of_reasons(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind


# ---- what Slurm shows of nodes now -----------------------------------------------------------------------------------

SHOWN = """NodeName=n1 Arch=x86_64 CoresPerSocket=8
   State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1
   Reason=Xid 79 on GPU 3 [root@2026-11-23T21:09:08]

NodeName=n2 Arch=x86_64 CoresPerSocket=8
   State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1

NodeName=n3 Arch=x86_64
   State=DOWN+POWERED_DOWN Reason=idle [slurm@2026-11-23T21:09:08]
"""
BY_SINFO = {  # of data parser v0.0.40
    "sinfo": [
        {
            "node": {"state": ["DOWN"]},
            "nodes": {"nodes": ["n1", "n2"]},
            "reason": {"description": "Not responding", "time": {"set": True, "infinite": False, "number": 1795467000}},
        },
        {"node": {"state": ["IDLE"]}, "nodes": {"nodes": ["n3"]}, "reason": {"description": "", "time": 0}},
    ]
}
BY_SCONTROL = {
    "nodes": [
        {"name": "n1", "state": ["IDLE", "DRAIN"], "reason": "Xid 79", "reason_changed_at": 1795467000},
        {"name": "n2", "state": ["IDLE"], "reason": "", "reason_changed_at": {"set": True, "number": 0}},
        {"name": "n3", "state": "down", "state_flags": [], "reason": "", "reason_changed_at": 0},
        {"name": 4},
    ]
}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (SHOWN, {"n1": "hardware/gpu/Xid 79 on GPU 3"}),
        (json.dumps(BY_SINFO), dict.fromkeys(("n1", "n2"), "node lost/Not responding")),
        (json.dumps(BY_SCONTROL), {"n1": "hardware/gpu/Xid 79"}),
    ],
)
def test_nodes_that_are_out_now_are_outages_that_last(text: str, nodes: dict[str, str], tmp_path: Path) -> None:
    found = read_outages(written(tmp_path, text))
    assert dict(found.rows.select("node", "kind").rows()) == nodes
    assert found.rows["end_h"].null_count() == len(nodes)


def test_a_node_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    found = read_outages(written(tmp_path, json.dumps(BY_SCONTROL)))
    assert found.left_out == (
        "node n3: nothing tells since when it is out",
        "node 4: Expected `str`, got `int` - at `$.name`",
    )


def test_files_as_people_have_them() -> None:
    told = read_outages(SLURM / "slurm_nodes.json").rows
    assert told.rows() == [("n1", pytest.approx(1782000000 / 3600), None, "software/Kill task failed")]
    listed = read_outages(SLURM / "sinfo_R.txt").rows
    assert listed.height == 3 + 5 + 6 + 11 + 4
    assert set(listed["kind"]) == {
        "unknown/issue-5894",
        "hardware/gpu/gres gpu count repor",
        "configuration/gres gpu GRES core s",
    }
    of_reasons = read_outages(SLURM / "slurm_reasons.txt")
    kinds = {node: kind.rpartition("/")[0] for node, kind in of_reasons.rows.select("node", "kind").rows()}
    assert [node for node, kind in kinds.items() if kind == "hardware/gpu"] == ["gpu006"]
    failing = of_reasons.rows.filter(are_failures(()))["node"]
    assert not {"gpu005", "gpu007", "gpu008", "gpu012", "gpu014"} & set(failing)


@pytest.mark.parametrize(
    ("text", "form", "hint"),
    [
        ("   Cluster        NodeName           TimeStart\n ---\n", "for a person", "sacctmgr -P"),
        ("Cluster|NodeName|TimeStart|State\nc|n1|1795400000|DOWN\n", "without NodeName, TimeStart, TimeEnd", "TimeEnd"),
        ("NodeName,TimeStart,TimeEnd,State,Reason\nn1,1,2,DOWN,x\n", "other signs than |", "sacctmgr -P"),
        ("n1|1795400000|1795403600|DOWN|Xid 79\n", "without the line of names", "sacctmgr -P"),
        ("c|n1|2026-11-23T21:09:08|Unknown|DOWN|Xid 79\n", "without the line of names", "sacctmgr -P"),
        ("# To edit this file start with a cluster line for the new cluster\n", "`sacctmgr dump`", "list event"),
        ("PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n", "without times", "sinfo -R"),
        (
            "REASON   USER  TIMESTAMP  NODELIST\nXid 79   root  Unknown    n1\n",
            "row 1: nothing tells since when",
            "no hazard",
        ),
        ("apiVersion: v1\nitems:\n- kind: Node\n", "YAML", "-o json"),
        ("NAME   STATUS   ROLES    AGE   VERSION\nn1     Ready    <none>   1d   v1.34\n", "for a person", "-o json"),
        ("Tue Nov 24 12:00:00 2026\nNODELIST   NODES PARTITION       STATE\n", "without times", "sinfo -R"),
        (
            "Summary,Issue key,Created,Resolved\nn1 down,OPS-1,2025,2026\n",
            "but summary, issue key, created",
            "columns node",
        ),
        (
            '{"kind": "List", "items": [{"kind": "Event", "metadata": {"name": "n1.1"}}]}',
            "of the kind Event",
            "get nodes",
        ),
        ("hello\n", "is text: it has no columns", "see docs/nodes.md"),
        ("PK\x03\x04 cut", "broken archive", ""),
        (
            "PK\x03\x04" + "\0" * 26 + "[Content_Types].xml\0\0xl/workbook.xml",
            "an Excel workbook; save",
            "node, start, end",
        ),
        ('{"some": 1}', "nodes of Kubernetes or Slurm", "docs/nodes.md"),
    ],
)
def test_a_form_that_tells_too_little_is_named(text: str, form: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableOutages, match=form) as refused:
        read_outages(written(tmp_path, text))
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, gzip.compress, "\ufeff{}".format, "utf-16"])
def test_a_list_is_read_however_it_is_packed(pack: Any, tmp_path: Path) -> None:
    file = tmp_path / "events"
    if pack == "utf-16":
        file.write_text(EVENTS, encoding="utf-16")
    else:
        packed = pack(EVENTS if callable(pack) and pack.__name__ == "format" else EVENTS.encode())
        file.write_bytes(packed.encode() if isinstance(packed, str) else packed)
    assert read_outages(file).rows.height == 3
