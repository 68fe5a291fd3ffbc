"""A tenant's home directory: keys, pinned directory, policy and database, readable by their owner only.

    signing.key  mask.key   32 bytes each, mode 0600
    mask.claim              the time at which the mask key was made
    policy.toml             limits of plans, as `join` writes them; defaults apply without it
    tenant.db               journal, ledger, outbox, token cache, and the pinned directory

The directory itself has mode 0700.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from crypto.codec import decode, encode
from crypto.masking import MaskKey
from crypto.possession import MaskKeyClaim
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey
from federation.base import pinned_directory
from federation.base.clock import now_hour
from federation.base.key_files import new_key, read, read_key, write_secret
from federation.base.pinned_directory import NOT_JOINED, NotEnrolled
from federation.base.sqlite import reporting
from federation.protocol.directory import Chain, Member
from federation.protocol.noise import NoiseSampler
from tenant_client.doctor.records.database import open_database
from tenant_client.rounds.policy import FILE, PILOT, SAMPLE, PolicyError, as_pilot, policy_of
from tenant_client.rounds.tenant import Tenant
from tenant_client.rounds.tokens import TrusteeService

CLAIM, MEMORY = "mask.claim", "tenant.db"


def create(home: Path, random_bytes: RandomBytes, now_hour: float) -> Member:
    """Makes a home with fresh keys and returns the public ones for the directory; FileExistsError if it has keys."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    signing = SigningKey(new_key(home / "signing.key", random_bytes))
    mask = MaskKey(new_key(home / "mask.key", random_bytes))
    write_secret(home / CLAIM, encode(MaskKeyClaim(signing.public, mask.public, int(now_hour))))
    return member(home)


def member(home: Path) -> Member:
    """The public keys of a home; HomeError names a file that is missing."""
    signing, mask = SigningKey(read_key(home / "signing.key")), MaskKey(read_key(home / "mask.key"))
    return Member.of(signing, mask, decode(MaskKeyClaim, read(home / CLAIM)).made_hour)


def pin(home: Path, entries: Iterable[bytes]) -> Chain:
    """Pins the directory that this tenant trusts from now on, or newer entries of it."""
    with closing(open_database(home / MEMORY)) as connection:
        return pinned_directory.pin(connection, entries)


def joined(home: Path) -> Chain:
    """The pinned directory of the home; NotEnrolled, and no change to the home, before it has joined."""
    if not (home / MEMORY).exists():
        raise NotEnrolled(NOT_JOINED)
    with reporting(), closing(open_database(home / MEMORY)) as connection:
        return pinned_directory.pinned(connection)


def write_policy(home: Path, *, pilot: bool) -> None:
    """Writes policy.toml with comments where there is none; with `pilot`, limits that let plans of a pilot through.

    PolicyError where a file that somebody has written would change: no owner's limit is lowered behind its back.
    """
    file, shipped = home / FILE, SAMPLE.read_text(encoding="utf-8")
    if file.exists() and not pilot:
        return
    wanted = as_pilot(shipped) if pilot else shipped
    # An older version wrote less before the first key.
    if file.exists() and not any(one.endswith(file.read_text(encoding="utf-8")) for one in (shipped, wanted)):
        lines = ", ".join(f"{key} = {value}" for key, value in PILOT.items())
        raise PolicyError("policy.toml was changed by hand; it stays as it is", hint=f"for a pilot, set in it: {lines}")
    file.write_text(wanted, encoding="utf-8")


def open_tenant(
    home: Path,
    trustees: Sequence[TrusteeService],
    random_bytes: RandomBytes,
    sampler: NoiseSampler,
    clock: Callable[[], float] = now_hour,
) -> Tenant:
    """Opens the tenant of `home`; HomeError names a missing file, NotEnrolled means that no directory is pinned.

    `clock` tells the hour since 1970: a replay is not of today.
    """
    joined(home)
    signing_key, mask_key = SigningKey(read_key(home / "signing.key")), MaskKey(read_key(home / "mask.key"))
    limits = policy_of(home)
    with ExitStack() as until_open:
        connection = until_open.enter_context(closing(open_database(home / MEMORY)))
        tenant = Tenant(signing_key, mask_key, limits, connection, trustees, random_bytes, sampler, clock)
        until_open.pop_all()
    return tenant
