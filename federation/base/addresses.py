"""Addresses to listen at: host and port from text, and the socket there."""

import socket

HIGHEST_PORT = 65_535
_LONGEST = len(str(HIGHEST_PORT))


def host_and_port(text: str) -> tuple[str, int] | None:
    """Of `host:port`, an IPv6 address in brackets; None where it is none.

    >>> host_and_port("[::1]:8446"), host_and_port("localhost:65536"), host_and_port("8446")
    (('::1', 8446), None, None)
    """
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and len(port) <= _LONGEST and int(port) <= HIGHEST_PORT):
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there, over IPv6 where the host is such an address; OSError."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
