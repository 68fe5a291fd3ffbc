"""A whole federation in one process: real provider, trustees and tenants, each with its own home on disk.

Nothing is stubbed: trustees generate the shared key, tenants keep SQLite files, messages are signed, masked, encoded
and sent through a Flower grid. Only the sockets are missing.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from crypto import threshold
from crypto.ids import EncodedElement, VerifyKey
from crypto.masking import MaskKey
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey
from federation.base.clock import now_hour
from federation.base.key_files import read_key
from federation.protocol.directory import NOTHING_BEFORE, DirectoryEntry, Member
from federation.protocol.noise import NoiseSampler, SystemSampler
from federation.protocol.seats import TrusteeRecord
from provider_server.rounds.home import create as create_provider, open_publisher
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.provider import Provider
from provider_server.rounds.publisher import Publisher
from provider_server.rounds.store.store import Store
from tenant_client.rounds.home import create, open_tenant, pin
from tenant_client.rounds.tenant import Tenant
from trustee.trustee import Trustee, TrusteeLimits

TRUSTEES = 5
THRESHOLD = 3


@dataclass(frozen=True)
class Federation:
    """Everybody who takes part."""

    provider: Provider
    publisher: Publisher
    trustees: tuple[Trustee, ...]
    tenants: tuple[Tenant, ...]

    def close(self) -> None:
        """Closes every database."""
        parties: tuple[Provider | Trustee | Tenant, ...] = (self.provider, *self.trustees, *self.tenants)
        for party in parties:
            party.close()


def found(
    root: Path,
    tenants: int,
    settings: PlanSettings,
    policy: Mapping[str, object],
    sampler: NoiseSampler | None = None,
    random_bytes: RandomBytes = os.urandom,
    hardware: Mapping[str, str] = MappingProxyType({}),
    clock: Callable[[], float] = now_hour,
) -> Federation:
    """Founds a federation below `root`, which must be empty; `policy` is written into every tenant's policy.toml.

    `hardware` has public names of hardware groups by what leases call them; `clock` tells tenants the hour since 1970.
    """
    homes = [root / "tenants" / f"{number:03d}" for number in range(tenants)]
    members = [create(home, random_bytes, 0.0) for home in homes]
    provider_home = root / "provider"
    create_provider(provider_home, ["localhost"], random_bytes, datetime.now(UTC))
    (provider_home / "provider.toml").write_text(_plan_table(settings) + _names_table(hardware))
    provider_key = SigningKey(read_key(provider_home / "signing.key"))
    shares, group = make_group_key(random_bytes)
    keys = [(SigningKey.generate(random_bytes), MaskKey.generate(random_bytes)) for _ in shares]
    records = [_record(group, share.index, *key) for share, key in zip(shares, keys, strict=True)]
    entry = founding_entry(provider_key.public, group, records, settings.weeks_per_epoch, members)
    founding = provider_key.sign(entry)
    trustees = tuple(
        Trustee(share, *key, [founding], _new(root / "trustees" / f"{share.index}.db"), random_bytes, TrusteeLimits())
        for share, key in zip(shares, keys, strict=True)
    )
    for home in homes:
        pin(home, [founding])
        (home / "policy.toml").write_text("".join(f"{key} = {_toml(value)}\n" for key, value in policy.items()))
    store = Store(provider_home / "provider.db")
    store.add_entry(0, founding)
    provider = Provider(provider_key, read_key(provider_home / "context.key"), settings, store, random_bytes)
    drawn = sampler or SystemSampler()
    opened = tuple(open_tenant(home, trustees, random_bytes, drawn, clock) for home in homes)
    return Federation(provider, open_publisher(provider_home, store), trustees, opened)


def make_group_key(random_bytes: RandomBytes = os.urandom) -> tuple[list[threshold.KeyShare], threshold.GroupKey]:
    """The trustees' distributed key generation, all of it in one place: every trustee deals, verifies, and adds."""
    dealings = {dealer: threshold.deal(THRESHOLD, TRUSTEES, random_bytes) for dealer in range(1, TRUSTEES + 1)}
    commitments = {dealer: dealing.commitments for dealer, dealing in dealings.items()}
    shares = [
        threshold.combine_dealings(
            THRESHOLD,
            receiver,
            {dealer: dealing.shares[receiver - 1] for dealer, dealing in dealings.items()},
            commitments,
        )
        for receiver in range(1, TRUSTEES + 1)
    ]
    return shares, threshold.group_key(THRESHOLD, TRUSTEES, commitments)


def unattended_seats(shares: Sequence[threshold.KeyShare], group: threshold.GroupKey) -> list[TrusteeRecord]:
    """Seats of trustees that nobody plays: their keys are forgotten at once."""
    return [
        TrusteeRecord.of(
            share.index,
            SigningKey.generate(os.urandom),
            MaskKey.generate(os.urandom),
            EncodedElement(group.share_public_key(share.index).encoded),
            made_hour=0,
        )
        for share in shares
    ]


def founding_entry(
    provider: VerifyKey,
    group: threshold.GroupKey,
    trustees: Sequence[TrusteeRecord],
    weeks_per_epoch: int,
    members: Sequence[Member],
) -> DirectoryEntry:
    """The first entry of the directory of a new federation."""
    group_key = EncodedElement(group.public_key.encoded)
    joined = tuple(members)
    settled = provider, group.threshold, group_key, tuple(trustees), weeks_per_epoch
    return DirectoryEntry(0, NOTHING_BEFORE, *settled, joined, ())


def _record(group: threshold.GroupKey, index: int, signing_key: SigningKey, mask_key: MaskKey) -> TrusteeRecord:
    share_key = EncodedElement(group.share_public_key(index).encoded)
    return TrusteeRecord.of(index, signing_key, mask_key, share_key, made_hour=0)


def _names_table(hardware: Mapping[str, str]) -> str:
    named = ", ".join(f"{_toml(label)} = {_toml(name)}" for label, name in hardware.items())
    return f"\n[names]\ncontexts = {{ {named} }}\n" if named else ""


def _plan_table(settings: PlanSettings) -> str:
    """The settings in the words of provider.toml, as far as that has them."""
    rows = {
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "mechanism": settings.mechanism,
        "owners_minimum": settings.owners_minimum,
        "cohort_minimum": settings.cohort_minimum,
        "noise_shares": settings.noise_shares,
        "failures_per_unit": settings.failures_per_unit,
        "weeks_per_epoch": settings.weeks_per_epoch,
        "windows": settings.windows,
        "groups": settings.groups,
        "honest_minimum": settings.honest_minimum,
    }
    return "[plan]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in rows.items())


def _new(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
