"""Tells systemd how a service stands, where systemd started it with `Type=notify` (sd_notify(3)); nothing elsewhere."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from federation.base.meanwhile import meanwhile

_STOP_S = 5.0


def tell(state: str) -> None:
    """One state, such as `READY=1`. A service manager that is away is no reason to stop."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaking:
            speaking.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            speaking.send(state.encode())


@contextmanager
def announced(probe: Callable[[], object]) -> Iterator[None]:
    """Ready from here on, and stopping after it. Meanwhile `probe` is called in a thread, and each end of it told.

    So a watchdog (`WatchdogSec=`) restarts a service in which `probe` hangs; one that raises does not hang.
    """
    tell("READY=1")
    stopping, every_s = threading.Event(), int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6

    def watch() -> None:
        while every_s and not stopping.wait(every_s):
            with suppress(Exception):
                probe()
            tell("WATCHDOG=1")

    with meanwhile(watch, stopping.set, "pharoah-watchdog", _STOP_S):
        try:
            yield
        finally:
            tell("STOPPING=1")
