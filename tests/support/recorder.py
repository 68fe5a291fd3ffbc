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
        accepting = threading.Thread(target=_accept, args=(listener, (host, int(port)), recorded))
        accepting.start()
        try:
            yield recorded
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(listener: socket.socket, upstream: tuple[str, int], recorded: Recorder) -> None:
    pairs = []
    with suppress(OSError):  # the listener is shut down: the recording is over
        while True:
            client, _ = listener.accept()
            recorded.sent.append(bytearray())
            pairs.append(threading.Thread(target=_pass_on, args=(client, upstream, recorded.sent[-1])))
            pairs[-1].start()
    for pair in pairs:
        pair.join()


def _pass_on(client: socket.socket, upstream: tuple[str, int], kept: bytearray) -> None:
    with client, socket.create_connection(upstream) as server:
        back = threading.Thread(target=_pump, args=(server, client, bytearray()))
        back.start()
        _pump(client, server, kept)
        back.join()


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            kept += data
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
