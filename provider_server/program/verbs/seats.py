"""The verb that puts a handover of the trustees in force."""

from contextlib import closing
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from federation.base.console import InputFile
from federation.base.screen import say
from provider_server.program.verbs.console import AsRows, Database, Home, failing, print_rows, required


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
    as_json: AsRows = False,
) -> None:
    """Put a handover of the trustees in force: a successor, or renewed shares of the token key.

    Nothing changes unless as many trustees signed it as a token needs. A renewal waits until no round is open.
    """
    from crypto.codec import decode
    from federation.base.key_files import read
    from federation.protocol.ceremony import Committee
    from federation.protocol.enrolment import fingerprint
    from provider_server.rounds import home as homes

    place = required(home)
    with failing():
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
    say("next: restart `pharoah-provider serve`; a successor needs a new invitation (`pharoah-provider enrol`)")


def _reseat_line(row: ReseatRow) -> str:
    seats = ", ".join(map(str, row["changed"])) or "none"
    return f"head {row['fingerprint']}, seats with other holders: {seats}"
