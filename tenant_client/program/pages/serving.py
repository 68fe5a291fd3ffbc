"""Serves the tenant's page on a loopback address."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from crypto.errors import PharoahError, Refusal
from federation.base.addresses import listening_socket
from federation.base.clock import now_hour
from federation.base.web.serving import serving
from tenant_client.program.pages.app import page_app
from tenant_client.program.pages.key import Key

MOST_CONNECTIONS = 32


class NotOnThisMachine(Refusal):
    """The page would be reachable from other machines."""

    default_hint = "omit --host for 127.0.0.1; from another machine, use an SSH tunnel"


class PageNotServed(PharoahError):
    """The page cannot be served."""

    default_hint = "pass another --port"


@contextmanager
def listening(home: Path, host: str, port: int) -> Iterator[str]:
    """The address, good for one browser, while the page is served."""
    if not _is_loopback(host):
        raise NotOnThisMachine(f"{host} is not a loopback address")
    token = os.urandom(32).hex()
    config = uvicorn.Config(
        page_app(home, Key(token, os.urandom(32).hex()), now_hour),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # it would keep the token
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=2,
    )
    try:
        opened = listening_socket(host, port)
    except OSError as error:
        raise PageNotServed(f"the page cannot listen at port {port}: {error.strerror}") from error
    with opened, serving(config, opened):
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{opened.getsockname()[1]}/?token={token}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
