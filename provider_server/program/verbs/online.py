"""The verb that runs one more process of the online service."""

from typing import Annotated

import typer

from federation.base.logs import Format
from provider_server.program.verbs.console import Database, Home, failing, required
from provider_server.program.verbs.server import LogFormat

WAIT_S = 3600.0  # between signals there is nothing to do


def online(
    listen: Annotated[str, typer.Option(help="Where to listen, host:port.", show_default=False)],
    home: Home = None,
    database: Database = None,
    log_format: LogFormat = Format.JSON,
) -> None:
    """Run one more process of the online service, beside `serve` and over the same store.

    For a TCP balancer in front of several. It needs the provider's home, and the database that `serve` uses.
    """
    import signal
    import sys
    import time

    from federation.base import logs
    from federation.protocol.enrolment import host_of
    from provider_server.program import service
    from provider_server.rounds import home as homes

    place = required(home)
    try:
        host_of(listen)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from error
    logs.configure(log_format)
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: sys.exit(0))
    with failing():
        settings = homes.settings_of(place)
        provider = homes.open_provider(place, database, settings)
        try:
            with service.online(place, provider, listen, settings) as port:
                service.logger.info("serving online at port %d", port, extra={"event": "serving"})
                while True:
                    time.sleep(WAIT_S)
        finally:
            provider.close()
