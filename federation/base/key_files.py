"""Key files: 32 bytes each, mode 0600, written once and never overwritten.

Renewable files (a certificate, a node's key) are replaced atomically: a reader sees the old or the new content.
"""

import os
from collections.abc import Callable
from pathlib import Path

from crypto.errors import PharoahError
from federation.base.visible import reason, short

KEY_BYTES = 32


class HomeError(PharoahError):
    """A file of a home is missing or invalid."""


def new_key(path: Path, random_bytes: Callable[[int], bytes]) -> bytes:
    """Draws a key and writes it; FileExistsError rather than overwriting one."""
    key = random_bytes(KEY_BYTES)
    write_secret(path, key)
    return key


def write_secret(path: Path, secret: bytes, mode: int = 0o600) -> None:
    """Writes a new file with mode 0600; FileExistsError rather than overwriting a key."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())


def replace_secret(path: Path, secret: bytes) -> None:
    """Writes a file with mode 0600 in place of the one before, whole or not at all."""
    replace_file(path, secret, 0o600)


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Writes a file in place of the one before, whole or not at all."""
    new = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        write_secret(new, content, mode)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def read_key(path: Path) -> bytes:
    """The key in a file; HomeError where there is none of the right length."""
    key = read(path)
    if len(key) != KEY_BYTES:
        raise HomeError(f"{path} has {len(key)} bytes, a key has {KEY_BYTES}", hint="restore it from a backup")
    return key


def read(path: Path) -> bytes:
    """The bytes of a file of the home; HomeError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise HomeError(
            f"{reason(error)}: {short(path)}", hint="pass the right --home, or restore the file from a backup"
        ) from error
