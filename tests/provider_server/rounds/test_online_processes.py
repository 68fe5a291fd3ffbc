"""Several processes of the online service and of the page over one store, behind a balancer: one may be killed.

The processes are real (`pharoah-provider serve --online-only` and `page`), the store is SQLite or PostgreSQL, and what
`serve` would write to it is written here. The balancer is nginx with the sample configurations of `ops/nginx` or, for
the online service, one of these tests' own where there is no nginx.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx
import pytest

from crypto.ids import LeaseId, TenantId
from crypto.masking import MaskKey
from crypto.roots import root_of
from crypto.signing import SigningKey, tenant_id
from federation.base.key_files import read_key
from federation.protocol.directory import Member
from federation.transport.client import Peer
from provider_server.program.pages.login import set_password
from provider_server.rounds import home as homes
from provider_server.rounds.settings import ProviderSettings
from provider_server.rounds.store.hint_store import HintStore
from provider_server.rounds.store.store import Store
from simulation.run.federation import founding_entry, make_group_key, unattended_seats
from simulation.run.online_service import CONTEXTS, WORKLOADS, a_bundle, labels
from tenant_client.rounds.network.provider_service import Online
from tests.support.balancer import balancing
from tests.support.hinting_provider import draft
from tests.support.nginx import nginx
from tests.support.postgres import Server
from tests.support.waiting import PATIENCE_S, until

TENANTS = 4
BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))]
HINTS, PAGES = 40, 40
PASSWORD = "correct horse battery"
Balancing = Callable[[Sequence[int]], AbstractContextManager[int]]
PROGRAM = "from provider_server.program.cli import app; app()"


@dataclass(frozen=True)
class Place:
    """A provider's home and store, and the keys of its tenants."""

    home: Path
    url: str
    tenants: tuple[SigningKey, ...]

    @classmethod
    def founded(cls, home: Path, url: str) -> "Place":
        homes.create(home, ["127.0.0.1"], os.urandom, datetime.now(UTC))
        provider = SigningKey(read_key(home / "signing.key"))
        tenants = tuple(SigningKey.generate(os.urandom) for _ in range(TENANTS))
        members = [Member.of(key, MaskKey.generate(os.urandom), 0) for key in tenants]
        shares, group = make_group_key()
        entry = founding_entry(
            provider.public, group, unattended_seats(shares, group), ProviderSettings().plan.weeks_per_epoch, members
        )
        with closing(Store(url)) as store:
            store.add_entry(0, provider.sign(entry))
            store.add_bundle(1, provider.sign(a_bundle()))
        return cls(home, url, tenants)

    @contextmanager
    def online(self, number: int, port: int) -> Iterator[Online]:
        """Tenant `number`, who asks at that port."""
        key = self.tenants[number]
        provider = SigningKey(read_key(self.home / "signing.key")).public
        tenant, pauses = tenant_id(key.public), {"first_pause_s": 0.05, "longest_pause_s": 0.5}
        with (
            Peer(f"127.0.0.1:{port}", root_of(provider)) as peer,
            Online(peer, key, tenant, provider, time.time, **pauses) as online,
        ):
            yield online

    @contextmanager
    def process(self, port: int) -> Iterator[subprocess.Popen[bytes]]:
        """One more process of the online service, which listens there."""
        with self.running("serve", "--online-only", "--listen", f"127.0.0.1:{port}", ready=b'"serving"') as process:
            yield process

    @contextmanager
    def page(self, port: int) -> Iterator[subprocess.Popen[bytes]]:
        """One more process of the page, which listens there."""
        with self.running("page", "--port", str(port), ready=b"the page is at") as process:
            yield process

    @contextmanager
    def running(self, verb: str, *options: str, ready: bytes) -> Iterator[subprocess.Popen[bytes]]:
        """A process of that verb, from when it has said that it is ready."""
        command = [sys.executable, "-c", PROGRAM, verb, *options, "--home", str(self.home)]
        environment = os.environ | {"PHAROAH_DATABASE": self.url}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    if ready in line:
                        break
                drain = threading.Thread(target=process.stderr.read, daemon=True)
                drain.start()
                yield process
            finally:
                process.kill()


@pytest.fixture(params=BOTH)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place.founded(tmp_path / "home", f"sqlite:///{tmp_path}/provider.db")
    server: Server = request.getfixturevalue("postgresql")
    return Place.founded(tmp_path / "home", server.new_place())


def tell(hints: HintStore, tenant: TenantId, number: int) -> None:
    """One more hint, as the poller of `serve` makes it."""
    hints.append([(tenant, draft(LeaseId(tenant), number, time.time() / 3600.0))], hints.state(), b"%d" % number)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


