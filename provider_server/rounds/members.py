"""Who belongs to a federation: the chain of its directory, the nodes of its tenants, and sessions that were revoked."""

from collections.abc import Callable, Mapping, Sequence

from crypto.codec import encode
from crypto.errors import PeerFault, Refusal
from crypto.ids import TenantId
from crypto.ristretto import Element
from crypto.signing import SigningKey
from federation.protocol.directory import Chain, Directory, Member, next_entry, pass_keys, reseating
from federation.protocol.round_messages import DirectoryUpdate
from federation.protocol.seats import TrusteeRecord
from provider_server.rounds.store.store import Store


class RetiredNodeKey(Refusal):
    """A card with a node key that was replaced, or shut out when its tenant left."""

    default_hint = "ask the tenant for a new key and card: `pharoah-tenant join --new-node-key`"


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
        return encode(DirectoryUpdate(self.chain.entries))

    def enrol(self, members: Sequence[Member], left: Sequence[TenantId] = ()) -> None:
        """Adds an entry to the directory; BadSignature or Fork, and no entry, for a bad card."""
        entry = self._signing_key.sign(next_entry(self.directory, joined=members, left=left))
        chain = self.chain.extended([entry])
        self._store.add_entry(chain.directory.number, entry, left, self._now_s())
        self.chain = chain

    def reseat(self, trustees: Sequence[TrusteeRecord], handovers: Sequence[bytes]) -> None:
        """Adds the entry by which trustees hand over; ReseatingRefused, TrusteeFault or PeerFault, and none, if bad."""
        entry = self._signing_key.sign(reseating(self.directory, trustees, handovers))
        chain = self.chain.extended([entry])
        self._store.add_entry(chain.directory.number, entry)
        self.chain = chain

    def list_pass_keys(self, first_week: int, batches: int, keys: Sequence[Element]) -> None:
        """Adds the entry by which passes are issued under these keys, from that week on."""
        entry = self._signing_key.sign(pass_keys(self.directory, first_week, batches, keys))
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
