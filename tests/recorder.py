"""A relay on loopback that keeps every byte which passes: what an eavesdropper, or the provider, could see."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

HOST = "127.0.0.1"


@dataclass
class Recorder:
    """`sent` holds what clients sent, one entry for each connection; `address` is where they connect."""

    address: str
    sent: list[bytearray] = field(default_factory=list)

    @property
    def everything(self) -> bytes:
        """All that left, connection after connection."""
        return b"\0\0".join(bytes(stream) for stream in self.sent)


@contextmanager
def recorder(upstream: str) -> Iterator[Recorder]:
    """Passes connections on to `upstream` (host:port) and records what clients send."""
    host, port = upstream.split(":")
    with socket.create_server((HOST, 0)) as listener:
        recorded = Recorder(f"{HOST}:{listener.getsockname()[1]}")
        threading.Thread(target=_accept, args=(listener, (host, int(port)), recorded), daemon=True).start()
        yield recorded


def _accept(listener: socket.socket, upstream: tuple[str, int], recorded: Recorder) -> None:
    with suppress(OSError):  # the listener is closed: the recording is over
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(upstream)
            recorded.sent.append(bytearray())
            threading.Thread(target=_pump, args=(client, server, recorded.sent[-1]), daemon=True).start()
            threading.Thread(target=_pump, args=(server, client, bytearray()), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            kept += data
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
