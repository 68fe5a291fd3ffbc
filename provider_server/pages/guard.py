"""What every answer of the page carries, and what every request must: headers that keep a browser in its place.

Nothing is loaded from anywhere else, nothing may frame the page, nothing runs that is not a file of ours, and nothing
is kept in a cache. On a loopback address a request must also name one as its host: a name that somebody else's DNS
server points to 127.0.0.1 is not ours (DNS rebinding).
"""

from collections.abc import MutableMapping
from typing import Any

from provider_server.listeners import Asgi, Receive, Scope, Send

POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-store"),
)
ONLY_TLS = (b"strict-transport-security", b"max-age=31536000")
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


def guarded(inner: Asgi, *, over_tls: bool) -> Asgi:
    """The app behind these rules; `over_tls` says that it is served to other machines."""
    headers = (*HEADERS, ONLY_TLS) if over_tls else HEADERS

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event.get("headers", ()), *headers]
            await send(event)

        if over_tls or host_of(scope) in LOOPBACK:
            await inner(scope, receive, with_headers)
            return
        await with_headers({"type": "http.response.start", "status": 421, "headers": []})
        await send({"type": "http.response.body", "body": b"this host is not served here\n"})

    return app


def host_of(scope: Scope) -> str:
    """The host that a request names, without its port; empty where it names none, or two."""
    named = [value for name, value in scope["headers"] if name == b"host"]
    if len(named) != 1:
        return ""
    host: str = named[0].decode("latin-1").lower()
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
