"""The provider's service: the SuperLink for tenants, the online service, the hint poller, and rounds when due."""

import logging
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from prometheus_client import CollectorRegistry

from crypto.errors import Refusal
from crypto.roots import root_of
from crypto.signing import SigningKey
from federation.base.addresses import listening_socket
from federation.base.clock import now_hour
from federation.base.key_files import read, read_key
from federation.protocol.seats import TrusteeRecord
from federation.transport.certificates import WARN_EVERY_S, ends, warn_of_end
from federation.transport.client import Peer
from federation.transport.introductions import Introducing
from provider_server.program.metrics import Metrics
from provider_server.program.operations.admin import operator_app, watching_app
from provider_server.program.operations.no_tenants import NoTenants
from provider_server.program.operations.own_recorder import OwnRecorder, recording
from provider_server.program.operations.poller import Live, Sink, polling
from provider_server.program.operations.round_runner import Rounds, Watched
from provider_server.program.outputs.node_metrics import NodeMetrics, PlanMetrics
from provider_server.program.outputs.nvsentinel import Nvsentinel, Strategy
from provider_server.rounds.home import CONTROL, founded_hour, open_publisher
from provider_server.rounds.intake import webhook
from provider_server.rounds.intake.recorder import LeaseRecorder
from provider_server.rounds.looking import look
from provider_server.rounds.network.connections import ConnectionLimits
from provider_server.rounds.network.listeners import CannotListen, Listener
from provider_server.rounds.network.superlink import RegisteredNode, SuperLink, SuperLinkSettings
from provider_server.rounds.network.trustee_service import RemoteTrustee
from provider_server.rounds.online.passes import Passes, list_keys, pass_seed
from provider_server.rounds.online.service import serve_online
from provider_server.rounds.online.sessions import Sessions, session_key
from provider_server.rounds.provider import Provider
from provider_server.rounds.readiness import Known, Lack
from provider_server.rounds.schedule import Window
from provider_server.rounds.settings import Listen, Outputs, ProviderSettings
from provider_server.rounds.week import tell_directory

logger = logging.getLogger(__name__)

WATCHERS = ConnectionLimits(strangers=64, of_one_address=64)  # of health and metrics
MOST_FILES = 65_536


@contextmanager
def running(home: Path, provider: Provider, settings: ProviderSettings) -> Iterator[tuple[Rounds, SuperLink, int]]:
    """Everything that `serve` runs: yields the rounds, the SuperLink, and the port of the online service."""
    _allow_files()
    listen, metrics = settings.listen, Metrics()
    metrics.certificate_end_s.set(ends(read(home / "tls.pem")).timestamp())
    metrics.cohort_minimum.set(settings.plan.cohort_minimum)
    rounds: Rounds | None = None

    def ready() -> Rounds:
        if rounds is None:
            raise Refusal("the provider is starting", hint="try again in a few seconds")
        return rounds

    def not_ready() -> str:
        return "starting" if rounds is None else rounds.not_ready()

    def lacked() -> Sequence[Lack]:
        return () if rounds is None else rounds.lacked

    link_settings = SuperLinkSettings(
        home / "superlink.db",
        home / CONTROL,
        home / "tls.pem",
        home / "tls.key",
        host=listen.host,
        port=listen.tenants_port,
    )
    introducing = Introducing(SigningKey(read_key(home / "signing.key")), time.time)
    with ExitStack() as stack:
        trustees = stack.enter_context(closing(Seated(provider, introducing, metrics)))
        try:
            stack.enter_context(closing(watched(home, listen, metrics, not_ready, lacked)))
            stack.enter_context(
                webhook.listening(home, LeaseRecorder(provider, home, settings.leases.contexts), settings.leases)
            )
            link = stack.enter_context(SuperLink(link_settings, ours=operator_app(ready)))
            at_online = f"{listen.host}:{listen.online_port}"
            online_port = stack.enter_context(online(home, provider, at_online, settings, metrics))
        except OSError as error:
            raise CannotListen(
                f"the provider cannot listen: {error}", hint="check [listen] in provider.toml, tls.pem and tls.key"
            ) from error
        publisher = open_publisher(home, provider.store)

        def known(nodes: Iterable[RegisteredNode], window: Window | None) -> Known:
            return look(home, provider.store, provider.directory, settings, now_hour(), nodes, window)

        rounds = Rounds(provider, publisher, link, trustees, settings, metrics, now_hour, founded_hour(home), known)
        keep_pass_keys(home, provider, settings)
        tell_directory(provider, trustees)
        live = Live(home, provider, settings, metrics, time.time, _sinks(settings.outputs, metrics.registry, home))
        stack.enter_context(polling(live))
        stack.enter_context(_on_hangup(live.reload))
        stack.enter_context(recording(OwnRecorder(provider, home, settings.telemetry), settings.telemetry))
        yield rounds, link, online_port


