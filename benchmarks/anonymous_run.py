"""Clients and server of `benchmarks.anonymous`: 50 tenants in a process of their own, and what the provider sees."""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from crypto.codec import decode
from crypto.errors import DecodeError, PharoahError
from crypto.ids import TenantId
from federation.protocol.directory import Directory
from federation.protocol.pass_messages import AnonymousCheck
from federation.protocol.passes import SECONDS_PER_WEEK, order, passes_of, week_of
from federation.runtime.sqlite import Connection as Database
from federation.transport import handlers
from federation.transport.client import Peer
from federation.transport.places import host_and_port
from provider_server.online import passes as issuing
from provider_server.online.passes import Passes, list_keys
from provider_server.online.service import serve_online
from provider_server.online.sessions import Sessions, session_key
from simulation.run.online_service import CONTEXTS, HOST, WORKLOADS, Grounds, OneHint, labels, process
from tenant_client.network.anonymous import ask, buy, order_moment
from tenant_client.network.provider_service import Online
from tenant_client.records import passes as kept
from tenant_client.records.database import open_database

CLIENTS, BATCHES, FIRST_WEEK = 50, 2, 2965
NAMED_PER_WEEK = 8.0
TOLD_WITHIN_S = 2.0
EDGE = 0.03  # of a week, before its end, in which nobody asks: it is milliseconds in which clocks are read twice
LATENCY_S, LATENCY_WEEK_S = 60.0, 150.0
START_S = 15.0


@dataclass(frozen=True)
class Arm:
    """One run: weeks of so many seconds, of which the first has no checks."""

    name: str
    weeks: int
    week_s: float
    checks_per_week: float


@dataclass(frozen=True)
class Seen:
    """What the provider sees of a call. `tenant` is None and `proof` the nonce of the pass where nobody is named."""

    at_s: float
    port: int
    asked_bytes: int
    answered_bytes: int
    kind: str
    tenant: TenantId | None
    proof: bytes


