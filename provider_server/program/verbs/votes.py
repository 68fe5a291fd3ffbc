"""The verb that shows which parts of the fabric tenants' votes point to: `findings votes`."""

from contextlib import closing
from typing import Annotated, TypedDict

import typer

from federation.base.console import AsJson
from federation.base.screen import show, show_json
from federation.protocol.subjects import Subject
from provider_server.fleet.learning.votes import SuspectedPart, suspected
from provider_server.program.verbs.console import Database, Home, nothing_yet, required
from provider_server.rounds import home as homes

NAMED = 1


class SuspectRow(TypedDict):
    """A leaf switch, or the spines of a rail (empty switch): votes that it explains, with their standard error."""

    rail: int
    switch: str
    votes: float
    error: float
    p_value: float
    named: bool


class SuspectsView(TypedDict):
    """The weeks that were counted, the noise of a row's total in votes, and suspected parts, most suspect first."""

    version: int
    start_hour: int
    end_hour: int
    noise_sd: float
    suspects: list[SuspectRow]


def votes(
    home: Home = None,
    database: Database = None,
    most: Annotated[int, typer.Option(min=1, help="Show so many parts besides those that are named.")] = 3,
    *,
    as_json: AsJson = False,
) -> None:
    """Show which leaf switches, or spines of a rail, the votes of all tenants together point to.

    From the newest release that counts votes. Parts are named at a false discovery rate of 10%. Which tenant voted is
    in no release; which link or port of a part is faulty, your own counters may tell.

    Exit code 0: no part is named. 1: one is. 3: no release counts votes yet.
    """
    place = required(home)
    with closing(homes.open_provider(place, database, homes.settings_of(place))) as provider:
        counted = [one for one in provider.store.releases() if one.counts(Subject.VOTES)]
        if not counted or provider.parts is None:
            raise nothing_yet("no release counts votes: set votes_share in provider.toml, see docs/fabric.md")
        newest = counted[-1]
        leases = provider.store.leases(newest.first_hour, newest.plan.end_hour)
        tokens = provider.part_tokens(newest.plan.epoch)
        found = suspected(newest, leases, provider.parts, tokens)
    named = [one for one in found if one.is_named]
    shown = [*named, *[one for one in found if not one.is_named][:most]]
    view: SuspectsView = {
        "version": 1,
        "start_hour": newest.first_hour,
        "end_hour": newest.plan.end_hour,
        "noise_sd": found[0].noise_sd if found else 0.0,
        "suspects": [_row(one) for one in shown],
    }
    if as_json:
        show_json(view)
    else:
        show(*(_line(row) for row in view["suspects"]))
    raise typer.Exit(NAMED if named else 0)


def _row(one: SuspectedPart) -> SuspectRow:
    return {
        "rail": one.rail,
        "switch": one.switch,
        "votes": one.votes,
        "error": one.error,
        "p_value": one.p_value,
        "named": one.is_named,
    }


def _line(row: SuspectRow) -> str:
    part = row["switch"] or "a spine"
    said = "suspected" if row["named"] else "not suspected"
    return (
        f"{part} (rail {row['rail']}): {said}: {row['votes']:.0f} ± {row['error']:.0f} votes, p = {row['p_value']:.1g}"
    )
