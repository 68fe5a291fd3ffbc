"""The verbs that confirm a suspicion: `confirm [SUSPICION]`, `confirm learn`, `confirm answer`.

Exit codes: 0 as fast as healthy machines, 1 warning, 2 confirmed, 3 unknown. Without anything to compare with the
answer is unknown, and each run is kept in the home, so that later ones have something.
"""

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperGroup

from crypto.errors import PharoahError
from federation.protocol.service_messages import CheckVerdict, Suspicion
from federation.runtime.console import AsJson, AskingVerb, InputFile, Verb, group
from federation.runtime.screen import say, show, show_json
from tenant_client.verbs.console import Home, Latest, failing, warn

if TYPE_CHECKING:
    from federation.protocol.service_messages import Hint
    from tenant_client.confirm.assess import BenchmarkFinding
    from tenant_client.confirm.criteria import Criterion
    from tenant_client.confirm.kept import CriteriaFile
    from tenant_client.confirm.machine import Target
    from tenant_client.confirm.sample import Sample

DEFAULT = "test"
MOST_SHOWN = 4.0
ADVICE = {
    CheckVerdict.OK: "go on: what was tested is as fast as healthy machines are",
    CheckVerdict.WARNING: "keep checkpoints fresh, and test again later",
    CheckVerdict.MISMATCH: "checkpoint, leave this machine, and tell the provider with --hint and --tell",
    CheckVerdict.UNKNOWN: "nobody is accused: name --criteria of a fleet, or test some more while all is well",
}


