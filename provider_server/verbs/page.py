"""The verb that serves the operator's page in a browser: page."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from federation.runtime.console import ask_secret
from federation.runtime.screen import say
from provider_server.verbs.console import Database, Home, failing, required

SALT_BYTES = 16


def page(
    action: Annotated[
        Literal["serve", "password"], typer.Argument(help="serve: start the page; password: set its password.")
    ] = "serve",
    home: Home = None,
    database: Database = None,
    host: Annotated[str, typer.Option(help="Address to listen on; over TLS unless it is local.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8446,
) -> None:
    """Show rounds, findings, hazards and the fleet in a browser; `serve` may run or not."""
    place = required(home)
    with failing():
        if action == "password":
            _set_password(place)
            return
        from provider_server.pages.serving import listening

        with listening(place, database, host, port) as address:
            say(f"the page is at {address}")
            _wait()


def _set_password(home: Path) -> None:
    """Asks for a new password; from a pipe, the first line is read."""
    import os
    import sys

    from provider_server.pages import login

    password = ask_secret("Password of the page") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    login.set_password(home, password, os.urandom(SALT_BYTES))
    say("password set; everyone who was logged in must log in again")


def _wait() -> None:
    """Waits for SIGTERM or SIGINT."""
    import signal
    import threading

    stop = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: stop.set())
    stop.wait()
