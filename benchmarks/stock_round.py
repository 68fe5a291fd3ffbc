"""Seconds per question round over the provider's SuperLink: TLS, authenticated nodes, SQLite. JSON on stdout.

    python benchmarks/stock_round.py [--json] [--nodes 4] [--rounds 10] [--bytes 80000]

All in one process, on the loopback: the provider's SuperLink with its state on disk, and the tenants' nodes with the
settings that they have by default. After all have joined
and answered once, each round puts one question to all and waits for all answers, of the given size. Reported are the
median and the slowest round; `target_seconds` is what the median must not exceed.
"""

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from federation.protocol.queries import Query
from provider_server.network.flower_app import server_app
from provider_server.network.superlink import SuperLink
from provider_server.week import Tenants
from tenant_client.network.flower_node import NodeSettings, make_node_key, serve
from tests.support.superlink import HOST, Certificates, certificates

TARGET_S = 2.0


@contextmanager
def connected(link: SuperLink, pem: Certificates, nodes: int, answer_bytes: int) -> Iterator[None]:
    """Nodes in threads that answer with so many random bytes."""
    answer, stop = os.urandom(answer_bytes), threading.Event()
    with ThreadPoolExecutor(nodes) as pool:
        running = []
        for _ in range(nodes):
            key = make_node_key()
            link.register(key.public_openssh)
            settings = NodeSettings(link.address, pem.authority, key.private_pem)
            running.append(pool.submit(serve, lambda _verb, _payload: answer, settings, stop=stop))
        try:
            yield
        finally:
            stop.set()
            for node in running:
                node.result()


def measure(nodes: int, rounds: int, answer_bytes: int) -> dict[str, Any]:
    """The figures of one SuperLink and its nodes."""
    seconds: list[float] = []

    def run(tenants: Tenants) -> None:
        for number in range(rounds + 1):
            began_s = time.perf_counter()
            answers = sum(len(answer) == answer_bytes for answer in tenants.ask(Query.CONTRIBUTION, b"plan"))
            if answers != nodes:
                raise RuntimeError(f"{answers} answers of {nodes} nodes in round {number}")
            seconds.append(time.perf_counter() - began_s)
            print(f"round {number}: {seconds[-1]:.2f} s", file=sys.stderr)

    with tempfile.TemporaryDirectory() as home:
        pem = certificates(Path(home))
        with SuperLink(pem.settings(Path(home) / "link.sqlite")) as link, connected(link, pem, nodes, answer_bytes):
            link.run(server_app(run, wanted=nodes))
    return {
        "nodes": nodes,
        "rounds": rounds,
        "answer_bytes": answer_bytes,
        "round_seconds": statistics.median(seconds[1:]),
        "slowest_seconds": max(seconds[1:]),
        "target_seconds": TARGET_S,
    }


def main() -> None:
    """Measures, and prints a line or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a line")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--bytes", type=int, default=80_000)
    options = parser.parse_args()
    os.environ["NO_PROXY"] = HOST
    logging.disable(logging.WARNING)
    found = measure(options.nodes, options.rounds, options.bytes)
    line = "{round_seconds:.2f} s per round of {nodes} nodes, target {target_seconds:.0f} s".format(**found)
    print(json.dumps(found) if options.json else line)


if __name__ == "__main__":
    main()
