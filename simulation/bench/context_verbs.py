"""The verbs of `pharoah-sim bench` that measure what optional subjects tell of contexts, over worlds and sizes."""

from typing import Annotated

import typer

from federation.runtime.console import AsJson, Console
from federation.runtime.screen import progress as progressing, show, show_json
from simulation.run import engines
from simulation.run.engine_options import Address, EngineKind
from simulation.run.engines import Kind

_console = Console("pharoah-sim")
Seeds = Annotated[int, typer.Option(min=1, help="Number of worlds of each size.")]
FirstSeed = Annotated[int, typer.Option(min=0, help="The first of them.")]
Quick = Annotated[bool, typer.Option("--quick", help="One small size, to test that it runs.")]


def slow(
    seeds: Seeds = 10,
    first_seed: FirstSeed = 0,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Contexts where jobs are slow that tenants find together at epsilon 1, beside each alone and no privacy."""
    with _console.failing(), engines.engine(engine, address) as side_by_side, progressing() as progress:
        from federation.protocol.noise import SystemSampler
        from simulation.bench import slow as bench_slow

        numbers = range(first_seed, first_seed + seeds)
        found = bench_slow.slow(side_by_side, numbers, SystemSampler(), quick=quick)
        worlds = progress.track(found, total=bench_slow.steps(seeds, quick=quick), description="worlds")
        rows = bench_slow.summary([one for looked in worlds for one in looked])
    if as_json:
        show_json(rows)
    else:
        show(*bench_slow.lines(rows))


def goodput(
    seeds: Seeds = 10,
    first_seed: FirstSeed = 0,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Shares of job-weeks that reached a goodput, told by context at epsilon 1: errors, and what intervals hold."""
    with _console.failing(), engines.engine(engine, address) as side_by_side, progressing() as progress:
        from federation.protocol.noise import SystemSampler
        from simulation.bench import goodput as bench_goodput

        numbers = range(first_seed, first_seed + seeds)
        found = bench_goodput.goodput(side_by_side, numbers, SystemSampler(), quick=quick)
        worlds = progress.track(found, total=bench_goodput.steps(seeds, quick=quick), description="worlds")
        rows = bench_goodput.summary([one for told in worlds for one in told])
    if as_json:
        show_json(rows)
    else:
        show(*bench_goodput.lines(rows))
