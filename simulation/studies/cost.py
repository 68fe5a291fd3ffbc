"""What the project's own parts cost: the help, masks, noise, tokens, the codec and the learner, most beside a peer.

Times are of one machine: compare them with the peer that is measured in the same run, not with those of another day.
`codec` is CPU time, its peer msgpack alone, which builds untyped lists, checks nothing and knows of no signature.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgpack
import numpy as np
from numpy.typing import NDArray

from crypto import discrete_gaussian
from crypto.codec import Message, decode, encode
from crypto.ids import Digest, EncodedElement, Nonce, RoundId
from crypto.masking import MaskKey, mask_cells, sum_of_masks
from crypto.signing import SigningKey
from federation.protocol.directory import NOTHING_BEFORE, DirectoryEntry, Member
from federation.protocol.life_table import Dimension, LifeTable
from federation.protocol.noise import SystemSampler
from federation.protocol.round_messages import Contribution, ContributionHeader
from federation.protocol.seats import TrusteeRecord
from provider_server.fleet.analysis.mismatch import find_mismatches
from simulation.run.federation import make_group_key
from simulation.run.streams import streams
from simulation.studies.study import Figures, Only, Table, fastest, figures

MEMBERS, CELLS, RUNS = 1_000, 100_000, 60


def help_seconds() -> Figures:
    """`pharoah-tenant --help`, start to end, median of seven; the bare interpreter beside it."""
    return {
        "seconds": _median_seconds([str(Path(sys.executable).with_name("pharoah-tenant")), "--help"]),
        "python_alone": _median_seconds([sys.executable, "-c", ""]),
    }


def _median_seconds(command: list[str]) -> float:
    def once() -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began

    return statistics.median(once() for _ in range(7))


def masking() -> Figures:
    """A tenant's and a trustee's work for one million cells, against the mask expansion of Flower's SecAgg+.

    SecAgg+ expands one mask per neighbour, 15 at 100 clients; the committee needs three for any number of tenants.
    """
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    cells, trustees = 1_000_000, [MaskKey.generate(os.urandom) for _ in range(3)]
    key, round_id, plan = MaskKey.generate(os.urandom), RoundId(bytes(16)), Digest(bytes(32))
    vector = np.zeros(cells, np.uint64)
    shared = streams(round_id, plan, [(number, key.public) for number in range(10)], [each.public for each in trustees])
    tenant = fastest(lambda: mask_cells(vector, key, [first for first, *_ in shared]))
    trustee = fastest(lambda: sum_of_masks(trustees[0], shared[0], cells)) / 10
    peer = fastest(lambda: [pseudo_rand_gen(os.urandom(32), 1 << 32, [(cells,)]) for _ in range(15)])
    return {
        "cells": cells,
        "tenant_ms": 1e3 * tenant,
        "trustee_ms_per_tenant": 1e3 * trustee,
        "secaggplus_client_ms": 1e3 * peer,
        "times_faster": peer / tenant,
    }


def noise() -> Figures:
    """Microseconds per cell of a tenant's share, and seconds for a large table beside OpenDP's exact sampler.

    `gaussian_us` is a share of a discrete Gaussian, `laplace_us` one of a discrete Laplace; making the Gaussian's table
    of probabilities is `table_seconds`.
    """
    sampler, cells, large, scale = SystemSampler(), 20_000, 1_000_000, 300.0
    sampler.laplace_share(2.0, 39, 1)
    gaussian = fastest(lambda: sampler.gaussian(scale, cells))
    laplace = fastest(lambda: sampler.laplace_share(2.0, 39, cells))
    table_seconds = fastest(lambda: discrete_gaussian.table.__wrapped__(scale))
    fast = fastest(lambda: sampler.gaussian(scale, large))
    opendp = fastest(lambda: _opendp_gaussian(scale, large), repeats=2)
    return {
        "gaussian_us": 1e6 * gaussian / cells,
        "laplace_us": 1e6 * laplace / cells,
        "large_cells": large,
        "table_seconds": table_seconds,
        "large_gaussian_seconds": fast,
        "large_gaussian_opendp_seconds": opendp,
        "times_faster": opendp / fast,
    }


def _opendp_gaussian(scale: float, size: int) -> object:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return (space >> dp.m.then_gaussian(scale=scale))([0] * size)


def tokens() -> Figures:
    """Milliseconds for the twenty tokens of a ladder: 3 of 5 trustees, proofs made and verified."""
    from crypto import threshold, voprf

    shares, group = make_group_key()
    inputs = [bytes([number]) for number in range(20)]

    def ladder() -> tuple[bytes, ...]:
        blinding = voprf.blind(inputs, os.urandom)
        answers = {
            share.index: voprf.blind_evaluate(share.secret, blinding.elements, os.urandom) for share in shares[:3]
        }
        return voprf.finalize(blinding, threshold.combine_evaluations(group, blinding.elements, answers))

    return {"ladder_ms": 1e3 * fastest(ladder)}


def codec() -> Figures:
    """Milliseconds of CPU to decode a directory of 1,000 members and a contribution of 100,000 cells, canonically."""
    return {"directory": _decoded(_directory()), "contribution": _decoded(_contribution())}


def _directory() -> DirectoryEntry:
    """As it is founded."""
    signing, mask, share = SigningKey.generate(os.urandom), MaskKey.generate(os.urandom), EncodedElement(os.urandom(32))
    members = [Member.of(SigningKey.generate(os.urandom), MaskKey.generate(os.urandom), 0) for _ in range(MEMBERS)]
    trustee = TrusteeRecord.of(1, signing, mask, share, made_hour=0)
    return DirectoryEntry(0, NOTHING_BEFORE, signing.public, 1, share, (trustee,), 52, tuple(members), ())


def _contribution() -> Contribution:
    """As it travels; its signature is not looked at here."""
    key = SigningKey.generate(os.urandom)
    tenant = Member.of(key, MaskKey.generate(os.urandom), 0).tenant
    named = Digest(bytes(32))
    header = ContributionHeader(tenant, RoundId(bytes(16)), named, 0, Nonce(os.urandom(16)), named)
    return Contribution(key.sign(header), memoryview(os.urandom(8 * CELLS)))


def _decoded(message: Message) -> Figures:
    data = encode(message)
    return {
        "bytes": len(data),
        "decode_ms": 1e3 * fastest(lambda: decode(type(message), data), RUNS, time.process_time),
        "msgpack_alone_ms": 1e3 * fastest(lambda: msgpack.unpackb(data, raw=False), RUNS, time.process_time),
    }


def learner() -> Figures:
    """A year of 500 workloads on 60 contexts, where versions of a workload may share a defect, learnt once."""
    fours = ((first + np.arange(4), context) for first in range(0, 500, 4) for context in range(60))
    kin = [np.ravel_multi_index((four, np.full(4, context)), (500, 60)) for four, context in fours]
    return _learnt(500, 60, kin)


def large_learner() -> Figures:
    """The same of 2,000 workloads on 200 contexts, without kin: minutes."""
    return _learnt(2_000, 200)


def _learnt(workloads: int, contexts: int, kin: Sequence[NDArray[np.intp]] = ()) -> Figures:
    rng, shape = np.random.default_rng(1), (workloads, contexts)
    exposure = rng.gamma(0.5, 40_000, shape)
    rate = np.exp(rng.normal(0, 0.4, (workloads, 1)) + rng.normal(0, 0.4, (1, contexts))) * 6.5 / 24_000
    events = rng.poisson(exposure * rate * np.where(rng.random(shape) < 0.02, 8.0, 1.0)) + rng.laplace(0, 2.5, shape)
    named = zip(("workload", "context"), shape, strict=True)
    dimensions = tuple(Dimension(name, tuple(map(str, range(levels)))) for name, levels in named)
    table = LifeTable(dimensions, events, exposure, np.ones(shape), np.full(shape, 12.5))
    began = time.process_time()
    find_mismatches(table, groups=kin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB, of all that this process has run
    return {"cpu_s": time.process_time() - began, "peak_gb": peak / 2**20}


def run(only: Only = None) -> Table:
    """What masks, noise, tokens, the codec, the help and the learner cost, most beside a peer."""
    return figures(only, help_seconds, masking, noise, tokens, codec, learner, large_learner)
