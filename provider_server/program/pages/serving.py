"""The page as a running server: what it reads, who may see it, and where it listens."""

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from crypto.errors import Refusal
from federation.base.clock import now_hour
from federation.base.key_files import read
from provider_server.program.pages.app import page_app
from provider_server.program.pages.login import FILE, Door, NoPassword
from provider_server.program.pages.plans import PlansView
from provider_server.program.pages.sessions import FILE as SESSIONS, Sessions
from provider_server.program.pages.snapshot import Reader
from provider_server.program.pages.views import View, view
from provider_server.rounds import looking
from provider_server.rounds.home import fabric_parts, settings_of
from provider_server.rounds.network.connections import ConnectionLimits
from provider_server.rounds.network.listeners import CannotListen, Listener
from provider_server.rounds.store.store import Store

LOOPBACK = ("127.0.0.1", "localhost")
LIMITS = ConnectionLimits(strangers=64, of_one_address=32)


class PageInTheClear(Refusal):
    """The page would go over the network without TLS."""

    default_hint = "keep --host 127.0.0.1 and use a tunnel, or put tls.pem and tls.key into the home"


@contextmanager
def listening(
    home: Path,
    database: str | None,
    host: str,
    port: int,
    clock: Callable[[], float] = now_hour,
    plans: Callable[[float], PlansView | None] = lambda now_h: None,
) -> Iterator[str]:
    """The address of the page while it is served; `plans` says what to advise at an hour.

    NoPassword before one is set; PageInTheClear for another machine's eyes without certificate; CannotListen.
    """
    over_tls = host not in LOOPBACK
    pem = home / "tls.pem", home / "tls.key"
    if over_tls and not all(file.is_file() for file in pem):
        raise PageInTheClear(f"{host} is reachable from other machines, and the home has no TLS certificate")
    if not (home / FILE).is_file():
        raise NoPassword("the page has no password yet")
    settings = settings_of(home)
    with (
        closing(Store(database or home / "provider.db", create=False)) as store,
        closing(Sessions(home / SESSIONS)) as sessions,
    ):
        reader = Reader(home, store, fabric_parts(settings))

        def look() -> View:
            now_h, seen = clock(), reader.snapshot()
            known = looking.look(home, store, seen.directory, settings, now_h)
            settle_hours, pilot = settings.rounds.settle_hours, settings.plan.is_pilot
            return view(seen, known, settle_hours, pilot=pilot, plans=plans(now_h))

        door = Door(lambda: read(home / FILE), sessions, os.urandom, time.time)
        app = page_app(look, door, over_tls=over_tls)
        try:
            at = socket.create_server((host, port))
            listener = Listener(app, at, pem if over_tls else None, LIMITS)
        except (OSError, ssl.SSLError) as error:
            raise CannotListen(f"the page cannot listen: {error}", hint="choose another --port") from error
        try:
            yield f"{'https' if over_tls else 'http'}://{host}:{listener.address.rpartition(':')[2]}/"
        finally:
            listener.close()
