"""The verb that shows what leases deliver on each context: `findings expectations`."""

from typing import Annotated, TypedDict

import typer

from federation.base.console import AsJson
from federation.base.screen import show, show_json
from federation.protocol.subjects import GOODPUT_EDGES, Subject
from provider_server.fleet.analysis.attainment import AttainedShare, ContextGoodput, GoodputQuantile, by_context
from provider_server.program.verbs.console import Database, Home, required
from provider_server.program.verbs.opening import newest_counting

MISSED = 1


class ContextRow(TypedDict):
    """A context by token, and by name where provider.toml has it: noisy leases, and whether it misses the aim."""

    context: str
    name: str
    units: float
    attained: tuple[AttainedShare, ...]
    quantiles: tuple[GoodputQuantile, ...]
    p_value: float
    missed: bool


class ExpectationsView(TypedDict):
    """The weeks that were counted, the noise of a count, the aim, and all contexts, those that miss it first."""

    version: int
    start_hour: int
    end_hour: int
    noise_sd: float
    target: float
    aim: float
    contexts: list[ContextRow]


def expectations(
    home: Home = None,
    database: Database = None,
    target: Annotated[float, typer.Option(help="A goodput: 0.5, 0.8, 0.9 or 0.95.")] = 0.9,
    aim: Annotated[float, typer.Option(min=0, max=1, help="The share of leases that are to reach it.")] = 0.9,
    *,
    as_json: AsJson = False,
) -> None:
    """Show on each context how many leases reached a goodput, for all tenants together.

    From the newest release that counts leases by goodput. Intervals are of what was counted: they know the noise.
    Contexts that miss the aim are named at a false discovery rate of 10%.

    Exit code 0: no context is named. 1: one is. 3: no release counts goodput yet.
    """
    if target not in GOODPUT_EDGES[1:]:
        raise typer.BadParameter("it is 0.5, 0.8, 0.9 or 0.95", param_hint="--target")
    lacking = "no release counts goodput: set goodput_share in provider.toml, see docs/fabric.md"
    newest, names = newest_counting(Subject.GOODPUT, required(home), database, lacking)
    table = newest.table(Subject.GOODPUT)
    variance = table.noise_variance.max(axis=1)
    found = by_context(table.levels("context"), table.events, variance, GOODPUT_EDGES, (target, aim))
    view: ExpectationsView = {
        "version": 1,
        "start_hour": newest.first_hour,
        "end_hour": newest.plan.end_hour,
        "noise_sd": float(variance.max() ** 0.5),
        "target": target,
        "aim": aim,
        "contexts": [_row(one, names.get(one.context, "")) for one in found],
    }
    if as_json:
        show_json(view)
    else:
        show(*(line for row in view["contexts"] for line in _lines(row, view)))
    raise typer.Exit(MISSED if any(one.is_missed for one in found) else 0)


def _row(one: ContextGoodput, name: str) -> ContextRow:
    return {
        "context": one.context,
        "name": name,
        "units": one.units,
        "attained": one.attained,
        "quantiles": one.quantiles,
        "p_value": one.p_value,
        "missed": one.is_missed,
    }


def _lines(row: ContextRow, view: ExpectationsView) -> list[str]:
    said = f"fewer than {view['aim']:.0%} reach {view['target']:.0%}" if row["missed"] else "not named"
    total = f"{row['units']:.0f} leases (noise of a band ± {view['noise_sd']:.0f})"
    shares = "; ".join(
        f"{one.goodput:.0%} in {one.share:.0%} ({one.low:.0%} to {one.high:.0%})" for one in row["attained"]
    )
    between = "; ".join(
        f"lowest {one.share:.0%}: up to {one.low:.0%} at least, {one.high:.0%} at most" for one in row["quantiles"]
    )
    return [
        f"{row['name'] or row['context'][:12]}: {said}: {total}, p = {row['p_value']:.1g}",
        f"  goodput of {shares}",
        f"  {between}",
    ]
