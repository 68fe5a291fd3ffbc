"""The verb that shows owners their data in a browser: `page`."""

import signal
import threading
import webbrowser
from typing import Annotated

import typer

from federation.base.screen import say
from tenant_client.program.pages.serving import listening
from tenant_client.program.verbs.console import Home


def page(
    home: Home,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free port.")] = 0,
    host: Annotated[str, typer.Option(help="A loopback address; others are refused.")] = "127.0.0.1",
    *,
    open_it: Annotated[bool, typer.Option("--open", help="Open the address in the browser, if there is one.")] = False,
) -> None:
    """Show jobs, budget and all data that left, in a browser here.

    The browser is one on this machine, and nothing is sent.
    """
    asked = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: asked.set())
    with listening(home, host, port) as address:
        say("open this address in a browser (valid once):", address)
        if open_it:
            webbrowser.open(address)
        asked.wait()
