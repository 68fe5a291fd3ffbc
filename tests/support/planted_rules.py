"""Noisy counts of a cloud in which a rule on versions is planted.

60 stacks of five components (15 archetypes, four versions each) run on 20 contexts of three features: 934 counted
failures a week, rates that differ by archetype and context, exposure with a heavy tail. A stack is of a time, and each
component a few releases older or newer. The rule is of an entry of the shipped table, drawn among those whose ranges
cover 5 to 40% of the exposure, of one or two components, in half of the clouds on contexts with one feature alone.
Noise is that of the pairs at ε = 1 after eight weeks.
"""

from dataclasses import replace

import numpy as np
from numpy.random import Generator
from packaging.specifiers import SpecifierSet

from provider_server.fleet.analysis.conditions import Records
from tenant_client.doctor.advice.incompatibilities import TABLE
from tests.support.upgrades import VERSIONS

COMPONENTS = ("cuda", "cudnn", "nccl", "torch", "triton")
FEATURES = {"gpu": ("A100", "H100", "H200"), "fabric": ("hdr", "ndr", "roce"), "firmware": ("f1", "f2")}
ARCHETYPES, OF_EACH, CONTEXTS, WEEKS, FAILURES_PER_WEEK = 15, 4, 20, 8, 934
NOISE_SD, SEED = 13.3, 14


def cloud(seed: int, lift: float, noise_sd: float, weeks: int) -> tuple[Records, np.ndarray]:
    """What is released of one cloud, and which of its records the planted rule holds for."""
    rng = np.random.default_rng([SEED, seed])
    stacks, contexts = ARCHETYPES * OF_EACH, CONTEXTS
    stack, context = (grid.ravel() for grid in np.meshgrid(range(stacks), range(contexts), indexing="ij"))
    versions = [_stack(rng) for _ in range(stacks)]
    features = [{name: str(rng.choice(levels)) for name, levels in FEATURES.items()} for _ in range(contexts)]
    exposure = rng.lognormal(0.0, 1.0, stacks)[stack] * rng.lognormal(0.0, 0.7, contexts)[context]
    exposure *= rng.lognormal(0.0, 0.8, len(stack))
    rate = rng.lognormal(0.0, 0.4, ARCHETYPES)[stack // OF_EACH] * rng.lognormal(0.0, 0.4, contexts)[context]
    records = Records(
        strata=(stack // OF_EACH) * contexts + context,
        events=np.zeros(len(stack)),
        exposure_node_hours=exposure,
        noise_variance=np.full(len(stack), noise_sd**2),
        versions={name: [versions[one][name] for one in stack] for name in COMPONENTS},
        settings={name: [features[one][name] for one in context] for name in FEATURES},
    )
    inside = _planted(rng, records)
    mean = exposure * rate * np.where(inside, lift, 1.0)
    mean *= FAILURES_PER_WEEK * weeks / (exposure * rate).sum()
    return replace(records, events=rng.poisson(mean) + rng.normal(0.0, noise_sd, len(mean))), inside


def _stack(rng: Generator) -> dict[str, str]:
    at = rng.uniform(0.0, 1.0)
    places = {name: at + rng.normal(0.0, 0.2) for name in COMPONENTS}
    return {
        name: VERSIONS[name][int(np.clip(place, 0.0, 0.999) * len(VERSIONS[name]))] for name, place in places.items()
    }


def _planted(rng: Generator, records: Records) -> np.ndarray:
    entries = [one for one in TABLE.values() if one.versions.keys() <= set(COMPONENTS) and len(one.versions) < 3]
    while True:
        entry = entries[int(rng.integers(0, len(entries)))]
        ranges = {name: SpecifierSet(text) for name, text in entry.versions.items()}
        inside = np.array(
            [
                all((records.versions[name][at] or "") in within for name, within in ranges.items())
                for at in range(len(records.events))
            ]
        )
        if rng.random() < 0.5:
            name = str(rng.choice(list(FEATURES)))
            inside &= np.array(records.settings[name]) == rng.choice(FEATURES[name])
        if 0.05 <= records.exposure_node_hours[inside].sum() / records.exposure_node_hours.sum() <= 0.4:
            return inside
