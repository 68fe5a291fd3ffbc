"""`pharoah-sim`: a whole simulated cloud, replays of real data through the real federation, and benchmarks.

Results go to stdout (`--json` with stable keys), progress and everything else to stderr. Exit codes: 0 ok, 2 failed.
"""

import os.path
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from federation.protocol.plan import HOURS_PER_WEEK
from federation.runtime.clock import now_hour
from federation.runtime.console import AsJson, CommandLine, Console, Force, InputFile, Verb, check_new, group
from federation.runtime.screen import progress as progressing, say, show, show_json
from federation.runtime.visible import json_text

if TYPE_CHECKING:
    from simulation.bench.aggregation import Row
    from simulation.replay.lives import Result

app = CommandLine(
    name="pharoah-sim",
    help="A simulated cloud with ground truth, and replays of real data, through the real federation.",
)
replay = group("replay", "Put real data through the federation and compare with the pooled answer.")
app.add_typer(replay)
bench = group("bench", "Measure protocols on this machine, beside their peers.")
app.add_typer(bench)

PASSWORD_BYTES, SALT_BYTES = 12, 16

_console = Console("pharoah-sim")
Seeds = Annotated[int, typer.Option(min=1, help="Repeat the round this often, each time with fresh noise.")]
Epsilon = Annotated[str, typer.Option(help="Privacy budget per unit, or 'none' for the answer without privacy.")]
DataFolder = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, help="The data's folder.", show_default=False)
]
Holdout = Annotated[
    Literal["column"] | None, typer.Option(help="Predict deaths in columns that the model has not seen.")
]
DataFile = Annotated[Path, typer.Argument(click_type=InputFile(exists=True), help="The data file.", show_default=False)]