@dataclass
class Recorder:
    """Takes down every call where the transport reads questions and says answers."""

    sessions: Sessions
    seen: list[Seen] = field(default_factory=list)
    begun: dict[int, tuple[float, bytes]] = field(default_factory=dict)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within it, all servers of this process."""
        first, say = handlers.Handlers._first, handlers.Handlers._say

        # What a method is asked and what it answers pass here and nowhere else.
        async def read(of: Any, caller: Any, context: Any) -> bytes:
            question = await first(of, caller, context)
            self.begun[id(caller)] = time.monotonic(), question
            return question

        async def answer(of: Any, said: Any, caller: Any, context: Any) -> None:
            at_s, question = self.begun.pop(id(caller))
            length = len(said) if isinstance(said, bytes) else 0
            self.seen.append(self._seen(at_s, host_and_port(caller.peer)[1], question[8:], length))
            await say(of, said, caller, context)

        methods: Any = handlers.Handlers
        methods._first, methods._say = read, answer
        try:
            yield
        finally:
            methods._first, methods._say = first, say

    def _seen(self, at_s: float, port: int, question: bytes, answered: int) -> Seen:
        with suppress(DecodeError):
            asked = decode(AnonymousCheck, question)
            return Seen(at_s, port, len(question), answered, "anonymous", None, asked.shown.nonce)
        kind = (
            "order" if b"pass-request" in question[:40] else "check" if b"check-request" in question[:40] else "other"
        )
        tenant = None if kind == "other" else self.sessions.tenant_of(_session(question))
        return Seen(at_s, port, len(question), answered, kind, tenant, b"")


def _session(question: bytes) -> bytes:
    at = question.index(b"\xc4\x40") + 2
    return question[at : at + 64]


@dataclass(frozen=True)
class Clock:
    """Weeks that pass in seconds, the same in every process of this machine."""

    began_s: float
    week_s: float

    def __call__(self) -> float:
        """Seconds since 1970, as they pass here."""
        passed = (time.monotonic() - self.began_s) / self.week_s
        return (FIRST_WEEK + passed) * SECONDS_PER_WEEK

    def until(self, at_s: float) -> None:
        """Returns then."""
        wait_s = self.began_s + (at_s / SECONDS_PER_WEEK - FIRST_WEEK) * self.week_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)


# ---- clients, in a process of their own ------------------------------------------------------------------------------


@dataclass
class Client:
    """A tenant: its session, its database, and what it did, for the judge."""

    number: int
    grounds: Grounds
    port: int
    database: Path
    directory: Directory
    clock: Clock
    made: list[tuple[bytes, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Its keys, and chance of its own."""
        self.key, self.tenant = self.grounds.tenants()[self.number]
        self.random = random.Random(f"client {self.number}")  # noqa: S311  # when somebody asks is no secret here

    @contextmanager
    def connected(self) -> Iterator[tuple[Online, Database]]:
        """Its named connection, which stands, and its database."""
        with (
            closing(open_database(self.database)) as connection,
            self.peer() as peer,
            Online(peer, self.key, self.tenant, self.directory.provider, time.time) as online,
        ):
            yield online, connection

    def peer(self) -> Peer:
        """A new connection."""
        return Peer(f"{HOST}:{self.port}", self.grounds.certificate_pem, retries=0)

    def lease(self) -> dict[str, str]:
        """Of any workload on any context."""
        return labels(self.random.randrange(WORKLOADS), self.random.randrange(CONTEXTS))

    def anonymous(self, connection: Database) -> None:
        """One check on a connection of its own; remembers for the judge which pass it was."""
        before = _nonces(connection, week_of(self.clock()))
        with self.peer() as peer:
            ask(peer, connection, self.lease(), self.clock())
        self.made += [(nonce, self.number) for nonce in before - _nonces(connection, week_of(self.clock()))]

    def live(self, arm: Arm) -> None:
        """All weeks of an arm. What is named and what is not are two programs, which do not wait for each other."""
        with self.connected() as (online, connection):
            beside = threading.Thread(target=self.do, args=(self.named_calls(arm, online, connection),))
            beside.start()
            self.do(self.checks(arm, online, connection))
            beside.join()

    def do(self, plan: Iterator[tuple[float, Callable[[], object]]]) -> None:
        """What is planned, each at its moment."""
        for at_s, what in sorted(plan, key=lambda each: each[0]):
            self.clock.until(at_s)
            with suppress(PharoahError):  # a busy machine loses a question now and then; the judge counts the rest
                what()

    def named_calls(
        self, arm: Arm, online: Online, connection: Database
    ) -> Iterator[tuple[float, Callable[[], object]]]:
        """Orders of passes, and named checks beside."""
        for week in range(FIRST_WEEK, FIRST_WEEK + arm.weeks):
            if arm.name in ("passes", "told"):
                at_s = order_moment(self.grounds.tenant_seeds[self.number], week)
                yield at_s, lambda week=week: buy(online, connection, self.directory, week + 1)  # type: ignore[misc]
            if arm.name in ("passes", "unpaced"):
                yield from ((at_s, lambda: online.check(self.lease())) for at_s in self.moments(week, NAMED_PER_WEEK))

    def checks(self, arm: Arm, online: Online, connection: Database) -> Iterator[tuple[float, Callable[[], object]]]:
        """Checks, as the arm makes them."""

        def told() -> None:
            online.check(self.lease())
            time.sleep(self.random.uniform(0.0, TOLD_WITHIN_S))
            self.anonymous(connection)

        def unpaced() -> None:
            week = week_of(self.clock())
            asked = order(self.directory.provider, week, self.directory.passes[week].key, os.urandom)
            kept.keep(connection, week, passes_of(asked, online.order_passes(week, asked.elements)))
            self.anonymous(connection)
            connection.execute("DELETE FROM passes")

        checks = {"told": told, "unpaced": unpaced, "named": lambda: online.check(self.lease())}
        check = checks.get(arm.name, lambda: self.anonymous(connection))
        for week in range(FIRST_WEEK + 1, FIRST_WEEK + arm.weeks):
            yield from ((at_s, check) for at_s in self.moments(week, arm.checks_per_week))

    def moments(self, week: int, rate: float) -> list[float]:
        """Of a Poisson process."""
        at, found = self.random.expovariate(rate), list[float]()
        while at < 1.0 - EDGE:
            found.append((week + at) * SECONDS_PER_WEEK)
            at += self.random.expovariate(rate)
        return found


def _nonces(connection: Database, week: int) -> set[bytes]:
    rows = connection.execute("SELECT pass FROM passes WHERE week = ?", (week,))
    return {bytes(row[0])[2:34] for row in rows}


def _clients(grounds: Grounds, port: int, directory: Any, clock: Clock, arm: Arm | None, line: Connection) -> None:
    """50 clients in threads; says who made which check, or what checks took where there is no arm."""
    with TemporaryDirectory(prefix="pharoah-bench-") as folder:
        listed = _directory(grounds, directory)
        clients = [
            Client(number, grounds, port, Path(folder) / f"{number}.db", listed, clock) for number in range(CLIENTS)
        ]
        taken: list[tuple[str, float]] = []

        def work(client: Client) -> None:
            if arm is None:
                _timed(client, taken)
            else:
                client.live(arm)

        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        line.send(taken if arm is None else [made for client in clients for made in client.made])
        line.recv()


