"""Who may look: whoever has the address that was printed, once, and after that the browser that used it.

The page is on a loopback address, and so is whatever else this machine runs and opens in a browser: so a request must
name a loopback host (or a page elsewhere could have its own name point here), and show the cookie that the printed
address was exchanged for. Nothing is loaded from anywhere, no script runs, no form goes anywhere else, nothing is kept
in a cache.
"""

import hmac
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Asgi = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


class Key:
    """The secret of the printed address, which opens once, and that of the browser that it opened for."""

    def __init__(self, address_secret: str, browser_secret: str) -> None:
        self._address_secret = address_secret
        self._browser_secret = browser_secret
        self._used = False
        self._lock = threading.Lock()

    def exchange(self, shown: str) -> str | None:
        """The browser's secret for the address's, the first time; None for another one, and ever after."""
        with self._lock:
            if self._used or not hmac.compare_digest(shown.encode(), self._address_secret.encode()):
                return None
            self._used = True
            return self._browser_secret

    def fits(self, shown: str) -> bool:
        """Whether this is the browser's secret, which there is none of before the exchange."""
        return self._used and hmac.compare_digest(shown.encode(), self._browser_secret.encode())


def guarded(inner: Asgi) -> Asgi:
    """The app behind the rules about hosts and headers."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        async def with_headers(event: Event) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event.get("headers", ()), *HEADERS]
            await send(event)

        if host_of(scope) in LOOPBACK:
            await inner(scope, receive, with_headers)
            return
        await with_headers({"type": "http.response.start", "status": 421, "headers": []})
        await send({"type": "http.response.body", "body": b"this host is not served here\n"})

    return app


def host_of(scope: MutableMapping[str, Any]) -> str:
    """The host that a request names, without its port; empty where it names none, or two."""
    named = [value for name, value in scope["headers"] if name == b"host"]
    if len(named) != 1:
        return ""
    host: str = named[0].decode("latin-1").lower()
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
