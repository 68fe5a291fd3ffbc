"""The provider's graph of its fabric, from four formats, and paths between nodes with their health."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from federation.base.route import HopHealth
from pharoah_fabric.routes import FabricHealth, routes
from pharoah_fabric.verb import LIMITS, health_of
from provider_server.fleet.fabric import Cable, CableEnd, Fabric
from provider_server.fleet.fabric_files import FabricError, load_fabric
from provider_server.fleet.hints.node_reports import NodeReport
from provider_server.fleet.telemetry.catalogue import METRICS
from provider_server.fleet.telemetry.inventory import Inventory, load
from provider_server.fleet.telemetry.summaries import HourSummary
from provider_server.program.cli import app

NONE = FabricHealth()

# As lldpd's lldpcli prints it, with one interface and with two, and as json0 prints it.
ONE = {
    "lldp": {
        "interface": {
            "ens10np0": {
                "via": "LLDP",
                "chassis": {"Leaf-1": {"id": {"type": "mac", "value": "00:1"}}},
                "port": {"id": {"type": "ifname", "value": "Eth1/1"}, "descr": "to gpu-1"},
            }
        }
    }
}
TWO = {
    "lldp": {
        "interface": [
            {
                "ens10np0": {
                    "chassis": {"Leaf-1": {"id": {"type": "mac", "value": "00:1"}}},
                    "port": {"id": {"type": "ifname", "value": "Eth1/2"}},
                }
            },
            {"ens11np0": {"chassis": {"id": {"type": "mac", "value": "00:2"}}, "port": {"descr": "Eth9/2"}}},
        ]
    }
}
JSON0 = {
    "lldp": [
        {
            "interface": [
                {
                    "name": "ens10np0",
                    "chassis": [{"id": [{"type": "mac", "value": "00:1"}], "name": [{"value": "Leaf-1"}]}],
                    "port": [{"id": [{"type": "ifname", "value": "Eth1/3"}]}],
                }
            ]
        }
    ]
}
# As ibnetdiscover of infiniband-diags prints it.
IB = """#
# Topology file: generated on Tue Jun  2 10:00:00 2026
#
vendid=0x2c9
switchguid=0xe8ebd30300a3b2c0(e8ebd30300a3b2c0)
Switch\t41 "S-e8ebd30300a3b2c0"\t\t# "MF0;leaf1:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-b8cef60300a1b2c2"[1](b8cef60300a1b2c2) \t\t# "n1 mlx5_0" lid 12 4xNDR
[2]\t"H-b8cef60300a1b2c3"[1](b8cef60300a1b2c3) \t\t# "n2 mlx5_0" lid 13 4xNDR
[33]\t"S-aaaad30300a3b2c0"[1]\t\t# "MF0;spine1:MQM9700/U1" lid 3 4xNDR
[34]\t"S-bbbbd30300a3b2c0"[1]\t\t# "MF0;spine2:MQM9700/U1" lid 4 4xNDR

Switch\t41 "S-ccccd30300a3b2c0"\t\t# "MF0;leaf2:MQM9700/U1" enhanced port 0 lid 2 lmc 0
[1]\t"H-b8cef60300a1b2c4"[1](b8cef60300a1b2c4) \t\t# "n3 mlx5_0" lid 14 4xNDR
[33]\t"S-aaaad30300a3b2c0"[2]\t\t# "MF0;spine1:MQM9700/U1" lid 3 4xNDR
[34]\t"S-bbbbd30300a3b2c0"[2]\t\t# "MF0;spine2:MQM9700/U1" lid 4 4xNDR

Switch\t41 "S-aaaad30300a3b2c0"\t\t# "MF0;spine1:MQM9700/U1" enhanced port 0 lid 3 lmc 0
[1]\t"S-e8ebd30300a3b2c0"[33]\t\t# "MF0;leaf1:MQM9700/U1" lid 1 4xNDR
[2]\t"S-ccccd30300a3b2c0"[33]\t\t# "MF0;leaf2:MQM9700/U1" lid 2 4xNDR

Switch\t41 "S-bbbbd30300a3b2c0"\t\t# "MF0;spine2:MQM9700/U1" enhanced port 0 lid 4 lmc 0
[1]\t"S-e8ebd30300a3b2c0"[34]\t\t# "MF0;leaf1:MQM9700/U1" lid 1 4xNDR
[2]\t"S-ccccd30300a3b2c0"[34]\t\t# "MF0;leaf2:MQM9700/U1" lid 2 4xNDR

