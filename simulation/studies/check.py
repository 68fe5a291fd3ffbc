"""Measures the provider's online service: checks under load, and the cost of idle streams.

A server process, alone on one core, serves a provider with enrolled tenants and a bundle of 60 workloads on 20
contexts, over TLS on the loopback and under the limits of a real provider. Generators run on another core and sign in
as tenants do. Every hundredth answer is held against the check at home.

`p50_ms`, `p99_ms`        of checks that come at random, 500 a second, from the moment when each was due (open loop)
`requests_per_second`     as many as 64 callers get answered who ask again at once (closed loop)
`server_cpu`, `generator_cpu`  CPU seconds per second of both then; if neither is near 1, others had their cores
`local_ms`, `local_p99_ms`  of a check at home, with the bundle laid out
`memory_growth_mib`       of the server, resident, over `requests` checks after a first tenth to warm up
`idle_mib`                the server, resident, before anybody watches
`watchers_mib`            the server, resident, with `watchers`, each on a connection of its own and sent one hint
`watchers_shared_mib`     with as many, ten to a connection, in a fresh server

Not promised: other machines, networks that lose packets, or a provider that holds a round at the same time.
"""

import asyncio
import os
import random
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypedDict

import grpc
import numpy as np
import typer

from crypto.codec import decode, encode
from crypto.ids import LeaseId, TenantId, Token
from crypto.signing import SigningKey, reopened
from federation.protocol.check import Check, Checker
from federation.protocol.service_messages import CheckAnswer, CheckRequest, Hint, Session, SignIn, WatchRequest
from federation.protocol.services import ProviderMethod
from federation.transport.question import in_parts
from simulation.run.online_service import (
    CONTEXTS,
    HOST,
    WORKLOADS,
    Grounds,
    a_bundle,
    asked,
    cores,
    labels,
    process,
    serving,
    settle,
)
from simulation.studies.study import Quick, Table

FEWEST_TENANTS = 200  # so many may ask 10,000 times a second together
CALLERS, CONNECTIONS, SIGN_INS_AT_ONCE = 64, 8, 16
OPEN_LOOP_PER_S = 500.0
QUESTIONS = 4096
EVERY = 100  # so many answers are taken for one that is held against the check at home
SHARED = 10  # watchers on one connection


