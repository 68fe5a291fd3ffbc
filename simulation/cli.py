"""`pharoah-sim`: a simulated cloud, replays of real data through the real federation, and studies.

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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import typer

from federation.base.clock import now_hour
from federation.base.console import AsJson, CommandLine, Console, Force, InputFile, Verb, check_new, group
from federation.base.screen import progress as progressing, say, show, show_json
from federation.base.visible import counted_as, json_text
from federation.protocol.plan import HOURS_PER_WEEK
from simulation.run import engines
from simulation.run.engine_options import Address, EngineKind
from simulation.run.engines import Kind
from simulation.studies.verbs import studies

if TYPE_CHECKING:
    from simulation.judge.score import Outcome
    from simulation.replay.lives import Result
    from simulation.run.processes import HeldHere

app = CommandLine(
    name="pharoah-sim",
    help="Run the real federation on a simulated cloud with known truth, or on public data sets.",
)
replay = group("replay", "Run the federation on real data and compare with the pooled analysis.")
app.add_typer(replay)
app.add_typer(studies)
app.add_typer(studies, name="bench", hidden=True)  # as the verb was called; issues still name it

PASSWORD_BYTES, SALT_BYTES = 12, 16

_console = Console("pharoah-sim")
Seeds = Annotated[int, typer.Option(min=1, help="Repeat the round this many times, with fresh noise.")]
Epsilon = Annotated[str, typer.Option(help="Privacy budget per unit, or 'none' for results without privacy.")]
DataFolder = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, help="Folder with the data set.", show_default=False)
]
Holdout = Annotated[Literal["column"] | None, typer.Option(help="Predict failures in columns held out from the fit.")]
HideTimes = Annotated[bool, typer.Option(help="Hide the times of leaving as well, beside hiding who failed.")]
DataFile = Annotated[
    Path, typer.Argument(click_type=InputFile(exists=True), help="The data set's file.", show_default=False)
]


@app.command(cls=Verb)
def run(
    scenario: Annotated[str, typer.Option(help="Name of a scenario, or a TOML file.")] = "quickstart",
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the cloud. Keys and noise are always fresh, so figures vary.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for outcome.json, report.html and all homes.", show_default=False)
    ] = None,
    engine: EngineKind = Kind.PROCESSES,
    address: Address = None,
    *,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Play a scenario week by week with real tenants, trustees and provider, and compare findings with the truth."""
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
        with engines.engine(engine, address) as side_by_side, _homes(out) as root:
            player = Player(loaded, seed, root, int(now_hour() // HOURS_PER_WEEK) - loaded.weeks)
            tell(f"made keys and homes of {loaded.tenants} tenants")
            try:
                for week in player.weeks():
                    tell(f"finished week {week + 1} of {loaded.weeks}")
                outcome = Judge(player.played()).outcome(seed, began, side_by_side, tell)
            finally:
                player.close()
        if out is not None:
            _write(outcome, out)
            _show_pages(out / "homes")
        tell("done")
    summary: dict[str, Any] = {key: value for key, value in outcome.items() if key != "detail"}
    if as_json:
        show_json(summary)
    else:
        show(*_summary_lines(summary))


def _write(outcome: "Outcome", out: Path) -> None:
    from simulation.judge.report import write_report

    (out / "outcome.json").write_text(json_text(outcome, indent=1) + "\n")
    write_report(outcome, out / "report.html")
    say(f"wrote {out / 'outcome.json'} and {out / 'report.html'}")


def _show_pages(homes: Path) -> None:
    """Sets a random password for the provider's page, and prints how to open both pages."""
    from provider_server.program.pages.login import set_password

    password = secrets.token_urlsafe(PASSWORD_BYTES)
    set_password(homes / "provider", password, secrets.token_bytes(SALT_BYTES))
    say(
        "to open the pages:",
        f"  {_program('pharoah-provider')} page --home {homes / 'provider'}   (password: {password})",
        f"  {_program('pharoah-tenant')} page --home {homes / 'tenants' / '000'}",
    )


def _program(name: str) -> str:
    """The command for a program that was installed beside this one."""
    beside = Path(sys.executable).with_name(name)
    return name if shutil.which(name) or not beside.exists() else os.path.relpath(beside)


def _summary_lines(summary: dict[str, Any]) -> list[str]:
    mismatch, hazard = summary["mismatch"], summary["hazard"]
    return [
        f"{summary['tenants']} tenants, {summary['job_weeks']} job-weeks, {counted_as(summary['rounds'], 'round')}"
        f" at epsilon {summary['epsilon']:g} and delta {summary['delta']:g} per lease and window;"
        f" {summary['seconds']:.1f} s",
        f"mismatched pairs:  AUROC {_number(mismatch['auroc'])},"
        f" average precision {_number(mismatch['average_precision'])}"
        f" (without privacy {_number(mismatch['auroc_without_privacy'])}"
        f" and {_number(mismatch['average_precision_without_privacy'])})",
        f"hazard by context: mean |log rate error| {_number(hazard['mean_abs_log_rate_error'])}"
        f" (without privacy {_number(hazard['mean_abs_log_rate_error_without_privacy'])}),"
        f" 95% intervals cover {hazard['interval_coverage']:.0%}",
        _impact_line(summary["impact"]),
    ]


def _impact_line(impact: dict[str, Any]) -> str:
    return (
        f"impact:            {_number(impact['mismatch_gpu_hours_avoided_share'])} of the GPU-hours lost to mismatches"
        f" avoided, {_number(impact['false_refusal_share'])} of other starts refused (false refusals);"
        f" {_number(impact['warned_30min_share'])} of degradations had a hint 30 minutes before,"
        f" {_number(impact['false_hints_per_1000_lease_hours'])} false hints per 1,000 lease-hours;"
        f" {impact['gpu_hours_saved']:,.0f} GPU-hours saved"
    )


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


@app.command(cls=Verb)
def federation(
    out: Annotated[Path | None, typer.Option(help="Folder for all homes and logs.", show_default=False)] = None,
    tenants: Annotated[int, typer.Option(min=4, help="Number of tenants.")] = 4,
    trustees: Annotated[int, typer.Option(min=3, help="Number of trustees.")] = 3,
    *,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Found a federation of real programs on this machine, hold one round, and stop them all."""
    began = time.monotonic()
    with _console.failing():
        check_new(out, force=force)
    with _console.failing(), _homes(out) as root:
        from simulation.run.processes import Places, hold

        result = hold(
            Places(root, tenants, trustees),
            lambda text: say(f"[{time.monotonic() - began:5.1f} s] {text}"),
        )
    held: HeldHere = {**result, "total_seconds": round(time.monotonic() - began, 3)}
    if as_json:
        show_json(held)
    else:
        show(_round_line(held))


@app.command(cls=Verb, name="bad-link")
def bad_link(
    out: Annotated[Path, typer.Option(help="Folder for all homes and files.", show_default=False)],
    *,
    force: Force = False,
) -> None:
    """Found a federation of three tenants on a small fabric with a bad link, with a week of jobs that stall there.

    Nothing runs when it ends: docs/tutorials/bad-link.md goes on from here.
    """
    with _console.failing():
        check_new(out, force=force)
    with _console.failing(), _homes(out) as root:
        from simulation.run.bad_link import settle
        from simulation.run.processes import Places, founded, last_week

        with founded(places := Places(root, tenants=3, trustees=3)):
            settle(places, (out / "homes").absolute(), last_week(), now_hour())
    show(str(out / "homes"))


def _round_line(result: "HeldHere") -> str:
    return (
        f"round {result['round_id'][:12]}: {result['contributors']} contributions, {result['cells']} cells,"
        f" epsilon {result['epsilon']:.3f} per lease and window; the round took {result['seconds']:.1f} s,"
        f" everything {result['total_seconds']:.1f} s"
    )


@app.command(cls=Verb)
def scenarios() -> None:
    """List the scenarios that come with the program."""
    with _console.failing():
        from simulation.cloud.scenario import load, names

        for name in names():
            show(f"{name:<12} {load(name).title}")


class RunStatus(TypedDict):
    """An output folder; facts are null where there is no outcome."""

    version: int
    out: str
    complete: bool
    scenario: str | None
    seed: int | None
    weeks: int | None
    tenants: int | None
    rounds: int | None
    epsilon: float | None
    homes: list[str]


@app.command(cls=Verb)
def status(
    out: Annotated[Path, typer.Argument(help="The folder that `run --out` or `federation --out` wrote.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show what an output folder holds: the scenario, whether the run is complete, and the homes.

    Exit code 0: a complete run. 1: homes without an outcome. 2: the folder cannot be read. 3: it holds no run.
    """
    import json

    file, homes = out / "outcome.json", out / "homes"
    outcome = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    known = ("scenario", "seed", "weeks", "tenants", "rounds", "epsilon")
    facts = {key: outcome.get(key) for key in known}
    provider = [str(homes / "provider")] if (homes / "provider").is_dir() else []
    paths = provider + sorted(map(str, homes.glob("tenants/*")))
    if as_json:
        found: RunStatus = {
            "version": 1,
            "out": str(out),
            "complete": bool(outcome),
            "scenario": facts["scenario"],
            "seed": facts["seed"],
            "weeks": facts["weeks"],
            "tenants": facts["tenants"],
            "rounds": facts["rounds"],
            "epsilon": facts["epsilon"],
            "homes": paths,
        }
        show_json(found)
    else:
        show(f"folder      {out}: {'complete' if outcome else 'no outcome'}")
        show(*(f"{key:<11} {value}" for key, value in facts.items() if value is not None))
        show(f"homes       {len(paths)}{f', the first is {paths[0]}' if paths else ''}")
    raise typer.Exit(0 if outcome else 1 if paths else 3)


@replay.command(cls=Verb)
def titan(
    file: DataFile,
    epsilon: Epsilon = "1",
    seeds: Seeds = 1,
    holdout: Holdout = None,
    *,
    hide_times: HideTimes = False,
    as_json: AsJson = False,
) -> None:
    """Titan's GPU lifetimes: cabinet columns as tenants, 43 hazard ratios compared with the published ones."""
    with _console.failing():
        from simulation.replay.titan import replay_titan, replay_titan_holdout
        from simulation.replay.titan_times import replay_titan_times

        if hide_times and holdout is not None:
            raise typer.BadParameter("no replay does both: leave out --holdout", param_hint="--hide-times")
        if hide_times:
            _replay(replay_titan_times(file, _epsilon(epsilon), seeds), 2 * seeds, as_json=as_json)
        else:
            play = replay_titan if holdout is None else replay_titan_holdout
            _replay(play(file, _epsilon(epsilon), seeds), seeds, as_json=as_json)


@replay.command(cls=Verb)
def philly(file: DataFile, epsilon: Epsilon = "1", seeds: Seeds = 1, *, as_json: AsJson = False) -> None:
    """Philly's jobs: users as tenants, survival by number of GPUs compared with the pooled curve."""
    with _console.failing():
        from simulation.replay.philly import replay_philly

        _replay(replay_philly(file, _epsilon(epsilon), seeds), seeds, as_json=as_json)


@replay.command(cls=Verb)
def lung(epsilon: Epsilon = "1", seeds: Seeds = 1, *, hide_times: HideTimes = False, as_json: AsJson = False) -> None:
    """NCCTG's lung cancer data (shipped with lifelines): institutions as tenants, one survival curve."""
    with _console.failing():
        from simulation.replay.lung import replay_lung
        from simulation.replay.lung_times import replay_lung_times

        play, rounds = (replay_lung_times, 2 * seeds) if hide_times else (replay_lung, seeds)
        _replay(play(_epsilon(epsilon), seeds), rounds, as_json=as_json)


@replay.command(cls=Verb)
def brca(
    folder: DataFolder,
    epsilon: Annotated[float, typer.Option(min=0.01, help="Epsilon per centre for Flower's private FedAvg.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat private FedAvg this many times.")] = 5,
    *,
    as_json: AsJson = False,
) -> None:
    """Fed-TCGA-BRCA: exact Newton steps over masked sums of six centres, compared with Flower's FedAvg."""
    with _console.failing():
        from simulation.replay.brca import replay_brca

        _replay(replay_brca(folder, epsilon, seeds), seeds, as_json=as_json)


def _replay(steps: Iterator["Result | None"], rounds: int, *, as_json: bool) -> None:
    """Runs a replay, which yields None after each of its rounds and then its result, and prints the result."""
    with progressing() as progress:
        (result,) = [step for step in progress.track(steps, total=rounds + 1, description="rounds") if step is not None]
    if as_json:
        show_json(result.json)
    else:
        show(*(f"{key}: {value}" for key, value in result.json.items()))


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
    """A folder for the homes of a run, in memory where possible; copied to `out` afterwards."""
    from simulation.run.processes import memory_folder

    with tempfile.TemporaryDirectory(prefix="pharoah-", dir=memory_folder()) as root:
        yield Path(root)
        if out is not None:
            homes = out / "homes"
            shutil.rmtree(homes, ignore_errors=True)
            shutil.copytree(root, homes)
