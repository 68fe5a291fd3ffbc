"""A tenant's graph of ranks, GPUs and cards, from NCCL's logs and flight recorders, and paths in it."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from federation.base.route import Hop, HopHealth, Route, picture, worst
from tenant_client.doctor.diagnosis.rank_graph import HealthMark, HealthMarks, RankGraph, graph_of, routes
from tenant_client.doctor.run.lease_paths import marks_of
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.flight_recorder import read_dumps
from tenant_client.doctor.sources.nccl_topology import NcclTopology, read_topology, topology_of
from tenant_client.program.cli import app
from tests.support.logs_of_our_own import DATA

LOGS = [DATA / "nccl_logs" / name for name in ("llama2-7b-master.log.gz", "megatron_gpt2_16nodes.out.gz")]
DUMPS = DATA / "flight_recorder" / "gpu_error_1st"
NONE = HealthMarks()

# One rank as four releases write it; formats from NCCL's sources of these tags.
OLD = """
gpu-a:31:40 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE ; OOB eth0:10.0.0.1<0>
gpu-a:31:77 [0] NCCL INFO Channel 00/02 :    0   1   2   3
gpu-a:31:77 [0] NCCL INFO Trees [0] 1/2/-1->0->-1|-1->0->1/2/-1 [1] 1/-1/-1->0->3|3->0->1/-1/-1
gpu-a:31:77 [0] NCCL INFO Channel 00 : 0[1a000] -> 1[1c000] via P2P/IPC
gpu-a:31:77 [0] NCCL INFO Channel 00 : 0[1a000] -> 2[1a000] [send] via NET/IB/1/GDRDMA
gpu-a:31:77 [0] NCCL INFO Channel 01 : 3[1c000] -> 0[1a000] [receive] via NET/IB/0
gpu-a:31:77 [0] NCCL INFO comm 0x15228c001060 rank 0 nranks 4 cudaDev 0 busId 1a000 - Init COMPLETE
"""
NEW = """
[2026-06-02 10:00] gpu-b:32:40 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1:2/IB [1]mlx5_1:1:3:0/IB [RO]; OOB ib0:10.0.0.2
gpu-b:32:78 [1] NCCL INFO NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2 rail=0 plane=0
gpu-b:32:78 [1] NCCL INFO Ring 00 : 1 -> 2 -> 3
gpu-b:32:78 [1] NCCL INFO Init comm 0x5 rank 2 nranks 4 cudaDev 1 nvmlDev 1 busId 1b000 commId 0xabc - Init COMPLETE
gpu-b:32:99 [1] NCCL INFO Channel 00/0 : 0[0] -> 2[1] [receive] via NET/IB/2(3)/GDRDMA(PCI)/Shared
gpu-b:32:99 [1] NCCL INFO Channel 00/0 : 2[1] -> 3[2] via SHM/direct
gpu-b:32:99 [1] NCCL INFO Channel 00/0 : 9[1] -> 3[2] via SHM/direct
gpu-b:32:99 [1] NCCL INFO Channel 03/0 : 2[1] -> 3[2] via P2P/CUMEM/read
"""
OTHER = """
gpu-c:33:10 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.3<0> [1]eth1:10.1.0.3<0>
gpu-c:33:11 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/1/Shared
gpu-c:33:11 [0] NCCL INFO comm 0x7 rank 0 nRanks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x1 - Init COMPLETE
"""


def graph(*texts: str) -> RankGraph:
    return graph_of(topology_of(line for text in texts for line in text.splitlines()))


def test_formats_of_old_and_new_releases() -> None:
    read = topology_of((OLD + NEW).splitlines())
    old, new = read.members
    assert (old.host, old.rank, old.size, old.device, old.bus, old.ident) == ("gpu-a", 0, 4, 0, "1a000", "")
    assert (new.host, new.rank, new.size, new.device, new.bus, new.ident) == ("gpu-b", 2, 4, 1, "1b000", "abc")
    assert [link.card for link in old.links] == [None, 1, 0]
    assert [(link.own, link.peer, link.card) for link in new.links] == [(2, 0, 2), (2, 3, None), (2, 3, None)]
    assert (0, 0, 1) in old.rings
    assert old.trees == {(0, 0, 1), (0, 0, 2), (1, 0, 1), (1, 3, 0)}
    assert new.rings == {(0, 1, 2), (0, 2, 3)}
    assert read.cards["gpu-b", "32"] == {0: "mlx5_0:1", 1: "mlx5_1:1", 2: "mlx5_0+mlx5_1"}
    assert read.unplaced == 1  # of rank 9, which no communicator of that process has


def test_another_network_than_infiniband() -> None:
    (member,) = topology_of(OTHER.splitlines()).members
    assert [(link.card, link.via) for link in member.links] == [(1, "NET/AWS Libfabric/1/Shared")]


def test_a_path_names_both_cards_and_leaves_the_fabric_open() -> None:
    (route,) = routes(graph(OLD, NEW), 0, 2, NONE)
    assert [(hop.kind, hop.name) for hop in route.hops] == [
        ("rank", "rank 0"),
        ("gpu", "GPU 0 of gpu-a"),
        ("nic", "mlx5_1:1"),
        ("fabric", ""),
        ("nic", ""),  # what rank 2 says of the same channel is via another transport
        ("rank", "rank 2"),
        ("gpu", "GPU 1 of gpu-b"),
    ]
    assert [hop.health for hop in route.hops if not hop.name] == [HopHealth.UNKNOWN] * 2
    same = NEW.replace("NET/IB/2(3)/GDRDMA(PCI)/Shared", "NET/IB/2/GDRDMA")
    (joined,) = routes(graph(OLD, same), 0, 2, NONE)
    assert [hop.name for hop in joined.hops if hop.kind == "nic"] == ["mlx5_1:1", "mlx5_0+mlx5_1"]


def test_ranks_without_a_connection_go_over_others() -> None:
    (route,) = routes(graph(OLD, NEW), 1, 3, NONE)
    assert [hop.name for hop in route.hops if hop.kind == "rank"] == ["rank 1", "rank 0", "rank 3"]
    assert "no NCCL INFO log of rank 1, rank 3" in route.limits
    (nothing,) = routes(graph(OTHER), 0, 7, NONE)
    assert [hop.health for hop in nothing.hops if hop.kind == "link"] == [HopHealth.UNKNOWN]


def test_marks_go_to_ranks_hosts_and_cards_and_hints_to_none() -> None:
    known = graph(OLD, NEW)
    seen = [
        Evidence(
            "network_error", Role.ROOT, "nccl_log", "a.log", 3, "mlx5_1:1 Got async event : port error", host="gpu-a"
        ),
        Evidence("cuda_error", Role.SYMPTOM, "job_log", "b.log", 9, "late", rank=2),
        Evidence("unknown", Role.TEARDOWN, "job_log", "b.log", 10, "closing", rank=0),
        Evidence("time_limit", Role.ROOT, "job_log", "b.log", 11, "CANCELLED AT 21:52:36 DUE TO TIME LIMIT", rank=0),
    ]
    findings = [{"kind": "slow_rank", "ranks": [2], "text": "rank 2 is 3 steps behind", "cleared_at_s": None}]
    (route,) = routes(known, 0, 2, marks_of(known, seen, findings))
    health = {hop.name: hop.health for hop in route.hops if hop.name}
    assert health["mlx5_1:1"] is HopHealth.FAULT
    assert health["rank 2"] is HopHealth.DOUBT
    assert health["rank 0"] is health["GPU 0 of gpu-a"] is HopHealth.CLEAR


def test_a_cleared_finding_is_no_mark() -> None:
    cleared = [{"kind": "hang", "ranks": [0], "text": "stuck", "cleared_at_s": 5.0}]
    assert not marks_of(graph(OLD), [], cleared).ranks


def test_the_picture_is_xml_whatever_the_names() -> None:
    hop = Hop("nic", 'mlx5_0"<script>&\x1b[31m', HopHealth.FAULT, ("]]> <b>",))
    drawn = picture([Route("from <a> to b", (hop, Hop("fabric", "", HopHealth.UNKNOWN)), ("x",))])
    root = ET.fromstring(drawn)  # noqa: S314 (drawn a line above)
    assert {element.tag.rpartition("}")[2] for element in root} >= {"title", "desc", "rect", "text", "line"}
    assert "script" not in {element.tag.rpartition("}")[2] for element in root.iter()}
    assert drawn == picture([Route("from <a> to b", (hop, Hop("fabric", "", HopHealth.UNKNOWN)), ("x",))])
    assert worst([HopHealth.CLEAR, HopHealth.DOUBT, HopHealth.UNKNOWN]) is HopHealth.DOUBT


def test_the_verb(tmp_path: Path) -> None:
    log, out = tmp_path / "nccl.log", tmp_path / "path.svg"
    log.write_text(OLD + NEW)
    asked = ["path", "--home", str(tmp_path), "--log", str(log), "--from", "0", "--to", "2"]
    done = CliRunner().invoke(app, [*asked, "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    (route,) = json.loads(done.stdout)["routes"]
    assert set(route) == {"title", "hops", "limits"}
    assert ET.fromstring(out.read_text()).tag.endswith("svg")  # noqa: S314 (written a line above)
    assert CliRunner().invoke(app, [*asked[:-1], "17"]).exit_code == 3
    assert "journal is empty" in CliRunner().invoke(app, [*asked, "lease-1"]).output
    newest = CliRunner().invoke(app, ["show", "--only", "path", "--home", str(tmp_path), "--from", "0", "--to", "2"])
    assert (newest.exit_code, "journal is empty" in newest.output) == (3, True)
    log.write_text(
        OLD + NEW + "gpu-a:31:77 [0] transport/net_ib.cc:98 NCCL WARN NET/IB : mlx5_1:1 Got async event : port error\n"
    )
    assert CliRunner().invoke(app, asked).exit_code == 1


@pytest.mark.parametrize(
    ("text", "form"),
    [('<system version="1">\n  <cpu numaid="0"/>\n</system>\n', "a topology that NCCL dumped"), ("hi", "text")],
)
def test_of_what_names_no_rank_the_form_and_what_to_pass_are_told(text: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "some.gz").write_bytes(gzip.compress(text.encode()))
    asked = ["path", "--home", str(tmp_path), "--log", str(tmp_path / "some.gz"), "--from", "0", "--to", "2"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 3
    assert f"some.gz is {form}\n" in done.stderr
    assert "NCCL_DEBUG=INFO" in done.stderr


# ---- real logs -------------------------------------------------------------------------------------------------------


def counted(file: Path) -> tuple[Counter[int], set[str], int]:
    """Connections by size of communicator, processes that the largest has, and that size: by splitting lines."""
    waiting: Counter[str] = Counter()
    links: Counter[int] = Counter()
    processes: dict[int, set[str]] = {}
    for line in gzip.decompress(file.read_bytes()).decode(errors="replace").splitlines():
        words = line.split()
        if "INFO" not in words or "NCCL" not in words:
            continue
        thread = words[0]
        if " -> " in line and " via " in line:
            waiting[thread] += 1
        elif "COMPLETE" in words and "Init" in words:
            size = int(words[words.index("nranks") + 1])
            links[size] += waiting.pop(thread, 0)
            processes.setdefault(size, set()).add(thread.rpartition(":")[0])
    most = max(processes)
    return links, processes[most], most


@pytest.mark.parametrize("file", LOGS, ids=lambda file: file.name)
def test_real_logs_are_placed_as_counted(file: Path) -> None:
    """Ranks: every process. Connections: all but those of communicators of two over the network (13% of Megatron's)."""
    if not file.exists():
        pytest.skip(f"../shared/data/nccl_logs/{file.name} is missing")
    links, processes, size = counted(file)
    known = graph_of(read_topology([file]))
    assert known.size == size
    assert {f"{seat.host}" for seat in known.seats.values()} == {one.rpartition(":")[0] for one in processes}
    assert len(known.seats) == len(processes)
    assert known.links == sum(links.values())
    assert known.placed == known.links - links[2]
    assert known.placed / known.links > 0.86
    for ways in known.ways.values():
        assert all(way.card is None or re.fullmatch(r"(mlx5|hfi1)_\d:1", way.card) for way in ways)


@pytest.mark.skipif(not LOGS[1].exists(), reason=f"../shared/data/nccl_logs/{LOGS[1].name} is missing")
def test_every_pair_of_neighbours_in_megatrons_ring_has_both_cards() -> None:
    known = graph_of(read_topology([LOGS[1]]))
    between = [ways for (own, peer), ways in known.ways.items() if known.seats[own].host != known.seats[peer].host]
    assert len(between) > 60
    assert all(way.card and way.peer_card for ways in between for way in ways)


@pytest.mark.skipif(not DUMPS.exists(), reason="../shared/data/flight_recorder is missing")
def test_dumps_alone_tell_groups_and_the_culprit_and_no_host() -> None:
    known = graph_of(NcclTopology((), {}, 0), read_dumps(DUMPS))
    assert known.size == 0
    assert {rank for group in known.groups for rank in group.ranks} == set(range(16))
    marks = HealthMarks(ranks={12: [HealthMark(HopHealth.DOUBT, "named")]})
    (route,) = routes(known, 3, 12, marks)
    assert [hop.health for hop in route.hops] == [HopHealth.CLEAR, HopHealth.UNKNOWN, HopHealth.DOUBT]


# ---- communicators within the job ------------------------------------------------------------------------------------


def member(host: str, pid: int, comm: str, rank: int, size: int, *links: str) -> str:
    said = "".join(f"{host}:{pid}:{comm} [0] NCCL INFO Channel 00 : {link}\n" for link in links)
    done = f"comm 0x1 rank {rank} nranks {size} cudaDev 0 busId 1000 - Init COMPLETE\n"
    return f"{said}{host}:{pid}:{comm} [0] NCCL INFO {done}"


def test_groups_on_one_host_are_placed_and_groups_that_may_be_mixed_up_are_not() -> None:
    """Two hosts of two ranks: a pair within each host, and two pairs across, which nothing tells apart."""
    places = [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    world = "".join(member(host, pid, "10", rank, 4) for rank, (host, pid) in enumerate(places))
    within = "".join(
        member(host, pid, "20", pid - 1, 2, f"{pid - 1}[0] -> {2 - pid}[0] via P2P/IPC") for host, pid in places
    )
    across = "".join(
        member(host, pid, "30", "ab".index(host), 2, "0[0] -> 1[0] [send] via NET/IB/0") for host, pid in places
    )
    placed = graph(world, within)
    assert (placed.links, placed.placed) == (4, 4)
    assert set(placed.ways) == {(0, 1), (1, 0), (2, 3), (3, 2)}
    mixed = graph(world, across)
    assert mixed.placed == 0


def test_a_process_in_two_groups_of_one_size_is_not_placed_in_either() -> None:
    world = member("a", 1, "10", 0, 3) + member("a", 2, "10", 1, 3)
    twice = "".join(
        member("a", pid, comm, (pid + int(comm)) % 2, 2, "0[0] -> 1[0] via P2P/IPC") for pid in (1, 2) for comm in "56"
    )
    assert graph(world, twice).placed == 0