class Generator:
    """Asks a server over some connections as many tenants."""

    def __init__(self, grounds: Grounds, port: int, connections: int) -> None:
        self._tenants = grounds.tenants()
        self._checker = Checker(a_bundle())
        self._random = random.Random(1)  # noqa: S311  # which questions are asked is no secret
        self._asked = 0
        credentials = grpc.ssl_channel_credentials(grounds.certificate_pem)
        own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own for each channel
        self._channels = [grpc.aio.secure_channel(f"{HOST}:{port}", credentials, own) for _ in range(connections)]
        self._checks: list[Any] = [channel.unary_unary(ProviderMethod.CHECK) for channel in self._channels]

    async def sign_in(self) -> list[bytes]:
        """A session for every tenant, as a tenant gets it."""
        gate = asyncio.Semaphore(SIGN_INS_AT_ONCE)

        async def one(number: int, key: SigningKey, tenant: TenantId) -> bytes:
            async with gate:
                send: Any = self._channels[number % len(self._channels)].unary_unary(ProviderMethod.SIGN_IN)
                return decode(Session, await send(as_sent(key.sign(SignIn(tenant, int(time.time())))))).token

        return await asyncio.gather(*(one(number, *pair) for number, pair in enumerate(self._tenants)))

    def questions(self, sessions: Sequence[bytes]) -> list[tuple[bytes, Check]]:
        """Encoded, so that the generator has little to do, with the answers that must come."""
        made = []
        for number in range(QUESTIONS):
            of = labels(self._random.randrange(WORKLOADS), self._random.randrange(CONTEXTS))
            ladder = tuple(Token(bytes.fromhex(of[rung])) for rung in ("subarchetype", "archetype", "family"))
            places = Token(bytes.fromhex(of["context"])), Token(bytes.fromhex(of["context_level"]))
            asked = CheckRequest(sessions[number % len(sessions)], ladder, *places)
            made.append((as_sent(encode(asked)), self._checker.check(of)))
        return made

    async def ask(self, questions: Sequence[tuple[bytes, Check]]) -> None:
        """The next question; AssertionError, a bug of somebody, if the answer is not what it must be."""
        self._asked += 1
        question, expected = questions[self._asked % len(questions)]
        answer = await self._checks[self._asked % len(self._checks)](question)
        if self._asked % EVERY == 0:
            told = decode(CheckAnswer, answer)
            if Check.of(told.bundle, told.evidence, told.hazards) != expected:
                raise AssertionError("the service's check differs from the bundle's")

    async def open_loop(self, questions: Sequence[tuple[bytes, Check]], seconds: float) -> list[float]:
        """Seconds from when each question was due to its answer; questions are due at random."""
        taken: list[float] = []

        async def one(due_s: float) -> None:
            await self.ask(questions)
            taken.append(time.perf_counter() - due_s)

        asking, due_s = set(), time.perf_counter()
        end_s = due_s + seconds
        while (due_s := due_s + self._random.expovariate(OPEN_LOOP_PER_S)) < end_s:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            task = asyncio.create_task(one(due_s))
            asking.add(task)
            task.add_done_callback(asking.discard)
        await asyncio.gather(*asking)
        return taken

    async def closed_loop(self, questions: Sequence[tuple[bytes, Check]], requests: int) -> tuple[float, float]:
        """Requests per second and CPU seconds per second of this process, with as many callers as there are."""
        begun = self._asked

        async def caller() -> None:
            while self._asked - begun < requests:
                await self.ask(questions)

        wall_s, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        wall_s = time.perf_counter() - wall_s
        return (self._asked - begun) / wall_s, (time.process_time() - cpu_s) / wall_s

    async def watch(self, sessions: Sequence[bytes], each: int) -> list[Any]:
        """Watchers, `each` on every connection, all of which have had their hint and now wait for another."""
        streams: list[Any] = []
        for number, channel in enumerate(self._channels):
            send: Any = channel.unary_stream(ProviderMethod.WATCH)
            request = as_sent(encode(WatchRequest(sessions[number % len(sessions)], 0)))
            begun = [send(request) for _ in range(each)]
            for stream in begun:
                if reopened(Hint, await stream.read()).lease != LeaseId(self._tenants[number % len(sessions)][1]):
                    raise AssertionError("a watcher got a hint of another tenant")
            streams += begun
        return streams


def as_sent(question: bytes) -> bytes:
    """A question as `federation.transport.client` sends it; these all have one part."""
    (part,) = in_parts(question)
    return part


def _checks(grounds: Grounds, port: int, core: int, line: Connection) -> None:
    """A generator of checks: is told what to do, and answers with what it has measured."""
    settle(core)

    async def generate() -> None:
        generator = Generator(grounds, port, CONNECTIONS)
        questions = generator.questions(await generator.sign_in())
        line.send("ready")
        while order := await asyncio.to_thread(line.recv):
            kind, amount = order
            measure = generator.open_loop if kind == "open" else generator.closed_loop
            line.send(await measure(questions, amount))
        os._exit(0)  # grpc.aio leaves its loop in bad order

    asyncio.run(generate())


def _watches(grounds: Grounds, port: int, core: int, connections: int, each: int, line: Connection) -> None:
    """A generator of watchers, until it is told to end."""
    settle(core)

    async def generate() -> None:
        signed_in = await Generator(grounds, port, 1).sign_in()
        streams = await Generator(grounds, port, connections).watch(signed_in, each)
        await asyncio.sleep(1.0)
        line.send(sum(not stream.done() for stream in streams))
        await asyncio.to_thread(line.recv)
        os._exit(0)  # nor does anybody wait for thousands of streams to end

    asyncio.run(generate())


