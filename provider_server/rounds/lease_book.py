"""The leases of a federation as they are granted and recorded: what an intake needs of a provider.

It knows nothing of rounds but until when the last one counted: who records leases loads neither releases nor noise.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from crypto.codec import encode
from crypto.errors import PeerFault, PharoahError, Refusal
from crypto.ids import LeaseId, TenantId
from crypto.ristretto import Element
from crypto.signing import SigningKey, reopened
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.visible import counted_as
from federation.protocol.directory import Chain, Directory, Member, next_entry, pass_keys, reseating
from federation.protocol.plan import Plan
from federation.protocol.round_messages import DirectoryUpdate
from federation.protocol.seats import TrusteeRecord
from federation.protocol.versions import OLDEST
from provider_server.fleet.leases import Lease, context_tokens
from provider_server.rounds.store.store import NOWHERE, Store

if TYPE_CHECKING:
    from provider_server.fleet.parts import FabricParts


HARDWARE = "hardware"  # the note of what leases call hardware


class LeaseBook:
    """Holds the secret of a federation's context tokens, and does not show it; ValueError for another epoch's length.

    Where there is a fabric, `parts` are those that tenants vote for.
    """

    def __init__(
        self,
        signing_key: SigningKey,
        context_secret: bytes,
        weeks_per_epoch: int,
        store: Store,
        now_s: Callable[[], float] = time.time,
        parts: "FabricParts | None" = None,
    ) -> None:
        self._now_s = now_s
        self.parts = parts
        self._context_secret = context_secret
        self.store = store
        self.members = Members(signing_key, store, now_s)
        if self.directory.weeks_per_epoch != weeks_per_epoch:
            raise ValueError(f"the directory fixes {self.directory.weeks_per_epoch} weeks per epoch")

    def now_h(self) -> float:
        """Hours since 1970, by this provider's clock."""
        return self._now_s() / SECONDS_PER_HOUR

    def close(self) -> None:
        """Closes the store."""
        self.store.close()

    @property
    def directory(self) -> Directory:
        """The current members and trustees."""
        return self.members.directory

    def epoch(self, hour: float) -> int:
        """The epoch of an hour; tokens change with the epoch."""
        return self.directory.epoch(hour)

    def context_labels(self, hour: float, context: str, level: int) -> dict[str, str]:
        """The tokens that a tenant gets with a lease on this context at this build-up level."""
        return context_tokens(self._context_secret, self.epoch(hour), context, level)

    def record_leases(self, leases: Iterable[Lease], node_names: Mapping[LeaseId, Sequence[str]] = NOWHERE) -> None:
        """Stores granted leases, and the names of their nodes where they are known.

        Where there is a fabric, leases get the tokens of the parts that their nodes hang on.
        """
        self.store.add_leases(
            (self._with_parts(lease, node_names.get(lease.lease, ())) for lease in leases), node_names
        )

    def note_hardware(self, names: Iterable[str]) -> None:
        """Remembers what leases call hardware: each lease keeps a token alone, and the operator reads names."""
        known = self.store.note(HARDWARE)
        if new := {name: True for name in names if name not in known}:
            self.store.keep_note(HARDWARE, {**known, **new})

    def _with_parts(self, lease: Lease, nodes: Sequence[str]) -> Lease:
        if self.parts is None or not nodes:
            return lease
        return replace(lease, units=self.parts.of_nodes(self._context_secret, self.epoch(lease.start_h), nodes))

    def last_end_hour(self, by_hour: float = math.inf) -> int | None:
        """The end of the latest window of any round, released or not, that ended by an hour; None before the first."""
        rounds = self.store.rounds.rounds()
        ends = [reopened(Plan, record.signed_plan).end_hour for record in rounds]
        return max((end for end in ends if end <= by_hour), default=None)


# ---- members ---------------------------------------------------------------------------------------------------------

NAMES = "names"  # the note of what the provider calls its tenants


class RetiredNodeKey(Refusal):
    """A card with a node key that was replaced, or shut out when its tenant left."""

    default_hint = "ask the tenant for a new key and card: `pharoah-tenant join --new-node-key`"


class NameTaken(Refusal):
    """Two tenants would have one name."""

    default_hint = "choose another --name; `pharoah-provider tenants` lists those in use"


class UnknownTenant(PharoahError):
    """No member, or several, have this name or the beginning of this id."""

    default_hint = "pass a name, or the first digits of an id, as `pharoah-provider tenants` lists them"


