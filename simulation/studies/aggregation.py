"""Secure sums compared with Flower's SecAgg+ on the same vectors in one run; every cell of both sums is checked.

A row is one round of `n` clients without drop-outs, everything one after the other in this process and thread. Both
sides are given a transport, vectors and serialised wires that cost nothing but themselves: vectors are made, and
messages carried, outside every clock.

*Ours* (`crypto.masking`): each client makes a key, agrees on a key with each of three trustees, masks and serialises;
the server adds as vectors arrive; each trustee sums its masks; the server takes them off. Without noise (SecAgg+ has
none), signatures, codec, ledger and database.

*Flower's* (flwr, legacy): its own `secaggplus_mod` at the clients and its own `SecAggPlusWorkflow` at the server, all
four stages: keys, shares to 14 neighbours of which 8 reconstruct, masking, unmasking. With its quantisation, which
cannot be switched off; its parameters are those that make it exact for counts below 2^20 and n < 2^11. Without the
average over clients that a strategy takes afterwards, which is not needed for a sum.

`client_cpu_seconds`    CPU seconds of one client, the mean over clients
`trustee_cpu_seconds`   CPU seconds of one trustee, the mean over trustees (SecAgg+ has none)
`server_seconds`        seconds of the server
`wall_seconds`          seconds of all clients, trustees and the server together
`bytes_up`              bytes that one client sends: its masked words
`flower_…`              the same of SecAgg+; null where it was not run

Not promised: that networks, many cores or other machines show the same ratios.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitRes, Parameters, Scalar, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat
from flwr.server import LegacyContext
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

from crypto.ids import Digest, RoundId
from crypto.masking import MaskKey, mask_cells, sum_of_masks, words_from_bytes, words_to_bytes
from federation.protocol.noise import Integers
from simulation.run.local_grid import RUN_ID, LocalGrid, local_task
from simulation.run.streams import streams
from simulation.studies.study import Quick, Table, tracked

TRUSTEES = 3
LARGEST_COUNT = 1000
BESIDE_FLOWER = (100, 10_000), (100, 100_000), (100, 1_000_000)
ALONE = (1_000, 100_000), (10_000, 10_000)
QUICK_BESIDE_FLOWER, QUICK_ALONE = ((16, 1_000),), ((50, 1_000),)

NEIGHBOURS, RECONSTRUCTION = 15, 8  # SecAgg+'s shares per key, its owner's included, and how many of them suffice
QUANTISATION = 2**21  # with a clipping range of half of it and all weights equal, SecAgg+ is exact for whole numbers

Counts = Callable[[int], Integers]


class Clock:
    """Adds up seconds by the wall and seconds of CPU."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts what happens inside."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu


@dataclass(frozen=True)
class Row:
    """One round of each side; units are in the names."""

    n: int
    length: int
    client_cpu_seconds: float
    trustee_cpu_seconds: float
    server_seconds: float
    wall_seconds: float
    bytes_up: int
    flower_client_cpu_seconds: float | None = None
    flower_server_seconds: float | None = None
    flower_wall_seconds: float | None = None


@dataclass(frozen=True)
class Rows:
    """All rounds, in order of size."""

    rows: tuple[Row, ...]


def aggregation(*, quick: bool) -> Iterator[Row]:
    """The rows in order of size; with `quick` small ones, which show that it runs and nothing else."""
    for n, length in QUICK_BESIDE_FLOWER if quick else BESIDE_FLOWER:
        yield measure(n, length, flower=True)
    for n, length in QUICK_ALONE if quick else ALONE:
        yield measure(n, length, flower=False)


def run(*, quick: Quick = False) -> Table:
    """Secure sums, compared with Flower's SecAgg+ on the same vectors, and alone with 1,000 and 10,000 clients."""
    total = len(QUICK_BESIDE_FLOWER + QUICK_ALONE if quick else BESIDE_FLOWER + ALONE)
    return Table(Rows(tuple(tracked(aggregation(quick=quick), total, "rounds"))))


def measure(n: int, length: int, *, flower: bool) -> Row:
    """One row; ArithmeticError if a sum is not that of the vectors."""

    def counts(client: int) -> Integers:
        return np.random.default_rng(client).integers(0, LARGEST_COUNT, length)

    truth = np.zeros(length, np.int64)
    for client in range(n):
        truth += counts(client)
    own = committee_round(n, counts, truth)
    return Row(n, length, *own, *(secaggplus_round(n, counts, truth) if flower else ()))


def check(side: str, total: Integers, truth: Integers) -> None:
    """ArithmeticError unless both are equal in every cell."""
    wrong = int(np.count_nonzero(total != truth))
    if wrong:
        raise ArithmeticError(f"the sum of {side} is wrong in {wrong} of {len(truth)} cells")


# ---- ours ------------------------------------------------------------------------------------------------------------


