"""`pharoah-provider`: what the provider's operator can see of the federation.

Results go to stdout (`--json` with stable keys), everything else to stderr. Exit codes: 0 ok, 2 failed, 3 nothing
there yet. The store is provider.db in `--home`, or what the URL of `--database` names. Heavy libraries load inside the
verbs, so that `--help` is instant.
"""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections import Counter

    from provider_server.store import Store

app = typer.Typer(
    name="pharoah-provider",
    help="The provider's half of Pharoah: releases that passed the gate, and what was published from them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Home = Annotated[
    Path | None,
    typer.Option("--home", envvar="PHAROAH_PROVIDER_HOME", help="The provider's home directory.", show_default=False),
]
Database = Annotated[
    str | None,
    typer.Option(
        envvar="PHAROAH_DATABASE",
        help="URL of the database, in place of provider.db in the home; a password is safer in the environment.",
        show_default=False,
    ),
]
BackupFile = Annotated[Path, typer.Argument(help="The backup.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with stable keys.")]


@app.command()
def releases(home: Home = None, database: Database = None, *, as_json: AsJson = False) -> None:
    """List the releases: window, contributors, tables, noise, and the privacy that each job-week paid."""
    from crypto.accountant import plan_loss
    from provider_server import release as gate

    with _opened(home, database) as store:
        made = [gate.from_bytes(data) for data in store.releases()]
    rows = [
        {
            "round_id": str(one.plan.round_id),
            "start_hour": one.plan.start_hour,
            "end_hour": one.plan.end_hour,
            "contributors": one.contributors,
            "epsilon": plan_loss(one.plan).at(one.plan.delta),
            "delta": one.plan.delta,
            "tables": {
                marginal.name: {"cells": table.events.size, "noise_sd": float(table.noise_variance.flat[0] ** 0.5)}
                for marginal, table in zip(one.plan.marginals, one.tables, strict=True)
            },
        }
        for one in made
    ]
    _print(rows, as_json=as_json, line=_release_line)


def _release_line(row: dict[str, Any]) -> str:
    tables = ", ".join(
        f"{name} {table['cells']} cells ±{table['noise_sd']:.1f}" for name, table in row["tables"].items()
    )
    return (
        f"hours {row['start_hour']:>6}–{row['end_hour']:<6} {row['contributors']} contributions,"
        f" epsilon {row['epsilon']:.3f}: {tables}"
    )


@app.command()
def findings(
    home: Home = None,
    database: Database = None,
    probability: Annotated[
        float, typer.Option(help="Show pairs that are at least this surely worse than expected.")
    ] = 0.5,
    *,
    as_json: AsJson = False,
) -> None:
    """List the mismatches of the newest bundle, the surest first."""
    from crypto.bundle import Bundle
    from crypto.codec import decode
    from crypto.signing import Signed

    with _opened(home, database) as store:
        newest = store.newest_bundle()
    if newest is None:
        typer.echo("pharoah-provider: error: no bundle was published yet", err=True)
        raise typer.Exit(3)
    bundle = decode(Bundle, decode(Signed, newest[1]).body)
    shown = sorted(bundle.mismatches, key=lambda entry: -entry.probability_worse)
    rows = [
        {
            "workload": str(entry.workload),
            "context": str(entry.context),
            "probability_worse": entry.probability_worse,
            "risk_ratio": entry.risk_ratio,
            "risk_ratio_low": entry.risk_ratio_low,
            "risk_ratio_high": entry.risk_ratio_high,
            "expected_failures": entry.expected_failures,
        }
        for entry in shown
        if entry.probability_worse >= probability
    ]
    _print(rows, as_json=as_json, line=_finding_line)


def _finding_line(row: dict[str, Any]) -> str:
    return (
        f"workload {row['workload'][:12]} on context {row['context'][:12]}: {row['risk_ratio']:.1f} times the expected"
        f" failures ({row['risk_ratio_low']:.1f}–{row['risk_ratio_high']:.1f}),"
        f" probability {row['probability_worse']:.0%}"
    )


@app.command()
def backup(file: BackupFile, home: Home = None, database: Database = None, *, as_json: AsJson = False) -> None:
    """Keep the store in a new file, as it is at one moment; whoever uses it goes on."""
    from provider_server import backup as backups

    with _opened(home, database) as store:
        kept = backups.backup(store, file)
    _print([_counts(file, kept)], as_json=as_json, line=_kept_line)


@app.command()
def restore(file: BackupFile, home: Home = None, database: Database = None, *, as_json: AsJson = False) -> None:
    """Fill a new store from a backup, of whichever database it was made."""
    from provider_server import backup as backups

    with _saying_why():
        backups.verify(file)
    with _opened(home, database, create=True) as store:
        kept = backups.restore(file, store)
    _print([_counts(file, kept)], as_json=as_json, line=_kept_line)


def _counts(file: Path, kept: "Counter[str]") -> dict[str, Any]:
    return {"file": str(file), **{table: kept[table] for table in ("leases", "releases", "bundles")}}


def _kept_line(row: dict[str, Any]) -> str:
    return f"{row['file']}: {row['leases']} leases, {row['releases']} releases, {row['bundles']} bundles"


def _print(rows: list[dict[str, Any]], *, as_json: bool, line: Any) -> None:
    import json

    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    for row in rows:
        sys.stdout.write(line(row) + "\n")


@contextmanager
def _opened(home: Path | None, database: str | None, *, create: bool = False) -> "Iterator[Store]":
    """The provider's store, closed afterwards."""
    from provider_server.store import Store

    where = _where(home, database)
    if create and isinstance(where, Path):
        where.parent.mkdir(parents=True, exist_ok=True)
    with _saying_why(), closing(Store(where, create=create)) as store:
        yield store


def _where(home: Path | None, database: str | None) -> Path | str:
    """A database that is named stands in place of the one in the home."""
    if database:
        return database
    if home is None:
        raise typer.BadParameter("name the store by --home or --database")
    return home / "provider.db"


@contextmanager
def _saying_why() -> Iterator[None]:
    """A fault or refusal becomes its text and exit code 2."""
    from crypto.errors import PharoahError

    try:
        yield
    except PharoahError as error:
        typer.echo(f"pharoah-provider: error: {error.diagnostics()}", err=True)
        raise typer.Exit(2) from error
