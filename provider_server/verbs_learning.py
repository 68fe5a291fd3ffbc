"""Verbs that turn telemetry and releases into answers: contexts, learn, explain, publish."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provider_server.console import AsJson, Database, Home, failing, nothing_yet, print_rows, required

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from matplotlib.figure import Figure

    from provider_server.continual import Outlook
    from provider_server.learning import Findings
    from provider_server.observing import Observed
    from provider_server.provider import Provider
    from provider_server.release import Release
    from provider_server.settings import Telemetry
    from provider_server.telemetry.samples import Source
    from provider_server.verdicts import PairFinding

Out = Annotated[Path | None, typer.Option(help="Folder for pictures (PNG, SVG) and a page (HTML).", show_default=False)]
HOURS = 168


def contexts(
    home: Home = None,
    file: Annotated[list[Path] | None, typer.Option(help="Parquet or CSV, in place of Prometheus.")] = None,
    inventory: Annotated[Path | None, typer.Option(help="In place of [telemetry] inventory.")] = None,
    start: Annotated[int | None, typer.Option(help="First hour since 1970; by default a week ago.")] = None,
    end: Annotated[int | None, typer.Option(help="Hour after the last; by default the current one.")] = None,
    feature: Annotated[list[str] | None, typer.Option(help="Tell contexts apart by this too, evidence or not.")] = None,
    out: Out = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Sort nodes into contexts by what tells their failures, and find their build-up levels, from telemetry."""
    import time

    from provider_server import home as homes, observing
    from provider_server.telemetry.inventory import Inventory, load
    from provider_server.telemetry.samples import Window

    place = required(home)
    with failing():
        settings = homes.settings_of(place).telemetry
        listed = inventory or (Path(settings.inventory) if settings.inventory else None)
        known = load(listed) if listed else Inventory()
        last = end or int(time.time() // 3600)
        window = Window(last - HOURS if start is None else start, last, time.time())
        found = observing.observe(_source(file or [], settings), window, known, observing.load(place), feature or ())
        observing.keep(place, found.kept)
        if out:
            _draw_contexts(found, out)
    typer.echo(found.quality.text(), err=True)
    for doubt, count in sorted(found.doubts.items()):
        typer.echo(f"  doubt    {doubt}: {count}", err=True)
    typer.echo(_selection_line(found), err=True)
    print_rows(
        [_context_row(found, number) for number in range(len(found.kept.contexts.contexts))],
        _context_line,
        as_json=as_json,
    )


def _source(files: "Sequence[Path]", settings: "Telemetry") -> "Source":
    from crypto.errors import PharoahError
    from provider_server.telemetry.files import FileSource
    from provider_server.telemetry.prometheus import PrometheusSettings, PrometheusSource

    if files:
        return FileSource(files)
    if not settings.prometheus_url:
        raise PharoahError("there is no telemetry", hint="name --file, or [telemetry] prometheus_url in provider.toml")
    token = Path(settings.token_file) if settings.token_file else None
    return PrometheusSource(PrometheusSettings(settings.prometheus_url, bearer_token_file=token))


def _selection_line(found: "Observed") -> str:
    if not found.selected:
        return f"{found.failures:.0f} failures speak for no feature: all nodes are one context; see --feature"
    names = ", ".join(one.name for one in found.selected)
    return f"{found.failures:.0f} failures; contexts differ in {names}"


def _context_row(found: "Observed", place: int) -> dict[str, Any]:
    one = found.kept.contexts.contexts[place]
    levels = [found.kept.levels.get(node, 0) for node in one.nodes]
    return {
        "context": one.number,
        "description": one.description,
        "nodes": len(one.nodes),
        "failures_per_1000_node_hours": one.failures_per_1000_node_hours,
        "low": one.low,
        "high": one.high,
        "nodes_by_level": [levels.count(level) for level in range(4)],
    }


def _context_line(row: dict[str, Any]) -> str:
    levels = "/".join(map(str, row["nodes_by_level"]))
    return (
        f"context {row['context']}: {row['description']}; {row['failures_per_1000_node_hours']:.2f} failures per 1,000"
        f" node-hours ({row['low']:.2f}–{row['high']:.2f}); nodes at build-up level 0/1/2/3: {levels}"
    )


def _draw_contexts(found: "Observed", out: Path) -> None:
    from provider_server.pictures.contexts import context_map

    known = found.kept.contexts
    numbers = [-1 if (number := known.of(node)) is None else number for node in found.nodes]
    described = {one.number: one.description for one in known.contexts}
    rates = {one.number: one.failures_per_1000_node_hours for one in known.contexts}
    intervals = {one.number: (one.low, one.high) for one in known.contexts}
    _save({"contexts": context_map(found.positions, numbers, described, rates, intervals=intervals)}, out)


def _save(figures: "Mapping[str, Figure]", out: Path) -> None:
    from provider_server.pictures.drawing import save

    out.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        for suffix in ("png", "svg"):
            save(figure, out / f"{name}.{suffix}")


# ---- releases --------------------------------------------------------------------------------------------------------


def learn(
    home: Home = None,
    database: Database = None,
    out: Out = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Learn from all releases, and say how the bundles so far fared; nothing is published."""
    with _learning(home, database) as (provider, releases):
        findings, review, seen = provider.learn(releases), provider.review(releases), provider.outlook(releases)
        names = _names(required(home), provider, releases[-1])
    if out:
        _write_page(out, findings, seen, releases, names)
    worse = [pair for pair in findings.pairs if pair.judgement in ("worse", "confounded")]
    row = {
        "releases": len(releases),
        "pairs": len(findings.pairs),
        "rates": len(findings.rates),
        "accused": [_pair_row(pair, names) for pair in sorted(worse, key=lambda pair: -pair.probability_worse)],
        "alarms": [alarm.text for alarm in seen.alarms],
        "calibration_slope": seen.calibration.slope if seen.calibration else None,
        "calibration_ratio": seen.calibration.ratio_total if seen.calibration else None,
        "against_bundle": str(review.verdict) if review else None,
    }
    print_rows([row], _learnt_line, as_json=as_json)


def _learning(home: Path | None, database: str | None) -> "AbstractContextManager[tuple[Provider, list[Release]]]":
    """The provider and its releases; exit code 3 before the first."""
    from contextlib import contextmanager

    from provider_server import home as homes

    @contextmanager
    def opened() -> "Iterator[tuple[Provider, list[Release]]]":
        place = required(home)
        with failing():
            provider = homes.open_provider(place, database, homes.settings_of(place))
            try:
                releases = provider.releases()
                if not releases:
                    raise nothing_yet("nothing was released yet")
                yield provider, releases
            finally:
                provider.close()

    return opened()


def _names(home: Path, provider: "Provider", newest: "Release") -> "dict[str, str]":
    """What the tokens of the newest epoch stand for, as far as the provider knows: its own contexts and levels."""
    from provider_server import observing

    kept = observing.load(home)
    names: dict[str, str] = {}
    for context in kept.contexts.contexts if kept else ():
        label = observing.label_of(context.number)
        for level in range(4):
            tokens = provider.context_labels(newest.plan.start_hour, label, level)
            names |= {tokens["context"]: label, tokens["context_level"]: f"{label}, level {level}"}
    return names


def _pair_row(pair: "PairFinding", names: "Mapping[str, str]") -> dict[str, Any]:
    return {
        "workload": pair.workload,
        "context": pair.context,
        "context_name": names.get(pair.context),
        "judgement": str(pair.judgement),
        "probability_worse": pair.probability_worse,
        "risk_ratio": pair.risk_ratio,
        "risk_ratio_low": pair.low,
        "risk_ratio_high": pair.high,
        "expected_failures": pair.expected_failures,
        "reason": pair.reason,
        "alternatives": list(pair.alternatives),
    }


def _learnt_line(row: dict[str, Any]) -> str:
    lines = [f"{row['releases']} releases: {row['pairs']} pairs and {row['rates']} rates judged"]
    for one in row["accused"]:
        context = one["context_name"] or f"context {one['context'][:12]}"
        better = f"; better on {one['alternatives'][0][:12]}" if one["alternatives"] else ""
        lines.append(f"  workload {one['workload'][:12]} on {context}: {one['reason']}{better}")
    lines += [f"  alarm: {text}" for text in row["alarms"]]
    if row["against_bundle"]:
        lines.append(f"  against the bundle in force, on the newest week: {row['against_bundle']}")
    if row["calibration_slope"] is not None:
        ratio, slope = row["calibration_ratio"], row["calibration_slope"]
        lines.append(f"  calibration: {ratio:.2f} failures for each that was predicted, slope {slope:.2f}")
    return "\n".join(lines)


def _write_page(
    out: Path, findings: "Findings", seen: "Outlook", releases: "Sequence[Release]", names: "Mapping[str, str]"
) -> None:
    from provider_server.findings_page import render
    from provider_server.learnt import page_of

    page = page_of(findings, seen, releases, names)
    out.mkdir(parents=True, exist_ok=True)
    (out / "findings.html").write_text(render(page), encoding="utf-8")
    _save({section.heading.lower().replace(" ", "-"): section.figure for section in page.sections}, out)


def explain(
    workload: Annotated[str, typer.Argument(help="Token of a workload row, or its first digits.")],
    context: Annotated[str, typer.Argument(help="Token of a context, or its first digits.")],
    home: Home = None,
    database: Database = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Say why a workload is or is not taken for a mismatch on a context: evidence, interval, reason, alternatives."""
    with _learning(home, database) as (provider, releases):
        findings = provider.learn(releases)
        names = _names(required(home), provider, releases[-1])
    found = [one for one in findings.pairs if one.workload.startswith(workload) and one.context.startswith(context)]
    if len(found) != 1:
        raise nothing_yet(f"{len(found)} pairs have such tokens; see `pharoah-provider learn --json`")
    print_rows([_explained(found[0], names)], _explanation, as_json=as_json)


def _explained(pair: "PairFinding", names: "Mapping[str, str]") -> dict[str, Any]:
    twin = pair.compared
    return _pair_row(pair, names) | {
        "rate_per_1000_node_hours": 1000.0 * pair.rate,
        "rate_high": 1000.0 * pair.rate_high,
        "failures": twin.evidence.failures,
        "failures_elsewhere": twin.evidence.failures_elsewhere,
        "ratio_to_elsewhere": twin.ratio,
        "net_outcome": twin.net_outcome,
        "sign_p": twin.sign_p,
        "gamma": twin.gamma,
        "control_ratio": twin.control.ratio,
        "control_sees": twin.control.sees,
        "control_fires": twin.control.fires,
    }


def _explanation(row: dict[str, Any]) -> str:
    context = row["context_name"] or row["context"]
    control = "fires" if row["control_fires"] else "is silent" if row["control_sees"] else "sees too little"
    lines = [
        f"workload {row['workload']} on {context}: {row['judgement']}",
        f"  it {row['reason']}",
        f"  {row['rate_per_1000_node_hours']:.2f} failures per 1,000 node-hours, at most {row['rate_high']:.2f}",
        f"  counted, with noise: {row['failures']:.0f} failures here, {row['failures_elsewhere']:.0f} elsewhere;"
        f" {row['ratio_to_elsewhere']:.2g} times as many per node-hour",
        f"  matched node-hours: net outcome {row['net_outcome']:.2%}, sign test p = {row['sign_p']:.2g},"
        f" Γ = {row['gamma']:.1f}; the negative control {control}",
    ]
    if row["alternatives"]:
        lines.append(f"  it does better on {', '.join(row['alternatives'])}")
    return "\n".join(lines)


def publish(
    home: Home = None,
    database: Database = None,
    *,
    accept: Annotated[bool, typer.Option("--accept", help="Although it predicts the newest week worse.")] = False,
    as_json: AsJson = False,
) -> None:
    """Learn from all releases and publish the next bundle, unless it is worse on the newest week, which is held out."""
    from provider_server.continual import check

    with _learning(home, database) as (provider, releases):
        review = provider.review(releases)
        if not accept:
            check(review)
        findings = provider.learn(releases)
        provider.publish(releases, findings)
        number = provider.newest_bundle_number()
    row = {"bundle": number, "releases": len(releases), "against_bundle": str(review.verdict) if review else None}
    print_rows([row], _published_line, as_json=as_json)


def _published_line(row: dict[str, Any]) -> str:
    beside = f"; on the newest week {row['against_bundle']} than the one before" if row["against_bundle"] else ""
    return f"bundle {row['bundle']} is published, from {row['releases']} releases{beside}"