class Members:
    """Signs and stores the entries of the directory; `now_s` are seconds since 1970."""

    def __init__(self, signing_key: SigningKey, store: Store, now_s: Callable[[], float]) -> None:
        self._signing_key = signing_key
        self._store = store
        self._now_s = now_s
        founding, *later = store.entries()
        self.chain = Chain.begin(founding, signing_key.public).extended(later)

    @property
    def directory(self) -> Directory:
        """The current members and trustees."""
        return self.chain.directory

    def refresh(self) -> None:
        """Reads directory entries that another process of the provider added."""
        self.chain = self.chain.extended(self._store.entries())

    def update(self) -> bytes:
        """The whole directory as a message."""
        return encode(DirectoryUpdate(self.chain.entries), OLDEST)

    def enrol(self, members: Sequence[Member], left: Sequence[TenantId] = ()) -> None:
        """Adds an entry to the directory; BadSignature or Fork, and no entry, for a bad card."""
        entry = self._signing_key.sign(next_entry(self.directory, joined=members, left=left), OLDEST)
        chain = self.chain.extended([entry])
        self._store.add_entry(chain.directory.number, entry, left, self._now_s())
        self.chain = chain

    def reseat(self, trustees: Sequence[TrusteeRecord], handovers: Sequence[bytes]) -> None:
        """Adds the entry by which trustees hand over; ReseatingRefused, TrusteeFault or PeerFault, and none, if bad."""
        entry = self._signing_key.sign(reseating(self.directory, trustees, handovers), OLDEST)
        chain = self.chain.extended([entry])
        self._store.add_entry(chain.directory.number, entry)
        self.chain = chain

    def list_pass_keys(self, first_week: int, batches: int, keys: Sequence[Element]) -> None:
        """Adds the entry by which passes are issued under these keys, from that week on."""
        entry = self._signing_key.sign(pass_keys(self.directory, first_week, batches, keys), OLDEST)
        chain = self.chain.extended([entry])
        self._store.add_entry(chain.directory.number, entry)
        self.chain = chain

    def welcome(self, member: Member, node_key: str) -> bool:
        """Enrols a tenant with its node's key and returns True; a tenant enrolled before gets the key replaced, False.

        RetiredNodeKey for a key that was replaced before, so that an old card undoes nothing.
        """
        is_new = member.tenant not in self.directory.by_id
        if any(key == node_key and tenant != member.tenant for tenant, key in self._store.node_keys().items()):
            raise PeerFault(
                f"tenant {member.tenant.hex()[:12]}… has the node key of another tenant",
                hint="ask it for a new key and card: `pharoah-tenant join --new-node-key`",
            )
        if node_key in self._store.retired_node_keys():
            raise RetiredNodeKey(f"the node key on the card of tenant {member.tenant.hex()[:12]}… was retired before")
        self._store.add_node_key(member.tenant, node_key)
        if is_new:
            self.enrol([member])
        return is_new

    def names(self) -> dict[TenantId, str]:
        """What the provider calls its tenants, of now and of before."""
        return names(self._store, self.directory)

    def name(self, tenant: TenantId, name: str) -> None:
        """Gives a tenant a name, which stays with the provider; NameTaken if another member has it."""
        given = self._store.note(NAMES)
        owner = next((one for one in self.directory.by_id if given.get(str(one)) == name), tenant)
        if owner != tenant:
            raise NameTaken(f"tenant {owner.hex()[:12]}… is called {name!r} already")
        self._store.keep_note(NAMES, {**given, str(tenant): name})

    def find(self, text: str) -> TenantId:
        """The member of this name, or whose id begins so; UnknownTenant if there is none, or several."""
        given = self._store.note(NAMES)
        if named := [one for one in self.directory.by_id if given.get(str(one)) == text]:
            return named[0]
        matches = [one for one in self.directory.by_id if str(one).startswith(text.lower())] if text else []
        if len(matches) != 1:
            raise UnknownTenant(f"{counted_as(len(matches), 'tenant')} found for {text!r}, not one")
        return matches[0]

    def node_keys(self) -> list[str]:
        """The node keys of current members."""
        return [key for tenant, key in self._store.node_keys().items() if tenant in self.directory.by_id]

    def retired_node_keys(self) -> frozenset[str]:
        """Node keys to unregister: they were replaced, or their tenants have left."""
        return self._store.retired_node_keys()

    def revoke(self, tenants: Sequence[TenantId]) -> None:
        """Revokes all current sessions of these tenants; they can sign in again while they are enrolled."""
        for tenant in tenants:
            if tenant not in self.directory.by_id:
                raise PeerFault(f"tenant {tenant} is not enrolled", hint="it has no session; check the id")
        self._store.revocations.add(tenants, self._now_s())

    def revoked(self) -> Mapping[TenantId, int]:
        """Revoked sessions: by tenant, those that end by this second since 1970."""
        return self._store.revocations.all()


def names(store: Store, directory: Directory) -> dict[TenantId, str]:
    """The names that the provider gave its tenants, also those that have left; for the others the first digits."""
    given = store.note(NAMES)
    return {tenant: given.get(str(tenant)) or f"{tenant.hex()[:12]}…" for tenant in (*directory.by_id, *directory.left)}