def _directory(grounds: Grounds, entries: Sequence[bytes]) -> Directory:
    from crypto.signing import SigningKey
    from federation.protocol.directory import Chain

    first, *later = entries
    return Chain.begin(first, SigningKey(grounds.provider_seed).public).extended(later).directory


def _timed(client: Client, taken: list[tuple[str, float]]) -> None:
    """Asks by each way in turn, at random moments, and notes how long it took."""
    with client.connected() as (online, connection), client.peer() as standing:
        kept.hurry(connection)
        buy(online, connection, client.directory, week_of(client.clock()) + 1)
        client.clock.until((FIRST_WEEK + 1) * SECONDS_PER_WEEK + 1)
        end_s = time.monotonic() + LATENCY_S

        def fresh_named() -> None:
            with (
                client.peer() as peer,
                Online(peer, client.key, client.tenant, client.directory.provider, time.time) as once,
            ):
                once.check(client.lease())

        def fresh_anonymous() -> None:
            with client.peer() as peer:
                ask(peer, connection, client.lease(), client.clock())

        ways: dict[str, Callable[[], object]] = {
            "named_standing": lambda: online.check(client.lease()),
            "anonymous_standing": lambda: ask(standing, connection, client.lease(), client.clock()),
            "named_new": fresh_named,
            "anonymous_new": fresh_anonymous,
        }
        order = list(ways)
        while time.monotonic() < end_s and kept.kept(connection, FIRST_WEEK + 1) > 1:
            client.random.shuffle(order)
            for way in order:
                time.sleep(client.random.uniform(0.0, 8.0))
                with suppress(PharoahError):
                    began_s = time.perf_counter()
                    ways[way]()
                    taken.append((way, 1000.0 * (time.perf_counter() - began_s)))


# ---- the server, which is the attacker's -----------------------------------------------------------------------------


def run(arm: Arm | None) -> tuple[list[Seen], Any]:
    """What the provider saw, and what the clients say afterwards, beside the numbers of tenants."""
    issuing.SLACK_S = 0.0  # five minutes are milliseconds here
    week_s = arm.week_s if arm else LATENCY_WEEK_S
    passed_s = (
        0.0 if arm else LATENCY_WEEK_S - 4 * START_S
    )  # passes are bought at once, and then good for all of a week
    with ExitStack() as stack:
        grounds = Grounds.founded(Path(stack.enter_context(TemporaryDirectory(prefix="pharoah-bench-"))), CLIENTS)
        provider = stack.enter_context(closing(grounds.provider()))
        list_keys(provider, grounds.provider_seed, BATCHES, (FIRST_WEEK - 1) * SECONDS_PER_WEEK)
        sessions = Sessions(session_key(grounds.provider_seed), time.time)
        recorder = Recorder(sessions)
        stack.enter_context(recorder.recording())
        clock = Clock(time.monotonic() + START_S - passed_s, week_s)  # when the clients have started
        issuer = Passes(provider, grounds.provider_seed, clock, os.urandom)
        if arm and arm.name == "unpaced":
            issuer = Unpaced(provider, grounds.provider_seed, clock, os.urandom)
        server = stack.enter_context(
            serve_online(
                provider,
                f"{HOST}:0",
                grounds.certificate_pem,
                grounds.key_pem,
                sessions=sessions,
                hints=OneHint(),
                take_outcome=lambda _tenant, _outcome: None,
                passes=issuer,
            )
        )
        line = stack.enter_context(process(_clients, grounds, server.port, provider.members.chain.entries, clock, arm))
        said = line.recv()
        tenants = {tenant: number for number, (_, tenant) in enumerate(grounds.tenants())}
        return sorted(recorder.seen, key=lambda each: each.at_s), (said, tenants)


class Unpaced(Passes):
    """A provider without the rule of the week before, and without a quota, to show what the rule is worth."""

    def issue(self, tenant: TenantId, asked: Any) -> bytes:
        """Of the week that is."""
        later = Passes(self._provider, b"", lambda: (asked.week - 0.5) * SECONDS_PER_WEEK, self._random_bytes)
        later._key = self._key
        later._provider.store.passes.forget(asked.week + 1)
        return later.issue(tenant, asked)

    def forget(self) -> None:
        """Nothing: what was spent is remembered for the whole run, whose weeks are seconds."""
