"""Verbs that analyse releases and publish: learn, explain, publish, catalogue."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypedDict

import numpy as np
import typer

from crypto.signing import reopened
from federation.base.catalogue_file import read_catalogue
from federation.base.clock import now_hour
from federation.base.console import AsJson, InputFile
from federation.base.visible import counted_as
from federation.protocol.bundle import Bundle
from federation.protocol.round_messages import finest_row
from provider_server.fleet.learning import hardware
from provider_server.fleet.learning.benchmark_jobs import read, rules_from
from provider_server.fleet.learning.findings import Findings
from provider_server.fleet.learning.new_contexts import NewContext, new_contexts
from provider_server.fleet.learning.publication_gate import check
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release
from provider_server.program.reporting.findings_text import (
    LearntRow,
    explanation_lines,
    explanation_row,
    learnt_lines,
    learnt_row,
)
from provider_server.program.verbs.console import Database, Home, nothing_yet, print_rows, required
from provider_server.program.verbs.opening import group_names
from provider_server.rounds import home as homes
from provider_server.rounds.provider import Provider
from provider_server.rounds.publisher import Publisher

Benchmarks = Annotated[
    Path | None,
    typer.Option(click_type=InputFile(), help="The provider's own benchmark jobs, as JSON lines.", show_default=False),
]
AsTenants = Annotated[
    bool, typer.Option("--as-tenants", help="Show what bundles tell tenants, learnt from their sums alone.")
]
NO_ROW = "no row"
SEED = 0  # assigns strata to training and test sets: the same benchmark jobs give the same rules


def learn(
    home: Home = None,
    database: Database = None,
    benchmarks: Benchmarks = None,
    *,
    as_tenants: AsTenants = False,
    as_json: AsJson = False,
) -> None:
    """Analyse all releases, and show how well earlier bundles predicted. Publishes nothing.

    Findings are for operators: failures that the provider saw itself are in them, which no bundle tells tenants.
    """
    with _learning(home, database) as (provider, publisher, releases):
        learnt = _learnt(publisher, releases, as_tenants=as_tenants)
        findings, newcomers = _benchmarked(required(home), provider, learnt, releases, benchmarks)
        review, outlook = publisher.review(releases), publisher.outlook(releases)
        names = _names(home, provider, releases[-1])
    row: LearntRow = {
        "readers": "tenants" if as_tenants else "operators",
        "releases": len(releases),
        "against_bundle": str(review.verdict) if review else None,
        **learnt_row(findings, newcomers, outlook, names),
    }
    print_rows([row], learnt_lines, as_json=as_json)


def _learnt(publisher: Publisher, releases: Sequence[Release], *, as_tenants: bool) -> Findings:
    return publisher.learn(releases) if as_tenants else publisher.learn_for_operators(releases)


def _benchmarked(
    home: Path, provider: Provider, findings: Findings, releases: Sequence[Release], file: Path | None
) -> tuple[Findings, tuple[NewContext, ...]]:
    """Findings with rules from benchmark jobs, and first rates of contexts that have none."""
    jobs, known, newest = read(file) if file else (), hardware.load(home), releases[-1].plan

    def level_0(name: str) -> str:
        return provider.context_labels(newest.start_hour, name, 0)["context_level"]

    if file:
        findings = replace(findings, rules=rules_from(jobs, np.random.default_rng(SEED)))
    contexts_now = known.contexts if known else None
    return findings, new_contexts(findings.rates, jobs, contexts_now, level_0, newest.band_edges_hours)


@contextmanager
def _learning(home: Path | None, database: str | None) -> Iterator[tuple[Provider, Publisher, list[Release]]]:
    """The provider, its publisher and its releases; exit code 3 before the first."""
    place = required(home)
    with closing(homes.open_provider(place, database, homes.settings_of(place))) as provider:
        publisher = homes.open_publisher(place, provider.store)
        releases = publisher.releases()
        if not releases:
            raise nothing_yet("no release yet")
        yield provider, publisher, releases


def _names(home: Path | None, provider: Provider, newest: Release) -> dict[str, str]:
    """What the provider calls its hardware groups, by their tokens in the newest epoch."""
    place = required(home)
    return group_names(place, provider, homes.settings_of(place), newest.plan.start_hour)


def explain(
    workload: Annotated[str, typer.Argument(help="Token of a workload row, or its first digits.")] = "",
    context: Annotated[str, typer.Argument(help="Name or token of a hardware group, or how either begins.")] = "",
    home: Home = None,
    database: Database = None,
    lease: Annotated[str | None, typer.Option(help="A lease, instead of workload and context.")] = None,
    *,
    as_tenants: AsTenants = False,
    as_json: AsJson = False,
) -> None:
    """Show the evidence for or against a mismatch of a workload on a hardware group: interval, reason, alternatives.

    It is for operators: failures that the provider saw itself are in it, which no bundle tells tenants.
    """
    with _learning(home, database) as (provider, publisher, releases):
        findings = _learnt(publisher, releases, as_tenants=as_tenants)
        names = _names(home, provider, releases[-1])
        if lease:
            since_h, until_h = releases[0].plan.first_hour, max(now_hour(), releases[-1].plan.end_hour)
            workload, context = _pair_of(_the_one(provider.store.leases(since_h, until_h), lease), findings)
        pairs = [pair for pair in findings.pairs if pair.workload.startswith(workload)]
        named = [pair for pair in pairs if context and names.get(pair.context) == context]
        matches = named or [pair for pair in pairs if _begins(pair.context, names.get(pair.context, ""), context)]
        if len(matches) != 1:
            raise nothing_yet(
                f"{counted_as(len(matches), 'pair')} found for these tokens, not one:"
                " list them with `pharoah-provider findings learn --json`"
            )
    print_rows([explanation_row(matches[0], findings, names)], explanation_lines, as_json=as_json)


def _begins(token: str, name: str, text: str) -> bool:
    return token.startswith(text) or name.lower().startswith(text.lower())


def _pair_of(lease: Lease, findings: Findings) -> tuple[str, str]:
    """The tokens of the workload's row and of the context that a lease runs as, or what no token begins with."""
    workload = finest_row(lease.labels, {one.workload for one in findings.pairs})
    return workload or NO_ROW, lease.labels.get("context", NO_ROW)


