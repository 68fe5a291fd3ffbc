"""Looks at what the next round needs (`provider_server.rounds.readiness`): store, trustees' ports, connected nodes.

Trustees are reached over TCP alone, which tells an address that does not answer from one that does, and asks nothing.
"""

import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crypto.ids import TenantId
from crypto.signing import reopened
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.key_files import read
from federation.protocol.directory import Directory
from federation.protocol.plan import Plan
from federation.protocol.refusals import Refused
from federation.protocol.round_messages import Ownership
from federation.protocol.seats import TrusteeRecord
from federation.transport.certificates import days_left
from provider_server.rounds.home import CONTROL, founded_hour
from provider_server.rounds.lease_book import names
from provider_server.rounds.planning import windows_at
from provider_server.rounds.readiness import Known, Refusal
from provider_server.rounds.schedule import Window, window_of
from provider_server.rounds.settings import ProviderSettings
from provider_server.rounds.store.store import Store

if TYPE_CHECKING:  # Flower takes half a second to import, and is needed where a provider serves
    from provider_server.rounds.network.superlink import RegisteredNode

ANSWER_S = 1.0
REFUSALS = "refusals"  # the note of who refused the newest plan, and by which rule


def look(
    home: Path,
    store: Store,
    directory: Directory,
    settings: ProviderSettings,
    now_h: float,
    nodes: "Iterable[RegisteredNode] | None" = None,
    window: Window | None = None,
) -> Known:
    """What is known before the round over `window`, by default the one that the schedule holds next.

    `nodes` are the tenants' nodes; without them, those of the provider that serves this home, if one does.
    """
    plan = settings.plan.settings
    plans = [reopened(Plan, kept.signed_plan) for kept in store.rounds.rounds()]
    began = founded_hour(home) if (home / "signing.key").exists() else now_h  # a copy without keys holds no rounds
    last = max((one.end_hour for one in plans if one.end_hour <= now_h), default=None)
    since = window[0] if window else began if last is None else last
    edges = windows_at(plan, plans, since)
    window = window or window_of(edges, since)
    said = [reopened(Ownership, signed) for signed in store.ownerships(directory.epoch(window[0]))]
    certificate, serving = home / "tls.pem", _nodes_at(home) if nodes is None else list(nodes)
    now = datetime.fromtimestamp(now_h * SECONDS_PER_HOUR, UTC)
    return Known(
        settings=plan,
        directory=directory,
        names=names(store, directory),
        window=window,
        due_hour=window[1] + settings.rounds.settle_hours,
        now_hour=now_h,
        recorded_hour=max([began, *(one.end_hour for one in plans)]),
        leases=store.leases(edges[0], window[1]),
        owned={one.tenant: {str(token) for token in one.tokens} for one in said} or None,
        plans=plans,
        up=answering(directory.trustees),
        connected=None if serving is None else _tenants_of(store, [node for node in serving if node.online]),
        refusals=refusals(store),
        certificate_days_left=days_left(read(certificate), now) if certificate.exists() else None,
    )


def answering(trustees: Sequence[TrusteeRecord]) -> dict[int, bool]:
    """Which trustees' addresses take a connection within `ANSWER_S`, all asked at once; none without an address."""
    up: set[int] = set()

    def ask(trustee: TrusteeRecord) -> None:
        host, _, port = trustee.address.rpartition(":")
        with suppress(OSError, ValueError):
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
            up.add(trustee.index)

    asking = [threading.Thread(target=ask, args=(trustee,), daemon=True) for trustee in trustees]
    for thread in asking:
        thread.start()
    end_s = time.monotonic() + ANSWER_S
    for thread in asking:  # a name server that is away takes longer than a connection may
        thread.join(max(0.0, end_s - time.monotonic()))
    return {trustee.index: trustee.index in up for trustee in trustees if trustee.address}


def _nodes_at(home: Path) -> "list[RegisteredNode] | None":
    """The nodes of the provider that serves this home; None where none serves."""
    if not (home / CONTROL).exists():
        return None
    from provider_server.rounds.network.superlink import RunFailed, registered_nodes

    with suppress(RunFailed):
        return list(registered_nodes(home / CONTROL))
    return None


def _tenants_of(store: Store, nodes: "Iterable[RegisteredNode]") -> frozenset[TenantId]:
    keys = {node.public_openssh for node in nodes}
    return frozenset(tenant for tenant, key in store.node_keys().items() if key in keys)


def refusals(store: Store) -> list[Refusal]:
    """Who refused the newest plan."""
    note: Mapping[str, Any] = store.note(REFUSALS)
    read_back = ((TenantId.fromhex(who), Refused.read(text)) for who, text in note.get("by", {}).items())
    return [Refusal(who, refused, tuple(note["window"])) for who, refused in read_back if refused]


def keep_refusals(store: Store, plan: Plan, by: Mapping[TenantId, Refused]) -> None:
    """Keeps who refused a plan, in place of what was kept of the one before."""
    store.keep_note(REFUSALS, {"window": plan.window, "by": {str(who): str(refused) for who, refused in by.items()}})
