"""Reads a fabric from what operators have: the inventory, `lldpctl -f json`, `ibnetdiscover`, Slurm's topology.conf.

    inventory.toml|csv   cards with `switch`, `port` and `rail`; switches with `above`
    NODE.json            `lldpctl -f json` or `-f json0` of one node, whose name is the file's
    *.conf               Slurm's topology/tree: SwitchName=leaf1 Nodes=n[1-4], SwitchName=spine Switches=leaf[1-2];
                         under any name what `scontrol show topology` prints
    any other            `ibnetdiscover`

Guarantees: a file of another shape ends in FabricError, which names file and line. In `ibnetdiscover` a channel adapter
is called as its description says, "NODE DEVICE" (as mlx5 drivers set it), or by its GUID; "NODE HCA-1" of older ones is
mlx5_0. A rail is taken from the inventory or else from the number at the end of an InfiniBand device's name.

Sources: lldpd 1.0's lldpcli(8); infiniband-diags' ibnetdiscover(8); Slurm's topology.conf(5).
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from crypto.errors import PharoahError
from federation.base.hostlist import hostlist
from federation.base.reading import ReadLimits, SourceError, form_of, is_text, of_form, open_inputs
from provider_server.fleet.fabric import Cable, CableEnd, Fabric
from provider_server.fleet.telemetry.inventory import Inventory

logger = logging.getLogger(__name__)
_MOST_BYTES, _HEAD = 1 << 28, 4096
_PACKED = (".gz", ".bz2", ".xz")
_BLOCK = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([SHR]-[0-9a-f]+)"\s*#\s*"([^"]*)"', re.ASCII)
_PORT = re.compile(r'^\[(\d{1,9})\](?:\([0-9a-f]+\))?\s+"([SHR]-[0-9a-f]+)"\[(\d{1,9})\](?:\([0-9a-f]+\))?', re.ASCII)
_RAIL = re.compile(r"(?:mlx5|mlx4|hfi1|rdma)\D*(\d{1,3})$", re.ASCII)
_COUNTED = re.compile(r"HCA-([1-9]\d{0,2})\b", re.ASCII)
_SHOWN = re.compile(r"(?:\s*#.*\n|\s*\n)*\s*SwitchName=", re.ASCII)
_TREE = "topology.conf of topology/tree is read (SwitchName=… Nodes=… or Switches=…), or ibnetdiscover's output"
_SETTING = re.compile(r"(\w+)=(\S+)", re.ASCII)


class FabricError(PharoahError):
    """A file about the fabric that cannot be read."""

    default_hint = (
        "pass what `ibnetdiscover` or `scontrol show topology` prints, topology.conf, or `lldpctl -f json > NODE.json`"
        " of each node; see docs/fabric.md"
    )


def load_fabric(paths: Iterable[Path], inventory: Inventory) -> Fabric:
    """All files and the inventory together; in a folder every file. One that is none beside others is left out."""
    cables, nodes = list(_of_inventory(inventory)), set(inventory.names)
    for path in paths:
        others: list[FabricError] = []
        files = list(_texts(path))
        for file, text in files:
            try:
                more, named = cables_of(file, text)
            except FabricError as error:
                others.append(error)
                continue
            cables += more
            nodes |= named
        if files and len(others) == len(files):
            raise others[0]
        for other in others:
            logger.warning("left out: %s", other.what, extra={"event": "fabric_file_left_out"})
    return Fabric.of(cables, nodes)


def _of_inventory(inventory: Inventory) -> Iterator[Cable]:
    for nic in inventory.nics:
        if nic.switch:
            yield Cable(CableEnd(nic.node, nic.name), CableEnd(nic.switch, nic.port), nic.rail)
    for switch in inventory.switches:
        if switch.above:
            yield Cable(CableEnd(switch.name), CableEnd(switch.above))


def _texts(path: Path) -> Iterator[tuple[Path, str]]:
    """The files in `path`, each by its name without an ending that says how it was packed."""
    try:
        with open_inputs(path, ReadLimits(total_bytes=_MOST_BYTES)) as inputs:
            for reader in of_form(inputs, is_text, "a file about a fabric"):
                file = Path(reader.file)
                yield file.with_suffix("") if file.suffix in _PACKED else file, reader.read().decode("utf-8")
    except SourceError as error:
        raise FabricError(error.what) from error
    except UnicodeDecodeError as error:
        raise FabricError(f"{path}: not text: {error.reason} at byte {error.start}") from error


def cables_of(file: Path, text: str) -> tuple[list[Cable], set[str]]:
    """The cables and nodes of one file, by the end of its name; FabricError for another shape."""
    if file.suffix == ".json":
        return list(_of_lldp(file, text)), {file.stem}
    is_slurms = file.suffix == ".conf" or _SHOWN.match(text)
    return _of_slurm(file, text) if is_slurms else _of_ibnetdiscover(file, text)


# ---- lldpctl ---------------------------------------------------------------------------------------------------------


def _of_lldp(file: Path, text: str) -> Iterator[Cable]:
    """A node's interfaces and the ports that they are plugged into."""
    try:
        told = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FabricError(f"{file}: {error}") from error
    for lldp in _each(told.get("lldp") if isinstance(told, dict) else None):
        for name, interface in _interfaces(lldp.get("interface")):
            chassis, port = _chassis(interface.get("chassis")), _port(interface.get("port"))
            if chassis:
                yield Cable(CableEnd(file.stem, name), CableEnd(chassis, port), _rail(name))
    if not isinstance(told, dict) or "lldp" not in told:
        raise FabricError(f"{file} is {form_of(text[:_HEAD].encode())}: no lldp in it")


