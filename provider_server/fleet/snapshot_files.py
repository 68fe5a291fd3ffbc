"""What nodes are, as a file: one row a node, a column for each feature, in CSV. Two of them can be held to rules.

    node,driver,firmware,rack,nic:mlx5_0
    n1,535.104.05,28.39.1002,r7,leaf-3

`pharoah-provider nodes snapshot` writes what the provider's home knows. Any other program may write one too, with
columns of its own: an empty cell means that the node has no such feature, a column that is missing that nobody looked.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

from crypto.errors import PharoahError
from federation.base.visible import short
from federation.protocol.snapshots import THING, Snapshot, kind_of
from provider_server.fleet.telemetry.inventory import Inventory, Node

Features = dict[str, dict[str, str]]


class BadSnapshot(PharoahError):
    """A file that is no snapshot of a fleet."""

    default_hint = "a snapshot is CSV with a column node; `pharoah-provider nodes snapshot` writes one"


def read(path: Path) -> Snapshot:
    """The snapshot in a file; BadSnapshot names the line of what is wrong, OSError where it cannot be read."""
    name = short(path)
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")), strict=True)
        columns = reader.fieldnames or ()
        if THING not in columns:
            raise BadSnapshot(f"{name}:1: the column {THING} is missing")
        if twice := next((column for column in columns if columns.count(column) > 1 or not column), None):
            raise BadSnapshot(f"{name}:1: the column {twice!r} is there twice or has no name")
        things: Features = {}
        for row in reader:
            _take(things, row, f"{name}:{reader.line_num}")
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadSnapshot(f"{name}: not CSV: {error}") from error
    return Snapshot(name, things, frozenset(map(kind_of, columns)))


def _take(things: Features, row: Mapping[str | None, str | None], where: str) -> None:
    if None in row or None in row.values():
        raise BadSnapshot(f"{where}: more or fewer cells than columns")
    own = {str(name): cell.strip() for name, cell in row.items() if cell and cell.strip()}
    if not own.get(THING):
        raise BadSnapshot(f"{where}: no name of a {THING}")
    if own[THING] in things:
        raise BadSnapshot(f"{where}: {own[THING]} is there twice")
    things[own[THING]] = own


def text_of(things: Mapping[str, Mapping[str, str]]) -> str:
    """A snapshot as a file has it: nodes and columns by name, so that equal ones have equal texts."""
    columns = [THING, *sorted({name for own in things.values() for name in own} - {THING})]
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**things[name], THING: name} for name in sorted(things))
    return file.getvalue()


def of_inventory(inventory: Inventory) -> Features:
    """What an inventory says of each node: its own fields, its GPUs, switches of its network cards, and links."""
    things: Features = {node.name: dict(_own(node)) for node in inventory.nodes}
    for node, name, value in _parts(inventory):
        things.setdefault(node, {})[name] = value
    return things


def _own(node: Node) -> Iterator[tuple[str, str]]:
    for name in Node.__struct_fields__:
        if name != "name" and (value := getattr(node, name)):
            yield name, value


def _parts(inventory: Inventory) -> Iterator[tuple[str, str, str]]:
    for gpu in inventory.gpus:
        yield gpu.node, f"gpu:{gpu.index}", gpu.model or "there"
        if gpu.uuid:
            yield gpu.node, f"uuid:{gpu.index}", gpu.uuid
    for nic in inventory.nics:
        yield nic.node, f"nic:{nic.name}", nic.switch or "there"
    for link in inventory.nvlinks:
        yield link.node, f"nvlink:{min(link.a, link.b)}-{max(link.a, link.b)}", str(link.links)
