"""The verb by which owners look at what is theirs in a browser: page."""

from typing import Annotated

import typer

from federation.runtime.screen import say
from tenant_client.verbs.console import Home, failing


def page(
    home: Home,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 0,
    host: Annotated[str, typer.Option(help="A loopback address; no other is allowed.")] = "127.0.0.1",
) -> None:
    """Show leases, checks, attempts, budget and every byte that left in a browser on this machine. Nothing is sent."""
    import signal
    import threading

    from tenant_client.pages.serving import listening

    asked = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: asked.set())
    with failing(), listening(home, host, port) as address:
        say("open this address in a browser; it opens once:", address)
        asked.wait()
