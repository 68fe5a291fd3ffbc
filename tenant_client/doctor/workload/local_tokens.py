"""Tokens of this machine alone: equal for equal rungs, under a key that never leaves, no matter who else is online.

They let an owner see a ladder and compare workloads without asking trustees or spending quota. They are not the
federation's tokens: nobody else can compute or compare them, and none of them is ever sent.
"""

import hashlib
import hmac
import os
from pathlib import Path

from crypto.ids import Token
from federation.protocol.round_messages import Ladder
from tenant_client.doctor.workload.descriptor import Rungs

KEY_BYTES = 32


def local_ladder(rungs: Rungs, key: bytes) -> Ladder:
    """The ladder of `rungs` under a local key of 32 bytes (HMAC-SHA256, cut to the length of a token)."""
    family, archetype, subarchetype, exact = (
        Token(hmac.digest(key, b"pharoah/local-token/1\0" + rung, hashlib.sha256)[: Token.length])
        for rung in rungs.inputs
    )
    return Ladder(family, archetype, subarchetype, exact)


def local_key(home: Path) -> bytes:
    """The key that `home` keeps for this, made at first use with mode 0600; OSError where that cannot be."""
    path = home / "local-tokens.key"
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = os.urandom(KEY_BYTES)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(key)
    if len(key) != KEY_BYTES:
        raise OSError(f"{path} has {len(key)} bytes, a key has {KEY_BYTES}; remove it to get a new one")
    return key