def committee_round(n: int, counts: Counts, truth: Integers) -> tuple[float, float, float, float, int]:
    """Client CPU, trustee CPU, server and wall seconds, and bytes up per client."""
    trustees = [MaskKey.generate(os.urandom) for _ in range(TRUSTEES)]
    keys = [trustee.public for trustee in trustees]
    round_id, plan = RoundId(os.urandom(16)), Digest(os.urandom(32))
    total, publics, sent = np.zeros(len(truth), np.uint64), [], 0
    clients, server, committee = Clock(), Clock(), Clock()
    for number in range(n):
        cells = counts(number).astype(np.uint64)
        with clients.running():
            key = MaskKey.generate(os.urandom)
            own = [one for (one,) in streams(round_id, plan, [(number, key.public)], keys)]
            wire = words_to_bytes(mask_cells(cells, key, own))
        with server.running():
            total += words_from_bytes(wire)
        publics.append(key.public)
        sent += len(wire)
    for trustee, shared in zip(trustees, streams(round_id, plan, list(enumerate(publics)), keys), strict=True):
        with committee.running():
            wire = words_to_bytes(sum_of_masks(trustee, shared, len(truth)))
        with server.running():
            total -= words_from_bytes(wire)
    check("the committee", total.astype(np.int64), truth)
    wall = clients.wall + server.wall + committee.wall
    return clients.cpu / n, committee.cpu / TRUSTEES, server.wall, wall, sent // n


# ---- Flower's --------------------------------------------------------------------------------------------------------


class SecAggClient(ClientApp):
    """Flower's mod around a client that has its vector already; `clock` runs while the mod does."""

    def __init__(self, vector: Callable[[], Integers], clock: Clock, making: Clock) -> None:
        super().__init__()
        self._vector, self._clock, self._making = vector, clock, making

    def __call__(self, message: Message, context: Context) -> Message:
        """One stage."""
        with self._clock.running():
            return secaggplus_mod(message, context, self._fit)

    def _fit(self, message: Message, _: Context) -> Message:
        with self._making.running():
            parameters = ndarrays_to_parameters([self._vector().astype(np.float64)])
            result = FitRes(Status(Code.OK, ""), parameters, 1, {})
            return Message(recorddict_compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)


class ClockedGrid(LocalGrid):
    """A grid whose `away` runs while the server waits for clients and messages."""

    def __init__(self, apps: dict[int, ClientApp]) -> None:
        super().__init__(apps)
        self.away = Clock()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As a local grid."""
        with self.away.running():
            return list(super().send_and_receive(messages, timeout=timeout))


class TakeTheSum(FedAvg):
    """All clients take part, and what the workflow computed is the result."""

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """The workflow has put its average into every result."""
        return results[0][1].parameters, {}


def secaggplus_round(n: int, counts: Counts, truth: Integers) -> tuple[float, float, float]:
    """Client CPU, server and wall seconds of Flower's own code."""
    clients, making = Clock(), Clock()
    grid = ClockedGrid({number + 1: _client(counts, number, clients, making) for number in range(n)})
    whole = Clock()
    with local_task(), _silence():
        context = _legacy_context(grid, n)
        workflow = SecAggPlusWorkflow(
            NEIGHBOURS,
            RECONSTRUCTION,
            max_weight=1.0,
            clipping_range=QUANTISATION / 2,
            quantization_range=QUANTISATION,
        )
        with whole.running():
            workflow(grid, context)
    check("SecAgg+", _sum_in(context, n), truth)
    server = whole.wall - grid.away.wall
    return (clients.cpu - making.cpu) / n, server, server + clients.wall - making.wall


def _client(counts: Counts, number: int, clock: Clock, making: Clock) -> ClientApp:
    return SecAggClient(lambda: counts(number), clock, making)


def _legacy_context(grid: LocalGrid, n: int) -> LegacyContext:
    """What the workflow expects of Flower's legacy server: a round's number, first parameters, and who is there."""
    base = Context(run_id=RUN_ID, node_id=0, node_config={}, state=RecordDict(), run_config={})
    strategy = TakeTheSum(fraction_evaluate=0.0, min_fit_clients=n, min_available_clients=n)
    context = LegacyContext(base, strategy=strategy)
    for node_id in grid.get_node_ids():
        context.client_manager.register(GridClientProxy(node_id, grid, RUN_ID))
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    first = recorddict_compat.parameters_to_arrayrecord(ndarrays_to_parameters([np.zeros(1)]), keep_input=True)
    context.state.array_records[MAIN_PARAMS_RECORD] = first
    return context


def _sum_in(context: LegacyContext, n: int) -> Integers:
    record = context.state.array_records[MAIN_PARAMS_RECORD]
    (average,) = parameters_to_ndarrays(recorddict_compat.arrayrecord_to_parameters(record, keep_input=True))
    total: Integers = np.rint(average * n).astype(np.int64)
    return total


@contextmanager
def _silence() -> Iterator[None]:
    """Flower tells each stage on stderr; only warnings are of interest here."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
