"""Verbs about the store: releases, their privacy cost, and findings."""

from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from federation.base.visible import counted_as
from provider_server.program.verbs.console import AsRows, Database, Home, nothing_yet, opened, print_rows

if TYPE_CHECKING:
    from crypto.ids import VerifyKey
    from provider_server.fleet.release import Release
    from provider_server.rounds.store.store import Store

RoundName = Annotated[
    str, typer.Argument(help="Id of a round, or its first digits: show its cells. Default: list all.")
]


class TableSize(TypedDict):
    """Cells of a table, and the largest standard deviation of noise in one."""

    cells: int
    noise_sd: float


class ReleaseRow(TypedDict):
    """A release; `tables` by the marginal's name."""

    round_id: str
    start_hour: int
    end_hour: int
    since_hour: int
    contributors: int
    epsilon: float
    delta: float
    tables: dict[str, TableSize]


class CellRow(TypedDict):
    """A cell of a release, by the names of its dimensions: noisy failures and exposure."""

    marginal: str
    cell: dict[str, str]
    failures: float
    noise_sd: float
    exposure_node_hours: float


def release(round_id: RoundName = "", home: Home = None, database: Database = None, *, as_json: AsRows = False) -> None:
    """List the releases: window, contributors, tables, noise and privacy cost per unit. With a round, its cells."""
    with opened(home, database) as store:
        releases = store.releases()
    if not round_id:
        print_rows([_summary(release) for release in releases], _summary_line, as_json=as_json)
        return
    matches = [release for release in releases if str(release.plan.round_id).startswith(round_id.lower())]
    if len(matches) != 1:
        raise nothing_yet(f"{counted_as(len(matches), 'release')} found for round {round_id!r}, not one")
    print_rows(_cells(matches[0]), _cell_line, as_json=as_json)


def _summary(release: "Release") -> ReleaseRow:
    from federation.protocol.privacy_cost import plan_loss

    plan = release.plan
    return {
        "round_id": str(plan.round_id),
        "start_hour": plan.start_hour,
        "end_hour": plan.end_hour,
        "since_hour": release.first_hour,
        "contributors": release.contributors,
        "epsilon": plan_loss(plan).at(plan.delta),
        "delta": plan.delta,
        "tables": {
            marginal.name: {"cells": table.events.size, "noise_sd": float(table.noise_variance.max() ** 0.5)}
            for marginal, table in zip(plan.marginals, release.tables, strict=True)
        },
    }


def _summary_line(row: ReleaseRow) -> str:
    tables = ", ".join(
        f"{name} {table['cells']} cells ±{table['noise_sd']:.1f}" for name, table in row["tables"].items()
    )
    return (
        f"{row['round_id'][:12]} hours {row['start_hour']:>6}–{row['end_hour']:<6} counted since {row['since_hour']},"
        f" {counted_as(row['contributors'], 'contribution')}, epsilon {row['epsilon']:.3f}: {tables}"
    )


def _cells(release: "Release") -> list[CellRow]:
    import numpy as np

    rows: list[CellRow] = []
    for marginal, table in zip(release.plan.marginals, release.tables, strict=True):
        for place in np.ndindex(table.shape):
            cell = {name: table.levels(name)[at] for name, at in zip(table.names, place, strict=True)}
            rows.append(
                {
                    "marginal": marginal.name,
                    "cell": cell,
                    "failures": float(table.events[place]),
                    "noise_sd": float(table.noise_variance[place] ** 0.5),
                    "exposure_node_hours": float(table.exposure_node_hours[place]),
                }
            )
    return rows


def _cell_line(row: CellRow) -> str:
    cell = ", ".join(f"{name} {level[:12]}" for name, level in row["cell"].items())
    return (
        f"{row['marginal']}: {cell}: {row['failures']:.1f} ± {row['noise_sd']:.1f} failures"
        f" in {row['exposure_node_hours']:.0f} node-hours"
    )


