"""A tenant's home directory: keys, pinned directory, policy and database, readable by their owner only.

    signing.key  mask.key   32 bytes each, mode 0600
    policy.toml             optional; defaults apply without it
    tenant.db               journal, ledger, outbox, token cache, and the directory as pinned

The directory itself has mode 0700.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from crypto.directory import Chain, Member
from crypto.errors import PharoahError
from crypto.masking import MaskKey
from crypto.noise import NoiseSampler
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey
from tenant_client import pinned
from tenant_client.database import open_database
from tenant_client.policy import Policy, load_policy
from tenant_client.tenant import Tenant
from tenant_client.trustee import TrusteeService

KEY_BYTES = 32


class HomeError(PharoahError):
    """The home directory is missing something, or holds something else in its place."""


def create(home: Path, random_bytes: RandomBytes) -> Member:
    """Makes a home with fresh keys and returns the public ones for the directory; FileExistsError if it has keys."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    signing, mask = random_bytes(KEY_BYTES), random_bytes(KEY_BYTES)
    write_secret(home / "signing.key", signing)
    write_secret(home / "mask.key", mask)
    return Member.of(SigningKey(signing), MaskKey(mask).public)


def pin(home: Path, entries: Iterable[bytes]) -> Chain:
    """Pins the directory that this tenant trusts from now on, or newer entries of it."""
    with closing(open_database(home / "tenant.db")) as connection:
        return pinned.pin(connection, entries)


def open_tenant(
    home: Path, trustees: Sequence[TrusteeService], random_bytes: RandomBytes, sampler: NoiseSampler
) -> Tenant:
    """The tenant that lives in `home`; HomeError names what is missing."""
    policy = home / "policy.toml"
    return Tenant(
        SigningKey(_read_key(home / "signing.key")),
        MaskKey(_read_key(home / "mask.key")),
        load_policy(policy) if policy.exists() else Policy(),
        open_database(home / "tenant.db"),
        trustees,
        random_bytes,
        sampler,
    )


def write_secret(path: Path, secret: bytes) -> None:
    """Writes a new file with mode 0600; FileExistsError rather than overwriting a key."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)


def _read_key(path: Path) -> bytes:
    key = _read(path)
    if len(key) != KEY_BYTES:
        raise HomeError(f"{path} has {len(key)} bytes, a key has {KEY_BYTES}", hint="restore it from a backup")
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise HomeError(
            f"{path}: {error.strerror}", hint="name the tenant's home with --home or PHAROAH_HOME"
        ) from error
