"""`pharoah-provider findings list`: the mismatches of a published bundle."""

from functools import partial
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.ids import VerifyKey
from crypto.signing import open_signed, reopened
from federation.base.console import AsJson
from federation.base.key_files import read_key
from federation.protocol.bundle import Bundle
from federation.protocol.directory import DirectoryEntry
from provider_server.fleet.learning import hardware
from provider_server.fleet.leases import context_tokens
from provider_server.program.verbs.console import Database, Home, nothing_yet, print_rows
from provider_server.program.verbs.opening import opened
from provider_server.rounds.context_names import names_by_label, names_by_token
from provider_server.rounds.home import settings_of
from provider_server.rounds.store.store import Store


class FindingRow(TypedDict):
    """A workload on a hardware group, by tokens; `alternatives` are groups where it fails less.

    `context_name` is what the provider calls the group, null where no name is known.
    """

    workload: str
    context: str
    context_name: str | None
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
    as_json: AsJson = False,
) -> None:
    """List the mismatches of a bundle, most probable first, after verifying its signature."""
    with opened(home, database) as store:
        names = _names(home, store) if home else {}
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
            "context_name": names.get(str(entry.context)) or bundle.names.get(str(entry.context)),
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


def _names(home: Path, store: Store) -> dict[str, str]:
    """What the provider calls its hardware groups, by their tokens in all epochs with a bundle."""
    secret, kept = read_key(home / "context.key"), hardware.load(home)
    names = names_by_label(store, settings_of(home), kept)
    found: dict[str, str] = {}
    for epoch in {reopened(Bundle, signed).epoch for signed in store.bundles()}:
        found |= names_by_token(partial(context_tokens, secret, epoch), names, hardware.levels_of(kept))
    return found


def _provider_key(store: Store) -> VerifyKey:
    """The provider's key, from the first entry of the directory."""
    return reopened(DirectoryEntry, store.entries()[0]).provider


def _finding_line(row: FindingRow) -> str:
    group = row["context_name"] or f"hardware group {row['context'][:12]}"
    return (
        f"workload {row['workload'][:12]} on {group}: {row['risk_ratio']:.1f} times the expected"
        f" failures (its own counts alone: {row['risk_ratio_low']:.1f}–{row['risk_ratio_high']:.1f});"
        f" among all pairs, probability that it is worse: {row['probability_worse']:.0%}"
    )