class ConfirmGroup(TyperGroup):
    """What is no verb of this group belongs to `test`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with the default verb put in front."""
        return super().parse_args(ctx, self._with_verb(ctx, args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the default verb put in front."""
        return super().resolve_command(ctx, self._with_verb(ctx, args))

    def _with_verb(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return args if known else [DEFAULT, *args]


app = group(
    "confirm",
    "Run the one micro-benchmark that tests a suspicion, and compare. Stop the job first: it would look slow.",
    cls=ConfirmGroup,
)


@app.command(DEFAULT, cls=AskingVerb)
def confirm(
    home: Home,
    suspicion: Annotated[
        Suspicion | None, typer.Argument(help="What is suspected; by default that of --hint.", show_default=False)
    ] = None,
    hint: Annotated[int, typer.Option(help="The number of the hint that this is about.", show_default=False)] = 0,
    lease: Annotated[
        str,
        typer.Option(
            help="In place of --hint: the newest hint of this lease, or of the one that begins so.", show_default=False
        ),
    ] = "",
    criteria: Annotated[
        Path | None,
        typer.Option(click_type=InputFile(), help="Criteria of a fleet; by default this machine's earlier runs."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long a test measures.")] = 10.0,
    risk: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Without a suspicion: how likely a failure is; by default as the hint says, else 1."
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu or cuda:N; by default the first GPU there is.", show_default=False)
    ] = "",
    folder: Annotated[
        Path | None, typer.Option(help="A folder on the disk to be tested; by default the home.", show_default=False)
    ] = None,
    partner: Annotated[
        str, typer.Option(help="Where another machine runs `confirm answer`, as host:port.", show_default=False)
    ] = "",
    *,
    latest: Latest = False,
    tell: Annotated[bool, typer.Option("--tell", help="Tell the provider the outcome, once.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure what is suspected. Exit code 0: fine. 1: warning. 2: confirmed. 3: unknown."""
    from tenant_client.confirm import assess, kept, machine, pair, telling

    if sum(map(bool, (hint, lease, latest))) > 1:
        raise typer.BadParameter("name one of --hint, --lease and --latest", param_hint="--lease")
    if tell and not (hint or lease or latest):
        raise typer.BadParameter("name the hint or the lease whose outcome is to be told", param_hint="--hint")
    with failing(CheckVerdict.UNKNOWN):  # an error confirms nothing: who acts on exit code 2 must not act on it
        about = telling.hint(home, hint, None if hint else lease) if hint or lease or latest else None
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = machine.Target(device or machine.default_device(), folder or home, partner or pair.LOOPBACK)
        known = kept.read_criteria(criteria) if criteria else None
        suspected = suspicion or (about.suspicion if about else Suspicion.UNCLEAR)
        chosen = _chosen(suspected, about.probability if about and risk is None else risk or 1.0, target)
        findings = [_test(one, target, seconds, home, known) for one in chosen]
    verdict = assess.overall(findings)
    if as_json:
        show_json({"version": 1, "verdict": verdict.name.lower(), "findings": [_plain(one) for one in findings]})
    else:
        for finding in findings:
            _show(finding)
        show(ADVICE[verdict])
    if about and tell:
        _tell(home, about, findings)
    raise typer.Exit(int(verdict))


@app.command(cls=Verb)
def learn(
    samples: Annotated[list[Path], typer.Argument(help="Runs that homes kept in confirm/: files, or folders of them.")],
    out: Annotated[Path, typer.Option(help="Where to write the criteria.")] = Path("criteria.json"),
    *,
    as_json: AsJson = False,
) -> None:
    """Learn from runs of many machines how fast healthy ones are. The file that is written names no machine."""
    from tenant_client.confirm import kept

    with failing():
        learnt = kept.criteria(kept.runs(samples))
        kept.write_criteria(out, learnt)
    if as_json:
        show_json({"version": learnt.version, "out": str(out), "criteria": len(learnt.criteria)})
        return
    for one in learnt.criteria:
        show(
            f"{one.benchmark} on {one.device}: usually {one.usual:.4g} {one.unit}, learnt from {one.units} machines"
            f" ({one.dropped} left out); finds {one.finds():.2f} times slower ones"
        )


@app.command(cls=Verb)
def answer(
    listen: Annotated[str, typer.Option(help="Address and port to listen at.")] = "0.0.0.0:7300",
    seconds: Annotated[float, typer.Option(min=0.1, help="For how long.")] = 600.0,
) -> None:
    """Be the partner of another machine's `confirm interconnect`, for a while. Unencrypted: only counting numbers."""
    from tenant_client.confirm import pair

    with failing():
        served = pair.serve(listen, seconds)
    show(f"answered {served} partner(s)")


# ---- parts ---------------------------------------------------------------------------------------------------------


def _chosen(suspicion: Suspicion, risk: float, target: "Target") -> list[Suspicion]:
    """The one that is suspected, or those that are worth their minutes where it is not clear."""
    from tenant_client.confirm.select import DEFAULTS, PROBES, select

    if suspicion is not Suspicion.UNCLEAR:
        return [suspicion]
    possible = [probe for probe in PROBES if Suspicion(probe.name) in target.benchmarks()]
    return [Suspicion(probe.name) for probe in select(risk, DEFAULTS, probes=possible).probes]


def _test(
    suspicion: Suspicion, target: "Target", seconds: float, home: Path, known: "CriteriaFile | None"
) -> "BenchmarkFinding":
    from tenant_client.confirm import kept, machine
    from tenant_client.confirm.assess import BenchmarkFinding, assess
    from tenant_client.confirm.sample import CannotMeasure

    def find(sample: "Sample") -> "tuple[Criterion | None, str]":
        kind = sample.benchmark, sample.device, sample.unit
        fleet = known.find(kind) if known else None
        return (fleet, "fleet") if fleet else (kept.own(home, machine.name(), kind), "own")

    try:
        benchmark, _, _ = target.benchmark(suspicion)
    except CannotMeasure as error:
        return BenchmarkFinding(suspicion, "", CheckVerdict.UNKNOWN, f"{error.what}; {error.hint}", "nothing", ())
    measure = partial(target.measure, suspicion, seconds)
    finding = assess(suspicion, benchmark.name, measure, find, undisturbed=benchmark.undisturbed)
    for sample in finding.samples:
        kept.keep(home, sample, machine.name(), time.time(), finding.verdict)
    return finding


def _plain(finding: "BenchmarkFinding") -> dict[str, Any]:
    judged = finding.judgement
    return {
        "suspicion": finding.suspicion.value,
        "benchmark": finding.benchmark,
        "verdict": finding.verdict.name.lower(),
        "reason": finding.reason,
        "compared_with": finding.compared_with,
        "shortfall_percent": finding.shortfall_percent,
        "judgement": judged and asdict(judged) | {"verdict": judged.verdict.name.lower()},
        "usual": finding.criterion and finding.criterion.usual,
        "runs": [{"device": one.device, "unit": one.unit, "values": one.values.tolist()} for one in finding.samples],
    }


def _show(finding: "BenchmarkFinding") -> None:
    from tenant_client.confirm.assess import rows

    word = "confirmed" if finding.verdict is CheckVerdict.MISMATCH else finding.verdict.name.lower()
    show(f"{finding.suspicion}: {word}: {finding.reason}")
    if finding.samples:
        sample = finding.samples[-1]
        show(f"  {finding.benchmark} on {sample.device}, in {sample.unit}, against {finding.compared_with}")
        show(*(f"  {row}" for row in rows(finding)))
    if (judged := finding.judgement) is not None:
        word = "slower" if judged.shortfall > 0 else "faster"
        low, high = sorted((abs(judged.shortfall_low), abs(judged.shortfall_high)))
        finds = f"what is {judged.finds:.2f} times slower" if judged.finds < MOST_SHOWN else "nothing yet"
        show(f"  {abs(judged.shortfall):.1%} {word} than usual ({low:.1%} to {high:.1%}); this test finds {finds}")


def _tell(home: Path, about: "Hint", findings: "list[BenchmarkFinding]") -> None:
    """Tells what was found. That the provider cannot be reached changes no verdict."""
    from tenant_client.confirm import telling

    try:
        told = [finding for finding in findings if telling.tell(home, about, finding)]
    except PharoahError as error:
        warn(f"the provider was not told: {error.what}", error.hint)
        return
    for finding in told:
        word = "confirmed" if finding.verdict is CheckVerdict.MISMATCH else "not confirmed"
        what = f"{finding.suspicion} {word}, {finding.shortfall_percent:.1f}% short"
        say(f"told the provider, about hint {about.number}: {what}")
