"""Checks of the online service behind nginx, over PostgreSQL, with one process and with two. JSON on stdout.

    python -m benchmarks.online_processes [--small]

Processes (`pharoah-provider online`) and the balancer (nginx with `ops/nginx/online.conf`) are those of operators. 64
callers ask again at once, for 200 tenants over 16 connections; every hundredth answer is held against the check at
home.

`requests_per_second`       of wall time: what this machine lets through, whose cores nginx, PostgreSQL, callers and all
                            else on it share
`cpu_ms_per_check`          of all processes of the service together
`requests_per_core_second`  what that makes for a core of its own
`cpu_shares`                of that CPU, by process

Needs PostgreSQL, and nginx with its stream module.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figures import Figure, show
from crypto.roots import root_of
from crypto.signing import SigningKey
from federation.runtime.key_files import read_key
from provider_server import home as homes
from simulation.bench.check import Generator
from simulation.run.node_fleet import cpu_seconds
from simulation.run.online_service import HOST, Grounds
from simulation.run.processes import environment, free_ports
from tests import needs
from tests.support import postgres
from tests.support.nginx import nginx
from tests.support.waiting import until

TENANTS, CONNECTIONS, REQUESTS, FEW = 200, 16, 20_000, 500
PORTS = 8544, 8545, 8444  # of ops/nginx/online.conf: two processes, and nginx


def checks(processes: int, requests: int) -> Figure:
    """So many processes, asked so often."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="pharoah-bench-")))
        database = stack.enter_context(postgres.running(needs.program("postgres").parent)).new_place()
        home = folder / "home"
        homes.create(home, [HOST], os.urandom, datetime.now(UTC))
        key = SigningKey(read_key(home / "signing.key"))
        grounds = Grounds.founded(folder, TENANTS, provider_seed=read_key(home / "signing.key"), database=database)
        ports = stack.enter_context(free_ports(HOST, len(PORTS)))
        running = [stack.enter_context(online(home, database, port)) for port in ports[:processes]]
        stack.enter_context(nginx("online.conf", dict(zip(PORTS, ports, strict=True))))
        sys.stderr.write(f"{processes} processes serve\n")
        seen = replace(grounds, certificate_pem=root_of(key.public))
        per_second, before, after = asyncio.run(_asked(seen, ports[-1], requests, [each.pid for each in running]))
    used = [now - then for now, then in zip(after, before, strict=True)]
    return {
        "figure": "online_processes",
        "processes": processes,
        "requests": requests,
        "requests_per_second": per_second,
        "cpu_ms_per_check": 1000 * sum(used) / requests,
        "requests_per_core_second": requests / sum(used),
        "cpu_shares": [one / sum(used) for one in used],
    }


async def _asked(grounds: Grounds, port: int, requests: int, pids: list[int]) -> tuple[float, list[float], list[float]]:
    """Checks per second, and CPU seconds of the processes before and after."""
    generator = Generator(grounds, port, CONNECTIONS)
    questions = generator.questions(await generator.sign_in())
    await generator.closed_loop(questions, requests // 10)
    before = [cpu_seconds(pid) for pid in pids]
    per_second, _ = await generator.closed_loop(questions, requests)
    return per_second, before, [cpu_seconds(pid) for pid in pids]


@contextmanager
def online(home: Path, database: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """One process of the service, which listens there."""
    command = [sys.executable, "-m", "provider_server", "online", "--home", str(home), "--listen", f"{HOST}:{port}"]
    log = home.parent / f"{port}.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stderr=output, env=environment() | {"PHAROAH_DATABASE": database}) as process,
    ):
        try:
            until(lambda: process.poll() is not None or b'"serving"' in log.read_bytes(), "the service listens")
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - {"--small"}:
        sys.exit(f"online_processes.py: error: no option {sorted(unknown)}\nhint: --small")
    show(checks(processes, FEW if "--small" in sys.argv else REQUESTS) for processes in (1, 2))
    sys.stdout.flush()
    os._exit(0)  # grpc.aio leaves its loop in bad order