class Worker:
    """A thread whose error is raised when it ends."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised again in `end`
            self._error = error

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


@contextmanager
def through_nginx(ports: Sequence[int]) -> Iterator[int]:
    """nginx, as operators are shown it, before the processes at these ports; yields its own."""
    (own,) = free_ports(1)
    with nginx("online.conf", dict(zip((8544, 8545, 8444), (*ports, own), strict=True))):
        yield own


@pytest.mark.nightly
@pytest.mark.parametrize("balancing", [through_nginx, balancing])
def test_one_of_two_processes_is_killed_under_load_and_no_caller_notices(place: Place, balancing: Balancing) -> None:
    """Checks are answered all the time, and each hint comes once, whichever process a watch was at."""
    ports, over, checks = free_ports(2), threading.Event(), [0] * TENANTS
    tenants = [tenant_id(key.public) for key in place.tenants]
    heard: list[list[int]] = [[] for _ in tenants]
    with ExitStack() as stack:
        processes = [stack.enter_context(place.process(port)) for port in ports]
        balanced = stack.enter_context(balancing(ports))
        watching = [stack.enter_context(place.online(number, balanced)) for number in range(TENANTS)]

        def check(number: int) -> None:
            with place.online(number, balanced) as online:
                while not over.is_set():
                    asked = labels(checks[number] % WORKLOADS, checks[number] % CONTEXTS)
                    assert online.check(asked).evidence is not None
                    checks[number] += 1
                    time.sleep(0.03)  # a tenant may ask 50 times a second

        def watch(number: int) -> None:
            for hint, _ in watching[number].watch(after=0):
                heard[number].append(hint.number)
                if hint.number == HINTS:
                    return

        workers = [Worker(partial(check, number)) for number in range(TENANTS)]
        workers += [Worker(partial(watch, number)) for number in range(TENANTS)]
        with closing(Store(place.url, create=False, now_s=lambda: 0.0)) as store:
            for number in range(1, HINTS + 1):
                for at, tenant in enumerate(tenants):
                    tell(store.hints, tenant, number * TENANTS + at)
                if number == HINTS // 2:
                    until(lambda: all(heard) and all(checks), "all are served")
                    before = list(checks)
                    processes[0].send_signal(signal.SIGKILL)
                time.sleep(0.02)
            until(lambda: all(now > then + 10 for now, then in zip(checks, before, strict=True)), "checks go on")
            until(lambda: all(told and told[-1] == HINTS for told in heard), "all hints are heard")
        over.set()
        for worker in workers:
            worker.end()
        assert processes[0].wait() == -signal.SIGKILL
        assert processes[1].poll() is None
    assert heard == [list(range(1, HINTS + 1))] * TENANTS


@pytest.mark.nightly
def test_one_of_two_pages_is_killed_and_its_visitors_stay_logged_in(place: Place) -> None:
    """Each question is asked once, with no second try of its own: nginx has one."""
    set_password(place.home, PASSWORD, bytes(16))
    *ports, own = free_ports(3)
    statuses: list[int] = []
    with ExitStack() as stack:
        pages = [stack.enter_context(place.page(port)) for port in ports]
        stack.enter_context(nginx("page.conf", dict(zip((8446, 8447, 8448), (*ports, own), strict=True))))
        visitor = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{own}", trust_env=False, timeout=60))
        (token,) = re.findall(r'name="csrf" value="([0-9a-f]{64})"', visitor.get("/login").text)
        assert visitor.post("/login", data={"csrf": token, "password": PASSWORD}).headers["location"] == "/"
        for number in range(PAGES):
            if number == PAGES // 2:
                pages[0].send_signal(signal.SIGKILL)
            statuses.append(visitor.get("/api/overview").status_code)
        assert pages[0].wait() == -signal.SIGKILL
        assert pages[1].poll() is None
        assert statuses == [200] * PAGES
        pages[1].send_signal(signal.SIGKILL)
        assert visitor.get("/api/overview").status_code == 502  # it was they who answered


def test_a_store_tells_of_hints_that_another_one_of_it_has_appended(place: Place) -> None:
    first, second, *_ = (tenant_id(key.public) for key in place.tenants)
    with closing(Store(place.url)) as one, closing(Store(place.url)) as other:
        tell(one.hints, first, 1)
        heard: list[TenantId] = []
        other.hints.subscribe(heard.append)
        other.hints.look()
        assert heard == []  # what was there at the first look is no news
        tell(one.hints, second, 2)
        tell(one.hints, second, 3)
        other.hints.look()
        other.hints.look()
        assert heard == [second]
        tell(one.hints, first, 4)
        one.hints.append([], one.hints.state(), b"5")
        other.hints.look()
        assert heard == [second, first]


@pytest.mark.nightly
@pytest.mark.parametrize("verb", ["serve --online-only --listen 127.0.0.1:{}", "nodes watch"])
def test_each_process_that_serves_tells_systemd_how_it_stands(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.founded(tmp_path / "home", f"sqlite:///{tmp_path}/provider.db")
    port, metrics = free_ports(2)
    (place.home / "provider.toml").write_text(f"[listen]\nmetrics_port = {metrics}\n")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        with place.running(*verb.format(port).split(), ready=b'"serving"') as process:
            assert [manager.recv(100) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
            process.terminate()
            until(lambda: manager.recv(100) == b"STOPPING=1")  # perhaps after one more sign of life
            assert process.wait(PATIENCE_S) == 0
