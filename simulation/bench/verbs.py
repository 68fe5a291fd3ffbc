"""The verbs of `pharoah-sim bench`. What each measures is imported when it runs."""

from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from federation.runtime.console import AsJson, Console, Verb, group
from federation.runtime.screen import progress as progressing, show, show_json
from simulation.run import engines
from simulation.run.engine_options import Address, EngineKind
from simulation.run.engines import Kind

if TYPE_CHECKING:
    from simulation.bench.aggregation import Row

bench = group("bench", "Measure protocols on this machine, compared with others where there are any.")

_console = Console("pharoah-sim")


@bench.command(cls=Verb)
def aggregation(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Secure sums, compared with Flower's SecAgg+ on the same vectors, and alone with 1,000 and 10,000 clients."""
    with _console.failing(), progressing() as progress:
        from simulation.bench import aggregation as bench_aggregation

        total = bench_aggregation.rows(quick=quick)
        measured = list(progress.track(bench_aggregation.aggregation(quick=quick), total=total, description="rounds"))
    if as_json:
        show_json(bench_aggregation.Rows(tuple(measured)))
    else:
        show(*_timed(measured))


@bench.command(cls=Verb)
def attendance(
    clouds: Annotated[int, typer.Option(min=0, help="Number of clouds to find mismatches in; 0: noise alone.")] = 5,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Noise over the ideal when not everybody answers, and the accuracy of findings then."""
    with _console.failing(), engines.engine(engine, address) as side_by_side, progressing() as progress:
        from federation.protocol.noise import SystemSampler
        from simulation.bench import attendance as bench_attendance

        noises = list(bench_attendance.rows(SystemSampler(), quick=quick))
        steps = bench_attendance.found(side_by_side, clouds, quick=quick)
        total = clouds * len(bench_attendance.ANSWERING)
        summary = bench_attendance.summary(noises, list(progress.track(steps, total=total, description="clouds")))
    if as_json:
        show_json(summary)
    else:
        show(*bench_attendance.lines(summary))


@bench.command(cls=Verb)
def scale(
    gigabytes: Annotated[
        float, typer.Option(min=0.001, help="Hold no round whose contributions are larger; extend a line instead.")
    ] = 1.0,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the growth into this SVG file.", show_default=False)
    ] = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """CPU, bytes and memory of a round for each party, with up to 10,000 tenants and a million cells."""
    with _console.failing(), progressing() as progress:
        from simulation.bench import scale as bench_scale

        steps = bench_scale.rows(gigabytes * bench_scale.GIGABYTE, quick=quick)
        total = len(bench_scale.sizes(quick=quick))
        rows = tuple(progress.track(steps, total=total, description="rounds"))
        speeds, flower = bench_scale.speeds(quick=quick), bench_scale.beside_flower(quick=quick)
        figures = bench_scale.ScaleFigures(rows, speeds, flower)
    if as_json:
        show_json(figures)
    else:
        show(*bench_scale.lines(figures))
    if picture is not None:  # at last, so that nothing which it lacks costs the figures
        with _console.failing():
            bench_scale.picture(rows, picture)


@bench.command(cls=Verb)
def epochs(
    clouds: Annotated[int, typer.Option(min=1, help="Number of clouds, each two years long.")] = 3,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small clouds, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Findings over a change of epoch, with and without links between the tokens of both epochs."""
    with _console.failing(), progressing() as progress:
        from simulation.bench import epochs as bench_epochs

        total = clouds * 10
        steps = bench_epochs.seen(clouds, quick=quick)
        summary = bench_epochs.summary(list(progress.track(steps, total=total, description="findings")))
    if as_json:
        show_json(summary)
    else:
        show(*bench_epochs.lines(summary))


@bench.command(cls=Verb)
def field(
    seeds: Annotated[int, typer.Option(min=1, help="Number of clouds of each kind, each with fresh noise.")] = 20,
    only: Annotated[list[str] | None, typer.Option("--only", help="A kind of cloud; may be repeated.")] = None,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    corners: Annotated[
        bool, typer.Option("--corners", help="Besides, 12 clouds with several factors changed at once; 3 of each.")
    ] = False,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Besides, three sizes of cloud with rare failures at several epsilons.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw what is found by size, and decision curves, into this folder.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small clouds, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Accuracy of findings from other clouds than the standard one: rarer failures, smaller effects, bad reports."""
    with _console.failing(), engines.engine(engine, address) as side_by_side, progressing() as progress:
        from federation.protocol.noise import SystemSampler
        from simulation.bench import field as bench_field, field_cells

        names = _chosen(only, field_cells.EVERY) if only else tuple(field_cells.CELLS)
        more = (*(field_cells.CORNERS if corners else ()), *(field_cells.SIZED if sizes else ()))
        names = tuple(dict.fromkeys((*names, *more)))
        steps = bench_field.field(side_by_side, names, seeds, SystemSampler(), quick=quick)
        seen = list(progress.track(steps, total=bench_field.clouds(names, seeds), description="clouds"))
        rows = bench_field.summary(names, seen)
    if as_json:
        show_json(rows)
    else:
        show(*bench_field.lines(rows))
    if picture is not None:  # at last, so that nothing which it lacks costs the figures
        with _console.failing():
            from simulation.bench import field_pictures

            field_pictures.draw(rows, picture)


@bench.command(cls=Verb)
def looks(
    seeds: Annotated[int, typer.Option(min=1, help="Number of years of each kind of cloud, with fresh noise.")] = 3,
    only: Annotated[list[str] | None, typer.Option("--only", help="A kind of cloud; may be repeated.")] = None,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small clouds, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """False accusations that a year of bundles makes, each counted once, with a budget over all bundles and without."""
    with _console.failing(), engines.engine(engine, address) as side_by_side, progressing() as progress:
        from simulation.bench import looks as bench_looks

        names = _chosen(only, bench_looks.CELLS)
        steps = bench_looks.looks(side_by_side, names, seeds, quick=quick)
        total = 2 * len(names) * seeds
        rows = bench_looks.summary(list(progress.track(steps, total=total, description="years")))
    if as_json:
        show_json(rows)
    else:
        show(*bench_looks.lines(rows))


def _chosen(only: list[str] | None, cells: Collection[str]) -> tuple[str, ...]:
    """Those that were asked for, or all of them."""
    if unknown := [name for name in only or () if name not in cells]:
        raise typer.BadParameter(f"{unknown[0]!r} is unknown; there are {', '.join(cells)}")
    return tuple(only or cells)


@bench.command(cls=Verb)
def learning(
    seeds: Annotated[int, typer.Option(min=1, help="Number of clouds, each with fresh noise.")] = 20,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small clouds, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Accuracy of findings from a year of the standard scenario: without privacy, at epsilon 1 and 2."""
    with _console.failing(), engines.engine(engine, address) as side_by_side, progressing() as progress:
        from federation.protocol.noise import SystemSampler
        from simulation.bench import learning as bench_learning

        steps = bench_learning.learning(side_by_side, seeds, SystemSampler(), quick=quick)
        total = seeds * len(bench_learning.EPSILONS)
        summary = bench_learning.summary(list(progress.track(steps, total=total, description="clouds")))
    if as_json:
        show_json(summary)
    else:
        show(*(f"{level} {key}: {value:.3f}" for level, figures in summary.items() for key, value in figures.items()))


@bench.command(cls=Verb)
def check(
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds of checks at random times, 500 a second.")] = 30.0,
    requests: Annotated[int, typer.Option(min=100, help="Number of checks that saturate the service.")] = 200_000,
    watchers: Annotated[int, typer.Option(min=20, help="Number of idle streams, each on its own connection.")] = 10_000,
    *,
    as_json: AsJson = False,
) -> None:
    """The provider's online service: latency and throughput of checks, memory, and the cost of idle streams."""
    with _console.failing():
        from simulation.bench import check as bench_check

        figures = bench_check.check(seconds, requests, watchers)
    if as_json:
        show_json(figures)
    else:
        show(*(f"{key}: {value:.6g}" for key, value in figures.items()))


@bench.command(name="check-history", cls=Verb)
def check_history(
    seeds: Annotated[int, typer.Option(min=1, help="Number of clouds, each with fresh noise.")] = 20,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small clouds, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Precision of checks by a tenant's own history, by the bundle, and by both, after 13 and 26 weeks."""
    with _console.failing(), engines.engine(engine, address) as side_by_side, progressing() as progress:
        from simulation.bench import check_history as bench_check_history

        steps = bench_check_history.check_history(side_by_side, seeds, quick=quick)
        total = seeds * len(bench_check_history.weeks_of(quick=quick))
        found = list(progress.track(steps, total=total, description="checks"))
        rows = bench_check_history.summary(found)
    if as_json:
        show_json(rows)
    else:
        show(*bench_check_history.lines(rows))


@bench.command(name="impact", cls=Verb)
def bench_impact(
    seeds: Annotated[int, typer.Option(min=1, help="Number of clouds, each with fresh noise.")] = 5,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="A level of privacy; may be repeated.")] = None,
    *,
    first: Annotated[
        bool, typer.Option("--first-bundle", help="Only of jobs that begin under the first bundle: much quicker.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small clouds, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Benefit of checks and hints over a year of the standard scenario: mean and range over clouds."""
    with _console.failing(), engines.engine(engine, address) as side_by_side, progressing() as progress:
        from federation.protocol.noise import SystemSampler
        from simulation.bench import impact as bench_impact

        asked = bench_impact.Asked(_chosen(only, bench_impact.LEVELS), first, quick)
        steps = bench_impact.impacts(side_by_side, seeds, SystemSampler(), asked)
        total = seeds * len(asked.levels)
        found = list(progress.track(steps, total=total, description="clouds"))
        summary = bench_impact.summary(found, asked.levels)
    if as_json:
        show_json(summary)
    else:
        show(*bench_impact.lines(summary))


@bench.command(cls=Verb)
def checkpoints(
    seeds: Annotated[int, typer.Option(min=1, help="Number of clouds, each with fresh noise.")] = 3,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small clouds, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Time wasted by when jobs save: at intervals by their own hazard, by bundles and hints, and at fixed ones."""
    with _console.failing(), engines.engine(engine, address) as side_by_side, progressing() as progress:
        from federation.protocol.noise import SystemSampler
        from simulation.bench import checkpoints as bench_checkpoints

        steps = bench_checkpoints.checkpoints(side_by_side, seeds, SystemSampler(), quick=quick)
        total = seeds * len(bench_checkpoints.WAYS)
        found = bench_checkpoints.summary(list(progress.track(steps, total=total, description="clouds")))
    if as_json:
        show_json(found)
    else:
        show(*bench_checkpoints.lines(found))


@bench.command(cls=Verb)
def votes(
    seeds: Annotated[int, typer.Option(min=1, help="Number of worlds of each kind and size.")] = 10,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A small fabric, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Faulty links and switches of a fabric that tenants' votes find at epsilon 1, beside 007 and no privacy."""
    with _console.failing(), engines.engine(engine, address) as side_by_side, progressing() as progress:
        from federation.protocol.noise import SystemSampler
        from simulation.bench import votes as bench_votes

        numbers = range(first_seed, first_seed + seeds)
        found = bench_votes.votes(side_by_side, numbers, SystemSampler(), quick=quick)
        total = bench_votes.steps(seeds, quick=quick)
        worlds = progress.track(found, total=total, description="worlds")
        rows = bench_votes.summary([one for judged in worlds for one in judged])
    if as_json:
        show_json(rows)
    else:
        show(*bench_votes.lines(rows))


@bench.command(cls=Verb)
def placement(
    seeds: Annotated[int, typer.Option(min=1, help="Number of clouds, each with fresh noise.")] = 3,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small clouds, to test that it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Interruptions of long jobs that placement by hazard spares over a year of the standard scenario."""
    with _console.failing(), engines.engine(engine, address) as side_by_side, progressing() as progress:
        from federation.protocol.noise import SystemSampler
        from simulation.bench import placement as bench_placement

        steps = bench_placement.placement(side_by_side, seeds, SystemSampler(), quick=quick)
        total = seeds * len(bench_placement.WAYS)
        found = bench_placement.summary(list(progress.track(steps, total=total, description="clouds")))
    if as_json:
        show_json(found)
    else:
        show(*bench_placement.lines(found))


def _timed(rows: list["Row"]) -> Iterator[str]:
    """A line per figure, with an empty line between rounds; figures that were not measured are left out."""
    for number, row in enumerate(rows):
        yield from [""] if number else []
        yield from (f"{key}: {value:.6g}" for key, value in asdict(row).items() if value is not None)
