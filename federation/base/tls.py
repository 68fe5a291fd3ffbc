"""TLS 1.3 or nothing, for every gRPC connection of this process.

gRPC's API for Python sets no lowest version, and its own is TLS 1.2. What it has is `GRPC_SSL_CIPHER_SUITES`, read
once, when `grpc` is imported: the cipher suites for TLS 1.2, which do not concern 1.3. `forbid_1_2` names there the one
suite that needs a key shared beforehand, which nobody has, so that no handshake in TLS 1.2 finds a suite, on either
side. It also quiets gRPC, unless somebody chose otherwise: it would print a line for each handshake that a stranger
gives up.

A program calls it before anything imports `grpc`; the processes that it starts inherit the variable. No server of
`federation.transport.server` begins to listen without. Not promised: anything about a program that only calls and never
did this; it still meets servers that speak TLS 1.3 alone.
"""

import os
import sys

CIPHER_SUITES = "GRPC_SSL_CIPHER_SUITES"
NONE_FOR_1_2 = "ECDHE-PSK-CHACHA20-POLY1305"

_in_time = os.environ.get(CIPHER_SUITES) == NONE_FOR_1_2  # inherited


def forbid_1_2() -> None:
    """From here on gRPC speaks TLS 1.3 alone; RuntimeError if `grpc` was imported before, and so would speak 1.2."""
    global _in_time
    if not _in_time and "grpc" in sys.modules:
        raise RuntimeError("grpc was imported before TLS 1.2 was forbidden; forbid it where the program begins")
    os.environ[CIPHER_SUITES] = NONE_FOR_1_2
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    _in_time = True


def require() -> None:
    """Returns if gRPC in this process speaks TLS 1.3 alone; RuntimeError otherwise."""
    if not _in_time:
        raise RuntimeError("TLS 1.2 was not forbidden where this program began (federation.base.tls)")