class LedgerRow(TypedDict):
    """A window, and the budget that a unit in it pays."""

    start_hour: int
    end_hour: int
    epsilon: float
    rho: float
    delta: float


def ledger(home: Home = None, database: Database = None, *, as_json: AsRows = False) -> None:
    """List the privacy budget that a unit, a lease in a window, pays. Tenants enforce their own limits."""
    from crypto.signing import reopened
    from federation.protocol.plan import Plan
    from provider_server.rounds.spending import spent_by_window

    with opened(home, database) as store:
        plans = [reopened(Plan, record.signed_plan) for record in store.rounds.rounds()]
    delta = max((plan.delta for plan in plans), default=0.0)
    rows: list[LedgerRow] = [
        {
            "start_hour": start,
            "end_hour": end,
            "epsilon": loss.at(delta) if delta else loss.epsilon,
            "rho": loss.rho,
            "delta": delta,
        }
        for (start, end), loss in spent_by_window(plans).items()
    ]
    print_rows(rows, _ledger_line, as_json=as_json)


def _ledger_line(row: LedgerRow) -> str:
    return (
        f"hours {row['start_hour']}–{row['end_hour']}: epsilon {row['epsilon']:.3f} at delta {row['delta']:.0e}"
        f" (rho {row['rho']:.4f})"
    )


class FindingRow(TypedDict):
    """A workload on a context, by tokens; `alternatives` are contexts where it fails less."""

    workload: str
    context: str
    probability_worse: float
    risk_ratio: float
    risk_ratio_low: float
    risk_ratio_high: float
    expected_failures: float
    judgement: str
    alternatives: list[str]


def findings(
    home: Home = None,
    database: Database = None,
    probability: Annotated[
        float, typer.Option(help="Show pairs that are worse than expected with at least this probability.")
    ] = 0.5,
    number: Annotated[
        int | None, typer.Option("--bundle", help="Number of an older bundle; default: the newest.", show_default=False)
    ] = None,
    *,
    as_json: AsRows = False,
) -> None:
    """List the mismatches of a bundle, most probable first, after verifying its signature."""
    from crypto.signing import open_signed
    from federation.protocol.bundle import Bundle

    with opened(home, database) as store:
        bundles = [open_signed(Bundle, signed, _provider_key(store)) for signed in store.bundles()]
    matches = [bundle for bundle in bundles if number is None or bundle.number == number]
    if not matches:
        raise nothing_yet("no bundle yet" if number is None else f"no bundle has number {number}")
    bundle = matches[-1]
    shown = sorted(bundle.mismatches, key=lambda entry: -entry.probability_worse)
    rows: list[FindingRow] = [
        {
            "workload": str(entry.workload),
            "context": str(entry.context),
            "probability_worse": entry.probability_worse,
            "risk_ratio": entry.risk_ratio,
            "risk_ratio_low": entry.risk_ratio_low,
            "risk_ratio_high": entry.risk_ratio_high,
            "expected_failures": entry.expected_failures,
            "judgement": str(entry.judgement),
            "alternatives": list(map(str, entry.alternatives)),
        }
        for entry in shown
        if entry.probability_worse >= probability
    ]
    print_rows(rows, _finding_line, as_json=as_json)


def _provider_key(store: "Store") -> "VerifyKey":
    """The provider's key, from the first entry of the directory."""
    from crypto.signing import reopened
    from federation.protocol.directory import DirectoryEntry

    return reopened(DirectoryEntry, store.entries()[0]).provider


def _finding_line(row: FindingRow) -> str:
    return (
        f"workload {row['workload'][:12]} on context {row['context'][:12]}: {row['risk_ratio']:.1f} times the expected"
        f" failures (its own counts alone: {row['risk_ratio_low']:.1f}–{row['risk_ratio_high']:.1f});"
        f" among all pairs, probability that it is worse: {row['probability_worse']:.0%}"
    )
