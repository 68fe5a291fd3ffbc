"""What runs until stopped: `pharoah-provider serve`, and `nodes watch` without a federation."""

import os
import signal
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from federation.base import logs
from federation.base.logs import Format
from federation.base.screen import show, show_json
from federation.base.service_manager import announced
from federation.protocol.enrolment import host_of
from provider_server.program import service
from provider_server.program.operations.preflight import Checked, looked_at
from provider_server.program.verbs.console import Database, Home, LogFormat, required
from provider_server.rounds import home as homes
from provider_server.rounds.home import founded
from provider_server.rounds.provider import Provider
from provider_server.rounds.settings import ProviderSettings

WAIT_S = 3600.0  # between signals there is nothing to do


def serve(
    home: Home = None,
    database: Database = None,
    every: Annotated[str, typer.Option(help="When to hold rounds: window or manual. Overrides provider.toml.")] = "",
    listen: Annotated[str, typer.Option(help="With --online-only: where to listen, host:port.")] = "",
    log_format: LogFormat = Format.JSON,
    *,
    online_only: Annotated[
        bool, typer.Option("--online-only", help="Run one more process of the online service, beside another `serve`.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Only check what `serve` needs, and what the next round lacks."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check: print JSON with stable keys.")] = False,
) -> None:
    """Run the provider: serve tenants, hold rounds.

    It runs the tenants' listener, the online service, metrics, and rounds when they are due. With --online-only it is
    one more process of the online service alone, behind a TCP balancer; it needs the home and database of the other.

    Exit codes with --check: 0 it can start, 2 it cannot, and the reason is printed. LACKS: what the next round lacks.
    """
    place = required(home)
    if online_only != bool(listen):
        raise typer.BadParameter("pass both --online-only and --listen, or neither")
    if every:
        os.environ["PHAROAH_ROUNDS_EVERY"] = every
    if check:
        _check(place, database, as_json=as_json)
    if online_only:
        _check_address(listen)
    logs.configure(log_format)
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: sys.exit(0))  # an open round is in the store, and continues after a restart
    settings = homes.settings_of(place)
    with closing(homes.open_provider(place, database, settings)) as provider:
        if online_only:
            _serve_online(place, provider, listen, settings)
        homes.complete_settings(place)
        with service.running(place, provider, settings) as (rounds, link, online_port):
            where = f"tenants at {link.address}, online at port {online_port}, operator at {link.control}"
            service.logger.info("serving %s", where, extra={"event": "serving"})
            with announced(provider.store.own.looked_until):
                service.serve(place, rounds, settings)


def _check_address(listen: str) -> None:
    try:
        host_of(listen)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from error


def _serve_online(home: Path, provider: Provider, listen: str, settings: ProviderSettings) -> NoReturn:
    with service.online(home, provider, listen, settings) as port:
        service.logger.info("serving online at port %d", port, extra={"event": "serving"})
        with announced(provider.store.own.looked_until):
            while True:
                time.sleep(WAIT_S)


def _check(home: Path, database: str | None, *, as_json: bool) -> NoReturn:
    founded(home)
    result = looked_at(home, database, datetime.now(UTC))
    if as_json:
        show_json(result)
    else:
        show(*(f"{_mark(check):<6} {check.name:<13} {check.text}" for check in result.checks))
    raise typer.Exit(0 if result.fine else 2)


def _mark(check: Checked) -> str:
    if check.lacking:
        return "LACKS"
    return "ok" if check.fine else "FAILED"


def watch(home: Home = None, log_format: LogFormat = Format.JSON) -> None:
    """Watch the provider's own nodes without a federation: telemetry, metrics, and what else provider.toml names.

    Needs a folder with provider.toml, and `nodes contexts` before. `serve` does the same in a federation.
    """
    place = required(home)
    logs.configure(log_format)
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: sys.exit(0))
    with service.watching_nodes(place, homes.settings_to_watch(place)) as port:
        service.logger.info("watching nodes, metrics at port %d", port, extra={"event": "serving"})
        with announced(lambda: homes.settings_to_watch(place)):
            while True:
                signal.pause()
