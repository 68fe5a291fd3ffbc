"""Counters of GPUs as an exporter would show them while hardware wears out: played, hour by hour, without a GPU.

    kind, dose ─ play ─▶ Trace, as a fault that is injected leaves

What is published is the form; numbers that no paper has are marked as assumed.

- ecc: most devices have no corrected error, a few have most of them, in bursts, and uncorrectable ones come where
  corrected ones came before (Schroeder, Pinheiro and Weber, SIGMETRICS 2009). Assumed: six doublings, to 40 d an hour.
- row_remap: a row is remapped after corrected errors at one place, or an uncorrectable one (NVIDIA, GPU Memory Error
  Management). Assumed: up to 6 d rows a week, with 4 corrected errors before each.
- nvlink: CRC errors are retried, and a retry that fails becomes a recovery (Cui and others, SC 2025). Assumed: 60 d CRC
  errors an hour at the end, a replay for every third, a recovery for every hundredth.
- thermal: cooling that fails lets a GPU drift above its peers; failures rise with temperature (El-Sayed and others,
  SIGMETRICS 2012). Assumed: 20 d degrees, and throttling at 87 °C.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from provider_server.fleet.analysis.injected import INJURED, Label, Trace
from provider_server.fleet.telemetry.samples import HOUR_S

Floats = NDArray[np.float64]
HEALTHY_H, FAULTY_H = 336, 168
DOSE_STEPS = (0.25, 0.5, 0.75, 1.0)
QUIET_SHARE, SPORADIC = 0.9, 0.05  # of GPUs without any error, and errors an hour of the others
BURST = 0.3  # shape of the gamma factor of an hour: errors come in bursts
SLOWDOWN_C = 87.0


def _bursts(rate: Floats, rng: Generator) -> Floats:
    return rng.poisson(rate * rng.gamma(BURST, 1.0 / BURST, len(rate))).astype(np.float64)


def _sporadic(hours: int, rng: Generator) -> Floats:
    rate = 0.0 if rng.random() < QUIET_SHARE else SPORADIC * rng.lognormal(0.0, 1.0)
    return _bursts(np.full(hours, rate), rng)


def _ecc(strength: Floats, rng: Generator) -> dict[str, Floats]:
    grown = 40.0 * strength * np.exp2(-6.0 * (1.0 - strength / max(strength.max(), 1e-9)))
    return {"ecc_corrected": _sporadic(len(strength), rng) + _bursts(grown, rng)}


def _row_remap(strength: Floats, rng: Generator) -> dict[str, Floats]:
    rows = rng.poisson(6.0 * strength / 168.0).astype(np.float64)
    corrected = _sporadic(len(strength), rng) + 4.0 * rows
    return {"rows_remapped_correctable": rows, "ecc_corrected": corrected}


def _nvlink(strength: Floats, rng: Generator) -> dict[str, Floats]:
    crc = _sporadic(len(strength), rng) + _bursts(60.0 * strength**2, rng)
    replays = rng.binomial(crc.astype(np.int64), 1.0 / 3.0).astype(np.float64)
    recoveries = rng.binomial(crc.astype(np.int64), 0.01).astype(np.float64)
    return {"nvlink_crc_flit_errors": crc, "nvlink_replays": replays, "nvlink_recoveries": recoveries}


def _thermal(strength: Floats, rng: Generator) -> dict[str, Floats]:
    wander = np.zeros(len(strength))
    for hour in range(1, len(strength)):
        wander[hour] = 0.9 * wander[hour - 1] + rng.normal(0.0, 0.8)
    heat = 62.0 + rng.normal(0.0, 1.5) + wander + 20.0 * strength
    share = 1.0 / (1.0 + np.exp(SLOWDOWN_C - heat))  # of the hour above the threshold
    return {"gpu_temperature": heat, "thermal_violation": HOUR_S * np.where(share > 0.01, share, 0.0)}


PLAYED: Mapping[str, Callable[[Floats, Generator], dict[str, Floats]]] = MappingProxyType(
    {"ecc": _ecc, "row_remap": _row_remap, "nvlink": _nvlink, "thermal": _thermal}
)


def label_of(kind: str, dose: float) -> Label:
    """What is played: two weeks, and a week in which the fault grows to its dose."""
    return Label("played", kind, dose, float(HOUR_S), HEALTHY_H, FAULTY_H)


def play(label: Label, rng: Generator) -> Trace:
    """The hours of both nodes: all counters, of which the injured node's show the fault."""
    growth = np.maximum(np.arange(label.healthy + label.faulty) - label.healthy + 1.0, 0.0) / label.faulty
    shown: defaultdict[str, Floats] = defaultdict(lambda: np.zeros((len(growth), 2)))
    for node in range(2):
        for kind, course in PLAYED.items():
            strength = label.dose * growth * (node == INJURED and kind == label.kind)
            for name, values in course(strength, rng).items():
                shown[name][:, node] += values
    return Trace(label, dict(shown), np.zeros((len(growth), 2)))