def _each(value: object) -> Iterator[dict[str, Any]]:
    """The objects of a list, or the one that stands for a list of one."""
    yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict))


def _interfaces(value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """By name: json has the name as key, json0 as a field."""
    for one in _each(value):
        if isinstance(one.get("name"), str):
            yield one["name"], one
        else:
            yield from ((name, inner) for name, inner in one.items() if isinstance(inner, dict))


def _chassis(value: object) -> str:
    """The neighbour's name, or its id where it tells none."""
    for one in _each(value):
        if named := _value(one.get("name")):
            return named
        names = [name for name, inner in one.items() if isinstance(inner, dict) and "id" in inner]
        return names[0] if names else _value(one.get("id"))
    return ""


def _port(value: object) -> str:
    return next((_value(one.get("id")) or _value(one.get("descr")) for one in _each(value)), "")


def _value(value: object) -> str:
    """A text, the `value` of an object, or of the first of a list of such."""
    if isinstance(value, str):
        return value
    return next((str(one["value"]) for one in _each(value) if "value" in one), "")


# ---- ibnetdiscover ---------------------------------------------------------------------------------------------------


def _of_ibnetdiscover(file: Path, text: str) -> tuple[list[Cable], set[str]]:
    blocks: list[tuple[str, str, str]] = []
    ports: list[tuple[str, int, str, int]] = []
    for line in text.splitlines():
        if block := _BLOCK.match(line):
            blocks.append((block[1], block[2], block[3]))
        elif (port := _PORT.match(line)) and blocks:
            ports.append((blocks[-1][1], int(port[1]), port[2], int(port[3])))
    if not blocks:
        form = form_of(text[:_HEAD].encode())
        raise FabricError(f"{file} is {form}: neither a switch nor an adapter as `ibnetdiscover` writes them")
    named = {guid: _named(kind, guid, described) for kind, guid, described in blocks}
    adapters = {guid for kind, guid, _ in blocks if kind == "Ca"}
    cables = [_cable(named, adapters, *port) for port in ports if port[0] in named and port[2] in named]
    return cables, {named[guid][0] for guid in adapters}


def _named(kind: str, guid: str, described: str) -> tuple[str, str]:
    """The device, and of an adapter the card: "node1 mlx5_0", or "MF0;leaf1:MQM9700/U1" of a switch."""
    if kind == "Ca":
        node, _, card = described.strip().partition(" ")
        counted = _COUNTED.match(card)
        return (node or guid, f"mlx5_{int(counted[1]) - 1}" if counted else card or guid)
    name = described.strip().removeprefix("MF0;")
    return (name.partition(":")[0] or guid, "")


def _cable(
    named: Mapping[str, tuple[str, str]], adapters: set[str], here: str, port: int, there: str, far_port: int
) -> Cable:
    ends, rail = [], None
    for guid, number in ((here, port), (there, far_port)):
        device, card = named[guid]
        ends.append(CableEnd(device, f"{card}:{number}" if guid in adapters else str(number)))
        rail = _rail(card) if guid in adapters else rail
    return Cable(ends[0], ends[1], rail)


def _rail(card: str) -> int | None:
    found = _RAIL.match(card)
    return int(found[1]) if found else None


# ---- topology.conf ---------------------------------------------------------------------------------------------------


def _of_slurm(file: Path, text: str) -> tuple[list[Cable], set[str]]:
    cables: list[Cable] = []
    nodes: set[str] = set()
    for number, line in _joined(text):
        settings = {key.lower(): value for key, value in _SETTING.findall(line)}
        if not settings:
            continue
        if "switchname" not in settings:
            raise FabricError(f"{file}:{number}: no SwitchName{_form_of(settings)}", hint=_TREE)
        # What `scontrol show topology` prints names at each level all nodes below it.
        of_nodes = "" if "level" in settings and "switches" in settings else settings.get("nodes", "")
        below = list(hostlist(of_nodes))
        nodes |= set(below)
        below += hostlist(settings.get("switches", ""))
        cables += [Cable(CableEnd(name), CableEnd(settings["switchname"])) for name in below]
    if not cables:
        raise FabricError(f"{file}: no switch in it", hint=_TREE)
    return cables, nodes


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, each with those that it goes on in after a backslash, as Slurm reads them."""
    kept, begun = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.partition("#")[0].rstrip()
        begun = begun if kept else number
        kept += plain.removesuffix("\\")
        if not plain.endswith("\\"):
            yield begun, kept
            kept = ""
    yield begun, kept


def _form_of(settings: Mapping[str, str]) -> str:
    return ", but blocks (topology/block)" if {"blockname", "blocksizes"} & settings.keys() else ""
