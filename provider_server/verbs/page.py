"""The verb by which the operator looks at everything in a browser: page."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from federation.runtime.console import ask_secret
from federation.runtime.screen import say
from provider_server.verbs.console import Database, Home, failing, required

SALT_BYTES = 16


def page(
    action: Annotated[
        Literal["serve", "password"], typer.Argument(help="serve: show the page; password: set its password.")
    ] = "serve",
    home: Home = None,
    database: Database = None,
    host: Annotated[str, typer.Option(help="Address to listen at; TLS for any but this machine's own.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8446,
) -> None:
    """Show rounds, findings, hazards and the fleet in a browser; works while `serve` runs, and without it."""
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
    """Asks for a new password; a pipe is read up to the end of its first line."""
    import os
    import sys

    from provider_server.pages import login

    password = ask_secret("Password of the page") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    login.set_password(home, password, os.urandom(SALT_BYTES))
    say("the password is set; whoever was logged in has to log in again")


def _wait() -> None:
    """Until somebody asks this process to end."""
    import signal
    import threading

    asked = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: asked.set())
    asked.wait()