@contextmanager
def online(
    home: Path, provider: Provider, address: str, settings: ProviderSettings, metrics: Metrics | None = None
) -> Iterator[int]:
    """The online service alone, as one more process over the store of a provider: yields its port.

    Sessions are verified by a key of the home, hints are read from the store: so callers notice nothing when their
    connections go to this process. Limits on what a tenant may ask hold for each process.
    """
    _allow_files()
    certificate, key = read(home / "tls.pem"), read(home / "tls.key")
    sessions, hints = Sessions(session_key(read_key(home / "context.key")), time.time), provider.store.hints
    passes = _passes(home, provider, metrics) if settings.passes.batches_per_week else None
    try:
        server = serve_online(
            provider,
            address,
            certificate,
            key,
            sessions=sessions,
            hints=hints,
            take_outcome=hints.take_outcome,
            passes=passes,
        )
    except OSError as error:
        raise CannotListen(
            f"the online service cannot listen: {error}", hint="check --listen, tls.pem and tls.key"
        ) from error
    with server:
        yield server.port


def _passes(home: Path, provider: Provider, metrics: Metrics | None) -> Passes:
    def count(event: str, passes: int) -> None:
        if metrics is not None:
            metrics.passes.labels(event).inc(passes)

    return Passes(provider, pass_seed(read_key(home / "context.key")), time.time, os.urandom, count)


def _sinks(settings: Outputs, registry: CollectorRegistry, home: Path) -> list[Sink]:
    """The receivers of reports on nodes that the settings name."""
    found: list[Sink] = [NodeMetrics(registry), PlanMetrics(home, registry)] if settings.node_metrics else []
    if settings.nvsentinel_socket:
        found.append(Nvsentinel(settings.nvsentinel_socket, Strategy[settings.nvsentinel_strategy]))
    return found


def keep_pass_keys(home: Path, provider: Provider, settings: ProviderSettings) -> None:
    """Lists the keys of passes of the weeks to come, where passes are issued and those that are listed run out."""
    if batches := settings.passes.batches_per_week:
        provider.members.refresh()
        list_keys(provider, pass_seed(read_key(home / "context.key")), batches, time.time())


def _allow_files() -> None:
    """Raises the limit on open files of this process, since every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def _on_hangup(reload: Callable[[], None]) -> Iterator[None]:
    """Within it SIGHUP reloads the settings; only in the main thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, lambda *_: reload())
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class Seated(Sequence[Watched]):
    """The trustees that the directory shows at this moment, each behind a connection that lasts while its record does.

    So a successor is asked without a restart, once another process has put it into the directory.
    """

    def __init__(self, provider: Provider, introducing: Introducing, metrics: Metrics) -> None:
        self._provider, self._introducing, self._metrics = provider, introducing, metrics
        self._peers: dict[TrusteeRecord, Peer] = {}

    def __len__(self) -> int:
        return len(self._provider.directory.trustees)

    def __getitem__(self, at: Any) -> Any:
        return self._now()[at]

    def close(self) -> None:
        """Closes the connections."""
        for peer in self._peers.values():
            peer.close()

    def _now(self) -> list[Watched]:
        seats = self._provider.directory.trustees
        for left in self._peers.keys() - set(seats):
            self._peers.pop(left).close()
        for record in seats:
            if record not in self._peers:
                self._peers[record] = self._peer(record)
        return [Watched(RemoteTrustee(record.index, self._peers[record]), self._metrics) for record in seats]

    def _peer(self, trustee: TrusteeRecord) -> Peer:
        def hear(protocol: int) -> None:
            self._provider.heard.note(trustee.verify_key, protocol)

        return Peer(trustee.address, root_of(trustee.verify_key), introducing=self._introducing, hear=hear)


def watched(
    home: Path,
    listen: Listen,
    metrics: Metrics,
    not_ready: Callable[[], str],
    lacked: Callable[[], Sequence[Lack]] = tuple,
) -> Listener:
    """Serves health and metrics; where others than this machine may ask, over TLS under the provider's certificate."""
    away = listen.metrics_host not in webhook.LOOPBACK
    app = watching_app(metrics, not_ready, lacked, for_other_machines=away)
    at = listening_socket(listen.metrics_host, listen.metrics_port)
    return Listener(app, at, (home / "tls.pem", home / "tls.key") if away else None, WATCHERS)


@contextmanager
def watching_nodes(home: Path, settings: ProviderSettings) -> Iterator[int]:
    """The provider's own nodes and the metrics port alone, without a federation: yields the port."""
    metrics = Metrics()
    live = Live(home, NoTenants(), settings, metrics, time.time, _sinks(settings.outputs, metrics.registry, home))
    try:
        listener = watched(home, settings.listen, metrics, lambda: "")
    except OSError as error:
        raise CannotListen(
            f"the metrics port cannot be opened: {error}", hint="check [listen] metrics_port in provider.toml"
        ) from error
    with closing(listener), polling(live), _on_hangup(live.reload):
        yield int(listener.address.rpartition(":")[2])


def serve(home: Path, rounds: Rounds, settings: ProviderSettings) -> NoReturn:
    """Holds rounds when they are due, for ever."""
    certificate, warn_next_s = read(home / "tls.pem"), 0.0
    while True:
        if time.monotonic() >= warn_next_s:
            warn_of_end(certificate, datetime.now(UTC))
            keep_pass_keys(home, rounds.provider, settings)
            warn_next_s = time.monotonic() + WARN_EVERY_S
        if not rounds.step():
            time.sleep(settings.rounds.retry_s)