# ---- the figures -----------------------------------------------------------------------------------------------------


class UnderLoad(TypedDict):
    """The service under load."""

    p50_ms: float
    p99_ms: float
    requests_per_second: float
    server_cpu: float
    generator_cpu: float
    memory_growth_mib: float


class CheckFigures(UnderLoad):
    """All figures; `local` are those of a check without the service."""

    local_ms: float
    local_p99_ms: float
    requests: int
    watchers: int
    idle_mib: float
    watchers_mib: float
    watchers_shared_mib: float


def check(seconds: float, requests: int, watchers: int) -> CheckFigures:
    """All figures: the open loop for `seconds`, the closed one over `requests`, and so many who watch."""
    with TemporaryDirectory(prefix="pharoah-bench-") as folder:
        grounds = Grounds.founded(Path(folder), max(FEWEST_TENANTS, watchers // SHARED))
        under_load = _under_load(grounds, seconds, requests)
        idle_mib, watchers_mib = _watched(grounds, watchers, 1)
        _, shared_mib = _watched(grounds, watchers, SHARED)
    half_ms, most_ms = _quantiles_ms(_local_s())
    return {
        **under_load,
        "local_ms": half_ms,
        "local_p99_ms": most_ms,
        "requests": requests,
        "watchers": watchers,
        "idle_mib": idle_mib,
        "watchers_mib": watchers_mib,
        "watchers_shared_mib": shared_mib,
    }


def _under_load(grounds: Grounds, seconds: float, requests: int) -> UnderLoad:
    with serving(grounds) as server, process(_checks, grounds, server.port, cores()[1]) as generator:
        asked(generator)
        asked(generator, ask=("closed", max(1, requests // 10)))
        taken_s = asked(generator, ask=("open", seconds))
        before = server.state()
        per_second, generator_cpu = asked(generator, ask=("closed", requests))
        after = server.state()
    half_ms, most_ms = _quantiles_ms(taken_s)
    return {
        "p50_ms": half_ms,
        "p99_ms": most_ms,
        "requests_per_second": per_second,
        "server_cpu": (after.cpu_s - before.cpu_s) * per_second / requests,
        "generator_cpu": generator_cpu,
        "memory_growth_mib": after.resident_mib - before.resident_mib,
    }


def _watched(grounds: Grounds, watchers: int, each: int) -> tuple[float, float]:
    """The size of a fresh server before and with its watchers."""
    connections = max(1, watchers // each)
    with serving(grounds) as server:
        idle_mib = server.state().resident_mib
        with process(_watches, grounds, server.port, cores()[1], connections, each) as generator:
            alive = asked(generator)
            if alive < connections * each:
                raise AssertionError(f"only {alive} of {connections * each} watchers are left")
            return idle_mib, server.state().resident_mib


def _local_s() -> list[float]:
    checker, chosen, taken = Checker(a_bundle()), random.Random(1), []  # noqa: S311  # no secret
    for _ in range(20_000):
        of = labels(chosen.randrange(WORKLOADS), chosen.randrange(CONTEXTS))
        begun_s = time.perf_counter()
        checker.check(of)
        taken.append(time.perf_counter() - begun_s)
    return taken


def _quantiles_ms(taken_s: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    half, most = np.quantile(taken_s, (0.5, 0.99))
    return 1000.0 * float(half), 1000.0 * float(most)


def run(
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds of checks at random times, 500 a second.")] = 30.0,
    requests: Annotated[int, typer.Option(min=100, help="Number of checks that saturate the service.")] = 200_000,
    watchers: Annotated[int, typer.Option(min=20, help="Number of idle streams, each on its own connection.")] = 10_000,
    *,
    quick: Quick = False,
) -> Table:
    """The provider's online service: latency and throughput of checks, memory, and the cost of idle streams."""
    return Table(check(0.5, 400, 40) if quick else check(seconds, requests, watchers))
