"""Runs a tenant's node, which answers the provider's queries.

Before it registers the workloads of its leases, it gets its leases from the online service and missing tokens from the
trustees. All other answers come from its own database.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from crypto.errors import PharoahError
from crypto.ids import LeaseId
from crypto.signing import SigningKey, reopened
from federation.base.clock import SECONDS_PER_HOUR, now_hour
from federation.base.key_files import read, read_key
from federation.base.meanwhile import meanwhile
from federation.base.service_manager import announced
from federation.base.settings import BadSettings, load
from federation.protocol.noise import SystemSampler
from federation.protocol.plan import Plan
from federation.protocol.queries import Answer, Query
from federation.protocol.round_messages import RegistrationRequest
from federation.protocol.service_messages import Hint, Notice
from federation.protocol.services import ProviderMethod
from federation.transport.client import Peer
from federation.transport.introductions import Introducing
from tenant_client.doctor.advice.hints import HintLog
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import UnknownUnit
from tenant_client.doctor.records.questions import noting
from tenant_client.doctor.run import lease_ends
from tenant_client.doctor.settings import TenantSettings
from tenant_client.program.anchors.anchoring import anchoring
from tenant_client.rounds.home import open_tenant
from tenant_client.rounds.network import connect, flower_node
from tenant_client.rounds.network.anonymous import buying
from tenant_client.rounds.network.provider_service import Online
from tenant_client.rounds.policy import Policy, policy_of
from tenant_client.rounds.tenant import Tenant

logger = logging.getLogger(__name__)

_LAST_HINT_S = 5.0
_AGAIN_S = 1.0


@contextmanager
def connected(home: Path, settings: TenantSettings) -> Iterator[tuple[Tenant, Peer]]:
    """Opens the tenant of `home`, connected to the trustees and the provider's online service."""
    if not settings.provider.online or not settings.provider.superlink:
        raise BadSettings("[provider] has no addresses", hint="set superlink and online to those of the invitation")
    introducing = Introducing(SigningKey(read_key(home / "signing.key")), time.time)
    at = settings.provider.online
    with (
        connect.trustees_of(home) as trustees,
        Peer(at, read(home / "provider.pem"), introducing=introducing, note=noting(home / "tenant.db", at)) as provider,
        closing(open_tenant(home, trustees, os.urandom, SystemSampler())) as tenant,
    ):
        yield tenant, provider


def serve(home: Path, settings: TenantSettings, stop: threading.Event) -> None:
    """Answers the provider until `stop` is set."""
    with connected(home, settings) as (tenant, provider):
        own = settings.node
        as_node = flower_node.NodeSettings(
            settings.provider.superlink,
            home / "provider.pem",
            read(home / "node.key"),
            busy_poll_s=own.busy_poll_s,
            idle_poll_s=own.idle_poll_s,
            tick_s=own.tick_s,
            heartbeat_s=own.heartbeat_s,
        )
        days = settings.claims.anchor_days
        anchors = anchoring(home, days * 24 * SECONDS_PER_HOUR) if days else nullcontext()
        buys = buying(home) if settings.checks.anonymous else nullcontext()
        with listening(home), anchors, buys, announced(tenant.ledger.windows):
            answer = answering(tenant, provider, lambda: policy_of(home))
            flower_node.serve(answer, as_node, stop=stop, heard=_heard)


def answering(tenant: Tenant, provider: Peer, policy: Callable[[], Policy]) -> Answer:
    """Answers the provider's questions, after getting the leases that an answer is about, by the policy of that time.

    PolicyError, and no answer, while policy.toml cannot be used.
    """

    def answer(verb: Query, payload: bytes) -> bytes:
        tenant.policy = policy()
        window = _leases_needed(tenant, verb, payload)
        if window is not None:
            _take_leases(tenant, provider, *window)
        said = tenant.answer(verb, payload)
        logger.info("answered %s", verb, extra={"event": "answer", "verb": verb.value, "bytes": len(said)})
        return said

    return answer


def _leases_needed(tenant: Tenant, verb: Query, payload: bytes) -> tuple[int, int] | None:
    """Between which hours the leases began that an answer needs.

    A node that was away when it was asked for its leases, and is back for its counts, would count nothing of them.
    """
    if verb is Query.REGISTRATIONS:
        asked = reopened(RegistrationRequest, payload)
        return asked.start_hour, asked.end_hour
    if verb is Query.CONTRIBUTION:
        end_hour = reopened(Plan, payload).end_hour
        since = tenant.waiting_since(end_hour)
        return None if since is None else (int(since), end_hour)
    return None


@contextmanager
def listening(home: Path) -> Iterator[None]:
    """Stores the provider's hints and ends of leases meanwhile, in a thread, so that running jobs need no `watch`."""
    with (
        connect.connected(home) as online,
        meanwhile(lambda: _take_hints(home, online), online.close, "hints", _LAST_HINT_S),
    ):
        yield


def _take_hints(home: Path, online: Online) -> None:
    try:
        with closing(open_database(home / "tenant.db")) as connection:
            log = HintLog(connection)
            for notice, signature in online.watch(log.cursor()):
                lease_ends.take(home, log, notice, time.time(), signature)
                _log(notice)
    except (PharoahError, sqlite3.Error) as error:
        logger.warning("no hints are received: %s", error, extra={"error": type(error).__name__})


def _log(notice: Notice) -> None:
    if isinstance(notice, Hint):
        logger.info("hint %d", notice.number, extra={"event": "hint", "number": notice.number})
    else:
        fields = {"event": "lease_end", "number": notice.number, "change": notice.change.value}
        logger.info("end of lease %s: %s", notice.lease, notice.change.value, extra=fields)


def _take_leases(tenant: Tenant, provider: Peer, start_hour: int, end_hour: int) -> None:
    """Gets the leases that began between these hours into the journal; failures are retried at the next request."""
    try:
        request = tenant.lease_request(start_hour, end_hour, provider.protocol)
        started = tenant.take_leases(provider.call(ProviderMethod.LEASES, request))
    except PharoahError as error:
        logger.warning("leases could not be taken: %s", error.what, extra={"error": type(error).__name__})
        return
    logger.info("%d leases have their tokens", started, extra={"event": "leases", "leases": started})


def granted_labels(home: Path, lease: LeaseId, wait_s: float) -> dict[str, str]:
    """The context tokens of a lease that begins about now, asked of the provider until it has recorded the lease.

    UnknownUnit if it has not within `wait_s` seconds.
    """
    settings, end_s = load(TenantSettings, home / "tenant.toml", os.environ), time.monotonic() + wait_s
    with connected(home, settings) as (tenant, provider):
        while not (labels := tenant.grants.labels(lease)):
            if time.monotonic() > end_s:
                raise UnknownUnit(
                    f"the provider has not recorded lease {lease} yet", hint="check it later with `check`"
                )
            now = int(now_hour())
            request = tenant.lease_request(now - 1, now + 1, provider.protocol)
            tenant.take_leases(provider.call(ProviderMethod.LEASES, request))
            time.sleep(min(_AGAIN_S, wait_s))
    return labels


def _heard(link: flower_node.Link, node_id: int | None) -> None:
    logger.info("node is %s", link.value, extra={"event": "link", "link": link.value, "node_id": node_id})
