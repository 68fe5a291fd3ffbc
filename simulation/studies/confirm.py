"""How often a healthy machine is accused and a slow one found, and what each test can find on this machine.

`bound` draws levels alone, as many as it takes to see one in 10,000. `runs` draws whole fleets with noise within runs,
and also judges by SuperBench's rule: similarity to one of them below 0.95, its distance taken literally, and relative.
`here` runs each test of the processor, the disk and the loopback twelve times for a second.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.random import Generator

from federation.protocol.service_messages import CheckVerdict
from pharoah_confirm.criteria import (
    BOUND,
    Criterion,
    NoCriterion,
    judge,
    learn,
    one_sided,
    published_distance,
)
from pharoah_confirm.machine import CPU, Target
from pharoah_confirm.sample import Rates, Sample
from simulation.studies.study import Figures, Only, Table, figures

ALPHA = 0.95
SLOWER = (1.0, 1.1, 1.3)
Draw = Callable[[Generator, tuple[int, ...]], Rates]
TAILS: dict[str, Draw] = {
    "normal": lambda generator, shape: generator.standard_normal(shape),
    "laplace": lambda generator, shape: generator.laplace(0.0, 2**-0.5, shape),
    "student t, 5": lambda generator, shape: generator.standard_t(5, shape) / np.sqrt(5 / 3),
}


def bound() -> Figures:
    """The share of machines below the floor, by size of the fleet, spread, tails and slowness."""
    found: Figures = {}
    for machines in (8, 16, 64):
        for name, draw in TAILS.items():
            for spread in (0.01, 0.02):
                generator = np.random.default_rng(machines)
                shares = np.zeros(len(SLOWER))
                trials = 20_000
                for levels in spread * draw(generator, (trials, machines)):
                    floor = np.log(_criterion(levels).floor(BOUND))
                    others = spread * draw(generator, (100,))
                    shares += [(others - np.log(slower) < floor).mean() for slower in SLOWER]
                key = f"{machines} machines, {name}, {spread:.0%}"
                found[key] = dict(
                    zip(map(str, SLOWER), (float(f"{share:.2g}") for share in shares / trials), strict=True)
                )
    return found


def runs() -> Figures:
    """Verdicts on 1,000 machines of each slowness: 100 repeats with 2% noise, fleets of 16 that spread by 1%."""
    found: Figures = {}
    for slower in SLOWER:
        generator = np.random.default_rng(1)
        verdicts: Counter[str] = Counter()
        published = 0.0
        relative = 0.0
        for _ in range(20):
            fleet = {str(number): [_run(generator)] for number in range(16)}
            criterion, centre = learn(fleet), fleet["0"][0].values
            for _ in range(50):
                run = _run(generator, slower)
                verdicts[judge(run, criterion).verdict.name.lower()] += 1
                published += 1 - published_distance(run.values, centre) < ALPHA
                relative += 1 - one_sided(run.values, centre) < ALPHA
        found[str(slower)] = {**verdicts, "published_rule": int(published), "published_rule_relative": int(relative)}
    return found


def here() -> Figures:
    """Spread between runs, and how many times slower a machine must be to be found, for each test."""
    target = Target(CPU, Path.cwd())
    found: Figures = {}
    for suspicion in target.benchmarks():
        samples = [target.measure(suspicion, 1.0).sample for _ in range(12)]
        try:
            criterion = learn({str(number): [sample] for number, sample in enumerate(samples)})
        except NoCriterion as error:
            found[suspicion.value] = {"nothing": error.what}
            continue
        found[suspicion.value] = {
            "usual": float(f"{criterion.usual:.3g}"),
            "unit": criterion.unit,
            "repeats": criterion.repeats,
            "spread": round(criterion.spread, 4),
            "finds": round(criterion.finds(), 2),
            "accused": sum(judge(sample, criterion).verdict is CheckVerdict.MISMATCH for sample in samples),
        }
    return found


def _criterion(levels: Rates) -> Criterion:
    numbers = float(levels.mean()), float(levels.std(ddof=1)), float(np.exp(levels.min()))
    return Criterion("", "", "", len(levels), 0, 100, (1.0,) * 128, *numbers)


def _run(generator: Generator, slower: float = 1.0) -> Sample:
    logs = generator.normal(0.0, 0.01) + generator.normal(0.0, 0.02, 100)
    return Sample("simulated", "", "", 100.0 / slower * np.exp(logs))


def run(only: Only = None) -> Table:
    """Healthy machines that are accused and slow ones that are found, in simulated fleets and by tests of this one."""
    return figures(only, bound, runs, here)
