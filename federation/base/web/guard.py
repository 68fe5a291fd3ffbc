"""What a page of either side needs: whom it answers, which headers keep a browser in its place, and one style.

Nothing is loaded from anywhere else, nothing may frame the page, nothing is kept in a cache. On a loopback address a
request must also name one as its host: a name that somebody else's DNS server points to 127.0.0.1 is not ours (DNS
rebinding). Paths below `/style/` are the files of `STYLE`.
"""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

STYLE = Path(__file__).with_name("style")
HEADERS: Headers = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


def guarded(inner: Asgi, own_headers: Headers, *, for_other_machines: bool = False) -> Asgi:
    """The app behind these rules, with headers of its own; the host is free where other machines may ask."""
    headers = (*HEADERS, *own_headers)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(event: Event) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event.get("headers", ()), *headers]
            await send(event)

        if for_other_machines or host_of(scope) in LOOPBACK:
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
