"""The verb that shows on which contexts jobs are slower than elsewhere: `findings slow`."""

from typing import TypedDict

import typer

from federation.base.console import AsJson
from federation.base.screen import show, show_json
from federation.protocol.subjects import Subject
from provider_server.fleet.analysis.slow_contexts import ContextPace, slow_contexts
from provider_server.program.verbs.console import Database, Home, required
from provider_server.program.verbs.opening import newest_counting

NAMED = 1


class PaceRow(TypedDict):
    """A context by token, and by name where provider.toml has it: noisy leases, p-value, whether it is named."""

    context: str
    name: str
    slow: float
    watched: float
    p_value: float
    named: bool


class PacesView(TypedDict):
    """The weeks that were counted, the noise of a count, and all contexts, slowest first."""

    version: int
    start_hour: int
    end_hour: int
    noise_sd: float
    contexts: list[PaceRow]


def slow(home: Home = None, database: Database = None, *, as_json: AsJson = False) -> None:
    """Show on which contexts the jobs of all tenants together are at least a tenth slower than elsewhere.

    From the newest release that counts slow leases. Contexts are named at a false discovery rate of 10%.

    Exit code 0: no context is named. 1: one is. 3: no release counts slow leases yet.
    """
    lacking = "no release counts slow leases: set speed_share in provider.toml, see docs/fabric.md"
    newest, names = newest_counting(Subject.SPEED, required(home), database, lacking)
    table = newest.table(Subject.SPEED)
    slow_weeks, usual_weeks = table.at("pace", "slow"), table.at("pace", "usual")
    found = slow_contexts(table.levels("context"), slow_weeks.events, usual_weeks.events, slow_weeks.noise_variance)
    view: PacesView = {
        "version": 1,
        "start_hour": newest.first_hour,
        "end_hour": newest.plan.end_hour,
        "noise_sd": float(table.noise_variance.max() ** 0.5),
        "contexts": [_row(one, names.get(one.context, "")) for one in found],
    }
    if as_json:
        show_json(view)
    else:
        show(*(_line(row, view["noise_sd"]) for row in view["contexts"]))
    raise typer.Exit(NAMED if any(one.is_named for one in found) else 0)


def _row(one: ContextPace, name: str) -> PaceRow:
    return {
        "context": one.context,
        "name": name,
        "slow": one.slow,
        "watched": one.watched,
        "p_value": one.p_value,
        "named": one.is_named,
    }


def _line(row: PaceRow, noise_sd: float) -> str:
    said = "slower than elsewhere" if row["named"] else "not named"
    return (
        f"{row['name'] or row['context'][:12]}: {said}: {row['slow']:.0f} of {row['watched']:.0f} leases slow"
        f" (noise ± {noise_sd:.0f}), p = {row['p_value']:.1g}"
    )
