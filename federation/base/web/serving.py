"""Runs a web server in a thread of its own, on a socket that listens already."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from crypto.errors import PharoahError

START_S = 30.0


class NotServed(PharoahError):
    """A web server did not start."""

    default_hint = "start it again"


@contextmanager
def serving(config: uvicorn.Config, at: socket.socket) -> Iterator[None]:
    """Within it the app is served; NotServed."""
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([at],), daemon=True)
    thread.start()
    end_s = time.monotonic() + START_S
    try:
        while not server.started:
            if time.monotonic() > end_s or not thread.is_alive():
                raise NotServed("the web server did not start")
            time.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        thread.join()
