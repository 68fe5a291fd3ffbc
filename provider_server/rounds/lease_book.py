"""The leases of a federation as they are granted and recorded: what an intake needs of a provider.

It knows nothing of rounds but until when the last one counted: who records leases loads neither releases nor noise.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from crypto.ids import LeaseId
from crypto.signing import SigningKey, reopened
from federation.base.clock import SECONDS_PER_HOUR
from federation.protocol.directory import Directory
from federation.protocol.plan import Plan
from provider_server.fleet.leases import Lease, context_tokens
from provider_server.rounds.members import Members
from provider_server.rounds.store.store import NOWHERE, Store

if TYPE_CHECKING:
    from provider_server.fleet.parts import FabricParts


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

    def _with_parts(self, lease: Lease, nodes: Sequence[str]) -> Lease:
        if self.parts is None or not nodes:
            return lease
        return replace(lease, units=self.parts.of_nodes(self._context_secret, self.epoch(lease.start_h), nodes))

    def last_end_hour(self, by_hour: float = math.inf) -> int | None:
        """The end of the latest window of any round, released or not, that ended by an hour; None before the first."""
        rounds = self.store.rounds.rounds()
        ends = [reopened(Plan, record.signed_plan).end_hour for record in rounds]
        return max((end for end in ends if end <= by_hour), default=None)
