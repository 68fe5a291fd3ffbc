"""The verb that shows the keys by which claims of tenants are verified: `keys`."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from federation.base.console import AsJson
from federation.base.screen import show, show_json
from federation.base.visible import json_text
from provider_server.program.verbs.console import Database, Home, failing, required


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
    from federation.base.key_files import HomeError
    from federation.base.visible import reason
    from federation.protocol.anchors import verification_keys
    from provider_server.rounds import home as homes

    place = required(home)
    with failing():
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
