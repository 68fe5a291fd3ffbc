"""`pharoah-provider benchmark environments` and `versions`: run jobs in several environments, and say what differs."""

import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from federation.base.console import AsJson
from federation.base.screen import say, show, show_json
from federation.base.visible import counted_as
from pharoah_benchmarks.catalogue import JOBS, Precision, SizeName
from pharoah_benchmarks.record import context_of, profiles, record, running, told_by
from pharoah_benchmarks.run import Asked, gpus_of, run as run_job
from pharoah_benchmarks.versions import Move, Report, report
from provider_server.program.verbs.console import Home, nothing_yet, required
from provider_server.rounds.home import founded


def environments(
    python: Annotated[list[str], typer.Argument(help="The Pythons of the environments.", show_default=False)],
    home: Home = None,
    job: Annotated[
        list[str] | None, typer.Option(help="Only this job; by default those with one rank.", show_default=False)
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long each run trains.")] = 60.0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each job in each environment.")] = 3,
    context: Annotated[
        str, typer.Option(help="The context that this machine is of, as leases have it.", show_default="of the node")
    ] = "",
    node: Annotated[str, typer.Option(help="What telemetry calls this machine.", show_default="its host name")] = "",
) -> None:
    """Run jobs in several environments in turn, on this machine: `benchmark versions` then says what differs.

    Each round has every job in every environment, in an order by chance, so that what disturbs a machine disturbs all
    alike. Each run is recorded as by `benchmark run`.
    """
    place, node = required(home), node or socket.gethostname()
    founded(place)
    names = job or [one.name for one in JOBS.values() if one.ranks == 1]
    if strange := set(names) - JOBS.keys():
        raise typer.BadParameter(f"no job {min(strange)!r}: pass some of {', '.join(JOBS)}")
    sizes = {str(Path(one).absolute()): _size(one) for one in python}  # as it is named: links are environments
    asked = [[Asked(name, seconds, *size, JOBS[name].ranks, one) for one, size in sizes.items()] for name in names]
    with running(place) as folder:
        where = int(context) if context.isdecimal() else context or context_of(place, node)
        for number in range(repeats):
            for runs in asked:
                for one in random.sample(runs, len(runs)):
                    ran = run_job(one, folder, node)
                    record(place, told_by(place, ran, where, ""), ran)
                    say(f"round {number + 1} of {repeats}: {one.job} in {one.python}: {ran.outcome}")


def _size(python: str) -> tuple[SizeName, Precision]:
    return (SizeName.GPU, Precision.BF16) if gpus_of(python) else (SizeName.CPU, Precision.FP32)


def versions(
    home: Home = None,
    write: Annotated[
        Path | None, typer.Option(help="Write it as Markdown to this file, too.", show_default=False)
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Say what differs between the environments in which jobs ran, and which of them are alike.

    Neighbours in the order of their versions are compared: operators that a step calls more or less often, times and
    memory that differ by more than noise, structure and outcome. What is likeliest to matter comes first.
    """
    runs = profiles(required(home))
    if not runs:
        raise nothing_yet("no benchmark has run yet: run `pharoah-provider benchmark environments`")
    found = report(runs)
    if write:
        write.write_text("\n".join(markdown(found)) + "\n", encoding="utf-8")
    if as_json:
        show_json(found)
    else:
        show(*lines(found))


def lines(found: Report) -> Iterator[str]:
    """A report for people."""
    names = names_of(found.versions)
    for python, name in names.items():
        yield f"{name}: {counted_as(found.runs[python], 'run')}, {python}"
    for pair in found.compared:
        yield f"{names[pair.before]} → {names[pair.after]}: {counted_as(len(pair.moves), 'change')}"
        yield from (f"  {move_words(move)}" for move in pair.moves)
    for job, groups in found.alike_in.items():
        yield f"alike in {job}: {_group_words(groups, names)}"
    yield f"alike in all jobs: {_group_words(found.alike, names)}"


def markdown(found: Report) -> Iterator[str]:
    """A report as a page: seen are operators and timings, and no code."""
    names = names_of(found.versions)
    yield "# What versions change\n"
    yield "Seen in runs of benchmark jobs: operators and how long they take, and no code.\n"
    yield "| environment | versions | runs |\n|---|---|---|"
    for python, name in names.items():
        yield f"| {name} | {', '.join(map(' '.join, found.versions[python].items()))} | {found.runs[python]} |"
    yield "\n## Alike\n\n| job | groups |\n|---|---|"
    yield from (f"| {job} | {_group_words(groups, names)} |" for job, groups in found.alike_in.items())
    yield f"| all | {_group_words(found.alike, names)} |"
    for pair in found.compared:
        yield f"\n## {names[pair.before]} → {names[pair.after]}\n"
        yield from ([f"- {move_words(move)}" for move in pair.moves] or ["Nothing moved."])


def names_of(versions: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """What to call each environment: its PyTorch, and the folder of the environment."""
    return {
        python: f"torch {own.get('torch', 'unknown')} ({Path(python).parent.parent.name or python})"
        for python, own in versions.items()
    }


def _group_words(groups: Sequence[Sequence[str]], names: Mapping[str, str]) -> str:
    return " | ".join(", ".join(names[python] for python in group) for group in groups)


def move_words(move: Move) -> str:
    """A change as text."""
    if isinstance(move.before, str) or isinstance(move.after, str):
        return f"{move.job}: {move.kind} {move.before} → {move.after}"
    if move.kind == "calls":
        return f"{move.job}: {move.what} {move.before:g} → {move.after:g} calls a step ({move.weight:.1%} of it)"
    unit, change = "bytes" if move.kind == "memory" else "s", move.after / move.before - 1
    values = f"{move.before:.3g} → {move.after:.3g} {unit} ({change:+.0%}"
    return f"{move.job}: {move.what} {values}{'' if move.kind == 'memory' else f'; {move.weight:.1%} of a step'})"
