"""Measures what the project claims; one JSON object per figure goes to stdout, progress to stderr.

    python benchmarks/run.py [NAME…]     all figures, or the named ones

Times are of one machine: compare them with the peer that is measured in the same run, not with those of another day.
Figures on real data are left out, with a line on stderr, where ../shared/data is absent.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.figures import DATA, Figure, fastest, main
from crypto import discrete_gaussian
from crypto.ids import Digest, RoundId
from crypto.masking import MaskKey, mask_cells, sum_of_masks
from federation.protocol.noise import SystemSampler
from simulation.run.federation import make_group_key
from simulation.run.streams import streams


def help_seconds() -> Figure:
    """`pharoah-tenant --help`, start to end, median of seven; the bare interpreter beside it."""
    program = Path(sys.executable).with_name("pharoah-tenant")
    return {
        "seconds": _median_seconds([str(program), "--help"]),
        "python_alone": _median_seconds([sys.executable, "-c", ""]),
    }


def _median_seconds(command: list[str]) -> float:
    def once() -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began

    return statistics.median(once() for _ in range(7))


def masking() -> Figure:
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


def noise() -> Figure:
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


def tokens() -> Figure:
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


def quickstart() -> Figure:
    """The main job, as a user calls it."""
    return _sim("run", "--scenario", "quickstart", "--json")


def titan_without_privacy() -> Figure:
    """43 hazard ratios against the published ones, exact sums."""
    return _sim("replay", "titan", str(_data("titan/gpu_lifetimes.csv.gz")), "--epsilon", "none", "--json")


def titan() -> Figure:
    """The same at epsilon 1, twenty rounds."""
    return _sim(
        "replay", "titan", str(_data("titan/gpu_lifetimes.csv.gz")), "--epsilon", "1", "--seeds", "20", "--json"
    )


def philly() -> Figure:
    """Survival by number of GPUs against the pooled curves at epsilon 1, twenty rounds."""
    return _sim("replay", "philly", str(_data("philly/jobs_15k.csv")), "--epsilon", "1", "--seeds", "20", "--json")


def _sim(*arguments: str) -> Figure:
    program = Path(sys.executable).with_name("pharoah-sim")
    done = subprocess.run([str(program), *arguments], check=True, capture_output=True, text=True)
    result: Figure = json.loads(done.stdout)
    return result


def _data(name: str) -> Path:
    file = DATA / name
    if not file.exists():
        raise FileNotFoundError(f"../shared/data/{name} is missing")
    return file


if __name__ == "__main__":
    main(help_seconds, masking, noise, tokens, quickstart, titan_without_privacy, titan, philly)
