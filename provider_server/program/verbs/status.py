"""The verb that shows the provider's state: status."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import typer

from federation.base.clock import dates
from federation.base.console import AsJson
from federation.base.screen import show, show_json
from federation.base.visible import counted_as, short
from federation.protocol.warnings import line_of
from provider_server.program.operations import overview
from provider_server.program.operations.overview import ProviderStatus
from provider_server.program.verbs.console import Database, Home, required
from provider_server.program.verbs.opening import opened
from provider_server.rounds import home as homes
from provider_server.rounds.readiness import What


def status(home: Home = None, database: Database = None, *, as_json: AsJson = False) -> None:
    """Show the provider's state, and what needs attention.

    Members, trustees, whether it serves, when the next round is due and what it lacks, the last round and its cost.

    Exit code 0: nothing to do. 1: something needs attention and is named. 2: there is no provider, or it is broken.
    """
    place = required(home)
    with opened(place, database) as store:
        state = overview.status(place, store, homes.settings_of(place), datetime.now(UTC))
    if as_json:
        show_json(state)
    else:
        show(*_lines(state))
    raise typer.Exit(state.exit_code)


def _lines(state: ProviderStatus) -> Iterator[str]:
    yield f"home        {short(Path(state.home))}, {'serving' if state.serving else 'not serving'}"
    trustees = f"{counted_as(state.trustees, 'trustee')}, any {state.threshold} of whom make tokens"
    yield f"federation  {counted_as(state.tenants, 'tenant')}, {trustees}{', pilot' if state.pilot else ''}"
    for one in state.trustee_states:
        if one.address:
            yield f"trustee {one.index}   {one.address} {'up' if one.up else 'does not answer'}"
    last = state.last_round
    if last:
        contributions = counted_as(last.contributions, "contribution")
        yield f"last round  {dates(last.start_hour, last.end_hour)}, {last.state}, {contributions}"
        yield f"budget      epsilon {last.epsilon:.3f} per unit of that round, at delta {last.delta:g}"
    else:
        yield "last round  none yet"
    window = state.due_window
    yield f"next round  {f'due now: {dates(*window)}' if window else f'due on {state.next_due} UTC'}"
    yield from (f"lacking     {lack}" for lack in state.lacking if lack.what is not What.WINDOW)
    bundle = "none" if state.bundle is None else f"number {state.bundle}"
    yield f"published   {counted_as(state.releases, 'release')}, newest bundle: {bundle}"
    if state.warnings:
        yield f"warnings    {line_of(state.warnings)}"
    if state.certificate_days_left is not None:
        yield f"certificate {counted_as(round(state.certificate_days_left), 'day')} left"
    yield from (f"attention   {text}" for text in state.attention)
