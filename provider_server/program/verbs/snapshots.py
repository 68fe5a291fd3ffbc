"""Verbs that compare what nodes are at two times: snapshot, changes."""

from pathlib import Path
from typing import Annotated

import typer

from federation.base.console import AsJson, Force, InputFile, check_new
from federation.base.rule_options import EXIT_CODES, Only, Rules, rules_of
from federation.base.screen import say, show, show_json
from federation.base.visible import counted_as, short
from federation.protocol.change_rules import Rule, judge
from provider_server.fleet import snapshot_files
from provider_server.fleet.learning import hardware
from provider_server.fleet.telemetry.inventory import Inventory, load
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
    things = snapshot_files.of_inventory(load(listed) if listed.name else Inventory())
    if kept := hardware.load(place):
        for context in kept.contexts.contexts:
            for node in context.nodes:
                own = {"context": context.description, "level": str(kept.levels.get(node, 0))}
                things.setdefault(node, {}).update(own)
    if not things:
        raise snapshot_files.BadSnapshot(
            "no node is known", hint="pass --inventory, or run `pharoah-provider nodes contexts` first"
        )
    out.write_text(snapshot_files.text_of(things), encoding="utf-8")
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
    found = judge(asked, snapshot_files.read(before), snapshot_files.read(after))
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
