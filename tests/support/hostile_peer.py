"""A caller that keeps to no rule: HTTP/2 over TLS by hand, to stop anywhere in the middle and to send any bytes.

It says what it is told to and checks nothing, not even the certificate. For tests of our own servers.
"""

import socket
import ssl
import struct
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SETTING = 4
FRAME_BYTES = 16_384
HTTP2_WINDOW = 65_535
RECEIVE_S = 60.0


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """RFC 9113, section 4.1."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(path: str) -> bytes:
    """The headers of a gRPC call, as literals without an index (RFC 7541, section 6.2.2)."""
    fields = (
        (":method", "POST"),
        (":scheme", "https"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: str) -> bytes:
    if len(text) > 126:
        raise ValueError("longer texts need a longer prefix")
    return bytes([len(text)]) + text.encode()


def grpc_message(payload: bytes, announced: int | None = None) -> bytes:
    """A gRPC message; `announced` is the length that its prefix claims, if another than the true one."""
    return struct.pack(">BI", 0, len(payload) if announced is None else announced) + payload


class HostilePeer:
    """A TLS connection, from `source` if given. It has said nothing of HTTP/2 until `greet`."""

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        source: str = "",
        highest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED,
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the attacker does not care
        context.maximum_version = highest
        context.set_alpn_protocols(["h2"])
        line = socket.create_connection((host, port), timeout=RECEIVE_S, source_address=(source, 0) if source else None)
        self.line = context.wrap_socket(line)
        self._unread = b""
        self._initial = self._window = HTTP2_WINDOW
        self._windows: dict[int, int] = {}
        self.ended: dict[int, bytes] = {}
        self._stream = -1

    def greet(self, window: int | None = None) -> Self:
        """The preface and the settings; with `window` 0 the server may send no answer."""
        chosen = b"" if window is None else struct.pack(">HI", INITIAL_WINDOW_SETTING, window)
        self.line.sendall(PREFACE + frame(SETTINGS, 0, 0, chosen))
        return self

    def begin(self, path: str, said: bytes = b"", *, ends: bool = False) -> int:
        """A new call with the first bytes of its body, sent whatever the window; the number of its stream."""
        self._stream += 2
        opening = frame(HEADERS, END_HEADERS, self._stream, header_block(path))
        self.line.sendall(opening + (self._framed(self._stream, said, ends=ends) if said or ends else b""))
        return self._stream

    def send(self, stream: int, said: bytes, within_s: float = RECEIVE_S) -> int:
        """Sends as much as the server's windows allow within the time, or until it ends the stream; how much."""
        end_s, sent = time.monotonic() + within_s, 0
        while sent < len(said) and stream not in self.ended and time.monotonic() < end_s:
            self.listen(0.0)
            room = min(self._window, self._initial + self._windows.get(stream, 0), 2**20)
            if room <= 0:
                self.listen(0.05)
                continue
            part = said[sent : sent + room]
            self.line.sendall(self._framed(stream, part, ends=False))
            sent += len(part)
        return sent

    def listen(self, seconds: float) -> None:
        """Takes what the server says for so long; EOFError once it has closed the connection."""
        end_s = time.monotonic() + seconds
        while True:
            self.line.settimeout(max(end_s - time.monotonic(), 1e-4))
            try:
                received = self.line.recv(2**18)
            except TimeoutError:
                return
            finally:
                self.line.settimeout(RECEIVE_S)
            if not received:
                raise EOFError("the server has closed the connection")
            self._unread += received
            self._take_frames()
            if time.monotonic() >= end_s:
                return

    def until_ended(self, stream: int, within_s: float = RECEIVE_S) -> bytes:
        """The trailers of a stream, as sent, or nothing if it was reset; TimeoutError if it goes on."""
        end_s = time.monotonic() + within_s
        while stream not in self.ended:
            if time.monotonic() >= end_s:
                raise TimeoutError("the server has not ended the stream")
            self.listen(0.02)
        return self.ended[stream]

    def is_cut_off(self, within_s: float) -> bool:
        """Whether the server closes the connection in time."""
        try:
            self.listen(within_s)
        except (EOFError, ConnectionError, ssl.SSLError):
            return True
        return False

    def close(self) -> None:
        """Ends the connection without a word."""
        with suppress(OSError):
            self.line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _framed(self, stream: int, said: bytes, *, ends: bool) -> bytes:
        self._window -= len(said)
        self._windows[stream] = self._windows.get(stream, 0) - len(said)
        pieces = [said[start : start + FRAME_BYTES] for start in range(0, len(said), FRAME_BYTES)] or [b""]
        last = END_STREAM if ends else 0
        return b"".join(
            [*(frame(DATA, 0, stream, piece) for piece in pieces[:-1]), frame(DATA, last, stream, pieces[-1])]
        )

    def _take_frames(self) -> None:
        while len(self._unread) >= 9:
            length = int.from_bytes(self._unread[:3])
            if len(self._unread) < 9 + length:
                return
            kind, flags, stream = struct.unpack(">BBI", self._unread[3:9])
            payload, self._unread = self._unread[9 : 9 + length], self._unread[9 + length :]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload)
        elif kind == WINDOW_UPDATE:
            self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(payload)
        elif kind == SETTINGS and not flags & ACK:
            chosen = dict(struct.iter_unpack(">HI", payload))
            self._initial = chosen.get(INITIAL_WINDOW_SETTING, self._initial)
            self.line.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.line.sendall(frame(PING, ACK, 0, payload))
        elif kind == HEADERS and flags & END_STREAM:
            self.ended[stream] = payload
        elif kind == RESET:
            self.ended.setdefault(stream, b"")
