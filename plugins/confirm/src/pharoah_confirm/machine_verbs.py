"""Verbs that test suspected hardware: `confirm [SUSPICION]`, `confirm determinism` and `confirm learn`.

- Exit codes: 0 as fast as healthy machines, or the same results, 1 warning, 2 confirmed slow or wrong, 3 unknown.
- Every run of a benchmark is kept in the home, as a baseline for later runs. Without one the answer is unknown.
- Only what reads a hint or sends an outcome needs the extra `federation`.
"""

import time
from functools import partial
from pathlib import Path
from typing import Annotated, TypedDict

import msgspec
import typer

from crypto.errors import PharoahError
from federation.base.console import AsJson, InputFile
from federation.base.screen import say, show, show_json
from federation.protocol.service_messages import CheckVerdict, Hint, Suspicion
from pharoah_confirm import assess, determinism as tests, kept, machine, pair
from pharoah_confirm.assess import BenchmarkFinding, rows
from pharoah_confirm.criteria import Criterion
from pharoah_confirm.determinism import DeviceFinding
from pharoah_confirm.kept import CriteriaFile
from pharoah_confirm.machine import Target
from pharoah_confirm.sample import CannotMeasure, Sample
from pharoah_confirm.select import DEFAULTS, PROBES, select
from tenant_client.program.verbs.console import Home, Latest, failing, warn

MOST_SHOWN = 4.0
ADVICE = {
    CheckVerdict.OK: "no action: the tested hardware is as fast as healthy machines",
    CheckVerdict.WARNING: "checkpoint more often, and test again later",
    CheckVerdict.MISMATCH: "checkpoint, move the job off this machine, and report it to the provider (--hint N --tell)",
    CheckVerdict.UNKNOWN: "no verdict: pass the --criteria of a fleet, or test again while the machine is healthy",
}


class JudgementObject(TypedDict):
    """A run against healthy machines: the loss of speed with its 95% interval, and the slowdown that it detects."""

    verdict: str
    reason: str
    shortfall: float
    shortfall_low: float
    shortfall_high: float
    p_value: float
    finds: float


class RunObject(TypedDict):
    """One measurement."""

    device: str
    unit: str
    values: list[float]


class FindingObject(TypedDict):
    """The result of one benchmark; `usual` is the speed of healthy machines, null if it is unknown."""

    suspicion: str
    benchmark: str
    verdict: str
    reason: str
    compared_with: str
    shortfall_percent: float
    judgement: JudgementObject | None
    usual: float | None
    runs: list[RunObject]


class Confirmed(TypedDict):
    """The verdict over all benchmarks: ok, warning, mismatch or unknown."""

    version: int
    verdict: str
    findings: list[FindingObject]


