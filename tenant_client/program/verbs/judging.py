"""How the verbs before a job ask the bundle, or the provider."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from federation.base.clock import now_hour
from federation.base.settings import load
from federation.base.sqlite import Connection
from federation.protocol import check as checking
from federation.protocol.bundle import Bundle
from federation.protocol.check import Check
from tenant_client.doctor.advice.own_history import Joined, OwnPair, own_history
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.settings import TenantSettings


@dataclass(frozen=True)
class Ways:
    """How the bundle is asked."""

    online: bool
    gate: bool
    anonymous: bool = False

    def own_history(self, home: Path) -> bool:
        """Whether own outcomes may count."""
        if self.online:
            return False
        return not self.gate or load(TenantSettings, home / "tenant.toml", os.environ).decisions.own_history


def judged(home: Path, connection: Connection, labels: Mapping[str, str], ways: Ways) -> tuple[Check, OwnPair | None]:
    """The verdict on a workload and context by their tokens, and own history as far as it counts."""
    bundle, joined = bundle_of(home, connection, ways)
    ask = _asked_anonymously if ways.anonymous else _asked
    result = ask(home, labels) if ways.online else checking.check(bundle, labels)
    own = joined.of(labels) if joined else None
    return (result.named(bundle.names, labels.get("context", "")) if bundle else result), own


def bundle_of(home: Path, connection: Connection, ways: Ways) -> tuple[Bundle | None, Joined | None]:
    """The newest bundle, joined with own history as far as that counts; the second is None where it does not."""
    bundle = BundleLog(connection).newest_bundle()
    if bundle is None or not ways.own_history(home):
        return bundle, None
    joined = own_history(connection, bundle, now_hour())
    return joined.bundle, joined


def _asked_anonymously(home: Path, labels: Mapping[str, str]) -> Check:
    """The answer of the same service to nobody in particular."""
    from tenant_client.rounds.network.anonymous import anonymous_check

    return anonymous_check(home, labels)


def _asked(home: Path, labels: Mapping[str, str]) -> Check:
    """The answer of the provider's online service."""
    from tenant_client.rounds.network.connect import connected

    with connected(home) as provider:
        return provider.check(labels)
