"""What a round costs each party as tenants and cells grow.

A row is one round of `simulation.studies.scale_round`, in a process of its own. Where all contributions together would
be larger than the bound, a round with fewer contributors is held, and one with half as many of them says what each
further tenant costs: such a row has `measured_tenants` below `tenants`.

`tenant_cpu_seconds`       one answer of a tenant whose service has answered before: policy, price, ledger, noise, masks
`first_answer_cpu_seconds` the same where the process makes its tables of noise for the first time
`trustee_cpu_seconds`      one trustee: it checks every contribution, endorses, and sums its masks
`provider_cpu_seconds`     the provider: it receives, checks, stores, and adds
`tenant_bytes`             what a tenant sends
`trustee_bytes`            what a trustee receives and sends
`provider_bytes`           what the provider receives from all, and sends to trustees
`peak_memory_bytes`        all parties of the measured round, in one process

`speeds` compares, for one tenant, the masks of all vectors for three trustees with the cipher alone on as many bytes,
and with drawing the noise. SecAgg+ stands beside ours in `study aggregation`.

Not promised: that a line holds beyond memory, or the seconds on another machine.
"""

import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from crypto.ids import Digest, RoundId
from crypto.masking import MaskKey, sum_of_masks
from federation.protocol.noise import SystemSampler, noise_share
from simulation.run.streams import streams
from simulation.studies.scale_round import MASKING, REAL_TENANTS, Costs, Keys, cells_plan, measure
from simulation.studies.study import Quick, Table, tracked

TENANTS, CELLS = (100, 1_000, 10_000), (10_000, 1_000_000)
QUICK_TENANTS, QUICK_CELLS = (10, 40), (400,)
FEWEST = 2 * (REAL_TENANTS + 1)  # half of them must be more than the real ones; and a cohort has ten
GIGABYTE = 10**9
_STREAM_BYTES = 2**16


class ScaleRow(msgspec.Struct, frozen=True):
    """One round; trustee's and provider's figures are for all `tenants`, memory is that of `measured_tenants`."""

    tenants: int
    cells: int
    measured_tenants: int
    vectors: int
    tenant_cpu_seconds: float
    first_answer_cpu_seconds: float
    trustee_cpu_seconds: float
    provider_cpu_seconds: float
    tenant_bytes: int
    trustee_bytes: int
    provider_bytes: int
    peak_memory_bytes: int


class SpeedRow(msgspec.Struct, frozen=True):
    """One tenant's masks beside the cipher on as many bytes, and its noise; seconds of CPU."""

    cells: int
    vectors: int
    cipher_cpu_seconds: float
    mask_cpu_seconds: float
    noise_cpu_seconds: float


class ScaleFigures(msgspec.Struct, frozen=True):
    """Of `study scale`."""

    rows: tuple[ScaleRow, ...]
    speeds: tuple[SpeedRow, ...]


def sizes(*, quick: bool) -> list[tuple[int, int]]:
    """Tenants and cells of each row, in order."""
    tenants, cells = (QUICK_TENANTS, QUICK_CELLS) if quick else (TENANTS, CELLS)
    return [(many, table) for table in cells for many in tenants]


def rows(bound_bytes: float, *, quick: bool) -> Iterator[ScaleRow]:
    """One row after the other; `bound_bytes` bounds the contributions of a round that is held."""
    for size in sizes(quick=quick):
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # its memory is that of this row alone
            yield fresh.submit(row, *size, bound_bytes).result()


def row(tenants: int, cells: int, bound_bytes: float) -> ScaleRow:
    """One row, in this process."""
    keys = Keys.fresh(tenants)
    words = cells_plan(keys, cells).words
    held = min(tenants, max(FEWEST, int(bound_bytes / (8 * words))))
    costs = _held(keys, cells, held)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if held < tenants:
        costs = extended(_held(keys, cells, held // 2), held // 2, costs, held, tenants)
    return ScaleRow(
        tenants,
        cells,
        held,
        words // cells,
        costs.tenant_cpu_seconds,
        costs.first_answer_cpu_seconds,
        costs.trustee_cpu_seconds,
        costs.provider_cpu_seconds,
        costs.tenant_bytes,
        costs.trustee_bytes,
        costs.provider_bytes,
        memory,
    )


def _held(keys: Keys, cells: int, contributors: int) -> Costs:
    with tempfile.TemporaryDirectory(prefix="pharoah-") as root:
        return measure(keys, Path(root), cells, contributors)


def extended(first: Costs, few: int, more: Costs, many: int, tenants: int) -> Costs:
    """The costs of a round of `tenants` from one of `many`, and from one with `few`.

    Each further tenant costs what each of the smaller round does: seconds are not taken from the difference of two
    rounds, which is smaller than what they vary by. Bytes, which do not vary, are.
    """
    further = tenants - many

    def bytes_at(low: int, high: int) -> int:
        return round(high + (high - low) / (many - few) * further)

    return replace(
        more,
        trustee_cpu_seconds=more.trustee_cpu_seconds + first.trustee_cpu_seconds / few * further,
        provider_cpu_seconds=more.provider_cpu_seconds + first.provider_cpu_seconds / few * further,
        trustee_bytes=bytes_at(first.trustee_bytes, more.trustee_bytes),
        provider_bytes=bytes_at(first.provider_bytes, more.provider_bytes),
    )


# ---- masks beside the cipher ----------------------------------------------------------------------------------------


def speed(cells: int) -> SpeedRow:
    """The best of three for each of the three, as they are interleaved with what else a machine does."""
    plan = cells_plan(Keys.fresh(TENANTS[0]), cells)
    key, trustees = MaskKey.generate(os.urandom), [MaskKey.generate(os.urandom).public for _ in range(MASKING)]
    own = [one for (one,) in streams(RoundId(bytes(16)), Digest(bytes(32)), [(1, key.public)], trustees)]
    sampler = SystemSampler()
    for part in plan.shares.parts:  # makes the tables
        noise_share(plan, sampler, part)
    return SpeedRow(
        cells,
        plan.vectors,
        _best(lambda: _cipher(8 * plan.words * MASKING)),
        _best(lambda: sum_of_masks(key, own, plan.words)),
        _best(lambda: [noise_share(plan, sampler, part) for part in plan.shares.parts]),
    )


def _best(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(3):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def _cipher(size: int) -> None:
    stream = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()
    zeros, block = memoryview(bytes(_STREAM_BYTES)), bytearray(_STREAM_BYTES)
    for _ in range(-(-size // _STREAM_BYTES)):
        stream.update_into(zeros, block)


def speeds(*, quick: bool) -> tuple[SpeedRow, ...]:
    """One row for each size of a table."""
    return tuple(speed(cells) for cells in (QUICK_CELLS if quick else CELLS))


def run(
    gigabytes: Annotated[
        float, typer.Option(min=0.001, help="Hold no round whose contributions are larger; extend a line instead.")
    ] = 1.0,
    *,
    quick: Quick = False,
) -> Table:
    """CPU, bytes and memory of a round for each party, with up to 10,000 tenants and a million cells."""
    held = tracked(rows(gigabytes * GIGABYTE, quick=quick), len(sizes(quick=quick)), "rounds")
    return Table(ScaleFigures(tuple(held), speeds(quick=quick)))
