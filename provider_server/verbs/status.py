"""The verb that says where the provider stands: status."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from federation.runtime.console import AsJson
from federation.runtime.screen import show, show_json
from federation.runtime.visible import counted_as, short
from provider_server.verbs.console import Database, Home, opened, required

if TYPE_CHECKING:
    from collections.abc import Iterator

    from provider_server.operations.overview import ProviderStatus


def status(home: Home = None, database: Database = None, *, as_json: AsJson = False) -> None:
    """Say where the provider stands: who takes part, what runs, which week is due, the last round and its price.

    Exit code 0: nothing waits. 1: something wants attention, and is named. 2: there is no provider, or it is broken.
    """
    from datetime import UTC, datetime

    from provider_server import home as homes
    from provider_server.operations import overview

    place = required(home)
    with opened(place, database) as store:
        found = overview.status(place, store, homes.settings_of(place), datetime.now(UTC))
    if as_json:
        show_json(found)
    else:
        show(*_lines(found))
    raise typer.Exit(found.exit_code)


def _lines(found: "ProviderStatus") -> "Iterator[str]":
    yield f"home        {short(Path(found.home))}, {'serving' if found.serving else 'not serving'}"
    trustees = f"{counted_as(found.trustees, 'trustee')}, {found.threshold} of whom sign"
    yield f"federation  {counted_as(found.tenants, 'tenant')}, {trustees}"
    last = found.last_round
    if last:
        said = (
            f"hours {last.start_hour}–{last.end_hour}, {last.state}, {counted_as(last.contributions, 'contribution')}"
        )
        yield f"last round  {said}"
        yield f"budget      epsilon {last.epsilon:.3f} per job-week of that round, at delta {last.delta:g}"
    else:
        yield "last round  none yet"
    window = found.due_window
    yield f"due         {f'hours {window[0]}–{window[1]}' if window else 'nothing'}"
    bundle = "none" if found.bundle is None else f"number {found.bundle}"
    yield f"published   {counted_as(found.releases, 'release')}, newest bundle: {bundle}"
    if found.certificate_days_left is not None:
        yield f"certificate {found.certificate_days_left:,.0f} days left"
    yield from (f"attention   {one}" for one in found.attention)
