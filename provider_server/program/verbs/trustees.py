"""`pharoah-provider trustees`: a handover put in force, and the keys by which claims of tenants are verified."""

from contextlib import closing
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.codec import decode
from federation.base.console import AsJson, InputFile
from federation.base.key_files import HomeError, read
from federation.base.screen import say, show, show_json
from federation.base.visible import json_text, reason
from federation.protocol.anchors import verification_keys
from federation.protocol.ceremony import Committee
from federation.protocol.enrolment import fingerprint
from provider_server.program.verbs.console import Database, Home, print_rows, required
from provider_server.rounds import home as homes


class ReseatRow(TypedDict):
    """The directory's head after the entry, its fingerprint, and the trustees whose seats changed hands."""

    head: str
    fingerprint: str
    changed: list[int]


def reseat(
    handovers: Annotated[
        list[Path],
        typer.Argument(click_type=InputFile(), help="The handovers of the trustees, all of them.", show_default=False),
    ],
    committee: Annotated[
        Path,
        typer.Option(click_type=InputFile(), help="The committee after the handovers.", show_default=False),
    ],
    home: Home = None,
    database: Database = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Put a handover of the trustees in force: a successor, or renewed shares of the token key.

    Nothing changes unless as many trustees signed it as a token needs. A renewal waits until no round is open.
    """
    place = required(home)
    agreed = decode(Committee, read(committee))
    with closing(homes.open_provider(place, database, homes.settings_of(place))) as provider:
        before = {trustee.index: trustee.verify_key for trustee in provider.directory.trustees}
        provider.reseat(agreed.trustees, [read(handover) for handover in handovers])
        head = provider.directory.head
    row: ReseatRow = {
        "head": str(head),
        "fingerprint": fingerprint(head),
        "changed": [trustee.index for trustee in agreed.trustees if before[trustee.index] != trustee.verify_key],
    }
    print_rows([row], _reseat_line, as_json=as_json)
    say("next: a successor needs a new invitation (`pharoah-provider tenants enrol`)")


def _reseat_line(row: ReseatRow) -> str:
    seats = ", ".join(map(str, row["changed"])) or "none"
    return f"head {row['fingerprint']}, seats with other holders: {seats}"


def keys(
    home: Home = None,
    database: Database = None,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write them to this file, as JSON.", show_default=False)
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the keys by which a tenant's claim is verified: the provider's, and those of all trustees, also former ones.

    `quorum` is how many trustees must have seen what a claim shows.
    """
    place = required(home)
    with closing(homes.open_provider(place, database, homes.settings_of(place))) as provider:
        trusted = verification_keys(provider.members.chain)
    if out:
        try:
            out.write_text(json_text(trusted) + "\n", encoding="utf-8")
        except OSError as error:
            raise HomeError(f"{reason(error)}: {out}", hint="pass another --out") from error
    if as_json:
        show_json(trusted)
    elif not out:
        show(f"provider   {trusted['provider']}", *(f"trustee {seat}  {key}" for seat, key in trusted["trustees"]))
        show(f"quorum     {trusted['quorum']}")
