"""What there should be: nodes, GPUs, NVLinks, network cards and switches, from a file or from labels that were seen.

A TOML file has a table per thing (`[[node]]`, `[[gpu]]`, `[[nvlink]]`, `[[nic]]`, `[[switch]]`), a CSV file a row
with the same keys and a column `kind`. Names that refer to nothing, things named twice, links of a GPU with itself,
unknown keys: an error names the file and the line (in TOML, that of the table's header).

    [[node]]
    name = "n1"
    rack = "r7"

    [[gpu]]
    node = "n1"
    index = 0
    uuid = "GPU-0a1b"
    model = "H100"
"""

import csv
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from crypto.errors import PharoahError

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Index = Annotated[int, msgspec.Meta(ge=0, le=1023)]
HEADER = re.compile(r"^\s*\[\[\s*([A-Za-z_]+)\s*\]\]")


class InventoryError(PharoahError):
    """An inventory that cannot be read or contradicts itself."""

    default_hint = "correct that line; docs/nodes.md describes the tables"


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine; `model` is the system's, not its GPUs'.

    `address` is what node_exporter's `instance` says, less the port. `driver` and `firmware` are for snapshots of the
    fleet: contexts are not found by them.
    """

    name: Name
    address: str = ""
    rack: str = ""
    model: str = ""
    driver: str = ""
    firmware: str = ""


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU of a node, by its index there."""

    node: Name
    index: Index
    uuid: str = ""
    model: str = ""


class NvLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Links between two GPUs of a node, by their indices."""

    node: Name
    a: Index
    b: Index
    links: Annotated[int, msgspec.Meta(ge=1)] = 1


class Nic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network card of a node, the switch and port that it is plugged into, and its rail; see docs/fabric.md."""

    node: Name
    name: Name
    switch: str = ""
    port: str = ""
    rail: Index | None = None


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A switch, and the one above it."""

    name: Name
    above: str = ""


Thing = Node | Gpu | NvLink | Nic | Switch
KINDS: Mapping[str, type[Thing]] = {"node": Node, "gpu": Gpu, "nvlink": NvLink, "nic": Nic, "switch": Switch}


@dataclass(frozen=True)
class Inventory:
    """All of it, in the order of the file."""

    nodes: tuple[Node, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nvlinks: tuple[NvLink, ...] = ()
    nics: tuple[Nic, ...] = ()
    switches: tuple[Switch, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes that ought to report."""
        return tuple(node.name for node in self.nodes)

    def addresses(self) -> dict[str, str]:
        """For a `SeriesBook`: the name of the node that has an address."""
        return {node.address: node.name for node in self.nodes if node.address}

    def devices(self) -> dict[tuple[str, str], str]:
        """For a `SeriesBook`: under which one name a GPU is kept, whatever an exporter calls it."""
        known = {(gpu.node, str(gpu.index)): gpu.uuid for gpu in self.gpus if gpu.uuid}
        return known | {(gpu.node, f"nvidia{gpu.index}"): gpu.uuid for gpu in self.gpus if gpu.uuid}


def load(path: Path) -> Inventory:
    """Reads a .toml or .csv file; InventoryError names the line of what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
        entries = list(_csv(path, text) if path.suffix == ".csv" else _toml(text))
    except OSError as error:
        raise InventoryError(f"{path}: {error.strerror}", hint="pass the inventory's file") from error
    except (tomllib.TOMLDecodeError, csv.Error, UnicodeDecodeError) as error:
        raise InventoryError(f"{path}: {error}") from error
    return _checked(path, [(line, _thing(path, line, kind, row)) for line, kind, row in entries])


def _toml(text: str) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    headers: dict[str, list[int]] = {}
    for line, content in enumerate(text.splitlines(), 1):
        if found := HEADER.match(content):
            headers.setdefault(found[1], []).append(line)
    for kind, rows in tomllib.loads(text).items():
        lines = headers.get(kind, [])
        for place, row in enumerate(rows if isinstance(rows, list) else [rows]):
            yield lines[place] if place < len(lines) else 1, kind, row if isinstance(row, dict) else {"": row}


def _csv(path: Path, text: str) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    reader = csv.DictReader(text.removeprefix("\ufeff").splitlines(), strict=True)
    if "kind" not in (reader.fieldnames or ()):
        raise InventoryError(f"{path}:1: the column kind is missing")
    for row in reader:
        if None in row:
            raise InventoryError(f"{path}:{reader.line_num}: more cells than columns")
        yield reader.line_num, row.pop("kind"), {name: cell for name, cell in row.items() if cell}


def _thing(path: Path, line: int, kind: str, row: Mapping[str, Any]) -> Thing:
    if kind not in KINDS:
        raise InventoryError(f"{path}:{line}: unknown kind {kind!r}, not one of {', '.join(KINDS)}")
    try:
        return msgspec.convert(row, KINDS[kind], strict=path.suffix != ".csv")
    except msgspec.ValidationError as error:
        raise InventoryError(f"{path}:{line}: {kind}: {error}") from error


def _checked(path: Path, things: list[tuple[int, Thing]]) -> Inventory:
    seen: dict[tuple[Any, ...], int] = {}
    for line, thing in things:
        for key in _keys(thing):
            if key in seen:
                raise InventoryError(f"{path}:{line}: {' '.join(map(str, key))} is in line {seen[key]} already")
            seen[key] = line
    for line, thing in things:
        for key in _needs(thing):
            if key not in seen:
                raise InventoryError(f"{path}:{line}: {' '.join(map(str, key))} is not in the file")
        if isinstance(thing, NvLink) and thing.a == thing.b:
            raise InventoryError(f"{path}:{line}: a link from GPU {thing.a} of {thing.node} to itself")
    return Inventory(*(tuple(_of(kind, things)) for kind in KINDS.values()))


def _of(kind: type[Any], things: Iterable[tuple[int, Thing]]) -> Iterator[Any]:
    return (thing for _line, thing in things if isinstance(thing, kind))


def _keys(thing: Thing) -> tuple[tuple[Any, ...], ...]:
    """What a thing is known by; nothing else may be."""
    match thing:
        case Node():
            place = ("node", thing.name)
            return (place, ("address", thing.address)) if thing.address else (place,)
        case Switch():
            return (("switch", thing.name),)
        case Gpu():
            at = ("gpu", thing.node, thing.index)
            return (at, ("uuid", thing.uuid)) if thing.uuid else (at,)
        case NvLink():
            return (("nvlink", thing.node, min(thing.a, thing.b), max(thing.a, thing.b)),)
        case Nic():
            return (("nic", thing.node, thing.name),)


def _needs(thing: Thing) -> tuple[tuple[Any, ...], ...]:
    """What it refers to."""
    match thing:
        case Node():
            return ()
        case Switch():
            return (("switch", thing.above),) if thing.above else ()
        case Gpu():
            return (("node", thing.node),)
        case NvLink():
            return (("gpu", thing.node, thing.a), ("gpu", thing.node, thing.b))
        case Nic():
            return (("node", thing.node), ("switch", thing.switch)) if thing.switch else (("node", thing.node),)