@app.command(cls=Verb)
def run(
    scenario: Annotated[str, typer.Option(help="A scenario's name, or a TOML file.")] = "quickstart",
    seed: Annotated[
        int, typer.Option(min=0, help="Fixes the cloud. Keys and noise are fresh each time, so that figures differ.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write outcome.json, report.html and all homes here.", show_default=False)
    ] = None,
    *,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Play a scenario: tenants, trustees and provider, week by week, judged against the truth."""
    began = time.monotonic()

    def tell(what: str) -> None:
        say(f"{time.monotonic() - began:5.1f} s  {what}")

    tell(f"scenario {scenario}, seed {seed}")
    with _console.failing():
        check_new(out, force=force)
        from simulation.cloud.scenario import load
        from simulation.judge.score import Judge
        from simulation.run.play import Player

        loaded = load(scenario)
        with _homes(out) as root:
            player = Player(loaded, seed, root, int(now_hour() // HOURS_PER_WEEK) - loaded.weeks)
            tell(f"{loaded.tenants} tenants have keys and homes")
            try:
                for week in player.weeks():
                    tell(f"week {week + 1} of {loaded.weeks} is over")
                outcome = Judge(player.played()).outcome(seed, began, tell)
            finally:
                player.close()
        if out is not None:
            _write(outcome, out)
            _show_pages(out / "homes")
        tell("done")
    summary = {key: value for key, value in outcome.items() if key != "detail"}
    if as_json:
        show_json(summary)
    else:
        show(*_told(summary))


def _write(outcome: dict[str, Any], out: Path) -> None:
    from simulation.judge.report import write_report

    (out / "outcome.json").write_text(json_text(outcome, indent=1) + "\n")
    write_report(outcome, out / "report.html")
    say(f"wrote {out / 'outcome.json'} and {out / 'report.html'}")


def _show_pages(homes: Path) -> None:
    """Gives the provider's page a password of its own, and says how to open both pages."""
    from provider_server.pages.login import set_password

    password = secrets.token_urlsafe(PASSWORD_BYTES)
    set_password(homes / "provider", password, secrets.token_bytes(SALT_BYTES))
    say(
        "to open the pages:",
        f"  {_program('pharoah-provider')} page --home {homes / 'provider'}   (password: {password})",
        f"  {_program('pharoah-tenant')} page --home {homes / 'tenants' / '000'}",
    )


def _program(name: str) -> str:
    """How a program that was installed beside this one is called from here."""
    beside = Path(sys.executable).with_name(name)
    return name if shutil.which(name) or not beside.exists() else os.path.relpath(beside)


def _told(summary: dict[str, Any]) -> list[str]:
    mismatch, hazard = summary["mismatch"], summary["hazard"]
    return [
        f"{summary['tenants']} tenants, {summary['job_weeks']} job-weeks, {summary['rounds']} rounds"
        f" at epsilon {summary['epsilon']:g} and delta {summary['delta']:g} per job-week; {summary['seconds']:.1f} s",
        f"mismatched pairs:  AUROC {_number(mismatch['auroc'])},"
        f" average precision {_number(mismatch['average_precision'])}"
        f" (without privacy {_number(mismatch['auroc_without_privacy'])}"
        f" and {_number(mismatch['average_precision_without_privacy'])})",
        f"hazard by context: mean |log rate error| {_number(hazard['mean_abs_log_rate_error'])}"
        f" (without privacy {_number(hazard['mean_abs_log_rate_error_without_privacy'])}),"
        f" 95% intervals cover {hazard['interval_coverage']:.0%}",
        _gained(summary["impact"]),
    ]


def _gained(impact: dict[str, Any]) -> str:
    return (
        f"impact:            {_number(impact['mismatch_gpu_hours_avoided_share'])} of the GPU-hours lost to mismatches"
        f" avoided, {_number(impact['false_refusal_share'])} of other starts refused;"
        f" {_number(impact['warned_30min_share'])} of degradations warned of,"
        f" {_number(impact['false_hints_per_1000_lease_hours'])} false hints per 1,000 lease-hours;"
        f" {impact['gpu_hours_saved']:,.0f} GPU-hours saved"
    )


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


@app.command(cls=Verb)
def federation(
    out: Annotated[Path | None, typer.Option(help="Keep all homes and logs here.", show_default=False)] = None,
    tenants: Annotated[int, typer.Option(min=4, help="How many tenants take part.")] = 4,
    trustees: Annotated[int, typer.Option(min=3, help="How many trustees.")] = 3,
    *,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Found a federation of real programs on this machine, hold one round, stop everything."""
    began = time.monotonic()
    with _console.failing():
        check_new(out, force=force)
    with _console.failing(), _homes(out) as root:
        from simulation.run.processes import Places, hold

        told = hold(
            Places(root, tenants, trustees),
            lambda text: say(f"[{time.monotonic() - began:5.1f} s] {text}"),
        )
    told["total_seconds"] = round(time.monotonic() - began, 3)
    if as_json:
        show_json(told)
    else:
        show(_round_told(told))


def _round_told(told: dict[str, Any]) -> str:
    return (
        f"round {told['round_id'][:12]}: {told['contributors']} contributions, {told['cells']} cells,"
        f" epsilon {told['epsilon']:.3f} per job-week; the round took {told['seconds']:.1f} s,"
        f" everything {told['total_seconds']:.1f} s"
    )


@app.command(cls=Verb)
def scenarios() -> None:
    """List the scenarios that come with the program."""
    with _console.failing():
        from simulation.cloud.scenario import load, names

        for name in names():
            show(f"{name:<12} {load(name).title}")


@app.command(cls=Verb)
def status(
    out: Annotated[Path, typer.Argument(help="The folder that `run --out` or `federation --out` wrote.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Say what an output folder holds: the scenario that was played, how far it got, and whose homes are there.

    Exit code 0: a run that came to its end. 1: homes without an outcome. 2: it cannot be read. 3: there is nothing.
    """
    import json

    file, homes = out / "outcome.json", out / "homes"
    outcome = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    known = ("scenario", "seed", "weeks", "tenants", "rounds", "epsilon")
    found = {key: outcome.get(key) for key in known}
    provider = [str(homes / "provider")] if (homes / "provider").is_dir() else []
    kept = provider + sorted(map(str, homes.glob("tenants/*")))
    if as_json:
        show_json({"version": 1, "out": str(out), "complete": bool(outcome), **found, "homes": kept})
    else:
        show(f"folder      {out}: {'complete' if outcome else 'no outcome'}")
        show(*(f"{key:<11} {value}" for key, value in found.items() if value is not None))
        show(f"homes       {len(kept)}{f', the first is {kept[0]}' if kept else ''}")
    raise typer.Exit(0 if outcome else 1 if kept else 3)


@replay.command(cls=Verb)
def titan(
    file: DataFile, epsilon: Epsilon = "1", seeds: Seeds = 1, holdout: Holdout = None, *, as_json: AsJson = False
) -> None:
    """Titan's GPU lifetimes: columns as tenants, 43 hazard ratios against the published ones."""
    with _console.failing():
        from simulation.replay.titan import replay_titan, replay_titan_holdout

        play = replay_titan if holdout is None else replay_titan_holdout
        _replay(play(file, _epsilon(epsilon), seeds), seeds, as_json=as_json)


@replay.command(cls=Verb)
def philly(file: DataFile, epsilon: Epsilon = "1", seeds: Seeds = 1, *, as_json: AsJson = False) -> None:
    """Philly's jobs: users as tenants, survival by number of GPUs against the pooled curve."""
    with _console.failing():
        from simulation.replay.philly import replay_philly

        _replay(replay_philly(file, _epsilon(epsilon), seeds), seeds, as_json=as_json)


@replay.command(cls=Verb)
def lung(epsilon: Epsilon = "1", seeds: Seeds = 1, *, as_json: AsJson = False) -> None:
    """NCCTG's lung cancer patients (they come with lifelines): institutions as tenants, one survival curve."""
    with _console.failing():
        from simulation.replay.lung import replay_lung

        _replay(replay_lung(_epsilon(epsilon), seeds), seeds, as_json=as_json)


@replay.command(cls=Verb)
def brca(
    folder: DataFolder,
    epsilon: Annotated[float, typer.Option(min=0.01, help="Budget per centre of Flower's private baseline.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat that baseline this often.")] = 5,
    *,
    as_json: AsJson = False,
) -> None:
    """Fed-TCGA-BRCA: exact Newton over the masked sums of six centres, beside Flower's FedAvg."""
    with _console.failing():
        from simulation.replay.brca import replay_brca

        _replay(replay_brca(folder, epsilon, seeds), seeds, as_json=as_json)


def _replay(steps: Iterator["Result | None"], seeds: int, *, as_json: bool) -> None:
    """Runs a replay, which yields None after each seed and its result at last, and prints the result."""
    with progressing() as progress:
        (result,) = [step for step in progress.track(steps, total=seeds + 1, description="rounds") if step is not None]
    if as_json:
        show_json(result.json)
    else:
        show(*(f"{key}: {value}" for key, value in result.json.items()))


@bench.command(cls=Verb)
def aggregation(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it runs, measures nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Secure sums beside Flower's SecAgg+ on the same vectors, and alone at a thousand and ten thousand clients."""
    with _console.failing(), progressing() as progress:
        from simulation.bench import aggregation as bench_aggregation

        total = bench_aggregation.rows(quick=quick)
        measured = list(progress.track(bench_aggregation.aggregation(quick=quick), total=total, description="rounds"))
    if as_json:
        show_json({"rows": [asdict(row) for row in measured]})
    else:
        show(*_timed(measured))


@bench.command(cls=Verb)
def learning(
    seeds: Annotated[int, typer.Option(min=1, help="How many clouds, each with noise of its own.")] = 20,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small clouds: shows that it runs, measures nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """What a year of the standard scenario teaches, against the truth: without privacy, at epsilon 1 and 2."""
    with _console.failing(), progressing() as progress:
        from federation.protocol.noise import SystemSampler
        from simulation.bench import learning as bench_learning

        steps = bench_learning.learning(seeds, SystemSampler(), quick=quick)
        total = seeds * len(bench_learning.EPSILONS)
        found = bench_learning.summary(list(progress.track(steps, total=total, description="clouds")))
    if as_json:
        show_json(found)
    else:
        show(*(f"{level} {key}: {value:.3f}" for level, figures in found.items() for key, value in figures.items()))


@bench.command(cls=Verb)
def check(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long checks come at random, 500 a second.")] = 30.0,
    requests: Annotated[int, typer.Option(min=100, help="How many checks when the service is saturated.")] = 200_000,
    watchers: Annotated[int, typer.Option(min=20, help="How many watch, each on a connection of its own.")] = 10_000,
    *,
    as_json: AsJson = False,
) -> None:
    """Checks by the provider's online service: latency, throughput, memory, and what those cost who only listen."""
    with _console.failing():
        from simulation.bench import check as bench_check

        found = bench_check.check(seconds, requests, watchers)
    if as_json:
        show_json(found)
    else:
        show(*(f"{key}: {value:.6g}" for key, value in found.items()))


@bench.command(name="impact", cls=Verb)
def bench_impact(
    seeds: Annotated[int, typer.Option(min=1, help="How many clouds, each with noise of its own.")] = 5,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small clouds: shows that it runs, measures nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """What checks and hints are worth over a year of the standard scenario: mean and range over clouds."""
    with _console.failing(), progressing() as progress:
        from federation.protocol.noise import SystemSampler
        from simulation.bench import impact as bench_impact

        steps = bench_impact.impacts(seeds, SystemSampler(), quick=quick)
        total = seeds * len(bench_impact.LEVELS)
        found = bench_impact.summary(list(progress.track(steps, total=total, description="clouds")))
    if as_json:
        show_json(found)
    else:
        show(*bench_impact.lines(found))


def _timed(rows: list["Row"]) -> Iterator[str]:
    """A line per figure and round, an empty one between rounds; what was not run is left out."""
    for number, row in enumerate(rows):
        yield from [""] if number else []
        yield from (f"{key}: {value:.6g}" for key, value in asdict(row).items() if value is not None)


def _epsilon(text: str) -> float | None:
    try:
        value = None if text == "none" else float(text)
    except ValueError:
        value = -1.0
    if value is not None and not 0 < value < 1000:
        raise typer.BadParameter(f"{text!r} is neither a positive number nor 'none'", param_hint="--epsilon")
    return value


@contextmanager
def _homes(out: Path | None) -> Iterator[Path]:
    """Where the homes live while a run lasts: in memory if the machine allows it, kept below `out` afterwards."""
    memory = Path("/dev/shm")  # noqa: S108 - the directory below it has a random name and mode 0700
    with tempfile.TemporaryDirectory(prefix="pharoah-", dir=memory if memory.is_dir() else None) as root:
        yield Path(root)
        if out is not None:
            kept = out / "homes"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(root, kept)
