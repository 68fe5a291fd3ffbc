"""`pharoah-sim run`: a scenario played week by week."""

import os.path
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from federation.base.console import AsJson, Force, check_new
from federation.base.screen import say, show, show_json
from federation.base.visible import counted_as, json_text
from provider_server.program.pages.login import set_password
from simulation.cloud.scenario import ScenarioError
from simulation.judge.report import write_report
from simulation.judge.score import META_PER_1000_NODE_DAYS, Outcome
from simulation.judge.sweep import grid_of, outcome_of, runs_of
from simulation.run import engines
from simulation.run.engine_options import EngineKind, NoiseSeed, Set
from simulation.run.engines import Kind
from simulation.run.processes import homes

PASSWORD_BYTES, SALT_BYTES = 12, 16
FEW = 1000  # job-weeks


def run(
    scenario: Annotated[str, typer.Option(help="Name of a scenario, or a TOML file.")] = "quickstart",
    set_: Set = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the cloud. Keys and noise are fresh, so figures vary.")] = 0,
    noise_seed: NoiseSeed = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for outcome.json, report.html and all homes.", show_default=False)
    ] = None,
    engine: EngineKind = Kind.PROCESSES,
    *,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Play a scenario week by week with real tenants, trustees and provider, and compare findings with the truth."""
    began = time.monotonic()

    def tell(what: str) -> None:
        say(f"{time.monotonic() - began:5.1f} s  {what}")

    cells = grid_of(set_ or [])
    if len(cells) > 1:
        raise ScenarioError("one run has one value for each key", hint="`pharoah-sim sweep` plays a grid")
    (one,) = runs_of(scenario, cells, [seed], noise_seed)
    tell(f"scenario {scenario}, seed {seed}")
    check_new(out, force=force)
    with engines.engine(engine) as side_by_side, homes(out) as root:
        outcome = outcome_of(one, root, side_by_side, tell)
    if out is not None:
        _write(outcome, out)
        _show_pages(out / "homes")
    tell("done")
    summary: dict[str, Any] = {key: value for key, value in outcome.items() if key != "detail"}
    if as_json:
        show_json(summary)
    else:
        show(*_summary_lines(summary))


def _write(outcome: Outcome, out: Path) -> None:
    (out / "outcome.json").write_text(json_text(outcome, indent=1) + "\n")
    write_report(outcome, out / "report.html")
    say(f"wrote {out / 'outcome.json'} and {out / 'report.html'}")


def _show_pages(homes: Path) -> None:
    """Sets a random password for the provider's page, and prints how to open both pages."""
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
    mismatch, hazard, failures = summary["mismatch"], summary["hazard"], summary["failures_per_1000_node_days"]
    small = ["so small a cloud shows nothing: it is for trying the programs"] * (summary["job_weeks"] < FEW)
    changed = [f"changed:           {', '.join(f'{key} = {value}' for key, value in summary['changes'].items())}"]
    return [
        *small,
        *changed * bool(summary["changes"]),
        f"{summary['tenants']} tenants, {summary['job_weeks']} job-weeks, {counted_as(summary['rounds'], 'round')}"
        f" at epsilon {summary['epsilon']:g} and delta {summary['delta']:g} per lease and window;"
        f" {summary['seconds']:.1f} s",
        f"failures:          {failures:.3g} of infrastructure per 1,000 node-days,"
        f" {failures / META_PER_1000_NODE_DAYS:.1f} times as many as Meta reports ({META_PER_1000_NODE_DAYS:g})",
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
    avoided, refused = impact["mismatch_gpu_hours_avoided_share"], impact["false_refusal_share"]
    warned = impact["warned_30min_share"]
    parts = (
        "no job ran on a mismatch after the first bundle"
        if avoided is None
        else f"{avoided:.1%} of the GPU-hours lost to mismatches avoided",
        "" if refused is None else f"{refused:.1%} of other starts refused (false refusals)",
        "no node degraded after it" if warned is None else f"{warned:.1%} of degradations had a hint 30 minutes before",
        f"{_number(impact['false_hints_per_1000_lease_hours'])} false hints per 1,000 lease-hours",
        f"{impact['gpu_hours_saved']:,.0f} GPU-hours saved, and {impact['refusal_gpu_hours']:,.0f} spent on refusals",
    )
    return f"impact:            {'; '.join(filter(None, parts))}"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
