"""`pharoah-provider findings list`: the mismatches of a published bundle."""

from typing import Annotated, TypedDict

import typer

from crypto.ids import VerifyKey
from crypto.signing import open_signed, reopened
from federation.protocol.bundle import Bundle
from federation.protocol.directory import DirectoryEntry
from provider_server.program.verbs.console import AsRows, Database, Home, nothing_yet, print_rows
from provider_server.program.verbs.opening import opened
from provider_server.rounds.store.store import Store


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


def list_(
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


def _provider_key(store: Store) -> VerifyKey:
    """The provider's key, from the first entry of the directory."""
    return reopened(DirectoryEntry, store.entries()[0]).provider


def _finding_line(row: FindingRow) -> str:
    return (
        f"workload {row['workload'][:12]} on context {row['context'][:12]}: {row['risk_ratio']:.1f} times the expected"
        f" failures (its own counts alone: {row['risk_ratio_low']:.1f}–{row['risk_ratio_high']:.1f});"
        f" among all pairs, probability that it is worse: {row['probability_worse']:.0%}"
    )