Ca\t1 "H-b8cef60300a1b2c2"\t\t# "n1 mlx5_0"
[1](b8cef60300a1b2c2) \t"S-e8ebd30300a3b2c0"[1]\t\t# lid 12 lmc 0 "MF0;leaf1:MQM9700/U1" lid 1 4xNDR

Ca\t1 "H-b8cef60300a1b2c3"\t\t# "n2 mlx5_0"
[1](b8cef60300a1b2c3) \t"S-e8ebd30300a3b2c0"[2]\t\t# lid 13 lmc 0 "MF0;leaf1:MQM9700/U1" lid 1 4xNDR

Ca\t1 "H-b8cef60300a1b2c4"\t\t# "n3 mlx5_0"
[1](b8cef60300a1b2c4) \t"S-ccccd30300a3b2c0"[1]\t\t# lid 14 lmc 0 "MF0;leaf2:MQM9700/U1" lid 2 4xNDR
"""
RAILS = """
[[switch]]
name = "spine"
[[switch]]
name = "leaf-0"
above = "spine"
[[switch]]
name = "leaf-1"
above = "spine"
""" + "".join(
    f'[[node]]\nname = "{node}"\n'
    + "".join(
        f'[[nic]]\nnode = "{node}"\nname = "mlx5_{rail}"\nswitch = "leaf-{rail}"\nport = "Eth{port}"\nrail = {rail}\n'
        for rail in (0, 1)
    )
    for port, node in enumerate(("a", "b"), 1)
)


def fabric(folder: Path, **files: str) -> Fabric:
    paths = []
    for name, text in files.items():
        path = folder / name.replace("_DOT_", ".")
        path.write_text(text)
        paths.append(path)
    return load_fabric(paths, Inventory())


def names(found: Fabric, start: str, end: str) -> list[tuple[str, str]]:
    (route,) = routes(found, start, end, NONE)
    return [(hop.kind, hop.name) for hop in route.hops]


def test_ibnetdiscover_gives_both_ends_of_each_cable_once(tmp_path: Path) -> None:
    found = fabric(tmp_path, fabric_txt=IB)
    assert found.nodes == {"n1", "n2", "n3"}
    assert sum(map(len, found.cables.values())) == 2 * 7
    assert names(found, "n1", "n2") == [
        ("node", "n1"), ("nic", "n1 mlx5_0:1"), ("port", "leaf1 1"), ("switch", "leaf1"),
        ("port", "leaf1 2"), ("nic", "n2 mlx5_0:1"), ("node", "n2"),
    ]  # fmt: skip
    (route,) = routes(found, "n1", "n3", NONE)
    assert route.title.endswith("on rail 0")
    assert [hop.name for hop in route.hops if hop.kind == "switch"] == ["leaf1", "one of spine1, spine2", "leaf2"]
    assert route.limits == ("which of several equal ways a flow takes",)


WILD = Path(__file__).resolve().parents[3] / "tests/wild"


def test_hosts_whose_cards_are_counted_have_the_rails_of_those_that_name_them(tmp_path: Path) -> None:
    counted, named = (load_fabric([WILD / f"ibnetdiscover_{form}.txt"], Inventory()) for form in ("hca", "mlx5"))
    assert counted == named
    assert [route.title for route in routes(counted, "n1", "n2", NONE)] == [
        "n1 to n2 on rail 0",
        "n1 to n2 on rail 1",
    ]
    text = (WILD / "ibnetdiscover_mlx5.txt").read_text()
    mixed = text.replace("n2 mlx5_0", "n2 HCA-1").replace("n2 mlx5_1", "n2 HCA-2")
    assert fabric(tmp_path, fabric_txt=mixed) == named


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_files_about_a_fabric_may_be_packed(ending: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    for name, text in (("fabric.txt", IB), ("gpu-1.json", json.dumps(ONE)), ("tree.conf", "SwitchName=leaf Nodes=a,b")):
        (tmp_path / name).write_text(text)
        (tmp_path / f"{name}.{ending}").write_bytes(pack(text.encode()))
        packed = load_fabric([tmp_path / f"{name}.{ending}"], Inventory())
        assert packed == load_fabric([tmp_path / name], Inventory())
    (tmp_path / "packed.lz4").write_bytes(b"\x04\x22\x4d\x18\x04\x00")
    with pytest.raises(FabricError, match="an lz4 file; unpack it"):
        load_fabric([tmp_path / "packed.lz4"], Inventory())


CONTINUED = (
    "# two racks\nSwitchName=leaf1 \\\n    Nodes=n[1-4] LinkSpeed=100\n"
    "SwitchName=leaf2 Nodes=n[5-6],\\\nn[7-8]   # the other\nSwitchName=spine \\  \n  Switches=leaf[1-2]\n"
)
SHOWN = (
    "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-4]\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[5-8]\n"
    "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]\n"
)


@pytest.mark.parametrize(("name", "text"), [("topology.conf", CONTINUED), ("topology.txt", SHOWN)])
def test_slurms_tree_may_have_continued_lines_or_be_what_scontrol_shows(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    found = load_fabric([tmp_path / name], Inventory())
    assert found.nodes == {f"n{number}" for number in range(1, 9)}
    hops = [hop for kind, hop in names(found, "n1", "n8") if kind == "switch"]
    assert hops == ["leaf1", "spine", "leaf2"]
    (route,) = routes(found, "n1", "n4", NONE)
    assert [hop.name for hop in route.hops if hop.kind == "switch"] == ["leaf1"]


def test_lldp_of_either_form(tmp_path: Path) -> None:
    files = {f"gpu-{n}_DOT_json": json.dumps(told) for n, told in enumerate((ONE, TWO, JSON0), 1)}
    found = fabric(tmp_path, **files)
    assert {str(cable.other(node)) for node in ("gpu-1", "gpu-2", "gpu-3") for cable in found.cables[node]} == {
        "Leaf-1 Eth1/1", "Leaf-1 Eth1/2", "Leaf-1 Eth1/3", "00:2 Eth9/2",
    }  # fmt: skip
    assert ("nic", "gpu-3 ens10np0") in names(found, "gpu-1", "gpu-3")


def test_what_is_no_file_about_a_fabric_is_left_out_beside_others_and_refused_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "README.txt").write_text("How these were made.\n")
    with pytest.raises(FabricError, match="neither a switch nor an adapter"):
        load_fabric([tmp_path], Inventory())
    (tmp_path / "topology.conf").write_text("SwitchName=leaf1 Nodes=n[1-2]\n")
    assert names(load_fabric([tmp_path], Inventory()), "n1", "n2")
    assert "README.txt" in caplog.text


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("# This database file was automatically generated by IBDIAGNET\n# Running\n", "a file of `ibdiagnet`"),
        ('CA  4  1 0xec0d9a03003d62be 4x EDR - SW  2 17 0x506b4b0300820910 ( "n02" )\n', "`ibnetdiscover -p`"),
        ("CA: n02 HCA-1:\n      0xec0d9a03003d62be      4    1[  ] ==( 4X      25.78 Gbps Active/", "`iblinkinfo`"),
        (
            "Switch: 0x506b4b0300820910 leaf:\n           2    1[  ] ==(                Down/ Polling)",
            "`iblinkinfo`",
        ),
        ('0x0002c90200404ad8 "SwitchX -  Mellanox Technologies"      4    3[  ] ==( 4X 25.78 Gbps', "`iblinkinfo`"),
        ("How these were made: 1 == 1\n", "is text: neither"),
        ("{ SW Ports:29 SystemGUID:0c42a103004d0000 }\n", "`ibdiagnet` writes"),
        ("# ours\n- topology: topo1\n  tree:\n    switches:\n", "Slurm's topology.yaml"),
    ],
)
def test_what_other_tools_of_a_fabric_write_is_named(text: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "fabric").write_text(text)
    with pytest.raises(FabricError, match="as `ibnetdiscover` writes them") as refused:
        load_fabric([tmp_path / "fabric"], Inventory())
    assert form in str(refused.value)


def test_topology_conf_knows_no_ports(tmp_path: Path) -> None:
    text = (
        "# a tree\nSwitchName=s0 Nodes=n[1-2]\nSwitchName=s1 Nodes=n3\nSwitchName=top Switches=s[0-1] LinkSpeed=100\n"
    )
    found = fabric(tmp_path, topology_DOT_conf=text)
    hops = names(found, "n1", "n3")
    assert [name for kind, name in hops if kind == "switch"] == ["s0", "top", "s1"]
    assert {name for kind, name in hops if kind in ("nic", "port")} == {""}


def test_rails_of_the_inventory_are_routes_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "inventory.toml").write_text(RAILS)
    found = load_fabric((), load(tmp_path / "inventory.toml"))
    zero, one = routes(found, "a", "b", NONE)
    assert [hop.name for hop in zero.hops] == [
        "a", "a mlx5_0", "leaf-0 Eth1", "leaf-0", "leaf-0 Eth2", "b mlx5_0", "b",
    ]  # fmt: skip
    assert one.title == "a to b on rail 1"


def test_what_no_file_joins_is_unknown() -> None:
    (route,) = routes(Fabric.of([], ["a", "b"]), "a", "b", NONE)
    assert [hop.health for hop in route.hops] == [HopHealth.UNKNOWN] * 3


def test_nodes_forward_nothing() -> None:
    ends = [
        CableEnd("a", "1"),
        CableEnd("s"),
        CableEnd("m", "1"),
        CableEnd("m", "2"),
        CableEnd("t"),
        CableEnd("b", "1"),
    ]
    cables = [Cable(ends[0], ends[1]), Cable(ends[2], ends[1]), Cable(ends[3], ends[4]), Cable(ends[5], ends[4])]
    (route,) = routes(Fabric.of(cables, ["a", "m", "b"]), "a", "b", NONE)
    assert "no file joins them" in route.hops[1].notes


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.json", "{", "truncated"),
        ("a.json", "{}", "no lldp"),
        ("a.json", "[]", "no lldp"),
        ("a.conf", "NodeName=x", "no SwitchName"),
        ("a.conf", "# blocks\nBlockName=b1 \\\n Nodes=n[1-4]\n", ":2: no SwitchName, but blocks"),
        ("a.json", '[{"source_guid": "0x0c42", "destination_guid": "0x0c43"}]', "is JSON of UFM: no lldp"),
        ("a.conf", "# nothing", "no switch"),
        ("a.txt", "hello", "neither"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, text: str, what: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FabricError, match=what):
        load_fabric([tmp_path / name], Inventory())


def hour(*rows: tuple[str, str, str, float]) -> HourSummary:
    table = pl.DataFrame(rows, schema=["node", "device", "metric", "increase"], orient="row")
    return HourSummary(0, table, pl.DataFrame(), pl.DataFrame())


def test_errors_mark_the_port_that_has_them(tmp_path: Path) -> None:
    reports = [
        NodeReport("n1", 9, 2, is_heard=True, suspicion="memory"),
        NodeReport("n2", 9, 0, is_heard=False, suspicion=""),
    ]
    hours = [hour(("n1", "mlx5_0:1", "roce_icrc_errors", 0.0), ("n2", "mlx5_0:1", "ib_link_downed", 1.0))] * 2
    (route,) = routes(fabric(tmp_path, fabric_txt=IB), "n1", "n2", health_of(reports, hours))
    health = {hop.name: hop.health for hop in route.hops}
    assert health == {
        "n1": HopHealth.DOUBT, "n1 mlx5_0:1": HopHealth.CLEAR, "leaf1 1": HopHealth.UNKNOWN, "leaf1": HopHealth.UNKNOWN,
        "leaf1 2": HopHealth.UNKNOWN, "n2 mlx5_0:1": HopHealth.DOUBT, "n2": HopHealth.UNKNOWN,
    }  # fmt: skip
    assert route.hops[5].notes == ("n2 mlx5_0:1: link went down: 2 in 2 h",)


def test_a_card_without_a_port_number_has_the_counters_of_its_port(tmp_path: Path) -> None:
    (tmp_path / "inventory.toml").write_text(RAILS)
    found = load_fabric((), load(tmp_path / "inventory.toml"))
    health = health_of([], [hour(("a", "mlx5_0:1", "roce_out_of_sequence", 1001.0))])
    zero, one = routes(found, "a", "b", health)
    assert (zero.hops[1].health, one.hops[1].health) == (HopHealth.DOUBT, HopHealth.UNKNOWN)


def test_every_limit_is_of_a_metric_that_is_read() -> None:
    assert set(LIMITS) <= set(METRICS)
    for name in ("roce_ecn_marked", "roce_cnp_sent", "roce_out_of_sequence", "pfc_pauses_received"):
        assert METRICS[name].names


def test_the_verb(tmp_path: Path) -> None:
    (tmp_path / "provider.toml").write_text("")
    (tmp_path / "fabric.txt").write_text(IB)
    asked = ["nodes", "path", "n1", "n3", "--home", str(tmp_path), "--fabric", str(tmp_path / "fabric.txt")]
    done = CliRunner().invoke(app, [*asked, "--json", "--out", str(tmp_path / "path.svg")])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["routes"]) == 1
    assert CliRunner().invoke(app, ["nodes", "path", "n1", "n9", *asked[4:]]).exit_code == 3