def confirm(
    home: Home,
    suspicion: Annotated[
        Suspicion | None,
        typer.Argument(help="The suspected hardware; by default that of --hint.", show_default=False),
    ] = None,
    hint: Annotated[int, typer.Option(help="The number of the hint to test.", show_default=False)] = 0,
    lease: Annotated[
        str,
        typer.Option(
            help="In place of --hint: test the newest hint of this lease (its name or the start of it).",
            show_default=False,
        ),
    ] = "",
    criteria: Annotated[
        Path | None,
        typer.Option(click_type=InputFile(), help="Criteria of a fleet; by default this machine's earlier runs."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds that each test measures.")] = 10.0,
    risk: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Without a suspicion: probability of a failure; by default that of the hint, else 1."
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu or cuda:N; by default the first GPU, else the CPU.", show_default=False)
    ] = "",
    folder: Annotated[
        Path | None, typer.Option(help="A folder on the disk to test; by default the home.", show_default=False)
    ] = None,
    partner: Annotated[
        str, typer.Option(help="host:port of the machine that runs `confirm answer`.", show_default=False)
    ] = "",
    *,
    latest: Latest = False,
    tell: Annotated[bool, typer.Option("--tell", help="Send the outcome to the provider, once per hint.")] = False,
    as_json: AsJson = False,
) -> None:
    """Test suspected hardware. Exit code 0: healthy. 1: warning. 2: confirmed. 3: unknown."""
    if sum(map(bool, (hint, lease, latest))) > 1:
        raise typer.BadParameter("pass only one of --hint, --lease and --latest", param_hint="--lease")
    if tell and not (hint or lease or latest):
        raise typer.BadParameter("--tell needs --hint, --lease or --latest", param_hint="--hint")
    with failing(CheckVerdict.UNKNOWN):  # an error confirms nothing: a script that acts on exit code 2 must not act
        about = _hint(home, hint, None if hint else lease) if hint or lease or latest else None
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = machine.Target(device or machine.default_device(), folder or home, partner or pair.LOOPBACK)
        known = kept.read_criteria(criteria) if criteria else None
        suspected = suspicion or (about.suspicion if about else Suspicion.UNCLEAR)
        chosen = _chosen(suspected, about.probability if about and risk is None else risk or 1.0, target)
        findings = [_test(tested, target, seconds, home, known) for tested in chosen]
    verdict = assess.overall(finding.verdict for finding in findings)
    if as_json:
        rows = [_plain(finding) for finding in findings]
        show_json({"version": 1, "verdict": verdict.name.lower(), "findings": rows})
    else:
        for finding in findings:
            _show(finding)
        show(ADVICE[verdict])
    if about and tell:
        _tell(home, about, findings)
    raise typer.Exit(int(verdict))


class Learnt(TypedDict):
    """The criteria file: its version, where it is, and how many criteria it has."""

    version: int
    out: str
    criteria: int


def learn(
    samples: Annotated[
        list[Path], typer.Argument(help="Runs from the confirm/ folders of homes: files, or folders of files.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write the criteria to.")] = Path("criteria.json"),
    *,
    as_json: AsJson = False,
) -> None:
    """Learn the speed of healthy machines from many machines' runs. The criteria file names no machine."""
    with failing():
        file = kept.criteria(kept.runs(samples))
        kept.write_criteria(out, file)
    if as_json:
        show_json(Learnt(version=file.version, out=str(out), criteria=len(file.criteria)))
        return
    for criterion in file.criteria:
        show(
            f"{criterion.benchmark} on {criterion.device}: usual {criterion.usual:.4g} {criterion.unit},"
            f" learnt from {criterion.units} machines ({criterion.dropped} outliers dropped);"
            f" detects a slowdown of {criterion.finds():.2f}x"
        )


WRONG_ADVICE = {
    CheckVerdict.OK: "no action; to find a fault that comes rarely, test longer (--seconds), and while a job heats it",
    CheckVerdict.WARNING: "test more devices of the kind: pass what other machines say with --json",
    CheckVerdict.MISMATCH: "use no results of what is confirmed: go back to a checkpoint from before, and report it",
    CheckVerdict.UNKNOWN: "no verdict on what could not be tested; `--device cpu` tests the processors alone",
}


class DeviceObject(TypedDict):
    """What a device computed, as digests by stage, and the verdict on it; `stage` is the first that differs, or "".

    `differs` is that stage if the device differs from itself: then `runs` is the number of the run that did.
    `problem` says why a device could not be tested.
    """

    machine: str
    device: str
    kind: str
    runs: int
    stages: dict[str, str]
    differs: str
    problem: str
    verdict: str
    reason: str
    stage: str


class Determinism(TypedDict):
    """The verdict over all devices: ok, warning, mismatch or unknown."""

    version: int
    verdict: str
    devices: list[DeviceObject]


def determinism(
    others: Annotated[
        list[Path] | None,
        typer.Argument(
            click_type=InputFile(), help="What other machines said with --json, to compare with.", show_default=False
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu or cuda:N; by default all GPUs, else all processors.", show_default=False)
    ] = "",
    seconds: Annotated[
        float, typer.Option(min=0, help="Seconds that all devices compute, side by side; 0 compares the files alone.")
    ] = 10.0,
    *,
    as_json: AsJson = False,
) -> None:
    """Find devices with wrong results: the same steps from one seed, again and again, compared bit by bit.

    A job may run beside it. Exit code 0: equal results. 1: devices differ, no majority. 2: one is wrong. 3: unknown.
    """
    with failing(CheckVerdict.UNKNOWN):
        known = tests.read(others or [])
        findings = tests.judge([*known, *(tests.replays(tests.devices(device), seconds) if seconds else [])])
    verdict = assess.overall(finding.verdict for finding in findings)
    if as_json:
        rows = [_device(finding) for finding in findings]
        show_json({"version": tests.VERSION, "verdict": verdict.name.lower(), "devices": rows})
    else:
        for finding in findings:
            word = "confirmed" if finding.verdict is CheckVerdict.MISMATCH else finding.verdict.name.lower()
            show(f"{finding.of.machine} {finding.of.device}: {word}: {finding.reason}")
        show(WRONG_ADVICE[verdict])
    raise typer.Exit(int(verdict))


def _device(finding: DeviceFinding) -> dict[str, object]:
    verdict = {"verdict": finding.verdict.name.lower(), "reason": finding.reason, "stage": finding.stage}
    return msgspec.structs.asdict(finding.of) | verdict


# ---- parts ---------------------------------------------------------------------------------------------------------


def _hint(home: Path, number: int, lease: str | None) -> Hint:
    from pharoah_confirm import telling  # what needs the extra `federation` fails before anything is measured

    return telling.hint(home, number, lease)


def _chosen(suspicion: Suspicion, risk: float, target: Target) -> list[Suspicion]:
    """The given suspicion; for UNCLEAR, the tests whose expected gain exceeds their duration."""
    if suspicion is not Suspicion.UNCLEAR:
        return [suspicion]
    possible = [probe for probe in PROBES if Suspicion(probe.name) in target.benchmarks()]
    return [Suspicion(probe.name) for probe in select(risk, DEFAULTS, probes=possible).probes]


def _test(
    suspicion: Suspicion, target: Target, seconds: float, home: Path, known: CriteriaFile | None
) -> BenchmarkFinding:
    def find(sample: Sample) -> tuple[Criterion | None, str]:
        kind = sample.benchmark, sample.device, sample.unit
        fleet = known.find(kind) if known else None
        return (fleet, "fleet") if fleet else (kept.own(home, machine.name(), kind), "own")

    try:
        benchmark, _, _ = target.benchmark(suspicion)
    except CannotMeasure as error:
        return BenchmarkFinding(suspicion, "", CheckVerdict.UNKNOWN, f"{error.what}; {error.hint}", "nothing", ())
    measure = partial(target.measure, suspicion, seconds)
    finding = assess.assess(suspicion, benchmark.name, measure, find, undisturbed=benchmark.undisturbed)
    for sample in finding.samples:
        kept.keep(home, sample, machine.name(), time.time(), finding.verdict)
    return finding


def _plain(finding: BenchmarkFinding) -> dict[str, object]:
    judged = finding.judgement
    return {
        "suspicion": finding.suspicion.value,
        "benchmark": finding.benchmark,
        "verdict": finding.verdict.name.lower(),
        "reason": finding.reason,
        "compared_with": finding.compared_with,
        "shortfall_percent": finding.shortfall_percent,
        "judgement": judged and {**vars(judged), "verdict": judged.verdict.name.lower()},
        "usual": None if finding.criterion is None else finding.criterion.usual,
        "runs": [{"device": one.device, "unit": one.unit, "values": one.values.tolist()} for one in finding.samples],
    }


def _show(finding: BenchmarkFinding) -> None:
    word = "confirmed" if finding.verdict is CheckVerdict.MISMATCH else finding.verdict.name.lower()
    show(f"{finding.suspicion}: {word}: {finding.reason}")
    if finding.samples:
        sample = finding.samples[-1]
        show(f"  {finding.benchmark} on {sample.device}, in {sample.unit}, against {finding.compared_with}")
        show(*(f"  {row}" for row in rows(finding)))
    if (judged := finding.judgement) is not None:
        word = "slower" if judged.shortfall > 0 else "faster"
        low, high = sorted((abs(judged.shortfall_low), abs(judged.shortfall_high)))
        finds = f"slowdowns from {judged.finds:.2f}x" if judged.finds < MOST_SHOWN else "no slowdown yet"
        show(f"  {abs(judged.shortfall):.1%} {word} than usual ({low:.1%} to {high:.1%}); this test detects {finds}")


def _tell(home: Path, about: Hint, findings: list[BenchmarkFinding]) -> None:
    """Sends the outcomes to the provider. An unreachable provider changes no verdict."""
    from pharoah_confirm import telling

    try:
        reported = [finding for finding in findings if telling.tell(home, about, finding)]
    except PharoahError as error:
        warn(f"the outcome was not sent: {error.what}", error.hint)
        return
    for finding in reported:
        word = "confirmed" if finding.verdict is CheckVerdict.MISMATCH else "not confirmed"
        what = f"{finding.suspicion} {word}, {finding.shortfall_percent:.1f}% short"
        say(f"sent to the provider for hint {about.number}: {what}")
