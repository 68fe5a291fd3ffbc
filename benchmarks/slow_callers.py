"""1,000 silent or slow connections from one address to the tenants' port, and 100 calls of honest nodes. JSON lines.

    python benchmarks/slow_callers.py [--json] [--attackers 1000] [--calls 100]

A SuperLink over TLS in this process, with the limits that it has by default; the attackers are another process. For
each way of being slow (`tests.support.slow_callers.WAYS`) they connect from one address and hold what they have;
whoever is cut off connects again at once in the rows that say so. Meanwhile ten registered nodes make the calls, each
over a new connection, from another address and then from the attackers' own. Reported are the calls that were answered,
the slowest of them, how many attackers were cut off, and the longest that one held its connection.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node

from federation.transport.flower_wire import FLEET
from provider_server.network.connections import DEFAULT_LIMITS
from provider_server.network.superlink import SuperLink
from tenant_client.network.flower_node import NodeKey, make_node_key
from tests.support.slow_callers import WAYS, holding
from tests.support.superlink import HOST, Certificates, activation, certificates, headers, post

NODES = 10
ELSEWHERE = "127.0.0.2"
PATIENCE_S = 2 * DEFAULT_LIMITS.begin_s
TARGET_S = 10.0


def attack(orders: Connection) -> None:
    """The attackers' process: it is told where, how, how many, from where and whether again, and at last nothing."""
    while told := orders.recv():
        orders.send(attacked(orders, told))


def attacked(orders: Connection, told: dict[str, Any]) -> tuple[int, int, float]:
    """Connections opened, connections cut off, and the longest time that one was held, in seconds."""
    with holding(**told) as attack:
        orders.send("begun")
        orders.recv()
        if not told["again"]:
            attack.wait_until(lambda: attack.cut >= told["many"], PATIENCE_S)
        return attack.opened, attack.cut, max(attack.held_s, default=0.0)


@contextmanager
def attackers() -> Iterator[Connection]:
    """Another process, which attacks as it is told."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=attack, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        ours.send(None)
        process.join()


def calls(link: SuperLink, pem: Certificates, nodes: list[tuple[NodeKey, bytes]], many: int) -> list[tuple[int, float]]:
    """Status (0 for none) and seconds of so many calls, a few at a time."""

    def call(number: int) -> tuple[int, float]:
        key, body = nodes[number % len(nodes)]
        began_s = time.perf_counter()
        try:
            status = post(link.address, pem, FLEET + "pull-messages", body, headers(key))
        except httpx.HTTPError:
            status = 0
        return status, time.perf_counter() - began_s

    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(call, range(many)))


def registered(link: SuperLink, pem: Certificates) -> tuple[NodeKey, bytes]:
    """A node that has joined, and what it asks."""
    key = make_node_key()
    node_id = link.register(key.public_openssh)
    post(link.address, pem, FLEET + "activate-node", activation(key), headers(key))
    return key, PullMessagesRequest(node=Node(node_id=node_id)).SerializeToString()


def measure(many: int, asked: int) -> Iterator[dict[str, Any]]:
    """One row for each way, address, and whether attackers come again."""
    with tempfile.TemporaryDirectory() as folder, attackers() as orders:
        home = Path(folder)
        pem = certificates(home / "tls")
        with SuperLink(pem.settings(home / "link.sqlite")) as link:
            nodes = [registered(link, pem) for _ in range(NODES)]
            for way in WAYS:
                for source, again in ((ELSEWHERE, False), (HOST, False), (ELSEWHERE, True)):
                    told = {"address": link.address, "way": way, "many": many, "source": source, "again": again}
                    orders.send(told)
                    orders.recv()
                    answers = calls(link, pem, nodes, asked)
                    orders.send("end")
                    opened, cut, longest_s = orders.recv()
                    yield {
                        "way": way,
                        "same_address": source == HOST,
                        "come_again": again,
                        "attackers": many,
                        "opened": opened,
                        "cut_off": cut,
                        "longest_held_s": round(longest_s, 1),
                        "calls": asked,
                        "answered": sum(status == 200 for status, _ in answers),
                        "median_s": round(sorted(took for _, took in answers)[asked // 2], 3),
                        "slowest_s": round(max(took for _, took in answers), 3),
                        "target_seconds": TARGET_S,
                    }


def main() -> None:
    """Prints the figures as they come."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line, which is the default too")
    parser.add_argument("--attackers", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=100)
    asked = parser.parse_args()
    for row in measure(asked.attackers, asked.calls):
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
