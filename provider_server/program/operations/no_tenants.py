"""A provider without a federation: it watches its own nodes, and there is nobody to give hints to."""

from collections.abc import Sequence

from crypto.ids import TenantId
from federation.protocol.service_messages import Hint
from provider_server.fleet.hints.episodes import Draft
from provider_server.fleet.leases import Lease
from provider_server.rounds.planning import PlanSettings


class NoHints:
    """A store of hints that has none and takes none."""

    def state(self) -> bytes | None:
        """None: no lease was ever looked at."""
        return None

    def append(self, drafts: Sequence[tuple[TenantId, Draft]], before: bytes | None, after: bytes) -> list[Hint]:
        """Without leases there are no drafts, and a state of no leases need not be stored."""
        if drafts:
            raise ValueError("a hint needs a tenant")
        return []


class NoLeases:
    """A store without leases."""

    hints = NoHints()

    def placed(self, _hour: float) -> list[tuple[Lease, tuple[str, ...]]]:
        """No leases."""
        return []

    def leases(self, _start_hour: float, _end_hour: float) -> list[Lease]:
        """No leases."""
        return []


class NoTenants:
    """What the poller needs of a provider (`poller.Landlord`), without leases and bundles."""

    settings = PlanSettings(epsilon=1.0, delta=0.0, cohort_minimum=1, noise_shares=1)
    store = NoLeases()

    def newest_bundle(self) -> bytes | None:
        """None was published."""
        return None

    def context_labels(self, _hour: float, _context: str, _level: int) -> dict[str, str]:
        """Contexts have tokens in a federation only."""
        raise NotImplementedError
