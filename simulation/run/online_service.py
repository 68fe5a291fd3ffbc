"""A provider's online service in its own process, with tenants and a bundle, for the study `check`.

The provider is imported only in that process, so that the client starts without it.
"""

import gc
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crypto.ids import LeaseId, TenantId, Token
from crypto.masking import MaskKey
from crypto.signing import SigningKey, tenant_id
from federation.protocol.bundle import Bundle, HazardEntry, MismatchEntry, PairJudgement
from federation.protocol.directory import Member
from federation.protocol.service_messages import Action, Hint, HintState, Suspicion
from federation.transport.certificates import make_certificate

if TYPE_CHECKING:
    from provider_server.rounds.planning import PlanSettings
    from provider_server.rounds.provider import Provider

HOST = "127.0.0.1"
WORKLOADS, CONTEXTS = 60, 20
PATIENCE_S = 600.0
MIB = 2**20


@dataclass(frozen=True)
class Grounds:
    """What server and generators know of each other."""

    root: Path
    certificate_pem: bytes
    key_pem: bytes
    provider_seed: bytes
    tenant_seeds: tuple[bytes, ...]

    @classmethod
    def founded(
        cls, root: Path, tenants: int, *, provider_seed: bytes | None = None, database: str | None = None
    ) -> "Grounds":
        """A provider's store with tenants and a bundle, below `root` or at a URL, and a certificate."""
        from provider_server.rounds.store.store import Store
        from simulation.run.federation import founding_entry, make_group_key, unattended_seats

        made = make_certificate([HOST], datetime.now(UTC))
        seeds = tuple(os.urandom(32) for _ in range(tenants))
        grounds = cls(root, made.certificate_pem, made.key_pem, provider_seed or os.urandom(32), seeds)
        signing_key = SigningKey(grounds.provider_seed)
        members = [Member.of(SigningKey(seed), MaskKey.generate(os.urandom), 0) for seed in seeds]
        shares, group = make_group_key()
        entry = founding_entry(
            signing_key.public, group, unattended_seats(shares, group), _settings().weeks_per_epoch, members
        )
        with closing(Store(database or root / "provider.db")) as store:
            store.add_entry(0, signing_key.sign(entry))
            store.add_bundle(1, signing_key.sign(a_bundle()))
        return grounds

    def provider(self) -> "Provider":
        """The provider on that store."""
        from provider_server.rounds.provider import Provider
        from provider_server.rounds.store.store import Store

        store = Store(self.root / "provider.db", create=False)
        return Provider(SigningKey(self.provider_seed), bytes(32), _settings(), store, os.urandom)

    def tenants(self) -> list[tuple[SigningKey, TenantId]]:
        """Keys and ids."""
        keys = [SigningKey(seed) for seed in self.tenant_seeds]
        return [(key, tenant_id(key.public)) for key in keys]


def _settings() -> "PlanSettings":
    from provider_server.rounds.settings import PlanTable

    return PlanTable().settings


def a_bundle() -> Bundle:
    """Of every workload on every context something is known, and of every context a hazard in five bands."""
    mismatches = tuple(
        MismatchEntry(token("workload", workload), token("context", context), *_told(workload, context))
        for workload in range(WORKLOADS)
        for context in range(CONTEXTS)
    )
    hazards = tuple(
        HazardEntry(token("level", context), str(band), 1.0, 0.5, 2.0)
        for context in range(CONTEXTS)
        for band in range(5)
    )
    return Bundle(1, 0, 168, (), mismatches, hazards, None)


def _told(workload: int, context: int) -> tuple[float, float, float, float, float, PairJudgement, tuple[Token, ...]]:
    worse = (workload + context) % 7 == 0
    others = tuple(token("context", (context + step) % CONTEXTS) for step in (1, 2, 3)) if worse else ()
    return 0.9 * worse, 1.0 + worse, 0.5, 4.0, 20.0, PairJudgement.WORSE if worse else PairJudgement.NOT_WORSE, others


def token(kind: str, number: int) -> Token:
    """A token that stands for it."""
    return Token(f"{kind} {number}".encode().ljust(Token.length, b"\0"))


def labels(workload: int, context: int) -> dict[str, str]:
    """Of a lease."""
    told = {"subarchetype": token("workload", workload), "archetype": token("archetype", workload // 4)}
    told |= {"family": token("family", workload // 16)}
    told |= {"context": token("context", context), "context_level": token("level", context)}
    return {name: str(value) for name, value in told.items()}


# ---- the server ------------------------------------------------------------------------------------------------------


class OneHint:
    """Every tenant has one hint, and never another."""

    def after(self, tenant: TenantId, number: int) -> Sequence[Hint]:
        """It, to whoever has not seen it."""
        said = HintState.RAISED, Suspicion.MEMORY, 4.0, 2.0, 8.0, 0.3, 72.0, Action.CONFIRM, 1
        return () if number else (Hint(1, 500_000.5, LeaseId(tenant), *said),)

    def subscribe(self, callback: Callable[[TenantId], None]) -> None:
        """Nothing will ever be called."""

    def look(self) -> None:
        """There is nobody else."""


@dataclass(frozen=True)
class ServerLoad:
    """How large a server is, and how much CPU it has used."""

    resident_mib: float
    cpu_s: float


def _serve(grounds: Grounds, core: int, line: Connection) -> None:
    """Serves until the line is closed, and says how it is whenever it is asked."""
    from provider_server.rounds.online.service import serve_online
    from provider_server.rounds.online.sessions import Sessions, session_key

    settle(core)
    sessions = Sessions(session_key(grounds.provider_seed), time.time)
    with (
        closing(grounds.provider()) as provider,
        serve_online(
            provider,
            f"{HOST}:0",
            grounds.certificate_pem,
            grounds.key_pem,
            sessions=sessions,
            hints=OneHint(),
            take_outcome=lambda _tenant, _outcome: None,
        ) as server,
    ):
        line.send(server.port)
        while line.recv():
            gc.collect()
            line.send(ServerLoad(_resident_mib(), time.process_time()))


def settle(core: int) -> None:
    """This process on one core, with as many open files as it may have."""
    os.sched_setaffinity(0, {core})
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


@dataclass(frozen=True)
class ServerProcess:
    """A server on a core of its own."""

    port: int
    line: Connection

    def state(self) -> ServerLoad:
        """How it is now."""
        found: ServerLoad = asked(self.line, ask=True)
        return found


def asked(line: Connection, *, ask: Any = None) -> Any:
    """What a process of the study says next, or says to `ask`; TimeoutError if it says nothing for long."""
    if ask is not None:
        line.send(ask)
    if not line.poll(PATIENCE_S):
        raise TimeoutError("a process of the study does not answer")
    return line.recv()


@contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Runs `target(*arguments, line)`; it is told to end, and is gone, when the context ends."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(*arguments, there), daemon=True)
    process.start()
    there.close()
    try:
        yield here
        here.send(None)
        process.join(PATIENCE_S)
    finally:
        process.kill()
        process.join()
        here.close()


@contextmanager
def serving(grounds: Grounds) -> Iterator[ServerProcess]:
    """A server process on the first core that this process may use."""
    with process(_serve, grounds, cores()[0]) as line:
        yield ServerProcess(asked(line), line)


def cores() -> tuple[int, int]:
    """One for the server and one for the generators: the first and the last that this process may use."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]
