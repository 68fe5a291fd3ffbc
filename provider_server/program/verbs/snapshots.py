"""Verbs that compare what nodes are at two times: snapshot, changes."""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from crypto.errors import PharoahError
from federation.base.console import AsJson, Force, InputFile, check_new
from federation.base.rule_options import EXIT_CODES, Only, Rules, rules_of
from federation.base.screen import say, show, show_json
from federation.base.visible import counted_as, short
from federation.protocol.change_rules import Rule, judge
from federation.protocol.snapshots import THING, Snapshot, kind_of
from provider_server.fleet.learning import hardware
from provider_server.fleet.telemetry.inventory import Inventory, Node, load
from provider_server.program.verbs.console import Home, required
from provider_server.program.verbs.feed import Stock
from provider_server.rounds import home as homes


def snapshot(
    out: Annotated[Path, typer.Option("--out", help="CSV file to write.", show_default=False)],
    home: Home = None,
    inventory: Stock = None,
    *,
    force: Force = False,
) -> None:
    """Write what each node is: its row of the inventory, its context, and its build-up level."""
    place = required(home)
    check_new(out, force=force)
    listed = inventory or Path(homes.settings_of(place).telemetry.inventory or "")
    things = of_inventory(load(listed) if listed.name else Inventory())
    if kept := hardware.load(place):
        for context in kept.contexts.contexts:
            for node in context.nodes:
                own = {"context": context.description, "level": str(kept.levels.get(node, 0))}
                things.setdefault(node, {}).update(own)
    if not things:
        raise BadSnapshot("no node is known", hint="pass --inventory, or run `pharoah-provider nodes contexts` first")
    out.write_text(text_of(things), encoding="utf-8")
    say(f"{counted_as(len(things), 'node')} in {short(out)}")


def changes(
    before: Annotated[Path, typer.Argument(help="Snapshot from before.", click_type=InputFile(), show_default=False)],
    after: Annotated[Path, typer.Argument(help="Snapshot from after.", click_type=InputFile(), show_default=False)],
    only: Only = "",
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", help="Only on nodes of which this is so, as rack=r7; with --may-change; may be repeated."
        ),
    ] = None,
    rules: Rules = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Compare two snapshots of a fleet, and judge what changed by rules; without rules nothing may have changed.

    Exit codes: 0 all rules hold; 1 one is broken; 2 one cannot be judged, or a file is wrong.
    """
    asked = rules_of(only, rules, dict(map(_pair, where or ()))) or (Rule("nothing changed", only=()),)
    found = judge(asked, read(before), read(after))
    if as_json:
        show_json(found)
    else:
        show(*found.lines())
    raise typer.Exit(EXIT_CODES[found.verdict])


def _pair(text: str) -> tuple[str, str]:
    name, is_there, value = text.partition("=")
    if not (name.strip() and is_there and value.strip()):
        raise typer.BadParameter(f"{text!r}: write it as rack=r7", param_hint="--where")
    return name.strip(), value.strip()


# ---- files -----------------------------------------------------------------------------------------------------------
#
#     node,driver,firmware,rack,nic:mlx5_0
#     n1,535.104.05,28.39.1002,r7,leaf-3
#
# `pharoah-provider nodes snapshot` writes what the provider's home knows. Any other program may write one too, with
# columns of its own: an empty cell means that the node has no such feature, a column that is missing that nobody
# looked.


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