def _the_one(leases: Sequence[Lease], digits: str) -> Lease:
    matches = [lease for lease in leases if str(lease.lease).startswith(digits)]
    if len(matches) != 1:
        raise nothing_yet(f"{counted_as(len(matches), 'lease')} since the first release begin with {digits!r}, not one")
    return matches[0]


class PublishRow(TypedDict):
    """A bundle, and how it predicts the newest week beside the one before; null without one."""

    bundle: int
    releases: int
    against_bundle: str | None


def publish(
    home: Home = None,
    database: Database = None,
    benchmarks: Benchmarks = None,
    *,
    accept: Annotated[
        bool, typer.Option("--accept", help="Publish even if it predicts the newest week worse.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Learn from all releases and publish the next bundle, unless it predicts the held-out newest week worse."""
    with _learning(home, database) as (provider, publisher, releases):
        review = publisher.review(releases)
        if not accept:
            check(review)
        findings, newcomers = _benchmarked(required(home), provider, publisher.learn(releases), releases, benchmarks)
        if benchmarks:
            findings = findings.with_first_rates(tuple(rate for newcomer in newcomers for rate in newcomer.rates))
        number = reopened(Bundle, publisher.publish(releases, findings)).number
    row: PublishRow = {
        "bundle": number,
        "releases": len(releases),
        "against_bundle": str(review.verdict) if review else None,
    }
    print_rows([row], _published_line, as_json=as_json)


def _published_line(row: PublishRow) -> str:
    compared = f"; newest week: {row['against_bundle']} than the bundle before" if row["against_bundle"] else ""
    return f"bundle {row['bundle']} published, from {counted_as(row['releases'], 'release')}{compared}"


class CatalogueRow(TypedDict):
    """A bundle that was published for its catalogue, and the names in it."""

    bundle: int
    names: list[str]


def catalogue(
    file: Annotated[
        Path, typer.Argument(click_type=InputFile(), help="A catalogue that `pharoah-tenant workload catalogue` wrote.")
    ],
    home: Home = None,
    database: Database = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Publish a catalogue of benchmark jobs, in place of the one before; findings stay as they are.

    Tenants get it when the next round begins. Leases that they have registered keep their tokens, so publish a
    catalogue before the first week, or when an epoch of tokens ends.
    """
    place = required(home)
    entries = read_catalogue(file)
    with closing(homes.open_provider(place, database, homes.settings_of(place))) as provider:
        signed = homes.open_publisher(place, provider.store).publish_catalogue(entries)
    row: CatalogueRow = {"bundle": reopened(Bundle, signed).number, "names": [entry.name for entry in entries]}
    print_rows([row], _catalogue_line, as_json=as_json)


def _catalogue_line(row: CatalogueRow) -> str:
    return f"bundle {row['bundle']} published, with a catalogue of {counted_as(len(row['names']), 'benchmark job')}"
